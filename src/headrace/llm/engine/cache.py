"""Keys and values of every row, in one block: no allocation while generating, and rows that move as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.llm.engine.sizes import CacheShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a model needs to keep for one token, and where."""

    token: CacheShape
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: Any) -> Shape:
        """That of a Hugging Face causal language model."""
        weight = next(model.parameters())
        return cls(token=CacheShape.of(model.config), dtype=weight.dtype, device=weight.device)


class KVCache:
    """``R`` rows of ``S`` tokens. Row and column say where a token's keys and values are; nothing else is kept here.

    Args:
        shape: Of one token.
        rows: ``R``.
        columns: ``S``.
    """

    def __init__(self, shape: Shape, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns
        self.shape = token = shape.token
        self._block = torch.zeros(token.block(rows, columns), dtype=shape.dtype, device=shape.device)
        self._layers = [(self._block[layer, 0], self._block[layer, 1]) for layer in range(token.layers)]
        self._flat = [tuple(part.view(-1, token.head_width) for part in layer) for layer in self._layers]
        self._heads = torch.arange(token.heads, device=shape.device)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self._block.nbytes

    def places(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Where tokens belong, for `write`; the same in every layer.  # [N * H] from [N] each."""
        of_head = rows[:, None] * self._heads.shape[0] + self._heads
        return (of_head * self.columns + columns[:, None]).view(-1)

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put tokens where they belong.

        Args:
            layer: Of the model.
            places: Of `places`.
            keys: [N, H, D].
            values: [N, H, D].
        """
        # Several times faster than assigning to [rows, :, columns].
        for kept, new in zip(self._flat[layer], (keys, values), strict=True):
            kept.index_copy_(0, places, new.reshape(-1, new.shape[-1]))

    def view(self, layer: int, first: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Keys and values of consecutive rows, up to a column.  # [rows, H, columns, D] each."""
        keys, values = self._layers[layer]
        end = first + rows
        return keys[first:end, :, :columns], values[first:end, :, :columns]

    def move(self, to: list[int], source: list[int], columns: int) -> None:
        """Copy rows onto others, up to a column; all are read before any is written."""
        if to:
            device = self._block.device
            read = self._block[:, :, torch.tensor(source, device=device), :, :columns]
            self._block[:, :, torch.tensor(to, device=device), :, :columns] = read

    def zero(self, rows: list[int]) -> None:
        """Clear rows that hold what is not finite: what is masked is still multiplied, by zero."""
        self._block[:, :, torch.tensor(rows, device=self._block.device)] = 0.0
