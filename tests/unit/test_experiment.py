"""What the parent decides when something happens to a child: a fake supervisor tells, and notes what it is told."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import numpy as np
import pytest
from gymnasium import spaces

from headrace.collectors.restoring import not_restored
from headrace.core import seeding
from headrace.core.clock import FakeClock
from headrace.core.errors import EnvironmentLost, EnvironmentRaised, NonFiniteValue
from headrace.runtime.config import load_config
from headrace.runtime.experiment import Experiment
from headrace.runtime.history import read_history
from headrace.runtime.incidents import Chronicle, Incidents
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.observer import Observer
from headrace.runtime.payloads import Basics, EnvSpaces
from headrace.runtime.progress import Progress
from headrace.runtime.resources import Resources, components
from headrace.runtime.scores import EvaluationQueue
from headrace.supervision.messages import Command, Done, Report, Stop
from headrace.supervision.policy import RestartPolicy
from headrace.supervision.spec import (
    BecameReady,
    Event,
    Exited,
    GiveUp,
    Instruction,
    LeaveOut,
    Overdue,
    Reported,
    Restart,
    RestartBudget,
    Started,
)
from headrace.telemetry.board import Activity, Board
from headrace.telemetry.events import EventLog, read_events
from headrace.telemetry.metrics import MetricsSink
from headrace.testing.reproduce import read_reproducer

FACTS = {
    "env_steps": 96, "updates": 40, "version": 3, "mean_return": None, "mean_length": None, "ratio": 1.0, "values": {},
    "lag": {"mean": 0.0, "max": 0}, "episodes": {"finished": 2}, "first_update_at": 50, "weights_sha256": "abc",
}  # fmt: skip


@dataclass
class FakeSupervisor:
    """Children are names; what was done to them is a list of lines."""

    living: set[str] = field(default_factory=lambda: {"learner", "collector-0", "collector-1", "evaluator"})
    done: list[str] = field(default_factory=list)
    deaf: set[str] = field(default_factory=set)
    """Those that are dead, and not missed yet."""
    instruction: Instruction = field(default_factory=lambda: Restart("", 0.0))
    policy: RestartPolicy = field(default_factory=lambda: RestartPolicy(RestartBudget()))

    def start(self, child_id: str) -> None:
        self.done.append(f"start {child_id}")
        self.living.add(child_id)

    def restart(self, child_id: str) -> None:
        self.done.append(f"restart {child_id}")
        self.living.add(child_id)

    def send(self, child_id: str, message: object) -> bool:
        words = {Stop: "stop", Command: getattr(message, "name", "")}[type(message)]
        self.done.append(f"tell {child_id} {words}")
        return child_id in self.living - self.deaf

    def stop(self, ids: Iterable[str], reason: str) -> None:
        self.done += [f"stop {child_id}" for child_id in ids if child_id in self.living]

    def kill_all(self, ids: Iterable[str] | None = None) -> None:
        self.done += [f"kill {child_id}" for child_id in sorted(self.living if ids is None else ids)]

    def decide(self, event: Exited) -> Instruction:
        return self.instruction

    def alive(self) -> list[str]:
        return sorted(self.living)


class Scene:
    """An experiment in the middle of training."""

    def __init__(self, tmp_path, stack, settings) -> None:
        self.config = config = load_config("pendulum-td3", {"deadlines.stop_s": 20.0, "run.collectors": 2, **settings})
        self.clock = FakeClock(100.0)
        self.shown: list[Progress] = []
        board = stack(Board.create(tmp_path / "board", components(config)))
        self.folder = tmp_path
        self.events_file = tmp_path / "events.jsonl"
        log = stack(EventLog(self.events_file, self.clock))
        metrics = stack(MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard"))
        self.queue = EvaluationQueue(baseline=False, enabled=True)
        observer = Observer(config, board, metrics, self.queue, self.clock, self.shown.append)
        basics, resources, chronicle = Basics(config, tmp_path / "board"), Resources(config), Chronicle(log, observer)
        incidents = Incidents(basics, resources, observer, chronicle, tmp_path, self.clock)
        self.board, self.resources, self.observer, self.log = board, resources, observer, log
        self.experiment = Experiment(basics, chronicle, resources, observer, self.queue, incidents, self.clock)
        self.supervisor = FakeSupervisor()
        self.experiment._supervisor = self.supervisor
        self.happen(
            BecameReady("learner", 0, {"layout": None, "streams": [0] * 6, "resumed": None, "record_lost": None})
        )
        self.interrupts = Interrupts()
        self.supervisor.done.clear()

    def happen(self, *events: Event) -> list[str]:
        """What is done about these, since the last call."""
        for event in events:
            if isinstance(event, Exited):
                self.supervisor.living.discard(event.id)
            self.experiment._on(event)
        return self.look()

    def look(self) -> list[str]:
        """One more turn of the loop, and what has been done."""
        if hasattr(self, "interrupts"):
            self.experiment._watch(self.interrupts)
        done, self.supervisor.done[:] = list(self.supervisor.done), []
        return done

    @property
    def summary(self):
        return self.experiment.summary()


@pytest.fixture
def settings():
    """What a scene's run is told besides; a test that wants more parametrizes this."""
    return {}


