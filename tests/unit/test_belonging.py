"""A record beside a configuration that is not its own, or was edited, or of other random streams: told as such."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from acting_support import SmallRun, configuration
from headrace.core.errors import HeadraceError, RecordDamaged, ReplayDiffers
from headrace.core.seeding import STREAMS
from headrace.record.trace import Trace, TraceWriter
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.replayer import Replayer, replay
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.verifier import verify_run
from record_here import record_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in order; only looked at."""
    return record_here(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def edited(run: Path, tmp_path: Path):
    """A copy whose config.toml has other values."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))

    def make(**values: object) -> Path:
        edit(copy / "config.toml", values)
        return copy

    return make


def edit(file: Path, values: dict[str, object]) -> None:
    text = file.read_text(encoding="utf-8")
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text, count=1)
        assert count == 1, key
    file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lanes": 2}, "env.lanes is another one"),
        ({"group_size": 2}, "env.group_size is another one"),
        ({"frame_stack": 2}, "env.frame_stack is another one"),
        ({"seed": 99}, "run.seed is another one"),
        ({"id": '"MountainCarContinuous-v0"'}, "laid out in another way"),
    ],
)
def test_configuration_of_another_run_is_refused_by_replay(edited, values: dict[str, object], words: str):
    with pytest.raises(RecordDamaged, match=words):
        replay(edited(**values))


@pytest.mark.parametrize("values", [{"lanes": 4}, {"seed": 99}, {"kind": '"ornstein-uhlenbeck"'}])
def test_configuration_of_another_run_is_refused_by_verify(tmp_path: Path, values: dict[str, object]):
    small = SmallRun(tmp_path / "run", configuration())
    small.publish()
    small.round()
    place = small.end()
    edit(place.config_file, values)
    with pytest.raises(RecordDamaged, match=r"was not made with the config\.toml beside it"):
        verify_run(place)


def of_an_earlier_version(folder: Path) -> None:
    """Take away what an earlier version did not write into the header of a record."""
    file = folder / TRACE_FILE
    with Trace.open(file) as trace:
        header = {key: value for key, value in trace.header.items() if key != "streams"}
        events = file.read_bytes()[trace.start :]
    file.unlink()
    with TraceWriter.create(file, header):
        pass
    with file.open("ab") as whole:
        whole.write(events)


@pytest.mark.parametrize("again", [replay, lambda run: verify_run(RunDirectory.open(run))], ids=["replay", "verify"])
def test_record_of_other_random_streams_is_refused_and_nothing_else_blamed(edited, again):
    place = edited()
    of_an_earlier_version(place / "record")
    with pytest.raises(RecordDamaged, match="drew other random numbers from a seed") as caught:
        again(place)
    assert caught.value.facts == {"recorded_streams": 1, "streams_here": STREAMS}


def test_edit_is_told_with_the_difference_it_makes(edited):
    with pytest.raises(ReplayDiffers) as caught:
        replay(edited(gamma=0.5))
    assert "config.toml was edited since it was written" in caught.value.facts["configuration"]
    assert caught.value.fix.startswith("restore config.toml")


def test_edit_that_makes_no_difference_is_none_of_a_replays_business(run: Path, edited):
    assert replay(edited(hash_every=10_000)) == replay(run)


@pytest.mark.table
def test_replay_leaves_no_file_behind_even_if_it_is_killed(run: Path, tmp_path: Path):
    code = (
        "import os, sys; from headrace.runtime.replayer import Replayer\n"
        "replayer = Replayer(sys.argv[1]); replayer.run('update:3'); os._exit(0)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(run)], env=environment, check=True, timeout=50)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["[1]", "null", '"x"', '{"a'])
def test_summary_that_is_no_object_is_an_error_in_words(edited, text: str):
    place = RunDirectory.open(edited())
    place.summary_file.write_text(text, encoding="utf-8")
    with pytest.raises(HeadraceError, match=r"summary\.json cannot be read"):
        place.read_summary()


def test_no_edit_is_told_where_there_is_none(run: Path):
    with Replayer(run) as replayer:
        replayer.run("update:3")
        for array in replayer.learner.algorithm.policy_arrays().values():
            array += 1
        with pytest.raises(ReplayDiffers) as caught:
            replayer.run()
    assert "configuration" not in caught.value.facts
