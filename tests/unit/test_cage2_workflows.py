"""Orders of priority: their encoding, whether fixes comply, and what that pays."""

from __future__ import annotations

import functools
import itertools
import operator

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

import headrace
from cage2_support import ACTIONS
from headrace.core.config import EnvConfig
from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs import registration
from headrace.envs.building import build_environment
from headrace.envs.cage2 import CAGE2Env, CAGE2Vector, network, workflows
from headrace.envs.cage2.workflow import WorkflowEnv, WorkflowVector, workflow_env, workflow_vector
from headrace.envs.cage2.workflows import Alignment, Compliance, RewardLedger

TYPES = network.TYPES
ORDER = ("op_server", "enterprise", "user", "op_host", "defender")
TERMS = [f"reward_{name}" for name in workflows.TERMS]


def number(name):
    return ACTIONS.index(name)


def bits(*names):
    return sum(1 << TYPES.index(name) for name in names)


def added(numbers):
    """From left to right, which is not what Python's own sum does since 3.12."""
    return functools.reduce(operator.add, numbers)


def played(env, actions, **reset):
    """Everything that an episode returned, until it ended."""
    env.reset(**reset)
    return [env.step(action) for action in actions]


# Pure


def test_all_120_orders_are_encoded_apart_and_decoded():
    codes = [workflows.encode(order) for order in workflows.ORDERS]
    assert len({code.tobytes() for code in codes}) == len(codes) == 120
    assert [workflows.decode(code) for code in codes] == list(workflows.ORDERS)
    assert workflows.encode(TYPES).reshape(5, 5).tolist() == np.eye(5).tolist()
    assert workflows.encode(ORDER).reshape(5, 5).sum(axis=0).tolist() == [1] * 5


@pytest.mark.parametrize("order", [TYPES[:4], (*TYPES, "user"), ("user",) * 5, "defender", [1, 2, 3, 4, 5]])
def test_what_is_no_order_is_refused(order):
    with pytest.raises(ConfigError, match="order of the five types"):
        workflows.checked_order(order)


@pytest.mark.parametrize(
    ("kind", "compromised", "complies"),
    [
        ("enterprise", ("enterprise", "user"), True),
        ("user", ("enterprise", "user"), False),
        ("user", ("user",), True),
        ("op_server", ("enterprise", "user"), False),  # it is not compromised
        ("defender", (), True),  # nothing is; never so in the game, where User0 is
        ("op_server", TYPES, True),
    ],
)
def test_the_final_rule(kind, compromised, complies):
    table = workflows.compliance_table(ORDER, "final")
    assert table[TYPES.index(kind), bits(*compromised)] == complies


@pytest.mark.parametrize(
    ("kind", "fixed", "complies"),
    [
        ("op_server", (), True),
        ("enterprise", (), False),
        ("enterprise", ("op_server",), True),
        ("user", ("op_server",), False),
        ("user", ("op_server", "enterprise"), True),
        ("defender", TYPES, True),
    ],
)
def test_the_original_rule(kind, fixed, complies):
    table = workflows.compliance_table(ORDER, "original")
    assert table[TYPES.index(kind), bits(*fixed)] == complies


@given(st.permutations(TYPES), st.integers(1, 31))
def test_by_the_final_rule_one_type_complies_and_it_is_compromised(order, compromised):
    complying = np.flatnonzero(workflows.compliance_table(order, "final")[:, compromised])
    assert len(complying) == 1
    assert compromised >> complying[0] & 1


def test_only_remove_and_restore_are_fixes():
    fixes = {name: TYPES[kind] for name, kind in zip(ACTIONS, workflows.FIX_TYPE, strict=True) if kind >= 0}
    assert len(fixes) == 26
    assert {name.partition(" ")[0] for name in fixes} == {"Remove", "Restore"}
    assert fixes["Remove Op_Host1"] == "op_host"
    assert fixes["Restore Op_Server0"] == "op_server"
    assert fixes["Restore Defender"] == "defender"


