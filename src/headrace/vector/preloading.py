"""Factories on their way to workers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import cloudpickle

from headrace.core.errors import ConfigError
from headrace.ipc.pickling import what_stays
from headrace.vector.interrupts import is_programs
from headrace.vector.stepping import Factory

_ALWAYS = ("headrace.vector.worker", "gymnasium.envs.registration")


def modules_of(factories: Iterable[Factory]) -> tuple[str, ...]:
    """Modules in which they are written, for the fork server to import once for all workers."""
    names = {name for factory in factories for name in _names(factory) if _importable(name)}
    return (*_ALWAYS, *sorted(names))


def pickled(factories: Sequence[Factory]) -> dict[int, bytes]:
    """Each by itself. What is written where workers cannot import it travels as code.

    Raises:
        ConfigError: One of them cannot be pickled; it is named.
    """
    here = _local_modules(factories)
    for module in here:
        cloudpickle.register_pickle_by_value(module)
    try:
        return {env: _pickle(env, factory) for env, factory in enumerate(factories)}
    finally:
        for module in here:
            cloudpickle.unregister_pickle_by_value(module)


def _pickle(env: int, factory: Factory) -> bytes:
    try:
        return bytes(cloudpickle.dumps(factory))
    except Exception as error:
        if is_programs(error):
            raise
        # Pickling runs the factory's own code, which may raise anything.
        stays = what_stays(factory)
        raise ConfigError(
            f"factory for env {env} cannot be sent to a worker",
            **({"stays_here": stays} if stays else {}),
            error=f"{type(error).__name__}: {error}",
            fix="make locks, files and sockets inside of the factory, or take workers=0",
        ) from error


def _names(factory: Any) -> set[str]:
    """Modules of a function, of what it is a part of, and of functions it holds."""
    if isinstance(factory, functools.partial):
        return _names(factory.func)
    found = {str(getattr(factory, "__module__", None) or type(factory).__module__)}
    for cell in getattr(factory, "__closure__", None) or ():
        try:
            held = cell.cell_contents
        except ValueError:
            continue  # not filled yet
        if callable(held):
            found.add(str(getattr(held, "__module__", None) or type(held).__module__))
    return found - {"builtins"}


def _local_modules(factories: Sequence[Factory]) -> list[ModuleType]:
    names = {name for factory in factories for name in _names(factory)}
    found = []
    for name in sorted(names - {"__main__"}):
        module = sys.modules.get(name)
        if module is not None and not _importable(name):
            found.append(module)
    return found


def _importable(name: str) -> bool:
    """Whether another process with the same path can import it; being loaded here does not count."""
    parent = sys.modules.get(name.rpartition(".")[0])
    if name == "__main__" or (parent is None and "." in name):
        return False
    try:
        return PathFinder.find_spec(name, getattr(parent, "__path__", None)) is not None
    except (ImportError, ValueError):
        return False
