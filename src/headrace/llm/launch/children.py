"""What the supervisor is told of each process of a language-model run, and what those processes share."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.core.config import FROZEN
from headrace.core.errors import ConfigError
from headrace.llm.config import RLConfig, RLDeadlinesConfig
from headrace.llm.launch.deciding import Cast
from headrace.llm.payloads import (
    INFERENCE,
    ORCHESTRATOR,
    TRAINER,
    TWIN,
    WARM_START,
    Basics,
    InferencePayload,
    OrchestratorPayload,
    TrainerPayload,
    TwinPayload,
    WarmStartPayload,
)
from headrace.supervision.spec import ChildSpec, RestartBudget
from headrace.telemetry.board import Activity
from headrace.telemetry.looks import ELSEWHERE, Plan

_BACKLOG = 1024
_EVERYWHERE = frozenset({"0.0.0.0", "::", ""})
NEWEST = -1
_WORK = frozenset(
    {
        Activity.ENV_RESET, Activity.ENV_STEP, Activity.GENERATE, Activity.SCORE, Activity.LOAD_WEIGHTS, Activity.SAMPLE,
        Activity.UPDATE, Activity.PUBLISH, Activity.CHECKPOINT,
    }
)  # fmt: skip
"""What a component that is told to stop may finish first: a step that is thrown away, or a checkpoint that is not written, is
work lost."""


@dataclass(frozen=True, slots=True)
class Targets:
    """``module:function`` of each process."""

    warm_start: str = "headrace.llm.warmstart:warm_start"
    inference: str = "headrace.llm.serving:inference"
    vllm: str = "headrace.llm.backends.vllm_keeper:inference"
    """In place of ``inference`` where vLLM serves."""
    orchestrator: str = "headrace.llm.orchestrating:orchestrator"
    trainer: str = "headrace.llm.trainer:trainer"
    twin: str = "headrace.llm.twin:twin"

    def of(self, component: str, config: RLConfig) -> str:
        """Of the component of this id."""
        if component == INFERENCE and config.inference.backend == "vllm":
            return self.vllm
        return str(getattr(self, component.replace("-", "_")))


class Shared:
    """What the processes of a run share: the server's socket, and the pipes by which they wake each other.

    A context manager. The socket listens from the beginning, so that clients wait while the server starts, or starts
    again, instead of being refused.

    Args:
        config: Of the run.
        serves: Whether a server of ours is started.
        alone: Whether those who ask it are started by others, perhaps on other machines.

    Raises:
        ConfigError: The port is taken, the host is none of this machine, or this machine has no name by which others find it.
    """

    def __init__(self, config: RLConfig, *, serves: bool, alone: bool = False) -> None:
        self.listener: socket.socket | None = None
        section = config.inference
        self.endpoint = section.url
        if serves and section.backend == "headrace":
            host = _found_at(section.host, alone)
            self.listener = listen(section.host, section.port)
            self.endpoint = root_of(host, int(self.listener.getsockname()[1]))
        elif serves:  # a foreign server binds its port itself
            self.endpoint = root_of(_found_at(section.host, alone), section.port or free_port(section.host))
        self._pipes = {name: _pipe() for name in ("shipped", "published")}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fds(self, component: str) -> Mapping[str, int]:
        """Descriptors a component is given, by name."""
        shipped, published = self._pipes["shipped"], self._pipes["published"]
        if component == INFERENCE:
            return {} if self.listener is None else {"listen": self.listener.fileno()}
        if component == TRAINER:
            return {"shipped": shipped[0], "published": published[1]}
        if component == ORCHESTRATOR:
            return {"shipped": shipped[1], "published": published[0]}
        return {}

    def close(self) -> None:
        """Give everything back; again is harmless."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        for ends in self._pipes.values():
            for end in ends:
                os.close(end)
        self._pipes = {}


def root_of(host: str, port: int) -> str:
    """A server's address as a URL."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _pipe() -> tuple[int, int]:
    """Reader and writer that wait for nobody and that no program inherits; ``os.pipe2`` is not everywhere."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _found_at(host: str, alone: bool) -> str:
    """By what a server that listens there is found."""
    if host not in _EVERYWHERE:
        return host
    if not alone:
        return "127.0.0.1"
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise ConfigError(
            f"inference listens on all addresses of this machine, and its name {name!r} leads to none of them",
            problem=f"{type(error).__name__}: {error}",
            key="inference.host",
            fix="set inference.host to the address by which the other components reach this machine",
        ) from None
    return name


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigError: The port is taken, may not be used, or the host is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} of {host} is taken by another program",
                key="inference.port",
                fix=f"choose another (--inference.port {port + 1}), or 0 for one that is free",
            ) from None
        raise ConfigError(
            f"inference cannot listen on port {port} of {host}",
            problem=f"{type(error).__name__}: {error}",
            fix="set inference.host to an address of this machine, and inference.port to one you may use, or 0",
        ) from None
    return sock