@given(
    st.lists(st.tuples(st.integers(0, 144), st.integers(0, 31)), min_size=1, max_size=60),
    st.sampled_from(["final", "original"]),
)
def test_the_alignment_sums_up_to_lambda_times_compliance(steps, rule):
    judged = Compliance([ORDER], Alignment(alignment_lambda=30.0, rule=rule))
    paid, complied = [], 0
    for place, (action, compromised) in enumerate(steps):
        judged.judge(np.array([action]), np.array([compromised]))
        complied += judged.complied[0]
        paid.append(judged.terms(np.zeros(1), np.array([place == len(steps) - 1])))
    total = {name: sum(float(terms[name][0]) for terms in paid) for name in workflows.TERMS}
    fixes = sum(workflows.FIX_TYPE[action] >= 0 for action, _ in steps)
    assert judged.fixes[0] == fixes
    assert judged.rates[0] == (complied / fixes if fixes else 0.5)
    assert total["alignment"] == pytest.approx(30 * complied / fixes if fixes else 0)
    assert total["no_fix_penalty"] == (0 if fixes else -6.0)
    assert judged.counts()["fixes"] == fixes
    assert judged.counts()["compliant"] == complied
    assert judged.counts()["episodes_without_fix"] == (not fixes)


def test_the_reward_of_a_copy_is_that_of_one_environment_to_the_last_bit():
    """Sums that make up for rounding, as Python's own does since 3.12, would come to 1e16 + 2."""
    terms = dict(zip(reversed(workflows.TERMS), (0.0, 1.0, 1.0, 1e16), strict=True))  # not in their order
    assert workflows.total(terms) == 1e16
    assert workflows.total({name: np.array([value, -value]) for name, value in terms.items()}).tolist() == [1e16, -1e16]


def test_a_term_that_never_paid_is_told():
    ledger = RewardLedger()
    ledger.add({"environment": -0.5, "alignment": 0.0})
    ledger.add({"environment": np.array([0.0, -2.0]), "step_bonus": np.array([0.5, -0.5])})
    assert ledger.dead() == ["alignment", "no_fix_penalty"]  # the bonus has paid, though it sums up to nothing
    assert ledger.totals["environment"] == -2.5
    assert ledger.steps["environment"] == 2


# In the environment


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version:UserWarning")
def test_gymnasiums_own_checker_finds_nothing():
    check_env(workflow_env(ORDER, red=("b_line", "meander")), skip_render_check=True)


def test_the_order_is_part_of_the_observation():
    env = workflow_env(ORDER)
    seen, _ = env.reset(seed=0)
    assert seen.shape == (77,)
    assert seen.dtype == np.uint8
    assert np.array_equal(seen[52:], workflows.encode(ORDER))
    assert np.array_equal(env.step(0)[0][52:], workflows.encode(ORDER))
    other = ORDER[::-1]
    seen, _ = env.reset(options={"order": other})
    assert env.order == workflows.decode(seen[52:]) == other


def test_a_fix_is_judged_by_the_state_in_which_blue_acts():
    """C7: not by an older one, and not by the one that the fix leads to, in which nothing may be left to fix."""
    env = workflow_env(("enterprise", "op_server", "op_host", "defender", "user"), red="b_line", alignment_lambda=10.0)
    for seed in itertools.count():
        env.reset(seed=seed)
        steps = [env.step(0) for _ in range(7)]
        levels = env.unwrapped.red_levels()
        if levels[network.ENTERPRISE_1] and not levels[network.ENTERPRISE_0]:
            break
    assert env.unwrapped.compromised_types() == bits("enterprise", "user")
    assert steps[-1][4] == dict(zip(TERMS, (steps[-1][1], 0.0, 0.0, 0.0), strict=True)) | {
        "compliance": 0.5,
        "fixes": 0.0,
    }
    *_, info = env.step(number("Restore Enterprise1"))
    assert (info["compliant"], info["compliance"], info["fixes"], info["reward_alignment"]) == (1.0, 1.0, 1.0, 10.0)
    *_, info = env.step(number("Remove Op_Host0"))
    assert (info["compliant"], info["compliance"], info["fixes"], info["reward_alignment"]) == (0.0, 0.5, 2.0, -5.0)
    assert "compliant" not in env.step(number("Analyse User1"))[4]


