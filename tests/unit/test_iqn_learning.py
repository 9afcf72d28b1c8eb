"""IQN on problems so small that the answer is known exactly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.algorithms.base import Transitions
from headrace.algorithms.configs import IQNConfig
from headrace.algorithms.iqn import IQN
from headrace.algorithms.quantile_acting import midpoints
from iqn_support import joined

GAMMA = 0.9
SETTINGS = {
    "network": {"embedding": 32, "cosines": 16, "hidden": 32}, "lr": 3e-3, "target": {"every_updates": 20},
    "quantiles": {"online": 8, "next": 8},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices as small as these are not worth a second thread, least of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def transitions(state: np.ndarray, action: np.ndarray, reward: np.ndarray, ends: np.ndarray, after: np.ndarray):
    return Transitions({"obs": state}, {"action": action}, reward, np.where(ends, 0.0, GAMMA), {"obs": after})


def quantiles(algorithm: IQN, states: int, taus: np.ndarray) -> np.ndarray:
    """[P, states, K, n]."""
    policies = algorithm._policies
    x = torch.eye(states).expand(policies, -1, -1)
    with torch.no_grad():
        fractions = torch.from_numpy(taus).expand(policies, states, -1)
        return algorithm._q(x, fractions, {}).numpy()


@pytest.mark.table
def test_distribution_of_a_bandit():
    """Action 0 pays 0 or 1, as often; action 1 pays 0.2 or 0.6, one time in four; action 2 pays 0.4."""
    rng = np.random.default_rng(0)
    algorithm = IQN(
        IQNConfig(**SETTINGS | {"quantiles": {"online": 8, "next": 1, "kappa": 0.05}, "optimiser": {"lr_final": 1e-4, "lr_decay_updates": 900}}),
        spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(3), 0,
    )  # fmt: skip
    ones = np.ones((96, 1), np.float32)
    action = np.arange(96) % 3
    for _ in range(900):
        luck = rng.random(96)
        reward = np.choose(action, [(luck < 0.5) * 1.0, np.where(luck < 0.25, 0.6, 0.2), np.full(96, 0.4)])
        algorithm.update(transitions(ones, action, reward, np.ones(96, bool), ones))
    found = quantiles(algorithm, 1, midpoints(200))[0, 0]  # [K, n]
    np.testing.assert_allclose(found.mean(axis=0), [0.5, 0.3, 0.4], atol=0.04)
    low, high = found[:80].mean(axis=0), found[-30:].mean(axis=0)  # taus up to 0.4, and from 0.85 on
    np.testing.assert_allclose(low, [0.0, 0.2, 0.4], atol=0.1)
    np.testing.assert_allclose(high, [1.0, 0.6, 0.4], atol=0.1)


def chain(pays: float) -> Transitions:
    """Three states in a row; action 1 goes on, and pays at the end; action 0 stays and pays nothing."""
    state, action = np.repeat(np.arange(3), 2), np.tile([0, 1], 3)
    ends = (state == 2) & (action == 1)
    after = np.minimum(state + action, 2)
    eye = np.eye(3, dtype=np.float32)
    return transitions(eye[state], action, np.where(ends, pays, 0.0), ends, eye[after])


@pytest.mark.table
def test_values_of_chains_by_two_policies_at_once():
    algorithm = IQN(IQNConfig(**SETTINGS), spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(2), 0, policies=2)
    for _ in range(700):
        algorithm.update(joined([chain(1.0), chain(-2.0)]))
    found = quantiles(algorithm, 3, midpoints(12)).mean(axis=2)  # [P, states, n]
    worth = np.array([GAMMA**2, GAMMA, 1.0])
    np.testing.assert_allclose(found[0], np.stack([GAMMA * worth, worth], axis=1), atol=0.05)
    # The second one had better never go: staying is worth 0 for ever.
    np.testing.assert_allclose(found[1], [[0.0, 0.0], [0.0, 0.0], [0.0, -2.0]], atol=0.08)


@pytest.mark.table
def test_noise_shrinks_where_there_is_nothing_left_to_learn():
    settings = SETTINGS | {"network": SETTINGS["network"] | {"noisy": True}}
    algorithm = IQN(IQNConfig(**settings), spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(2), 0)
    before = dict(algorithm._q.named_parameters())["advantage.weight_sigma"].detach().abs().mean().item()
    for _ in range(500):
        algorithm.update(chain(1.0))
    after = dict(algorithm._q.named_parameters())["advantage.weight_sigma"].detach().abs().mean().item()
    assert after < 0.8 * before
    found = quantiles(algorithm, 3, midpoints(12))[0].mean(axis=1)
    np.testing.assert_allclose(found[:, 1], [GAMMA**2, GAMMA, 1.0], atol=0.15)
