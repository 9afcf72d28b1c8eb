"""Answers as the caller gets them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.vector.engine import Engine, Ids
from headrace.vector.infos import Infos
from headrace.vector.pending import Pending
from headrace.vector.probes import Probe, ProbeValues, batch


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
    probes: dict[str, ProbeValues] = field(default_factory=dict)
    """By the name of the probe."""

    def __len__(self) -> int:
        """How many environments."""
        return len(self.env_ids)


def take(
    engine: Engine,
    ids: Ids,
    shown: Ids,
    mask: NDArray[np.bool_],
    probes: Mapping[str, Probe],
    collects: type[Infos] = Infos,
    *,
    copies: bool,
) -> Received:
    """Take answers from an engine.

    Args:
        engine: Where they are ready.
        ids: Whose.
        shown: Whose observations to return; all of ``ids``, and maybe others, ascending.
        mask: [N]; whose reward and observation are real, changed in place for ``ids``.
        probes: By name.
        collects: What becomes of infos.
        copies: Whether objects in observations are copied. Arrays always are.
    """
    slab, pending = engine.slab, engine.pending
    engine.slots.take(ids)
    mask[ids] = True
    infos = collects(len(shown))
    if pending:
        _tell(pending, ids, shown, mask, infos)
    objects = [[column[env] for env in shown.tolist()] for column in pending.objects]
    if copies and objects:
        objects = copy.deepcopy(objects)
    observations = engine.rows.layout.batch(engine.rows.take(pending.row[shown]), objects)
    found = {}
    if probes:
        listed = set(ids.tolist())
        found = batch(probes, [pending.probed.pop(env, None) if env in listed else None for env in shown.tolist()])
    return Received(
        shown,
        observations,
        slab.reward[shown],
        slab.terminated[shown],
        slab.truncated[shown],
        infos.batch,
        mask[shown],
        found,
    )


def _tell(pending: Pending, ids: Ids, shown: Ids, mask: NDArray[np.bool_], infos: Infos) -> None:
    """Whatever else belongs to these answers: cuts go into the mask, everything that is told into infos."""
    places = {env: place for place, env in enumerate(shown.tolist())}
    told_infos, columns = pending.infos_of(ids)
    cut = [env for env in ids.tolist() if env in pending.cut]
    mask[cut] = False
    pending.cut.difference_update(cut)
    told = {places[env]: pending.told.pop(env) for env in ids.tolist() if env in pending.told}
    # Last: infos that cannot be put together raise, as in Gymnasium, and then these answers are over.
    if told_infos or columns:
        infos.fill(told_infos, columns, places)
    if told:
        infos.tell(told, mask[shown])
