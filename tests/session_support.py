"""Runs in several sessions, for tests: each goes on where the one before was ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import headrace
from headrace.core.errors import RunDirectoryError
from headrace.runtime.api import Run
from headrace.telemetry.board import Board
from run_support import Runs, assert_books, events

OUTCOME = ("env_steps", "updates", "episodes", "policy_version", "first_update_at", "policy_lag", "weights_sha256")
"""Of a summary: what does not depend on how often a run was stopped."""


def go_on(run: Run, **settings: Any) -> Run:
    """Another session of a run; settings are keys with ``__`` for the dot."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return headrace.train(run_dir=run.path, resume=True, settings=dotted)


def in_sessions(
    runs: Runs, env: str, sessions: list[Mapping[str, Any]], kwargs: Mapping[str, object] | None = None, *,
    exact: bool = True, **settings: Any,
) -> Run:  # fmt: skip
    """A run that each session brings further; all of them completed, with balanced books and checkpoints as exact."""
    run = runs.train(env, kwargs=kwargs, **settings, **sessions[0])
    assert_completed(run)
    for session in sessions[1:]:
        run = go_on(run, **session)
        assert_completed(run)
    assert run.summary["sessions"] == len(sessions)
    assert {event["exact"] for event in events(run, "checkpoint")} == {exact}
    return run


def assert_completed(run: Run) -> None:
    """It came to its end, and its books balance."""
    assert run.completed, run.summary["error"]
    assert_books(run)


def outcome(run: Run) -> dict[str, Any]:
    """What another run with the same outcome has in common with it."""
    return {name: run.summary[name] for name in OUTCOME}


def assert_replays(run: Run) -> None:
    """The record of all sessions, once more in one process: it comes to the same."""
    found = headrace.replay(run.path)
    assert found.ended
    assert found.torn_bytes == 0
    assert (found.env_steps, found.updates) == (run.summary["env_steps"], run.summary["updates"])
    assert found.weights_sha256 == run.summary["weights_sha256"]


def metrics(run: Run) -> list[dict[str, Any]]:
    """What the learner reported over time; without evaluations, which come late, under an older step."""
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "updates" in line]


def board_updates(run: Path) -> int:
    """Updates of a run's learner, from outside; 0 as long as there is no board."""
    try:
        with Board.open(run / "board") as board:
            return board.read("learner").counters["updates"]
    except (RunDirectoryError, OSError, ValueError):
        return 0


def options(settings: Mapping[str, object]) -> list[str]:
    """Settings as the command takes them."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={_toml(value)}")]


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
