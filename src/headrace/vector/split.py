"""Environments in this process and in workers: while those step theirs, this process steps its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.vector.events import Event, Ids
from headrace.vector.pool import Pool
from headrace.vector.serial import Serial


class Split:
    """A `headrace.vector.events.Backend` made of two.

    Args:
        serial: The first environments.
        pool: All others, on the same slab.
    """

    def __init__(self, serial: Serial, pool: Pool) -> None:
        self.serial = serial
        self.pool = pool
        self.slab = pool.slab
        self.here = serial.here
        self._asked = False

    def prepare(self, values: Mapping[int, Any], what: str) -> dict[int, Any]:
        """See `Backend.prepare`."""
        mine = {env: value for env, value in values.items() if env < self.here}
        return mine | self.pool.prepare({env: value for env, value in values.items() if env >= self.here}, what)

    def submit(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> None:
        """See `Backend.submit`."""
        mine = int(np.searchsorted(ids, self.here))
        if mine < len(ids):
            self.pool.submit(ids[mine:], seqs[mine:], _only(resets, ids[mine:]), _only(actions, ids[mine:]))
        if mine:
            self._asked = True
            self.serial.submit(ids[:mine], seqs[:mine], _only(resets, ids[:mine]), _only(actions, ids[:mine]))

    def ask_rest(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> bool:
        """See `Backend.ask_rest`; workers are the first that are asked."""
        mine = int(np.searchsorted(ids, self.here))
        if mine == len(ids):
            return self.serial.ask_rest(ids, seqs, resets, actions)
        if not self.pool.ask_rest(ids[mine:], seqs[mine:], {}, {}):
            return False
        if mine and not self.serial.ask_rest(ids[:mine], seqs[:mine], {}, {}):
            self._asked = True
            self.serial.submit(ids[:mine], seqs[:mine], _only(resets, ids[:mine]), _only(actions, ids[:mine]))
        return True

    def poll(self, missing: int, timeout_s: float) -> list[Event]:
        """See `Backend.poll`; what is asked of this process is done first."""
        if not self._asked:
            return self.pool.poll(missing, timeout_s)
        events = self.serial.poll(missing, 0.0)
        self._asked = False  # now: what is interrupted before anything began is done by the next poll
        try:
            return events + self.pool.poll(0, 0.0)
        except BaseException:
            self.pool.later = events + self.pool.later  # told by the next poll; nobody would do that work again
            raise

    def call(
        self, name: str, data: Any, ids: list[int], gone: Mapping[int, int | None], *, sets: bool
    ) -> dict[int, Any]:
        """See `Backend.call`."""
        mine, theirs = [env for env in ids if env < self.here], [env for env in ids if env >= self.here]
        values = self.serial.call(name, data, mine, gone, sets=sets) if mine else {}
        return values | (self.pool.call(name, data, theirs, gone, sets=sets) if theirs else {})

    def broken_off(self) -> Sequence[int]:
        """See `Backend.broken_off`."""
        return self.serial.broken_off()

    def close(self, timeout_s: float) -> None:
        """See `Backend.close`."""
        for holder in (self, self.serial):
            vars(holder).pop("slab", None)  # it is gone already if an interrupt has broken off the last attempt
        try:
            self.pool.close(timeout_s)
        finally:
            self.serial.close(timeout_s)

    def pids(self) -> dict[int, int]:
        """See `Backend.pids`."""
        return self.pool.pids()


def _only(by_env: Mapping[int, Any], ids: Ids) -> dict[int, Any]:
    return {env: by_env[env] for env in ids.tolist() if env in by_env} if by_env else {}
