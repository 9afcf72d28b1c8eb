"""The Gymnasium environment ``headrace/CAGE2-v0``, one copy."""

from __future__ import annotations

from typing import Any, SupportsIndex, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError
from headrace.envs.cage2 import network as net
from headrace.envs.cage2.draws import Draws
from headrace.envs.cage2.render import FPS, draw, table
from headrace.envs.cage2.settings import Keywords, Settings
from headrace.envs.cage2.solo import Solo
from headrace.envs.checks import check_options, checked_render_mode
from headrace.envs.rendering import require_render_mode

OBSERVATION_BITS = 4 * len(net.HOSTS)
_RENDER_MODES = ("ansi", "rgb_array")


class CAGE2Env(gymnasium.Env[NDArray[np.uint8], SupportsIndex]):
    """Defend the network of CAGE Challenge 2 (CybORG 2.1, Scenario 2) against a red agent.

    Observation, uint8 [52] of 0 and 1: for each host of `network.HOSTS` two bits of activity (none 00, scan 10, exploit 11)
    and two of what is believed of it (not compromised 00, unknown 10, user 01, privileged 11). Action, Discrete(145), see
    `network.ACTIONS`. The reward is never above 0.

    Nothing terminates; the last step of an episode truncates it. ``reset(seed=s)`` depends on ``s`` alone; there are no
    options, and ``info`` is empty.

    Args:
        render_mode: None, "ansi" (a table) or "rgb_array"; neither needs a display.
        **settings: Fields of `headrace.envs.cage2.Settings`.

    Raises:
        ConfigError: A keyword is unknown, or a value is out of bounds.
    """

    metadata: dict[str, Any] = {"render_modes": list(_RENDER_MODES), "render_fps": FPS}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, *, render_mode: str | None = None, **settings: Unpack[Keywords]) -> None:
        self.settings = Settings(**settings)  # type: ignore[arg-type]  # a name alone becomes a tuple of one
        self.render_mode = checked_render_mode("CAGE2Env", render_mode, _RENDER_MODES)
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 1, (OBSERVATION_BITS,), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(len(net.ACTIONS))
        self.episode_return = 0.0
        """Sum of the rewards of this episode, so far."""
        self._draws = Draws(self.settings)
        self._solo = Solo(self.settings, self._draws)
        self._begun = self._running = False
        self._last = net.SLEEP

    def compromised_types(self, *, foothold: bool = True) -> int:
        """Types of hosts that have a red session now, as bits by their place in `network.TYPES`.

        Args:
            foothold: Whether User0 counts, where red begins; its session there is never lost, so "user" is always among them.
        """
        return self._solo.compromised(foothold=foothold)

    @property
    def red(self) -> str:
        """The red agent of this episode, by name."""
        return net.OPPONENTS[self._solo.opponent]

    @property
    def red_action(self) -> str:
        """What red has done in the last step."""
        if self._solo.kind == net.REST:
            return net.RED_NAMES[net.REST]
        return f"{net.RED_NAMES[self._solo.kind]} {net.HOSTS[self._solo.target]}"

    def red_levels(self) -> NDArray[np.uint8]:
        """Red's level on each host in truth, [13]: 0 none, 1 and 2 user, 3 privileged; see `rules`."""
        return np.array([number & 3 for number in self._solo.cores], np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Restarts the random numbers; None goes on with the present ones.
            options: There are none.

        Raises:
            ConfigError: There are options.
        """
        check_options("CAGE2Env", options)
        super().reset(seed=seed)
        self._draws.generator = self.np_random  # also one that somebody handed in
        self._solo.reset()
        self._begun = self._running = True
        self._last, self.episode_return = net.SLEEP, 0.0
        return self._solo.observe(), {}

    def step(self, action: SupportsIndex) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step: blue acts, then red.

        Raises:
            ConfigError: ``action`` is no integer from 0 to 144; nothing has happened.
            HeadraceError: No episode is in progress.
        """
        if not self._running:
            raise HeadraceError(
                "CAGE2Env.step() was called while no episode was in progress",
                fix="Call reset() first, and again after a step that returned truncated.",
                steps_taken=self._solo.steps,
            )
        self._last = net.CHECKED.one("CAGE2Env", action)
        reward = self._solo.step(self._last)
        self.episode_return += reward
        over = self._solo.over
        self._running = not over
        return self._solo.observe(), reward, False, over, {}

    def render(self) -> Any:
        """The network: a str with render_mode "ansi", uint8 [240, 420, 3] with "rgb_array"; a new one.

        Raises:
            ConfigError: The environment was built without a render_mode.
            HeadraceError: reset() was never called.
        """
        require_render_mode("CAGE2Env", self.render_mode)
        if not self._begun:
            raise HeadraceError("CAGE2Env has nothing to draw yet", fix="Call reset() first.")
        solo, seen = self._solo, self._solo.observe().tolist()
        if self.render_mode == "rgb_array":
            return draw(solo.cores, seen, solo.stopped)
        title = f"step {solo.steps}: blue {net.ACTIONS[self._last]}, red {self.red_action}; return {self.episode_return:.1f}"
        return table(solo.cores, seen, solo.decoys, title)
