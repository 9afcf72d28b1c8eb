"""What the environment's constructor and reset accept, checked before anything is built."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import ConfigError
from headrace.envs.hockey.starts import NORMAL, STEP_LIMITS

TWO_PLAYER = "none"
OPPONENTS = ("weak", "strong", "idle", TWO_PLAYER)
COMPATIBLE_WITH = (None, "2.6")
RENDER_MODES = (None, "rgb_array")
_STARTERS = (1, 2)


@dataclass(frozen=True, slots=True)
class Settings:
    """How an environment was asked to behave.

    Raises:
        ConfigError: If a value is unknown, or two of them contradict each other.
    """

    mode: str
    opponent: str
    keep_mode: bool
    discrete_actions: bool
    max_episode_steps: int | None
    compat: str | None
    render_mode: str | None

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, tuple(STEP_LIMITS))
        _one_of("opponent", self.opponent, OPPONENTS)
        _one_of("compat", self.compat, COMPATIBLE_WITH)
        _one_of("render_mode", self.render_mode, RENDER_MODES)
        # bool is checked by type: the string "False" is true, and that has cost somebody a run.
        _flag("keep_mode", self.keep_mode)
        _flag("discrete_actions", self.discrete_actions)
        _limit("max_episode_steps", self.max_episode_steps)
        if self.two_player and self.discrete_actions:
            raise ConfigError(
                "HockeyEnv has no discrete action set for two players at once",
                fix='Set discrete_actions=False, or let opponent="weak" play player two.',
                discrete_actions=True,
                opponent=self.opponent,
            )

    @property
    def two_player(self) -> bool:
        """Whether the caller plays both sides."""
        return self.opponent == TWO_PLAYER

    @property
    def player_size(self) -> int:
        """Action entries of one player."""
        return 4 if self.keep_mode else 3

    @property
    def discrete_size(self) -> int:
        """Members of the discrete action set; the original forgot to count shooting."""
        return 8 if self.keep_mode and self.compat is None else 7


def reset_options(options: Mapping[str, object] | None, default_mode: str) -> tuple[str, int | None]:
    """The mode and the starter (None: to be drawn) that ``reset(options=...)`` asks for.

    Raises:
        ConfigError: On an unknown key or value, or a starter where the mode has none.
    """
    if not options:
        return default_mode, None
    for key in options:
        _one_of("reset option", key, ("mode", "starter"))
    mode = options.get("mode", default_mode)
    starter = options.get("starter")
    if isinstance(starter, np.integer):
        starter = int(starter)
    _one_of("mode", mode, tuple(STEP_LIMITS))
    if starter is not None:
        _one_of("starter", starter, _STARTERS)
        if mode != NORMAL:
            raise ConfigError(
                "HockeyEnv has a starter in mode NORMAL only",
                fix="Drop the starter from the reset options, or reset in mode NORMAL.",
                mode=mode,
                starter=starter,
            )
    return str(mode), 1 if starter == 1 else 2 if starter == 2 else None


def _one_of(name: str, value: object, allowed: Collection[object]) -> None:
    if not any(type(value) is type(member) and value == member for member in allowed):
        raise _refused(name, value, ", ".join(repr(member) for member in allowed))


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refused(name, value, "True, False")


def _limit(name: str, value: object) -> None:
    if value is not None and not (type(value) is int and value >= 1):
        raise _refused(name, value, "None, integers of at least 1")


def _refused(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(
        f"HockeyEnv does not know {name} {value!r}",
        fix=f"Set {name} to one of the allowed values.",
        keyword=name,
        value=repr(value),
        allowed=allowed,
    )
