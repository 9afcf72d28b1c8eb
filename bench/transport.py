"""Rows a second from one collector process to the learner's replay, beside a queue of single transitions.

Both sides hand over the same ready-made transitions, 18 floats of observation and 4 of action, as fast as they
can, and end with every transition sampleable in the receiving process. Ours is the product's own path: written into the
lane in place, committed in chunks with a checksum that the receiver computes again, and credits back; then the same
with what a collector does besides for each step of an environment: every value is checked against its space, and the
action is noted before the step. The queue is what most hand-made trainers use; it checks and notes nothing.
"""

from __future__ import annotations

import multiprocessing as mp
import platform
import resource
import select
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from _report import arguments, compare, report, take_turns
from gymnasium import spaces

from headrace.core.specs import leaves
from headrace.envs.contract import GOES_ON, ObservationCheck
from headrace.ipc.channel import MessagePipe, poll_fds
from headrace.ipc.shm import SharedBlock
from headrace.lanes.credits import CREDIT_BYTES, Commit, Credit, CreditBook, LaneCommit, commit_bytes
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import Geometry
from headrace.lanes.replay import Replay

OBS = spaces.Box(-np.inf, np.inf, (18,), np.float32)
ACTION = spaces.Box(-1, 1, (4,), np.float32)
EPISODE = 256
TRUNCATED = (False, True)
WAIT_S = 60.0
# Lanes are forked into the child: no import, no start-up is in the measurement, which begins with the first row.
FORK = mp.get_context("fork")


def ready_made(length: int = EPISODE) -> tuple[list[Any], list[Any]]:
    """Observations and actions of one episode; making them is nobody's work here."""
    generator = np.random.default_rng(1)
    obs = list(generator.standard_normal((length + 1, 18), np.float32))
    return obs, list(generator.uniform(-1, 1, (length, 4)).astype(np.float32))


def wait_for(fd: int) -> None:
    if not poll_fds({fd: select.POLLIN}, WAIT_S):
        raise SystemExit("the other process of the benchmark is stuck")


def cpu_s() -> float:
    """CPU seconds of this process and of the children it has reaped."""
    mine, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


class Lanes:
    """Our path. The block is made once; each round sends ``rows`` through it with a new collector process."""

    def __init__(self, rows: int, chunk: int, window: int, *, steps: bool = False) -> None:
        """``steps``: also do what a collector does for each step of an environment."""
        self.steps = steps
        self.geometry = Geometry(1, 100_000, leaves(OBS, "obs"), leaves(ACTION, "action"), chunk, window)
        self.rows, self.chunk, self.window = rows, chunk, window
        self.shared = SharedBlock.create(self.geometry.nbytes)
        self.block = LaneBlock(self.geometry, self.shared.buf)
        self.block.begin()
        self.replay = Replay(self.block)

    def rate(self) -> tuple[float, float]:
        """Rows per second, and per CPU second of both processes, start and end of the child included."""
        chunks = self.rows // self.chunk
        cpu = cpu_s()
        with MessagePipe.create(CREDIT_BYTES) as credit, MessagePipe.create(commit_bytes(1)) as commits:
            child = FORK.Process(target=self.collect, args=(chunks, credit, commits))
            child.start()
            book = CreditBook(1, self.chunk, self.window)
            wait_for(commits.reader_fd)  # the child is there: an empty commit
            commits.take()
            before, start = self.replay.env_steps, time.perf_counter()
            while book.committed[0] < chunks:
                if book.grant(book.committed[0] * self.chunk, chunks * self.chunk, [0]):
                    credit.put(Credit(0, 0, book.committed[0], book.limit[0], 0, stop=False).pack())
                wait_for(commits.reader_fd)
                for data in commits.take():
                    commit = Commit.unpack(data)
                    self.replay.commit(0, commit.lanes[0])
                    book.on_commit(commit.group)
            taken = time.perf_counter() - start
            child.join(WAIT_S)
        assert self.replay.env_steps - before == chunks * self.chunk
        return chunks * self.chunk / taken, chunks * self.chunk / (cpu_s() - cpu)

    def collect(self, chunks: int, credit: MessagePipe, commits: MessagePipe) -> None:
        """In the child: what a collector does with what its environment returned."""
        obs, actions = ready_made(self.chunk)
        block, writer, check = self.block, LaneWriter(self.block, 0), ObservationCheck(OBS, "bench")
        verify = check.check
        commits.put(Commit(0, 0, 0, 0, last=False, lanes=(LaneCommit(0, 0, 0),)).pack())
        limit = 0
        for chunk in range(chunks):
            while chunk >= limit:
                wait_for(credit.reader_fd)
                limit = max(Credit.unpack(data).limit for data in credit.take())
            begun, transitions = writer.row, writer.transitions
            writer.begin_episode([verify(obs[0], 0, 0)])
            self.episode(zip(actions, obs[1:], strict=True), writer, check)
            lane = LaneCommit(writer.row, writer.transitions - transitions, block.checksum(0, begun, writer.row))
            commits.put(Commit(0, 0, chunk, 0, last=False, lanes=(lane,)).pack())

    def episode(self, steps: Iterator[Any], writer: LaneWriter, check: ObservationCheck) -> None:
        """One episode is one chunk. Its loop is all the benchmark adds to the product's own calls."""
        transition, write, intend = check.transition, writer.step_array, writer.intend
        if not self.steps:
            for t, (action, seen) in enumerate(steps, 1):
                write((action,), 1.0, GOES_ON if t < self.chunk else TRUNCATED, seen, 0)
            return
        for t, (action, seen) in enumerate(steps, 1):
            doing = (action,)
            intend(doing)
            checked, reward, ended = transition((seen, 1.0, False, t == self.chunk), 0, t)
            write(doing, reward, ended, checked, 0)

    def close(self) -> None:
        self.replay.release()
        self.block.release()
        self.shared.close()


