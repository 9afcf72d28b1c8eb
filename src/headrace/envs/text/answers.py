"""What an environment answered, looked at before anything is built on it: it is somebody else's code, and may return anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.envs.text.asking import fault_of
from headrace.envs.text.protocol import Judgement, Reply


def reply_of(answer: object) -> Reply | str:
    """What ``step`` returned, or what is wrong with it."""
    if not isinstance(answer, Reply):
        return f"{type(answer).__name__} instead of Reply"
    given: object = answer.messages
    if not isinstance(given, tuple | list):
        return f"a Reply whose messages are {type(given).__name__} instead of a tuple"
    for message in given:
        wrong = fault_of(message)
        if wrong is not None:
            return f"a Reply with {wrong}"
    return Reply(tuple(given), bool(answer.done))


def judgement_of(answer: object) -> Judgement | str:
    """What ``reward`` returned, in numbers of Python, or what is wrong with it."""
    if not isinstance(answer, Judgement):
        return f"{type(answer).__name__} instead of Judgement"
    numbers = {}
    for name in ("terms", "facts"):
        found = _numbers(getattr(answer, name))
        if isinstance(found, str):
            return f"a Judgement whose {name} {found}"
        numbers[name] = found
    return Judgement(numbers["terms"], bool(answer.solved), numbers["facts"])


def _numbers(given: Any) -> dict[str, float] | str:
    if not isinstance(given, Mapping):
        return f"are {type(given).__name__} instead of a mapping"
    numbers = {}
    for name, value in given.items():
        try:
            # float() would read a text, and nobody could add it to another term.
            number = None if isinstance(value, str | bytes | bytearray) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None:
            return f"hold {value!r:.60} for {name}, which is no number"
        numbers[str(name)] = number
    return numbers
