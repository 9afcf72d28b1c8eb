"""Acting with IQN in numpy: the same values as the learning network at the same fractions, and the same bits again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.algorithms.configs import IQNConfig
from headrace.algorithms.iqn import IQN
from headrace.algorithms.quantile_acting import QuantileForward, midpoints
from headrace.algorithms.registry import acts_in_torch, build_actor, carried_floats
from headrace.core.errors import SnapshotCorrupt
from iqn_support import ACTION, OBS, batch, config, learner


def test_midpoints_are_the_middles_of_equal_parts():
    np.testing.assert_allclose(midpoints(4), [0.125, 0.375, 0.625, 0.875])


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
def test_acting_network_equals_the_learning_one_without_noise(noisy, dueling, rows):
    algorithm = learner(network={"noisy": noisy, "dueling": dueling}, lr=1e-2)
    for step in range(3):
        algorithm.update(batch(step))
    forward = QuantileForward(algorithm._config, 3, 4)
    forward.load(algorithm.policy_arrays()["q"])
    x = batch(9, rows).obs["obs"]
    taus = torch.from_numpy(midpoints(6)).expand(1, rows, 6)
    with torch.no_grad():
        values = algorithm._q(torch.from_numpy(x)[None], taus, {})[0]  # [N, K, n]
        mean = algorithm._q.mean(torch.from_numpy(x)[None], taus, {})[0]
    np.testing.assert_allclose(forward.forward(x), values.mean(dim=1).numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(mean.numpy(), values.mean(dim=1).numpy(), rtol=0, atol=1e-6)
    assert np.ptp(values.numpy(), axis=1).max() > 1e-2  # the fractions matter


def test_full_size_agrees_and_is_bit_repeatable():
    algorithm = IQN(IQNConfig(batch_size=4), spaces.Box(0, 1, (625,), np.float32), ACTION, 0)
    x = np.random.default_rng(0).random((10, 625)).astype(np.float32)
    first, again = (QuantileForward(algorithm._config, 625, 4) for _ in range(2))
    for forward in (first, again):
        forward.load(algorithm.policy_arrays()["q"])
    found = first.forward(x).copy()
    first.forward(x[:3])
    np.testing.assert_array_equal(first.forward(x), found)
    np.testing.assert_array_equal(again.forward(x), found)
    taus = torch.from_numpy(midpoints(12)).expand(1, 10, 12)
    with torch.no_grad():
        expected = algorithm._q.mean(torch.from_numpy(x)[None], taus, {})[0]
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


def test_the_actor_chooses_the_highest_mean_and_follows_new_weights():
    algorithm = learner(lr=0.05)
    actor = build_actor(algorithm.policy)
    obs = batch(5, 8).obs
    chosen = []
    for step in range(4):
        published = algorithm.policy_arrays()
        assert (published["q"].shape, published["exploration_scale"].shape) == ((len(algorithm._q_flat),), (1,))
        actor.load(published)
        taus = torch.from_numpy(midpoints(6)).expand(1, 8, 6)
        with torch.no_grad():
            q = algorithm._q.mean(torch.from_numpy(obs["obs"])[None], taus, {})[0]
        chosen.append(actor.act(obs)["action"])
        assert chosen[-1].tolist() == (q.argmax(1) + 2).tolist()
        for _ in range(10):
            algorithm.update(batch(step))
    assert any(not np.array_equal(chosen[0], other) for other in chosen[1:])


def test_published_weights_are_live():
    algorithm = learner()
    published = algorithm.policy_arrays()["q"]
    before = published.copy()
    algorithm.update(batch())
    assert not np.array_equal(published, before)


def test_epsilon_is_the_share_of_random_actions_and_follows_the_schedule():
    algorithm = learner(exploration={"epsilon": 0.9, "final_epsilon": 0.25, "decay_steps": 100})
    published = algorithm.policy_arrays()
    algorithm.observe({}, 100)
    assert published["exploration_scale"][0] == pytest.approx(0.25)
    assert algorithm.metrics() == {"train/epsilon": pytest.approx(0.25)}
    actor = build_actor(algorithm.policy)
    actor.load(published)
    noise = [actor.noise(np.random.default_rng(lane)) for lane in range(8)]
    obs = batch().obs
    greedy = actor.act(obs)["action"]
    moved = np.stack([actor.act(obs, noise)["action"] != greedy for _ in range(1000)])
    assert moved.mean() == pytest.approx(0.25 * 3 / 4, abs=0.015)


def test_weights_of_another_network_are_refused_and_the_old_ones_stay():
    forward = QuantileForward(config(), 3, 4)
    weights = learner().policy_arrays()["q"].copy()
    forward.load(weights)
    x = batch().obs["obs"]
    before = forward.forward(x).copy()
    for wrong in (weights[:-1], weights.astype(np.float64), learner(network={"noisy": True}).policy_arrays()["q"]):
        with pytest.raises(SnapshotCorrupt, match="does not fit the policy"):
            forward.load(wrong)
    np.testing.assert_array_equal(forward.forward(x), before)


def test_collectors_need_no_torch_and_carry_nothing():
    assert not acts_in_torch(config())
    assert carried_floats(config(), ACTION) == 0
    assert OBS.shape == (3,)
