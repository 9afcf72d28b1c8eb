"""What every algorithm's learning half has besides its formulas.

Networks and optimisers that are hashed, saved and restored by name, means of what is measured, and a refusal to learn
from what is no number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.algorithms.base import Arrays, Transitions
from headrace.algorithms.flat import FlatAdam, FlatParameters
from headrace.core.arrays import first_too_large
from headrace.core.errors import ConfigError, NonFiniteValue


def learned_arrays(flats: Mapping[str, FlatParameters], adams: Mapping[str, FlatAdam]) -> dict[str, NDArray[Any]]:
    """Weights by name, and each optimiser's moments as ``<name>.<moment>``; live in host memory, else copies."""
    arrays: dict[str, NDArray[Any]] = {name: flat.numpy() for name, flat in flats.items()}
    for name, adam in adams.items():
        arrays |= {f"{name}.{moment}": array for moment, array in adam.moments().items()}
    return arrays


def sha256_of(arrays: Arrays) -> str:
    """Hash of names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def counts_of(flats: Mapping[str, FlatParameters]) -> dict[str, NDArray[Any]]:
    """What was done to each network, as ``<name>.counts``; live."""
    return {f"{name}.counts": flat.counts for name, flat in flats.items()}


@torch.no_grad()
def load_learned(arrays: Arrays, flats: Mapping[str, FlatParameters], adams: Mapping[str, FlatAdam]) -> None:
    """Overwrite weights, counts and moments with what `learned_arrays` and `counts_of` gave."""
    for name, flat in flats.items():
        flat.value.copy_(torch.tensor(arrays[name]))
        flat.counts[:] = arrays[f"{name}.counts"]
    for name, adam in adams.items():
        for moment in adam.moments():
            adam.load(moment, arrays[f"{name}.{moment}"])


class Means:
    """Running means by name, emptied when taken."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, name: str, value: float) -> None:
        """Count one value."""
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + value, count + 1)

    def take(self) -> dict[str, float]:
        """Means since the last call, as ``train/<name>``; absent if there was no value."""
        means = {f"train/{name}": total / count for name, (total, count) in self._sums.items()}
        self._sums = {}
        return means


class NotFiniteError(Exception):
    """A loss or gradient that must not be applied."""

    def __init__(self, network: str, loss: float, norm: float) -> None:
        super().__init__(network)
        self.network, self.loss, self.norm = network, loss, norm

    def told(self, batch: Transitions, update: int, lr: str) -> NonFiniteValue:
        """As a user reads it; ``lr`` is the key of the network's learning rate."""
        return self.described(_describe(batch), update, lr)

    def described(self, batch: str, update: int, lr: str) -> NonFiniteValue:
        """As `told`, of a batch that was looked at already."""
        return NonFiniteValue(
            f"learner: the {self.network}'s loss or gradient is not finite; no weight was changed",
            update=update,
            loss=self.loss,
            gradient_norm=self.norm,
            batch=batch,
            fix=f"if the batch holds such a value, mend the environment; "
            f"else lower algorithm.{lr} or scale the rewards down",
        )


def require_finite(network: str, loss: float, norm: float) -> None:
    """Raise before a step is made that cannot be undone.

    Raises:
        NotFiniteError: One of them is NaN or infinite.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise NotFiniteError(network, loss, norm)


def _describe(batch: Transitions) -> str:
    """Whether the batch itself is to blame, and with what."""
    arrays = {"reward": batch.reward, "discount": batch.discount, **batch.action, **batch.obs}
    arrays |= {f"next {name}": array for name, array in batch.next_obs.items()}
    return (
        first_not_finite(arrays)
        or f"every value is finite; rewards from {batch.reward.min():g} to {batch.reward.max():g}"
    )


def first_not_finite(arrays: Arrays) -> str | None:
    """Which number is none to a network, in words; None: all are. Those that are too large for float32 are none, too.

    Args:
        arrays: By name, [rows, ...].
    """
    for name, array in arrays.items():
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            return f"{name} of row {bad[0][0]} is {array[tuple(bad[0])]}"
        large = first_too_large(array)
        if large is not None:
            return f"{name} of row {large[0]} is {array[large]:g}, which float32 cannot hold"
    return None


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Of products inside networks, by the name ``learn.precision`` has for it."""


def existing_precision(precision: str, device: str) -> torch.dtype:
    """What products inside networks are made of.

    Args:
        precision: ``float32`` or ``bfloat16``.
        device: Where they are made; it is there.

    Raises:
        ConfigError: The processor has no instructions for it, so that it would only be slower, or torch cannot be told.
    """
    dtype = PRECISIONS[precision]
    if dtype == torch.float32:
        return dtype
    on_cpu = torch.device(device).type == "cpu"
    able = torch.ops.mkldnn._is_mkldnn_bf16_supported() if on_cpu else torch.cuda.is_bf16_supported()  # noqa: SLF001
    if not able:
        raise ConfigError(
            f"{device} has no instructions for products of bfloat16",
            expected="avx512_bf16 or AMX" if on_cpu else "a GPU with bfloat16",
            fix='set learn.precision = "float32"',
        )
    if on_cpu and not hasattr(torch.backends.mkldnn, "matmul"):
        raise ConfigError(
            "this torch cannot round what goes into products on the CPU",
            expected="torch 2.9 or later",
            found=f"torch {torch.__version__}",
            fix='install a later torch, or set learn.precision = "float32"',
        )
    return dtype


def existing_device(device: str) -> torch.device:
    """The torch device of that name.

    Raises:
        ConfigError: It is not there.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch raises either, by kind of device
        raise ConfigError(
            f"torch device {device!r} cannot be used on this machine",
            found=str(error).splitlines()[0],
            fix="set learn.device to a device that is there, e.g. cpu",
        ) from error
    return torch.device(device)
