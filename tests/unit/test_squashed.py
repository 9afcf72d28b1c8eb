"""SAC's actor in numpy against the torch network it mirrors, and what its callers rely on."""

import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from headrace.algorithms.base import PolicySpec
from headrace.algorithms.configs import NetworkConfig, SACConfig
from headrace.algorithms.registry import build_actor, build_algorithm, carried_floats, check_spaces, told_leaves
from headrace.algorithms.sac import squashed_sample
from headrace.core.errors import SnapshotCorrupt, UnsupportedSpace

OBS = spaces.Box(-np.inf, np.inf, (6,), np.float32)
ACTION = spaces.Box(np.array([-2, 0, -1], np.float32), np.array([2, 1, 1], np.float32))


def observations(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"obs": np.random.default_rng(seed).standard_normal((n, 6)).astype(np.float32) * 3}


def ready(obs=OBS, scale: float = 1.0, **changes):
    """An actor and the learner it is of, whose outputs are ``scale`` times as large as those of fresh weights."""
    algorithm = build_algorithm(SACConfig(**{"actor": NetworkConfig(hidden=[16, 8]), **changes}), obs, ACTION, 0)
    algorithm._actor_flat.value.data *= scale
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())
    return actor, algorithm


def lanes(n: int, seed: int = 0) -> list:
    actor, _ = ready()
    return [actor.noise(np.random.default_rng([seed, lane])) for lane in range(n)]


def normals(n: int, seed: int = 0) -> np.ndarray:
    return np.stack([np.random.default_rng([seed, lane]).standard_normal(3, np.float32) for lane in range(n)])


def in_units(action: torch.Tensor) -> np.ndarray:
    return ACTION.low + (action.detach().numpy() + 1) / 2 * (ACTION.high - ACTION.low)


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("n", [1, 7])
def test_what_is_drawn_is_what_the_learner_would_draw_with_the_same_numbers(n, scale):
    actor, algorithm = ready(scale=scale)
    obs = observations(n)
    outputs = algorithm._actor(torch.from_numpy(obs["obs"]))
    expected, _ = squashed_sample(outputs, torch.from_numpy(normals(n)))
    acted = actor.act(obs, lanes(n))["action"]
    assert (acted.dtype, acted.shape) == (np.float32, (n, 3))
    np.testing.assert_allclose(acted, in_units(expected), rtol=0, atol=3e-6)
    assert not np.allclose(acted, actor.act(obs)["action"], atol=1e-4)


def test_greedy_is_tanh_of_the_mean():
    actor, algorithm = ready(scale=3.0)
    obs = observations(5)
    mean = algorithm._actor(torch.from_numpy(obs["obs"]))[:, :3]
    np.testing.assert_allclose(actor.act(obs)["action"], in_units(torch.tanh(mean)), rtol=0, atol=3e-6)


def test_deviations_are_clamped_as_the_learner_clamps_them():
    actor, algorithm = ready(actor=NetworkConfig(hidden=[4]))
    flat = algorithm.policy_arrays()["actor"]
    flat[:] = 0.0
    flat[-3:] = [-99.0, 99.0, 0.0]  # the last layer's bias of the deviations
    raw = normals(1)[0] * np.exp([-20.0, 2.0, 0.0])
    acted = actor.act(observations(1), lanes(1))["action"][0]
    np.testing.assert_allclose(acted, in_units(torch.tanh(torch.from_numpy(raw))), rtol=0, atol=1e-6)


def test_each_lane_draws_from_its_own_generator_and_carries_nothing():
    actor, _ = ready()
    obs = {"obs": np.repeat(observations(1)["obs"], 3, axis=0)}
    together, alone = lanes(3), lanes(3)[1]
    for _ in range(3):
        shared = actor.act(obs, together)["action"]
        np.testing.assert_allclose(shared[1], actor.act({"obs": obs["obs"][:1]}, [alone])["action"][0], atol=1e-6)
    assert not np.allclose(shared[0], shared[1])
    assert carried_floats(SACConfig(), ACTION) == alone.carry.size == 0
    assert told_leaves(SACConfig(), ACTION) == ()
    with pytest.raises(ValueError, match="zip"):
        actor.act(obs, together[:2])