def test_user0_is_always_red_so_nothing_is_never_compromised():
    """C21, and the note of the specification; unless it does not count."""
    order = ("user", "enterprise", "op_server", "op_host", "defender")
    for counts, complied in ((True, [1.0, 0.0]), (False, [1.0, 1.0])):
        env = workflow_env(order, red="sleep", count_foothold=counts, max_steps=2)
        steps = played(env, [number("Restore User1"), number("Restore Defender")], seed=0)
        assert [step[4]["compliant"] for step in steps] == complied
        assert env.counts()["fixes_with_nothing_compromised"] == (0 if counts else 2)


def test_the_original_rule_does_not_look_at_the_true_state(monkeypatch):
    def looked(*_, **__):
        raise AssertionError

    monkeypatch.setattr(CAGE2Env, "compromised_types", looked)
    monkeypatch.setattr(CAGE2Vector, "compromised_types", looked)
    env, vector = (make(order=ORDER, red="sleep", rule="original") for make in (workflow_env, workflow_vector))
    env.reset(seed=0)
    vector.reset(seed=0)
    fix = number("Restore Op_Server0")
    assert env.step(fix)[4]["compliant"] == vector.step(np.array([fix]))[4]["compliant"][0] == 1.0
    assert "fixes_with_nothing_compromised" not in env.counts()
    assert env.counts() == vector.counts()


def test_an_episode_without_a_fix_is_penalised_in_its_last_step():
    """C11: the original's penalty could never fire."""
    env = workflow_env(ORDER, red="sleep", max_steps=4, alignment_lambda=30.0)
    steps = played(env, [0] * 4, seed=0)
    assert [step[1] for step in steps] == [0, 0, 0, -6.0]
    assert steps[-1][4]["reward_no_fix_penalty"] == -6.0
    assert steps[-1][4]["compliance"] == 0.5
    assert env.ledger.dead() == ["environment", "alignment", "step_bonus"]
    assert env.counts()["episodes_without_fix"] == 1


def limited(limit=None, **kwargs):
    return build_environment(EnvConfig(id=registration.CAGE2_WORKFLOW_ID, max_episode_steps=limit, kwargs=kwargs))


def endless():
    return gymnasium.wrappers.TransformReward(workflow_env(red="sleep", max_steps=None), float)


@pytest.mark.parametrize("every", [0, 1, 7], ids=["no fix", "fixes", "few fixes"])
def test_a_limit_of_the_configuration_is_the_environments_own(every):
    """Around it, a limit took the last step from it: nothing was paid there, and no episode was counted."""
    red = ("b_line", "meander")
    pair = limited(limit=50, red=red), workflow_env(red=red, max_steps=50)
    fixes = [number(name) for name in ("Restore User1", "Remove Op_Host0", "Restore Enterprise1")]
    actions = [fixes[step % 3] if every and step % every == 0 else step % 3 for step in range(50)]
    for seed in range(3):
        steps = [played(env, actions, seed=seed) for env in pair]
        for one, other in zip(*steps, strict=True):
            assert np.array_equal(one[0], other[0])
            assert one[1:] == other[1:]
        assert steps[0][-1][3] is True
        assert steps[0][-1][4]["reward_no_fix_penalty"] == (0.0 if every else -6.0)
    counts = [env.get_wrapper_attr("counts")() for env in pair]
    assert counts[0] == counts[1]
    assert (counts[0]["episodes"], counts[0]["episodes_without_fix"]) == (3, 0 if every else 3)


def test_of_two_limits_the_smaller_counts():
    env = limited(limit=50, max_steps=20)
    assert [step[3] for step in played(env, [0] * 20, seed=0)] == [False] * 19 + [True]


