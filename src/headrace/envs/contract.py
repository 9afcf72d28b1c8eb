"""The contract every environment must keep, checked where its values enter the library.

Nothing an environment returns is converted, clipped or dropped silently: what does not fit its declared space is
refused with environment, field, expected and found.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from headrace.core.config import EnvConfig, factory_name, nearest
from headrace.core.errors import ConfigError, EnvironmentNotBuilt, HeadraceError, ObservationMismatch
from headrace.core.specs import Leaf, assemble, leaves
from headrace.envs import registration
from headrace.envs.agents import ParallelCopy, is_parallel, takes_turns

Environment = gymnasium.Env[Any, Any]
GOES_ON = (False, False)
"""Neither terminated nor truncated; one object, because it is made for nearly every step."""
EnvFactory = Callable[..., Environment]


# Building


def build_environment(
    source: EnvConfig | EnvFactory,
    lane: int = 0,
    *,
    factory: EnvFactory | None = None,
    render_mode: str | None = None,
    component: str = "run",
) -> Environment:
    """Build the environment of one lane.

    Args:
        source: The section ``env``, or a callable that returns an environment.
        lane: For error messages.
        factory: A callable used instead of ``source.id`` and ``source.factory``; kwargs and time limit still apply.
        render_mode: Passed to ``gymnasium.make`` or the factory if not None.
        component: Who builds it, for error messages.

    Raises:
        EnvironmentNotBuilt: It is not registered, cannot be imported, raised, or is no Gymnasium environment.
    """
    config = source if isinstance(source, EnvConfig) else EnvConfig()
    if not isinstance(source, EnvConfig):
        factory = source
    builder = _Builder(config, factory, lane, component)
    return builder.build({**config.kwargs, **({} if render_mode is None else {"render_mode": render_mode})})


def build_copy(
    source: EnvConfig,
    agents: int,
    lane: int = 0,
    *,
    factory: Callable[..., Any] | None = None,
    render_mode: str | None = None,
    component: str = "run",
) -> Environment | ParallelCopy:
    """Build the environment of one copy, whatever number of agents it has; arguments as in `build_environment`.

    Args:
        source: The section ``env``.
        agents: As many as it must have.
        lane: The first of its lanes.
        factory: Returns a Gymnasium environment or one of PettingZoo's.
        render_mode: Passed on if not None.
        component: Who builds it.

    Returns:
        A copy of an environment of many agents, or a Gymnasium environment, which has one.

    Raises:
        EnvironmentNotBuilt: As `build_environment`.
        ConfigError: It has another number of agents.
        UnsupportedSpace: Its agents' spaces are not all the same.
    """
    builder = _Builder(source, factory, lane, component)
    kwargs = {**source.kwargs, **({} if render_mode is None else {"render_mode": render_mode})}
    return builder.build_any(kwargs, agents)


def environment_name(config: EnvConfig, factory: EnvFactory | None = None) -> str:
    """What to call the environment in messages: its id, or where its factory is found."""
    return factory_name(factory) if factory is not None else config.id or config.factory or "environment"


@dataclass(frozen=True, slots=True)
class _Builder:
    config: EnvConfig
    factory: EnvFactory | None
    lane: int
    component: str

    @property
    def name(self) -> str:
        return environment_name(self.config, self.factory)

    def build(self, kwargs: dict[str, Any]) -> Environment:
        return self._checked(self._made(kwargs, self._make))

    def build_any(self, kwargs: dict[str, Any], agents: int) -> Environment | ParallelCopy:
        many = agents > 1 and self.factory is None and self.config.id in registration.PARALLEL_ENTRY_POINTS
        made = self._made(kwargs, self._make_parallel if many else self._make)
        if takes_turns(made):
            made = self._made({"aec_env": made}, _as_parallel)
        if is_parallel(made):
            copy = ParallelCopy(made, self.name, self.config.max_episode_steps)
            self._require_agents(agents, copy.agents)
            return copy
        if isinstance(made, gymnasium.Env):
            self._require_agents(agents, ("the one",))
        return self._checked(made)

    def _require_agents(self, declared: int, found: Sequence[str]) -> None:
        if len(found) != declared:
            raise ConfigError(
                f"{self.name} has {len(found)} {'agent' if len(found) == 1 else 'agents'}: {', '.join(found)}",
                agents_count=declared,
                fix=f"set agents.count = {len(found)}, and env.lanes and env.group_size to multiples of it",
            )

    def _checked(self, made: Any) -> Environment:
        self._check(made)
        env: Environment = made
        limit = self.config.max_episode_steps
        return TimeLimit(env, max_episode_steps=limit) if limit is not None else env

    def _made(self, kwargs: dict[str, Any], make: Callable[[dict[str, Any]], Any]) -> Any:
        try:
            return make(kwargs)
        except gymnasium.error.UnregisteredEnv as error:
            raise self._unregistered(error) from error
        except HeadraceError:  # says already what is wrong, e.g. a setting of one of our own environments
            raise
        except Exception as error:  # user code may raise anything; the text reaches the user as it is
            raise self._raised(error) from error

    def _make_parallel(self, kwargs: dict[str, Any]) -> Any:
        return self._import(registration.PARALLEL_ENTRY_POINTS[str(self.config.id)])(**kwargs)

    def _make(self, kwargs: dict[str, Any]) -> Environment:
        if self.factory is not None:
            return self.factory(**kwargs)
        if self.config.factory is not None:
            return self._import(self.config.factory)(**kwargs)
        if self.config.id is None:
            raise self._not_built("no environment is named", fix="set env.id or env.factory, or hand over a callable")
        registration.register()
        # Gymnasium's own checker costs time in every step and says in warnings what our contract says in errors.
        return gymnasium.make(self.config.id, disable_env_checker=True, **kwargs)

    def _import(self, where: str) -> EnvFactory:
        module, _, function = where.partition(":")
        if not module or not function:
            raise self._not_built(
                f"{where} does not say where the factory is",
                expected="module:function",
                fix='write env.factory = "my_module:make_env"',
            )
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            if not hasattr(found, part):
                known = [name for name in vars(found) if not name.startswith("_")]
                meant = nearest(part, known)
                raise self._not_built(
                    f"module {module} has no {function}",
                    **({"nearest": f"{module}:{meant}"} if meant else {}),
                    fix="correct env.factory",
                )
            found = getattr(found, part)
        factory: EnvFactory = found
        return factory

    def _check(self, made: object) -> None:
        if is_parallel(made) or takes_turns(made):
            raise self._not_built(
                "this environment is of many agents, and what is asked for here knows environments of one",
                found=f"{type(made).__name__}",
                fix="train it: set agents.count to the number of its agents",
            )
        if not isinstance(made, gymnasium.Env):
            raise self._not_built(
                f"factory for lane {self.lane} returned {'None' if made is None else type(made).__name__}",
                expected="an instance of gymnasium.Env",
                found=f"{made!r}"[:200],
                fix="end the factory with `return env`"
                if made is None
                else "return one gymnasium.Env, not a class and not a vector of environments",
            )
        for field in ("observation_space", "action_space"):
            space = getattr(made, field, None)
            if not isinstance(space, spaces.Space):
                raise self._not_built(
                    f"the environment of lane {self.lane} has no {field}",
                    expected="a gymnasium.spaces.Space",
                    found=f"{space!r}"[:200],
                    fix=f"set self.{field} in the environment's __init__",
                )

    def _raised(self, error: Exception) -> EnvironmentNotBuilt:
        root: BaseException = error
        while root.__cause__ is not None:  # gymnasium.make raises anew; where it began is what helps
            root = root.__cause__
        frames = traceback.extract_tb(root.__traceback__)
        # Errors of an import end inside the import system; the last line of real code tells more.
        real = [frame for frame in frames if not frame.filename.startswith("<frozen")]
        where = real[-1] if real else frames[-1]
        fix = "correct what the message names; the environment can be tried alone by calling its factory"
        if isinstance(root, ModuleNotFoundError) and root.name:
            fix = f"run it where Python finds {root.name}: in the folder that holds it, or with its package installed"
        return self._not_built(
            f"building the environment of lane {self.lane} raised {type(error).__name__}: {error}",
            raised_at=f"{where.filename}:{where.lineno} in {where.name}",
            fix=fix,
        )

    def _unregistered(self, error: Exception) -> EnvironmentNotBuilt:
        wanted = (self.config.id or "").rpartition(":")[2]
        meant = nearest(wanted, gymnasium.registry)
        return self._not_built(
            f"Gymnasium knows no environment {wanted}",
            **({"nearest": meant} if meant else {}),
            problem=error,
            fix=(f'set env.id = "{meant}", or' if meant else "correct env.id, or")
            + ' name the module that registers it: env.id = "module:Id-v0"',
        )

    def _not_built(self, what: str, *, fix: str, **facts: object) -> EnvironmentNotBuilt:
        return EnvironmentNotBuilt(what, component=self.component, environment=self.name, **facts, fix=fix)


def _as_parallel(kwargs: dict[str, Any]) -> Any:
    """By PettingZoo's own conversion, which says itself which environments have none."""
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(kwargs["aec_env"])


