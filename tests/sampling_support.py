"""A replay to sample from, with transitions that can be told apart."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from headrace.core.specs import leaves
from headrace.lanes.credits import LaneCommit
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import STEP, Geometry
from headrace.lanes.replay import Replay
from headrace.lanes.samplers import Sampler

SPACE = spaces.Box(-np.inf, np.inf, (), np.float64)


class Filled:
    """A replay whose transitions carry a number of their own as observation."""

    def __init__(self, lanes: int, capacity: int, *, frame_stack: int = 1, n_step: int = 1) -> None:
        geometry = Geometry(lanes, capacity, leaves(SPACE, "obs"), leaves(SPACE, "action"), 8, 1, frame_stack, n_step)
        self.block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
        self.block.begin()
        self.replay = Replay(self.block)
        self.writers = [LaneWriter(self.block, lane) for lane in range(lanes)]
        self.number = 0

    def add(self, lane: int, steps: int, episode_length: int) -> None:
        """Episodes of a length, committed in chunks of eight; the last one ends too."""
        writer, left, last = self.writers[lane], steps, True
        while left:
            row, before = writer.row, writer.transitions
            for _ in range(min(8, left)):
                if last:
                    writer.begin_episode([np.float64(self.number)])
                left -= 1
                last = writer.t + 1 == episode_length or not left
                self.number += 1
                writer.step([np.float64(0)], 0.0, (last, False), [np.float64(self.number)], 0)
                if last:
                    self.number += 1
            checksum = self.block.checksum(lane, row, writer.row)
            self.replay.commit(lane, LaneCommit(writer.row, writer.transitions - before, checksum))

    def transitions(self) -> set[float]:
        """Numbers of all that may be sampled."""
        g = self.replay.geometry
        found = set()
        for lane in range(g.lanes):
            for row in range(*self.replay.resident(lane)):
                record = self.block.rows[lane, row % g.ring_rows]
                if record["kind"] == STEP:
                    found.add(float(record["obs"]))
        return found

    def drawn(self, sampler: Sampler, batches: int, batch_size: int) -> np.ndarray:
        at = self.replay.geometry.frame_stack - 1
        return np.concatenate([sampler.sample(batch_size)[:, at]["obs"] for _ in range(batches)])
