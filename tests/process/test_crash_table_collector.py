"""The crash table of the boundary between a run and its environments: what goes wrong, and where.

Each cell is a real run of real processes. A cross-section, each row and each column once, runs in ``make test``; the whole
table in ``make test-all``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.runtime.api import Run
from headrace.testing import provoke
from run_support import Runs, assert_books, assert_gapless, events

pytestmark = pytest.mark.process

LANES, CHUNK = 4, 8
COLUMNS: dict[str, dict[str, Any]] = {
    "import in the probe": {"place": "import"},
    "construct in the probe": {"place": "construct"},
    "construct in a collector": {"place": "construct", "component": "collector-1"},
    "reset, the very first": {"place": "reset", "lane": 0},
    "reset, later": {"place": "reset", "at": 3},
    "step, the first": {"place": "step"},
    "step, middle of a chunk": {"place": "step", "at": CHUNK + 5},
    "step, last of a chunk": {"place": "step", "at": 2 * CHUNK},
    "close": {"place": "close"},
}
BUILDING = ("import in the probe", "construct in the probe", "construct in a collector")
IN_PROBE = ("import in the probe", "construct in the probe", "reset, the very first")

HOW = {
    "raises": "exit code 1",
    "unpicklable": "exit code 1",
    "exit-0": "exit code 0",
    "exit-3": "exit code 3",
    "sys-exit": "exit code 0",
    "sigkill": "killed by SIGKILL (often the out-of-memory killer)",
    "sigsegv": "killed by SIGSEGV",
}
ACTIVITY = {"import": "env.construct", "construct": "env.construct", "reset": "env.reset", "step": "env.step"}
FOUND = {
    "wrong-shape": "float64 array of shape (1, 1, 2)",
    "wrong-dtype": "float32 array of shape (2,)",
    "out-of-range": "value 10",
    "nan-observation": "nan",
    "infinite-observation": "-inf",
    "nan-reward": "nan",
    "infinite-reward": "inf",
}
LIMIT_S = 1.5
"""Deadline of whatever hangs here."""


@dataclass(frozen=True)
class Cell:
    """One field of the table."""

    row: str
    column: str

    def __str__(self) -> str:
        return f"{self.row}, {self.column}"

    @property
    def makes_sense(self) -> bool:
        if self.row in FOUND:
            return self.column.startswith("step") or (self.column.startswith("reset") and "reward" not in self.row)
        return self.row in provoke.ENDS or self.column.startswith("step")

    @property
    def place(self) -> str:
        return str(COLUMNS[self.column]["place"])

    @property
    def component(self) -> str:
        return "probe" if self.column in IN_PROBE else "collector-1"


ROWS = (*provoke.ENDS, *FOUND, *provoke.GOING_ON)
CELLS = [cell for row in ROWS for column in COLUMNS if (cell := Cell(row, column)).makes_sense]
CROSS_SECTION = {
    ("raises", "construct in the probe"),
    ("unpicklable", "step, middle of a chunk"),
    ("exit-0", "step, the first"),
    ("exit-3", "import in the probe"),
    ("sys-exit", "step, last of a chunk"),
    ("sigkill", "close"),
    ("sigsegv", "reset, later"),
    ("sigstop", "step, last of a chunk"),
    ("loop", "step, middle of a chunk"),
    ("sleep", "reset, the very first"),
    ("gil", "construct in a collector"),
    ("wrong-shape", "reset, later"),
    ("wrong-dtype", "reset, the very first"),
    ("out-of-range", "step, middle of a chunk"),
    ("nan-observation", "step, last of a chunk"),
    ("infinite-observation", "step, the first"),
    ("nan-reward", "step, middle of a chunk"),
    ("infinite-reward", "step, last of a chunk"),
    ("prints", "step, the first"),
    ("leaks", "step, middle of a chunk"),
}


def cells(wanted: list[Cell]) -> list[Any]:
    return [
        pytest.param(cell, id=str(cell), marks=[] if (cell.row, cell.column) in CROSS_SECTION else [pytest.mark.table])
        for cell in wanted
    ]


def run_cell(runs: Runs, cell: Cell, marker: Any, **more: Any) -> Run:
    plan = {"what": cell.row, "lanes": LANES, "marker": str(marker), **COLUMNS[cell.column]}
    settings: dict[str, Any] = {}
    if cell.row in provoke.STALLS:
        limits = {"import": "start_s", "construct": "start_s", "reset": "reset_s", "step": "step_s", "close": "stop_s"}
        # A start takes its time on a busy machine.
        limit_s = 2 * LIMIT_S if limits[cell.place] == "start_s" else LIMIT_S
        settings = {f"deadlines__{limits[cell.place]}": limit_s}
        if cell.column.startswith("step") or cell.column == "reset, later":
            settings |= {"run__steps": 1_000_000, "run__run_duration_s": LIMIT_S + 2.5, "replay__ratio": 0.1}
            plan["step_s"] = 0.001
    elif cell.row in provoke.ENDS and is_started_again(cell):
        plan["waits"] = True
    if cell.row == "out-of-range":
        plan["inner"] = "levels"
    run = runs.train("run_envs:provoked", kwargs=plan, env__lanes=LANES, **settings, **more)
    assert marker.exists(), run.summary["error"] or "it did not happen"
    return run


def assert_sound(runs: Runs, run: Run, cell: Cell) -> None:
    """Whatever happened: the books balance to the unit, and no lane has a gap or a row twice."""
    assert_books(run)
    if cell.row != "out-of-range":
        for lane, rows in enumerate(runs.rows):
            assert_gapless(rows, lane, restarts=run.summary["restarts"])


def faults(run: Run) -> list[dict[str, Any]]:
    """What happened to components; the run's own verdict about it is told by the supervisor."""
    return [event for event in events(run, "fault") if event["component"] != "supervisor"]


