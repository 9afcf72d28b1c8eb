"""DQN against formulas worked out by hand and against a plain implementation of one update."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from headrace.algorithms.base import Transitions
from headrace.algorithms.configs import DQNConfig
from headrace.algorithms.dqn import DQN, action_value, best_value, td_loss, td_slope, td_target
from headrace.algorithms.registry import build_actor, build_random_actor, check_spaces
from headrace.algorithms.sampled import SampledRows
from headrace.core.errors import ConfigError, NonFiniteValue, UnsupportedSpace
from precision_support import able

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Discrete(4, start=2)
MAP = spaces.Box(0, 1, (2, 3, 4), np.float32)
CELLS = spaces.MultiBinary(12)
MASKED = {"mask_leaf": "obs", "mask_channel": 1, "mask_value": 1.0}


def learner(seed: int = 0, **changes: Any) -> DQN:
    return DQN(DQNConfig(**{"network": {"hidden": [16]}, "batch_size": 8, **changes}), OBS, ACTION, seed)


def map_learner(seed: int = 0, cells: int = 3, **changes: Any) -> DQN:
    given = {"map": {"leaf": "obs", "channels": [8]}, "actions": {"cells": cells, **MASKED}, "batch_size": 8, **changes}
    return DQN(DQNConfig(**given), MAP, CELLS, seed)


def batch(seed: int = 0, n: int = 8, discount: float = 0.99, weight: np.ndarray | None = None) -> Transitions:
    """Views into one block of records, as a replay gives them."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(
        n, np.dtype([("obs", np.float32, 3), ("action", np.int64), ("reward", float), ("next", np.float32, 3)])
    )
    for name in ("obs", "next"):
        rows[name] = rng.uniform(-2, 2, (n, 3))
    rows["action"] = rng.integers(2, 6, n)
    rows["reward"] = rng.standard_normal(n)
    return Transitions(
        {"obs": rows["obs"]},
        {"action": rows["action"]},
        rows["reward"],
        np.full(n, discount),
        {"obs": rows["next"]},
        weight,
    )


def map_batch(seed: int = 0, n: int = 8, cells: int = 3, taken: float = 0.5) -> Transitions:
    rng = np.random.default_rng(seed)
    obs, following = rng.random((2, n, 2, 3, 4)).astype(np.float32)
    for maps in (obs, following):
        maps[:, 1] = rng.random((n, 3, 4)) < taken
    action = np.zeros((n, 12), np.int8)
    for row in action:
        row[rng.choice(12, cells, replace=False)] = 1
    return Transitions({"obs": obs}, {"action": action}, rng.standard_normal(n), np.full(n, 0.99), {"obs": following})


def arrays(algorithm: DQN) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in algorithm.state().items()}


# --- the formulas

CHOOSER = torch.tensor([[1.0, 4.0, 3.0, 2.0], [9.0, 1.0, 2.0, 3.0]])
JUDGE = torch.tensor([[10.0, 20.0, 30.0, 40.0], [50.0, 60.0, 70.0, 80.0]])


def test_the_online_network_chooses_and_the_other_one_judges():
    torch.testing.assert_close(best_value(CHOOSER, JUDGE, None, 1), torch.tensor([20.0, 50.0]))
    torch.testing.assert_close(best_value(CHOOSER, JUDGE, None, 2), torch.tensor([25.0, 65.0]))
    torch.testing.assert_close(best_value(JUDGE, JUDGE, None, 1), torch.tensor([40.0, 80.0]))


def test_no_value_of_what_cannot_be_chosen_is_used():
    legal = torch.tensor([[True, False, True, False], [False, False, False, False]])
    poisoned = torch.where(legal, JUDGE, torch.nan)
    both = torch.where(legal, CHOOSER, torch.nan)
    torch.testing.assert_close(best_value(both, poisoned, legal, 1), torch.tensor([30.0, 0.0]))
    torch.testing.assert_close(best_value(both, poisoned, legal, 2), torch.tensor([20.0, 0.0]))
    torch.testing.assert_close(best_value(both, poisoned, legal, 3), torch.tensor([20.0, 0.0]))  # two can be chosen


