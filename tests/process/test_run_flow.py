"""How fast each side may go: the declared ratio, waits instead of losses, and memory that stays."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from headrace.runtime.observer import Observer
from headrace.telemetry.board import Activity
from run_support import assert_books

pytestmark = pytest.mark.process

ENV = "run_envs:make"


@dataclass
class Watch:
    """What was seen at each report of the learner."""

    counts: list[tuple[int, int]] = field(default_factory=list)
    """Environment steps and updates."""
    waits: list[tuple[str, str | None]] = field(default_factory=list)
    """Collectors that waited for credit, and on whom."""
    resident_bytes: list[dict[str, int]] = field(default_factory=list)
    """Memory of each process. Private memory alone would grow with every page that a fork had shared and touches."""

    def look(self, observer: Observer, facts: Mapping[str, Any]) -> None:
        self.counts.append((facts["env_steps"], facts["updates"]))
        views = observer._board.read_all()
        self.waits += [(view.id, view.waits_on) for view in views if view.activity is Activity.WAIT_CREDIT]
        pids = {view.id: view.pid for view in views if view.kind in ("learner", "collector")}
        self.resident_bytes.append({})
        for name, pid in {**pids, "supervisor": os.getpid()}.items():
            try:
                self.resident_bytes[-1][name] = psutil.Process(pid).memory_info().rss
            except psutil.Error:  # it has left already; the last report comes at the very end
                continue


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    seen = Watch()
    on_facts = Observer.on_facts

    def watched(observer: Observer, facts: Mapping[str, Any]) -> None:
        on_facts(observer, facts)
        seen.look(observer, facts)

    monkeypatch.setattr(Observer, "on_facts", watched)
    return seen


@pytest.mark.thin(6)
@pytest.mark.parametrize("ratio", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("slack", [8, None])
def test_ratio_is_kept_whatever_it_is_and_however_small_the_slack(runs, watch, ratio, slack):
    settings = {} if slack is None else {"replay__slack_steps": slack}
    run = runs.train(ENV, replay__ratio=ratio, **settings)
    assert run.completed, run.summary["error"]
    assert_books(run)
    steps = run.summary["env_steps"]
    assert run.summary["updates"] == 1 + math.floor((steps - 100) * ratio + 1e-9)
    ahead = (slack or 2 * 6 * 8) + 8  # a chunk that was begun is finished
    for stored, updates in watch.counts:
        assert stored <= 100 + math.ceil(updates / ratio) + ahead


def test_learner_slower_than_the_environment_makes_collectors_wait_and_nothing_is_lost(runs, watch):
    run = runs.train(ENV, run__steps=700, algorithm__critic__hidden=[256, 256])
    assert run.completed
    assert_books(run)
    assert run.summary["books"]["evicted"] == 0
    assert {("collector-0", "learner"), ("collector-1", "learner")} <= set(watch.waits)


def test_free_running_ends_with_the_last_step(runs):
    run = runs.train(ENV, kwargs={"step_s": 0.001}, run__steps=1000, replay__free_running=True)
    assert run.completed
    assert_books(run)
    assert run.summary["replay_ratio"]["declared"] is None
    assert run.summary["updates"] > 0
    assert 1000 <= run.summary["env_steps"] <= 1000 + 8


def assert_flat(watch: Watch) -> None:
    """No process has grown by more than 2 MiB in the last two thirds of the run, before what it does at its end."""
    whole = [seen for seen in watch.resident_bytes if len(seen) == 4]
    third, last = whole[len(whole) // 3], whole[-2]
    grown = {name: last[name] - third[name] for name in third}
    assert max(grown.values()) < 2 << 20, grown


@pytest.mark.table
@pytest.mark.parametrize("seconds", [6, pytest.param(120, marks=[pytest.mark.learning, pytest.mark.timeout(300)])])
def test_memory_stays(runs, watch, seconds):
    run = runs.train(
        ENV, run__steps=10_000_000, run__run_duration_s=float(seconds), replay__capacity=3000, replay__ratio=0.1,
    )  # fmt: skip
    assert run.completed
    assert_books(run)
    assert run.summary["books"]["evicted"] > 3000
    assert len(watch.resident_bytes) > seconds
    assert_flat(watch)


def test_n_step_returns_of_many_lanes_are_waited_for_by_one_side_only(runs):
    """The lead lets collecting go to 104 steps, three in each lane: the first transition takes five of one."""
    run = runs.train(
        ENV, run__schedule="async", run__collectors=2, run__steps=480, env__lanes=32, collect__chunk_steps=4,
        collect__random_steps=0, replay__learning_starts=100, replay__slack_steps=4, replay__n_step=5,
        deadlines__credit_s=10.0, deadlines__rows_s=20.0,
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert run.summary["updates"] == 1 + run.summary["env_steps"] - 100
    assert_books(run)


@pytest.mark.table
def test_a_collector_of_more_groups_than_a_usual_pipe_holds_credits_of(runs):
    """It is granted a chunk of each before it has begun: 1,700 messages of 40 bytes."""
    run = runs.train(
        ENV, run__schedule="async", run__collectors=1, run__steps=3400, env__lanes=1700, collect__chunk_steps=1,
        collect__random_steps=3399, replay__learning_starts=3399,
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert_books(run)