def queue_rate(rows: int) -> tuple[float, float]:
    """One transition an item through a bounded `multiprocessing.Queue` into a ring of five arrays."""
    cpu = cpu_s()
    queue: Any = FORK.Queue(5000)
    child = FORK.Process(target=fill, args=(queue, rows))
    ring = {"obs": np.zeros((100_000, 18), np.float32), "next_obs": np.zeros((100_000, 18), np.float32),
            "action": np.zeros((100_000, 4), np.float32), "reward": np.zeros(100_000), "done": np.zeros(100_000, bool)}  # fmt: skip
    child.start()
    queue.get(timeout=WAIT_S)  # the child is there
    start = time.perf_counter()
    for row in range(rows):
        item = queue.get(timeout=WAIT_S)
        at = row % 100_000
        for array, value in zip(ring.values(), item, strict=True):
            array[at] = value
    taken = time.perf_counter() - start
    child.join(WAIT_S)
    queue.close()
    queue.join_thread()
    return rows / taken, rows / (cpu_s() - cpu)


def fill(queue: Any, rows: int) -> None:
    obs, actions = ready_made()
    queue.put(None)
    for row in range(rows):
        t = row % EPISODE
        queue.put((obs[t], obs[t + 1], actions[t], 1.0, t == EPISODE - 1), timeout=WAIT_S)


def main() -> None:
    given = arguments(
        "Rows a second from a collector process into the replay.",
        rows=1_000_000, peer_rows=40_000, chunk=256, window=4, rounds=5,
    )  # fmt: skip
    peer = ("multiprocessing.Queue", f"Python {platform.python_version()}")
    what = "18 floats, ready-made"
    rows = []
    for name, steps in (("collector to replay", False), ("… values checked, actions noted", True)):
        lanes = Lanes(given.rows, given.chunk, given.window, steps=steps)
        ours, theirs = take_turns(given.rounds, lanes.rate, lambda: queue_rate(given.peer_rows))
        lanes.close()
        for at, unit in enumerate(["rows/s", "rows per CPU second of both processes"]):
            samples = [found[at] for found in ours], [found[at] for found in theirs]
            rows.append(compare(name, what, peer, samples, unit))
    report(rows, as_json=given.json)


if __name__ == "__main__":
    main()