@pytest.fixture
def scene(tmp_path, settings):
    with ExitStack() as stack:
        yield Scene(tmp_path, stack.enter_context, settings)


def died(child_id: str, **facts) -> Exited:
    return Exited(id=child_id, exit_code=-9, how="killed by SIGKILL", **facts)


def salvaged(number: int) -> Reported:
    return Reported("learner", Report("salvaged", {"collector": number, "transitions": 5}))


LEARNER_DONE = Reported("learner", Done(FACTS))


def test_rows_of_a_dead_collector_are_saved_before_it_is_started_again(scene):
    assert scene.happen(died("collector-1")) == ["tell learner lost"]
    assert scene.happen(salvaged(1)) == ["restart collector-1"]
    assert scene.happen(BecameReady("collector-1", 1, {})) == ["tell learner joined"]
    assert (scene.summary["restarts"], scene.summary["faults"]) == (1, {"died": 1})


@pytest.mark.parametrize("settings", [{}, {"supervision.when_spent": "degrade", "supervision.lane_faults": 1}], ids=str)
def test_collector_that_cannot_bring_an_episode_back_is_replaced_and_that_is_no_fault(scene):
    """Its replacement repeats nothing, so no budget is needed to have this come to an end."""
    scene.supervisor.instruction = GiveUp("collector-1", "it may not be started again")
    error = not_restored(3, step=2, field="reward")
    left = Exited(id="collector-1", exit_code=1, how="exit code 1", error=error, call="step", lane=3, step=2)
    assert scene.happen(left) == ["tell learner lost"]
    assert scene.happen(salvaged(1)) == ["restart collector-1"]
    (told,) = (event for event in read_events(scene.events_file) if event["kind"] == "not_restored")
    assert told["text"] == (
        "collector-1 is replaced: the episode that was running in lane 3 could not be brought back by repeating its "
        "actions; it is cut where its rows end"
    )
    assert (told["component"], told["lane"], told["problem"]) == ("collector-1", 3, str(error))
    assert (scene.summary["faults"], scene.summary["degraded"], scene.summary["error"]) == ({}, None, None)
    assert not list((scene.folder).glob("reproducers/*"))
    assert read_history(read_events(scene.events_file)).faults["died"] == 0


LOST = {
    "how": "lost-with-worker", "lane": 3, "call": "step", "step": 8, "problem": "lost with worker-0", "error": "all of it",
    "cut": 2, "faults": 0, "allowed": 5, "replaced": True, "file": None,
}  # fmt: skip


def lose(scene, **more: object) -> list[str]:
    return scene.happen(Reported("collector-1", Report("environment_lost", {**LOST, **more})))


def test_an_environment_that_was_lost_is_told_and_counted_and_nobody_is_started_again(scene):
    assert (
        lose(scene) == lose(scene, how="hung", call="reset", cut=None, file="reproducers/a.json", replaced=False) == []
    )
    assert scene.summary["faults"] == {"environment_lost_with_worker": 1, "environment_hung": 1}
    assert scene.summary["restarts"] == 0
    first, last, kept = (event for event in read_events(scene.events_file) if event["kind"] in {"fault", "reproducer"})
    assert first["component"] == "environment of lane 3"
    assert first["text"] == "lost with worker-0; its episode is cut after 2 steps, and another one takes its place"
    assert last["text"] == "lost with worker-0; no episode was running, and it is not replaced again"
    assert {name: first[name] for name in ("collector", "how", "lane", "step", "call", "error", "cut")} == {
        "collector": "collector-1", "how": "lost-with-worker", "lane": 3, "step": 8, "call": "step", "error": "all of it",
        "cut": 2,
    }  # fmt: skip
    assert (kept["file"], kept["lane"]) == ("reproducers/a.json", 3)


GONE = EnvironmentLost("the environment of lane 3 failed 2 times", lane=3, fix="mend it")


def test_an_environment_that_is_not_replaced_again_ends_the_run(scene):
    assert scene.happen(died("collector-1", error=GONE, lane=3, call="raised")) == ["tell learner lost"]
    assert scene.happen(salvaged(1)) == ["tell learner stop"]
    assert scene.summary["error"] == str(GONE)