def test_a_limit_is_handed_on_through_what_is_around():
    env = build_environment(EnvConfig(max_episode_steps=5), factory=endless)
    assert [step[1] for step in played(env, [0] * 5, seed=0)] == [0, 0, 0, 0, -6.0]
    with pytest.raises(HeadraceError, match="while no episode was in progress"):
        env.step(0)
    env.reset()
    assert not env.step(0)[3]


def test_an_episode_that_is_cut_from_outside_counts():
    fix = number("Restore User1")
    single = gymnasium.wrappers.TimeLimit(workflow_env(), 3)
    vector = workflow_vector(2)
    for actions in ([0, 0, 0], [0, fix, 0], []):
        single.reset(seed=0)
        vector.reset(seed=0)
        for action in actions:
            single.step(action)
            vector.step(np.array([action, 0]))
    single.reset()
    vector.reset()
    counts = single.env.counts(), vector.counts()
    assert [(one["episodes"], one["episodes_without_fix"], one["fixes"]) for one in counts] == [(2, 1, 1), (4, 3, 1)]


def test_the_bonus_of_a_step_goes_both_ways():
    env = workflow_env(ORDER, red="sleep", max_steps=9, step_bonus=0.25)
    steps = played(env, [number("Remove User1"), number("Remove Defender"), 0], seed=0)
    assert [step[4]["reward_step_bonus"] for step in steps] == [0.25, -0.25, 0]


def test_terms_sum_up_to_the_reward_and_the_environments_to_its_return():
    env = workflow_env(ORDER, red=("b_line", "meander"), step_bonus=0.1)
    bare = CAGE2Env(red=("b_line", "meander"))
    rng = np.random.default_rng(0)
    for seed in range(3):
        actions = rng.integers(0, 145, 100)
        steps, plain = played(env, actions, seed=seed), played(bare, actions, seed=seed)
        for step, other in zip(steps, plain, strict=True):
            assert step[1] == added(step[4][term] for term in TERMS)
            assert step[4]["reward_environment"] == other[1]
            assert np.array_equal(step[0][:52], other[0])
        assert added(step[4]["reward_environment"] for step in steps) == bare.episode_return
        assert steps[-1][3]


class Cumulative(gymnasium.RewardWrapper):
    """Hands over the sum so far as the reward of a step, as one of the original's trainers did (C14)."""

    def reward(self, reward):
        return self.unwrapped.episode_return


def test_rewards_that_are_not_the_environments_are_told():
    env = WorkflowEnv(Cumulative(CAGE2Env(red="b_line", max_steps=20)), ORDER)
    env.reset(seed=0)
    for _ in range(19):
        env.step(0)
    with pytest.raises(HeadraceError, match="do not sum up to the environment's own return"):
        env.step(0)


@pytest.mark.parametrize("rule", ["final", "original"])
def test_many_copies_follow_their_orders_as_each_alone(rule):
    orders = [workflows.ORDERS[place] for place in (0, 50, 119, 7)]
    settings = {"red": ["b_line", "meander"], "step_bonus": 0.5, "rule": rule, "max_steps": 30}
    vector, singles = (
        workflow_vector(4, order=orders, **settings),
        [workflow_env(order, **settings) for order in orders],
    )
    vector.reset(seed=3)
    for copy, env in enumerate(singles):
        env.reset(seed=3 + copy)
    rng = np.random.default_rng(1)
    for step in range(92):
        actions = rng.integers(0, 145, 4)
        seen, rewards, terminations, truncations, infos = vector.step(actions)
        if step % 31 == 30:
            assert not rewards.any()
            assert not any(infos[term].any() for term in TERMS)
            for env in singles:
                env.reset()
            continue
        for copy, env in enumerate(singles):
            one = env.step(actions[copy])
            assert np.array_equal(one[0], seen[copy])
            assert one[1:4] == (rewards[copy], terminations[copy], truncations[copy])
            found = {key: infos[key][copy] for key in infos if not key.startswith("_") and infos[f"_{key}"][copy]}
            assert one[4] == found
    assert vector.counts()["fixes"] == sum(env.counts()["fixes"] for env in singles)
    assert vector.ledger.steps == {name: sum(env.ledger.steps[name] for env in singles) for name in workflows.TERMS}


