"""PPO against formulas worked out by hand and against a plain implementation of whole epochs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.on_policy import OnPolicy
from headrace.algorithms.policy_losses import clipped_surrogate, standardised, value_loss
from headrace.algorithms.registry import build_actor, build_algorithm
from headrace.algorithms.returns import gae
from headrace.algorithms.rollouts import Rows
from headrace.algorithms.scaling import Rewards
from headrace.core.errors import NonFiniteValue
from headrace.core.specs import leaves
from on_policy_support import (
    BOX,
    DISCRETE,
    MASK,
    MASKED,
    OBS,
    Plain,
    arrays,
    corrector,
    learn,
    learner,
    one_thread,
    permuted,
    random_observations,
    rollout,
)

assert one_thread  # a fixture: applies to every test here
WHOLE = {"batch_size": 10_000}


def targets(algorithm: OnPolicy, told: Any) -> np.ndarray:
    """Logprob, advantage, target and value of every step, [S, 4]."""
    algorithm.begin(told)
    assert isinstance(algorithm._rows, Rows)
    return algorithm._rows.numbers.T


# --- the formulas


def test_nothing_is_gained_beyond_the_clip_but_everything_can_be_lost():
    ratio = np.array([1.0, 1.5, 0.5, 1.5, 0.5], np.float32)
    advantage = np.array([2.0, 1.0, 1.0, -1.0, -1.0], np.float32)
    #            min(a r, a clip(r)):  2, 1.2, 0.5, -1.5, -0.8
    assert clipped_surrogate(advantage, ratio, 0.2)[0] == pytest.approx(-(2 + 1.2 + 0.5 - 1.5 - 0.8) / 5)


def test_where_it_is_clipped_no_gradient_is_left():
    ratio, advantage = np.array([[1.5, 0.5, 1.5, 0.5], [1.0, 1.0, -1.0, -1.0]], np.float32)
    _, by_logprob = clipped_surrogate(advantage, ratio, 0.2)
    np.testing.assert_allclose(by_logprob, ratio * [0.0, -0.25, 0.25, 0.0])


def test_value_loss_with_and_without_clip():
    value, target, before = np.array([[3.0, 1.0], [0.0, 2.0], [1.0, 1.0]], np.float32)
    assert value_loss(value, target, before, None)[0] == pytest.approx((9 + 1) / 2)
    # Clipped, 1.5 is nearer: the worse counts.
    assert value_loss(value, target, before, 0.5)[0] == pytest.approx((9 + 1) / 2)
    target = np.array([3.0, 2.0], np.float32)
    assert value_loss(value, target, before, 0.5)[0] == pytest.approx((1.5**2 + 1) / 2)


def test_advantages_are_scaled_and_one_alone_is_left():
    scaled = standardised(np.array([1.0, 2.0, 3.0], np.float32))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [-1.0, 0.0, 1.0], atol=1e-6)
    assert standardised(np.array([7.0], np.float32)).tolist() == [7.0]


@pytest.mark.parametrize("rows", [5, 50, 64, 100, 1000])
def test_advantages_that_are_all_equal_are_none(rows):
    """Their mean, rounded, may be another number, and the distance to it is the whole deviation."""
    rng = np.random.default_rng(0)
    weight = rng.uniform(0.0, 3.0, rows).astype(np.float32)
    for constant in rng.normal(0.0, 1.0, 200) * 10.0 ** rng.uniform(-6, 6, 200):
        equal = np.full(rows, constant, np.float32)
        assert not standardised(equal).any()
        assert not standardised(equal, weight).any()


def test_advantages_that_differ_little_are_scaled_all_the_same():
    scaled = standardised(np.array([1000.0, 1000.5, 1001.0], np.float32))
    np.testing.assert_allclose(scaled, [-1.0, 0.0, 1.0], atol=1e-3)


def test_weighted_advantages_have_mean_0_once_they_are_weighted():
    advantage, weight = np.array([1.0, 2.0, 6.0], np.float32), np.array([2.0, 1.0, 0.5], np.float32)
    middle = (2 + 2 + 3) / 3.5
    deviation = np.sqrt(sum((one - middle) ** 2 for one in (1, 2, 6)) / 2)
    scaled = standardised(advantage, weight)
    np.testing.assert_allclose(scaled, (advantage - middle) / deviation, rtol=1e-5)
    assert float((scaled * weight).sum()) == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(standardised(advantage, np.zeros(3, np.float32)), advantage / np.sqrt(41 / 2), rtol=1e-6)


# --- targets of a rollout: the cases of others, through everything that makes them


def counting(ends: list[str], values: list[float], gamma: float = 0.9, lam: float = 0.95) -> np.ndarray:
    """Advantages of three steps with reward 1; ``values`` of what each step was taken on, and of what the last led to."""
    algorithm = learner(gamma=gamma, gae_lambda=lam, **WHOLE)
    algorithm._network.value = lambda obs: obs[:, 0]  # worth what it says
    told = rollout(algorithm, steps=3, streams=1, ends=".")
    told.obs["obs"][:] = 99.0  # whatever is looked at and should not be
    told.then[:, 0] = [1, 2, 3]
    told.at[:, 0] = [0, 1, 2]
    told.obs["obs"][:4, 0] = values
    told.reward[:] = 1.0
    told.terminated[-1], told.ended[-1], told.episode_ended[-1] = "t" in ends, "end" in ends, "episode" in ends
    return targets(algorithm, told)[:, 1]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["end", "episode"], [2.06882, 1.484, 0.8]),
        (["end"], [2.06882, 1.484, 0.8]),
        (["t", "end", "episode"], [0.752975, -0.055, -1.0]),
    ],
    ids=["truncated or cut", "the rollout ends", "terminated"],
)
def test_e063_what_is_cut_off_bootstraps_and_what_terminates_does_not(ends, expected):
    np.testing.assert_allclose(counting(ends, [2.0, 2.0, 2.0, 2.0]), expected, rtol=1e-6)


def test_e064_a_timeout_bootstraps_from_its_own_last_observation():
    advantages = counting(["end", "episode"], [2.0, 2.0, 2.0, 5.0])
    assert advantages[-1] + 2.0 == pytest.approx(5.5)


def test_e062_e067_e073_no_pair_crosses_an_episode():
    """A timeout after two steps: its pair is (1, 2), and what the next episode begins with and earns changes nothing."""
    algorithm = learner(gamma=0.9, gae_lambda=0.95, **WHOLE)
    algorithm._network.value = lambda obs: obs[:, 0]
    found = []
    for later in (0.0, 50.0):
        told = rollout(algorithm, steps=4, streams=1, ends=".")
        told.obs["obs"][:6, 0] = [0, 1, 2, later, later, later]  # 2 is the last observation of the first episode
        told.at[:, 0], told.then[:, 0] = [0, 1, 3, 4], [1, 2, 4, 5]
        told.reward[:, 0] = [1, 1, later, later]
        told.ended[1], told.episode_ended[1] = True, True
        found.append(targets(algorithm, told)[:, 1].copy())
        while algorithm.pending:
            algorithm.update()
    np.testing.assert_array_equal(found[0][:2], found[1][:2])
    last = 1 + 0.9 * 2 - 1
    np.testing.assert_allclose(found[0][:2], [1 + 0.9 * 1 - 0 + 0.9 * 0.95 * last, last], rtol=1e-6)
    assert (found[0][2:] != found[1][2:]).all()


def test_e068_a_reward_at_the_end_reaches_the_steps_before_it():
    algorithm = learner(gamma=1.0, gae_lambda=1.0, **WHOLE)
    told = rollout(algorithm, steps=3, streams=1, ends=".")
    told.reward[:, 0] = [0, 0, 1]
    told.terminated[-1] = told.episode_ended[-1] = True
    np.testing.assert_allclose(targets(algorithm, told)[:, 2], [1.0, 1.0, 1.0], rtol=1e-6)


def test_e066_what_is_no_step_is_not_looked_at():
    """Ragged streams, and a lost step in the middle: rubbish in them changes nothing."""
    algorithm = learner(**WHOLE)
    told = rollout(algorithm, steps=4, streams=3, ends=".")
    told.valid[3, 1] = told.valid[1, 2] = False
    told.ended[2, 1] = told.ended[0, 2] = told.episode_ended[0, 2] = True
    plain = targets(algorithm, told).copy()
    while algorithm.pending:
        algorithm.update()
    algorithm.load_state(arrays(learner(**WHOLE)))
    for name in ("reward", "terminated", "at", "then"):
        getattr(told, name)[~told.valid] = np.nan if name == "reward" else 10**6
    told.ended[~told.valid] = told.episode_ended[~told.valid] = False
    told.told["logprob"][~told.valid] = np.nan
    told.action["action"][~told.valid] = 99
    np.testing.assert_array_equal(targets(algorithm, told), plain)
    assert len(plain) == 10


def test_a_stretch_ends_where_no_step_follows():
    """Whoever hands over a ragged stream need not say so a second time."""
    algorithm = learner(gamma=0.9, gae_lambda=1.0, **WHOLE)
    algorithm._network.value = lambda obs: 0.0 * obs[:, 0]
    told = rollout(algorithm, steps=3, streams=1, ends=".")
    told.reward[:, 0] = [1.0, 1.0, 1.0]
    told.valid[1] = False
    told.ended[:] = [[False], [False], [True]]
    np.testing.assert_allclose(targets(algorithm, told)[:, 1], [1.0, 1.0])


@pytest.mark.parametrize("make", [learner, corrector], ids=["ppo", "vtrace"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(4)))
def test_the_order_of_streams_changes_no_target(make, seed, order):
    found = []
    for places in (range(4), order):
        algorithm = make(normalize={"rewards": True}, **WHOLE)
        told = permuted(rollout(algorithm, seed), np.array(places))
        number = np.broadcast_to(told.lanes, told.valid.shape)[told.valid]
        numbers = targets(algorithm, told)
        found.append(np.concatenate([numbers[number == lane] for lane in range(4)]))
    np.testing.assert_array_equal(*found)


def test_plain_returns_are_scaled_and_nothing_follows_an_end():
    algorithm = learner(advantage="return", gamma=0.5, **WHOLE)
    told = rollout(algorithm, steps=4, streams=1, ends=".")
    told.reward[:, 0] = [1, 2, 4, 8]
    told.ended[1] = told.episode_ended[1] = True
    raw = np.array([1 + 0.5 * 2, 2, 4 + 0.5 * 8, 8])
    expected = (raw - raw.mean()) / raw.std()
    numbers = targets(algorithm, told)
    np.testing.assert_allclose(numbers[:, 2], expected, rtol=1e-6)
    np.testing.assert_allclose(numbers[:, 1], expected - numbers[:, 3], rtol=1e-5)


# --- the acting policy and the learning one


@pytest.mark.parametrize(
    ("action", "obs", "changes"),
    [
        (DISCRETE, OBS, {}),
        (DISCRETE, MASKED, MASK),
        (BOX, OBS, {"network": {"log_std": -0.5}}),
        (spaces.MultiDiscrete([2, 3, 4]), OBS, {}),
    ],
    ids=["discrete", "masked", "box", "several"],
)
def test_at_first_the_ratio_is_one_even_when_statistics_move(action, obs, changes):
    algorithm = learner(action, obs, normalize={"observations": True}, batch_size=7, lr=0.02, **changes)
    rng = np.random.default_rng(1)
    for seed in range(3):
        told = rollout(algorithm, seed)
        algorithm.observe(random_observations(obs, rng, 40), 40 * (seed + 1))
        algorithm.begin(told)
        algorithm.update()
        measured = algorithm.metrics()
        assert measured["train/clip_fraction"] == 0.0
        assert abs(measured["train/approx_kl"]) < 1e-6
        while algorithm.pending:
            algorithm.update()
        moved = algorithm.metrics()
        assert moved["train/approx_kl"] > 1e-4
    assert algorithm.policy_arrays()["obs_mean"].any()


def test_statistics_count_from_the_next_policy_on():
    algorithm = learner(normalize={"observations": True}, **WHOLE)
    told = rollout(algorithm)
    algorithm.observe({"obs": np.full((4, 3), 5.0, np.float32)}, 4)
    algorithm.begin(told)
    assert not algorithm.policy_arrays()["obs_mean"].any()
    learn_rest(algorithm)
    np.testing.assert_allclose(algorithm.policy_arrays()["obs_mean"], 5.0)


def learn_rest(algorithm: OnPolicy) -> None:
    while algorithm.pending:
        algorithm.update()


def test_rewards_are_scaled_by_the_deviation_of_discounted_returns():
    algorithm = learner(gamma=0.5, normalize={"rewards": True, "reward_clip": 1.5}, **WHOLE)
    returns: list[float] = []
    running = np.zeros(2)
    for seed in range(3):
        told = rollout(algorithm, seed, steps=4, streams=2)
        told.lanes = np.array([1, 0])
        for step, stream in np.ndindex(told.reward.shape):
            lane = told.lanes[stream]
            running[lane] = 0.5 * running[lane] + told.reward[step, stream]
            returns.append(running[lane])
            if told.episode_ended[step, stream]:
                running[lane] = 0.0
        scaled = algorithm._inputs.rewards.scaled(told)
        expected = np.clip(told.reward / math.sqrt(np.var(returns) + 1e-8), -1.5, 1.5)
        np.testing.assert_allclose(scaled, expected, rtol=1e-6)


def test_an_episode_that_was_cut_after_a_rollout_earns_nothing_for_the_next_one():
    """What tells of the cut is a row without a step, which no rollout has: the next one begins with an episode's step 0."""
    rewards = learner(gamma=0.5, normalize={"rewards": True})._inputs.rewards
    told = rollout(learner(), steps=2, streams=1)
    told.episode_ended[:] = False
    rewards.scaled(told)
    told.t = np.array([[0], [1]])
    rewards.scaled(told)
    assert rewards._running[0] == told.reward[1, 0] + 0.5 * told.reward[0, 0]


