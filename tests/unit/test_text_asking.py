"""What datasets and teachers of somebody's environment give: looked at at once, and named if it is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.core.errors import EnvironmentFault, EnvironmentNotBuilt, EnvironmentRaised
from headrace.envs.text.asking import called, problems_of, shown_by
from headrace.envs.text.building import build_text_environment
from headrace.envs.text.protocol import Message, Problem, Transcript
from headrace.llm.demonstrations import first_of
from orchestration_support import Bench, SumGame, rl_config

SAID = (Message("user", "abc"),)
GOOD = Problem("p0", SAID)


def _env(dataset: Any) -> Any:
    return SimpleNamespace(dataset=lambda _: dataset)


def _raising(error: BaseException) -> Callable[..., Any]:
    def raises(*_: object, **__: object) -> Any:
        raise error

    return raises


class Unheard(BaseException):
    """As of an extension, which need not know our rules."""


class Interrupted(KeyboardInterrupt):
    """Somebody's own; not the user's Ctrl-C."""


@pytest.mark.parametrize(
    ("dataset", "wrong"),
    [
        (None, "returned NoneType"),
        ("abc", "returned str"),
        (iter([GOOD]), "returned list_iterator"),
        (["abc"], "holds a problem that is str instead of Problem"),
        ([GOOD, Problem(3, SAID)], "holds a problem whose id is int instead of str"),  # type: ignore[arg-type]
        ([Problem("p", list(SAID))], "holds a problem whose opening is list instead of a tuple"),  # type: ignore[arg-type]
        ([Problem("p", "hello")], "holds a problem whose opening is str instead of a tuple"),  # type: ignore[arg-type]
        ([Problem("p", ())], "holds a problem that opens with nothing for the model to answer"),
        ([Problem("p", ({"role": "user"},))], "whose opening holds dict instead of Message"),  # type: ignore[arg-type]
        ([Problem("p", (Message("user", 3),))], "holds a Message whose content is int instead of str"),  # type: ignore[arg-type]
        (
            [Problem("p", (Message("robot", "x"),))],  # type: ignore[arg-type]
            "holds a Message of the role 'robot' instead of system, user, assistant",
        ),
        ([Problem("p", SAID, None)], "holds a problem whose facts are NoneType instead of a mapping"),  # type: ignore[arg-type]
    ],
)
def test_a_dataset_that_is_none_is_said_to_be(dataset: Any, wrong: str) -> None:
    with pytest.raises(EnvironmentFault) as raised:
        problems_of(_env(dataset), "train")
    assert raised.value.what.startswith("dataset('train') of the environment ")
    assert wrong in raised.value.what


def test_a_problem_is_shown_with_its_place() -> None:
    with pytest.raises(EnvironmentFault) as raised:
        problems_of(_env([GOOD, 7]), "eval", label="my-game")
    assert str(raised.value) == (
        "[ENV-000] dataset('eval') of my-game holds a problem that is int instead of Problem\n"
        "  place: 1\n"
        "  problem: 7\n"
        "  fix: return Problem(id: str, opening: tuple of Message, facts: mapping), see headrace.envs.text.protocol"
    )


def test_lists_and_tuples_of_problems_are_taken() -> None:
    assert problems_of(_env([GOOD]), "train") == problems_of(_env((GOOD,)), "train") == (GOOD,)
    assert problems_of(_env([]), "eval") == ()


def test_a_run_without_a_problem_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match="no problem to train on"):
        first_of(())


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        (None, "NoneType instead of a tuple of Message"),
        ("abc", "str instead of a tuple of Message"),
        (("abc",), "str instead of Message"),
        ((Message("user", None),), "a Message whose content is NoneType instead of str"),  # type: ignore[arg-type]
    ],
)
def test_a_demonstration_that_is_none_is_said_to_be(shown: Any, wrong: str) -> None:
    teacher = SimpleNamespace(demonstration=lambda *_: shown)
    with pytest.raises(EnvironmentFault) as raised:
        shown_by(teacher, "demonstration", GOOD, 0)
    assert raised.value.what == f"demonstration of the environment returned {wrong}"
    assert raised.value.facts["problem"] == "p0"


@pytest.mark.parametrize("error", [ValueError("page 7"), SystemExit(3), Unheard("page 7"), Interrupted("page 7")])
def test_whatever_is_raised_has_the_name_of_who_raised_it(error: BaseException) -> None:
    with pytest.raises(EnvironmentRaised) as raised:
        problems_of(SimpleNamespace(dataset=_raising(error)), "train")
    assert raised.value.what == f"dataset('train') of the environment raised {type(error).__name__}: {error}"
    assert str(raised.value.facts["raised_at"]).endswith("in raises")


def test_a_user_s_interrupt_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        problems_of(SimpleNamespace(dataset=_raising(KeyboardInterrupt())), "train")


def exits(**_: object) -> Any:
    """A factory."""
    raise SystemExit(5)


def test_a_factory_that_exits_is_named() -> None:
    with pytest.raises(EnvironmentNotBuilt, match=r"raised SystemExit: 5"):
        build_text_environment(None, f"{__name__}:exits", {})


class Leaving(SumGame):
    """Raises something that is no Exception."""

    error: BaseException = SystemExit(4)

    def reward(self, problem: Problem, transcript: Transcript) -> Any:
        if problem.id == "p3":
            raise self.error
        return super().reward(problem, transcript)


@pytest.mark.parametrize("error", [SystemExit(4), KeyboardInterrupt(), Interrupted(), GeneratorExit(), Unheard("odd")])
def test_whatever_a_reward_raises_fails_its_rollout_and_not_the_run(error: BaseException) -> None:
    environment = Leaving()
    environment.error = error
    bench = Bench(rl_config(steps=4), environment=environment).run()
    assert len(bench.batches) == 4
    assert set(bench.books["failed"]) == {"environment"}
    assert bench.reports("retry")[0]["text"] == f"reward() of problem p3 raised {type(error).__name__}: {error}"


def test_a_copy_of_the_process_does_not_come_out_of_the_environment() -> None:
    ours, children = os.getpid(), []

    def forks() -> None:
        children.append(os.fork())

    called("reward of the environment", forks)
    if os.getpid() != ours:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 70
