"""CAGE 2's network: as a plain one plays it, many copies as one, and as CybORG is known to play."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cage2_support import ACTIONS, PlainNetwork, Scripted
from headrace.envs.cage2 import CAGE2Env, CAGE2Vector, Draws, Settings, Solo, World, network, rules
from headrace.envs.cage2.baselines import asleep, episode_returns, policy

REDS = network.OPPONENTS
GOLDEN = [0, 0, *[-0.1] * 4, *[-1.1] * 4, *[-2.1] * 3, -3.1, *[-13.1] * 86]
"""Blue asleep, B_line without a failure: measured with CybORG 2.1."""
OP_SERVER = network.OP_SERVER


def number(name):
    return ACTIONS.index(name)


def solo(red="b_line", user=network.USER_1, numbers=((0.0, 0.0, 0.0),), steps=100):
    chosen = Settings(red=red, max_steps=steps)
    found = Solo(chosen, Scripted(chosen, REDS.index(red), user, np.resize(np.asarray(numbers, float), (steps, 3))))
    found.reset()
    return found


def worlds(red, copies, steps, seed=0):
    """Many copies at once, and the same one by one."""
    chosen = Settings(red=red, max_steps=steps)
    together = World(chosen, [Draws(chosen) for _ in range(copies)])
    alone = [Solo(chosen, Draws(chosen)) for _ in range(copies)]
    together.reset([seed + copy for copy in range(copies)])
    for copy, one in enumerate(alone):
        one.draws.seed(seed + copy)
        one.reset()
    return together, alone


# Against CybORG, as far as it was measured


@pytest.mark.parametrize("user", range(network.USER_1, network.USER_4 + 1))
def test_blue_asleep_and_b_line_without_a_failure(user):
    world = solo(user=user)
    assert [world.step(0) for _ in range(100)] == GOLDEN


def test_most_episodes_of_b_line_begin_like_this():
    settings = Settings(red="b_line", max_steps=16)
    world = World(settings, [Draws(settings) for _ in range(400)])
    world.reset(list(range(400)))
    rewards = np.array([world.step(asleep(world.observe())) for _ in range(16)])
    golden = (rewards == np.array(GOLDEN[:16])[:, None]).all(axis=0)
    assert 0.55 < golden.mean() < 0.71  # 0.63 in 4000


@pytest.mark.parametrize(
    ("name", "red", "published", "specified"),
    [
        ("random", "b_line", {30: (-154.06, 78), 50: (-347.1, 158), 100: (-726.92, 353)}, (-820, 345)),
        ("random", "meander", {30: (-33.43, 15), 50: (-171.49, 91), 100: (-566.41, 286)}, (-630, 300)),
        ("random", "sleep", {30: (-2.8, 1.6), 50: (-4.45, 2.0), 100: (-8.94, 2.9)}, (-9, 3)),
        ("asleep", "b_line", {30: (-218.65, 20), 50: (-480.17, 20), 100: (-1134.03, 20)}, None),
        ("asleep", "meander", {30: (-39.31, 20), 50: (-267.6, 70), 100: (-972.43, 70)}, None),
        ("asleep", "sleep", {100: (0, 0)}, None),
    ],
)
def test_returns_are_those_of_cyborg(name, red, published, specified):
    """Of the challenge's leader board, 1000 episodes each, the deviations being ours; and of the specification, "about"."""
    act, env = policy(name, np.random.default_rng(0)), CAGE2Vector(500, red=red)
    seen, _ = env.reset(seed=1000)
    means = {}
    for step in range(1, 101):
        seen = env.step(act(seen))[0]
        means[step] = env.episode_returns.mean()
    for steps, (mean, deviation) in published.items():
        assert abs(means[steps] - mean) <= 0.2 * deviation
    if specified:
        assert abs(means[100] - specified[0]) <= 0.5 * specified[1]


def test_returns_of_episodes_are_those_of_single_ones():
    act = policy("greedy restore", np.random.default_rng(0))
    together = episode_returns(act, episodes=3, seed=5, red="b_line", max_steps=60)
    for place, expected in enumerate(together):
        env = CAGE2Env(red="b_line", max_steps=60)
        seen, _ = env.reset(seed=5 + place)
        for _ in range(60):
            seen = env.step(act(seen[None])[0])[0]
        assert env.episode_return == expected


def test_a_restored_server_cannot_be_stopped_again():
    """As in CybORG, whose backup loses the service's process id; without this, random blue would lose 240 more."""
    world = solo()
    rewards = [world.step(0) for _ in range(20)]
    assert rewards[-1] == -13.1
    assert world.step(number("Restore Op_Server0")) == -3.1  # the restore's own cost among it
    later = [world.step(0) for _ in range(20)]
    assert later[-1] == -3.1
    assert world.kind == network.IMPACT
    assert world.succeeded


