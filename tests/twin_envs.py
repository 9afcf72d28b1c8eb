"""An environment whose rewards hang on the process it is in, so that schedules learn different things from it."""

from __future__ import annotations

import os
from typing import Any

from headrace.envs.toy import Target


class ByProcess(Target):
    """Adds something to its rewards that no two processes add alike.

    Args:
        from_step: Steps of this environment before it begins to.
    """

    def __init__(self, from_step: int) -> None:
        super().__init__()
        self._left = from_step

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self._left -= 1
        return obs, reward + (os.getpid() * 1e-6 if self._left < 0 else 0.0), *rest


def by_process(from_step: int) -> ByProcess:
    return ByProcess(from_step)
