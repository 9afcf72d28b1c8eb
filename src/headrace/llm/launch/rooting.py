"""Whom a wait that came to nothing is to be blamed on: the end of the chain of waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.telemetry.board import SlotView, State
from headrace.telemetry.looks import ALIVE, IDLE, Flow, Look, Plan, path
from headrace.telemetry.wording import place, times, waiting_for


@dataclass(frozen=True, slots=True)
class Root:
    """Who is at the end of a chain of waits."""

    culprit: str
    sentence: str
    """The whole chain, one sentence without a full stop."""


def find_root(looks: Sequence[Look], waiter: str, plan: Plan) -> Root | None:
    """Follow the waits from a component that gave up to the one that waits for nobody.

    Args:
        looks: At the board, oldest first; the newest in which it still waited counts.
        waiter: Who gave up.
        plan: Of the run.

    Returns:
        None if it was not seen waiting for anybody.
    """
    for look in reversed(looks):
        flow = Flow([look], plan)
        chain = path(flow.waits(), waiter)
        if chain:
            return _root(flow, [waiter, *(name for name in chain if name != waiter)])
    return None


def waits_in_vain(look: Look, ended: frozenset[str], for_s: float) -> tuple[str, str] | None:
    """Somebody who has waited for a component that is gone for good, and that component; None if nobody has.

    Args:
        look: At the board, now.
        ended: Components that have ended and are not started again.
        for_s: Seconds a wait must have lasted.
    """
    for view in look.views:
        if view.state in ALIVE and view.waits_on in ended and view.activity not in IDLE:
            assert view.waits_on is not None, "it is one of those that ended"
            if view.age_s(look.now_ns) >= for_s:
                return view.id, view.waits_on
    return None


def _root(flow: Flow, chain: list[str]) -> Root:
    views = [flow.views[name] for name in chain]
    links = [waiting_for(view, flow) for view in views[:-1]]
    last = views[-1]
    if last.id in flow.waits():  # the last of a ring
        return Root(last.id, f"{', and '.join([*links, waiting_for(last, flow)])}: none of them can go on")
    return Root(last.id, f"{', and '.join(links)}; {_state_of(last, flow)}")


def _state_of(view: SlotView, flow: Flow) -> str:
    if view.state in ALIVE:
        if view.activity in IDLE:
            return f"{view.id} has had nothing to do for {times(view, flow)} ({place(view)})"
        return f"{view.id} has been inside {place(view)} for {times(view, flow)}"
    how = {State.EMPTY: "was never started", State.FAILED: "has failed"}.get(view.state, "has ended")
    return f"{view.id} {how}"