def is_started_again(cell: Cell) -> bool:
    """A start that was killed from outside may succeed the next time; any other one that fails would fail again."""
    if cell.column in IN_PROBE or cell.column == "close":
        return False
    return cell.column not in BUILDING or cell.row == "sigkill"


GOES_ON = [cell for cell in CELLS if cell.row in provoke.ENDS and is_started_again(cell)]


@pytest.mark.thin(6)
@pytest.mark.parametrize("cell", cells(GOES_ON))
def test_a_collector_is_replaced_and_the_others_go_on(runs, tmp_path, cell):
    """Cases A005, C035, C036 of the public reports, at every place."""
    run = run_cell(runs, cell, tmp_path / "marker")
    assert run.completed, run.summary["error"]
    assert (run.summary["exit_code"], run.summary["error"], run.summary["restarts"]) == (0, None, 1)
    assert_sound(runs, run, cell)
    (fault,) = faults(run)
    assert fault["component"] == cell.component
    stalled = cell.row in provoke.STALLS
    assert run.summary["faults"] == {"stalled" if stalled else "died": 1}
    step = 20 if cell.place == "reset" else COLUMNS[cell.column].get("at", 1)
    if stalled:
        assert f" {ACTIVITY[cell.place]} for " in fault["text"]
        assert f"(limit {LIMIT_S:g} s), lane 1, step {step if cell.place == 'reset' else step - 1}" in fault["text"]
        assert fault["text"].endswith("; its process had been stopped by a signal") == (cell.row == "sigstop")
        assert (run.path / "stacks" / f"{cell.component}.0.txt").stat().st_size
    else:
        assert fault["text"] == f"{cell.component} {HOW[cell.row]}"
    if HOW.get(cell.row) == "exit code 1":
        assert fault["error"].startswith(
            f"[ENV-004] run_envs:provoked in lane 1 raised {'ValueError' if cell.row == 'raises' else 'RefusesToTravel'} "
            f"in {cell.place}()\n  component: {cell.component}\n"
        )
        assert f": {provoke.WORDS}\n  lane: 1\n  step: {step}\n" in fault["error"]
    assert events(run, "restarted", cell.component)
    books = run.summary["books"]
    assert books["in_flight"] == 0
    if stalled:
        # The others did not wait for it.
        produced = [lane["produced"] for lane in books["lanes"]]
        assert min(produced[0], produced[2]) > max(produced[1], produced[3])
        assert min(produced) > 24, "the one that was replaced got on as well"
    else:
        assert run.summary["env_steps"] >= 400


BEFORE = [
    cell for cell in CELLS
    if cell.row in provoke.ENDS and cell.column in (*BUILDING, *IN_PROBE) and not is_started_again(cell)
]  # fmt: skip


