"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.process
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_trains_and_says_where(example, tmp_path):
    done = subprocess.run(
        [sys.executable, example, "1300"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout
    [run] = (tmp_path / "runs").iterdir()
    assert (run / "summary.json").is_file()
