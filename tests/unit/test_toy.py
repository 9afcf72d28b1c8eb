"""The toys answer exactly what their docstrings say."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.envs import toy

ACTION = np.zeros(1, np.float32)


def episode(env, policy=lambda obs: ACTION, seed=None):
    obs, _ = env.reset(seed=seed)
    rows = [(obs, 0.0, False, False)]
    while not any(rows[-1][2:]):
        obs, reward, terminated, truncated, _ = env.step(policy(obs))
        rows.append((obs, reward, terminated, truncated))
    return rows


def test_counter_counts_and_is_truncated():
    rows = episode(toy.counter(4))
    assert [float(obs[0]) for obs, *_ in rows] == [0, 1, 2, 3, 4]
    assert sum(reward for _, reward, *_ in rows) == 4 * 5 / 2
    assert rows[-1][2:] == (False, True)


def test_counter_may_terminate():
    assert episode(toy.counter(4, terminates=True))[-1][2:] == (True, False)


def test_stack_probe_tells_episode_and_step():
    env = toy.stack_probe(3)
    episode(env)
    assert [float(obs[0]) for obs, *_ in episode(env)] == [100, 101, 102, 103]


def test_target_has_the_optimum_it_claims():
    env = toy.target(10)
    assert sum(reward for _, reward, *_ in episode(env, lambda obs: obs, seed=1)) == pytest.approx(10)


@pytest.mark.parametrize(("policy", "share"), [("random", 1 / 3), ("zero", 2 / 3)])
def test_target_has_the_averages_it_claims(policy, share):
    env = toy.target(5_000)
    env.action_space.seed(1)  # with seed 0 it would draw the very targets
    rows = episode(env, lambda obs: env.action_space.sample() if policy == "random" else ACTION, seed=0)
    assert np.mean([reward for _, reward, *_ in rows[1:]]) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("name", list(toy.SPACES))
def test_sampler_stays_in_its_space_and_follows_its_seed(name):
    env, other = toy.sampler(name), toy.sampler(name)
    rows, again = episode(env, seed=5), episode(other, seed=5)
    assert all(env.observation_space.contains(obs) for obs, *_ in rows)
    for (left, *_), (right, *_) in zip(rows, again, strict=True):
        np.testing.assert_equal(left, right)
    assert rows[-1][2:] == (True, False)


def test_sampler_goes_on_where_it_was_without_a_seed():
    env = toy.sampler("box")
    first, second = episode(env, seed=5), episode(env)
    assert not np.array_equal(first[0][0], second[0][0])
