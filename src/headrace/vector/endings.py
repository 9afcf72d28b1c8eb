"""How an episode's end travels beside the first observation of the next: under a key that no environment can use."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class _Key(Enum):
    ENDING = 0


ENDING: Any = _Key.ENDING
"""In the info of a step within which the next episode began: the last observation and the last info of the one before.

No text: infos are their environments' own, and may have any name, ``final_obs`` and ``final_info`` too.
"""


def as_gymnasium_names(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """An info with its ending, if it has one, under Gymnasium's names; what it says itself under these goes."""
    named = dict(info)
    if ENDING not in named:
        return named
    observation, last = named.pop(ENDING)
    final = {"final_obs": observation, "final_info": last}
    return {**final, **named, **final}
