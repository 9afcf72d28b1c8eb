"""Wordle: find a secret word by guessing; each guess is answered letter by letter."""

from headrace.envs.text.wordle.environment import WordleEnvironment

__all__ = ["WordleEnvironment"]
