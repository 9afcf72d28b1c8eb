"""Evaluations of environments of many agents: what an episode is worth, and what each agent is shown in it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.envs.agents import ParallelCopy
from headrace.runtime.config import load_config
from headrace.runtime.team import TeamPlayer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import agent_envs

DEPTH = 3


class Watcher:
    """An actor that does what the newest frame says, and remembers all it was shown."""

    def __init__(self) -> None:
        self.shown: list[np.ndarray] = []

    def act(self, obs: dict[str, np.ndarray], noise: Any = None) -> dict[str, np.ndarray]:
        self.shown.append(obs["obs"].copy())
        return {"action": obs["obs"][:, -1, 1].astype(np.int64) % 3}


class Recorded(agent_envs.Comers):
    """Remembers, of every step, the number of the episode and what the agents that are there had seen and did."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, dict[str, np.ndarray], dict[str, int]]] = []

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.steps.append((len(self.seeds), {agent: self.seen[agent] for agent in self.agents}, dict(actions)))
        return super().step(actions)


def player(env: agent_envs.Comers, actor: Any = None) -> TeamPlayer:
    base = {"env.factory": "agent_envs:comers", "env.lanes": 6, "env.group_size": 3, "agents.count": 3}
    config = load_config(None, base | {"env.frame_stack": DEPTH, "algorithm.name": "dqn"})
    return TeamPlayer(ParallelCopy(env, "park"), config, "park", actor)


def test_the_return_of_an_episode_is_what_all_its_agents_earned():
    env = agent_envs.comers()
    play = player(env)
    returns, begin = [], 0
    for episodes in range(1, 6):  # each call plays those of the one before and one more
        scores = play.play(episodes)
        begin, log = len(env.log), env.log[begin:]
        earned = {name: sum(reward for agent, _, _, reward, *_ in log if agent == name) for name in "abc"}
        assert scores.agents == pytest.approx({name: total / episodes for name, total in earned.items()})
        assert sum(scores.returns) == pytest.approx(sum(earned.values()))
        assert list(scores.returns[:-1]) == returns
        returns = list(scores.returns)
    assert max(seen[2] for _, seen, *_ in env.log) > 1  # somebody has come back


def test_whoever_follows_the_steps_is_shown_the_first_episode():
    counts = []
    for episodes in (1, 3):
        steps: list[int] = []
        player(agent_envs.comers()).play(episodes, lambda steps=steps: steps.append(1))
        counts.append(len(steps))
    assert counts[0] == counts[1] > 0


def test_agents_are_shown_the_frames_of_their_own_life():
    env, actor = Recorded(), Watcher()
    player(env, actor).play(8)
    assert len(env.steps) == len(actor.shown)
    lives: dict[tuple[int, str, int], list[np.ndarray]] = {}
    for shown, (episode, seen, actions) in zip(actor.shown, env.steps, strict=True):
        for name, newest in seen.items():
            frames = lives.setdefault((episode, name, int(newest[2])), [])
            frames.append(newest)
            expected = [frames[max(0, len(frames) - DEPTH + place)] for place in range(DEPTH)]
            np.testing.assert_array_equal(shown["abc".index(name)], expected)
            assert actions[name] == int(newest[1]) % 3
    assert {life for _, _, life in lives} > {1}


def test_who_is_away_is_shown_what_somebody_who_is_there_is_shown():
    env, actor = agent_envs.leavers(), Watcher()
    player(env, actor).play(1)
    there = [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [0]]
    for shown, agents in zip(actor.shown, there, strict=True):
        assert shown[agents, -1, 0].tolist() == agents
        for away in {0, 1, 2} - {*agents}:
            np.testing.assert_array_equal(shown[away], shown[agents[0]])
