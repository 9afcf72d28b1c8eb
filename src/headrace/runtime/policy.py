"""A trained policy that acts, from two files: ``config.toml`` and ``policy.safetensors``. No environment is built."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.registry import build_actor
from headrace.core.errors import HeadraceError, NonFiniteValue, RunDirectoryError
from headrace.core.spaces import spaces_of
from headrace.core.specs import assemble, handed_over, leaves
from headrace.envs.contract import ObservationCheck, environment_name
from headrace.lanes.derive import stack
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.payloads import EnvSpaces
from headrace.runtime.rundir import RunDirectory
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
        self.observation_space, self.action_space = spaces_of(facts)
        """Of one environment, without a stack of frames."""
        self.version = int(facts["version"])
        self.env_steps = int(facts["env_steps"]) if "env_steps" in facts else None
        """Environment steps of the run when the policy was written; None if that was not noted."""
        self._actor = build_actor(EnvSpaces(self.observation_space, self.action_space).policy(config))
        self._actor.load(arrays)
        name, cast = environment_name(config.env), config.env.cast_observations
        self._check = ObservationCheck(self.observation_space, name, cast=cast)
        self._observation = leaves(self.observation_space, "obs")
        self._action = leaves(self.action_space, "action")
        self._frames: deque[dict[str, NDArray[Any]]] = deque(maxlen=config.env.frame_stack)
        self._t = 0

    def begin_episode(self) -> None:
        """Look no further back than to the next observation. Needed after each reset if ``env.frame_stack`` is above 1."""
        self._t = 0  # frames of the episode before may stay; `stack` does not reach back beyond step 0

    def act(self, obs: Any) -> Any:
        """The action for the newest observation; to be called once for each.

        Args:
            obs: As the environment returned it, a member of ``observation_space``.

        Returns:
            A new member of ``action_space``.

        Raises:
            ObservationMismatch: The observation does not fit the space.
            NonFiniteValue: A number in it is NaN or infinite.
        """
        checked = self._check.check(obs, -1, self._t)
        # Copied, because an environment may return the same array, changed, after its next step.
        frame = {leaf.path: np.array(leaf.of(checked), leaf.dtype) for leaf in self._observation}
        self._refuse_non_finite(frame)
        self._frames.append(frame)
        actions = self._actor.act({leaf.path: self._stacked(leaf.path) for leaf in self._observation})
        self._t += 1
        return assemble(
            self.action_space, {leaf.path: handed_over(actions[leaf.path][0]) for leaf in self._action}, "action"
        )

    def _refuse_non_finite(self, frame: Mapping[str, NDArray[Any]]) -> None:
        for path, values in frame.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise NonFiniteValue(
                    f"policy {self.version} was given an observation with a number that is not finite",
                    field=path,
                    found=values,
                    step=self._t,
                    fix="find out why the environment returns it; no action follows from it",
                )

    def _stacked(self, path: str) -> NDArray[Any]:
        """What the policy sees of one leaf, [1, ...], stacked by the same rule as in training."""
        frames, depth = [frame[path] for frame in self._frames], self._frames.maxlen or 1
        if depth == 1:
            return frames[-1][None]
        padded = [frames[0]] * (depth - len(frames)) + frames
        return stack(np.stack(padded)[None], np.array([self._t]))


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
                fix="wait for the run's first evaluation or checkpoint, or choose another run",
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