def test_a_lane_may_come_in_two_streams_and_any_number_of_lanes():
    """Half a stream after the other is the same as both at once, and the hundredth lane finds its place."""
    one = learner(normalize={"rewards": True})._inputs.rewards
    two = learner(normalize={"rewards": True})._inputs.rewards
    told = rollout(learner(), steps=4, streams=1)
    told.lanes = np.array([100])
    whole = one.scaled(told)
    halves = permuted(told, np.array([0, 0]))
    halves.valid = np.array([[True, False], [True, False], [False, True], [False, True]])
    split = two.scaled(halves)
    np.testing.assert_allclose(split.sum(axis=1), whole[:, 0], rtol=1e-12)
    assert len(two.arrays()["returns"]) == 128


def test_rewards_stay_as_they_are_unless_told():
    told = rollout(learner())
    plain = learner()._inputs.rewards
    assert isinstance(plain, Rewards)
    np.testing.assert_array_equal(plain.scaled(told), told.reward)
    assert plain.arrays() == {}


# --- updates


@pytest.mark.parametrize(
    ("action", "obs", "changes"),
    [
        (DISCRETE, OBS, {"loss": {"entropy_weight": 0.05, "value_weight": 0.7}}),
        (DISCRETE, MASKED, {"loss": {"entropy_weight": 0.05}, **MASK}),
        (BOX, OBS, {"loss": {"entropy_weight": 0.05}, "optimiser": {"beta2": 0.9, "eps": 1e-4}}),
    ],
    ids=["discrete", "masked", "box"],
)
def test_three_epochs_equal_a_plain_implementation(action, obs, changes):
    algorithm = learner(action, obs, lr=0.02, **WHOLE, **changes)
    plain = Plain(algorithm)
    start = algorithm._flat.value.clone()
    told = rollout(algorithm, 3)
    see = torch.from_numpy(np.concatenate([told.obs[leaf.path] for leaf in leaves(obs, "obs")], axis=1)).float()
    values = plain.values(see)
    advantage, target = gae(told.reward, values[told.at], values[told.then], told.terminated, told.ended, 0.99, 0.95)
    flat = torch.from_numpy(told.at.ravel())
    legal = torch.from_numpy(told.obs["obs.mask"] != 0)[flat] if obs is MASKED else None
    drawn = told.told["raw_action"].reshape(-1, 2) if action is BOX else told.action["action"].ravel() - 2
    old = torch.from_numpy(told.told["logprob"].ravel())
    for _ in range(3):
        plain.update(see[flat], legal, torch.from_numpy(drawn), old, advantage.ravel(), target.ravel())
    assert learn(algorithm, told) == 3
    expected = torch.cat([parameter.detach().ravel() for parameter in plain.network.parameters()])
    assert (algorithm._flat.value - start).abs().max() > 0.02
    torch.testing.assert_close(algorithm._flat.value, expected, rtol=0, atol=2e-5)


