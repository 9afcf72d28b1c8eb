"""A block of lanes as its processes see it, and the one writer of a lane.

Order of writing, on which everything else rests: a transition's row is filled, its successor's observation is
put into the next row, and only then does the lane's row number move. So a complete row always has its
successor's observation, also when the worker is killed between any two instructions.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import DataLossError, ObservationMismatch
from headrace.core.specs import Leaf
from headrace.lanes.layout import (
    ABSENT,
    FINAL,
    HEAD,
    HEADER_BYTES,
    INFO_KEYS,
    LOST,
    STEP,
    Geometry,
    action_struct,
    end_word,
    place_word,
    step_struct,
)

_GOES_ON = end_word(STEP)


def _end(ended: tuple[bool, bool]) -> int:
    return end_word(STEP, terminated=ended[0], truncated=ended[1])


class LaneBlock:
    """Views of one shared block.

    Args:
        geometry: The sizes, the same in every process.
        buffer: `Geometry.nbytes` writable bytes, e.g. `SharedBlock.buf`; zeroed when new.
    """

    def __init__(self, geometry: Geometry, buffer: memoryview) -> None:
        self.geometry = geometry
        self.buffer = buffer
        g = geometry
        self._ring, self._stride = g.ring_rows, g.stride_rows  # asked for in every step
        # An array over a memoryview would not keep it: reading a row after the memory is unmapped would be a crash.
        self._whole = np.frombuffer(buffer, np.uint8)
        header = np.ndarray((g.lanes, 3, HEADER_BYTES // 24), np.int64, self._whole)
        self.rows_written = header[:, 0, 0]
        """Complete rows of each lane, as a row number; written by its collector."""
        self.episodes_begun = header[:, 0, 1]
        """Episodes begun in each lane; written by its collector."""
        self.chunk_begun = header[:, 0, 2:4]
        """Number of each lane's newest chunk, and the row number it began at; written by its collector, for whoever
        has to repeat what it did."""
        self.incarnation = header[:, 0, 7]
        """Of the random streams each lane's newest chunk draws from; written by its collector."""
        self.info_counts: NDArray[np.int32] = np.ndarray(
            (g.lanes, len(INFO_KEYS)), np.int32, self._whole, 32, (HEADER_BYTES, 4)
        )
        """Steps of each lane in which a key of `INFO_KEYS` was set in ``info``; written by its collector."""
        self.committed = header[:, 1, :]
        """The learner's books of each lane, see `headrace.lanes.replay`."""
        self.stopping = header[:, 1, 7]
        """Not zero: whoever writes the lane shall commit what it has and leave; written by the learner."""
        self.intended = header[:, 2, :]
        """What the learner is about to make of its books, see `headrace.lanes.replay`."""
        self.rows: NDArray[np.void] = np.ndarray((g.lanes, g.stride_rows), g.dtype, self._whole, g.rows_offset)
        self.carry: NDArray[np.float32] = np.zeros((g.lanes, g.carry_slots, 0), np.float32)
        """[lanes, slots, floats] exploration state after chunk ``c`` of a lane, in slot ``c % carry_slots``; written by
        its collector before it commits the chunk."""
        if g.carry_floats:
            shape = g.lanes, g.carry_slots, g.carry_floats
            self.carry = np.ndarray(shape, np.float32, self._whole, g.carry_offset)

    def begin(self) -> None:
        """Set the row numbers of a new block."""
        self.rows_written[:] = self.geometry.first_row

    def pieces(self, lane: int, start: int, stop: int) -> list[NDArray[np.void]]:
        """Rows ``start`` to ``stop`` (row numbers) of a lane in order, as one or two views of its ring."""
        ring = self._ring
        first = start % ring
        length = stop - start
        if first + length <= ring:
            return [self.rows[lane, first : first + length]]
        return [self.rows[lane, first:ring], self.rows[lane, : first + length - ring]]

    def raw(self, lane: int, start: int, stop: int) -> list[memoryview]:
        """The bytes of rows ``start`` to ``stop`` of a lane in order, as one or two views."""
        size = self.geometry.dtype.itemsize
        ring = self._ring
        base = self.geometry.rows_offset + lane * self._stride * size
        first, length = start % ring, stop - start
        whole = min(length, ring - first)
        at = base + first * size
        head = self.buffer[at : at + whole * size]
        return [head] if whole == length else [head, self.buffer[base : base + (length - whole) * size]]

    def checksum(self, lane: int, start: int, stop: int) -> int:
        """CRC-32 of the bytes of complete rows ``start`` to ``stop``."""
        value = 0
        for piece in self.raw(lane, start, stop):
            value = zlib.crc32(piece, value)
        return value

    def following(self, lane: int, stop: int) -> memoryview | bytes:
        """The observation in row ``stop``, which the last step led to, as bytes; zeros where no episode is running."""
        g = self.geometry
        if stop == g.first_row or self.rows[lane, (stop - 1) % self._ring]["kind"] != STEP:
            return bytes(g.head_offset)
        return self.raw(lane, stop, stop + 1)[0][: g.head_offset]

    def windows(self, width: int) -> NDArray[np.void]:
        """All windows of ``width`` neighbouring rows of all lanes, as one flat overlapping view of the block.

        The window at place ``lane * stride_rows + slot`` begins at that lane's ring slot; see `place`.
        """
        g = self.geometry
        size = g.dtype.itemsize
        count = g.lanes * g.stride_rows - (width - 1)
        kind = np.dtype((np.void, size * width))
        return np.ndarray((count,), kind, self._whole, g.rows_offset, (size,))

    def place(self, lane: int, row: int) -> int:
        """Flat place of the window that begins at a row number of a lane."""
        return lane * self._stride + row % self._ring

    def release(self) -> None:
        """Drop all views, so that the shared memory below can be closed; rows that others hold keep it mapped."""
        del self._whole, self.rows_written, self.episodes_begun, self.chunk_begun, self.incarnation, self.info_counts
        del self.committed, self.stopping, self.intended, self.rows, self.carry, self.buffer


