"""Whether the texts of an environment are ones that a model can read: its characters, and the room it has for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headrace.core.errors import ConfigError
from headrace.envs.text.protocol import Message, Problem
from headrace.llm.rendering import Renderer

_LOOKED_AT = 1000
"""Problems of which tokens are made; all of them would take a minute with a dataset of millions."""


def check_texts(renderer: Renderer, problems: Sequence[Problem], context_tokens: int) -> int:
    """Look at what the model is shown first.

    Args:
        renderer: Of the model.
        problems: Of any splits.
        context_tokens: Of the model.

    Returns:
        Tokens of the longest opening, of the first thousand problems.

    Raises:
        ConfigError: A character is none of the tokenizer's, or no opening leaves room for an answer.
    """
    for problem in problems:
        check_characters(renderer, problem.opening, f"the opening of problem {problem.id}")
    lengths = [len(renderer.opening(problem.opening)) for problem in itertools.islice(problems, _LOOKED_AT)]
    if lengths and min(lengths) >= context_tokens:
        raise ConfigError(
            "no problem's opening leaves room for an answer",
            model_context_tokens=context_tokens,
            shortest_opening_tokens=min(lengths),
            longest_opening_tokens=max(lengths),
            fix=f"set model.context_tokens to {max(lengths)} and as many more as all messages of an episode may have",
        )
    return max(lengths, default=0)


def check_characters(renderer: Renderer, messages: Sequence[Message], where: str) -> None:
    """Refuse a text that the model cannot be shown as it is.

    Raises:
        ConfigError: A character is none of the tokenizer's; it would be shown as the same as every other such.
    """
    lacking = renderer.unknown(messages)
    if lacking:
        raise ConfigError(
            f"{where} has characters that the model's tokenizer lacks",
            characters=lacking,
            text=next(f"{message.content!r:.200}" for message in messages if set(message.content) & set(lacking)),
            fix="give the environment an attribute `alphabet`, a str of all characters that occur, "
            "or take a model (model.path) whose tokenizer has them; for a run that has begun, begin another",
        )
