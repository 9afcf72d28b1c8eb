"""Both metrics files, read back by tensorboard's own reader."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from headrace.telemetry.events import JsonLines
from headrace.telemetry.metrics import MetricsSink, TensorBoardFile


def scalars(path):
    return [
        (event.step, {value.tag: value.simple_value for value in event.summary.value})
        for event in LegacyEventFileLoader(str(path)).Load()
        if event.HasField("summary")
    ]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def sink(tmp_path):
    with MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", unix_time_s=lambda: 1_700_000_000.0) as made:
        yield made


def event_file(tmp_path):
    [path] = (tmp_path / "tensorboard").glob("*tfevents*")
    return path


def test_values_reach_both_files(tmp_path, sink):
    sink.write(100, 50, 1.5, {"train/critic_loss": 0.25, "rollout/ep_rew_mean": -8})
    sink.write(200, 150, 3.0, {"train/critic_loss": 0.125})
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 100, "wall_s": 1.5, "updates": 50, "train/critic_loss": 0.25, "rollout/ep_rew_mean": -8.0},
        {"step": 200, "wall_s": 3.0, "updates": 150, "train/critic_loss": 0.125},
    ]
    assert scalars(event_file(tmp_path)) == [
        (100, {"train/critic_loss": 0.25, "rollout/ep_rew_mean": -8.0}),
        (200, {"train/critic_loss": 0.125}),
    ]


def test_value_without_a_source_is_absent(tmp_path, sink):
    sink.write(100, None, 1.5, {"train/critic_loss": None})
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 100, "wall_s": 1.5}]
    assert scalars(event_file(tmp_path)) == []


def test_nan_is_a_measurement(tmp_path, sink):
    sink.write(1, 1, 0.0, {"train/critic_loss": float("nan")})
    assert lines(tmp_path / "metrics.jsonl")[0]["train/critic_loss"] is None
    [(_, values)] = scalars(event_file(tmp_path))
    assert math.isnan(values["train/critic_loss"])


def test_sink_has_no_thread(tmp_path):
    before = threading.enumerate()
    with MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard") as sink:
        sink.write(1, 1, 0.0, {"a": 1.0})
        assert threading.enumerate() == before


def test_half_a_record_is_taken_away_again(tmp_path):
    board = TensorBoardFile(tmp_path, lambda: 1.0)
    board.append(1, {"a": 1.0})
    real = board._file

    class Half:
        closed = False
        seek, truncate = real.seek, real.truncate

        def write(self, data):
            return real.write(data[:10])

    board._file = Half()
    assert not board.append(2, {"a": 2.0})
    board._file = real
    assert board.append(3, {"a": 3.0})
    board.close()
    assert board.lost == 1
    assert scalars(board.path) == [(1, {"a": 1.0}), (3, {"a": 3.0})]


def test_failing_files_never_raise_into_the_run(tmp_path, sink):
    sink.close()
    sink.write(1, 1, 0.0, {"a": 1.0})
    assert sink.lost == 2


def test_full_disk_never_raises(sink):
    full = Path("/dev/full")  # refuses every byte
    sink._lines.close()
    sink._board.close()
    sink._lines = JsonLines(full)
    sink._board._file = full.open("wb", buffering=0)
    sink.write(1, 1, 0.0, {"a": 1.0})
    assert sink.lost == 2


def test_tensorboard_comes_without_torch_and_tensorflow():
    check = "import sys, headrace.telemetry.metrics; print([m for m in ('torch', 'tensorflow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
