"""The numpy actor against the torch network it mirrors, and what its callers rely on."""

import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from headrace.algorithms.base import PolicySpec
from headrace.algorithms.configs import ExplorationConfig, NetworkConfig, SACConfig, TD3Config
from headrace.algorithms.flat import FlatParameters
from headrace.algorithms.networks import build_network
from headrace.algorithms.on_policy_configs import PPOConfig
from headrace.algorithms.registry import algorithms, build_actor, build_algorithm, check_spaces
from headrace.core.config import RunConfig
from headrace.core.errors import ConfigError, NonFiniteValue, SnapshotCorrupt, UnsupportedSpace

OBS = spaces.Box(-np.inf, np.inf, (6,), np.float32)
ACTION = spaces.Box(np.array([-2, 0, -1], np.float32), np.array([2, 1, 1], np.float32))
QUIET = ExplorationConfig(kind="none")


def policy(config: TD3Config, obs=OBS, action=ACTION) -> PolicySpec:
    return PolicySpec("td3", obs, action, config)


def torch_actor(config: NetworkConfig, inputs: int = 6, outputs: int = 3) -> tuple[nn.Module, np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    net = build_network(config, inputs, outputs, generator, tanh=True)
    with torch.no_grad():  # as after training: fresh gains are all one, fresh shifts all zero
        for parameter in net.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return net, FlatParameters(net).numpy()


def snapshot(flat: np.ndarray, scale: float = 0.1, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {"actor": flat, "exploration_scale": np.array([scale]), **more}


def observations(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"obs": np.random.default_rng(seed).standard_normal((n, 6)).astype(np.float32) * 3}


def ready(config: TD3Config, scale: float = 0.1):
    actor = build_actor(policy(config))
    net, flat = torch_actor(config.actor)
    actor.load(snapshot(flat.copy(), scale))
    return actor, net


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "silu"])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("hidden", [[256, 256], [17], [5, 33, 8]])
def test_numpy_actor_equals_the_torch_network(activation, layer_norm, hidden):
    actor, net = ready(TD3Config(actor=NetworkConfig(hidden=hidden, activation=activation, layer_norm=layer_norm)))
    for n in (1, 7):
        obs = observations(n)
        with torch.no_grad():
            expected = net(torch.from_numpy(obs["obs"])).numpy()
        low, high = ACTION.low, ACTION.high
        action = actor.act(obs)["action"]
        np.testing.assert_allclose(action, low + (expected + 1) / 2 * (high - low), rtol=0, atol=2e-6)
        assert action.dtype == np.float32


def test_large_activations_neither_overflow_nor_warn():
    actor, net = ready(TD3Config(actor=NetworkConfig(hidden=[8], activation="silu")))
    obs = {"obs": observations(4)["obs"] * 1000}
    with torch.no_grad():
        expected = net(torch.from_numpy(obs["obs"])).numpy()
    np.testing.assert_allclose(actor.act(obs)["action"][:, 2], expected[:, 2], atol=1e-6)


def test_equal_calls_are_bit_identical_wherever_the_weights_lie():
    config = TD3Config()
    _, flat = torch_actor(config.actor)
    obs = observations(3)
    seen = set()
    for offset in range(4):
        room = np.zeros(len(flat) + 4, np.float32)
        room[offset : offset + len(flat)] = flat
        actor = build_actor(policy(config))
        actor.load(snapshot(room[offset : offset + len(flat)]))
        seen |= {actor.act(obs)["action"].tobytes() for _ in range(5)}
    assert len(seen) == 1


def test_weights_are_read_in_place():
    config = TD3Config(actor=NetworkConfig(hidden=[4]))
    actor = build_actor(policy(config))
    _, flat = torch_actor(config.actor)
    actor.load(snapshot(flat))
    before = actor.act(observations(1))["action"]
    flat[:] = 0.0
    np.testing.assert_allclose(actor.act(observations(1))["action"], [[0.0, 0.5, 0.0]])
    assert not np.allclose(before, [[0.0, 0.5, 0.0]])