# Against a plain one


@settings(max_examples=120)
@given(
    st.sampled_from(["b_line", "meander"]),
    st.integers(network.USER_1, network.USER_4),
    st.integers(0, 2**32),
    st.sampled_from([0.2, 0.6, 0.95]),
    st.integers(1, 150),
)
def test_it_plays_as_processes_sessions_and_connections_would(red, user, seed, eager, steps):
    """Blue acts at random, or on the host where red has just been, so that the two meet."""
    rng = np.random.default_rng(seed)
    numbers, kinds = rng.random((steps, 3)), np.array([2, 15, 15, *range(28, 132, 13), 132])
    numbers[:, 2] **= 1 if seed % 2 else 0.05  # in half of the episodes, most shells go unnoticed
    plain, ours = PlainNetwork(red, user, numbers), solo(red, user, numbers, steps=steps)
    for _ in range(steps):
        action = int(rng.choice(kinds)) + ours.target if rng.random() < eager else int(rng.integers(0, 145))
        reward, seen = plain.step(action)
        assert ours.step(action) == reward
        assert ours.observe().tolist() == seen
        levels = [bool(host.sessions) + bool(host.privileged) for host in plain.hosts.values()]
        assert [(core & 3 > 0) + (core & 3 == rules.PRIVILEGED) for core in ours.cores] == levels


# Many as one


@pytest.mark.parametrize("red", [("b_line",), ("meander",), ("b_line", "meander", "sleep")])
def test_many_copies_play_as_each_alone(red):
    copies, steps = 24, 150  # longer than a block of random numbers
    together, alone = worlds(red, copies, steps)
    rng = np.random.default_rng(1)
    for episode in range(2):
        for _ in range(steps):
            actions = rng.integers(0, 145, copies)
            if episode:
                actions = np.where(rng.random(copies) < 0.7, 0, actions)
            rewards, seen = together.step(actions), together.observe()
            for copy, one in enumerate(alone):
                assert one.step(int(actions[copy])) == rewards[copy]
                assert np.array_equal(one.observe(), seen[copy])
                assert one.cores == together.cores[copy].tolist()
                assert (one.kind, one.target) == (together.kinds[copy], together.targets[copy])
            for foothold in (True, False):
                found = together.compromised(foothold=foothold).tolist()
                assert [one.compromised(foothold=foothold) for one in alone] == found
        assert together.over
        assert all(one.over for one in alone)
        together.reset()
        for one in alone:
            one.reset()


def test_rewards_are_what_the_state_costs():
    together, _ = worlds(("b_line", "meander"), 50, 100)
    rng = np.random.default_rng(2)
    weights = np.array(network.WEIGHTS)
    for _ in range(100):
        actions = rng.integers(0, 145, 50)
        rewards = together.step(actions)
        tenths = (together.levels() == rules.PRIVILEGED) @ weights + 100 * together.stopped
        tenths += [10 * ACTIONS[action].startswith("Restore") for action in actions]
        assert np.array_equal(rewards, -tenths / 10 + 0.0)
        assert not np.signbit(rewards[rewards == 0]).any()


def test_chances_do_not_depend_on_what_blue_does():
    settings = Settings(red=("b_line", "meander"))
    calm, busy = (World(settings, [Draws(settings) for _ in range(8)]) for _ in range(2))
    for episode in range(3):
        for world in (calm, busy):
            world.reset(range(8) if episode == 0 else None)
        assert calm.opponents.tolist() == busy.opponents.tolist()
        for _ in range(100):
            calm.step(np.zeros(8, np.int64))
            busy.step(np.full(8, 5))
    assert calm.draws[0].generator.random() == busy.draws[0].generator.random()


def test_opponents_are_mixed_as_they_are_listed():
    settings = Settings(red=("b_line", "b_line", "sleep"))
    world = World(settings, [Draws(settings) for _ in range(3000)])
    world.reset(range(3000))
    shares = np.bincount(world.opponents, minlength=3) / 3000
    assert shares == pytest.approx([2 / 3, 0, 1 / 3], abs=0.03)


# The rules, one by one


def test_actions_are_numbered_as_in_cyborg():
    assert [str(action) for action in network.ACTIONS] == ACTIONS
    assert len(ACTIONS) == 145
    assert [ACTIONS[number] for number in (2, 15, 28, 131, 132, 144)] == [
        "Analyse Defender", "Remove Defender", "DecoyApache Defender", "DecoyVsftpd User4", "Restore Defender", "Restore User4",
    ]  # fmt: skip


