"""One environment: built, reset, stepped and closed. The same code in this process and in workers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from headrace.core.errors import EnvironmentNotBuilt, UnknownAttribute
from headrace.vector import probes
from headrace.vector.endings import ENDING
from headrace.vector.faults import Interrupted, Problem, broken_contract
from headrace.vector.infos import kept
from headrace.vector.interrupts import is_programs
from headrace.vector.probes import Probe
from headrace.vector.rows import Returned

Factory = Callable[[], "gymnasium.Env[Any, Any]"]


class Phase(IntEnum):
    """What an environment is in; each has a limit of its own."""

    STEP = 1
    RESET = 2
    CONSTRUCT = 3
    CLOSE = 4
    CALL = 5

    @property
    def label(self) -> str:
        """As it reads in messages."""
        return self.name.lower()


class Body:
    """One environment under an autoreset mode.

    `step` and `autoreset` return what ``step()`` of an environment returns, unchecked; what the environment raises
    goes through.

    Args:
        index: Of the environment.
        factory: Builds it.
        mode: The autoreset mode. What Gymnasium calls next-step is decided by whoever calls `step` or `autoreset`.
        on_phase: Told what the environment is in, when that is no plain step, and when it is over. After an exception
            it is not told, so that the last word says where the exception comes from.
        wanted: Values to evaluate beside each step.
    """

    def __init__(
        self,
        index: int,
        factory: Factory,
        mode: AutoresetMode,
        on_phase: Callable[[Phase], None],
        wanted: Mapping[str, Probe],
    ) -> None:
        self.index = index
        self.probed: probes.Evaluated = {}
        """What `wanted` was in the newest answer."""
        self._wanted = wanted
        self._steps = 0
        self._ending = False
        self._fresh = False
        """Whether it was built and reset to answer a call, and no episode began since."""
        self._bare = False
        """Whether it was built to answer a call, and that reset is missing."""
        self._factory = factory
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._on_phase = on_phase
        self.env: gymnasium.Env[Any, Any] | None = None
        self.step: Callable[[Any], Returned | Problem] = self._no_step
        self._plain_step: Callable[[Any], Returned] = self._no_step

    def build(self) -> None:
        """Call the factory.

        Raises:
            EnvironmentNotBuilt: It returned something that is no environment. What it raises goes through.
        """
        self._on_phase(Phase.CONSTRUCT)
        self.probed, self._steps, self._ending = {}, 0, False
        made: Any = self._factory()
        check_environment(self.index, made)
        probes.check(self._wanted, self.index, made)
        self.env = made
        self._plain_step = self._probed_step if self._wanted else made.step
        self.step = self._step_and_reset if self._same_step else self._plain_step
        self._on_phase(Phase.STEP)

    def drop(self, *, close: bool) -> None:
        """Be done with the environment; whatever its ``close()`` raises changes nothing."""
        env, self.env, self.step, self._fresh, self._bare = self.env, None, self._no_step, False, False
        if env is None or not close:
            return
        self._on_phase(Phase.CLOSE)
        try:
            env.close()
        except (Exception, SystemExit) as error:  # it is being thrown away because it is broken; nobody is interested
            if is_programs(error):
                raise
        self._on_phase(Phase.STEP)

    def renew(self) -> None:
        """Be done with what there is, as `drop` is, unless it is new already and has only answered calls."""
        if not self._fresh:
            self.drop(close=True)

    def abandon(self) -> None:
        """Have nothing more to do with an environment in which a thread is stuck; that thread changes nothing here."""
        self._on_phase = _nobody_listens

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Returned | Problem:
        """Reset it; built first if it is not there. Reward 0 and no flag, as Gymnasium has it."""
        if self.env is None:
            self.build()
        assert self.env is not None
        return self._reset(self.env, seed=seed, options=options)

    def autoreset(self, _action: Any) -> Returned | Problem:
        """Reset it instead of a step."""
        return self.reset() if self.env is None else self._reset(self.env)

    def _reset(self, env: gymnasium.Env[Any, Any], **arguments: Any) -> Returned | Problem:
        self._fresh = self._bare = False
        self._on_phase(Phase.RESET)
        returned: Any = env.reset(**arguments)
        self._on_phase(Phase.STEP)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            return broken_contract("reset", "what reset() returned", "observation and info", f"{returned!r}"[:200])
        if self._wanted and not self._ending:
            self._steps = 0
            self.probed = probes.evaluate(self._wanted, env, returned[1], 0, ended=False)
        return returned[0], 0.0, False, False, returned[1]

    def _probed_step(self, action: Any) -> Returned:
        assert self.env is not None
        returned: Any = self.env.step(action)
        self._steps += 1
        if _is_answer(returned) and isinstance(returned[4], Mapping):
            ended = bool(returned[2]) or bool(returned[3])
            self.probed = probes.evaluate(self._wanted, self.env, returned[4], self._steps, ended=ended)
        return returned  # type: ignore[no-any-return]

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, seed: int | None = None) -> Any:
        """Call a method of the outermost layer that has it, or read an attribute.

        Args:
            name: Of it; empty: ``args`` holds a function, which is called with the environment.
            args: Given to the method.
            kwargs: The same.
            seed: If there is no environment, one is built, and reset with this seed; the next reset goes on with it.

        Raises:
            UnknownAttribute: No layer has it. What the method, the factory or that reset raises goes through.
        """

        def ask(env: gymnasium.Env[Any, Any]) -> Any:
            if not name:
                return args[0](env)
            found = self._layer(env, name).get_wrapper_attr(name)
            return found(*args, **kwargs) if callable(found) else found

        return self._answer(ask, seed)

    def set_attribute(self, name: str, value: Any, *, gone: bool, seed: int | None = None) -> None:
        """Set an attribute on the outermost layer that has it.

        Args:
            name: Of it.
            value: For it.
            gone: Whether the environment has failed: it is thrown away, or what is set would be with it.
            seed: See `call`.

        Raises:
            UnknownAttribute: No layer has it; nothing was set. What the factory or the reset raises goes through.
        """
        if gone and not self._fresh:
            self.drop(close=True)
        self._answer(lambda env: self._layer(env, name).set_wrapper_attr(name, value), seed)

    def _answer(self, question: Callable[[gymnasium.Env[Any, Any]], Any], seed: int | None) -> Any:
        if self.env is None:
            self.build()
            self._bare = True
        assert self.env is not None
        if self._bare:  # many have nothing to say before a reset, and refuse to
            self._on_phase(Phase.RESET)
            self.env.reset(seed=seed)
            self._fresh, self._bare = True, False
            self._on_phase(Phase.CALL)
        try:
            return question(self.env)
        except BaseException as error:
            if isinstance(error, Interrupted) or is_programs(error):
                self._fresh = False  # nobody knows how far it got
            raise

    def _step_and_reset(self, action: Any) -> Returned | Problem:
        assert self.env is not None
        returned: Any = self._plain_step(action)
        if not _is_answer(returned) or not (returned[2] or returned[3]) or not isinstance(returned[4], Mapping):
            return returned  # type: ignore[no-any-return]  # goes on, or is no answer at all
        observation, reward, terminated, truncated, info = returned
        # reset() may write into the same array, and into the same dict.
        final = copy.deepcopy(observation), kept(info)
        self._ending = True  # what was evaluated belongs to the episode that ends, and not to the next one
        try:
            again = self._reset(self.env)
        finally:
            self._ending, self._steps = False, 0
        if isinstance(again, Problem):
            return again
        if not isinstance(again[4], Mapping):
            return broken_contract("reset", "info", "a dict", f"{again[4]!r}"[:200])
        return again[0], reward, terminated, truncated, {**again[4], ENDING: final}

    def _no_step(self, _action: Any) -> Returned:
        raise RuntimeError("the environment was replaced and has to be reset before it is stepped")

    def _layer(self, env: gymnasium.Env[Any, Any], name: str) -> gymnasium.Env[Any, Any]:
        if not env.has_wrapper_attr(name):
            raise UnknownAttribute(
                f"environment {self.index} has no attribute {name}",
                environment=str(env)[:200],
                fix="correct the name, or create the attribute in the environment's __init__",
            )
        return env


def _is_answer(returned: Any) -> bool:
    """Whether it is what a step returns: five parts, in a tuple or in a list, which Gymnasium takes as well."""
    return isinstance(returned, tuple | list) and len(returned) == 5


def _nobody_listens(_phase: Phase) -> None:
    """For bodies that nobody watches."""


def check_environment(index: int, made: object) -> None:
    """Whether a factory returned an environment.

    Raises:
        EnvironmentNotBuilt: It did not.
    """
    if not isinstance(made, gymnasium.Env):
        raise EnvironmentNotBuilt(
            f"factory for env {index} returned {'None' if made is None else type(made).__name__}",
            expected="an instance of gymnasium.Env",
            found=f"{made!r}"[:200],
            fix="end the factory with `return env`" if made is None else "return one gymnasium.Env",
        )
    for field in ("observation_space", "action_space"):
        if not isinstance(getattr(made, field, None), spaces.Space):
            raise EnvironmentNotBuilt(
                f"env {index} has no {field}",
                expected="a gymnasium.spaces.Space",
                found=f"{getattr(made, field, None)!r}"[:200],
                fix=f"set self.{field} in the environment's __init__",
            )
