"""Environments of many agents for the tests: agents that leave, come late, come back, and some that break the interface."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

OBSERVATION = spaces.Box(-1.0, 1e6, (4,), np.float32)
ACTION = spaces.Discrete(3)


class Comers:
    """Agents come and go by a generator of the episode's own; everybody is truncated after ``length`` turns.

    An agent sees its number, the turn, how often it has come in this episode, and the last action of everybody summed.
    Its reward is the turn plus a tenth of its number, and a hundredth of its action. ``log`` holds what happened, per copy:
    (agent, obs, action, reward, terminated, truncated, next obs).
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "comers_v0"}
    possible_agents: ClassVar[list[str]] = ["a", "b", "c"]
    render_mode = None

    def __init__(self, length: int = 12, kill_at: int = 0, marker: str = "") -> None:
        self.length, self._kill_at, self._marker, self._steps = length, kill_at, marker, 0
        self.agents: list[str] = []
        self.log: list[tuple[Any, ...]] = []
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return OBSERVATION

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return ACTION

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seeds.append(seed)
        self._rng = np.random.default_rng(seed)
        self.turn, self._heard = 0, 0.0
        there = self._rng.random(3) < 0.6
        there[self._rng.integers(3)] = True
        self.agents = [agent for agent, is_there in zip(self.possible_agents, there, strict=True) if is_there]
        self.lives = {agent: int(agent in self.agents) for agent in self.possible_agents}
        self.seen = {agent: self._see(agent) for agent in self.agents}
        return dict(self.seen), {agent: {} for agent in self.agents}

    def _see(self, agent: str) -> Any:
        number = self.possible_agents.index(agent)
        return np.array([number, self.turn, self.lives[agent], self._heard], np.float32)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents), f"{sorted(actions)} acted, {self.agents} are there"
        self._steps += 1
        if self._kill_at and self._steps == self._kill_at and not Path(self._marker).exists():
            Path(self._marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        live, self.turn, self._heard = list(self.agents), self.turn + 1, float(sum(map(int, actions.values())))
        late = self.turn >= self.length
        leave = {agent: bool(self._rng.random() < 0.2) for agent in live}
        coin = {agent: bool(self._rng.random() < 0.5) for agent in live}
        gone = [agent for agent in self.possible_agents if agent not in live]
        come = [] if late else [agent for agent in gone if self._rng.random() < 0.4]
        rewards = {
            agent: self.turn + 0.1 * self.possible_agents.index(agent) + 0.01 * int(actions[agent]) for agent in live
        }
        terminated = {agent: leave[agent] and coin[agent] and not late for agent in live}
        truncated = {agent: late or (leave[agent] and not coin[agent]) for agent in live}
        for agent in come:
            self.lives[agent] += 1
        self.agents = [agent for agent in live if not (terminated[agent] or truncated[agent])] + come
        obs = {agent: self._see(agent) for agent in (*live, *come)}
        for agent in live:
            ends = terminated[agent], truncated[agent]
            self.log.append((agent, self.seen[agent], int(actions[agent]), rewards[agent], *ends, obs[agent]))
        self.seen = obs
        return obs, rewards, terminated, truncated, {agent: {} for agent in live}

    def render(self) -> None:
        return None

    def close(self) -> None:
        pass


class Relay(Comers):
    """One agent at a time: after ``shift`` turns it is terminated, and the next one comes in that very turn."""

    def __init__(self, shift: int = 4, length: int = 12) -> None:
        super().__init__(length)
        self._shift = shift

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed, options)
        self.agents, self.lives = ["a"], {"a": 1, "b": 0, "c": 0}
        self.seen = {"a": self._see("a")}
        return dict(self.seen), {"a": {}}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents), f"{sorted(actions)} acted, {self.agents} are there"
        (agent,), self.turn, self._heard = self.agents, self.turn + 1, float(sum(map(int, actions.values())))
        late = self.turn >= self.length
        tired = not late and self.turn % self._shift == 0
        if tired:
            self.agents = [self.possible_agents[(self.possible_agents.index(agent) + 1) % 3]]
            self.lives[self.agents[0]] += 1
        elif late:
            self.agents = []
        obs = {one: self._see(one) for one in {agent, *self.agents}}
        return obs, {agent: self.turn + float(self._rng.random())}, {agent: tired}, {agent: late}, {agent: {}}


