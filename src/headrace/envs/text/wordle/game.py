"""The rules: what a guess is answered, which moves count, when a game is over. Nothing here knows how it is put into words."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Literal

GREEN, YELLOW, GREY = "G", "Y", "X"
"""Right letter in its place; a letter of the secret in another place; neither."""

INVALID_MOVES = 2
"""The last of so many ends the game; those before are tolerated and cost no guess."""

Refusal = Literal["unreadable", "length", "unknown", "repeated"]
"""Why a move was invalid: no guess was found; it has another length; it is not in the list; it was guessed before."""


@functools.lru_cache(1 << 16)
def feedback(secret: str, guess: str) -> str:
    """One of G, Y and X per letter of ``guess``, which is as long as ``secret``.

    Greens come first. What they leave of the secret is used up by yellows from left to right, so no letter is told more
    often than the secret has it.
    """
    left = Counter(letter for letter, said in zip(secret, guess, strict=True) if letter != said)
    marks = []
    for letter, said in zip(secret, guess, strict=True):
        if letter == said:
            marks.append(GREEN)
        elif left[said]:
            left[said] -= 1
            marks.append(YELLOW)
        else:
            marks.append(GREY)
    return "".join(marks)


@dataclass(frozen=True, slots=True)
class Rules:
    """What is fixed before a game begins."""

    letters: int
    guesses: int
    """Valid ones; the game is lost after the last."""
    words: Container[str] | None
    """Those that may be guessed; None: any that is long enough."""


@dataclass(frozen=True, slots=True)
class Game:
    """How far a game is."""

    rules: Rules
    secret: str
    guessed: tuple[str, ...] = ()
    """Valid guesses, the oldest first."""
    marks: tuple[str, ...] = ()
    """What each was answered."""
    moves: int = 0
    """All of them, the invalid ones too."""
    refusals: tuple[Refusal, ...] = ()
    last_refused: bool = False
    """Whether the last move was an invalid one."""

    @property
    def solved(self) -> bool:
        """Whether the last guess is the secret."""
        return bool(self.guessed) and self.guessed[-1] == self.secret

    @property
    def over(self) -> bool:
        """Whether no further move is allowed."""
        return self.solved or self.guesses_left == 0 or len(self.refusals) >= INVALID_MOVES

    @property
    def guesses_left(self) -> int:
        """Valid guesses that are left."""
        return self.rules.guesses - len(self.guessed)

    def refusal(self, guess: str | None) -> Refusal | None:
        """Why this would be an invalid move; None if it would not."""
        if guess is None:
            return "unreadable"
        if len(guess) != self.rules.letters:
            return "length"
        if self.rules.words is not None and guess not in self.rules.words:
            return "unknown"
        return "repeated" if guess in self.guessed else None

    def after(self, guess: str | None) -> Game:
        """The game after a move; None is a message in which no guess was found. What is said after the end changes nothing."""
        if self.over:
            return self
        why = self.refusal(guess)
        if why is not None or guess is None:
            return replace(
                self, moves=self.moves + 1, refusals=(*self.refusals, why or "unreadable"), last_refused=True
            )
        return replace(
            self,
            moves=self.moves + 1,
            guessed=(*self.guessed, guess),
            marks=(*self.marks, feedback(self.secret, guess)),
            last_refused=False,
        )


def played(rules: Rules, secret: str, guesses: Iterable[str | None]) -> Game:
    """The game after all of these moves."""
    game = Game(rules, secret)
    for guess in guesses:
        game = game.after(guess)
    return game


def consistent(words: Iterable[str], game: Game) -> list[str]:
    """Those of ``words`` that would have been answered as every guess so far was."""
    answers = list(zip(game.guessed, game.marks, strict=True))
    return [word for word in words if all(feedback(word, guess) == marks for guess, marks in answers)]


def reward_terms(game: Game, *, form: float) -> dict[str, float]:
    """What a game is worth, term by term.

    Args:
        game: It may be cut, without any guess even.
        form: Share of the player's messages that were in the form asked for.
    """
    last = game.marks[-1] if game.marks and not game.solved else ""
    return {
        "exact": 1.0 if game.solved else 0.0,
        "partial": 0.2 * last.count(GREEN) + 0.1 * last.count(YELLOW),
        "few_guesses": 1.0 / len(game.guessed) if game.solved else 0.0,
        "format": 0.2 * form,
    }
