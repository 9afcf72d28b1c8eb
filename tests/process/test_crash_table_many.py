"""One of 32 collectors hangs: the others keep their rate, and it is replaced in time."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import psutil
import pytest

import headrace
from headrace.runtime.progress import Progress
from headrace.telemetry.board import Board
from run_support import SMALL, assert_books, events

pytestmark = [pytest.mark.process, pytest.mark.table]

COLLECTORS = 32
STUCK = "collector-7"
STEP_S, LIMIT_S = 0.02, 2.0
"""A step is slow enough for two cores to run 32 environments and a learner."""


@dataclass
class Counts:
    """Environment steps of every collector, at every look."""

    board: str
    looks: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    def look(self, _: Progress) -> None:
        with Board.open(self.board) as board:
            views = board.read_all()
        counts = {view.id: view.counters["env_steps"] for view in views if view.kind == "collector"}
        self.looks.append((time.monotonic_ns(), counts))

    def rates(self, begin_ns: float, end_ns: float) -> list[float]:
        """Steps per second of each collector but the one that hangs, between two times."""
        inside = [(at, counts) for at, counts in self.looks if begin_ns <= at <= end_ns]
        (first, before), (last, after) = inside[0], inside[-1]
        return [(after[name] - before[name]) / (last - first) * 1e9 for name in before if name != STUCK]


@pytest.mark.timeout(180)
def test_the_others_keep_their_rate_while_one_of_32_hangs(runs, tmp_path):
    run_dir = tmp_path / "run"
    counts = Counts(str(run_dir / "board"))
    plan = {
        "what": "sleep", "at": 150, "lane": 7, "lanes": COLLECTORS, "marker": str(tmp_path / "marker"), "step_s": STEP_S,
    }  # fmt: skip
    settings = {
        **SMALL, "env.factory": "run_envs:provoked", "env.kwargs": plan, "env.lanes": COLLECTORS,
        "run.collectors": COLLECTORS, "run.steps": 10_000_000, "run.run_duration_s": 9.0, "replay.ratio": 0.01,
        "replay.capacity": 100_000, "deadlines.step_s": LIMIT_S, "collect.chunk_steps": 4,
    }  # fmt: skip
    run = headrace.train(run_dir=run_dir, settings=settings, on_progress=counts.look)
    assert run.completed, run.summary["error"]
    assert_books(run)
    (fault,) = events(run, "fault")
    assert fault["component"] == STUCK
    assert "env.step for " in fault["text"]
    assert run.summary["faults"] == {"stalled": 1}

    # The marker was made by the hanging step; the board's clock and the events' begin at different moments.
    (restarted,) = events(run, "restarted")
    (again,) = [event for event in events(run, "ready", STUCK) if event["incarnation"] == 1]
    stuck_s = float(fault["text"].partition(" for ")[2].partition(" s")[0])
    assert stuck_s < LIMIT_S + 1.0
    assert again["t_s"] - (fault["t_s"] - stuck_s) < LIMIT_S + 2.0, "replaced too late"
    assert restarted["t_s"] <= again["t_s"]

    begun_ns = counts.looks[-1][0] - (run.summary["wall_s"] * 1e9)
    hung_ns, back_ns = begun_ns + (fault["t_s"] - stuck_s) * 1e9, begun_ns + again["t_s"] * 1e9
    trained = [event["t_s"] for event in events(run, "ready") if event["component"] != STUCK]
    before = counts.rates(begun_ns + (max(trained) + 0.3) * 1e9, hung_ns)
    during = counts.rates(hung_ns, back_ns)
    assert statistics.median(during) >= 0.9 * statistics.median(before), (before, during)
    assert min(during) > 0.5 * statistics.median(before), "one of the others stood still"
    left = counts.looks[-1][1]
    assert left[STUCK] > 0
    assert not [pid for pid in [event["pid"] for event in events(run, "started", STUCK)] if psutil.pid_exists(pid)]
