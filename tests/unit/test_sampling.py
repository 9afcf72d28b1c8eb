"""Actors that draw: how often, how likely they say it was, and what the learning half makes of it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.algorithms.base import Actor, PolicySpec
from headrace.algorithms.distributions import likelihood
from headrace.algorithms.heads import CategoricalHead, Draws, GaussianHead, across, head_of, sums_so_far
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.algorithms.registry import (
    acts_in_torch,
    build_actor,
    build_algorithm,
    build_random_actor,
    carried_floats,
    check_spaces,
    learns_on_policy,
    told_leaves,
)
from headrace.core.errors import ConfigError, ObservationMismatch, SnapshotCorrupt, UnsupportedSpace
from on_policy_support import BOX, DISCRETE, MASK, MASKED, OBS, learner, one_thread, random_observations

assert one_thread  # a fixture: applies to every test here
SEVERAL = spaces.MultiDiscrete([2, 3, 4], start=[1, 0, -1])
ALIKE = spaces.MultiDiscrete([[3, 3], [3, 3]])
CELLS = spaces.MultiBinary(3)
WIDE = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
EVERY = [DISCRETE, SEVERAL, ALIKE, CELLS, BOX, WIDE]


@pytest.mark.parametrize("width", [1, 2, 3, 6, 7, 40])
def test_functions_across_columns_are_numpys_reductions(width):
    values = np.random.default_rng(0).normal(0, 2, (5, 3, width)).astype(np.float32)
    before = values.copy()
    np.testing.assert_array_equal(across(np.maximum, values), values.max(axis=-1))
    np.testing.assert_allclose(across(np.add, values), values.sum(axis=-1), rtol=1e-6, atol=1e-6)
    sums = sums_so_far(values)
    assert sums.dtype == np.float64
    np.testing.assert_array_equal(sums, np.add.accumulate(values, axis=-1, dtype=np.float64))
    np.testing.assert_array_equal(values, before)


class Fixed:
    """Lanes whose every draw is the same one."""

    carry = np.zeros(0, np.float32)

    def __init__(self, value: float) -> None:
        self.uniform: Callable[..., Any] = lambda size=None: value if size is None else np.full(size, value)


def draws(count: int, seed: int = 0) -> list[Draws]:
    return [Draws(np.random.default_rng((seed, lane))) for lane in range(count)]


def outputs(head: Any, rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, head.outputs)).astype(np.float32)


def masks(head: CategoricalHead, rows: int, seed: int = 0) -> np.ndarray:
    """In which something of every component is left."""
    rng = np.random.default_rng(seed)
    legal = rng.random((rows, head.outputs)) < 0.4
    place = 0
    for count in np.atleast_1d(counts_of(head)):
        legal[np.arange(rows), place + rng.integers(0, count, rows)] = True
        place += count
    return legal


def counts_of(head: CategoricalHead) -> np.ndarray:
    if head.absent is None:
        return np.full(head.components, head.width)
    return (~head.absent).sum(axis=1)


# --- the two halves say the same


@pytest.mark.parametrize(
    ("space", "masked"),
    [(space, masked) for space in EVERY for masked in (False, True) if not (masked and isinstance(space, spaces.Box))],
    ids=str,
)
def test_logprob_and_entropy_are_those_of_torch(space, masked):
    head = head_of(space)
    rows = 50
    raw = outputs(head, rows)
    log_std = np.linspace(-1, 1, head.outputs).astype(np.float32)
    if isinstance(head, GaussianHead):
        acted, legal = head.act(raw, log_std, draws(rows)), None
        normal = torch.distributions.Normal(torch.from_numpy(raw), torch.from_numpy(log_std).exp())
        theirs = torch.distributions.Independent(normal, 1)
        action = torch.from_numpy(acted["raw_action"])
        expected, entropy = theirs.log_prob(action), theirs.entropy()
    else:
        legal = masks(head, rows) if masked else None
        acted = head.act(raw, legal, draws(rows))
        action = torch.from_numpy(head.places(acted["action"]))
        expected, entropy = slow_categorical(raw, legal, action, counts_of(head))
        assert (head.places(acted["action"]) < counts_of(head)).all()
    assert acted["logprob"].dtype == np.float32
    np.testing.assert_allclose(acted["logprob"], expected.numpy(), atol=3e-6)
    ours = likelihood(head, raw, log_std, action.numpy(), legal)
    np.testing.assert_allclose(ours.logprob, expected.numpy(), atol=3e-6, rtol=1e-6)
    np.testing.assert_allclose(ours.entropy, entropy.numpy(), atol=3e-6, rtol=1e-6)
    assert all(space.contains(one) for one in acted["action"])


def slow_categorical(
    raw: np.ndarray, legal: np.ndarray | None, action: torch.Tensor, counts: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row by row, component by component, without what cannot be chosen."""
    logprobs, entropies = [], []
    for row in range(len(raw)):
        place, logprob, entropy = 0, 0.0, 0.0
        for component, count in enumerate(counts):
            can = np.ones(count, bool) if legal is None else legal[row, place : place + count]
            left = np.flatnonzero(can)
            theirs = torch.distributions.Categorical(logits=torch.from_numpy(raw[row, place + left]))
            chosen = int(action[row, component])
            assert can[chosen], "it cannot be chosen"
            logprob += float(theirs.log_prob(torch.tensor(int(np.searchsorted(left, chosen)))))
            entropy += float(theirs.entropy())
            place += count
        logprobs.append(logprob)
        entropies.append(entropy)
    return torch.tensor(logprobs), torch.tensor(entropies)


