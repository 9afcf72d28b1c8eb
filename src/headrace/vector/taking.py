"""Answers as the caller gets them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.vector.engine import Engine, Ids
from headrace.vector.infos import Infos


@dataclass(frozen=True, slots=True)
class Received:
    """Answers of B environments, in the order of ``env_ids``. The arrays are the caller's own."""

    env_ids: Ids
    """[B], ascending."""
    observations: Any
    """A batch of B observations."""
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    infos: dict[str, Any]
    """As Gymnasium has them; arrays have B entries."""
    valid: NDArray[np.bool_]
    """[B]; False where an environment failed: its reward is none, and its observation is an earlier one."""

    def __len__(self) -> int:
        """How many environments."""
        return len(self.env_ids)


def take(engine: Engine, ids: Ids, shown: Ids, mask: NDArray[np.bool_], *, copy_observations: bool) -> Received:
    """Take answers from an engine.

    Args:
        engine: Where they are ready.
        ids: Whose.
        shown: Whose observations to return; all of ``ids``, and maybe others, ascending.
        mask: [N]; whose reward and observation are real, changed in place for ``ids``.
        copy_observations: Whether objects in observations are copied. Arrays always are.
    """
    slab = engine.slab
    engine.slots.take(ids)
    mask[ids] = True
    infos = Infos(len(shown))
    if engine.infos or engine.told or engine.cut:
        places = {env: place for place, env in enumerate(shown.tolist())}
        wanted = [env for env in ids.tolist() if env in engine.infos]
        for env in wanted:
            infos.add(places[env], engine.infos.pop(env))
        cut = [env for env in ids.tolist() if env in engine.cut]
        mask[cut] = False
        engine.cut.difference_update(cut)
        told = {places[env]: engine.told.pop(env) for env in ids.tolist() if env in engine.told}
        if told:
            infos.tell(told, mask[shown])
    objects = [[column[env] for env in shown.tolist()] for column in engine.objects]
    if copy_observations and objects:
        objects = copy.deepcopy(objects)
    observations = engine.rows.layout.batch(engine.rows.take(engine.row[shown]), objects)
    return Received(
        shown, observations, slab.reward[shown], slab.terminated[shown], slab.truncated[shown], infos.batch, mask[shown]
    )