class Stayers(Comers):
    """All are there from the first turn to the last."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed, options)
        self.agents, self.lives = list(self.possible_agents), dict.fromkeys(self.possible_agents, 1)
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        live, self.turn, self._heard = list(self.agents), self.turn + 1, float(sum(map(int, actions.values())))
        late = dict.fromkeys(live, self.turn >= self.length)
        self.agents = [] if self.turn >= self.length else live
        rewards = {agent: int(actions[agent]) + float(self._rng.random()) for agent in live}
        return {agent: self._see(agent) for agent in live}, rewards, dict.fromkeys(live, False), late, {}


class Scribblers(Stayers):
    """Each earns its action's sum; they write into the actions, and show everything in one array."""

    def __init__(self, length: int = 55) -> None:
        super().__init__(length)
        self._shown = np.zeros((3, 4), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _see(self, agent: str) -> Any:
        seen = self._shown[self.possible_agents.index(agent)]
        seen[:] = super()._see(agent)
        return seen

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        did = {agent: float(action.sum()) for agent, action in actions.items()}
        for action in actions.values():
            action.fill(0)
        self._shown.fill(-1.0)
        obs, _, *rest = super().step(dict.fromkeys(actions, 0))
        return obs, did, *rest


class Leavers(Comers):
    """Agent a terminates in turn 5 with +10, b in turn 2 with -5, c is truncated in turn 4; all other rewards are 1."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed, options)
        self.agents, self.lives = list(self.possible_agents), dict.fromkeys(self.possible_agents, 1)
        self.seen = {agent: self._see(agent) for agent in self.agents}
        return dict(self.seen), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents), f"{sorted(actions)} acted, {self.agents} are there"
        live, self.turn = list(self.agents), self.turn + 1
        terminated = {agent: (agent, self.turn) in {("a", 5), ("b", 2)} for agent in live}
        truncated = {agent: (agent, self.turn) == ("c", 4) for agent in live}
        rewards = {agent: {("a", 5): 10.0, ("b", 2): -5.0}.get((agent, self.turn), 1.0) for agent in live}
        self.agents = [agent for agent in live if not (terminated[agent] or truncated[agent])]
        return (
            {agent: self._see(agent) for agent in live},
            rewards,
            terminated,
            truncated,
            {agent: {} for agent in live},
        )


class Absentee(Comers):
    """Agent c is never there."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed, options)
        self.agents, self.lives = ["a", "b"], {"a": 1, "b": 1, "c": 0}
        self.seen = {agent: self._see(agent) for agent in self.agents}
        return dict(self.seen), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        live, self.turn = list(self.agents), self.turn + 1
        late = dict.fromkeys(live, self.turn >= self.length)
        self.agents = [] if self.turn >= self.length else live
        return (
            {agent: self._see(agent) for agent in live}, dict.fromkeys(live, 1.0), dict.fromkeys(live, False), late,
            {agent: {} for agent in live},
        )  # fmt: skip


class Broken(Leavers):
    """Breaks the interface in turn 2: ``how`` says in what way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.turn != 2:
            return obs, rewards, terminated, truncated, infos
        if self._how == "raises":
            raise ValueError("tile 7")
        if self._how == "four parts":
            return obs, rewards, terminated, infos
        change = {
            "no observation": lambda: obs.pop("c"),
            "no reward": lambda: rewards.pop("b"),
            "ghost": lambda: self.agents.append("b"),
            "vanished": lambda: self.agents.remove("c"),
            "stranger": lambda: self.agents.append("z"),
            "all vanished": self.agents.clear,
            "nan": lambda: rewards.update(a=float("nan")),
            "shape": lambda: obs.update(a=obs["a"][None]),
            "two flags": lambda: truncated.update(c=np.zeros(2, bool)),
            "no flag": lambda: terminated.update(b=None),
            "text": lambda: terminated.update(c="no"),
        }
        change[self._how]()
        return obs, rewards, terminated, truncated, infos


class Differing(Leavers):
    """Agents with spaces of their own."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2 + self.possible_agents.index(agent))


def comers(**kwargs: Any) -> Comers:
    return Comers(**kwargs)


def relay(**kwargs: Any) -> Relay:
    return Relay(**kwargs)


def stayers(**kwargs: Any) -> Stayers:
    return Stayers(**kwargs)


def scribblers(**kwargs: Any) -> Scribblers:
    return Scribblers(**kwargs)


def leavers() -> Leavers:
    return Leavers()


def absentee() -> Absentee:
    return Absentee()


def broken(how: str) -> Broken:
    return Broken(how)


def taking_turns() -> Any:
    """Two agents that say a number each, one after the other; three rounds. PettingZoo's other interface."""
    from pettingzoo import AECEnv
    from pettingzoo.utils import AgentSelector

    class Saying(AECEnv[str, Any, Any]):
        metadata: ClassVar[dict[str, Any]] = {"name": "saying_v0", "is_parallelizable": True}
        possible_agents: ClassVar[list[str]] = ["first", "second"]
        render_mode = None

        def observation_space(self, agent: str) -> spaces.Space[Any]:
            return OBSERVATION

        def action_space(self, agent: str) -> spaces.Space[Any]:
            return ACTION

        def observe(self, agent: str) -> Any:
            return np.array([self.possible_agents.index(agent), self.round, 0, self.said], np.float32)

        def reset(self, seed: int | None = None, options: Any = None) -> None:
            self.agents, self.round, self.said = list(self.possible_agents), 0, 0.0
            self.rewards = self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
            self._cumulative_rewards = dict(self.rewards)
            self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
            self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
            self._order = AgentSelector(self.agents)
            self.agent_selection = self._order.reset()

        def step(self, action: Any) -> None:
            if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
                self._was_dead_step(action)
                return
            self._cumulative_rewards[self.agent_selection] = 0.0
            self.said += float(action)
            self.rewards = dict.fromkeys(self.agents, 0.0)
            if self._order.is_last():
                self.round += 1
                self.rewards = dict.fromkeys(self.agents, 1.0)
                self.truncations = dict.fromkeys(self.agents, self.round == 3)
            self.agent_selection = self._order.next()
            self._accumulate_rewards()

    return Saying()
