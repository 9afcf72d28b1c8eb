"""What others reported about their systems, tried on ours. Named in the docstrings as in the collection of reports.

Other cases are where they belong: A004, C037, C038, C040 and Q204 to Q207 in the crash tables, C041, D054 and N180 to N187
in the parent's, C039 in the tests of bad input, C036 in those of faults.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import headrace
import run_envs
from headrace.ipc.channel import poll_fds
from run_support import SMALL, assert_books, assert_gapless, events, summary

pytestmark = pytest.mark.process

HERE = Path(__file__).resolve().parents[1]
SETTINGS = {**SMALL, "run.steps": 150, "replay.learning_starts": 50, "collect.random_steps": 50, "env.lanes": 2}


def script(folder: Path, text: str, timeout_s: float = 40.0) -> subprocess.CompletedProcess[str]:
    """Run a user's script, which finds SETTINGS and RUN_DIR defined."""
    path = folder / "users_script.py"
    path.write_text(f"SETTINGS = {SETTINGS!r}\nRUN_DIR = {str(folder / 'run')!r}\n{text}")
    return subprocess.run(
        [sys.executable, str(path)], cwd=HERE, capture_output=True, text=True, timeout=timeout_s, check=False
    )


ENVIRONMENT = """
import gymnasium, headrace, numpy as np

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    t = 0
    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.full(2, self.t / 10, np.float32), 1.0, False, self.t >= 10, {}
"""


@pytest.mark.table
def test_an_exception_in_the_main_script_leaves_nothing_running(tmp_path):
    """Case A002."""
    done = script(
        tmp_path,
        f"{ENVIRONMENT}\n"
        "def look(progress):\n"
        "    if progress.env_steps:\n"
        "        raise RuntimeError('oh no')\n"
        "headrace.train(env=Mine, run_dir=RUN_DIR, on_progress=look, settings=SETTINGS | {'run.steps': 10**7})\n",
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: oh no")
    left = summary(tmp_path / "run")
    assert "oh no" in left["error"]
    pids = [event["pid"] for event in events(tmp_path / "run", "started")]
    assert len(pids) >= 4  # supervisor, probe, learner, two collectors
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_lock_that_the_parent_holds_is_not_inherited(runs):
    """Case A003: a thread of the parent holds a lock while processes start, and the environment takes it."""
    release = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with run_envs.LOCK:
            held.set()
            release.wait(timeout=60.0)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(timeout=5.0)
        run = runs.train("run_envs:takes_the_lock")
    finally:
        release.set()
        thread.join(timeout=5.0)
    assert run.completed, run.summary["error"]
    assert run.summary["faults"] == {}


@pytest.mark.thin(3)
@pytest.mark.parametrize("fault", [None, "kill", "hang"])
def test_what_an_environment_has_started_ends_with_it(runs, tmp_path, fault):
    """Case A011: a helper process that only ``close`` ends, also when nobody gets to call ``close``."""
    pids = tmp_path / "pids"
    kwargs = {"pids": str(pids)}
    if fault is not None:
        kwargs |= {"fault": fault, "at": 13, "marker": str(tmp_path / "marker")}
    run = runs.train("run_envs:with_helper", kwargs=kwargs, deadlines__step_s=1.5)
    assert run.completed, run.summary["error"]
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) >= 7  # the probe's, one for each lane
    assert not [pid for pid in started if psutil.pid_exists(pid)]


@pytest.mark.table
def test_nobody_dies_of_statistics_that_nobody_reads(runs, tmp_path):
    """Case B023: whoever follows the progress takes a second for each look."""
    looks = []

    def look(progress: headrace.runtime.progress.Progress) -> None:
        looks.append(progress)
        poll_fds({}, 1.0)

    settings = {**SMALL, "env.factory": "run_envs:make", "run.steps": 4_000, "replay.ratio": 0.05}
    run = headrace.train(run_dir=tmp_path / "slow", settings=settings, on_progress=look)
    assert run.completed, run.summary["error"]
    assert len(looks) >= 2
    assert (run.summary["faults"], run.summary["restarts"]) == ({}, 0)
    assert_books(run)


MANY = {
    "env.lanes": 64, "run.collectors": 32, "run.steps": 60_000, "replay.ratio": 0.01, "replay.capacity": 20_000,
}  # fmt: skip
UNDER_A_LIMIT = (
    ENVIRONMENT
    + """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
counts = []
def look(progress):
    states = [component.state for component in progress.components if component.id.startswith('collector')]
    if set(states) <= {'running', 'waiting'}:  # all are there, and none has begun to leave
        counts.append(len(os.listdir('/proc/self/fd')))
run = headrace.train(env=Mine, run_dir=RUN_DIR, settings=SETTINGS | MANY, on_progress=look)
print(run.completed, len(set(counts)) == 1 or counts)
print(run.summary['error'])
"""
)