def test_an_action_is_worth_the_mean_of_its_cells():
    shares = torch.tensor([[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(action_value(JUDGE, shares), torch.tensor([25.0, 50.0]))


def test_target_bootstraps_but_not_over_termination():
    reward = torch.tensor([1.0, 1.0, 1.0])
    discount = torch.tensor([0.9, 0.0, 0.81])  # went on, terminated, truncated after two steps
    torch.testing.assert_close(td_target(reward, discount, torch.full((3,), 10.0)), torch.tensor([10.0, 1.0, 9.1]))


def test_losses_are_weighted_means():
    error, weight = torch.tensor([0.5, -3.0]), torch.tensor([1.0, 0.5])
    assert td_loss(error, weight, "mse") == pytest.approx((0.25 / 2 + 0.5 * 9 / 2) / 2)
    assert td_loss(error, weight, "huber") == pytest.approx((0.25 / 2 + 0.5 * 2.5) / 2)


@pytest.mark.parametrize("kind", ["mse", "huber"])
def test_slopes_are_autograds(kind):
    value, target = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)) * 2
    weight = torch.rand(64, generator=torch.Generator().manual_seed(1))
    value.requires_grad_()
    (right,) = torch.autograd.grad(td_loss(target - value, weight, kind), value)
    error = (target - value).detach()
    assert 10 < (error.abs() > 1).sum() < 54  # both of Huber's pieces
    parts = [td_slope(error[rows], weight[rows], kind, 64) for rows in (slice(0, 20), slice(20, 64))]
    torch.testing.assert_close(torch.cat(parts), right, rtol=1e-6, atol=0)


def test_double_targets_by_hand():
    reward, discount = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25])
    for double, expected in ((True, [1 + 0.5 * 20, 2 + 0.25 * 50]), (False, [1 + 0.5 * 40, 2 + 0.25 * 80])):
        algorithm = learner(target={"double": double})
        algorithm._q_pass, algorithm._target_q_pass = (lambda obs: CHOOSER), (lambda obs: JUDGE)
        nothing = torch.zeros(2, 3)
        rows = SampledRows(nothing, nothing, reward, discount, torch.ones(2), nothing, next_legal=None)
        target = td_target(rows.reward, rows.discount, algorithm._next_value(rows))
        np.testing.assert_allclose(target.numpy(), expected)


# --- one update, whole


class Plain:
    """DQN's update in the plainest torch, row by row where rows differ."""

    def __init__(self, algorithm: DQN) -> None:
        self.config = algorithm._config
        self.q, self.target_q = copy.deepcopy(algorithm._q), copy.deepcopy(algorithm._target_q)
        self.adam = torch.optim.Adam(self.q.parameters(), lr=self.config.lr)
        self.updates = 0
        self.norms: list[float] = []

    def worth(self, next_obs: torch.Tensor, legal: list[list[int]], k: int) -> torch.Tensor:
        """Mean over the k best cells of each row that can be chosen."""
        judge = self.target_q(next_obs)
        chooser = self.q(next_obs) if self.config.target.double else judge
        found = []
        for row, cells in enumerate(legal):
            best = sorted(cells, key=lambda cell: float(chooser[row, cell]), reverse=True)[:k]
            found.append(judge[row, best].mean() if best else torch.zeros(()))
        return torch.stack(found)

    def update(self, b: Transitions, choices: list[list[int]], legal: list[list[int]], k: int) -> np.ndarray:
        obs, next_obs = (torch.tensor(part["obs"]).flatten(1) for part in (b.obs, b.next_obs))
        with torch.no_grad():
            y = torch.tensor(b.reward).float() + torch.tensor(b.discount).float() * self.worth(next_obs, legal, k)
        q = self.q(obs)
        chosen = torch.stack([q[row, cells].mean() for row, cells in enumerate(choices)])
        loss = {"huber": F.smooth_l1_loss, "mse": lambda *a, **k: F.mse_loss(*a, **k) / 2}[self.config.loss]
        each = loss(chosen, y, reduction="none")
        weight = torch.ones(len(each)) if b.weight is None else torch.tensor(b.weight).float()
        self.adam.zero_grad()
        (each * weight).mean().backward()
        most = self.config.max_grad_norm
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.q.parameters(), most or 1e9)))
        self.adam.step()
        self.updates += 1
        if self.updates % self.config.target.every_updates == 0:
            tau = self.config.target.tau
            for p, p_target in zip(self.q.parameters(), self.target_q.parameters(), strict=True):
                p_target.data = (1 - tau) * p_target.data + tau * p.data
        return (y - chosen).detach().abs().numpy()


