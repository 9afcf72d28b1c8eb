"""How likely actions are under a policy, in torch: what `headrace.algorithms.heads` draws, and how that is differentiated.

Derivatives are written out: asked with those of a loss by what is told of actions, a distribution answers with those by what it
was made of. Letters in shapes: B batch, k components chosen at once, w choices of the one that has most, n outputs,
A continuous action.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from headrace.algorithms.heads import CategoricalHead, GaussianHead, Head

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Likelihood(Protocol):
    """How likely actions were, and how undecided the policy is that they are said to be of."""

    logprob: Tensor
    """[B] logarithm of the probability (density) of each action."""

    @property
    def entropy(self) -> Tensor:
        """[B]"""
        ...

    def back(self, by_logprob: Tensor, by_entropy: float) -> tuple[Tensor, Tensor | None]:
        """Derivative of a loss by the network's outputs, [B, n], and of continuous actions by ``log_std``, [A].

        Args:
            by_logprob: [B] its derivative by `logprob`.
            by_entropy: That by each row's entropy; it is the same one for all of them.
        """
        ...


class Categorical:
    """Fulfils `Likelihood` for k independent choices.

    Args:
        logits: [B, k, w].
        allowed: [B, k, w] or [k, w]; what is not has probability 0 exactly. None: everything.
        action: [B, k] what was drawn.
        gather: Makes of a derivative by ``logits`` one by the network's outputs.
    """

    def __init__(
        self, logits: Tensor, allowed: Tensor | None, action: Tensor, gather: Callable[[Tensor], Tensor]
    ) -> None:
        self._drawn, self._gather = action.unsqueeze(2), gather
        if allowed is None:
            finite = logs = logits.log_softmax(dim=2)
        else:
            forbidden = ~allowed
            logs = logits.masked_fill(forbidden, -torch.inf).log_softmax(dim=2)
            finite = logs.masked_fill(forbidden, 0.0)  # 0 times minus infinity is no number
        self.logprob = logs.gather(2, self._drawn).sum(dim=(1, 2))
        self._probability = logs.exp()
        self._share = self._probability * finite  # [B, k, w]  p log p, in all the negative entropy

    @property
    def entropy(self) -> Tensor:
        """See `Likelihood.entropy`."""
        return -self._share.sum(dim=(1, 2))

    def back(self, by_logprob: Tensor, by_entropy: float) -> tuple[Tensor, None]:
        """See `Likelihood.back`; where nothing can be chosen it is 0.

        By the logit of choice i, the logarithm of the probability of choice a has the derivative ``[i = a] - p_i``, and the
        entropy H has ``-p_i (log p_i + H)``.
        """
        drawn = by_logprob.view(-1, 1, 1)
        grad = self._probability * -drawn
        grad.scatter_add_(2, self._drawn, drawn.expand(self._drawn.shape))
        if by_entropy:
            entropy = -self._share.sum(dim=2, keepdim=True)  # [B, k, 1]
            grad.add_(torch.addcmul(self._share, self._probability, entropy), alpha=-by_entropy)
        return self._gather(grad.flatten(1)), None


class Gaussian:
    """Fulfils `Likelihood` for independent normal variables.

    Args:
        mean: [B, A].
        log_std: [A].
        action: [B, A] what was drawn.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, action: Tensor) -> None:
        self._rows, self._log_std = len(mean), log_std
        self._per_std = torch.exp(-log_std)
        self._deviation = (action - mean) * self._per_std
        self._squares = self._deviation.square()
        self.logprob = -(0.5 * self._squares + log_std + _HALF_LOG_TWO_PI).sum(dim=1)

    @property
    def entropy(self) -> Tensor:
        """See `Likelihood.entropy`."""
        return (self._log_std + (0.5 + _HALF_LOG_TWO_PI)).sum().expand(self._rows)

    def back(self, by_logprob: Tensor, by_entropy: float) -> tuple[Tensor, Tensor]:
        """See `Likelihood.back`.

        Of an action that lies d deviations off, the logarithm of the density has the derivatives ``d / std`` and ``d^2 - 1``;
        the entropy has 0 and 1.
        """
        by_mean = self._deviation * self._per_std * by_logprob.unsqueeze(1)
        by_log_std = by_logprob @ (self._squares - 1.0)
        return by_mean, by_log_std + by_entropy * self._rows


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

    def of(self, outputs: Tensor, log_std: Tensor | None, action: Tensor, legal: Tensor | None) -> Likelihood:
        """Of actions that were drawn.

        Args:
            outputs: [B, n].
            log_std: [A] of continuous actions.
            action: What was drawn: choices int64 [B, k], or the unclipped action float32 [B, A].
            legal: [B, n] what could be chosen; None: everything.
        """
        if isinstance(self._head, GaussianHead):
            assert log_std is not None
            return Gaussian(outputs, log_std, action)
        shape = (len(outputs), self._head.components, self._head.width)
        logits, allowed = self._spread(outputs).view(shape), self._present
        if legal is not None:
            own = self._spread(legal).view(shape)
            allowed = own if allowed is None else own & allowed
        return Categorical(logits, allowed, action, self._gathered)

    def _spread(self, values: Tensor) -> Tensor:
        return values if self._columns is None else values.index_select(1, self._columns)

    def _gathered(self, grad: Tensor) -> Tensor:
        """[B, n] of [B, k * w]: what `_spread` does to a derivative."""
        if self._columns is None:
            return grad
        # Where a component has no such choice, output 0 stands in, and the derivative is 0.
        return grad.new_zeros(len(grad), self._head.outputs).index_add_(1, self._columns, grad)
