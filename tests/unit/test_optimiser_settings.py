"""Rates that follow a schedule, and gradients put together from parts of a batch: of every algorithm that has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import iqn_support
from headrace.algorithms.base import Transitions
from headrace.algorithms.configs import DQNConfig, IQNConfig, OptimiserConfig
from headrace.algorithms.dqn import DQN
from headrace.algorithms.rates import rate_at
from headrace.core.errors import ConfigError
from iqn_support import batch

SCHEDULE = {"lr_final": 1e-3, "lr_decay_updates": 4}


def dqn(**changes: Any) -> DQN:
    config = DQNConfig(**{"network": {"hidden": [16]}, "batch_size": 8, **changes})
    return DQN(config, iqn_support.OBS, iqn_support.ACTION, 0)


def cells(**changes: Any) -> DQN:
    """Masks of what can be chosen next have to be taken apart too."""
    actions = {"cells": 3, "mask_leaf": "obs", "mask_channel": 1, "mask_value": 1.0}
    config = DQNConfig(**{"map": {"leaf": "obs", "channels": [8]}, "actions": actions, "batch_size": 8, **changes})
    return DQN(config, spaces.Box(0, 1, (2, 3, 4), np.float32), spaces.MultiBinary(12), 0)


def cells_batch(seed: int, n: int = 8) -> Transitions:
    rng = np.random.default_rng(seed)
    obs, following = rng.random((2, n, 2, 3, 4)).astype(np.float32)
    following[:, 1] = rng.random((n, 3, 4)) < 0.7
    action = np.zeros((n, 12), np.int8)
    action[:, :3] = 1
    weight = rng.uniform(0.2, 1, n)
    return Transitions(
        {"obs": obs}, {"action": action}, rng.standard_normal(n), np.full(n, 0.9), {"obs": following}, weight
    )


def noisy_iqn(**changes: Any) -> Any:
    return iqn_support.learner(network={"noisy": True}, **changes)


def weighted(seed: int, n: int = 8) -> Transitions:
    return batch(seed, n, weight=np.random.default_rng(seed).uniform(0.2, 1, n))


MAKERS = {
    "dqn": (dqn, weighted),
    "cells": (cells, cells_batch),
    "iqn": (iqn_support.learner, weighted),
    "noisy": (noisy_iqn, weighted),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_of_a_batch_make_the_step_of_the_whole(name, parts):
    make, draw = MAKERS[name]
    whole, divided = make(lr=1e-2), make(lr=1e-2, optimiser={"accumulate": parts})
    start = whole._q_flat.numpy().copy()
    for step in range(5):
        errors, same = whole.update(draw(step)), divided.update(draw(step))
        np.testing.assert_allclose(same, errors, rtol=0, atol=1e-4)
        np.testing.assert_allclose(divided._q_flat.grad.numpy(), whole._q_flat.grad.numpy(), rtol=0, atol=1e-5)
    assert np.abs(whole._q_flat.numpy() - start).max() > 1e-2
    one, other = whole.metrics(), divided.metrics()
    assert other == {key: pytest.approx(value, abs=1e-5) for key, value in one.items()}
    assert divided.ledger() == whole.ledger()


@pytest.mark.parametrize("name", MAKERS)
def test_parts_go_through_the_network_one_after_the_other(name):
    make, draw = MAKERS[name]
    algorithm = make(optimiser={"accumulate": 4})
    seen = []
    if hasattr(algorithm, "_q_pass"):
        traced = algorithm._q_pass.traced
        algorithm._q_pass.traced = lambda x: (seen.append(x.shape), traced(x))[1]
    else:
        algorithm._q.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    algorithm.update(draw(0))
    assert {shape[-2] for shape in seen} == {2}


def test_a_batch_that_leaves_a_rest_is_learned_from_all_the_same():
    for make, draw in MAKERS.values():
        whole, divided = make(lr=1e-2), make(lr=1e-2, optimiser={"accumulate": 4})
        for n in (7, 3):
            whole.update(draw(1, n))
            divided.update(draw(1, n))
            np.testing.assert_allclose(divided._q_flat.grad.numpy(), whole._q_flat.grad.numpy(), rtol=0, atol=1e-5)


def test_rates_by_hand():
    config = OptimiserConfig(**SCHEDULE)
    assert [rate_at(5e-3, config, updates) for updates in (0, 1, 2, 4, 9)] == pytest.approx(
        [5e-3, 4e-3, 3e-3, 1e-3, 1e-3]
    )
    assert rate_at(5e-3, OptimiserConfig(), 7) == 5e-3


@pytest.mark.parametrize("name", ["dqn", "iqn"])
def test_every_step_is_made_at_the_rate_of_its_update(name):
    make, draw = MAKERS[name]
    algorithm = make(lr=5e-3, optimiser=SCHEDULE)
    used = []
    step = algorithm._q_adam.step
    algorithm._q_adam.step = lambda: (used.append(algorithm._q_adam.lr), step())
    for number in range(6):
        ledger = algorithm.ledger()
        assert ledger["q_lr"] == ledger["q_lr_declared"]
        algorithm.update(draw(number))
    assert used == pytest.approx([5e-3, 4e-3, 3e-3, 2e-3, 1e-3, 1e-3])


@pytest.mark.parametrize("name", ["dqn", "iqn"])
def test_rate_goes_on_where_it_was_when_a_state_is_restored(name):
    make, draw = MAKERS[name]
    original, restored = make(lr=5e-3, optimiser=SCHEDULE), make(lr=5e-3, optimiser=SCHEDULE)
    for number in range(3):
        original.update(draw(number))
    restored.load_state(iqn_support.arrays(original))
    assert restored.ledger() == original.ledger()
    for algorithm in (original, restored):
        algorithm.update(draw(7))
    assert restored.weights_sha256() == original.weights_sha256()


@pytest.mark.parametrize("name", ["dqn", "iqn"])
def test_ledger_sees_a_rate_that_does_not_follow_its_schedule(name):
    make, draw = MAKERS[name]
    algorithm = make(lr=5e-3, optimiser=SCHEDULE)
    algorithm._set_rate = lambda: None
    algorithm.update(draw(0))
    assert algorithm.ledger()["q_lr"] == 5e-3
    assert algorithm.ledger()["q_lr_declared"] == pytest.approx(4e-3)


@pytest.mark.parametrize("config", [DQNConfig, IQNConfig])
@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"optimiser": {"lr_final": 1e-5}}, "the schedule of the learning rate is not whole"),
        ({"optimiser": {"lr_decay_updates": 5}}, "the schedule of the learning rate is not whole"),
        ({"batch_size": 10, "optimiser": {"accumulate": 4}}, "accumulate 4 would be ignored"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(config, settings, what):
    with pytest.raises(ConfigError, match=what):
        config(**settings)
