"""What an environment's datasets and teachers give, looked at before anything is built on it: it is somebody else's code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from headrace.core.errors import EnvironmentFault, EnvironmentRaised, HeadraceError
from headrace.envs.text.protocol import Message, Problem, Role, Split

_Answer = TypeVar("_Answer")
_FORKED = 70
_LONGEST_TEXT = 2000
_THE_ENVIRONMENT = "the environment"
RETURN_A_TRANSCRIPT = "return the whole transcript, a tuple of Message that begins with problem.opening"


def problems_of(env: Any, split: Split, *, label: str = _THE_ENVIRONMENT) -> tuple[Problem, ...]:
    """The problems of a split; possibly none.

    Raises:
        EnvironmentRaised: ``dataset`` raised.
        EnvironmentFault: What it returned is no list of problems, or one of them breaks the protocol; it is named.
    """
    call = f"dataset({split!r})"
    given: object = called(f"{call} of {label}", lambda: env.dataset(split))
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise EnvironmentFault(
            f"{call} of {label} returned {type(given).__name__}",
            expected="a list or tuple of Problem",
            fix=f"return list(...) of the problems from {call}",
        )
    problems: tuple[object, ...] = called(f"{call} of {label}", lambda: tuple(given))
    sound: list[Problem] = []
    for place, problem in enumerate(problems):
        found = _looked_at(problem)
        if isinstance(found, str):
            raise EnvironmentFault(
                f"{call} of {label} holds a problem {found}",
                place=place,
                problem=f"{problem!r:.200}",
                fix="return Problem(id: str, opening: tuple of Message, facts: mapping), see headrace.envs.text.protocol",
            )
        sound.append(found)
    return tuple(sound)


def shown_by(env: Any, method: Literal["demonstration", "attempt"], problem: Problem, seed: int) -> tuple[Message, ...]:
    """An episode that the environment's teacher, or its novice, shows.

    Raises:
        EnvironmentRaised: The method raised.
        EnvironmentFault: What it returned is no transcript.
    """
    given: object = called(
        f"{method} of {_THE_ENVIRONMENT}", lambda: getattr(env, method)(problem, seed), problem=problem.id
    )
    found = transcript_of(given)
    if isinstance(found, str):
        raise EnvironmentFault(
            f"{method} of {_THE_ENVIRONMENT} returned {found}", problem=problem.id, fix=RETURN_A_TRANSCRIPT
        )
    return found


def transcript_of(answer: object) -> tuple[Message, ...] | str:
    """What a teacher or a novice returned, or what is wrong with it."""
    if not isinstance(answer, tuple | list):
        return f"{type(answer).__name__} instead of a tuple of Message"
    wrong = next((fault for message in answer if (fault := fault_of(message)) is not None), None)
    return tuple(answer) if wrong is None else wrong


def fault_of(message: object) -> str | None:
    """What is wrong with a message; None if nothing is."""
    if not isinstance(message, Message):
        return f"{type(message).__name__} instead of Message"
    role: object = message.role
    if role not in get_args(Role):
        return f"a Message of the role {role!r:.40} instead of {', '.join(get_args(Role))}"
    content: object = message.content
    if not isinstance(content, str):
        return f"a Message whose content is {type(content).__name__} instead of str"
    try:
        content.encode()
    except UnicodeEncodeError as error:
        return f"a Message that is no text: {error.reason}"
    return None


def called(what: str, call: Callable[[], _Answer], **facts: object) -> _Answer:
    """What a call of somebody's code gives.

    Args:
        what: Is called, for messages, e.g. ``reward of my-game``.
        call: Does it.
        facts: For messages.

    Raises:
        EnvironmentRaised: It raised, whatever that was; only what is ours, and a real interrupt, stay what they are.
    """
    try:
        with only_here():
            return call()
    except HeadraceError:  # says already what is wrong
        raise
    except BaseException as error:
        if type(error) is KeyboardInterrupt:  # a user at a terminal
            raise
        raise EnvironmentRaised(
            f"{what} raised {words_of(error)}",
            **facts,
            raised_at=raised_at(error),
            fix="correct what the message names; the method can be called alone",
        ) from error


@contextmanager
def only_here() -> Iterator[None]:
    """Somebody's code runs inside. A copy of this process that it made does not come out: it would be a second one of us."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(_FORKED)


def words_of(error: BaseException) -> str:
    """What was raised, in words that can be sent on whatever its text is."""
    try:
        text = str(error)
    except BaseException as second:  # noqa: BLE001 - its own text is user code too
        text = f"its text raised {type(second).__name__}"
    return f"{type(error).__name__}: {text[:_LONGEST_TEXT]}"


def raised_at(error: BaseException) -> str:
    """The last line of real code; errors of an import end inside the import system."""
    frames = traceback.extract_tb(error.__traceback__)
    real = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    where = (real or frames)[-1]
    return f"{where.filename}:{where.lineno} in {where.name}"


def _looked_at(problem: object) -> Problem | str:
    """The problem, or what is wrong with it."""
    if not isinstance(problem, Problem):
        return f"that is {type(problem).__name__} instead of Problem"
    name: object = problem.id
    opening: object = problem.opening
    facts: object = problem.facts
    if not isinstance(name, str):
        return f"whose id is {type(name).__name__} instead of str"
    if not isinstance(opening, tuple):
        return f"whose opening is {type(opening).__name__} instead of a tuple"
    wrong = next((fault for message in opening if (fault := fault_of(message)) is not None), None)
    if wrong is not None:
        return f"whose opening holds {wrong}"
    if not opening or opening[-1].role == "assistant":
        return "that opens with nothing for the model to answer"
    return problem if isinstance(facts, Mapping) else f"whose facts are {type(facts).__name__} instead of a mapping"
