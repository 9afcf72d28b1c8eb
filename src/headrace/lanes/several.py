"""Batches for several policies at once: of each, transitions of its own lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.lanes.samplers import Sampler


class SeveralSamplers:
    """A batch of every sampler, one after the other; fulfils `Sampler`.

    Args:
        samplers: One per policy, each with the rows of its lanes; all draw from the same generator, in this order.
    """

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self._samplers = tuple(samplers)
        self.generator = samplers[0].generator
        self.places: NDArray[np.int64] = np.zeros(0, np.int64)
        """[P x B] places of the newest batch's windows, see `Replay.windows`."""

    @property
    def rows(self) -> int:
        """Rows the poorest policy has to draw from: none can be drawn for before each has some."""
        return min(sampler.rows for sampler in self._samplers)

    @property
    def ready(self) -> bool:
        """See `Sampler.ready`; for every policy."""
        return not self.wanting

    @property
    def wanting(self) -> list[int]:
        """Numbers of the policies for which there is nothing to draw."""
        return [number for number, sampler in enumerate(self._samplers) if not sampler.ready]

    def sample(self, batch_size: int) -> NDArray[np.void]:
        """Draw ``batch_size`` transitions for each policy.

        Returns:
            [P x B, W] rows, policy by policy.

        Raises:
            DataLossError: There is nothing to sample for one of them.
        """
        drawn = [sampler.sample(batch_size) for sampler in self._samplers]
        self.places = np.concatenate([sampler.places for sampler in self._samplers])
        # As bytes: joined as records they would lose the gaps between their fields.
        raw = np.concatenate([windows.view(np.uint8).reshape(batch_size, -1) for windows in drawn])
        return raw.view(drawn[0].dtype).reshape(-1, drawn[0].shape[1])

    def weights(self, updates: int) -> NDArray[np.float64] | None:
        """See `Sampler.weights`; the largest of each policy's batch is 1."""
        found = [sampler.weights(updates) for sampler in self._samplers]
        weights = [one for one in found if one is not None]
        return np.concatenate(weights) if weights else None

    def learned(self, errors: NDArray[np.floating[Any]] | None) -> None:
        """See `Sampler.learned`; ``errors`` [P x B]."""
        parts = [None] * len(self._samplers) if errors is None else np.split(errors, len(self._samplers))
        for sampler, part in zip(self._samplers, parts, strict=True):
            sampler.learned(part)

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Sampler.state`."""
        return {
            f"{number}.{name}": array
            for number, sampler in enumerate(self._samplers)
            for name, array in sampler.state().items()
        }

    def load_state(self, arrays: Mapping[str, NDArray[Any]], *, same_rows: bool) -> None:
        """See `Sampler.load_state`."""
        for number, sampler in enumerate(self._samplers):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            sampler.load_state(own, same_rows=same_rows)
