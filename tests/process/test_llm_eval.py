"""`headrace eval` of a language-model run: it finds what the run found, and refuses what is not there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.envs.text.building import build_text_environment
from headrace.ipc.channel import Deadline, poll_fds
from headrace.llm import evaluating
from headrace.llm.config import RLConfig
from headrace.llm.evaluating import chosen, evaluate_run
from headrace.llm.launch.place import Endpoints, LanguageRun, write_endpoints
from headrace.llm.loading import load_rl_config, write_effective
from headrace.llm.messages import PublishedWeights
from headrace.llm.orchestration.evaluation import specs
from headrace.llm.payloads import TwinPayload
from headrace.llm.twin import twin
from headrace.runtime.config import dump_toml
from language_support import RUN_ID, child, prepare, tiny_config
from supervise_support import LIMIT_S, wait_until_gone

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, float]]]:
    """A run of two steps, and what it found in its own evaluations, by version."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    config = tiny_config(steps=2)
    basics = prepare(config, path)
    write_effective(config, path)
    write_endpoints(path / "endpoints.json", Endpoints(RUN_ID))
    with child("twin", TwinPayload(basics=basics), basics.board) as (context, control):
        twin(context)
    return path, {int(one["version"]): one for one in control.reports("evaluation")}


def headrace(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    return int(left.value.code or 0)


def test_it_finds_what_the_run_found(played: tuple[Path, dict[int, dict[str, float]]]) -> None:
    path, found = played
    assert sorted(found) == [0, 2]
    place = LanguageRun.open(path)
    assert evaluate_run(place, None, 0).facts() == found[0]
    assert evaluate_run(place, None, None).facts() == found[2]


def test_a_run_that_goes_on_meanwhile_has_its_newest_version_played(
    played: tuple[Path, dict[int, dict[str, float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that was the newest when the command began is removed while the environment is built, the next one
    while the engine is; none of them is called damaged."""
    path = tmp_path / "live"
    shutil.copytree(played[0], path)
    hidden = tmp_path / "hidden"
    (path / "weights" / "2").rename(hidden)
    building, problems = evaluating.build_engine, evaluating.problems_of
    built: list[int] = []

    def while_building(config: Any, model: Path, published: PublishedWeights) -> Any:
        built.append(published.version)
        if published.version == 0:
            hidden.rename(path / "weights" / "2")
            shutil.rmtree(path / "weights" / "0")
        return building(config, model, published)

    def while_asking(environment: Any, split: Any) -> Any:
        shutil.rmtree(path / "weights" / "1")
        return problems(environment, split)

    monkeypatch.setattr(evaluating, "build_engine", while_building)
    monkeypatch.setattr(evaluating, "problems_of", while_asking)
    assert evaluate_run(LanguageRun.open(path), None, None).facts() == played[1][2]
    assert built == [0, 2]


@pytest.mark.table
def test_a_newest_version_that_is_damaged_is_passed_over_aloud(
    played: tuple[Path, dict[int, dict[str, float]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(played[0], path)
    (path / "weights" / "2" / "model.safetensors").write_bytes(b"")
    assert headrace("eval", str(path), "--episodes", "2") == 0
    told = capsys.readouterr()
    assert told.out.startswith("policy version 1: ")
    assert told.err.startswith("version 2 is damaged and passed over: SafetensorError: ")
    assert headrace("eval", str(path), "--version", "2") == 1
    assert "[DAT-002] published weights are damaged" in capsys.readouterr().err


HANGS = """
import os
from headrace.envs.text.wordle import WordleEnvironment

class Hangs(WordleEnvironment):
    def step(self, problem, transcript):
        reader, writer = os.pipe()  # nobody writes
        return os.read(reader, 1)
"""


@pytest.mark.table
def test_an_environment_that_does_not_come_back_ends_it_by_name(
    played: tuple[Path, dict[int, dict[str, float]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run"
    shutil.copytree(played[0], path)
    (tmp_path / "hanging_game.py").write_text(HANGS)
    monkeypatch.chdir(tmp_path)
    file = path / "config.toml"
    config = LanguageRun.open(path).read_rl_config()
    env = config.env.model_copy(update={"name": None, "factory": "hanging_game:Hangs"})
    deadlines = config.deadlines.model_copy(update={"env_s": 5.0})
    file.write_text(dump_toml(config.model_copy(update={"env": env, "deadlines": deadlines})))
    assert headrace("eval", str(path)) == 3
    told = capsys.readouterr().err
    assert told.startswith("[SUP-002] the evaluation was ended: step of hanging_game:Hangs for problem ")
    assert "did not come back within 5 s; stuck in: hanging_game.py:8 in step" in told
    assert "\n  fix: " in told


HANGS_WITH_A_HELPER = """
import os, subprocess
from pathlib import Path
from headrace.envs.text.wordle import WordleEnvironment

class Hangs(WordleEnvironment):
    def step(self, problem, transcript):
        helper = subprocess.Popen(["sleep", "1000"])
        Path("pids").write_text(f"{os.getpid()} {helper.pid}\\n")
        reader, writer = os.pipe()  # nobody writes
        return os.read(reader, 1)
"""


@pytest.mark.table
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.table)])
def test_whoever_ends_the_command_ends_what_it_has_started(
    played: tuple[Path, dict[int, dict[str, float]]], tmp_path: Path, number: signal.Signals
) -> None:
    shutil.copytree(played[0], tmp_path / "run")
    (tmp_path / "hanging_game.py").write_text(HANGS_WITH_A_HELPER)
    (tmp_path / "scratch").mkdir()
    config = LanguageRun.open(tmp_path / "run").read_rl_config()
    env = config.env.model_copy(update={"name": None, "factory": "hanging_game:Hangs"})
    deadlines = config.deadlines.model_copy(update={"env_s": 1000.0})  # or it would end itself
    told = dump_toml(config.model_copy(update={"env": env, "deadlines": deadlines}))
    (tmp_path / "run" / "config.toml").write_text(told)
    command = [sys.executable, Path(sys.executable).with_name("headrace"), "eval", "run"]
    output, environ = tmp_path / "output", {**os.environ, "TMPDIR": str(tmp_path / "scratch")}
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=file, stderr=file)
    evaluating, helper = pids_in(tmp_path / "pids", process)
    process.send_signal(number)
    assert process.wait(LIMIT_S) == (130 if number == signal.SIGINT else -number), output.read_text()
    if number == signal.SIGINT:
        assert output.read_text().strip() == "interrupted"
        assert list((tmp_path / "scratch").iterdir()) == []
        wait_until_gone([evaluating, helper])
    else:  # nobody is left who could end what the environment has started, nor tidy up
        os.kill(helper, signal.SIGKILL)
        wait_until_gone([evaluating])


def pids_in(file: Path, process: subprocess.Popen[bytes]) -> list[int]:
    """What the environment has written, once it hangs."""
    deadline = Deadline(LIMIT_S)
    while not (file.exists() and file.read_text().endswith("\n")):
        assert not deadline.passed
        assert process.poll() is None
        poll_fds({}, 0.02)
    return [int(pid) for pid in file.read_text().split()]


@pytest.mark.parametrize("module", ["trying", pytest.param("evaluating", marks=pytest.mark.table)])
def test_a_guarded_program_does_not_outlive_who_has_started_it(module: str, tmp_path: Path) -> None:
    nobody = "0"
    command = [sys.executable, "-m", f"headrace.llm.{module}", "none", str(tmp_path), "{}", nobody]
    ended = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.table
def test_it_tells_rate_and_interval(
    played: tuple[Path, dict[int, dict[str, float]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert headrace("eval", str(played[0]), "--episodes", "4", "--version", "1") == 0
    told = capsys.readouterr().out
    assert told.startswith("policy version 1: ")
    assert "% won (" in told
    assert told.endswith("4 rollouts of 4 problems\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("eval", "{run}", "--version", "77"), "has no weights of version 77"),
        (("eval", "{run}", "--render"), "has no pictures to make a GIF of"),
        (("replay", "{run}"), "describes a language-model run"),
        (("verify", "{run}"), "describes a language-model run"),
        (("twin", "{run}/config.toml"), "describes a language-model run"),
        (("debug-run", "wordle-grpo"), "describes a language-model run"),
        (("faults", "wordle-grpo"), "describes a language-model run"),
        (("rl", "@", "pendulum-td3"), "describes no language-model run"),
        (("check", "pendulum-td3"), "describes no language-model run"),
        (("plan", "pendulum-td3", "--steps", "9"), "--steps says nothing about a plan for a run with collectors"),
        (("plan", "wordle-grpo", "--seconds", "9"), "--seconds says nothing about a plan for a language-model run"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(
    played: tuple[Path, dict[int, dict[str, float]]],
    words: tuple[str, ...],
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert headrace(*(word.format(run=played[0]) for word in words)) == 2
    told = capsys.readouterr().err
    assert error in told.splitlines()[0]
    assert "  fix: " in told
    assert "unknown key" not in told


def test_more_episodes_are_further_samples_of_each_problem() -> None:
    config = load_rl_config([], {"env.kwargs": {"letters": 3}, "evaluation.problems": 3, "evaluation.samples": 2})
    assert isinstance(config, RLConfig)
    section = config.env
    todo = specs(
        build_text_environment(section.name, section.factory, section.kwargs).dataset("eval"), config.evaluation
    )
    assert chosen(config, todo, None) == todo
    seven = chosen(config, todo, 7)
    assert [(spec.group, spec.sample) for spec in seven] == [
        (-1, 0), (-2, 0), (-3, 0), (-1, 1), (-2, 1), (-3, 1), (-1, 2),
    ]  # fmt: skip
    assert all(spec in seven for spec in todo)  # so that a longer evaluation holds the shorter one
