"""Lanes with a read cursor: what has arrived and was not trained on, and rollouts copied out of it.

The cursor of a lane is where its resident rows begin. A rollout moves it, so no row is in two of them, and none that it
has not passed can be overwritten. Letters: R rows, T steps of the longest stream, N streams, S frames of a stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Arrays, Rollout
from headrace.core.errors import DataLossError
from headrace.lanes.derive import observe
from headrace.lanes.layout import STEP
from headrace.lanes.replay import Replay


@dataclass(frozen=True, slots=True)
class Arrived:
    """A chunk of a group, or what was salvaged of one, that was not trained on."""

    group: int
    chunk: int
    version: int
    """Of the policy that acted."""
    stops: tuple[int, ...]
    """Row number after the last row, of each of the group's lanes."""
    has_steps: bool = True
    """Whether a step came with it; a cut alone takes nobody's place in a rollout by arrival."""


class Rollouts:
    """Takes what has arrived together to rollouts.

    Args:
        replay: The lanes; their geometry is `Geometry.consumed`.
        groups: Lanes of each group.
        order: ``chunk``: a rollout is made of all chunks of the lowest number, in the order of their groups. ``arrival``: of
            as many chunks as there are groups, those of the oldest policies first, and of those the first that came.
        whole_episodes: Leave episodes that go on where they are.
    """

    def __init__(
        self,
        replay: Replay,
        groups: Sequence[tuple[int, ...]],
        order: Literal["chunk", "arrival"] = "chunk",
        *,
        whole_episodes: bool = False,
    ) -> None:
        self._replay = replay
        self._groups = groups
        self._order = order
        self._whole_episodes = whole_episodes
        self._arrived: list[Arrived] = []

    @property
    def arrived(self) -> Sequence[Arrived]:
        """Chunks that no rollout has taken, in the order in which they arrived."""
        return self._arrived

    def add(self, arrived: Arrived) -> None:
        """Rows have been taken over into the lanes; they stand behind those of their group that were there before."""
        before = [at for at, one in enumerate(self._arrived) if one.group == arrived.group][-1:]
        if before and self._order == "arrival" and not arrived.has_steps:  # it goes with what it ends
            self._arrived[before[0]] = replace(self._arrived[before[0]], stops=arrived.stops)
            return
        known = [*(self._arrived[at] for at in before), arrived]
        chunk, version = max(one.chunk for one in known), max(one.version for one in known)
        self._arrived.append(replace(arrived, chunk=chunk, version=version))

    def gather(self) -> Rollout | None:
        """The next rollout, copied; its rows leave the lanes. None: none of its episodes is over, or it has no step.

        Chunks are used up by it either way; what stays of them in the lanes goes with the next of theirs.

        Raises:
            DataLossError: Nothing has arrived.
        """
        if not self._arrived:
            raise DataLossError(
                "a rollout was asked for, and nothing has arrived", fix="keep the run directory and file a bug"
            )
        taken = self._take()
        stops = dict(pair for one in taken for pair in self._stops(one))  # of two chunks of a group the later one's
        streams = []
        for lane, stop in sorted(stops.items()):
            start, end = int(self._replay.books.resident_from[lane]), self._end(lane, stop)
            if end > start:
                streams.append(_Stream.of(self._replay, lane, start, end))
                self._replay.consume(lane, end)
        streams = [stream for stream in streams if len(stream.steps)]
        return replace(_rollout(self._replay, streams), waiting=self._waiting()) if streams else None

    def _waiting(self) -> int:
        """Steps that have arrived and that no rollout had yet, those of episodes that are kept back among them."""
        books, pieces = self._replay.books, self._replay.block.pieces
        stretches = zip(books.resident_from.tolist(), books.row.tolist(), strict=True)
        return sum(
            int(np.count_nonzero(piece["kind"] == STEP))
            for lane, (start, stop) in enumerate(stretches)
            if stop > start
            for piece in pieces(lane, start, stop)
        )

    def _stops(self, one: Arrived) -> Iterator[tuple[int, int]]:
        """Each of its lanes, with the row number after its last row."""
        return zip(self._groups[one.group], one.stops, strict=True)

    def state(self) -> list[list[Any]]:
        """What has arrived, as JSON knows it."""
        return [
            [one.group, one.chunk, one.version, list(one.stops), *([] if one.has_steps else [False])]
            for one in self._arrived
        ]

    def load_state(self, arrived: Sequence[Sequence[Any]]) -> None:
        """Go on from a `state`, in lanes that hold what they held then."""
        self._arrived = [
            Arrived(group, chunk, version, tuple(stops), *rest) for group, chunk, version, stops, *rest in arrived
        ]

    def _take(self) -> list[Arrived]:
        if self._order == "chunk":
            lowest = min(one.chunk for one in self._arrived)
            taken = sorted((one for one in self._arrived if one.chunk == lowest), key=lambda one: one.group)
        else:
            taken = oldest(self._arrived, len(self._groups))
        self._arrived = [one for one in self._arrived if one not in taken]
        return taken

    def _end(self, lane: int, stop: int) -> int:
        """Row number up to which rows of a lane are taken, of those before ``stop``."""
        start = int(self._replay.books.resident_from[lane])
        if not self._whole_episodes or stop <= start:  # what was taken already is no stretch of rows
            return stop
        kinds = np.concatenate([piece["kind"] for piece in self._replay.block.pieces(lane, start, stop)])
        ends = np.flatnonzero(kinds != STEP)
        return start + int(ends[-1]) + 1 if len(ends) else start


