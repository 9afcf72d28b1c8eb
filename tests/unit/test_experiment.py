"""What the parent decides when something happens to a child: a fake supervisor tells, and notes what it is told."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from headrace.core.clock import FakeClock
from headrace.core.errors import EnvironmentRaised, NonFiniteValue
from headrace.runtime.config import load_config
from headrace.runtime.experiment import Experiment
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.observer import Observer
from headrace.runtime.resources import Resources, components
from headrace.runtime.scores import EvaluationQueue
from headrace.supervision.messages import Command, Done, Report, Stop
from headrace.supervision.spec import BecameReady, Event, Exited, GiveUp, Instruction, Overdue, Reported, Restart
from headrace.telemetry.board import Board
from headrace.telemetry.events import EventLog, read_events
from headrace.telemetry.metrics import MetricsSink

FACTS = {
    "env_steps": 96, "updates": 40, "version": 3, "mean_return": None, "mean_length": None, "ratio": 1.0, "values": {},
    "lag": {"mean": 0.0, "max": 0}, "episodes": {"finished": 2}, "first_update_at": 50, "weights_sha256": "abc",
}  # fmt: skip


@dataclass
class FakeSupervisor:
    """Children are names; what was done to them is a list of lines."""

    living: set[str] = field(default_factory=lambda: {"learner", "collector-0", "collector-1", "evaluator"})
    done: list[str] = field(default_factory=list)
    instruction: Instruction = field(default_factory=lambda: Restart("", 0.0))

    def start(self, child_id: str) -> None:
        self.done.append(f"start {child_id}")
        self.living.add(child_id)

    def restart(self, child_id: str) -> None:
        self.done.append(f"restart {child_id}")
        self.living.add(child_id)

    def send(self, child_id: str, message: object) -> bool:
        words = {Stop: "stop", Command: getattr(message, "name", "")}[type(message)]
        self.done.append(f"tell {child_id} {words}")
        return child_id in self.living

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

    def __init__(self, tmp_path, stack) -> None:
        config = load_config("pendulum-td3", {"deadlines.stop_s": 20.0, "run.collectors": 2})
        self.clock = FakeClock(100.0)
        board = stack(Board.create(tmp_path / "board", components(config)))
        self.events_file = tmp_path / "events.jsonl"
        log = stack(EventLog(self.events_file, self.clock))
        metrics = stack(MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard"))
        self.queue = EvaluationQueue(baseline=False, enabled=True)
        observer = Observer(config, board, metrics, self.queue, self.clock, None)
        self.experiment = Experiment(config, log, Resources(config), observer, self.queue, self.clock)
        self.supervisor = FakeSupervisor()
        self.experiment._supervisor = self.supervisor
        self.happen(BecameReady("learner", 0, {"layout": None}))
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
            self.experiment._watch_time(self.interrupts)
            self.experiment._evaluate()
        done, self.supervisor.done[:] = list(self.supervisor.done), []
        return done

    @property
    def summary(self):
        return self.experiment.summary()


@pytest.fixture
def scene(tmp_path):

    with ExitStack() as stack:
        yield Scene(tmp_path, stack.enter_context)


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
    scene.supervisor.instruction = GiveUp("collector-1", "it ended again after 1 restart within 300 s")
    error = EnvironmentRaised("raised", error="ValueError: tile 7", fix="mend it")
    scene.happen(died("collector-1", error=error), salvaged(1))
    assert scene.summary["error"] == (
        "[SUP-003] collector-1 ended and is not started again: it ended again after 1 restart within 300 s\n"
        "  last time: raised\n"
        "  error: ValueError: tile 7\n"
        "  fix: read the last lines of logs/collector-1.log; mend it"
    )


def test_learner_is_done_while_a_collector_is_being_salvaged(scene):
    scene.happen(died("collector-1"))
    assert scene.happen(LEARNER_DONE) == ["stop collector-0"]
    assert scene.happen(Exited(id="collector-0", exit_code=0, how="exit code 0", done=True)) == []
    assert scene.experiment._over
    assert scene.summary["outcome"] == "completed"


def test_collector_that_comes_back_after_training_is_told_to_leave(scene):
    scene.happen(died("collector-1"), salvaged(1))
    assert scene.happen(LEARNER_DONE) == ["stop collector-0", "stop collector-1"]


def test_collector_that_dies_after_training_is_noted_and_not_started_again(scene):
    scene.happen(LEARNER_DONE)
    assert scene.happen(died("collector-0"), Exited(id="collector-1", exit_code=0, how="", asked=True)) == []
    assert scene.experiment._over
    assert (scene.summary["outcome"], scene.summary["faults"]) == ("completed", {"died": 1})


def test_learner_dies(scene):
    scene.supervisor.instruction = GiveUp("learner", "it may not be started again")
    assert scene.happen(died("learner")) == []
    assert scene.experiment._over
    assert scene.summary["error"].startswith("[SUP-001] learner ended although nobody asked it to: killed by SIGKILL")


def test_evaluator_is_started_again_and_given_its_order_again(scene):
    order = Reported("learner", Report("frozen", {"version": 2, "env_steps": 64}))
    assert scene.happen(order) == ["tell evaluator evaluate"]
    assert scene.happen(died("evaluator")) == ["restart evaluator", "tell evaluator evaluate"]


def test_hopeless_evaluator_lets_the_learner_finish(scene):
    scene.supervisor.instruction = GiveUp("evaluator", "trying again would fail again")
    assert scene.happen(died("evaluator")) == ["tell learner stop"]
    assert not scene.experiment._over
    scene.happen(LEARNER_DONE, *(Exited(id=f"collector-{n}", exit_code=0, how="", done=True) for n in (0, 1)))
    assert scene.experiment._over
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
    assert scene.experiment._over
    assert (scene.summary["outcome"], scene.summary["exit_code"], scene.summary["faults"]) == ("interrupted", 130, {})


def test_second_interrupt_kills_everybody(scene):
    scene.interrupts.count = 1
    scene.look()
    scene.interrupts.count = 2
    assert scene.look() == ["kill collector-0", "kill collector-1", "kill evaluator", "kill learner"]
    assert scene.experiment._over


def test_interrupt_shortens_a_stop_that_goes_on(scene):
    scene.experiment._stop("run_duration_s is over")
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
    assert scene.experiment._over
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
