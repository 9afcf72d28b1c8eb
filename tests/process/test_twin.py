"""``headrace twin`` itself: real runs of a small task under every schedule."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from PIL import Image

from headrace.cli.main import main
from headrace.ipc.channel import Deadline, poll_fds
from run_support import Runs, summary

pytestmark = pytest.mark.process

HERE = Path(__file__).resolve().parents[1]
COMMAND = str(Path(sys.executable).with_name("headrace"))
CONFIG = """
[run]
steps = 400
[env]
factory = "headrace.envs.toy:target"
lanes = 2
[replay]
learning_starts = 100
capacity = 20_000
[collect]
chunk_steps = 8
random_steps = 100
[evaluation]
every_steps = 100
episodes = 3
[algorithm]
batch_size = 32
[algorithm.actor]
hidden = [16]
[algorithm.critic]
hidden = [16]
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "toy.toml"
    path.write_text(CONFIG)
    return str(path)


def twin(*arguments: str) -> int:
    """Run the command here, from the warm fork server; its exit code."""
    with pytest.raises(SystemExit) as left:
        main(["twin", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.table
def test_schedules_are_compared(runs: Runs, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert twin(config, "--seeds", "2", "--out", str(out), "--json") == 0
    printed, errors = capsys.readouterr()
    told = json.loads(printed)
    assert errors == ""
    assert told == json.loads((out / "twin.json").read_text())
    made = [(run["schedule"], run["seed"]) for run in told["runs"]]
    assert made == [("inline", 0), ("lockstep", 0), ("async", 0), ("inline", 1), ("async", 1)]
    assert all(json.loads((out / f"{schedule}-{seed}" / "summary.json").read_text()) for schedule, seed in made)

    hashes = {name: run["weights_sha256"] for name, run in zip(made, told["runs"], strict=True)}
    assert hashes["inline", 0] == hashes["lockstep", 0] != hashes["inline", 1]
    assert (told["identical"], told["first_difference"]) == (True, None)
    assert told["verdict"].startswith("lockstep comes to the weights of inline, bit for bit (seed 0); ")
    assert told["learning"]["difference"]["seeds"] == 2
    assert told["learning"]["gain_over_random"]["mean"] is not None

    inline = told["runs"][0]
    assert inline["evaluations"][-1]["env_steps"] >= 400
    learner = next(one for one in inline["time"] if one["component"] == "learner")
    assert learner["samples"]["update"] > 0
    assert {one["kind"] for one in told["runs"][2]["time"]} == {"learner", "collector", "evaluator"}
    assert told["speed"]["ratio"] > 0
    with Image.open(out / "twin.png") as picture:
        assert len(picture.getcolors(2**16) or []) > 3


def test_other_weights_are_told_with_the_first_difference(
    runs: Runs, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    env = ["--set", "env.factory=twin_envs:by_process", "--set", "env.kwargs.from_step=100"]
    assert twin(config, *env, "--seeds", "1", "--schedules", "inline,lockstep", "--quiet", "--out", str(out)) == 4
    printed = capsys.readouterr().out
    assert "DIFFERENT" in printed
    assert "lockstep does NOT come to the weights of inline (seed 0), and has to, bit for bit" in printed
    # The first 100 steps of a lane are 10 whole episodes; chunks are of 8 steps.
    sentence = json.loads((out / "twin.json").read_text())["first_difference"]["sentence"]
    assert sentence.startswith("chunk 12 of group 0, after update 93, lane 0, row 110 (episode 10, step 0): reward is ")
    assert f"first difference, seed 0: {sentence}\n" in printed


def test_without_a_record_evaluations_say_where(runs: Runs, config: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = [
        "env.factory=twin_envs:by_process",
        "env.kwargs.from_step=0",
        "record.enabled=false",
        "checkpoint.enabled=false",
    ]
    settings = [part for setting in more for part in ("--set", setting)]
    assert twin(config, *settings, "--seeds", "1", "--schedules", "lockstep,inline", "--json", "--out", str(out)) == 4
    told = json.loads((out / "twin.json").read_text())["first_difference"]["sentence"]
    assert told.startswith("evaluations differ from 112 steps on; ")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_fails_ends_the_report(
    runs: Runs, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    out = tmp_path / "out"
    env = ["--set", "env.factory=run_envs:raises_when_built"]
    assert twin(config, *env, "--quiet", "--out", str(out), *["--json"] * as_json) == 1
    printed, errors = capsys.readouterr()
    said = json.loads(printed)["error"] if as_json else errors
    assert "the map of the park is missing" in said
    assert (json.loads(printed)["run"] if as_json else errors).rstrip().endswith(str(out / "inline-0"))
    assert [path.name for path in out.iterdir()] == ["inline-0"]


def test_ctrl_c_leaves_nobody_behind_and_keeps_what_has_run(config: str, tmp_path: Path) -> None:
    out = tmp_path / "made" / "out"
    line = [COMMAND, "twin", config, "--set", "run.steps=1000000", "--quiet", "--out", str(out)]
    with subprocess.Popen(
        line, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        deadline = Deadline(60.0)
        parent, family = psutil.Process(process.pid), []
        # The file is there before the first process of the run is.
        while not (family and (out / "inline-0" / "metrics.jsonl").exists()) and not deadline.passed:
            poll_fds({}, 0.02)
            family = parent.children(recursive=True)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=30.0)
    assert (process.returncode, printed, errors.strip()) == (130, "", "interrupted")
    _, alive = psutil.wait_procs(family, timeout=5.0)
    assert family
    assert not alive
    assert summary(out / "inline-0")["outcome"] == "interrupted"
