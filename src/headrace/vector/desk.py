"""A worker's place of work: its environments, what it shares with the parent, and how answers leave it."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from headrace.core.errors import ChannelClosed, ComponentError
from headrace.ipc.channel import poll_fds
from headrace.ipc.child import ChildContext
from headrace.ipc.shm import SharedBlock
from headrace.vector.faults import Problem, broken_contract, text_of, unreadable
from headrace.vector.infos import Form, columns_of, index
from headrace.vector.messages import Abandon, Assignment, Attach, Details, Extras, NewForm, Packed, pack, sealed, unpack
from headrace.vector.rows import Returned, Rows, Settled, compact, row_of
from headrace.vector.signals import Signal
from headrace.vector.slab import FIRST_FORM, LAST_FORM, Kind, Mailbox, Note, Slab
from headrace.vector.spaces import ActionCodec, Layout
from headrace.vector.stepping import Body, Phase

_LOOK_S = 5.0

Work = Callable[[Any], "Returned | Problem"]


@dataclass(slots=True)
class Batch:
    """Questions that were put together."""

    ids: list[int]
    seqs: list[int]
    work: list[Work]
    arguments: Sequence[Any]
    where: Sequence[int]
    """The row of each; a range if they are neighbours."""
    resets: frozenset[int]
    """Places of those that are reset and not stepped."""


class Desk:
    """See the module.

    Args:
        context: Of the child.
    """

    def __init__(self, context: ChildContext) -> None:
        given: Assignment = context.payload
        self.given = given
        self._context = context
        self.control = context.control
        block = SharedBlock.attach(context.fds["mailbox"], Mailbox.nbytes(given.num_envs))
        self.mailbox = Mailbox(block, given.num_envs)
        self.ordered = Signal.attach(context.fds, "ordered")
        self._answered = Signal.attach(context.fds, "answered")
        seats = {env: place if given.threaded else 0 for place, env in enumerate(sorted(given.factories))}
        self.seats = seats
        """Which seat each environment sits in."""
        self.bodies = {env: self._body(env, seat) for env, seat in seats.items()}
        self._details = Details()
        self._forms: dict[Form, int] = {}
        self._slab: Slab | None = None
        self._rows: Rows | None = None
        self._codec: ActionCodec | None = None
        self.talks = False
        """Whether every answer takes a message."""
        self._asked = b""
        """Whom the newest questions were put to."""
        self._listed: tuple[list[int], slice | list[int]] = [], []
        """The same as numbers, and what picks these out of an array."""
        self._rewards = self._terminated = self._truncated = self._notes = self._seqs = memoryview(b"")
        self._aside: list[Any] = []
        """Messages that were received, and wait until they are heard."""

    def attach(self, message: Attach) -> None:
        """Share memory with the parent from now on."""
        block = SharedBlock.attach(self._context.fds["slab"], message.nbytes)
        observation = cloudpickle.loads(message.observation_space)
        action = cloudpickle.loads(message.action_space)
        layout, size = Layout(observation, "obs"), self.given.num_envs
        self._slab = Slab.over(block, message.fields)
        slab = self._slab
        # Numbers one by one are several times cheaper to write through a memoryview than into an array.
        self._rewards, self._notes, self._seqs = slab.reward.data, slab.note.data, slab.answered.data
        self._terminated, self._truncated = slab.terminated.data, slab.truncated.data
        finite, cast = self.given.check_finite, self.given.cast
        if self.given.shared:
            self._rows = Rows(layout, self._slab.rows, check_finite=finite, cast=cast)
        else:
            self._rows = Rows.private(layout, size, check_finite=finite, cast=cast)
        self._rows.finals = self.given.mode is AutoresetMode.SAME_STEP
        self.talks = bool(layout.objects or self.given.probes or not self.given.shared)
        self._codec = ActionCodec(action, batch_space(action, 1))

    def note(self, details: Details) -> None:
        """Remember what belongs to questions that follow."""
        self._details.resets.update(details.resets)
        self._details.actions.update(details.actions)

    @property
    def rows(self) -> Rows:
        """Where observations are laid down."""
        assert self._rows is not None
        return self._rows

    def batch(self, orders: NDArray[np.int64]) -> Batch:
        """Look up what is asked of these."""
        slab, bodies = self._slab, self.bodies
        assert slab is not None
        asked = orders.tobytes()
        if asked != self._asked:  # mostly the same, all together
            listed: list[int] = orders.tolist()
            self._asked, self._listed = asked, (listed, index(listed))
        ids, place = self._listed
        seqs: list[int] = slab.seq[place].tolist()
        kinds: list[int] = slab.kind[place].tolist()
        work: list[Work] = [bodies[env].step for env in ids]
        resets = frozenset(at for at, kind in enumerate(kinds) if kind) if any(kinds) else frozenset[int]()
        arguments = self._arguments(ids, place)
        if self._codec is not None and self._codec.as_objects:
            work = [_reading(do) if isinstance(one, Packed) else do for do, one in zip(work, arguments, strict=True)]
        for at in resets:
            work[at] = self._work(ids[at], kinds[at])
        first = row_of(ids[0], seqs[0], self.given.num_envs)
        where: Sequence[int] = range(first, first + len(ids))
        if not isinstance(place, slice) or seqs.count(seqs[0]) < len(ids):
            where = compact(row_of(orders, np.array(seqs), self.given.num_envs).tolist())
        return Batch(ids, seqs, work, arguments, where, resets)

    def publish(self, ids: list[int], seqs: list[int], where: Sequence[int], settled: Settled) -> bool:
        """Give answers; whether the parent is then to be woken.

        Raises:
            ChannelClosed: The parent is gone.
        """
        slab = self._slab
        assert slab is not None
        place = index(ids)
        slab.reward[place] = settled.rewards
        slab.terminated[place] = settled.terminated
        slab.truncated[place] = settled.truncated
        slab.note[place] = Note.NOTHING
        if settled.infos or settled.problems or self.talks:
            whose, note = self._lay_down(ids, settled) or (self._tell(ids, seqs, where, settled), Note.MESSAGE)
            slab.note[whose] = note
        slab.answered[place] = seqs
        return self.mailbox.answer(ids)

    def publish_plain(self, env: int, seq: int, returned: Returned) -> bool:
        """Give one answer that `Rows.write_plain` has laid down; whether the parent is then to be woken."""
        _, self._rewards[env], self._terminated[env], self._truncated[env], _ = returned
        self._notes[env] = Note.NOTHING
        self._seqs[env] = seq
        return self.mailbox.answer_one(env)

    def wake(self) -> None:
        """Wake the parent."""
        self._answered.set()

    def hear(self) -> list[Any]:
        """What the parent has said since.

        Sends nothing: `send` does not return before all of its message is gone, and may be going on in another thread.

        Raises:
            ChannelClosed: The parent is gone.
        """
        said = self._aside + self.control.receive_all(flushes=False)
        self._aside = []
        return said

    def hear_abandons(self) -> list[Abandon]:
        """Of what the parent has said since only what cannot wait; `hear` hears the rest.

        Raises:
            ChannelClosed: The parent is gone.
        """
        said = self.hear()
        self._aside = [message for message in said if not isinstance(message, Abandon)]
        return [message for message in said if isinstance(message, Abandon)]

    def send(self, message: object) -> None:
        """Say something to the parent, and wait until it has room; it may be busy with something else for long.

        Raises:
            ChannelClosed: The parent is gone.
        """
        try:
            accepted = self.control.try_send(message)
        except ComponentError as error:
            if type(error) is not ComponentError:
                raise
            message = pack(message)
            accepted = self.control.try_send(message)
        while not (accepted and self.control.flush()):
            poll_fds({self.control.fileno(): select.POLLOUT}, _LOOK_S)
            if not self._context.parent_alive():
                raise ChannelClosed("the parent of a worker is gone", fix="see how it ended")
            accepted = accepted or self.control.try_send(message)

    def renew(self, env: int) -> None:
        """Forget an environment in which a thread is stuck."""
        self.bodies[env].abandon()
        self.bodies[env] = self._body(env, self.seats[env])

    def _lay_down(self, ids: list[int], settled: Settled) -> tuple[list[int], int] | None:
        """Write infos into the slab; whose they are, and the number of their form. None: they cannot lie there."""
        if self.talks or settled.problems:
            return None
        columns = columns_of({ids[place]: info for place, info in settled.infos.items()})
        assert self._slab is not None
        if columns is None or not columns.lay_down(self._slab.numbers):
            return None
        number = self._forms.get(columns.form)
        if number is None:
            number = FIRST_FORM + len(self._forms)
            if number > LAST_FORM:
                return None
            self.send(NewForm(number, columns.form))
            self._forms[columns.form] = number
        return columns.envs, number

    def _tell(self, ids: list[int], seqs: list[int], where: Sequence[int], settled: Settled) -> list[int]:
        """Send what does not lie in the slab; whose that is."""
        rows = self.rows
        places = range(len(ids)) if self.talks else sorted({*settled.infos, *settled.problems})
        extras = Extras([ids[place] for place in places], [seqs[place] for place in places])
        for place in places:
            env = ids[place]
            problem = settled.problems.get(place) or self._put(extras, env, place, settled)
            if problem is not None:
                extras.problems[env] = sealed(problem, by_name=True)
            elif not self.given.shared:
                extras.rows[env] = [array[where[place]].copy() for array in rows.arrays]
        self.send(extras)
        return extras.ids

    def _put(self, extras: Extras, env: int, place: int, settled: Settled) -> Problem | None:
        """Put what one environment said into a message; if it cannot leave this process, the problem that says so."""
        info = settled.infos.get(place)
        parts: dict[str, tuple[dict[int, Any], Any]] = {}
        if info:
            parts["info"] = extras.infos, info
        if self.given.probes:
            parts["probes"] = extras.probes, self.bodies[env].probed
        if settled.objects:
            parts["obs"] = extras.objects, [column[place] for column in settled.objects]
        for name, (by_env, value) in parts.items():
            try:
                by_env[env] = sealed(value, by_name=True)
            except Exception as error:  # noqa: BLE001 - pickling runs code of others, which may raise anything
                return broken_contract("step", name, "values that can be pickled", text_of(error))
        return None

    def _body(self, env: int, seat: int) -> Body:
        phases, data = self.mailbox.phases, self.given.factories[env]

        def on_phase(phase: Phase) -> None:
            phases[seat] = phase

        def factory() -> Any:
            return cloudpickle.loads(data)()

        phases[seat] = Phase.STEP
        return Body(env, factory, self.given.mode, on_phase, self.given.probes)

    def _arguments(self, ids: list[int], place: slice | list[int]) -> Sequence[Any]:
        slab, codec = self._slab, self._codec
        assert slab is not None
        assert codec is not None
        if codec.as_objects:
            return [self._details.actions.pop(env, None) for env in ids]
        return codec.decode([column[place] for column in slab.actions])

    def _work(self, env: int, kind: int) -> Work:
        body = self.bodies[env]
        if kind == Kind.AUTORESET:
            return body.autoreset
        seed, options = self._details.resets.pop(env, (None, None))

        def reset(_action: Any) -> Returned | Problem:
            if kind == Kind.RENEW:
                body.renew()
            try:
                given = unpack(seed), unpack(options)
            except Exception as error:  # noqa: BLE001 - to read it runs code of others, which may raise anything
                return unreadable("reset", "seed and options", error)
            return body.reset(*given)

        return reset


def _reading(step: Work) -> Work:
    """A step whose action is read within it: that runs code of others, and is to be this environment's alone."""

    def read_and_step(action: Any) -> Returned | Problem:
        try:
            given = unpack(action)
        except Exception as error:  # noqa: BLE001 - as above
            return unreadable("step", "an action", error)
        return step(given)

    return read_and_step


def copy_facts(source: Mapping[str, Any]) -> dict[str, Any]:
    """Those entries that can be pickled."""
    kept = {}
    for name, value in source.items():
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001, S112 - pickling runs code of others; what cannot travel is left out
            continue
        kept[name] = value
    return kept
