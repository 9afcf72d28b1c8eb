"""Environments of many agents: how many there are, and which of them share a policy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from headrace.core.config import Section
from headrace.core.errors import ConfigError


class AgentsConfig(Section):
    """Agents of a PettingZoo environment. Each agent of each copy has a lane of its own."""

    count: int = Field(default=1, ge=1, le=128)
    """Agents of one copy, those included that come later; ``env.lanes`` and ``env.group_size`` are multiples of it."""
    policies: Literal["shared", "own"] | dict[str, list[str]] = "shared"
    """Who acts by which policy. shared: all by one. own: each by its own. Or a table, from the name of a policy to the names
    of its agents, in which ``*`` stands for anything; the first policy that fits counts."""

    @model_validator(mode="after")
    def _policies_can_be_named(self) -> Self:
        for name in self.policies if isinstance(self.policies, dict) else ():
            if not name or any(map(str.isspace, name)):
                raise ConfigError(
                    "a policy's name stands in the names of its metrics, and this one cannot",
                    field="agents.policies",
                    expected="at least one character, and no spaces",
                    found=repr(name),
                    fix="name every policy",
                )
        return self


@dataclass(frozen=True, slots=True)
class Cast:
    """The agents of one copy, and the policy of each."""

    agents: tuple[str, ...]
    """Their names, in the environment's order; empty where there is but one, without a name."""
    policies: tuple[str, ...]
    """Names of the policies."""
    policy_of: tuple[int, ...]
    """Number of each agent's policy."""

    @classmethod
    def of(cls, config: AgentsConfig, agents: Sequence[str]) -> Cast:
        """That of a run.

        Raises:
            ConfigError: An agent has no policy, or a policy no agent.
        """
        names = tuple(agents)
        if config.policies == "shared" or len(names) <= 1:
            return cls(names, ("shared",), (0,) * max(1, len(names)))
        if config.policies == "own":
            return cls(names, names, tuple(range(len(names))))
        return cls(names, tuple(config.policies), tuple(_policy(config.policies, agent) for agent in names)).whole()

    def whole(self) -> Cast:
        """Itself, if every policy has an agent.

        Raises:
            ConfigError: One has none.
        """
        for number, policy in enumerate(self.policies):
            if number not in self.policy_of:
                raise ConfigError(
                    f"agents.policies.{policy} fits no agent, so it would never be trained",
                    agents=", ".join(map(str, self.agents)),
                    fix="correct its names, or remove it",
                )
        return self

    def policy_of_lane(self, lane: int) -> int:
        """Number of the policy that acts in a lane."""
        return self.policy_of[lane % len(self.policy_of)]

    def lanes_of(self, policy: int, lanes: int) -> tuple[int, ...]:
        """Those among so many lanes in which a policy acts."""
        return tuple(lane for lane in range(lanes) if self.policy_of_lane(lane) == policy)


def _policy(table: dict[str, list[str]], agent: str) -> int:
    for number, patterns in enumerate(table.values()):
        if any(_fits(agent, pattern) for pattern in patterns):
            return number
    raise ConfigError(
        f"agent {agent} has no policy",
        policies="; ".join(f"{name}: {', '.join(patterns)}" for name, patterns in table.items()),
        fix=f'name it in agents.policies, e.g. others = ["{agent}"] or others = ["*"] as the last one',
    )


def _fits(agent: str, pattern: str) -> bool:
    """Whether a name is as a pattern says, in which only ``*`` is no character of the name: names may hold brackets."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), str(agent), re.DOTALL) is not None