def test_snapshot_may_be_read_only():
    actor = build_actor(policy(TD3Config()))
    _, flat = torch_actor(NetworkConfig())
    flat = flat.copy()
    flat.flags.writeable = False
    actor.load(snapshot(flat))
    assert actor.act(observations(2))["action"].shape == (2, 3)


@pytest.mark.parametrize("config", [TD3Config(), SACConfig(), PPOConfig()], ids=["td3", "sac", "ppo"])
def test_no_environment_is_handed_an_action_that_is_no_number(config):
    made = build_algorithm(config, OBS, ACTION, seed=0)
    actor, obs = build_actor(made.policy), observations(3)
    actor.load(made.policy_arrays())
    actor.act(obs)
    obs["obs"][1, 2] = np.nan
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(NonFiniteValue, match="chose an action that is not finite") as caught,
    ):
        actor.act(obs)
    assert caught.value.facts["row"] == 1


def test_returned_actions_are_never_overwritten():
    actor, _ = ready(TD3Config())
    first = actor.act(observations(1))["action"]
    copy = first.copy()
    actor.act(observations(1, seed=1))
    np.testing.assert_array_equal(first, copy)


def test_noise_is_scaled_by_the_snapshot_and_clipped_to_the_range():
    config = TD3Config(actor=NetworkConfig(hidden=[4]))
    actor = build_actor(policy(config))
    flat = torch_actor(config.actor)[1] * 0  # greedy action: the middle of the range
    normal = np.random.default_rng(7).standard_normal(3, dtype=np.float32)
    for scale in (0.1, 100.0):
        actor.load(snapshot(flat, scale))
        action = actor.act(observations(1), [actor.noise(np.random.default_rng(7))])["action"][0]
        expected = np.clip(normal * scale, -1, 1)
        np.testing.assert_allclose(action, expected * [2, 0.5, 1] + [0, 0.5, 0], rtol=1e-5)
        assert ACTION.contains(action)


def test_each_lane_has_its_own_noise_whoever_shares_the_call():
    actor, _ = ready(TD3Config(exploration=ExplorationConfig(kind="ornstein-uhlenbeck")))
    obs = {"obs": np.repeat(observations(1)["obs"], 3, axis=0)}
    together = [actor.noise(np.random.default_rng(seed)) for seed in (1, 2, 3)]
    alone = actor.noise(np.random.default_rng(2))
    for _ in range(3):
        shared = actor.act(obs, together)["action"]
        single = actor.act({"obs": obs["obs"][:1]}, [alone])["action"]
        np.testing.assert_allclose(shared[1], single[0], atol=1e-6)
    assert not np.allclose(shared[0], shared[1])


def test_wrong_number_of_noises_is_an_error():
    actor, _ = ready(TD3Config())
    with pytest.raises(ValueError, match="zip"):
        actor.act(observations(2), [actor.noise(np.random.default_rng(0))])


def test_kind_none_acts_greedily_also_with_noise_objects():
    actor, _ = ready(TD3Config(exploration=QUIET), scale=0.0)
    noise = [actor.noise(np.random.default_rng(0))]
    np.testing.assert_array_equal(actor.act(observations(1), noise)["action"], actor.act(observations(1))["action"])


def test_observations_are_normalised_with_the_snapshots_statistics():
    config = TD3Config(normalize_observations=True)
    actor = build_actor(policy(config))
    net, flat = torch_actor(config.actor)
    mean, std = np.full(6, 2.0, np.float32), np.full(6, 0.5, np.float32)
    actor.load(snapshot(flat, obs_mean=mean, obs_std=std))
    obs = observations(5)
    expected = net(torch.from_numpy(((obs["obs"] - mean) / std).clip(-10, 10))).detach().numpy()[:, 2]
    np.testing.assert_allclose(actor.act(obs)["action"][:, 2], expected, atol=1e-6)


