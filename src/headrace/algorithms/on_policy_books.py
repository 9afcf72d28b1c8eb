"""What an on-policy algorithm has learned and counted, as one: hashed, saved, restored, taken over, and compared with what is declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.algorithms.base import Arrays
from headrace.algorithms.flat import FlatAdam, FlatParameters, counts
from headrace.algorithms.learned import counts_of, learned_arrays, load_learned, sha256_of
from headrace.algorithms.minibatches import Minibatches
from headrace.algorithms.rollouts import RUNNING_RETURNS, Inputs
from headrace.core.errors import ConfigError


class Books:
    """Keeps them.

    Args:
        flat: Actor and critic.
        adam: Their optimiser.
        inputs: Running statistics.
        minibatches: Knows how many transitions were learned from.
    """

    def __init__(self, flat: FlatParameters, adam: FlatAdam, inputs: Inputs, minibatches: Minibatches) -> None:
        self._flat, self._adam, self._inputs, self._minibatches = flat, adam, inputs, minibatches

    def sha256(self) -> str:
        """Hash of both networks, the optimiser's moments and the normalisers."""
        return sha256_of(self._learned())

    def ledger(self, updates: int, lr: float) -> dict[str, float]:
        """What the optimiser has counted and how many transitions were learned from, beside what is declared.

        Args:
            updates: So far.
            lr: The learning rate that is declared for now.
        """
        declared = {"network_steps": min(updates, FlatAdam.MOST_STEPS), "network_optimisers": 1, "network_lr": lr}
        return {
            "updates": updates,
            **counts({}, {"network": self._adam}),
            **self._minibatches.ledger(),
            **{f"{name}_declared": value for name, value in declared.items()},
        }

    def state(self, counters: Sequence[int]) -> dict[str, NDArray[Any]]:
        """All of it, and the algorithm's own counters; no epoch set may be open. Live where they can be; copy to keep."""
        return {
            **self._learned(),
            **counts_of({"network": self._flat}),
            "counters": np.array(counters, np.int64),
            **{f"minibatches.{name}": array for name, array in self._minibatches.arrays().items()},
        }

    def load_state(self, arrays: Arrays) -> list[int]:
        """Overwrite everything with a `state` of the same configuration and spaces; returns its counters."""
        load_learned(arrays, {"network": self._flat}, {"network": self._adam})
        self._inputs.load(arrays)
        self._minibatches.load({name: arrays[f"minibatches.{name}"] for name in ("generator", "transitions")})
        return [int(count) for count in arrays["counters"]]

    @torch.no_grad()
    def begin_with(self, arrays: Arrays) -> None:
        """See `headrace.algorithms.base.OnPolicyAlgorithm.begin_with`."""
        own = {"network": self._flat.numpy(), **self._inputs.arrays()}
        returns = {
            name: np.zeros_like(array) for name, array in own.items() if name == RUNNING_RETURNS
        }  # no episode yet
        _require_alike({**arrays, **returns}, own)
        self._flat.value.copy_(torch.tensor(arrays["network"]))
        self._inputs.load({**{name: arrays[name] for name in own}, **returns})

    def _learned(self) -> dict[str, NDArray[Any]]:
        return {**learned_arrays({"network": self._flat}, {"network": self._adam}), **self._inputs.arrays()}


def _require_alike(arrays: Arrays, own: Arrays) -> None:
    """Refuse networks and statistics that are not those of this configuration."""
    found, expected = ({name: one.shape for name, one in of.items() if _is_learned(name)} for of in (arrays, own))
    if found != expected:
        raise ConfigError(
            "the run that learn.begin_from names has other networks or statistics than this one",
            found=", ".join(f"{name} {shape}" for name, shape in sorted(found.items())),
            expected=", ".join(f"{name} {shape}" for name, shape in sorted(expected.items())),
            fix="choose a run of the same spaces, algorithm.network and algorithm.normalize",
        )


def _is_learned(name: str) -> bool:
    return name == "network" or name.startswith(("normaliser.", "rewards."))
