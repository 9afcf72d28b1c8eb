"""Environments that hold a run up in ways only the doctor's tests need."""

from __future__ import annotations

from typing import Any

from run_envs import Traced


class Looping(Traced):
    """The fault ``spin`` never returns and uses a whole core."""

    def spin(self) -> None:
        while True:
            pass


def make(**kwargs: Any) -> Looping:
    return Looping(**kwargs)
