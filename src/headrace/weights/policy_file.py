"""A policy on disk: ``checkpoints/<version>/policy.safetensors``, complete or not there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from headrace.core.errors import RunDirectoryError

_NAME = "policy.safetensors"


def save_policy(
    checkpoints: Path, version: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, object]
) -> Path:
    """Write one version; it appears under its name only when complete.

    Args:
        checkpoints: The run's folder of checkpoints.
        version: Of the policy.
        arrays: All that acting needs, as published.
        facts: Stored as text beside the arrays, e.g. environment steps.

    Returns:
        The file.
    """
    folder = checkpoints / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{_NAME}.{os.getpid()}"
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # keeps a shape of ()
    save_file(whole, part, metadata={name: str(value) for name, value in (*facts.items(), ("version", version))})
    with part.open("rb") as file:
        os.fsync(file.fileno())
    return part.replace(folder / _NAME)


def load_policy_arrays(checkpoints: Path, version: int) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and facts of one version.

    Raises:
        RunDirectoryError: It is missing or damaged.
    """
    path = checkpoints / str(version) / _NAME
    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
        return load_file(path), facts
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(
            f"policy {version} of this run cannot be read",
            file=path,
            found=error,
            versions=", ".join(map(str, policy_versions(checkpoints))) or "none",
            fix="choose one of the versions",
        ) from error


def policy_versions(checkpoints: Path) -> list[int]:
    """Versions that are complete, oldest first."""
    found = checkpoints.glob(f"*/{_NAME}")
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())
