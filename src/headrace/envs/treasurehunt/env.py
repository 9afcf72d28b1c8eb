"""The Gymnasium environment ``headrace/TreasureHunt-v0``, for one agent."""

from __future__ import annotations

from typing import Any, SupportsIndex, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs.checks import check_options, checked_render_mode
from headrace.envs.rendering import require_render_mode
from headrace.envs.treasurehunt.draws import Draws
from headrace.envs.treasurehunt.render import FPS, draw
from headrace.envs.treasurehunt.settings import Keywords, Settings
from headrace.envs.treasurehunt.views import observation_space
from headrace.envs.treasurehunt.world import ACTIONS, CHECKED, World


class TreasureHuntEnv(gymnasium.Env[NDArray[np.uint8], SupportsIndex]):
    """Collect the gems that appear in a walled grid world, alone; with others, see `TreasureHuntParallel`.

    Observation, uint8 [F] of 0 and 1: the window around the agent, flattened from [channels, rows, columns]
    (`headrace.envs.treasurehunt.views.channels` names the channels). Action, Discrete(4): up, down, left, right. The
    reward is the value of what lay in the cell the agent headed for.

    The task goes on for ever: nothing terminates, and the last turn of an epoch truncates it. ``reset(seed=s)``
    depends on ``s`` alone; there are no options, and ``info`` is empty.

    Args:
        render_mode: None or "rgb_array", which needs no display.
        **settings: Fields of `headrace.envs.treasurehunt.Settings`; ``num_agents`` can only be 1.

    Raises:
        ConfigError: A keyword is unknown, a value is out of bounds, or two contradict each other.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, *, render_mode: str | None = None, **settings: Unpack[Keywords]) -> None:
        settings.setdefault("num_agents", 1)
        self.settings = Settings(**settings)
        if self.settings.num_agents != 1:
            raise ConfigError(
                "TreasureHuntEnv is for one agent",
                fix="Set agents.count in the configuration of a run, or build a TreasureHuntParallel.",
                num_agents=self.settings.num_agents,
            )
        self.render_mode = checked_render_mode("TreasureHuntEnv", render_mode)
        self.observation_space: spaces.Space[Any] = observation_space(self.settings)
        self.action_space: spaces.Space[Any] = spaces.Discrete(ACTIONS)
        self._draws = Draws(self.settings)
        self._world = World(self.settings, [self._draws])
        self._begun = self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an epoch.

        Args:
            seed: Restarts the random numbers; None goes on with the present ones.
            options: There are none.

        Raises:
            ConfigError: There are options.
        """
        check_options("TreasureHuntEnv", options)
        super().reset(seed=seed)
        self._draws.generator = self.np_random  # also one that somebody handed in
        self._world.reset()
        self._begun = self._running = True
        return self._world.observe()[0, 0], {}

    def step(self, action: SupportsIndex) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One turn.

        Raises:
            ConfigError: ``action`` is no integer from 0 to 3; nothing has happened.
            HeadraceError: No epoch is in progress.
        """
        if not self._running:
            raise HeadraceError(
                "TreasureHuntEnv.step() was called while no epoch was in progress",
                fix="Call reset() first, and again after a step that returned truncated.",
                turns_taken=int(self._world.turns[0]),
            )
        reward = self._world.step(np.array([[CHECKED.one("TreasureHuntEnv", action)]]))
        over = self._world.over
        self._running = not over
        return self._world.observe()[0, 0], float(reward[0, 0]), False, over, {}

    def render(self) -> NDArray[np.uint8]:
        """The map, seen from above: uint8 [height * s, width * s, 3], a new array.

        Raises:
            ConfigError: The environment was built without render_mode="rgb_array".
            HeadraceError: reset() was never called.
        """
        require_render_mode("TreasureHuntEnv", self.render_mode)
        if not self._begun:
            raise HeadraceError("TreasureHuntEnv has nothing to draw yet", fix="Call reset() first.")
        return draw(self._world.maps[0], self._world.places[0])