def test_each_transition_is_learned_from_once_an_epoch(monkeypatch):
    algorithm = learner(batch_size=7, epochs=3)
    told = rollout(algorithm, steps=5, streams=4)
    told.valid[4, 3] = False
    told.told["logprob"][...] -= np.arange(20).reshape(5, 4) * 1e-3  # tells them apart
    seen: list[np.ndarray] = []
    batch = Rows.batch
    monkeypatch.setattr(Rows, "batch", lambda rows, index: spied(batch(rows, index), seen))
    assert learn(algorithm, told) == 9
    assert [len(part) for part in seen] == [7, 7, 5] * 3
    epochs = [np.concatenate(seen[start : start + 3]) for start in (0, 3, 6)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.sort(told.told["logprob"][told.valid]))
    assert any((epochs[0] != later).any() for later in epochs[1:])
    ledger = algorithm.ledger()
    assert ledger["transitions"] == ledger["transitions_declared"] == 57


def spied(found: Any, seen: list[np.ndarray]) -> Any:
    seen.append(found.logprob.copy())
    return found


def test_updates_end_when_the_policy_has_gone_too_far():
    algorithm = learner(lr=0.05, epochs=50, loss={"target_kl": 0.01}, **WHOLE)
    told = rollout(algorithm)
    kls = []
    algorithm.begin(told)
    while algorithm.pending:
        algorithm.update()
        kls.append(algorithm.metrics()["train/approx_kl"])
    assert 1 < len(kls) < 50
    assert max(kls[:-1]) <= 0.01 < kls[-1]
    ledger = algorithm.ledger()
    assert ledger["updates"] == ledger["network_steps"] == len(kls)
    assert ledger["transitions"] == ledger["transitions_declared"] == 20 * len(kls)
    assert ledger["early_stops"] == 1
    algorithm.begin(rollout(algorithm, 1))  # and go on with the next one
    assert algorithm.pending


