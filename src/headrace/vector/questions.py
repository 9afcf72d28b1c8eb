"""What is asked of single environments where they run.

Apart from `headrace.vector.sb3`, which asks them: a worker imports the module of whatever it is to call, and torch with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium

from headrace.core.errors import UnknownAttribute

Environment = gymnasium.Env[Any, Any]


def has(env: Environment, name: str) -> bool:
    """Whether any layer has an attribute."""
    return env.has_wrapper_attr(name)


def get(env: Environment, name: str) -> Any:
    """An attribute of the outermost layer that has it.

    Raises:
        UnknownAttribute: None has it.
    """
    _check(env, name)
    return env.get_wrapper_attr(name)


def put(env: Environment, name: str, value: Any) -> None:
    """Set an attribute of the outermost layer that has it.

    Raises:
        UnknownAttribute: None has it; nothing was set.
    """
    _check(env, name)
    env.set_wrapper_attr(name, value)


def call(env: Environment, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a method of the outermost layer that has it returns.

    Raises:
        UnknownAttribute: None has it.
    """
    return get(env, name)(*args, **kwargs)


def full_name(kind: type) -> str:
    """By which `is_wrapped_in` knows a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def is_wrapped_in(env: Environment, wrapper: str) -> bool:
    """Whether one of its wrappers is of a class of this name, or of one derived from it.

    By its name, because a worker would have to import the class otherwise, which no environment in it may need.
    """
    return any(full_name(kind) == wrapper for layer in _wrappers(env) for kind in type(layer).__mro__)


def _wrappers(env: Environment) -> Iterator[Environment]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _check(env: Environment, name: str) -> None:
    if not env.has_wrapper_attr(name):
        raise UnknownAttribute(
            f"no layer of the environment has an attribute {name}",
            environment=str(env)[:200],
            fix="correct the name, or create the attribute in the environment's __init__",
        )
