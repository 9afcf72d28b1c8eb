"""TD3 against formulas worked out by hand and against a plain implementation of one update."""

import copy
import hashlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from continuous_support import ACTION, OBS, SMALL, batch
from headrace.algorithms.base import Transitions
from headrace.algorithms.configs import ExplorationConfig, NetworkConfig, TD3Config
from headrace.algorithms.continuous import critic_loss, critic_slope
from headrace.algorithms.flat import FlatAdam
from headrace.algorithms.registry import build_actor
from headrace.algorithms.td3 import TD3, smoothed_action, td_target
from headrace.core import seeding
from headrace.core.errors import ConfigError, NonFiniteValue, UnsupportedSpace
from precision_support import able


def config(**changes) -> TD3Config:
    return TD3Config(**{"actor": SMALL, "critic": SMALL, "batch_size": 8, **changes})


def learner(seed: int = 0, **changes) -> TD3:
    return TD3(config(**changes), OBS, ACTION, seed)


def arrays(algorithm: TD3) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in algorithm.state().items()}


# --- the formulas


def test_target_bootstraps_from_the_smaller_critic_and_not_over_termination():
    reward = torch.tensor([1.0, 1.0, 1.0])
    discount = torch.tensor([0.9, 0.0, 0.81])  # went on, terminated, truncated after two steps
    next_q = torch.tensor([[10.0, 10.0, -3.0], [20.0, 20.0, -1.0]])
    torch.testing.assert_close(td_target(reward, discount, next_q), torch.tensor([10.0, 1.0, -1.43]))


def test_smoothing_noise_is_scaled_then_clipped_then_the_action_is():
    action = torch.tensor([[0.0, 0.0, 0.9, -0.9]])
    normal = torch.tensor([[1.0, 100.0, 1.0, -100.0]])
    torch.testing.assert_close(smoothed_action(action, normal, 0.2, 0.5), torch.tensor([[0.2, 0.5, 1.0, -1.0]]))


def test_critic_loss_is_a_mean_over_the_batch_summed_over_critics():
    q = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    loss = critic_loss(q, torch.tensor([0.0, 4.0]))
    assert loss == (1 + 4) / 2 + (0 + 16) / 2
    loss.backward()
    assert torch.equal(critic_slope(q.detach(), torch.tensor([0.0, 4.0])), q.grad)


# --- one update, whole


class Plain:
    """TD3's update in the plainest torch, one optimiser entry and one loop per parameter."""

    def __init__(self, algorithm: TD3) -> None:
        self.config = algorithm._config
        nets = (algorithm._actor, algorithm._critic, algorithm._target_actor, algorithm._target_critic)
        self.actor, self.critic, self.target_actor, self.target_critic = map(copy.deepcopy, nets)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=self.config.actor_lr)
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), lr=self.config.critic_lr)
        self.smoothing = torch.Generator().manual_seed(seeding.integer(0, "target-smoothing"))
        self.updates = 0

    def update(self, b: Transitions) -> None:
        obs, next_obs = torch.tensor(b.obs["obs"]), torch.tensor(b.next_obs["obs"])
        action = torch.tensor(b.action["action"]) / 2
        reward, discount = torch.tensor(b.reward).float(), torch.tensor(b.discount).float()
        with torch.no_grad():
            noise = (torch.randn(len(obs), 2, generator=self.smoothing) * 0.2).clamp(-0.5, 0.5)
            q1, q2 = self.target_critic(next_obs, (self.target_actor(next_obs) + noise).clamp(-1, 1))
            y = reward + discount * torch.minimum(q1, q2)
        q1, q2 = self.critic(obs, action)
        self.critic_adam.zero_grad()
        (F.mse_loss(q1, y) + F.mse_loss(q2, y)).backward()
        self.critic_adam.step()
        self.updates += 1
        sbx = self.config.rule == "sbx"
        if self.updates % self.config.policy_delay == 0:
            self.actor_adam.zero_grad()
            q1, q2 = self.critic(obs, self.actor(obs))
            (-(torch.minimum(q1, q2) if sbx else q1).mean()).backward()
            self.actor_adam.step()
        elif not sbx:
            return
        tau = self.config.tau
        for net, target in ((self.actor, self.target_actor), (self.critic, self.target_critic)):
            for p, p_target in zip(net.parameters(), target.parameters(), strict=True):
                p_target.data = (1 - tau) * p_target.data + tau * p.data


