"""What others reported about their vector environments, tried on ours: hangs, lost information, crashes, the system.

Named as in the collection of reports. C037, C040: the crash of a worker at start is in `test_vector_places`; here is the
import. C038, C041, D054: also in `test_vector_ends`. Ends of episodes, seeds and spaces: `test_cases_vector_data`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

import headrace
import vector_cases
from headrace.core.clock import MonotonicClock
from headrace.core.errors import EnvironmentNotBuilt, HeadraceError
from told_envs import WORDS, Trouble, WithHelper, told
from vector_cases import Count, Inherits, Locking, SlowReset, SlowStep, SparseInfo
from vector_support import BACKENDS, Follower, drive

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server"), pytest.mark.thin(3)]

HERE = Path(__file__).resolve().parents[1]
ISOLATED = ("worker", "threads")
LIMIT_S = 40.0


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Any:
    """Keyword arguments of every way to run environments."""
    return BACKENDS[request.param]


@pytest.fixture(params=ISOLATED)
def isolated(request: pytest.FixtureRequest) -> Any:
    """The same for those with processes."""
    return BACKENDS[request.param]


def script(text: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """A user's program."""
    return subprocess.run(
        [sys.executable, "-c", text], cwd=HERE, capture_output=True, text=True, timeout=LIMIT_S, check=False, **kwargs
    )


# Group A, hangs


@pytest.mark.parametrize("count", [0, 2, 3, 5])
def test_a001_a_wrong_number_of_actions_is_told_before_anything_is_sent(backend, count):
    with headrace.VectorEnv([Count] * 4, **backend) as envs:
        envs.reset(seed=0)
        for hand_out in (envs.step, envs.send):
            with pytest.raises(ValueError, match=rf"(?s){count}.*4|4.*{count}"):
                hand_out(np.zeros(count, np.int64))
        observations, rewards, *_ = envs.step(np.zeros(4, np.int64))
        assert observations.tolist() == [[1]] * 4
        assert rewards.tolist() == [1.0] * 4


def test_a002_an_exception_in_the_main_script_ends_it():
    done = script(
        "import headrace, numpy as np\nfrom vector_cases import Count\n"
        "envs = headrace.VectorEnv([Count] * 3, workers=3)\nenvs.reset(seed=0)\nenvs.step(np.zeros(3, int))\n"
        "print(*envs.worker_pids().values())\nraise RuntimeError('oh no')\n"
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: oh no")
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a003_a_lock_that_the_parent_holds_is_not_inherited(isolated):
    with vector_cases.LOCK, headrace.VectorEnv([Locking] * 3, **isolated) as envs:
        assert envs.reset(seed=0)[0].tolist() == [[0]] * 3


def test_a004_a_constructor_that_fails_in_one_worker_is_told_with_its_index(backend):
    clock = MonotonicClock()
    began_s = clock.now()
    with pytest.raises(EnvironmentNotBuilt) as caught:
        headrace.VectorEnv(told(4, 1, Trouble("raises", at=1, place="construct")), **backend)
    assert clock.now() - began_s < 10.0
    assert WORDS in str(caught.value)
    assert "env 1" in str(caught.value) or "environment 1" in str(caught.value) or "env: 1" in str(caught.value)


def test_a005_a_hang_names_environment_phase_step_and_age(isolated, tmp_path):
    trouble = Trouble("sleep", at=37, marker=str(tmp_path / "marker"))
    with headrace.VectorEnv(told(4, 2, trouble, limit=100), step_timeout_s=1.5, **isolated) as envs:
        follower = Follower(4, AutoresetMode.NEXT_STEP, limit=100)
        drive(envs, follower, 60)
        [fault] = envs.faults
        assert (fault.env, str(fault.kind), fault.phase, fault.step) == (2, "hung", "step", 37)
        assert "1.5 s" in fault.message
    assert [seen.transitions for seen in follower.envs] == [60, 60, 58, 60]  # the cut row and the reset


@pytest.mark.table
def test_a010_one_that_never_comes_back_is_counted_and_the_rest_is_used(isolated, tmp_path):
    trouble = Trouble("loop", at=1, marker=str(tmp_path / "marker"))
    with headrace.VectorEnv(told(64, 17, trouble), step_timeout_s=2.0, **isolated) as envs:
        follower = Follower(64, AutoresetMode.NEXT_STEP)
        follower.began(envs.reset(seed=0))
        actions = np.arange(64)
        follower.stepped(actions, envs.step(actions), envs.valid)
        assert envs.valid.sum() == 63
    assert [(cut.env, cut.fault) for cut in follower.cuts] == [(17, "hung")]


def test_a011_close_reaches_the_inner_environments(backend, tmp_path):
    pids = tmp_path / "pids"
    wrap = partial(gymnasium.wrappers.TimeLimit, max_episode_steps=5)
    envs = headrace.VectorEnv([lambda: wrap(WithHelper(str(pids)))] * 2, **backend)
    envs.reset(seed=0)
    envs.close()
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) >= 2
    assert not [pid for pid in started if psutil.pid_exists(pid)]