def assert_equal(algorithm: DQN, plain: Plain, start: dict[str, np.ndarray]) -> None:
    for name in ("q", "target_q"):
        net = plain.q if name == "q" else plain.target_q
        expected = torch.nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
        np.testing.assert_allclose(algorithm.state()[name], expected, rtol=0, atol=3e-5, err_msg=name)
        assert np.abs(expected - start[name]).max() > 1e-3  # there was something to get wrong


@pytest.mark.thin(7)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target": {"double": False, "every_updates": 5}},
        {"loss": "mse", "dueling": True, "max_grad_norm": 0.05},
        {"target": {"tau": 0.1, "every_updates": 1}, "max_grad_norm": None},
        {"optimiser": {"accumulate": 4}, "dueling": True, "network": {"hidden": [16, 8], "activation": "tanh"}},
        {"optimiser": {"accumulate": 2}, "loss": "mse", "max_grad_norm": 0.05},
        {"network": {"hidden": [16], "layer_norm": True}, "dueling": True},
    ],
    ids=[
        "double, huber",
        "not double",
        "mse, dueling, clipped",
        "polyak",
        "parts, dueling",
        "parts, mse",
        "by autograd",
    ],
)
def test_updates_equal_a_plain_implementation(changes):
    algorithm = learner(**{"target": {"every_updates": 4}, "lr": 1e-2, **changes})
    start, plain = arrays(algorithm), Plain(algorithm)
    for step in range(13):
        weight = np.random.default_rng(step).uniform(0.1, 1, 8) if step % 2 else None
        b = batch(step, discount=0.0 if step % 3 == 0 else 0.99, weight=weight)
        errors = algorithm.update(b)
        expected = plain.update(b, [[action - 2] for action in b.action["action"]], [[0, 1, 2, 3]] * 8, 1)
        np.testing.assert_allclose(errors, expected, atol=1e-4)
        assert (errors.dtype, errors.shape) == (np.float32, (8,))
    assert_equal(algorithm, plain, start)
    if changes.get("max_grad_norm"):
        assert max(plain.norms) > changes["max_grad_norm"]


