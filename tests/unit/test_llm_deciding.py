"""What follows from what happens to the components of a language-model run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ComponentError
from headrace.llm.launch.deciding import (
    AskToStop,
    Begin,
    BeginAgain,
    Course,
    Fail,
    Phase,
    full_cast,
    single_cast,
)
from headrace.supervision.spec import GiveUp, Nothing, Restart


def course(**changes: bool) -> Course:
    return Course(full_cast(**({"warm_start": True, "inference": True, "inline": False} | changes)))


def running() -> Course:
    """A run in which everybody is there."""
    made = course(warm_start=False)
    made.begin()
    made.ready("inference")
    made.ready("trainer")
    made.ready("orchestrator")
    assert made.phase is Phase.RUNNING
    return made


def leaves(made: Course, name: str) -> list:
    return made.ended(name, Nothing(name), expected=True)


def test_stages_follow_each_other():
    made = course()
    assert made.begin() == [Begin(("warm-start",))]
    assert made.ready("warm-start") == []  # it is needed for what it makes
    assert made.done("warm-start") == []
    assert leaves(made, "warm-start") == [Begin(("inference",))]
    assert made.ready("inference") == [Begin(("trainer", "orchestrator"))]
    assert made.ready("orchestrator") == []
    assert made.phase is Phase.STARTING
    made.ready("trainer")
    assert made.phase is Phase.RUNNING


def test_the_server_is_told_to_stop_once_trainer_and_orchestrator_are_done():
    made = running()
    made.done("trainer")
    assert leaves(made, "trainer") == []
    made.done("orchestrator")
    assert leaves(made, "orchestrator") == [AskToStop(("inference",), "nobody needs it any more")]
    assert made.phase is Phase.CLOSING
    assert leaves(made, "inference") == []
    assert made.phase is Phase.OVER


def test_one_that_falls_after_its_last_word_costs_nothing():
    """A driver that crashes while it is unloaded, say, after everything was saved."""
    made = course()
    made.begin()
    made.done("warm-start")
    assert made.ended("warm-start", Nothing("warm-start"), expected=False) == [Begin(("inference",))]
    for name in ("inference", "trainer", "orchestrator"):
        made.ready(name)
    made.done("trainer")
    assert made.ended("trainer", Nothing("trainer"), expected=False) == []
    made.done("orchestrator")
    (step,) = made.ended("orchestrator", Nothing("orchestrator"), expected=False)
    assert step == AskToStop(("inference",), "nobody needs it any more")
    assert made.failed is None


def test_a_server_is_started_again_and_nobody_is_told():
    made = running()
    assert made.ended("inference", Restart("inference", 0.5), expected=False) == [BeginAgain("inference")]
    assert made.ready("inference") == []
    assert (made.phase, made.failed) == (Phase.RUNNING, None)
    assert "inference" in made.alive


@pytest.mark.parametrize("gone", ["trainer", "orchestrator"])
def test_the_end_of_one_that_is_needed_ends_the_run_for_all(gone):
    made = running()
    other = {"trainer": "orchestrator", "orchestrator": "trainer"}[gone]
    assert made.ended(gone, GiveUp(gone, "it may not be started again"), expected=False) == [
        Fail(gone, "it may not be started again"),
        AskToStop((other,), f"{gone} has ended"),
    ]
    assert leaves(made, other) == [AskToStop(("inference",), "nobody needs it any more")]
    leaves(made, "inference")
    assert (made.phase, made.failed) == (Phase.OVER, gone)


def test_a_server_whose_budget_is_spent_ends_the_run():
    made = running()
    assert made.ended("inference", GiveUp("inference", "spent"), expected=False)[0] == Fail("inference", "spent")
    leaves(made, "trainer")
    leaves(made, "orchestrator")
    assert made.phase is Phase.OVER


def test_a_warm_start_that_fails_ends_the_run_before_anybody_else_begins():
    made = course()
    made.begin()
    assert made.ended("warm-start", GiveUp("warm-start", "never ready"), expected=False) == [
        Fail("warm-start", "never ready")
    ]
    assert made.phase is Phase.OVER


def test_a_second_fault_does_not_replace_the_first():
    made = running()
    made.ended("trainer", GiveUp("trainer", "killed"), expected=False)
    assert [
        step
        for step in made.ended("orchestrator", GiveUp("orchestrator", "lost"), expected=False)
        if isinstance(step, Fail)
    ] == []
    assert made.failed == "trainer"


def test_stopping_asks_workers_first_and_a_server_is_not_started_again_then():
    made = running()
    assert made.stop("interrupted") == [AskToStop(("trainer", "orchestrator"), "interrupted")]
    assert made.stop("interrupted") == []
    assert made.ended("inference", Restart("inference", 0.0), expected=False)[0] == Fail(
        "inference", "nobody can take its place"
    )
    leaves(made, "trainer")
    leaves(made, "orchestrator")
    assert made.phase is Phase.OVER


def test_a_server_that_falls_when_nobody_needs_it_any_more_does_not_fail_the_run():
    made = running()
    for name in ("trainer", "orchestrator"):
        made.done(name)
        leaves(made, name)
    assert made.phase is Phase.CLOSING
    assert made.ended("inference", Restart("inference", 0.0), expected=False) == []
    assert (made.phase, made.failed) == (Phase.OVER, None)


def test_stopping_before_anybody_but_the_server_is_there():
    made = course(warm_start=False)
    made.begin()
    assert made.stop("interrupted") == [AskToStop(("inference",), "nobody needs it any more")]
    leaves(made, "inference")
    assert made.phase is Phase.OVER


def test_a_server_alone_serves_until_it_is_told_to_stop():
    made = Course(single_cast("inference", warm_start=False))
    made.begin()
    made.ready("inference")
    assert made.phase is Phase.RUNNING
    assert made.stop("interrupted") == [AskToStop(("inference",), "nobody needs it any more")]


def test_a_warm_start_alone_is_over_with_it():
    made = Course(single_cast("warm-start", warm_start=False))
    made.begin()
    made.done("warm-start")
    leaves(made, "warm-start")
    assert (made.phase, made.failed) == (Phase.OVER, None)


def test_the_twin_and_an_external_server():
    assert full_cast(warm_start=True, inference=True, inline=True).stages == (("warm-start",), ("twin",))
    assert full_cast(warm_start=False, inference=False, inline=False).stages == (("trainer", "orchestrator"),)


def test_an_illegal_move_raises():
    made = running()
    made.phase = Phase.OVER
    with pytest.raises(ComponentError, match="cannot become closing while it is over"):
        made._move(Phase.CLOSING)


@given(
    warm=st.booleans(),
    events=st.lists(
        st.tuples(
            st.sampled_from(["ready", "done", "leaves", "dies", "restarts", "stop"]),
            st.sampled_from(["warm-start", "inference", "trainer", "orchestrator"]),
        ),
        max_size=40,
    ),
)
def test_whatever_happens_a_run_ends_once_everybody_is_gone(warm, events):
    made = course(warm_start=warm)
    made.begin()
    for kind, name in events:
        if kind == "stop":
            made.stop("asked")
        elif name not in made.alive:
            continue
        elif kind == "ready":
            made.ready(name)
        elif kind == "done":
            made.done(name)
        elif kind == "restarts":
            made.ended(name, Restart(name, 0.0), expected=False)
        else:
            made.ended(name, GiveUp(name, "gone"), expected=kind == "leaves")
    made.stop("the end")
    while made.alive:
        leaves(made, sorted(made.alive)[0])
    assert made.phase is Phase.OVER
