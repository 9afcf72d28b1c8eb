"""Builds an environment that talks from its name or factory, and tries it before anything depends on it."""

from __future__ import annotations

import importlib
import inspect
import math
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from headrace.core.errors import ConfigError, EnvironmentFault, EnvironmentNotBuilt, HeadraceError
from headrace.core.extras import remedy
from headrace.core.refusals import nearest
from headrace.envs.text.answers import judgement_of, reply_of
from headrace.envs.text.asking import (
    RETURN_A_TRANSCRIPT,
    called,
    only_here,
    problems_of,
    raised_at,
    transcript_of,
    words_of,
)
from headrace.envs.text.contents import Contents, contents_of
from headrace.envs.text.protocol import Judgement, Message, Problem, Reply, TextEnvironment
from headrace.ipc import printing

FACTORIES: Mapping[str, str] = {
    "wordle": "headrace.envs.text.wordle:WordleEnvironment",
    "reverse-text": "headrace.envs.text.reverse:ReverseEnvironment",
    "verifiers": "headrace.envs.text.verifiers:VerifiersEnvironment",
}
"""Those that come with Headrace, by name."""

_METHODS = ("dataset", "step", "reward")
_RETURNS = {
    "step": "return Reply(messages: tuple of Message, done: bool) from step",
    "reward": "return Judgement(terms: mapping of names to finite numbers, solved: bool) from reward",
    "demonstration": RETURN_A_TRANSCRIPT,
}
_Answer = TypeVar("_Answer")
_SCRIPTED_MESSAGES = 32
"""Messages after which a scripted episode is left, over or not."""


def build_text_environment(
    name: str | None, factory: str | None, kwargs: Mapping[str, Any], *, component: str = "run"
) -> TextEnvironment:
    """Build it, from exactly one of ``name`` and ``factory``.

    Args:
        name: One of `FACTORIES`.
        factory: ``module:function``.
        kwargs: Passed to it.
        component: Who builds it, for error messages.

    Raises:
        ConfigError: It has no such name, or the environment refuses its arguments.
        EnvironmentNotBuilt: The factory cannot be imported, raised, or returned something else.
    """
    if factory is None:
        factory = _known(name or "")
    label = name or factory
    try:
        with only_here():
            made = _imported(factory)(**kwargs)
    except HeadraceError:  # says already what is wrong
        raise
    except BaseException as error:  # user code may raise anything; the text reaches the user as it is
        if type(error) is KeyboardInterrupt:  # a user at a terminal
            raise
        raise _raised(error, component, label) from error
    lacking = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if lacking:
        raise EnvironmentNotBuilt(
            f"the factory of {label} returned {'None' if made is None else type(made).__name__}",
            component=component,
            environment=label,
            expected=f"an object with the methods {', '.join(_METHODS)}",
            lacking=", ".join(lacking),
            fix=_fix_of(made),
        )
    return cast("TextEnvironment", made)


