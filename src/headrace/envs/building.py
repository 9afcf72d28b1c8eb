"""Builds environments from a configuration, or from a callable; of one agent or of many."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import (
    FrameStackObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
)

from headrace.core.config import EnvConfig, factory_name, is_of_its_program
from headrace.core.errors import ConfigError, EnvironmentNotBuilt, HeadraceError
from headrace.core.extras import remedy
from headrace.core.refusals import nearest
from headrace.envs import registration
from headrace.envs.agents import ParallelCopy, is_parallel, takes_turns

Environment = gymnasium.Env[Any, Any]
EnvFactory = Callable[..., Environment]

_HAND_OVER = (
    "hand over the same callable: headrace.replay(run, env=...), headrace.Replayer(run, env=...), headrace.train(env=...); "
    "commands find one that is in a module of its own, and headrace.load_policy(run) acts without one"
)
_STEPPING_ONCE = frozenset(
    kind.step
    for kind in (
        gymnasium.Wrapper,
        gymnasium.ActionWrapper,
        gymnasium.ObservationWrapper,
        gymnasium.RewardWrapper,
        OrderEnforcing,
        PassiveEnvChecker,
        RecordEpisodeStatistics,
        FrameStackObservation,
        TimeLimit,
    )
)
"""Ways of wrappers to step of which it is known that what is inside makes one step each time."""


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


def refuse_handed_over(where: str | None, fix: str = _HAND_OVER) -> None:
    """Refuse to look for something by a name that only the program knew in which it was handed over.

    Args:
        where: ``env.factory`` of a run whose callable was not handed over again.
        fix: What to do about it.

    Raises:
        ConfigError: It is such a name; nothing was imported or called.
    """
    if is_of_its_program(where):
        raise ConfigError(
            "the environment of this run was handed over in Python, so it has to be handed over again",
            env_factory=where,
            fix=fix,
        )


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

    @property
    def _plain_id(self) -> str:
        """The id without the module that may be named before it."""
        return (self.config.id or "").rpartition(":")[2]

    def build(self, kwargs: dict[str, Any]) -> Environment:
        return self._checked(self._made(kwargs, self._make))

    def build_any(self, kwargs: dict[str, Any], agents: int) -> Environment | ParallelCopy:
        many = agents > 1 and self.factory is None and self._plain_id in registration.PARALLEL_ENTRY_POINTS
        made = self._made(kwargs, self._make_parallel if many else self._make)
        if takes_turns(made):
            self._require_parallelizable(made)
            made = self._made({"aec_env": made}, _as_parallel)
        if is_parallel(made):
            # It asks the environment for its spaces, and user code may raise there too.
            copy: ParallelCopy = self._made({}, lambda _: ParallelCopy(made, self.name, self.config.max_episode_steps))
            self._require_agents(agents, copy.agents)
            return copy
        if isinstance(made, gymnasium.Env):
            self._require_agents(agents, ("the one",))
        return self._checked(made)

    def _require_agents(self, declared: int, found: Sequence[str]) -> None:
        if len(found) != declared:
            raise ConfigError(
                f"{self.name} has {len(found)} {'agent' if len(found) == 1 else 'agents'}: {', '.join(map(str, found))}",
                agents_count=declared,
                fix=f"set agents.count = {len(found)}, and env.lanes and env.group_size to multiples of it",
            )

    def _require_parallelizable(self, made: Any) -> None:
        if not made.metadata.get("is_parallelizable", False):
            raise self._not_built(
                "agents of this environment take turns, and each sees what the one before it did: they cannot act at once",
                expected='metadata["is_parallelizable"] = True, of environments that change at the end of a cycle alone',
                found=f"{type(made).__name__} without it",
                fix="train in its parallel_env if it has one; games in which one agent moves at a time have none",
            )

    def _checked(self, made: Any) -> Environment:
        self._check(made)
        env: Environment = made
        limit = self.config.max_episode_steps
        # It asks the environment, and user code may raise there too.
        return env if limit is None else self._made({}, lambda _: _limited(env, limit))

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
        return self._import(registration.PARALLEL_ENTRY_POINTS[self._plain_id])(**kwargs)

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
        refuse_handed_over(where)
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
                expected="an instance of gymnasium.Env, or an environment of many agents with possible_agents",
                found=f"{made!r}"[:200],
                fix=_instead_of(made),
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
        root = _first_raised(error)
        frames = traceback.extract_tb(root.__traceback__)
        # Errors of an import end inside the import system; the last line of real code tells more.
        real = [frame for frame in frames if not frame.filename.startswith("<frozen")]
        where = real[-1] if real else frames[-1]
        fix = "correct what the message names; the environment can be tried alone by calling its factory"
        if isinstance(root, TypeError) and "'render_mode'" in str(root):
            fix = "accept render_mode in the factory and hand it to the environment, or leave out --render"
        if isinstance(root, ModuleNotFoundError) and root.name:
            fix = remedy(root.name, self.config.factory, self.config.id)
        return self._not_built(
            f"building the environment {f'of lane {self.lane}' if self.lane >= 0 else 'to play in'} raised {type(error).__name__}: {error}",
            raised_at=f"{where.filename}:{where.lineno} in {where.name}",
            fix=fix,
        )

    def _unregistered(self, error: Exception) -> EnvironmentNotBuilt:
        wanted = self._plain_id
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


def _first_raised(error: BaseException) -> BaseException:
    """Where it began: gymnasium.make raises anew, and names as the cause what the environment raised.

    Causes are followed while they were raised here. One that never was, or in another process, has no line to show; and an
    error may be its own cause.
    """
    seen = [error]
    while (before := _raised_before(seen[-1])) is not None and before.__traceback__ is not None:
        if any(before is known for known in seen):
            break
        seen.append(before)
    return seen[-1]


def _raised_before(error: BaseException) -> BaseException | None:
    """Its cause; of what gymnasium.make raised anew, in older versions without naming one, what it had caught."""
    if error.__cause__ is not None or error.__traceback__ is None:
        return error.__cause__
    *_, last = traceback.walk_tb(error.__traceback__)
    return error.__context__ if last[0].f_code.co_filename == gymnasium.envs.registration.__file__ else None


def _instead_of(made: object) -> str:
    """What a factory should have returned."""
    if made is None:
        return "end the factory with `return env`"
    if hasattr(made, "agents") or callable(getattr(made, "observation_space", None)):
        return "name every agent there may be in the environment's possible_agents"
    return "return one gymnasium.Env, not a class and not a vector of environments"


def _limited(env: Environment, limit: int) -> Environment:
    """One whose episodes have so many steps at most.

    One that pays in an episode's last step has to know which one that is, and is told, if its steps are those of what is around it.
    """
    told = env
    while isinstance(told, gymnasium.Wrapper) and not _can_be_told(told) and type(told).step in _STEPPING_ONCE:
        told = told.env
    if _can_be_told(told):
        told.truncate_after(limit)  # type: ignore[attr-defined]
    return TimeLimit(env, max_episode_steps=limit)


def _can_be_told(env: Environment) -> bool:
    """Whether its class says so: an object may answer to any name, and hand it on to somebody who counts otherwise."""
    return callable(getattr(type(env), "truncate_after", None))


def _as_parallel(kwargs: dict[str, Any]) -> Any:
    """By PettingZoo's own conversion, which says itself which environments have none."""
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(kwargs["aec_env"])
