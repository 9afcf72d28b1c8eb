"""IQN against formulas worked out by hand and against a plain float64 implementation of one update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.configs import IQNConfig
from headrace.algorithms.iqn import IQN, best_quantiles, chosen_quantiles, quantile_huber, td_errors, td_targets
from headrace.algorithms.registry import build_actor, check_spaces
from headrace.core.errors import ConfigError, NonFiniteValue, UnsupportedSpace
from headrace.learners.ledger import Facts, entries
from headrace.runtime.config import load_config
from iqn_support import ACTION, MASKED, OBS, Plain, Told, arrays, batch, config, learner, masked_batch, masked_learner

# --- the formulas

FINITE = st.floats(-50, 50, width=32)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(FINITE, min_size=1, max_size=5),
    targets=st.lists(FINITE, min_size=1, max_size=5),
    kappa=st.floats(0.01, 10),
    data=st.data(),
)
def test_quantile_huber_is_the_papers(values, targets, kappa, data):
    taus = data.draw(st.lists(st.floats(0, 1, width=32), min_size=len(values), max_size=len(values)))
    total = 0.0
    for tau, value in zip(taus, values, strict=True):
        for target in targets:
            error = target - value
            huber = error**2 / 2 if abs(error) <= kappa else kappa * (abs(error) - kappa / 2)
            total += abs(tau - (1.0 if error < 0 else 0.0)) * huber / kappa
    errors = td_errors(torch.tensor([values], dtype=torch.float64), torch.tensor([targets], dtype=torch.float64))
    assert errors.shape == (1, len(values), len(targets))
    found = quantile_huber(errors, torch.tensor([taus], dtype=torch.float64), kappa)
    assert found.item() == pytest.approx(total / (len(values) * len(targets)), rel=1e-9, abs=1e-12)


def test_every_value_is_held_against_every_target():
    errors = td_errors(torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 20.0, 30.0]]))
    assert errors.tolist() == [[[9.0, 19.0, 29.0], [8.0, 18.0, 28.0]]]


def test_high_fractions_are_pulled_up_and_low_ones_down():
    taus = torch.tensor([[0.25], [0.25], [0.9], [0.9]])
    errors = torch.tensor([[[3.0]], [[-3.0]], [[3.0]], [[-3.0]]])  # kappa 1: each is worth 3 - 1 / 2
    assert quantile_huber(errors, taus, 1.0).tolist() == pytest.approx([0.625, 1.875, 2.25, 0.25])


CHOOSER = torch.tensor([[1.0, 4.0, 3.0], [9.0, 1.0, 2.0]])  # [B=2, n=3]
JUDGE = torch.tensor([[[10.0, 20.0, 30.0], [1.0, 2.0, 3.0]], [[40.0, 50.0, 60.0], [4.0, 5.0, 6.0]]])  # [B, L=2, n]


def test_the_online_network_chooses_and_the_target_network_judges():
    best = best_quantiles(CHOOSER, JUDGE, None)
    torch.testing.assert_close(best, torch.tensor([[20.0, 2.0], [40.0, 4.0]]))
    target = td_targets(torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.0]), best)  # the second one terminated
    torch.testing.assert_close(target, torch.tensor([[11.0, 2.0], [-1.0, -1.0]]))


def test_no_value_of_what_cannot_be_chosen_is_used():
    legal = torch.tensor([[True, False, True], [False, False, False]])
    poisoned = torch.where(legal.unsqueeze(1), JUDGE, torch.nan)
    both = torch.where(legal, CHOOSER, torch.nan)
    torch.testing.assert_close(best_quantiles(both, poisoned, legal), torch.tensor([[30.0, 3.0], [0.0, 0.0]]))


def test_quantiles_are_those_of_what_was_chosen():
    shares = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(chosen_quantiles(JUDGE, shares), torch.tensor([[30.0, 3.0], [50.0, 5.0]]))


# --- one update, whole


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network": {"noisy": True}},
        {"network": {"noisy": True, "dueling": False}, "target": {"double": False, "every_updates": 2}},
        {"quantiles": {"kappa": 0.3}, "max_grad_norm": 0.05, "target": {"tau": 0.1, "every_updates": 1}},
    ],
    ids=["double", "noisy", "noisy, not dueling, not double", "clipped, polyak"],
)
def test_updates_equal_a_plain_implementation(changes):
    algorithm = learner(**{"target": {"every_updates": 3, "tau": 0.5}, "lr": 1e-3, **changes})
    other = algorithm._target_q_flat.value.data
    other.copy_(2 * other.roll(1))  # so that it chooses otherwise than the online network
    start, plain, told = arrays(algorithm), Plain(algorithm), Told(algorithm)
    clipped = 0
    for step in range(7):
        weight = np.random.default_rng(step).uniform(0.1, 1, 8) if step % 2 else None
        b = batch(step, discount=0.0 if step % 3 == 0 else 0.9, weight=weight)
        told.forget()
        errors = algorithm.update(b)
        np.testing.assert_allclose(errors, plain.update(b, told), rtol=0, atol=2e-6)
        np.testing.assert_allclose(algorithm._q_flat.grad.numpy()[0], plain.grad, rtol=0, atol=2e-6)
        assert algorithm.metrics()["train/q_loss"] == pytest.approx(plain.loss, abs=1e-6)
        clipped += plain.norm > 0.05
        assert (errors.dtype, errors.shape) == (np.float32, (8,))
    for name, flat in algorithm._flats().items():
        np.testing.assert_allclose(flat.numpy()[0], plain.flat(name), rtol=0, atol=2e-6, err_msg=name)
        assert np.abs(plain.flat(name) - start[name][0]).max() > 1e-3  # there was something to get wrong
    assert clipped


def test_updates_with_masks_equal_a_plain_implementation():
    algorithm = masked_learner(target={"every_updates": 2}, lr=1e-3)
    plain, told = Plain(algorithm), Told(algorithm)
    for step in range(4):
        b = masked_batch(step, legal=(0.5, 0.2, 0.9, 0.0)[step])
        told.forget()
        errors = algorithm.update(b)
        legal = [np.flatnonzero(mask).tolist() for mask in b.next_obs["obs.mask"]]
        np.testing.assert_allclose(errors, plain.update(b, told, legal), rtol=0, atol=2e-6)
        np.testing.assert_allclose(algorithm._q_flat.grad.numpy()[0], plain.grad, rtol=0, atol=2e-6)


def test_terminal_transitions_do_not_look_at_their_successor_and_truncated_ones_do():
    for discount, same in ((0.0, True), (0.9, False)):
        near, far = batch(discount=discount), batch(discount=discount)
        far.next_obs["obs"][:] *= 100
        one, other = learner(), learner()
        one.update(near)
        other.update(far)
        assert (one.weights_sha256() == other.weights_sha256()) is same


def test_rewards_are_scaled_before_anything_is_learned():
    scaled, plain = learner(target={"reward_scale": 4.0}), learner()
    for step in range(3):
        b = batch(step)
        scaled.update(b)
        plain.update(replace(b, reward=b.reward * 4.0))
    assert scaled.weights_sha256() == plain.weights_sha256()


def test_noise_and_fractions_are_drawn_anew_in_every_update():
    algorithm = learner(network={"noisy": True})
    told = Told(algorithm)
    algorithm.update(batch())
    algorithm.update(batch())
    fractions = [taus.numpy().tobytes() for taus in told.fractions]
    noises = [noise["hidden"][0].numpy().tobytes() for noise in told.noises]
    assert (len(fractions), len(noises)) == (6, 6)  # of what was chosen, of the target, of what chooses
    assert len(set(fractions)) == len(set(noises)) == 6
    assert [sorted(noise) for noise in told.noises] == [["advantage", "hidden", "value"]] * 6


def test_noise_is_factorised():
    """Source: arXiv:1706.10295, f(x) = sign(x) sqrt(|x|)."""
    algorithm = learner(network={"noisy": True, "hidden": 2000})
    (outputs,) = (algorithm._draws.noise()["hidden"][1],)
    assert outputs.square().square().mean() == pytest.approx(1.0, abs=0.1)  # of the normal behind it: x^2
    assert outputs.mean() == pytest.approx(0.0, abs=0.06)
    sigma = dict(algorithm._q.named_parameters())["hidden.weight_sigma"]
    np.testing.assert_allclose(sigma.detach().numpy(), 0.5 / np.sqrt(10), rtol=1e-6)


def test_spreads_are_learned_only_where_there_is_noise():
    assert not any("sigma" in name for name, _ in learner()._q.named_parameters())
    algorithm = learner(network={"noisy": True}, lr=1e-2)
    before = {name: p.detach().clone() for name, p in algorithm._q.named_parameters() if "sigma" in name}
    assert len(before) == 6
    algorithm.update(batch())
    after = dict(algorithm._q.named_parameters())
    assert all(not torch.equal(after[name], value) for name, value in before.items())


# --- what moves when


@pytest.mark.parametrize("every", [1, 3])
def test_the_target_is_copied_after_every_so_many_updates_and_by_nobody_else(every):
    algorithm = learner(target={"every_updates": every}, lr=1e-2)
    for step in range(1, 10):
        before = arrays(algorithm)["target_q"]
        algorithm.update(batch(step))
        state = algorithm.state()
        if step % every:
            assert np.array_equal(state["target_q"], before)
        else:
            assert np.array_equal(state["target_q"], state["q"])
        assert algorithm.ledger()["target_q_moves"] == step // every


def test_the_target_moves_once_an_update():
    algorithm = learner(target={"tau": 0.1, "every_updates": 1})
    algorithm._q_flat.value.data.fill_(1.0)
    algorithm._target_q_flat.value.data.fill_(0.0)
    algorithm.update(batch())
    np.testing.assert_allclose(algorithm.state()["target_q"], 0.1, atol=1e-3)


def test_ledger_equals_what_the_configuration_declares():
    algorithm = learner(target={"every_updates": 3}, lr=2e-3)
    for step in range(7):
        algorithm.update(batch(step))
    assert algorithm.ledger() == {
        "updates": 7,
        "q_steps": 7, "q_steps_declared": 7,
        "target_q_moves": 2, "target_q_moves_declared": 2,
        "q_optimisers": 1, "q_optimisers_declared": 1,
        "q_lr": 2e-3, "q_lr_declared": 2e-3,
    }  # fmt: skip


def test_ledger_counts_what_is_done_and_not_what_was_meant():
    """The original moved its targets softly in every step and hard in another process's hook."""
    settings = {"env.id": "CartPole-v1", "algorithm.name": "iqn", "algorithm.target.every_updates": 3}
    algorithm = learner(target={"every_updates": 3})
    for step in range(6):
        algorithm.update(batch(step))
    algorithm._move_target()
    algorithm._q_adam.step()
    found = entries(Facts(algorithm.ledger(), algorithm.updates, 6), load_config(None, settings))
    assert [entry.sentence for entry in found if not entry.ok] == [
        "the target q moved 3 times in 6 updates; algorithm.target.every_updates 3 declares 2",
        "the optimiser of the q has made 7 steps in 6 updates; the algorithm declares 6",
    ]


