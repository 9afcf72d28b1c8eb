"""SAC against torch's own distributions, formulas worked out by hand, and a plain implementation of one update."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import distributions

from continuous_support import ACTION, OBS, SMALL, batch
from headrace.algorithms.base import Transitions
from headrace.algorithms.configs import SACConfig, TemperatureConfig
from headrace.algorithms.flat import FlatAdam
from headrace.algorithms.sac import SAC, actor_loss, soft_target, temperature_loss, temperature_slope
from headrace.algorithms.tanh_normal import squashed_sample, squashed_slope
from headrace.core import seeding
from headrace.core.errors import ConfigError, NonFiniteValue, UnsupportedSpace
from headrace.learners.ledger import Facts, entries
from headrace.runtime.config import load_config

FIXED = TemperatureConfig(kind="fixed", value=0.3)


def config(**changes) -> SACConfig:
    return SACConfig(**{"actor": SMALL, "critic": SMALL, "batch_size": 8, **changes})


def learner(seed: int = 0, **changes) -> SAC:
    return SAC(config(**changes), OBS, ACTION, seed)


def arrays(algorithm: SAC) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in algorithm.state().items()}


# --- the formulas


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_densities_are_those_of_torchs_own_squashed_normal(spread):
    """In float64, where torch's inverse of tanh is still exact."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(200, 6, generator=generator, dtype=torch.float64) * spread
    normal = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    action, log_prob = squashed_sample(outputs, normal)
    mean, log_std = outputs[:, :3], outputs[:, 3:].clamp(-20, 2)
    squashed = distributions.TransformedDistribution(
        distributions.Normal(mean, log_std.exp()), [distributions.TanhTransform(cache_size=1)]
    )
    raw = mean + log_std.exp() * normal
    np.testing.assert_allclose(action, np.tanh(raw.numpy()), rtol=1e-12)
    inner = (raw.abs() < 8).all(dim=1)
    assert inner.sum() > 50
    np.testing.assert_allclose(log_prob[inner], squashed.log_prob(action).sum(dim=1)[inner], rtol=1e-5, atol=1e-6)


