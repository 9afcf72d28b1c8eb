"""Chunks that a learner died without taking over, found again in the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.lanes.credits import Commit, LaneCommit
from headrace.lanes.layout import FINAL, STEP, steps_among
from headrace.lanes.replay import Replay


def next_unread(replay: Replay, group: int, lanes: Sequence[int]) -> Commit | None:
    """The first chunk that a group's collector had completed and nobody has taken over; None: there is no further one.

    Its message may have gone down with the learner that had read it. Such a chunk is not salvaged together with what
    follows: each has a policy and random draws of its own. The newest chunk is left to be salvaged; those before it are
    whole, but for the last of them where the collector was told to leave: it ends that one early, and begins another.

    Args:
        replay: The lanes; the collector's process has been reaped.
        group: Which.
        lanes: Of the group.
    """
    block, books, steps = replay.block, replay.books, replay.geometry.chunk_steps
    first, row = lanes[0], int(books.row[lanes[0]])
    newest, begun = (int(value) for value in block.chunk_begun[first])
    if begun <= row:
        return None
    # Every lane has as many, whatever became of them.
    made = len(_steps(np.concatenate(block.pieces(first, row, begun))))
    chunks = -(-made // steps)
    if chunks < 1:
        return None
    version = int(block.rows[first, row % replay.geometry.ring_rows]["version"])
    parts = tuple(_part(replay, lane, min(steps, made)) for lane in lanes)
    return Commit(int(block.incarnation[first]), group, newest - chunks, version, last=False, lanes=parts)


def _part(replay: Replay, lane: int, steps: int) -> LaneCommit:
    block, start = replay.block, int(replay.books.row[lane])
    rows = np.concatenate(block.pieces(lane, start, int(block.rows_written[lane])))
    count = int(_steps(rows)[steps - 1]) + 1
    if count < len(rows) and rows["kind"][count] == FINAL:  # the episode ended with it
        count += 1
    transitions = int((rows["kind"][:count] == STEP).sum())
    return LaneCommit(start + count, transitions, block.checksum(lane, start, start + count))


def _steps(rows: NDArray[np.void]) -> NDArray[np.intp]:
    """Places of the rows [R] that stand for a step of the group each."""
    return np.flatnonzero(steps_among(rows["kind"]))
