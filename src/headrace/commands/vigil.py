"""Whether one process is ready, gets on, or has taken too long. Pure: signs and times go in, a judgement comes out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_SOFT = 3.0
_SOFT_MOST_S = 10.0
_UNSEEN_S = 2.0
"""Between two judgements, besides what whoever judges has worked; beyond it that one was itself frozen, most likely with the
process, or kept from its processor."""


class Judgement(Enum):
    """What a vigil says at one moment."""

    STARTING = "starting"
    WELL = "well"
    QUIET = "quiet"
    """It is ready, and has made no progress for a good part of its limit."""
    LATE = "late"
    """It is not ready within its limit."""
    STALLED = "stalled"
    """It has made no progress within its limit."""
    FROZEN = "frozen"
    """It has been stopped by a signal for longer than it may."""


LOST = frozenset({Judgement.LATE, Judgement.STALLED, Judgement.FROZEN})
"""Judgements that end a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds."""

    start_s: float
    alive_s: float | None = None
    """It is ready once it has lived so long; None: another sign tells."""
    progress_s: float | None = None
    """None: no progress is expected of it."""
    stopped_s: float = 30.0


class Vigil:
    """Watches one incarnation of a process.

    Args:
        limits: Of the process.
        now_s: When it was started; every later time is on the same clock.
        worked_s: Processor time that whoever judges had used by then.
    """

    def __init__(self, limits: Limits, now_s: float, worked_s: float = 0.0) -> None:
        self._limits = limits
        self.started_s = now_s
        self._stopped_s: float | None = None
        self._best: float | None = None
        self.ready_s: float | None = None
        """When it became ready; None: it is not."""
        self.progress_s = now_s
        """When it last got on."""
        self.signs = 0
        """How often it has shown that it gets on."""
        self._judged_s, self._worked_s = now_s, worked_s
        self._unseen_s = 0.0
        """Of the time since then, that in which nobody watched: it counts against no limit."""

    def note_ready(self, now_s: float) -> None:
        """Its sign of readiness has been seen; later ones change nothing."""
        if self.ready_s is None:
            self.ready_s = self.progress_s = now_s
            self._unseen_s = 0.0

    def note_progress(self, now_s: float) -> None:
        """Its sign of progress has been seen."""
        self.note_idle(now_s)
        self.signs += 1

    def note_idle(self, now_s: float) -> None:
        """Nobody wants anything of it: its silence is none."""
        self.progress_s = now_s
        self._unseen_s = 0.0

    def note_number(self, value: float, now_s: float) -> bool:
        """The number by which it shows progress; whether it has grown.

        The first one, and one that has fallen (a counter that began anew, files that were cleared away), is only what the
        next is compared with.
        """
        grown = self._best is not None and value > self._best
        self._best = value
        if grown:
            self.note_progress(now_s)
        return grown

    def note_stopped(self, now_s: float, *, stopped: bool) -> None:
        """Whether the system says that it is stopped by a signal."""
        if not stopped:
            self._stopped_s = None
        elif self._stopped_s is None:
            self._stopped_s = now_s

    def judge(self, now_s: float, worked_s: float = 0.0) -> Judgement:
        """How it stands; what ends it first. To be asked again and again, more often than every two seconds.

        Args:
            now_s: The time.
            worked_s: Processor time that whoever asks has used so far: reading a flood is no absence.
        """
        watched_s = _UNSEEN_S + worked_s - self._worked_s

        def unseen_s(since_s: float) -> float:
            return max(0.0, now_s - max(self._judged_s, since_s) - watched_s)

        self._unseen_s += unseen_s(self.started_s if self.ready_s is None else self.progress_s)
        if self._stopped_s is not None:
            self._stopped_s += unseen_s(self._stopped_s)
        self._judged_s, self._worked_s = now_s, worked_s
        if self._stopped_s is not None and now_s - self._stopped_s >= self._limits.stopped_s:
            return Judgement.FROZEN
        if self.ready_s is None:
            if self._limits.alive_s is not None and now_s - self.started_s >= self._limits.alive_s:
                self.note_ready(now_s)
                return Judgement.WELL
            starting_s = now_s - self.started_s - self._unseen_s
            return Judgement.LATE if starting_s >= self._limits.start_s else Judgement.STARTING
        if self._limits.progress_s is None:
            return Judgement.WELL
        silent_s = now_s - self.progress_s - self._unseen_s
        if silent_s >= self._limits.progress_s:
            return Judgement.STALLED
        return Judgement.QUIET if silent_s >= min(_SOFT_MOST_S, self._limits.progress_s / _SOFT) else Judgement.WELL

    def in_words(self, judgement: Judgement, now_s: float) -> str:
        """What is wrong, with the limit it broke: ``makes no progress for 31 s (limit 30 s)``."""
        limits = self._limits
        if judgement is Judgement.LATE:
            return f"is not ready after {now_s - self.started_s:.3g} s (limit {limits.start_s:g} s)"
        if judgement is Judgement.FROZEN and self._stopped_s is not None:
            return f"is stopped by a signal for {now_s - self._stopped_s:.3g} s (limit {limits.stopped_s:g} s)"
        return f"makes no progress for {now_s - self.progress_s:.3g} s (limit {limits.progress_s or 0.0:g} s)"