# Group B, what is told of whom


def test_b020_sparse_information_belongs_to_its_environment(backend):
    with headrace.VectorEnv([partial(SparseInfo, index) for index in range(4)], **backend) as envs:
        assert envs.reset(seed=0)[1] == {}
        for t in range(1, 9):
            infos = envs.step(np.zeros(4, np.int64))[4]
            if t != 4:
                assert infos == {}
                continue
            assert infos["_crash_x"].tolist() == infos["_tag"].tolist() == [False, False, True, False]
            assert infos["crash_x"].tolist() == [0.0, 0.0, 41.5, 0.0]
            assert infos["tag"].tolist() == [None, None, "wall", None]


# Group C, crashes


def test_c035_a_killed_worker_is_noticed_with_signal_and_index(isolated, tmp_path):
    trouble = Trouble("sigkill", at=50, marker=str(tmp_path / "marker"))
    with headrace.VectorEnv(told(4, 0, trouble, limit=20), **isolated) as envs:
        follower = Follower(4, AutoresetMode.NEXT_STEP, limit=20)
        drive(envs, follower, 90)
        [fault] = [fault for fault in envs.faults if fault.env == 0]
        assert (str(fault.kind), fault.step) == ("died", 50)
        assert "SIGKILL" in fault.message
    rows = 90 * 4
    valid = sum(seen.transitions for seen in follower.envs)
    resets = sum(seen.episodes for seen in follower.envs) + len(follower.cuts)
    assert rows == valid + resets + len(follower.cuts) - sum(seen.over for seen in follower.envs)


def test_c036_the_environments_own_error_is_shown(backend, tmp_path):
    trouble = Trouble("raises", at=7, marker=str(tmp_path / "marker"))
    with headrace.VectorEnv(told(3, 1, trouble, limit=5), on_fault="raise", **backend) as envs:
        with pytest.raises(HeadraceError, match=f"ValueError: {WORDS}") as caught:
            drive(envs, Follower(3, AutoresetMode.NEXT_STEP, limit=5), 20)
        assert (caught.value.facts["env"], caught.value.facts["step"]) == (1, 7)


