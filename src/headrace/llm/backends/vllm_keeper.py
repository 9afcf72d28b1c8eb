"""Entry point of the process ``inference`` where vLLM serves: runs its command, and knows whether it still generates.

All that vLLM and its own processes print goes into the log of this component. It is ready after a real generation with a
published version; from then on a token is asked for now and then, because a server can answer ``/health`` and generate
nothing. When it ends, or this process does, nothing of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from headrace.commands.tree import Tree, exit_in_words
from headrace.core.errors import ChannelClosed, ComponentDied, ComponentStalled, ConfigError
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import ChildContext
from headrace.llm import weights
from headrace.llm.backends.vllm_client import VllmGenerator
from headrace.llm.backends.vllm_command import vllm_command
from headrace.llm.config import RLConfig
from headrace.llm.messages import GenerationRequest, PublishedWeights
from headrace.llm.modelfiles import require_same_model
from headrace.llm.payloads import Basics, InferencePayload
from headrace.llm.serving import first_weights
from headrace.supervision.messages import Done, Ready, Stop
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, Slot, State

KILL_S = 5.0
"""Seconds that ending all its processes may take."""

TIDY_S = 3.0
"""Seconds that what outlives it has to remove what it shared."""

BEAT_S = 1.0
"""Seconds between two signs of life of this process."""

TOKEN_EVERY_S = 15.0
"""Seconds between two tokens that are asked for to see whether it generates."""

_LOOK_S = 0.05
_READ_BYTES = 1 << 16
_SERVED = "served-model"
_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.index.json")


def inference(context: ChildContext) -> None:
    """Run vLLM until told to stop, or nobody is left to serve.

    Raises:
        ConfigError: There are no published weights, or no port was chosen.
        ComponentDied: It ended.
        ComponentStalled: It was not ready in time, or generates nothing any more.
    """
    payload: InferencePayload = context.payload
    with Board.attach(payload.basics.board) as board:
        slot = board.slot(context.id)
        slot.enter(Activity.START)
        published = first_weights(payload.basics, payload.serve_version)
        slot.count("version", published.version)
        with Keeper(context, payload, published, slot) as keeper:
            asyncio.run(keeper.run())
        slot.set_state(State.STOPPING)
        tell(context.control, slot, Done({}), last=True)


def served_folder(basics: Basics, published: PublishedWeights) -> Path:
    """A folder as vLLM wants it, made anew: configuration and tokenizer of the run's model, weights of one version."""
    folder = basics.run / _SERVED
    shutil.rmtree(folder, ignore_errors=True)
    require_same_model(basics.model, published.folder, basics.run_id)
    shutil.copytree(basics.model, folder, ignore=shutil.ignore_patterns(*_WEIGHT_FILES))
    # A copy: the version may be pruned before vLLM has read it.
    shutil.copyfile(published.folder / weights.MODEL, folder / weights.MODEL)
    return folder


