"""What an environment's datasets and teachers give, looked at before anything is built on it: it is somebody else's code."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from headrace.core.errors import EnvironmentFault, EnvironmentRaised, HeadraceError
from headrace.envs.text.protocol import Message, Problem, Split


def problems_of(env: Any, split: Split) -> tuple[Problem, ...]:
    """The problems of a split; possibly none.

    Raises:
        EnvironmentRaised: ``dataset`` raised.
        EnvironmentFault: What it returned is no list of problems, or one of them breaks the protocol; it is named.
    """
    given = _called(f"dataset({split!r})", lambda: env.dataset(split))
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise EnvironmentFault(
            f"dataset({split!r}) of the environment returned {type(given).__name__}",
            expected="a list or tuple of Problem",
            fix=f"return list(...) of the problems from dataset({split!r})",
        )
    problems = _called(f"dataset({split!r})", lambda: tuple(given))
    for place, problem in enumerate(problems):
        wrong = _fault_of_problem(problem)
        if wrong is not None:
            raise EnvironmentFault(
                f"dataset({split!r}) of the environment holds a problem {wrong}",
                place=place,
                problem=f"{problem!r:.200}",
                fix="return Problem(id: str, opening: tuple of Message, facts: mapping), see headrace.envs.text.protocol",
            )
    return problems


def shown_by(env: Any, method: Literal["demonstration", "attempt"], problem: Problem, seed: int) -> tuple[Message, ...]:
    """An episode that the environment's teacher, or its novice, shows.

    Raises:
        EnvironmentRaised: The method raised.
        EnvironmentFault: What it returned is no transcript.
    """
    given = _called(f"{method}()", lambda: getattr(env, method)(problem, seed), problem=problem.id)
    wrong: str | None = f"{type(given).__name__} instead of a tuple of Message"
    if isinstance(given, tuple | list):
        wrong = next((fault for message in given if (fault := fault_of(message)) is not None), None)
    if wrong is not None:
        raise EnvironmentFault(
            f"{method}() of the environment returned {wrong}",
            problem=problem.id,
            fix="return the whole transcript, a tuple of Message that begins with problem.opening",
        )
    return tuple(given)


def fault_of(message: object) -> str | None:
    """What is wrong with a message; None if nothing is."""
    if not isinstance(message, Message):
        return f"{type(message).__name__} instead of Message"
    content: object = message.content
    if not isinstance(content, str):
        return f"a Message whose content is {type(content).__name__} instead of str"
    try:
        content.encode()
    except UnicodeEncodeError as error:
        return f"a Message that is no text: {error.reason}"
    return None


def _fault_of_problem(problem: object) -> str | None:
    if not isinstance(problem, Problem):
        return f"that is {type(problem).__name__} instead of Problem"
    name: object = problem.id
    opening: object = problem.opening
    facts: object = problem.facts
    if not isinstance(name, str):
        return f"whose id is {type(name).__name__} instead of str"
    if not isinstance(opening, tuple) or not opening:
        return f"whose opening is {type(opening).__name__} instead of a tuple" if opening else "without an opening"
    for message in opening:
        wrong = fault_of(message)
        if wrong is not None:
            return f"whose opening holds {wrong}"
    return None if isinstance(facts, Mapping) else f"whose facts are {type(facts).__name__} instead of a mapping"


def _called(what: str, call: Callable[[], Any], **facts: object) -> Any:
    try:
        return call()
    except HeadraceError:  # says already what is wrong
        raise
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise EnvironmentRaised(
            f"{what} of the environment raised {type(error).__name__}: {error}",
            **facts,
            raised_at=f"{last.filename}:{last.lineno} in {last.name}",
            fix="correct what the message names; the method can be called alone",
        ) from error