@pytest.mark.own_server
def test_c037_c040_a_module_that_cannot_be_imported_in_the_worker_is_told_at_once(isolated, tmp_path):
    """The factory's module is there when it is pickled, and fails in the worker."""
    (tmp_path / "license_server.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise ImportError('no license for this host')\n"
        "from vector_cases import Count\ndef make():\n    return Count()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import license_server  # type: ignore[import-not-found]

        with pytest.raises(HeadraceError, match="ImportError: no license for this host"):
            headrace.VectorEnv([license_server.make] * 2, **isolated)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("license_server", None)


def test_c039_a_factory_that_returns_none_is_told(backend):
    with pytest.raises(EnvironmentNotBuilt, match=r"factory for env [01] returned None"):
        headrace.VectorEnv([lambda: None] * 2, **backend)


# Group D, the system


@pytest.mark.table
def test_d046_descriptors_do_not_grow_and_few_are_enough():
    done = script(
        "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "import headrace, numpy as np\nfrom vector_cases import Count\n"
        "with headrace.VectorEnv([Count] * 64, workers=16, threads_per_worker=4) as envs:\n"
        "    envs.reset(seed=0)\n"
        "    counts = set()\n"
        "    for _ in range(200):\n"
        "        envs.step(np.zeros(64, int))\n"
        "        counts.add(len(os.listdir('/proc/self/fd')))\n"
        "    print(len(counts))\n"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def test_d047_no_semaphore_is_counted_up(isolated, monkeypatch):
    """A system may allow 32,767 in one semaphore; nobody here makes any."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Invalid argument")

    monkeypatch.setattr("_multiprocessing.SemLock", refuse)
    with headrace.VectorEnv([Count] * 4, **isolated) as envs:
        assert envs.reset(seed=0)[0].tolist() == [[0]] * 4


def test_d048_an_id_that_only_the_main_script_has_registered_is_found_or_explained(isolated):
    done = script(
        "import gymnasium, headrace\nfrom vector_cases import Count\n"
        "gymnasium.register('Mine-v0', entry_point=Count)\n"
        "try:\n"
        f"    envs = headrace.VectorEnv([lambda: gymnasium.make('Mine-v0')] * 2, **{isolated!r})\n"
        "    print('works', envs.reset(seed=0)[0].tolist())\n"
        "    envs.close()\n"
        "except headrace.core.errors.EnvironmentNotBuilt as error:\n"
        "    print(error)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    explained = "`Mine`" in done.stdout and "module:" in done.stdout.partition("fix: ")[2]
    assert done.stdout.startswith("works") or explained, done.stdout


@pytest.mark.parametrize("factory", ["(lambda limit: lambda: Count(limit))(3)", "Mine", "partial(Count, 3)"])
def test_d049_d050_any_callable_travels_and_the_script_needs_no_guard(isolated, factory):
    done = script(
        "import headrace\nfrom functools import partial\nfrom vector_cases import Count\nprint('once')\n"
        "class Mine(Count):\n    pass\n"
        f"envs = headrace.VectorEnv([{factory}] * 2, **{isolated!r})\n"
        "print(envs.reset(seed=0)[0].tolist())\nenvs.close()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "once\n[[0.0], [0.0]]\n"


def test_d051_a_small_dev_shm_is_not_needed(isolated):
    """Observations lie in anonymous memory: nothing appears in /dev/shm, whose size a container limits."""
    before = set(os.listdir("/dev/shm"))  # noqa: PTH208
    with headrace.VectorEnv([partial(vector_cases.Big, 1 << 20)] * 4, **isolated) as envs:
        observations, _ = envs.reset(seed=0)
        assert observations.shape == (4, 1 << 20)
        assert set(os.listdir("/dev/shm")) - before == set()  # noqa: PTH208
        observations, *_ = envs.step(np.zeros(4, np.int64))
        assert observations.min() == observations.max() == 1


def test_d052_workers_are_no_forks_of_this_process(isolated):
    with headrace.VectorEnv([Inherits] * 2, **isolated) as envs:
        for inherited in envs.call("inherited"):
            assert os.getpid() not in (inherited["pid"], inherited["parent"], inherited["born"])


def test_d053_a_closed_vector_says_that_it_is_closed(backend):
    envs = headrace.VectorEnv([Count] * 2, **backend)
    envs.reset(seed=0)
    envs.close()
    envs.close()
    for use in (
        partial(envs.reset, seed=0), partial(envs.step, np.zeros(2, np.int64)), partial(envs.send, np.zeros(2, np.int64)),
        envs.receive, partial(envs.call, "inherited"),
    ):  # fmt: skip
        with pytest.raises(HeadraceError, match="closed"):
            use()


@pytest.mark.table
def test_d054_a_second_start_after_a_kill_works_at_once(isolated):
    text = (
        "import os, signal, headrace\nfrom vector_cases import Count\n"
        f"envs = headrace.VectorEnv([Count] * 2, **{isolated!r})\n"
        "print(envs.reset(seed=0)[0].tolist(), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(2):
        done = script(text)
        assert (done.returncode, done.stdout) == (-9, "[[0.0], [0.0]]\n")


# Group L, what makes others slow, as counts


@pytest.mark.table
def test_l158_threads_of_numeric_libraries_are_capped_in_workers(isolated):
    with headrace.VectorEnv([Inherits] * 2, **isolated) as envs:
        assert envs.call("torch_threads") == (1, 1)
        assert all(set(found.values()) <= {"1"} for found in envs.call("environment"))


def test_l159_a_slow_reset_holds_nobody_up(tmp_path):
    """Environment 1 does not come back from its reset, while the others play on."""
    with headrace.VectorEnv(
        [partial(SlowReset, index, str(tmp_path)) for index in range(4)], workers=1, threads_per_worker=4
    ) as envs:
        for index in (0, 2, 3):
            (tmp_path / str(index)).touch()
        counts = play(envs, until=lambda counts: min(counts[index] for index in (0, 2, 3)) >= 50)
        assert counts[1] == 5  # its first episode
        (tmp_path / "1").touch()
        envs.receive(min_envs=1, timeout_s=10.0)


def test_l160_the_slowest_does_not_set_the_pace(tmp_path):
    with headrace.VectorEnv(
        [partial(SlowStep, index, str(tmp_path)) for index in range(4)], workers=1, threads_per_worker=4
    ) as envs:
        counts = play(envs, until=lambda counts: min(counts[:3]) >= 50, action=lambda index: int(index == 3))
        assert counts[3] == 0
        (tmp_path / "3").touch()
        envs.receive(min_envs=1, timeout_s=10.0)


def play(envs: headrace.VectorEnv, *, until: Any, action: Any = lambda index: 0) -> list[int]:
    """Step whoever is ready; how many rows each has given."""
    counts = [0] * envs.num_envs
    envs.reset(seed=0)
    free = list(range(envs.num_envs))
    clock = MonotonicClock()
    due_s = clock.now() + LIMIT_S
    while not until(counts):
        assert clock.now() < due_s, counts
        envs.send(np.array([action(index) for index in free]), env_ids=free)
        free = envs.receive(min_envs=1, timeout_s=10.0).env_ids.tolist()
        for index in free:
            counts[index] += 1
    return counts


def test_l161_l163_whoever_waits_uses_no_processor(tmp_path):
    """A wait of half a second for an environment that waits costs neither side processor time worth naming."""
    with headrace.VectorEnv(
        [partial(SlowStep, index, str(tmp_path)) for index in range(2)], workers=1, threads_per_worker=1
    ) as envs:
        envs.reset(seed=0)
        processes = [psutil.Process(), *map(psutil.Process, envs.worker_pids().values())]
        envs.send(np.array([1]), env_ids=[1])
        before = [sum(process.cpu_times()[:2]) for process in processes]
        for _ in range(5):
            assert len(envs.receive(min_envs=1, timeout_s=0.1).env_ids) == 0
        used = [sum(process.cpu_times()[:2]) - start for process, start in zip(processes, before, strict=True)]
        assert max(used) < 0.2
        (tmp_path / "1").touch()
        assert envs.receive(min_envs=1, timeout_s=10.0).env_ids.tolist() == [1]


def test_l164_many_environments_share_few_processes():
    with headrace.VectorEnv([Inherits] * 100, workers=2, threads_per_worker=1) as envs:
        envs.reset(seed=0)
        assert len(set(envs.worker_pids().values())) == 2
        assert {told["pid"] for told in envs.call("inherited")} == set(envs.worker_pids().values())


def test_threads_are_few_in_this_process(isolated):
    before = threading.active_count()
    with headrace.VectorEnv([Count] * 8, **isolated) as envs:
        envs.reset(seed=0)
        assert threading.active_count() <= before + 1