@pytest.mark.parametrize("bootstrap", ["k_best", "best"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("network", [{}, {"map": {}, "network": {"hidden": [32]}}], ids=["map", "perceptron"])
def test_updates_of_cells_equal_a_plain_implementation(bootstrap, dueling, network):
    algorithm = map_learner(target={"bootstrap": bootstrap, "every_updates": 4}, lr=1e-2, dueling=dueling, **network)
    start, plain = arrays(algorithm), Plain(algorithm)
    for step in range(9):
        b = map_batch(step, taken=(0.3, 0.85, 1.0)[step % 3])  # of the last nothing can be chosen
        legal = [np.flatnonzero(obs[1].ravel() != 1.0).tolist() for obs in b.next_obs["obs"]]
        choices = [np.flatnonzero(action).tolist() for action in b.action["action"]]
        errors = algorithm.update(b)
        np.testing.assert_allclose(
            errors, plain.update(b, choices, legal, 3 if bootstrap == "k_best" else 1), atol=1e-4
        )
    assert_equal(algorithm, plain, start)


def test_terminal_transitions_do_not_look_at_their_successor_and_truncated_ones_do():
    for discount, same in ((0.0, True), (0.99, False)):
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


# --- what moves when


@pytest.mark.parametrize("every", [1, 3, 4])
def test_the_target_is_copied_after_every_so_many_updates(every):
    """Case J125: counted in updates, whatever the steps between them."""
    algorithm = learner(target={"every_updates": every}, lr=1e-2)
    for step in range(1, 13):
        before = arrays(algorithm)["target_q"]
        algorithm.update(batch(step))
        state = algorithm.state()
        if step % every:
            assert np.array_equal(state["target_q"], before)
        else:
            assert np.array_equal(state["target_q"], state["q"])
        assert algorithm.ledger()["target_q_moves"] == step // every


def test_the_target_moves_once_an_update():
    """Case J127: by tau, and not by twice of it."""
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
    algorithm = learner()
    algorithm._q_adam.step()
    algorithm._move_target()
    ledger = algorithm.ledger()
    assert (ledger["updates"], ledger["q_steps"], ledger["target_q_moves"]) == (0, 1, 1)
    assert (ledger["q_steps_declared"], ledger["target_q_moves_declared"]) == (0, 0)


def test_target_starts_equal_to_the_network():
    state = learner().state()
    np.testing.assert_array_equal(state["q"], state["target_q"])


# --- determinism and state


def trained(make: Any, seed: int, updates: int = 6, **changes: Any) -> DQN:
    algorithm = make(seed, target={"every_updates": 2}, **changes)
    for step in range(updates):
        b = batch(step) if make is learner else map_batch(step)
        algorithm.observe(b.obs, step)
        algorithm.update(b)
    return algorithm


@pytest.mark.parametrize("make", [learner, map_learner])
def test_same_seed_and_batches_give_the_same_weights_whatever_the_global_generator(make):
    torch.manual_seed(1)
    one = trained(make, 0).weights_sha256()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert trained(make, 0).weights_sha256() == one
    assert torch.equal(torch.get_rng_state(), before)
    assert trained(make, 1).weights_sha256() != one


@pytest.mark.parametrize("name", ["q", "target_q", "q.exp_avg", "q.exp_avg_sq"])
def test_hash_covers_every_learned_array(name):
    algorithm = trained(learner, 0)
    before = algorithm.weights_sha256()
    algorithm.state()[name][-1] += 1
    assert algorithm.weights_sha256() != before


@pytest.mark.parametrize("make", [learner, map_learner])
def test_restored_state_goes_on_bit_for_bit(make):
    original = trained(make, 0, updates=3)
    saved = arrays(original)
    restored = make(99, target={"every_updates": 2})
    restored.load_state(saved)
    assert restored.weights_sha256() == original.weights_sha256()
    assert restored.ledger() == original.ledger()
    assert (
        restored.policy_arrays()["exploration_scale"].tolist() == original.policy_arrays()["exploration_scale"].tolist()
    )
    for algorithm in (original, restored):
        for step in range(3, 8):
            algorithm.update(batch(step) if make is learner else map_batch(step))
    assert restored.weights_sha256() == original.weights_sha256()


def test_batches_may_be_read_only_and_of_any_size():
    algorithm = learner()
    for n in (8, 3, 8):
        b = batch(n=n)
        for array in (b.obs["obs"], b.next_obs["obs"], b.action["action"], b.reward):
            array.flags.writeable = False
        assert len(algorithm.update(b)) == n
    assert algorithm.updates == 3


# --- publishing, observing, measuring


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("make", [learner, map_learner])
def test_published_arrays_are_live_and_choose_as_the_network_does(make, dueling):
    algorithm = make(dueling=dueling)
    published = algorithm.policy_arrays()
    assert sorted(published) == ["exploration_scale", "q"]
    assert (published["exploration_scale"].dtype, published["exploration_scale"].shape) == (np.float64, (1,))
    before = published["q"].copy()
    b = batch() if make is learner else map_batch()
    algorithm.update(b)
    assert not np.array_equal(published["q"], before)
    actor = build_actor(algorithm.policy)
    actor.load(published)
    with torch.no_grad():
        q = algorithm._q(torch.tensor(b.obs["obs"]).flatten(1)).numpy()
    found = actor.act(b.obs)["action"]
    if make is learner:
        assert found.tolist() == (q.argmax(1) + 2).tolist()
        return
    q[b.obs["obs"][:, 1].reshape(8, -1) == 1.0] = -np.inf
    for action, values in zip(found, q, strict=True):
        best = sorted(range(12), key=lambda cell: -values[cell])[:3]
        assert sorted(np.flatnonzero(action)) == sorted(cell for cell in best if np.isfinite(values[cell]))


def test_observing_moves_the_schedule():
    algorithm = learner(exploration={"epsilon": 0.9, "final_epsilon": 0.1, "begin_steps": 20, "decay_steps": 100})
    published = algorithm.policy_arrays()
    for steps, epsilon in ((0, 0.9), (20, 0.9), (70, 0.5), (120, 0.1), (900, 0.1)):
        algorithm.observe({}, steps)
        assert published["exploration_scale"][0] == pytest.approx(epsilon)
    assert algorithm.metrics() == {"train/epsilon": pytest.approx(0.1)}


def test_metrics_are_means_since_the_last_call():
    one, both = learner(), learner()
    one.update(batch(0))
    first = one.metrics()
    assert set(first) == {
        "train/q_loss", "train/q_mean", "train/target_q_mean", "train/q_grad_norm", "train/epsilon"
    }  # fmt: skip
    one.update(batch(1))
    second = one.metrics()
    both.update(batch(0))
    both.update(batch(1))
    mean = both.metrics()
    for name in ("train/q_loss", "train/q_mean", "train/target_q_mean", "train/q_grad_norm"):
        assert mean[name] == pytest.approx((first[name] + second[name]) / 2)


@pytest.mark.parametrize("make", [learner, map_learner])
def test_loss_falls_on_a_fixed_target(make):
    algorithm = make(lr=1e-2)
    b = batch() if make is learner else map_batch()
    b.discount[:] = 0.0
    algorithm.update(b)
    first = algorithm.metrics()["train/q_loss"]
    for _ in range(400):
        algorithm.update(b)
    algorithm.metrics()
    algorithm.update(b)
    assert algorithm.metrics()["train/q_loss"] < first / 10


# --- exploring


def test_epsilon_is_the_share_of_random_actions():
    algorithm = learner(exploration={"epsilon": 0.25})
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())
    noise = [actor.noise(np.random.default_rng(lane)) for lane in range(8)]
    obs = batch().obs
    greedy = actor.act(obs)["action"]
    moved = np.stack([actor.act(obs, noise)["action"] != greedy for _ in range(1000)])
    assert moved.mean() == pytest.approx(0.25 * 3 / 4, abs=0.015)  # a random action may be the best one
    assert [lane.carry.size for lane in noise] == [0] * 8


def test_epsilon_is_that_of_the_newest_policy():
    algorithm = learner(exploration={"epsilon": 1.0, "final_epsilon": 0.0, "decay_steps": 100})
    actor = build_actor(algorithm.policy)
    noise = [actor.noise(np.random.default_rng(lane)) for lane in range(8)]
    obs = batch().obs
    for steps, share in ((0, 0.75), (60, 0.3), (100, 0.0)):  # of four actions, one in four at random is the best
        algorithm.observe({}, steps)
        actor.load(algorithm.policy_arrays())
        greedy = actor.act(obs)["action"]
        moved = np.stack([actor.act(obs, noise)["action"] != greedy for _ in range(400)])
        assert moved.mean() == pytest.approx(share, abs=0.03)


def test_no_lane_explores_with_another_ones_generator():
    algorithm = learner(exploration={"epsilon": 0.5})
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())

    def acts(*seeds: int) -> np.ndarray:
        noise = [actor.noise(np.random.default_rng(seed)) for seed in seeds]
        obs = {"obs": batch().obs["obs"][: len(seeds)]}
        return np.stack([actor.act(obs, noise)["action"] for _ in range(40)])

    assert np.array_equal(acts(1, 2, 3)[:, 0], acts(1, 8, 9)[:, 0])
    assert not np.array_equal(acts(1, 2, 3)[:, 1], acts(1, 8, 3)[:, 1])


