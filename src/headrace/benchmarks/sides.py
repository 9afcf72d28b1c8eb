"""What a side is: who it is, where it is found, and how it answers. Peers' processes import it too.

A side's process opens it once, which may take long (imports, compilation), and then asks it once a turn.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Request = Mapping[str, Any]
"""What a side is opened with."""
Found = dict[str, Any]
"""What it answers in a turn."""

ZOO = "stable-baselines3"
SBX = "sbx"
PLAIN = "cleanrl-style"
SAMPLE_FACTORY = "sample-factory"
RLLIB = "rllib"

VERSIONS = {
    "headrace": "headrace",
    ZOO: "stable-baselines3",
    SBX: "sbx-rl",
    PLAIN: "torch",
    SAMPLE_FACTORY: "sample-factory",
    RLLIB: "ray",
}
"""Whose version is told of each."""
INSTALLED_BY = {
    ZOO: "pip install 'PATH_OF_THE_CLONE[peers]'",
    SBX: "pip install 'PATH_OF_THE_CLONE[peers]'",
    SAMPLE_FACTORY: "pip install sample-factory==2.1.1, in an environment of its own that --peers DIR names",
    RLLIB: "pip install torch 'ray[rllib]==2.60.0', in an environment of its own that --peers DIR names",
}
"""What brings each that does not come with Headrace."""


@dataclass(frozen=True)
class Opened:
    """A side that is ready."""

    version: str
    turn: Callable[[Mapping[str, Any]], Found]
    """Answers one question."""


def version_of(side: str) -> str:
    """Of what is installed here; of plain torch code, torch's."""
    version = importlib.metadata.version(VERSIONS[side])
    return f"torch {version}" if side == PLAIN else version


def in_windows(work: Callable[[], int]) -> Callable[[Mapping[str, Any]], Found]:
    """A turn of ``seconds``: work is done until they have passed.

    Args:
        work: Does a little, and returns how much.

    Returns:
        A turn that finds ``rate``, work a second, and ``cpu_rate``, work a second of this process's processor time.
    """

    def turn(question: Mapping[str, Any]) -> Found:
        began_s, cpu_s, done = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began_s < question["seconds"]:
            done += work()
        lasted_s = time.perf_counter() - began_s
        return {"rate": done / lasted_s, "cpu_rate": done / max(time.process_time() - cpu_s, 1e-9)}

    return turn
