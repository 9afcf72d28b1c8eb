"""The example's outer loop: what it trains from what, in which order results count, what the budget is charged."""

from __future__ import annotations

import json
from concurrent.futures import Executor, Future
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.envs.cage2.network import TYPES
from headrace.search import OrderSearch, distance

EXAMPLES = Path(__file__).parents[2] / "examples"
BEST = ("op_server", "enterprise", "user", "op_host", "defender")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import cage2_workflows

    return cage2_workflows


def trained(task, *, fails: bool = False):
    """An outcome as of a training that makes what was inherited better, with a score that falls with the distance."""
    from cage2.trainer import Measured, Outcome

    from headrace.search import StopReason

    measured = Measured(-20.0 - 5.0 * distance(task.order, BEST), 1.0, 0.95, 12.0, 0)
    if fails:
        return Outcome(task, None, 0, 70, None, None, (), "[SUP-001] learner raised")
    episodes = min(task.max_episodes, 100)
    place = f"{task.run_dir}/checkpoints/9"
    return Outcome(task, measured, episodes, episodes + 20, StopReason.COMPLIANT, place, ((episodes, 0.95, -20.0),))


class Backwards(Executor):
    """Does the newest task first, and nothing before somebody waits."""

    def __init__(self, failing: frozenset[int] = frozenset()) -> None:
        self.tasks: list[tuple[object, Future[object]]] = []
        self.done: list[int] = []
        self._failing = failing

    def submit(self, fn, /, *args, **kwargs):
        pool, [task] = self, args

        class Lazy(Future):
            def result(self, timeout=None):
                while not self.done():
                    other, future = pool.tasks.pop()
                    pool.done.append(other.number)
                    future.set_result(trained(other, fails=other.number in pool._failing))
                return super().result(timeout)

        future = Lazy()
        self.tasks.append((task, future))
        return future


def campaign(example, tmp_path, parallel=2, known=None, total=1000, **rules):
    rules = example.Rules(max_episodes=150, every_episodes=50, **rules)
    return example.Campaign(
        OrderSearch(TYPES, 3, start=3),
        rules,
        tmp_path,
        total_episodes=total,
        parallel=parallel,
        seed=3,
        known=known or {},
    )


def test_results_count_in_the_order_of_asking_whoever_is_done_first(example, tmp_path):
    pool, search = Backwards(), campaign(example, tmp_path)
    search.run(pool, lambda: None)
    assert pool.done[:2] == [1, 0]
    assert [trial.choice.number for trial in search.trials] == list(range(len(search.trials)))
    again = campaign(example, tmp_path)
    again.run(Backwards(), lambda: None)
    assert again.trials == search.trials


def test_budget_is_spent_and_not_overdrawn(example, tmp_path):
    pool, search = Backwards(frozenset({1})), campaign(example, tmp_path, total=1000)
    search.run(pool, lambda: None)
    spent = [trial.outcome.charged for trial in search.trials]
    assert spent[:2] == [100, 70]  # what counts, and all of one that failed
    assert 1000 - 50 < sum(spent) <= 1000
    assert sum(trial.outcome.played for trial in search.trials) > 1000  # what was on its way is not charged
    assert search.trials[1].outcome.score is None


def test_policies_begin_from_the_nearest_order_that_was_trained(example, tmp_path):
    search = campaign(example, tmp_path, parallel=1)
    search.run(Backwards(), lambda: None)
    first, *others = search.trials
    assert first.outcome.task.begin_from is None
    for number, trial in enumerate(others, 1):
        task, before = trial.outcome.task, search.trials[:number]
        apart = [distance(task.order, one.choice.order) for one in before]
        assert distance(task.order, task.inherited_order) == min(apart)
        [*_, source] = [one.outcome for one in before if one.choice.order == task.inherited_order]
        assert (task.begin_from, task.inherited_episodes) == (source.checkpoint, source.lineage_episodes)
        assert trial.outcome.lineage_episodes == source.lineage_episodes + trial.outcome.episodes


def test_without_inheritance_every_policy_is_fresh(example, tmp_path):
    search = campaign(example, tmp_path, inherits=False)
    search.run(Backwards(), lambda: None)
    assert {trial.outcome.task.begin_from for trial in search.trials} == {None}


def test_disobedience_costs_what_it_would_have_lost_of_the_reward(example, tmp_path):
    from cage2.trainer import Measured, Outcome, Rules, Task

    task = Task(0, BEST, Rules(alignment_lambda=30.0, threshold=0.9), "run", 0, 100)
    measured = Measured(-20.0, 1.0, 0.5, 12.0, 0)
    assert Outcome(task, measured, 1, 1, None, "c", ()).score == pytest.approx(-32.0)


def test_what_was_written_is_read_back_and_not_trained_again(example, tmp_path):
    from cage2.report import draw, read_outcomes, table, write_json
    from cage2.trainer import measure_greedy

    first, pool = campaign(example, tmp_path), Backwards()
    first.run(pool, lambda: None)
    greedy = measure_greedy(BEST, example.Rules(evaluation_episodes=4))
    path, arguments = tmp_path / "results.json", {"red": "b_line", "seed": 3}
    write_json(path, arguments, first._search, first.trials, greedy)
    known = read_outcomes(path, arguments)
    assert known == {trial.choice.number: trial.outcome for trial in first.trials}

    less = {number: outcome for number, outcome in known.items() if number < 4}
    second, rest = campaign(example, tmp_path, known=less), Backwards()
    second.run(rest, lambda: None)
    assert second.trials == first.trials
    assert sorted(rest.done) == [number for number in sorted(known) if number >= 4]
    with pytest.raises(ConfigError, match="is of a search with other arguments"):
        read_outcomes(path, {**arguments, "seed": 4})

    told = json.loads(path.read_text())
    assert told["trials"][-1]["choice"]["model"] == "gaussian process"
    assert len(told["calibration"]["forecasts"]) == len(first.trials) - 4  # two at a time: the fourth knows two results
    assert len(table(first.trials).splitlines()) == len(first.trials) + 1
    draw(tmp_path / "search.png", first._search, first.trials, greedy, "test")
    assert (tmp_path / "search.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--red", "bline"], "invalid choice: 'bline'"),
        (["--total-episodes", "10"], "nothing would be trained: --total-episodes 10 is less than --every-episodes 500"),
        (["--max-episodes", "499"], "nothing would be trained: --max-episodes 499 is less than --every-episodes 500"),
    ],
)
def test_arguments_of_which_nothing_can_come_are_refused(example, capsys, arguments, said):
    with pytest.raises(SystemExit):
        example.parsed(arguments)
    assert said in capsys.readouterr().err


def test_fixed_episodes_are_the_same_for_every_policy(example):
    from cage2.trainer import Rules, measure

    seen = []

    def asleep(observations):
        seen.append(observations[:, :52].copy())
        return [0] * len(observations)

    rules = Rules(evaluation_episodes=3)
    first, second = (measure(asleep, order, rules) for order in (BEST, BEST[::-1]))
    assert first == second
    assert all(np.array_equal(*pair) for pair in zip(seen[:100], seen[100:], strict=True))
    assert (first.compliance, first.fixes, first.without_fix) == (0.5, 0.0, 3)
    assert first.return_mean < -1000
