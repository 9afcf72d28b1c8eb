"""What trainer, orchestrator and inference hand to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]

LEAST_TEMPERATURE = 1e-30
"""Above 0: scores divided by less are infinite in float32, and of nothing but infinities nothing can be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One completion that is wanted: tokens in, tokens out."""

    id: str
    """Unique among those in flight, e.g. ``g12.3/t1`` (group, sample, turn)."""
    prompt_ids: tuple[int, ...]
    max_tokens: int
    """At least 1."""
    temperature: float = 1.0
    """0 takes the likeliest token; its log-probabilities are those of temperature 1. Otherwise at least ``LEAST_TEMPERATURE``."""
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()
    """Generation ends with, and includes, the first of these."""
    seed: int = 0
    """Of this request's own random stream: what else is generated at the same time draws from others."""
    session: str = ""
    """Requests of one session extend each other's tokens, so that what was computed for them can be used again."""
    guest: bool = False
    """It shares no forward pass with what is asked for otherwise, and gives way to it; without a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was generated."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each token under the distribution it was drawn from, natural logarithm."""
    versions: tuple[int, ...]
    """Policy version that chose each token."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failure:
    """What came instead of a completion or a rollout. It is never a sample."""

    reason: str
    """One word to count it by: timeout, connection, refused, environment, too_long, empty, …"""
    detail: str = ""
    may_retry: bool = True
    about: str = field(default="", compare=False)
    """The field of the request that is wrong, where one is; a server over HTTP does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What proves that the served weights are the published ones: a fixed text, scored by the trainer."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of token i + 1 after tokens 0 to i; one fewer than tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """One version of the policy, as the trainer published it."""

    version: int
    """0 is what training began with."""
    folder: Path
    """Holds ``model.safetensors`` and ``manifest.json``."""
    sha256: str
    """Of the tensors, see `headrace.llm.weights.tensors_sha256`."""
    run_id: str
    probe: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWeights:
    """What a server says it serves."""

    version: int
    sha256: str
    """Of the tensors in its memory; empty where a server cannot tell."""


ANSWER_SHARE = 0.8
"""Of what is left of a call's time, after which it is answered with what there is: one slow request must not cost the others of its call,
nor, being the only one that runs, look like a server that answers nothing."""


class Generator(Protocol):
    """Where completions come from: a server over HTTP, or an engine in this process."""

    async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        """One answer per request, in their order. Raises nothing that a server, a network or a clock may cause.

        Args:
            requests: Together.
            timeout_s: When nobody waits any more. What is complete is handed over after `ANSWER_SHARE` of it.
        """
        ...

    async def update_weights(self, published: PublishedWeights, timeout_s: float) -> ServedWeights:
        """Have it serve these from now on; running requests go on with them, and their tokens say so.

        Raises:
            ComponentError: It refused, did not answer in time, or is gone.
        """
        ...

    async def score(self, token_ids: Sequence[int], timeout_s: float) -> tuple[float, ...]:
        """Log-probability of token i + 1 after tokens 0 to i under the served weights; one fewer than tokens.

        Raises:
            ComponentError: It refused, did not answer in time, or is gone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One rollout as the trainer sees it. ``T`` tokens, those of prompt and environment included."""

    rollout: str
    """Id, e.g. ``g12.3``."""
    group: int
    problem: str
    token_ids: NDArray[np.int32]  # [T]
    trained: NDArray[np.bool_]  # [T]
    """Which of them the policy chose, and the loss is made of."""
    logprobs: NDArray[np.float32]  # [T]
    """When they were chosen; 0 where not ``trained``."""
    versions: NDArray[np.int32]  # [T]
    """Of the policy that chose them; -1 where not ``trained``."""
    reward: float
    advantage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step of the trainer trains on."""

    run_id: str
    step: int
    """The trainer makes version ``step + 1`` of it."""
    samples: tuple[Sample, ...]
    facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the orchestrator that belong to this step, by metric name."""
    carry: Mapping[str, Any] = field(default_factory=dict)
    """What the orchestrator needs to go on after this batch, as JSON; the trainer keeps it with its checkpoint."""
