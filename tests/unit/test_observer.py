"""What the parent tells about a run while it goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from headrace.core.clock import FakeClock
from headrace.runtime.config import load_config
from headrace.runtime.history import History
from headrace.runtime.observer import Observer
from headrace.runtime.resume import ResumePoint
from headrace.runtime.scores import EvaluationQueue
from headrace.telemetry.board import Activity, Board, State
from headrace.telemetry.metrics import MetricsSink


def facts(steps: int, updates: int) -> dict[str, object]:
    return {
        "env_steps": steps, "updates": updates, "version": 2, "mean_return": None, "mean_length": None, "ratio": None,
        "lag": {"mean": None, "max": 0}, "episodes": {"finished": 0}, "values": {"train/critic_loss": 0.5},
    }  # fmt: skip


class Bench:
    def __init__(self, tmp_path, board: Board, metrics: MetricsSink, history: History | None = None) -> None:
        self.clock = FakeClock(50.0)
        self.board = board
        self.metrics_file = tmp_path / "metrics.jsonl"
        self.shown: list[object] = []
        self.queue = EvaluationQueue(baseline=False, enabled=True)
        config = load_config("pendulum-td3")
        self.observer = Observer(config, board, metrics, self.queue, self.clock, self.shown.append, history)

    def metrics(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.metrics_file.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path):
    ids = [("learner", "learner"), ("collector-0", "collector")]
    with (
        Board.create(tmp_path / "board", ids) as board,
        MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard") as metrics,
    ):
        yield Bench(tmp_path, board, metrics)


def test_rates_are_over_the_last_seconds_and_unknown_before_two_reports(bench):
    bench.observer.on_facts(facts(0, 0))
    assert bench.observer.rates() == (None, None)
    for steps in (100, 200, 300, 1300):
        bench.clock.advance(2.0)
        bench.observer.on_facts(facts(steps, steps // 10))
    # Eight seconds have passed; the last five or less count.
    assert bench.observer.rates() == (1100 / 4.0, 110 / 4.0)


def test_no_rate_spans_two_learners_of_which_the_second_has_made_fewer_updates(bench):
    for steps, updates in ((100, 50), (200, 60), (210, 20)):
        bench.observer.on_facts(facts(steps, updates))
        bench.clock.advance(1.0)
    assert bench.observer.rates() == (None, None)
    bench.observer.on_facts(facts(220, 25))
    assert bench.observer.rates() == (10.0, 5.0)
    assert [line.get("headrace/updates_per_s") for line in bench.metrics()] == [None, 10.0, None, 5.0]


def test_what_is_not_known_yet_is_not_written(bench):
    bench.observer.on_facts(facts(10, 0))
    (line,) = bench.metrics()
    assert line["train/critic_loss"] == 0.5
    assert "rollout/ep_rew_mean" not in line
    assert "headrace/replay_ratio" not in line


def test_progress_is_shown_a_few_times_a_second(bench):
    for _ in range(10):
        bench.observer.show()
        bench.clock.advance(0.1)
    assert 3 <= len(bench.shown) <= 4
    bench.observer.show(at_once=True)
    assert len(bench.shown) in (4, 5)


def test_component_says_what_it_does_only_while_it_lives(bench):
    slot = bench.board.slot("collector-0")
    slot.set_state(State.RUNNING)
    slot.enter(Activity.ENV_STEP, 0, 3)
    slot.count("env_steps", 40)
    bench.observer.show()
    bench.clock.advance(2.0)
    slot.count("env_steps", 100)
    bench.observer.show()
    collector = bench.shown[-1].components[1]
    assert (collector.id, collector.state, collector.activity, collector.rate) == (
        "collector-0", "running", "env.step", 30.0,
    )  # fmt: skip
    slot.set_state(State.ENDED)
    bench.observer.show(at_once=True)
    assert (bench.shown[-1].components[1].activity, bench.shown[-1].components[1].since_s) == (None, None)


def test_updates_are_known_also_if_the_learner_could_not_report_them(bench):
    bench.observer.on_facts(facts(10, 3))
    bench.board.slot("learner").count("updates", 7)
    assert bench.observer.updates == 7


def test_evaluation_is_a_metric_at_its_own_step(bench):
    bench.observer.on_evaluation(
        {"version": 4, "env_steps": 640, "mean_reward": -3.5, "interval": None, "episodes": 1}
    )  # fmt: skip
    (line,) = bench.metrics()
    assert (line["step"], line["eval/mean_reward"]) == (640, -3.5)
    assert [point.version for point in bench.queue.points] == [4]


@pytest.fixture
def resumed(tmp_path, bench):
    """The same run, going on at a checkpoint."""
    history = History(faults=Counter(died=2, restarts=2))
    history.begin(ResumePoint(Path("checkpoints/3"), 3, 5000, 400, {}, wall_s=60.0))
    with MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", resumed_at=5000) as metrics:
        yield Bench(tmp_path, bench.board, metrics, history)


def test_everything_goes_on_where_it_was(resumed):
    resumed.observer.show(at_once=True)
    shown = resumed.shown[-1]
    assert (shown.env_steps, shown.updates, shown.wall_s) == (5000, 400, 60.0)
    assert shown.mean_return is None
    resumed.clock.advance(2.0)
    resumed.observer.on_facts(facts(5100, 410))
    (line,) = resumed.metrics()
    assert (line["step"], line["updates"], line["wall_s"]) == (5100, 410, 62.0)
    resumed.observer.show(at_once=True)
    assert resumed.shown[-1].env_steps == 5100
    assert resumed.observer.faults == {"died": 2, "restarts": 2}


def test_updates_of_a_learner_that_has_not_begun_are_those_of_the_checkpoint(resumed):
    assert resumed.observer.updates == 400
    resumed.board.slot("learner").count("updates", 407)
    assert resumed.observer.updates == 407


def test_rate_is_not_that_of_a_jump(resumed):
    resumed.observer.on_facts(facts(5000, 400))
    assert resumed.observer.rates() == (None, None)
    resumed.clock.advance(2.0)
    resumed.observer.on_facts(facts(5100, 410))
    assert resumed.observer.rates() == (50.0, 5.0)
