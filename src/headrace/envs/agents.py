"""One copy of an environment of many agents (PettingZoo's parallel interface), and the contract it has to keep.

Agents are numbered in the order of ``possible_agents``. An agent may leave, by being terminated or truncated, while
others go on; it may come back; the episode of the copy is over when nobody is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium import spaces

from headrace.core.errors import ObservationMismatch, UnsupportedSpace
from headrace.core.scalars import as_flag

Space = spaces.Space[Any]
_PARTS = ("observations", "rewards", "terminations", "truncations")
"""What a step returns by agent, before infos."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of one step of a copy."""

    returned: Mapping[int, tuple[Any, Any, Any, Any]]
    """Of each agent that acted: observation, reward, terminated, truncated; not checked against its space yet."""
    infos: Mapping[int, Any]
    joined: Mapping[int, Any] = field(default_factory=dict)
    """First observation of each agent that was not there before."""
    over: bool = False
    """Whether the copy has to be reset."""


def is_parallel(made: object) -> bool:
    """Whether something is an environment of many agents that act at once."""
    return hasattr(made, "possible_agents") and not takes_turns(made)


def takes_turns(made: object) -> bool:
    """Whether something is a PettingZoo environment whose agents act one after the other (AEC)."""
    return hasattr(made, "possible_agents") and hasattr(made, "agent_iter")


