"""The run directory: who may have it, what is in it, and that a failed start leaves nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from datetime import UTC, datetime

import numpy as np
import pytest

from headrace.core.errors import RunDirectoryError, RunDirectoryLost
from headrace.runtime import rundir
from headrace.runtime.config import load_config
from headrace.runtime.remains import never_began
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board
from headrace.telemetry.summaries import left
from resume_support import PastRun


@pytest.fixture(scope="module")
def config():
    return load_config("pendulum-td3")


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_default_name_says_what_and_when(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    noon = datetime(2030, 1, 2, 12, 30, 15, tzinfo=UTC)
    with RunDirectory.create(None, config, name="pendulum-td3", now=lambda: noon) as run:
        assert run.path.parent.name == "runs"
        assert run.path.name.startswith("pendulum-td3-20300102-123015-")
    with RunDirectory.create(None, config, now=lambda: noon) as run:
        assert run.path.name.startswith("pendulum-v1-td3-")


def test_layout_and_configuration_are_written(tmp_path, config):
    with RunDirectory.create(tmp_path / "a" / "run", config) as run:
        assert contents(run.path) == [
            "checkpoints", "config.toml", "lock", "logs", "record", "stacks", "tensorboard",
        ]  # fmt: skip
        assert run.read_config() == config
        assert run.log_file("collector-0") == run.path / "logs" / "collector-0.log"
        assert run.checkpoint_dir(12) == run.path / "checkpoints" / "12"
        assert RunDirectory.open(run.path).config_file == run.config_file


def test_directory_of_a_live_run_is_refused_and_unharmed(tmp_path, config):
    with RunDirectory.create(tmp_path / "run", config) as run:
        before = contents(run.path)
        with pytest.raises(RunDirectoryError) as caught:
            RunDirectory.create(run.path, config)
        assert str(caught.value) == (
            f"[CFG-002] {run.path} is in use by a run that is alive\n"
            f"  pid: {os.getpid()}\n"
            "  fix: choose another --run-dir, or leave it out for a new one under run.directory"
        )
        assert contents(run.path) == before
        assert RunDirectory.open(run.path).is_live()
    assert not RunDirectory.open(run.path).is_live()


def test_lock_ends_with_the_run_even_if_a_forked_child_still_has_it(tmp_path, config):
    run = RunDirectory.create(tmp_path / "run", config)
    copy = os.dup(run._lock)
    try:
        run.close()
        assert not run.is_live()
    finally:
        os.close(copy)


def test_a_run_that_somebody_looks_at_is_not_in_use(tmp_path, config, monkeypatch):
    """A look holds the lock for a moment, together with others who look."""
    run = RunDirectory.create(tmp_path, config)
    run.close()
    look = os.open(run.lock_file, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)

    def pass_by(_, timeout_s):
        if timeout_s:
            fcntl.flock(look, fcntl.LOCK_UN)

    monkeypatch.setattr(rundir, "poll_fds", pass_by, raising=False)
    with RunDirectory.resume(tmp_path) as run:
        assert run.is_live()
    os.close(look)


def test_finished_run_is_refused(tmp_path, config):
    with RunDirectory.create(tmp_path / "run", config) as run:
        run.write_summary({"outcome": "completed"})
    before = contents(run.path)
    with pytest.raises(RunDirectoryError, match="already holds a finished run\n  outcome: completed"):
        RunDirectory.create(run.path, config)
    assert contents(run.path) == before


@pytest.mark.parametrize("file", ["config.toml", "events.jsonl", "metrics.jsonl", "board"])
def test_remains_of_a_killed_run_are_refused_and_unharmed(tmp_path, config, file):
    (tmp_path / file).write_text("old")
    with pytest.raises(RunDirectoryError, match=f"did not finish\n  found: {file}"):
        RunDirectory.create(tmp_path, config)
    assert contents(tmp_path) == [file]
    assert (tmp_path / file).read_text() == "old"


def test_file_in_place_of_the_directory_is_refused(tmp_path, config):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunDirectoryError, match="is a file"):
        RunDirectory.create(tmp_path / "run", config)


def test_unwritable_place_is_refused(tmp_path, config):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written\n  problem: NotADirectoryError"):
        RunDirectory.create(tmp_path / "file" / "run", config)


def test_start_that_fails_half_way_leaves_nothing(tmp_path, config, monkeypatch):
    def full(run):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "folders", full)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        RunDirectory.create(tmp_path / "a" / "b", config)
    assert contents(tmp_path) == []


def test_discard_removes_what_create_made_and_nothing_else(tmp_path, config):
    keep = tmp_path / "here"
    (keep / "logs").mkdir(parents=True)
    (keep / "notes.txt").write_text("mine")
    run = RunDirectory.create(keep, config)
    run.events_file.touch()
    assert run.discard_if_empty()
    assert contents(keep) == ["logs", "notes.txt"]
    run = RunDirectory.create(tmp_path / "new" / "run", config)
    assert run.discard_if_empty()
    assert contents(tmp_path) == ["here", "here/logs", "here/notes.txt"]


@pytest.mark.parametrize("file", ["events.jsonl", "logs/learner.log", "checkpoints/3/policy.safetensors"])
def test_discard_keeps_a_run_that_has_written_something(tmp_path, config, file):
    with RunDirectory.create(tmp_path / "run", config) as run:
        (run.path / file).parent.mkdir(exist_ok=True)
        (run.path / file).write_text("x")
        before = contents(run.path)
        assert not run.discard_if_empty()
        assert contents(run.path) == before


def test_summary_is_plain_json(tmp_path, config):
    with RunDirectory.create(tmp_path / "run", config) as run:
        assert run.read_summary() is None
        run.write_summary({"mean": float("nan"), "n": np.int64(3), "lanes": {0: (1, 2)}, "run": run.path})
        assert run.read_summary() == {"mean": None, "n": 3, "lanes": {"0": [1, 2]}, "run": str(run.path)}
        assert "summary.json.partial" not in contents(run.path)


def test_summary_that_cannot_be_finished_leaves_the_old_one(tmp_path, config, monkeypatch):
    with RunDirectory.create(tmp_path / "run", config) as run:
        run.write_summary({"outcome": "completed"})

        def full(handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunDirectoryError, match="No space left on device"):
            run.write_summary({"outcome": "failed"})
        assert json.loads(run.summary_file.read_text()) == {"outcome": "completed"}
        assert "summary.json.partial" not in contents(run.path)


def test_damaged_summary_is_told(tmp_path, config):
    with RunDirectory.create(tmp_path / "run", config) as run:
        run.summary_file.write_text("{")
        with pytest.raises(RunDirectoryError, match=r"summary\.json cannot be read"):
            run.read_summary()


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_open_refuses_what_is_no_run(tmp_path, name):
    with pytest.raises(RunDirectoryError, match="holds no run"):
        RunDirectory.open(tmp_path / name)


@pytest.mark.parametrize("produced", [0, 3])
def test_directory_of_a_run_that_failed_before_its_first_step_is_taken_over(tmp_path, config, produced):
    for _ in range(2):
        with RunDirectory.create(tmp_path / "run", config) as run:
            run.events_file.write_text("{}\n")
            run.log_file("probe").write_text("the map is missing")
            run.write_summary({"outcome": "failed", "books": {"produced": produced}})
        if produced:
            with pytest.raises(RunDirectoryError, match="already holds a finished run\n  outcome: failed"):
                RunDirectory.create(tmp_path / "run", config)
            return
    with RunDirectory.create(tmp_path / "run", config) as run:
        assert run.read_summary() is None
        assert not run.events_file.exists()
        for number in ("1", "2"):  # nothing is lost
            assert (run.path / "earlier" / number / "logs" / "probe.log").read_text() == "the map is missing"
            assert (run.path / "earlier" / number / "summary.json").is_file()


@pytest.mark.parametrize("steps", [0, 5])
def test_directory_of_a_run_that_was_killed_while_it_started_is_taken_over(tmp_path, config, steps):
    with RunDirectory.create(tmp_path, config) as run:
        run.metrics_file.touch()
        with Board.create(run.board_file, [("learner", "learner")]) as board:
            board.slot("learner").count("env_steps", steps)
    if steps:
        with pytest.raises(RunDirectoryError, match="did not finish"):
            RunDirectory.create(tmp_path, config)
    else:
        with RunDirectory.create(tmp_path, config) as run:
            assert not run.board_file.exists()
            assert (tmp_path / "earlier" / "1" / "board").is_file()


@pytest.mark.parametrize("left", ["summary", "killed"])
def test_run_that_ended_can_be_held_to_go_on_and_nothing_in_it_changes(tmp_path, config, left):
    with RunDirectory.create(tmp_path, config) as run:
        run.events_file.write_text("{}\n")
        if left == "summary":
            run.write_summary({"outcome": "completed"})
    before = contents(tmp_path)
    with RunDirectory.resume(tmp_path) as run:
        assert run.read_config() == config
        assert contents(tmp_path) == before
        with pytest.raises(RunDirectoryError, match="in use by a run that is alive"):
            RunDirectory.resume(tmp_path)
        assert not run.discard_if_empty()
    assert not run.is_live()


def test_folder_that_was_deleted_is_made_again(tmp_path, config):
    RunDirectory.create(tmp_path, config).close()
    (tmp_path / "stacks").rmdir()
    with RunDirectory.resume(tmp_path) as run:
        assert run.stacks_dir.is_dir()


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_where_there_is_no_run_none_goes_on(tmp_path, name):
    with pytest.raises(RunDirectoryError, match="holds no run"):
        RunDirectory.resume(tmp_path / name)
    assert contents(tmp_path) == []


def test_directory_with_a_checkpoint_is_never_taken_over(tmp_path, config):
    """A resumed run that failed before its experience was there again says that it produced nothing."""
    with RunDirectory.create(tmp_path, config) as run:
        run.checkpoint_dir(3).mkdir()
        (run.checkpoint_dir(3) / "checkpoint.json").write_text("{}")
        run.write_summary({"outcome": "failed", "books": {"produced": 0}})
    with pytest.raises(RunDirectoryError, match="already holds a finished run"):
        RunDirectory.create(tmp_path, config)
    assert not (tmp_path / "earlier").exists()


@pytest.mark.parametrize(
    ("env_steps", "there"), [(0, False), (5, True), (None, True)], ids=["empty", "steps", "damaged"]
)
def test_checkpoint_counts_if_it_has_steps_or_cannot_be_read(tmp_path, config, env_steps, there):
    """A learner that leaves in order writes one, also where nothing was collected."""
    past = PastRun(tmp_path / "run", config)
    past.checkpoint(env_steps=env_steps or 0)
    if env_steps is None:
        (past.place.checkpoint_dir(1) / "checkpoint.json").write_text("{}")
    path = past.end("failed")  # and none produced
    assert never_began(past.place) is not there
    if there:
        with pytest.raises(RunDirectoryError, match="already holds a finished run"):
            RunDirectory.create(path, config)
        return
    with RunDirectory.create(path, config) as run:
        assert list(run.checkpoints_dir.iterdir()) == []


def test_whatever_a_run_leaves_goes_aside_with_it(tmp_path, config):
    left = {
        "reproducers/collector-0-lane-0-0.json",
        "renders/newest.gif",
        "stacks/learner.0.txt",
        "config-1.toml",
        "events.jsonl",
    }
    with RunDirectory.create(tmp_path, config) as run:
        for name in left:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("old")
        run.write_summary({"outcome": "failed", "books": {"produced": 0}})
    (tmp_path / "notes.txt").write_text("mine")
    with RunDirectory.create(tmp_path, config) as run:
        earlier = set(contents(tmp_path / "earlier" / "1"))
        assert left | {"config.toml", "summary.json"} < earlier
        here = [name for name in contents(tmp_path) if not name.startswith("earlier")]
        assert here == ["checkpoints", "config.toml", "lock", "logs", "notes.txt", "record", "stacks", "tensorboard"]


@pytest.mark.parametrize("file", ["reproducers/a.json", "checkpoints/3/policy.safetensors", "record/trace.bin"])
def test_no_run_begins_among_what_another_one_has_left(tmp_path, config, file):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("old")
    before = contents(tmp_path)
    with pytest.raises(RunDirectoryError, match="what another run has left") as caught:
        RunDirectory.create(tmp_path, config)
    assert caught.value.facts == {"found": f"{file.partition('/')[0]}/"}
    assert contents(tmp_path) == before


def test_logs_may_be_there_before(tmp_path, config):
    """Of whoever starts the run: a batch system's."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job-17.out").write_text("hello")
    RunDirectory.create(tmp_path, config).close()


@pytest.mark.parametrize("replaced", [False, True], ids=["moved", "replaced"])
def test_no_summary_is_written_where_the_directory_is_not_its_own(tmp_path, config, replaced):
    """Told as a line of its own, unless that is why the run has failed."""
    place = tmp_path / "run"
    with RunDirectory.create(place, config) as run:
        place.rename(tmp_path / "elsewhere")
        with RunDirectory.create(place, config) if replaced else contextlib.nullcontext():
            before = contents(tmp_path)
            with pytest.raises(
                RunDirectoryLost, match="another run's lock in it" if replaced else "no lock in it"
            ) as gone:
                run.write_summary({"outcome": "failed"})
            failed = {"exit_code": 1, "error": str(gone.value)}
            assert left(failed, run.write_summary) == failed
            fine = left({"exit_code": 0, "error": None}, run.write_summary)
            assert contents(tmp_path) == before
    assert fine["exit_code"] == 1
    assert fine["unwritten"].startswith(
        f"summary.json could not be written: the run directory {place} was removed, moved or replaced"
    )
