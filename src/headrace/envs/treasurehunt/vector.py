"""Many copies of the world at once, as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs.checks import check_options, checked_render_mode, copy_seeds
from headrace.envs.rendering import require_render_mode
from headrace.envs.treasurehunt.draws import Draws
from headrace.envs.treasurehunt.render import FPS, draw
from headrace.envs.treasurehunt.settings import Keywords, Settings
from headrace.envs.treasurehunt.views import observation_space
from headrace.envs.treasurehunt.world import ACTIONS, CHECKED, World

Step = tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class TreasureHuntVector(VectorEnv[NDArray[np.uint8], NDArray[np.integer], NDArray[Any]]):
    """Copies of the world; each of its environments is one agent of one copy.

    With A agents to a copy, environment ``c * A + a`` is agent ``a`` of copy ``c``. All of them are truncated in the
    same step. The next step resets them, as Gymnasium's NEXT_STEP: its actions are not used, its rewards are 0 and
    its observations the first of the new epoch.

    Args:
        num_envs: Copies times agents.
        render_mode: None or "rgb_array", which needs no display.
        **settings: Fields of `headrace.envs.treasurehunt.Settings`; ``num_agents`` is 1 if it is not given.

    Raises:
        ConfigError: ``num_envs`` is no multiple of ``num_agents``; a keyword is unknown, a value is out of bounds, or
            two contradict each other.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as Gymnasium declares it
        "render_modes": ["rgb_array"],
        "render_fps": FPS,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(self, num_envs: int = 1, *, render_mode: str | None = None, **settings: Unpack[Keywords]) -> None:
        settings.setdefault("num_agents", 1)
        self.settings = Settings(**settings)
        agents = self.settings.num_agents
        if num_envs < 1 or num_envs % agents:
            raise ConfigError(
                "TreasureHuntVector cannot deal its environments out to whole copies of the world",
                fix="Set num_envs to a positive multiple of num_agents.",
                num_envs=num_envs,
                num_agents=agents,
            )
        self.render_mode = checked_render_mode("TreasureHuntVector", render_mode)
        self.num_envs = num_envs
        self.single_observation_space = observation_space(self.settings)
        self.single_action_space = spaces.Discrete(ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._world = World(self.settings, [Draws(self.settings) for _ in range(num_envs // agents)])
        self._shape = (self._world.copies, agents)
        self._begun = self._over = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an epoch in every copy.

        Args:
            seed: One for each copy; or one number, to which each copy's number is added; None goes on with the
                generators there are.
            options: There are none.

        Raises:
            ConfigError: There are options, a seed is no integer of at least 0, or there are too many or too few.
        """
        check_options("TreasureHuntVector", options)
        self._world.reset(seeds=copy_seeds("TreasureHuntVector", seed, self._world.copies, "the world"))
        self._begun, self._over = True, False
        return self._observations(), {}

    def step(self, actions: NDArray[np.integer]) -> Step:
        """One turn of every copy, or a reset after the last one of an epoch.

        Returns:
            Observations uint8 [num_envs, F], rewards float64 [num_envs], terminations, truncations, and an empty dict;
            all arrays are new.

        Raises:
            ConfigError: The actions are no integers from 0 to 3, one for each environment; nothing has happened.
            HeadraceError: reset() was never called.
        """
        chosen = CHECKED.many("TreasureHuntVector", actions, self.num_envs)
        if not self._begun:
            raise HeadraceError("TreasureHuntVector.step() was called before reset()", fix="Call reset() first.")
        if self._over:
            self._world.reset()
            self._over = False
            rewards = np.zeros(self.num_envs)
        else:
            rewards = self._world.step(chosen.reshape(self._shape)).reshape(-1)
            self._over = self._world.over
        ends = np.full(self.num_envs, self._over)
        return self._observations(), rewards, np.zeros_like(ends), ends, {}

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """The map of each environment's copy, seen from above: one uint8 [height * s, width * s, 3] per environment.

        Raises:
            ConfigError: The environment was built without render_mode="rgb_array".
            HeadraceError: reset() was never called.
        """
        require_render_mode("TreasureHuntVector", self.render_mode)
        if not self._begun:
            raise HeadraceError("TreasureHuntVector has nothing to draw yet", fix="Call reset() first.")
        pictures = map(draw, self._world.maps, self._world.places)
        return tuple(picture.copy() for picture in pictures for _ in range(self.settings.num_agents))

    def _observations(self) -> NDArray[np.uint8]:
        return self._world.observe().reshape(self.num_envs, -1)
