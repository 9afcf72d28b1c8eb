"""Which problem comes next: shuffled passes over all of them, or what a curriculum says."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.envs.text.asking import called
from headrace.envs.text.contents import contents_of
from headrace.envs.text.protocol import Problem

_Answer = TypeVar("_Answer")
_METHODS = ("next", "told", "state", "restore")


class Curriculum(Protocol):
    """Decides which problem comes next, from what became of the earlier ones.

    It must not depend on anything but its calls: then a run can be repeated, and resumed exactly.
    """

    def next(self, rng: np.random.Generator) -> str:
        """Id of the problem of the next group; what is drawn comes from ``rng``, a stream of its own for each call."""
        ...

    def told(self, problem: str, rewards: Sequence[float]) -> None:
        """A group is complete; these are the rewards of its rollouts, those that failed left out.

        Said once of a group: one that was complete and not trained on is begun anew by a resume, and is not told again.
        """
        ...

    def state(self) -> Any:
        """All it needs to go on, as JSON: what is no JSON, or would be read back as something else, ends the run."""
        ...

    def restore(self, state: Any) -> None:
        """Go on from there."""
        ...


class ShuffledPasses:
    """All problems in an order of its own in each pass.

    Args:
        ids: Of the problems.
        seed: Of the run.
    """

    def __init__(self, ids: Sequence[str], seed: int) -> None:
        self._ids = list(ids)
        self._seed = seed
        self._taken = 0
        self._order: list[int] = []

    def next(self, rng: np.random.Generator) -> str:
        """See `Curriculum.next`. A pass is drawn from a stream by its number, so that the cursor is all there is to keep."""
        del rng
        number, place = divmod(self._taken, len(self._ids))
        if not place or not self._order:
            self._order = seeding.generator(self._seed, "problems", number).permutation(len(self._ids)).tolist()
        self._taken += 1
        return self._ids[self._order[place]]

    def told(self, problem: str, rewards: Sequence[float]) -> None:
        """Passes learn nothing."""

    def state(self) -> int:
        """Problems taken so far."""
        return self._taken

    def restore(self, state: Any) -> None:
        """See `Curriculum.restore`."""
        self._taken, self._order = int(state), []


class Problems:
    """The training problems in the order in which groups are begun.

    Args:
        problems: All of them.
        seed: Of the run.
        curriculum: Decides; None: shuffled passes.

    Raises:
        ConfigError: There is none, or two have the same id. Or the curriculum lacks a method, or cannot be kept.
        EnvironmentRaised: The curriculum raised, here or later; it is named, with the method.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, curriculum: Curriculum | None = None) -> None:
        self._by_id = {problem.id: problem for problem in problems}
        if not problems or len(self._by_id) < len(problems):
            raise ConfigError(
                "the environment's training problems are none, or some have the same id",
                problems=len(problems),
                ids=len(self._by_id),
                fix="have dataset('train') return at least one problem, each with an id of its own",
            )
        self._curriculum = ShuffledPasses(list(self._by_id), seed) if curriculum is None else curriculum
        self._seed = seed
        self._draws = 0
        self._look()

    def next(self) -> Problem:
        """The problem of the next group.

        Raises:
            ConfigError: The curriculum named none of the training problems.
        """
        rng = seeding.generator(self._seed, "curriculum", self._draws)
        name: object = self._called("next", lambda: self._curriculum.next(rng))
        self._draws += 1
        if not isinstance(name, str) or name not in self._by_id:
            raise ConfigError(
                f"the curriculum chose {name!r:.200}, which is no training problem",
                curriculum=self._label,
                fix="have its next() return the id of a problem of dataset('train')",
            )
        return self._by_id[name]

    def named(self, problem: str) -> Problem | None:
        """The problem with this id; None: the environment has it no more."""
        return self._by_id.get(problem)

    def told(self, problem: str, rewards: Sequence[float]) -> None:
        """See `Curriculum.told`."""
        self._called("told", lambda: self._curriculum.told(problem, rewards), problem=problem)

    def state(self) -> dict[str, Any]:
        """Where it is, as JSON.

        Raises:
            ConfigError: The curriculum's state is none, or would be read back as something else.
        """
        return {"draws": self._draws, "curriculum": self._kept()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._draws = int(state["draws"])
        self._called("restore", lambda: self._curriculum.restore(state["curriculum"]))

    @property
    def _label(self) -> str:
        kind = type(self._curriculum)
        return f"{kind.__module__}:{kind.__qualname__}"

    def _called(self, method: str, call: Callable[[], _Answer], **facts: object) -> _Answer:
        return called(f"{method}() of the curriculum {self._label}", call, **facts)

    def _look(self) -> None:
        """What can be known of a curriculum before anything is played."""
        lacking = [name for name in _METHODS if not callable(getattr(self._curriculum, name, None))]
        if lacking:
            raise ConfigError(
                f"{self._label} is no curriculum: it has no {', '.join(f'{name}()' for name in lacking)}",
                fix="return an object with the methods of headrace.llm.orchestration.problems.Curriculum",
            )
        self._kept()

    def _kept(self) -> Any:
        """The curriculum's state as a checkpoint gives it back: what it does with it later reaches no checkpoint."""
        state: object = self._called("state", self._curriculum.state)
        read: object = None
        try:
            read = json.loads(json.dumps(state))
            problem = _changed(state, read)
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"{error}"
        if problem is None:
            return read
        raise ConfigError(
            f"state() of the curriculum {self._label} is not what a checkpoint would give back to restore()",
            problem=problem,
            state=f"{state!r:.200}",
            fix="have it return dicts with keys of text, lists, texts, numbers of Python's own, True, False and None",
        )


def build_curriculum(name: str | None, ids: Sequence[str]) -> Curriculum | None:
    """The object that ``module:function``, called with the ids of all training problems, returns.

    Raises:
        ConfigError: The name is not spelled like that, names no function, or one that returns None. An import that fails
            raises its own error.
        EnvironmentRaised: The function raised.
    """
    if name is None:
        return None
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError(
            f"orchestrator.curriculum {name!r} names no function", fix='write it as "package.module:function"'
        )
    found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise ConfigError(f"module {module} has no function {function}", fix="name a function of this module")
    made: object = called(f"the curriculum {name}", lambda: found(list(ids)))
    if made is None:
        raise ConfigError(f"the curriculum {name} returned None", fix="return the object that is to be asked")
    return cast("Curriculum", made)


def _changed(given: object, read: object) -> str | None:
    """What JSON has made another value of; None: nothing."""
    if isinstance(given, dict) and isinstance(read, dict):
        odd = next((key for key in given if not isinstance(key, str)), None)
        if odd is not None:
            return f"the key {odd!r:.80} is read back as text"
        return next((found for key in read if (found := _changed(given[key], read[key])) is not None), None)
    if isinstance(given, list) and isinstance(read, list):
        pairs = zip(given, read, strict=True)
        return next((found for one, other in pairs if (found := _changed(one, other)) is not None), None)
    same = given == read or (given != given and read != read)  # the latter: NaN
    return None if same else f"{given!r:.80} is read back as {read!r:.80}"


def check_split(train: Sequence[Problem], held_out: Sequence[Problem]) -> None:
    """Refuse problems that are both trained on and evaluated on, by id or by content (see `contents_of`).

    What cannot be compared is told apart by id alone; the check of the environment notes it.

    Raises:
        ConfigError: There are some; the first is named.
    """
    ids = {problem.id for problem in train}
    trained, asked = contents_of(train, held_out)
    known = {key: problem.id for problem, key in zip(train, trained.keys, strict=True) if key is not None}
    for problem, key in zip(held_out, asked.keys, strict=True):
        same = problem.id if problem.id in ids else known.get(key)
        if same is not None:
            raise ConfigError(
                f"evaluation problem {problem.id} is a training problem too",
                training_problem=same,
                fix="have dataset('train') and dataset('eval') share no problem",
            )
