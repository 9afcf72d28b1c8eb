"""How likely actions are under a policy, in torch: what `headrace.algorithms.heads` draws, and how that is differentiated.

Letters in shapes: B batch, k components chosen at once, w choices of the one that has most, n outputs, A continuous action.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from headrace.algorithms.heads import CategoricalHead, GaussianHead, Head

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Distribution:
    """Of actions, given outputs of the policy's network.

    Args:
        head: Of the action space.
        device: Where outputs are.
    """

    def __init__(self, head: Head, device: torch.device) -> None:
        self._head = head
        self._columns: Tensor | None = None
        self._present: Tensor | None = None
        if isinstance(head, CategoricalHead) and head.absent is not None and head.columns is not None:
            self._columns = torch.from_numpy(head.columns).to(device)
            self._present = torch.from_numpy(~head.absent).to(device)

    def of(
        self, outputs: Tensor, log_std: Tensor | None, action: Tensor, legal: Tensor | None, *, entropy: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Logarithms of the probabilities (densities) of actions [B], and the distributions' entropies [B].

        Args:
            outputs: [B, n].
            log_std: [A] of continuous actions.
            action: What was drawn: choices int64 [B, k], or the unclipped action float32 [B, A].
            legal: [B, n] what could be chosen; None: everything.
            entropy: Whether entropies are differentiated too; it costs time.
        """
        if isinstance(self._head, GaussianHead):
            assert log_std is not None
            return gaussian(outputs, log_std, action, entropy=entropy)
        shape = (len(outputs), self._head.components, self._head.width)
        logits, allowed = self._spread(outputs).view(shape), self._present
        if legal is not None:
            own = self._spread(legal).view(shape)
            allowed = own if allowed is None else own & allowed
        return categorical(logits, allowed, action, entropy=entropy)

    def _spread(self, values: Tensor) -> Tensor:
        return values if self._columns is None else values.index_select(1, self._columns)


def categorical(
    logits: Tensor, allowed: Tensor | None, action: Tensor, *, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Of k independent choices; see `Distribution.of`.

    Args:
        logits: [B, k, w].
        allowed: [B, k, w] or [k, w]; what is not has probability 0 exactly. None: everything.
        action: [B, k].
        entropy: Whether entropies are differentiated too.
    """
    if allowed is None:
        logs = functional.log_softmax(logits, dim=2)
        finite = logs
    else:
        logs = functional.log_softmax(logits.masked_fill(~allowed, -torch.inf), dim=2)
        finite = logs.masked_fill(~allowed, 0.0)  # 0 times minus infinity is no number, and neither is its gradient
    chosen = logs.gather(2, action.unsqueeze(2))  # [B, k, 1]
    logprob = chosen.view(-1) if chosen.shape[1] == 1 else chosen.sum(dim=(1, 2))
    if not entropy:
        logs, finite = logs.detach(), finite.detach()
    return logprob, -(logs.exp() * finite).sum(dim=(1, 2))


def gaussian(mean: Tensor, log_std: Tensor, action: Tensor, *, entropy: bool = True) -> tuple[Tensor, Tensor]:
    """Of independent normal variables; ``mean`` and ``action`` [B, A], ``log_std`` [A]; see `Distribution.of`."""
    deviation = (action - mean) * torch.exp(-log_std)
    logprob = -(0.5 * deviation.square() + log_std + _HALF_LOG_TWO_PI).sum(dim=1)
    spread = log_std if entropy else log_std.detach()
    return logprob, (spread + (0.5 + _HALF_LOG_TWO_PI)).sum().expand(len(mean))
