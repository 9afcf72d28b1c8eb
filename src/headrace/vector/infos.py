"""Infos of several environments in one dict, as Gymnasium's vector environments have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.vector.faults import Fault


class Infos:
    """Collects the infos of one batch.

    Args:
        count: How many environments are in the batch; arrays have as many entries.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._vector: gymnasium.vector.VectorEnv[Any, Any, Any] | None = None
        self.batch: dict[str, Any] = {}

    def add(self, place: int, info: Mapping[str, Any]) -> None:
        """The info of one environment; in ascending order of places, as dtypes follow the first."""
        if self._vector is None:
            self._vector = gymnasium.vector.VectorEnv()
            self._vector.num_envs = self._count
        self.batch = self._vector._add_info(self.batch, dict(info), place)  # noqa: SLF001 - the base class's own rule

    def tell(self, faults: Mapping[int, Fault], valid: NDArray[np.bool_]) -> None:
        """What went wrong, by place, under the key ``headrace``."""
        for place, fault in faults.items():
            told = {"fault": fault.kind.value, "message": fault.message, "step": fault.step, "phase": fault.phase}
            self.add(place, {"headrace": told})
        self.batch["headrace"]["valid"] = valid.copy()