# --- draws


def test_choices_are_drawn_as_often_as_their_probability_says():
    head = CategoricalHead(spaces.MultiDiscrete([3, 2]))
    raw = np.log(np.array([[0.2, 0.3, 0.5, 0.9, 0.1]], np.float32))
    many = np.repeat(raw, 20_000, axis=0)
    lane = draws(1)
    places = head.act(many, None, lane * 20_000)["action"]
    shares = [(places[:, 0] == place).mean() for place in range(3)]
    np.testing.assert_allclose(shares, [0.2, 0.3, 0.5], atol=0.015)
    assert (places[:, 1] == 0).mean() == pytest.approx(0.9, abs=0.01)
    both = ((places[:, 0] == 2) & (places[:, 1] == 1)).mean()
    assert both == pytest.approx(0.05, abs=0.01)  # components are independent


@pytest.mark.parametrize("space", [spaces.Discrete(2), CELLS, spaces.Discrete(5)], ids=str)
def test_one_of_two_is_drawn_as_one_of_many(space):
    """The first whose sum of probabilities lies above the lane's number."""
    head = CategoricalHead(space)
    raw = outputs(head, 300)
    acted, numbers = head.act(raw, None, draws(300)), draws(300)
    shares = np.exp(head.log_probabilities(raw, None)).astype(np.float64)  # [N, k, w]
    for row, lane in enumerate(numbers):
        for component, uniform in enumerate(np.atleast_1d(lane.uniform(head.components))):
            sums = shares[row, component].cumsum()
            assert head.places(acted["action"])[row, component] == np.flatnonzero(sums > uniform * sums[-1])[0]


@pytest.mark.parametrize("value", [0.0, 0.5, float(np.nextafter(1.0, 0.0))])
def test_what_cannot_be_chosen_is_never_drawn_however_unlikely_the_draw(value):
    head = CategoricalHead(spaces.Discrete(40))
    raw = outputs(head, 200)
    legal = masks(head, 200)
    legal[:50, 0] = legal[50:100, -1] = False
    legal[np.arange(200), np.arange(200) % 38 + 1] = True
    action = head.act(raw, legal, [Fixed(value)] * 200)["action"]
    assert legal[np.arange(200), action].all()


def test_continuous_actions_are_drawn_around_the_mean_and_clipped_afterwards():
    head = GaussianHead(BOX)
    mean = np.repeat(np.array([[0.4, -0.1]], np.float32), 20_000, axis=0)
    acted = head.act(mean, np.log(np.array([0.5, 0.1], np.float32)), draws(1) * 20_000)
    np.testing.assert_allclose(acted["raw_action"].mean(axis=0), [0.4, -0.1], atol=0.015)
    np.testing.assert_allclose(acted["raw_action"].std(axis=0), [0.5, 0.1], atol=0.01)
    np.testing.assert_array_equal(acted["action"], np.clip(acted["raw_action"], -0.5, 0.5))
    assert (acted["action"] != acted["raw_action"]).any()


