"""Several policies as one algorithm, and acting as one actor: each member sees what is its own, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headrace.algorithms.base import Transitions
from headrace.algorithms.choices import nothing_to_choose
from headrace.algorithms.configs import DQNConfig, SACConfig, TD3Config
from headrace.algorithms.many_actors import ManyActors
from headrace.algorithms.registry import build_actor, build_algorithm
from headrace.algorithms.several import Several
from headrace.core import seeding
from headrace.core.errors import NonFiniteValue, ObservationMismatch, SnapshotCorrupt
from headrace.learners.ledger import Facts, entries
from headrace.runtime.config import load_config
from iqn_support import ACTION, OBS, batch, config, joined

BOX = spaces.Box(-1, 1, (2,), np.float32)
DQN = DQNConfig(network={"hidden": [16]}, batch_size=8, target={"every_updates": 2}, lr=1e-2)
TD3 = TD3Config(actor={"hidden": [8]}, critic={"hidden": [8]}, batch_size=8, normalize_observations=True, actor_lr=1e-2)
SAC = SACConfig(actor={"hidden": [8]}, critic={"hidden": [8]}, batch_size=8, normalize_observations=True, actor_lr=1e-2)
CASES = {"dqn": (DQN, ACTION), "td3": (TD3, BOX), "sac": (SAC, BOX)}


def build(name: str, policies: int, seed: int = 0) -> Any:
    config, action = CASES[name]
    return build_algorithm(config, OBS, action, seed, policies=policies)


def draw(name: str, seed: int, n: int = 8) -> Transitions:
    plain = batch(seed, n)
    if name in ("td3", "sac"):
        plain.action = {"action": np.random.default_rng(seed).uniform(-1, 1, (n, 2)).astype(np.float32)}
    return plain


def seeds() -> list[int]:
    return [0, *(seeding.integer(0, "policy", policy) for policy in (1, 2))]


@pytest.mark.parametrize("name", CASES)
def test_three_together_are_three_that_are_alone(name):
    together = build(name, 3)
    alone = [build(name, 1, seed) for seed in seeds()]
    assert isinstance(together, Several)
    assert together.policy == replace(alone[0].policy, policy_of=(0, 1, 2))
    for step in range(4):
        batches = [draw(name, 10 * step + policy) for policy in range(3)]
        obs = {"obs": np.random.default_rng(step).standard_normal((9, 3)).astype(np.float32)}
        of = np.array([0, 1, 2, 2, 1, 2, 2, 0, 2])
        together.observe(obs, step, of)
        errors = together.update(joined(batches))
        for policy, one in enumerate(alone):
            one.observe({"obs": obs["obs"][of == policy]}, step)
            mine = one.update(batches[policy])
            if mine is None:
                assert errors is None
            else:
                np.testing.assert_array_equal(errors[8 * policy : 8 * policy + 8], mine)
    for member, one in zip(together._members, alone, strict=True):
        assert member.weights_sha256() == one.weights_sha256()
    published, expected = together.policy_arrays(), [one.policy_arrays() for one in alone]
    assert published.keys() == expected[0].keys()
    for key, array in published.items():
        if key == "exploration_scale":
            assert array.shape == (1,)
            np.testing.assert_array_equal(array, expected[2][key])
        else:
            np.testing.assert_array_equal(array, np.stack([one[key] for one in expected]))
    assert len({one.weights_sha256() for one in alone}) == 3


def test_observations_without_a_policy_are_the_firsts_and_the_schedule_is_everybodys():
    together = build("td3", 3)
    together.observe({"obs": np.ones((4, 3), np.float32)}, 50)
    counts = [int(member._inputs.moments.count[0]) for member in together._members]
    assert counts == [4, 0, 0]
    together = build("dqn", 3)
    together.observe({}, 5000)
    assert [float(member.policy_arrays()["exploration_scale"][0]) for member in together._members] == [0.525] * 3


def test_members_without_rows_of_their_own_take_them_in_one_hot_too():
    space = spaces.Dict({"kind": spaces.Discrete(3), "see": OBS})
    together = build_algorithm(TD3, space, BOX, 0, policies=2)
    obs = {"obs.kind": np.array([0, 2]), "obs.see": np.zeros((2, 3), np.float32)}
    together.observe(obs, 2, np.array([0, 0]))
    assert [int(member._inputs.moments.count[0]) for member in together._members] == [2, 0]


@pytest.mark.parametrize("name", CASES)
def test_restored_state_goes_on_bit_for_bit(name):
    original = build(name, 2)
    for step in range(3):
        original.update(joined([draw(name, step), draw(name, step + 9)]))
    restored = build(name, 2, seed=4)
    assert restored.weights_sha256() != original.weights_sha256()
    restored.load_state({key: array.copy() for key, array in original.state().items()})
    assert restored.updates == 3
    for algorithm in (original, restored):
        for step in range(3, 6):
            algorithm.update(joined([draw(name, step), draw(name, step + 9)]))
    assert restored.weights_sha256() == original.weights_sha256()
    assert restored.ledger() == original.ledger()


def test_hash_is_of_all_members():
    together = build("dqn", 3)
    before = together.weights_sha256()
    together._members[2].state()["target_q"][0] += 1
    assert together.weights_sha256() != before


def test_metrics_are_told_for_each_and_for_all():
    together = build("dqn", 2)
    together.update(joined([draw("dqn", 0), draw("dqn", 1)]))
    found = together.metrics()
    assert found["train/q_loss"] == pytest.approx((found["train/0/q_loss"] + found["train/1/q_loss"]) / 2)
    assert found["train/0/q_loss"] != found["train/1/q_loss"]
    assert found["train/epsilon"] == found["train/1/epsilon"] == 1.0


def test_ledger_tells_which_policy_leaves_something_out():
    together = build("dqn", 2)
    settings = {"env.id": "CartPole-v1", "algorithm.name": "dqn", "algorithm.target.every_updates": 2}

    def wrong() -> list[str]:
        found = entries(Facts(together.ledger(), together.updates, 8), load_config(None, settings))
        return [entry.sentence for entry in found if not entry.ok]

    for step in range(4):
        together.update(joined([draw("dqn", step), draw("dqn", step + 9)]))
    assert wrong() == []
    names = {"updates_of_policy_1", "q_of_policy_0_steps", "target_q_of_policy_1_moves", "q_of_policy_1_lr"}
    assert names <= together.ledger().keys()
    together._members[1]._move_target()
    together._members[0]._q_adam.step()
    together._members[0].updates += 1
    assert wrong() == [
        "updates_of_policy_0 is 5 after 4 updates; the algorithm declares 4",
        "the target q of policy 1 moved 3 times in 4 updates; algorithm.target.every_updates 2 declares 2",
    ]


def test_a_number_that_is_none_names_the_policy():
    together = build("dqn", 3)
    bad = joined([draw("dqn", policy) for policy in range(3)])
    bad.reward[11] = np.nan
    with pytest.raises(NonFiniteValue) as caught:
        together.update(bad)
    assert (caught.value.facts["policy"], caught.value.facts["batch"]) == (1, "reward of row 3 is nan")


# --- acting


@pytest.mark.parametrize("name", ["dqn", "td3", "sac", "iqn"])
def test_every_row_is_acted_by_its_agents_policy(name):
    section, action = {**CASES, "iqn": (config(), ACTION)}[name]
    algorithm = build_algorithm(section, OBS, action, 0, policies=3)
    for step in range(3):
        algorithm.observe(draw(name, step).obs, step, np.arange(8) % 3)
        algorithm.update(joined([draw(name, step + policy) for policy in range(3)]))
    policy_of = (2, 0, 2, 1)
    actor = build_actor(replace(algorithm.policy, policy_of=policy_of))
    assert isinstance(actor, ManyActors)
    arrays = {key: array.copy() for key, array in algorithm.policy_arrays().items()}
    actor.load(arrays)
    members = [build_actor(replace(algorithm.policy, policy_of=())) for _ in range(3)]
    for policy, member in enumerate(members):
        member.load({key: array if key == "exploration_scale" else array[policy] for key, array in arrays.items()})
    for rows in (12, 4, 6, 12):
        obs = {"obs": draw(name, rows, rows).obs["obs"]}
        found = actor.act(obs)["action"]
        assert found.dtype == action.dtype
        of = np.array([policy_of[row % 4] for row in range(rows)])
        for policy, member in enumerate(members):
            expected = member.act({"obs": obs["obs"][of == policy]})["action"]
            np.testing.assert_array_equal(found[of == policy], expected)
    assert len(found) == 12
    assert any(not np.array_equal(members[0].act(obs)["action"], member.act(obs)["action"]) for member in members[1:])


def test_a_row_that_leaves_nothing_to_choose_is_named_by_its_number_among_all(monkeypatch):
    algorithm = build("dqn", 2)
    actor = build_actor(replace(algorithm.policy, policy_of=(1, 0, 1)))
    actor.load(algorithm.policy_arrays())

    def refuse(obs, noise=None):
        raise nothing_to_choose(1)

    monkeypatch.setattr(actor._members[1], "act", refuse)
    with pytest.raises(ObservationMismatch) as caught:
        actor.act({"obs": batch(0, 3).obs["obs"]})
    assert caught.value.facts["row"] == 2


def test_noise_goes_with_its_row_and_the_scale_is_for_all():
    algorithm = build("dqn", 2)
    actor = build_actor(algorithm.policy)
    actor.load(algorithm.policy_arrays())  # epsilon 1: everything is random
    obs = {"obs": batch(0, 6).obs["obs"]}

    def acts(*seeds: int) -> np.ndarray:
        noise = [actor.noise(np.random.default_rng(seed)) for seed in seeds]
        return np.stack([actor.act(obs, noise)["action"] for _ in range(30)])

    one, other = acts(0, 1, 2, 3, 4, 5), acts(0, 9, 2, 3, 4, 5)
    same = (one == other).all(axis=0)
    assert same.tolist() == [True, False, True, True, True, True]


def test_one_policy_is_the_plain_actor():
    algorithm = build("dqn", 1)
    for policy_of in ((), (0,), (0, 0, 0)):
        actor = build_actor(replace(algorithm.policy, policy_of=policy_of))
        assert not isinstance(actor, ManyActors)
        actor.load(algorithm.policy_arrays())


@pytest.mark.parametrize("policies", [1, 3])
def test_a_snapshot_of_another_number_of_policies_is_refused(policies):
    actor = build_actor(build("dqn", 2).policy)
    with pytest.raises(SnapshotCorrupt, match="does not fit the policy"):
        actor.load(build("dqn", policies).policy_arrays())


def test_acting_for_many_imports_no_torch():
    code = (
        "import sys, headrace.algorithms.registry, headrace.algorithms.many_actors, headrace.algorithms.quantile_acting\n"
        "from gymnasium import spaces\n"
        "from headrace.algorithms.base import PolicySpec\n"
        "from headrace.algorithms.configs import IQNConfig\n"
        "spec = PolicySpec('iqn', spaces.Box(0, 1, (3,)), spaces.Discrete(2), IQNConfig(), (0, 1))\n"
        "headrace.algorithms.registry.build_actor(spec)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
