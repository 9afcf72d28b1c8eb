"""All environments of all workers are stepped, and waited for, where nothing else is to be said."""

from __future__ import annotations

import itertools

import numpy as np

from headrace.core.clock import MonotonicClock
from headrace.ipc.fences import WEAKLY_ORDERED, fence
from headrace.vector.handle import ask_those_left
from headrace.vector.infos import Columns, Form
from headrace.vector.patience import SPIN_S, Patience
from headrace.vector.pool import Pool
from headrace.vector.slab import Note


class Barrier:
    """The commonest question, without the detours by which `headrace.vector.pool.Pool` answers every other.

    Args:
        pool: Whose environments these are.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._crew = pool.crew
        self._clock = MonotonicClock()
        self._everybody = np.array(sorted(itertools.chain(*pool.crew.options.groups)), np.int64)
        self._first = int(self._everybody[0])
        self._notes = b""
        given = pool.crew.options.template
        self._in_turn = not given.threaded and given.shared and not given.probes
        self._eager = given.eager
        self._patience = Patience(most_s=SPIN_S if given.eager else 0.0)

    @property
    def undisturbed(self) -> bool:
        """Whether `ask` may be used: no worker may have ended since somebody looked, and none has more to say."""
        return self._in_turn and not (self._crew.alarm or self._pool.later)

    def ask(self) -> None:
        """Hand out everybody's questions, which are in the slab; they are asked nothing else."""
        now_s = self._clock.now()
        groups = self._crew.grouped(self._everybody)
        last = groups[-1][0]
        for handle, part in groups:
            handle.mailbox.portion(0)
            # The last one is likely the last to finish: it alone need wake us, if we do not wait awake.
            handle.order(part, now_s, wakes=handle is last and not self._eager)

    def ask_rest(self) -> bool:
        """After an exception: whether anybody was asked. Then everybody is, and woken."""
        groups = self._crew.grouped(self._everybody)
        return ask_those_left([(handle, part, handle.open > 0) for handle, part in groups], self._clock.now())

    def answered(self) -> bool:
        """Wait for the answers; whether the slab holds all of them. Otherwise the pool says what there is."""
        crew, pool, now_s = self._crew, self._pool, self._clock.now()
        groups = crew.grouped(self._everybody)
        self._patience.lasts(lambda: not any(handle.unanswered for handle, _ in groups))
        for handle, _ in reversed(groups):
            while handle.wake_after(handle.open):
                if crew.alarm or now_s >= pool.look_at_s:
                    return False
                crew.wait(pool.look_at_s - now_s)
                now_s = self._clock.now()
        if WEAKLY_ORDERED:  # they have all put down their numbers; what these tell of is looked at from here on
            fence()
        self._notes = pool.slab.note[self._first :].tobytes()
        return Note.MESSAGE not in self._notes

    @property
    def silent(self) -> bool:
        """Whether all have answered without an info."""
        return self._notes.count(Note.NOTHING) == len(self._notes)

    def pass_by(self) -> None:
        """All answers were taken in."""
        for handle, _ in self._crew.grouped(self._everybody):
            handle.pass_by()

    def form(self) -> Form | None:
        """The form of the infos in the slab, if all of these environments have answered with one, and of one form."""
        notes, groups = self._pool.slab.note, self._crew.grouped(self._everybody)
        forms = {handle.forms.common(notes[part]) for handle, part in groups}
        return forms.pop() if len(forms) == 1 else None

    def columns(self) -> list[Columns]:
        """The infos in the slab."""
        groups = self._crew.grouped(self._everybody)
        return [columns for handle, part in groups for columns in handle.forms.columns(part, self._pool.slab)]
