"""Batches of 256 a second from a million transitions, beside the replay buffers that are installed.

All hold the same million transitions of 18 floats of observation and 4 of action and return the same: observation,
action, reward, next observation, discount or end, as arrays or tensors in the layout they would hand to an update.
The plain buffer is five arrays and one `take` each, what one writes by hand.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _report import Row, arguments, compare, report, take_turns
from gymnasium import spaces

from headrace.core.specs import leaves
from headrace.ipc.shm import SharedBlock
from headrace.lanes.credits import LaneCommit
from headrace.lanes.derive import transitions
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import STEP, Geometry
from headrace.lanes.replay import Replay
from headrace.lanes.samplers import UniformSampler

OBS = spaces.Box(-np.inf, np.inf, (18,), np.float32)
ACTION = spaces.Box(-1, 1, (4,), np.float32)
BATCH = 256
PIECE = 10_000
Sample = Callable[[], Any]


class Lanes:
    """Our replay, full, in shared memory as in a run."""

    def __init__(self, lanes: int, rows: int) -> None:
        geometry = Geometry(lanes, rows, leaves(OBS, "obs"), leaves(ACTION, "action"), 32, 2)
        self.geometry = geometry
        self.shared = SharedBlock.create(geometry.nbytes)
        self.block = LaneBlock(geometry, self.shared.buf)
        self.block.begin()
        self.replay = Replay(self.block)
        generator = np.random.default_rng(0)
        for lane in range(lanes):
            for start in range(0, geometry.resident_rows, PIECE):
                self._fill(lane, start, min(start + PIECE, geometry.resident_rows), generator)
        self.sampler = UniformSampler(self.replay, generator)

    def _fill(self, lane: int, start: int, stop: int, generator: np.random.Generator) -> None:
        [rows] = self.block.pieces(lane, start, stop)
        rows["obs"] = generator.standard_normal((len(rows), 18), np.float32)
        rows["kind"], rows["t"] = STEP, np.arange(start, stop)
        rows["transitions"] = np.arange(start + 1, stop + 1)
        self.block.rows_written[lane] = stop
        self.replay.commit(lane, LaneCommit(stop, stop - start, self.block.checksum(lane, start, stop)))

    def sample(self) -> Any:
        g = self.geometry
        return transitions(self.sampler.sample(BATCH), g.observation, g.action, 1, 0.99)

    def close(self) -> None:
        self.replay.release()
        self.block.release()
        self.shared.close()


def plain(rows: int) -> tuple[str, str, Sample]:
    """Five arrays."""
    generator = np.random.default_rng(0)
    obs = generator.standard_normal((rows, 18), np.float32)
    arrays = [obs, obs.copy(), np.zeros((rows, 4), np.float32), np.zeros(rows), np.zeros(rows, bool)]

    def sample() -> Any:
        index = generator.integers(rows, size=BATCH)
        return [array[index] for array in arrays]

    return "five numpy arrays", f"numpy {np.__version__}", sample


def cpprb(rows: int) -> tuple[str, str, Sample]:
    from cpprb import ReplayBuffer

    shapes = {"obs": {"shape": 18}, "next_obs": {"shape": 18}, "act": {"shape": 4}, "rew": {}, "done": {}}
    buffer = ReplayBuffer(rows, shapes)
    for start in range(0, rows, PIECE):
        n = min(PIECE, rows - start)
        buffer.add(obs=np.zeros((n, 18)), next_obs=np.zeros((n, 18)), act=np.zeros((n, 4)), rew=np.zeros(n),
                   done=np.zeros(n))  # fmt: skip
    return "cpprb", importlib.metadata.version("cpprb"), lambda: buffer.sample(BATCH)


def stable_baselines3(rows: int) -> tuple[str, str, Sample]:
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = ReplayBuffer(rows, OBS, ACTION, device="cpu", handle_timeout_termination=False)
    buffer.full = True
    buffer.pos = 0
    buffer.observations[:] = 1.0  # touched, so that the memory is there
    buffer.next_observations[:] = 1.0
    return "stable-baselines3", importlib.metadata.version("stable-baselines3"), lambda: buffer.sample(BATCH)


def tianshou(rows: int) -> tuple[str, str, Sample]:
    from tianshou.data import Batch, ReplayBuffer

    buffer = ReplayBuffer(rows)
    step = Batch(obs=np.zeros(18, np.float32), act=np.zeros(4, np.float32), rew=0.0, terminated=False,
                 truncated=False, obs_next=np.zeros(18, np.float32), info={})  # fmt: skip
    for _ in range(rows):
        buffer.add(step)
    return "tianshou", importlib.metadata.version("tianshou"), lambda: buffer.sample(BATCH)


def peers(rows: int) -> Iterator[tuple[str, str, Sample]]:
    """The plain buffer, and of the others those that are installed."""
    yield plain(rows)
    for make in (cpprb, stable_baselines3, tianshou):
        if importlib.util.find_spec(make.__name__) is not None:
            yield make(rows)


def rate(sample: Sample, batches: int) -> Callable[[], float]:
    """Batches per CPU second of this one process: what other processes take away does not count."""

    def measure() -> float:
        start = time.process_time()
        for _ in range(batches):
            sample()
        return batches / (time.process_time() - start)

    return measure


def main() -> None:
    given = arguments("Batches of 256 from a full replay.", rows=1_000_000, batches=5_000, rounds=5)
    found: list[Row] = []
    for lanes in (1, 6):
        ours = Lanes(lanes, given.rows)
        for peer, version, sample in peers(given.rows):
            rates = take_turns(given.rounds, rate(ours.sample, given.batches), rate(sample, given.batches))
            name = f"batches of {BATCH} from {lanes} lane{'s' * (lanes > 1)}"
            found.append(
                compare(name, f"{given.rows:,} rows, 18 floats", (peer, version), (rates[0], rates[1]), "batches/CPU s")
            )
        ours.close()
    report(found, as_json=given.json)


if __name__ == "__main__":
    main()
