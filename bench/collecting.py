"""Collecting with PPO in a hundred environments and two collectors: alone, with training, and beside what is possible.

`cage2`: CAGE2-v0, episodes a second alone and with training, beside CybORG as it was measured and as its users told of it;
and the run beside the same one if nobody in it ever waited. `original`: an environment that costs what the original does
(1.6 ms of processor time a step, 12 ms a reset, 93 ms when it is made), beside as many cores as there are, each with one
such environment and nothing else to do, one after the other and all at once; the original's hundred environments came to
21 % of that (36 of 173 steps/s each).
Every measurement has a process of its own; `_collecting_sides.py` says what is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import _original_env
from _processes import Load, answer, end_tidily
from _report import Row, compare, options, report

import headrace

SIDE_SCRIPT = Path(__file__).absolute().with_name("_collecting_sides.py")
CORES = os.cpu_count() or 1
EPISODE_STEPS = 100
CYBORG_EPISODES_PER_S = 5.8
"""Of one core, as measured for the specification."""
TOLD_EPISODES_PER_S = 74.3
"""The most that was told of the original, with a hundred workers on a machine of which nothing is known."""
SHARE_OF_ORIGINAL = 0.21
START_S = 120.0

Measure = Callable[[str, str], dict[str, float]]


def measurement(seconds: float, lag: int, rate: float) -> Measure:
    """What measures a side of a task, once."""

    def measure(task: str, side: str) -> dict[str, float]:
        request = {"task": task, "side": side, "seconds": seconds, "lag": lag, "rate": rate}
        told, reason = answer([sys.executable], SIDE_SCRIPT, request, 3 * seconds + START_S)
        if told is None:
            raise RuntimeError(f"{task}, {side}: {reason}")
        print(f"{task}, {side}: {told}", file=sys.stderr)
        return told

    return measure


def cage2(measure: Measure, rounds: int) -> list[Row]:
    """Rows of CAGE2-v0."""
    found = [{side: measure("cage2", side) for side in ("alone", "training")} for _ in range(rounds)]
    where, rows = "headrace/CAGE2-v0", []
    original = (f"CybORG as measured, x {CORES} cores", "2.1"), CYBORG_EPISODES_PER_S * CORES
    told = ("the original, 100 workers, as told", "2.1"), TOLD_EPISODES_PER_S
    for side, name in (("alone", "cage2, collecting alone"), ("training", "cage2, with training")):
        rates = [one[side]["steps_per_s"] / EPISODE_STEPS for one in found]
        rows += [compare(name, where, peer, (rates, [theirs]), "episodes/s") for peer, theirs in (original, told)]
    runs = [one["training"] for one in found]
    sides = [run["steps_per_s"] for run in runs], [run["ideal_steps_per_s"] for run in runs]
    row = compare("cage2, with training", where, ("if nobody waited", headrace.__version__), sides, "steps/s")
    return [*rows, replace(row, note=_busy(runs[-1]))]


def original(measure: Measure, rounds: int) -> list[Row]:
    """Rows of the environment that costs what the original does."""
    sides = ("one", "each", "alone", "training")
    found = [{side: measure("original", side) for side in sides} for _ in range(rounds)]
    peers = {
        f"{CORES} cores x one environment": ([CORES * one["one"]["steps_per_s"] for one in found], 0.95),
        "one on each core at once": ([one["each"]["steps_per_s"] for one in found], None),
    }
    rows = []
    for side, name in (("alone", "original, collecting alone"), ("training", "original, with training")):
        rates = [one[side]["steps_per_s"] for one in found]
        note = f"the original came to {SHARE_OF_ORIGINAL:.0%}"
        busy = f"; {_busy(found[-1][side])}" if side == "training" else ""
        for peer, (possible, target) in peers.items():
            row = compare(name, "1.6 ms of CPU a step", (peer, headrace.__version__), (rates, possible), "steps/s")
            rows.append(replace(row, target=target, note=note + busy))
    return rows


def _busy(run: dict[str, float]) -> str:
    shares = (f"{name.removeprefix('busy_')} {share:.0%}" for name, share in run.items() if name.startswith("busy_"))
    return f"processor time of the last run: {', '.join(shares)}"


TASKS = {"cage2": cage2, "original": original}


def main() -> None:
    parser = options("Collecting with PPO in a hundred environments.", rounds=3, seconds=60.0, lag=1)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all without one")
    given = parser.parse_args()
    end_tidily()
    load, rows = Load(), []
    measure = measurement(given.seconds, given.lag, _original_env.rounds_per_s())
    for task in given.tasks or TASKS:
        rows += TASKS[task](measure, given.rounds)
    report(rows, as_json=given.json, others_cores=round(load.cores(), 2))


if __name__ == "__main__":
    main()
