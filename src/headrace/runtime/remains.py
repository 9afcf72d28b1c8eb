"""What a run that has ended, in whatever way, left in its directory, and what can be begun there: decided in one place.

Only names, the board and manifests are looked at, and the configuration as a plain table, so that the doctor may ask for
a run of another version too. Whether a checkpoint is sound is found out by whoever goes on from it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import RunDirectoryError
from headrace.core.toml import read_table
from headrace.learners.manifest import MANIFEST, Checkpoint
from headrace.telemetry.board import Board
from headrace.telemetry.events import is_number
from headrace.weights.policy_file import policy_versions

if TYPE_CHECKING:
    from headrace.runtime.rundir import RunDirectory

LANGUAGE_MANIFEST = "manifest.json"
"""Of a checkpoint of a language-model run."""


class Onward(Enum):
    """What comes after a run that has ended."""

    RESUME = "it goes on from a checkpoint"
    ANEW = "there is none, and nothing that anybody could miss: it begins anew in its directory"
    ELSEWHERE = "there is none, and what it left stays: a run begins in another directory"


def onward(run: RunDirectory) -> Onward:
    """What can be begun where a run has ended; not to be asked of one that is alive."""
    if not run.config_file.is_file():
        return Onward.ELSEWHERE  # whatever it holds, no run can go on or begin with it
    if "orchestrator" in read_table(run.config_file):
        if any(run.checkpoints_dir.glob(f"*/{LANGUAGE_MANIFEST}")):
            return Onward.RESUME
        return Onward.ANEW if never_trained(run) else Onward.ELSEWHERE
    if why_new(run) is not None:
        return Onward.ANEW
    return Onward.RESUME if any(run.checkpoints_dir.glob(f"*/{MANIFEST}")) else Onward.ELSEWHERE


def way_on(run: RunDirectory) -> str:
    """How whoever's run this is goes on once it has ended, in words, with the command that does it.

    Raises:
        RunDirectoryError: Its summary is damaged.
    """
    path, table = run.path.absolute(), read_table(run.config_file)
    own = shlex.quote(str(path))
    config = shlex.quote(str(path / run.config_file.name))
    if "process" in table:  # of headrace supervise, whose runs begin anew
        return f"start it again: headrace supervise {config}"
    is_language = "orchestrator" in table
    if is_language and path.parent.name == "alone":  # of one component, see `headrace.llm.launch.alone`
        return f"start it again: headrace {path.name} --run-dir {shlex.quote(str(path.parent.parent))}"
    again = f"headrace rl @ {config}" if is_language else f"headrace train {config}"
    taken = shlex.quote(f"sft.checkpoint={path}")
    learned = (
        f"; --set {taken} gives it the newest weights of this one" if any(path.glob("weights/*/manifest.json")) else ""
    )
    match onward(run):
        case Onward.RESUME:
            command = f"headrace {'rl' if is_language else 'train'} --resume --run-dir {own}"
            if _has_its_steps(run.read_summary() or {}, table, "steps" if is_language else "env_steps"):
                return f"go on from its newest checkpoint, with more steps than it had: {command} --steps N"
            return f"go on from its newest checkpoint: {command}"
        case Onward.ANEW:
            if is_language:  # it may have been a warm start alone, which nothing in the directory tells
                return f"it left nothing to go on from; begin it again in its directory, as it was begun or by: {again} --run-dir {own}"
            return f"it left nothing to go on from; begin it again in its directory: headrace train --resume --run-dir {own}"
        case Onward.ELSEWHERE:
            return f"it left no checkpoint to go on from; begin another like it in a directory of its own: {again}{learned}"


def policy_to_come(run: RunDirectory) -> str:
    """What to do about a run that holds no policy: wait for one, unless it has ended.

    Raises:
        RunDirectoryError: Its summary is damaged.
    """
    outcome = (run.read_summary() or {}).get("outcome")
    if outcome is None:
        return "wait for the run's first evaluation or checkpoint, or choose another run"
    own = shlex.quote(str(run.path))
    return f"choose another run: this one ended ({outcome}) before there was one, see headrace doctor {own}"


def _has_its_steps(summary: Mapping[str, Any], table: Mapping[str, Any], counter: str) -> bool:
    """Whether a run has all it was to have, so that a resume is refused; a limit or a target may have completed it before."""
    section = table.get("run")
    had = summary.get(counter)
    steps: Any = section.get("steps") if isinstance(section, dict) else None
    return summary.get("outcome") == "completed" and is_number(had) and is_number(steps) and bool(had >= steps)


def why_new(run: RunDirectory) -> str | None:
    """Why ``headrace train --resume`` begins a new run in a directory, in words; None if it holds one that has begun."""
    if not run.config_file.is_file():
        return "holds no run yet"
    if never_began(run):
        return "holds a run that ended before its first environment step"
    if holds_only_a_configuration(run):
        return "holds a configuration and nothing else"
    return _died_too_early(run)


def never_began(run: RunDirectory) -> bool:
    """Whether a run ended here before its first environment step."""
    if any(_may_hold_steps(path.parent) for path in run.checkpoints_dir.glob(f"*/{MANIFEST}")):
        return False  # also where it was resumed since, and has not come as far again
    if run.summary_file.exists():
        summary = run.read_summary() or {}
        return summary.get("outcome") != "completed" and (summary.get("books") or {}).get("produced") == 0
    # Killed before it could write a summary. The board knows what the learner had been given.
    if not run.board_file.exists() or (run.metrics_file.exists() and run.metrics_file.stat().st_size):
        return False
    try:
        with Board.open(run.board_file) as board:
            return not any(view.counters["env_steps"] for view in board.read_all())
    except RunDirectoryError:
        return False


def never_trained(run: RunDirectory) -> bool:
    """Whether a language-model run ended here before its trainer made its first step."""
    if not run.config_file.exists():
        return False
    if any(path.name.isdigit() and int(path.name) > 0 for path in (run.path / "weights").glob("*")):
        return False
    if run.summary_file.exists():
        return (run.read_summary() or {}).get("outcome") != "completed"
    return not any(run.checkpoints_dir.glob("*"))


def holds_only_a_configuration(run: RunDirectory) -> bool:
    """Whether a run was killed in its very first moment, or somebody has put the file there."""
    written = run.board_file, run.events_file, run.metrics_file, run.summary_file
    return not any(path.exists() for path in written)


def _died_too_early(run: RunDirectory) -> str | None:
    """What became of a run that was killed before its first checkpoint, in words; None of any other.

    One that ends in order writes a checkpoint, or says why not; it is not for us to put it aside.
    """
    kept = policy_versions(run.checkpoints_dir) or any(run.checkpoints_dir.glob(f"*/{MANIFEST}"))
    if kept or run.summary_file.exists() or not _writes_checkpoints(run):
        return None
    try:
        with Board.open(run.board_file) as board:
            env_steps = max(view.counters["env_steps"] for view in board.read_all())
    except RunDirectoryError:
        return None
    return f"holds a run that was killed before its first checkpoint, so its {env_steps:,} environment steps are lost"


def _writes_checkpoints(run: RunDirectory) -> bool:
    """False also where the configuration cannot be read: nobody knows what it left, and nothing begins with it."""
    section = read_table(run.config_file).get("checkpoint")
    return isinstance(section, dict) and section.get("enabled") is True


def _may_hold_steps(checkpoint: Path) -> bool:
    """Whether something is lost with it: whoever ends in order writes one, also before the first environment step."""
    try:
        return bool(Checkpoint.read(checkpoint).facts.get("env_steps") != 0)
    except RunDirectoryError:
        return True
