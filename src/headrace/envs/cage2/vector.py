"""Many copies at once, as a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs.cage2 import network as net
from headrace.envs.cage2.draws import Draws
from headrace.envs.cage2.env import OBSERVATION_BITS
from headrace.envs.cage2.render import FPS, draw
from headrace.envs.cage2.settings import Keywords, Settings
from headrace.envs.cage2.world import World
from headrace.envs.checks import check_options, checked_render_mode, copy_seeds
from headrace.envs.rendering import require_render_mode

Step = tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class CAGE2Vector(VectorEnv[NDArray[np.uint8], NDArray[np.integer], NDArray[Any]]):
    """Copies of the network; each plays bit for bit as `CAGE2Env` with its seed would.

    All are truncated in the same step. The next step resets them, as Gymnasium's NEXT_STEP: its actions are not used, its
    rewards are 0 and its observations the first of the new episode.

    Args:
        num_envs: How many copies.
        render_mode: None or "rgb_array", which needs no display.
        **settings: Fields of `headrace.envs.cage2.Settings`.

    Raises:
        ConfigError: ``num_envs`` is below 1, a keyword is unknown, or a value is out of bounds.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as Gymnasium declares it
        "render_modes": ["rgb_array"],
        "render_fps": FPS,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(self, num_envs: int = 1, *, render_mode: str | None = None, **settings: Unpack[Keywords]) -> None:
        self.settings = Settings(**settings)  # type: ignore[arg-type]  # a name alone becomes a tuple of one
        if num_envs < 1:
            raise ConfigError("CAGE2Vector needs a copy to play", fix="Set num_envs to 1 or more.", num_envs=num_envs)
        self.render_mode = checked_render_mode("CAGE2Vector", render_mode)
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 1, (OBSERVATION_BITS,), np.uint8)
        self.single_action_space = spaces.Discrete(len(net.ACTIONS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.episode_returns = np.zeros(num_envs)
        """Sums of the rewards of the episode, so far, [N]."""
        self._world = World(self.settings, [Draws(self.settings) for _ in range(num_envs)])
        self._begun = self._over = False

    def compromised_types(self, *, foothold: bool = True) -> NDArray[np.uint8]:
        """Types of hosts that have a red session now, as bits by their place in `network.TYPES`, [N].

        Args:
            foothold: Whether User0 counts, where red begins; its session there is never lost, so "user" is always among them.
        """
        return self._world.compromised(foothold=foothold)

    @property
    def red(self) -> tuple[str, ...]:
        """The red agents of this episode, by name."""
        return tuple(net.OPPONENTS[opponent] for opponent in self._world.opponents)

    @property
    def over(self) -> bool:
        """Whether the next step resets."""
        return self._over

    def red_levels(self) -> NDArray[np.uint8]:
        """Red's level on each host in truth, [N, 13]: 0 none, 1 and 2 user, 3 privileged; see `rules`."""
        return self._world.levels()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode in every copy.

        Args:
            seed: One for each copy; or one number, to which each copy's number is added; None goes on with the
                generators there are.
            options: There are none.

        Raises:
            ConfigError: There are options, a seed is no integer of at least 0, or there are too many or too few.
        """
        check_options("CAGE2Vector", options)
        self._restart(copy_seeds("CAGE2Vector", seed, self.num_envs, "the network"))
        self._begun = True
        return self._world.observe(), {}

    def step(self, actions: NDArray[np.integer]) -> Step:
        """One step of every copy, or a reset after the last one of an episode.

        Returns:
            Observations uint8 [N, 52], rewards float64 [N], terminations, truncations, and an empty dict; all arrays are
            new.

        Raises:
            ConfigError: The actions are no integers from 0 to 144, one for each copy; nothing has happened.
            HeadraceError: reset() was never called.
        """
        chosen = net.CHECKED.many("CAGE2Vector", actions, self.num_envs)
        if not self._begun:
            raise HeadraceError("CAGE2Vector.step() was called before reset()", fix="Call reset() first.")
        if self._over:
            self._restart(None)
            rewards = np.zeros(self.num_envs)
        else:
            rewards = self._world.step(chosen.astype(np.int64, copy=False))
            self.episode_returns += rewards
            self._over = self._world.over
        ends = np.full(self.num_envs, self._over)
        return self._world.observe(), rewards, np.zeros_like(ends), ends, {}

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """The network of each copy, uint8 [240, 420, 3].

        Raises:
            ConfigError: The environment was built without render_mode="rgb_array".
            HeadraceError: reset() was never called.
        """
        require_render_mode("CAGE2Vector", self.render_mode)
        if not self._begun:
            raise HeadraceError("CAGE2Vector has nothing to draw yet", fix="Call reset() first.")
        world = self._world
        copies = zip(world.cores.tolist(), world.observe().tolist(), world.stopped.tolist(), strict=True)
        return tuple(draw(cores, seen, stopped) for cores, seen, stopped in copies)

    def _restart(self, seeds: Sequence[int | None] | None) -> None:
        self._world.reset(seeds)
        self._over = False
        self.episode_returns = np.zeros(self.num_envs)
