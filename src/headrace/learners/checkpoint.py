"""The learner's own state on disk, so that a learner that dies can be replaced while the run goes on.

Experience is not in it: lanes are shared memory and outlive the learner. There is one file, replaced whole; a learner
that dies while writing leaves the one before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from headrace.core.errors import RunDirectoryError

STATE_FILE = "learner.safetensors"
"""Name of the file, in the run's folder of checkpoints."""
_FACTS = "headrace"


@dataclass(frozen=True, slots=True)
class LearnerState:
    """What a learner needs to go on besides the lanes."""

    arrays: Mapping[str, NDArray[Any]]
    """The algorithm's, see `headrace.algorithms.base.Algorithm.state`."""
    facts: Mapping[str, Any]
    """The learner's counts and generators, as JSON knows them."""

    def save(self, path: Path) -> None:
        """Replace the file in one piece.

        Raises:
            OSError: It cannot be written; the one before is unharmed.
        """
        part = path.with_name(f".{path.name}.{os.getpid()}")
        whole = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in self.arrays.items()}
        try:
            save_file(whole, part, metadata={_FACTS: json.dumps(self.facts)})
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> LearnerState | None:
        """The newest state; None if there is none yet.

        Raises:
            RunDirectoryError: The file is damaged.
        """
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads((file.metadata() or {})[_FACTS])
            return cls(load_file(path), facts)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunDirectoryError(
                "the learner's saved state cannot be read",
                file=path,
                problem=f"{type(error).__name__}: {error}",
                fix="start a new run; policies in checkpoints/<version>/ are separate files and stay usable",
            ) from error
