"""V-trace against the paper's sums, written out, and what its learning half makes of older policies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.base import Rollout
from headrace.algorithms.distributions import likelihood
from headrace.algorithms.on_policy_configs import CorrectionConfig
from headrace.algorithms.policy_losses import policy_gradient
from headrace.algorithms.returns import gae, vtrace
from headrace.algorithms.vtrace import importance_weights
from on_policy_support import BOX, DISCRETE, arrays, corrector, learn, one_thread, rollout

assert one_thread  # a fixture: applies to every test here
WHOLE = {"batch_size": 10_000}


@st.composite
def lanes(draw: st.DrawFn) -> dict[str, Any]:
    """Steps of some lanes, with ends anywhere, and their importance weights."""
    shape = draw(st.tuples(st.integers(1, 8), st.integers(1, 3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    ends = rng.choice(list("....tuc"), shape)
    numbers = {name: rng.normal(0, 10, shape) for name in ("rewards", "values", "next_values")}
    goes_on = ends[:-1] == "."
    numbers["next_values"][:-1][goes_on] = numbers["values"][1:][goes_on]  # the same observation
    weights = (rng.uniform(0, 2, shape), rng.uniform(0, 2, shape))
    return {**numbers, "terminated": ends == "t", "ended": ends != ".", "weights": weights}


def slow(told: dict[str, Any], start: int, lane: int, gamma: float) -> float:
    """Equation 1 of the paper: the corrected value of one step."""
    rho, c = told["weights"]
    parts = [float(told["values"][start, lane])]
    for t in range(start, len(told["rewards"])):
        after = 0.0 if told["terminated"][t, lane] else float(told["next_values"][t, lane])
        delta = rho[t, lane] * (told["rewards"][t, lane] + gamma * after - told["values"][t, lane])
        parts.append(gamma ** (t - start) * math.prod(c[start:t, lane]) * delta)
        if told["ended"][t, lane]:
            break
    return math.fsum(parts)


@settings(max_examples=100, deadline=None)
@given(lanes(), st.floats(0, 1))
def test_values_and_advantages_equal_the_papers_sums(told: dict[str, Any], gamma: float) -> None:
    advantages, values = vtrace(**told, gamma=gamma)
    steps = len(told["rewards"])
    for step, lane in np.ndindex(told["rewards"].shape):
        assert values[step, lane] == pytest.approx(slow(told, step, lane, gamma), rel=1e-9, abs=1e-8)
        if told["terminated"][step, lane]:
            following = 0.0
        elif told["ended"][step, lane] or step == steps - 1:
            following = told["next_values"][step, lane]
        else:
            following = slow(told, step + 1, lane, gamma)
        earned = told["rewards"][step, lane] + gamma * following - told["values"][step, lane]
        assert advantages[step, lane] == pytest.approx(earned, rel=1e-9, abs=1e-8)


@settings(max_examples=50, deadline=None)
@given(lanes(), st.floats(0, 1), st.floats(0, 1))
def test_of_ones_own_policy_it_is_the_lambda_return(told: dict[str, Any], gamma: float, lam: float) -> None:
    ones = np.ones_like(told["rewards"])
    plain = {name: array for name, array in told.items() if name != "weights"}
    advantages, values = vtrace(**plain, weights=(ones, lam * ones), gamma=gamma)
    expected, returns = gae(**plain, gamma=gamma, lam=lam)
    np.testing.assert_allclose(values, returns, rtol=1e-9, atol=1e-9)
    advantages_to_the_end, _ = vtrace(**plain, weights=(ones, ones), gamma=gamma)
    np.testing.assert_allclose(advantages_to_the_end, gae(**plain, gamma=gamma, lam=1.0)[0], rtol=1e-9, atol=1e-9)
    last = told["ended"] | (np.arange(len(ones)) == len(ones) - 1)[:, None]
    np.testing.assert_allclose(advantages[last], expected[last], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("terminated", "expected"),
    [(False, [4.06882, 3.484, 2.8]), (True, [2.752975, 1.945, 1.0])],
    ids=["truncated", "terminated"],
)
def test_e063_only_what_terminated_is_worth_nothing_afterwards(terminated, expected):
    ones, last = np.ones(3), np.array([False, False, True])
    _, values = vtrace(ones, 2 * ones, 2 * ones, last & terminated, last, (ones, 0.95 * ones), 0.9)
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_weights_are_cut_apart_and_lambda_shortens_only_the_way():
    ratios = np.log(np.array([0.5, 1.0, 4.0]))
    rho, c = importance_weights(ratios, CorrectionConfig(rho_clip=2.0, c_clip=1.0, trace_lambda=0.5))
    np.testing.assert_allclose(rho, [0.5, 1.0, 2.0])
    np.testing.assert_allclose(c, [0.25, 0.5, 0.5])
    rho, c = importance_weights(ratios, CorrectionConfig(rho_clip=None, c_clip=None))
    np.testing.assert_allclose(rho, [0.5, 1.0, 4.0])
    np.testing.assert_array_equal(rho, c)


def test_a_hopelessly_old_step_overflows_nothing_that_is_cut():
    rho, _ = importance_weights(np.array([1e4]), CorrectionConfig())
    assert rho.tolist() == [1.0]


def test_the_gradient_is_the_policys():
    advantage, logprob = np.array([[3.0, -1.0], [-1.0, -2.0]], np.float32)
    loss, by_logprob = policy_gradient(advantage, logprob)
    assert loss == pytest.approx(-(3.0 * -1.0 + -1.0 * -2.0) / 2)
    assert by_logprob.tolist() == [-1.5, 0.5]


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "box"])
def test_targets_make_up_for_the_older_policy(action, clip):
    """The rollout is of an older policy; its ratios are worked out by the other half's own words."""
    older = corrector(action, seed=1, **WHOLE)
    for seed in range(5):
        learn(older, rollout(older, seed))
    told = rollout(older, 9)
    algorithm = corrector(action, clip=clip, gamma=0.9, correction={"trace_lambda": 0.8, "rho_clip": 1.1}, **WHOLE)
    algorithm.begin(told)
    rows = algorithm._rows
    with torch.no_grad():
        outputs = algorithm._network.actor(rows.obs[torch.from_numpy(rows.at)]).numpy()
        values = algorithm._network.value(rows.obs).double().numpy()
    now = likelihood(algorithm._inputs.head, outputs, algorithm._network.spread_now(), rows.action, None)
    ratio = np.exp(now.logprob.astype(np.float64) - told.told["logprob"].ravel()).reshape(told.at.shape)
    assert ratio.max() > 1.001
    assert ratio.min() < 0.999
    weights = (np.minimum(ratio, 1.1), 0.8 * np.minimum(ratio, 1.0))
    advantage, target = vtrace(
        told.reward, values[told.at], values[told.then], told.terminated, told.ended, weights, 0.9
    )
    rho = np.ones_like(ratio) if clip is not None else weights[0]
    middle = np.average(advantage, weights=rho)
    scaled = rho * (advantage - middle) / np.sqrt(np.square(advantage - middle).sum() / (advantage.size - 1))
    np.testing.assert_allclose(rows.numbers[1], advantage.ravel(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(rows.batch(None).advantage, scaled.ravel(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(rows.numbers[2], target.ravel(), rtol=1e-4, atol=1e-6)
    assert algorithm.metrics()["train/importance_weight"] == pytest.approx(ratio.mean(), rel=1e-4)


def by_an_older_policy(reward: float) -> Rollout:
    """Ten steps of one state, nine of one arm and one of the other, by a policy that chose the first nine times of ten."""
    of_ten, ones = np.arange(10)[None], np.ones((1, 10), bool)
    return Rollout(
        obs={"obs": np.zeros((20, 3), np.float32)},
        at=of_ten,
        then=of_ten + 10,
        action={"action": (of_ten == 9).astype(np.int64)},
        told={"logprob": np.log(np.where(of_ten == 9, 0.1, 0.9)).astype(np.float32)},
        reward=np.full((1, 10), reward),
        terminated=ones,
        ended=ones,
        episode_ended=ones,
        valid=ones,
        version=np.zeros((1, 10), np.int64),
        t=np.zeros((1, 10), np.int64),
        lanes=np.arange(10),
    )


@pytest.mark.parametrize("rho_clip", [None, 1.0])
@pytest.mark.parametrize("reward", [1.0, 0.1, -37.0])
def test_where_all_actions_earn_alike_none_is_pulled_at_however_old_the_policy(reward, rho_clip):
    """E_b[rho * A * grad log pi] is 0 there; centred after they were weighted, advantages pull at what is drawn too often."""
    algorithm = corrector(spaces.Discrete(2), correction={"rho_clip": rho_clip}, **WHOLE)
    algorithm._flat.value.zero_()  # both arms alike, and worth 0
    algorithm.begin(by_an_older_policy(reward))
    algorithm._policy_gradient(algorithm._rows.batch(None))
    assert not algorithm._flat.grad.any()


def test_without_scaling_advantages_are_weighted_as_they_are():
    algorithm = corrector(spaces.Discrete(2), loss={"normalize_advantages": False}, **WHOLE)
    algorithm._flat.value.zero_()
    algorithm.begin(by_an_older_policy(3.0))
    np.testing.assert_allclose(algorithm._rows.batch(None).advantage, [*[3 * 5 / 9] * 9, 3.0], rtol=1e-6)


def test_of_ones_own_policy_every_weight_is_one():
    algorithm = corrector(**WHOLE)
    algorithm.begin(rollout(algorithm))
    assert algorithm.metrics()["train/importance_weight"] == pytest.approx(1.0, abs=1e-6)


def test_it_goes_on_from_its_state_bit_for_bit():
    one, other = corrector(epochs=2, clip=0.3), corrector(epochs=2, clip=0.3, seed=7)
    learn(one, rollout(one, 0))
    other.load_state(arrays(one))
    for algorithm in (one, other):
        assert learn(algorithm, rollout(algorithm, 1)) == 6
    assert one.weights_sha256() == other.weights_sha256()


def test_clipping_is_measured_only_where_there_is_any():
    for clip, there in ((None, False), (0.2, True)):
        algorithm = corrector(clip=clip)
        learn(algorithm, rollout(algorithm))
        measured = algorithm.metrics()
        assert ("train/clip_fraction" in measured) == ("train/clip_range" in measured) == there
