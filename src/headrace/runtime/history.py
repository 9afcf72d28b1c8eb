"""What the earlier sessions of a run have left in its events, for the session that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.runtime.progress import EvaluationPoint
from headrace.runtime.resume import ResumePoint
from headrace.telemetry.events import is_number, read_events

_OF_A_RESUME = ("env_steps", "updates", "lost_env_steps", "lost_updates")


@dataclass(slots=True)
class History:
    """Of a run that has not begun: nothing."""

    last_s: float = 0.0
    """Seconds from the run's start to the last event."""
    evaluations: list[EvaluationPoint] = field(default_factory=list)
    """Of policies that the run still knows, oldest first."""
    unevaluated: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Orders (``version``, ``env_steps``) to evaluate such policies that nothing came of, by version, oldest first."""
    given_up: set[int] = field(default_factory=set)
    """Those of them whose evaluation ended a session."""
    random_baseline: EvaluationPoint | None = None
    faults: Counter[str] = field(default_factory=Counter)
    """By kind, and ``restarts``, as an `Observer` counts them."""
    resumes: list[dict[str, Any]] = field(default_factory=list)
    """What each resume began from and what was lost by it, oldest first."""
    lanes_left_out: tuple[int, ...] = ()
    """Lanes that the newest session has gone on without."""
    point: ResumePoint | None = None
    """Where this session begins; None: with the run."""
    damaged: list[int] = field(default_factory=list)
    """Numbers, from 1, of the events that are not what one of their kind has to be, and that count for nothing."""

    def begin(self, point: ResumePoint) -> None:
        """This session goes on from ``point``."""
        self.resume({name: getattr(point, name) for name in ("version", *_OF_A_RESUME)})
        self.point = point

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """``version``, ``env_steps`` and ``updates`` of the checkpoint this session began from; None: it began anew."""
        if self.point is None:
            return None
        return {name: getattr(self.point, name) for name in ("version", "env_steps", "updates")}

    def told(self) -> tuple[str, dict[str, Any]]:
        """The beginning of this session as an event: a sentence and its facts. Only after `begin`."""
        point, newest = self.point, self.resumes[-1]
        assert point is not None, "this session begins with the run"
        text, again = str(point), newest.get("lanes_tried_again", ())
        if again:
            lanes, verb = ("lane", "is") if len(again) == 1 else ("lanes", "are")
            text += f"; {lanes} {', '.join(map(str, again))}, left out before, {verb} tried again"
        return text, {**newest, "version": point.version, "session": point.session, "problems": list(point.problems)}

    def resume(self, facts: Mapping[str, Any]) -> None:
        """A session began at a checkpoint: policies that were made after it are of a past that is forgotten.

        Args:
            facts: ``version``, ``env_steps`` and ``updates`` of the checkpoint, ``lost_env_steps``, ``lost_updates``.
        """
        again = {"lanes_tried_again": list(self.lanes_left_out)} if self.lanes_left_out else {}
        self.resumes.append({**{name: facts.get(name) for name in _OF_A_RESUME}, **again})
        newest = facts["version"]
        self.evaluations = [point for point in self.evaluations if point.version is None or point.version <= newest]
        self.unevaluated = {version: order for version, order in self.unevaluated.items() if version <= newest}
        self.lanes_left_out = ()

    def ordered(self, event: Mapping[str, Any]) -> None:
        """A policy is to be evaluated; not again where it was frozen anew after it had come to a result."""
        if all(point.version != event["version"] for point in self.evaluations):
            self.unevaluated[event["version"]] = {name: event[name] for name in ("version", "env_steps")}

    def evaluated(self, event: Mapping[str, Any]) -> None:
        """A policy, or random actions, came to a result; or to none, and that ended a session."""
        if event["kind"] == "not_evaluated":
            self.given_up.add(event["version"])
            return
        point = EvaluationPoint.of(event)
        if point.version is None:
            self.random_baseline = point
            return
        self.evaluations.append(point)
        self.unevaluated.pop(point.version, None)
        self.given_up.discard(point.version)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and is_number(value)


def _or_none(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or kind(value)


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_or_none(is_number), value))


_NEEDS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "resumed": dict.fromkeys(("version", *_OF_A_RESUME), _is_whole),
    "policy": dict.fromkeys(("version", "env_steps"), _is_whole),
    "not_evaluated": {"version": _or_none(_is_whole)},
    "evaluated": {
        "version": _or_none(_is_whole), "env_steps": _or_none(_is_whole), "mean_reward": _or_none(is_number),
        "episodes": _is_whole, "interval": _or_none(_is_interval), "agents": lambda value: isinstance(value, dict),
    },
    "fault": {"how": lambda value: isinstance(value, str)},
    "degraded": {"lanes": lambda value: isinstance(value, list) and all(map(_is_whole, value))},
}  # fmt: skip
"""By kind, what its events hold that `read_history` asks for."""
_OPTIONAL = ("how", "agents")


def _is_sound(event: Mapping[str, Any]) -> bool:
    """Whether an event has what every one has, and those of its kind: a disk may have changed it since it was written."""
    kind, component = event.get("kind"), event.get("component")
    if not isinstance(kind, str) or not isinstance(component, str) or not is_number(event.get("t_s")):
        return False
    if kind == "resumed" and component != "supervisor":  # a learner's own is that of another one in its place
        return True
    needs = _NEEDS.get(kind, {})
    return all(fits(event[name]) if name in event else name in _OPTIONAL for name, fits in needs.items())


def _sound(events: Iterable[Mapping[str, Any]], damaged: list[int]) -> Iterator[Mapping[str, Any]]:
    """Those of the events that are sound; the numbers of the others are noted, unless their lines are empty."""
    for number, event in enumerate(events, 1):
        if _is_sound(event):
            yield event
        elif event.get("kind") != "empty":
            damaged.append(number)


def environment_fault(how: str) -> str:
    """What a fault of an environment that a worker steps is counted as.

    Args:
        how: Its kind, e.g. ``lost-with-worker``.
    """
    return f"environment_{how.replace('-', '_')}"


def history_for(events_file: Path, point: ResumePoint | None) -> History:
    """What a session has to know of those before it.

    Args:
        events_file: Of the run.
        point: Where the session goes on; None: with a new run, which has no history.
    """
    if point is None:
        return History()
    found = read_history(read_events(events_file))
    found.begin(point)
    return found


def read_history(events: Iterable[Mapping[str, Any]]) -> History:
    """Go through the events of a run.

    Args:
        events: As `read_events` gives them. What a disk has changed in them since is not believed, see `History.damaged`.
    """
    found = History()
    overdue: set[str] = set()
    """Components that missed a deadline and have not ended yet."""
    evaluates = False
    """Whether the session has an evaluator; policies may be frozen without."""
    for event in _sound(events, found.damaged):
        found.last_s = max(found.last_s, event["t_s"])
        component = event["component"]
        match event["kind"]:
            case "resumed" if component == "supervisor":
                found.resume(event)
                evaluates = False
            case "policy" if evaluates:
                found.ordered(event)
            case "evaluated" | "not_evaluated":
                found.evaluated(event)
            case "stacks":
                overdue.add(component)
            case "fault" if component != "supervisor":  # the supervisor's says why the run ends
                of_component = "stalled" if component in overdue else "died"
                found.faults[environment_fault(event["how"]) if "how" in event else of_component] += 1
            case "recycled":
                found.faults["recycled"] += 1
            case "started" | "restarted" as kind:
                overdue.discard(component)
                found.faults["restarts"] += kind == "restarted"
                evaluates = evaluates or component == "evaluator"
            case "degraded":
                found.lanes_left_out += tuple(event["lanes"])
    return found
