"""Several policies acting in one batch of rows, each for its own agents; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.acting import misfit
from headrace.algorithms.base import Actor, Arrays, LaneNoise, PolicySpec
from headrace.core.errors import NonFiniteValue, ObservationMismatch
from headrace.core.specs import leaves

_SHARED = "exploration_scale"

Rows = tuple[tuple[int, NDArray[np.intp]], ...]
"""Which rows each policy acts in; policies that act in none are left out."""


class ManyActors:
    """Fulfils `Actor` by members that do, one a policy; row i is of agent ``i % len(policy_of)``.

    Args:
        policy: What the members were built from; its ``policy_of`` says who acts for whom.
        members: One for each policy, in their order.
    """

    def __init__(self, policy: PolicySpec, members: Sequence[Actor]) -> None:
        self._members = tuple(members)
        self._policy_of = np.array(policy.policy_of, np.intp)
        self._first_leaf = leaves(policy.observation_space, "obs")[0].path
        self._rows: dict[int, Rows] = {}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Actor.load`; each array is [policies, ...], but ``exploration_scale``, which is for all.

        Raises:
            SnapshotCorrupt: The snapshot was made for other policies, or not as many; the first members may have been given
                theirs already, so nothing is to act with it.
        """
        policies = len(self._members)
        for name, array in arrays.items():
            if name != _SHARED and array.shape[:1] != (policies,):
                raise misfit(f"{name}: [{policies}, ...], one for each policy", f"{name}: {list(array.shape)}")
        for policy, member in enumerate(self._members):
            member.load({name: array if name == _SHARED else array[policy] for name, array in arrays.items()})

    def noise(self, generator: np.random.Generator) -> LaneNoise:
        """See `Actor.noise`; of one kind whoever's lane it is, for the members are of one configuration."""
        return self._members[0].noise(generator)

    def act(self, obs: Arrays, noise: Sequence[LaneNoise] | None = None) -> Arrays:
        """See `Actor.act`. The returned arrays are new; environments may keep them."""
        count = len(obs[self._first_leaf])
        acted: dict[str, NDArray[Any]] = {}
        for policy, rows in self._rows_of(count):
            own = None if noise is None else [noise[row] for row in rows]
            try:
                found = self._members[policy].act({name: array[rows] for name, array in obs.items()}, own)
            except (ObservationMismatch, NonFiniteValue) as error:  # which counts its own rows
                if "row" in error.facts:
                    error.facts["row"] = int(rows[int(str(error.facts["row"]))])
                raise
            for name, array in found.items():
                if name not in acted:
                    acted[name] = np.empty((count, *array.shape[1:]), array.dtype)
                acted[name][rows] = array
        return acted

    def _rows_of(self, count: int) -> Rows:
        """Worked out once for each number of rows."""
        found = self._rows.get(count)
        if found is None:
            policies = np.resize(self._policy_of, count)  # again and again, row by row
            every = ((policy, np.flatnonzero(policies == policy)) for policy in range(len(self._members)))
            found = self._rows[count] = tuple((policy, rows) for policy, rows in every if len(rows))
        return found
