"""A CybORG that somebody has, run in its own interpreter, behind the interface of ``headrace/CAGE2-v0``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, EnvironmentNotBuilt, HeadraceError
from headrace.envs.cage2 import network as net
from headrace.envs.cage2.env import OBSERVATION_BITS
from headrace.envs.cage2.settings import Opponent
from headrace.envs.cage2.world import TYPE_BITS, TYPE_BITS_BESIDE_FOOTHOLD
from headrace.envs.checks import check_options, checked_seed
from headrace.envs.guest import Guest, GuestProcess

_CYBORG = Guest("CybORG", Path(__file__).with_name("cyborg_child.py"), "Install CybORG 2.1 for that interpreter.")


class CybORGEnv(gymnasium.Env[NDArray[np.uint8], SupportsIndex]):
    """Scenario 2 as your own CybORG 2.1 plays it; spaces, actions and rewards as `CAGE2Env`'s.

    ``reset(seed=s)`` seeds Python's and NumPy's global generators there. CybORG never ends an episode, so the last of
    ``max_steps`` truncates it here.

    Args:
        python: Path of an interpreter that has CybORG 2.1.
        red: The red agent.
        max_steps: Steps of an episode; None: it goes on for ever.
        scenario: Path of another scenario file than CybORG's own Scenario2.yaml.
        pythonpath: Directories where that interpreter finds CybORG, beside its own.
        true_state: Send red's levels along with every step, which is about half of what a step costs CybORG.
        start_s: How long it may take to be built.
        step_s: How long a step or a reset may take.

    Raises:
        ConfigError: The interpreter cannot be started.
        EnvironmentNotBuilt: CybORG cannot be built, or has other actions than `network.ACTIONS`.
    """

    def __init__(
        self,
        python: str,
        *,
        red: Opponent = "b_line",
        max_steps: int | None = 100,
        scenario: str | None = None,
        pythonpath: Sequence[str] = (),
        **waits: Any,
    ) -> None:
        true_state, start_s = waits.pop("true_state", True), float(waits.pop("start_s", 120.0))
        self._step_s = float(waits.pop("step_s", 30.0))
        if waits or red not in net.OPPONENTS or (max_steps is not None and max_steps < 1):
            raise ConfigError(
                "CybORGEnv cannot be built like this",
                fix="Correct the keyword.",
                unknown=list(waits),
                red=red,
                max_steps=max_steps,
                opponents=", ".join(net.OPPONENTS),
            )
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 1, (OBSERVATION_BITS,), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(len(net.ACTIONS))
        self.episode_return = 0.0
        """Sum of the rewards of this episode, so far."""
        self.true_state = bool(true_state)
        """Whether it knows red's levels."""
        self._max_steps = max_steps
        self._steps = 0
        self._running = False
        self._levels: list[int] | None = None
        settings = {"red": red, "scenario": scenario, "true_state": self.true_state, "path": list(pythonpath)}
        self._cyborg = GuestProcess(_CYBORG, python, settings, start_s)
        self._check_actions(self._cyborg.built)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode.

        Raises:
            ConfigError: There are options.
            HeadraceError: As `GuestProcess.ask`.
        """
        check_options("CybORGEnv", options)
        seed = checked_seed("CybORGEnv", seed)
        super().reset(seed=seed)
        self._running = False
        answer = self._cyborg.ask({"op": "reset", "seed": seed}, self._step_s)
        self._steps, self.episode_return, self._running = 0, 0.0, True
        return self._observed(answer), {}

    def step(self, action: SupportsIndex) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            ConfigError: ``action`` is no integer from 0 to 144; nothing has happened.
            HeadraceError: No episode is in progress; or as `GuestProcess.ask`.
        """
        number = net.CHECKED.one("CybORGEnv", action)
        if not self._running:
            raise HeadraceError(
                "CybORGEnv.step() was called while no episode was in progress",
                fix="Call reset() first, and again after a step that returned truncated.",
            )
        self._running = False  # if the step goes wrong, nobody knows where the episode stands
        answer = self._cyborg.ask({"op": "step", "action": number}, self._step_s)
        self._steps += 1
        reward = float(answer["reward"])
        self.episode_return += reward
        truncated = self._max_steps is not None and self._steps >= self._max_steps
        self._running = not (truncated or answer["done"])
        return self._observed(answer), reward, answer["done"], truncated, {}

    def red_levels(self) -> NDArray[np.uint8]:
        """Red's level on each host in truth, [13]: 0 none, 1 user, 3 privileged.

        Raises:
            ConfigError: The environment was built with ``true_state=False``.
            HeadraceError: reset() was never called.
        """
        if self._levels is None:
            raise ConfigError(
                "CybORGEnv does not know the true state",
                fix="Build it without true_state=False, and call reset() first.",
            )
        return np.array(self._levels, np.uint8)

    def compromised_types(self, *, foothold: bool = True) -> int:
        """As `CAGE2Env.compromised_types`."""
        bits = TYPE_BITS if foothold else TYPE_BITS_BESIDE_FOOTHOLD
        return int(np.bitwise_or.reduce(np.where(self.red_levels(), bits, 0)))

    def close(self) -> None:
        """End the interpreter; calling it again does nothing."""
        self._cyborg.close()

    def _observed(self, answer: Mapping[str, Any]) -> NDArray[np.uint8]:
        self._levels = answer["levels"]
        return np.frombuffer(bytearray(answer["seen"].encode()), np.uint8) - ord("0")

    def _check_actions(self, built: Mapping[str, Any]) -> None:
        expected = [str(action) for action in net.ACTIONS]
        found = built["names"] or expected
        if built["actions"] == len(expected) and found == expected:
            return
        self.close()
        first = next((place for place, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
        raise EnvironmentNotBuilt(
            "CybORG has other actions than Scenario 2 of version 2.1",
            fix="Run CybORG 2.1, with its own Scenario2.yaml.",
            actions=built["actions"],
            expected_actions=len(expected),
            **({"first_that_differs": f"{first}: {found[first]}, not {expected[first]}"} if first >= 0 else {}),
        )
