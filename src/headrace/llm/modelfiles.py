"""The files of ``model/`` are those that the run began with: another tokenizer or configuration learns, and plays, something else.

Their sums lie in the sealed manifests of the weights, which are of no use with other ones. Imports no torch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from headrace.core.errors import RunDirectoryError
from headrace.llm import weights

KEY = "model_files"
"""Of a version's metadata: sha256 of each file, by its path in the folder."""


def sums_of(folder: Path) -> dict[str, str]:
    """What the files of a folder are recognised by, in its subfolders too."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def require_same_model(model: Path, version: Path, run_id: str) -> None:
    """Refuse a model of which a file is not as it was when the run's first weights were published.

    Files that have come since are nobody's concern; so is all, where the weights are of a run that wrote no sums down.

    Args:
        model: ``model/`` of a run.
        version: Folder of any version of its weights.
        run_id: Of the run.

    Raises:
        RunDirectoryError: A file is missing, or another one; or the version is of another run.
        SnapshotCorrupt: The version has no manifest, or a damaged one.
    """
    wrong = {}
    for name, expected in weights.metadata_of(version, run_id).get(KEY, {}).items():
        try:
            found = _sha256(model / name)
        except OSError as error:
            wrong[name] = f"{type(error).__name__}: {error.strerror}"
            continue
        if found != expected:
            wrong[name] = f"sha256 {found[:16]}… instead of {expected[:16]}…"
    if wrong:
        raise RunDirectoryError(
            "the run's model is missing a file, or one was changed since the run began",
            folder=model,
            problem="; ".join(f"{name}: {problem}" for name, problem in wrong.items()),
            fix="restore it from a copy, or begin a new run in another directory",
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