@pytest.mark.thin(4)
@pytest.mark.parametrize("cell", cells(BEFORE))
def test_a_start_that_fails_ends_the_run_at_once_and_names_the_cause(runs, tmp_path, cell):
    """Cases A004, C037, C040 of the public reports, at every place."""
    run = run_cell(runs, cell, tmp_path / "marker")
    summary, who = run.summary, cell.component
    assert summary["restarts"] == 0
    assert_sound(runs, run, cell)
    if cell.row == "sigstop" and summary["outcome"] == "completed":
        # To write its stacks it had to be woken, and was done before it could be killed.
        (stacks,) = events(run, "stacks")
        assert (cell.component, stacks["component"]) == ("probe", "probe")
        return
    assert faults(run)[0]["component"] == who
    if cell.row in provoke.STALLS:
        limit = f"{2 * LIMIT_S if cell.place != 'reset' else LIMIT_S:g}"
        assert (summary["outcome"], summary["exit_code"]) == ("stalled", 3)
        assert summary["error"].startswith(f"[SUP-002] {who} was busy with ")
        assert f" (limit {limit} s)" in summary["error"]
        return
    assert (summary["outcome"], summary["exit_code"]) == ("failed", 1)
    if HOW[cell.row] != "exit code 1":
        assert summary["error"].startswith(f"[SUP-001] {who} ended although nobody asked it to: {HOW[cell.row]}\n")
        return
    name = "ValueError" if cell.row == "raises" else "RefusesToTravel"
    if cell.place == "reset":
        assert summary["error"].startswith(f"[ENV-004] run_envs:provoked in lane 0 raised {name} in reset()\n")
    else:
        lane = 0 if who == "probe" else 1
        assert summary["error"].startswith(
            f"[ENV-001] building the environment of lane {lane} raised {name}: {provoke.WORDS}\n  component: {who}\n"
        )


AT_THE_END = [cell for cell in CELLS if cell.row in provoke.ENDS and cell.column == "close"]


@pytest.mark.parametrize("cell", cells(AT_THE_END))
def test_a_fault_while_closing_costs_nothing_that_was_collected(runs, tmp_path, cell):
    run = run_cell(runs, cell, tmp_path / "marker")
    assert run.completed, run.summary["error"]
    assert run.summary["restarts"] == 0
    assert_sound(runs, run, cell)
    assert run.summary["books"]["salvaged"] == 0
    assert run.summary["env_steps"] >= 400
    assert run.summary["weights_sha256"]


@pytest.mark.parametrize("row", ["raises", pytest.param("sigkill", marks=pytest.mark.table)])
def test_in_one_process_a_fault_while_closing_costs_nothing_either(runs, tmp_path, row):
    """The last policy is evaluated meanwhile, which takes a while."""
    plan = {"what": row, "lanes": LANES, "marker": str(tmp_path / "marker"), "place": "close", "step_s": 0.003}
    run = runs.train("run_envs:provoked", kwargs=plan, env__lanes=LANES, run__schedule="inline", evaluation__episodes=5)
    assert run.completed, run.summary["error"]
    assert (run.summary["restarts"], run.summary["faults"]) == (0, {"died": 1})
    assert run.summary["evaluations"][-1]["env_steps"] == run.summary["env_steps"]


IN_ONE_PROCESS = {
    "raises": ("failed", 1, "[ENV-004] run_envs:provoked in lane 1 raised ValueError in step()\n"),
    "exit-0": ("failed", 1, "[SUP-001] learner ended although nobody asked it to: exit code 0\n"),
    "sigsegv": ("failed", 1, "[SUP-001] learner ended although nobody asked it to: killed by SIGSEGV\n"),
    "sleep": ("stalled", 3, "[SUP-002] learner was busy with env.step for "),
    "gil": ("stalled", 3, "[SUP-002] learner was busy with env.step for "),
}


@pytest.mark.table
@pytest.mark.parametrize("row", IN_ONE_PROCESS)
def test_in_one_process_a_fault_is_the_end_and_is_named(runs, tmp_path, row):
    outcome, exit_code, begin = IN_ONE_PROCESS[row]
    cell = Cell(row, "step, middle of a chunk")
    run = run_cell(runs, cell, tmp_path / "marker", run__schedule="inline")
    assert (run.summary["outcome"], run.summary["exit_code"], run.summary["restarts"]) == (outcome, exit_code, 0)
    assert run.summary["error"].startswith(begin)
    assert_sound(runs, run, cell)


@pytest.mark.table
@pytest.mark.parametrize("row", provoke.ENDS)
def test_in_lockstep_a_collector_is_replaced_too(runs, tmp_path, row):
    cell = Cell(row, "step, last of a chunk")
    run = run_cell(runs, cell, tmp_path / "marker", run__schedule="lockstep")
    assert run.completed, run.summary["error"]
    assert run.summary["restarts"] == 1
    assert faults(run)[0]["component"] == cell.component
    assert_sound(runs, run, cell)


SPOILED = [cell for cell in CELLS if cell.row in FOUND]