def test_whoever_acts_at_random_keeps_to_what_can_be_chosen():
    policy = map_learner().policy
    actor = build_random_actor(policy)
    actor.load({})
    noise = [actor.noise(np.random.default_rng(lane)) for lane in range(8)]
    b = map_batch(taken=0.7)
    open_cells = b.obs["obs"][:, 1].reshape(8, -1) != 1.0
    acted = np.stack([actor.act(b.obs, noise)["action"] for _ in range(300)])
    assert ((acted == 1).any(0) == open_cells).all()
    assert (acted.sum(2) == np.minimum(open_cells.sum(1), 3)).all()
    assert build_random_actor(learner().policy) is None


# --- what goes wrong


def test_nothing_of_a_perceptrons_update_goes_through_autograd(monkeypatch):
    algorithm = learner(dueling=True, optimiser={"accumulate": 2})
    monkeypatch.setattr(torch.autograd, "grad", lambda *_, **__: pytest.fail("autograd was asked"))
    algorithm._q.register_forward_pre_hook(lambda *_: pytest.fail("the module was called"))
    algorithm._target_q.register_forward_pre_hook(lambda *_: pytest.fail("the module was called"))
    algorithm.update(batch())
    assert algorithm.updates == 1


def test_non_finite_loss_changes_nothing_and_names_the_row():
    algorithm = trained(learner, 0, updates=3)
    before = algorithm.weights_sha256()
    bad = batch()
    bad.reward[5] = np.nan
    with pytest.raises(NonFiniteValue) as caught:
        algorithm.update(bad)
    assert str(caught.value) == (
        "[ENV-003] learner: the Q-network's loss or gradient is not finite; no weight was changed\n"
        "  update: 4\n"
        "  loss: nan\n"
        "  gradient norm: nan\n"
        "  batch: reward of row 5 is nan\n"
        "  fix: if the batch holds such a value, mend the environment; "
        "else lower algorithm.lr or scale the rewards down"
    )
    assert algorithm.weights_sha256() == before
    assert algorithm.updates == algorithm.ledger()["q_steps"] == 3
    algorithm.update(batch())
    assert np.isfinite(algorithm.state()["q"]).all()


