"""One rollout: opening, completion, the environment's reply, and so on to the judgement, with what its tokens are."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from headrace.core import seeding
from headrace.envs.text.answers import judgement_of, reply_of
from headrace.envs.text.asking import only_here, words_of
from headrace.envs.text.protocol import Judgement, Message, Problem, Reply, TextEnvironment
from headrace.llm.config import RLConfig
from headrace.llm.messages import Completion, Failure, GenerationRequest
from headrace.llm.orchestration.gatherer import Gatherer
from headrace.llm.orchestration.presence import Presence
from headrace.telemetry.board import Activity

Cut = Literal["turns", "context"]
_Answer = TypeVar("_Answer", Reply, Judgement)


class TextRenderer(Protocol):
    """Messages as tokens, and back. `headrace.llm.rendering.Renderer` is one."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a message of the model."""
        ...

    def opening(self, messages: Sequence[Message]) -> Sequence[int]:
        """Everything in front of the first token of the model."""
        ...

    def following(self, messages: Sequence[Message], *, ended: bool = True) -> Sequence[int]:
        """Everything between the model's last token of one message and its first of the next.

        Args:
            messages: What was said to it; at least one.
            ended: Whether its message has a stop token.
        """
        ...

    def unknown(self, messages: Sequence[Message]) -> str:
        """Characters in them that the model cannot be shown."""
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """What the model said, without the tokens that end it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """Which rollout, of what, and how it is drawn."""

    group: int
    """Of an evaluation: negative."""
    sample: int
    problem: Problem
    stream: str = "completion"
    """Name of the random stream its completions are drawn from; ``keys``, attempt and turn are the stream's keys."""
    keys: tuple[int, ...] = ()
    temperature: float = 1.0

    @property
    def id(self) -> str:
        """As in logs and batches: ``g12.3``; ``e4.0`` of an evaluation."""
        return f"g{self.group}.{self.sample}" if self.group >= 0 else f"e{-self.group - 1}.{self.sample}"