@pytest.mark.parametrize("cell", cells(SPOILED))
def test_a_value_that_breaks_the_contract_ends_the_run_and_is_not_learned_from(runs, tmp_path, cell):
    """Cases Q204, Q206, Q207 of the public reports, at every place."""
    run = run_cell(runs, cell, tmp_path / "marker")
    assert (run.summary["outcome"], run.summary["exit_code"], run.summary["restarts"]) == ("failed", 1, 0)
    assert_sound(runs, run, cell)
    error = run.summary["error"]
    assert "run_envs:provoked" in error
    assert f"\n  field: {'reward' if 'reward' in cell.row else 'obs'}\n" in error
    assert FOUND[cell.row] in error.partition("  found: ")[2].partition("\n")[0]
    lane = 0 if cell.column in IN_PROBE else 1
    step = COLUMNS[cell.column].get("at", 1)
    step = {"reset, the very first": 0, "reset, later": 20}.get(cell.column, step)
    assert f"\n  lane: {lane}\n  step: {step}\n  fix: " in error
    assert faults(run)[0]["component"] == cell.component


UNHARMED = [cell for cell in CELLS if cell.row in provoke.GOING_ON]


@pytest.mark.parametrize("cell", cells(UNHARMED))
def test_a_nuisance_holds_nobody_up(runs, tmp_path, cell):
    """Case C038 of the public reports: 256 KiB printed per step; and a leak that the machine can bear."""
    run = run_cell(runs, cell, tmp_path / "marker")
    assert run.completed, run.summary["error"]
    assert (run.summary["faults"], run.summary["restarts"]) == ({}, 0)
    assert_sound(runs, run, cell)
    if cell.row == "prints":
        log = run.path / "logs" / "collector-1.log"
        steps = run.summary["books"]["lanes"][1]["produced"] - COLUMNS[cell.column].get("at", 1) + 1
        assert log.stat().st_size == steps * provoke.PRINTED_BYTES


WHOLE = {
    ("raises", "construct in the probe"): (
        "[ENV-001] building the environment of lane 0 raised ValueError: provoked by headrace: burn map corrupt, tile 7\n"
        "  component: probe\n"
        "  environment: run_envs:provoked\n"
        "  raised at: provoke.py in _raise\n"
        "  fix: correct what the message names; the environment can be tried alone by calling its factory"
    ),
    ("exit-3", "import in the probe"): (
        "[SUP-001] probe ended although nobody asked it to: exit code 3\n"
        "  pid: N\n"
        "  incarnation: 0\n"
        "  fix: read the last lines of logs/probe.log"
    ),
    ("sleep", "reset, the very first"): (
        "[SUP-002] probe was busy with env.reset for N s (limit 1.5 s), lane 0\n"
        "  pid: N\n"
        "  incarnation: 0\n"
        "  stuck in: provoke.py in _sleep\n"
        "  fix: read its stacks in stacks/; raise the deadline if it is only slow"
    ),
    ("wrong-dtype", "reset, the very first"): (
        "[ENV-002] obs does not fit what the environment declared\n"
        "  component: probe\n"
        "  environment: run_envs:provoked\n"
        "  field: obs\n"
        "  expected: float64 array of shape (2,)\n"
        "  found: float32 array of shape (2,)\n"
        "  lane: 0\n"
        "  step: 0\n"
        "  fix: correct the observation space or what the environment returns; env.cast_observations = true "
        "converts dtypes"
    ),
    ("nan-reward", "step, middle of a chunk"): (
        "[ENV-003] run_envs:provoked in lane 1 returned a value that is not finite from step()\n"
        "  component: collector-1\n"
        "  field: reward\n"
        "  expected: finite numbers\n"
        "  found: nan\n"
        "  lane: 1\n"
        "  step: 13\n"
        "  fix: find out why the environment returns it; nothing of this chunk from here on was stored"
    ),
}
"""What a user reads, in full; N for numbers that differ from run to run."""


@pytest.mark.thin(5)
@pytest.mark.parametrize(("row", "column"), WHOLE)
def test_the_whole_sentence_that_a_user_reads(runs, tmp_path, row, column):
    error = run_cell(runs, Cell(row, column), tmp_path / "marker").summary["error"]
    error = re.sub(r"pid: \d+", "pid: N", re.sub(r" for [\d.]+ s ", " for N s ", error))
    assert re.sub(r"\S*provoke\.py:\d+", "provoke.py", error) == WHOLE[row, column]


def test_each_row_and_each_column_is_in_the_cross_section():
    assert {row for row, _ in CROSS_SECTION} == set(ROWS)
    assert {column for _, column in CROSS_SECTION} == set(COLUMNS)
    assert {(cell.row, cell.column) for cell in CELLS} >= CROSS_SECTION