def test_the_ledger_holds_in_the_middle_of_an_epoch_set():
    algorithm = learner(batch_size=6)
    algorithm.begin(rollout(algorithm))
    for _ in range(2):
        algorithm.update()
        ledger = algorithm.ledger()
        assert ledger["transitions"] == ledger["transitions_declared"] == 6 * algorithm.updates
        assert ledger["network_steps"] == ledger["network_steps_declared"] == algorithm.updates


def test_an_empty_rollout_opens_nothing():
    algorithm = learner(normalize={"observations": True})
    told = rollout(algorithm)
    told.valid[:] = False
    algorithm.observe({"obs": np.ones((2, 3), np.float32)}, 2)
    algorithm.begin(told)
    assert not algorithm.pending
    assert algorithm.policy_arrays()["obs_mean"].all()


def test_a_schedule_counts_no_steps_of_later_rollouts():
    """With a lag, more or fewer of them are there when one is begun, as their collectors were fast or slow."""
    algorithm = learner(lr=0.01, clip=0.2, schedule={"final_lr": 0.0, "final_clip": 0.1, "decay_steps": 100})
    told = rollout(algorithm)
    algorithm.observe({}, 60)
    algorithm.begin(replace(told, waiting=20))
    measured = algorithm.metrics()
    assert (measured["train/learning_rate"], measured["train/clip_range"]) == pytest.approx((0.006, 0.16))