# Checking what it returns


@dataclass(frozen=True, slots=True)
class _LeafRule:
    """What the values of one leaf must be."""

    leaf: Leaf
    low: NDArray[Any] | None
    """Smallest allowed values; None where the dtype's own range is the limit, or the leaf is not of integers."""
    high: NDArray[Any] | None
    scalar: bool
    """Whether a plain Python int is as good as an array (Discrete)."""

    @property
    def expected(self) -> str:
        kind = "integer" if self.scalar else f"{self.leaf.dtype} array of shape {self.leaf.shape}"
        if self.low is None or self.high is None:
            return kind
        return f"{kind}, values from {self.low.min()} to {self.high.max()}"


class ObservationCheck:
    """Verifies what ``reset()`` and ``step()`` returned against the declared space, on every step.

    Args:
        space: The observation space.
        environment: The environment's name, for messages.
        cast: Convert a wrong dtype, or a list of numbers, instead of refusing it. Shapes are never changed, and
            a conversion to integers must not change a value.
        on_cast: Called once, with one sentence, when the first value is converted.

    Raises:
        UnsupportedSpace: The space has a part that cannot be stored.
    """

    __slots__ = ("_cast", "_dtype", "_environment", "_fast", "_on_cast", "_rules", "_shape", "_space")

    def __init__(
        self,
        space: spaces.Space[Any],
        environment: str,
        *,
        cast: bool = False,
        on_cast: Callable[[str], None] | None = None,
    ) -> None:
        self._space = space
        self._environment = environment
        self._cast = cast
        self._on_cast = on_cast
        self._rules = tuple(_rule(space, leaf) for leaf in leaves(space, "obs"))
        only = self._rules[0] if isinstance(space, spaces.Box) else None
        self._fast = only is not None and only.low is None
        self._dtype = only.leaf.dtype if only else None
        self._shape = only.leaf.shape if only else None

    def check(self, value: Any, lane: int, step: int) -> Any:
        """``value`` itself if it fits, or what it was converted to under ``cast``.

        Whether floats are finite is asked for whole chunks, by `first_non_finite`.

        Raises:
            ObservationMismatch: It does not fit; names environment, field, expected, found, lane and step.
        """
        # One array of one kind is by far the commonest case: three comparisons, no call.
        if self._fast and type(value) is np.ndarray and value.dtype is self._dtype and value.shape == self._shape:
            return value
        return self._check_leaves(value, lane, step)

    def transition(self, returned: Sequence[Any], lane: int, step: int) -> tuple[Any, float, tuple[bool, bool]]:
        """What ``step()`` returned, without info, in the form it is stored in: observation, reward, ends.

        The same as `check`, `reward` and twice `flag`, in one call where everything fits at first sight.

        Raises:
            ObservationMismatch: One of the values does not fit.
        """
        obs, reward, terminated, truncated = returned
        if (
            self._fast
            and type(obs) is np.ndarray
            and obs.dtype is self._dtype
            and obs.shape == self._shape
            and type(reward) is float
            and terminated is False
            and truncated is False
        ):
            return obs, reward, GOES_ON
        obs, number = self.check(obs, lane, step), self.reward(reward, lane, step)
        return (
            obs,
            number,
            (self.flag("terminated", terminated, lane, step), self.flag("truncated", truncated, lane, step)),
        )

    def reward(self, value: Any, lane: int, step: int) -> float:
        """A reward as a float: a number, an array without dimensions, or one of shape (1,).

        Raises:
            ObservationMismatch: Anything else.
        """
        if type(value) is float:
            return value
        if isinstance(value, int | float | np.bool_ | np.integer | np.floating):
            return float(value)
        if isinstance(value, np.ndarray) and value.shape in ((), (1,)) and value.dtype.kind in "fiub":
            return float(value.item())
        raise self._mismatch("reward", "a number", _describe(value), lane, step)

    def flag(self, field: str, value: Any, lane: int, step: int) -> bool:
        """``terminated`` or ``truncated`` as a bool: a bool, 0 or 1, or an array of one such.

        Raises:
            ObservationMismatch: Anything else, None included.
        """
        if value is True or value is False:
            return bool(value)
        if isinstance(value, np.ndarray) and value.shape in ((), (1,)):
            value = value.item()
        if isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1):
            return bool(value)
        raise self._mismatch(field, "a bool", _describe(value), lane, step)

    def _check_leaves(self, value: Any, lane: int, step: int) -> Any:
        self._check_structure(self._space, value, "obs", lane, step)
        converted: dict[str, Any] = {}
        changed = False
        for rule in self._rules:
            part = rule.leaf.of(value)
            fitting = self._check_leaf(rule, part, lane, step)
            converted[rule.leaf.path] = fitting
            changed |= fitting is not part
        return assemble(self._space, converted, "obs") if changed else value

    def _check_structure(self, space: spaces.Space[Any], value: Any, path: str, lane: int, step: int) -> None:
        if isinstance(space, spaces.Dict):
            if not isinstance(value, Mapping):
                raise self._mismatch(path, "a dict", _describe(value), lane, step)
            if value.keys() != space.spaces.keys():
                raise self._mismatch(path, f"keys {list(space.spaces)}", f"keys {list(value)}", lane, step)
            for key, inner in space.spaces.items():
                self._check_structure(inner, value[key], f"{path}.{key}", lane, step)
        elif isinstance(space, spaces.Tuple):
            if not isinstance(value, tuple | list):
                raise self._mismatch(path, "a tuple", _describe(value), lane, step)
            if len(value) != len(space.spaces):
                raise self._mismatch(path, f"{len(space.spaces)} parts", f"{len(value)} parts", lane, step)
            for place, inner in enumerate(space.spaces):
                self._check_structure(inner, value[place], f"{path}.{place}", lane, step)

    def _check_leaf(self, rule: _LeafRule, value: Any, lane: int, step: int) -> Any:
        if not _has_form(rule, value):
            value = self._convert(rule, value, lane, step)
        if rule.low is not None and rule.high is not None:
            low, high = value < rule.low, value > rule.high
            if np.any(low | high):
                outside = np.asarray(value)[np.asarray(low | high)].ravel()[0]
                raise self._mismatch(rule.leaf.path, rule.expected, f"value {outside}", lane, step)
        return value

    def _convert(self, rule: _LeafRule, value: Any, lane: int, step: int) -> Any:
        found = _describe(value)
        mismatch = self._mismatch(rule.leaf.path, rule.expected, found, lane, step)
        if not self._cast:
            raise mismatch
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # infinity is found by `first_non_finite`
                array = np.asarray(value)
                converted = array.astype(rule.leaf.dtype)
        except (TypeError, ValueError):
            raise mismatch from None
        exact = rule.leaf.dtype.kind not in "iub" or np.array_equal(converted, array)
        if array.dtype.kind not in "fiub" or converted.shape != rule.leaf.shape or not exact:
            raise mismatch
        if self._on_cast is not None:
            self._on_cast(
                f"{self._environment}: {rule.leaf.path} is converted on every step, from {found} to {rule.expected}"
            )
            self._on_cast = None
        return converted

    def _mismatch(self, field: str, expected: str, found: str, lane: int, step: int) -> ObservationMismatch:
        fix = (
            "correct the environment's space or what it returns"
            if field in ("reward", "terminated", "truncated")
            else "correct the observation space or what the environment returns; "
            "env.cast_observations = true converts dtypes"
        )
        return ObservationMismatch(
            f"{field} does not fit what the environment declared"
            if field.startswith("obs")
            else f"{field} is unusable",
            environment=self._environment,
            field=field,
            expected=expected,
            found=found,
            **({"lane": lane} if lane >= 0 else {}),  # below 0: not a lane of the run, but an evaluation
            step=step,
            fix=fix,
        )


