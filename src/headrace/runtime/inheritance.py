"""Networks that a run begins with and has not learned itself (``learn.begin_from``): found, kept, and given again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium import spaces
from numpy.typing import NDArray
from safetensors import SafetensorError

from headrace.algorithms.encoding import ObservationEncoder
from headrace.core.errors import ConfigError, RecordDamaged, RunDirectoryError
from headrace.core.files import mark_of
from headrace.learners.base import BaseLearner
from headrace.learners.checkpoints import CheckpointStore
from headrace.learners.manifest import MANIFEST, Checkpoint
from headrace.learners.on_policy import OnPolicyLearner
from headrace.runtime.changes import changes
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.payloads import EnvSpaces
from headrace.runtime.rundir import RunDirectory
from headrace.weights.tensor_file import load_tensors, save_tensors

_ALIKE = ("algorithm.network.", "algorithm.normalize.", "env.frame_stack")
"""What has to be the other run's: the number of weights alone does not tell whether they mean the same."""
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
    spaces: EnvSpaces | None = None
    """Those that they were learned in; None: they were compared when the run began."""

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
        ConfigError: That run has other networks or statistics, or learned in another way.
        RunDirectoryError: There is no such run or checkpoint, or it is not sound.
    """
    if config.learn.begin_from is None:
        return None
    checkpoint = _checkpoint(Path(config.learn.begin_from))
    run = RunDirectory.open(checkpoint.folder.parents[1])
    _require_alike(config, run.read_config(), run.path)
    facts = {"run": str(run.path), "version": checkpoint.version}
    return Beginning(checkpoint.load().arrays, facts, EnvSpaces.told(checkpoint.policy()[1]))


def require_spaces(beginning: Beginning | None, here: EnvSpaces) -> None:
    """Refuse what was learned in other spaces than those ``here``; bounds may differ, what a number means may not.

    Raises:
        ConfigError: An observation or an action is made of other parts.
    """
    if beginning is None or beginning.spaces is None:
        return
    there = beginning.spaces
    observed = ObservationEncoder(there.observation).columns == ObservationEncoder(here.observation).columns
    for name, alike, theirs, ours in (
        ("observation", observed, there.observation, here.observation),
        ("action", _same_actions(there.action, here.action), there.action, here.action),
    ):
        if not alike:
            raise ConfigError(
                f"the run that learn.begin_from names has another {name} space than this one",
                run=beginning.facts["run"],
                found=theirs,
                expected=ours,
                fix="choose a run of an environment with the same spaces",
            )


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
    if path.parent.name == "checkpoints" and path.name.isdigit():
        if not (path / MANIFEST).is_file():
            names = (one.parent.name for one in path.parent.glob(f"*/{MANIFEST}"))
            whole = sorted(int(name) for name in names if name.isdigit())
            raise RunDirectoryError(
                f"{path.parents[1]} has no checkpoint {path.name}",
                checkpoints=", ".join(map(str, whole)) or "none",
                fix="choose one of these, or name the run alone: its newest sound checkpoint is taken",
            )
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


def _require_alike(here: ExperimentConfig, there: ExperimentConfig, run: Path) -> None:
    if not there.on_policy:
        raise ConfigError(
            f"the run that learn.begin_from names learned by {there.algorithm.name}, whose networks are others",
            run=run,
            fix="name a run of an on-policy algorithm (ppo, vtrace)",
        )
    differing = [change for change in changes(there, here) if change[0].startswith(_ALIKE)]
    if differing:
        raise ConfigError(
            "the run that learn.begin_from names has other networks or statistics than this one",
            run=run,
            differs="; ".join(f"{key}: {old!r} there, {new!r} here" for key, old, new in differing),
            fix="set these keys as that run has them, or choose another run",
        )


def _same_actions(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return one.shape == other.shape
    return bool(one == other)


def _damaged(path: Path, problem: str) -> RecordDamaged:
    return RecordDamaged(
        "the networks that this run began with are not beside its record, so it cannot be replayed",
        file=path,
        problem=problem,
        fix="copy the whole run directory; what was learned can still be played and resumed",
    )