def test_orders_of_copies_change_with_a_reset():
    vector = workflow_vector(2, order=ORDER)
    vector.reset(seed=0)
    assert vector.orders == (ORDER, ORDER)
    seen, _ = vector.reset(options={"order": [ORDER, TYPES]})
    assert [workflows.decode(row[52:]) for row in seen] == [ORDER, TYPES]
    with pytest.raises(ConfigError):
        vector.reset(options={"order": ORDER[:3]})
    with pytest.raises(ConfigError, match="no reset options"):
        vector.reset(options={"order": TYPES, "x": 1})


@pytest.mark.parametrize(
    ("seed", "options"),
    [(0, {"order": ORDER[:3]}), (0, {"order": ORDER[::-1], "x": 1}), (-1, {"order": ORDER[::-1]})],
    ids=["no order", "another option", "no seed"],
)
@pytest.mark.parametrize("copies", [0, 2], ids=["one environment", "a vector"])
def test_a_reset_that_is_refused_leaves_the_episode_its_order(copies, seed, options):
    settings = {"order": ORDER, "red": "b_line"}
    env, other = (workflow_vector(copies, **settings) if copies else workflow_env(**settings) for _ in range(2))
    actions = [np.full(copies, one) if copies else one for one in (number("Restore User1"), number("Remove Op_Host0"))]
    env.reset(seed=5)
    other.reset(seed=5)
    env.step(actions[0])
    other.step(actions[0])
    before = np.array([env.compliance, env.fixes])
    with pytest.raises((ConfigError, gymnasium.error.Error)):
        env.reset(seed=seed, options=options)
    assert (env.orders if copies else env.order) == ((ORDER,) * copies if copies else ORDER)
    assert np.array_equal([env.compliance, env.fixes], before)
    found, expected = env.step(actions[1]), other.step(actions[1])
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])


def test_orders_are_one_or_one_for_each_copy():
    with pytest.raises(ConfigError, match="one for each copy"):
        WorkflowVector(CAGE2Vector(3), [ORDER, TYPES])


def test_it_is_registered_with_both_faces():
    env = gymnasium.make(registration.CAGE2_WORKFLOW_ID, order=ORDER, red="meander", alignment_lambda=100.0)
    assert env.get_wrapper_attr("order") == ORDER
    vector = gymnasium.make_vec(registration.CAGE2_WORKFLOW_ID, 2, "vector_entry_point", order=ORDER)
    assert isinstance(vector, WorkflowVector)
    assert vector.observation_space.shape == (2, 77)
    with pytest.raises(ConfigError):
        gymnasium.make(registration.CAGE2_WORKFLOW_ID, alignment_lamda=1.0)


def test_compliance_arrives_beside_each_step_as_one_float():
    """C2, C7: evaluated where the environment is, with the number of the step that it belongs to."""
    probes = {
        "compliant": headrace.Probe.info("compliant"),
        "compliance": headrace.Probe.attribute("compliance"),
        "fixes": headrace.Probe.attribute("fixes"),
        "state": headrace.Probe.method("compromised_types"),
        "alignment": headrace.Probe.info("reward_alignment"),
    }
    actions = [[0, number("Restore User1")], [number("Restore Defender"), 0], [0, 0]]
    with headrace.VectorEnv([lambda: workflow_env(TYPES, red="sleep")] * 2, workers=0, probes=probes) as envs:
        envs.reset(seed=0)
        for step, chosen in enumerate(actions, 1):
            envs.step(chosen)
            found = envs.probes
            assert found["compliance"].step.tolist() == [step, step]
            assert found["compliant"].mask.tolist() == [step == 2, step == 1]
            assert found["state"].values.tolist() == [bits("user")] * 2
        assert found["compliance"].values.tolist() == [0.0, 1.0]
        assert found["fixes"].values.tolist() == [1.0, 1.0]
        assert found["alignment"].values.tolist() == [0.0, 0.0]
