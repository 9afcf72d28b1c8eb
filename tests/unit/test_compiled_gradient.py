"""Compiled gradients against those of torch and numpy, whose own tests compare them with autograd."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.algorithms.configs import DQNConfig
from headrace.algorithms.on_policy import OnPolicy
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.algorithms.ppo import build_ppo
from headrace.algorithms.registry import build_algorithm
from headrace.algorithms.vtrace import build_vtrace
from headrace.core.config import LearnConfig
from headrace.core.errors import ConfigError, NonFiniteValue
from headrace.runtime.config import load_config
from on_policy_support import BOX, DISCRETE, OBS, learn, one_thread, rollout

assert one_thread  # a fixture: applies to every test here
SEVERAL = spaces.MultiDiscrete([2, 3])
WIDE = {"network": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64]}}}
UNEVEN = {"network": {"actor": {"hidden": [37, 100]}, "critic": {"hidden": [5]}}}
RELU = {"network": {name: {"hidden": [32, 20], "activation": "relu"} for name in ("actor", "critic")}}
EXTRAS = {"loss": {"value_clip": 0.1, "entropy_weight": 0.03, "value_weight": 0.7}, "clip": 0.1}


def made(action: spaces.Space[Any], *, compiled: bool, name: str = "ppo", **changes: Any) -> OnPolicy:
    kind, build = {"ppo": (PPOConfig, build_ppo), "vtrace": (VTraceConfig, build_vtrace)}[name]
    config: Any = kind(**{**WIDE, "batch_size": 50, "lr": 3e-3, **changes})
    return build(config, OBS, action, 0, compiled=compiled)


@pytest.mark.table  # the loops are compiled in the first of them, which takes seconds
@pytest.mark.parametrize("name", ["ppo", "vtrace"])
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("changes", [{}, UNEVEN, RELU, EXTRAS], ids=["wide", "uneven", "relu", "extras"])
def test_the_gradient_is_that_of_torch_within_rounding(name, action, changes):
    plain, compiled = (made(action, compiled=way, name=name, **changes) for way in (False, True))
    told = rollout(plain, steps=40, streams=4)  # 160: minibatches of 50, and one of 10
    lengths = []
    for algorithm in (plain, compiled):
        algorithm.begin(told)
    while plain.pending:
        plain.update()
        compiled.update()
        own, other = (algorithm._flat.grad.numpy() for algorithm in (plain, compiled))
        lengths.append(np.linalg.norm(own - other) / np.linalg.norm(own))
        compiled._flat.value.copy_(plain._flat.value)  # or what differs in the last bits would grow
    assert not compiled.pending
    assert sum(length > 3e-5 for length in lengths) <= 1  # where a unit or a ratio lies at its very edge
    assert np.median(lengths) < 1e-6
    measured = plain.metrics()
    assert compiled.metrics() == pytest.approx(measured, rel=1e-4, abs=1e-5)
    assert ("train/clip_fraction" in measured) == (name == "ppo" or "clip" in changes)


@pytest.mark.table
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "box"])
def test_the_same_is_learned_bit_for_bit_wherever_its_memory_lies(action):
    hashes = set()
    for offset in range(3):
        algorithm = made(action, compiled=True)
        held = [np.empty(1 + offset, np.float32) for _ in range(50)]  # so that what follows lies elsewhere
        for seed in range(2):
            learn(algorithm, rollout(algorithm, seed, steps=30))
        hashes.add(algorithm.weights_sha256())
        del held
    assert len(hashes) == 1


@pytest.mark.table
@pytest.mark.parametrize("network", ["actor", "critic"])
def test_what_is_no_number_is_refused(network):
    algorithm = made(DISCRETE, compiled=True)
    told = rollout(algorithm)
    algorithm.begin(told)
    with torch.no_grad():
        next(getattr(algorithm._network, network).parameters())[0, 0] = float("nan")
    before = algorithm._flat.numpy().copy()
    with pytest.raises(NonFiniteValue, match="actor or critic"):
        algorithm.update()
    np.testing.assert_array_equal(algorithm._flat.numpy(), before)


@pytest.mark.table
@pytest.mark.parametrize("far", [9.0, 1e4, 1.7e9])
def test_an_input_that_is_far_off_has_no_slope(far):
    """A tanh of 0.9999998 has one of 5e-7, and times a Unix time that was a hundred times the gradient."""
    plain, compiled = (made(DISCRETE, compiled=way) for way in (False, True))
    told = rollout(plain, steps=40)
    told.obs["obs"][:, 1] += far
    told.told["logprob"][:] = -np.log(4.0)
    for algorithm in (plain, compiled):
        algorithm.begin(told)
        algorithm.update()
    own, other = (algorithm._flat.grad.numpy() for algorithm in (plain, compiled))
    assert np.linalg.norm(own - other) < 1e-4 * np.linalg.norm(own)


@pytest.mark.table
def test_the_optimiser_is_torchs_within_rounding():
    """Over the steps in which small moments are swept away, with another rate later on, and with gradients of nothing."""
    plain, compiled = (made(BOX, compiled=way) for way in (False, True))
    generator = np.random.default_rng(0)
    for step in range(300):
        given = generator.normal(size=len(plain._flat)).astype(np.float32) * generator.choice([0.0, 1e-4, 1.0, 30.0])
        given[:7] = 0.0
        norms = []
        for algorithm, clipped in ((plain, plain._flat), (compiled, compiled._compiled)):
            algorithm._flat.grad.numpy()[:] = given
            algorithm._adam.lr = 1e-2 if step < 200 else 1e-4
            norms.append(clipped.clip(None if step % 3 else 0.5))
            algorithm._adam.step()
        assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert compiled._adam.steps == plain._adam.steps == 300
    np.testing.assert_allclose(compiled._flat.numpy(), plain._flat.numpy(), rtol=1e-4, atol=1e-5)
    for name, moment in plain._adam.moments().items():
        np.testing.assert_allclose(compiled._adam.moments()[name], moment, rtol=1e-4, atol=1e-6)


@pytest.mark.table
@pytest.mark.parametrize("norm", [np.nan, np.inf, 1e30])
def test_the_norm_of_a_gradient_that_is_no_number_is_none(norm):
    algorithm = made(DISCRETE, compiled=True)
    algorithm._flat.grad[3] = norm  # the square of the last one is infinite in float32
    assert not np.isfinite(algorithm._compiled.clip(0.5))


@pytest.mark.table
@pytest.mark.parametrize("rows", [1, 37, 8192 + 5])
def test_what_networks_say_of_any_number_of_rows_is_what_torch_says(rows):
    algorithm = made(BOX, compiled=True, **UNEVEN)
    obs = torch.randn(rows, algorithm._inputs.encoder.size, generator=torch.Generator().manual_seed(0))
    network, compiled = algorithm._network, algorithm._compiled
    assert compiled.values(obs).dtype == network.values(obs).dtype
    np.testing.assert_allclose(compiled.values(obs), network.values(obs), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compiled.outputs(obs), network.outputs(obs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (PPOConfig(actions={"mask_leaf": "obs"}), "algorithm.actions.mask_leaf = obs"),
        (PPOConfig(network={"actor": {"layer_norm": True}}), "algorithm.network.actor"),
        (VTraceConfig(network={"critic": {"activation": "silu"}}), "algorithm.network.critic"),
        (DQNConfig(), "algorithm.name = dqn"),
    ],
)
def test_what_has_no_loops_is_refused_whoever_builds_it(config, found):
    with pytest.raises(ConfigError, match="no compiled loops") as caught:
        build_algorithm(config, spaces.Box(0, 1, (4,), np.float32), DISCRETE, 0, LearnConfig(compiled=True))
    assert caught.value.facts["found"] == found


@pytest.mark.table
def test_nothing_is_gained_by_a_ratio_that_is_infinite():
    algorithm = made(DISCRETE, compiled=True, loss={"normalize_advantages": False})
    told = rollout(algorithm)
    told.told["logprob"][:] = -200.0  # of actions that could not be chosen, as far as float32 goes
    algorithm.begin(told)
    algorithm._rows.numbers[1] = np.abs(algorithm._rows.numbers[1])
    algorithm._rows.numbers[1, 0] = 0.0  # times infinity it is no number
    algorithm._flat.grad.zero_()
    found = algorithm._compiled.add(algorithm._rows.batch(None), 0.2)
    assert np.isfinite(found["policy_loss"])
    assert np.isfinite(algorithm._flat.grad.numpy()).all()


def test_several_choices_at_once_have_no_loops():
    with pytest.raises(ConfigError, match="several choices at once"):
        made(SEVERAL, compiled=True)


def test_without_numba_it_is_said_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "headrace.algorithms.compiled", None)
    with pytest.raises(ConfigError, match=r"learn\.compiled needs numba") as caught:
        made(DISCRETE, compiled=True)
    assert "extra fast" in str(caught.value)
    assert made(DISCRETE, compiled=False).updates == 0


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"algorithm.name": "td3", "env.id": "Pendulum-v1"}, "algorithm.name = td3"),
        ({"learn.device": "cuda"}, "learn.device = cuda"),
        ({"algorithm.actions.mask_leaf": "obs.mask"}, "algorithm.actions.mask_leaf = obs.mask"),
        ({"algorithm.network.actor.hidden": [64, 129]}, "algorithm.network.actor"),
        ({"algorithm.network.critic.activation": "elu"}, "algorithm.network.critic"),
        ({"algorithm.network.critic.layer_norm": True}, "algorithm.network.critic"),
        ({"algorithm.network.actor.factory": "nets:make"}, "algorithm.network.actor"),
    ],
)
def test_what_has_no_loops_is_refused_before_a_run_starts(settings, found):
    given = {"algorithm.name": "ppo", "env.id": "CartPole-v1", **settings}
    assert not load_config(None, given).learn.compiled
    with pytest.raises(ConfigError, match="no compiled loops") as caught:
        load_config(None, {**given, "learn.compiled": True})
    assert caught.value.facts["found"] == found
