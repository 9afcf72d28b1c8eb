"""Advantages and token losses against references that are written here, in double precision, sample by sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.grpo import (
    Tokens,
    entropy,
    fully_held,
    group_advantages,
    kl_to,
    mismatch_kl,
    nucleus,
    sample_means,
    token_losses,
    token_weights,
)

KINDS = ("grpo", "gspo", "cispo", "icepop")
BOUNDS = {"grpo": (0.2, 0.28), "gspo": (0.1, 0.15), "cispo": (0.5, 1.0), "icepop": (0.5, 2.0)}

rewards = st.floats(-10, 10, width=32)
groups = st.lists(st.tuples(rewards, st.integers(0, 3)), min_size=1, max_size=20)
logprob = st.floats(-6.0, -0.01)
token = st.tuples(logprob, logprob)
rollout = st.tuples(st.lists(token, min_size=1, max_size=6), st.floats(-2, 2))
rollouts = st.lists(rollout, min_size=1, max_size=5)


# --- advantages


def reference_advantages(pairs: Any, baseline: str, *, by_std: bool) -> list[float]:
    found = []
    for place, (reward, group) in enumerate(pairs):
        own = [other for other, its_group in pairs if its_group == group]
        others = [other for index, (other, its_group) in enumerate(pairs) if its_group == group and index != place]
        base = sum(own) / len(own) if baseline == "mean" else sum(others) / len(others) if others else reward
        mean = sum(own) / len(own)
        deviation = math.sqrt(sum((other - mean) ** 2 for other in own) / len(own))
        found.append((reward - base) / (deviation + 1e-6 if by_std else 1.0))
    return found


@given(groups, st.sampled_from(["mean", "leave-one-out"]), st.booleans())
def test_advantages_are_those_of_the_definition(pairs: Any, baseline: Any, by_std: bool) -> None:
    found = group_advantages(
        [reward for reward, _ in pairs], [group for _, group in pairs], baseline=baseline, divide_by_std=by_std
    )
    assert found == pytest.approx(reference_advantages(pairs, baseline, by_std=by_std), rel=1e-6, abs=1e-8)


def test_advantages_are_centred_in_each_group() -> None:
    """An easy group is not better than a hard one."""
    found = group_advantages([1.0, 3.0, 10.0, 12.0], [5, 5, 9, 9])
    assert found.tolist() == [-1.0, 1.0, -1.0, 1.0]


def test_nothing_is_divided_by_the_deviation_unless_it_is_declared() -> None:
    assert group_advantages([0.0, 0.1], [0, 0]).tolist() == [-0.05, 0.05]
    assert group_advantages([0.0, 0.1], [0, 0], divide_by_std=True) == pytest.approx([-1, 1], rel=1e-4)


def test_leave_one_out_compares_with_the_others() -> None:
    assert group_advantages([0.0, 0.0, 3.0], [1, 1, 1], baseline="leave-one-out").tolist() == [-1.5, -1.5, 3.0]
    assert group_advantages([4.0], [1], baseline="leave-one-out").tolist() == [0.0]


@pytest.mark.parametrize("by_std", [False, True])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_equal_rewards_have_exactly_no_advantage(baseline: Any, by_std: bool) -> None:
    """0.1 times 3 divided by 3 is not 0.1, and what is left of it, divided by the deviation, would be an advantage of 1."""
    found = group_advantages([0.1] * 3 + [0.7] * 7, [0] * 3 + [1] * 7, baseline=baseline, divide_by_std=by_std)
    assert found.tolist() == [0.0] * 10


def test_no_rollout_has_no_advantage() -> None:
    assert group_advantages([], []).tolist() == []


# --- token losses


def tokens_of(samples: Any) -> Tokens:
    """In double precision; the gradient of ``logprob`` is kept."""
    flat = [(now, before, advantage, index) for index, (own, advantage) in enumerate(samples) for now, before in own]
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*flat, strict=True)]
    return Tokens(columns[0].requires_grad_(), columns[1], columns[2], columns[3].long(), len(samples))


def reference(kind: str, samples: Any) -> tuple[list[float], list[float], list[bool]]:
    """Loss, its gradient by the token's own log-probability summed over its sample, and whether it was held."""
    low, high = BOUNDS[kind]
    losses, gradients, held = [], [], []
    for own, advantage in samples:
        mean_log_ratio = sum(now - before for now, before in own) / len(own)
        for now, before in own:
            ratio = math.exp(mean_log_ratio if kind == "gspo" else now - before)
            if kind in ("grpo", "gspo"):
                clipped = min(max(ratio, 1 - low), 1 + high)
                out = (ratio > 1 + high and advantage > 0) or (ratio < 1 - low and advantage < 0)
                losses.append(-min(ratio * advantage, clipped * advantage))
                # Of gspo, each of the n tokens of a sample moves the ratio of all n by 1 / n.
                gradients.append(0.0 if out else -ratio * advantage)
            elif kind == "cispo":
                weight = min(max(ratio, 1 - low), 1 + high)
                out = weight != ratio
                losses.append(-weight * advantage * now)
                gradients.append(-weight * advantage)
            else:
                out = not low <= ratio <= high
                losses.append(0.0 if out else -ratio * advantage)
                gradients.append(0.0 if out else -ratio * advantage)
            held.append(out)
    return losses, gradients, held


