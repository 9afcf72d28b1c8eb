"""A writer that is killed at any point leaves whole rows, and only those, behind."""

from __future__ import annotations

import itertools
import os
import select
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NoReturn, Self

import numpy as np
import pytest
from gymnasium import spaces

from headrace.core.specs import leaves
from headrace.ipc.shm import SharedBlock
from headrace.lanes.credits import LaneCommit
from headrace.lanes.derive import transitions
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import CUT, FINAL, HEAD, STEP, Geometry, action_struct, step_struct
from headrace.lanes.replay import Replay, balanced

pytestmark = [pytest.mark.process, pytest.mark.thin(4)]

CHUNK, WINDOW = 5, 2
OBS = spaces.Box(-np.inf, np.inf, (18,), np.float32)
ACTION = spaces.Box(-np.inf, np.inf, (4,), np.float32)
GEOMETRY = Geometry(1, 24, leaves(OBS, "obs"), leaves(ACTION, "action"), CHUNK, WINDOW, frame_stack=3, n_step=2)
LIMIT_S = 30.0
MESSAGE = struct.Struct("<qqq")


def length(episode: int) -> int:
    """Steps of an episode; short and long ones, so that ends fall on every place of the ring."""
    return 1 + episode * 7 % 5


def observation(episode: int, t: int) -> Any:
    return np.full(18, episode * 10 + t, np.float32)


@contextmanager
def shared_block() -> Iterator[LaneBlock]:
    shared = SharedBlock.create(GEOMETRY.nbytes)  # its mapping is inherited by children of a fork
    block = LaneBlock(GEOMETRY, shared.buf)
    block.begin()
    try:
        yield block
    finally:
        block.release()
        shared.close()


class Child:
    """A forked process that runs ``work``, which does not return; gone when the block is left."""

    def __init__(self, work: Callable[[], NoReturn]) -> None:
        self._work = work
        self._ended: int | None = None

    def __enter__(self) -> Self:
        self._pid = os.fork()
        if self._pid:
            return self
        try:
            self._work()
        finally:
            traceback.print_exc()  # of what should not have been raised
            os._exit(1)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def reap(self) -> int:
        """How the child ended: a negative signal or its exit code. It is on its way out, or pytest's timeout ends it."""
        if self._ended is None:
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._ended

    def __exit__(self, *_: object) -> None:
        if self._ended is None:
            self.kill()
            self.reap()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


class Deadly:
    """Kills its process at the n-th store of a writer; packed bytes are stored 16 at a time."""

    def __init__(self, writer: LaneWriter, stores: int) -> None:
        self.left = stores
        self._bytes = writer._bytes
        self._step = step_struct(GEOMETRY.dtype, GEOMETRY.action, GEOMETRY.observation)
        self._action = action_struct(GEOMETRY.dtype, GEOMETRY.action)
        writer._write, writer._write_head, writer._put_action = self.write, self.write_head, self.put_action
        writer._bytes = Store(self, writer._bytes)
        writer._rows = Store(self, writer._rows)
        writer._number = Store(self, writer._number)

    def count(self) -> bool:
        self.left -= 1
        return self.left < 0

    def _piece_by_piece(self, pack: Callable[..., None], size: int, at: int, *values: Any) -> None:
        whole = bytearray(size)
        pack(whole, 0, *values)
        for start in range(0, size, 16):
            if self.count():
                die()
            self._bytes[at + start : at + min(size, start + 16)] = whole[start : min(size, start + 16)]

    def write(self, _: object, at: int, *values: Any) -> None:
        self._piece_by_piece(self._step.pack_into, self._step.size, at, *values)

    def write_head(self, _: object, at: int, *values: Any) -> None:
        self._piece_by_piece(HEAD.pack_into, HEAD.size, at, *values)

    def put_action(self, _: object, at: int, *values: Any) -> None:
        self._piece_by_piece(self._action.pack_into, self._action.size, at, *values)


