"""The examples run as they stand, for fewer steps than they are made for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str | Path, *arguments: str | Path, where: Path) -> str:
    """What it prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=where,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """The groups of a pattern that has to be there once."""
    [found] = re.findall(pattern, text)
    return [float(group) for group in ([found] if isinstance(found, str) else found)]


def test_every_example_is_tested():
    here = Path(__file__).read_text()
    elsewhere = {"modal_app.py"}  # tests/process/test_modal_example.py: it needs a stand-in for Modal
    assert {path.name for path in EXAMPLES.glob("*.py") if f'run("{path.name}"' not in here} == elsewhere


@pytest.mark.table
def test_own_environment_trains_and_says_where(tmp_path):
    said = run("own_environment.py", "800", where=tmp_path)

    assert "completed" in said
    [folder] = (tmp_path / "runs").iterdir()
    assert (folder / "summary.json").is_file()


@pytest.mark.table
def test_ppo_of_sb3_trains_and_is_evaluated(tmp_path):
    said = run("sb3_ppo.py", "2000", where=tmp_path)

    steps, episodes, mean = numbers(r"(\d+) steps, the last (\d+) episodes returned ([\d.]+)", said)
    assert steps == 2048  # whole rollouts
    assert 20 < episodes <= 100
    assert 15 < mean < 100
    assert numbers(r"evaluation of 8 episodes: ([\d.]+)", said)[0] > 9


@pytest.mark.table
def test_dqn_of_sb3_trains_and_its_books_are_right(tmp_path):
    said = run("sb3_dqn.py", "1500", "0.01", where=tmp_path)

    steps, episodes, finished = numbers(r"(\d+) steps, (\d+) episodes of (\d+) steps", said)
    [cut] = numbers(r"(\d+) episodes cut: \{'raised': \1\}", said)
    assert steps == 1504  # whole rounds of training
    assert episodes > 20
    assert 1 <= cut < 60
    # What is not in a finished episode is in one that was cut, is a row of a cut, or goes on.
    assert 0 < steps - finished - cut < 60 * (cut + 4)


@pytest.mark.table
def test_ppo_in_the_manner_of_cleanrl_leaves_out_what_is_not_valid(tmp_path):
    said = run("cleanrl_ppo.py", "2000", "0.005", where=tmp_path)

    steps, episodes, updates, mean = numbers(r"(\d+) steps, (\d+) episodes, (\d+) updates, mean return ([\d.]+)", said)
    [left_out] = numbers(r"(\d+) rows left out", said)
    assert steps + left_out == 1024 * updates
    assert steps >= 2000
    assert left_out >= 1
    assert episodes > 20
    assert mean > 9


@pytest.mark.table
def test_torchrl_collects_through_its_own_wrapper(tmp_path):
    said = run("torchrl_collector.py", "2048", where=tmp_path)

    assert numbers(r"2048 steps, (\d+) episodes", said)[0] > 20
    assert "0 rows left out" in said


TORCHRL_WITH_FAULTS = """
import sys
import gymnasium
import headrace
sys.path.insert(0, sys.argv[1])
import torchrl_collector

class Ageing(gymnasium.Wrapper):
    age = 0

    def step(self, action):
        self.age += 1
        if self.age == 100:
            raise RuntimeError("worn out")
        return self.env.step(action)

class Remembered(headrace.VectorEnv):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        made.append(self)

made = []
torchrl_collector.make = lambda: Ageing(gymnasium.make("CartPole-v1"))
torchrl_collector.headrace.VectorEnv = Remembered
torchrl_collector.main(2048)
print(len(made[0].faults), "faults")
"""


@pytest.mark.table
def test_torchrl_leaves_out_what_is_not_valid(tmp_path):
    (tmp_path / "faulty.py").write_text(TORCHRL_WITH_FAULTS)
    said = run(tmp_path / "faulty.py", EXAMPLES, where=tmp_path)

    [left_out], [faults] = numbers(r"(\d+) rows left out", said), numbers(r"(\d+) faults", said)
    assert left_out == faults == 16


@pytest.mark.table
def test_workflows_of_cage2_are_searched(tmp_path):
    said = run("cage2_workflows.py", "--quick", "--out", "found", where=tmp_path)

    assert "0 of 1 results" in said or "1 of 1 results" in said
    told = json.loads((tmp_path / "found" / "results.json").read_text())
    choices = [trial["choice"] for trial in told["trials"]]
    assert [choice["model"] for choice in choices] == ["random start", "random start", "gaussian process"]
    tasks = [trial["outcome"]["task"] for trial in told["trials"]]
    assert tasks[1]["begin_from"] == told["trials"][0]["outcome"]["checkpoint"]
    assert [trial["outcome"]["episodes"] for trial in told["trials"]] == [20, 20, 20]
    assert all(trial["outcome"]["error"] is None for trial in told["trials"])
    assert (tmp_path / "found" / "search.png").is_file()
    assert len(list((tmp_path / "found" / "runs").iterdir())) == 3