def test_rate_and_clip_fall_with_environment_steps_and_stand_still_within_a_rollout():
    algorithm = learner(lr=0.01, clip=0.2, schedule={"final_lr": 0.0, "final_clip": 0.1, "decay_steps": 100})
    seen = []
    for steps in (0, 25, 100, 300):
        algorithm.observe({}, steps)
        algorithm.begin(rollout(algorithm))
        algorithm.observe({}, steps + 50)
        learn_rest(algorithm)
        measured, ledger = algorithm.metrics(), algorithm.ledger()
        assert ledger["network_lr"] == ledger["network_lr_declared"]
        seen.append((measured["train/learning_rate"], measured["train/clip_range"]))
    np.testing.assert_allclose(seen, [(0.01, 0.2), (0.0075, 0.175), (0.0, 0.1), (0.0, 0.1)])


def test_metrics_say_how_well_values_fit():
    algorithm = learner(gae_lambda=0.0, gamma=0.0, **WHOLE)
    algorithm._network.value = lambda obs: obs[:, 0]
    told = rollout(algorithm)
    told.reward[:] = told.obs["obs"][told.at][..., 0]
    algorithm.begin(told)
    assert algorithm.metrics()["train/explained_variance"] == pytest.approx(1.0)


# --- what goes wrong


