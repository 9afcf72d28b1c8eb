"""The crash tables of the learner, the evaluator and the parent: what goes wrong, and where.

Each cell is a real run of real processes. A cross-section runs in ``make test``, the whole tables in ``make test-all``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.ipc.channel import Deadline, poll_fds
from headrace.testing import provoke
from run_support import assert_books, assert_gapless, events, summary
from session_support import go_on

pytestmark = pytest.mark.process

HERE = Path(__file__).resolve().parents[1]
LANES = 4
SOON_S = 5.0
LIMIT_S, START_S = 1.5, 3.0
HOW = {
    "exit-0": "exit code 0",
    "exit-3": "exit code 3",
    "sys-exit": "exit code 0",
    "sigkill": "killed by SIGKILL (often the out-of-memory killer)",
    "sigsegv": "killed by SIGSEGV",
}


def cell(row: str, column: str, cross_section: set[tuple[str, str]]) -> Any:
    marks = [] if (row, column) in cross_section else [pytest.mark.table]
    return pytest.param(row, column, id=f"{row}, {column}", marks=marks)


def faults(run: Any, component: str) -> list[dict[str, Any]]:
    return events(run, "fault", component)


# The learner. It is never started again: what follows is the end, with the cause.

LEARNER = {
    ("sigkill", "update"), ("loop", "update"), ("exit-0", "build"), ("raises", "import"), ("nan", "update"),
}  # fmt: skip


@pytest.mark.thin(5)
@pytest.mark.parametrize(
    ("row", "column"),
    [cell(row, column, LEARNER) for row in provoke.ENDS for column in ("import", "build", "update")]
    + [cell("nan", "update", LEARNER)],
)
def test_a_learner_that_fails_ends_the_run_with_the_cause(runs, row, column):
    stalls = row in provoke.STALLS
    network = f"crash_networks:{column}__{row.replace('-', '_')}"
    settings: dict[str, Any] = {"algorithm__critic__factory": network, "algorithm__critic__hidden": [256, 256]}
    if stalls:
        settings |= {"deadlines__update_s": LIMIT_S} if column == "update" else {"deadlines__start_s": START_S}
    run = runs.train("run_envs:make", env__lanes=LANES, **settings)
    told = run.summary
    assert_books(run)
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane)
    assert told["restarts"] == 0
    assert faults(run, "learner")
    error = told["error"]
    if stalls:
        assert (told["outcome"], told["exit_code"], told["faults"]) == ("stalled", 3, {"stalled": 1})
        activity, limit_s = ("update", LIMIT_S) if column == "update" else ("start", START_S)
        assert error.startswith(f"[SUP-002] learner was busy with {activity} for ")
        assert f"(limit {limit_s:g} s)" in error
        assert "provoke.py:" in error, "the line it is stuck in"
        return
    assert told["outcome"] == "failed"
    assert told["faults"]["died"] >= 1
    if row == "sys-exit":
        assert told["exit_code"] == 1
        assert error.startswith(
            "[SUP-001] learner raised SystemExit\n  error: SystemExit: \n  where: crash_networks.py:"
        )
    elif row in HOW:
        assert told["exit_code"] == 1
        assert error.startswith(f"[SUP-001] learner ended although nobody asked it to: {HOW[row]}\n")
    elif row == "nan":
        assert told["exit_code"] == 1
        assert error.startswith("[ENV-003] ")
    elif column == "update":
        assert told["exit_code"] == 1
        name = "ValueError" if row == "raises" else "RefusesToTravel"
        assert error.startswith(f"[SUP-001] learner raised {name}\n  error: {name}: {provoke.WORDS}\n  where: ")
    else:
        assert told["exit_code"] == 2
        assert error.startswith("[CFG-001] network factory crash_networks:")
        assert provoke.WORDS in error
    if column == "update":
        assert told["books"]["produced"] > 0


# The evaluator. Training does not wait for it.

EVALUATOR = {
    ("exit-3", "construct"), ("sigsegv", "step"), ("sleep", "step"), ("raises", "close"), ("nan-reward", "step"),
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {
    "construct": {"place": "construct", "component": "evaluator"},
    "step": {"place": "step", "at": 5, "lane": provoke.NOT_A_LANE},
    "close": {"place": "close", "lane": provoke.NOT_A_LANE},
}
VALUES = ("wrong-shape", "nan-reward", "infinite-observation")


def evaluated(runs: Any, row: str, column: str, marker: Path) -> Any:
    settings: dict[str, Any] = {"evaluation__episodes": 2}
    if row in provoke.STALLS:
        limits = {"construct": ("start_s", START_S), "step": ("evaluate_s", LIMIT_S), "close": ("stop_s", LIMIT_S)}
        name, limit_s = limits[column]
        settings[f"deadlines__{name}"] = limit_s
    plan = {"what": row, "lanes": LANES, "marker": str(marker), **PLACES[column]}
    run = runs.train("run_envs:provoked", kwargs=plan, env__lanes=LANES, **settings)
    assert marker.exists(), run.summary["error"] or "it did not happen"
    assert_books(run)
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane)
    return run


@pytest.mark.thin(2)
@pytest.mark.parametrize(("row", "column"), [cell(row, "step", EVALUATOR) for row in provoke.ENDS])
def test_an_evaluator_that_fails_is_replaced_and_its_evaluation_repeated(runs, tmp_path, row, column):
    run = evaluated(runs, row, column, tmp_path / "marker")
    assert run.completed, run.summary["error"]
    (fault,) = faults(run, "evaluator")
    stalls = row in provoke.STALLS
    assert run.summary["faults"] == {"stalled" if stalls else "died": 1}
    assert run.summary["restarts"] == 1
    assert fault["text"].startswith("evaluator evaluate for " if stalls else f"evaluator {HOW.get(row, 'exit code 1')}")
    assert run.summary["env_steps"] >= 400
    assert run.summary["random_baseline"]["episodes"] == 2
    assert run.summary["evaluations"][-1]["env_steps"] == run.summary["env_steps"]


def test_an_evaluation_that_a_run_failed_for_is_made_once_the_environment_is_mended(runs, tmp_path):
    plan = {"what": "raises", "lanes": LANES, "marker": str(tmp_path / "marker"), **PLACES["step"]}
    run = runs.train(
        "run_envs:provoked", kwargs=plan, env__lanes=LANES, evaluation__episodes=2, evaluation__random_baseline=False,
        supervision__max_restarts=0,
    )  # fmt: skip
    assert (run.summary["outcome"], run.summary["culprit"]) == ("failed", "evaluator")
    assert (run.summary["evaluations"], run.summary["evaluations_skipped"]) == ([], 1)
    again = go_on(run)  # the marker is there now
    assert again.completed, again.summary["error"]
    assert [point["env_steps"] for point in again.summary["evaluations"]] == [again.summary["env_steps"]]
    assert again.summary["evaluations_skipped"] == 0


@pytest.mark.parametrize(("row", "column"), [cell(row, "construct", EVALUATOR) for row in provoke.ENDS])
def test_an_evaluator_that_cannot_start_ends_the_run_unless_it_was_killed_from_outside(runs, tmp_path, row, column):
    run = evaluated(runs, row, column, tmp_path / "marker")
    assert faults(run, "evaluator")
    if row == "sigkill":
        assert run.completed, run.summary["error"]
        assert run.summary["restarts"] == 1
        return
    error = run.summary["error"]
    assert run.summary["restarts"] == 0
    if row in provoke.STALLS:
        assert (run.summary["outcome"], run.summary["exit_code"]) == ("stalled", 3)
        assert error.startswith("[SUP-002] evaluator was busy with ")
    elif row in HOW:
        assert run.summary["exit_code"] == 1
        assert error.startswith(f"[SUP-001] evaluator ended although nobody asked it to: {HOW[row]}")
    else:
        assert run.summary["exit_code"] == 1
        assert "component: evaluator" in error
        assert provoke.WORDS in error


@pytest.mark.parametrize(("row", "column"), [cell(row, "close", EVALUATOR) for row in provoke.ENDS])
def test_an_evaluator_that_fails_at_its_end_costs_nothing(runs, tmp_path, row, column):
    run = evaluated(runs, row, column, tmp_path / "marker")
    assert run.completed, run.summary["error"]
    assert run.summary["restarts"] == 0
    assert run.summary["evaluations"][-1]["env_steps"] == run.summary["env_steps"]


@pytest.mark.parametrize(("row", "column"), [cell(row, "step", EVALUATOR) for row in VALUES])
def test_a_broken_contract_in_an_evaluation_is_named(runs, tmp_path, row, column):
    run = evaluated(runs, row, column, tmp_path / "marker")
    assert (run.summary["outcome"], run.summary["exit_code"]) == ("failed", 1)
    assert f"field: {'reward' if 'reward' in row else 'obs'}" in run.summary["error"]
    assert "step: 5" in run.summary["error"]


# The parent: the command itself, in every phase.

PHASES = {
    "probing": ("started", "probe"),
    "the learner starts": ("started", "learner"),
    "collectors start": ("started", "collector-1"),
    "training": ("salvaged-or-metrics", "learner"),
    "evaluating at the end": ("policy", "learner"),
}
PARENT = {("SIGKILL", "the learner starts"), ("SIGTERM", "training"), ("SIGSTOP", "training")}


@contextlib.contextmanager
def command(run_dir: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    settings = (
        f"env.lanes={LANES}", "replay.learning_starts=50", "collect.random_steps=50", "evaluation.episodes=3",
        "evaluation.every_steps=0", "algorithm.batch_size=32", "algorithm.actor.hidden=[16]",
        "algorithm.critic.hidden=[16]", "env.kwargs.step_s=0.002",
    )  # fmt: skip
    config = run_dir.with_suffix(".toml")
    config.write_text('[env]\nfactory = "run_envs:make"\n')
    line = [Path(sys.executable).with_name("headrace"), "train", str(config), "--run-dir", str(run_dir), *more]
    line += [part for setting in settings for part in ("--set", setting)]
    with subprocess.Popen(
        line, cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def pidfd(pid: int) -> Iterator[int]:
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def wait_for(run_dir: Path, phase: str, process: subprocess.Popen[str]) -> None:
    kind, component = PHASES[phase]
    deadline = Deadline(60.0)
    with pidfd(process.pid) as ended:
        while not reached(run_dir, kind, component):
            assert not deadline.passed, f"the run never came to {phase}"
            assert not poll_fds({ended: select.POLLIN}, 0.02), process.communicate(timeout=5.0)


def reached(run_dir: Path, kind: str, component: str) -> bool:
    if kind == "salvaged-or-metrics":
        metrics = run_dir / "metrics.jsonl"
        return metrics.exists() and metrics.stat().st_size > 0
    return bool(events(run_dir, kind, component))


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("row", "column"),
    [cell(row, column, PARENT) for row in ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT") for column in PHASES],
)
def test_whatever_happens_to_the_parent_nothing_outlives_it(tmp_path, row, column):
    """Cases C041, D054, N180, N181, N187 of the public reports, in every phase."""
    run_dir = tmp_path / "run"
    ends = column == "evaluating at the end" or row == "SIGSTOP"
    with command(run_dir, "--steps", "600" if ends else "10000000") as process:
        wait_for(run_dir, column, process)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(getattr(signal, row))
        if row == "SIGSTOP":
            with pidfd(process.pid) as ended:
                assert not poll_fds({ended: select.POLLIN}, 0.7), "a stopped process does not end"
            process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=60.0 if row == "SIGSTOP" else SOON_S)
        _, alive = psutil.wait_procs(family, timeout=SOON_S)
    assert not alive
    assert "Traceback" not in out + err
    expected = {"SIGKILL": -signal.SIGKILL, "SIGSTOP": 0}.get(row, 130)
    assert process.returncode == expected, err
    if row == "SIGKILL":
        assert not (run_dir / "summary.json").exists()
        for log in (run_dir / "logs").glob("*.log"):
            assert "Traceback" not in log.read_text(), "children leave quietly"
        return
    told = summary(run_dir)
    assert told["outcome"] == ("completed" if row == "SIGSTOP" else "interrupted")
    assert told["books"]["balanced"]
    assert told["faults"] == {}, "a pause of the parent is nobody's fault"
