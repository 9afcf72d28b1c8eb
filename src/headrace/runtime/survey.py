"""Looks at what a run has left on disk for the newest place from which it can go on."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from headrace.core.config import is_of_its_program
from headrace.core.errors import RecordDamaged, RunDirectoryError
from headrace.learners.checkpoints import CheckpointStore
from headrace.learners.manifest import Checkpoint
from headrace.record.events import ChunkCommitted, GroupSalvaged, RowPlace, updates_after
from headrace.record.rows import RowReader, segments_in
from headrace.record.trace import Trace
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.history import read_history
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.resume import ResumePoint
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board
from headrace.telemetry.events import read_events
from headrace.telemetry.metrics import wall_s_at
from headrace.weights.policy_file import policy_versions


def find_resume_point(run: RunDirectory, config: ExperimentConfig) -> ResumePoint:
    """The newest checkpoint of a run that is sound, and whose record reaches as far.

    Args:
        run: Held by the caller, so that nobody writes into it.
        config: Which it goes on with.

    Raises:
        RunDirectoryError: There is none; says what there is instead.
    """
    store = CheckpointStore(run.checkpoints_dir, config.checkpoint.keep)
    oldest = min(segments_in(run.record_dir), default=0)
    newest, problems = store.newest_sound(oldest)
    for found in store.checkpoints():
        if newest is None or found.saved > newest.saved:
            continue
        try:
            if found.saved != newest.saved:
                found.check(oldest)
                found.load()
            lost_env_steps, lost_updates = _lost_behind(found, run.record_dir)
            env_steps, updates = _reached(run)
            if env_steps - found.facts["env_steps"] > lost_env_steps:  # the record ended before its run: a full disk
                lost_env_steps = env_steps - found.facts["env_steps"]
                lost_updates = max(lost_updates, updates - found.facts["updates"])
        except (RunDirectoryError, RecordDamaged) as error:
            problems.append(f"checkpoint {found.version} cannot be used: {error.what}")
            continue
        facts, history = found.facts, read_history(read_events(run.events_file))
        wall_s = wall_s_at(run.metrics_file, facts["env_steps"])
        return ResumePoint(
            folder=found.folder,
            version=found.version,
            env_steps=facts["env_steps"],
            updates=facts["updates"],
            facts=facts,
            lost_env_steps=lost_env_steps,
            lost_updates=lost_updates,
            problems=(*problems, *_damaged(run.events_file, history.damaged)),
            session=1 + len(history.resumes),
            wall_s=facts.get("session_s", 0.0) if wall_s is None else wall_s,
        )
    raise _nowhere(run, config, problems)


def _lost_behind(found: Checkpoint, record: Path) -> tuple[int, int]:
    """Environment steps and updates that a record holds beyond a checkpoint.

    Raises:
        RecordDamaged: It does not reach as far as the checkpoint.
    """
    at, env_steps, updates = found.facts["trace_bytes"], 0, found.facts["updates"]
    with Trace.open(record / TRACE_FILE) as trace, RowReader(record) as rows:
        trace.require(at)
        rows.require(RowPlace(*found.facts["rows"]))
        with suppress(RecordDamaged):  # behind the checkpoint: what cannot be read is lost, and not counted
            for _, event in trace.events(at):
                if isinstance(event, ChunkCommitted):
                    env_steps += sum(part.transitions for part in event.lanes)
                elif isinstance(event, GroupSalvaged):
                    env_steps += sum(part.salvaged for part in event.lanes)
                updates = updates_after(event)
    return env_steps, max(0, updates - found.facts["updates"])


def _damaged(file: Path, lines: list[int]) -> tuple[str, ...]:
    """What is told of lines that nothing can be taken from, a sentence; nothing if there are none."""
    if not lines:
        return ()
    if len(lines) == 1:
        return (f"line {lines[0]} of {file.name} is damaged",)
    return (f"{len(lines)} lines of {file.name} are damaged, the first is line {lines[0]}",)


def _reached(run: RunDirectory) -> tuple[int, int]:
    """Environment steps and updates that the last learner had come to by its board; 0 where that is not known."""
    with suppress(RunDirectoryError), Board.open(run.board_file) as board:
        for view in board.read_all():
            if view.id == "learner":
                return view.counters["env_steps"], view.counters["updates"]
    return 0, 0


def _nowhere(run: RunDirectory, config: ExperimentConfig, problems: list[str]) -> RunDirectoryError:
    versions = policy_versions(run.checkpoints_dir)
    fix = "start a new run with another --run-dir"
    if versions and not is_of_its_program(config.env.factory):
        fix += f"; the newest policy of this one plays with `headrace eval {shlex.quote(str(run.path))}`"
    return RunDirectoryError(
        f"{run.path} holds no checkpoint that the run could go on from",
        checkpoints="; ".join(problems) or "none was written",
        checkpoint_enabled=config.checkpoint.enabled,
        policies=f"{len(versions)}, the newest of version {versions[-1]}" if versions else "none",
        fix=fix,
    )
