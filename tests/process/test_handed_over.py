"""Runs whose environment was a function of a program: another program does not take its own function for that one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TRAINS = """
import gymnasium
import headrace
from run_support import SMALL

def known(**kwargs):
    return gymnasium.make("Pendulum-v1", **kwargs)

def main(**kwargs):
    return known(**kwargs)

def local():
    def make(**kwargs):
        return known(**kwargs)
    return make

if __name__ == "__main__":
    settings = {**SMALL, "run.steps": 120, "evaluation.episodes": 1}
    for name, env in {"main": main, "lambda": lambda **kwargs: known(**kwargs), "local": local()}.items():
        run = headrace.train(env=env, run_dir=name, schedule="inline", settings=settings)
        assert run.completed, run.summary["error"]
        assert headrace.replay(run.path, env=env).ended
"""
OTHER = """
import sys
from pathlib import Path
import headrace
from headrace.cli.main import main as command
from headrace.core.errors import ConfigError

called = []

def main(**kwargs):
    called.append(kwargs)

make = main
if __name__ == "__main__":
    for run in ("main", "lambda", "local"):
        for read in (headrace.replay, headrace.Replayer, lambda run: headrace.train(Path(run, "config.toml"), run_dir="other")):
            try:
                read(run)
            except ConfigError as error:
                print(str(error).splitlines()[0])
        for words in (["eval", run], ["replay", run], ["train", f"{run}/config.toml", "--run-dir", "other"]):
            try:
                command(words)
            except SystemExit as left:
                print(left.code)
    print(called, Path("other").exists())
"""


def program(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(text)
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([*(str(tests / part) for part in ("", "process")), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def test_no_function_of_another_program_is_called_for_them(tmp_path: Path) -> None:
    assert program(TRAINS, tmp_path).returncode == 0
    found = program(OTHER, tmp_path)
    refusal = "[CFG-001] the environment of this run was handed over in Python, so it has to be handed over again"
    assert found.stdout.splitlines() == [*[refusal] * 3, *["2"] * 3] * 3 + ["[] False"]
    assert found.stderr.count(refusal) == 9
