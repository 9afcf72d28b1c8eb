"""What is damaged, full or not deterministic is told, and never loaded by half."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import HeadraceError, ReplayDiffers, RunDirectoryError
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.monitor.snapshot import Condition
from headrace.record.trace import Trace
from headrace.runtime.api import Run
from headrace.runtime.rundir import RunDirectory
from headrace.supervision.spec import BecameReady, Reported
from headrace.supervision.supervisor import Supervisor
from resume_support import files
from run_support import assert_books, events
from session_support import assert_completed, assert_replays, go_on, in_sessions, outcome

pytestmark = [pytest.mark.process, pytest.mark.thin(3)]

INLINE = {"run__schedule": "inline", "run__collectors": 1}
LOCKSTEP = {"run__schedule": "lockstep", "run__collectors": 2}
ASYNC = {"run__schedule": "async", "run__collectors": 2}


def newest_checkpoint(run: Path) -> Path:
    return max((path.parent for path in run.glob("checkpoints/*/checkpoint.json")), key=lambda path: int(path.name))


def trace_bytes(run: Path) -> int:
    """How far the record has to reach for the newest checkpoint."""
    return int(json.loads((newest_checkpoint(run) / "checkpoint.json").read_text())["trace_bytes"])


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def cut(path: Path, to: int = -1) -> None:
    os.truncate(path, to if to >= 0 else path.stat().st_size // 2)


def flip(path: Path, at: int = -40) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


CHECKPOINT: dict[str, Callable[[Path], None]] = {
    "state cut": lambda run: cut(one(newest_checkpoint(run), "state-*")),
    "state damaged": lambda run: flip(one(newest_checkpoint(run), "state-*")),
    "state gone": lambda run: one(newest_checkpoint(run), "state-*").unlink(),
    "policy cut": lambda run: cut(newest_checkpoint(run) / "policy.safetensors"),
    "policy damaged": lambda run: flip(newest_checkpoint(run) / "policy.safetensors"),
    "manifest cut": lambda run: cut(newest_checkpoint(run) / "checkpoint.json"),
    "manifest empty": lambda run: cut(newest_checkpoint(run) / "checkpoint.json", 0),
    "manifest damaged": lambda run: flip(newest_checkpoint(run) / "checkpoint.json"),
    "trace cut": lambda run: cut(run / "record" / "trace.bin", trace_bytes(run) - 1),
    "trace damaged": lambda run: flip(run / "record" / "trace.bin", trace_bytes(run) - 3),
    "rows cut": lambda run: cut(one(run / "record", "rows-*"), one(run / "record", "rows-*").stat().st_size - 1000),
}
"""What may have happened to the newest checkpoint alone, or to what it needs of the record."""
SOME = ("state cut", "manifest damaged", "trace cut")
EVERY = [pytest.param(INLINE, marks=pytest.mark.table), LOCKSTEP, pytest.param(ASYNC, marks=pytest.mark.table)]


@pytest.fixture
def past(runs) -> Run:
    """A run with several checkpoints that is to go on."""
    run = runs.train("Pendulum-v1", run__steps=300, checkpoint__every_steps=96, **INLINE)
    assert_completed(run)
    return run


def copied(past: Run, name: str) -> Run:
    return Run(Path(shutil.copytree(past.path, past.path.with_name(name))), past.summary)


@pytest.mark.table
@pytest.mark.parametrize("names", [SOME, pytest.param(sorted(CHECKPOINT.keys() - set(SOME)), marks=pytest.mark.table)])
def test_newest_checkpoint_is_damaged(runs, past, names):
    """The one before it is used; the run learns the same once more."""
    whole = outcome(runs.train("Pendulum-v1", run__steps=480, **INLINE))
    for name in names:
        run = copied(past, name.replace(" ", "-"))
        CHECKPOINT[name](run.path)
        run = go_on(run, run__steps=480)
        assert_completed(run)
        (event,) = events(run, "resumed")
        assert event["env_steps"] < past.summary["env_steps"], name
        assert event["problems"], name
        assert event["text"].endswith("; ".join(event["problems"])), name
        assert outcome(run) == whole, name
    assert_replays(run)


def test_every_checkpoint_is_damaged(past):
    for manifest in past.path.glob("checkpoints/*/checkpoint.json"):
        flip(one(manifest.parent, "state-*"))
    before = files(past.path)
    with pytest.raises(RunDirectoryError, match="holds no checkpoint that the run could go on from") as raised:
        go_on(past, run__steps=480)
    assert raised.value.exit_code == 2
    assert str(raised.value).count("is damaged") == 3
    assert files(past.path) == before


def test_lines_of_events_and_metrics_that_are_damaged_are_told_and_missed_by_nobody(past):
    place = RunDirectory(past.path)
    event_lines, metric_lines = (path.read_bytes().splitlines() for path in (place.events_file, place.metrics_file))
    number = next(n for n, line in enumerate(event_lines) if b'"kind": "checkpoint"' in line)
    event_lines[number] = event_lines[number].replace(b'"component"', b'"componenu"')
    place.events_file.write_bytes(b"\n".join(event_lines) + b"\n")
    place.metrics_file.write_bytes(b"\n".join(metric_lines).replace(b'"wall_s"', b'"wall_r"') + b"\n")
    run = go_on(past, run__steps=480)
    assert_completed(run)
    assert [event["problems"] for event in events(run, "resumed")] == [
        [f"line {number + 1} of events.jsonl is damaged"]
    ]
    assert diagnose(read_run(run.path)).state is Condition.FINISHED


def ended_with(run: Run) -> tuple[str, int]:
    """The error of a resume, told before the run begins or in its summary, and the exit code."""
    try:
        found = go_on(run, run__steps=480).summary
    except HeadraceError as error:
        return str(error), error.exit_code
    return found["error"], found["exit_code"]


@pytest.mark.parametrize("harm", ["damaged", "last observation damaged", "gone", "trace gone"])
def test_rows_that_every_checkpoint_needs(past, harm):
    rows, trace = one(past.path / "record", "rows-*"), past.path / "record" / "trace.bin"
    kept = copied(past, "kept")
    match harm:
        case "damaged":
            flip(rows, 5000)
        case "last observation damaged":
            with Trace.open(trace) as opened:
                flip(rows, -opened.header["observation_bytes"])
        case "gone":
            rows.unlink()
        case "trace gone":
            trace.unlink()
    before = {path: data for path, data in files(past.path).items() if path.startswith(("record", "checkpoints"))}
    said, exit_code = ended_with(past)
    assert exit_code not in (0, 130)
    assert "rows" in said or "trace" in said, said
    assert "fix:" in said
    assert ("record/rows-000000.bin" in said and "lane" in said) is ("damaged" in harm), said
    assert {
        path: data for path, data in files(past.path).items() if path.startswith(("record", "checkpoints"))
    } == before
    for path in kept.path.glob("record/*"):  # with a sound record it goes on
        shutil.copy(path, past.path / "record")
    assert_completed(go_on(past, run__steps=480))


def test_file_in_the_place_of_a_folder(past):
    (past.path / "earlier").write_text("in the way")
    before = files(past.path)
    with pytest.raises(RunDirectoryError, match="cannot be written") as raised:
        go_on(past, run__steps=480)
    assert raised.value.exit_code == 2
    assert files(past.path) == before


def test_edited_configuration_is_taken_and_told(past):
    config = past.path / "config.toml"
    config.write_text(config.read_text().replace("critic_lr = 0.0003", "critic_lr = 0.002"))
    run = go_on(past, run__steps=480)
    assert_completed(run)
    (event,) = events(run, "resumed")
    assert event["problems"][0].startswith("config.toml was edited")


# A full disk.


@pytest.mark.table
def test_disk_without_room_for_checkpoints(runs):
    """Only small files can be written: no checkpoint is, and the run comes to its end."""
    run = runs.train(
        "run_envs:tight", kwargs={"file_bytes": 200_000, "spared": os.getpid()}, checkpoint__every_steps=96,
        algorithm__critic={"hidden": [128, 128]}, **INLINE,
    )  # fmt: skip
    assert_completed(run)
    assert run.summary["exit_code"] == 0
    told = events(run, "not_saved")
    assert len(told) >= 4
    assert all("File too large" in event["problem"] for event in told)
    assert not events(run, "checkpoint")
    assert not list(run.path.glob("checkpoints/*/state-*"))
    assert_replays(run)
    with pytest.raises(RunDirectoryError, match="holds no checkpoint"):
        go_on(run, run__steps=480)


@pytest.mark.table
def test_room_comes_back(runs):
    run = runs.train(
        "run_envs:tight", kwargs={"file_bytes": 200_000, "spared": os.getpid(), "until": 40}, checkpoint__every_steps=96,
        algorithm__critic={"hidden": [128, 128]}, **INLINE,
    )  # fmt: skip
    assert events(run, "not_saved")
    assert events(run, "checkpoint")
    run = go_on(run, run__steps=480)
    assert_completed(run)
    assert_replays(run)


def test_disk_without_room_for_the_record(runs):
    """It ends early, and the run goes on as far as it was to: also for more updates than a record keeps batches back."""
    run = runs.train(
        "run_envs:tight", kwargs={"file_bytes": 20_000, "spared": os.getpid()}, run__steps=600, replay__ratio=4,
        checkpoint__every_steps=96, **INLINE,
    )  # fmt: skip
    assert_completed(run)
    (lost,) = events(run, "record_lost")
    assert "File too large" in lost["problem"]
    assert events(run, "not_saved")
    found = headrace.replay(run.path)
    assert not found.ended
    assert 0 < found.updates < run.summary["updates"] - 1100


# Environments that cannot be brought back.


@pytest.mark.parametrize("schedule", [INLINE, LOCKSTEP, ASYNC], ids=lambda schedule: schedule["run__schedule"])
def test_environment_that_is_not_deterministic(runs, schedule):
    run = runs.train("run_envs:unseeded", run__steps=300, **schedule)
    assert_completed(run)
    run = go_on(run, run__steps=600)
    assert_completed(run)
    assert run.summary["episodes"]["cut"] > 0
    said = [str(event) for event in events(run, "not_restored")]
    assert said
    assert all("SUP-005" in text and "could not be brought back" in text for text in said)
    with pytest.raises(ReplayDiffers):
        headrace.replay(run.path)


@pytest.mark.table
@pytest.mark.parametrize("schedule", [INLINE, LOCKSTEP, ASYNC], ids=lambda schedule: schedule["run__schedule"])
def test_episodes_that_are_not_to_be_brought_back(runs, schedule):
    sessions = [{**schedule, "run__steps": steps} for steps in (300, 450, 600)]
    run = in_sessions(runs, "Pendulum-v1", sessions, exact=schedule is not ASYNC, checkpoint__restore_episodes=False)
    assert run.summary["episodes"]["cut"] == 12
    assert run.summary["restarts"] == 0
    assert_replays(run)


@pytest.mark.table
@pytest.mark.parametrize("schedule", [INLINE, LOCKSTEP], ids=lambda schedule: schedule["run__schedule"])
def test_episodes_that_were_to_be_cut_when_the_checkpoint_was_made_are_cut(runs, schedule):
    """Their rows were not kept for it, so there is nothing to bring them back with."""
    sessions = [{**schedule, "run__steps": 300}, {"run__steps": 600, "checkpoint__restore_episodes": True}]
    run = in_sessions(runs, "Pendulum-v1", sessions, checkpoint__restore_episodes=False)
    assert run.summary["episodes"]["cut"] == 6
    said = [str(event) for event in events(run, "not_restored")]
    assert said
    assert all("its first rows are no longer kept" in text for text in said)
    assert_replays(run)


# A learner that dies in a resumed session, and one that has much to repeat.


@pytest.mark.table
@pytest.mark.parametrize("schedule", EVERY, ids=["inline", "lockstep", "async"])
def test_learner_dies_before_it_has_saved_anything(runs, monkeypatch, schedule):
    settings: dict[str, Any] = {"supervision__learner_death": "resume", "supervision__learner_save_every_s": 1e6}
    kwargs = {"step_s": 0.001}
    run = runs.train("run_envs:slow_pendulum", kwargs=kwargs, run__steps=300, **settings, **schedule)
    assert_completed(run)
    poll, killed = Supervisor.poll, []

    def polled(supervisor: Supervisor, timeout_s: float) -> Any:
        found = poll(supervisor, timeout_s)
        for event in found:
            facts = getattr(getattr(event, "message", None), "facts", {})
            told = isinstance(event, Reported) and event.id == "learner" and "weights_sha256" not in facts
            if told and not killed and facts.get("updates", -1) > run.summary["updates"]:
                killed.append(facts["updates"])
                os.kill(supervisor.pid("learner"), signal.SIGKILL)
        return found

    monkeypatch.setattr(Supervisor, "poll", polled)
    run_again = go_on(run, run__steps=1300)
    assert killed
    assert_completed(run_again)
    (event,) = events(run_again, "resumed", "learner")
    assert event["updates"] == run.summary["updates"], "it goes on from what the session began with"
    assert event["lost_updates"] >= killed[0] - run.summary["updates"]
    assert_books(run_again)
    assert_replays(run_again)


LONG = {"env__lanes": 2, "collect__chunk_steps": 4, "replay__learning_starts": 100}
ONE = {**LOCKSTEP, "run__collectors": 1}


@pytest.mark.table
@pytest.mark.parametrize("schedule", [INLINE, ONE], ids=lambda schedule: schedule["run__schedule"])
def test_an_episode_that_takes_long_to_repeat_is_no_stall(runs, tmp_path, schedule):
    """Every step of it is within its limit, and all of them take longer than any limit."""
    kwargs = {"step_s": 0.018, "marker": str(tmp_path / "slow")}
    names = ("reset", "step", "commit", "credit", "update", "evaluate", "stall")
    limits = {f"deadlines__{name}_s": 1.0 for name in names} | {"deadlines__rows_s": 1.6, "deadlines__start_s": 2.5}
    run = runs.train("run_envs:slow_pendulum", kwargs=kwargs, run__steps=376, **LONG, **limits, **schedule)
    assert_completed(run)
    (tmp_path / "slow").touch()  # 2 * 188 steps take 6.8 s, and the run may stand still for 5
    run = go_on(run, run__steps=384)
    assert_completed(run)
    assert run.summary["restarts"] == 0
    assert run.summary["episodes"]["cut"] == 0


@pytest.mark.table
@pytest.mark.parametrize("schedule", [INLINE, ONE], ids=lambda schedule: schedule["run__schedule"])
def test_interrupted_while_an_episode_is_repeated(runs, tmp_path, monkeypatch, schedule):
    """Nothing is changed by that, and the next session learns the same."""
    kwargs = {"step_s": 0.02, "marker": str(tmp_path / "slow")}
    whole = outcome(runs.train("Pendulum-v1", run__steps=480, **LONG, **schedule))
    run = runs.train("run_envs:slow_pendulum", kwargs=kwargs, run__steps=376, **LONG, **schedule)
    (tmp_path / "slow").touch()
    poll, told = Supervisor.poll, []

    def polled(supervisor: Supervisor, timeout_s: float) -> Any:
        found = poll(supervisor, timeout_s)
        last = "learner" if schedule is INLINE else "collector-0"
        if not told and any(isinstance(event, BecameReady) and event.id == last for event in found):
            told.append(last)
            os.kill(os.getpid(), signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Supervisor, "poll", polled)
        stopped = go_on(run, run__steps=480)
    assert told
    assert stopped.summary["outcome"] == "interrupted"
    assert stopped.summary["updates"] == run.summary["updates"]
    assert stopped.summary["episodes"]["cut"] == stopped.summary["restarts"] == 0
    assert_books(stopped)
    (tmp_path / "slow").unlink()
    run = go_on(stopped)
    assert_completed(run)
    assert outcome(run) == whole
    assert_replays(run)
