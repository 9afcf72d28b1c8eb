"""A run directory that is removed, moved or replaced under its run is found."""

import shutil
from pathlib import Path

import pytest

from headrace.core.errors import RunDirectoryLost
from headrace.runtime.config import load_config
from headrace.runtime.premises import Premises
from headrace.runtime.rundir import RunDirectory


@pytest.fixture(scope="module")
def config():
    return load_config("pendulum-td3")


def premises_of(run: RunDirectory) -> Premises:
    return Premises(run.path, run.lock_file, (run.record_dir, run.checkpoints_dir))


LOST = "was removed, moved or replaced while its run was at it"


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda run: shutil.rmtree(run.path), "found: no lock in it"),
        (lambda run: run.path.rename(run.path.with_name("elsewhere")), "found: no lock in it"),
        (lambda run: run.record_dir.rmdir(), "found: no record in it"),
        (lambda run: (run.checkpoints_dir.rmdir(), run.checkpoints_dir.touch()), "found: no checkpoints in it"),
        (
            lambda run: (run.record_dir.rename(run.path.with_name("elsewhere")), run.record_dir.mkdir()),
            "found: another record in it",
        ),
        (lambda run: (run.path.rename(run.path.with_name("elsewhere")), run.path.touch()), "found: no lock in it"),
    ],
    ids=["removed", "moved", "record", "a file in place of a folder", "a folder made anew", "a file in place of all"],
)
def test_a_directory_that_is_not_there_any_more_is_found(tmp_path, config, spoil, found):
    with RunDirectory.create(tmp_path / "run", config) as run:
        premises = premises_of(run)
        premises.require_there()
        spoil(run)
        with pytest.raises(RunDirectoryLost, match=LOST) as caught:
            premises.require_there()
        assert found in str(caught.value)


def test_another_runs_directory_in_its_place_is_found(tmp_path, config):
    with RunDirectory.create(tmp_path / "run", config) as run:
        premises = premises_of(run)
        run.path.rename(tmp_path / "elsewhere")
        with RunDirectory.create(tmp_path / "run", config) as other:
            premises_of(other).require_there()
            with pytest.raises(RunDirectoryLost, match=LOST) as caught:
                premises.require_there()
        assert "found: another run's lock in it" in str(caught.value)


def test_what_fails_because_it_is_gone_is_told_as_that(tmp_path, config):
    with RunDirectory.create(tmp_path / "run", config) as run:
        premises = premises_of(run)
        with pytest.raises(ValueError, match="of its own"), premises.told_first():
            raise ValueError("of its own")
        run.path.rename(tmp_path / "elsewhere")
        for there in (premises, premises_of(run)):
            with pytest.raises(RunDirectoryLost, match=LOST), there.told_first():
                raise FileNotFoundError(run.logs_dir)


def test_logs_and_curves_may_go_and_a_disk_may_be_slow(tmp_path, config, monkeypatch):
    with RunDirectory.create(tmp_path / "run", config) as run:
        premises = premises_of(run)
        run.logs_dir.rmdir()
        run.tensorboard_dir.rmdir()
        premises.require_there()

        def no_answer(_: Path) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as slow:
            slow.setattr(Path, "stat", no_answer)
            premises.require_there()
