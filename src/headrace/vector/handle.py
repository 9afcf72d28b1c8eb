"""One worker as its parent sees it."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ChannelClosed, ComponentError
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.forkserver import Child
from headrace.ipc.stacks import StackDump, is_stopped
from headrace.vector import losses
from headrace.vector.faults import text_of
from headrace.vector.forms import Forms
from headrace.vector.messages import Abandon, Extras, LeftAlone, NewForm, Returned, unpack
from headrace.vector.seats import Late, Seats
from headrace.vector.signals import Signal
from headrace.vector.slab import Mailbox
from headrace.vector.stepping import Phase

_NEVER = 1 << 62


class Handle:
    """One worker process.

    Args:
        index: Its number; ``worker-3`` in messages.
        ids: Environments it steps, ascending.
        child: Its process.
        mailbox: Shared with it.
        signals: That wakes it, and that it wakes us with.
        threaded: Whether each environment has a thread there.
    """

    succeeds = False
    """Whether it stands for a worker that has ended."""

    def __init__(
        self,
        index: int,
        ids: Sequence[int],
        child: Child,
        mailbox: Mailbox,
        signals: tuple[Signal, Signal],
        *,
        threaded: bool,
    ) -> None:
        self.index = index
        self.name = f"worker-{index}"
        self.ids = sorted(ids)
        self.child = child
        self.mailbox = mailbox
        self.ordered, self.answered = signals
        self.threaded = threaded
        self.taken = 0
        """Answers that were taken in."""
        self.written_off: set[tuple[int, int]] = set()
        """Environment and number of questions that nobody will answer: their threads were given up."""
        self.extras: dict[int, Extras] = {}
        self.forms = Forms(self.read)
        """Of its infos in the slab."""
        self.replies: list[Any] = []
        """Other messages, in order."""
        self.called: dict[int, int] = {}
        """By environment the number of the newest call it was asked to make, until the reply was read."""
        self.unreadable: ComponentError | None = None
        """Why the newest message that could not be read cannot be."""
        self.culprit: Late | None = None
        """Why it is being ended."""
        self.dump: StackDump | None = None
        self.was_stopped = self.unheard = False
        """Whether its process was found stopped by a signal; and whether it is ended because it made no room for a message."""
        self._abandons = 0
        """How often it was told to leave a thread alone."""
        self.giving_up: dict[int, Late] = {}
        """Environments whose threads it was told to leave alone, and has not said that it did."""
        self._left_alone: dict[int, int] = {}
        """How often the thread of each environment was left alone, as far as told of."""
        self.stuck_in: dict[int, str | None] = {}
        """Where the threads are that were left alone, by environment."""
        self.stuck = 0
        """Threads that were left alone, and may go on for ever."""
        self.successor: Handle | None = None
        """The worker that its environments move to when their episodes are over."""
        self._wake_at = -1
        self.seats = Seats(self.ids, mailbox, threaded=threaded)

    @property
    def open(self) -> int:
        """Questions without an answer, as far as taken in."""
        return self.mailbox.ordered - self.taken - len(self.written_off)

    @property
    def unanswered(self) -> int:
        """Questions without an answer, taken in or not."""
        return self.mailbox.ordered - self.mailbox.completed - len(self.written_off)

    def fds(self) -> list[int]:
        """Descriptors to wait on for what it has to say, or its end."""
        fds = (self.answered.reader_fd, self.child.control.fileno(), self.child.pidfd)
        return [fd for fd in fds if fd >= 0]

    def order(self, ids: NDArray[np.int64], now_s: float, *, wakes: bool = True) -> None:
        """Ask these; it wakes us when all are answered, unless ``wakes`` is False or `wake_after` says otherwise."""
        self.seats.begin(ids if self.threaded or not self.open else ids[:0], now_s)
        self._set_wake(self.mailbox.ordered + len(ids) if wakes else _NEVER)
        if self.mailbox.order(ids):
            self.ordered.set()

    def wake_after(self, more: int) -> bool:
        """Be woken when there are so many more answers than were taken in; False if there are already."""
        return self._set_wake(self.taken + min(more, self.open))

    @property
    def given(self) -> int:
        """Answers that are there, and not taken in."""
        return self.mailbox.completed - self.taken

    def take(self) -> NDArray[np.int64]:
        """Who has answered since the last call."""
        completed = self.mailbox.completed
        ids = self.mailbox.answers(self.taken, completed)
        self.taken = completed
        return ids

    def pass_by(self) -> None:
        """All answers were taken in, without asking who gave them."""
        self.taken = self.mailbox.ordered

    def extras_of(self, env: int, seq: int) -> Extras | None:
        """What was sent along with an answer; None if nothing was."""
        if env not in self.extras or self.extras[env].seqs[self.extras[env].ids.index(env)] != seq:
            self.read()
        found = self.extras.get(env)
        return found if found is not None and found.seqs[found.ids.index(env)] == seq else None

    def read(self) -> None:
        """Take in what it has said; never waits."""
        while True:
            try:
                messages = self.child.control.receive_all()
            except ChannelClosed:
                return
            except ComponentError as error:
                self.unreadable = error  # it is dropped; who waits for it is told why it does not come
                continue
            for packed in messages:
                try:
                    message = unpack(packed)
                except Exception as error:  # noqa: BLE001 - to read it runs code of others, which may raise anything
                    self.unreadable = ComponentError(text_of(error), fix="see what it sends")
                    continue
                if isinstance(message, Extras):
                    _open(message)
                    self.extras.update(dict.fromkeys(message.ids, message))
                elif isinstance(message, LeftAlone):
                    self.stuck_in[message.env] = message.stuck_in
                elif isinstance(message, NewForm):
                    self.forms.add(message)
                else:
                    if isinstance(message, Returned):
                        self.called = {env: number for env, number in self.called.items() if number > message.number}
                    self.replies.append(message)
            return

    def awaits(self, busy: Callable[[int], bool]) -> Callable[[int], bool]:
        """Whether an environment has something to say: those that are ``busy`` with a question, and those that were called."""
        return lambda env: env in self.called or busy(env)

    def tell(self, message: object, timeout_s: float) -> None:
        """Say something to it; reads meanwhile, for it may be waiting for us to.

        If it is gone nothing happens: whoever looks for its end finds that. If it makes no room in time it is ended.

        Raises:
            ComponentError: The message cannot be pickled.
        """
        with contextlib.suppress(ChannelClosed):
            self._tell(message, timeout_s)
        self.ordered.set()

    def _tell(self, message: object, timeout_s: float) -> None:
        control, deadline = self.child.control, Deadline(timeout_s)
        accepted = control.try_send(message)
        while not (accepted and control.flush()):
            poll_fds({control.fileno(): select.POLLIN | select.POLLOUT}, min(0.1, deadline.left_s()))
            self.read()
            if deadline.passed:
                self.culprit, self.was_stopped = _silent(self.seats, timeout_s), is_stopped(self.child.pid)
                self.unheard = True
                self.child.kill()
                return
            accepted = accepted or control.try_send(message)
        self.mailbox.rest.note_told()

    def condemn(self, late: Late, stacks: Path, dump_s: float) -> None:
        """End it for a call that does not return.

        Args:
            late: That call.
            stacks: The file to which it writes down where it is, first.
            dump_s: How long it may take for that.
        """
        self.culprit = late
        if is_stopped(self.child.pid):  # it would have to be woken to write down where it is
            self.was_stopped = True
            self.child.kill()
            return
        self.dump = StackDump(self.child.send_signal, self.child.pid, stacks, dump_s)

    def give_up(self, late: Late, timeout_s: float) -> None:
        """Tell a worker with threads to leave one of them alone."""
        assert late.env is not None
        self.giving_up[late.env] = late
        self._abandons += 1
        self.tell(Abandon(late.env, late.number), timeout_s)

    def given_up(self) -> dict[int, Late]:
        """Environments whose threads it now leaves alone, each once; others had answered in the last moment."""
        if not self.giving_up or self.mailbox.heard < self._abandons:
            return {}
        told, self.giving_up = self.giving_up, {}
        counts = {env: self.mailbox.left_alone[self.seats.place(env)] for env in told}
        given_up = {env: late for env, late in told.items() if counts[env] > self._left_alone.get(env, 0)}
        self._left_alone |= counts
        self.stuck += len(given_up)
        return given_up

    @property
    def worn_out(self) -> bool:
        """Whether so many threads are stuck in it that another worker had better take over."""
        return self.successor is None and self.stuck >= max(2, len(self.ids) // 4)

    def close(self) -> None:
        """Give everything back."""
        self.child.close()
        self.ordered.close()
        self.answered.close()
        self.mailbox.close()

    def _set_wake(self, at: int) -> bool:
        if at == self._wake_at:
            return self.mailbox.completed < at
        waits = self.mailbox.wake_after(at)
        self._wake_at = at  # now: where an exception comes in between, the worker is told again
        return waits


def ask_those_left(orders: Sequence[tuple[Handle, NDArray[np.int64], bool]], now_s: float) -> bool:
    """After an exception among orders: whether anybody was asked. Then everybody is, and woken, so that no number is given out twice.

    Args:
        orders: Of whom, whose environments, and whether they were asked.
        now_s: Monotonic.
    """
    if not any(asked for _, _, asked in orders):
        return False
    for handle, ids, asked in orders:
        if not asked:
            handle.order(ids, now_s)
        handle.ordered.set()  # also of one that was asked, and may not have been woken
    return True


def _silent(seats: Seats, for_s: float) -> Late:
    """Why a worker is ended that made no room for a message for so long: the environment it is in, if it is one."""
    inside = seats.inside(lambda _env: True)
    env, phase = inside[0] if len(inside) == 1 else (None, Phase.CALL)
    return Late(env, Phase(phase), for_s, for_s, 1)


def _open(extras: Extras) -> None:
    """Read what each environment said. What cannot be read is a problem of that environment alone."""
    for env in extras.ids:
        try:
            for by_env in (extras.problems, extras.infos, extras.objects, extras.probes):
                if env in by_env:
                    by_env[env] = unpack(by_env[env])
        except Exception as error:  # noqa: BLE001 - to read it runs code of others, which may raise anything
            extras.problems[env] = losses.unreadable(text_of(error))