class Store:
    """Stands for a view of the lane; each store through it may be the last."""

    def __init__(self, deadly: Deadly, view: Any) -> None:
        self._deadly, self._view = deadly, view

    def __getitem__(self, key: Any) -> Any:
        return self._view[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._deadly.count():
            die()
        self._view[key] = value
        if self._deadly.count():
            die()


def play(writer: LaneWriter, episode: int, on_step: Callable[[], None]) -> NoReturn:
    """Write episodes without end."""
    while True:
        writer.begin_episode([observation(episode, 0)])
        for t in range(length(episode)):
            ended = t == length(episode) - 1
            writer.step(
                [np.full(4, t, np.float32)], episode + t / 8, (ended, False), [observation(episode, t + 1)], episode
            )
            on_step()
        episode += 1


def check(replay: Replay, rows: list[np.void], started: int) -> None:
    """Rows in order, as a collector would have committed them: each whole, none missing, none twice."""
    episode, t = started, 0
    for row in rows:
        assert (int(row["episode"]), int(row["t"])) == (episode, t)
        np.testing.assert_array_equal(row["obs"], observation(episode, t))
        if row["kind"] == STEP:
            assert (float(row["reward"]), int(row["version"])) == (episode + t / 8, episode)
            np.testing.assert_array_equal(row["action"], np.full(4, t))
            assert bool(row["terminated"]) == (t == length(episode) - 1)
            t += 1
        else:
            assert row["kind"] == (FINAL if t == length(episode) else CUT)
            episode, t = episode + 1, 0
    assert t == 0, "the last stretch has no end"
    assert balanced(replay.books.lane(0))


def check_samples(replay: Replay) -> None:
    """All that may be sampled leads to its own successor, through the mirror too."""
    places = np.array([replay.place(0, row) for row in range(*replay.resident(0))], np.int64)
    places = places[replay.kinds(places) == STEP]
    windows = replay.windows(places)
    batch = transitions(windows, GEOMETRY.observation, GEOMETRY.action, 3, 1.0)
    for place, first in enumerate(windows[:, 2]):
        episode, t = int(first["episode"]), int(first["t"])
        frames = [max(0, t - back) for back in (2, 1, 0)]
        np.testing.assert_array_equal(batch.obs["obs"][place], [observation(episode, at) for at in frames])
        last = batch.next_obs["obs"][place, :, 0] - episode * 10
        steps = int(last[2]) - t
        assert steps in (1, 2)
        assert last.tolist() == [max(0, t + steps - back) for back in (2, 1, 0)]
        assert batch.reward[place] == sum(episode + (t + k) / 8 for k in range(steps))


def salvaged(replay: Replay) -> list[np.void]:
    stretch, _ = replay.salvage(0)
    return [row for rows in stretch.rows for row in rows]


@pytest.mark.table
def test_killed_between_any_two_stores() -> None:
    """The child kills itself at store 0, 1, 2, ... of its work; each replacement goes on in the same lane."""
    with shared_block() as block:
        replay = Replay(block)
        seen = set()
        for stores in range(200):
            episode = int(block.episodes_begun[0])

            def work(stores: int = stores, episode: int = episode) -> NoReturn:
                writer = LaneWriter(block, 0)
                Deadly(writer, stores)
                steps = iter(range(CHUNK * WINDOW))
                play(writer, episode, lambda: None if next(steps, None) is not None else die())

            with Child(work) as child:
                assert child.reap() == -signal.SIGKILL
            rows = salvaged(replay)
            check(replay, rows, episode)
            check_samples(replay)
            seen.add(len(rows))
        assert {0, 2, 3, 10} <= seen  # from nothing at all to the whole of its credits
        replay.release()


class DeadlyBooks:
    """Kills its process at the n-th store of whoever changes the books; of several words at once, between any two."""

    def __init__(self, replay: Replay, stores: int) -> None:
        self.left = stores
        books, block = replay.books, replay.block
        books._columns = [Store(self, column) for column in books._columns]
        books._mark, block.rows_written = Store(self, books._mark), Store(self, block.rows_written)
        books._intended = Words(self, books._intended)

    def count(self) -> bool:
        self.left -= 1
        return self.left < 0


class Words(Store):
    def __setitem__(self, lane: int, values: Any) -> None:
        for place, value in enumerate(values):
            super().__setitem__((lane, place), value)


@pytest.mark.thin(2)
@pytest.mark.parametrize("bad", [0, 4, 6, 7])
@pytest.mark.parametrize("ended", [False, True])
def test_learner_killed_between_any_two_stores_of_its_books(bad: int, ended: bool) -> None:
    """It commits three transitions and salvages the four after them, the ``bad``-th of which is not finite."""
    with shared_block() as block:
        replay, died, rejected = Replay(block), 0, 0
        for stores in range(100):
            writer, episode, row = LaneWriter(block, 0), int(block.episodes_begun[0]), replay.books.row[0]
            writer.begin_episode([observation(episode, 0)])
            for t in range(7):
                reward = float("nan") if t + 1 == bad else 0.0
                end = (ended and t == 6, False)
                writer.step([np.zeros(4, np.float32)], reward, end, [observation(episode, t + 1)], 0)
                if t == 2:
                    commit = LaneCommit(writer.row, 3, block.checksum(0, int(row), writer.row))
            produced = 7 * (stores + 1)

            def work(commit: LaneCommit = commit, stores: int = stores) -> NoReturn:
                DeadlyBooks(replay, stores)
                replay.commit(0, commit)
                replay.salvage(0)
                os._exit(0)

            with Child(work) as child:
                lived = child.reap() == 0
            died += not lived
            replay.books.settle(0)
            books = replay.books.lane(0)
            stored = books["committed"] + books["salvaged"]
            assert balanced(books)
            assert books["produced"] == produced
            assert stored == replay.books.transitions_before(0, int(replay.books.row[0]))
            assert stored + books["rejected"] - 7 * stores in (0, 3, 7)
            salvaged(replay)  # what the killed one did not come to
            rejected += 8 - bad if bad else 0
            assert replay.books.lane(0)["rejected"] == rejected
            check_samples_are_whole(replay)
            if lived:
                break
        assert died > 20
        replay.release()


def check_samples_are_whole(replay: Replay) -> None:
    """What may be sampled lies between its episode's beginning and its end or cut."""
    rows = [replay._row(0, row) for row in range(int(replay.books.resident_from[0]), int(replay.books.row[0]))]
    for before, after in itertools.pairwise(rows):
        if before["kind"] == STEP:
            assert (after["episode"], after["t"]) == (before["episode"], before["t"] + 1)
            assert np.isfinite(before["reward"])
    assert rows[-1]["kind"] in (FINAL, CUT)


class Link:
    """The pipes between the learner in the test and the collector in the child."""

    def __init__(self) -> None:
        self.commits_in, self.commits_out = os.pipe()
        self.credits_in, self.credits_out = os.pipe()

    def close(self) -> None:
        for descriptor in (self.commits_in, self.commits_out, self.credits_in, self.credits_out):
            os.close(descriptor)

    def receive(self) -> bytes:
        ready, _, _ = select.select([self.commits_in], [], [], LIMIT_S)
        assert ready, "the child wrote nothing"
        return os.read(self.commits_in, MESSAGE.size)


def collect(block: LaneBlock, link: Link, episode: int) -> NoReturn:
    """A collector in small: chunks, each with its commit, never further than its credits."""
    writer = LaneWriter(block, 0)
    state = {"row": writer.row, "transitions": writer.transitions, "credits": WINDOW}

    def on_step() -> None:
        count = writer.transitions - state["transitions"]
        if count < CHUNK:
            return
        checksum = block.checksum(0, state["row"], writer.row)
        os.write(link.commits_out, MESSAGE.pack(writer.row, count, checksum))
        state.update(row=writer.row, transitions=writer.transitions, credits=state["credits"] - 1)
        while not state["credits"] or select.select([link.credits_in], [], [], 0)[0]:
            state["credits"] += len(os.read(link.credits_in, 1))

    play(writer, episode, on_step)


@pytest.mark.parametrize("seed", range(4))
def test_killed_from_outside_at_full_speed(seed: int) -> None:
    """The signal falls wherever it falls; what had been committed is committed once, the rest is salvaged."""
    generator = np.random.default_rng(seed)
    with shared_block() as block:
        replay = Replay(block)
        for _ in range(12):
            episode = int(block.episodes_begun[0])
            rows: list[np.void] = []
            with closing(Link()) as link:

                def take(data: bytes, rows: list[np.void] = rows) -> None:
                    stretch = replay.commit(0, LaneCommit(*MESSAGE.unpack(data)))
                    rows += [row.copy() for piece in stretch.rows for row in piece]

                def work(link: Link = link, episode: int = episode) -> NoReturn:
                    collect(block, link, episode)

                with Child(work) as child:
                    for _ in range(int(generator.integers(1, 60))):
                        take(link.receive())
                        check_samples(replay)  # while the child writes on
                        os.write(link.credits_out, b"c")
                    child.kill()
                    assert child.reap() == -signal.SIGKILL
                while select.select([link.commits_in], [], [], 0)[0]:
                    take(os.read(link.commits_in, MESSAGE.size))
            rows += salvaged(replay)
            check(replay, rows, episode)
            check_samples(replay)
        assert replay.books.lane(0)["produced"] == replay.env_steps
        replay.release()