def test_a_rollout_that_holds_no_number_is_refused_and_nothing_has_changed():
    algorithm = learner(normalize={"rewards": True})
    before = arrays(algorithm)
    told = rollout(algorithm)
    told.reward[2, 1] = np.nan
    with pytest.raises(NonFiniteValue, match="a rollout holds what is no number") as caught:
        algorithm.begin(told)
    assert "reward of row 9 is nan" in str(caught.value)
    assert not algorithm.pending
    assert_same(before, arrays(algorithm))


def test_rewards_beyond_float32_are_named_and_can_be_normalised():
    algorithm = learner()
    told, weights = rollout(algorithm), algorithm.weights_sha256()
    told.reward[2, 1] = 1e39
    with pytest.raises(NonFiniteValue, match=r"advantage of step \d+ is 9.405e\+38; rewards from .* to 1e\+39"):
        algorithm.begin(told)
    assert not algorithm.pending
    assert algorithm.weights_sha256() == weights
    learner(normalize={"rewards": True}).begin(told)


def test_a_loss_that_is_not_finite_changes_no_weight():
    algorithm = learner()
    told = rollout(algorithm)
    told.told["logprob"][...] = -1e30  # the ratio overflows
    weights = algorithm.weights_sha256()
    algorithm.begin(told)
    with pytest.raises(NonFiniteValue, match="actor or critic's loss or gradient is not finite; no weight was changed"):
        algorithm.update()
    assert algorithm.weights_sha256() == weights
    assert algorithm.updates == 0


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


# --- saved, restored, repeated

EVERYTHING = {
    "normalize": {"observations": True, "rewards": True},
    "schedule": {"final_lr": 1e-4, "final_clip": 0.1, "decay_steps": 200},
    "loss": {"target_kl": 0.02, "entropy_weight": 0.01},
    "lr": 0.01,
    "batch_size": 7,
}


def round_of(algorithm: OnPolicy, seed: int) -> None:
    told = rollout(algorithm, seed)
    algorithm.observe(told.obs, 20 * (seed + 1))
    learn(algorithm, told)


@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "box"])
def test_it_goes_on_from_its_state_bit_for_bit(action):
    one, other = learner(action, **EVERYTHING), learner(action, seed=5, **EVERYTHING)
    for seed in range(2):
        round_of(one, seed)
    other.load_state(arrays(one))
    assert other.weights_sha256() == one.weights_sha256()
    for algorithm in (one, other):
        for seed in range(2, 5):
            round_of(algorithm, seed)
    assert_same(arrays(one), arrays(other))
    assert one.ledger() == other.ledger()
    assert_same(one.policy_arrays(), other.policy_arrays())


def test_a_state_is_only_told_between_epoch_sets():
    algorithm = learner()
    algorithm.begin(rollout(algorithm))
    with pytest.raises(AssertionError, match="an epoch set is open"):
        algorithm.state()
    with pytest.raises(AssertionError, match="an epoch set is open"):
        algorithm.begin(rollout(algorithm))


def test_equal_seeds_give_equal_weights_and_others_do_not():
    hashes = []
    for seed in (3, 3, 4):
        algorithm = learner(seed=seed, **EVERYTHING)
        round_of(algorithm, 0)
        hashes.append(algorithm.weights_sha256())
    assert hashes[0] == hashes[1] != hashes[2]


