"""Group-relative policy optimisation of language models: advantages within groups, and what a token contributes.

The formulas only; whose tokens they are, and in which portions, is the trainer's business. Letters in shapes: S samples
(rollouts), K trained tokens of all samples one after the other, V vocabulary. Tokens that the policy did not choose
(prompt, environment) do not get here.

The ratio of a token is ``exp(logprob - behaviour)``: its probability under the policy that is trained, as a multiple of
what it was under the policy that drew it.

*Source*: GRPO, arXiv:2402.03300, equation 3; without the division by the deviation as in arXiv:2503.20783; clip-higher from
DAPO, arXiv:2503.14476; GSPO, arXiv:2507.18071, equation 5; CISPO, arXiv:2506.13585, equation 4; IcePop's double-sided mask with
the sampler as the reference. The KL estimator is "k3" of J. Schulman's note on approximating KL divergences.

Nothing here imports torch before it is called with tensors, because the orchestrator computes advantages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

LossKind = Literal["grpo", "gspo", "cispo", "icepop"]
Baseline = Literal["mean", "leave-one-out"]
Normalisation = Literal["tokens", "samples", "constant"]

_TINY = 1e-6


def group_advantages(
    rewards: ArrayLike, groups: ArrayLike, *, baseline: Baseline = "mean", divide_by_std: bool = False
) -> NDArray[np.float64]:
    """How much better than its group each rollout was.

    Args:
        rewards: [S].
        groups: [S] whole numbers; rollouts of one group have the same.
        baseline: mean: of the group. leave-one-out: of the others of the group; a rollout that is alone has advantage 0.
        divide_by_std: By the deviation of the group's rewards (that of the population).

    Returns:
        [S]; exactly 0 within a group whose rewards are all equal.
    """
    reward = np.asarray(rewards, np.float64)
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    size = np.bincount(group)[group]
    mean = (np.bincount(group, reward) / np.bincount(group))[group]
    centred = np.where(_all_equal(reward, group), 0.0, reward - mean)
    advantage = centred
    if baseline == "leave-one-out":
        advantage = centred * size / np.maximum(size - 1, 1)  # r - (sum - r) / (n - 1)
    if divide_by_std:
        deviation = np.sqrt(np.bincount(group, centred**2) / np.bincount(group))[group]
        advantage = advantage / (deviation + _TINY)
    return advantage


def _all_equal(reward: NDArray[np.float64], group: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each rollout's group has one reward only, [S]: a mean is rounded, and equal rewards must not differ from it."""
    low, high = np.full(group.max(initial=-1) + 1, np.inf), np.full(group.max(initial=-1) + 1, -np.inf)
    np.minimum.at(low, group, reward)
    np.maximum.at(high, group, reward)
    equal: NDArray[np.bool_] = (low == high)[group]
    return equal


@dataclass(frozen=True, slots=True)
class Tokens:
    """Trained tokens of whole samples."""

    logprob: Tensor  # [K], with gradient
    behaviour: Tensor  # [K]
    """Log-probability when it was drawn, under the policy that drew it."""
    advantage: Tensor  # [K]
    sample: Tensor  # [K], int64
    """Which sample it belongs to: 0 to ``samples`` - 1."""
    samples: int


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """What each token contributes, before it is weighed."""

    loss: Tensor  # [K], with gradient
    ratio: Tensor  # [K], without
    """Of the token, or of its sample where the loss knows only that."""
    held: Tensor  # [K], bool
    """Tokens that contribute no gradient, or a limited one, because their ratio went too far: clipped or masked."""


def token_losses(kind: LossKind, tokens: Tokens, clip_low: float, clip_high: float) -> TokenLosses:
    """What each trained token contributes to the loss.

    Args:
        kind: See `grpo_losses`, `gspo_losses`, `cispo_losses`, `icepop_losses`.
        tokens: Whole samples.
        clip_low: Distance below 1; icepop: the lower end itself.
        clip_high: Distance above 1; icepop: the upper end itself.
    """
    return _LOSSES[kind](tokens, clip_low, clip_high)


def grpo_losses(tokens: Tokens, clip_low: float, clip_high: float) -> TokenLosses:
    """PPO's clip per token: nothing is gained by a ratio outside of [1 - clip_low, 1 + clip_high]."""
    ratio = _ratio(tokens.logprob - tokens.behaviour)
    return _clipped(ratio, tokens.advantage, 1.0 - clip_low, 1.0 + clip_high)


def gspo_losses(tokens: Tokens, clip_low: float, clip_high: float) -> TokenLosses:
    """The same with one ratio for all tokens of a sample: the geometric mean of theirs."""
    log_ratio = sample_means(tokens.logprob - tokens.behaviour, tokens)
    return _clipped(_ratio(log_ratio)[tokens.sample], tokens.advantage, 1.0 - clip_low, 1.0 + clip_high)


def cispo_losses(tokens: Tokens, clip_low: float, clip_high: float) -> TokenLosses:
    """REINFORCE, weighed with the clipped ratio, which is a number here: every token keeps a gradient."""
    ratio = (tokens.logprob - tokens.behaviour).exp().detach()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return TokenLosses(-weight * tokens.advantage * tokens.logprob, ratio, weight != ratio)


