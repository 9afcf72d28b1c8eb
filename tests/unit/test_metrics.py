"""Both metrics files, read back by tensorboard's own reader."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from headrace.telemetry import metrics
from headrace.telemetry.events import JsonLines
from headrace.telemetry.metrics import MetricsSink, TensorBoardFile, cut_metrics, wall_s_at


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


def test_name_that_utf8_cannot_hold_reaches_both_files(tmp_path, sink):
    sink.write(1, 1, 0.0, {"agent-\udce9": 2.0})
    assert lines(tmp_path / "metrics.jsonl")[0]["agent-\\udce9"] == 2.0
    [(_, values)] = scalars(event_file(tmp_path))
    assert values == {"agent-\\udce9": 2.0}
    assert sink.lost == 0


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


def shown_by_tensorboard(folder):
    """Steps that each of tensorboard's two readers has of a value."""
    one = EventAccumulator(str(folder)).Reload()
    other = EventMultiplexer().AddRun(str(folder), "run").Reload()
    return [event.step for event in one.Scalars("a")], [event.step for event in other.Tensors("run", "a")]


@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize("later_s", [-1000.0, 0.0, 1000.0])  # the clock may have been set back, or not have moved
def test_tensorboard_forgets_what_will_not_be(tmp_path, sessions, later_s):
    folder, expected = tmp_path / "tensorboard", [100, 200, 300, 400]
    with MetricsSink(tmp_path / "m", folder, unix_time_s=lambda: 1_700_000_000.0) as sink:
        for step in expected:
            sink.write(step, step, 1.0, {"a": 1.0})
    for number in range(sessions):
        at = 200 + 50 * number
        with MetricsSink(tmp_path / "m", folder, unix_time_s=lambda: 1_700_000_000.0 + later_s, resumed_at=at) as sink:
            for step in (at + 50, at + 150):
                sink.write(step, step, 1.0, {"a": 1.0})
        expected = [step for step in expected if step <= at] + [at + 50, at + 150]
    assert shown_by_tensorboard(folder) == (expected, expected)


def metrics_file(tmp_path, *lines):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    return path


def test_lines_beyond_a_step_are_taken_out_and_kept(tmp_path):
    path = metrics_file(tmp_path, {"step": 1}, {"step": 3}, {"step": 2}, {"step": 4, "a": 1.0})
    with path.open("ab") as file:
        file.write(b"not json\n" + b'{"step": 1')  # the end of a killed machine
    assert cut_metrics(path, 2, tmp_path / "kept") == 4
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    assert (tmp_path / "kept").read_bytes() == b'{"step": 3}\n{"step": 4, "a": 1.0}\nnot json\n{"step": 1'


def test_where_nothing_is_beyond_nothing_is_touched(tmp_path):
    path = metrics_file(tmp_path, {"step": 1}, {"step": 2})
    before = path.stat()
    assert cut_metrics(path, 2, tmp_path / "kept") == 0
    assert cut_metrics(tmp_path / "none", 2, tmp_path / "kept") == 0
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [found.name for found in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("full", ["kept", "metrics.jsonl"])
def test_cut_that_fails_changes_nothing(tmp_path, monkeypatch, full):
    path = metrics_file(tmp_path, {"step": 1}, {"step": 3})
    before = path.read_bytes()
    real = metrics.write_whole

    def write_whole(where, pieces):
        if where.name == full:
            raise OSError(28, "No space left on device")
        return real(where, pieces)

    monkeypatch.setattr(metrics, "write_whole", write_whole)
    with pytest.raises(OSError, match="No space"):
        cut_metrics(path, 2, tmp_path / "kept")
    assert [found.name for found in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert path.read_bytes() == before


def test_time_at_a_step_is_that_of_the_learners_newest_report(tmp_path):
    path = metrics_file(
        tmp_path, {"step": 10, "updates": 1, "wall_s": 1.0}, {"step": 20, "updates": 2, "wall_s": 2.0},
        {"step": 10, "wall_s": 2.5}, {"step": 30, "updates": 3, "wall_s": 3.0},
    )  # fmt: skip
    assert [wall_s_at(path, step) for step in (9, 10, 20, 29, 99)] == [None, 1.0, 2.0, 2.0, 3.0]
    assert wall_s_at(tmp_path / "none", 5) is None


@pytest.mark.table
def test_no_bit_of_the_metrics_ends_a_resume(tmp_path):
    """A line that a disk has changed costs itself: the time is that of another one, or what it says."""
    path = metrics_file(tmp_path, *({"step": 10 * n, "updates": n, "wall_s": float(n)} for n in (1, 2, 3)))
    sound, struck_keys = path.read_bytes(), []
    for bit in range(8 * len(sound)):
        struck = bytearray(sound)
        struck[bit // 8] ^= 1 << bit % 8
        path.write_bytes(struck)
        found = wall_s_at(path, 25)
        assert found is None or isinstance(found, float)
        if sound[: bit // 8].count(b"\n") == 1 and b"wall_s" not in bytes(struck).split(b"\n")[1]:
            struck_keys.append(found)
    assert struck_keys
    assert set(struck_keys) <= {1.0, 2.0}
