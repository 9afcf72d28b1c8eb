"""Figures of README.md that a kept run stands behind are that run's."""

from __future__ import annotations

import json
from pathlib import Path

ROWS = {
    "batches of 256 from 1 lane": "batches of 256 from 1,000,000 rows",
    "by priority, and set anew": "the same by priority",
    "stacks of 4 observations": "the same by priority",
    "returns of 3 steps": "the same by priority",
}
"""Rows of ``results/sampling.json``, and how the row of README.md begins that has them, in hundreds a second."""


def test_figures_of_sampling_are_those_of_the_run_that_is_kept(checkout: Path) -> None:
    lines = (checkout / "README.md").read_text().splitlines()
    rows = json.loads((checkout / "bench/results/sampling.json").read_text())["rows"]
    missing = [
        f"{row['name']}, {row['peer']}: {figure}"
        for row in rows
        if (begins := ROWS.get(row["name"]))
        for figure in (f"{round(row[side], -2):,.0f}" for side in ("ours", "theirs"))
        if not any(line.startswith(f"| {begins}") and figure in line for line in lines)
    ]
    assert {row["name"] for row in rows} >= ROWS.keys()
    assert missing == []