def first_non_finite(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Index of the first NaN or infinity in a chunk of values, [...] of any dtype; None if all are finite."""
    if array.dtype.kind not in "fc":
        return None
    finite = np.isfinite(array)
    if finite.all():
        return None
    return tuple(int(place) for place in np.unravel_index(int(finite.argmin()), array.shape))


def _rule(space: spaces.Space[Any], leaf: Leaf) -> _LeafRule:
    part: Any = space
    for key in leaf.keys:
        part = part.spaces[key]
    low, high = _integer_range(part)
    if low is not None and high is not None and leaf.dtype.kind in "iu":
        natural = np.iinfo(leaf.dtype)
        if (low <= natural.min).all() and (high >= natural.max).all():
            low = high = None
    return _LeafRule(leaf, low, high, scalar=isinstance(part, spaces.Discrete))


def _integer_range(part: Any) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    if isinstance(part, spaces.Discrete):
        return np.asarray(part.start), np.asarray(part.start + part.n - 1)
    if isinstance(part, spaces.MultiDiscrete):
        return np.asarray(part.start), np.asarray(part.start + part.nvec - 1)
    if isinstance(part, spaces.MultiBinary):
        return np.zeros(part.shape, np.int8), np.ones(part.shape, np.int8)
    if part.dtype.kind in "iu":
        return part.low, part.high
    return None, None


def _has_form(rule: _LeafRule, value: Any) -> bool:
    if rule.scalar:
        if isinstance(value, int | np.integer):
            return not isinstance(value, bool)
        return isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"
    if not isinstance(value, np.ndarray | np.generic):
        return False
    return value.dtype == rule.leaf.dtype and value.shape == rule.leaf.shape


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    return f"{type(value).__name__} {value!r}"[:120]
