"""From a process that does not get on to the one that is to blame: along what each needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """Where a process of the run is."""

    WAITING = "waiting"
    """Not started: something it needs is not ready."""
    STARTING = "starting"
    READY = "ready"
    DONE = "done"
    """It has ended, as it may."""
    FAILED = "failed"
    """It has ended, or was ended, as it may not."""
    STOPPED = "stopped"
    """It was asked to leave, and did."""


class Sign(Enum):
    """What the progress of a process means to those that need it."""

    NONE = "none"
    """It is not watched."""
    RESULTS = "results"
    """What it makes is used by them: they fall silent after it."""
    ANSWERS = "answers"
    """It works when they ask: it may be silent because they do not."""
    WORK = "work"
    """It is silent only if it does not get on with what was asked of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known about one process at one moment."""

    id: str
    needs: tuple[str, ...] = ()
    stage: Stage = Stage.WAITING
    since_s: float = 0.0
    """When that stage began."""
    trouble: str | None = None
    """Of one that failed, or failed to leave in order: ``exited with code 1``, ``makes no progress for 31 s (limit 30 s)``."""
    stalled: bool = False
    """Of one that failed: whether it was ended because it did not get on, for which others may be the reason."""
    sign: Sign = Sign.NONE
    """By what it shows progress."""
    started_s: float | None = None
    """When it was started last; None: never."""
    progress_s: float | None = None
    """When it last did, or became ready; None: it was not ready yet."""
    slack_s: float = 0.0
    """By how much that may have been noticed late."""

    @property
    def watched(self) -> bool:
        """Whether it is expected to show progress."""
        return self.sign is not Sign.NONE


_QUIET_S = 1.0
_SHARE = 1.0 / 3.0


def path_to_root(start: str, standings: Mapping[str, Standing], now_s: float) -> list[str]:
    """From a process in trouble to the root of it, both included: each next one is needed by the one before.

    A process explains what needs it if it has ended, is not ready, or fell silent first.
    Of several that do, what has failed explains more than what was never started, and that more than what is silent; among
    equals, what has been so for longest.
    """
    path = [start]
    while True:
        here = standings[path[-1]]
        found = [
            (rank, standing.since_s if rank < 2 else standing.progress_s or 0.0, standing.id)
            for name in here.needs
            if name not in path
            for standing in [standings[name]]
            if (rank := _explains(standing, here, now_s)) is not None
        ]
        if not found:
            return path
        path.append(min(found)[2])


def _explains(needed: Standing, user: Standing, now_s: float) -> int | None:
    """How well a process explains that its user does not get on, 0 best; None: not at all."""
    if needed.stage is Stage.FAILED:
        return 0 if user.stage is not Stage.FAILED or needed.since_s <= user.since_s else None
    if needed.stage in {Stage.STOPPED, Stage.DONE}:
        # One that had ended before its user was started prepared something, and is not missed.
        return 1 if user.started_s is not None and needed.since_s > user.started_s else None
    if needed.stage in {Stage.WAITING, Stage.STARTING}:
        return 1
    if user.stage is Stage.FAILED and not user.stalled:
        return None  # it ended by itself, and said why
    if needed.progress_s is None or now_s - needed.progress_s < _QUIET_S + needed.slack_s:
        return None
    return 2 if _fell_silent_first(needed, user, now_s) else None


def _fell_silent_first(needed: Standing, user: Standing, now_s: float) -> bool:
    if needed.progress_s is None or user.progress_s is None:
        return needed.watched
    match needed.sign:
        case Sign.WORK:  # it may have worked on for a while after its user had its last result
            return now_s - needed.progress_s - needed.slack_s >= _SHARE * (now_s - user.progress_s)
        case Sign.ANSWERS:
            return needed.progress_s + needed.slack_s + _QUIET_S < user.progress_s
        case Sign.RESULTS:
            return needed.progress_s - needed.slack_s < user.progress_s
    return False


def silent_too(path: list[str], standings: Mapping[str, Standing], now_s: float) -> list[str]:
    """Whoever the root needs that makes no progress either, but may only have nothing to do; in words."""
    root = standings[path[-1]]
    return [
        f"{name} ({condition(standings[name], now_s)}; it may have nothing to do)"
        for name in root.needs
        if standings[name].stage is Stage.READY
        and standings[name].sign is Sign.ANSWERS
        and now_s - (standings[name].progress_s or now_s) >= _SHARE * (now_s - (root.progress_s or now_s))
        and now_s - (standings[name].progress_s or now_s) >= _QUIET_S
    ]


def sentence(path: list[str], standings: Mapping[str, Standing], now_s: float) -> str:
    """The way to the root in words.

    ``trainer makes no progress for 312 s (limit 300 s); it needs orchestrator, which needs inference: exited with code 1
    40 s ago``.
    """
    first = standings[path[0]]
    said = f"{first.id} {condition(first, now_s)}"
    if len(path) == 1:
        return said
    needed = ", which needs ".join(
        name + (f" ({condition(standings[name], now_s)})" if name != path[-1] and standings[name].watched else "")
        for name in path[1:]
    )
    return f"{said}; it needs {needed}: {condition(standings[path[-1]], now_s)}"


def condition(standing: Standing, now_s: float) -> str:
    """How a process stands, as the end of a sentence about it."""
    ago_s = max(0.0, now_s - standing.since_s)
    if standing.stage is Stage.FAILED:
        return f"{standing.trouble or 'failed'}{f' {ago_s:.3g} s ago' if ago_s >= _QUIET_S else ''}"
    if standing.stage is Stage.DONE:
        return f"ended with code 0 {ago_s:.3g} s ago"
    if standing.stage is Stage.STOPPED:
        return f"was stopped {ago_s:.3g} s ago"
    if standing.stage is Stage.WAITING:
        return "was never started"
    if standing.stage is Stage.STARTING:
        return f"is not ready after {ago_s:.3g} s"
    if standing.watched and standing.progress_s is not None:
        return f"makes no progress for {max(0.0, now_s - standing.progress_s):.3g} s"
    return f"is ready for {ago_s:.3g} s"


def never_started(names: Iterable[str], standings: Mapping[str, Standing]) -> list[str]:
    """Which of these have not been started."""
    return [name for name in names if standings[name].stage is Stage.WAITING]
