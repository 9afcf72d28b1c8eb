"""What of an object cannot be pickled is named, wherever it is held."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace.ipc.pickling import what_stays

PROGRAM = """
_lock = threading.Lock()
append = _lock  # also the name of an attribute that is used

def make():
    with _lock:
        return [].append(1)

def innocent():
    return [].append(1)

def helper():
    return [innocent(), make()]

def outer():
    def inner():
        return helper()
    return inner

class Env:
    limit = 3
    def __init__(self):
        with _lock:
            pass

class Heir(Env):
    pass

class Held:
    guard = _lock

class Maker:
    def __init__(self):
        self.lock = threading.Lock()
    def __call__(self):
        return 1
    def make(self):
        return 1

def closing():
    lock = _lock
    return lambda: lock

def with_default(lock=_lock, *, other=1):
    return 1

def around():
    return around(), innocent()
"""


@pytest.fixture
def program() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__", "threading": threading}
    exec(PROGRAM, names)
    return names


LOCK = "a _thread.lock, used by"


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (lambda of: of["make"], f"_lock, {LOCK} make"),
        (lambda of: of["helper"], f"_lock, {LOCK} make"),
        (lambda of: of["outer"](), f"_lock, {LOCK} make"),
        (lambda of: of["Env"], f"_lock, {LOCK} Env.__init__"),
        (lambda of: of["Heir"], f"_lock, {LOCK} Env.__init__"),
        (lambda of: of["Held"], f"Held.guard, {LOCK} Held"),
        (lambda of: of["Maker"](), f"lock, {LOCK} Maker"),
        (lambda of: of["Maker"]().make, f"lock, {LOCK} Maker"),
        (lambda of: of["closing"](), f"lock, {LOCK} closing.<locals>.<lambda>"),
        (lambda of: of["with_default"], f"default 0, {LOCK} with_default"),
        (lambda of: functools.partial(of["make"]), f"_lock, {LOCK} make"),
        (lambda of: functools.partial(of["innocent"], of["_lock"]), f"argument 0, {LOCK} innocent"),
        (lambda of: functools.partial(of["innocent"], lock=of["_lock"]), f"lock, {LOCK} innocent"),
        (lambda of: of["innocent"], None),
        (lambda of: of["around"], None),
        (lambda of: (value for value in "x"), None),
    ],
)
def test_what_stays_is_named_as_deep_as_it_is_found(
    program: dict[str, Any], of: Callable[[dict[str, Any]], Any], told: str | None
) -> None:
    assert what_stays(of(program)) == told