def free_port(host: str) -> int:
    """A port that was free a moment ago, for a server that binds it itself."""
    with closing(listen(host, 0)) as sock:
        return int(sock.getsockname()[1])


def child_specs(basics: Basics, cast: Cast, shared: Shared, targets: Targets, resume: Path | None) -> list[ChildSpec]:
    """All processes of a run, in the order of their start."""
    return [_spec(name, basics, shared, targets, resume) for name in cast.ids]


def components(cast: Cast) -> list[tuple[str, str]]:
    """Id and kind of every slot on the board. Those that another launcher looks after have one, to be waited for."""
    others = [name for name in (INFERENCE, ORCHESTRATOR, TRAINER) if name not in cast.ids and TWIN not in cast.ids]
    own = [(name, name) for name in cast.ids]
    return [("supervisor", "supervisor"), *own, *((name, ELSEWHERE) for name in others)]


def limits(deadlines: RLDeadlinesConfig, longest_rollout_s: float) -> dict[Activity, float]:
    """Seconds each activity may last; waits a little longer than their own limit, which should have ended them."""
    completions_s = max(longest_rollout_s, deadlines.generate_s, deadlines.evaluate_s)
    return {
        Activity.ENV_CONSTRUCT: deadlines.start_s,
        Activity.ENV_RESET: deadlines.env_s,
        Activity.ENV_STEP: deadlines.env_s,
        Activity.GENERATE: deadlines.generate_s,
        Activity.SCORE: deadlines.generate_s,
        Activity.LOAD_WEIGHTS: deadlines.weights_s,
        Activity.PUBLISH: deadlines.weights_s,
        Activity.UPDATE: deadlines.train_s,
        Activity.SAMPLE: deadlines.train_s,
        Activity.EVALUATE: deadlines.evaluate_s,
        Activity.CHECKPOINT: deadlines.checkpoint_s,
        Activity.RESUME: deadlines.start_s,
        Activity.WARM_START: deadlines.warm_start_s,
        Activity.WAIT_BATCH: FROZEN * deadlines.batch_s,
        Activity.WAIT_POLICY: FROZEN * deadlines.policy_s,
        Activity.WAIT_COMPLETIONS: FROZEN * completions_s,
    }


def plan_of(config: RLConfig) -> Plan:
    """What a run's configuration lets one expect of it."""
    return Plan(
        limits={Activity.START: config.deadlines.start_s} | _limits(config),
        max_restarts=config.supervision.inference_restarts,
        restart_window_s=config.supervision.restart_window_s,
    )


def standstill_s(deadlines: RLDeadlinesConfig) -> float:
    """Seconds without any work after which a run is given up, whatever its components do."""
    longest = max(deadlines.batch_s, deadlines.policy_s, deadlines.train_s, deadlines.evaluate_s, deadlines.start_s)
    return 2.0 * longest


def warm_start_limit_s(deadlines: RLDeadlinesConfig) -> float:
    """Seconds the process of a warm start has until it is ready, which it may say only when it is done."""
    return deadlines.start_s + deadlines.warm_start_s


def _limits(config: RLConfig) -> dict[Activity, float]:
    return limits(config.deadlines, config.orchestrator.rollout_timeout_s)


def _spec(name: str, basics: Basics, shared: Shared, targets: Targets, resume: Path | None) -> ChildSpec:
    config = basics.config
    start_s = warm_start_limit_s(config.deadlines) if name == WARM_START else config.deadlines.start_s
    return ChildSpec(
        id=name,
        kind=name,
        target=targets.of(name, config),
        payload=lambda _incarnation: _payload(name, basics, shared, resume),
        fds=lambda: shared.fds(name),
        deadlines={Activity.START: start_s} | _limits(config),
        stop_timeout_s=config.deadlines.stop_s,
        finishes=_WORK if name in {ORCHESTRATOR, TRAINER, TWIN} else frozenset(),
        budget=_budget(config) if name == INFERENCE else RestartBudget(max_restarts=0),
    )


def _budget(config: RLConfig) -> RestartBudget:
    section = config.supervision
    return RestartBudget(
        max_restarts=section.inference_restarts, window_s=section.restart_window_s, backoff_s=section.backoff_s
    )


def _payload(name: str, basics: Basics, shared: Shared, resume: Path | None) -> object:
    if name == WARM_START:
        return WarmStartPayload(basics=basics)
    if name == INFERENCE:
        return InferencePayload(basics=basics, serve_version=NEWEST, endpoint=shared.endpoint)
    if name == ORCHESTRATOR:
        assert shared.endpoint is not None, "an orchestrator is started once its server can be named"
        return OrchestratorPayload(basics=basics, endpoint=shared.endpoint, resume=resume)
    if name == TRAINER:
        return TrainerPayload(basics=basics, resume=resume)
    return TwinPayload(basics=basics, resume=resume)
