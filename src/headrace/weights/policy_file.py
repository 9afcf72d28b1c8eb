"""A policy on disk: ``checkpoints/<version>/policy.safetensors``, complete or not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError

from headrace.core.errors import RunDirectoryError
from headrace.core.files import FileMark, sync_folder
from headrace.weights.tensor_file import load_tensors, save_tensors

POLICY_FILE = "policy.safetensors"


def save_policy(
    checkpoints: Path, version: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, object]
) -> Path:
    """Write one version; it appears under its name only when complete.

    A file that holds the same arrays already is left as it is, because a checkpoint may rely on its bytes.

    Args:
        checkpoints: The run's folder of checkpoints.
        version: Of the policy.
        arrays: All that acting needs, as published.
        facts: Stored as text beside the arrays, e.g. environment steps, and `headrace.core.spaces.space_facts`.

    Returns:
        The file.

    Raises:
        OSError: It cannot be written; the one before is unharmed.
    """
    path = made_folder(checkpoints, version) / POLICY_FILE
    if not holds(path, arrays):
        write_policy(path, version, arrays, facts)
    return path


def made_folder(checkpoints: Path, version: int) -> Path:
    """The folder of a version, made if it is not there. What ``checkpoints`` lies in is not: that run was moved away."""
    folder = checkpoints / str(version)
    if not folder.exists():
        if not checkpoints.exists():
            checkpoints.mkdir()
        folder.mkdir()
        sync_folder(checkpoints)
    return folder


def write_policy(path: Path, version: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, object]) -> FileMark:
    """As `save_policy`, under any name in a folder that exists.

    Returns:
        What the file is recognised by.
    """
    texts = {name: str(value) for name, value in facts.items()}
    return save_tensors(path, arrays, texts | {"version": str(version)})


def load_policy_arrays(checkpoints: Path, version: int) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and facts of one version.

    Raises:
        RunDirectoryError: It is missing or damaged.
    """
    path = checkpoints / str(version) / POLICY_FILE
    try:
        return load_tensors(path)
    except (OSError, SafetensorError) as error:
        others = [str(one) for one in policy_versions(checkpoints) if one != version]
        raise RunDirectoryError(
            f"policy {version} of this run {_happened(error)}",
            file=path,
            found=error,
            other_versions=", ".join(others) or "none",
            fix="choose one of the other versions" if others else "copy it again, if there is a copy",
        ) from error


def read_policy(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and facts of a policy's file, wherever it lies.

    Raises:
        RunDirectoryError: It is missing or damaged.
    """
    try:
        return load_tensors(path)
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(
            f"{path.name} {_happened(error)}", file=path, found=error, fix="copy it again from the run it belongs to"
        ) from error


def _happened(error: OSError | SafetensorError) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    return "cannot be read" if isinstance(error, OSError) else "is damaged"


def whole_policies(checkpoints: Path, versions: Iterable[int]) -> set[int]:
    """Those of these versions whose file is there, and undamaged."""
    found = set()
    for version in versions:
        with contextlib.suppress(RunDirectoryError):
            load_policy_arrays(checkpoints, version)
            found.add(version)
    return found


def holds(path: Path, arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether a file is there, undamaged, with these very arrays, bit for bit."""
    try:
        found, _ = load_tensors(path)
    except (OSError, SafetensorError):
        return False
    return found.keys() == arrays.keys() and all(
        (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        and found[name].tobytes() == array.tobytes()
        for name, array in arrays.items()
    )


def policy_versions(checkpoints: Path) -> list[int]:
    """Versions that are complete, oldest first."""
    found = checkpoints.glob(f"*/{POLICY_FILE}")
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())
