"""A network that tells, in what it returns, with how many threads it was asked; imported in child processes too."""

from __future__ import annotations

from typing import Any


def counting(inputs: int, outputs: int) -> Any:
    """What other networks show in their last bits alone, and not on every machine."""
    import torch

    class Counting(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + 0.01 * torch.get_num_threads()

    return Counting(inputs, outputs)
