"""What can be begun where a run was killed; and that the command that the doctor names for it is taken."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import pytest
import torch

from board_support import another_process
from headrace.cli.main import main
from headrace.core.errors import RunDirectoryError
from headrace.llm.launch import launcher
from headrace.llm.launch.place import LanguageRun
from headrace.llm.training.checkpoints import RLCheckpoints
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.runtime.config import load_config
from headrace.runtime.remains import Onward, onward
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board
from language_support import RUN_ID, prepare, tiny_config
from resume_support import PastRun

DONE = {"outcome": "completed", "exit_code": 0}
FOUND = {
    "never began": Onward.ANEW,
    "checkpoints off": Onward.ELSEWHERE,
    "none yet": {"train": Onward.ANEW, "rl": Onward.ELSEWHERE},  # trained steps of a model are nothing to put aside
    "one there": Onward.RESUME,
}


def killed_training(path: Path, left: str) -> None:
    past = PastRun(path, load_config("pendulum-td3", {"checkpoint.enabled": left != "checkpoints off"}))
    if left != "never began":
        past.learn(3)
    if left == "one there":
        past.checkpoint()
    with Board.open(past.place.board_file) as board:
        another_process(board)
    past.end(None)


def killed_language_model(path: Path, left: str) -> None:
    config = tiny_config()
    if left == "checkpoints off":
        config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"every_steps": 0})})
    with LanguageRun.create_as("x", path, config, "runs") as place:
        place.name_run(RUN_ID)
        prepare(config, path)
        if left != "never began":
            (place.weights_dir / "1").mkdir()
        if left == "one there":
            store = RLCheckpoints(place.checkpoints_dir, RUN_ID, keep=2)
            store.write(1, {"w": torch.zeros(1)}, weights_sha256="", carry={}, config=config)
        with Board.create(place.board_file, [("supervisor", "supervisor"), ("trainer", "trainer")]) as board:
            another_process(board)


@pytest.fixture(params=["train", "rl"])
def kind(request, tmp_path, monkeypatch):
    """Of the run; its commands do everything but to run it, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    experiment = types.ModuleType("headrace.runtime.experiment")
    experiment.run_experiment = lambda *_, **__: DONE
    monkeypatch.setitem(sys.modules, "headrace.runtime.experiment", experiment)
    monkeypatch.setattr(launcher, "launch", lambda *_: DONE)
    return request.param


@pytest.mark.parametrize("left", FOUND)
def test_what_the_doctor_says_to_do_after_a_kill_can_be_done(kind, left, tmp_path):
    run = tmp_path / "my run"
    (killed_training if kind == "train" else killed_language_model)(run, left)
    found = FOUND[left] if isinstance(FOUND[left], Onward) else FOUND[left][kind]
    assert onward(RunDirectory(run)) is found
    remedy = diagnose(read_run(run, pause=lambda _: None)).remedy
    (command,) = re.findall(r"headrace (?:train|rl) [^;]+", remedy)
    assert (str(tmp_path / "my run") in shlex.split(command)) is (found is not Onward.ELSEWHERE)
    with pytest.raises(SystemExit) as left_with:
        main(shlex.split(command)[1:])
    assert left_with.value.code == 0


@pytest.mark.parametrize("left", ["checkpoints off", "none yet", "one there"])
def test_whoever_would_begin_there_is_told_to_resume_where_that_can_be_done(kind, left, tmp_path):
    run = tmp_path / "run"
    (killed_training if kind == "train" else killed_language_model)(run, left)
    begun = LanguageRun if kind == "rl" else RunDirectory
    config = tiny_config() if kind == "rl" else load_config("pendulum-td3")
    with pytest.raises(RunDirectoryError, match="holds the remains of a run that did not finish") as refused:
        begun.create_as("x", run, config, "runs")
    assert ("or --resume it" in refused.value.fix) is (onward(RunDirectory(run)) is not Onward.ELSEWHERE)