@dataclass(slots=True, kw_only=True)
class Rollout:
    """What was said in one attempt, and what it was worth."""

    spec: RolloutSpec
    token_ids: list[int]
    trained: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    transcript: list[Message] = field(default_factory=list)
    turns: int = 0
    cut: Cut | None = None
    """Why it was ended before the environment did."""
    judgement: Judgement = field(default_factory=lambda: Judgement({}, solved=False))

    @classmethod
    def opened(cls, spec: RolloutSpec, opening: Sequence[int]) -> Rollout:
        """One in which nothing was said yet."""
        rollout = cls(spec=spec, token_ids=[], transcript=list(spec.problem.opening))
        rollout.given(opening)
        return rollout

    def given(self, token_ids: Sequence[int]) -> None:
        """Add tokens that the policy did not choose."""
        self.token_ids += token_ids
        self.trained += [False] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)
        self.versions += [-1] * len(token_ids)

    def said(self, completion: Completion, text: str) -> None:
        """Add tokens that it chose."""
        self.token_ids += completion.token_ids
        self.trained += [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.versions += completion.versions
        self.transcript.append(Message("assistant", text))
        self.turns += 1

    @property
    def chosen_versions(self) -> list[int]:
        """Of the tokens that the policy chose."""
        return [version for version, trained in zip(self.versions, self.trained, strict=True) if trained]


class RolloutNotes(Protocol):
    """Told of what happens in a rollout while it happens."""

    def attempt(self, spec: RolloutSpec) -> None:
        """It is tried, for the first time or again."""
        ...

    def attempt_failed(self, spec: RolloutSpec, failure: Failure, again: bool) -> None:
        """An attempt failed; ``again`` says whether another follows."""
        ...

    def tokens(self, spec: RolloutSpec, versions: Sequence[int]) -> None:
        """The policy chose tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlayer:
    """Plays rollouts with one environment, one renderer and one source of completions."""

    config: RLConfig
    environment: TextEnvironment
    renderer: TextRenderer
    gatherer: Gatherer
    presence: Presence
    notes: RolloutNotes

    async def play(self, spec: RolloutSpec) -> Rollout | Failure:
        """Try until it is complete, may not be tried again, or its time is over. The time is that of all attempts."""
        section = self.config.orchestrator
        clock = asyncio.get_running_loop().time
        deadline_s, pause_s = clock() + section.rollout_timeout_s, section.backoff_s
        for attempt in range(section.max_retries + 1):
            self.notes.attempt(spec)
            outcome = await self._in_time(spec, attempt, deadline_s)
            if isinstance(outcome, Rollout):
                return outcome
            in_time = clock() + pause_s < deadline_s
            again = outcome.may_retry and attempt < section.max_retries and in_time
            self.notes.attempt_failed(spec, outcome, again=again)
            if not again:
                return outcome
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("a last attempt always returns")

    async def _in_time(self, spec: RolloutSpec, attempt: int, deadline_s: float) -> Rollout | Failure:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._attempt(spec, attempt, deadline_s)
        except TimeoutError:
            what = f"not complete after {self.config.orchestrator.rollout_timeout_s:g} s"
            return Failure("timeout", what, may_retry=False)

    async def _attempt(self, spec: RolloutSpec, attempt: int, deadline_s: float) -> Rollout | Failure:
        rollout = Rollout.opened(spec, self.renderer.opening(spec.problem.opening))
        room = self.config.model.context_tokens - len(rollout.token_ids)
        if room < 1:
            what = f"the opening has {len(rollout.token_ids)} tokens, the context {self.config.model.context_tokens}"
            return Failure("too_long", what, may_retry=False)
        while True:
            completion = await self._completion(rollout, attempt, deadline_s)
            if isinstance(completion, Failure):
                return completion
            rollout.said(completion, self.renderer.text(completion.token_ids))
            self.notes.tokens(spec, completion.versions)
            reply = self._ask(spec, "step", reply_of, rollout.transcript)
            if isinstance(reply, Failure):
                return reply
            wrong = self._wrong(reply)
            if wrong:
                return Failure("environment", f"step() of problem {spec.problem.id} said {wrong}")
            if self._over(rollout, reply):
                return self._judged(rollout)

    def _wrong(self, reply: Reply) -> str:
        """Why a reply cannot be gone on with, if it cannot."""
        if reply.done:
            return ""
        if not reply.messages:
            return "nothing, and that the episode is not over"
        lacking = self.renderer.unknown(reply.messages)
        text = " ".join(message.content for message in reply.messages)
        return f"{text!r:.200}, of which the model's tokenizer lacks {lacking!r}" if lacking else ""

    def _over(self, rollout: Rollout, reply: Reply) -> bool:
        """Whether this was the last message; if not, what the environment said is added."""
        if reply.done:
            return True
        rollout.transcript += reply.messages
        if rollout.turns >= self.config.env.max_turns:
            rollout.cut = "turns"
            return True
        ended = rollout.token_ids[-1] in self.renderer.stop_ids
        following = self.renderer.following(reply.messages, ended=ended)
        if len(rollout.token_ids) + len(following) >= self.config.model.context_tokens:
            rollout.cut = "context"
            return True
        rollout.given(following)
        return False

    async def _completion(self, rollout: Rollout, attempt: int, deadline_s: float) -> Completion | Failure:
        spec, sampling = rollout.spec, self.config.sampling
        room = self.config.model.context_tokens - len(rollout.token_ids)
        session = f"{spec.id}+{attempt}" if attempt else spec.id
        request = GenerationRequest(
            id=f"{session}/t{rollout.turns}",
            prompt_ids=tuple(rollout.token_ids),
            max_tokens=min(sampling.max_tokens, room),
            temperature=spec.temperature,
            top_p=sampling.top_p,
            stop_ids=tuple(self.renderer.stop_ids),
            seed=seeding.integer(self.config.run.seed, spec.stream, *spec.keys, attempt, rollout.turns),
            session=session,
        )
        answer = await self.gatherer.complete((spec.group, spec.sample), request, deadline_s)
        if isinstance(answer, Failure):
            return answer
        return _checked(answer)

    def _judged(self, rollout: Rollout) -> Rollout | Failure:
        judgement = self._ask(rollout.spec, "reward", judgement_of, rollout.transcript)
        if isinstance(judgement, Failure):
            return judgement
        if not math.isfinite(judgement.reward):
            return Failure("environment", f"reward() of problem {rollout.spec.problem.id} returned {judgement.reward}")
        rollout.judgement = judgement
        return rollout

    def _ask(
        self,
        spec: RolloutSpec,
        call: Literal["step", "reward"],
        taken: Callable[[object], _Answer | str],
        transcript: list[Message],
    ) -> _Answer | Failure:
        """Call the environment. It blocks: a call that never returns is found on the board, with the rollout's number."""
        method: Callable[[Problem, Sequence[Message]], object] = getattr(self.environment, call)
        with self.presence.busy(Activity.ENV_STEP, spec.group, spec.sample):
            try:
                with only_here():
                    answer = taken(method(spec.problem, tuple(transcript)))
            except BaseException as error:  # noqa: BLE001 - user code may raise anything, and nothing else raises here
                what = f"{call}() of problem {spec.problem.id} raised {words_of(error)}"
                return Failure("environment", what)
        if isinstance(answer, str):
            return Failure("environment", f"{call}() of problem {spec.problem.id} returned {answer}")
        return answer


def _checked(completion: Completion) -> Completion | Failure:
    """The completion, if it can be one."""
    tokens = len(completion.token_ids)
    if not tokens:
        return Failure("empty", "a completion without tokens")
    if len(completion.logprobs) != tokens or len(completion.versions) != tokens:
        what = f"{tokens} tokens, {len(completion.logprobs)} log-probabilities, {len(completion.versions)} versions"
        return Failure("malformed", what)
    if not all(map(math.isfinite, completion.logprobs)):
        return Failure("malformed", "a log-probability is not finite")
    return completion
