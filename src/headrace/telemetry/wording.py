"""Pieces of the sentences in which a verdict is told."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.telemetry.board import Activity, SlotView
from headrace.telemetry.looks import Flow

_MOST = 4
_NEEDS = {
    Activity.WAIT_CREDIT: "credit",
    Activity.WAIT_ROWS: "rows",
    Activity.WAIT_WEIGHTS: "weights",
    Activity.WAIT_ACTIONS: "actions",
    Activity.WAIT_RESULTS: "results",
    Activity.WAIT_ACK: "an acknowledgement",
    Activity.WAIT_BATCH: "a batch",
    Activity.WAIT_POLICY: "a newer policy",
    Activity.WAIT_COMPLETIONS: "completions",
    Activity.WAIT_NEEDED: "readiness",
    Activity.WAIT_PROGRESS: "progress",
}


def seconds(value: float) -> str:
    """A duration: ``0.8 s``, ``12.4 s``, ``1,204 s``."""
    return f"{value:,.0f} s" if value >= 100.0 else f"{value:.1f} s"


def names(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; of many, the first few and a number."""
    if len(items) > _MOST:
        return f"{', '.join(items[: _MOST - 1])} and {len(items) - _MOST + 1} others"
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def verb(items: Sequence[str], one: str, many: str) -> str:
    """The form of a verb for so many."""
    return one if len(items) == 1 else many


def amount(count: int, noun: str) -> str:
    """``1 restart``, ``3 restarts``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def activity_of(view: SlotView) -> str:
    """What it is busy with: ``env.step``; ``idle`` for nothing."""
    return view.activity.label if view.activity is not Activity.NONE else "idle"


def place(view: SlotView) -> str:
    """What it is busy with, and where: ``env.step of lane 3, step 1742``; ``update 1305``."""
    lane = f" of lane {view.lane}" if view.lane >= 0 else ""
    step = f"{', step' if lane else ''} {view.step}" if view.step >= 0 else ""
    return activity_of(view) + lane + step


def times(view: SlotView, flow: Flow) -> str:
    """How long it has been at that."""
    return seconds(flow.age_s(view))


def waiting_for(view: SlotView, flow: Flow) -> str:
    """One edge of the wait-for graph: ``learner has waited 12.0 s for rows of collector-0 (0 of 2 are there)``."""
    need = _NEEDS.get(view.activity, view.activity.label)
    have = f" ({view.have:,} of {view.need:,} {'is' if view.have == 1 else 'are'} there)" if view.need > 0 else ""
    whose = f" of {view.waits_on}" if view.waits_on else ""
    return f"{view.id} has waited {times(view, flow)} for {need}{whose}{have}"