@pytest.mark.parametrize("space", EVERY, ids=str)
def test_greedy_is_the_likeliest(space):
    head = head_of(space)
    raw = outputs(head, 30)
    if isinstance(head, GaussianHead):
        acted = head.act(raw, np.zeros(head.outputs, np.float32), None)
        np.testing.assert_array_equal(acted["action"], np.clip(raw.reshape(-1, *space.shape), space.low, space.high))
        assert set(acted) == {"action"}
        return
    acted, told = head.act(raw, None, None), head.act(raw, np.ones(raw.shape, bool), None)
    np.testing.assert_array_equal(acted["action"], told["action"])
    assert set(acted) == set(told) == {"action"}
    places = head.places(acted["action"])
    expected, place = [], 0
    for count in counts_of(head):
        expected.append(raw[:, place : place + count].argmax(axis=1))
        place += count
    np.testing.assert_array_equal(places, np.stack(expected, axis=1))


def loaded(space: spaces.Space[Any], obs: spaces.Space[Any] = OBS, **changes: Any) -> Actor:
    algorithm = learner(space, obs, **changes)
    rng = np.random.default_rng(0)
    arrays = {
        name: np.abs(rng.normal(0, 0.5, array.shape)).astype(array.dtype) + 0.1
        for name, array in algorithm.policy_arrays().items()
    }
    actor = build_actor(algorithm.policy)
    actor.load(arrays)
    return actor


@pytest.mark.parametrize("space", EVERY, ids=str)
def test_each_lane_draws_from_its_own_stream(space):
    actor = loaded(space)
    obs = random_observations(OBS, np.random.default_rng(0), 6)
    whole = actor.act(obs, draws(6))
    again = actor.act(obs, draws(6))
    turned = actor.act({"obs": obs["obs"][::-1].copy()}, draws(6)[::-1])
    for name, array in whole.items():
        np.testing.assert_array_equal(array, again[name])
        np.testing.assert_allclose(array, turned[name][::-1], atol=1e-5)
    assert (whole["action"] != actor.act(obs, draws(6, seed=1))["action"]).any()
    assert carried_floats(learner(space).policy.config, space) == draws(1)[0].carry.size == 0


@pytest.mark.parametrize("space", EVERY, ids=str)
def test_what_it_returns_is_what_the_registry_says(space):
    algorithm = learner(space)
    acted = loaded(space).act(random_observations(OBS, np.random.default_rng(0), 5), draws(5))
    told = told_leaves(algorithm.policy.config, space)
    assert set(acted) == {"action"} | {leaf.path for leaf in told}
    for leaf in told:
        assert (acted[leaf.path].dtype, acted[leaf.path].shape) == (leaf.dtype, (5, *leaf.shape))
    assert (acted["action"].dtype, acted["action"].shape) == (space.dtype, (5, *space.shape))
    assert [leaf.path for leaf in told] == (["logprob", "raw_action"] if isinstance(space, spaces.Box) else ["logprob"])


def test_returned_arrays_may_be_kept():
    for space in EVERY:
        actor = loaded(space)
        obs = random_observations(OBS, np.random.default_rng(0), 3)
        first = actor.act(obs, draws(3))
        kept = {name: array.copy() for name, array in first.items()}
        actor.act({"obs": obs["obs"] + 1.0}, draws(3, seed=5))
        for name, array in kept.items():
            np.testing.assert_array_equal(first[name], array)


def test_a_mask_in_the_observation_is_kept_to():
    actor = loaded(DISCRETE, MASKED, normalize={"observations": True}, **MASK)
    obs = random_observations(MASKED, np.random.default_rng(0), 300)
    for noise in (draws(300), None):
        action = actor.act(obs, noise)["action"] - 2
        assert obs["obs.mask"][np.arange(300), action].all()
    obs["obs.mask"][7] = 0
    with pytest.raises(ObservationMismatch, match="leaves no action to choose") as caught:
        actor.act(obs, draws(300))
    assert "row: 7" in str(caught.value)


def test_whoever_acts_at_random_keeps_to_the_mask_too():
    policy = learner(DISCRETE, MASKED, **MASK).policy
    actor = build_random_actor(policy)
    assert actor is not None
    actor.load({})
    obs = random_observations(MASKED, np.random.default_rng(0), 3000)
    obs["obs.mask"][:] = [1, 0, 1, 1]
    action = actor.act(obs, [actor.noise(np.random.default_rng(lane)) for lane in range(3000)])["action"] - 2
    np.testing.assert_allclose(np.bincount(action, minlength=4) / 3000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)
    assert build_random_actor(learner().policy) is None
    assert build_random_actor(learner(BOX).policy) is None