def under_a_limit(folder: Path, limit: int) -> list[str]:
    done = script(folder, f"MANY = {MANY!r}\nLIMIT = {limit}\n{UNDER_A_LIMIT}", timeout_s=100.0)
    assert done.returncode == 0
    told = done.stdout.splitlines()
    assert done.stderr == "" if told[0].startswith("True") else done.stderr.startswith("the run failed: ")
    assert summary(folder / "run")["books"]["balanced"]
    return told


@pytest.mark.table
def test_few_descriptors_are_enough_for_many_collectors(tmp_path):
    """Case D046: 64 lanes in 32 collectors under ``ulimit -n 256``; and the count stays flat."""
    assert under_a_limit(tmp_path, 256) == ["True True", "None"]


@pytest.mark.table
def test_too_few_descriptors_are_told_with_the_limit(tmp_path):
    """Case D046: with fewer than it needs, the run ends with a reason and not with an exception."""
    completed, *error = under_a_limit(tmp_path, 96)
    assert completed.startswith("False")
    assert "Too many open files" in "\n".join(error)
    assert error[-1].startswith("  fix: ")


@pytest.mark.table
def test_an_id_that_only_the_main_script_registered_is_explained(tmp_path):
    """Case D048."""
    done = script(
        tmp_path,
        f"{ENVIRONMENT}\n"
        "gymnasium.register('Mine-v0', entry_point=Mine)\n"
        "run = headrace.train(env='Mine-v0', run_dir=RUN_DIR, settings=SETTINGS)\n"
        "print(run.summary['error'])\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[ENV-001] ")
    assert "Mine-v0" in done.stdout
    assert "module:" in done.stdout.partition("fix: ")[2], "how an id is found everywhere"


@pytest.mark.table
@pytest.mark.parametrize(
    "factory",
    [
        "(lambda scale: lambda: Mine())(2.0)",
        pytest.param("Mine", marks=pytest.mark.table),
        pytest.param("lambda: Mine()", marks=pytest.mark.table),
    ],
)
def test_a_script_without_main_guard_and_with_any_callable_just_works(tmp_path, factory):
    """Cases D049 and D050: lambdas and local classes travel; the script is run once."""
    done = script(
        tmp_path,
        f"{ENVIRONMENT}\nprint('once')\n"
        f"run = headrace.train(env={factory}, run_dir=RUN_DIR, settings=SETTINGS)\n"
        "print(run.completed, run.summary['error'])\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "once\nTrue None\n"


@pytest.mark.table
def test_a_hundred_thousand_episodes_of_one_step_need_no_more_memory(runs, tmp_path):
    """Case O193: less than 20 MiB of growth, in every process, once all rows of the replay have been used."""
    seen: list[dict[str, int]] = []

    def look(progress: headrace.runtime.progress.Progress) -> None:
        if progress.env_steps > 30_000:
            processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
            seen.append({})
            for process in processes:
                try:
                    seen[-1][str(process.pid)] = process.memory_info().rss
                except psutil.Error:
                    continue

    settings = {
        **SMALL, "env.factory": "run_envs:make", "env.kwargs": {"limit": 1}, "run.steps": 100_000,
        "replay.ratio": 0.01, "replay.capacity": 3000, "evaluation.episodes": 0,
    }  # fmt: skip
    run = headrace.train(run_dir=tmp_path / "short", settings=settings, on_progress=look)
    assert run.completed, run.summary["error"]
    assert run.summary["episodes"]["finished"] >= 100_000
    assert_books(run)
    assert len(seen) > 2
    grown = {pid: rss - seen[0][pid] for pid, rss in seen[-2].items() if pid in seen[0]}
    assert max(grown.values()) < 20 << 20, grown


def test_first_bad_value_is_named_and_not_what_followed_from_it(runs, tmp_path):
    """Case Q206: NaN in an observation makes the action NaN, and that the reward; the observation is named."""
    kwargs = {"fault": "nan_obs", "at": 37, "marker": str(tmp_path / "marker")}
    run = runs.train("run_envs:follower", kwargs=kwargs)
    assert run.summary["exit_code"] == 1
    assert "\n  field: obs\n" in run.summary["error"]
    assert "\n  step: 37\n" in run.summary["error"]
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane)
