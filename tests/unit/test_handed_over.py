"""Environments of a run that were handed over in Python: nobody takes something else of the same name for them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.cli.ending import ending
from headrace.cli.main import main
from headrace.core.config import EnvConfig
from headrace.core.errors import ConfigError
from headrace.envs.building import build_copy, build_environment
from headrace.runtime.evaluation import evaluate_run
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.sessions import resume_or_begin
from headrace.testing.reproduce import main as reproduce
from headrace.weights.policy_file import save_policy
from record_here import record_here

NAMES = ["__main__:main", "__main__:make", "__main__:<lambda>", "somewhere:outer.<locals>.make", "__mp_main__:make"]
REFUSAL = "the environment of this run was handed over in Python, so it has to be handed over again"
FULL = (
    f"[CFG-001] {REFUSAL}\n"
    "  env factory: __main__:make\n"
    "  fix: hand over the same callable: headrace.replay(run, env=...), headrace.Replayer(run, env=...), headrace.train(env=...); "
    "commands find one that is in a module of its own, and headrace.load_policy(run) acts without one"
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only copied."""
    path = record_here(tmp_path_factory.mktemp("recorded") / "run")
    save_policy(path / "checkpoints", 3, {"weight": np.zeros(1, np.float32)}, {"env_steps": 5})
    return path


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The run, as if its environment had been handed over under a name."""

    def named(factory: str) -> Path:
        path = tmp_path / "run"
        shutil.copytree(recorded, path)
        config = RunDirectory(path).read_config()
        lines = (path / "config.toml").read_text().splitlines()
        at = lines.index("[env]")
        (where,) = (
            n for n, line in enumerate(lines) if n > at and line.startswith((f'id = "{config.env.id}"', "factory ="))
        )
        lines[where] = f'factory = "{factory}"'
        (path / "config.toml").write_text("\n".join(lines))
        assert RunDirectory(path).read_config().env.factory == factory
        return path

    return named


@pytest.fixture(autouse=True)
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called of the program that happens to be running; nothing, at the end."""
    found: list[str] = []
    for name in ("main", "make"):
        monkeypatch.setattr(sys.modules["__main__"], name, lambda name=name, **_: found.append(name), raising=False)
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])
    return found


READERS: dict[str, Callable[[Path], Any]] = {
    "evaluate": lambda path: evaluate_run(RunDirectory(path)),
    "replay": headrace.replay,
    "Replayer": headrace.Replayer,
    "train": lambda path: headrace.train(path / "config.toml", run_dir=path.with_name("other")),
    "begin": lambda path: resume_or_begin(path.with_name("other"), path / "config.toml", {}),
    "build": lambda path: build_environment(RunDirectory(path).read_config().env),
    "copy": lambda path: build_copy(RunDirectory(path).read_config().env, 2),
}


@pytest.mark.parametrize("factory", NAMES)
def test_a_name_that_only_its_program_knew_is_not_looked_for(factory: str, called: list[str]) -> None:
    with pytest.raises(ConfigError, match=REFUSAL):
        build_environment(EnvConfig(factory=factory))
    assert called == []


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_of_a_run_takes_what_has_the_same_name_here(run: Any, called: list[str], reader: str) -> None:
    path = run("__main__:make")
    with pytest.raises(ConfigError) as caught:
        READERS[reader](path)
    assert str(caught.value) == FULL
    assert called == []
    assert not path.with_name("other").exists()


@pytest.mark.parametrize(
    "arguments", [["eval", "RUN"], ["replay", "RUN"], ["train", "RUN/config.toml", "--run-dir", "o"]]
)
def test_commands_refuse_in_the_same_words(
    run: Any,
    called: list[str],
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = run("__main__:make")
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with pytest.raises(SystemExit) as left:
        main([word.replace("RUN", str(path)) for word in arguments])
    assert left.value.code == 2
    assert FULL in capsys.readouterr().err
    assert called == []
    assert not Path("o").exists()


def test_a_reproducer_of_such_an_environment_is_refused_before_a_process_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {
        "component": "collector-0", "incarnation": 0, "lane": 0, "episode": 4, "call": "step", "kind": "raised",
        "what": "it raised", "error": "ValueError: x", "env": {"factory": "__main__:make"}, "construct_seed": 1, "seed": 2,
        "global_seeds": [], "exact": True, "actions": {"action": [[0.0]]}, "complete": True,
    }  # fmt: skip
    (tmp_path / "file.json").write_text(json.dumps(facts))
    assert reproduce([str(tmp_path / "file.json")]) == 2
    assert REFUSAL in (told := capsys.readouterr().err)
    assert 'write "factory": "module:function" in ' in told


@pytest.mark.parametrize("outcome", ["completed", "interrupted"])
def test_what_cannot_be_played_by_a_command_is_not_recommended_to_be(run: Any, outcome: str) -> None:
    path = run("somewhere:<lambda>")
    (upcoming,) = (line for line in ending({"outcome": outcome}, path).splitlines() if line.startswith("  next"))
    assert " --logdir " in upcoming
    assert "eval" not in upcoming
    assert "--resume" not in upcoming