@pytest.mark.parametrize("settings", [{"supervision.when_spent": "degrade", "supervision.lane_faults": 2}])
def test_its_lane_is_left_out_if_the_run_may_go_on_without(scene):
    scene.supervisor.instruction = Restart("collector-1", 0.0)
    lose(scene)  # another one's fault
    lose(scene, how="hung")
    lose(scene, how="hung", replaced=False)
    assert scene.happen(died("collector-1", error=GONE, lane=3, call="raised")) == [
        "tell learner lost",
        "tell learner left_out",
    ]
    assert scene.happen(salvaged(1)) == ["restart collector-1"]
    assert scene.summary["degraded"]["lanes"] == [3]
    assert scene.summary["degraded"]["reason"] == "the environment of lane 3 failed 2 times within 300 s"


def test_two_collectors_at_once(scene):
    assert scene.happen(died("collector-1"), died("collector-0")) == ["tell learner lost"] * 2
    assert scene.happen(salvaged(0), salvaged(1)) == ["restart collector-0", "restart collector-1"]


def test_hopeless_collector_ends_the_run_in_order_after_its_rows_are_saved(scene):
    scene.supervisor.instruction = GiveUp("collector-1", "trying again would fail again")
    error = NonFiniteValue("reward is nan", fix="mend it")
    assert scene.happen(died("collector-1", error=error)) == ["tell learner lost"]
    assert scene.happen(salvaged(1)) == ["tell learner stop"]
    assert scene.summary["error"] == str(error)
    assert scene.summary["exit_code"] == 1


def test_spent_budget_is_told_also_after_a_single_restart(scene):
    reason = "it ended again after 1 restart within 300 s"
    scene.supervisor.instruction = GiveUp("collector-1", reason, spent=True)
    error = EnvironmentRaised("raised", error="ValueError: tile 7", fix="mend it")
    scene.happen(died("collector-1", error=error), salvaged(1))
    assert scene.summary["error"] == (
        "[SUP-003] collector-1 ended and is not started again: it ended again after 1 restart within 300 s\n"
        "  last time: raised\n"
        "  error: ValueError: tile 7\n"
        "  fix: read the last lines of logs/collector-1.log; mend it"
    )


def test_what_to_do_is_said_once_of_one_that_was_killed_too_often(scene):
    scene.supervisor.instruction = GiveUp("collector-1", "it ended again after 1 restart within 300 s", spent=True)
    scene.happen(died("collector-1"), salvaged(1))
    assert scene.summary["error"].endswith("\n  fix: read the last lines of logs/collector-1.log")
    assert scene.summary["error"].count("read the last lines") == 1


@pytest.mark.parametrize("settings", [{"supervision.when_spent": "degrade"}])
def test_both_last_times_are_told_where_an_environment_s_own_budget_was_spent_first(scene):
    scene.supervisor.instruction = GiveUp("collector-1", "it ended again after 1 restart within 300 s", spent=True)
    error = EnvironmentLost("lane 3 failed 2 times", last_time="lane 3 raised", lane=3, fix="mend it")
    scene.happen(died("collector-1", error=error), salvaged(1))
    assert scene.summary["error"] == (
        "[SUP-003] collector-1 ended and is not started again: it ended again after 1 restart within 300 s\n"
        "  last time: lane 3 failed 2 times; lane 3 raised\n"
        "  lane: 3\n"
        "  fix: read the last lines of logs/collector-1.log; mend it"
    )


def test_learner_is_done_while_a_collector_is_being_salvaged(scene):
    scene.happen(died("collector-1"))
    assert scene.happen(LEARNER_DONE) == ["stop collector-0"]
    assert scene.happen(Exited(id="collector-0", exit_code=0, how="exit code 0", done=True)) == []
    assert scene.experiment._course.over
    assert scene.summary["outcome"] == "completed"


def test_collector_that_comes_back_after_training_is_told_to_leave(scene):
    scene.happen(died("collector-1"), salvaged(1))
    assert scene.happen(LEARNER_DONE) == ["stop collector-0", "stop collector-1"]


def test_collector_that_dies_after_training_is_noted_and_not_started_again(scene):
    scene.happen(LEARNER_DONE)
    assert scene.happen(died("collector-0"), Exited(id="collector-1", exit_code=0, how="", asked=True)) == []
    assert scene.experiment._course.over
    assert (scene.summary["outcome"], scene.summary["faults"]) == ("completed", {"died": 1})


def test_collector_that_was_done_and_falls_while_it_closes_is_noted_and_nothing_follows(scene):
    """The learner waits for the others' last rows, so training is not over yet."""
    assert scene.happen(died("collector-1", done=True)) == []
    scene.happen(LEARNER_DONE, Exited(id="collector-0", exit_code=0, how="", done=True))
    assert scene.experiment._course.over
    summary = scene.summary
    assert (summary["outcome"], summary["faults"], summary["restarts"]) == ("completed", {"died": 1}, 0)


