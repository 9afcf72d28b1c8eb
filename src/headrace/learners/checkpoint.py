"""The learner's own state on disk, so that a learner that dies can be replaced while the run goes on.

Experience is not in it: lanes are shared memory and outlive the learner. There is one file, replaced whole; a learner
that dies while writing leaves the one before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from headrace.core.errors import RunDirectoryError
from headrace.core.files import FileMark
from headrace.weights.tensor_file import load_tensors, save_tensors

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

    def copy(self) -> LearnerState:
        """The same, of its own memory."""
        arrays = {name: np.array(array) for name, array in self.arrays.items()}
        return LearnerState(arrays, json.loads(json.dumps(self.facts)))

    def save(self, path: Path) -> FileMark:
        """Replace the file in one piece.

        Returns:
            What it is recognised by.

        Raises:
            OSError: It cannot be written; the one before is unharmed.
        """
        return save_tensors(path, self.arrays, {_FACTS: json.dumps(self.facts)})

    @classmethod
    def load(cls, path: Path) -> LearnerState | None:
        """The newest state; None if there is none yet.

        Raises:
            RunDirectoryError: The file is damaged.
        """
        if not path.exists():
            return None
        try:
            arrays, metadata = load_tensors(path)
            return cls(arrays, json.loads(metadata[_FACTS]))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunDirectoryError(
                "the learner's saved state cannot be read",
                file=path,
                problem=f"{type(error).__name__}: {error}",
                fix="start a new run; policies in checkpoints/<version>/ are separate files and stay usable",
            ) from error
