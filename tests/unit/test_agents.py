"""Environments of many agents: what one copy has to return, and which policy acts for whom."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.core.agents import AgentsConfig, Cast
from headrace.core.config import EnvConfig
from headrace.core.errors import ConfigError, EnvironmentNotBuilt, ObservationMismatch, UnsupportedSpace
from headrace.envs.agents import ParallelCopy, is_parallel, takes_turns
from headrace.envs.building import build_copy, build_environment
from headrace.runtime.config import load_config

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import agent_envs
from hiding import hide


def copy_of(env) -> ParallelCopy:
    return ParallelCopy(env, "park")


def played(copy: ParallelCopy, turns: int) -> list:
    there, found = list(copy.reset(0)), []
    for _ in range(turns):
        turn = copy.step(dict.fromkeys(there, 0))
        found.append(turn)
        ended = {agent for agent, one in turn.returned.items() if one[2] or one[3]}
        there = sorted({*there, *turn.joined} - ended)
    return found


def test_agents_leave_one_after_the_other():
    turns = played(copy_of(agent_envs.leavers()), 5)
    assert [sorted(turn.returned) for turn in turns] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2], [0]]
    assert [turn.over for turn in turns] == [False] * 4 + [True]
    assert turns[1].returned[1][1:] == (-5.0, True, False)
    assert turns[3].returned[2][1:] == (1.0, False, True)


def test_agents_that_come_later_are_told_with_their_first_observation():
    env = agent_envs.comers(length=40)
    copy = copy_of(env)
    there = set(copy.reset(5))
    came = 0
    for _ in range(40):
        turn = copy.step(dict.fromkeys(sorted(there), 0))
        assert set(turn.returned) == there
        assert not set(turn.joined) & there
        for agent, obs in turn.joined.items():
            assert obs[0] == agent
            assert obs[2] == env.lives["abc"[agent]]
        came += len(turn.joined)
        there = {*there, *turn.joined} - {agent for agent, one in turn.returned.items() if one[2] or one[3]}
        if turn.over:
            break
        assert {"abc"[agent] for agent in there} == set(env.agents)
    assert came > 3


def test_a_limit_of_turns_truncates_everybody_who_is_left():
    copy = ParallelCopy(agent_envs.leavers(), "park", max_turns=3)
    last = played(copy, 3)[-1]
    assert {agent: one[2:] for agent, one in last.returned.items()} == {0: (False, True), 2: (False, True)}
    assert last.over


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("no observation", "field: observations of step"),
        ("no reward", "field: rewards of step"),
        ("ghost", "no agent that was terminated or truncated, as b was"),
        ("vanished", "c, which was neither terminated nor truncated"),
        ("stranger", "only such as possible_agents has: a, b, c"),
        ("all vanished", "nobody is left"),
        ("four parts", "five dicts by agent"),
        ("two flags", r"field: truncations of step\(\)\n  expected: a bool for c\n  found: array"),
        ("no flag", r"field: terminations of step\(\)\n  expected: a bool for b\n  found: None"),
        ("text", r"field: terminations of step\(\)\n  expected: a bool for c\n  found: 'no'"),
    ],
)
def test_an_environment_that_breaks_the_interface_is_named(how, told):
    with pytest.raises(ObservationMismatch, match=told) as caught:
        played(copy_of(agent_envs.broken(how)), 2)
    assert caught.value.facts["environment"] == "park"
    assert caught.value.facts["turn"] == 2


@pytest.mark.parametrize("infos", [None, [], [1], "x", 5, np.zeros(3), {1: {}}, {"a": None}], ids=repr)
def test_infos_that_say_nothing_are_passed_over(infos):
    env = agent_envs.leavers()
    step = env.step
    env.step = lambda actions: (*step(actions)[:4], infos)
    assert sorted(played(copy_of(env), 1)[0].returned) == [0, 1, 2]


class Numbered:
    """An environment whose agents are called 0, 1, 2 instead of a, b, c."""

    def __init__(self, env):
        self._env, self.possible_agents = env, [0, 1, 2]

    @property
    def agents(self):
        return ["abc".find(agent) for agent in self._env.agents]

    def observation_space(self, agent):
        return self._env.observation_space("abc"[agent])

    def action_space(self, agent):
        return self._env.action_space("abc"[agent])

    def reset(self, seed=None):
        return tuple(self._numbered(part) for part in self._env.reset(seed=seed))

    def step(self, actions):
        return tuple(
            self._numbered(part) for part in self._env.step({"abc"[agent]: one for agent, one in actions.items()})
        )

    def _numbered(self, part):
        return {"abc".index(agent): value for agent, value in part.items() if agent in "abc"}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("no observation", "field: observations of step"),
        ("no reward", "field: rewards of step"),
        ("ghost", "no agent that was terminated or truncated, as 1 was"),
        ("vanished", "2, which was neither terminated nor truncated"),
        ("stranger", "only such as possible_agents has: 0, 1, 2"),
    ],
)
def test_agents_with_numbers_for_names_are_named_as_well(how, told):
    with pytest.raises(ObservationMismatch, match=told):
        played(copy_of(Numbered(agent_envs.broken(how))), 2)


def test_a_policy_that_fits_no_number_is_told():
    with pytest.raises(ConfigError, match=r"agents\.policies\.spare fits no agent") as caught:
        Cast.of(AgentsConfig(count=3, policies={"all": ["*"], "spare": ["9"]}), [0, 1, 2])
    assert caught.value.facts["agents"] == "0, 1, 2"


def test_nobody_there_after_a_reset():
    env = agent_envs.leavers()
    env.possible_agents = []
    with pytest.raises(UnsupportedSpace, match="is empty"):
        copy_of(env)
    env.possible_agents = ["a", "b", "a"]
    with pytest.raises(UnsupportedSpace, match="possible_agents of park names a twice"):
        copy_of(env)
    env = agent_envs.comers()
    env.reset = lambda seed=None: ({}, {})
    with pytest.raises(ObservationMismatch, match="at least one agent"):
        copy_of(env).reset(0)


def test_spaces_have_to_be_the_same():
    with pytest.raises(UnsupportedSpace, match=r"b: Discrete\(3\)"):
        copy_of(agent_envs.Differing())


def test_which_interface():
    assert is_parallel(agent_envs.leavers())
    aec = agent_envs.taking_turns()
    assert takes_turns(aec)
    assert not is_parallel(aec)
    assert not takes_turns(agent_envs.leavers())


def test_one_that_takes_turns_is_converted():
    copy = build_copy(EnvConfig(), 2, factory=agent_envs.taking_turns)
    assert isinstance(copy, ParallelCopy)
    assert copy.agents == ("first", "second")
    turns = played(copy, 3)
    assert [turn.over for turn in turns] == [False, False, True]
    assert turns[2].returned[0][1:] == (1.0, False, True)


def test_one_that_takes_turns_where_its_extra_is_missing(monkeypatch):
    aec = agent_envs.taking_turns()
    hide(monkeypatch, "pettingzoo")
    with pytest.raises(EnvironmentNotBuilt) as caught:
        build_copy(EnvConfig(), 2, factory=lambda: aec)
    assert caught.value.fix == "pip install 'PATH_OF_THE_CLONE[agents]'"


def test_one_that_takes_turns_in_earnest_is_refused():
    def game():
        env = agent_envs.taking_turns()
        env.unwrapped.metadata = {"name": "game_v0"}
        return env

    with pytest.raises(EnvironmentNotBuilt, match="take turns") as caught:
        build_copy(EnvConfig(), 2, factory=game)
    assert caught.value.facts["found"] == f"{type(game()).__name__} without it"


def test_spaces_that_cannot_be_asked_for_are_told_with_their_place():
    env = agent_envs.leavers()
    env.action_space = {}.__getitem__
    with pytest.raises(EnvironmentNotBuilt, match="building the environment of lane 0 raised KeyError: 'a'"):
        build_copy(EnvConfig(), 3, factory=lambda: env)


def test_agents_may_have_numbers_for_names():
    env = agent_envs.leavers()
    env.possible_agents = [0, 1, 2]
    with pytest.raises(ConfigError, match="has 3 agents: 0, 1, 2"):
        build_copy(EnvConfig(), 2, factory=lambda: env)


@pytest.mark.parametrize("module", ["", "headrace.envs.registration:"])
def test_an_id_is_of_many_agents_whether_or_not_a_module_is_named_before_it(module):
    copy = build_copy(EnvConfig(id=f"{module}headrace/TreasureHunt-v0", kwargs={"num_agents": 2}), 2)
    assert len(copy.agents) == 2


def test_the_number_of_agents_has_to_be_declared():
    with pytest.raises(ConfigError, match="has 3 agents: a, b, c") as caught:
        build_copy(EnvConfig(), 2, factory=agent_envs.leavers)
    assert "agents.count = 3" in caught.value.fix
    with pytest.raises(ConfigError, match="CartPole-v1 has 1 agent"):
        build_copy(EnvConfig(id="CartPole-v1"), 2)
    with pytest.raises(EnvironmentNotBuilt, match="of many agents") as caught:
        build_environment(agent_envs.leavers)
    assert "agents.count" in caught.value.fix


def test_who_acts_by_which_policy():
    names = ["wolf_0", "wolf_1", "sheep"]
    assert Cast.of(AgentsConfig(count=3), names).policy_of == (0, 0, 0)
    own = Cast.of(AgentsConfig(count=3, policies="own"), names)
    assert (own.policies, own.policy_of) == (("wolf_0", "wolf_1", "sheep"), (0, 1, 2))
    packs = Cast.of(AgentsConfig(count=3, policies={"prey": ["sheep"], "pack": ["wolf_*"]}), names)
    assert (packs.policies, packs.policy_of) == (("prey", "pack"), (1, 1, 0))
    assert [packs.policy_of_lane(lane) for lane in range(6)] == [1, 1, 0, 1, 1, 0]
    assert packs.lanes_of(1, 6) == (0, 1, 3, 4)


def test_only_a_star_stands_for_anything():
    table = AgentsConfig(count=4, policies={"first": ["a[0]", "a?"], "rest": ["*"]})
    assert Cast.of(table, ["a[0]", "a0", "a?", "ab"]).policy_of == (0, 1, 0, 1)


def test_every_agent_has_a_policy_and_every_policy_an_agent():
    with pytest.raises(ConfigError, match="agent sheep has no policy"):
        Cast.of(AgentsConfig(count=2, policies={"pack": ["wolf"]}), ["wolf", "sheep"])
    with pytest.raises(ConfigError, match="fits no agent"):
        Cast.of(AgentsConfig(count=2, policies={"all": ["*"], "prey": ["sheep"]}), ["wolf", "sheep"])


@pytest.mark.parametrize("name", ["", "red team", "red\n"])
def test_a_policy_that_cannot_be_named_is_refused(name):
    with pytest.raises(ConfigError, match="cannot") as caught:
        load_config(None, {"agents.count": 2, "agents.policies": {name: ["*"]}})
    assert caught.value.facts["found"] == repr(name)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"env.lanes": 7, "env.group_size": 1}, "env.lanes is no multiple of agents.count"),
        ({"env.lanes": 6, "env.group_size": 2}, "env.group_size is no multiple"),
        ({"env.workers": 2}, "stepped by their collector itself"),
        ({"agents.count": 1, "agents.policies": "own"}, "agents.policies would be ignored"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, told):
    base = {"env.factory": "agent_envs:leavers", "env.lanes": 6, "env.group_size": 3, "agents.count": 3}
    load_config(None, base)
    with pytest.raises(ConfigError, match=told):
        load_config(None, base | change)


def test_one_without_possible_agents_is_told_what_it_lacks():
    env = agent_envs.leavers()

    class Unnamed:
        agents: tuple[str, ...] = ()
        observation_space, action_space, reset, step = env.observation_space, env.action_space, env.reset, env.step

    with pytest.raises(EnvironmentNotBuilt) as caught:
        build_copy(EnvConfig(), 3, factory=Unnamed)
    assert "possible_agents" in caught.value.fix
