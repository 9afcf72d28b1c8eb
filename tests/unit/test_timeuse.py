"""What components spend their time on, counted from looks made up by hand."""

from __future__ import annotations

import pytest

from board_support import component, look
from headrace.telemetry.board import Activity, State
from headrace.telemetry.looks import Process
from headrace.telemetry.timeuse import TimeUse


def used(*looks):
    use = TimeUse()
    for one in looks:
        use.add(one)
    return {spent.component: spent for spent in use.spent()}


def test_activities_are_counted_per_component():
    update, step = component("learner", Activity.UPDATE), component("collector-0", Activity.ENV_STEP)
    wait = component("collector-0", Activity.WAIT_CREDIT)
    found = used(look(0, update, step), look(1, update, wait), look(2, component("learner", Activity.COMMIT), wait))
    assert dict(found["learner"].samples) == {"update": 2, "commit": 1}
    assert list(found["collector-0"].samples.items()) == [("wait.credit", 2), ("env.step", 1)]
    assert (found["collector-0"].kind, found["collector-0"].cpu_share) == ("collector", None)


@pytest.mark.parametrize("state", [State.STARTING, State.READY, State.ENDED, State.STOPPING])
def test_only_while_the_learner_trains(state):
    step = component("collector-0", Activity.ENV_STEP)
    assert used(look(0, step), look(1, component("learner", Activity.START, state=state), step)) == {}


def test_the_supervisor_and_the_dead_are_left_out():
    views = component("learner", Activity.UPDATE), component("supervisor"), component("evaluator", state=State.EMPTY)
    assert set(used(look(0, *views))) == {"learner"}


def test_processor_time_is_of_the_newest_process():
    def seen(at_s, pid, cpu_s):
        return look(
            at_s, component("learner", Activity.UPDATE), processes={"learner": Process(pid, alive=True, cpu_s=cpu_s)}
        )

    between = look(1, component("learner", Activity.UPDATE))
    assert used(seen(0, 7, 3.0), between, seen(4, 7, 5.0))["learner"].cpu_share == 0.5
    assert used(seen(0, 7, 30.0), seen(4, 8, 1.0), seen(6, 8, 2.0))["learner"].cpu_share == 0.5
    assert used(seen(0, 7, 3.0), seen(4, 8, 1.0))["learner"].cpu_share is None
    assert used(seen(0, 7, 3.0), seen(4, 7, 5.0))["learner"].to_json()["cpu_share"] == 0.5
