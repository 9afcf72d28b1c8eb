"""Completions from an engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.ipc.channel import Deadline
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import ANSWER_SHARE, Completion, Failure, GenerationRequest, PublishedWeights, ServedWeights


class LocalGenerator:
    """`headrace.llm.messages.Generator` over an engine; whoever waits for an answer drives it, between two turns of the loop.

    Args:
        engine: Used from the loop's thread.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        """One answer per request, in their order."""
        answers: dict[int, Completion | Failure] = {}
        limit_s = ANSWER_SHARE * timeout_s
        deadline = Deadline(limit_s)
        self._engine.submit(requests, answers.__setitem__)
        try:
            while len(answers) < len(requests) and not deadline.passed:
                self._engine.step()
                await asyncio.sleep(0)  # others may have requests too
        finally:
            self._engine.cancel([request.id for place, request in enumerate(requests) if place not in answers])
        late = Failure("timeout", f"no answer within {limit_s:g} s")
        return [answers.get(place, late) for place in range(len(requests))]

    async def update_weights(self, published: PublishedWeights, timeout_s: float) -> ServedWeights:
        """Load them, between two forward passes; nothing here can take longer than it takes."""
        return self._engine.load(published)

    async def score(self, token_ids: Sequence[int], timeout_s: float) -> tuple[float, ...]:
        """Under the weights of now."""
        return self._engine.score(token_ids)