def close_environment(environment: object, limit_s: float = 12.0) -> None:
    """Have it let go of what it holds, if it has a method ``close``; what that raises is told.

    Nothing hangs on it any more, so whoever is not back within the limit is left where it is, by a process that ends.
    """
    close = getattr(environment, "close", None)
    if not callable(close):
        return

    def closed() -> None:
        try:
            close()
        except BaseException:  # noqa: BLE001 - user code may raise anything
            printing.tell(traceback.format_exc())

    thread = threading.Thread(target=closed, name="close of the environment", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        printing.tell(f"TimeoutError: close() of the environment did not come back within {limit_s:g} s\n")


def _fix_of(made: object) -> str:
    if made is None:
        return "end the factory with `return env`"
    if hasattr(made, "observation_space") or hasattr(made, "observation_spaces"):
        return "train on it with collectors and a learner (headrace train, plan and debug-run), or add the methods"
    return "add the methods, see TextEnvironment"


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """What `check_environment` saw."""

    train_problems: int
    eval_problems: int
    messages: int
    """Of the scripted episode."""
    has_teacher: bool
    notes: tuple[str, ...] = ()
    """What is allowed, and still has to be known to read the figures."""


def check_environment(env: TextEnvironment, *, label: str = "the environment") -> EnvironmentCheck:
    """Look at the datasets and play one scripted episode of each split.

    Args:
        env: The environment.
        label: Its name, for messages.

    Raises:
        EnvironmentFault: Ids are not unique, a split is empty, a problem of one split is in the other, a message has the
            wrong role, or the same call gave two answers. It names the problem.
    """
    check = _Check(env, label)
    training, held = check.problems("train"), check.problems("eval")
    notes = check.disjoint(training, held)
    messages = max(check.episode(training[0]), check.episode(held[0]))
    teacher = callable(getattr(env, "demonstration", None))
    if teacher:
        check.demonstration(training[0])
    return EnvironmentCheck(len(training), len(held), messages, teacher, notes)


class _Check:
    def __init__(self, env: TextEnvironment, label: str) -> None:
        self._env = env
        self._label = label

    def problems(self, split: Any) -> Sequence[Problem]:
        problems, again = (problems_of(self._env, split, label=self._label) for _ in range(2))
        if not problems:
            raise self._fault(f"has no problems in the split {split!r}", fix="return at least one problem")
        if [problem.id for problem in problems] != [problem.id for problem in again]:
            raise self._fault(
                f"gives the problems of the split {split!r} in another order when asked again",
                fix="make the dataset once, from a seed of its own",
            )
        seen: set[str] = set()
        for problem in problems:
            if problem.id in seen:
                raise self._fault("has two problems with one id", split=split, id=problem.id, fix="make ids unique")
            seen.add(problem.id)
        return problems

    def disjoint(self, training: Sequence[Problem], held: Sequence[Problem]) -> tuple[str, ...]:
        trained, asked = contents_of(training, held)
        pairs = zip(training, trained.keys, strict=True)
        known = {key: problem.id for problem, key in pairs if key is not None}
        pairs = zip(held, asked.keys, strict=True)
        leaked = [(known[key], problem.id) for problem, key in pairs if key in known]
        notes = _unknown(trained, asked, {problem.id for problem in training} & {problem.id for problem in held})
        if not leaked:
            return notes
        if getattr(self._env, "evaluates_seen", False):
            return (f"evaluation asks for {len(leaked)} problems that are trained on, as configured", *notes)
        raise self._fault(
            f"evaluates {len(leaked)} of {len(held)} problems that it also trains on",
            for_instance=f"{leaked[0][1]} is {leaked[0][0]}",
            fix="hold problems out, or set `evaluates_seen = True` on the environment if this is what you want to measure",
        )

    def episode(self, problem: Problem) -> int:
        """Messages of an episode in which the model always says the same."""
        transcript: list[Message] = list(problem.opening)
        for _ in range(_SCRIPTED_MESSAGES):
            transcript.append(Message("assistant", "abc"))
            reply = self._same("step", reply_of, problem, tuple(transcript))
            self._check_reply(problem, reply)
            transcript.extend(reply.messages)
            if reply.done:
                break
        self._same("reward", self._judgement_of, problem, tuple(transcript))
        return len(transcript)

    def demonstration(self, problem: Problem) -> None:
        shown = self._same("demonstration", transcript_of, problem, 0)
        if shown[: len(problem.opening)] != problem.opening:
            raise self._fault(
                "demonstrates an episode that does not begin with the problem's opening",
                problem=problem.id,
                fix="begin the transcript with problem.opening",
            )
        self._same("reward", self._judgement_of, problem, shown)

    def _check_reply(self, problem: Problem, reply: Reply) -> None:
        if any(message.role == "assistant" for message in reply.messages):
            raise self._fault(
                "speaks with the model's role in a reply", problem=problem.id, fix="use the role user or system"
            )
        if not reply.done and not reply.messages:
            raise self._fault(
                "answered nothing, and the episode is not over",
                problem=problem.id,
                fix="return Reply(done=True), or a message",
            )

    def _judgement_of(self, answer: object) -> Judgement | str:
        """As rollouts take it: its reward has to be a number that can be trained on."""
        found = judgement_of(answer)
        if isinstance(found, str) or math.isfinite(found.reward):
            return found
        return f"{found.reward}, the sum of {dict(found.terms)!r:.200}"

    def _same(self, method: str, taken: Callable[[object], _Answer | str], problem: Problem, told: object) -> _Answer:
        """What a method answers, looked at as a rollout would, before it is compared with what it answers again."""
        first, second = (self._taken(method, taken, problem, told) for _ in range(2))
        if first != second and repr(first) != repr(second):  # NaN, which a fact may be, is not equal to itself
            raise self._fault(
                f"answers {method} in two ways when asked twice",
                first=f"{first!r}"[:200],
                second=f"{second!r}"[:200],
                fix="derive everything from the problem and the transcript; keep nothing between calls, draw nothing",
            )
        return first

    def _taken(self, method: str, taken: Callable[[object], _Answer | str], problem: Problem, told: object) -> _Answer:
        found = called(
            f"{method} of {self._label}", lambda: taken(getattr(self._env, method)(problem, told)), problem=problem.id
        )
        if isinstance(found, str):
            raise EnvironmentFault(
                f"{method} of {self._label} returned {found}",
                problem=problem.id,
                **_defined_at(getattr(self._env, method)),
                fix=_RETURNS[method],
            )
        return found

    def _fault(self, what: str, *, fix: str, **facts: object) -> EnvironmentFault:
        return EnvironmentFault(f"{self._label} {what}", **facts, fix=fix)


def _defined_at(method: object) -> dict[str, str]:
    """Where a method of the environment stands, if it is written in Python."""
    code = getattr(inspect.unwrap(cast("Any", method)), "__code__", None)
    return {} if code is None else {"defined_at": f"{code.co_filename}:{code.co_firstlineno}"}


def _unknown(trained: Contents, asked: Contents, twice: Collection[str]) -> tuple[str, ...]:
    """What is to be said of problems that cannot be compared, with the ids in both splits; nothing if there are none."""
    opaque = trained.opaque | asked.opaque
    if not opaque:
        return ()
    name, fact = next(iter(opaque.items()))
    counts = f"{len(trained.opaque)} problems to train on and {len(asked.opaque)} to evaluate"
    instance = f"for instance {fact} of {name}"
    notes = [f"{counts} have facts that cannot be compared, so that some may be in both splits; {instance}"]
    both = [name for name in opaque if name in twice]
    if both:
        notes.append(f"{len(both)} of these have an id that is in both splits, for instance {both[0]}")
    return tuple(notes)


def _known(name: str) -> str:
    if name in FACTORIES:
        return FACTORIES[name]
    meant = nearest(name, FACTORIES)
    raise ConfigError(
        f"no environment that talks is called {name!r}",
        **({"nearest": meant} if meant else {}),
        known=", ".join(FACTORIES),
        fix=(f'set env.name = "{meant}", or' if meant else "correct env.name, or")
        + ' name your own: env.factory = "module:function"',
    )


def _imported(where: str) -> Callable[..., Any]:
    module, colon, function = where.partition(":")
    if not (module and colon and function):
        raise ConfigError(f"{where!r} names no function", fix='write env.factory as "package.module:function"')
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return cast("Callable[..., Any]", found)


def _raised(error: BaseException, component: str, label: str) -> EnvironmentNotBuilt:
    fix = "correct what the message names; the environment can be tried alone by calling its factory"
    if isinstance(error, ModuleNotFoundError) and error.name:
        fix = remedy(error.name, label)
    return EnvironmentNotBuilt(
        f"building the environment {label} raised {words_of(error)}",
        component=component,
        environment=label,
        raised_at=raised_at(error),
        fix=fix,
    )