def icepop_losses(tokens: Tokens, low: float, high: float) -> TokenLosses:
    """The ratio itself, and nothing at all of a token whose ratio is outside of [low, high], whatever its advantage."""
    log_ratio = tokens.logprob - tokens.behaviour
    ratio = log_ratio.detach().exp()
    outside = (ratio < low) | (ratio > high)
    # Masked before it is a ratio: the gradient of one that overflowed is NaN, also times 0.
    inside = log_ratio.masked_fill(outside, 0.0).exp()
    return TokenLosses((-inside * tokens.advantage).masked_fill(outside, 0.0), ratio, outside)


_LOSSES: Mapping[str, Callable[[Tokens, float, float], TokenLosses]] = {
    "grpo": grpo_losses,
    "gspo": gspo_losses,
    "cispo": cispo_losses,
    "icepop": icepop_losses,
}


def _ratio(log_ratio: Tensor) -> Tensor:
    """Its exponential. One that overflows has no gradient: 0 times that, where nothing is gained by it, would be no number."""
    far = log_ratio.detach().exp().isinf()
    return log_ratio.masked_fill(far, 0.0).exp().masked_fill(far, float("inf"))


def _clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> TokenLosses:
    loss = -(ratio * advantage).minimum(ratio.clamp(low, high) * advantage)
    held = ((ratio > high) & (advantage > 0)) | ((ratio < low) & (advantage < 0))
    return TokenLosses(loss.masked_fill(advantage == 0, 0.0), ratio.detach(), held)  # also where the ratio is infinite


def sample_means(values: Tensor, tokens: Tokens) -> Tensor:
    """Mean over the tokens of each sample, [S]; 0 for one without any."""
    sums = values.new_zeros(tokens.samples).index_add(0, tokens.sample, values)
    return sums / _lengths(values, tokens).clamp(min=1.0)


def fully_held(held: Tensor, tokens: Tokens) -> int:
    """Samples of which every token is `TokenLosses.held`: nothing is learned from them."""
    free = _lengths(tokens.behaviour, tokens) - tokens.behaviour.new_zeros(tokens.samples).index_add(
        0, tokens.sample, held.to(tokens.behaviour.dtype)
    )
    lengths = _lengths(tokens.behaviour, tokens)
    return int(((free == 0) & (lengths > 0)).sum())


def token_weights(normalise: Normalisation, lengths: NDArray[np.int64], context_tokens: int) -> NDArray[np.float64]:
    """What a token's contribution is multiplied with, by its sample, [S]; the loss of a minibatch is the weighed sum.

    Args:
        normalise: tokens: every token counts the same. samples: every sample does. constant: as tokens, but the divisor does
            not depend on how long the samples are.
        lengths: [S] trained tokens of each sample of the *whole* minibatch, at least 1.
        context_tokens: For ``constant``.
    """
    match normalise:
        case "tokens":
            return np.full(len(lengths), 1.0 / lengths.sum())
        case "samples":
            return 1.0 / (lengths * len(lengths))
        case "constant":
            return np.full(len(lengths), 1.0 / (context_tokens * len(lengths)))


def kl_to(reference: Tensor, logprob: Tensor) -> Tensor:
    """KL divergence from the policy that is trained to a reference, estimated from one drawn token each, [K]; never negative.

    Args:
        reference: [K] log-probabilities under the reference, without gradient.
        logprob: [K] under the policy that is trained.
    """
    log_ratio = reference - logprob
    return log_ratio.exp() - log_ratio - 1.0


def mismatch_kl(behaviour: Tensor, logprob: Tensor) -> Tensor:
    """KL divergence from the sampler to the trainer, estimated from the tokens that the sampler drew, [K], float64.

    0 where both give a token the same probability. In double precision, because differences of 1e-7 matter here.
    """
    log_ratio = logprob.detach().double() - behaviour.double()
    estimate: Tensor = log_ratio.expm1() - log_ratio
    return estimate


def entropy(logits: Tensor) -> Tensor:
    """Of the distribution that logits describe, in nats, [K] from [K, V]; minus infinity is a probability of 0."""
    logprobs = logits.log_softmax(-1)
    probabilities = logprobs.exp()
    return -(probabilities * logprobs.masked_fill(probabilities == 0, 0.0)).sum(-1)


def nucleus(logits: Tensor, top_p: float, chosen: Tensor) -> Tensor:
    """Logits of what a sampler with ``top_p`` draws from: the likeliest tokens whose mass reaches it; the others minus infinity.

    The token that was chosen stays in any case: the sampler had it in its nucleus, whose border may be elsewhere here.

    Args:
        logits: [K, V], divided by the temperature already.
        top_p: 1: all.
        chosen: [K] int64.
    """
    if top_p >= 1.0:
        return logits
    ordered, places = logits.detach().softmax(-1).sort(dim=-1, descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p  # the likelier ones reach it without this one
    outside = beyond.scatter(-1, places, beyond)  # back in the order of the vocabulary
    outside = outside.scatter(-1, chosen[:, None], value=False)
    return logits.masked_fill(outside, float("-inf"))


def _lengths(like: Tensor, tokens: Tokens) -> Tensor:
    """Tokens of each sample, [S]."""
    return like.new_zeros(tokens.samples).index_add(0, tokens.sample, like.new_ones(len(tokens.sample)))
