"""DQN to a target, ours beside Stable-Baselines3 and SBX: environment steps, seconds and updates a second.

Ours are the presets `cartpole-dqn` and `lunarlander-dqn`, asynchronously and in one process; the peers have the
hyperparameters of rl-zoo. One training after the other, seeds taking turns; `_dqn_sides.py` has the sides. Learning is
a lottery over seeds: medians of at least eight, and the spread is told. Who does not reach the target counts with the steps
and seconds it was given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _dqn_sides import TASKS
from _processes import Load, answer, end_tidily, interpreters
from _report import Row, compare, less_is_better, options, report

SIDE_SCRIPT = Path(__file__).absolute().with_name("_dqn_sides.py")
OURS = ("async, 2 cores", "inline")
PEERS = ("stable-baselines3", "sbx")
MEASURED = {"steps": "steps", "wall_s": "s", "updates_per_s": "updates/s"}

Found = dict[str, list[dict[str, Any]]]


def trainings(pythons: Sequence[str], task: str, seeds: int, limit_s: float) -> Found:
    """What each side found, by its name, for every seed."""
    found: Found = {side: [] for side in (*OURS, *PEERS)}
    skipped: set[str] = set()
    for seed in range(seeds):
        for side, results in found.items():
            if side in skipped:
                continue
            reason = training(pythons, {"side": side, "task": task, "seed": seed}, limit_s, results)
            if reason is not None:
                print(f"{side}, {task}, seed {seed}: {reason}", file=sys.stderr)
                skipped.add(side)
    return {side: results for side, results in found.items() if results}


def training(
    pythons: Sequence[str], request: dict[str, Any], limit_s: float, results: list[dict[str, Any]]
) -> str | None:
    """One of them, in the first environment that has what it needs; or why it is not there."""
    told, reason = answer(pythons, SIDE_SCRIPT, request, limit_s)
    if told is None:
        return reason
    results.append(told)
    print(f"{request['task']}, {request['side']}, seed {request['seed']}: {told}", file=sys.stderr)
    return None


def rows(task: str, found: Found) -> Iterator[Row]:
    """Each of ours beside each peer."""
    for ours in (side for side in OURS if side in found):
        for peer in (side for side in PEERS if side in found):
            for key, unit in MEASURED.items():
                sides = [[result[key] for result in found[side]] for side in (ours, peer)]
                row = compare(f"{task}, {ours}", TASKS[task].env, (peer, found[peer][0]["version"]), tuple(sides), unit)
                note = ", ".join(
                    f"{side} reached it {sum(result['reached'] for result in found[side])} of {len(found[side])} times"
                    for side in (ours, peer)
                )
                yield replace(row if key == "updates_per_s" else less_is_better(row), note=note)


def main() -> None:
    parser = options("DQN to a target, beside peers.", seeds=8, limit=1800.0)
    parser.add_argument("--peers", action="append", default=[], metavar="PYTHON",
                        help="an interpreter in whose environment peers are installed; may be given several times")  # fmt: skip
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all without one")
    given = parser.parse_args()
    end_tidily()
    pythons, load, found = interpreters(given.peers), Load(), []
    for task in given.tasks or TASKS:
        found += rows(task, trainings(pythons, task, given.seeds, given.limit))
    report(found, as_json=given.json, others_cores=round(load.cores(), 2))


if __name__ == "__main__":
    main()