@pytest.mark.parametrize("kind", KINDS)
@given(samples=rollouts)
def test_token_losses_and_their_gradients_are_those_of_the_definition(kind: Any, samples: Any) -> None:
    tokens = tokens_of(samples)
    found = token_losses(kind, tokens, *BOUNDS[kind])
    losses, gradients, held = reference(kind, samples)
    assert found.loss.tolist() == pytest.approx(losses, rel=1e-9, abs=1e-12)
    assert found.held.tolist() == held
    found.loss.sum().backward()
    assert tokens.logprob.grad is not None
    assert tokens.logprob.grad.tolist() == pytest.approx(gradients, rel=1e-9, abs=1e-12)
    assert not found.ratio.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_has_moved_every_loss_is_reinforce(kind: Any) -> None:
    samples = [([(-0.5, -0.5), (-1.0, -1.0)], 2.0), ([(-0.3, -0.3)], -1.0)]
    tokens = tokens_of(samples)
    found = token_losses(kind, tokens, *BOUNDS[kind])
    found.loss.sum().backward()
    assert tokens.logprob.grad is not None
    assert tokens.logprob.grad.tolist() == pytest.approx([-2.0, -2.0, 1.0])
    assert found.ratio.tolist() == [1.0, 1.0, 1.0]
    assert not found.held.any()


def test_the_ratio_of_a_sample_does_not_grow_with_its_length() -> None:
    samples = [([(-0.5, -0.6)] * 2, 1.0), ([(-0.5, -0.6)] * 40, 1.0)]
    found = token_losses("gspo", tokens_of(samples), 0.2, 0.28)
    assert found.ratio.tolist() == pytest.approx([math.exp(0.1)] * 42)
    assert not found.held.any()


def test_cispo_keeps_a_gradient_where_ppo_has_none() -> None:
    samples = [([(-0.1, -3.0)], 1.0)]
    for kind, expected in (("grpo", 0.0), ("cispo", -2.0)):
        tokens = tokens_of(samples)
        token_losses(kind, tokens, *BOUNDS[kind]).loss.sum().backward()
        assert tokens.logprob.grad is not None
        assert tokens.logprob.grad.tolist() == [expected]


def test_a_masked_token_has_no_part_in_the_gradient_also_where_its_ratio_overflows() -> None:
    tokens = tokens_of([([(-1.0, -2000.0), (-1.0, -1.0)], 1.0)])
    found = token_losses("icepop", tokens, 0.5, 2.0)
    found.loss.sum().backward()
    assert tokens.logprob.grad is not None
    assert tokens.logprob.grad.tolist() == [0.0, -1.0]
    assert found.loss.tolist() == [0.0, -1.0]


@pytest.mark.parametrize("kind", ["grpo", "gspo"])
def test_an_infinite_ratio_that_gains_nothing_spoils_no_gradient(kind: Any) -> None:
    tokens = tokens_of([([(-1.0, -2000.0)], 1.0), ([(-1.0, -2000.0)], 0.0), ([(-1.0, -1.0)], 1.0)])
    low, high = BOUNDS[kind]
    found = token_losses(kind, tokens, low, high)
    found.loss.sum().backward()
    assert tokens.logprob.grad is not None
    assert tokens.logprob.grad.tolist() == [0.0, 0.0, -1.0]
    assert found.loss.tolist() == pytest.approx([-1.0 - high, 0.0, -1.0])
    assert math.isinf(token_losses(kind, tokens_of([([(-1.0, -2000.0)], -1.0)]), low, high).loss.item())


