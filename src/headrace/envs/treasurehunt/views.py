"""What lies in a cell, and how an agent sees the cells around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.envs.treasurehunt.settings import Settings

EMPTY, GEM, FOOD, BONE, WALL, AGENT = range(6)
"""What lies on the top layer. Whatever comes before the wall can be stepped on."""

_CODES = {"empty": EMPTY, "wall": WALL, "sand": WALL, "gem": GEM, "food": FOOD, "bone": BONE, "agent": AGENT}
"""The code that each channel shows; the sand's is where there is no wall."""
_SAND = list(_CODES).index("sand")


def channels(settings: Settings) -> list[str]:
    """Names of an observation's channels, in their order."""
    absent = {
        kind
        for kind, probability in (("food", settings.food_spawn_prob), ("bone", settings.bone_spawn_prob))
        if not probability
    }
    return [kind for kind in _CODES if kind not in absent]


def window_shape(settings: Settings) -> tuple[int, int, int]:
    """Channels, rows and columns of an observation before it is flattened."""
    side = 2 * settings.vision_radius + 1
    return len(channels(settings)), side, side


def observation_space(settings: Settings) -> spaces.Box:
    """The space of one agent's observation, uint8 [F] of 0 and 1, a new object."""
    return spaces.Box(0, 1, (int(np.prod(window_shape(settings))),), np.uint8)


class Views:
    """Turns the cells of a window into an observation.

    Args:
        settings: Which channels there are.
    """

    def __init__(self, settings: Settings) -> None:
        names: Sequence[str] = channels(settings)
        self._shown = np.array([_CODES[name] for name in names], np.uint8)[:, None]  # [channels, 1]

    def of(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Observations of windows, uint8 [..., F], a new array.

        Args:
            codes: What lies in the cells of each window, uint8 [..., cells].
        """
        seen = codes[..., None, :] == self._shown  # bool [..., channels, cells]
        np.not_equal(codes, WALL, out=seen[..., _SAND, :])
        flat: NDArray[np.uint8] = seen.view(np.uint8).reshape(*codes.shape[:-1], -1)
        return flat
