"""Agents of one copy that act by their policies, and evaluations of them: complete episodes, always the same seeds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.algorithms.base import Actor, LaneNoise
from headrace.collectors.copies import stand_in
from headrace.collectors.stepping import raised
from headrace.core import seeding
from headrace.core.errors import NonFiniteValue
from headrace.core.specs import assemble, handed_over, leaves
from headrace.envs.agents import ParallelCopy, Turn
from headrace.envs.contract import ObservationCheck
from headrace.lanes.derive import stack
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.scores import Scores


class Team:
    """What each agent has seen, stacked by the same rule as in training, and what all of them do.

    Args:
        actor: The acting half, with policies loaded.
        observation_space: Of each agent, without a stack of frames.
        action_space: Of each agent.
        agents: How many.
        depth: Frames that are stacked.
    """

    def __init__(
        self,
        actor: Actor,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        agents: int,
        depth: int,
    ) -> None:
        self._actor = actor
        self._observation, self._action = leaves(observation_space, "obs"), leaves(action_space, "action")
        self._action_space = action_space
        shape = agents, depth
        self._frames = {leaf.path: np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in self._observation}
        self._t = np.zeros(agents, np.int64)
        self._depth = depth

    def see(self, agent: int, obs: Any, *, first: bool) -> None:
        """Show an agent its newest observation; copied.

        Args:
            agent: Which.
            obs: A member of the observation space.
            first: Whether its episode begins with it.
        """
        self._t[agent] = 0 if first else self._t[agent] + 1
        for leaf in self._observation:
            frames = self._frames[leaf.path][agent]
            frames[:-1] = frames[1:].copy()
            frames[-1] = leaf.of(obs)

    def act(self, there: Sequence[int], noise: Sequence[LaneNoise] | None = None) -> dict[int, Any]:
        """Actions of the agents that are there, members of the action space.

        Args:
            there: Those.
            noise: Of every agent; None acts greedily.
        """
        away = [agent for agent in range(len(self._t)) if agent not in there]
        t, frames = self._t.copy(), {path: values.copy() for path, values in self._frames.items()}
        stand_in(away, t, *frames.values())
        seen = {path: values[:, -1] if self._depth == 1 else stack(values, t) for path, values in frames.items()}
        actions = self._actor.act(seen, noise)
        return {
            agent: assemble(
                self._action_space,
                {leaf.path: handed_over(actions[leaf.path][agent]) for leaf in self._action},
                "action",
            )
            for agent in there
        }


class TeamPlayer:
    """Plays episodes of one copy, greedily or at random; as `headrace.runtime.evaluation.Player`.

    The return of an episode is the sum of what its agents earned.

    Args:
        env: The copy.
        config: Of the run.
        name: The environment's name, for messages.
        actor: The acting half, with policies loaded; None acts uniformly at random.
        explores: With the actor's exploration, as drawn for the episode.
    """

    def __init__(
        self,
        env: ParallelCopy,
        config: ExperimentConfig,
        name: str,
        actor: Actor | None = None,
        *,
        explores: bool = False,
    ) -> None:
        self._env = env
        self._name = name
        self._seed = config.run.seed
        self._actor = actor if explores else None
        self._team = (
            None
            if actor is None
            else Team(actor, env.observation_space, env.action_space, len(env.agents), config.env.frame_stack)
        )
        self._noise: list[LaneNoise] | None = None
        self._random = [copy.deepcopy(env.action_space) for _ in env.agents]
        self._check = ObservationCheck(env.observation_space, name, cast=config.env.cast_observations)
        self._floats = [leaf for leaf in leaves(env.observation_space, "obs") if leaf.dtype.kind == "f"]

    def play(self, episodes: int, each_step: Callable[[], None] | None = None) -> Scores:
        """Play complete episodes; number ``k`` has the same seed in every call and every process.

        Args:
            episodes: How many.
            each_step: Called after each step of the first episode.
        """
        earned = np.array(  # [episodes, agents]
            [self._episode(number, None if number else each_step) for number in range(episodes)]
        )
        means = dict(zip(self._env.agents, earned.mean(axis=0).tolist(), strict=True))
        return Scores(tuple(earned.sum(axis=1).tolist()), means)

    def _episode(self, number: int, each_step: Callable[[], None] | None) -> NDArray[np.float64]:
        """What each agent earned, [agents]."""
        seed = self._seed
        seeding.seed_global_generators(seed, "evaluation-global", number)
        for agent, space in enumerate(self._random):
            space.seed(seeding.integer(seed, "evaluation-actions", number, agent))
        if self._actor is not None:
            self._noise = [
                self._actor.noise(seeding.generator(seed, "evaluation-actions", number, agent))
                for agent in range(len(self._random))
            ]
        try:
            there = self._env.reset(seeding.integer(seed, "evaluation", number))
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise raised(error, "reset", self._name, -1, 0) from error
        self._see(there, 0, first=True)
        earned, step, live = np.zeros(len(self._random)), 0, list(there)
        while live:
            step += 1
            turn = self._turn(live, step)
            if each_step is not None:
                each_step()
            for agent, returned in turn.returned.items():
                earned[agent] += self._finite("reward", self._check.reward(returned[1], -1, step), step)
            ended = {
                agent
                for agent, (_, _, terminated, truncated) in turn.returned.items()
                if self._check.flag("terminated", terminated, -1, step)
                | self._check.flag("truncated", truncated, -1, step)
            }
            self._see({agent: one[0] for agent, one in turn.returned.items()}, step, first=False)
            self._see(turn.joined, step, first=True)
            live = [] if turn.over else sorted({*live, *turn.joined} - ended)
        return earned

    def _turn(self, live: Sequence[int], step: int) -> Turn:
        if self._team is None:
            actions = {agent: self._random[agent].sample() for agent in live}
        else:
            actions = self._team.act(live, self._noise)
        try:
            return self._env.step(actions)
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise raised(error, "step", self._name, -1, step) from error

    def _see(self, observations: Mapping[int, Any], step: int, *, first: bool) -> None:
        for agent, obs in observations.items():
            checked = self._check.check(obs, -1, step)
            for leaf in self._floats:
                self._finite(leaf.path, leaf.of(checked), step)
            if self._team is not None:
                self._team.see(agent, checked, first=first)

    def _finite(self, field: str, value: Any, step: int) -> Any:
        if not np.isfinite(value).all():
            raise NonFiniteValue(
                f"{self._name} in an evaluation returned a value that is not finite from {'step' if step else 'reset'}()",
                field=field,
                expected="finite numbers",
                found=value,
                step=step,
                fix="find out why the environment returns it; the evaluation was given up",
            )
        return value
