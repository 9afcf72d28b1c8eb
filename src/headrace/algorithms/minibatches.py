"""Which transitions of a rollout are learned from when: each once per epoch, in an order drawn anew each time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.algorithms.base import Arrays

Places = NDArray[np.int64]


class Minibatches:
    """The minibatches of one epoch set after the other.

    Args:
        epochs: How often each transition is learned from.
        size: Transitions of a minibatch; the last of an epoch may have fewer.
        seed: Of the orders.
    """

    def __init__(self, epochs: int, size: int, seed: int) -> None:
        self._epochs, self._size = epochs, size
        self._generator = torch.Generator().manual_seed(seed)
        self._steps = self._epochs_left = 0
        self._queue: deque[Places | None] = deque()
        self._counts = np.zeros(3, np.int64)
        """Transitions that were learned from, those that were to be, and epoch sets that were given up."""

    def open(self, steps: int) -> None:
        """Begin an epoch set over so many transitions; 0: there is nothing to do."""
        self._steps, self._epochs_left = steps, self._epochs if steps else 0
        self._counts[1] += steps * self._epochs_left

    @property
    def pending(self) -> bool:
        """Whether there is another one."""
        return bool(self._queue) or self._epochs_left > 0

    def next(self) -> Places | None:
        """Places [B] of the minibatch that is to be learned from; None: all transitions. The same one until `done`."""
        if not self._queue:
            self._queue.extend(self._epoch())
            self._epochs_left -= 1
        return self._queue[0]

    def done(self) -> None:
        """The minibatch was learned from."""
        self._counts[0] += self._length(self._queue.popleft())

    def give_up(self) -> None:
        """Leave out what remains of the epoch set, if anything does."""
        if self.pending:
            self._counts[1] -= self.outstanding
            self._counts[2] += 1
            self._queue.clear()
            self._epochs_left = 0

    @property
    def outstanding(self) -> int:
        """Transitions that remain to be learned from, counted as often as they are."""
        return self._epochs_left * self._steps + sum(map(self._length, self._queue))

    def ledger(self) -> dict[str, float]:
        """See `headrace.algorithms.base.Learning.ledger`."""
        learned, due, given_up = self._counts.tolist()
        return {
            "transitions": learned,
            "transitions_declared": due - self.outstanding,
            "early_stops": given_up,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What it goes on from; no epoch set may be open."""
        assert not self.pending, "an epoch set is open"
        return {"generator": self._generator.get_state().numpy(), "transitions": self._counts}

    def load(self, arrays: Arrays) -> None:
        """Go on from `arrays`."""
        self._generator.set_state(torch.tensor(arrays["generator"]))
        self._counts[:] = arrays["transitions"]
        self._queue.clear()
        self._epochs_left = 0

    def _epoch(self) -> Sequence[Places | None]:
        if self._steps <= self._size:
            return [None]
        order = torch.randperm(self._steps, generator=self._generator).numpy()
        return [order[start : start + self._size] for start in range(0, self._steps, self._size)]

    def _length(self, places: Places | None) -> int:
        return self._steps if places is None else len(places)
