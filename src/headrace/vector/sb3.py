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
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from headrace.core.errors import ConfigError, HeadraceError, VectorMisused
from headrace.vector import questions
from headrace.vector.endings import ENDING
from headrace.vector.env import VectorEnv
from headrace.vector.forks import refuse_copies
from headrace.vector.infos import AsTheyAre
from headrace.vector.questions import Environment
from headrace.vector.spaces import kept_in

Infos = dict[str, Any]
_OF_AN_END = frozenset({"episode", "terminal_observation", "headrace"})
"""Keys of infos that speak of one end alone."""


class SB3VecEnv(VecEnv):
    """Takes the place of ``SubprocVecEnv`` and ``DummyVecEnv``.

    Args:
        envs: Factories, or a `VectorEnv` that resets in the same step; it belongs to this object from now on.
        **options: Of `VectorEnv`, if factories are given.

    Raises:
        ConfigError: The `VectorEnv` resets in another way than SB3, or comes with options.
        HeadraceError: As from `VectorEnv`. What was made of factories is closed, whatever is raised.
    """

    __getstate__ = refuse_copies

    def __init__(self, envs: VectorEnv | Sequence[Callable[[], Environment]], **options: Any) -> None:
        if not isinstance(envs, VectorEnv):
            made = VectorEnv(envs, **{"autoreset_mode": AutoresetMode.SAME_STEP} | options)
            try:
                self._take(made)
            except BaseException:
                made.close()
                raise
            return
        if options:
            raise ConfigError(
                "options of a VectorEnv that exists already cannot be changed",
                options=", ".join(options),
                fix="give the options to VectorEnv, or factories to SB3VecEnv",
            )
        self._take(envs)

    def _take(self, envs: VectorEnv) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                "Stable-Baselines3 expects environments that begin anew in the step in which they end",
                found=envs.metadata["autoreset_mode"],
                fix="VectorEnv(..., autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)",
            )
        self.envs = envs
        """What is behind it, for ``envs.plan`` and everything else SB3 has no word for."""
        self._actions: Any = None
        dtype = envs.single_action_space.dtype
        self._whole = np.dtype(dtype) if dtype is not None and np.dtype(dtype).kind in "biu" else None
        """The dtype of actions that are whole numbers; None: they are not."""
        self._open = False
        """Whether a step or reset was begun and has not come back."""
        self._dropped = False
        """Whether rows were dropped since the last reset, so that what comes next follows nothing SB3 has seen."""
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.metadata = {key: value for key, value in envs.metadata.items() if key != "autoreset_mode"}
        self._said: list[Infos] = [{} for _ in range(envs.num_envs)]
        """What each environment has said last within an episode, and of what it has not said since, before that."""
        envs.collects = AsTheyAre

    # Stepping

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which rows of the newest step an environment made, [N]."""
        return self.envs.valid

    def reset(self) -> VecEnvObs:
        """Begin all episodes anew, with what `seed` and `set_options` have asked for.

        A step that an exception has broken off, Ctrl-C say, is waited for, and its rows are dropped.
        """
        self._settle()
        self._open = True
        # `VectorEnv.reset` would take options called ``reset_mask`` for its own.
        self.envs.send_reset(range(self.num_envs), self._seeds, [dict(options) or None for options in self._options])
        began = self.envs.receive(min_envs=self.num_envs)
        self._open = self._dropped = False
        self.reset_infos = self._each(began.infos)
        for env in range(self.num_envs):
            self._begin(env)
        self._reset_seeds()
        self._reset_options()
        return began.observations  # type: ignore[no-any-return]

    def step_async(self, actions: Any) -> None:
        """Take the actions of the next step, [N, ...]; where they are whole numbers, floats that are whole will do."""
        self._actions = actions if self._whole is None else _exactly(actions, self._whole)

    def step_wait(self) -> VecEnvStepReturn:
        """Step: observations, rewards (float32) and ends, [N], and one info for each environment.

        Raises:
            VectorMisused: The actions do not fit, or a step was broken off since the last reset; nothing was sent.
            HeadraceError: As from `VectorEnv.step`.
        """
        self._settle()
        if self._dropped:
            raise VectorMisused(
                "a step was broken off, and its rows were dropped; nothing was sent",
                fix="reset() first; learn() does, unless reset_num_timesteps=False",
            )
        self._open = True
        obs, rewards, terminations, truncations, infos = self.envs.step(self._actions)
        self._open = False
        told = self._each(infos)
        for env, info in enumerate(told):
            if terminations[env] or truncations[env]:
                told[env] = self._ended(env, info)
            else:
                self._said[env] = info
            told[env]["TimeLimit.truncated"] = bool(truncations[env] and not terminations[env])
        return obs, rewards.astype(np.float32), terminations | truncations, told

    def _settle(self) -> None:
        """Wait for what an exception has left open, and drop it: SB3 has no way to ask for it any more."""
        if not self._open:
            return
        for _ in range(self.num_envs + 1):  # with on_fault="raise", each of them may have a fault to tell of
            try:
                self.envs.receive(min_envs=self.num_envs)
            except VectorMisused:
                break  # nothing is open
            except HeadraceError:
                pass  # of a step that nobody waits for; it is in `VectorEnv.faults`, or the next call raises it again
            self._dropped = True
        self._open = False

    def _each(self, infos: Mapping[Any, Infos]) -> list[Infos]:
        return [infos.get(env, {}) for env in range(self.num_envs)]

    def _ended(self, env: int, info: Infos) -> Infos:
        """The info of an episode's last step; what is told of the first observation of the next goes to `reset_infos`."""
        observation, last = info.pop(ENDING)
        if not self.envs.valid[env]:  # wrappers read keys at an end that every step of the environment has
            last = {key: value for key, value in self._said[env].items() if key not in _OF_AN_END}
        last = {**last, "terminal_observation": observation}
        if "headrace" in info:
            last["headrace"] = info.pop("headrace")
        self.reset_infos[env] = info
        self._begin(env)
        return last

    def _begin(self, env: int) -> None:
        """Have what a reset said precede what steps say, which may have other keys."""
        self._said[env] = self._said[env] | self.reset_infos[env]

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds of the next reset: ``seed``, ``seed + 1``, ...; None draws the first."""
        return super().seed(int(np.random.default_rng().integers(2**31)) if seed is None else seed)

    def close(self) -> None:
        """Close the `VectorEnv`."""
        self.envs.close()

    # Asking single environments: `indices` are counted as in a list, and each of them is asked once

    def has_attr(self, attr_name: str) -> bool:
        """Whether all environments have it; it need not be something that can be pickled."""
        return all(self._ask(partial(questions.has, name=attr_name), None))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute, found through the wrappers, of the chosen environments.

        Raises:
            UnknownAttribute: No layer of one of them has it.
        """
        return self._ask(partial(questions.get, name=attr_name), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute on whichever layer of the chosen environments has it.

        Raises:
            UnknownAttribute: None has it. SB3's own classes would add it to the outermost wrapper, where nobody looks.
        """
        self._ask(partial(questions.put, name=attr_name, value=value), indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """What a method, found through the wrappers, of the chosen environments returns.

        Raises:
            UnknownAttribute: No layer of one of them has it.
        """
        return self._ask(partial(questions.call, name=method_name, args=method_args, kwargs=method_kwargs), indices)

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether the chosen environments are wrapped in it; a class is known by its name, and no worker imports it."""
        return self._ask(partial(questions.is_wrapped_in, wrapper=questions.full_name(wrapper_class)), indices)

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """What the environments draw, if their mode is ``rgb_array``."""
        self._settle()
        return self.envs.render()

    def _ask(self, question: Callable[[Environment], Any], indices: VecEnvIndices) -> list[Any]:
        self._settle()
        numbers = range(self.num_envs)
        try:
            asked = [numbers[place] for place in self._get_indices(indices)]  # as places of a list: -1 is the last
        except (IndexError, TypeError) as error:
            raise VectorMisused(
                "indices does not name environments",
                expected=f"None, a number, or several, from {-self.num_envs} to {self.num_envs - 1}",
                found=f"{indices!r}"[:200],
                fix="give a list of their numbers",
            ) from error
        chosen = sorted(set(asked))
        values = dict(zip(chosen, self.envs.apply(question, chosen), strict=True)) if chosen else {}
        return [values[env] for env in asked]


def _exactly(actions: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Actions in the dtype of their space if it holds each of them exactly; otherwise as they are, to be refused.

    SB3 samples those of MultiBinary as floats.
    """
    given = np.asarray(actions)
    if given.dtype == dtype or given.dtype.kind not in "biuf":
        return given
    cast = kept_in(given, dtype)
    return given if cast is None else cast