class LaneWriter:
    """Writes one lane. Exactly one exists per lane at any time, in the process that steps its environment.

    Observations and actions are numpy values per leaf, in the geometry's order, already checked against their
    spaces: their bytes are stored as they are. A chunk of ``n`` steps uses at most ``2 n`` rows: a step is a transition,
    perhaps with the row that ends its episode, or a row of kind LOST or ABSENT.

    Args:
        block: The lanes.
        lane: Which.
        resume: Go on with the episode the lane's last row belongs to, if it has not ended.

    Raises:
        DataLossError: The lane's last episode is neither ended nor cut; see `Replay.salvage`.
    """

    def __init__(self, block: LaneBlock, lane: int, *, resume: bool = False) -> None:
        g = block.geometry
        fields = g.dtype.fields
        assert fields is not None, "a row is structured"
        self._ring, self._mirror, self._size = g.ring_rows, g.mirror_rows, g.dtype.itemsize
        self._rows = block.rows[lane]
        self._bytes = block.buffer
        self._base = g.rows_offset + lane * g.stride_rows * self._size
        self._head = self._base + g.head_offset
        self._leaves = (*g.acted, *g.observation)
        self._sizes = tuple(int(fields[leaf.path][0].itemsize) for leaf in self._leaves)
        self.one_array = len(g.observation) == 1
        """Whether an observation is one, so that `step_array` may be used."""
        self._last_slot = self._ring - 1
        self._obs_size = self._sizes[-1]
        self._acted_sizes = self._sizes[: len(g.acted)]
        self._action_at = self._base + int(fields[g.acted[0].path][1])
        self._no_action = [bytes(size) for size in self._acted_sizes]
        """Stored where nothing is done: a resumed run does not know what the row held a lap ago."""
        self._nothing_seen = [bytes(size) for size in self._sizes[len(g.acted) :]]
        self._put_action = action_struct(g.dtype, g.acted).pack_into
        self._obs_places = [int(fields[leaf.path][1]) for leaf in g.observation]
        self._intended: Sequence[Any] = ()
        """The action that was intended last."""
        self._did: tuple[bytes, ...] = ()
        """Its parts as they were then: an environment may write into what it is given."""
        self._write_head = HEAD.pack_into
        self._write = step_struct(g.dtype, g.acted, g.observation).pack_into
        self._number = block.buffer[lane * HEADER_BYTES : lane * HEADER_BYTES + 16].cast("q")
        self.row: int = self._number[0]
        """Number of the row the next transition goes to."""
        last = self._rows[(self.row - 1) % self._ring]
        self.transitions: int = int(last["transitions"]) if self.row > g.first_row else 0
        self._place = place_word(max(0, self._number[1] - 1), 0)
        if resume and self.row > g.first_row and last["kind"] == STEP:
            self._place = place_word(int(last["episode"]), int(last["t"]) + 1)
        else:
            self._refuse_unended(g.first_row)

    @property
    def t(self) -> int:
        """Steps made in the running episode."""
        return self._place & 0xFFFFFFFF

    @property
    def episode(self) -> int:
        """Number of the running episode, from 0; -1 before the first."""
        return int(self._number[1]) - 1

    def begin_episode(self, obs: Sequence[Any], episode: int | None = None) -> None:
        """Store the observation an episode begins with.

        Args:
            obs: Per leaf.
            episode: Its number, where several lanes count together; an agent that comes back goes on in the same one.
                None: the lane's next.

        Raises:
            DataLossError: An episode is running. Its last transition's successor would be overwritten.
            ObservationMismatch: A value has more or fewer bytes than its leaf. Nothing was stored.
        """
        if self.t:
            self._refuse_unended(0)
        parts = self._parts(obs, self._sizes[len(self._acted_sizes) :])
        slot = self.row % self._ring
        self._put_obs(slot, parts)
        if slot < self._mirror:
            self._rows[self._ring + slot] = self._rows[slot]
        number = self._number[1] if episode is None else episode
        self._place = place_word(number, 0)
        self._number[1] = number + 1

    def begin_absent(self, episode: int) -> None:
        """An episode begins in which the lane's agent is not there yet.

        Raises:
            DataLossError: An episode is running.
        """
        self._refuse_unended(0)
        self._place = place_word(episode, 0)
        self._number[1] = episode + 1

    def intend(self, action: Sequence[Any]) -> None:
        """Store what is about to be done, per leaf, before it is: a step that never returns leaves it to be read.

        The row stays incomplete. Where `step` is given this very sequence next, it stores what was in it now.

        Raises:
            ObservationMismatch: A value has more or fewer bytes than its leaf. Nothing was stored.
        """
        did = self._parts(action, self._acted_sizes)
        self._put_action(self._bytes, self._action_at + self.row % self._ring * self._size, *did)
        self._intended, self._did = action, did

    def step(
        self, action: Sequence[Any], reward: float, ended: tuple[bool, bool], obs: Sequence[Any], version: int
    ) -> None:
        """Store one transition.

        Args:
            action: What was done, per leaf. What has been made of it since it was intended does not count.
            reward: What it earned.
            ended: Whether the task terminated, and whether the episode was truncated.
            obs: The observation it led to, per leaf; never one of a reset.
            version: Of the policy that chose the action.

        Raises:
            ObservationMismatch: A value has more or fewer bytes than its leaf. Nothing was stored.
        """
        did = self._did if self._intended is action else self._parts(action, self._acted_sizes)
        led = self._parts(obs, self._sizes[len(did) :])
        self._fill((*did, *led), len(did), reward, ended, version)

    def step_array(
        self, action: Sequence[Any], reward: float, ended: tuple[bool, bool], obs: Any, version: int
    ) -> None:
        """`step` where an observation is one array, given that itself; the same, at two thirds of the time.

        Only where `one_array` is true.
        """
        slot = self.row % self._ring
        terminated, truncated = ended
        did, led = self._did if self._intended is action else self._parts(action, self._acted_sizes), obs.tobytes()
        if len(led) != self._obs_size:
            self._refuse_sizes(self._leaves, (*did, led))
        if terminated or truncated or not self._mirror <= slot < self._last_slot:
            self._fill((*did, led), len(did), reward, ended, version)
            return
        transitions, place = self.transitions + 1, self._place
        self._write(
            self._bytes, self._head + slot * self._size, reward, version, transitions, place, _GOES_ON, *did, led
        )
        self._stepped(transitions)

    def _fill(self, parts: Sequence[bytes], acted: int, reward: float, ended: tuple[bool, bool], version: int) -> None:
        """Fill the row of a transition: the bytes of its ``acted`` leaves of the action, then of the observation's."""
        slot, transitions, end = self.row % self._ring, self.transitions + 1, _end(ended)
        self._write(self._bytes, self._head + slot * self._size, reward, version, transitions, self._place, end, *parts)
        if ended[0] or ended[1] or not self._mirror <= slot < self._last_slot:
            self._after_step(slot, ended, parts[acted:], version)
        else:
            self._stepped(transitions)

    def _stepped(self, transitions: int) -> None:
        """What follows once a transition's row is filled that ends no episode, far from the ring's ends."""
        self.transitions = transitions
        self._place += 1
        self.row = row = self.row + 1
        self._number[0] = row

    def _after_step(self, slot: int, ended: tuple[bool, bool], obs: Sequence[bytes], version: int) -> None:
        """What follows once a transition's row is filled; the row number moves last."""
        self.transitions += 1
        self._place += 1
        self.row += 1
        after = slot + 1
        if after == self._ring:
            after = 0  # what was just written behind the ring's end is the mirror of its first row
            self._put_obs(0, obs)
        if ended[0] or ended[1]:
            self._end_in(after, version, FINAL)
        self._copy_to_mirror(slot, after)
        self._number[0] = self.row

    def lose(self, version: int) -> None:
        """Close the running episode where it stands, because its environment never came back from a step.

        Its last observation, be that of a step or of the reset, becomes a row of kind LOST. Only `begin_episode` may
        follow.

        Args:
            version: Of the policy that chose the action of that step.
        """
        slot = self.row % self._ring
        self._end_in(slot, version, LOST)
        self._copy_to_mirror(slot)
        self._number[0] = self.row

    def absent(self, version: int) -> None:
        """A step in which the lane's agent was not there; between its episodes only.

        Args:
            version: Of the policy that chose the actions of the others.
        """
        slot = self.row % self._ring
        self._place = place_word(self._place >> 32, 0)
        self._put_obs(slot, self._nothing_seen)
        self._end_in(slot, version, ABSENT)
        self._copy_to_mirror(slot)
        self._number[0] = self.row

    def _end_in(self, slot: int, version: int, kind: int) -> None:
        """Make a row that already holds its observation one in which nothing was done."""
        at = self._head + slot * self._size
        self._write_head(self._bytes, at, 0.0, version, self.transitions, self._place, kind)
        self._put_action(self._bytes, self._action_at + slot * self._size, *self._no_action)
        self.row += 1

    def _parts(self, values: Sequence[Any], sizes: tuple[int, ...]) -> tuple[bytes, ...]:
        """Bytes of values, which belong to the first leaves or to the last ones: those whose sizes these are."""
        parts = tuple([value.data.tobytes() for value in values])  # a scalar's own `tobytes` makes an array first
        if tuple(map(len, parts)) != sizes:  # struct would cut or pad bytes that do not fit, silently
            acting = len(self._acted_sizes)
            self._refuse_sizes(self._leaves[:acting] if sizes is self._acted_sizes else self._leaves[acting:], parts)
        return parts

    def _put_obs(self, slot: int, parts: Sequence[bytes]) -> None:
        at = self._base + slot * self._size
        for part, offset in zip(parts, self._obs_places, strict=True):
            self._bytes[at + offset : at + offset + len(part)] = part

    def _copy_to_mirror(self, *slots: int) -> None:
        for slot in slots:
            if slot < self._mirror:
                self._rows[self._ring + slot] = self._rows[slot]

    def _refuse_unended(self, first_row: int) -> None:
        if self.row > first_row and self._rows[(self.row - 1) % self._ring]["kind"] == STEP:
            raise DataLossError(
                "an episode would begin where another has neither ended nor been cut",
                row=self.row,
                episode=self.episode,
                fix="let the learner salvage the lane before anybody else writes it",
            )

    def _refuse_sizes(self, leaves: Sequence[Leaf], parts: Sequence[bytes]) -> None:
        if len(parts) != len(leaves):
            raise ObservationMismatch(
                "a transition has not the parts its spaces declare",
                expected=", ".join(leaf.path for leaf in leaves),
                found=f"{len(parts)} parts",
                fix="hand over one value per leaf, in the order of the spaces",
            )
        for leaf, part in zip(leaves, parts, strict=True):
            size = leaf.dtype.itemsize * math.prod(leaf.shape)
            if len(part) != size:
                raise ObservationMismatch(
                    f"{leaf.path} has not the size its space declares",
                    expected=f"{leaf.dtype} of shape {leaf.shape}, {size} bytes",
                    found=f"{len(part)} bytes",
                    fix="return values of the space's own dtype and shape",
                )

    def release(self) -> None:
        """Drop all views of the block."""
        self._number.release()
        del self._rows, self._bytes
