"""Who watches everything that decides what is learned: a recorder, a replay that compares, or nobody."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Learning, Transitions
from headrace.lanes.credits import Commit

_DERIVED_EVERY = 16
"""Updates between two fingerprints of what was made of the drawn rows."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was saved of one lane."""

    start: int
    """Row number of its first saved row."""
    stop: int
    """Row number after the last one, the one that marks the cut included."""
    salvaged: int
    """Transitions saved."""
    rejected: int
    """Transitions refused."""
    cut: bool
    """Whether a running episode was cut."""
    version: int = 0
    """Of the policy that made its first row, be that saved or refused; 0: there is none, or it is not known."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch and where it comes from."""

    places: NDArray[np.int64]
    """[B] in the block, in the order of the batch."""
    windows: NDArray[np.void]
    """[B, W] copied rows."""
    batch: Transitions
    """What was made of them."""
    n_step: int
    observation_bytes: int
    """Of a row, at its beginning."""


class Witness(Protocol):
    """Told of every event in the order of its effect, by the learner's own process."""

    def committed(self, commit: Commit, starts: Sequence[int], updates: int) -> None:
        """A chunk was found sound and is about to be taken over; ``starts``: row numbers its lanes' rows begin at."""
        ...

    def salvaged(self, group: int, lanes: Sequence[Salvaged], updates: int) -> None:
        """A group's rows were saved after its collector was gone."""
        ...

    def drew(self, drawn: Drawn, updates: int) -> None:
        """A batch was drawn, after so many updates."""
        ...

    def updated(self, algorithm: Learning) -> None:
        """An update was made."""
        ...

    def gathered_nothing(self, updates: int) -> None:
        """A rollout was gathered that had no step to make an update of, after so many updates."""
        ...

    def published(self, version: int, checksum: int, algorithm: Learning) -> None:
        """A policy became the newest one."""
        ...


class Nobody:
    """Watches nothing."""

    def committed(self, commit: Commit, starts: Sequence[int], updates: int) -> None:
        """See `Witness`."""

    def salvaged(self, group: int, lanes: Sequence[Salvaged], updates: int) -> None:
        """See `Witness`."""

    def drew(self, drawn: Drawn, updates: int) -> None:
        """See `Witness`."""

    def updated(self, algorithm: Learning) -> None:
        """See `Witness`."""

    def gathered_nothing(self, updates: int) -> None:
        """See `Witness`."""

    def published(self, version: int, checksum: int, algorithm: Learning) -> None:
        """See `Witness`."""


def batch_print(drawn: Drawn, updates: int) -> tuple[int, int, int]:
    """Fingerprints of a batch, each of 32 bits; ten microseconds, and in every 16th update some more.

    Returns:
        Of which rows were drawn, of what they held, and in every 16th update (else 0) of what was made of them: stacks,
        returns, discounts. Any bit that differs in one row changes the second.
    """
    windows, steps = drawn.windows, drawn.n_step
    words = windows.view(np.uint64).reshape(len(windows), -1)
    row = words.shape[1] // windows.shape[1]
    # The last row may be the one that is being written. Its observation is whole where a transition leads to it, which
    # of more than one step is not known here.
    stop = row * (windows.shape[1] - 1) + (drawn.observation_bytes // 8 if steps == 1 else 0)
    held = int(np.bitwise_xor.reduce(words[:, :stop], axis=None))
    derived = _derived(drawn.batch) if updates % _DERIVED_EVERY == 0 else 0
    return zlib.crc32(drawn.places.data), _folded(held), derived


def _derived(batch: Transitions) -> int:
    arrays = [*batch.obs.values(), *batch.action.values(), batch.reward, batch.discount, *batch.next_obs.values()]
    if batch.weight is not None:
        arrays.append(batch.weight)
    value = 0
    for array in arrays:
        value = zlib.crc32(np.ascontiguousarray(array).data, value)
    return value or 1


def _folded(word: int) -> int:
    return (word ^ word >> 32) & 0xFFFFFFFF
