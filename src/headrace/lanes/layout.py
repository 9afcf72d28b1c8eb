"""How one row, and the block that holds every lane's ring of rows, lie in memory.

A row is the observation's leaves, a packed head (`HEAD`) and the action's leaves, padded to a multiple of 64 bytes.
In that order what one step adds, from the head of its row to the observation of the next, is one piece of memory
that a worker fills with one call. A block is

    headers [lanes, 3, 64 bytes] | lane 0: ring + mirror | lane 1: ring + mirror | ... | carry

A lane's ring is followed by copies of its first rows (the mirror), so that a window of rows that starts
anywhere in the ring is one contiguous piece of memory. The carry is what of a lane's exploration crosses the
end of a chunk, for the newest chunks of each lane.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.core.specs import Leaf

STEP = 1
"""Kind of a row that holds a transition."""
FINAL = 2
"""Kind of the row after an episode's last transition: its terminal observation and nothing else."""
CUT = 3
"""Like `FINAL`, where a collector was lost; the episode itself did not end there."""
LOST = 4
"""Like `CUT`, where an environment was lost in a step: a step of the lane's group in which this lane made no transition.
The row holds what the policy had seen in that step."""
ABSENT = 5
"""A step of the lane's group in which the lane's agent was not there: it had left, or has not come yet. The row holds
nothing but the number of its copy's episode."""

HEAD = struct.Struct("<dqqQQ")
"""reward, version, transitions, `place_word`, `end_word`; at `Geometry.head_offset` of a row.

Each value a call packs costs 10 to 20 ns of every step, so small fields share a word.
"""

_HEAD_FIELDS: tuple[tuple[str, str, int], ...] = (
    ("reward", "<f8", 0),
    ("version", "<i8", 8),
    ("transitions", "<i8", 16),
    ("t", "<u4", 24),
    ("episode", "<u4", 28),
    ("kind", "u1", 32),
    ("terminated", "?", 33),
    ("truncated", "?", 34),
)
INFO_KEYS = ("error", "exception", "fallback", "dummy", "timeout", "failed")
"""Keys of ``info`` by which environments say that they failed; steps in which one is true are counted per lane."""
ALIGNMENT = 64
HEADER_BYTES = 192
"""Per lane: one cache line the collector writes, one the learner writes, and one with what the learner intends."""


def place_word(episode: int, t: int) -> int:
    """Episode and step in it, as the head of a row holds them."""
    return episode << 32 | t


def end_word(kind: int, *, terminated: bool = False, truncated: bool = False) -> int:
    """Kind and ends of a row, as its head holds them."""
    return kind | terminated << 8 | truncated << 16