# --- determinism and state


def trained(seed: int = 0, updates: int = 5, **changes: Any) -> IQN:
    algorithm = learner(seed, **{"target": {"every_updates": 2}, "network": {"noisy": True}, **changes})
    for step in range(updates):
        algorithm.observe({}, step)
        algorithm.update(batch(step))
    return algorithm


def test_same_seed_and_batches_give_the_same_weights_whatever_the_global_generator():
    torch.manual_seed(1)
    one = trained().weights_sha256()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert trained().weights_sha256() == one
    assert torch.equal(torch.get_rng_state(), before)
    assert trained(1).weights_sha256() != one


@pytest.mark.parametrize("name", ["q", "target_q", "q.exp_avg", "q.exp_avg_sq"])
def test_hash_covers_every_learned_array(name):
    algorithm = trained()
    before = algorithm.weights_sha256()
    algorithm.state()[name][-1, -1] += 1
    assert algorithm.weights_sha256() != before


@pytest.mark.parametrize("noisy", [False, True])
def test_restored_state_goes_on_bit_for_bit(noisy):
    original = trained(updates=3, network={"noisy": noisy})
    restored = learner(99, target={"every_updates": 2}, network={"noisy": noisy})
    restored.load_state(arrays(original))
    assert restored.weights_sha256() == original.weights_sha256()
    assert restored.ledger() == original.ledger()
    for algorithm in (original, restored):
        for step in range(3, 8):
            algorithm.update(batch(step))
    assert restored.weights_sha256() == original.weights_sha256()
    for name, array in original.state().items():
        np.testing.assert_array_equal(restored.state()[name], array, err_msg=name)


