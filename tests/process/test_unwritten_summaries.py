"""A summary that cannot be written hides nothing of how a run has ended, and fails only a run that was fine."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import supervise as command
from headrace.cli.ending import ending
from headrace.cli.main import main
from headrace.cli.unheard import conclude
from headrace.telemetry import summaries
from llm_launch_support import Launches, launches, llm_server
from run_support import Runs, small
from supervise_support import run_file

__all__ = ["launches", "llm_server"]

pytestmark = pytest.mark.process

UNWRITTEN = (
    "summary.json could not be written: OSError: [Errno 28] No space left on device\n"
    "  fix: make room on the disk; events.jsonl holds what happened until then\n"
)


@pytest.fixture(autouse=True)
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes no summary."""

    def write(path: Path, pieces: Iterable[bytes]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(summaries, "write_whole", write)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[str, dict[str, Any]], tuple[int, str, str]]:
    """What a command ends with: its exit code, standard output and standard error."""

    def end(text: str, summary: dict[str, Any]) -> tuple[int, str, str]:
        capsys.readouterr()
        return conclude(text, summary), *capsys.readouterr()

    return end


def test_of_a_run_that_failed(runs: Runs, told: Callable[..., tuple[int, str, str]]) -> None:
    run = runs.train(kwargs={"fault": "wrong_shape", "at": 40}, run__schedule="inline")
    code, out, err = told(ending(run.summary, run.path), dict(run.summary))
    assert code == 1
    assert out.startswith("failed after")
    assert "books" in out
    assert err.startswith("[ENV-002] obs does not fit")
    assert err.endswith(f"\n{UNWRITTEN}")


def test_of_a_run_that_was_fine(
    runs: Runs, told: Callable[..., tuple[int, str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    run = runs.train(run__schedule="inline")
    assert run.completed
    assert UNWRITTEN.strip() in caplog.text
    code, out, err = told(ending(run.summary, run.path), dict(run.summary))
    assert (code, err) == (1, UNWRITTEN)
    assert out.startswith("completed after")
    assert "books" in out


def settings(**more: Any) -> list[str]:
    """Of a small run, as a command takes them."""
    table = {**small(**more), "env.factory": "run_envs:make"}
    return [part for key, value in table.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def test_of_a_run_that_is_watched(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "run"
    more = ["--schedule", "inline", "--run-dir", str(place), "--json"]
    assert main(["debug-run", "pendulum-td3", *settings(), *more], standalone_mode=False) == 1
    out, err = capsys.readouterr()
    assert err == UNWRITTEN
    found = json.loads(out)
    assert found["outcome"] == "completed"
    assert "summary could not be written" not in found["verdict"]


def test_of_a_run_that_failed_while_it_was_watched(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--schedule", "inline", "--run-dir", str(tmp_path / "run"), "--json"]
    told = settings(**{"env.kwargs.fault": "wrong_shape", "env.kwargs.at": 40})
    assert main(["debug-run", "pendulum-td3", *told, *more], standalone_mode=False) == 1
    out, err = capsys.readouterr()
    assert err == UNWRITTEN
    found = json.loads(out)
    assert (found["outcome"], found["state"]) == ("failed", "failed")
    assert "obs does not fit" in found["verdict"]


def test_of_runs_that_are_compared(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    more = ["--seeds", "1", "--schedules", "inline,lockstep", "--quiet", "--out", str(out)]
    told = settings(env__lanes=2, evaluation__episodes=1, evaluation__every_steps=200)
    assert main(["twin", "pendulum-td3", *told, *more], standalone_mode=False) == 1
    assert capsys.readouterr().err == "".join(f"{out / name}: {UNWRITTEN}" for name in ("inline-0", "lockstep-0"))
    assert json.loads((out / "twin.json").read_text())["identical"] is True


@pytest.mark.parametrize(("ends", "code"), [("exit 0", 1), ("exit 7", 1), ("sleep 1000", 3)])
def test_of_processes(tmp_path: Path, told: Callable[..., tuple[int, str, str]], ends: str, code: int) -> None:
    run = run_file(
        tmp_path,
        f"[process.p]\ncommand = ['sh', '-c', '{ends}']\nlifetime = \"until-done\"\n"
        "ready = { file = 'never', start_s = 0.5 }\n",
    )
    left, out, err = told(command.ending(run.summary, tmp_path), run.summary)
    assert left == code
    assert "  p  " in out
    assert err.endswith(UNWRITTEN)
    assert err.startswith("[SUP-00") == (ends != "exit 0")


def test_of_a_language_model_run(launches: Launches) -> None:
    assert launches.run(steps=1)["exit_code"] == 1
    summary = launches.run(who="trainer", fault="fail", at=1)
    assert summary["error"].startswith("[SUP-00")
    assert summary["unwritten"] == UNWRITTEN.strip()
