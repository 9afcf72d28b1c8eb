"""Two players to learn from and to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.envs.text.wordle.game import Game, consistent

Player = Callable[[Sequence[str], Game, np.random.Generator], str]
"""Next guess: from the words there are, the game so far, and a random stream."""


def expert(words: Sequence[str], game: Game, draws: np.random.Generator) -> str:
    """Any word that fits all answers so far."""
    fitting = consistent(words, game)
    return fitting[draws.integers(len(fitting))]


def novice(words: Sequence[str], game: Game, draws: np.random.Generator) -> str:
    """Any word that was not guessed yet, whatever was answered."""
    new = [word for word in words if word not in game.guessed]
    return new[draws.integers(len(new))]