def test_batches_may_be_read_only_and_of_any_size():
    algorithm = learner()
    for n in (8, 3, 8):
        b = batch(n=n)
        for array in (b.obs["obs"], b.next_obs["obs"], b.action["action"], b.reward):
            array.flags.writeable = False
        assert len(algorithm.update(b)) == n
    assert algorithm.updates == 3


def test_metrics_are_means_since_the_last_call():
    one, both = learner(), learner()
    one.update(batch(0))
    first = one.metrics()
    names = {"train/q_loss", "train/q_mean", "train/target_q_mean", "train/q_grad_norm"}
    assert set(first) == names | {"train/epsilon"}
    one.update(batch(1))
    second = one.metrics()
    both.update(batch(0))
    both.update(batch(1))
    mean = both.metrics()
    for name in names:
        assert mean[name] == pytest.approx((first[name] + second[name]) / 2)
    assert one.metrics() == {"train/epsilon": 1.0}


# --- what goes wrong


def test_non_finite_loss_changes_nothing_and_names_the_row():
    algorithm = trained()
    before = algorithm.weights_sha256()
    bad = batch()
    bad.reward[5] = np.nan
    with pytest.raises(NonFiniteValue) as caught:
        algorithm.update(bad)
    assert str(caught.value) == (
        "[ENV-003] learner: the Q-network's loss or gradient is not finite; no weight was changed\n"
        "  update: 6\n"
        "  loss: nan\n"
        "  gradient norm: nan\n"
        "  batch: reward of row 5 is nan\n"
        "  fix: if the batch holds such a value, mend the environment; "
        "else lower algorithm.lr or scale the rewards down"
    )
    assert algorithm.weights_sha256() == before
    assert algorithm.updates == algorithm.ledger()["q_steps"] == 5
    algorithm.update(batch())
    assert np.isfinite(algorithm.state()["q"]).all()


