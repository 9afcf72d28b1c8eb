"""Reverse-text: say a few random letters backwards. One message of each side."""

from __future__ import annotations

import difflib
import string
from collections.abc import Sequence

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.core.refusals import nearest
from headrace.envs.text.fields import fields
from headrace.envs.text.protocol import Judgement, Message, Problem, Reply, Split, Transcript

_LETTERS = string.ascii_lowercase
_TEXTS_SEED = 21
"""Part of what the dataset is, whatever the seed of a run."""
_TAG = "reversed_text"
_GUIDE = "Reverse the text letter by letter. Put the answer between tags, like this: <reversed_text>cba</reversed_text>"
_DIALECTS = ("brief", "guide")


class ReverseEnvironment:
    """Reverse-text; also a teacher.

    Args:
        shortest: Least letters of a text.
        longest: Most.
        problems: Texts to train on.
        held_out: Further texts, for evaluation alone.
        dialect: ``brief``: both sides say nothing but letters. ``guide``: the task is explained, the answer stands between
            tags.

    Raises:
        ConfigError: There is no such dialect, a number is out of bounds, or there are not so many texts.
    """

    evaluates_seen = False

    def __init__(
        self,
        *,
        shortest: int = 4,
        longest: int = 7,
        problems: int = 2000,
        held_out: int = 100,
        dialect: str = "brief",
    ) -> None:
        _check(shortest, longest, problems, held_out, dialect)
        self._guide = dialect == "guide"
        self.alphabet = "" if self._guide else _LETTERS
        texts = _texts(shortest, longest, problems + held_out)
        self._problems: dict[Split, tuple[Problem, ...]] = {
            "train": tuple(self._problem("train", text) for text in texts[held_out:]),
            "eval": tuple(self._problem("eval", text) for text in texts[:held_out]),
        }

    def dataset(self, split: Split) -> Sequence[Problem]:
        """All texts of the split; none is in both."""
        return self._problems[split]

    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        """The episode is over after one answer."""
        del problem, transcript
        return Reply(done=True)

    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        """How much of the answer is right: ``difflib``'s ratio to the reversed text, from 0 to 1."""
        wanted = problem.facts["answer"]
        said = transcript[len(problem.opening) :]
        answer = self._answer(said[0].content) if said else ""
        return Judgement(
            {"similarity": difflib.SequenceMatcher(None, answer, wanted, autojunk=False).ratio()},
            solved=answer == wanted,
        )

    def demonstration(self, problem: Problem, seed: int) -> Transcript:
        """The right answer."""
        del seed
        answer = problem.facts["answer"]
        spoken = f"<reversed_text>{answer}</reversed_text>" if self._guide else answer
        return (*problem.opening, Message("assistant", spoken))

    def _answer(self, text: str) -> str:
        if not self._guide:
            return text
        found = fields(text, _TAG)
        return found[-1].strip() if found else ""

    def _problem(self, split: Split, text: str) -> Problem:
        opening: tuple[Message, ...] = (Message("user", text),)
        if self._guide:
            opening = (Message("system", _GUIDE), *opening)
        return Problem(f"{split}:{text}", opening, {"answer": text[::-1]})


def _texts(shortest: int, longest: int, count: int) -> list[str]:
    """So many different texts, always the same ones."""
    draws = seeding.generator(_TEXTS_SEED, "reverse-text", shortest, longest)
    found: dict[str, None] = {}
    while len(found) < count:
        length = int(draws.integers(shortest, longest + 1))
        found["".join(_LETTERS[index] for index in draws.integers(len(_LETTERS), size=length))] = None
    return list(found)


def _check(shortest: int, longest: int, problems: int, held_out: int, dialect: str) -> None:
    if dialect not in _DIALECTS:
        meant = nearest(dialect, _DIALECTS) or _DIALECTS[0]
        raise ConfigError(
            f"reverse-text has no dialect {dialect!r}", known=", ".join(_DIALECTS), fix=f'set dialect = "{meant}"'
        )
    if not 1 <= shortest <= longest:
        raise ConfigError(
            "reverse-text has no lengths to draw from",
            shortest=shortest,
            longest=longest,
            fix="set shortest from 1 to longest",
        )
    # Drawing goes on until all are different, so half of all there are must be enough.
    enough = max(shortest, 8)  # texts of more letters need not be counted
    most = sum(len(_LETTERS) ** length for length in range(shortest, min(longest, enough) + 1)) // 2
    if problems < 1 or held_out < 1 or problems + held_out > most:
        raise ConfigError(
            "reverse-text has not so many texts, or none of a split",
            problems=problems,
            held_out=held_out,
            fix=f"set both to at least 1, together to at most {most}, or allow longer texts",
        )
