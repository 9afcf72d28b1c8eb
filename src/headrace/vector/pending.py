"""What belongs to answers until they are taken, and is not the same size every time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import VectorMisused
from headrace.vector.endings import ENDING
from headrace.vector.events import Answers, Ids
from headrace.vector.faults import Fault
from headrace.vector.infos import Columns, Info
from headrace.vector.probes import Stamped
from headrace.vector.rows import Rows
from headrace.vector.slab import Slab


class Pending:
    """By environment; one that is not in any of these has an answer without more to say.

    Args:
        rows: Where observations lie.
        num_envs: How many environments.
    """

    def __init__(self, rows: Rows, num_envs: int) -> None:
        self.infos: dict[int, dict[str, Any]] = {}
        self.columns: list[Columns] = []
        """Infos of environments that are not in `infos`."""
        self.told: dict[int, list[Fault]] = {}
        """Faults that the answer tells of, in order; the first one is what cut it, if it is a cut."""
        self.probed: dict[int, Stamped] = {}
        self.cut: set[int] = set()
        """Whose answer is a cut: no reward, the end of the episode, not valid."""
        self.over: dict[int, tuple[float, bool, bool]] = {}
        """Reward and flags of answers that end an episode, and wait for the next one's first observation."""
        self.row = np.full(num_envs, -1, np.int64)
        """[N]; where the last valid observation of each environment is; -1: it has none."""
        self.objects: list[list[Any]] = [[None] * num_envs for _ in rows.layout.objects]
        """Per part that is no array, the last valid value of each environment."""
        self._rows = rows
        self._episode = np.full(num_envs, -1, np.int64)
        self._step = np.zeros(num_envs, np.int64)

    def __bool__(self) -> bool:
        """Whether any answer has more to say."""
        return bool(self.infos or self.columns or self.told or self.cut or self.probed)

    def check_observed(self, ids: Ids) -> None:
        """Whether each of these environments has an observation.

        Raises:
            VectorMisused: One has none.
        """
        missing = self.row[ids] < 0
        if np.count_nonzero(missing):
            raise VectorMisused(
                f"environment {ids[missing][0]} was never reset, so it has no observation",
                fix="reset it first",
            )

    def last_valid(self, env: int) -> Any:
        """A copy of the last valid observation of one environment."""
        arrays = [array[self.row[env]].copy() for array in self._rows.arrays]
        return self._rows.layout.one(arrays, [column[env] for column in self.objects])

    def keep(self, env: int, row: int) -> None:
        """Have the last valid observation of an environment lie where its answer would that does not come.

        Its next answer goes to the other row: so none that does not fit is ever written over the last that did.
        """
        if self.row[env] not in (-1, row):
            for array in self._rows.arrays:
                array[row] = array[self.row[env]]
            self.row[env] = row

    def ask_again(self, fault: Fault, *, stepped: bool) -> None:
        """An environment failed, and its replacement's first observation will be its answer: to a step, a cut."""
        if stepped:
            self.infos[fault.env] = {ENDING: (self.last_valid(fault.env), {})}
            self.cut.add(fault.env)
        self.tell(fault)

    def tell(self, *faults: Fault) -> None:
        """The next answers of their environments tell of these too."""
        for fault in faults:
            self.told.setdefault(fault.env, []).append(fault)

    def hold(self, ids: Ids, slab: Slab) -> None:
        """Of these answers, which end an episode, keep all that belongs to it; the rest will come from somewhere else."""
        self._split()
        for env in ids.tolist():
            infos = self.infos.pop(env, {})
            self.infos[env] = {ENDING: infos[ENDING]} if ENDING in infos else {}
            self.over[env] = float(slab.reward[env]), bool(slab.terminated[env]), bool(slab.truncated[env])

    def take_in(self, ids: Ids, answers: Answers, slab: Slab) -> None:
        """Remember what was sent along, and make cuts and ends of answers that are to be such.

        Args:
            ids: Answers that were accepted.
            answers: What was sent along with all of them.
            slab: Where their rewards and flags are.
        """
        if answers.columns:
            self._take_columns(ids, answers)
        if not (answers.infos or answers.objects or answers.rows or self.cut or self.over):
            return
        for env in ids.tolist():
            if env in answers.infos:
                self.infos[env] = self.infos.get(env, {}) | answers.infos[env]
            for column, value in zip(self.objects, answers.objects.get(env, ()), strict=False):
                column[env] = value
            for own, array in zip(self._rows.arrays, answers.rows.get(env, ()), strict=False):
                own[self.row[env]] = array
            if env in self.cut:
                slab.reward[env], slab.terminated[env], slab.truncated[env] = 0.0, False, True
            elif env in self.over:
                slab.reward[env], slab.terminated[env], slab.truncated[env] = self.over.pop(env)

    def infos_of(self, ids: Ids) -> tuple[dict[int, Info], list[Columns]]:
        """The infos of these answers, which are taken now."""
        listed = ids.tolist()
        if self.columns and not set(listed).issuperset(env for one in self.columns for env in one.envs):
            self._split()
        columns, self.columns = self.columns, []
        return {env: self.infos.pop(env) for env in listed if env in self.infos}, columns

    def _take_columns(self, ids: Ids, answers: Answers) -> None:
        """Keep infos in columns where all of their environments were accepted, and nothing has to be added to them."""
        accepted = set(ids.tolist())
        for one in answers.columns:
            if accepted.issuperset(one.envs) and self.infos.keys().isdisjoint(one.envs):
                self.columns.append(one)
            else:
                answers.infos |= {env: info for env, info in one.one_by_one().items() if env in accepted}

    def _split(self) -> None:
        for one in self.columns:
            self.infos |= one.one_by_one()
        self.columns = []

    def stamp(self, ids: Ids, found: Mapping[int, Any], steps: NDArray[np.bool_], again: NDArray[np.bool_]) -> None:
        """Say to which step of which episode belongs what probes found.

        Args:
            ids: Answers that were accepted.
            found: By environment.
            steps: Which of them were steps, and not resets.
            again: Which of them have begun their next episode within the step.
        """
        if self.over:  # of these it was said before, with the first part of the answer
            others = np.array([env not in self.over for env in ids.tolist()], np.bool_)
            ids, steps, again = ids[others], steps[others], again[others]
        self._episode[ids] += ~steps
        self._step[ids] = np.where(steps, self._step[ids] + 1, 0)
        for env in ids.tolist():
            self.probed[env] = Stamped(found[env], int(self._episode[env]), int(self._step[env]))
        self._episode[ids] += again
        self._step[ids[again]] = 0

    def drop(self, ids: Ids) -> None:
        """Forget these answers."""
        self._split()
        for env in ids.tolist():
            self.infos.pop(env, None)
            self.told.pop(env, None)
            self.probed.pop(env, None)
            self.cut.discard(env)
            self.over.pop(env, None)
