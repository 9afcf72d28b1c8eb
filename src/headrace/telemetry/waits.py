"""The one primitive for blocking: a wait with a name, a reason, a culprit and a limit."""

from __future__ import annotations

import select
from collections.abc import Iterable

from headrace.core.errors import ChannelClosed, ComponentStalled
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

    Signals do not shorten the wait; an exception raised by a signal handler ends it and leaves the slot as it was.

    Args:
        slot: Of the component that waits; None if it has none.
        fds: Descriptors to watch.
        activity: Which wait it is, e.g. ``Activity.WAIT_CREDIT``.
        on: Id of the component that can end it, if there is one.
        need: How much is needed, e.g. messages.
        have: How much of that is there.
        timeout_s: Limit in seconds; 0 only looks.
        raise_on_timeout: Whether reaching the limit is an error, or just an empty answer.

    Returns:
        The descriptors that are ready, in the order given.

    Raises:
        ComponentStalled: The limit was reached; it names who was waited for.
        ChannelClosed: A descriptor was closed in this very process.
    """
    watched = list(fds)
    before = slot.resume() if slot is not None else None
    if slot is not None:
        slot.waiting(activity, on=on, need=need, have=have, deadline_s=timeout_s)
    try:
        events = poll_fds(dict.fromkeys(watched, select.POLLIN), timeout_s)
    finally:
        if slot is not None and before is not None:
            slot.enter(*before)
    ready = [fd for fd in watched if fd in events]
    waiter = slot.id if slot is not None else "this process"
    if any(events[fd] & select.POLLNVAL for fd in ready):
        raise ChannelClosed(
            f"{waiter} waits on a descriptor that it has closed itself",
            activity=activity.label,
            fix="file a bug: something was closed before the last wait on it",
        )
    if not ready and raise_on_timeout:
        raise _stalled(waiter, timeout_s, on, activity=activity.label, need=need, have=have)
    return ready


def _stalled(waiter: str, timeout_s: float, on: str | None, **facts: object) -> ComponentStalled:
    return ComponentStalled(
        f"{waiter} waited {timeout_s:g} s for {on or 'a message'}",
        **facts,
        fix=f"see what {on or 'the other side'} is doing: `headrace doctor RUN`",
    )
