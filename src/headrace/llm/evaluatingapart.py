"""`headrace eval` of a language-model run in a process of its own, which ends where the environment does not come back."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import cloudpickle

from headrace.core.errors import ComponentDied, ComponentStalled, HeadraceError, RunDirectoryError
from headrace.llm import weights
from headrace.llm.config import RLConfig
from headrace.llm.guarding import IMPORT_S, found_dead, last_line, run_apart, was_late
from headrace.llm.launch.place import LanguageRun

if TYPE_CHECKING:
    from headrace.llm.orchestration.evaluation import Result

FOUND = "found"
_OUTPUT = "output"


def evaluate_apart(
    place: LanguageRun, episodes: int | None, version: int | None, on_note: Callable[[str], None]
) -> Result:
    """As `headrace.llm.evaluating.evaluate_run`, with a limit for each call of the environment, ``deadlines.env_s``.

    Raises:
        ComponentStalled: Such a call, or all of it, took too long.
        ComponentDied: The environment ended the process.
        HeadraceError: See there.
    """
    limit_s = limit_of(place.read_rl_config()) + IMPORT_S
    require_weights(place, version)
    with tempfile.TemporaryDirectory(prefix="headrace-eval-") as name:
        folder = Path(name)
        what = json.dumps({"episodes": episodes, "version": version})
        command = [sys.executable, "-m", "headrace.llm.evaluating", str(place.path), str(folder), what]
        returncode = run_apart(command, folder / _OUTPUT, limit_s)
        try:
            notes, found = cloudpickle.loads((folder / FOUND).read_bytes())
        except OSError:
            dead = found_dead(folder, returncode, last_line(folder / _OUTPUT))
            kind = ComponentStalled if was_late(folder, returncode) else ComponentDied
            raise kind(f"the evaluation was ended: {dead.text}", fix=dead.fix or "see what it printed") from None
    for note in notes:
        on_note(note)
    if isinstance(found, HeadraceError):
        raise found
    return cast("Result", found)


def limit_of(config: RLConfig) -> float:
    """Seconds that a whole evaluation may take."""
    deadlines = config.deadlines
    return 2 * deadlines.start_s + deadlines.evaluate_s + 4 * deadlines.env_s


def require_weights(place: LanguageRun, version: int | None) -> None:
    """Refuse at once what need not be waited for.

    Raises:
        RunDirectoryError: There is no such version.
    """
    there = weights.versions(place.weights_dir)
    if not there or (version is not None and version not in there):
        raise lacking(place, version, there)


def lacking(place: LanguageRun, version: int | None, there: Sequence[int]) -> RunDirectoryError:
    """The error where weights are asked for that are not there."""
    return RunDirectoryError(
        f"{place.path} has no weights" + (f" of version {version}" if version is not None else " yet"),
        has=", ".join(map(str, there)) or "none",
        fix="name one that it has; older ones are removed as the run goes on" if there else "wait for its warm start",
    )
