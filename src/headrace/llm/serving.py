"""Entry point of the process ``inference``: our server over our engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import uvicorn
from starlette.types import ASGIApp

from headrace.core.errors import ChannelClosed, ConfigError
from headrace.ipc.child import ChildContext
from headrace.llm.config import RLConfig
from headrace.llm.engine.building import build_engine
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import PublishedWeights
from headrace.llm.payloads import Basics, InferencePayload
from headrace.llm.server.application import build_application
from headrace.llm.server.driver import Driver
from headrace.llm.server.texts import Texts
from headrace.llm.weights import look, newest
from headrace.supervision.messages import Done, Ready, Stop
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, Slot, State

_LEAVE_S = 2
"""Seconds that open connections are given once everybody was answered."""

_IDLE_S = 3600
"""Seconds an idle connection stays open. A server that closes early does so, now and then, just when the client sends."""


def inference(context: ChildContext) -> None:
    """Serve completions until told to stop, or nobody is left to serve.

    Raises:
        ConfigError: There are no published weights yet.
        HeadraceError: They cannot be loaded.
    """
    payload: InferencePayload = context.payload
    config = payload.basics.config
    with Board.attach(payload.basics.board) as board:
        slot = board.slot(context.id)
        slot.enter(Activity.LOAD_WEIGHTS)
        torch.set_num_threads(config.inference.threads)
        published = first_weights(payload.basics, payload.serve_version)
        engine = build_engine(config, payload.basics.model, published)
        slot.count("version", published.version)
        driver = build_driver(config, engine, slot)
        application = build_application(
            driver,
            run_id=payload.basics.run_id,
            timeout_s=config.deadlines.generate_s,
            texts=Texts.load(payload.basics.model),
        )
        slot.waiting(Activity.WAIT_REQUESTS)  # before it is called ready, so that nobody is told that it generates
        tell(context.control, slot, Ready({"version": published.version}))
        slot.set_state(State.RUNNING)
        asyncio.run(_serve(context, driver, application))
        slot.set_state(State.STOPPING)
        tell(context.control, slot, Done({"completions": engine.counts.completed}), last=True)


def build_driver(config: RLConfig, engine: Engine, slot: Slot | None) -> Driver:
    """That of a run's server; without lag the run is promised to stay the same, bit for bit, whoever else asks."""
    apart = config.orchestrator.max_policy_lag == 0
    return Driver(engine, slot, stalled_s=config.deadlines.generate_s, guests_apart=apart)


def first_weights(basics: Basics, version: int) -> PublishedWeights:
    """What is served to begin with.

    Raises:
        ConfigError: Nothing was published yet.
        HeadraceError: It is of another run, or damaged.
    """
    if version >= 0:
        return look(basics.weights / str(version), basics.run_id)
    found = newest(basics.weights, basics.run_id)
    if found is None:
        raise ConfigError(
            "inference has no weights to serve",
            folder=basics.weights,
            fix="start it after the warm start, which publishes version 0",
        )
    return found


class QuietServer(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None are."""
        yield


def build_server(application: ASGIApp) -> QuietServer:
    """One that logs no requests, and leaves soon when it is told to."""
    settings = uvicorn.Config(
        application,
        http="httptools",
        loop="asyncio",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_LEAVE_S,
        timeout_keep_alive=_IDLE_S,
    )
    return QuietServer(settings)


async def _serve(context: ChildContext, driver: Driver, application: ASGIApp) -> None:
    server = build_server(application)
    control = context.control

    def listen() -> None:
        try:
            told_to_stop = any(isinstance(message, Stop) for message in control.receive_all())
        except ChannelClosed:
            told_to_stop = True
        if told_to_stop:
            asyncio.get_running_loop().remove_reader(control.fileno())
            driver.stop()

    async def generate() -> None:
        try:
            await driver.run()
        finally:
            server.should_exit = True

    asyncio.get_running_loop().add_reader(control.fileno(), listen)
    with contextlib.closing(socket.socket(fileno=context.fds["listen"])) as listening:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(generate())
            tasks.create_task(server.serve([listening]))
