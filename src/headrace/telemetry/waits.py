"""The one primitive for blocking: a wait with a name, a reason, a culprit and a limit."""

from __future__ import annotations

import select
from collections.abc import Iterable

from headrace.core.errors import ComponentStalled
from headrace.ipc.channel import poll_fds
from headrace.telemetry.board import Activity, Slot


def wait_readable(  # noqa: PLR0913 - a wait is exactly these: who, on what, why, whom, how much, how long
    slot: Slot | None,
    fds: Iterable[int],
    *,
    activity: Activity,
    on: str | None,
    need: int,
    have: int,
    timeout_s: float,
    raise_on_timeout: bool = True,
) -> list[int]:
    """Wait until one of ``fds`` can be read, or its other end is gone; keeps the board true meanwhile.

    Signals do not shorten the wait; an exception from a signal handler ends it, and the slot is restored.

    Args:
        slot: Of the component that waits, if it has one.
        fds: Descriptors to watch.
        activity: Which wait it is, e.g. ``Activity.WAIT_CREDIT``.
        on: Id of the component that can end it, if there is one.
        need: How much is needed, e.g. messages.
        have: How much of that is there.
        timeout_s: Limit in seconds; 0 only looks.
        raise_on_timeout: False: reaching the limit gives an empty answer.

    Returns:
        The descriptors that are ready, in the order given.

    Raises:
        ComponentStalled: The limit was reached; it names who was waited for.
        ChannelClosed: A descriptor was closed in this very process.
    """
    watched = list(fds)
    before = slot and slot.resume()
    if slot:
        slot.waiting(activity, on=on, need=need, have=have, deadline_s=timeout_s)
    try:
        events = poll_fds(dict.fromkeys(watched, select.POLLIN), timeout_s)
    finally:
        if slot and before:
            slot.enter(*before)
    ready = [fd for fd in watched if fd in events]
    if not ready and raise_on_timeout:
        raise _stalled(
            slot.id if slot else "this process", timeout_s, on, activity=activity.label, need=need, have=have
        )
    return ready


def _stalled(waiter: str, timeout_s: float, on: str | None, **facts: object) -> ComponentStalled:
    return ComponentStalled(
        f"{waiter} waited {timeout_s:g} s for {on or 'a message'}",
        **facts,
        fix=f"see what {on or 'the other side'} is doing: `headrace doctor RUN`",
    )