@pytest.mark.parametrize("settings", [{"run.schedule": "inline"}])
def test_inline_a_learner_that_falls_while_it_closes_does_not_fail_the_run(scene):
    """Its environments are closed after its last word, and the last policy may still be evaluated then."""
    scene.supervisor.living = {"learner", "evaluator"}
    scene.happen(Reported("learner", Report("frozen", {"version": 3, "env_steps": 96})), LEARNER_DONE)
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    assert scene.happen(died("learner", done=True)) == []
    assert not scene.experiment._course.over, "the last policy is still being evaluated"
    scene.happen(evaluated(3, -900.0))
    assert scene.experiment._course.over
    assert (scene.summary["outcome"], scene.summary["faults"]) == ("completed", {"died": 1})


def test_learner_dies(scene):
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    assert scene.happen(died("learner")) == []
    assert scene.experiment._course.over
    assert scene.summary["error"].startswith("[SUP-001] learner ended although nobody asked it to: killed by SIGKILL")


def test_evaluator_is_started_again_and_given_its_order_again(scene):
    order = Reported("learner", Report("frozen", {"version": 2, "env_steps": 64}))
    assert scene.happen(order) == ["tell evaluator evaluate"]
    assert scene.happen(died("evaluator")) == ["restart evaluator", "tell evaluator evaluate"]


def test_hopeless_evaluator_lets_the_learner_finish(scene):
    scene.supervisor.instruction = GiveUp("evaluator", "trying again would fail again")
    assert scene.happen(died("evaluator")) == ["tell learner stop"]
    assert not scene.experiment._course.over
    scene.happen(LEARNER_DONE, *(Exited(id=f"collector-{n}", exit_code=0, how="", done=True) for n in (0, 1)))
    assert scene.experiment._course.over
    assert scene.summary["exit_code"] == 1


def test_interrupt_stops_in_order_and_collectors_get_two_seconds(scene):
    scene.interrupts.count = 1
    assert scene.look() == ["tell learner stop"]
    scene.clock.advance(1.9)
    assert scene.look() == []
    scene.clock.advance(0.2)
    assert scene.look() == ["kill collector-0", "kill collector-1"]
    gone = died("collector-0", asked=True)
    assert scene.happen(gone) == ["tell learner lost"]
    assert scene.happen(salvaged(0)) == []
    scene.happen(LEARNER_DONE, died("collector-1", asked=True))
    assert scene.experiment._course.over
    assert (scene.summary["outcome"], scene.summary["exit_code"], scene.summary["faults"]) == ("interrupted", 130, {})


def test_second_interrupt_kills_everybody(scene):
    scene.interrupts.count = 1
    scene.look()
    scene.interrupts.count = 2
    assert scene.look() == ["kill collector-0", "kill collector-1", "kill evaluator", "kill learner"]
    assert scene.experiment._course.over


def test_interrupt_shortens_a_stop_that_goes_on(scene):
    scene.experiment._ending.request("run_duration_s is over", scene.supervisor)
    scene.clock.advance(3.0)
    scene.interrupts.count = 1
    scene.look()
    scene.clock.advance(2.1)
    assert scene.look() == ["kill collector-0", "kill collector-1"]


def test_learner_that_does_not_stop_is_a_stall(scene):
    scene.interrupts.count = 1
    scene.look()
    scene.clock.advance(20.1)
    scene.look()
    assert scene.experiment._course.over
    assert scene.summary["exit_code"] == 3
    assert "still running: collector-0, collector-1, evaluator, learner" in scene.summary["error"]


def test_overdue_child_is_an_event_and_a_stalled_fault(scene):
    late = Overdue("collector-0", "env.step", 31.0, 30.0, 2, 7)
    scene.happen(late, died("collector-0", stalled=str(late)))
    assert scene.summary["faults"] == {"stalled": 1}
    texts = [event["text"] for event in read_events(scene.events_file) if event["kind"] in ("stacks", "fault")]
    assert texts == [
        "collector-0 is overdue: env.step for 31 s (limit 30 s), lane 2, step 7; its stacks are written",
        "collector-0 env.step for 31 s (limit 30 s), lane 2, step 7",
    ]


# What is left out


DEGRADE = {"supervision.when_spent": "degrade"}


def test_what_a_full_disk_cost_is_in_the_summary(scene):
    assert scene.summary["lost_lines"] == {}
    scene.observer._metrics.close()
    scene.observer._metrics.write(1, 1, 0.0, {"train/critic_loss": 0.5})  # a line and a record
    scene.log.close()
    found = scene.summary["lost_lines"]  # the event that says how it ended is lost as well
    assert found == {"events": 1, "metrics": 2}


