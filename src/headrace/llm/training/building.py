"""How a trainer is made from what lies in a run directory; the same for its own process and for the twin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from headrace.core.clock import Clock
from headrace.core.errors import RunDirectoryError
from headrace.llm.modelfiles import require_same_model
from headrace.llm.payloads import Basics
from headrace.llm.tiny import load_model
from headrace.llm.training.checkpoints import RLCheckpoint, read_checkpoint
from headrace.llm.training.trainer import Trainer
from headrace.llm.weights import read, tensors_sha256


def build_trainer(basics: Basics, clock: Clock, resume: Path | None) -> tuple[Trainer, RLCheckpoint | None]:
    """The trainer of a run, at its beginning or as a checkpoint has it.

    Args:
        basics: Of the run; ``model/`` and version 0 of the weights are there.
        clock: For what is reported about time.
        resume: Folder of a checkpoint; None: begin with version 0.

    Raises:
        SnapshotCorrupt: Version 0 is missing or damaged.
        RunDirectoryError: Something is of another run, the checkpoint is damaged, or the model's files were changed.
        ConfigError: The settings do not fit the model or the checkpoint.
    """
    config = basics.config
    _, first = read(basics.weights / "0", basics.run_id)
    require_same_model(basics.model, basics.weights / "0", basics.run_id)
    initial = load_model(basics.model, first) if config.trainer.loss.kl_weight else None
    trainer = Trainer(load_model(basics.model, first), config, run_id=basics.run_id, clock=clock, initial=initial)
    if resume is None:
        return trainer, None
    checkpoint = read_checkpoint(resume, basics.run_id)
    checkpoint.require_fits(config)
    trainer.load_state(checkpoint.load(), checkpoint.version)
    _require_same_weights(checkpoint, trainer.tensors())
    return trainer, checkpoint


def _require_same_weights(checkpoint: RLCheckpoint, tensors: Mapping[str, Tensor]) -> None:
    found = tensors_sha256(tensors)
    if found != checkpoint.weights_sha256:
        raise RunDirectoryError(
            "a checkpoint does not give the weights that were published with it",
            folder=checkpoint.folder,
            published=checkpoint.weights_sha256,
            found=found,
            fix="resume on the kind of device and with the version of torch that made it",
        )
