"""Losses of on-policy learning and likelihoods of actions: every derivative that is written out is autograd's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from headrace.algorithms.distributions import likelihood
from headrace.algorithms.heads import CategoricalHead, GaussianHead, head_of
from headrace.algorithms.on_policy import OnPolicy
from headrace.algorithms.on_policy_configs import VTraceConfig
from headrace.algorithms.passes import ModulePass, PerceptronPass
from headrace.algorithms.policy_losses import clipped_surrogate, policy_gradient, value_loss
from headrace.algorithms.vtrace import VTraceRule
from on_policy_support import BOX, DISCRETE, MASK, MASKED, OBS, learner, one_thread, rollout

assert one_thread  # a fixture: applies to every test here
ROWS = 50
SEVERAL = spaces.MultiDiscrete([2, 3, 4], start=[1, 0, -1])


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def near(found: np.ndarray, right: Tensor | np.ndarray) -> None:
    right = right.numpy() if isinstance(right, Tensor) else right
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6 * float(np.abs(right).max()))


def differentiated(of: Callable[[Tensor], Tensor], at: np.ndarray) -> tuple[float, Tensor]:
    leaf = torch.from_numpy(at).requires_grad_()
    loss = of(leaf)
    return float(loss.detach()), torch.autograd.grad(loss, leaf)[0]


# --- losses


@pytest.mark.parametrize("clip", [0.1, 0.5])
def test_the_surrogates_slope_is_autograds_also_at_the_edges_of_the_clip(clip: float) -> None:
    advantage, logprob, old = drawn(0, ROWS), drawn(1, ROWS), drawn(2, ROWS) * 0.3
    old += logprob
    old[:4] = logprob[:4] - np.log(np.array([1 + clip, 1 + clip, 1 - clip, 1 - clip], np.float32))
    old[4:6], advantage[:4] = logprob[4:6], [1, -1, 1, -1]
    ratio = np.exp(logprob - old)

    def slow(now: Tensor) -> Tensor:
        far, gain = (now - torch.from_numpy(old)).exp(), torch.from_numpy(advantage)
        return -torch.minimum(gain * far, gain * far.clamp(1 - clip, 1 + clip)).mean()

    loss, slope = clipped_surrogate(advantage, ratio, clip)
    expected, right = differentiated(slow, logprob)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert 0 < np.count_nonzero(slope) < ROWS
    near(slope, right)


def test_a_ratio_just_at_the_clip_still_learns() -> None:
    edges = np.array([np.float32(1.25), 0.75, 1.25, 0.75], np.float32)
    advantage = np.array([1, 1, -1, -1], np.float32)
    _, slope = clipped_surrogate(advantage, edges, 0.25)
    near(slope, advantage * edges / -4)


@pytest.mark.parametrize(
    ("advantage", "loss"), [(1.0, -1.2), (0.0, 0.0)], ids=["gains no more", "gains and loses nothing"]
)
def test_an_infinite_ratio_that_gains_nothing_pulls_at_nothing(advantage: float, loss: float) -> None:
    with np.errstate(invalid="ignore"):  # as whoever learns has it
        found, slope = clipped_surrogate(np.array([advantage], np.float32), np.array([np.inf], np.float32), 0.2)
    assert found == pytest.approx(loss)
    assert slope.tolist() == [0.0]
    assert slope.dtype == np.float32


def test_what_is_no_number_stays_none() -> None:
    nan, one = np.array([np.nan], np.float32), np.ones(1, np.float32)
    for advantage, ratio in ((nan, one), (one, nan), (-one, one * np.inf)):
        assert not np.isfinite(clipped_surrogate(advantage, ratio, 0.2)[0])


def test_the_policy_gradients_slope_is_autograds() -> None:
    advantage, logprob = drawn(0, ROWS), drawn(1, ROWS)
    loss, slope = policy_gradient(advantage, logprob)
    expected, right = differentiated(lambda now: -(torch.from_numpy(advantage) * now).mean(), logprob)
    assert loss == pytest.approx(expected, rel=1e-5)
    near(slope, right)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_vtrace_takes_the_one_or_the_other(clip: float | None) -> None:
    advantage, logprob, ratio = drawn(0, ROWS), drawn(1, ROWS), np.exp(drawn(2, ROWS))
    found = VTraceRule(VTraceConfig(clip=clip)).policy_loss(advantage, logprob, ratio, clip)
    right = policy_gradient(advantage, logprob) if clip is None else clipped_surrogate(advantage, ratio, clip)
    assert found[0] == right[0]
    np.testing.assert_array_equal(found[1], right[1])


@pytest.mark.parametrize("clip", [None, 0.25, 1.0])
def test_the_values_slope_is_autograds_also_at_the_edges_of_the_clip(clip: float | None) -> None:
    value, target, before = drawn(0, ROWS), drawn(1, ROWS), drawn(2, ROWS)
    value[:4], before[:4], target[:4] = [1.25, 0.75, 2.0, 0.0], 1.0, [3, 3, -1, -1]

    def slow(now: Tensor) -> Tensor:
        wanted, was = torch.from_numpy(target), torch.from_numpy(before)
        error = (now - wanted).square()
        if clip is None:
            return error.mean()
        return torch.maximum(error, (was + (now - was).clamp(-clip, clip) - wanted).square()).mean()

    loss, slope = value_loss(value, target, before, clip)
    expected, right = differentiated(slow, value)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert (np.count_nonzero(slope) < ROWS) == (clip is not None)
    near(slope, right)


# --- likelihoods


def slow_choices(
    outputs: Tensor, legal: np.ndarray | None, places: np.ndarray, counts: list[int]
) -> tuple[Tensor, Tensor]:
    """Component by component; what cannot be chosen is left out of sums by hand."""
    logprob, entropy, start = torch.zeros(len(outputs)), torch.zeros(len(outputs)), 0
    for component, count in enumerate(counts):
        own = outputs[:, start : start + count]
        can = torch.ones_like(own, dtype=torch.bool)
        if legal is not None:
            can = torch.from_numpy(legal[:, start : start + count])
        logs = own.masked_fill(~can, -torch.inf).log_softmax(1)
        logprob = logprob + logs[torch.arange(len(own)), torch.from_numpy(places[:, component])]
        entropy = entropy - (logs.exp() * logs.masked_fill(~can, 0.0)).sum(1)
        start += count
    return logprob, entropy


def counts_of(head: CategoricalHead) -> list[int]:
    return [head.width] * head.components if head.absent is None else (~head.absent).sum(axis=1).tolist()


def chosen(head: CategoricalHead, masked: bool) -> tuple[np.ndarray | None, np.ndarray]:
    """What can be chosen, and what was."""
    rng = np.random.default_rng(5)
    counts = counts_of(head)
    places = np.stack([rng.integers(0, count, ROWS) for count in counts], axis=1)
    if not masked:
        return None, places
    legal = rng.random((ROWS, head.outputs)) < 0.4
    for component, start in enumerate(np.cumsum([0, *counts[:-1]])):
        legal[np.arange(ROWS), start + places[:, component]] = True
    return legal, places


@pytest.mark.parametrize("by_entropy", [0.0, -0.03])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("space", [DISCRETE, SEVERAL, spaces.MultiDiscrete([3, 3]), spaces.MultiBinary(3)], ids=str)
def test_slopes_of_choices_are_autograds(space: spaces.Space[Any], masked: bool, by_entropy: float) -> None:
    head = head_of(space)
    assert isinstance(head, CategoricalHead)
    outputs, by_logprob = drawn(0, ROWS, head.outputs) * 2, drawn(1, ROWS)
    outputs[0, 0] = 200.0  # all others' probability is 0 without a mask too
    legal, places = chosen(head, masked)
    found = likelihood(head, outputs, None, places, legal)

    def loss(leaf: Tensor) -> Tensor:
        logprob, entropy = slow_choices(leaf, legal, places, counts_of(head))
        return (logprob * torch.from_numpy(by_logprob)).sum() + by_entropy * entropy.sum()

    _, right = differentiated(loss, outputs)
    by_outputs, none = found.back(by_logprob, by_entropy)
    assert none is None
    near(by_outputs, right)
    logprob, entropy = slow_choices(torch.from_numpy(outputs), legal, places, counts_of(head))
    np.testing.assert_allclose(found.logprob, logprob.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.entropy, entropy.numpy(), rtol=1e-5, atol=1e-5)
    if legal is not None:
        assert not by_outputs[~legal].any()


@pytest.mark.parametrize("by_entropy", [0.0, -0.03])
def test_slopes_of_continuous_actions_are_autograds(by_entropy: float) -> None:
    head = head_of(spaces.Box(-1, 1, (3,), np.float32))
    assert isinstance(head, GaussianHead)
    mean, action, by_logprob = drawn(0, ROWS, 3), drawn(1, ROWS, 3), drawn(2, ROWS)
    log_std = np.array([-1.0, 0.3, 0.0], np.float32)
    found = likelihood(head, mean, log_std, action, None)
    leaves = [torch.from_numpy(array).requires_grad_() for array in (mean, log_std)]
    normal = torch.distributions.Independent(torch.distributions.Normal(leaves[0], leaves[1].exp()), 1)
    weighted = normal.log_prob(torch.from_numpy(action)) * torch.from_numpy(by_logprob)
    right = torch.autograd.grad(weighted.sum() + by_entropy * normal.entropy().sum(), leaves)
    by_mean, by_log_std = found.back(by_logprob, by_entropy)
    near(by_mean, right[0])
    assert by_log_std is not None
    near(by_log_std, right[1])
    np.testing.assert_allclose(found.entropy, normal.entropy().detach().numpy(), rtol=1e-6)


# --- the whole update


@pytest.mark.parametrize(
    ("action", "obs", "changes"),
    [
        (DISCRETE, OBS, {"loss": {"entropy_weight": 0.02}}),
        (DISCRETE, MASKED, MASK),
        (BOX, OBS, {"loss": {"entropy_weight": 0.02, "value_clip": 0.1}}),
        (SEVERAL, OBS, {}),
    ],
    ids=["discrete", "masked", "box", "several"],
)
def test_networks_by_autograd_learn_the_same(action: spaces.Space[Any], obs: spaces.Space[Any], changes: Any) -> None:
    def learned(*, by_autograd: bool) -> OnPolicy:
        algorithm = learner(action, obs, lr=0.01, **changes)
        if by_autograd:
            algorithm._actor = ModulePass(algorithm._network.actor)
            algorithm._critic = ModulePass(algorithm._network.critic)
        else:
            assert isinstance(algorithm._actor, PerceptronPass)
        algorithm.begin(rollout(algorithm, 1))
        while algorithm.pending:
            algorithm.update()
        return algorithm

    one, other = learned(by_autograd=False), learned(by_autograd=True)
    torch.testing.assert_close(one._flat.value, other._flat.value, rtol=1e-4, atol=1e-5)


def test_perceptrons_learn_without_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = learner(BOX, loss={"entropy_weight": 0.02})
    algorithm.begin(rollout(algorithm))
    monkeypatch.setattr(torch.autograd, "grad", lambda *_, **__: pytest.fail("autograd was used"))
    monkeypatch.setattr(torch.Tensor, "backward", lambda *_, **__: pytest.fail("autograd was used"))
    while algorithm.pending:
        algorithm.update()


def test_networks_of_ones_own_learn_by_autograd() -> None:
    own = {"factory": "on_policy_support:bent"}
    algorithm = learner(network={"actor": own, "critic": own}, lr=0.01)
    assert isinstance(algorithm._actor, ModulePass)
    before = algorithm._flat.value.clone()
    algorithm.begin(rollout(algorithm))
    while algorithm.pending:
        algorithm.update()
    assert (algorithm._flat.value != before).all()