@pytest.mark.parametrize("settings", [DEGRADE])
def test_spent_collector_is_left_out_and_the_run_goes_on(scene):
    scene.supervisor.instruction = LeaveOut("collector-1", "it ended again after 5 restarts within 300 s")
    assert scene.happen(died("collector-1")) == ["tell learner lost", "tell learner left_out"]
    assert scene.happen(salvaged(1)) == []
    (event,) = [event for event in read_events(scene.events_file) if event["kind"] == "degraded"]
    assert event["text"] == (
        "the run goes on without collector-1 and its lanes 1, 3, 5: "
        "collector-1 is not started again, it ended again after 5 restarts within 300 s"
    )
    assert (scene.resources.left_out, scene.observer.lanes_lost) == ({1, 3, 5}, 3)
    scene.observer.show(at_once=True)
    # Its rows have been saved since; whoever looks on still reads what is missing.
    told = "5 transitions of collector-1 salvaged (the run goes on without 3 of 6 lanes)"
    assert scene.shown[-1].message == told
    assert scene.summary["outcome"] == "completed"
    assert scene.summary["degraded"] == {
        "lanes": [1, 3, 5],
        "collectors": ["collector-1"],
        "reason": "collector-1 is not started again, it ended again after 5 restarts within 300 s",
    }


@pytest.mark.parametrize("settings", [DEGRADE])
def test_run_without_a_lane_fails(scene):
    for number in (1, 0):
        scene.supervisor.instruction = LeaveOut(f"collector-{number}", "it may not be started again")
        scene.happen(died(f"collector-{number}"))
    assert scene.happen(salvaged(1), salvaged(0)) == ["tell learner stop"]
    assert scene.summary["exit_code"] == 1
    assert scene.summary["error"].startswith(
        "[SUP-003] collector-0 ended and is not started again: "
        "collector-0 is not started again, it may not be started again, and no lane is left\n"
    )


@pytest.mark.parametrize("settings", [DEGRADE])
def test_lane_that_fails_three_times_is_left_out_alone(scene):
    done = []
    for _ in range(3):
        scene.supervisor.living.add("collector-1")
        done.append(scene.happen(died("collector-1", call="step", lane=3, step=7), salvaged(1)))
    assert done[:2] == [["tell learner lost", "restart collector-1"]] * 2
    assert done[2] == ["tell learner lost", "tell learner left_out", "restart collector-1"]
    assert scene.resources.left_out == {3}
    reason = "the environment of lane 3 failed 3 times within 300 s"
    assert scene.summary["degraded"] == {"lanes": [3], "collectors": [], "reason": reason}
    assert scene.supervisor.policy.restarts("collector-1") == 0


def test_by_default_a_lane_that_fails_again_and_again_is_not_left_out_but_named(scene):
    for _ in range(4):
        scene.supervisor.living.add("collector-1")
        assert "tell learner left_out" not in scene.happen(died("collector-1", lane=3), salvaged(1))
    scene.supervisor.instruction = GiveUp("collector-1", "it ended again after 4 restarts within 300 s", spent=True)
    scene.happen(died("collector-1", lane=3), salvaged(1))
    assert "\n  faults of this lane: 5\n" in scene.summary["error"]
    assert scene.summary["degraded"] is None


# Memory

SMALL = {"supervision.max_rss_mib": 400.0}


def grow(scene, child_id: str, mib: int) -> None:
    scene.board.slot(child_id).count("rss_bytes", mib * 2**20)


def leave(scene, child_id: str, **facts) -> list[str]:
    """It has left in order, and nothing of its rows had to be saved."""
    gone = Exited(id=child_id, exit_code=0, how="exit code 0", asked=True, done=True, **facts)
    grow(scene, child_id, 0)
    return [
        *scene.happen(gone),
        *scene.happen(Reported("learner", Report("salvaged", {"collector": 1, "transitions": 0}))),
    ]


@pytest.mark.parametrize("settings", [SMALL])
def test_collector_that_holds_too_much_is_told_to_leave_once_and_replaced(scene):
    grow(scene, "collector-0", 400)
    grow(scene, "collector-1", 401)
    grow(scene, "learner", 5000)
    assert scene.look() == ["stop collector-1"]
    assert scene.look() == []
    assert leave(scene, "collector-1") == ["tell learner lost", "restart collector-1"]
    assert (scene.summary["faults"], scene.summary["restarts"]) == ({"recycled": 1}, 1)
    (event,) = [event for event in read_events(scene.events_file) if event["kind"] == "recycled"]
    assert event["text"] == "collector-1 is replaced: it holds 401 MiB (supervision.max_rss_mib 400)"


@pytest.mark.parametrize("settings", [SMALL])
def test_collector_that_holds_too_much_from_the_start_spends_its_budget(scene):
    grow(scene, "collector-1", 900)
    scene.look()
    scene.supervisor.instruction = GiveUp("collector-1", "it ended again after 5 restarts within 300 s", spent=True)
    assert leave(scene, "collector-1") == ["tell learner lost", "tell learner stop"]
    assert "\n  last time: collector-1 was replaced too often: it holds 900 MiB (" in scene.summary["error"]


