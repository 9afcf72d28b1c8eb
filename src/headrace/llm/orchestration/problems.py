"""Which problem comes next: shuffled passes over all of them, or what a curriculum says."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.envs.text.protocol import Problem


class Curriculum(Protocol):
    """Decides which problem comes next, from what became of the earlier ones.

    It must not depend on anything but its calls: then a run can be repeated, and resumed exactly.
    """

    def next(self, rng: np.random.Generator) -> str:
        """Id of the problem of the next group; what is drawn comes from ``rng``, a stream of its own for each call."""
        ...

    def told(self, problem: str, rewards: Sequence[float]) -> None:
        """A group is complete; these are the rewards of its rollouts, those that failed left out."""
        ...

    def state(self) -> Any:
        """All it needs to go on, as JSON."""
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
        ConfigError: There is none, or two have the same id.
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
        self._curriculum = curriculum or ShuffledPasses(list(self._by_id), seed)
        self._seed = seed
        self._draws = 0

    def next(self) -> Problem:
        """The problem of the next group.

        Raises:
            ConfigError: The curriculum named none of the training problems.
        """
        name = self._curriculum.next(seeding.generator(self._seed, "curriculum", self._draws))
        self._draws += 1
        if name not in self._by_id:
            raise ConfigError(
                f"the curriculum chose {name!r}, which is no training problem",
                curriculum=type(self._curriculum).__name__,
                fix="have its next() return the id of a problem of dataset('train')",
            )
        return self._by_id[name]

    def told(self, problem: str, rewards: Sequence[float]) -> None:
        """See `Curriculum.told`."""
        self._curriculum.told(problem, rewards)

    def state(self) -> dict[str, Any]:
        """Where it is, as JSON."""
        return {"draws": self._draws, "curriculum": self._curriculum.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._draws = int(state["draws"])
        self._curriculum.restore(state["curriculum"])


def build_curriculum(name: str | None, ids: Sequence[str]) -> Curriculum | None:
    """The object that ``module:function``, called with the ids of all training problems, returns.

    Raises:
        ConfigError: The name is not spelled like that, or names no function. An import that fails raises its own error.
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
    return cast("Curriculum", found(list(ids)))


def check_split(train: Sequence[Problem], held_out: Sequence[Problem]) -> None:
    """Refuse problems that are both trained on and evaluated on, by id or by content.

    Raises:
        ConfigError: There are some; the first is named.
    """
    ids = {problem.id for problem in train}
    contents = {_content(problem): problem.id for problem in train}
    for problem in held_out:
        same = problem.id if problem.id in ids else contents.get(_content(problem))
        if same is not None:
            raise ConfigError(
                f"evaluation problem {problem.id} is a training problem too",
                training_problem=same,
                fix="have dataset('train') and dataset('eval') share no problem",
            )


def _content(problem: Problem) -> tuple[object, ...]:
    return problem.opening, repr(sorted(problem.facts.items()))
