"""Real runs that are struck while they train, and the replay of what they have recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.record.events import ChunkCommitted, Event, GroupSalvaged, LearnerSucceeded, Note
from headrace.record.trace import Trace
from headrace.runtime.api import Run
from headrace.runtime.moments import Replayed
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.replayer import Replayer
from headrace.supervision.spec import Reported
from headrace.supervision.supervisor import Supervisor
from run_support import dawdling

SCRIPT = (sys.executable, Path(sys.executable).with_name("headrace"))
HERE = Path(__file__).resolve().parent
"""Where the modules of the tests' environments lie."""
Blow = tuple[str, signal.Signals, int]
"""Whom, with what, and how many updates the learner has reported then."""


@dataclass(frozen=True)
class Case:
    """A run of 2,000 updates or more, and what is to go wrong in it."""

    env: str = "run_envs:make"
    fault: str | None = None
    """Of the environment, once; a method of `run_envs.Traced`, or what `run_envs.provoked` is to do."""
    at: int = 120
    """Step of one environment at which it happens, or what `provoked` takes it for."""
    blows: Sequence[Blow] = ()
    """What the test sends."""
    happened: Mapping[str, int] = field(default_factory=dict)
    """What the run is to report then, as in the summary's ``faults``; at least so many."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


class Blows:
    """Sends signals to components of a run when its learner reports so many updates.

    A learner reports twice a second, and a small run may be over by then: let its environments dawdle (`env`).
    """

    def __init__(self, patch: pytest.MonkeyPatch, gate: Path) -> None:
        self._patch = patch
        self._gate = gate
        self.sent: list[Blow] = []

    def env(self, inner: str, slow_from: int, kwargs: Mapping[str, object] | None = None) -> dict[str, Any]:
        """An environment that is slow from this step of its own on until everything planned is sent; see `dawdling`."""
        return dawdling(self._gate, inner, slow_from, **(kwargs or {}))

    def plan(self, blows: Sequence[Blow], send: Callable[[int, signal.Signals], None] = os.kill) -> None:
        """For the next run; ``send`` is given the pid of whom it is meant for, and the signal."""
        poll: Callable[..., list[Any]] = Supervisor.poll
        left = list(blows)
        if not left:
            self._gate.touch()

        def polled(supervisor: Supervisor, timeout_s: float) -> list[Any]:
            found = poll(supervisor, timeout_s)
            for event in found:
                facts = getattr(getattr(event, "message", None), "facts", {})
                told = isinstance(event, Reported) and event.id == "learner" and "weights_sha256" not in facts
                if not (told and left and facts.get("updates", -1) >= left[0][2]):
                    continue
                if left[0][0] in supervisor.alive():
                    self.sent.append(left.pop(0))
                    send(supervisor.pid(self.sent[-1][0]), self.sent[-1][1])
                    if not left:
                        self._gate.touch()
            return found

        self._patch.setattr(Supervisor, "poll", polled)

    def on_report(self, child_id: str, number: signal.Signals, kind: str, before: Callable[[], None]) -> None:
        """For the next run: one signal to a component when the supervisor has its first report of this kind.

        Args:
            child_id: Of the component.
            number: The signal.
            kind: Of the report.
            before: Called just before.
        """
        poll: Callable[..., list[Any]] = Supervisor.poll

        def polled(supervisor: Supervisor, timeout_s: float) -> list[Any]:
            found = poll(supervisor, timeout_s)
            told = [event for event in found if isinstance(event, Reported) and event.id == child_id]
            if not self.sent and any(getattr(event.message, "kind", "") == kind for event in told):
                self.sent.append((child_id, number, 0))
                before()
                os.kill(supervisor.pid(child_id), number)
            return found

        self._patch.setattr(Supervisor, "poll", polled)


@pytest.fixture
def blows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Blows:
    """Signals to send while a run trains."""
    return Blows(monkeypatch, tmp_path / "gate")


def recorded(run: Run) -> list[Event]:
    """Every event of a run's record."""
    with Trace.open(run.path / "record" / TRACE_FILE) as trace:
        return [event for _, event in trace.events()]


def salvages(events: Sequence[Event]) -> int:
    """Salvages of a group's rows."""
    return sum(isinstance(event, GroupSalvaged) for event in events)


def successions(events: Sequence[Event]) -> list[int]:
    """Saves that successors of a learner began from."""
    return [event.number for event in events if isinstance(event, LearnerSucceeded)]


def notes(events: Sequence[Event], kind: str) -> list[Mapping[str, Any]]:
    """Facts of the notes of a kind."""
    return [event.facts for event in events if isinstance(event, Note) and event.kind == kind]


def lags(events: Sequence[Event]) -> set[int]:
    """Updates made between two commits of one group; more than one value: the order was not that of rounds."""
    last: dict[int, int] = {}
    found = set()
    for event in events:
        if isinstance(event, ChunkCommitted):
            found.add(event.updates - last.get(event.group, 0))
            last[event.group] = event.updates
    return found


def replayed_alike(run: Run) -> Replayed:
    """Replay a run that has ended in order; it comes to the same weights, and they are numbers."""
    with Replayer(run.path) as replayer:
        assert replayer.run() is None
        found = replayer.outcome()
        state = replayer.learner.algorithm.state()
        assert all(np.isfinite(array).all() for array in state.values() if array.dtype.kind == "f")
    assert found.events == replayer.events == len(recorded(run)) > 100
    assert found.weights_sha256 == run.summary["weights_sha256"]
    assert (found.updates, found.env_steps) == (run.summary["updates"], run.summary["env_steps"])
    assert (found.ended, found.torn_bytes, found.machine) == (True, 0, ())
    return found


def headrace(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [*SCRIPT, *arguments], input=given, capture_output=True, text=True, timeout=200, cwd=HERE, check=False
    )
