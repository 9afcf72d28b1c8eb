"""Which problem comes next, which groups are filtered, when is evaluated."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import ConfigError, EnvironmentRaised
from headrace.envs.text.protocol import Message, Problem
from headrace.llm import evaluating
from headrace.llm.config import FilterConfig
from headrace.llm.messages import Failure
from headrace.llm.orchestration.evaluation import is_due, specs, wilson
from headrace.llm.orchestration.filters import filtered
from headrace.llm.orchestration.gatherer import Gatherer
from headrace.llm.orchestration.problems import Curriculum, Problems, build_curriculum
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


def test_a_curriculum_that_names_what_no_name_can_be_is_refused() -> None:
    class Lists(Hardest):
        def next(self, rng: np.random.Generator) -> Any:
            return ["p0"]

    with pytest.raises(ConfigError, match=r"the curriculum chose \['p0'\], which is no training problem"):
        Problems(FIVE, 3, Lists(["p0"])).next()


class Keeps(Hardest):
    """Keeps what it is given."""

    def state(self) -> Any:
        return self.worst["state"]


def keeping(state: object) -> Keeps:
    made = Keeps([])
    made.worst = {"state": state}  # type: ignore[dict-item]
    return made


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (np.int64(3), "Object of type int64 is not JSON serializable"),
        ({"n": [np.float32(3)]}, "Object of type float32 is not JSON serializable"),
        ({"p0", "p1"}, "Object of type set is not JSON serializable"),
        ({("p0", 1): 2}, "keys must be str, int, float, bool or None, not tuple"),
        ({"a": [{0: 1}]}, "the key 0 is read back as text"),
        ({"a": {"b": (1, 2)}}, "(1, 2) is read back as [1, 2]"),
        (CIRCLE, "Circular reference detected"),
    ],
)
def test_a_state_that_no_checkpoint_gives_back_is_refused_before_anything_is_played(
    state: object, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Problems(FIVE, 3, keeping(state))
    assert str(caught.value) == (
        f"[CFG-001] state() of the curriculum {__name__}:Keeps is not what a checkpoint would give back to restore()\n"
        f"  problem: {problem}\n"
        f"  state: {state!r}\n"
        "  fix: have it return dicts with keys of text, lists, texts, numbers of Python's own, True, False and None"
    )


@pytest.mark.parametrize(
    "state", [None, 3, 0.1, float("inf"), float("nan"), "\ud800", [True, [None, {"a": [1, 1e-300]}]]]
)
def test_a_state_that_a_checkpoint_gives_back_is_taken(state: object) -> None:
    kept = Problems(FIVE, 3, keeping(state)).state()["curriculum"]
    assert repr(kept) == repr(state)


def test_what_is_kept_is_a_copy() -> None:
    state = {"worst": [1]}
    problems = Problems(FIVE, 3, keeping(state))
    kept = problems.state()
    state["worst"].append(2)
    assert kept["curriculum"] == {"worst": [1]}


@pytest.mark.parametrize("method", ["next", "told", "state", "restore"])
@pytest.mark.parametrize("error", [KeyError, SystemExit, asyncio.CancelledError])
def test_what_a_curriculum_raises_names_it_and_the_method(method: str, error: type[BaseException]) -> None:
    def raises(*_: object) -> None:
        raise error("p0")

    curriculum = Hardest([one.id for one in FIVE])
    kept = Problems(FIVE, 3, curriculum).state()
    setattr(curriculum, method, raises)

    def played() -> None:
        problems = Problems(FIVE, 3, curriculum)
        assert method != "state", "asked before anything is played"
        problems.restore(kept)
        assert method != "restore"
        problems.next()
        problems.told("p0", [1.0])

    with pytest.raises(EnvironmentRaised) as caught:
        played()
    assert caught.value.what.startswith(f"{method}() of the curriculum {__name__}:Hardest raised {error.__name__}: ")
    assert "in raises" in str(caught.value.facts["raised_at"])


def test_what_is_no_curriculum_is_refused() -> None:
    class Half:
        def next(self, rng: np.random.Generator) -> str:
            return "p0"

    with pytest.raises(ConfigError, match=r"Half is no curriculum: it has no told\(\), state\(\), restore\(\)"):
        Problems(FIVE, 3, Half())  # type: ignore[arg-type]


def forgotten(ids: list[str]) -> None:
    Hardest(ids)


def test_a_curriculum_that_is_not_returned_is_not_the_default() -> None:
    with pytest.raises(ConfigError, match=r"the curriculum .*:forgotten returned None"):
        build_curriculum(f"{__name__}:forgotten", ["p0"])


def no_curriculum(ids: list[str]) -> Curriculum:
    raise LookupError("of these I know none")


def test_what_makes_a_curriculum_and_raises_is_named() -> None:
    with pytest.raises(
        EnvironmentRaised, match=r"the curriculum .*:no_curriculum raised LookupError: of these I know none"
    ):
        build_curriculum(f"{__name__}:no_curriculum", ["p0"])


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
