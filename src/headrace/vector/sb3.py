"""`headrace.VectorEnv` as Stable-Baselines3 wants its environments. Needs ``stable-baselines3``; imported nowhere else.

SB3 knows no environment that is replaced. To it a cut looks like a time limit: ``TimeLimit.truncated`` is set, and
``terminal_observation`` is the last observation the environment gave, from which SB3 bootstraps. The reward of such a row
is 0, which no environment has said; ``info["headrace"]`` and `SB3VecEnv.valid` tell which rows those are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from headrace.core.errors import ConfigError, UnknownAttribute
from headrace.vector.env import VectorEnv
from headrace.vector.infos import AsTheyAre

Environment = gymnasium.Env[Any, Any]
Infos = dict[str, Any]


class SB3VecEnv(VecEnv):
    """Takes the place of ``SubprocVecEnv`` and ``DummyVecEnv``.

    Args:
        envs: Factories, or a `VectorEnv` that resets in the same step; it belongs to this object from now on.
        **options: Of `VectorEnv`, if factories are given.

    Raises:
        ConfigError: The `VectorEnv` resets in another way than SB3, or comes with options.
        HeadraceError: As from `VectorEnv`.
    """

    def __init__(self, envs: VectorEnv | Sequence[Callable[[], Environment]], **options: Any) -> None:
        if not isinstance(envs, VectorEnv):
            envs = VectorEnv(envs, **{"autoreset_mode": AutoresetMode.SAME_STEP} | options)
        elif options:
            raise ConfigError(
                "options of a VectorEnv that exists already cannot be changed",
                options=", ".join(options),
                fix="give the options to VectorEnv, or factories to SB3VecEnv",
            )
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                "Stable-Baselines3 expects environments that begin anew in the step in which they end",
                found=envs.metadata["autoreset_mode"],
                fix="VectorEnv(..., autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)",
            )
        envs.collects = AsTheyAre
        self.envs = envs
        """What is behind it, for ``envs.plan`` and everything else SB3 has no word for."""
        self._actions: Any = None
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    # Stepping

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which rows of the newest step an environment made, [N]."""
        return self.envs.valid

    def reset(self) -> VecEnvObs:
        """Begin all episodes anew, with what `seed` and `set_options` have asked for."""
        first = self._options[0]
        if any(options is not first for options in self._options) and any(self._options):
            self.envs.send_reset(range(self.num_envs), self._seeds, [options or None for options in self._options])
            began = self.envs.receive(min_envs=self.num_envs)
            obs, infos = began.observations, began.infos
        else:
            obs, infos = self.envs.reset(seed=self._seeds, options=dict(first) or None)
        self.reset_infos = self._each(infos)
        self._reset_seeds()
        self._reset_options()
        return obs  # type: ignore[no-any-return]

    def step_async(self, actions: Any) -> None:
        """Take the actions of the next step, [N, ...]."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step: observations, rewards (float32) and ends, [N], and one info for each environment."""
        obs, rewards, terminations, truncations, infos = self.envs.step(self._actions)
        told = self._each(infos)
        for env, info in enumerate(told):
            if terminations[env] or truncations[env]:
                told[env] = self._ended(env, info)
            told[env]["TimeLimit.truncated"] = bool(truncations[env] and not terminations[env])
        return obs, rewards.astype(np.float32), terminations | truncations, told

    def _each(self, infos: Mapping[Any, Infos]) -> list[Infos]:
        return [infos.get(env, {}) for env in range(self.num_envs)]

    def _ended(self, env: int, info: Infos) -> Infos:
        """The info of an episode's last step; what is told of the first observation of the next goes to `reset_infos`."""
        last: Infos = {**info.pop("final_info", {}), "terminal_observation": info.pop("final_obs")}
        if "headrace" in info:
            last["headrace"] = info.pop("headrace")
        self.reset_infos[env] = info
        return last

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds of the next reset: ``seed``, ``seed + 1``, ...; None draws the first."""
        return super().seed(int(np.random.default_rng().integers(2**31)) if seed is None else seed)

    def close(self) -> None:
        """Close the `VectorEnv`."""
        self.envs.close()

    # Asking single environments

    def has_attr(self, attr_name: str) -> bool:
        """Whether all environments have it; it need not be something that can be pickled."""
        return all(self.envs.apply(partial(_has, name=attr_name)))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute, found through the wrappers, of the chosen environments.

        Raises:
            UnknownAttribute: No layer of one of them has it.
        """
        return self._ask(partial(_get, name=attr_name), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute on whichever layer of the chosen environments has it.

        Raises:
            UnknownAttribute: None has it. SB3's own classes would add it to the outermost wrapper, where nobody looks.
        """
        self._ask(partial(_set, name=attr_name, value=value), indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """What a method, found through the wrappers, of the chosen environments returns.

        Raises:
            UnknownAttribute: No layer of one of them has it.
        """
        return self._ask(partial(_call, name=method_name, args=method_args, kwargs=method_kwargs), indices)

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether the chosen environments are wrapped in it."""
        return self._ask(partial(is_wrapped, wrapper_class=wrapper_class), indices)

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """What the environments draw, if their mode is ``rgb_array``."""
        return self.envs.render()

    def _ask(self, question: Callable[[Environment], Any], indices: VecEnvIndices) -> list[Any]:
        return list(self.envs.apply(question, list(self._get_indices(indices))))


def _has(env: Environment, name: str) -> bool:
    return env.has_wrapper_attr(name)


def _get(env: Environment, name: str) -> Any:
    _check(env, name)
    return env.get_wrapper_attr(name)


def _set(env: Environment, name: str, value: Any) -> None:
    _check(env, name)
    env.set_wrapper_attr(name, value)


def _call(env: Environment, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _get(env, name)(*args, **kwargs)


def _check(env: Environment, name: str) -> None:
    if not env.has_wrapper_attr(name):
        raise UnknownAttribute(
            f"no layer of the environment has an attribute {name}",
            environment=str(env)[:200],
            fix="correct the name, or create the attribute in the environment's __init__",
        )