def test_spaces_are_looked_at_before_anything_starts():
    check_spaces(learner()._config, OBS, ACTION)
    check_spaces(map_learner()._config, MAP, CELLS)
    for config, obs, action, match in (
        (DQNConfig(), OBS, spaces.Box(-1, 1, (2,)), "an algorithm that chooses"),
        (map_learner()._config, spaces.Box(0, 1, (2, 4, 4), np.float32), CELLS, "the mask of actions"),
        (DQNConfig(map={"leaf": "obs"}, actions={"cells": 3}), OBS, CELLS, "no map with one cell per action"),
        (DQNConfig(map={"leaf": "obs.map"}, actions={"cells": 3}), MAP, CELLS, "no map with one cell per action"),
    ):
        with pytest.raises(UnsupportedSpace, match=match):
            check_spaces(config, obs, action)
        with pytest.raises(UnsupportedSpace, match=match):
            DQN(config, obs, action, 0)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"map": {"leaf": "obs"}, "network": {"hidden": [3]}}, "algorithm.network would be ignored"),
        ({"map": {"channels": [3]}}, "algorithm.map would be ignored"),
        ({"target": {"bootstrap": "best"}}, "algorithm.target.bootstrap would be ignored"),
        ({"priority": {"alpha": 0.3}}, "algorithm.priority would be ignored"),
        ({"actions": {"mask_channel": 1}}, "nothing says where the mask of actions is"),
        ({"actions": {"mask_value": 1.0}}, "nothing says where the mask of actions is"),
        ({"exploration": {"decay": "exponential", "final_epsilon": 0.0}}, "an exponential decay never reaches 0"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings, what):
    with pytest.raises(ConfigError, match=what):
        DQNConfig(**settings)


@pytest.mark.parametrize("device", ["no-such-device", "cuda:99"])
def test_device_that_is_not_there(device):
    with pytest.raises(ConfigError, match=f"torch device '{device}' cannot be used"):
        DQN(DQNConfig(), OBS, ACTION, 0, device)


@able
@pytest.mark.parametrize("dueling", [False, True], ids=["plain", "dueling"])
def test_with_rounded_products_it_learns_alike_and_not_the_same(dueling: bool) -> None:
    given = DQNConfig.model_validate({"network": {"hidden": [64, 64]}, "batch_size": 8, "dueling": dueling})
    bfloat16, float32 = (DQN(given, OBS, ACTION, 0, precision=name) for name in ("bfloat16", "float32"))
    for step in range(40):
        bfloat16.update(batch(step % 4))
        float32.update(batch(step % 4))
    one, other = bfloat16.state()["q"], float32.state()["q"]
    assert one.dtype == np.float32
    assert not np.array_equal(one, other)
    assert np.linalg.norm(one - other) < 0.05 * np.linalg.norm(other)
