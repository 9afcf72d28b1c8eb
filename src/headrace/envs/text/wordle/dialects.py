"""How the game is put into words: in as few characters as can be, or as a guide for a model that reads English."""

from __future__ import annotations

from typing import Protocol

from headrace.envs.text.fields import fields
from headrace.envs.text.protocol import Message
from headrace.envs.text.wordle.game import INVALID_MOVES, Game, Refusal, Rules

_TAG = "guess"

_REASONS: dict[Refusal, str] = {
    "unreadable": "no guess was found in your message",
    "length": "a guess needs {letters} letters",
    "unknown": "this word is not in the list",
    "repeated": "you have guessed this word before",
}


class Dialect(Protocol):
    """A way of speaking. What is read from a message does not depend on anything said before it."""

    alphabet: str
    """Characters that may occur in a game; empty: any."""

    def opening(self, rules: Rules) -> tuple[Message, ...]:
        """What the player is told first."""
        ...

    def guess(self, text: str) -> str | None:
        """The guess in a message of the player, in lower case; None if there is none."""
        ...

    def well_formed(self, text: str, rules: Rules) -> bool:
        """Whether a message is in the form asked for; the word itself may be wrong."""
        ...

    def spoken(self, word: str) -> str:
        """A message with this guess, as a player says it."""
        ...

    def answer(self, game: Game) -> str:
        """What the player is told after the last move of a game that goes on."""
        ...


class Brief:
    """For models that know characters only: a message is the bare word, an answer its marks, ``?`` an invalid move."""

    alphabet = "abcdefghijklmnopqrstuvwxyzGYX?345"

    def opening(self, rules: Rules) -> tuple[Message, ...]:
        """The number of letters."""
        return (Message("user", str(rules.letters)),)

    def guess(self, text: str) -> str | None:
        """The whole message, if it is one word."""
        return text if text.isalpha() and text.islower() else None

    def well_formed(self, text: str, rules: Rules) -> bool:
        """Whether it is one word of the right length."""
        return len(text) == rules.letters and self.guess(text) is not None

    def spoken(self, word: str) -> str:
        """The word."""
        return word

    def answer(self, game: Game) -> str:
        """The marks of the guess, or ``?``."""
        return "?" if game.last_refused else game.marks[-1]


class Guide:
    """For models that read English: the rules are explained, and a guess stands in a field of its own."""

    alphabet = ""

    def opening(self, rules: Rules) -> tuple[Message, ...]:
        """The form, then the rules."""
        return (
            Message(
                "system",
                "You play a word game. Think step by step, then put one guess between tags, like this:"
                " <guess>[word]</guess>",
            ),
            Message(
                "user",
                f"Find the secret word of {rules.letters} letters. You have {rules.guesses} guesses. After each, every"
                " letter is marked: G if it is in the right place, Y if it belongs to another place, X if the word has"
                " no more of it. A guess that is no word, has another length or was made before is an invalid move:"
                f" {INVALID_MOVES} of them end the game.",
            ),
        )

    def guess(self, text: str) -> str | None:
        """What stands in the last field, brackets or not."""
        found = fields(text, _TAG)
        if not found:
            return None
        word = found[-1].strip().removeprefix("[").removesuffix("]").strip().lower()
        return word if word.isalpha() else None

    def well_formed(self, text: str, rules: Rules) -> bool:
        """Whether there is exactly one field, with one word of the right length."""
        word = self.guess(text)
        return word is not None and len(word) == rules.letters and len(fields(text, _TAG)) == 1

    def spoken(self, word: str) -> str:
        """The word in its field."""
        return f"<guess>[{word}]</guess>"

    def answer(self, game: Game) -> str:
        """The marks under their letters, or what was wrong; and how many guesses are left."""
        left = f"You have {game.guesses_left} {'guess' if game.guesses_left == 1 else 'guesses'} left."
        if game.last_refused:
            reason = _REASONS[game.refusals[-1]].format(letters=game.rules.letters)
            return f"This was an invalid move: {reason}. Another one ends the game. {left}"
        return f"{' '.join(game.guessed[-1].upper())}\n{' '.join(game.marks[-1])}\n{left}"


DIALECTS: dict[str, Dialect] = {"brief": Brief(), "guide": Guide()}
"""By name."""