def test_remove_ends_only_sessions_that_were_noticed():
    noticed, missed = rules.USER_SEEN, rules.USER_UNSEEN
    for event, left in ((noticed, rules.NO_SESSION), (missed, rules.STUBBORN), (rules.SSH_SESSION, rules.STUBBORN)):
        after = rules.after_blue(rules.CLEANED, rules.after_red(event, rules.ALONE, 0))
        assert rules.parts(after)[0] == left
    both = rules.after_red(missed, rules.ALONE, rules.after_red(noticed, rules.ALONE, 0))
    assert rules.parts(rules.after_blue(rules.CLEANED, both))[0] == rules.STUBBORN
    escalated = rules.after_red(rules.ESCALATED, rules.ALONE, both)
    assert rules.parts(rules.after_blue(rules.CLEANED, escalated))[0] == rules.PRIVILEGED


def test_analyse_finds_files_not_sessions():
    ssh = rules.after_red(rules.SSH_SESSION, rules.ALONE, 0)
    assert rules.parts(rules.after_blue(rules.ANALYSED, ssh))[2] == rules.BELIEVED_USER
    cleaned = rules.after_blue(rules.CLEANED, rules.after_red(rules.USER_SEEN, rules.ALONE, 0))
    assert rules.parts(cleaned) == (rules.NO_SESSION, True, rules.BELIEVED_UNKNOWN)
    assert rules.parts(rules.after_blue(rules.ANALYSED, cleaned))[2] == rules.BELIEVED_PRIVILEGED


def test_what_analyse_finds_is_believed_though_red_breaks_in_beside_it():
    found = rules.core(rules.REMOVABLE, malware=True, belief=rules.BELIEVED_PRIVILEGED)
    for beside, belief in ((rules.ALONE, rules.BELIEVED_USER), (rules.WITH_FINDING, rules.BELIEVED_PRIVILEGED)):
        assert rules.parts(rules.after_red(rules.SSH_SESSION, beside, found))[2] == belief
        assert rules.activity(rules.SSH_SESSION, beside) == rules.EXPLOITED


def test_a_restore_leaves_nothing_but_reds_first_session():
    cores = range(rules.CORES)
    assert {rules.after_blue(rules.RESTORED, core) for core in cores} == {0}
    assert {rules.after_blue(rules.RESTORED_FOOTHOLD, core) for core in cores} == {rules.FOOTHOLD_CORE}


@pytest.mark.parametrize(
    ("ports", "order"),
    [
        ({21, 22}, ["ftp", "ssh"]),
        ({22}, ["ssh"]),
        ({80, 443, 139, 3389, 22}, ["https", "http", "eternalblue", "bluekeep", "ssh"]),
        ({25, 80, 443, 3390, 22}, ["haraka", "sql", "https", "http", "ssh"]),
        ({3390, 22}, ["ssh"]),  # SQL injection needs a web server
        (set(), []),
    ],
)
def test_red_prefers_exploits_in_this_order(ports, order):
    known = sum(1 << place for place, port in enumerate(network.PORTS) if port in ports)
    assert [network.EXPLOITS[e] for e in rules.exploits_by_preference(known)] == order


def test_a_decoy_on_the_preferred_port_stops_red():
    """Vsftpd opens port 80, and a web server is preferred to guessing the password; only where red has not scanned yet."""
    world = solo(user=network.USER_3)
    world.step(number("DecoyVsftpd Enterprise0"))
    for _ in range(99):
        world.step(0)
    assert not world.cores[network.ENTERPRISE_0] & 3
    late = solo(user=network.USER_3)
    for _ in range(5):
        late.step(0)
    assert late.kind == network.SCAN
    assert late.target == network.ENTERPRISE_0
    late.step(number("DecoyVsftpd Enterprise0"))
    assert late.cores[network.ENTERPRISE_0] & 3


def test_red_remembers_ports_that_are_gone():
    world = solo(user=network.USER_1)
    for action in ("DecoyFemitter Enterprise1", *["Sleep"] * 4):
        world.step(number(action))
    assert (world.kind, world.target) == (network.SCAN, network.ENTERPRISE_1)
    world.step(number("Restore Enterprise1"))
    assert (world.kind, world.succeeded) == (network.EXPLOIT, False)
    assert not world.observe()[4 * network.ENTERPRISE_1]  # nothing answers, and nothing is seen


def test_without_a_gateway_the_operational_subnet_is_closed():
    world = solo(user=network.USER_1)
    for _ in range(11):
        world.step(0)
    assert (world.kind, world.target) == (network.ESCALATE, network.ENTERPRISE_2)
    for name in ("Restore Enterprise1", "Restore Enterprise2"):
        world.cores[HOST[name]] = 0
    world.step(0)
    assert (world.kind, world.succeeded, world.ports[OP_SERVER]) == (network.SCAN, True, 0)
    world.step(0)  # B_line has no address, begins again, and takes the scan for the first stage's success
    assert (world.kind, world.target) == (network.SCAN, network.USER_1)


HOST = {f"Restore {name}": place for place, name in enumerate(network.HOSTS)}