def test_draws_are_new_in_every_step_and_returned_actions_may_be_kept():
    actor, _ = ready()
    noise = lanes(1)
    first = actor.act(observations(1), noise)["action"]
    kept = first.copy()
    assert not np.array_equal(actor.act(observations(1), noise)["action"], kept)
    np.testing.assert_array_equal(first, kept)


def test_actions_are_in_their_space():
    actor, _ = ready(scale=30.0)
    for action in actor.act(observations(200), lanes(200))["action"]:
        assert ACTION.contains(action)


def test_acting_and_learning_normalise_alike():
    actor, algorithm = ready(normalize_observations=True)
    algorithm.observe({"obs": np.random.default_rng(0).normal(5, 3, (100, 6)).astype(np.float32)}, 100)
    actor.load(algorithm.policy_arrays())
    obs = observations(5)
    moments = algorithm.policy_arrays()
    x = torch.from_numpy(((obs["obs"] - moments["obs_mean"]) / moments["obs_std"]).clip(-10, 10))
    mean = algorithm._actor(x)[:, :3]
    np.testing.assert_allclose(actor.act(obs)["action"], in_units(torch.tanh(mean)), atol=3e-6)


def test_dict_observations_are_encoded_as_the_learner_does():
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (3,), np.float64)})
    actor, algorithm = ready(obs=space)
    obs = {"obs.a": np.array([2, 0]), "obs.b": np.array([[0.1, 0.2, 0.3], [0, 0, 1.0]])}
    x = torch.tensor([[0, 0, 1, 0.1, 0.2, 0.3], [1, 0, 0, 0, 0, 1]])
    mean = algorithm._actor(x)[:, :3]
    np.testing.assert_allclose(actor.act(obs)["action"], in_units(torch.tanh(mean)), atol=3e-6)


def test_snapshot_of_another_policy_is_refused_and_the_old_one_kept():
    actor, _ = ready()
    before = actor.act(observations(1))["action"]
    with pytest.raises(SnapshotCorrupt, match=r"expected: weights: float32 \[302\]"):
        actor.load({"actor": np.zeros(9, np.float32)})
    with pytest.raises(SnapshotCorrupt, match="found: arrays policy"):
        actor.load({"policy": np.zeros(302, np.float32)})
    normalised = build_actor(PolicySpec("sac", OBS, ACTION, SACConfig(normalize_observations=True)))
    with pytest.raises(SnapshotCorrupt, match="expected: arrays actor, obs_mean, obs_std"):
        normalised.load({"actor": np.zeros(302, np.float32)})
    np.testing.assert_array_equal(actor.act(observations(1))["action"], before)


def test_factory_networks_act_in_torch_and_have_two_outputs_per_number_of_an_action(monkeypatch):
    asked = []

    def make(inputs: int, outputs: int) -> nn.Module:
        asked.append((inputs, outputs))
        return nn.Sequential(nn.Linear(inputs, 9), nn.Softplus(), nn.Linear(9, outputs))

    module = types.ModuleType("squashed_networks")
    module.make = make
    monkeypatch.setitem(sys.modules, "squashed_networks", module)
    actor, algorithm = ready(actor=NetworkConfig(factory="squashed_networks:make"))
    assert set(asked) == {(6, 6)}
    obs = observations(4)
    expected, _ = squashed_sample(algorithm._actor(torch.from_numpy(obs["obs"])), torch.from_numpy(normals(4)))
    np.testing.assert_allclose(actor.act(obs, lanes(4))["action"], in_units(expected), atol=3e-6)


def test_acting_needs_no_torch():
    program = """
import sys
import numpy as np
from gymnasium import spaces
import headrace.algorithms.registry as registry
from headrace.algorithms.base import PolicySpec
from headrace.algorithms.configs import SACConfig
box = spaces.Box(-1, 1, (2,))
registry.check_spaces(SACConfig(), box, box)
actor = registry.build_actor(PolicySpec("sac", box, box, SACConfig()))
actor.load({"actor": np.zeros(2 * 256 + 256 + 256 * 256 + 256 + 256 * 4 + 4, np.float32)})
actor.act({"obs": np.zeros((1, 2), np.float32)}, [actor.noise(np.random.default_rng(0))])
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr or "torch was imported"


def test_check_spaces_names_the_space():
    check_spaces(SACConfig(), OBS, ACTION)
    with pytest.raises(UnsupportedSpace, match="action space"):
        check_spaces(SACConfig(), OBS, spaces.Discrete(3))
