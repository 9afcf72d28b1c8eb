"""Python objects as messages, and back: whatever goes wrong in an object's own code is told in our words."""

from __future__ import annotations

import builtins
import dis
import functools
import pickle
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle

from headrace.core.errors import ComponentError


def encoded(obj: object) -> bytes:
    """What goes through a channel for an object.

    Raises:
        ComponentError: It cannot be pickled.
    """
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        # Pickling runs the object's own code, which may raise anything.
        raise ComponentError(
            f"a message of type {type(obj).__name__} cannot be pickled",
            error=f"{type(error).__name__}: {error}",
            fix="send only plain data and objects of importable classes",
        ) from error


def decoded(message: bytes, peer: str) -> Any:
    """The object of a message from ``peer``.

    Raises:
        ComponentError: It cannot be unpickled here.
    """
    try:
        return pickle.loads(message)
    except Exception as error:
        # Unpickling runs the message's own code, which may raise anything.
        raise ComponentError(
            f"a message from {peer} cannot be unpickled",
            error=f"{type(error).__name__}: {error}",
            bytes=len(message),
            fix="send only objects whose classes the receiving process can import",
        ) from error


def what_stays(obj: object) -> str | None:
    """Which value that an object uses cannot be pickled, in words; None if each of them can be.

    Args:
        obj: A function, a class, or anything else that can be called, which cannot be pickled.

    Returns:
        ``_lock, a _thread.lock, used by make``: as deep as it is found, global, closure variable, default, attribute or argument.
    """
    found, seen = None, {id(obj)}
    while (part := _first_that_stays(obj, seen)) is not None:
        name, value = part
        found = f"{name}, {_article(type(value))}, used by {_name(obj)}"
        obj = value
    return found


def _first_that_stays(obj: object, seen: set[int]) -> tuple[str, Any] | None:
    for name, value in _parts(obj):
        if id(value) not in seen:
            seen.add(id(value))
            if not _travels(value):
                return name, value
    return None


def _travels(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - pickling runs the value's own code, which may raise anything; that it did is the answer
        return False
    return True


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """What is pickled with an object, by name."""
    match obj:
        case functools.partial():
            yield _name(obj.func), obj.func
            yield from ((f"argument {number}", value) for number, value in enumerate(obj.args))
            yield from obj.keywords.items()
        case MethodType():
            yield _name(obj.__func__), obj.__func__
            yield _name(type(obj.__self__)), obj.__self__
        case FunctionType():
            yield from _used_by(obj)
        case type():
            yield from ((f"{obj.__name__}.{name}", getattr(value, "__func__", value)) for name, value in _own(obj))
        case _:
            yield _name(type(obj)), type(obj)
            yield from getattr(obj, "__dict__", {}).items()


def _own(cls: type) -> Iterator[tuple[str, Any]]:
    for base in cls.__mro__[:-1]:
        yield from ((name, value) for name, value in vars(base).items() if name not in {"__dict__", "__weakref__"})


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not filled yet
    known = function.__globals__
    yield from ((name, known[name]) for name in _names(function.__code__) if name in known)
    yield from ((f"default {number}", value) for number, value in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()


def _names(code: CodeType) -> Iterator[str]:
    """Global names in a function and in those that it defines."""
    yield from (str(found.argval) for found in dis.get_instructions(code) if found.opname == "LOAD_GLOBAL")
    for held in code.co_consts:
        if isinstance(held, CodeType):
            yield from _names(held)


def _name(obj: Any) -> str:
    if isinstance(obj, functools.partial):
        return _name(obj.func)
    return str(getattr(obj, "__qualname__", None) or type(obj).__qualname__)


def _article(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == builtins.__name__ else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
