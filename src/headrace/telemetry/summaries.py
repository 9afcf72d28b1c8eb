"""``summary.json``: how a run has ended. That it cannot be written hides nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.core.errors import RunDirectoryError, RunDirectoryLost
from headrace.core.files import remedy, write_whole
from headrace.telemetry.events import plain


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write it in one piece: a reader finds the old one, the new one or none, never a part.

    Numbers that JSON does not know (NaN, infinity) become null.

    Raises:
        RunDirectoryError: It cannot be written; an older one is unharmed.
    """
    try:
        write_whole(path, [f"{json.dumps(plain(summary), indent=2)}\n".encode()])
    except OSError as error:
        raise RunDirectoryError(
            f"{path} cannot be written",
            problem=f"{type(error).__name__}: {error}",
            fix=f"{remedy(error)}; events.jsonl holds what happened until then",
        ) from None


def left(summary: Mapping[str, Any], write: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """The summary of a run that is over, once it is written or cannot be.

    Args:
        summary: With ``exit_code``.
        write: As `headrace.runtime.rundir.RunDirectory.write_summary`.

    Returns:
        The same; if it could not be written ``unwritten`` says why, and a run that was fine ends with exit code 1. That its
        directory is lost is not said again of a run that has failed for that.
    """
    try:
        write(summary)
    except (RunDirectoryError, RunDirectoryLost) as error:
        if isinstance(error, RunDirectoryLost) and str(summary["error"]).startswith(f"[{error.code}]"):
            return dict(summary)
        problem = error.facts.get("problem", error.what)
        unwritten = f"summary.json could not be written: {problem}\n  fix: {error.fix}"
        return {**summary, "exit_code": summary["exit_code"] or 1, "unwritten": unwritten}
    return dict(summary)
