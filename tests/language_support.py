"""A tiny language-model run in this process: made folders, a supervisor that only listens, a trainer in turn."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.clock import MonotonicClock
from headrace.envs.text.building import build_text_environment
from headrace.ipc.child import ChildContext
from headrace.llm import tiny, weights
from headrace.llm.config import (
    FilterConfig,
    InferenceConfig,
    ModelConfig,
    OrchestratorConfig,
    RLConfig,
    RLEvaluationConfig,
    RLRunConfig,
    TextEnvConfig,
)
from headrace.llm.messages import Batch, Generator
from headrace.llm.orchestrating import Parts, advantages_of
from headrace.llm.orchestration.orchestrator import Orchestrator, Surroundings
from headrace.llm.orchestration.presence import Presence
from headrace.llm.payloads import Basics
from headrace.llm.training.building import build_trainer
from headrace.llm.training.loop import Surroundings as TrainerSurroundings
from headrace.llm.training.loop import TrainingLoop
from headrace.llm.transport import MemoryTransport
from headrace.supervision.messages import Report
from headrace.telemetry.board import Board

RUN_ID = "run-1"


def tiny_config(steps: int = 3, **run: Any) -> RLConfig:
    """Words of three letters and a model of a few thousand numbers; every group is trained on."""
    return RLConfig(
        run=RLRunConfig(seed=3, steps=steps, **run),
        model=ModelConfig(hidden=16, layers=2, heads=2, context_tokens=80),
        env=TextEnvConfig(name="wordle", kwargs={"letters": 3}),
        orchestrator=OrchestratorConfig(
            groups_per_step=3, group_size=4, max_policy_lag=0, filter=FilterConfig(zero_advantage=False)
        ),
        evaluation=RLEvaluationConfig(every_steps=2),
        inference=InferenceConfig(slots=8),
    )


def prepare(config: RLConfig, folder: Path) -> Basics:
    """Make what a warm start makes: ``model/`` and version 0."""
    basics = Basics(config=config, run=folder, run_id=RUN_ID)
    folder.mkdir(parents=True, exist_ok=True)
    env = build_text_environment(config.env.name, config.env.factory, config.env.kwargs)
    model = tiny.make_model_folder(config.model, env, basics.model, config.run.seed)
    probe = weights.make_probe(model, (1, 4, 5, 6, 2, 7, 8))
    weights.publish(model.state_dict(), version=0, weights_dir=basics.weights, run_id=RUN_ID, probe=probe, metadata={})
    return basics


@dataclass
class Listening:
    """The supervisor's end of a control channel; takes everything in, says what it is given."""

    says: list[Any] = field(default_factory=list)
    heard: list[Any] = field(default_factory=list)
    unsent_bytes = 0

    def __post_init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()

    def fileno(self) -> int:
        return self._theirs.fileno()

    def receive_all(self) -> list[Any]:
        said, self.says = self.says, []
        return said

    def post(self, message: Any) -> None:
        self.heard.append(message)

    def reports(self, kind: str) -> list[dict[str, Any]]:
        return [one.facts for one in self.heard if isinstance(one, Report) and one.kind == kind]

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@contextmanager
def child(name: str, payload: Any, board: Path, **fds: int) -> Any:
    """What a component is called with, and a board that has its slot."""
    Board.create(board, [(name, name)], RUN_ID).close()
    control = Listening()
    try:
        yield ChildContext(name, payload, dict(fds), control, os.getppid()), control  # type: ignore[arg-type]
    finally:
        control.close()


class InTurn:
    """Orchestrator and trainer in turn, with completions from wherever they are wanted."""

    def __init__(self, basics: Basics, resume: Path | None = None) -> None:
        self.basics = basics
        self.batches: list[Batch] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.resume = resume
        Board.create(basics.board, [("twin", "twin")], RUN_ID).close()

    def run(self, generating: Callable[[Callable[[Generator], Awaitable[None]]], Awaitable[None]]) -> InTurn:
        """``generating`` makes a generator and calls what it is given with it."""
        with Board.attach(self.basics.board) as board:
            slot, clock = board.slot("twin"), MonotonicClock()
            trainer, checkpoint = build_trainer(self.basics, clock, self.resume)
            transport = MemoryTransport()
            around = TrainerSurroundings(slot=slot, tell=lambda _: None, announce=lambda: None, clock=clock)
            self.training = TrainingLoop(trainer, self.basics, transport, around, checkpoint)
            parts = Parts(self.basics, self.resume)

            async def ship(batch: Batch) -> None:
                self.batches.append(batch)
                transport.ship(batch)
                self.training.once()

            async def work(generator: Generator) -> None:
                surroundings = Surroundings(
                    generator=generator,
                    environment=parts.environment,
                    renderer=parts.renderer,
                    ship=ship,
                    policies=parts,
                    advantages=advantages_of(self.basics.config),
                    tell=lambda kind, facts: self.told.append((kind, facts)),
                    presence=Presence(slot),
                )
                await Orchestrator(self.basics.config, RUN_ID, surroundings, parts.carry).run()

            asyncio.run(generating(work))  # type: ignore[arg-type]
        return self