@pytest.mark.parametrize("rule", ["paper", "sbx"])
@pytest.mark.parametrize("policy_delay", [1, 2, 3])
def test_updates_equal_a_plain_implementation(policy_delay, rule):
    algorithm = learner(policy_delay=policy_delay, rule=rule, tau=0.1, actor_lr=3e-3, critic_lr=1e-2)
    start = arrays(algorithm)
    plain = Plain(algorithm)
    for step in range(12):
        b = batch(step, discount=0.0 if step % 3 == 0 else 0.99)
        algorithm.update(b)
        plain.update(b)
    for name in ("actor", "critic", "target_actor", "target_critic"):
        expected = torch.nn.utils.parameters_to_vector(getattr(plain, name).parameters()).detach().numpy()
        np.testing.assert_allclose(algorithm.state()[name], expected, rtol=0, atol=2e-5, err_msg=name)
        assert np.abs(expected - start[name]).max() > 1e-3  # there was something to get wrong


def test_terminal_transitions_do_not_look_at_their_successor():
    near, far = batch(discount=0.0), batch(discount=0.0)
    far.next_obs["obs"][:] *= 100
    one, other = learner(), learner()
    one.update(near)
    other.update(far)
    assert one.weights_sha256() == other.weights_sha256()


def test_truncated_transitions_do():
    near, far = batch(discount=0.99), batch(discount=0.99)
    far.next_obs["obs"][:] *= 100
    one, other = learner(), learner()
    one.update(near)
    other.update(far)
    assert one.weights_sha256() != other.weights_sha256()


# --- what moves when


def test_targets_move_once_per_actor_update():
    algorithm = learner(tau=0.1, policy_delay=2)
    for online, target in (("actor", "target_actor"), ("critic", "target_critic")):
        algorithm._books.flats[online].value.data.fill_(1.0)
        algorithm._books.flats[target].value.data.fill_(0.0)
    algorithm.update(batch())
    assert not algorithm.state()["target_actor"].any()
    assert not algorithm.state()["target_critic"].any()
    algorithm.update(batch())
    # The online weights have moved by at most two steps of 3e-4; twice moved targets would be at 0.19.
    np.testing.assert_allclose(algorithm.state()["target_actor"], 0.1, atol=1e-3)
    np.testing.assert_allclose(algorithm.state()["target_critic"], 0.1, atol=1e-3)


def test_by_the_rule_of_sbx_targets_move_in_every_update():
    algorithm = learner(tau=0.1, policy_delay=3, rule="sbx")
    for online, target in (("actor", "target_actor"), ("critic", "target_critic")):
        algorithm._books.flats[online].value.data.fill_(1.0)
        algorithm._books.flats[target].value.data.fill_(0.0)
    for expected in (0.1, 0.19, 0.271):
        algorithm.update(batch())
        np.testing.assert_allclose(algorithm.state()["target_actor"], expected, atol=1e-3)
        np.testing.assert_allclose(algorithm.state()["target_critic"], expected, atol=1e-3)


@pytest.mark.parametrize(("rule", "expected"), [("paper", -8.0), ("sbx", -2.0)])
def test_the_actor_is_pulled_to_the_first_critic_or_to_the_smaller_one(rule, expected):
    algorithm = learner(rule=rule)
    algorithm._critic_flat.value.data.zero_()
    for q, value in zip(algorithm._critic.q, (8.0, 2.0), strict=True):
        q[-1].bias.data.fill_(value)
    algorithm._step_actor(torch.zeros(2, 3))
    assert algorithm.metrics()["train/actor_loss"] == expected


def test_delayed_update_leaves_the_actor_and_its_moments_alone():
    algorithm = learner(policy_delay=3)
    before = arrays(algorithm)
    algorithm.update(batch())
    changed = {name for name, array in arrays(algorithm).items() if not np.array_equal(array, before[name])}
    assert changed == {"critic", "critic.exp_avg", "critic.exp_avg_sq", "critic.step", "counters", "generator"}


