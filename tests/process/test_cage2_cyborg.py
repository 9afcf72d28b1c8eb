"""A CybORG in another interpreter: the same interface, deadlines, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from fake_cyborg import install
from headrace.core.errors import (
    ComponentDied,
    ComponentStalled,
    ConfigError,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    HeadraceError,
)
from headrace.envs.cage2 import network
from headrace.envs.cage2.cyborg import CybORGEnv
from headrace.envs.cage2.workflow import WorkflowEnv
from headrace.envs.cage2.workflows import Alignment

pytestmark = pytest.mark.process


@pytest.fixture
def built(tmp_path):
    """Builds environments with the stand-in, and ends them."""
    path, found = install(tmp_path), []

    def build(**settings):
        found.append(CybORGEnv(sys.executable, pythonpath=path, **settings))
        return found[-1]

    yield build
    for env in found:
        env.close()
        env.close()


def test_gymnasiums_own_checker_finds_nothing(built):
    check_env(built(red="meander"), skip_render_check=True)


def test_it_plays_what_the_other_interpreter_plays(built):
    env = built(max_steps=3)
    seen, info = env.reset(seed=1)
    assert (seen.dtype, seen.shape, seen.any(), info) == (np.uint8, (52,), False, {})
    assert env.red_levels().tolist() == [3 * (host == network.FOOTHOLD) for host in range(13)]
    steps = [env.step(action) for action in (1, 17, 144)]
    assert [step[1] for step in steps] == [-0.1, -0.1 * 17, -0.1 * 144]
    assert [step[2:4] for step in steps] == [(False, False), (False, False), (False, True)]
    assert env.episode_return == steps[0][1] + steps[1][1] + steps[2][1]
    assert env.red_levels()[network.ENTERPRISE_1] == 3
    assert env.compromised_types() == 0b10010
    assert env.compromised_types(foothold=False) == 0b00010
    with pytest.raises(HeadraceError, match="no episode was in progress"):
        env.step(0)


def test_the_other_interpreter_needs_nothing_of_headrace(tmp_path):
    """The one that the virtual environment was made of, without the packages of that environment."""
    python = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    with CybORGEnv(python, pythonpath=install(tmp_path), max_steps=2) as env:
        env.reset(seed=3)
        assert [env.step(action)[1] for action in (1, 2)] == [-0.1, -0.2]


def test_seeds_reach_the_generators_of_python_and_numpy(built):
    one, other = built(), built()

    def played(env, seed):
        env.reset(seed=seed)
        return [env.step(1)[0].tolist() for _ in range(5)]

    first = played(one, 4)
    assert played(other, np.int64(4)) == first
    assert played(one, 4) == first
    assert played(one, 5) != first


def test_a_workflow_judges_it_too(built):
    env = WorkflowEnv(built(max_steps=4), ("enterprise", "op_server", "op_host", "defender", "user"))
    env.reset(seed=0)
    infos = [env.step(action)[4] for action in (0, 0, 134, 132)]
    assert [info.get("compliant") for info in infos] == [None, None, 1.0, 0.0]
    assert env.counts()["compliant"] == 1


def test_a_rule_that_needs_the_true_state_is_refused_where_it_is_not_sent(built):
    """At once and not in the first step with a fix; the original rule needs none."""
    env, order = built(true_state=False), ("enterprise", "op_server", "op_host", "defender", "user")
    with pytest.raises(ConfigError) as refused:
        WorkflowEnv(env, order)
    assert str(refused.value) == (
        "[CFG-001] a workflow is judged by the true state, which the environment does not tell\n"
        "  rule: final\n"
        '  fix: Build it without true_state=False, or judge by the rule "original".'
    )
    workflow = WorkflowEnv(env, order, Alignment(rule="original"))
    workflow.reset(seed=0)
    infos = [workflow.step(action)[4] for action in (0, 134, 132)]  # restores of Enterprise1 and of Defender
    assert [info.get("compliant") for info in infos] == [None, 1.0, 0.0]
    assert "fixes_with_nothing_compromised" not in workflow.counts()


def test_what_it_raises_arrives_with_its_traceback_and_it_goes_on(built):
    env = built(scenario="raises")
    env.reset(seed=0)
    with pytest.raises(EnvironmentRaised) as raised:
        env.step(0)
    assert raised.value.what == "CybORG raised in step()"
    assert "ValueError: scenario is corrupt at host 7" in str(raised.value)
    assert "line " in str(raised.value.facts["traceback"])
    with pytest.raises(HeadraceError, match="no episode was in progress"):
        env.step(1)
    env.reset(seed=0)
    assert env.step(1)[1] == -0.1


def test_its_death_is_told_with_its_last_words(built):
    env = built(scenario="dies")
    env.reset(seed=0)
    with pytest.raises(ComponentDied) as died:
        env.step(0)
    assert str(died.value) == (
        "[SUP-001] CybORG's process ended in step()\n"
        "  exit code: 3\n"
        "  output: building dies sim\nout of memory, it seems\n"
        "  fix: Read the last lines of its output."
    )
    with pytest.raises(ComponentDied):
        env.reset()


def test_a_kill_between_two_steps_is_noticed(built):
    env = built()
    env.reset(seed=0)
    (child,) = [pid for pid in map(int, _children()) if _runs_the_child(pid)]
    os.kill(child, signal.SIGKILL)
    with pytest.raises(ComponentDied) as died:
        env.step(1)
    assert died.value.facts["exit_code"] == -9


def test_a_step_that_hangs_misses_its_deadline_and_is_ended(built):
    env = built(scenario="hangs")
    env.reset(seed=0)
    env._step_s = 0.2
    with pytest.raises(ComponentStalled) as stalled:
        env.step(0)
    assert stalled.value.what == "CybORG did not answer within 0.2 s, in step()"
    assert "thinking" in str(stalled.value)
    assert not [pid for pid in map(int, _children()) if _runs_the_child(pid)]


def test_output_fills_no_pipe(built):
    env = built(scenario="noisy")
    env.reset(seed=0)
    assert [env.step(1)[1] for _ in range(8)] == [-0.1] * 8  # 2 MiB


def test_a_scenario_that_is_not_there_and_an_interpreter_that_is_none(built):
    with pytest.raises(EnvironmentNotBuilt) as refused:
        built(scenario="cannot")
    assert refused.value.facts["cause"] == "CybORG raised in its construction"
    assert "FileNotFoundError: cannot" in str(refused.value)
    with pytest.raises(ConfigError, match="interpreter cannot be started"):
        CybORGEnv("/nowhere/python")
    with pytest.raises(EnvironmentNotBuilt, match="could not be built") as missing:
        CybORGEnv(sys.executable)
    assert "ModuleNotFoundError: No module named 'CybORG'" in str(missing.value)


def test_other_actions_than_those_of_the_scenario_are_refused(built):
    with pytest.raises(EnvironmentNotBuilt) as refused:
        built(scenario="other")
    assert refused.value.facts["first_that_differs"] == "2: Analyse User4, not Analyse Defender"


@pytest.mark.parametrize("settings", [{"red": "green"}, {"max_steps": 0}, {"step_ms": 3}])
def test_settings_that_would_not_work_are_refused(settings):
    with pytest.raises(ConfigError, match="cannot be built like this"):
        CybORGEnv(sys.executable, **settings)


def test_without_the_true_state_nobody_can_ask_for_it(built):
    env = built(true_state=False)
    env.reset(seed=0)
    env.step(1)
    with pytest.raises(ConfigError, match="does not know the true state"):
        env.compromised_types()


@pytest.mark.table
def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path):
    """In the middle of a step."""
    program = (
        "import sys\n"
        "from headrace.envs.cage2.cyborg import CybORGEnv\n"
        "env = CybORGEnv(sys.executable, pythonpath=[sys.argv[1]], scenario='hangs')\n"
        "env.reset(seed=0)\n"
        "print('stepping', flush=True)\n"
        "env.step(0)\n"
    )
    (path,) = install(tmp_path)
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"stepping\n"
        parent.kill()
        parent.wait(timeout=60)
    # The fixture no_leaks waits for the grandchild to leave, and fails if it stays.


def _children():
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return found.stdout.split()


def _runs_the_child(pid):
    try:
        return b"cyborg_child.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
