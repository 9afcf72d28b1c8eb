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
from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.llm.launch import launcher
from headrace.llm.launch.place import LanguageRun
from headrace.llm.training.checkpoints import RLCheckpoints
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.runtime.config import load_config
from headrace.runtime.presets import resolve
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
COMMAND = re.compile(r"headrace (?:train|rl|trainer|supervise) [^;]+")


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
    (command,) = COMMAND.findall(remedy)
    assert (str(tmp_path / "my run") in shlex.split(command)) is (found is not Onward.ELSEWHERE)
    with pytest.raises(SystemExit) as left_with:
        main(shlex.split(command)[1:])
    assert left_with.value.code == 0


@pytest.mark.parametrize("left", FOUND)
def test_what_whoever_names_the_folder_is_told_can_be_done(kind, left, tmp_path):
    run = tmp_path / "my run"
    (killed_training if kind == "train" else killed_language_model)(run, left)
    assert can_be_done(run).startswith(f"headrace {kind} ")


@pytest.mark.parametrize("has_its_steps", [True, False])
def test_what_whoever_names_the_folder_of_a_finished_run_is_told_can_be_done(kind, has_its_steps, tmp_path):
    """Of one that ``run_duration_s`` or ``evaluation.target`` completed, no more steps than it was to have are asked."""
    run, steps = tmp_path / "run", 30 if has_its_steps else 40
    if kind == "train":
        given = {"run.steps": steps, "replay.learning_starts": 10, "collect.random_steps": 10}
        past = PastRun(run, load_config("pendulum-td3", given))
        past.learn(3)
        past.checkpoint()
        past.end("completed")
    else:
        killed_language_model(run, "one there")
        steps = tiny_config().run.steps
        RunDirectory(run).write_summary(DONE | {"steps": steps if has_its_steps else steps - 1})
    more = " --steps N" if has_its_steps else ""
    assert can_be_done(run) == f"headrace {kind} --resume --run-dir {run}{more}"


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("kind", ["rl"], indirect=True)
def test_what_whoever_names_the_folder_of_a_warm_start_or_a_component_is_told_can_be_done(tmp_path):
    run = tmp_path / "run"
    killed_language_model(run, "never began")
    with LanguageRun(run).alone("trainer") as component:
        component.claim(tiny_config())
    assert can_be_done(component.path) == f"headrace trainer --run-dir {run}"
    RunDirectory(run).write_summary(DONE)
    assert can_be_done(run) == f"headrace rl @ {run}/config.toml"


def test_what_whoever_names_the_folder_of_a_supervised_run_is_told_can_be_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.cli.supervise._run", lambda *_: DONE)
    monkeypatch.setattr("headrace.cli.supervise.ending", lambda *_: "completed")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text('[process.server]\ncommand = "true"\n')
    assert can_be_done(run) == f"headrace supervise {run}/config.toml"


def can_be_done(run: Path) -> str:
    """The command that is proposed to whoever names a run's folder in place of a file, after it has been carried out."""
    with pytest.raises(ConfigError) as refused:
        resolve(run)
    (command,) = COMMAND.findall(refused.value.fix)
    with pytest.raises(SystemExit) as left_with:
        main(shlex.split(command.replace("--steps N", "--steps 60"))[1:])
    assert left_with.value.code == 0
    return command


@pytest.mark.parametrize("left", ["checkpoints off", "none yet", "one there"])
def test_whoever_would_begin_there_is_told_to_resume_where_that_can_be_done(kind, left, tmp_path):
    run = tmp_path / "run"
    (killed_training if kind == "train" else killed_language_model)(run, left)
    begun = LanguageRun if kind == "rl" else RunDirectory
    config = tiny_config() if kind == "rl" else load_config("pendulum-td3")
    with pytest.raises(RunDirectoryError, match="holds the remains of a run that did not finish") as refused:
        begun.create_as("x", run, config, "runs")
    assert ("or --resume it" in refused.value.fix) is (onward(RunDirectory(run)) is not Onward.ELSEWHERE)