def test_densities_integrate_to_one():
    mean, log_std = 0.4, -0.5
    edges = torch.tanh(torch.linspace(-9, 9, 20_001, dtype=torch.float64))
    middle = (edges[1:] + edges[:-1]) / 2
    normal = (torch.atanh(middle) - mean) / math.exp(log_std)
    outputs = torch.tensor([[mean, log_std]], dtype=torch.float64).expand(len(middle), 2)
    action, log_prob = squashed_sample(outputs, normal[:, None])
    np.testing.assert_allclose(action[:, 0], middle, atol=1e-12)
    assert float((log_prob.exp() * edges.diff()).sum()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("mean", [-40.0, 12.0, 300.0])
def test_densities_and_gradients_are_finite_and_exact_where_tanh_rounds_to_one(mean):
    outputs = torch.tensor([[mean, 0.0]], requires_grad=True)
    action, log_prob = squashed_sample(outputs, torch.tensor([[0.5]]))
    assert abs(float(action.detach())) == 1.0
    raw = abs(mean + 0.5)  # 1 - tanh(u)^2 is 4 exp(-2 |u|) there
    expected = -0.5 * 0.25 - 0.5 * math.log(2 * math.pi) - (math.log(4.0) - 2 * raw)
    assert float(log_prob.detach()) == pytest.approx(expected, rel=1e-5)
    log_prob.sum().backward()
    assert outputs.grad.tolist() == [[pytest.approx(math.copysign(2.0, mean)), pytest.approx(
        math.copysign(2.0, mean) * 0.5 - 1.0
    )]]  # fmt: skip


def test_deviations_are_clamped_and_give_no_gradient_beyond():
    outputs = torch.tensor([[0.0, 0.0, -50.0, 9.0]], requires_grad=True)
    action, log_prob = squashed_sample(outputs, torch.tensor([[1.0, 1.0]]))
    expected = torch.tensor([[math.tanh(math.exp(-20)), math.tanh(math.exp(2))]])
    torch.testing.assert_close(action.detach(), expected)
    (action.sum() + log_prob.sum()).backward()
    assert outputs.grad[0, 2:].tolist() == [0.0, 0.0]


def test_target_counts_entropy_and_bootstraps_from_the_smaller_critic_and_not_over_termination():
    reward = torch.tensor([1.0, 1.0, 1.0])
    discount = torch.tensor([0.9, 0.0, 0.81])  # went on, terminated, truncated after two steps
    next_q = torch.tensor([[10.0, 10.0, -3.0], [20.0, 20.0, -1.0]])
    log_prob = torch.tensor([2.0, 2.0, -10.0])  # an unlikely action is worth more
    target = soft_target(reward, discount, next_q, log_prob, torch.tensor(0.5))
    torch.testing.assert_close(target, torch.tensor([1 + 0.9 * 9, 1.0, 1 + 0.81 * 2]))


@pytest.mark.parametrize("spread", [0.25, 3.0, 30.0])
def test_slopes_are_autograds_also_where_tanh_is_flat_and_deviations_are_clamped(spread):
    draw = torch.Generator().manual_seed(0)
    outputs = (torch.randn(100, 6, generator=draw) * spread).requires_grad_()
    normal, by_action = (torch.randn(100, 3, generator=draw) for _ in range(2))
    by_log_prob = torch.randn(100, generator=draw)
    action, log_prob = squashed_sample(outputs, normal)
    ((action * by_action).sum() + (log_prob * by_log_prob).sum()).backward()
    found = squashed_slope(outputs.detach(), normal, action.detach(), by_action, by_log_prob)
    torch.testing.assert_close(found, outputs.grad, rtol=1e-6, atol=1e-6 * float(outputs.grad.abs().max()))
    clamped = (outputs[:, 3:] < -20) | (outputs[:, 3:] > 2)
    assert clamped.any() == (spread > 1)
    assert not found[:, 3:][clamped].any()


def test_actor_is_pulled_to_entropy_and_to_what_critics_value():
    loss = actor_loss(torch.tensor([2.0, 1.0]), torch.tensor([3.0, -1.0]), torch.tensor(0.5))
    assert float(loss) == ((1.5 - 2) + (-0.5 - 1)) / 2


@pytest.mark.parametrize(("entropy", "sign"), [(-5.0, 1), (3.0, -1)])
def test_temperature_rises_where_entropy_is_below_its_target_and_falls_above(entropy, sign):
    log_temperature = torch.tensor(-1.0, requires_grad=True)
    log_prob = -entropy + torch.tensor([-1.0, 1.0])
    temperature_loss(log_temperature, log_prob, -2.0).backward()
    assert temperature_slope(log_prob, -2.0) == log_temperature.grad
    assert float(log_temperature.grad) == pytest.approx(entropy - -2.0)
    assert np.sign(-float(log_temperature.grad)) == sign


# --- one update, whole


class Plain:
    """SAC's update in plain torch: torch's distributions, one optimiser entry and one loop per parameter."""

    def __init__(self, algorithm: SAC) -> None:
        self.config = algorithm._config
        nets = (algorithm._actor, algorithm._critic, algorithm._target_critic)
        self.actor, self.critic, self.target_critic = map(copy.deepcopy, nets)
        self.log_alpha = torch.tensor(math.log(self.config.temperature.value), requires_grad=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=self.config.actor_lr)
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), lr=self.config.critic_lr)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=self.config.temperature.lr)
        self.draws = torch.Generator().manual_seed(seeding.integer(0, "policy-draws"))

    def sample(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        normal = distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + normal.scale * torch.randn(mean.shape, generator=self.draws)
        action = torch.tanh(raw)
        return action, (normal.log_prob(raw) - torch.log(1 - action**2 + 1e-9)).sum(dim=1)

    def update(self, b: Transitions) -> None:
        obs, next_obs = torch.tensor(b.obs["obs"]), torch.tensor(b.next_obs["obs"])
        action = torch.tensor(b.action["action"]) / 2
        reward, discount = torch.tensor(b.reward).float(), torch.tensor(b.discount).float()
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(next_obs)
            q1, q2 = self.target_critic(next_obs, next_action)
            y = reward + discount * (torch.minimum(q1, q2) - alpha * next_log_prob)
        q1, q2 = self.critic(obs, action)
        self.critic_adam.zero_grad()
        (F.mse_loss(q1, y) + F.mse_loss(q2, y)).backward()
        self.critic_adam.step()
        mine, log_prob = self.sample(obs)
        self.actor_adam.zero_grad()
        (alpha * log_prob - torch.minimum(*self.critic(obs, mine))).mean().backward()
        self.actor_adam.step()
        if self.config.temperature.kind == "auto":
            target = -2.0 if self.config.temperature.target_entropy is None else self.config.temperature.target_entropy
            self.alpha_adam.zero_grad()
            (-self.log_alpha * (log_prob.detach() + target).mean()).backward()
            self.alpha_adam.step()
        tau = self.config.tau
        for p, p_target in zip(self.critic.parameters(), self.target_critic.parameters(), strict=True):
            p_target.data = (1 - tau) * p_target.data + tau * p.data


TEMPERATURES = {
    "auto": TemperatureConfig(lr=1e-2),
    "target": TemperatureConfig(lr=1e-2, value=0.2, target_entropy=1.5),
    "fixed": FIXED,
}


@pytest.mark.parametrize("temperature", TEMPERATURES.values(), ids=TEMPERATURES.keys())
def test_updates_equal_a_plain_implementation(temperature):
    algorithm = learner(tau=0.1, actor_lr=3e-3, critic_lr=1e-2, temperature=temperature)
    start = arrays(algorithm)
    plain = Plain(algorithm)
    for step in range(12):
        b = batch(step, discount=0.0 if step % 3 == 0 else 0.99)
        algorithm.update(b)
        plain.update(b)
    for name in ("actor", "critic", "target_critic"):
        expected = torch.nn.utils.parameters_to_vector(getattr(plain, name).parameters()).detach().numpy()
        np.testing.assert_allclose(algorithm.state()[name], expected, rtol=0, atol=5e-5, err_msg=name)
        assert np.abs(expected - start[name]).max() > 1e-3  # there was something to get wrong
    np.testing.assert_allclose(algorithm.state()["temperature"], [float(plain.log_alpha.detach())], atol=1e-5)
    assert (algorithm.state()["temperature"] != start["temperature"]).all() == (temperature is not FIXED)


def test_terminal_transitions_do_not_look_at_their_successor_and_truncated_ones_do():
    hashes = {}
    for discount in (0.0, 0.99):
        near, far = batch(discount=discount), batch(discount=discount)
        far.next_obs["obs"][:] *= 100
        one, other = learner(), learner()
        one.update(near)
        other.update(far)
        hashes[discount] = one.weights_sha256() == other.weights_sha256()
    assert hashes == {0.0: True, 0.99: False}


# --- what moves when


def test_target_moves_once_per_update_and_to_the_critic():
    algorithm = learner(tau=0.1)
    algorithm._critic_flat.value.data.fill_(1.0)
    algorithm._target_critic_flat.value.data.fill_(0.0)
    for expected in (0.1, 0.19):
        algorithm.update(batch())
        # The critic has moved by at most two steps of 3e-4; a target that moves twice would be at 0.19 at once.
        np.testing.assert_allclose(algorithm.state()["target_critic"], expected, atol=1e-3)


def test_a_fixed_temperature_stays_and_has_no_optimiser():
    algorithm = learner(temperature=FIXED)
    algorithm.update(batch())
    assert algorithm.metrics()["train/temperature"] == pytest.approx(0.3)
    assert not any("temperature_steps" in name for name in algorithm.ledger())
    assert "temperature.step" not in algorithm.state()


def test_target_entropy_is_that_of_the_action_space_where_none_is_given():
    assert learner()._target_entropy == -2.0
    assert learner(temperature=TemperatureConfig(target_entropy=0.0))._target_entropy == 0.0


def test_no_step_has_a_gradient_for_what_it_does_not_train():
    algorithm = learner()
    flats = algorithm._books.flats
    obs, action, target = torch.zeros(4, 3), torch.zeros(4, 2), torch.ones(4)
    log_prob = torch.ones(4)

    def reached(step) -> set[str]:
        for flat in flats.values():
            flat.grad.fill_(7.0)
        step()
        return {name for name, flat in flats.items() if (flat.grad != 7.0).any()}

    assert reached(lambda: algorithm._critics.step(obs, action, target, algorithm._means)) == {"critic"}
    assert reached(lambda: algorithm._step_temperature(log_prob)) == {"temperature"}
    assert reached(lambda: algorithm._step_actor(obs)) == {
        "actor",
        "temperature",
    }  # of which the second is its own step's


def test_ledger_equals_what_is_declared():
    algorithm = learner()
    for step in range(5):
        algorithm.update(batch(step))
    declared = {
        "critic_steps": 5, "actor_steps": 5, "temperature_steps": 5, "target_critic_moves": 5,
        "critic_optimisers": 1, "actor_optimisers": 1, "temperature_optimisers": 1,
        "critic_lr": 3e-4, "actor_lr": 3e-4, "temperature_lr": 3e-4,
    }  # fmt: skip
    assert algorithm.ledger() == {
        "updates": 5, **declared, **{f"{name}_declared": value for name, value in declared.items()}
    }  # fmt: skip


def test_ledger_says_what_was_done_instead_of_what_was_meant():
    algorithm = learner()
    for step in range(3):
        algorithm.update(batch(step))
    algorithm._move_target()
    algorithm._adams["temperature"].step()
    algorithm._adams["temperature"].lr = 0.1
    settings = load_config(None, {"env.id": "Pendulum-v1", "algorithm.name": "sac"})
    found = entries(Facts(algorithm.ledger(), algorithm.updates, 3), settings)
    assert [entry.sentence for entry in found if not entry.ok] == [
        "the target critic moved 4 times in 3 updates; the algorithm declares 3",
        "the optimiser of the temperature has made 4 steps in 3 updates; the algorithm declares 3",
        "the learning rate of the temperature is 0.1; algorithm.temperature.lr declares 0.0003",
    ]


def test_no_mismatch_where_adam_stops_counting():
    algorithm = learner()
    algorithm.updates = FlatAdam.MOST_STEPS + 5
    for adam in algorithm._adams.values():
        adam.load("step", np.array(FlatAdam.MOST_STEPS, np.float32))
    algorithm.update(batch())
    ledger = algorithm.ledger()
    assert ledger["temperature_steps"] == ledger["temperature_steps_declared"] == FlatAdam.MOST_STEPS


# --- determinism and state


def trained(seed: int, updates: int = 6, **changes) -> SAC:
    algorithm = learner(seed, **changes)
    for step in range(updates):
        algorithm.observe(batch(step).obs, step)
        algorithm.update(batch(step))
    return algorithm


def test_same_seed_and_batches_give_the_same_weights_and_nothing_is_drawn_from_the_global_generator():
    torch.manual_seed(1)
    one = trained(0, normalize_observations=True).weights_sha256()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert trained(0, normalize_observations=True).weights_sha256() == one
    assert torch.equal(torch.get_rng_state(), before)
    assert trained(1, normalize_observations=True).weights_sha256() != one


@pytest.mark.parametrize(
    "name", ["actor", "critic", "target_critic", "temperature", "actor.exp_avg", "temperature.exp_avg_sq", "normaliser.m2"]
)  # fmt: skip
def test_hash_covers_every_learned_array(name):
    algorithm = trained(0, normalize_observations=True)
    before = algorithm.weights_sha256()
    algorithm._books.learned()[name][-1] += 1
    assert algorithm.weights_sha256() != before


@pytest.mark.parametrize("temperature", [TemperatureConfig(), FIXED], ids=["auto", "fixed"])
def test_restored_state_goes_on_bit_for_bit(temperature):
    changes = {"normalize_observations": True, "temperature": temperature}
    original = trained(0, updates=3, **changes)
    saved = arrays(original)
    restored = learner(99, **changes)
    restored.load_state(saved)
    assert restored.weights_sha256() == original.weights_sha256()
    assert restored.ledger() == original.ledger()
    for algorithm in (original, restored):
        for step in range(3, 8):
            algorithm.update(batch(step))
    assert restored.weights_sha256() == original.weights_sha256()
    assert restored.updates == 8


def test_batches_may_be_read_only_and_of_any_size():
    algorithm = learner()
    for n in (8, 3, 8):
        b = batch(n=n)
        for array in (b.obs["obs"], b.next_obs["obs"], b.action["action"], b.reward):
            array.flags.writeable = False
        algorithm.update(b)
    assert algorithm.updates == 3


# --- publishing, observing, measuring


def test_published_arrays_are_live():
    algorithm = learner(normalize_observations=True)
    published = algorithm.policy_arrays()
    assert sorted(published) == ["actor", "obs_mean", "obs_std"]
    before = published["actor"].copy()
    algorithm.update(batch())
    algorithm.observe({"obs": np.array([[0, 0, 0], [2, 4, 6]], np.float32)}, 50)
    assert not np.array_equal(published["actor"], before)
    np.testing.assert_allclose(published["obs_mean"], [1, 2, 3])


def test_metrics_are_means_since_the_last_call_and_absent_if_not_measured():
    one, both = learner(), learner()
    one.update(batch(0))
    first = one.metrics()
    assert set(first) == {
        "train/critic_loss", "train/q_mean", "train/target_q_mean", "train/critic_grad_norm", "train/actor_loss",
        "train/actor_grad_norm", "train/entropy", "train/temperature",
    }  # fmt: skip
    one.update(batch(1))
    second = one.metrics()
    both.update(batch(0))
    both.update(batch(1))
    mean = both.metrics()
    for name in ("train/critic_loss", "train/actor_loss", "train/entropy"):
        assert mean[name] == pytest.approx((first[name] + second[name]) / 2)
    assert set(one.metrics()) == {"train/temperature"}


@pytest.mark.table
def test_entropy_comes_to_its_target_where_nothing_else_counts():
    """One state, no reward, no successor: the temperature is all that moves the policy."""
    algorithm = learner(
        actor_lr=1e-2, critic_lr=1e-3, temperature=TemperatureConfig(lr=1e-2, target_entropy=-1.0), batch_size=64
    )
    b = batch(n=64, discount=0.0)
    b.reward[:] = 10 * b.action["action"].sum(axis=1)  # the best action is at the edge
    for _ in range(600):
        algorithm.update(b)
    algorithm.metrics()
    for _ in range(50):
        algorithm.update(b)
    assert algorithm.metrics()["train/entropy"] == pytest.approx(-1.0, abs=0.5)


# --- what goes wrong


def test_non_finite_critic_loss_changes_nothing_and_names_the_row():
    algorithm = trained(0, updates=2)
    before = algorithm.weights_sha256()
    bad = batch()
    bad.reward[5] = np.nan
    with pytest.raises(NonFiniteValue, match="learner: the critic's loss") as caught:
        algorithm.update(bad)
    assert "batch: reward of row 5 is nan" in str(caught.value)
    assert "lower algorithm.critic_lr" in str(caught.value)
    assert algorithm.weights_sha256() == before
    assert algorithm.updates == algorithm.ledger()["critic_steps"] == 2
    algorithm.update(batch())
    assert np.isfinite(algorithm.state()["critic"]).all()


def test_a_temperature_that_ran_away_is_what_is_told_of():
    algorithm = trained(0, updates=2)
    algorithm._temperature_flat.value.data.fill_(200.0)
    with pytest.raises(NonFiniteValue, match=r"lower algorithm\.temperature\.lr"):
        algorithm.update(batch())


@pytest.mark.parametrize(("name", "key"), [("actor", "actor_lr"), ("temperature", "temperature.lr")])
def test_non_finite_loss_of_another_network_takes_the_critic_step_back(name, key):
    algorithm = trained(0, updates=3)
    algorithm._books.flats[name].norm = lambda: math.inf
    before, ledger = algorithm.weights_sha256(), algorithm.ledger()
    with pytest.raises(NonFiniteValue, match=f"learner: the {name}'s loss") as caught:
        algorithm.update(batch())
    assert "batch: every value is finite" in str(caught.value)
    assert "update: 4" in str(caught.value)
    assert f"else lower algorithm.{key} or" in str(caught.value)
    assert algorithm.weights_sha256() == before
    assert algorithm.ledger() == ledger


@pytest.mark.parametrize(
    ("obs", "action"),
    [(OBS, spaces.Discrete(3)), (OBS, spaces.Dict({"a": ACTION})), (OBS, spaces.Box(-np.inf, np.inf, (2,)))],
)
def test_action_spaces_that_are_no_finite_box_are_refused(obs, action):
    with pytest.raises(UnsupportedSpace, match="finite low and high"):
        SAC(config(), obs, action, 0)


def test_device_that_is_not_there():
    with pytest.raises(ConfigError, match="torch device 'cuda:99' cannot be used"):
        SAC(config(), OBS, ACTION, 0, "cuda:99")


# --- configuration


@pytest.mark.parametrize("key", ["lr", "target_entropy"])
def test_settings_of_learning_a_temperature_are_refused_where_it_is_fixed(key):
    with pytest.raises(ConfigError, match=rf"algorithm.temperature.{key} would be ignored: a fixed temperature"):
        TemperatureConfig(**{"kind": "fixed", key: 0.01})


def test_written_configuration_of_a_fixed_temperature_is_read_back():
    section = config(temperature=FIXED)
    assert SACConfig.model_validate(section.model_dump()) == section


@pytest.mark.parametrize(
    ("key", "value"),
    [("gamma", 1.1), ("tau", 0), ("batch_size", 0), ("temperature", {"value": 0}), ("temperature", {"lr": -1})],
)
def test_values_out_of_range_are_refused(key, value):
    with pytest.raises(ConfigError):
        SACConfig.model_validate({key: value})
