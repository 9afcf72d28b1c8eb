"""What the environment's constructors accept, checked before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from pydantic import Field, field_validator

from headrace.core.config import Section
from headrace.envs.cage2.network import OPPONENTS

Opponent = Literal["b_line", "meander", "sleep"]


class Settings(Section):
    """Who attacks, and how long an episode lasts."""

    red: tuple[Opponent, ...] = Field(default=("b_line",), min_length=1)
    """Red agents; of several, one is drawn for each episode, each place in the list as likely as the others."""
    max_steps: int | None = Field(default=100, ge=1)
    """Steps of an episode; the last one truncates it. None: it goes on for ever, as CybORG's own does."""

    @field_validator("red", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value

    @property
    def opponents(self) -> tuple[int, ...]:
        """The red agents by their place in `OPPONENTS`."""
        return tuple(OPPONENTS.index(name) for name in self.red)


class Keywords(TypedDict, total=False):
    """Fields of `Settings`, as the constructors take them."""

    red: Opponent | Sequence[Opponent]
    max_steps: int | None
