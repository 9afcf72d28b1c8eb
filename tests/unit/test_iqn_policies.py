"""Several policies learned at once by IQN: each is as it would be alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.algorithms.registry import build_algorithm
from headrace.core.errors import NonFiniteValue
from iqn_support import ACTION, OBS, Plain, Repeated, Told, arrays, batch, config, joined, learner


@pytest.mark.parametrize("changes", [{}, {"network": {"noisy": True}}, {"optimiser": {"accumulate": 4}}])
def test_three_policies_equal_three_that_are_alone(changes):
    changes = {"target": {"every_updates": 2, "tau": 0.5}, "lr": 1e-2, **changes}
    together = learner(policies=3, **changes)
    told = Told(together)
    alone = [learner(**changes) for _ in range(3)]
    start = together._q_flat.numpy().copy()
    for policy, one in enumerate(alone):
        for name, flat in one._flats().items():
            flat.value.data.copy_(together._flats()[name].value.data[policy : policy + 1])
    for step in range(5):
        batches = [batch(10 * step + policy, weight=np.linspace(0.2, 1, 8)) for policy in range(3)]
        told.forget()
        errors = together.update(joined(batches))
        for policy, (one, b) in enumerate(zip(alone, batches, strict=True)):
            one._draws = Repeated(told, policy)
            np.testing.assert_allclose(one.update(b), errors[8 * policy : 8 * policy + 8], rtol=0, atol=2e-5)
    for policy, one in enumerate(alone):
        for name, flat in one._flats().items():
            np.testing.assert_allclose(together._flats()[name].numpy()[policy], flat.numpy()[0], rtol=0, atol=2e-5)
    assert np.abs(together._q_flat.numpy() - start).max() > 1e-2
    assert together.updates == together.ledger()["q_steps"] == 5
    assert together.ledger()["target_q_moves"] == 2


def test_each_policy_equals_the_plain_implementation():
    together = learner(policies=2, network={"noisy": True}, lr=1e-3)
    plain, told = [Plain(together, policy) for policy in range(2)], Told(together)
    for step in range(2):
        batches = [batch(step), batch(step + 50)]
        told.forget()
        together.update(joined(batches))
        for policy, (one, b) in enumerate(zip(plain, batches, strict=True)):
            one.update(b, told)
            np.testing.assert_allclose(together._q_flat.grad.numpy()[policy], one.grad, rtol=0, atol=2e-6)


def test_a_policy_does_not_depend_on_the_others_data():
    one, other = learner(policies=3), learner(policies=3)
    for step in range(3):
        batches = [batch(step + policy) for policy in range(3)]
        one.update(joined(batches))
        loud = [replace(b, reward=b.reward * 1000) for b in (batches[0], batches[2])]
        other.update(joined([loud[0], batches[1], loud[1]]))
    for name in ("q", "target_q", "q.exp_avg", "q.exp_avg_sq"):
        mine, theirs = one.state()[name], other.state()[name]
        np.testing.assert_array_equal(mine[1], theirs[1], err_msg=name)
        if name == "q":
            assert not np.array_equal(mine[0], theirs[0])


def test_draws_of_a_policy_do_not_depend_on_how_many_there_are():
    two, three = learner(policies=2), learner(policies=3)
    for _ in range(2):  # from one generator for all, the first draws would be the same
        np.testing.assert_array_equal(two._draws.taus(4, 5).numpy(), three._draws.taus(4, 5).numpy()[:2])
    np.testing.assert_array_equal(two.state()["q"], three.state()["q"][:2])
    np.testing.assert_array_equal(learner().policy_arrays()["q"], three.policy_arrays()["q"][0])
    assert not np.array_equal(three.state()["q"][1], three.state()["q"][2])


def test_a_gradient_is_shortened_for_its_own_length_alone():
    free, bound = learner(policies=2, max_grad_norm=None), learner(policies=2, max_grad_norm=0.25)
    quiet, loud = batch(1), batch(2)
    quiet.reward[:] *= 0.01
    quiet.discount[:] = 0.0
    loud.reward[:] *= 100
    for algorithm in (free, bound):
        algorithm.update(joined([quiet, loud]))
    long = np.linalg.norm(free._q_flat.grad.numpy(), axis=1)
    assert long[0] < 0.25 < long[1]
    np.testing.assert_array_equal(bound._q_flat.grad.numpy()[0], free._q_flat.grad.numpy()[0])
    np.testing.assert_allclose(np.linalg.norm(bound._q_flat.grad.numpy()[1]), 0.25, rtol=1e-5)


def test_arrays_have_a_row_for_each_policy():
    together = learner(policies=3)
    published = together.policy_arrays()
    assert published["q"].shape == (3, len(together._q_flat))
    assert published["exploration_scale"].shape == (1,)
    before = published["q"].copy()
    together.update(joined([batch(policy) for policy in range(3)]))
    assert (published["q"] != before).any(axis=1).all()
    assert together.policy.policy_of == (0, 1, 2)
    assert learner().policy.policy_of == ()


def test_metrics_are_told_for_each_and_for_all():
    together = learner(policies=2)
    together.update(joined([batch(0), batch(1)]))
    found = together.metrics()
    for name in ("q_loss", "q_mean", "target_q_mean", "q_grad_norm"):
        each = [found[f"train/{policy}/{name}"] for policy in range(2)]
        assert found[f"train/{name}"] == pytest.approx(np.mean(each))
        assert each[0] != each[1]


def test_a_number_that_is_none_stops_all_and_names_the_policy():
    together = learner(policies=3)
    together.update(joined([batch(policy) for policy in range(3)]))
    before = together.weights_sha256()
    bad = joined([batch(policy) for policy in range(3)])
    bad.reward[13] = np.inf
    with pytest.raises(NonFiniteValue, match="the Q-network of policy 1's loss or gradient is not finite") as caught:
        together.update(bad)
    assert caught.value.facts["batch"] == "reward of row 13 is inf"
    assert together.weights_sha256() == before


def test_restored_policies_go_on_bit_for_bit():
    original = learner(policies=2, network={"noisy": True}, target={"every_updates": 2})
    for step in range(3):
        original.update(joined([batch(step), batch(step + 9)]))
    restored = learner(5, policies=2, network={"noisy": True}, target={"every_updates": 2})
    restored.load_state(arrays(original))
    for algorithm in (original, restored):
        for step in range(3, 6):
            algorithm.update(joined([batch(step), batch(step + 9)]))
    assert restored.weights_sha256() == original.weights_sha256()


def test_the_registry_builds_them_in_one():
    built = build_algorithm(config(), OBS, ACTION, 0, policies=3)
    assert built.weights_sha256() == learner(policies=3).weights_sha256()