def test_spaces_are_looked_at_before_anything_starts():
    check_spaces(config(), OBS, ACTION)
    check_spaces(config(actions={"mask_leaf": "obs.mask"}), MASKED, ACTION)
    for one, action, match in (
        (config(), spaces.Box(-1, 1, (2,)), "an algorithm that chooses"),
        (config(), spaces.MultiBinary(4), "an algorithm that chooses"),
        (config(actions={"mask_leaf": "obs.mask"}), ACTION, "the mask of actions"),
    ):
        with pytest.raises(UnsupportedSpace, match=match):
            check_spaces(one, OBS, action)
        with pytest.raises(UnsupportedSpace, match=match):
            IQN(one, OBS, action, 0)


@pytest.mark.parametrize(
    ("given_settings", "what"),
    [
        ({"actions": {"cells": 2}}, "IQN chooses one action at a time"),
        ({"target": {"bootstrap": "best"}}, "algorithm.target.bootstrap would be ignored"),
        ({"priority": {"alpha": 0.3}}, "algorithm.priority would be ignored"),
        ({"optimiser": {"lr_final": 1e-5}}, "the schedule of the learning rate is not whole"),
        ({"optimiser": {"lr_decay_updates": 10}}, "the schedule of the learning rate is not whole"),
        ({"optimiser": {"accumulate": 3}}, "accumulate 3 would be ignored: algorithm.batch_size 64 is no multiple"),
        ({"actions": {"mask_value": 1.0}}, "nothing says where the mask of actions is"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(given_settings, what):
    with pytest.raises(ConfigError, match=what):
        IQNConfig(**given_settings)


def test_random_actions_of_the_space_are_refused_where_they_are_none():
    given_settings = {"env.id": "CartPole-v1", "algorithm.name": "iqn", "algorithm.actions.mask_leaf": "obs.mask"}
    with pytest.raises(ConfigError, match="the first actions would be drawn from the whole action space"):
        load_config(None, {**given_settings, "collect.random_steps": 100})
    assert load_config(None, {**given_settings, "collect.random_steps": 0}).algorithm.name == "iqn"


@pytest.mark.parametrize("device", ["no-such-device", "cuda:99"])
def test_device_that_is_not_there(device):
    with pytest.raises(ConfigError, match=f"torch device '{device}' cannot be used"):
        IQN(IQNConfig(), OBS, ACTION, 0, device)


def test_masked_actions_are_never_acted():
    algorithm = masked_learner(exploration={"epsilon": 0.5})
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())
    b = masked_batch(legal=0.6)
    mask = b.obs["obs.mask"]
    mask[:, 0] |= ~mask.any(axis=1)
    noise = [actor.noise(np.random.default_rng(lane)) for lane in range(8)]
    acted = np.stack([actor.act(b.obs, noise)["action"] for _ in range(200)])  # [200, 8]
    assert all(set(acted[:, lane] - 2) == set(np.flatnonzero(mask[lane])) for lane in range(8))
