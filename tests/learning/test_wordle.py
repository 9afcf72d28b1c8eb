"""Does a language model learn in three processes? Wordle of three letters, from nothing to above its teacher."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.learning

EXPERT = 0.82
"""Games that a player wins who draws from all words that agree with every answer."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_wins_more_games_than_the_expert_it_was_warmed_up_by(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "run"
    line = [str(Path(sys.executable).with_name("headrace")), "train", "wordle-grpo", "--quiet"]
    line += ["--seed", str(seed), "--run-dir", str(path)]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=890)

    assert done.returncode == 0, done.stderr
    summary = json.loads((path / "summary.json").read_text())
    first, last = summary["evaluations"][0], summary["evaluations"][-1]
    assert (first["version"], last["version"]) == (0, 140)
    assert first["win_rate"] < EXPERT
    assert last["win_rate"] >= 0.85
    assert summary["books"]["balanced"]
    assert summary["policy_lag"]["max"] <= 1
