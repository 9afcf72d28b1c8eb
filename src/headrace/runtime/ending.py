"""How a run ends: when, in what order, and what follows if somebody does not leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from headrace.core.clock import Clock
from headrace.core.errors import ComponentStalled, HeadraceError
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.incidents import Chronicle
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.observer import Observer
from headrace.runtime.resources import Resources, collector_ids
from headrace.supervision.messages import Stop, ToChild

GRACE_S = 2.0
"""Seconds an environment has to come back from a call after an interrupt."""


@dataclass(slots=True)
class Course:
    """How far a run has come."""

    error: HeadraceError | None = None
    """The reason it fails for; the first one counts."""
    culprit: str | None = None
    """Whom that is laid on: a component."""
    interrupted: bool = False
    learner_done: bool = False
    """Whether the learner has told everything it had to."""
    over: bool = False
    """Whether everybody may be ended now."""
    training_s: list[float] = field(default_factory=list)
    """Begin and end of training."""
    successor: Literal["cleared for", "started"] | None = None
    """Set while the learner is dead and another one is to go on in its place."""

    @property
    def training(self) -> bool:
        """Whether it has begun and not ended."""
        return len(self.training_s) == 1

    @property
    def lasted_s(self) -> float | None:
        """Seconds it took; None unless it has ended."""
        return self.training_s[1] - self.training_s[0] if len(self.training_s) == 2 else None

    @property
    def outcome(self) -> tuple[str, int]:
        """How the run ends, in a word, and its exit code."""
        if self.error is not None:
            return "stalled" if isinstance(self.error, ComponentStalled) else "failed", self.error.exit_code
        return ("interrupted", 130) if self.interrupted else ("completed", 0)


class Stoppable(Protocol):
    """Who can end processes: the supervisor."""

    def send(self, child_id: str, message: ToChild) -> bool:
        """Send a message; False if the child is not running."""
        ...

    def kill_all(self, ids: Sequence[str] | None = None) -> None:
        """Kill children, or all."""
        ...

    def alive(self) -> list[str]:
        """Children that have a process."""
        ...


class Ending:
    """Asks for the end of a run, and sees to it that it comes.

    Args:
        config: Of the run.
        course: How far it has come; told what follows.
        chronicle: Where what happens is told.
        resources: What the children share.
        observer: What is known about the run.
        clock: Monotonic.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        course: Course,
        chronicle: Chronicle,
        resources: Resources,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._config = config
        self._course = course
        self._say = chronicle.say
        self._resources = resources
        self._observer = observer
        self._clock = clock
        self._stop_due_s: float | None = None
        """When the learner must have answered a request to stop."""
        self._reason = ""
        """Of that request."""
        self._hurry_due_s = math.inf
        """When a round that has not been finished is ended in the middle."""
        self._leave_due_s = math.inf
        """When collectors that have not left are ended, so that the learner need not wait for them."""

    @property
    def requested(self) -> bool:
        """Whether the run has been asked to end."""
        return self._stop_due_s is not None

    def request(self, reason: str, supervisor: Stoppable) -> None:
        """Have the learner finish in order.

        Collectors leave at their next step; in rounds they are given time to finish theirs, so that a run that goes on
        from here does what it would have done.
        """
        now_s, stop_s = self._clock.now(), self._config.deadlines.stop_s
        if self._course.interrupted:
            self._leave_due_s = min(self._leave_due_s, now_s + min(GRACE_S, stop_s / 2))
            self._hurry_due_s = min(self._hurry_due_s, now_s + min(GRACE_S, stop_s / 2) / 2)
        if self._stop_due_s is not None:
            return
        self._stop_due_s, self._reason = now_s + stop_s, reason
        self._leave_due_s = min(self._leave_due_s, now_s + stop_s / 2)
        self._hurry_due_s = min(self._hurry_due_s, now_s + stop_s / 4)
        self._say("stopping", "supervisor", f"stopping: {reason}")
        if self._config.run.schedule == "async":
            self._resources.stop_collecting()
        if not self._course.training_s or not (self._tell(supervisor) or self._awaits_a_learner(supervisor)):
            self._course.over = True

    def falls_to(self, supervisor: Stoppable) -> bool:
        """Whether a learner that has just become ready is to end the run, as the one before it was; it is told so."""
        if self.requested:
            self._tell(supervisor)
        elif self._course.error is not None:  # the other one died before it had saved the rows of whoever failed
            self.request("a component failed", supervisor)
        return self.requested

    def _tell(self, supervisor: Stoppable) -> bool:
        """Have the learner that there is now finish; False if there is none."""
        return supervisor.send("learner", Stop(self._reason))

    def _awaits_a_learner(self, supervisor: Stoppable) -> bool:
        """Whether one is to take the place of a learner that is dead, or has died a moment ago and is not missed yet.

        That one is told once it is ready, within the same limit; or its death ends the run.
        """
        course = self._course
        return course.successor is not None or (not course.learner_done and "learner" in supervisor.alive())

    def watch(self, interrupts: Interrupts, supervisor: Stoppable) -> HeadraceError | None:
        """Look at signals and at the clock; the error that ends the run, if somebody did not leave in time."""
        course = self._course
        now_s, limit_s = self._clock.now(), self._config.run.run_duration_s
        if interrupts.count and not course.interrupted:
            course.interrupted = True
            self.request("interrupted", supervisor)
        elif interrupts.count > 1:
            supervisor.kill_all()
            course.over = True
        elif limit_s is not None and course.training and now_s - course.training_s[0] >= limit_s:
            self.request("run_duration_s is over", supervisor)
        if now_s > self._hurry_due_s:
            self._hurry_due_s = math.inf
            self._resources.stop_collecting()
        if now_s > self._leave_due_s and not course.learner_done:
            self._end_those_who_step(supervisor)
        if self._stop_due_s is None or course.learner_done:
            return None
        if course.successor is None and "learner" in supervisor.alive() and self._observer.finishes("learner"):
            self._stop_due_s = now_s + self._config.deadlines.stop_s  # counts from the end of that work
        if now_s <= self._stop_due_s:
            return None
        course.over = True
        return self._not_stopped(supervisor)

    def _end_those_who_step(self, supervisor: Stoppable) -> None:
        """Whoever is still inside an environment now is not waited for any longer."""
        ids = collector_ids(self._config)
        if ids:
            self._leave_due_s = math.inf
            supervisor.kill_all(ids)
        elif (
            self._course.interrupted
            and self._course.successor is None
            and (doing := self._observer.stuck_in_environment("learner", GRACE_S))
        ):
            # Here the learner steps the environments itself, so it cannot finish before that call comes back.
            self._say("stopping", "learner", f"learner is ended: it does not come back from {doing}", tell=True)
            supervisor.kill_all(["learner"])
            self._course.over = True

    def _not_stopped(self, supervisor: Stoppable) -> ComponentStalled:
        facts = {"still_running": ", ".join(supervisor.alive()) or "nobody"}
        if self._course.successor is not None:
            facts["waits_for"] = "another learner, in the place of the one that died"
        return ComponentStalled(
            f"the run did not stop within {self._config.deadlines.stop_s:g} s",
            **facts,
            fix="see what they are doing in logs/; raise deadlines.stop_s if a step or an update may take so long",
        )
