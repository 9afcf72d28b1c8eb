"""Episodes that an environment's teacher shows, as tokens to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.core import seeding
from headrace.core.errors import ConfigError, EnvironmentFault
from headrace.envs.text.asking import problems_of, shown_by
from headrace.envs.text.protocol import Message, Problem, Transcript
from headrace.llm.fitting import check_characters
from headrace.llm.rendering import Renderer

_TRIES = 1000
"""Problems that are drawn, until the opening of one leaves room for an answer."""


@dataclass(frozen=True, slots=True)
class DemonstrationBatch:
    """Whole episodes, padded on the right to the longest."""

    token_ids: NDArray[np.int64]  # [B, T]
    trained: NDArray[np.bool_]  # [B, T]
    """Which of them the teacher said; the loss is made of these."""
    tokens: int
    """Without padding."""
    cut: int
    """Episodes that were longer than the context, and end where it does."""


@dataclass(frozen=True, slots=True)
class Teaching:
    """Who shows what.

    Args:
        env: A `TextEnvironment` that is a `Teacher`; a `Novice` too if ``expert_fraction`` is below 1.
        renderer: Of the model that learns.
        expert_fraction: Share of episodes that the expert plays; the novice plays the others.
        context_tokens: Longer episodes are cut.
    """

    env: Any
    renderer: Renderer
    expert_fraction: float
    context_tokens: int

    def check(self) -> None:
        """Refuse what nobody can show.

        Raises:
            ConfigError: The environment has no expert, or no novice and one is wanted.
        """
        lacks = "demonstration" if not hasattr(self.env, "demonstration") else ""
        if not lacks and self.expert_fraction < 1 and not hasattr(self.env, "attempt"):
            lacks = "attempt"
        if lacks:
            raise ConfigError(
                "the environment has no teacher for a supervised warm start",
                environment=type(self.env).__name__,
                lacking=f"the method {lacks}",
                expert_fraction=self.expert_fraction,
                fix="set sft.steps = 0"
                if lacks == "demonstration"
                else "set sft.expert_fraction = 1, or add the method",
            )

    def batch(self, seed: int, step: int, size: int) -> DemonstrationBatch:
        """The episodes of one step, from ``seed`` and ``step`` alone; a problem whose opening leaves no room is passed over.

        Args:
            seed: Of the run.
            step: Counts from 0.
            size: Episodes.

        Raises:
            ConfigError: An episode has characters that the tokenizer lacks, or nothing of what the teacher says has room.
            EnvironmentFault: What is shown is no episode.
            EnvironmentRaised: The teacher raised.
        """
        draws = seeding.generator(seed, "sft", step)
        problems = problems_of(self.env, "train")
        first_of(problems)
        rows = []
        for index in range(size):
            problem = self._with_room(problems, draws)
            who: Literal["demonstration", "attempt"]
            who = "demonstration" if draws.random() < self.expert_fraction else "attempt"
            shown = shown_by(self.env, who, problem, seeding.integer(seed, "sft", step, index))
            check_characters(self.renderer, shown, f"{who} of problem {problem.id}")
            rows.append(tokens_of(shown, problem, self.renderer))
        batch = _padded(rows, self.context_tokens, self.renderer.pad_id)
        if not batch.trained.any():
            raise self._no_room()
        return batch

    def _with_room(self, problems: Sequence[Problem], draws: np.random.Generator) -> Problem:
        for _ in range(_TRIES):
            problem = problems[int(draws.integers(len(problems)))]
            if len(self.renderer.opening(problem.opening)) < self.context_tokens:
                return problem
        raise self._no_room()

    def _no_room(self) -> ConfigError:
        return ConfigError(
            "the context has no room for anything that the teacher says",
            model_context_tokens=self.context_tokens,
            environment=type(self.env).__name__,
            fix="raise model.context_tokens, or have the environment show shorter problems",
        )


def first_of(problems: Sequence[Problem]) -> Problem:
    """The first of them.

    Raises:
        EnvironmentFault: There is none.
    """
    if not problems:
        raise EnvironmentFault(
            "the environment has no problem to train on", fix="have dataset('train') return at least one problem"
        )
    return problems[0]


def tokens_of(transcript: Transcript, problem: Problem, renderer: Renderer) -> tuple[list[int], list[bool]]:
    """An episode as tokens, and which of them the player said. What was said to it after its last message is left out."""
    ids = list(renderer.opening(problem.opening))
    trained = [False] * len(ids)
    told: list[Message] = []
    for message in transcript[len(problem.opening) :]:
        if message.role != "assistant":
            told.append(message)
            continue
        between = renderer.following(tuple(told)) if told else ()
        said = renderer.completion(message.content)
        ids += (*between, *said)
        trained += [False] * len(between) + [True] * len(said)
        told = []
    return ids, trained


def _padded(rows: Sequence[tuple[list[int], list[bool]]], most: int, pad_id: int) -> DemonstrationBatch:
    lengths = [min(len(ids), most) for ids, _ in rows]
    token_ids = np.full((len(rows), max(lengths)), pad_id, np.int64)
    trained = np.zeros(token_ids.shape, np.bool_)
    for row, (length, (ids, said)) in enumerate(zip(lengths, rows, strict=True)):
        token_ids[row, :length] = ids[:length]
        trained[row, :length] = said[:length]
    return DemonstrationBatch(token_ids, trained, sum(lengths), sum(len(ids) > most for ids, _ in rows))
