"""Which problem comes next, which groups are filtered, when is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.envs.text.protocol import Message, Problem
from headrace.llm import evaluating
from headrace.llm.config import FilterConfig
from headrace.llm.messages import Failure
from headrace.llm.orchestration.evaluation import is_due, specs, wilson
from headrace.llm.orchestration.filters import filtered
from headrace.llm.orchestration.gatherer import Gatherer
from headrace.llm.orchestration.problems import Problems, build_curriculum
from orchestration_support import pause, rl_config, run_in_fake_time

FIVE = [Problem(f"p{n}", (Message("user", str(n)),)) for n in range(5)]


def taken(problems: Problems, count: int) -> list[str]:
    return [problems.next().id for _ in range(count)]


def test_each_pass_holds_every_problem_once_in_an_order_of_its_own() -> None:
    passes = np.array(taken(Problems(FIVE, 3), 50)).reshape(10, 5)
    assert all(sorted(one) == [problem.id for problem in FIVE] for one in passes)
    assert len({tuple(one) for one in passes}) > 5


def test_the_order_follows_from_the_seed() -> None:
    assert taken(Problems(FIVE, 3), 12) == taken(Problems(FIVE, 3), 12)
    assert taken(Problems(FIVE, 3), 12) != taken(Problems(FIVE, 4), 12)


@pytest.mark.parametrize("after", [0, 3, 5, 8])
def test_it_goes_on_where_it_was(after: int) -> None:
    first, second = Problems(FIVE, 3), Problems(FIVE, 3)
    taken(first, after)
    second.restore(first.state())
    assert taken(first, 9) == taken(second, 9)


class Hardest:
    """Asks for what went worst; every other problem is drawn."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.worst = dict.fromkeys(ids, 1.0)

    def next(self, rng: np.random.Generator) -> str:
        if rng.random() < 0.5:
            return str(rng.choice(list(self.worst)))
        return min(self.worst, key=lambda name: self.worst[name])

    def told(self, problem: str, rewards: Sequence[float]) -> None:
        self.worst[problem] = float(np.mean(rewards))

    def state(self) -> Any:
        return self.worst

    def restore(self, state: Any) -> None:
        self.worst = dict(state)


class Lost(Hardest):
    def next(self, rng: np.random.Generator) -> str:
        return "p9"


def test_a_curriculum_decides_from_what_it_is_told() -> None:
    def played(problems: Problems, count: int) -> list[str]:
        names = []
        for _ in range(count):
            names.append(problems.next().id)
            problems.told(names[-1], [0.1 if names[-1] == "p3" else 0.9])
        return names

    first = Problems(FIVE, 3, Hardest([one.id for one in FIVE]))
    begun = played(first, 20)
    assert begun[5:].count("p3") > 7
    second = Problems(FIVE, 3, Hardest([one.id for one in FIVE]))
    second.restore(first.state())
    assert played(first, 20) == played(second, 20)


def test_a_curriculum_that_names_no_problem_is_refused() -> None:
    with pytest.raises(ConfigError, match="the curriculum chose 'p9', which is no training problem"):
        Problems(FIVE, 3, Lost(["p0"])).next()


@pytest.mark.parametrize("name", ["module", "headrace.llm.orchestration.problems:none", ":f"])
def test_a_name_of_no_curriculum_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        build_curriculum(name, ["p0"])


@pytest.mark.parametrize("problems", [[], [FIVE[0], FIVE[0]]])
def test_problems_that_cannot_be_told_apart_are_refused(problems: list[Problem]) -> None:
    with pytest.raises(ConfigError):
        Problems(problems, 0)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([0.0, 1.0], None),
        ([0.5, 0.5], "zero_advantage"),
        ([1.0], "too_few"),
        ([], "too_few"),
        ([0.9, 0.95], "easy"),
        ([-0.9, -0.9], "hard"),
        ([0.1 + 0.2, 0.3], "zero_advantage"),
    ],
)
def test_filters(rewards: list[float], reason: str | None) -> None:
    assert filtered(rewards, 2, FilterConfig(easy_above=0.8, hard_below=-0.5)) == reason


def test_a_filter_that_is_off_filters_nothing() -> None:
    assert filtered([0.5, 0.5], 2, FilterConfig(zero_advantage=False)) is None


def test_when_is_evaluated() -> None:
    assert is_due(0, None, 10, 0)
    assert [v for v in range(1, 11) if is_due(v, 0, 10, 0)] == [10]
    assert is_due(7, 0, 10, 5)  # versions may be skipped
    assert not is_due(9, 7, 10, 5)
    assert not is_due(10, 10, 10, 5)


@pytest.mark.parametrize(("waiting", "most"), [(0, 3), (2, 5), (9, 6)])
def test_an_evaluation_by_command_asks_for_no_more_at_once_than_its_engine_holds(waiting: int, most: int) -> None:
    playing = [0]

    class Player:
        async def play(self, spec: object) -> Failure:
            playing.append(playing[-1] + 1)
            await pause(1.0)
            playing.append(playing[-1] - 1)
            return Failure("made_up")

    async def main() -> None:
        config = rl_config(
            lag=1,
            inference={"slots": 3, "max_waiting": waiting},
            orchestrator={"groups_per_step": 3, "group_size": 2},
        )
        todo = specs(FIVE, config.evaluation.model_copy(update={"samples": 3}))
        gatherer = Gatherer(None, rounds=True, at_once=3)  # type: ignore[arg-type]
        assert len(await evaluating._played(todo, Player(), gatherer, config)) == 15  # type: ignore[arg-type]

    run_in_fake_time(main())
    assert max(playing) == most


def test_the_interval_of_a_rate() -> None:
    assert wilson(0, 10) == (pytest.approx(0.0), pytest.approx(0.2775, abs=1e-4))
    assert wilson(5, 10) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert wilson(10, 10)[1] == pytest.approx(1.0)
    assert wilson(0, 0) == (0.0, 1.0)