def test_actor_step_gives_the_critics_no_gradient():
    algorithm = learner()
    algorithm._critic_flat.grad.fill_(7.0)
    algorithm._step_actor(torch.zeros(4, 3))
    assert (algorithm._critic_flat.grad == 7.0).all()
    assert algorithm._actor_flat.grad.abs().sum() > 0


@pytest.mark.parametrize("rule", ["paper", "sbx"])
@pytest.mark.parametrize("delay", [1, 2, 3])
def test_ledger_equals_what_policy_delay_declares(delay, rule):
    algorithm = learner(policy_delay=delay, rule=rule)
    moves = 7 if rule == "sbx" else 7 // delay
    for step in range(7):
        algorithm.update(batch(step))
    assert algorithm.ledger() == {
        "updates": 7,
        "critic_steps": 7, "critic_steps_declared": 7,
        "actor_steps": 7 // delay, "actor_steps_declared": 7 // delay,
        "target_critic_moves": moves, "target_critic_moves_declared": moves,
        "target_actor_moves": moves, "target_actor_moves_declared": moves,
        "critic_optimisers": 1, "critic_optimisers_declared": 1,
        "actor_optimisers": 1, "actor_optimisers_declared": 1,
        "critic_lr": 3e-4, "critic_lr_declared": 3e-4,
        "actor_lr": 3e-4, "actor_lr_declared": 3e-4,
    }  # fmt: skip


def test_ledger_counts_what_is_done_and_not_what_was_meant():
    algorithm = learner()
    algorithm._adams["critic"].step()
    algorithm._target_actor_flat.lerp_(algorithm._actor_flat, 0.5)
    ledger = algorithm.ledger()
    assert (ledger["updates"], ledger["critic_steps"], ledger["target_actor_moves"]) == (0, 1, 1)
    assert (ledger["critic_steps_declared"], ledger["target_actor_moves_declared"]) == (0, 0)


def test_no_mismatch_where_adam_stops_counting():
    algorithm = learner(policy_delay=1)
    algorithm.updates = FlatAdam.MOST_STEPS + 5
    for adam in algorithm._adams.values():
        adam.load("step", np.array(FlatAdam.MOST_STEPS, np.float32))
    algorithm.update(batch())
    ledger = algorithm.ledger()
    assert algorithm.updates == FlatAdam.MOST_STEPS + 6
    assert ledger["critic_steps"] == ledger["critic_steps_declared"] == FlatAdam.MOST_STEPS
    assert ledger["actor_steps"] == ledger["actor_steps_declared"] == FlatAdam.MOST_STEPS


def test_targets_start_equal_to_the_networks():
    state = learner().state()
    np.testing.assert_array_equal(state["actor"], state["target_actor"])
    np.testing.assert_array_equal(state["critic"], state["target_critic"])


# --- determinism and state


def trained(seed: int, updates: int = 6, **changes) -> TD3:
    algorithm = learner(seed, **changes)
    for step in range(updates):
        algorithm.observe(batch(step).obs, step)
        algorithm.update(batch(step))
    return algorithm


def test_same_seed_and_batches_give_the_same_weights_whatever_the_global_generator():
    torch.manual_seed(1)
    one = trained(0, normalize_observations=True).weights_sha256()
    torch.manual_seed(2)
    assert trained(0, normalize_observations=True).weights_sha256() == one
    assert trained(1, normalize_observations=True).weights_sha256() != one


