"""The word lists, written for Headrace: common English words of three, four and five letters."""

from __future__ import annotations

import functools
from importlib import resources

from headrace.core import seeding
from headrace.core.errors import ConfigError

LETTERS = (3, 4, 5)

_SPLIT_SEED = 20
"""Part of what a dataset is: another one would let words wander from one split to the other between two runs."""


@functools.cache
def word_list(letters: int) -> tuple[str, ...]:
    """All words of so many letters, the 30 of the small game first.

    Raises:
        ConfigError: There is no list for this length.
    """
    if letters not in LETTERS:
        raise ConfigError(
            f"there is no list of words of {letters} letters",
            letters=letters,
            fix=f"set letters to one of {', '.join(map(str, LETTERS))}",
        )
    text = resources.files(__package__).joinpath("words", f"{letters}.txt").read_text(encoding="ascii")
    return tuple(text.split())


def split(words: tuple[str, ...], held_out: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words to train on, and those that are never trained on, each in the order of ``words``.

    Which ones are held out depends on ``words`` and ``held_out`` alone. At least one is, and at least one is not, unless
    ``held_out`` is 0: then none is.
    """
    if held_out == 0:
        return words, ()
    count = min(max(1, round(held_out * len(words))), len(words) - 1)
    order = seeding.generator(_SPLIT_SEED, "wordle", len(words)).permutation(len(words))
    chosen = {words[index] for index in order[:count]}
    return tuple(word for word in words if word not in chosen), tuple(word for word in words if word in chosen)