def test_samples_without_a_free_token_are_counted() -> None:
    tokens = tokens_of([([(-1, -1), (-1, -1)], 1.0), ([(-1, -1)], 1.0), ([(-1, -1), (-1, -1)], 1.0)])
    assert fully_held(torch.tensor([True, True, False, True, False]), tokens) == 1
    assert fully_held(torch.tensor([True, True, True, False, False]), tokens) == 2


def test_means_are_of_each_sample() -> None:
    tokens = tokens_of([([(-1.0, 0), (-3.0, 0)], 0.0), ([(-7.0, 0)], 0.0)])
    assert sample_means(tokens.logprob.detach(), tokens).tolist() == [-2.0, -7.0]


# --- weights


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_weights_make_means(lengths: list[int]) -> None:
    own = np.array(lengths)
    values = [np.arange(length) * 0.5 - 3 for length in lengths]

    def weighed(normalise: Any) -> float:
        weights = token_weights(normalise, own, 96)
        return float(sum(weight * part.sum() for weight, part in zip(weights, values, strict=True)))

    everything = np.concatenate(values)
    assert weighed("tokens") == pytest.approx(everything.mean())
    assert weighed("samples") == pytest.approx(np.mean([part.mean() for part in values]))
    assert weighed("constant") == pytest.approx(everything.sum() / (96 * len(lengths)))


# --- what is reported


def test_the_kl_to_the_initial_policy_is_its_estimate_and_pulls_towards_it() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    reference_logprobs = torch.tensor([-1.0, -1.0, -2.5], dtype=torch.float64)
    found = kl_to(reference_logprobs, logprobs)
    assert found.tolist() == pytest.approx([0.0, math.e - 2, math.exp(-2) + 1])
    found.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1 - math.e, 1 - math.exp(-2)])


@pytest.mark.parametrize("seed", range(3))
def test_both_kl_estimates_have_the_divergence_as_their_mean(seed: int) -> None:
    """Weighed with the probabilities of who drew, they are the divergence itself, whatever the distributions are."""
    draw = np.random.default_rng(seed)
    first, second = (np.log(draw.dirichlet(np.ones(6))) for _ in range(2))
    divergence = float((np.exp(first) * (first - second)).sum())
    assert float(
        (np.exp(first) * mismatch_kl(torch.tensor(first), torch.tensor(second)).numpy()).sum()
    ) == pytest.approx(divergence)
    assert float((np.exp(first) * kl_to(torch.tensor(second), torch.tensor(first)).numpy()).sum()) == pytest.approx(
        divergence
    )


def test_differences_of_single_precision_are_no_mismatch() -> None:
    """In single precision the estimate of a difference of 5e-7 would be 1e-7 instead of 1e-13."""
    behaviour = torch.tensor([-0.6931472, -2.3])
    found = mismatch_kl(behaviour, behaviour + 4e-7)
    assert found.dtype == torch.float64
    assert 0 <= found.max() < 1e-12


def test_entropy_is_that_of_the_definition_also_where_something_is_impossible() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, -math.inf, -math.inf]], dtype=torch.float64)
    logits.requires_grad_()
    found = entropy(logits)
    share = 1 / (1 + math.e)
    assert found.tolist() == pytest.approx([math.log(4), -share * math.log(share) - (1 - share) * math.log(1 - share)])
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=8, unique=True), st.floats(0.05, 0.999), st.integers(0, 7))
def test_a_nucleus_is_the_fewest_likeliest_tokens_that_reach_it(values: list[float], top_p: float, pick: int) -> None:
    logits = np.array(values)
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    order = np.argsort(-chances, kind="stable")
    mass, expected = 0.0, set()
    for place in order:
        if mass >= top_p:
            break
        expected.add(int(place))
        mass += chances[place]
    chosen = pick % len(values)
    found = nucleus(torch.tensor(logits)[None], top_p, torch.tensor([chosen]))[0]
    kept = {index for index, value in enumerate(found.tolist()) if value > -math.inf}
    assert kept == expected | {chosen}
    assert all(found[index] == values[index] for index in kept)


def test_without_a_border_the_nucleus_is_everything() -> None:
    logits = torch.tensor([[1.0, 2.0]])
    assert nucleus(logits, 1.0, torch.tensor([0])) is logits


def test_advantages_need_no_torch() -> None:
    """The orchestrator computes them, and has none."""
    import subprocess
    import sys

    code = (
        "import sys, headrace.algorithms.grpo as g; g.group_advantages([1, 2], [0, 0]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
