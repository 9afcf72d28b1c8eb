"""How far collecting is let ahead of learning: as little as keeps the learner busy, so that what acts is new."""

from __future__ import annotations

_MORE = 0.25
"""Of a round, when the learner had to wait."""
_LESS = 1 / 256
"""Of what arrives, while it had not."""


class Lead:
    """Steps collecting may be granted beyond those the next update waits for.

    A step is taken with the policy that was published when its chunk was begun. Every step collecting is ahead makes that
    policy an update older and, where updates are what takes the time, no run faster.

    Args:
        least: At least so many.
        most: At most so many.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._more = max(1.0, _MORE * least)
        self._steps = float(least)

    @property
    def steps(self) -> int:
        """As of now."""
        return int(self._steps)

    def waited(self) -> None:
        """The learner had nothing to do, and somebody was collecting."""
        self._steps = min(self._most, self._steps + self._more)

    def stuck(self) -> None:
        """The learner had nothing to do, and nobody was collecting."""
        self._steps = self._most

    def arrived(self, steps: int) -> None:
        """So many steps were collected."""
        self._steps = max(self._least, self._steps - _LESS * steps)