def test_no_draw_comes_from_the_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    trained(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_smoothing_noise_differs_from_update_to_update():
    one, other = learner(), learner()
    other._smoothing.manual_seed(123)
    one.update(batch())
    other.update(batch())
    assert one.weights_sha256() != other.weights_sha256()


@pytest.mark.parametrize(
    "name", ["actor", "critic", "target_actor", "target_critic", "actor.exp_avg", "critic.exp_avg_sq", "normaliser.m2"]
)
def test_hash_covers_every_learned_array(name):
    algorithm = trained(0, normalize_observations=True)
    before = algorithm.weights_sha256()
    algorithm._books.learned()[name][-1] += 1
    assert algorithm.weights_sha256() != before
    algorithm._books.learned()[name][-1] -= 1
    assert len(before) == len(hashlib.sha256().hexdigest())


def test_restored_state_goes_on_bit_for_bit():
    original = trained(0, updates=3, normalize_observations=True)
    saved = arrays(original)
    restored = learner(99, normalize_observations=True)
    restored.load_state(saved)
    assert restored.weights_sha256() == original.weights_sha256()
    assert restored.ledger() == original.ledger()
    for algorithm in (original, restored):
        for step in range(3, 8):
            algorithm.update(batch(step))
    assert restored.weights_sha256() == original.weights_sha256()


def test_batches_may_be_read_only_and_of_any_size():
    algorithm = learner()
    for n in (8, 3, 8):
        b = batch(n=n)
        for array in (b.obs["obs"], b.next_obs["obs"], b.action["action"], b.reward):
            array.flags.writeable = False
        algorithm.update(b)
    assert algorithm.updates == 3


# --- publishing, observing, measuring


def test_published_arrays_are_live_and_act():
    algorithm = learner()
    published = algorithm.policy_arrays()
    assert sorted(published) == ["actor", "exploration_scale"]
    assert (published["exploration_scale"].dtype, published["exploration_scale"].shape) == (np.float64, (1,))
    before = published["actor"].copy()
    algorithm.update(batch())
    algorithm.update(batch())
    assert not np.array_equal(published["actor"], before)

    actor = build_actor(algorithm.policy)
    actor.load(published)
    obs = batch().obs
    with torch.no_grad():
        expected = 2 * algorithm._actor(torch.tensor(obs["obs"])).numpy()
    np.testing.assert_allclose(actor.act(obs)["action"], expected, atol=2e-6)


def test_acting_and_learning_normalise_alike():
    algorithm = learner(normalize_observations=True)
    algorithm.observe({"obs": np.random.default_rng(0).normal(5, 3, (100, 3)).astype(np.float32)}, 100)
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())
    b = batch()
    obs, *_ = algorithm._inputs.tensors(b)
    assert not np.allclose(obs.numpy(), b.obs["obs"])
    with torch.no_grad():
        np.testing.assert_allclose(actor.act(b.obs)["action"], 2 * algorithm._actor(obs).numpy(), atol=2e-6)


def test_observing_moves_the_schedule_and_the_statistics():
    exploration = ExplorationConfig(scale=0.5, final_scale=0.1, decay_steps=100)
    algorithm = learner(normalize_observations=True, exploration=exploration)
    published = algorithm.policy_arrays()
    assert published["exploration_scale"].tolist() == [0.5]
    algorithm.observe({"obs": np.array([[0, 0, 0], [2, 4, 6]], np.float32)}, 50)
    assert published["exploration_scale"][0] == pytest.approx(0.3)
    np.testing.assert_allclose(published["obs_mean"], [1, 2, 3])
    np.testing.assert_allclose(published["obs_std"], [1, 2, 3], rtol=1e-6)


def test_metrics_are_means_since_the_last_call_and_absent_if_not_measured():
    one, both = learner(), learner()
    one.update(batch(0))
    first = one.metrics()
    assert set(first) == {
        "train/critic_loss", "train/q_mean", "train/target_q_mean", "train/critic_grad_norm", "train/exploration_scale"
    }  # fmt: skip
    one.update(batch(1))
    second = one.metrics()
    assert {"train/actor_loss", "train/actor_grad_norm"} < set(second)
    both.update(batch(0))
    both.update(batch(1))
    mean = both.metrics()
    for name in ("train/critic_loss", "train/q_mean", "train/target_q_mean"):
        assert mean[name] == pytest.approx((first[name] + second[name]) / 2)
    assert one.metrics() == {"train/exploration_scale": 0.1}


def test_critic_loss_falls_on_a_fixed_target():
    algorithm = learner(critic_lr=1e-2)
    algorithm.update(batch(discount=0.0))
    first = algorithm.metrics()["train/critic_loss"]
    for _ in range(300):
        algorithm.update(batch(discount=0.0))
    algorithm.metrics()
    algorithm.update(batch(discount=0.0))
    assert algorithm.metrics()["train/critic_loss"] < first / 20