def test_a_factory_acts_as_it_learns():
    algorithm = learner(network={"actor": {"factory": "on_policy_support:bent"}, "critic": {"hidden": [4]}})
    assert acts_in_torch(algorithm.policy.config)
    assert not acts_in_torch(learner().policy.config)
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())
    obs = random_observations(OBS, np.random.default_rng(0), 9)
    acted = actor.act(obs, draws(9))
    with torch.no_grad():
        raw = algorithm._network.actor(torch.from_numpy(obs["obs"]))
    expected = likelihood(algorithm._inputs.head, raw.numpy(), None, acted["action"][:, None] - 2, None).logprob
    np.testing.assert_allclose(acted["logprob"], expected, atol=1e-6)


# --- what does not fit


@pytest.mark.parametrize("missing", ["policy", "log_std", "obs_mean"])
def test_a_snapshot_of_another_policy_is_refused(missing):
    algorithm = learner(BOX, normalize={"observations": True})
    arrays = dict(algorithm.policy_arrays())
    build_actor(algorithm.policy).load(arrays)
    del arrays[missing]
    with pytest.raises(SnapshotCorrupt, match="does not fit the policy"):
        build_actor(algorithm.policy).load(arrays)


@pytest.mark.parametrize("config", [PPOConfig(), VTraceConfig()], ids=["ppo", "vtrace"])
def test_spaces_that_do_not_suit(config):
    for space in EVERY:
        check_spaces(config, OBS, space)
    for space in (
        spaces.Dict({"a": DISCRETE}),
        spaces.Tuple([DISCRETE, BOX]),
        spaces.Box(0, 5, (2,), np.int64),
        spaces.Box(0, 5, (0,), np.float32),
    ):
        with pytest.raises(UnsupportedSpace, match="action space cannot be used by a policy that draws its actions"):
            check_spaces(config, OBS, space)


def test_masks_that_do_not_suit():
    check_spaces(PPOConfig(**MASK), MASKED, DISCRETE)
    with pytest.raises(UnsupportedSpace, match="the mask of actions cannot be read"):
        check_spaces(PPOConfig(**MASK), MASKED, spaces.Discrete(5))
    with pytest.raises(UnsupportedSpace, match="continuous actions have no mask"):
        check_spaces(PPOConfig(**MASK), MASKED, BOX)


@pytest.mark.parametrize("kind", [PPOConfig, VTraceConfig])
def test_a_deviation_that_choices_do_not_have_is_refused(kind):
    wide = kind(network={"log_std": -0.5})
    check_spaces(wide, OBS, BOX)
    for space in (DISCRETE, spaces.MultiBinary(3)):
        with pytest.raises(ConfigError, match=re.escape("algorithm.network.log_std would be ignored")):
            check_spaces(wide, OBS, space)


def test_one_policy_is_learned():
    assert learns_on_policy(PPOConfig())
    with pytest.raises(ConfigError, match="ppo learns one policy"):
        build_algorithm(PPOConfig(), OBS, DISCRETE, 0, policies=2)


def test_acting_needs_no_torch():
    program = """
import sys
import numpy as np
from gymnasium import spaces
import headrace.algorithms.registry as registry
from headrace.algorithms.base import PolicySpec
from headrace.algorithms.on_policy_configs import PPOConfig
box = spaces.Box(-1, 1, (2,))
config = PPOConfig()
registry.check_spaces(config, box, box)
actor = registry.build_actor(PolicySpec("ppo", box, box, config))
size = 2 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
actor.load({"policy": np.zeros(size, np.float32), "log_std": np.zeros(2, np.float32)})
actor.act({"obs": np.zeros((1, 2), np.float32)}, [actor.noise(np.random.default_rng(0))])
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr or "torch was imported"


def test_a_policy_spec_is_enough_to_rebuild_it():
    algorithm = learner(BOX)
    spec = PolicySpec("ppo", OBS, BOX, algorithm.policy.config)
    one, other = build_actor(spec), build_actor(algorithm.policy)
    obs = random_observations(OBS, np.random.default_rng(0), 2)
    for actor in (one, other):
        actor.load(algorithm.policy_arrays())
    np.testing.assert_array_equal(one.act(obs)["action"], other.act(obs)["action"])
