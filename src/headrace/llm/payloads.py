"""What the processes of a language-model run are started with. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.llm.config import RLConfig

WARM_START, INFERENCE, ORCHESTRATOR, TRAINER, TWIN = "warm-start", "inference", "orchestrator", "trainer", "twin"
"""Ids of the processes. ``warm-start`` makes version 0 and ends; ``twin`` does the work of the three others in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Basics:
    """What all of them need."""

    config: RLConfig
    run: Path
    """The run directory, absolute."""
    run_id: str
    own: Path | None = None
    """Folder with the board of a component that is started alone in a run it shares; None: the run directory."""

    @property
    def board(self) -> Path:
        """The board of the run."""
        return (self.own or self.run) / "board"

    @property
    def model(self) -> Path:
        """A Hugging Face folder: configuration and tokenizer of the model, made by the warm start."""
        return self.run / "model"

    @property
    def weights(self) -> Path:
        """Published versions, a folder each."""
        return self.run / "weights"

    @property
    def rollouts(self) -> Path:
        """Batches on their way to the trainer."""
        return self.run / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """Of the trainer, a folder for each step."""
        return self.run / "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartPayload:
    """For ``warm-start``: make tokenizer, model and version 0."""

    basics: Basics


@dataclass(frozen=True, slots=True, kw_only=True)
class InferencePayload:
    """For ``inference``.

    It is given the descriptor ``listen``: a socket that is bound and listens, so that clients wait instead of being refused
    while the server starts, or starts again.
    """

    basics: Basics
    serve_version: int
    """Published version to begin with; -1: the newest there is."""
    endpoint: str | None = None
    """Where clients will look for it, as ``http://host:port``; a foreign server has to bind that by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorPayload:
    """For ``orchestrator``.

    Descriptors, each optional: ``published`` becomes readable when the trainer has published; a byte written to ``shipped``
    wakes the trainer.
    """

    basics: Basics
    endpoint: str
    """Root of the server, e.g. ``http://127.0.0.1:8123``."""
    resume: Path | None = None
    """Folder of the checkpoint to go on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPayload:
    """For ``trainer``.

    Descriptors, each optional: ``shipped`` becomes readable when a batch may have arrived; a byte written to ``published``
    wakes the orchestrator.
    """

    basics: Basics
    resume: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinPayload:
    """For ``twin``: engine, orchestrator and trainer in turn, in one process."""

    basics: Basics
    resume: Path | None = None