def test_dict_observations_are_encoded_as_the_learner_does():
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (3,), np.float64)})
    actor = build_actor(policy(TD3Config(), obs=space))
    net, flat = torch_actor(NetworkConfig())
    actor.load(snapshot(flat))
    obs = {"obs.a": np.array([2, 0]), "obs.b": np.array([[0.1, 0.2, 0.3], [0, 0, 1.0]])}
    x = torch.tensor([[0, 0, 1, 0.1, 0.2, 0.3], [1, 0, 0, 0, 0, 1]])
    np.testing.assert_allclose(actor.act(obs)["action"][:, 2], net(x).detach().numpy()[:, 2], atol=1e-6)


def test_snapshot_of_another_policy_is_refused_and_the_old_one_kept():
    actor, _ = ready(TD3Config(actor=NetworkConfig(hidden=[4])))
    before = actor.act(observations(1))["action"]
    with pytest.raises(SnapshotCorrupt) as caught:
        actor.load(snapshot(np.zeros(9, np.float32)))
    assert str(caught.value) == (
        "[DAT-002] a weights snapshot does not fit the policy that is to act with it\n"
        "  expected: weights: float32 [43]\n"
        "  found: weights: float32 [9]\n"
        "  fix: act with the configuration the snapshot was trained with: the run directory's config.toml"
    )
    with pytest.raises(SnapshotCorrupt, match=r"found: weights: float32 \[99\]"):
        actor.load(snapshot(np.zeros(99, np.float32)))  # which would fit, cut off
    with pytest.raises(SnapshotCorrupt, match=r"found: arrays \['actor'\]"):
        actor.load({"actor": np.zeros(43, np.float32)})
    np.testing.assert_array_equal(actor.act(observations(1))["action"], before)


def test_factory_networks_act_in_torch(monkeypatch):
    module = types.ModuleType("acting_networks")
    module.make = lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, 9), nn.Softplus(), nn.Linear(9, outputs))
    monkeypatch.setitem(sys.modules, "acting_networks", module)
    actor, net = ready(TD3Config(actor=NetworkConfig(factory="acting_networks:make")))
    obs = observations(4)
    expected = net(torch.from_numpy(obs["obs"])).detach().numpy()
    np.testing.assert_allclose(actor.act(obs)["action"][:, 2], expected[:, 2], atol=1e-6)


def test_acting_needs_no_torch():
    program = """
import sys
import numpy as np
from gymnasium import spaces
import headrace.algorithms.configs, headrace.algorithms.acting, headrace.algorithms.registry as registry
from headrace.algorithms.base import PolicySpec
box = spaces.Box(-1, 1, (2,))
config = headrace.algorithms.configs.TD3Config()
registry.check_spaces(config, box, box)
actor = registry.build_actor(PolicySpec("td3", box, box, config))
size = 2 * 256 + 256 + 256 * 256 + 256 + 256 * 2 + 2
actor.load({"actor": np.zeros(size, np.float32), "exploration_scale": np.ones(1)})
actor.act({"obs": np.zeros((1, 2), np.float32)}, [actor.noise(np.random.default_rng(0))])
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr or "torch was imported"


def test_registry_lists_and_builds():
    assert list(algorithms()) == ["dqn", "iqn", "ppo", "sac", "td3", "vtrace"]
    assert "continuous" in algorithms()["td3"]
    assert "\n" not in algorithms()["td3"]
    algorithm = build_algorithm(TD3Config(), OBS, ACTION, seed=0)
    build_actor(algorithm.policy).load(algorithm.policy_arrays())


def test_check_spaces_names_the_space():
    check_spaces(TD3Config(), OBS, ACTION)
    with pytest.raises(UnsupportedSpace, match="action space"):
        check_spaces(TD3Config(), OBS, spaces.Discrete(3))
    with pytest.raises(UnsupportedSpace, match="obs space"):
        check_spaces(TD3Config(), spaces.Text(3), ACTION)


def test_section_of_no_algorithm():
    with pytest.raises(ConfigError, match="names no algorithm") as caught:
        check_spaces(RunConfig(), OBS, ACTION)
    assert "found: RunConfig" in str(caught.value)
