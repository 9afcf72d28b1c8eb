"""All environments of all workers are stepped, and waited for, where nothing else is to be said."""

from __future__ import annotations

import itertools

import numpy as np

from headrace.core.clock import MonotonicClock
from headrace.vector.infos import Columns
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
        given = pool.crew.options.template
        self._in_turn = not given.threaded and given.shared and not given.probes

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
            handle.order(part, now_s, wakes=handle is last)  # likely the last to finish: it alone need wake us

    def answered(self, seq: int) -> list[Columns] | None:
        """Wait for the answers.

        Args:
            seq: Their number.

        Returns:
            Their infos, if they are all there, and the slab holds the rest; otherwise the pool says what there is.
        """
        crew, pool, now_s = self._crew, self._pool, self._clock.now()
        groups = crew.grouped(self._everybody)
        for handle, _ in reversed(groups):
            while handle.wake_after(handle.open):
                if crew.alarm or now_s >= pool.look_at_s:
                    return None
                crew.wait(pool.look_at_s - now_s)
                now_s = self._clock.now()
        infos: list[Columns] = []
        notes = pool.slab.note
        if notes[self._everybody[0] :].any():
            for handle, part in groups:
                noted: list[int] = part[notes[part] != Note.NOTHING].tolist()
                columns = handle.columns_of(noted, seq) if noted else []
                if columns is None:
                    return None
                infos += columns
        for handle, _ in groups:
            handle.pass_by()
        return infos