def steps_among(kinds: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which rows of these kinds stand for a step of the lane's group, whatever became of it."""
    found: NDArray[np.bool_] = (kinds == STEP) | (kinds == LOST) | (kinds == ABSENT)
    return found


def present(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Rows without those of kind ABSENT; the very same ones where there is none."""
    away = rows["kind"] == ABSENT
    return rows[~away] if away.any() else rows


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to


def row_dtype(observation: Sequence[Leaf], action: Sequence[Leaf]) -> np.dtype[Any]:
    """The structured dtype of a row.

    ``transitions`` counts the lane's transitions up to and including the row, so that one
    store of a row number makes both the row and its count visible at once.
    """
    names: list[str] = []
    formats: list[Any] = []
    offsets: list[int] = []
    end = 0

    def place(part: Sequence[Leaf]) -> None:
        nonlocal end
        for leaf in part:
            names.append(leaf.path)
            formats.append((leaf.dtype, leaf.shape))
            offsets.append(_aligned(end, 8))
            end = offsets[-1] + leaf.dtype.itemsize * math.prod(leaf.shape)

    place(observation)
    head = _aligned(end, 8)
    for name, kind, offset in _HEAD_FIELDS:
        names.append(name)
        formats.append(kind)
        offsets.append(head + offset)
    end = head + HEAD.size
    place(action)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": _aligned(end, ALIGNMENT)})


def step_struct(dtype: np.dtype[Any], action: Sequence[Leaf], observation: Sequence[Leaf]) -> struct.Struct:
    """What one step adds: `HEAD`, a byte string per leaf of the action, and per leaf of the next row's observation.

    Bytes between them belong to nobody and become zero.
    """
    start = _place_of(dtype, "reward")
    there = [_place_of(dtype, leaf.path) for leaf in action]
    beyond = [dtype.itemsize + _place_of(dtype, leaf.path) for leaf in observation]
    return struct.Struct(HEAD.format + _strings(start + HEAD.size, (*action, *observation), there + beyond))


def action_struct(dtype: np.dtype[Any], action: Sequence[Leaf]) -> struct.Struct:
    """A byte string per leaf of the action, from the first one's place in a row on; the rest as of `step_struct`."""
    places = [_place_of(dtype, leaf.path) for leaf in action]
    return struct.Struct("=" + _strings(places[0], action, places))


def _strings(end: int, parts: Sequence[Leaf], places: Sequence[int]) -> str:
    """Format of byte strings at these places, after what ends at ``end``."""
    found = []
    for leaf, place in zip(parts, places, strict=True):
        size = leaf.dtype.itemsize * math.prod(leaf.shape)
        found.append(f"{place - end}x{size}s")
        end = place + size
    return "".join(found)


def _place_of(dtype: np.dtype[Any], name: str) -> int:
    """First byte of a field in a row."""
    assert dtype.fields is not None, "a row is structured"
    return int(dtype.fields[name][1])


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a block of lanes; plain numbers and leaves, so that it travels to any process."""

    lanes: int
    capacity: int
    """Rows a learner may sample from, over all lanes."""
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    """Of the environment's action space."""
    chunk_steps: int
    window_chunks: int
    frame_stack: int = 1
    n_step: int = 1
    carry_floats: int = 0
    """Exploration state of one lane that crosses a chunk's end, in float32 numbers."""
    told: tuple[Leaf, ...] = ()
    """What a policy notes beside each action."""
    consumed: bool = False
    """Whether rows leave when they were trained on, and never to make room."""
    dtype: np.dtype[Any] = field(init=False)

    def __post_init__(self) -> None:
        sizes = ("lanes", "capacity", "chunk_steps", "window_chunks", "frame_stack", "n_step")
        if any(getattr(self, name) < 1 for name in sizes):
            raise ConfigError(
                "a block of lanes needs every one of its sizes to be at least 1",
                **{name: getattr(self, name) for name in sizes},
                fix="raise the one that is below 1",
            )
        object.__setattr__(self, "dtype", row_dtype(self.observation, self.acted))

    @property
    def acted(self) -> tuple[Leaf, ...]:
        """All that a policy says in a step: the action, and what it notes beside it."""
        return self.action + self.told

    @property
    def head_offset(self) -> int:
        """Byte of a row at which its `HEAD` begins."""
        return _place_of(self.dtype, "reward")

    @property
    def guard_rows(self) -> int:
        """Rows of a lane that are kept out of sampling.

        The worker may be ahead by its whole window of chunks, each step may end an episode (one more
        row), the next observation is already in place, and a stack reaches back before its row.
        """
        return self.window_chunks * self.chunk_steps * 2 + 2 + (self.frame_stack - 1)

    @property
    def resident_rows(self) -> int:
        """Most rows of one lane a learner may sample from."""
        return -(-self.capacity // self.lanes)

    @property
    def ring_rows(self) -> int:
        """Rows in one lane's ring."""
        return self.resident_rows + self.guard_rows

    @property
    def window_rows(self) -> int:
        """Neighbouring rows that make one transition: its stack, its n steps, its successor."""
        return self.frame_stack + self.n_step

    @property
    def mirror_rows(self) -> int:
        """First rows of the ring that are repeated behind its end."""
        return self.window_rows - 1

    @property
    def stride_rows(self) -> int:
        """Rows from one lane's first row to the next lane's."""
        return self.ring_rows + self.mirror_rows

    @property
    def first_row(self) -> int:
        """Number of a lane's first row; the rows before it are zeros a stack never selects."""
        return self.frame_stack - 1

    @property
    def rows_offset(self) -> int:
        """Byte at which the rows begin."""
        return self.lanes * HEADER_BYTES

    @property
    def carry_slots(self) -> int:
        """Chunks of a lane whose carry is kept: those a collector may be ahead, its last one, and the learner's."""
        return self.window_chunks + 2

    @property
    def carry_offset(self) -> int:
        """Byte at which the carry begins."""
        return self.rows_offset + self.lanes * self.stride_rows * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block."""
        return self.carry_offset + 4 * self.lanes * self.carry_slots * self.carry_floats