# --- what goes wrong


def test_non_finite_critic_loss_changes_nothing_and_names_the_row():
    algorithm = trained(0, updates=2)
    before = algorithm.weights_sha256()
    bad = batch()
    bad.reward[5] = np.nan
    with pytest.raises(NonFiniteValue) as caught:
        algorithm.update(bad)
    assert str(caught.value) == (
        "[ENV-003] learner: the critic's loss or gradient is not finite; no weight was changed\n"
        "  update: 3\n"
        "  loss: nan\n"
        "  gradient norm: nan\n"
        "  batch: reward of row 5 is nan\n"
        "  fix: if the batch holds such a value, mend the environment; "
        "else lower algorithm.critic_lr or scale the rewards down"
    )
    bad.reward[5] = 1e39  # finite, as float64
    with pytest.raises(NonFiniteValue, match=r"batch: reward of row 5 is 1e\+39, which float32 cannot hold"):
        algorithm.update(bad)
    assert algorithm.weights_sha256() == before
    assert algorithm.updates == algorithm.ledger()["critic_steps"] == 2
    algorithm.update(batch())
    assert np.isfinite(algorithm.state()["critic"]).all()


def test_non_finite_actor_loss_takes_the_critic_step_back():
    algorithm = trained(0, updates=3)
    with torch.no_grad():
        algorithm._actor_flat.value[-1] = torch.nan
    before = algorithm.weights_sha256()
    with pytest.raises(NonFiniteValue, match="learner: the actor's loss") as caught:
        algorithm.update(batch())
    assert "batch: every value is finite" in str(caught.value)
    assert "update: 4" in str(caught.value)
    assert algorithm.weights_sha256() == before
    ledger = algorithm.ledger()
    assert (algorithm.updates, ledger["target_critic_moves"], ledger["critic_steps"]) == (3, 1, 3)


@pytest.mark.parametrize(
    ("obs", "action"),
    [(OBS, spaces.Discrete(3)), (OBS, spaces.Dict({"a": ACTION})), (OBS, spaces.Box(-np.inf, np.inf, (2,)))],
)
def test_action_spaces_that_are_no_finite_box_are_refused(obs, action):
    with pytest.raises(UnsupportedSpace, match="finite low and high"):
        TD3(config(), obs, action, 0)


@pytest.mark.parametrize("device", ["no-such-device", "cuda:99"])
def test_device_that_is_not_there(device):
    with pytest.raises(ConfigError, match=f"torch device '{device}' cannot be used") as caught:
        TD3(config(), OBS, ACTION, 0, device)
    assert "fix: set learn.device" in str(caught.value)


# --- precision


@able
def test_with_rounded_products_it_learns_alike_and_not_the_same():
    wide = NetworkConfig(hidden=[64, 64])
    given = config(actor=wide, critic=wide)
    bfloat16, float32 = (TD3(given, OBS, ACTION, 0, precision=name) for name in ("bfloat16", "float32"))
    for step in range(40):
        b = batch(step % 4)
        bfloat16.update(b)
        float32.update(b)
    one, other = bfloat16.state(), float32.state()
    for name in ("actor", "critic", "target_critic"):
        assert not np.array_equal(one[name], other[name])
        assert one[name].dtype == np.float32
        assert np.linalg.norm(one[name] - other[name]) < 0.05 * np.linalg.norm(other[name])
    assert bfloat16.metrics()["train/critic_loss"] == pytest.approx(float32.metrics()["train/critic_loss"], rel=0.1)


def test_a_processor_without_instructions_for_it_is_not_asked(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with pytest.raises(ConfigError, match="no instructions for products of bfloat16"):
        TD3(config(), OBS, ACTION, 0, precision="bfloat16")


def test_a_torch_that_cannot_round_products_is_not_asked(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.backends, "mkldnn", object())  # as before 2.9
    with pytest.raises(ConfigError, match="this torch cannot round") as caught:
        TD3(config(), OBS, ACTION, 0, precision="bfloat16")
    assert f"found: torch {torch.__version__}" in str(caught.value)