@pytest.mark.parametrize("settings", [SMALL])
def test_collector_that_leaves_for_its_memory_while_the_run_stops_is_not_replaced(scene):
    grow(scene, "collector-1", 900)
    scene.look()
    scene.experiment._ending.request("run_duration_s is over", scene.supervisor)
    assert scene.happen(Exited(id="collector-1", exit_code=0, how="", asked=True, done=True)) == ["tell learner stop"]
    assert scene.summary["faults"] == {}


# What ends with the learner


def test_dead_learner_tells_what_is_lost_and_what_is_left(scene):
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    scene.board.slot("learner").count("updates", 45)
    scene.happen(Reported("learner", Report("frozen", {"version": 2, "env_steps": 6400, "updates": 30})))
    scene.happen(died("learner"))
    assert "\n  lost: 15 of 45 updates, the optimiser, and the replay\n" in scene.summary["error"]
    assert (
        "\n  newest policy: checkpoints/2, made after 30 updates and 6,400 environment steps\n"
        in scene.summary["error"]
    )
    assert scene.summary["error"].endswith(f"`headrace eval {scene.folder} --version 2`")


@pytest.mark.parametrize("settings", [{"env.factory": "__main__:make"}])
def test_no_command_is_said_to_play_what_was_handed_over(scene):
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    scene.happen(Reported("learner", Report("frozen", {"version": 2, "env_steps": 6400, "updates": 30})))
    scene.happen(died("learner"))
    assert "\n  newest policy: checkpoints/2, " in scene.summary["error"]
    assert "headrace eval" not in scene.summary["error"]


def test_dead_learner_without_a_policy_on_disk(scene):
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    scene.happen(died("learner"))
    assert "\n  newest policy: none was written\n" in scene.summary["error"]


@pytest.mark.parametrize("settings", [{"run.schedule": "inline"}])
def test_inline_one_interrupt_ends_a_learner_that_hangs_in_an_environment(scene, monkeypatch):
    slot = scene.board.slot("learner")
    slot.enter(Activity.ENV_STEP, 3, 17)
    monkeypatch.setattr("headrace.runtime.observer.monotonic_ns", NoTime(scene.board, scene.clock))
    scene.interrupts.count = 1
    assert scene.look() == ["tell learner stop"]
    scene.clock.advance(1.9)
    assert scene.look() == []
    scene.clock.advance(0.2)
    assert scene.look() == ["kill learner"]
    assert scene.experiment._course.over
    assert (scene.summary["outcome"], scene.summary["exit_code"]) == ("interrupted", 130)
    told = [event["text"] for event in read_events(scene.events_file) if event["kind"] == "stopping"]
    assert told[-1] == "learner is ended: it does not come back from env.step (lane 3, since 2.1 s)"


@pytest.mark.parametrize("settings", [{"run.schedule": "inline"}])
def test_inline_a_learner_that_gets_on_is_waited_for(scene):
    scene.board.slot("learner").enter(Activity.UPDATE)
    scene.interrupts.count = 1
    scene.look()
    scene.clock.advance(19.0)
    assert scene.look() == []


class NoTime:
    """The board's clock, moved by the scene's."""

    def __init__(self, board, clock) -> None:
        self._began_ns, self._began_s, self._clock = board.read("learner").since_ns, clock.now(), clock

    def __call__(self) -> int:
        return self._began_ns + round((self._clock.now() - self._began_s) * 1e9)


def test_dead_learner_of_a_run_with_a_checkpoint_has_lost_only_updates(scene):
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    scene.board.slot("learner").count("updates", 45)
    saved = {"version": 2, "env_steps": 6400, "updates": 30, "paused_s": 0.1, "exact": True}
    scene.happen(Reported("learner", Report("saved", saved)))
    scene.happen(Reported("learner", Report("frozen", {"version": 3, "env_steps": 6500, "updates": 40})))
    scene.happen(died("learner"))
    assert "\n  lost: 15 of 45 updates\n" in scene.summary["error"]
    assert scene.summary["error"].endswith(f"`headrace train --resume --run-dir {scene.folder}` goes on from there")


@pytest.mark.parametrize(
    ("fix", "as_before"),
    [
        (
            "raise rollout.kept_rows, or set rollout.whole_episodes = false",
            "rollout.kept_rows and rollout.whole_episodes",
        ),
        ("mend the environment; else lower algorithm.critic_lr, or see logs/learner.log", "algorithm.critic_lr"),
        (
            "raise deadlines.step_s, supervision.max_rss_mib, run.steps or env.workers; see os.environ and record.md",
            None,
        ),
    ],
)
def test_what_a_resumed_run_keeps_is_said_where_another_value_is_advised(scene, fix, as_before):
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    saved = {"version": 2, "env_steps": 6400, "updates": 30, "paused_s": 0.1, "exact": True}
    scene.happen(Reported("learner", Report("saved", saved)))
    scene.happen(died("learner", error=NonFiniteValue("the loss is not finite", fix=fix)))
    end = f"`headrace train --resume --run-dir {scene.folder}` goes on from there"
    if as_before is not None:
        end += f", with {as_before} as before: another value takes a new run"
    assert scene.summary["error"].endswith(end)