class Keeper:
    """One vLLM server and all its processes. A context manager.

    Args:
        context: Of this process.
        payload: What it was started with.
        published: What it serves to begin with.
        slot: On the board.

    Raises:
        ConfigError: No port was chosen, or its GPU is none that may be used.
        ComponentDied: It cannot be started.
    """

    def __init__(
        self, context: ChildContext, payload: InferencePayload, published: PublishedWeights, slot: Slot
    ) -> None:
        config = payload.basics.config
        self._endpoint, port = _endpoint(config, payload)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        command = vllm_command(config, served_folder(payload.basics, published), port, visible)
        environment = {**command.defaults, **os.environ, **command.env}
        self._id, self._control, self._slot = context.id, context.control, slot
        self._config, self._published = config, published
        limits = config.deadlines
        self._token_s = limits.generate_s + limits.weights_s
        """For one token: it may be held by an update of the weights."""
        self._start_s = limits.start_s + limits.weights_s + self._token_s + limits.start_s
        self._stop: Stop | None = None
        self._left: asyncio.Future[None]
        """Done as soon as it was told to stop, or vLLM has ended."""
        # If this process is killed, vLLM has to end its own processes, which left this family, and what they share.
        self._tree = Tree(context.id, command.argv, str(payload.basics.run), environment, orphaned=signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tree.ended() is not None:
            self._let_it_tidy_up()
        self._tree.kill(KILL_S)
        self._drain()
        self._tree.close()

    def _let_it_tidy_up(self) -> None:
        """What outlives it for a moment removes its shared memory; nobody would if that were killed at once."""
        deadline = Deadline(TIDY_S)
        while not self._tree.gone() and not deadline.passed:
            self._drain()
            poll_fds({}, _LOOK_S)

    async def run(self) -> None:
        """Follow it to its end; called once."""
        loop = asyncio.get_running_loop()
        self._left = loop.create_future()
        watched = {self._tree.output_fd: self._drain, self._control.fileno(): self._heed}
        if self._tree.pidfd >= 0:
            watched[self._tree.pidfd] = self._leave
        else:
            self._look_for_its_end()
        for fd, heed in watched.items():
            loop.add_reader(fd, heed)
        self._heed()  # what arrived before is not announced again
        try:
            await self._serve()
            await self._end()
        finally:
            for fd in watched:
                loop.remove_reader(fd)

    async def _serve(self) -> None:
        """Until it is told to stop.

        Raises:
            ComponentDied: It ended by itself.
            ComponentStalled: See the module.
        """
        async with VllmGenerator(
            self._endpoint, run_id=self._published.run_id, server=self._id, connections=4
        ) as generator:
            if not await self._while_alive(self._become_ready(generator), self._start_s):
                return
            self._slot.set_state(State.RUNNING)
            beating = asyncio.create_task(self._beat())
            try:
                while await self._while_alive(self._prove_alive(generator), self._token_s + 2 * TOKEN_EVERY_S):
                    pass
            finally:
                beating.cancel()
                await asyncio.wait({beating}, timeout=BEAT_S)

    async def _while_alive(self, work: Awaitable[None], limit_s: float) -> bool:
        """Whether ``work`` could be done before it was time to leave.

        Raises:
            ComponentDied: vLLM ended meanwhile.
            ComponentError: The work failed.
            TimeoutError: It is not done after ``limit_s`` seconds, which its own limits should have prevented.
        """
        doing = asyncio.ensure_future(work)
        try:
            await asyncio.wait({doing, self._left}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if self._stop is not None:
                return False
            self._require_running()
            await asyncio.wait_for(doing, KILL_S)
        finally:
            doing.cancel()
            await asyncio.wait({doing}, timeout=KILL_S)
        return True

    async def _become_ready(self, generator: VllmGenerator) -> None:
        start_s = self._config.deadlines.start_s
        self._slot.waiting(Activity.WAIT_READY, deadline_s=start_s)
        await generator.wait_ready(start_s)
        await generator.label(self._published.version, self._config.deadlines.weights_s)
        await self._one_token(generator)
        facts = {"version": self._published.version, "endpoint": self._endpoint, "pid": self._tree.pid}
        tell(self._control, self._slot, Ready(facts))

    async def _prove_alive(self, generator: VllmGenerator) -> None:
        await self._one_token(generator)
        await asyncio.wait({self._left}, timeout=TOKEN_EVERY_S)

    async def _one_token(self, generator: VllmGenerator) -> None:
        """See it generate."""
        limit_s = self._token_s
        request = GenerationRequest(id="alive", prompt_ids=(0,), max_tokens=1)
        (answer,) = await generator.generate([request], limit_s)
        # A token without a version is one all the same: weights may be on their way.
        if getattr(answer, "reason", "unversioned") != "unversioned":
            raise ComponentStalled(
                f"{self._id} runs and generates nothing",
                limit_s=limit_s,
                answer=str(answer),
                processes="; ".join(self._tree.in_words()),
                fix=f"read logs/{self._id}.log; raise deadlines.generate_s if it is only slow",
            )

    async def _beat(self) -> None:
        """Show that this process lives; the server's own life is `_prove_alive`'s."""
        while True:
            self._slot.enter(Activity.COMMAND)
            await asyncio.sleep(BEAT_S)

    async def _end(self) -> None:
        """Ask it to leave; what is left is ended afterwards."""
        stop_s = self._config.deadlines.stop_s / 2
        self._slot.waiting(Activity.STOP, deadline_s=stop_s)
        loop, asked = asyncio.get_running_loop(), self._tree.signal(signal.SIGTERM)
        deadline = Deadline(stop_s)
        # A shell around it is gone at once, and it is not.
        while asked and not self._tree.group_gone() and not deadline.passed:
            if self._tree.ended() is not None and self._tree.pidfd >= 0:
                loop.remove_reader(self._tree.pidfd)  # it would tell so without a pause
            self._left = loop.create_future()
            await asyncio.wait({self._left}, timeout=min(BEAT_S, deadline.left_s()))

    def _require_running(self) -> None:
        code = self._tree.ended()
        if code is None:
            return
        self._drain()
        what = f"{self._id}: vLLM {exit_in_words(code)}"
        raise ComponentDied(what, fix=f"read the last lines of logs/{self._id}.log")

    def _heed(self) -> None:
        try:
            messages = self._control.receive_all()
        except ChannelClosed:
            messages = [Stop("nobody is left to work for")]
            asyncio.get_running_loop().remove_reader(self._control.fileno())
        stop = next((message for message in messages if isinstance(message, Stop)), None)
        if stop is not None:
            self._stop = stop
            self._leave()

    def _look_for_its_end(self) -> None:
        """Where no descriptor tells of it."""
        if self._tree.ended() is None:
            asyncio.get_running_loop().call_later(BEAT_S, self._look_for_its_end)
        else:
            self._leave()

    def _leave(self) -> None:
        if not self._left.done():
            self._left.set_result(None)

    def _drain(self) -> None:
        """Keep what it prints; a pipe that is full would hold it up."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._tree.output_fd, _READ_BYTES):
                with contextlib.suppress(OSError):  # a full disk costs the log, not the server
                    os.write(1, data)


def _endpoint(config: RLConfig, payload: InferencePayload) -> tuple[str, int]:
    """Where it will be found, and the port it has to listen on."""
    endpoint: str | None = getattr(payload, "endpoint", None)
    if endpoint is None:
        host = "127.0.0.1" if config.inference.host in {"0.0.0.0", "::"} else config.inference.host
        endpoint = f"http://{host}:{config.inference.port}"
    port = urlsplit(endpoint).port
    if not port:
        raise ConfigError("vLLM binds its port itself, and none was chosen", fix="set inference.port")
    return endpoint, port
