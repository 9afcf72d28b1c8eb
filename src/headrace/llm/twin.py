"""The process ``twin``: engine, orchestrator and trainer in turn. What three processes do at lag 0, it does bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import cast

import torch

from headrace.core.clock import MonotonicClock
from headrace.envs.text.building import close_environment
from headrace.ipc.child import ChildContext
from headrace.llm.engine.building import build_engine
from headrace.llm.engine.engine import Engine
from headrace.llm.engine.local import LocalGenerator
from headrace.llm.engine.rows import OnDone
from headrace.llm.messages import Batch, GenerationRequest, PublishedWeights, ServedWeights
from headrace.llm.orchestrating import Parts, Teller, advantages_of, listening
from headrace.llm.orchestration.orchestrator import Orchestrator, Surroundings
from headrace.llm.orchestration.presence import Presence
from headrace.llm.payloads import TwinPayload
from headrace.llm.training.building import build_trainer
from headrace.llm.training.loop import Surroundings as TrainerSurroundings
from headrace.llm.training.loop import TrainingLoop
from headrace.llm.transport import MemoryTransport
from headrace.supervision.messages import Done, Ready, Report
from headrace.supervision.telling import tell as tell_supervisor
from headrace.telemetry.board import Activity, Board, Slot, State


def twin(context: ChildContext) -> None:
    """Make rollouts and train on them until the run's last step, or until told to stop."""
    payload: TwinPayload = context.payload
    basics, config = payload.basics, payload.basics.config
    torch.set_num_threads(config.trainer.threads)
    with ExitStack() as stack:
        board = stack.enter_context(Board.attach(basics.board))
        slot = board.slot(context.id)
        slot.enter(Activity.START if payload.resume is None else Activity.RESUME)
        transport = MemoryTransport()
        training = _training(context, payload, slot, transport)
        parts = Parts(basics, payload.resume)
        stack.callback(close_environment, parts.environment)
        engine = build_engine(config, basics.model, training.published)
        presence = Presence(slot)

        async def ship(batch: Batch) -> None:
            transport.ship(batch)
            training.once()

        around = Surroundings(
            generator=LocalGenerator(cast("Engine", ShownEngine(engine, presence))),
            environment=parts.environment,
            renderer=parts.renderer,
            ship=ship,
            policies=parts,
            advantages=advantages_of(config),
            tell=Teller(context, slot, dict),
            presence=presence,
            server=context.id,
            trainer=context.id,
        )
        run = Orchestrator(config, basics.run_id, around, parts.carry)
        tell_supervisor(context.control, slot, Ready({"step": run.step, "version": training.trainer.version}))
        slot.set_state(State.RUNNING)
        with training.saved(), asyncio.Runner() as runner:
            runner.run(_work(context, run))
        facts = {"step": run.step, "books": run.books.to_json(), "version": training.trainer.version}
        facts["weights_sha256"] = training.published.sha256
        tell_supervisor(context.control, slot, Done(facts), last=True)


class ShownEngine:
    """An engine whose passes are on the board while they last.

    Args:
        engine: Does the work.
        presence: Of the process it runs in.
    """

    def __init__(self, engine: Engine, presence: Presence) -> None:
        self._engine = engine
        self._presence = presence

    def submit(self, requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
        """See `Engine.submit`."""
        self._engine.submit(requests, on_done)

    def cancel(self, ids: Collection[str]) -> int:
        """See `Engine.cancel`."""
        return self._engine.cancel(ids)

    def step(self) -> bool:
        """See `Engine.step`."""
        with self._presence.busy(Activity.GENERATE):
            return self._engine.step()

    def load(self, published: PublishedWeights) -> ServedWeights:
        """See `Engine.load`."""
        with self._presence.busy(Activity.LOAD_WEIGHTS):
            return self._engine.load(published)

    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """See `Engine.score`."""
        with self._presence.busy(Activity.SCORE):
            return self._engine.score(token_ids)


def _training(context: ChildContext, payload: TwinPayload, slot: Slot, transport: MemoryTransport) -> TrainingLoop:
    clock = MonotonicClock()
    trainer, checkpoint = build_trainer(payload.basics, clock, payload.resume)

    def tell(report: Report) -> None:
        tell_supervisor(context.control, slot, report)

    around = TrainerSurroundings(slot=slot, tell=tell, announce=lambda: None, clock=clock)
    return TrainingLoop(trainer, payload.basics, transport, around, checkpoint)


async def _work(context: ChildContext, run: Orchestrator) -> None:
    async with listening(context, run):
        await run.run()
