"""Trainings to a target, ours beside peers': every seed on every side, and the rows that compare them.

One training after the other, seeds taking turns. Learning is a lottery over seeds: rows have medians, and the spread is
told. Who does not reach the target counts with the steps and seconds it was given.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _learning_sides import OURS, Task
from _processes import Load, answer, end_tidily, interpreters
from _report import Row, compare, less_is_better, options, report

ASYNC, ZOO = next(iter(OURS)), "stable-baselines3"
TO_TARGET = {"steps": "steps", "wall_s": "s", "updates_per_s": "updates/s"}
TO_THE_END = {"return": "return", "wall_s": "s", "updates_per_s": "updates/s"}
LESS_IS_BETTER = ("steps", "wall_s")

Found = dict[str, list[dict[str, Any]]]


def trainings(pythons: Sequence[str], script: Path, request: Mapping[str, Any], sides: Sequence[str],
              seeds: int, limit_s: float) -> Found:  # fmt: skip
    """What each side found, by its name, for every seed. ``request`` lacks ``side`` and ``seed``."""
    found: Found = {side: [] for side in sides}
    skipped: set[str] = set()
    for seed in range(seeds):
        for side, results in found.items():
            if side in skipped:
                continue
            asked = {**request, "side": side, "seed": seed}
            told, reason = answer(pythons, script, asked, limit_s)
            print(f"{request['task']}, {side}, seed {seed}: {reason if told is None else told}", file=sys.stderr)
            if told is None:
                skipped.add(side)
            else:
                results.append(told)
    return {side: results for side, results in found.items() if results}


def rows(name: str, task: Task, found: Found) -> Iterator[Row]:
    """Each of ours beside each peer."""
    measured = TO_THE_END if task.target is None else TO_TARGET
    for ours in (side for side in OURS if side in found):
        for peer in (side for side in task.peers if side in found):
            note = (_within if task.target is None else _reached)(found, ours, peer)
            for key, unit in measured.items():
                sides = tuple([result[key] for result in found[side]] for side in (ours, peer))
                row = compare(f"{name}, {ours}", task.env, (peer, found[peer][0]["version"]), sides, unit)
                row = less_is_better(row) if key in LESS_IS_BETTER else row
                promised = task.promised.get(key) if (ours, peer) == (ASYNC, ZOO) else None
                yield replace(row, note=note, target=promised)


def _reached(found: Found, *sides: str) -> str:
    return ", ".join(
        f"{side} reached it {sum(result['reached'] for result in found[side])} of {len(found[side])} times"
        for side in sides
    )


def _within(found: Found, ours: str, peer: str) -> str:
    """Whether our median return lies within the peer's seeds."""
    own = statistics.median(result["return"] for result in found[ours])
    theirs = [result["return"] for result in found[peer]]
    low, high = min(theirs), max(theirs)
    where = "below" if own < low else "above" if own > high else "inside"
    return (
        f"{ours}: return {own:.1f}, {where} what {peer} reached over its seeds ({len(theirs)}), {low:.1f} to {high:.1f}"
    )


def main(description: str, script: Path, tasks: Mapping[str, Task], seeds: int, limit_s: float) -> None:
    """The command of a learning benchmark; ``script`` trains one side."""
    parser = options(description, seeds=seeds, limit=limit_s, steps=0)
    parser.add_argument("--peers", action="append", default=[], metavar="PYTHON",
                        help="an interpreter in whose environment peers are installed; may be given several times")  # fmt: skip
    parser.add_argument("--side", action="append", default=[], help="only this side; may be given several times")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(tasks)}; all without one")
    given = parser.parse_args()
    end_tidily()
    pythons, load, compared = interpreters(given.peers), Load(), []
    for name in given.tasks or tasks:
        task, request = tasks[name], {"task": name, "steps": given.steps}
        sides = given.side or (*OURS, *task.peers)
        found = trainings(pythons, script, request, sides, given.seeds, given.limit)
        compared += rows(name, task, found)
    report(compared, as_json=given.json, others_cores=round(load.cores(), 2))