class ParallelCopy:
    """One copy of an environment of many agents.

    Args:
        env: With ``possible_agents``, ``agents``, ``observation_space(agent)``, ``action_space(agent)``, ``reset``,
            ``step``; duck-typed.
        name: Of the environment, for messages.
        max_turns: Steps after which every agent that is left is truncated, on top of the environment's own limit.

    Raises:
        UnsupportedSpace: There is no agent, one is named twice, or their spaces are not all the same.
    """

    def __init__(self, env: Any, name: str, max_turns: int | None = None) -> None:
        self.env = env
        self.agents: tuple[str, ...] = tuple(env.possible_agents)
        """Names of all agents there may be."""
        self.observation_space = _common(env.observation_space, self.agents, "observation", name)
        """Of each agent."""
        self.action_space = _common(env.action_space, self.agents, "action", name)
        """Of each agent."""
        self._name = name
        self._max_turns = max_turns
        self._turns = 0
        self._be_there(frozenset())
        self._number = {agent: number for number, agent in enumerate(self.agents)}

    @property
    def render_mode(self) -> str | None:
        """As the environment declares it."""
        mode: str | None = getattr(self.env, "render_mode", None)
        return mode

    def reset(self, seed: int) -> dict[int, Any]:
        """Begin an episode.

        Returns:
            The first observation of each agent that is there, not checked yet.

        Raises:
            ObservationMismatch: Nobody is there, or somebody has no observation.
        """
        returned = self.env.reset(seed=seed)
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Mapping):
            raise self._broken(
                "what reset() returned", "observations and infos, a dict by agent each", f"{returned!r}"[:120]
            )
        observations = returned[0]
        self._turns = 0
        self._be_there(self._listed())
        if not self._there:
            raise self._broken("agents after reset()", "at least one agent", "none")
        return self._of(self._there, observations, "observations of reset()")

    def step(self, actions: Mapping[int, Any]) -> Turn:
        """Let every agent that is there act.

        Args:
            actions: By agent.

        Raises:
            ObservationMismatch: What came back does not hold what it must of every agent, or agents that ended are still
                there, or some are gone that have not ended.
        """
        acted = self._there
        self._turns += 1
        returned = self.env.step({self.agents[number]: action for number, action in actions.items()})
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise self._broken("what step() returned", "five dicts by agent", f"{returned!r}"[:120])
        observations, rewards, terminations, truncations, infos = returned
        try:
            found = {n: (observations[a], rewards[a], terminations[a], truncations[a]) for a, n in self._acting}
        except (KeyError, TypeError):
            for name, part in zip(_PARTS, returned, strict=False):
                self._of(acted, part, f"{name} of step()")  # says what is missing
            raise
        late = self._max_turns is not None and self._turns >= self._max_turns
        if late:
            found = {number: (obs, reward, ended, True) for number, (obs, reward, ended, _) in found.items()}
        told: dict[int, Any] = {}
        if isinstance(infos, Mapping):  # what else there is says nothing, as of environments of one agent
            told = {self._number[agent]: info for agent, info in infos.items() if agent in acted}
        listed = frozenset() if late else self._listed()
        ended = {
            self.agents[number]
            for number, (_, _, terminated, truncated) in found.items()
            if not (terminated is False is truncated) and self._ends(number, (terminated, truncated))
        }
        if not ended and listed == acted:  # the usual case
            return Turn(found, told)
        if ended == acted and ended >= listed:
            listed = frozenset()  # some leave the list as it was when everybody has ended at once
        self._refuse_ghosts(acted, ended, listed)
        joined = self._of(listed - acted, observations, "observations of step()")
        self._be_there(listed)
        return Turn(found, told, joined, over=not listed)

    def render(self) -> Any:
        """As the environment draws itself."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment, if it knows how to."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def _be_there(self, agents: frozenset[str]) -> None:
        self._there = agents
        self._acting = tuple((agent, number) for number, agent in enumerate(self.agents) if agent in agents)

    def _listed(self) -> frozenset[str]:
        listed = frozenset(self.env.agents)
        if not listed <= self._number.keys():
            raise self._broken("agents", f"only such as possible_agents has: {_names(self.agents)}", _names(listed))
        return listed

    def _of(self, agents: frozenset[str], values: Any, what: str) -> dict[int, Any]:
        """Values of these agents by number, in the order of the numbers."""
        held = values if isinstance(values, Mapping) else {}
        missing = [agent for agent in self.agents if agent in agents and agent not in held]
        if missing:
            raise self._broken(
                what,
                f"a value for {_names(missing)}",
                f"values for {_names(held) or 'nobody'}",
            )
        return {number: held[agent] for number, agent in enumerate(self.agents) if agent in agents}

    def _ends(self, number: int, flags: Sequence[Any]) -> bool:
        """Whether an agent was terminated or truncated."""
        found = [as_flag(flag) for flag in flags]
        for name, flag, value in zip(_PARTS[2:], found, flags, strict=True):
            if flag is None:
                raise self._broken(f"{name} of step()", f"a bool for {self.agents[number]}", f"{value!r}"[:120])
        return any(found)

    def _refuse_ghosts(self, acted: frozenset[str], ended: set[str], listed: frozenset[str]) -> None:
        staying, gone = sorted(ended & listed, key=str), sorted(acted - ended - listed, key=str)
        if staying:
            raise self._broken(
                "agents after step()",
                f"no agent that was terminated or truncated, as {staying[0]} was",
                _names(listed),
            )
        if gone and listed:
            raise self._broken(
                "agents after step()",
                f"{gone[0]}, which was neither terminated nor truncated",
                _names(listed),
            )
        if gone:
            raise self._broken(
                "terminations and truncations", f"true in one of them for {gone[0]}: nobody is left", "false in both"
            )

    def _broken(self, field: str, expected: str, found: str) -> ObservationMismatch:
        return ObservationMismatch(
            f"{field}: not what an environment of many agents has to return",
            environment=self._name,
            field=field,
            expected=expected,
            found=found,
            turn=self._turns,
            fix="correct the environment; pettingzoo.test.parallel_api_test says what its interface asks",
        )


class Seat(gymnasium.Env[Any, Any]):
    """One agent's place in a copy: its spaces. The copy steps all of them at once, so a seat alone cannot.

    Args:
        copy: The copy, which the first seat closes.
        agent: Number of the agent.
    """

    def __init__(self, copy: ParallelCopy, agent: int) -> None:
        self.copy = copy
        self._agent = agent
        self.observation_space, self.action_space = copy.observation_space, copy.action_space

    def close(self) -> None:
        """Close the copy, if this is its first seat."""
        if self._agent == 0:
            self.copy.close()


def _names(agents: Iterable[object]) -> str:
    """Of agents, which may be numbers; a set in the order of the alphabet."""
    names = [str(agent) for agent in agents]
    return ", ".join(sorted(names) if isinstance(agents, frozenset) else names)


def _common(space_of: Any, agents: Sequence[str], which: str, name: str) -> Space:
    """The one space that all agents have."""
    if not agents:
        raise UnsupportedSpace(f"possible_agents of {name} is empty", fix="name every agent there may be in it")
    twice = next((agent for place, agent in enumerate(agents) if agent in agents[:place]), None)
    if twice is not None:
        raise UnsupportedSpace(
            f"possible_agents of {name} names {twice} twice", found=_names(agents), fix="name each agent once"
        )
    found: dict[str, Space] = {agent: space_of(agent) for agent in agents}
    first = found[agents[0]]
    other = next((agent for agent, space in found.items() if space != first), None)
    if other is not None:
        raise UnsupportedSpace(
            f"agents of {name} have different {which} spaces, and the rows of a run have one form",
            expected=f"that of {agents[0]} for all: {first}",
            found=f"{other}: {found[other]}",
            fix=f"pad the {which}s to one space (supersuit.pad_{which}s{'_v0' if which == 'observation' else '_space_v0'} does)",
        )
    return first
