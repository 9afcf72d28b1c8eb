"""The faults that can be asked for: each does what it says, and none touches the task's own draws."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from headrace.core.errors import ConfigError, EnvironmentRaised, HeadraceError
from headrace.envs.fuelbreak import FuelBreakEnv
from headrace.envs.fuelbreak import misbehaviour as module
from headrace.envs.fuelbreak.misbehaviour import Troublemaker
from headrace.envs.fuelbreak.settings import Misbehaviour


class Watched:
    """A troublemaker whose waits, deaths and work are noted instead of done."""

    def __init__(self, env_id=0, seed=0, **settings):
        self.waits, self.crashes, self.works = [], 0, 0
        self.trouble = Troublemaker(Misbehaviour(**settings), env_id, wait=self.waits.append, crash=self._crash)
        self.trouble.seed(seed)

    def _crash(self):
        self.crashes += 1

    def _work(self):
        self.works += 1

    def step(self):
        """What was raised in a step, or None."""
        try:
            self.trouble.step(self._work)
        except EnvironmentRaised as error:
            return error
        return None

    def fates(self, steps):
        """One letter a step: hung, crashed, raised or went on."""
        found = ""
        for _ in range(steps):
            before = len(self.waits), self.crashes
            raised = self.step()
            found += "h" if len(self.waits) > before[0] else "c" if self.crashes > before[1] else "r" if raised else "."
        return found


def test_nothing_happens_by_default():
    watched = Watched()
    assert watched.fates(500) == "." * 500
    assert watched.works == 0


def test_each_fault_comes_as_often_as_it_is_asked_for():
    fates = Watched(p_hang=0.1, p_crash=0.2, p_raise=0.3).fates(4000)
    assert [fates.count(fate) / 4000 for fate in "hcr."] == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.03)


def test_the_faults_of_an_environment_follow_from_its_seed_and_number():
    fates = [
        Watched(env_id, seed, p_hang=0.1, p_raise=0.1).fates(200) for env_id, seed in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    assert fates[0] == fates[1]
    assert len(set(fates)) == 3


def test_delays_and_work_do_not_move_the_faults():
    plain, slow = Watched(p_raise=0.2), Watched(p_raise=0.2, delay_s=0.01, busy_repeats=1.0)
    for _ in range(100):
        assert (plain.step() is None) == (slow.step() is None)


def test_a_hang_waits_once_and_never_returns_a_step():
    watched = Watched(p_hang=1.0, hang_s=1234.0)
    error = watched.step()
    assert watched.waits == [1234.0]
    assert str(error) == (
        "[ENV-004] FuelBreakEnv hung on purpose for 1234 s, and nobody ended it\n"
        "  env id: 0\n"
        "  p hang: 1.0\n"
        "  fix: Set p_hang to 0 if this is not meant."
    )


def test_waiting_uses_no_processor(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "poll_fds", lambda interest, timeout_s: asked.append((interest, timeout_s)))
    module.idle(5.0)
    assert asked == [({}, 5.0)]  # one call into the kernel, no loop


def test_delays_have_their_median_and_a_heavy_tail():
    watched = Watched(delay_s=0.02, tail_sigma=1.0)
    watched.fates(2000)
    waits = np.array(watched.waits)
    assert np.median(waits) == pytest.approx(0.02, rel=0.1)
    assert np.log(waits).std() == pytest.approx(1.0, rel=0.1)


def test_without_a_tail_every_delay_is_the_median():
    watched = Watched(delay_s=0.02, tail_sigma=0.0)
    watched.fates(3)
    assert watched.waits == [0.02] * 3


def test_busy_repeats_are_work():
    watched = Watched(busy_repeats=4.0, tail_sigma=0.0)
    watched.fates(3)
    assert (watched.works, watched.waits) == (12, [])


def test_only_the_slow_environments_are_slow():
    slow, other = (
        Watched(env_id, delay_s=0.02, slow_env_ids=[3, 5], slow_factor=20.0, busy_repeats=2.0) for env_id in (5, 4)
    )
    slow.fates(50)
    other.fates(50)
    slow.trouble.seed(0)
    assert np.median(slow.waits) > 5 * np.median(other.waits)
    assert slow.works > 5 * other.works


def test_a_leak_grows_with_every_step():
    watched = Watched(leak_mb=0.5)
    watched.fates(4)
    assert sum(array.nbytes for array in watched.trouble._leaked) == 2 * 2**20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p_hang": 0.5, "p_crash": 0.5, "p_raise": 0.1}, "their probabilities exceed 1"),
        ({"slow_env_ids": [1], "env_id": 1}, "nothing to be slow with"),
        ({"slow_env_ids": [1], "delay_s": 0.1}, "cannot tell whether it is one of slow_env_ids"),
        ({"p_hang": 1.5}, "p_hang"),
        ({"p_hagn": 0.5}, "nearest: p_hang"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        FuelBreakEnv(size=8, **settings)


# Inside the environment


def episode(env, seed):
    """Observation, reward, ends and info of every step; the actions depend on the seed alone."""
    rng = np.random.default_rng(seed)
    obs, info = env.reset(seed=seed)
    steps = [(obs.tobytes(), 0.0, False, info)]
    while True:
        obs, reward, terminated, truncated, info = env.step(rng.integers(0, 2, 64))
        steps.append((obs.tobytes(), reward, terminated, info))
        if terminated or truncated:
            return steps


def test_an_episode_that_gets_through_is_the_same_with_faults_and_delays():
    clean, troubled = FuelBreakEnv(size=8), FuelBreakEnv(size=8, p_raise=0.02, busy_repeats=1.0, leak_mb=0.01, env_id=2)
    through = 0
    for seed in range(30):
        try:
            found = episode(troubled, seed)
        except EnvironmentRaised:
            continue
        assert found == episode(clean, seed)
        through += 1
    assert 0 < through < 30


def test_after_a_fault_the_episode_is_over():
    env = FuelBreakEnv(size=8, p_raise=1.0)
    env.reset(seed=0)
    with pytest.raises(EnvironmentRaised, match="raised on purpose"):
        env.step(np.ones(64))
    with pytest.raises(HeadraceError, match="no episode was in progress"):
        env.step(np.ones(64))
    assert not env.plan.any()
    env.reset(seed=0)


def test_without_a_seed_the_faults_go_on_and_do_not_begin_again():
    env = FuelBreakEnv(size=8, p_raise=0.5)
    env.reset(seed=1)
    faults = []
    for _ in range(20):
        env.reset()
        try:
            env.step(np.zeros(64))
            faults.append(False)
        except EnvironmentRaised:
            faults.append(True)
    assert len(set(faults)) == 2


@pytest.mark.process
def test_a_crash_kills_the_process():
    code = (
        "import numpy as np; from headrace.envs.fuelbreak import FuelBreakEnv\n"
        "env = FuelBreakEnv(size=8, p_crash=1.0); env.reset(seed=0); env.step(np.ones(64)); print('alive')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (-9, "")
