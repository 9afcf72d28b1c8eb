"""A trained policy that acts, from two files: ``config.toml`` and ``policy.safetensors``. No environment is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.registry import build_actor
from headrace.core.errors import HeadraceError, NonFiniteValue, ObservationMismatch, RunDirectoryError
from headrace.core.specs import leaves
from headrace.envs.building import environment_name
from headrace.envs.contract import ObservationCheck
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.payloads import EnvSpaces
from headrace.runtime.remains import policy_to_come
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.team import Team
from headrace.weights.policy_file import POLICY_FILE, load_policy_arrays, policy_versions, read_policy


def load_policy(run: str | Path, version: int | None = None) -> Policy:
    """A policy of a run, live or finished, ready to act.

    Args:
        run: The run directory; of it only ``config.toml`` and ``checkpoints/<version>/policy.safetensors`` are
            read. Or a folder to which these two files were copied side by side.
        version: Which policy; None takes the newest.

    Raises:
        RunDirectoryError: There is no such policy, or it is damaged, or it does not say on what spaces it acts.
        ConfigError: ``config.toml`` was changed into something that is refused.
        SnapshotCorrupt: The policy is not one of this configuration.
    """
    directory = RunDirectory.open(run)
    config = directory.read_config()
    path, arrays, facts = _read(directory, version)
    try:
        return Policy(config, arrays, facts)
    except HeadraceError as error:
        error.place(file=path)
        raise


class Policy:
    """Acts greedily in one environment; `load_policy` makes one.

    Args:
        config: Of the run.
        arrays: All that acting needs.
        facts: Stored beside them.

    Raises:
        RunDirectoryError: The facts do not tell the spaces.
        SnapshotCorrupt: The arrays are not those of a policy of ``config``.
    """

    def __init__(self, config: ExperimentConfig, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str]) -> None:
        spaces = EnvSpaces.told(facts)
        self.observation_space, self.action_space = spaces.observation, spaces.action
        """Of one environment, or of each agent of it, without a stack of frames."""
        self.agents = spaces.agents
        """Names of the agents, each with its own policy or one of several; empty where the environment has but one."""
        self.version = int(facts["version"])
        self.env_steps = int(facts["env_steps"]) if "env_steps" in facts else None
        """Environment steps of the run when the policy was written; None if that was not noted."""
        actor = build_actor(replace(spaces.policy(config), threads=None))  # whose program it is says how many it has
        actor.load(arrays)
        name, cast = environment_name(config.env), config.env.cast_observations
        self._check = ObservationCheck(self.observation_space, name, cast=cast)
        self._floats = [leaf for leaf in leaves(self.observation_space, "obs") if leaf.dtype.kind == "f"]
        agents = max(1, len(self.agents))
        self._team = Team(actor, self.observation_space, self.action_space, agents, config.env.frame_stack)
        self._number = {agent: number for number, agent in enumerate(self.agents)}
        self._there: set[int] = set()
        """Agents that acted last; whoever was not among them begins an episode."""
        self._t = 0

    def begin_episode(self) -> None:
        """Look no further back than to the next observation. Needed after each reset if ``env.frame_stack`` is above 1."""
        self._there, self._t = set(), 0

    def act(self, obs: Any) -> Any:
        """The action for the newest observation; to be called once for each.

        Args:
            obs: As the environment returned it, a member of ``observation_space``; of an environment of many agents a
                dict of the observations of those that are to act. One that is left out has left; it may come back.

        Returns:
            A new member of ``action_space``; of many agents a dict by agent.

        Raises:
            ObservationMismatch: An observation does not fit the space.
            NonFiniteValue: A number in it is NaN or infinite.
        """
        if not self.agents:
            return self._act({0: obs})[0]
        if not isinstance(obs, Mapping) or not obs or not obs.keys() <= self._number.keys():
            raise ObservationMismatch(
                "a policy of many agents acts on a dict of the observations of those that are there",
                expected=f"keys among {', '.join(map(str, self.agents))}",
                found=f"keys {', '.join(map(str, obs))}" if isinstance(obs, Mapping) else type(obs).__name__,
                fix="hand over {agent: observation} for env.agents",
            )
        actions = self._act({self._number[agent]: own for agent, own in obs.items()})
        return {agent: actions[self._number[agent]] for agent in obs}

    def _act(self, observations: Mapping[int, Any]) -> dict[int, Any]:
        for agent, obs in observations.items():
            checked = self._check.check(obs, -1, self._t)
            for leaf in self._floats:
                self._refuse_non_finite(leaf.path, leaf.of(checked))
            self._team.see(agent, checked, first=agent not in self._there)
        self._there, self._t = set(observations), self._t + 1
        return self._team.act(sorted(observations))

    def _refuse_non_finite(self, path: str, values: NDArray[Any]) -> None:
        if not np.isfinite(values).all():
            raise NonFiniteValue(
                f"policy {self.version} was given an observation with a number that is not finite",
                field=path,
                found=values,
                step=self._t,
                fix="find out why the environment returns it; no action follows from it",
            )


def _read(run: RunDirectory, version: int | None) -> tuple[Path, dict[str, NDArray[Any]], dict[str, str]]:
    """The policy's file, and its arrays and facts."""
    beside = run.path / POLICY_FILE
    versions = policy_versions(run.checkpoints_dir)
    if versions or not beside.is_file():
        if not versions:
            raise RunDirectoryError(
                f"{run.path} holds no policy",
                expected=f"checkpoints/<version>/{POLICY_FILE}, or {POLICY_FILE}",
                found="neither",
                fix=policy_to_come(run),
            )
        chosen = versions[-1] if version is None else version
        return run.checkpoint_dir(chosen) / POLICY_FILE, *load_policy_arrays(run.checkpoints_dir, chosen)
    arrays, facts = read_policy(beside)
    if version is not None and facts.get("version") != str(version):
        raise RunDirectoryError(
            f"{run.path} does not hold policy {version}",
            file=beside,
            found=f"policy {facts.get('version')}",
            fix="leave the version out, or name the run directory itself",
        )
    return beside, arrays, facts
