"""The doctor: from all that is known about a run to one sentence. Pure; see `headrace.monitor.reader` for the looking."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.monitor import checks
from headrace.monitor.snapshot import Diagnosis, Snapshot, Stage
from headrace.telemetry.blame import Blame, Condition, blame
from headrace.telemetry.board import Activity, SlotView, State
from headrace.telemetry.looks import ALIVE, IDLE, Flow, Look, Plan

_BEFORE: tuple[Callable[[Snapshot], Blame | None], ...] = (
    checks.ended,
    checks.no_board,
    checks.unsummed,
    checks.orphaned,
    checks.copied,
    checks.no_room,
)
"""What explains a run whatever its board says."""


_ENOUGH_LOOKS = 10
_BY_CHANCE = 0.01
"""Probability that a run whose lanes are alike has one of them called slow."""


def diagnose(snapshot: Snapshot) -> Diagnosis:
    """What holds a run up, or that nothing does."""
    return _diagnosis(checks.with_those_beside(_verdict(snapshot), snapshot), stages(snapshot))


def _verdict(snapshot: Snapshot) -> Blame:
    for check in _BEFORE:
        found = check(snapshot)
        if found is not None:
            return found
    found = blame(snapshot.looks, snapshot.plan)
    if not found.condition.well and found.condition is not Condition.STARVED:
        return replace(found, evidence=(*found.evidence, *checks.seen(snapshot)))
    for check in (checks.no_memory, checks.restart_loop):
        other = check(snapshot)
        if other is not None:
            return other
    return checks.with_remarks(found, checks.remarks(snapshot), snapshot)


def stages(snapshot: Snapshot) -> tuple[Stage, ...]:
    """The stage table, in the order of the board."""
    if not snapshot.looks:
        return ()
    flow = Flow(snapshot.looks, snapshot.plan)
    return tuple(_stage(flow, view) for view in flow.views.values())


def _stage(flow: Flow, view: SlotView) -> Stage:
    process = flow.process(view.id)
    state = view.state.name.lower()
    if process is not None and process.stopped:
        state = "stopped"
    elif flow.gone(view):
        state = "gone"
    doing = view.state in ALIVE
    rate = flow.work_rate(view) if doing else None
    return Stage(
        component=view.id,
        state=state,
        activity=view.activity.label if doing else None,
        since_s=round(flow.age_s(view), 3) if doing else None,
        waits_on=view.waits_on if doing else None,
        rate=None if rate is None else round(rate, 3),
        pid=view.pid if process is None else process.pid,
        alive=None if process is None else process.alive,
    )


@dataclass(frozen=True, slots=True)
class Share:
    """A component over a stretch of time."""

    component: str
    rate: float | None
    """Its own work per second, the mean."""
    busy_with: dict[str, float]
    """Share of the time in each activity, the largest first."""
    waited_on: dict[str, float]
    """Share of the time spent waiting for each other component, the largest first."""


def shares(looks: Sequence[Look], plan: Plan) -> tuple[Share, ...]:
    """What each component did with its time.

    Args:
        looks: Two or more, evenly spaced; components that are not alive in one count for nothing there.
        plan: Of the run.
    """
    flow = Flow(looks, plan)
    # The supervisor only waits, or is the one that looks.
    return tuple(_share(flow, view) for view in flow.views.values() if view.kind != "supervisor")


def _share(flow: Flow, view: SlotView) -> Share:
    seen = [one for look in flow.looks for one in look.views if one.id == view.id and one.state in ALIVE]
    busy = Counter(one.activity.label for one in seen)
    waited = Counter(one.waits_on for one in seen if one.waits_on is not None and one.activity not in IDLE)
    rate = flow.work_rate(view)
    return Share(
        view.id,
        None if rate is None else round(rate, 3),
        {name: round(count / len(seen), 3) for name, count in busy.most_common()},
        {name: round(count / len(seen), 3) for name, count in waited.most_common()},
    )


_TOO_SHORT = (
    "training was over before it could be looked at twice, so what limits it is not known: give it more run.steps"
)


def diagnose_stretch(snapshot: Snapshot) -> Diagnosis:
    """The verdict over a stretch of a run, from many looks: what held it up for half of the time or more.

    Looks from before training began and after it ended are left out, if there are others.
    """
    if snapshot.summary is not None and snapshot.summary.get("error"):
        return diagnose(snapshot)
    training = tuple(look for look in snapshot.looks if _trains(look))
    if len(training) < 2 and snapshot.summary is not None:  # its start says nothing of what limits it
        ended = diagnose(snapshot)
        completed = snapshot.summary.get("outcome") == "completed"
        return replace(ended, evidence=(*ended.evidence, _TOO_SHORT)) if completed else ended
    looks = training if len(training) >= 2 else tuple(snapshot.looks)
    whole = replace(snapshot, looks=looks, summary=None, live=True)
    if len(looks) < 2:
        return diagnose(snapshot)
    pairs = [blame(pair, snapshot.plan) for pair in itertools.pairwise(looks)]
    troubles = [found for found in pairs if not found.condition.well]
    counted = Counter((found.condition, found.culprit) for found in troubles)
    lines = []
    for (condition, culprit), count in counted.most_common():
        last = [found for found in troubles if (found.condition, found.culprit) == (condition, culprit)][-1]
        if 2 * count >= len(pairs):
            return _diagnosis(
                replace(last, evidence=(f"so at {count} of {len(pairs)} looks", *last.evidence)), stages(whole)
            )
        lines.append(f"{condition.value} at {count} of {len(pairs)} looks: {last.sentence}")
    found = _verdict(whole)
    return _diagnosis(
        replace(found, evidence=(*lines, *_slow_lanes(looks, snapshot.plan.group_size), *found.evidence)), stages(whole)
    )


def _slow_lanes(looks: Sequence[Look], group_size: int) -> list[str]:
    """Lanes in whose step a component was found more often than in those of its other lanes, and not by chance."""
    places: dict[str, Counter[int]] = {}
    newest: dict[str, int] = {}
    for view in (view for look in looks for view in look.views):
        if view.activity is Activity.ENV_STEP and view.state in ALIVE and newest.get(view.id) != view.since_ns:
            newest[view.id] = view.since_ns  # the same step seen again says no more of the lanes
            places.setdefault(view.id, Counter())[view.lane] += 1
    found = []
    for component, seen in places.items():
        (lane, most), total = seen.most_common(1)[0], seen.total()
        lanes = max(group_size, len(seen))
        if lanes == 1 or total < _ENOUGH_LOOKS:
            continue
        # Of all lanes of all components, the one is looked at that was found most often.
        if _at_least(most, total, 1.0 / lanes) * lanes * len(places) < _BY_CHANCE:
            found.append(
                f"{component} was found in the step of lane {lane} at {most} of {total} looks: it is the slow one"
            )
    return found


def _at_least(hits: int, tries: int, share: float) -> float:
    """Probability of so many hits or more, where each try hits with probability ``share``, which is neither 0 nor 1."""

    def log_of(count: int) -> float:
        ways = math.lgamma(tries + 1) - math.lgamma(count + 1) - math.lgamma(tries - count + 1)
        return ways + count * math.log(share) + (tries - count) * math.log1p(-share)

    return sum(math.exp(log_of(count)) for count in range(hits, tries + 1))


def _trains(look: Look) -> bool:
    return any(
        view.kind in {"learner", "trainer"} and view.state in {State.RUNNING, State.WAITING} for view in look.views
    )


def _diagnosis(found: Blame, table: tuple[Stage, ...]) -> Diagnosis:
    return Diagnosis(found.sentence, found.culprit, found.condition, table, found.evidence, found.remedy)
