"""Networks that a run begins with and has not learned itself (``learn.begin_from``): found, kept, and given again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError

from headrace.core.errors import RecordDamaged, RunDirectoryError
from headrace.core.files import mark_of
from headrace.learners.base import BaseLearner
from headrace.learners.checkpoints import CheckpointStore
from headrace.learners.manifest import Checkpoint
from headrace.learners.on_policy import OnPolicyLearner
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.rundir import RunDirectory
from headrace.weights.tensor_file import load_tensors, save_tensors

BEGINNING_FILE = "beginning.safetensors"
"""Name of the file that keeps them, in the record's folder."""
HEADER_KEY = "beginning"
"""In the record's header: size and checksum of that file."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run takes over from another one."""

    arrays: Mapping[str, NDArray[Any]]
    """Of the other learner's state."""
    facts: Mapping[str, Any]
    """Where they are from."""

    def keep(self, record: Path) -> dict[str, int]:
        """Write them beside the record; what its header has to say of them.

        Raises:
            OSError: They cannot be written.
        """
        mark = save_tensors(record / BEGINNING_FILE, self.arrays, {"headrace": json.dumps(self.facts)})
        return {"bytes": mark.nbytes, "crc32": mark.crc32}


def beginning_of(config: ExperimentConfig) -> Beginning | None:
    """What ``learn.begin_from`` names, every byte checked; None: fresh networks.

    Raises:
        RunDirectoryError: There is no such run or checkpoint, or it is not sound.
    """
    if config.learn.begin_from is None:
        return None
    checkpoint = _checkpoint(Path(config.learn.begin_from))
    facts = {"run": str(checkpoint.folder.parents[1]), "version": checkpoint.version}
    return Beginning(checkpoint.load().arrays, facts)


def begin_with(learner: BaseLearner, beginning: Beginning | None) -> None:
    """Give a learner that has done nothing what it is to begin with.

    Raises:
        ConfigError: They are of other networks.
    """
    if beginning is not None:
        assert isinstance(learner, OnPolicyLearner), "the configuration refuses it for others"
        learner.algorithm.begin_with(beginning.arrays)


def kept_beginning(record: Path, header: Mapping[str, Any]) -> Beginning | None:
    """What the run of a record began with; None: fresh networks.

    Raises:
        RecordDamaged: It is missing, or not what the header says.
    """
    told = header.get(HEADER_KEY)
    if told is None:
        return None
    path = record / BEGINNING_FILE
    try:
        mark = mark_of(path)
        found = {"bytes": mark.nbytes, "crc32": mark.crc32}
        arrays, metadata = load_tensors(path) if found == told else ({}, {})
    except (OSError, SafetensorError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    if found != told:
        raise _damaged(path, "its bytes are not those that the run began with")
    return Beginning(arrays, json.loads(metadata["headrace"]))


def _checkpoint(path: Path) -> Checkpoint:
    """The one that is meant by the folder of a checkpoint, or the newest sound one of a run."""
    if path.parent.name == "checkpoints":
        return Checkpoint.read(path)
    run = RunDirectory.open(path)
    found, problems = CheckpointStore(run.checkpoints_dir, keep=1).newest_sound()
    if found is None:
        raise RunDirectoryError(
            f"{path} has no checkpoint that a run can begin from",
            problem="; ".join(problems) or "it has none at all",
            fix="name another run in learn.begin_from; a run writes checkpoints unless checkpoint.enabled = false",
        )
    return found


def _damaged(path: Path, problem: str) -> RecordDamaged:
    return RecordDamaged(
        "the networks that this run began with are not beside its record, so it cannot be replayed",
        file=path,
        problem=problem,
        fix="copy the whole run directory; what was learned can still be played and resumed",
    )