def oldest(arrived: Sequence[Arrived], size: int) -> list[Arrived]:
    """So many chunks of the oldest policies, of those the first that came; and before them all cuts without a step.

    Those are no chunk that anybody was granted: counted, they would make others wait a rollout longer than the lag allows.
    """
    cuts = [one for one in arrived if not one.has_steps]
    return cuts + sorted((one for one in arrived if one.has_steps), key=lambda one: one.version)[:size]  # stable


@dataclass(frozen=True, slots=True)
class _Stream:
    """Rows of one lane, and one more where an episode goes on: of that nothing but the observation is complete."""

    lane: int
    rows: NDArray[np.void]
    """[R]"""
    t: NDArray[np.int64]
    """[R] step in the episode of each."""
    steps: NDArray[np.intp]
    """Places of the transitions among them; another row follows each."""
    ended: NDArray[np.bool_]
    """Of each transition, whether its episode ended with it, or was cut."""
    places: NDArray[np.int64]
    """[R] where the windows whose stack ends with each begin, see `Replay.windows`."""

    @classmethod
    def of(cls, replay: Replay, lane: int, start: int, stop: int) -> _Stream:
        """Rows from number ``start`` to ``stop``, copied."""
        g, block = replay.geometry, replay.block
        rows = np.concatenate(block.pieces(lane, start, stop))
        t, kinds = rows["t"].astype(np.int64), rows["kind"]
        if kinds[-1] == STEP:  # what it led to is in the row after it, which its collector may be completing
            rows = np.concatenate([rows, *block.pieces(lane, stop, stop + 1)])
            t, kinds = np.append(t, t[-1] + 1), np.append(kinds, kinds[-1])
        steps = np.flatnonzero(kinds[: stop - start] == STEP)
        numbers = np.arange(start, start + len(rows)) - (g.frame_stack - 1)
        places = lane * g.stride_rows + numbers % g.ring_rows
        return cls(lane, rows, t, steps, kinds[steps + 1] != STEP, places)


def _rollout(replay: Replay, streams: Sequence[_Stream]) -> Rollout:
    g = replay.geometry
    begins = np.cumsum([0, *(len(stream.rows) for stream in streams)])
    at, (valid, ended, episode_ended) = _grid(streams, begins)
    rows = np.concatenate([stream.rows for stream in streams])
    return Rollout(
        obs=_observations(replay, streams, rows),
        at=at,
        then=at + valid,
        action={leaf.path: rows[leaf.path][at] for leaf in g.action},
        told={leaf.path: rows[leaf.path][at] for leaf in g.told},
        reward=rows["reward"][at],
        terminated=rows["terminated"][at] & valid,
        ended=ended,
        episode_ended=episode_ended,
        valid=valid,
        version=rows["version"][at],
        t=rows["t"][at].astype(np.int64),
        lanes=np.array([stream.lane for stream in streams], np.intp),
    )


def _grid(streams: Sequence[_Stream], begins: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """[T, N] place of each step among all rows; and [3, T, N] whether it is one, ends its stretch, ends its episode."""
    longest = max(len(stream.steps) for stream in streams)
    at, flags = np.zeros((longest, len(streams)), np.intp), np.zeros((3, longest, len(streams)), np.bool_)
    for place, (stream, begin) in enumerate(zip(streams, begins, strict=False)):
        steps = len(stream.steps)
        at[:steps, place] = stream.steps + begin
        flags[0, :steps, place] = True
        flags[1:, :steps, place] = stream.ended
        flags[1, steps - 1, place] = True
    return at, flags


def _observations(replay: Replay, streams: Sequence[_Stream], rows: NDArray[np.void]) -> Arrays:
    """What a policy sees in each row, stacked as where it acted."""
    g = replay.geometry
    if g.frame_stack == 1:
        return {leaf.path: rows[leaf.path] for leaf in g.observation}
    windows = replay.windows(np.concatenate([stream.places for stream in streams]))[:, : g.frame_stack]
    return observe(windows, g.observation, np.concatenate([stream.t for stream in streams]))
