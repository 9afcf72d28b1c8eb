"""How far collecting and learning may run ahead of each other. Numbers in, numbers out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """Keeps updates per environment step at a declared ratio, in both directions.

    The first update is due when ``learning_starts`` steps are stored, and one more with every ``1 / ratio`` steps.
    """

    learning_starts: int
    """Steps stored before the first update; at least 1."""
    ratio: float | None
    """Updates per environment step; None: both sides run free."""
    slack_steps: int
    """Steps collecting may be granted beyond those the next update waits for, at most."""
    target_steps: int
    """Steps after which collecting ends."""
    draw_steps: int = 0
    """Steps among which there surely is one to learn from, if no agent is ever away: an n-step transition takes n rows of
    one lane, and what is stored may lie in all of them."""

    def __post_init__(self) -> None:
        if self.slack_steps < 1 or self.learning_starts < 1:
            raise ConfigError(
                "the run would wait for ever: the learner waits for steps nobody may collect",
                slack_steps=self.slack_steps,
                learning_starts=self.learning_starts,
                fix="raise replay.slack_steps to the steps of one chunk or more, replay.learning_starts to 1 or more",
            )
        if self.ratio is not None and self.ratio <= 0:
            raise ConfigError(
                "no update would ever be due", ratio=self.ratio, fix="set replay.ratio to a number above 0"
            )

    def updates_due(self, env_steps: int) -> int:
        """Updates that should have been made once ``env_steps`` are stored; free running counts them as endless."""
        if env_steps < self.learning_starts:
            return 0
        if self.ratio is None:
            return 2**62
        return 1 + math.floor((env_steps - self.learning_starts) * self.ratio)

    def steps_allowed(self, updates: int, lead: int | None = None, *, starved: bool = False) -> int:
        """Steps that may be granted in all after so many updates.

        Never less than the steps the next update waits for and the slack, so the two sides cannot wait for
        each other.

        Args:
            updates: That were made.
            lead: Steps instead of all of the slack.
            starved: An update is due, and nothing that is stored can be learned from yet: `draw_steps` more are granted,
                which bring something, and no more, so that collecting cannot run away where they do not.
        """
        if self.ratio is None:
            return self.target_steps
        ahead = math.ceil(updates / self.ratio) + (self.slack_steps if lead is None else lead)
        return min(self.target_steps, self.learning_starts + ahead + (self.draw_steps if starved else 0))

    def measured(self, env_steps: int, updates: int) -> float | None:
        """Updates per step since ``learning_starts``; None before the first."""
        since = env_steps - self.learning_starts
        if not updates or since < 1:
            return None
        return updates / since
