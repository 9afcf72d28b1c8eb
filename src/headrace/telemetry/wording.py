"""Pieces of the sentences in which a verdict is told."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.telemetry.board import Activity, SlotView
from headrace.telemetry.looks import Flow

_MOST = 4
_ONE_CORE = 0.8
_NO_CORE = 0.05
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


def is_in(flow: Flow, view: SlotView) -> str:
    """What it is busy with, and for how long, as a sentence."""
    return f"{view.id} has been inside {place(view)} for {times(view, flow)}"


def and_waiters(flow: Flow, component: str) -> str:
    """The end of a sentence about a component that others wait for; empty if nobody does."""
    waiters = flow.waiters(component)
    return f", and {names(waiters)} {verb(waiters, 'waits', 'wait')} for it" if waiters else ""


def wait_lines(flow: Flow) -> tuple[str, ...]:
    """The wait-for graph, one line an edge."""
    return tuple(waiting_for(flow.views[name], flow) for name in flow.waits())


def processor(flow: Flow, view: SlotView) -> str:
    """What it uses of a core, and what that means, as the end of a sentence; empty where not known."""
    share = flow.cpu_share(view.id)
    if share is None:
        return ""
    # On a busy machine a loop gets less than a core, but it always wants one.
    if share >= _ONE_CORE or (share > _NO_CORE and flow.always_runnable(view.id)):
        return f" and uses {share:.0%} of a core: it spins without getting on"
    if share <= _NO_CORE:
        return f" and uses {share:.0%} of a core: it waits for something outside the run"
    return f" and uses {share:.0%} of a core"


def again(view: SlotView, flow: Flow) -> str:
    """When a component that has failed is there again, as what is said of it."""
    return f"is started again in {seconds(max(0.0, view.deadline_s - flow.age_s(view)))}"


def asked_to_leave(view: SlotView, flow: Flow) -> str:
    """Since when, and how long it has."""
    asked = f"{view.id} was asked to leave"
    if not view.deadline_s:
        return asked
    late = flow.age_s(view) >= view.deadline_s
    has = f"had {view.deadline_s:g} s, so it is killed" if late else f"has {view.deadline_s:g} s"
    return f"{asked} {times(view, flow)} ago and {has}"


def way_out(view: SlotView) -> str:
    """What to do about a component that is stuck."""
    deadline = {
        Activity.ENV_STEP: "deadlines.step_s",
        Activity.POLICY: "deadlines.step_s",
        Activity.ENV_RESET: "deadlines.reset_s",
        Activity.UPDATE: "deadlines.update_s",
        Activity.PUBLISH: "deadlines.update_s",
        Activity.EVALUATE: "deadlines.evaluate_s",
        Activity.CHECKPOINT: "deadlines.checkpoint_s",
        Activity.START: "deadlines.start_s",
        Activity.STOP: "deadlines.stop_s",
        Activity.ENV_CONSTRUCT: "deadlines.start_s",
        Activity.GENERATE: "deadlines.generate_s",
        Activity.SCORE: "deadlines.generate_s",
        Activity.WARM_START: "deadlines.warm_start_s",
    }.get(view.activity, "its deadline")
    what = "the environment" if view.activity.name.startswith("ENV_") else view.id
    if view.activity is Activity.WAIT_ENV:
        return f"a worker of {view.id} steps it, and at its limit it is replaced alone; if it is only slow, raise deadlines.step_s"
    then = "ends" if view.activity is Activity.STOP else "replaces"
    return (
        f"see where it is with `py-spy dump --pid {view.pid}` and repair {what}; at its limit the supervisor writes "
        f"its stacks and {then} it; if it is only slow, raise {deadline}"
    )
