"""Bringing an environment back into its episode: the stored actions once more, compared bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.collectors.restoring import bring_back, load_episodes, save_episodes
from headrace.core import seeding
from headrace.core.errors import EpisodeNotRestored
from headrace.core.specs import leaves
from headrace.envs.contract import ObservationCheck
from headrace.lanes.layout import STEP, row_dtype
from headrace.telemetry.board import Board
from run_envs import Follower

LANE, SEED, STEPS = 2, 7, 5


class Bench:
    """An episode of `Follower`, whose reward is its action, as it would be stored."""

    def __init__(self, tmp_path) -> None:
        self.env = Follower()
        self.spaces = self.env.observation_space, self.env.action_space
        dtype = row_dtype(leaves(self.spaces[0], "obs"), leaves(self.spaces[1], "action"))
        self.rows = np.zeros(STEPS + 1, dtype)
        rows = self.rows
        rows["obs"][:, 0], rows["obs"][:, 1] = seeding.integer(SEED, "environment", LANE, 3), range(STEPS + 1)
        rows["action"][:STEPS, 0] = np.linspace(-1.0, 1.0, STEPS, dtype=np.float32)
        rows["reward"][:STEPS] = rows["action"][:STEPS, 0].astype(np.float64)
        rows["kind"][:STEPS], rows["episode"][:STEPS], rows["t"][:STEPS] = STEP, 3, range(STEPS)
        self.stopping = False
        self.board = Board.create(tmp_path / "board", [("collector-0", "collector")])

    def bring_back(self) -> None:
        check = ObservationCheck(self.spaces[0], "park")
        bring_back(self.env, self.rows, LANE, SEED, check, self.board.slot("collector-0"), lambda: self.stopping)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.board.close()


def test_the_environment_stands_where_the_rows_end(bench):
    bench.bring_back()
    obs, *_ = bench.env.step(np.zeros(1, np.float32))
    assert obs.tolist() == [seeding.integer(SEED, "environment", LANE, 3), STEPS + 1]


@pytest.mark.parametrize(
    ("field", "row"),
    [("obs", 0), ("obs", 3), ("obs", STEPS), ("reward", 2), ("terminated", 4), ("truncated", 1)],
)
def test_whatever_differs_is_named_with_its_step(bench, field, row):
    before = bench.rows[field][row].copy()
    bench.rows[field][row] = ~before if before.dtype == bool else before + 1e-9 * max(1.0, np.abs(before).max())
    with pytest.raises(EpisodeNotRestored) as raised:
        bench.bring_back()
    assert [raised.value.facts[name] for name in ("lane", "field", "step")] == [LANE, field, row]


def test_an_environment_that_raises_is_told_in_its_own_words(bench):
    def fails(action):
        raise ValueError("burn map corrupt, tile 7")

    bench.env.step = fails
    with pytest.raises(EpisodeNotRestored, match="could not be brought back") as raised:
        bench.bring_back()
    assert raised.value.facts["error"] == "ValueError: burn map corrupt, tile 7"


def test_episodes_travel_in_a_file_with_every_byte(bench, tmp_path):
    raw = np.frombuffer(np.random.default_rng(0).bytes(3 * bench.rows.dtype.itemsize), bench.rows.dtype)
    save_episodes(tmp_path / "running.npz", {1: bench.rows, 4: raw, 7: raw[:0]})
    found = load_episodes(tmp_path / "running.npz", bench.rows.dtype)
    expected = {1: bench.rows.tobytes(), 4: raw.tobytes(), 7: b""}
    assert {lane: rows.tobytes() for lane, rows in found.items()} == expected
    save_episodes(tmp_path / "running.npz", {})
    assert load_episodes(tmp_path / "running.npz", bench.rows.dtype) == {}


def test_every_step_counts_as_work_and_may_be_the_last(bench):
    bench.bring_back()
    assert bench.board.read("collector-0").counters["rows"] == STEPS
    bench.stopping = True
    bench.bring_back()
    assert bench.board.read("collector-0").counters["rows"] == STEPS