def test_no_global_generator_is_touched():
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    round_of(learner(**EVERYTHING), 0)
    assert torch.equal(torch_state, torch.random.get_rng_state())
    np.testing.assert_array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_it_begins_orthogonal_with_no_preference():
    algorithm = build_algorithm(learner(network={}).policy.config, OBS, DISCRETE, 0)
    linear = [layer for layer in algorithm._network.actor if isinstance(layer, torch.nn.Linear)]
    inner = linear[1].weight
    torch.testing.assert_close(inner @ inner.T, 2.0 * torch.eye(64), atol=1e-4, rtol=0)
    last = linear[2].weight
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(4), atol=1e-8, rtol=0)
    assert not any(layer.bias.any() for layer in linear)
    value = algorithm._network.critic[-1].weight
    assert float(value.detach().norm()) == pytest.approx(1.0, abs=1e-5)


# --- it learns


def chance(algorithm: OnPolicy, obs: np.ndarray) -> np.ndarray:
    """Probabilities [B, n] of all actions."""
    with torch.no_grad():
        return torch.softmax(algorithm._network.actor(torch.from_numpy(obs)), dim=1).numpy()


def test_a_bandit_is_learned():
    algorithm = learner(lr=0.02, epochs=4, gamma=0.9, **WHOLE)
    for seed in range(40):
        told = rollout(algorithm, seed, steps=1, streams=32, ends="t")
        told.obs["obs"][:] = 1.0
        told.at[:], told.then[:] = 0, 0
        told = acted_again(algorithm, told, seed)
        told.reward[:] = np.array([0.0, 1.0, 0.5, -1.0])[told.action["action"] - 2]
        learn(algorithm, told)
    one = np.ones((1, 3), np.float32)
    assert chance(algorithm, one)[0, 1] > 0.95
    assert float(algorithm._network.value(torch.from_numpy(one)).detach()) == pytest.approx(1.0, abs=0.1)


def acted_again(algorithm: OnPolicy, told: Any, seed: int) -> Any:
    """The same rollout with actions for observations that were changed."""
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())
    noise = [actor.noise(np.random.default_rng((seed, place))) for place in range(told.at.shape[1])]
    acted = actor.act({"obs": told.obs["obs"][told.at[0]]}, noise)
    return replace(told, action={"action": acted["action"][None]}, told={"logprob": acted["logprob"][None]})


def test_a_chain_is_learned_and_its_values_are_exact():
    """Three places in a row; action 3 goes on, all else stays. The end pays 1, and everything costs 0.1."""
    algorithm = learner(lr=0.02, epochs=4, gamma=0.9, network={}, **WHOLE)
    places = np.eye(4, 3, dtype=np.float32)
    for seed in range(40):
        learn(algorithm, walk(algorithm, places, seed))
    chances = chance(algorithm, places[:3])
    assert (chances[:, 1] > 0.9).all(), chances
    with torch.no_grad():
        found = algorithm._network.value(torch.from_numpy(places[:3])).numpy()
    best = [0.9 * (0.9 * 0.9 - 0.1) - 0.1, 0.9 * 0.9 - 0.1, 0.9]
    np.testing.assert_allclose(found, best, atol=0.1)


def walk(algorithm: OnPolicy, places: np.ndarray, seed: int, steps: int = 12, streams: int = 8) -> Any:
    told = rollout(algorithm, seed, steps=steps, streams=streams, ends=".")
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())
    noise = [actor.noise(np.random.default_rng((seed, lane))) for lane in range(streams)]
    told.obs["obs"] = places
    here = np.arange(streams) % 3
    for step in range(steps):
        acted = actor.act({"obs": places[here]}, noise)
        following = here + (acted["action"] == 3)
        over = following == 3
        told.at[step], told.then[step], told.reward[step] = here, following, np.where(over, 0.9, -0.1)
        told.action["action"][step], told.told["logprob"][step] = acted["action"], acted["logprob"]
        told.terminated[step] = told.episode_ended[step] = over
        told.ended[step] |= over
        here = np.where(over, 0, following)
    return told
