"""What a session that goes on tells at its beginning and leaves at its end."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.core.clock import FakeClock
from headrace.core.errors import ComponentDied
from headrace.runtime.config import load_config
from headrace.runtime.experiment import Experiment
from headrace.runtime.history import History
from headrace.runtime.incidents import Chronicle, Incidents
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.observer import Observer
from headrace.runtime.payloads import Basics
from headrace.runtime.resources import Resources, components
from headrace.runtime.resume import ResumePoint
from headrace.runtime.scores import EvaluationQueue
from headrace.supervision.spec import BecameReady, Exited, GiveUp
from headrace.telemetry.board import Board
from headrace.telemetry.events import EventLog, read_events
from headrace.telemetry.metrics import MetricsSink

POINT = ResumePoint(Path("checkpoints/3"), 3, 5000, 400, {}, lost_env_steps=70, lost_updates=20, session=2, wall_s=60.0)
READY = BecameReady("learner", 0, {"layout": None, "streams": None, "resumed": None, "record_lost": None})


class DeadSupervisor:
    """Its first look says that everything has failed."""

    def start(self, child_id: str) -> None:
        """Nothing comes of it."""

    def poll(self, timeout_s: float) -> None:
        raise ComponentDied("the probe died", fix="look")


class LivingSupervisor(DeadSupervisor):
    """Has an evaluator, and notes who is told something."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def alive(self) -> list[str]:
        return ["evaluator"]

    def send(self, child_id: str, message: object) -> bool:
        self.told.append(child_id)
        return True


class Session:
    """A session that goes on at `POINT`."""

    def __init__(self, tmp_path, stack) -> None:
        config = load_config("pendulum-td3")
        clock, history = FakeClock(100.0), History(lanes_left_out=(4,))
        history.begin(POINT)
        self.shown = []
        self.events_file = tmp_path / "events.jsonl"
        board = stack(Board.create(tmp_path / "board", components(config)))
        log = stack(EventLog(self.events_file, clock))
        metrics = stack(MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", resumed_at=5000))
        self.queue = queue = EvaluationQueue(baseline=False, enabled=True, history=history)
        observer = Observer(config, board, metrics, queue, clock, self.shown.append, history)
        basics, resources, chronicle = Basics(config, tmp_path / "board"), Resources(config), Chronicle(log, observer)
        self.incidents = Incidents(basics, resources, observer, chronicle, tmp_path, clock)
        self.experiment = Experiment(basics, chronicle, resources, observer, queue, self.incidents, clock)

    def fail(self) -> None:
        """Begin, and fail at once."""
        with pytest.raises(ComponentDied) as caught:
            self.experiment.run(DeadSupervisor(), Interrupts(), lambda: None)
        self.experiment.fail(caught.value)


@pytest.fixture
def session(tmp_path):
    with ExitStack() as stack:
        yield Session(tmp_path, stack.enter_context)


def test_what_is_lost_is_told_at_once_and_first(session):
    session.fail()
    first, second, *_ = read_events(session.events_file)
    assert (first["kind"], first["component"], second["kind"]) == ("resumed", "supervisor", "started")
    assert first["text"] == (
        "goes on at 5,000 steps and 400 updates; 70 environment steps and 20 updates after that checkpoint are lost; "
        "lane 4, left out before, is tried again"
    )
    assert {name: first[name] for name in ("version", "session", "problems", "lost_env_steps", "lost_updates")} == {
        "version": 3, "session": 2, "problems": [], "lost_env_steps": 70, "lost_updates": 20,
    }  # fmt: skip
    assert (session.shown[0].message, session.shown[0].env_steps) == (first["text"], 5000)


def test_session_that_fails_before_its_experience_is_there_claims_neither_more_nor_less(session):
    session.fail()
    summary = session.experiment.summary()
    assert (summary["outcome"], summary["env_steps"], summary["updates"]) == ("failed", 5000, 400)
    assert (summary["books"], summary["sessions"], summary["wall_s"]) == (None, 2, 60.0)
    assert summary["resumes"] == [
        {"env_steps": 5000, "updates": 400, "lost_env_steps": 70, "lost_updates": 20, "lanes_tried_again": [4]}
    ]
    assert summary["error"].startswith("[SUP-001] the probe died")


def test_learner_that_dies_at_once_has_lost_nothing_that_the_checkpoint_holds(session):
    died = Exited(id="learner", exit_code=-9, how="killed by SIGKILL")
    error = session.incidents.error(
        died, GiveUp("learner", "it is never started again"), session.experiment._checkpoint
    )
    assert error.facts["newest_policy"].startswith("checkpoints/3, made after 400 updates and 5,000 environment steps")
    assert error.facts["lost"].startswith("0 of 400 updates")


def test_evaluation_that_is_made_up_for_waits_for_a_learner_which_can_end_the_run(session):
    session.queue.order({"version": 3, "env_steps": 5000})
    session.experiment._supervisor = supervisor = LivingSupervisor()
    session.experiment._watch(Interrupts())
    assert supervisor.told == []
    session.experiment._on(READY)
    session.experiment._watch(Interrupts())
    assert supervisor.told == ["evaluator"]


def test_books_are_audited_once_the_experience_is_there(session):
    session.experiment._supervisor = DeadSupervisor()
    session.experiment._on(READY)
    assert session.experiment.summary()["books"]["balanced"]
