"""The process ``orchestrator``: environments, groups and books, between a server of completions and a trainer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, get_args

from headrace.core.errors import ChannelClosed
from headrace.envs.text.asking import problems_of
from headrace.envs.text.building import build_text_environment, close_environment
from headrace.envs.text.protocol import Split
from headrace.ipc.child import ChildContext
from headrace.llm import weights
from headrace.llm.backends.choosing import open_generator
from headrace.llm.config import RLConfig
from headrace.llm.fitting import check_texts
from headrace.llm.messages import Batch, PublishedWeights
from headrace.llm.modelfiles import require_same_model
from headrace.llm.orchestration.orchestrator import Orchestrator, Surroundings
from headrace.llm.orchestration.presence import Presence
from headrace.llm.payloads import INFERENCE, TRAINER, Basics, OrchestratorPayload
from headrace.llm.rendering import Renderer
from headrace.llm.tiny import load_tokenizer
from headrace.llm.training.checkpoints import read_checkpoint
from headrace.llm.transport import FileSink, drained
from headrace.supervision.messages import Done, Ready, Report, Stop
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, Slot, State

_LAG_LOOK_S = 0.05  # between two looks by how much the event loop is late


def orchestrator(context: ChildContext) -> None:
    """Make rollouts until the last batch is shipped and the last policy evaluated, or until told to stop."""
    payload: OrchestratorPayload = context.payload
    with ExitStack() as stack:
        board = stack.enter_context(Board.attach(payload.basics.board))
        slot = board.slot(context.id)
        presence = Presence(slot, frozenset(board.ids))
        presence.enter(Activity.START)
        parts = Parts(payload.basics, payload.resume)
        stack.callback(close_environment, parts.environment)
        with asyncio.Runner() as runner:
            runner.run(_work(context, payload, parts, presence, slot))


class Parts:
    """What an orchestrator is made of, wherever it runs.

    Args:
        basics: Of the run.
        resume: Folder of the checkpoint to go on from.

    Raises:
        ConfigError: Environment or tokenizer cannot be used, or they do not fit each other.
        EnvironmentFault: A dataset is none.
        EnvironmentNotBuilt: The environment's factory failed.
        RunDirectoryError: The checkpoint is damaged or of another run, or the model's files were changed.
    """

    def __init__(self, basics: Basics, resume: Path | None) -> None:
        section = basics.config.env
        self.basics = basics
        self.environment = build_text_environment(
            section.name, section.factory, section.kwargs, component="orchestrator"
        )
        weights.of_newest(basics.weights, lambda folder: require_same_model(basics.model, folder, basics.run_id))
        self.renderer = Renderer(load_tokenizer(basics.model))
        for split in get_args(Split):
            check_texts(self.renderer, problems_of(self.environment, split), basics.config.model.context_tokens)
        self.carry = None if resume is None else carried(resume, basics.run_id)

    def newest(self) -> PublishedWeights | None:
        """See `PolicySource.newest`."""
        return weights.newest(self.basics.weights, self.basics.run_id)


def carried(folder: Path, run_id: str) -> Mapping[str, Any]:
    """What the orchestrator had when a checkpoint's last batch was shipped."""
    return read_checkpoint(folder, run_id).carry


def advantages_of(config: RLConfig) -> Callable[[Sequence[float]], Sequence[float]]:
    """Advantages within one group, as the trainer's section says."""
    from headrace.algorithms.grpo import group_advantages

    section = config.trainer.advantage

    def advantages(rewards: Sequence[float]) -> list[float]:
        found = group_advantages(
            rewards, [0] * len(rewards), baseline=section.baseline, divide_by_std=section.divide_by_std
        )
        return [float(value) for value in found]

    return advantages


class Teller:
    """Sends reports to the supervisor; those of a batch with what is measured here.

    Args:
        context: Of the process.
        slot: Its place on the board.
        measure: Further metrics of a batch.
    """

    def __init__(self, context: ChildContext, slot: Slot, measure: Callable[[], Mapping[str, float]]) -> None:
        self._control = context.control
        self._slot = slot
        self._measure = measure

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        """Send one."""
        if kind == "batch":
            facts = {**facts, "metrics": {**facts["metrics"], **self._measure()}}
        tell(self._control, self._slot, Report(kind, facts))


class LoopLag:
    """By how much the event loop is late: what blocks it, an environment for instance, delays everybody."""

    def __init__(self) -> None:
        self._worst_s = 0.0

    async def watch(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _LAG_LOOK_S
            await asyncio.sleep(_LAG_LOOK_S)
            self._worst_s = max(self._worst_s, loop.time() - due_s)

    def taken(self) -> dict[str, float]:
        """The worst since the last call, by metric name."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return {"event_loop_lag/max": worst_s}


@asynccontextmanager
async def listening(context: ChildContext, run: Orchestrator) -> AsyncIterator[None]:
    """Heed the supervisor, and whoever says that something was published, while the event loop runs."""
    loop = asyncio.get_running_loop()
    watched = [context.control.fileno()]

    def heed() -> None:
        try:
            messages = context.control.receive_all()
        except ChannelClosed:
            loop.remove_reader(watched[0])
            run.stop()
            return
        if any(isinstance(message, Stop) for message in messages):
            run.stop()

    def look(fd: int) -> None:
        if not drained(fd):
            loop.remove_reader(fd)
        run.published()

    loop.add_reader(watched[0], heed)
    heed()  # what arrived before is not announced again
    published = context.fds.get("published")
    if published is not None:
        watched.append(published)
        loop.add_reader(published, look, published)
    try:
        yield
    finally:
        for fd in watched:
            loop.remove_reader(fd)


async def _work(
    context: ChildContext,
    payload: OrchestratorPayload,
    parts: Parts,
    presence: Presence,
    slot: Slot,
) -> None:
    basics, config = payload.basics, payload.basics.config
    sink = FileSink(basics.rollouts, basics.run_id, context.fds.get("shipped"))

    async def ship(batch: Batch) -> None:
        sink.ship(batch)

    lag = LoopLag()
    async with open_generator(config, payload.endpoint, payload.basics.run_id) as generator:
        around = Surroundings(
            generator=generator,
            environment=parts.environment,
            renderer=parts.renderer,
            ship=ship,
            policies=parts,
            advantages=advantages_of(config),
            tell=Teller(context, slot, lag.taken),
            presence=presence,
            server=INFERENCE,
            trainer=TRAINER,
        )
        run = Orchestrator(config, basics.run_id, around, parts.carry)
        await generator.wait_ready(config.deadlines.start_s)
        tell(context.control, slot, Ready({"step": run.step, "endpoint": payload.endpoint}))
        slot.set_state(State.RUNNING)
        watching = asyncio.create_task(lag.watch())
        try:
            async with listening(context, run):
                await run.run()
        finally:
            watching.cancel()
            await asyncio.wait({watching}, timeout=1.0)
    slot.set_state(State.STOPPING)
    tell(context.control, slot, Done({"step": run.step, "books": run.books.to_json()}), last=True)
