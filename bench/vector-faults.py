"""What vector environments do when one of four environments misbehaves: ours beside those that are installed.

Each cell is a fresh process under a watch from outside: it is told at which stage it stays, what it returned, what it
said, and how many of its processes are left after its end. Nothing here is timed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _processes import Child, child, end_all, end_tidily, interpreters, wait_until_gone
from _report import machine, options
from _vector_envs import FAULTS, FAULTY
from _vector_fault_side import ENOUGH, SIDES

SIDE_SCRIPT = Path(__file__).with_name("_vector_fault_side.py")
START_S = 90.0
"""Imports and processes."""
TURN_S = 30.0
"""What takes longer hangs. The environment misbehaves every so many steps, so this is several times anybody's deadline."""
LOOK_S = 0.05
OURS = tuple(side for side in SIDES if side.startswith("headrace"))
PEERS = tuple(side for side in SIDES if side not in OURS)


@dataclass(frozen=True)
class Cell:
    """What one side did."""

    says: str
    good: bool
    """It went on rightly and told of the fault, or it failed, named the environment, and could be closed."""
    version: str = ""


def observe(python: str, side: str, fault: str, step_timeout_s: float) -> Cell | None:
    """Run one cell; None if what it needs is not installed there."""
    request = {"side": side, "fault": fault, "step_timeout_s": step_timeout_s}
    with child(python, SIDE_SCRIPT, request) as process:
        stages = _until(process, {"started", "missing"}, START_S)
        if "missing" in stages:
            return None
        if "started" not in stages:
            return Cell(f"does not start: {process.complaint()}", good=False)
        if fault == "parent killed":
            _until(process, {"done", "error"}, 0.1)
            end_all([process.process.pid])
        ended = process.wait(TURN_S)
        stages = {line["stage"]: line for line in process.lines()}
        left = wait_until_gone(process.mark) if ended else []
    version = stages["started"]["version"]
    says, good = verdict(fault, stages, ended=ended)
    if left:
        says, good = f"{says}; {len(left)} processes left", False
    return Cell(says, good, version)


def _until(process: Child, wanted: set[str], limit_s: float) -> dict[str, Any]:
    """Stages it has reached, once one of these is among them, it has ended, or it is too late."""
    stages: dict[str, Any] = {}
    for _ in range(int(limit_s / LOOK_S)):
        ended = process.wait(LOOK_S)
        stages = {line["stage"]: line for line in process.lines()}
        if ended or wanted & set(stages):
            break
    return stages


def verdict(fault: str, stages: dict[str, Any], *, ended: bool) -> tuple[str, bool]:
    """In words, and whether that is how it should be."""
    if fault == "parent killed":
        return "clean", True
    closing = "" if "closed" in stages else "; then close() hangs" if not ended else "; then close() fails"
    if "error" in stages:
        error = stages["error"]
        garbage = f"first {error['garbage'][0]}, then " if error["garbage"] else ""
        first = (error["text"].splitlines() or [""])[0]
        named = f"env {FAULTY}" in error["text"]
        return f"{garbage}{error['type']}: {first}{closing}", named and not closing and not garbage
    if "done" not in stages:
        return ("ends without a word", False) if ended else ("hangs", False)
    done = stages["done"]
    if done["garbage"]:
        return f"in silence: {done['garbage'][0]}{closing}", False
    named = {env for env in range(len(done["rows"])) if any(words.startswith(f"env {env} ") for words in done["told"])}
    if any(rows < ENOUGH for env, rows in enumerate(done["rows"]) if env not in named):
        return f"goes on without some: rows {done['rows']}{closing}", False
    if not done["told"]:
        return f"goes on in silence{closing}", fault == "env is late" and not closing  # who has no deadline may wait
    return f"goes on, told: {', '.join(dict.fromkeys(done['told']))}{closing}", not closing


def table(
    pythons: Sequence[str], faults: Sequence[str], step_timeout_s: float
) -> Iterator[tuple[str, dict[str, Cell]]]:
    """Every fault with a cell for each side; those that are installed nowhere are left out."""
    absent: set[str] = set()
    for fault in faults:
        cells: dict[str, Cell] = {}
        for side in SIDES:
            found = (observe(python, side, fault, step_timeout_s) for python in pythons if side not in absent)
            cell = next((cell for cell in found if cell is not None), None)
            if cell is None:
                absent.add(side)
            else:
                cells[side] = cell
        yield fault, cells


def print_cells(fault: str, cells: dict[str, Cell]) -> None:
    print(fault)
    for side, cell in cells.items():
        print(f"  {'+' if cell.good else '-'} {f'{side} {cell.version}':38} {cell.says}", flush=True)


def as_rows(found: dict[str, dict[str, Cell]]) -> list[dict[str, Any]]:
    """For programs: each of ours beside every peer."""
    return [
        {
            "name": f"{fault}, {ours}", "environment": "four, one of them misbehaves", "peer": peer,
            "peer_version": cells[peer].version, "ours": cells[ours].says, "theirs": cells[peer].says,
            "unit": "behaviour", "ratio": None, "spread": {}, "good": {"ours": cells[ours].good, "theirs": cells[peer].good},
        }
        for fault, cells in found.items() for ours in OURS if ours in cells for peer in PEERS if peer in cells
    ]  # fmt: skip


def main() -> None:
    end_tidily()
    parser = options(__doc__ or "", step_timeout_s=2.0)
    parser.add_argument("--peers", action="append", default=[], metavar="PYTHON",
                        help="an interpreter in whose environment peers are installed; may be given several times")  # fmt: skip
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"all without one: {', '.join(FAULTS)}")
    given = parser.parse_args()
    unknown = set(given.faults) - set(FAULTS)
    if unknown:
        parser.error(f"there is no fault {unknown.pop()}")
    rows = table(interpreters(given.peers), given.faults or list(FAULTS), given.step_timeout_s)
    found: dict[str, dict[str, Cell]] = {}
    if not given.json:
        print(", ".join(f"{name} {value}" for name, value in machine().items()))
    for fault, cells in rows:
        found[fault] = cells
        if not given.json:
            print_cells(fault, cells)
    if given.json:
        plain = {fault: {side: asdict(cell) for side, cell in row.items()} for fault, row in found.items()}
        print(json.dumps({"machine": machine(), "rows": as_rows(found), "cells": plain}))
    if any(not cell.good for row in found.values() for side, cell in row.items() if side in OURS):
        sys.exit(1)


if __name__ == "__main__":
    main()
