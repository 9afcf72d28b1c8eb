"""What a component tells its supervisor: nothing of it is lost, and nobody fails, because the supervisor is slow or stopped."""

from __future__ import annotations

import select

from headrace.ipc.channel import LONGEST_S, Channel, poll_fds
from headrace.telemetry.board import Activity, Slot

KEPT_BYTES = 1 << 26
"""Of messages that the supervisor has not taken, which a component keeps and goes on: hours of a run's reports."""


def tell(control: Channel, slot: Slot, message: object, *, last: bool = False) -> None:
    """Hand a message to the supervisor, after those before it.

    What it does not take at once is kept, and goes with the next ones. So a run goes on while its supervisor is stopped
    (Ctrl-Z), whose board and books are told everything later; peers who wait for this component have deadlines of their own.

    Args:
        control: To the supervisor.
        slot: Of the component, which shows the wait if there is one: for as long as it takes and the supervisor lives.
        message: Plain data.
        last: Return when everything is handed over; otherwise as soon as no more than ``KEPT_BYTES`` are kept.

    Raises:
        ChannelClosed: The supervisor is gone.
        ComponentError: The message cannot be pickled; nothing was sent.
    """
    control.post(message)
    most_bytes = 0 if last else KEPT_BYTES
    if control.unsent_bytes <= most_bytes:
        return
    before = slot.resume()
    slot.waiting(Activity.WAIT_ACK, on="supervisor", need=1, have=0, deadline_s=LONGEST_S)
    try:
        while control.unsent_bytes > most_bytes:
            poll_fds({control.fileno(): select.POLLOUT}, LONGEST_S)
            control.flush()
    finally:
        slot.enter(*before)
