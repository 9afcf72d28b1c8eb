"""Batches of 256 a second from a million transitions, beside the replay buffers that are installed.

All hold a million steps of 18 floats of observation and 4 of action and return the same: observation, action, reward,
next observation, discount or end, as arrays or tensors in the layout they would hand to an update; by priority also
weights, and the priorities of the batch are set anew. What is sampled is checked. `_sampling_sides.py` has the sides;
each is measured in processes of its own. The last row is memory: frames of 84x84 bytes, of which four are stacked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _processes import Load, answer, end_tidily, interpreters
from _report import Row, compare, less_is_better, options, report
from gymnasium import spaces

from headrace.core.specs import leaves
from headrace.ipc.shm import SharedBlock
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import Geometry

SIDE_SCRIPT = Path(__file__).absolute().with_name("_sampling_sides.py")
PEERS = ("numpy arrays", "cpprb", "stable-baselines3", "tianshou")
TASKS = {
    "uniform": "batches of 256 from 1 lane",
    "several lanes": "batches of 256 from 6 lanes",
    "prioritised": "by priority, and set anew",
    "stack": "stacks of 4 observations",
    "n-step": "returns of 3 steps",
}
LIMIT_S = 300.0
FRAME = 84 * 84
STACK = 4


class Bench:
    """Runs sides in turns.

    Args:
        pythons: Interpreters to look for a side in, in this order.
        given: Rows, batches and rounds.
    """

    def __init__(self, pythons: Sequence[str], given: argparse.Namespace) -> None:
        self._pythons, self._given = pythons, given
        self.skipped: dict[str, str] = {}
        """Side and row to the reason why it has no figures there."""

    def rows(self, task: str) -> Iterator[Row]:
        """Ours beside each peer."""
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in ("headrace", *PEERS)}
        for _ in range(self._given.rounds):
            for side, results in found.items():
                if f"{side}, {TASKS[task]}" not in self.skipped and (result := self._run(side, task)) is not None:
                    results.append(result)
        mine = found.pop("headrace")
        for peer, theirs in found.items():
            if mine and theirs:
                rates = [result["rate"] for result in mine], [result["rate"] for result in theirs]
                of = f"{self._given.rows:,} rows, 18 floats"
                row = compare(TASKS[task], of, (peer, theirs[0]["version"]), rates, "batches/CPU s")
                notes = [note for note in (_note("ours", mine, task), _note(peer, theirs, task)) if note]
                yield replace(row, note="; ".join(notes))

    def _run(self, side: str, task: str) -> dict[str, Any] | None:
        request = {"side": side, "task": task, "rows": self._given.rows, "batches": self._given.batches}
        found, reason = answer(self._pythons, SIDE_SCRIPT, request, LIMIT_S)
        if found is None:
            self.skipped[f"{side}, {TASKS[task]}"] = reason
        return found


def _note(side: str, results: Sequence[dict[str, Any]], task: str) -> str:
    """What was wrong in what it sampled, and for priorities the share of those that should be drawn four times as often."""
    checked = sum(result["checked"] for result in results)
    wrong = {name: sum(result["wrong"][name] for result in results) for name in results[0]["wrong"]}
    told = [f"{side}: {count:,} of {checked:,} with a wrong {name}" for name, count in wrong.items() if count]
    if task == "prioritised":
        told.append(f"{side}: {statistics.mean(result['odd'] for result in results):.3f} drawn of what should be 0.799")
    return "; ".join(told)


def memory(frames: int) -> Row:
    """Shared memory of a replay of so many frames, all of it written, beside arrays of stacked observations."""
    began_s = time.perf_counter()
    seen = leaves(spaces.Box(0, 255, (84, 84), np.uint8), "obs")
    geometry = Geometry(1, frames, seen, leaves(spaces.Discrete(6), "action"), 32, 2, STACK, 1)
    shared = SharedBlock.create(geometry.nbytes)
    try:
        block = LaneBlock(geometry, shared.buf)
        block.begin()
        bytes_before = _shared_bytes()
        block.rows["obs"][...] = np.arange(FRAME, dtype=np.uint8).reshape(84, 84)
        ours = (_shared_bytes() - bytes_before) / 1e9
        block.release()
    finally:
        shared.close()
    theirs = 2 * STACK * FRAME * frames / 1e9
    peer = "observation and next, stacked", "arithmetic"
    row = less_is_better(compare(f"{frames:,} frames, stack {STACK}", "84x84 bytes", peer, ([ours], [theirs]), "GB"))
    note = f"{geometry.nbytes / 1e9:.2f} GB by its geometry; written in {time.perf_counter() - began_s:.0f} s"
    return replace(row, note=note)


def _shared_bytes() -> int:
    """Shared memory this process has touched."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssShmem:"))


def main() -> None:
    parser = options("Batches of 256 from a full replay.", rows=1_000_000, batches=5_000, rounds=5, frames=200_000)
    parser.add_argument("--peers", action="append", default=[], metavar="PYTHON",
                        help="an interpreter in whose environment peers are installed; may be given several times")  # fmt: skip
    parser.add_argument("tasks", nargs="*", metavar="ROW", help=f"of {', '.join((*TASKS, 'memory'))}; all without one")
    given = parser.parse_args()
    end_tidily()
    bench, load = Bench(interpreters(given.peers), given), Load()
    found: list[Row] = []
    for task in given.tasks or (*TASKS, "memory"):
        found += [memory(given.frames)] if task == "memory" else bench.rows(task)
    for name, reason in bench.skipped.items():
        print(f"{name}: {reason}", file=sys.stderr)
    report(found, as_json=given.json, others_cores=round(load.cores(), 2))


if __name__ == "__main__":
    main()