# Another one in its place, while the run ends

BOTH_GONE = died("collector-0", asked=True), died("collector-1", asked=True)
RESUMED = {"updates": 30, "env_steps": 90, "salvaged": 0, "missed_rows": 0}


def succeeds(**facts: object) -> BecameReady:
    """Another learner goes on."""
    known = {"layout": None, "streams": [0] * 6, "resumed": RESUMED, "record_lost": None}
    return BecameReady("learner", 1, known | facts)


def test_a_learner_that_dies_in_the_middle_is_succeeded_and_its_successor_given_collectors(scene):
    assert scene.happen(died("learner")) == ["kill collector-0", "kill collector-1"]
    assert scene.happen(*BOTH_GONE) == ["restart learner"]
    assert scene.happen(succeeds()) == ["start collector-0", "start collector-1"]


def test_a_learner_that_dies_while_the_run_ends_is_succeeded_by_one_that_ends_it(scene):
    scene.experiment._ending.request("run_duration_s is over", scene.supervisor)
    assert scene.happen(died("learner")) == ["tell learner stop", "kill collector-0", "kill collector-1"]
    assert scene.happen(*BOTH_GONE) == ["restart learner"]
    assert scene.happen(succeeds()) == ["tell learner stop"]
    assert not scene.experiment._course.over
    scene.happen(LEARNER_DONE)
    assert scene.experiment._course.over
    assert (scene.summary["outcome"], scene.summary["exit_code"]) == ("completed", 0)


def test_restarts_are_counted_alike_while_they_happen_and_from_the_events_they_leave(scene):
    scene.happen(died("collector-1"))
    scene.happen(salvaged(1))
    scene.happen(Started("collector-1", 71, 1))
    scene.happen(died("learner"))
    scene.happen(*BOTH_GONE)
    scene.happen(Started("learner", 72, 1), succeeds())
    scene.happen(Started("collector-0", 73, 1), Started("collector-1", 74, 2))  # with the learner
    assert scene.summary["restarts"] == 2
    assert read_history(read_events(scene.events_file)).faults == {"died": 2, "restarts": 2}


DEATH = died("learner"), *BOTH_GONE


@pytest.mark.parametrize(
    "known", range(4), ids=["not missed yet", "missed", "one collector left", "another one starts"]
)
def test_a_stop_waits_for_the_learner_that_takes_the_place_of_a_dead_one(scene, known):
    scene.supervisor.deaf = {"learner"} if known == 0 else set()
    scene.happen(*DEATH[:known])
    scene.interrupts.count = 1
    scene.look()
    scene.supervisor.deaf.clear()
    scene.happen(*DEATH[known:])
    assert not scene.experiment._course.over
    assert scene.happen(succeeds()) == ["tell learner stop"]
    scene.happen(LEARNER_DONE)
    assert scene.experiment._course.over
    assert (scene.summary["outcome"], scene.summary["exit_code"]) == ("interrupted", 130)


def test_a_stop_that_waits_for_another_learner_has_its_limit(scene):
    scene.happen(*DEATH)
    scene.experiment._ending.request("run_duration_s is over", scene.supervisor)
    scene.clock.advance(20.1)
    scene.look()
    assert scene.experiment._course.over
    assert scene.summary["error"] == (
        "[SUP-002] the run did not stop within 20 s\n"
        "  still running: evaluator, learner\n"
        "  waits for: another learner, in the place of the one that died\n"
        "  fix: see what they are doing in logs/; raise deadlines.stop_s if a step or an update may take so long"
    )


def test_a_stop_waits_for_what_the_learner_finishes_within_its_own_limit(scene):
    scene.experiment._ending.request("run_duration_s is over", scene.supervisor)
    learner = scene.board.slot("learner")
    for activity in (Activity.UPDATE, Activity.CHECKPOINT):
        learner.enter(activity)
        scene.clock.advance(20.1)
        scene.look()
    assert not scene.experiment._course.over
    learner.enter(Activity.IDLE)
    scene.clock.advance(20.1)
    scene.look()
    assert scene.experiment._course.over
    assert scene.summary["error"].startswith("[SUP-002] the run did not stop within 20 s")


def test_a_run_that_was_to_fail_does_not_go_on_because_its_learner_died_too(scene):
    scene.supervisor.instruction = GiveUp("collector-1", "trying again would fail again")
    error = NonFiniteValue("reward is nan", fix="mend it")
    scene.happen(died("collector-1", error=error))
    scene.supervisor.instruction = Restart("learner", 0.0)
    assert scene.happen(died("learner"), BOTH_GONE[0])[-1] == "restart learner"
    assert scene.happen(succeeds()) == ["tell learner stop"]
    scene.happen(LEARNER_DONE)
    assert scene.experiment._course.over
    assert scene.summary["error"] == str(error)


