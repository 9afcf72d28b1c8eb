"""Exploration noise per lane and its schedule."""

import numpy as np
import pytest

from headrace.algorithms.configs import EpsilonConfig, ExplorationConfig
from headrace.algorithms.exploration import RandomChoice, decay_of, lane_noise, scale_at


def draws(config: ExplorationConfig, steps: int, seed: int = 0, dimensions: int = 2) -> np.ndarray:
    noise = lane_noise(config, dimensions, np.random.default_rng(seed))
    noise.begin_episode()
    out = np.empty((steps, dimensions), np.float32)
    for row in out:
        noise.draw(row)
    return out


GAUSSIAN = ExplorationConfig()
OU = ExplorationConfig(kind="ornstein-uhlenbeck", theta=0.25)


def test_gaussian_is_standard_normal_and_independent():
    x = draws(GAUSSIAN, 20_000)
    assert x.mean() == pytest.approx(0, abs=0.02)
    assert x.std() == pytest.approx(1, abs=0.02)
    assert np.corrcoef(x[:-1, 0], x[1:, 0])[0, 1] == pytest.approx(0, abs=0.03)
    assert np.corrcoef(x[:, 0], x[:, 1])[0, 1] == pytest.approx(0, abs=0.03)


def test_ornstein_uhlenbeck_follows_its_recurrence_from_zero():
    normal = np.random.default_rng(0).standard_normal((3, 2), dtype=np.float32)
    first = normal[0]
    second = first * 0.75 + normal[1]
    third = second * 0.75 + normal[2]
    np.testing.assert_allclose(draws(OU, 3), [first, second, third], rtol=1e-6)


def test_ornstein_uhlenbeck_starts_at_zero_in_each_episode():
    noise = lane_noise(OU, 2, np.random.default_rng(0))
    normal = np.random.default_rng(0).standard_normal((6, 2), dtype=np.float32)
    out = np.empty(2, np.float32)
    for _ in range(5):
        noise.draw(out)
    assert not np.allclose(out, normal[4])
    noise.begin_episode()
    noise.draw(out)
    np.testing.assert_array_equal(out, normal[5])


@pytest.mark.parametrize("config", [GAUSSIAN, OU])
def test_noise_depends_on_the_lanes_generator_alone(config):
    np.testing.assert_array_equal(draws(config, 5, seed=3), draws(config, 5, seed=3))
    assert not np.array_equal(draws(config, 5, seed=3), draws(config, 5, seed=4))


def test_no_noise_is_zero_and_draws_nothing():
    generator = np.random.default_rng(0)
    noise = lane_noise(ExplorationConfig(kind="none"), 3, generator)
    out = np.ones(3, np.float32)
    noise.begin_episode()
    noise.draw(out)
    assert out.tolist() == [0.0, 0.0, 0.0]
    assert generator.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize(("steps", "scale"), [(0, 0.5), (250, 0.4), (500, 0.3), (1000, 0.1), (5000, 0.1)])
def test_scale_falls_linearly_in_environment_steps_and_then_stays(steps, scale):
    config = ExplorationConfig(scale=0.5, final_scale=0.1, decay_steps=1000)
    assert scale_at(config, steps) == pytest.approx(scale)


def test_scale_without_final_value_is_constant_and_without_noise_zero():
    assert scale_at(ExplorationConfig(scale=0.3, decay_steps=10), 1000) == 0.3
    assert scale_at(ExplorationConfig(kind="none"), 0) == 0.0
    assert scale_at(ExplorationConfig(scale=0.3, final_scale=0.0, decay_steps=10), 10) == 0.0


@pytest.mark.parametrize(("steps", "share"), [(0, 1.0), (100, 1.0), (350, 0.1**0.5), (600, 0.1), (9000, 0.1)])
def test_epsilon_falls_by_a_factor_once_its_schedule_begins(steps, share):
    config = EpsilonConfig(epsilon=1.0, final_epsilon=0.1, begin_steps=100, decay_steps=500, decay="exponential")
    assert scale_at(config, steps) == pytest.approx(share)


def test_epsilon_falls_linearly_and_goes_on_where_the_steps_do():
    """Case M171: nothing but the steps counts, so a run that is resumed at 5,000 has 0.55."""
    config = EpsilonConfig(epsilon=1.0, final_epsilon=0.1, decay_steps=10_000)
    assert scale_at(config, 5_000) == pytest.approx(0.55)
    assert decay_of(config).end_key == "final_epsilon"


def test_whether_a_step_is_random_hangs_on_the_share_alone():
    noise = RandomChoice(np.random.default_rng(0))
    assert not any(noise.explores(0.0) for _ in range(100))
    assert all(noise.explores(1.0) for _ in range(100))
    assert np.mean([noise.explores(0.3) for _ in range(4000)]) == pytest.approx(0.3, abs=0.02)
