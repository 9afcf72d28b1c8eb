"""An event loop whose time is made up, a generator that makes up completions, and a game that is over after a few numbers."""

from __future__ import annotations

import asyncio
import hashlib
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.envs.text.protocol import Judgement, Message, Problem, Reply
from headrace.llm.config import OrchestratorConfig, RLConfig
from headrace.llm.messages import (
    Batch,
    Completion,
    Failure,
    GenerationRequest,
    Probe,
    PublishedWeights,
    ServedWeights,
)
from headrace.llm.orchestration.orchestrator import Orchestrator, Surroundings
from headrace.llm.orchestration.presence import Presence

STOP = 9


class _Jumping(selectors.SelectSelector):
    """Never waits: time jumps to the next thing that is planned."""

    loop: FakeTimeLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every coroutine waits for something that nobody will do"
            self.loop.jump(timeout)
        return ready


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time, and time passes only while everybody waits."""

    def __init__(self) -> None:
        self._made_up_s = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._made_up_s

    def jump(self, by_s: float) -> None:
        self._made_up_s += max(by_s, 0.0) + (1e-9 if by_s > 0 else 0.0)


def run_in_fake_time(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(main)


async def pause(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, lambda: over.done() or over.set_result(None))
    await over


class Numbers:
    """Numbers as tokens: text is their list. An opening says a length; what is said in between is token 0."""

    stop_ids = (STOP,)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        return [1, *map(int, messages[-1].content.split())]

    def following(self, messages: Sequence[Message], *, ended: bool = True) -> list[int]:
        return ([] if ended else [STOP]) + [0] * len(messages)

    def unknown(self, messages: Sequence[Message]) -> str:
        return "".join(sorted({c for message in messages for c in message.content if not (c.isdigit() or c == " ")}))

    def text(self, token_ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in token_ids if token != STOP)


@dataclass
class SumGame:
    """Two turns; the reward is whether the sum of all that was said is even, the fraction of problem number is added."""

    problems: int = 7
    turns: int = 2
    held_out: int = 3
    reward_of: Callable[[Problem, list[int]], float] | None = None
    on_step: Callable[[Problem, Sequence[Message]], None] = lambda *_: None

    def dataset(self, split: str) -> list[Problem]:
        numbers = range(self.problems) if split == "train" else range(100, 100 + self.held_out)
        return [Problem(f"p{n}", (Message("user", f"{n % 5} {n % 3}"),), {"n": n}) for n in numbers]

    def step(self, problem: Problem, transcript: Sequence[Message]) -> Reply:
        self.on_step(problem, transcript)
        said = [message for message in transcript if message.role == "assistant"]
        return Reply(done=True) if len(said) >= self.turns else Reply((Message("user", "0"),))

    def reward(self, problem: Problem, transcript: Sequence[Message]) -> Judgement:
        said = [int(word) for message in transcript if message.role == "assistant" for word in message.content.split()]
        value = self.reward_of(problem, said) if self.reward_of else float(sum(said) % 2 == 0)
        return Judgement({"even": value}, solved=value > 0.5, facts={"words": float(len(said))})


class MadeUp:
    """A generator: tokens follow from a request's seed, their log-probabilities also from what else is in the call.

    Args:
        delay_s: How long a call takes, by its number and its requests.
        answer: What comes instead of a made-up completion, by request; None: a completion.
    """

    def __init__(
        self,
        delay_s: Callable[[int, Sequence[GenerationRequest]], float] = lambda *_: 0.01,
        answer: Callable[[GenerationRequest], Completion | Failure | None] = lambda _: None,
    ) -> None:
        self.version = -1
        self.sha256 = ""
        self.delay_s = delay_s
        self.answer = answer
        self.calls: list[list[str]] = []
        self.probe_off = 0.0
        self.loads = True
        self.update: Callable[[PublishedWeights], Awaitable[ServedWeights]] | None = None
        self.probe: Probe | None = None

    async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        number = len(self.calls)
        self.calls.append([request.id for request in requests])
        together = hashlib.sha256(repr([(request.id, request.prompt_ids) for request in requests]).encode()).digest()
        made = [self.answer(request) or self._made(request, together) for request in requests]
        await pause(min(self.delay_s(number, requests), timeout_s))
        if self.delay_s(number, requests) > timeout_s:
            return [Failure("timeout") for _ in requests]
        return made

    def _made(self, request: GenerationRequest, together: bytes) -> Completion:
        rng = np.random.default_rng([request.seed, int.from_bytes(together[:4], "big")])
        draw = np.random.default_rng(request.seed)
        tokens = (*draw.integers(2, 8, int(draw.integers(1, 3))).tolist(), STOP)[: request.max_tokens]
        return Completion(
            token_ids=tokens,
            logprobs=tuple(float(np.float32(value)) for value in -rng.random(len(tokens))),
            versions=(self.version,) * len(tokens),
            finish_reason="stop" if tokens[-1] == STOP else "length",
        )

    async def update_weights(self, published: PublishedWeights, timeout_s: float) -> ServedWeights:
        await pause(0.001)
        if self.update is not None:
            return await self.update(published)
        self.version, self.sha256, self.probe = published.version, published.sha256, published.probe
        return ServedWeights(version=self.version, sha256=self.sha256)

    async def score(self, token_ids: Sequence[int], timeout_s: float) -> tuple[float, ...]:
        assert self.probe is not None
        return tuple(value + self.probe_off for value in self.probe.logprobs)


def weights(version: int, run_id: str = "run") -> PublishedWeights:
    probe = Probe(token_ids=(1, 2, 3), logprobs=(-0.5, -0.25 * (version + 1)))
    return PublishedWeights(
        version=version, folder=Path(f"w{version}"), sha256=f"s{version}", run_id=run_id, probe=probe
    )


@dataclass
class Bench:
    """An orchestrator with everything made up around it, a trainer included, which takes ``train_s`` for a step."""

    config: RLConfig
    generator: MadeUp = field(default_factory=MadeUp)
    environment: SumGame = field(default_factory=SumGame)
    train_s: float = 0.05
    carry: dict[str, Any] | None = None
    batches: list[Batch] = field(default_factory=list)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    version: int = 0
    trains: bool = True
    waiting: list[Batch] = field(default_factory=list)
    busy: bool = False
    orchestrator: Orchestrator | None = None

    def newest(self) -> PublishedWeights | None:
        return weights(self.version) if self.version >= 0 else None

    async def ship(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.waiting.append(batch)
        self._train()

    def _train(self) -> None:
        if self.trains and self.waiting and not self.busy:
            self.busy = True
            asyncio.get_running_loop().call_later(self.train_s, self._trained)

    def _trained(self) -> None:
        batch = self.waiting.pop(0)
        assert batch.step == self.version, "a batch is trained on by the policy of its step"
        self.version, self.busy = batch.step + 1, False
        assert self.orchestrator is not None
        self.orchestrator.published()
        self._train()

    def make(self) -> Orchestrator:
        around = Surroundings(
            generator=self.generator,
            environment=self.environment,
            renderer=Numbers(),
            ship=self.ship,
            policies=self,
            advantages=lambda rewards: [reward - sum(rewards) / len(rewards) for reward in rewards],
            tell=lambda kind, facts: self.told.append((kind, facts)),
            presence=Presence(None),
        )
        self.orchestrator = Orchestrator(self.config, "run", around, self.carry)
        return self.orchestrator

    def run(self) -> Bench:
        async def main() -> None:
            await self.make().run()

        try:
            run_in_fake_time(main())
        finally:
            self._all_room_is_back()
        return self

    def _all_room_is_back(self) -> None:
        if self.orchestrator is not None:
            assert self.orchestrator._gatherer.outstanding == 0, "requests are counted that nobody generates"

    def reports(self, kind: str) -> list[dict[str, Any]]:
        return [facts for told, facts in self.told if told == kind]

    @property
    def books(self) -> dict[str, Any]:
        return self.reports("rollout_books")[-1]


def rl_config(steps: int = 4, lag: int = 0, **sections: dict[str, Any]) -> RLConfig:
    """A small one; sections are given as keyword arguments of theirs, those of the orchestrator over these defaults."""
    own: dict[str, Any] = {"groups_per_step": 3, "group_size": 4, "max_policy_lag": lag}
    orchestrator = OrchestratorConfig(**(own | sections.pop("orchestrator", {})))
    plain: dict[str, Any] = {
        "run": {"seed": 5, "steps": steps},
        "model": {"context_tokens": 64},
        "evaluation": {"every_steps": 0},
    }
    for name, values in sections.items():
        plain[name] = {**plain.get(name, {}), **values}
    return RLConfig(**plain, orchestrator=orchestrator)


def same_samples(one: Batch, other: Batch) -> bool:
    """Whether two batches hold the same, bit for bit."""
    return (one.step, len(one.samples)) == (other.step, len(other.samples)) and all(
        (a.rollout, a.group, a.problem, a.reward, a.advantage) == (b.rollout, b.group, b.problem, b.reward, b.advantage)
        and all(
            getattr(a, name).tobytes() == getattr(b, name).tobytes()
            for name in ("token_ids", "trained", "logprobs", "versions")
        )
        for a, b in zip(one.samples, other.samples, strict=True)
    )
