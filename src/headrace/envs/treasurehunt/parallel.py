"""The environment of many agents, with the interface of PettingZoo's ``ParallelEnv``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, SupportsIndex, Unpack

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.refusals import nearest
from headrace.envs.checks import checked_render_mode, checked_seed
from headrace.envs.rendering import require_render_mode
from headrace.envs.treasurehunt.draws import Draws
from headrace.envs.treasurehunt.render import FPS, draw
from headrace.envs.treasurehunt.settings import Keywords, Settings
from headrace.envs.treasurehunt.views import observation_space
from headrace.envs.treasurehunt.world import ACTIONS, CHECKED, World

Observation = NDArray[np.uint8]
Turn = tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class TreasureHuntParallel:
    """Agents that collect gems in one world; each turn takes one action of each, and they act one after another.

    It has what PettingZoo's ``ParallelEnv`` has, and does not need PettingZoo. The agents are called ``agent_0``,
    ``agent_1``, ... Observation, uint8 [F] of 0 and 1: the window around the agent, flattened from [channels, rows,
    columns] (`headrace.envs.treasurehunt.views.channels` names the channels). Action, Discrete(4): up, down, left,
    right. The reward is the value of what lay in the cell the agent headed for.

    The task goes on for ever: nothing terminates, and the last turn of an epoch truncates it for all agents at once,
    after which ``agents`` is empty until ``reset()``. ``reset(seed=s)`` depends on ``s`` alone.

    Args:
        render_mode: None or "rgb_array", which needs no display.
        **settings: Fields of `headrace.envs.treasurehunt.Settings`.

    Raises:
        ConfigError: A keyword is unknown, a value is out of bounds, or two contradict each other.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as PettingZoo declares it
        "name": "treasurehunt_v0",
        "render_modes": ["rgb_array"],
        "render_fps": FPS,
        "is_parallelizable": True,
    }

    def __init__(self, *, render_mode: str | None = None, **settings: Unpack[Keywords]) -> None:
        self.settings = Settings(**settings)
        self.render_mode = checked_render_mode("TreasureHuntParallel", render_mode)
        self.possible_agents = [f"agent_{number}" for number in range(self.settings.num_agents)]
        self.agents: list[str] = []
        self.observation_spaces = {agent: observation_space(self.settings) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(ACTIONS) for agent in self.possible_agents}
        self._world = World(self.settings, [Draws(self.settings)])
        self._actions = np.zeros((1, self.settings.num_agents), np.int64)
        self._begun = False

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Begin an epoch.

        Args:
            seed: Restarts the random numbers; None goes on with the present ones.
            options: Not read; PettingZoo's own test passes some.

        Returns:
            Observations and infos (empty), by agent.

        Raises:
            ConfigError: The seed is negative, or no integer.
        """
        del options
        self._world.reset(seeds=[checked_seed("TreasureHuntParallel", seed)])
        self._begun = True
        self.agents = self.possible_agents.copy()
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, SupportsIndex]) -> Turn:
        """One turn.

        Args:
            actions: One for every agent, an integer from 0 to 3.

        Returns:
            Observations, rewards, terminations, truncations and infos, by agent; all arrays are new.

        Raises:
            ConfigError: An agent's action is missing, of an unknown agent, or no action; nothing has happened.
            HeadraceError: No epoch is in progress.
        """
        agents = self.agents
        if not agents:
            raise HeadraceError(
                "TreasureHuntParallel.step() was called while no epoch was in progress",
                fix="Call reset() first, and again when agents is empty.",
                turns_taken=int(self._world.turns[0]),
            )
        if len(actions) != len(agents):
            raise self._wrong_agents(actions)
        for number, agent in enumerate(agents):
            if agent not in actions:
                raise self._wrong_agents(actions)
            self._actions[0, number] = CHECKED.one("TreasureHuntParallel", actions[agent])
        rewards = self._world.step(self._actions)[0].tolist()
        over = self._world.over
        if over:
            self.agents = []
        return (
            self._observations(),
            dict(zip(agents, rewards, strict=True)),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            {agent: {} for agent in agents},
        )

    def observation_space(self, agent: str) -> spaces.Box:
        """What an agent observes; always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete[np.int64]:
        """What an agent can do; always the same object."""
        return self.action_spaces[agent]

    def render(self) -> NDArray[np.uint8]:
        """The map, seen from above: uint8 [height * s, width * s, 3], a new array.

        Raises:
            ConfigError: The environment was built without render_mode="rgb_array".
            HeadraceError: reset() was never called.
        """
        require_render_mode("TreasureHuntParallel", self.render_mode)
        if not self._begun:
            raise HeadraceError("TreasureHuntParallel has nothing to draw yet", fix="Call reset() first.")
        return draw(self._world.maps[0], self._world.places[0])

    def close(self) -> None:
        """Nothing to free. A closed environment may be reset again."""
        self.agents = []

    @property
    def num_agents(self) -> int:
        """Agents whose epoch is in progress."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Agents there are."""
        return len(self.possible_agents)

    @property
    def unwrapped(self) -> Self:
        """Itself."""
        return self

    def _observations(self) -> dict[str, Observation]:
        return dict(zip(self.possible_agents, self._world.observe()[0], strict=True))

    def _wrong_agents(self, actions: Mapping[str, object]) -> ConfigError:
        missing = [agent for agent in self.agents if agent not in actions]
        unknown = [agent for agent in actions if agent not in self.agents]
        meant = nearest(str(unknown[0]), self.agents) if unknown else None
        return ConfigError(
            "TreasureHuntParallel.step() takes one action of every agent",
            fix="Pass a dict with exactly these agents.",
            missing=missing,
            unknown=unknown,
            **({"nearest": meant} if meant else {}),
            allowed=", ".join(self.agents),
        )
