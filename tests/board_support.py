"""Boards as tests want them: views, looks and plans without a process; boards of runs that are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.telemetry.board import COUNTERS, Activity, Board, SlotView, State
from headrace.telemetry.header import pack_header
from headrace.telemetry.looks import Look, Plan, Process

START_NS = 1_000 * 10**9
"""Of every run in these tests, on the board's clock."""

PLAN = Plan(
    limits={Activity.ENV_STEP: 30.0, Activity.UPDATE: 60.0, Activity.START: 60.0, Activity.WAIT_ROWS: 120.0},
    learning_starts=1_000,
    capacity=10_000,
    ratio=1.0,
    group_size=2,
    max_restarts=5,
    restart_window_s=300.0,
)


def component(name: str, activity: Activity = Activity.NONE, since_s: float = 0.0, **more: Any) -> SlotView:
    """A component in ``activity`` since so many seconds after the start of the run; ``more``: fields and counters."""
    counts = {key: more.pop(key) for key in list(more) if key in COUNTERS}
    kind = more.pop("kind", name.partition("-")[0])
    state = State.WAITING if activity.name.startswith("WAIT_") else State.RUNNING
    fields = {
        "index": 0, "pid": 0, "incarnation": 0, "state": state, "lane": -1, "step": -1, "waits_on": None,
        "need": 0, "have": 0, "deadline_s": 0.0,
    } | more  # fmt: skip
    return SlotView(
        id=name, kind=kind, activity=activity, since_ns=START_NS + int(since_s * 1e9),
        counters=dict.fromkeys(COUNTERS, 0) | counts, **fields,
    )  # fmt: skip


def look(at_s: float, *views: SlotView, processes: Mapping[str, Process] | None = None) -> Look:
    """The board so many seconds after the start of the run."""
    return Look(START_NS + int(at_s * 1e9), views, processes or {})


def rewritten(board: Board, **changes: object) -> None:
    """Give the board another head, as if it came from elsewhere."""
    data = bytearray(board.path.read_bytes())
    pack_header(replace(board.header, **changes), data)
    board.path.write_bytes(data)


def another_process(board: Board) -> None:
    """As if the supervisor had ended and somebody else had its number."""
    rewritten(board, supervisor_start=board.header.supervisor_start + 1)
