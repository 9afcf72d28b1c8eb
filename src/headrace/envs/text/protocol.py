"""What an environment for language models has to do: name its problems, answer a message, judge what was said.

Nothing is kept between two calls: each is told the problem and everything said so far. So an episode can be repeated,
interrupted and looked at from its transcript alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Split = Literal["train", "eval"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str


Transcript = Sequence[Message]
"""What was said in an episode, the opening messages first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One task of a dataset."""

    id: str
    """Unique in its dataset, the same in every process and every run."""
    opening: tuple[Message, ...]
    """What the model is shown first; ends with a message that is not the model's."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the environment needs to answer and to judge, e.g. the secret word. The model never sees it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment answers to a message of the model."""

    messages: tuple[Message, ...] = ()
    """Said to the model; none once the episode is over."""
    done: bool = False
    """Whether the episode is over."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an episode was worth."""

    terms: Mapping[str, float]
    """By name; the reward is their sum."""
    solved: bool
    """Whether it counts as a win."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Further numbers to report that are no part of the reward, e.g. ``invalid_moves``."""

    @property
    def reward(self) -> float:
        """The sum of the terms."""
        return float(sum(self.terms.values()))


class TextEnvironment(Protocol):
    """An environment for language models. Called from one thread, with a deadline for each call.

    One that holds something, e.g. programs or connections, may have a method ``close()`` beside these; a component calls it
    when it ends.
    """

    def dataset(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, always in the same order. No problem of one split is in the other."""
        ...

    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        """Answer the last message of ``transcript``, which is the model's."""
        ...

    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        """Judge an episode that is over, or that was cut when there was no room for another message."""
        ...


class Teacher(Protocol):
    """An environment that can show how it is done, for a warm start."""

    def demonstration(self, problem: Problem, seed: int) -> Transcript:
        """One episode played by an expert: the opening, then messages of both sides; drawn from ``seed`` alone."""
        ...


class Novice(Protocol):
    """An environment that can also show how somebody plays who knows the form, and nothing else."""

    def attempt(self, problem: Problem, seed: int) -> Transcript:
        """One episode, as `Teacher.demonstration`."""
        ...
