"""How likely actions are under a policy that is being learned, and how that is differentiated; numpy alone.

Asked with the derivatives of a loss by what it tells of actions, a likelihood answers with those by what it was made of. Letters
in shapes: B batch, k components chosen at once, w choices of the one that has most, n outputs, A continuous action.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.choices import Legal
from headrace.algorithms.encoding import Float32
from headrace.algorithms.heads import CategoricalHead, GaussianHead, Head, across, log_density

_ENTROPY = 0.5 + 0.5 * math.log(2.0 * math.pi)
"""Of a normal variable with deviation 1."""


class Likelihood(Protocol):
    """Of actions that were drawn, as the policy is now."""

    logprob: Float32
    """[B] logarithm of the probability (density) of each."""
    entropy: Float32
    """[B] of what each was drawn from."""

    def back(self, by_logprob: Float32, by_entropy: float) -> tuple[Float32, Float32 | None]:
        """Derivative of a loss by the network's outputs, [B, n], and of continuous actions by ``log_std``, [A].

        Args:
            by_logprob: [B] its derivative by `logprob`.
            by_entropy: That by each row's entropy, the same one for all.
        """
        ...


class Categorical:
    """Fulfils `Likelihood` for choices.

    Args:
        head: Knows what can be chosen, and how outputs lie.
        outputs: [B, n].
        legal: [B, n]; None: everything.
        places: [B, k] what was drawn.
    """

    def __init__(self, head: CategoricalHead, outputs: Float32, legal: Legal | None, places: NDArray[np.int64]) -> None:
        self._head = head
        # Components of all rows follow each other here, [B * k, w].
        logs = head.log_probabilities(outputs, legal).reshape(-1, head.width)
        self._drawn = head.drawn(places)
        chosen = logs[self._drawn]
        self._probability = np.exp(logs)
        if legal is not None or head.absent is not None:
            logs = np.where(self._probability == 0.0, np.float32(0.0), logs)  # 0 times minus infinity is no number
        self._shares = self._probability * logs  # p log p
        self._entropies = -across(np.add, self._shares)
        self.logprob, self.entropy = head.of_rows(chosen), head.of_rows(self._entropies)

    def back(self, by_logprob: Float32, by_entropy: float) -> tuple[Float32, None]:
        """See `Likelihood.back`; where nothing can be chosen it is 0.

        By the logit of choice i, the logarithm of the probability of choice a has the derivative ``[i = a] - p_i``, and the
        entropy H has ``-p_i (log p_i + H)``.
        """
        by_chosen = np.repeat(by_logprob, self._head.components)
        grad: Float32 = self._probability * -by_chosen[:, None]
        grad[self._drawn] += by_chosen
        if by_entropy:
            grad -= np.float32(by_entropy) * (self._shares + self._probability * self._entropies[:, None])
        return self._head.gathered(grad.reshape(len(by_logprob), -1)), None


class Gaussian:
    """Fulfils `Likelihood` for independent normal variables.

    Args:
        mean: [B, A].
        log_std: [A].
        action: [B, A] what was drawn.
    """

    def __init__(self, mean: Float32, log_std: Float32, action: Float32) -> None:
        self._std: Float32 = np.exp(log_std)
        self._deviation: Float32 = (action - mean) / self._std
        self.logprob = log_density(self._deviation, log_std)
        self.entropy: Float32 = np.full(len(mean), np.add.reduce(log_std + np.float32(_ENTROPY)))

    def back(self, by_logprob: Float32, by_entropy: float) -> tuple[Float32, Float32]:
        """See `Likelihood.back`.

        Of an action that lies d deviations off, the logarithm of the density has the derivatives ``d / std`` and ``d^2 - 1``;
        the entropy has 0 and 1.
        """
        weight = by_logprob[:, None]
        by_mean: Float32 = self._deviation / self._std * weight
        by_log_std: Float32 = np.add.reduce((self._deviation * self._deviation - np.float32(1.0)) * weight, axis=0)
        return by_mean, by_log_std + np.float32(by_entropy * len(by_logprob))


def likelihood(
    head: Head, outputs: Float32, log_std: Float32 | None, action: NDArray[Any], legal: Legal | None
) -> Likelihood:
    """Of actions that were drawn.

    Args:
        head: Of the action space.
        outputs: [B, n] of the policy's network.
        log_std: [A] of continuous actions.
        action: What was drawn: places int64 [B, k], or the unclipped action float32 [B, A].
        legal: [B, n] what could be chosen; None: everything.
    """
    if isinstance(head, GaussianHead):
        assert log_std is not None
        return Gaussian(outputs, log_std, action)
    return Categorical(head, outputs, legal, action)