def test_a_stop_that_nobody_will_answer_ends_the_run(scene):
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    scene.supervisor.deaf = {"learner"}
    scene.experiment._ending.request("run_duration_s is over", scene.supervisor)
    assert not scene.experiment._course.over
    scene.happen(died("learner"))
    assert scene.experiment._course.over
    assert scene.summary["exit_code"] == 1


@pytest.mark.parametrize("settings", [{"run.schedule": "inline"}])
def test_inline_a_learner_that_died_in_an_environment_is_not_taken_for_one_that_hangs_there(scene, monkeypatch):
    scene.board.slot("learner").enter(Activity.ENV_STEP, 3, 17)
    monkeypatch.setattr("headrace.runtime.observer.monotonic_ns", NoTime(scene.board, scene.clock))
    scene.supervisor.restart = lambda child_id: scene.supervisor.done.append(f"restart {child_id}")  # delayed
    scene.happen(died("learner"))
    scene.interrupts.count = 1
    scene.look()
    scene.clock.advance(2.1)
    assert scene.look() == []
    assert not scene.experiment._course.over


def test_a_learner_that_dies_after_it_has_told_everything_is_not_succeeded(scene):
    scene.happen(Reported("learner", Report("frozen", {"version": 3, "env_steps": 96})), LEARNER_DONE)
    assert scene.happen(died("learner"), *BOTH_GONE) == []
    assert not scene.experiment._course.over, "the last policy is still being evaluated"
    scene.happen(evaluated(3, -900.0))
    assert scene.experiment._course.over
    assert (scene.summary["outcome"], scene.summary["faults"]) == ("completed", {"died": 1})


def evaluated(version: int, mean_reward: float) -> Reported:
    facts = {"version": version, "env_steps": 96, "mean_reward": mean_reward, "interval": None, "episodes": 1}
    return Reported("evaluator", Report("evaluated", facts))


@pytest.mark.parametrize("settings", [{"evaluation.target": -200.0}])
def test_an_evaluation_that_reaches_the_target_after_training_does_not_cost_the_last_one(scene):
    for version in (2, 3):
        scene.happen(Reported("learner", Report("frozen", {"version": version, "env_steps": 32 * version})))
    scene.happen(LEARNER_DONE, Exited(id="learner", exit_code=0, how="exit code 0", done=True), *BOTH_GONE)
    assert scene.happen(evaluated(2, -150.0)) == ["tell learner note", "tell evaluator evaluate"]
    assert not scene.experiment._course.over
    scene.happen(evaluated(3, -140.0))
    assert scene.experiment._course.over
    assert [point["version"] for point in scene.summary["evaluations"]] == [2, 3]


@pytest.mark.parametrize("settings", [{"evaluation.target": -200.0}])
def test_an_evaluation_that_reaches_the_target_ends_training(scene):
    scene.happen(Reported("learner", Report("frozen", {"version": 2, "env_steps": 64})))
    assert scene.happen(evaluated(2, -150.0)) == ["tell learner note", "tell learner stop"]


def test_a_record_that_has_ended_is_known_to_whoever_takes_the_learner_s_place(scene):
    scene.happen(Reported("learner", Report("record_lost", {"problem": "OSError: no space"})))
    assert scene.resources.record_lost == "OSError: no space"
    scene.happen(succeeds(record_lost="OSError: no space"))
    assert scene.resources.record_lost == "OSError: no space"
    scene.happen(succeeds())  # one that began the record anew
    assert scene.resources.record_lost is None


# What led to a fault


def test_a_reproducer_has_the_streams_of_the_lane_in_whatever_session_and_process(scene):
    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    with closing(scene.resources):
        scene.resources.allocate(EnvSpaces(box, box))
        scene.resources.block.begin()
        scene.resources.streams = [0, 0, 0, 4, 0, 0]  # the session goes on with streams of a fifth incarnation
        scene.happen(died("collector-1", call="construct", lane=3, incarnation=2))
    found = read_reproducer(scene.folder / "reproducers" / "collector-1-lane-3-2.json")
    assert found.construct_seed == seeding.integer(scene.config.run.seed, "construct-global", 3, 6)


@pytest.mark.parametrize("settings", [{"run.schedule": "inline"}])
def test_inline_a_reproducer_has_the_streams_of_the_newest_chunk(scene):
    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    with closing(scene.resources):
        scene.resources.allocate(EnvSpaces(box, box))
        scene.resources.block.begin()
        scene.resources.block.incarnation[3] = 5
        scene.happen(died("learner", call="reset", lane=3, incarnation=1))
    found = read_reproducer(scene.folder / "reproducers" / "learner-lane-3-1.json")
    assert found.construct_seed == seeding.integer(scene.config.run.seed, "construct-global", 3, 5)
    assert found.global_seeds[0][1] == seeding.integer(scene.config.run.seed, "global", 3, 5, 0)
