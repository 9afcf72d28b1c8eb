"""What only real processes show: probes, plans, threads that are left alone, calls that do not return, starts and ends."""

from __future__ import annotations

import copy
import errno
import itertools
import os
import pickle
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

import headrace
from headrace import Probe
from headrace.core import seeding
from headrace.core.errors import (
    ComponentDied,
    ConfigError,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    HeadraceError,
    VectorMisused,
)
from headrace.ipc import shm
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.processes import wait_for_end
from headrace.testing.leaks import SETTLE_S, Holdings, settled
from headrace.vector import crew, opening
from headrace.vector import env as env_module
from headrace.vector.options import FaultBudget
from vector_envs import Failing, Faulty, NeverClosing, Sampling, the_one

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server")]

BACKENDS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "workers": {"workers": 2, "threads_per_worker": 1},
    "threads": {"workers": 2, "threads_per_worker": 4},
    "split": {"workers": 1, "threads_per_worker": 1, "here": 2},
}
ISOLATED = ("workers", "threads")
COUNT = 4


def actions(value: int = 1) -> np.ndarray:
    return np.full(COUNT, value)


# Probes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_probes_belong_to_the_step_they_were_evaluated_in(backend: str, mode: AutoresetMode) -> None:
    probes = {
        "n": Probe.info("n"),
        "t": Probe.attribute("unwrapped.t"),
        "double": Probe.method("double", every=2),
        "end": Probe.info("x", at="episode_end"),
        "none": Probe.info("x.y"),
    }
    factories = [Sampling("box", infos="flat") for _ in range(COUNT)]
    with headrace.VectorEnv(factories, probes=probes, autoreset_mode=mode, **BACKENDS[backend]) as envs:
        envs.reset(seed=1)
        assert envs.probes["t"].values.tolist() == envs.probes["t"].step.tolist() == [0] * COUNT
        episodes = np.zeros(COUNT, int)
        ended = np.zeros(COUNT, bool)
        for _ in range(12):
            *_, terminated, truncated, _ = envs.step(actions())
            found = envs.probes
            episodes += ended
            ended = terminated | truncated
            assert found["t"].episode.tolist() == episodes.tolist()
            assert found["t"].values.tolist() == found["t"].step.tolist()
            steps = found["t"].step
            np.testing.assert_array_equal(found["double"].mask, steps % 2 == 0)
            np.testing.assert_array_equal(found["double"].values, np.where(steps % 2 == 0, 2 * steps, 0))
            np.testing.assert_array_equal(found["end"].mask, ended)
            np.testing.assert_array_equal(found["n"].mask, steps > 0)
            assert not found["none"].mask.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "probe", [Probe.attribute("nothing"), Probe.method("unwrapped.nothing"), Probe.method("difficulty")]
)
def test_a_probe_of_nothing_is_told_at_the_start(backend: str, probe: Probe) -> None:
    with pytest.raises(ConfigError, match="probe q: "):
        headrace.VectorEnv([Sampling("box")] * 2, probes={"q": probe}, **BACKENDS[backend])


# Plans


def test_cheap_environments_stay_here_and_the_plan_says_why() -> None:
    with headrace.VectorEnv([Sampling("box")] * 2) as envs:
        assert envs.plan.workers == 0
        assert envs.worker_pids() == {}
        assert "\n" not in repr(envs.plan)
        assert envs.reset(seed=1)[0].shape == (2, 3)


class Frozen(gym.Env[Any, Any]):
    """Stops the clocks of its process, as tests and simulators do; not in the process of the test."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, spared: int) -> None:
        if os.getpid() != spared:
            time.time = time.monotonic = time.perf_counter = lambda: 0.0  # type: ignore[method-assign]

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("workers", ["auto", 2])
def test_who_stops_the_clocks_of_its_process_is_measured_and_stepped_all_the_same(workers: Any) -> None:
    spared = os.getpid()
    with headrace.VectorEnv([lambda: Frozen(spared)] * 4, workers=workers) as envs:
        envs.reset(seed=1)
        envs.step(actions())
        assert envs.valid.all()
        assert "did not return" not in envs.plan.reason, envs.plan


@pytest.mark.parametrize("refused", ["ftruncate", "mmap"])
def test_shared_memory_that_the_machine_refuses_is_told_with_what_to_do(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = os if refused == "ftruncate" else shm.mmap
    real = getattr(module, refused)

    def limited(fd: int, nbytes: int, *rest: Any) -> Any:
        if nbytes > 1_000_000:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return real(fd, nbytes, *rest)

    class Large(gym.Env[Any, Any]):
        def __init__(self) -> None:  # nothing large travels with the class
            self.observation_space = gym.spaces.Box(-1.0, 1.0, (500_000,), np.float32)
            self.action_space = gym.spaces.Discrete(2)

    monkeypatch.setattr(module, refused, limited)
    with pytest.raises(ConfigError, match=r"the machine refused [\d,]+ bytes of shared memory") as caught:
        headrace.VectorEnv([Large] * 2, workers=2, step_timeout_s=10.0)
    assert "fewer environments" in caught.value.fix


def test_environments_that_wait_get_threads() -> None:
    with headrace.VectorEnv([Waiting] * 6) as envs:
        assert envs.plan.threads * envs.plan.workers >= 6, envs.plan
        assert "waits" in envs.plan.reason
        assert envs.plan.pinned
        for pid in envs.worker_pids().values():
            threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
            cores = [os.sched_getaffinity(thread) for thread in threads]
            assert len(threads) > 1
            # Nobody was asked anything yet, so no worker has looked whether others need its core, and left it to them.
            assert len(cores[0]) == 1
            assert all(own == cores[0] for own in cores)
        envs.reset(seed=1)
        envs.step(np.zeros(6, int))
        assert envs.valid.all()


@pytest.mark.thin(2)
@pytest.mark.parametrize("while_stepped", [False, True])
def test_what_an_environment_starts_by_itself_may_run_on_any_core(while_stepped: bool) -> None:
    def made() -> Any:
        return Starting(while_stepped)

    with headrace.VectorEnv([made] * 6) as envs:
        assert envs.plan.threads * envs.plan.workers >= 6, envs.plan
        assert not envs.plan.pinned
        envs.reset(seed=1)
        for pid in envs.worker_pids().values():
            assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)


class Waiting(Faulty):
    """Waits in every step, and uses no processor."""

    def step(self, action: Any) -> Any:
        select.select([], [], [], 0.003)
        return super().step(action)


class Starting(Waiting):
    """Starts a process of its own: one that lives as long as itself, or one in every step."""

    def __init__(self, while_stepped: bool) -> None:
        super().__init__()
        self.while_stepped = while_stepped
        self.child = None if while_stepped else subprocess.Popen(["/bin/sleep", "60"])

    def step(self, action: Any) -> Any:
        if self.while_stepped:
            subprocess.run(["/bin/true"], check=True)
        return super().step(action)

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.wait(10.0)
            self.child = None


def test_a_time_out_that_is_given_is_enforced() -> None:
    with headrace.VectorEnv([Sampling("box")] * 2, step_timeout_s=30.0) as envs:
        assert envs.plan.workers >= 1


@pytest.mark.parametrize("how", ["hang", "raise"])
def test_auto_does_not_wait_for_an_environment_that_hangs_while_it_is_measured(how: str, tmp_path: Path) -> None:
    factories = [Failing(env, how=how, at=5, once=str(tmp_path / f"once{env}")) for env in range(2)]
    with headrace.VectorEnv(factories, step_timeout_s=0.3, start_timeout_s=100.0) as envs:
        assert "did not return" in envs.plan.reason
        envs.reset(seed=1)
        for _ in range(8):
            envs.step(np.ones(2, int))
        assert {fault.env for fault in envs.faults} == {1}, "only the copy that was measured used it up"


def test_auto_tells_a_constructor_that_fails() -> None:
    with pytest.raises(EnvironmentNotBuilt, match="license file missing"):
        headrace.VectorEnv([Broken()] * 2)


class Broken:
    """Factory that fails."""

    def __call__(self) -> gym.Env[Any, Any]:
        raise RuntimeError("license file missing: /opt/sim/key-1")


# Seeds of replacements


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_seed_of_a_replacement_is_the_documented_one(backend: str, tmp_path: Path) -> None:
    factories = [Failing(env, at=2 * (env == 1), once=str(tmp_path / "once")) for env in range(COUNT)]
    with headrace.VectorEnv(factories, **BACKENDS[backend]) as envs:
        envs.reset(seed=40)
        envs.step(actions())
        envs.step(actions())
        assert envs.valid.tolist() == [True, False, True, True]
        infos = envs.step(actions())[4]
        assert infos["seed"][1] == seeding.integer(41, "replacement", 1, 1)
        assert infos["_seed"].tolist() == [False, True, False, False]


# Threads that are left alone


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_worker_with_many_stuck_threads_is_relieved_without_loss(tmp_path: Path, mode: AutoresetMode) -> None:
    """Episodes of those who are well go on to their end; then they begin anew in another process."""
    factories = [Failing(env, how="hang", at=2 * (env < 2), once=str(tmp_path / f"once{env}")) for env in range(COUNT)]
    given = {"workers": 1, "threads_per_worker": COUNT, "step_timeout_s": 0.4, "autoreset_mode": mode}
    same_step = mode is AutoresetMode.SAME_STEP
    with headrace.VectorEnv(factories, **given) as envs:
        envs.reset(seed=1)
        [first] = envs.worker_pids().values()
        seen = []
        for _ in range(25):
            observations, _, _, truncated, infos = envs.step(actions())
            steps = observations[:, 1].copy()
            for env in np.flatnonzero(truncated & envs.valid) if same_step else ():
                assert steps[env] == 0
                steps[env] = infos["final_obs"][env][1]
            seen.append((steps, truncated.copy(), envs.valid.copy()))
        assert {fault.env for fault in envs.faults} == {0, 1}
        assert all(fault.kind == "hung" for fault in envs.faults)
        for env in (2, 3):  # episodes of ten steps, each whole
            steps = [int(one[0][env]) for one in seen]
            begins = [] if same_step else [0]
            assert steps == [*range(1, 11), *begins, *range(1, 11), *begins, *range(1, 6)][:25]
            assert [bool(one[1][env]) for one in seen] == [step == 10 for step in steps]
            assert all(one[2][env] for one in seen)
        assert observations[2, 2] <= 25 - 10  # in the other process they count from the beginning
        for _ in range(1000):  # its end is seen in passing
            if first not in envs.worker_pids().values():
                break
            envs.step(actions())
        assert len(envs.worker_pids()) == 1
        assert not envs._engine.renewal.moving


# Calls


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_method_that_raises_names_its_environment_and_breaks_nothing(backend: str) -> None:
    with headrace.VectorEnv([Sampling("box")] * COUNT, **BACKENDS[backend]) as envs:
        envs.reset(seed=1)
        with pytest.raises(EnvironmentRaised, match=r"double of environment 0: .*TypeError"):
            envs.call("double", "text", 3)
        envs.step(actions())
        assert envs.get_attr("t") == (1,) * COUNT


@pytest.mark.parametrize("backend", ISOLATED)
def test_a_method_that_does_not_return_costs_one_environment(backend: str) -> None:
    with headrace.VectorEnv(
        [Stuck(env) for env in range(COUNT)], step_timeout_s=9.0, reset_timeout_s=0.5, **BACKENDS[backend]
    ) as envs:
        envs.reset(seed=1)
        pids = envs.worker_pids()
        with pytest.raises(HeadraceError, match="environment 1"):
            envs.call("stick")
        for _ in range(3):
            envs.step(actions())
        assert [(fault.env, fault.kind, fault.phase) for fault in envs.faults] == [(1, "hung", "call")]
        assert envs.worker_pids() == pids
        observations = envs.step(actions())[0]
        assert observations[:, 0].tolist() == [0, 1, 2, 3]
        assert envs.valid.all()


@pytest.mark.parametrize("backend", ISOLATED)
def test_who_ends_its_worker_in_a_method_is_named_and_gets_one_of_its_own(backend: str) -> None:
    given = {**BACKENDS[backend], "workers": 1}
    with headrace.VectorEnv([Stuck(env) for env in range(COUNT)], **given) as envs:
        envs.reset(seed=1)
        with pytest.raises(HeadraceError, match="its worker ended before it returned"):
            envs.apply(_leave, [1])
        assert envs.get_attr("index") == tuple(range(COUNT))  # its end is known, and the replacements answer
        for _ in range(3):
            envs.step(actions())
        assert [(fault.env, fault.kind, fault.phase) for fault in envs.faults if fault.env == 1] == [
            (1, "died", "call")
        ]
        assert {fault.kind for fault in envs.faults if fault.env != 1} == {"lost-with-worker"}
        assert all("environment 1" in fault.message for fault in envs.faults)
        assert len(envs.worker_pids()) == 2


def _leave(_env: Any) -> None:
    os._exit(5)


@pytest.mark.parametrize("goes_on", ["reset", "step"])
def test_who_had_to_be_interrupted_in_a_method_is_used_no_more(goes_on: str) -> None:
    """It has come back, and nobody knows in which state."""
    with headrace.VectorEnv(
        [Stuck(env) for env in range(COUNT)], step_timeout_s=9.0, reset_timeout_s=0.3, **BACKENDS["workers"]
    ) as envs:
        envs.reset(seed=1)
        envs.step(actions())
        with pytest.raises(HeadraceError, match=r"call\(\)"):
            envs.call("stick")
        if goes_on == "step":
            infos = envs.step(actions())[4]
            assert envs.valid.tolist() == [True, False, True, True]
            assert infos["headrace"]["fault"][1] == "hung"
        observations = envs.reset(seed=2)[0]
        steps = 1 + (goes_on == "step")
        assert observations[:, 2].tolist() == [steps, 0, steps, steps]  # those of each object
        assert [fault.env for fault in envs.faults] == [1]
        envs.step(actions())
        assert envs.valid.all()


class Stuck:
    """Factory; environment 1 has a method that never returns."""

    def __init__(self, env: int) -> None:
        self.env = env

    def __call__(self) -> gym.Env[Any, Any]:
        made = Faulty(self.env)
        made.stick = _stick if self.env == 1 else int  # type: ignore[attr-defined]
        return made


def _stick() -> None:
    while True:
        time.monotonic()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_one_that_does_not_close_in_a_worker_leaves_none_open(tmp_path: Path, error: type[BaseException]) -> None:
    class Leaving(Faulty):
        def close(self) -> None:
            (tmp_path / f"closed-{self.index}").touch()
            raise error

    def made(env: int) -> Any:
        return lambda: Leaving(env)

    with headrace.VectorEnv([made(env) for env in range(2)], workers=1, threads_per_worker=1) as envs:
        envs.reset(seed=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed-0", "closed-1"]


@pytest.mark.parametrize("backend", ISOLATED)
def test_what_cannot_leave_its_process_is_told_and_does_not_hang(backend: str) -> None:
    with headrace.VectorEnv([Secretive], budget=FaultBudget(per_env=1, backoff_s=0.0), **BACKENDS[backend]) as envs:
        envs.reset(seed=1)
        infos = envs.step([0])[4]
        assert infos["headrace"]["fault"][0] == "contract"
        assert "pickled" in infos["headrace"]["message"][0]


class Secretive(Faulty):
    """Its infos hold a generator."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"later": (number for number in range(3))}


# As ready


@pytest.mark.parametrize("backend", ISOLATED)
def test_a_time_out_of_receive_loses_nothing(backend: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with headrace.VectorEnv([Gated(env, str(gate)) for env in range(COUNT)], **BACKENDS[backend]) as envs:
        envs.reset(seed=1)
        envs.send(actions(3))
        assert len(envs.receive(min_envs=COUNT, timeout_s=0.3)) < COUNT
        assert len(envs.receive(min_envs=1, timeout_s=0.0)) == 0
        with pytest.raises(VectorMisused, match="still busy"):
            envs.send([3], [0])
        with gate.open("w") as writer:
            writer.write("go")
        got = envs.receive(min_envs=COUNT)
        assert 0 in got.env_ids.tolist()
        assert got.rewards[got.env_ids.tolist().index(0)] == 3.0


class Gated:
    """Factory; environment 0 waits in its first step until somebody writes into a pipe."""

    def __init__(self, env: int, gate: str) -> None:
        self.env, self.gate = env, gate

    def __call__(self) -> gym.Env[Any, Any]:
        made = Faulty(self.env)
        if self.env == 0:
            step = made.step

            def gated(action: Any) -> Any:
                Path(self.gate).read_text()
                made.step = step  # type: ignore[method-assign]
                return step(action)

            made.step = gated  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reset_is_sent_and_received_too(backend: str) -> None:
    with headrace.VectorEnv(
        [Failing(env) for env in range(COUNT)], autoreset_mode="Disabled", **BACKENDS[backend]
    ) as envs:
        envs.send_reset([3, 1], [7, 8])
        got = envs.receive(min_envs=2)
        assert got.env_ids.tolist() == [1, 3]
        assert got.infos["seed"].tolist() == [8, 7]
        envs.send([2], [3])
        assert envs.receive().rewards.tolist() == [2.0]


# The rest


def test_a_worker_that_is_killed_between_steps_costs_its_own() -> None:
    with headrace.VectorEnv([Failing(env) for env in range(COUNT)], **BACKENDS["workers"]) as envs:
        envs.reset(seed=1)
        envs.step(actions())
        os.kill(envs.worker_pids()[1], signal.SIGKILL)
        for _ in range(3):
            observations = envs.step(actions())[0]
        assert [fault.env for fault in envs.faults] == [2, 3]
        assert {fault.kind for fault in envs.faults} == {"lost-with-worker"}
        assert observations[:2, 1].tolist() == [4, 4]
        assert observations[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("unseen", [0, -1], ids=["seen while looking", "seen before"])
def test_answers_of_workers_that_ended_since_count_and_their_environments_are_gone(
    backend: str, unseen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent takes answers in at the same moment as it sees that both workers have ended."""
    with headrace.VectorEnv([Failing(env) for env in range(COUNT)], **BACKENDS[backend]) as envs:
        envs.reset(seed=1)
        envs.send(actions())
        pool: Any = envs._opened.backend
        deadline = Deadline(20.0)
        while any(handle.unanswered for handle in pool.crew.handles.values()):
            assert not deadline.passed
            poll_fds({}, 0.002)
        for handle in pool.crew.handles.values():
            handle.child.kill()
            assert poll_fds({handle.child.pidfd: select.POLLIN}, 20.0)
        collect, calls = pool._collect, itertools.count()
        pool.look_at_s = 0.0
        monkeypatch.setattr(pool, "_collect", lambda: collect() if next(calls) > unseen else [])
        assert envs.receive(min_envs=COUNT).valid.tolist() == [True] * COUNT
        envs.step(actions())
        assert envs.valid.tolist() == [False] * COUNT
        assert [(fault.env, fault.kind) for fault in envs.faults] == [(env, "lost-with-worker") for env in range(COUNT)]
        for _ in range(3):
            envs.step(actions())
        assert envs.valid.all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_may_be_views_if_that_is_wanted(backend: str) -> None:
    with headrace.VectorEnv([Sampling("box")] * 3, copy=False, **BACKENDS[backend]) as envs:
        first = envs.reset(seed=1)[0]
        assert first.shape == (3, 3)
        seen = [envs.step([0, 0, 0])[0] for _ in range(3)]
        own = seen[-1].copy()
    assert np.shares_memory(seen[0], seen[2]) == (backend != "threads")  # those go the ordinary way, which copies
    np.testing.assert_array_equal(seen[-1], own)  # also when it is closed


def test_no_environment_is_an_error_and_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigError, match="no environments"):
        headrace.VectorEnv([])
    with pytest.raises(ConfigError, match="no option wokers") as told:
        headrace.VectorEnv([Sampling("box")], wokers=2)
    assert "nearest: workers" in str(told.value)
    with pytest.raises(ConfigError, match="factory for env 1 cannot be called"):
        headrace.VectorEnv([Sampling("box"), Sampling("box")()])  # type: ignore[list-item]


# In this process and in a worker


def test_an_interrupt_in_this_process_loses_nothing_of_what_workers_answer() -> None:
    factories = [Interrupted(env) for env in range(COUNT)]
    with headrace.VectorEnv(factories, **BACKENDS["split"]) as envs:
        envs.reset(seed=1)
        envs.step(actions(1))
        with pytest.raises(KeyboardInterrupt):
            envs.step(actions(2))
        with pytest.raises(VectorMisused, match="receive"):
            envs.step(actions(3))
        here = BACKENDS["split"]["here"]
        late = envs.receive(COUNT)
        assert late.env_ids.tolist() == list(range(here, COUNT))
        assert late.valid.all()
        assert late.rewards.tolist() == [2.0] * (COUNT - here)
        _, rewards, *_ = envs.step(actions(3))
        assert envs.valid.tolist() == [False] * here + [True] * (COUNT - here)
        assert rewards.tolist() == [0.0] * here + [3.0] * (COUNT - here)


class Interrupted:
    """Factory; the first copy of environment 0 is interrupted by Ctrl-C in its second step."""

    def __init__(self, env: int) -> None:
        self.env, self.copies = env, 0

    def __call__(self) -> gym.Env[Any, Any]:
        made, self.copies = Faulty(self.env), self.copies + 1
        if self.env == 0 and self.copies == 1:
            step = made.step

            def interrupted(action: Any) -> Any:
                if action == 2:
                    raise KeyboardInterrupt
                return step(action)

            made.step = interrupted  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_closed_one_that_is_kept_holds_nothing(backend: str) -> None:
    before = Holdings.now()
    envs = headrace.VectorEnv([Sampling("box")] * COUNT, **BACKENDS[backend])
    envs.reset(seed=1)
    envs.step(np.zeros(COUNT, int))
    envs.close()
    assert not settled(before, SETTLE_S)
    assert envs.closed


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_environment_that_is_there_twice_is_refused(backend: str) -> None:
    """Where each is copied on its way, every factory has one of its own: of `the_one` there is one in each process."""
    before, env = Holdings.now(), the_one()
    factories: list[Any] = [Faulty, the_one, Faulty, the_one]
    options = {**BACKENDS[backend], **({} if backend in ("here", "split") else {"workers": 1})}
    said = (
        r"the factories of environments \d and 3 returned the same object(.|\n)*lambda: MyEnv\(\), and not lambda: env"
    )
    if backend == "split":
        factories = [the_one, the_one, Faulty, Faulty]
        said = "the factories of environments 0 and 1 returned the same object"
    with pytest.raises(ConfigError, match=said):
        headrace.VectorEnv(factories, **options)
    assert not settled(before, SETTLE_S)
    if backend != "here":
        with headrace.VectorEnv([lambda: env] * 2, workers=1, here=0) as envs:
            envs.reset(seed=0)
            assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("env_fns", "says"),
    [
        (Sampling("box"), r"env_fns is no list of factories(.|\n)*\[make\] \* 8"),
        (Sampling("box")(), "env_fns is no list of factories"),
        (None, "env_fns is no list of factories"),
        ("ab", "factory for env 0 cannot be called"),
    ],
    ids=["factory", "environment", "nothing", "text"],
)
def test_what_is_no_list_of_factories_is_refused(env_fns: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        headrace.VectorEnv(env_fns)


@pytest.mark.parametrize(
    "budget", [{"per_env": None}, {"per_env": "3"}, {"per_env": 0.5}, {"total": "9"}, {"total": -1}]
)
def test_a_budget_is_a_whole_number(budget: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="of a fault budget is no number of faults"):
        FaultBudget(**budget)
    assert FaultBudget(per_env=np.int64(3), total=None).per_env == 3  # type: ignore[arg-type]


def test_a_log_that_cannot_be_written_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(opening, "start_server", lambda *_: pytest.fail("something was started"))
    for path in (tmp_path / "missing" / "x.log", tmp_path, 3.5):
        with pytest.raises(ConfigError, match="log_path cannot be written to"):
            headrace.VectorEnv([Sampling("box")], log_path=path, workers=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0, "threads_per_worker": 4}, "threads_per_worker would be ignored"),
        ({"workers": 0, "shared": False}, "shared would be ignored: there is no worker"),
        ({"budget": 5}, "budget is no fault budget"),
        ({"probes": [Probe.attribute("t")]}, "probes have no names"),
        ({"observation_mode": "diferent"}, "observation_mode is unknown"),
        ({"observation_mode": (gym.spaces.Discrete(2),)}, "observation_mode is no pair of spaces"),
        ({"probes": {"height": "height"}}, r"probe height is none(.|\n)*Probe.attribute"),
        ({"start_method": "fork"}, r"no option start_method(.|\n)*leave it out: workers come from a server"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr(env_module, "open_environments", lambda *_: pytest.fail("something was started"))
    with pytest.raises(ConfigError, match=says):
        headrace.VectorEnv([Sampling("box")], **options)


# Ctrl-C, and forks


@pytest.mark.parametrize("where", ["waiting", "ending"])
@pytest.mark.parametrize("backend", ["workers", "split"])
def test_a_close_that_is_interrupted_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch, backend: str, where: str
) -> None:
    before = Holdings.now()
    factories: list[Any] = [Faulty] * 2 + [NeverClosing] * 2
    envs = headrace.VectorEnv(factories, **BACKENDS[backend])
    envs.reset(seed=1)
    pids, server = list(envs.worker_pids().values()), envs._opened.backend
    server = getattr(server, "pool", server).crew.server
    limits = {"waiting": [600.0], "ending": [0.05, 0.05]}[where]
    for limit_s in limits:
        with monkeypatch.context() as patch:
            if where == "waiting":
                patch.setattr(crew, "_poll", lambda *_: signal.raise_signal(signal.SIGINT))
            else:
                patch.setattr(server, "close", interrupted)
            with pytest.raises(KeyboardInterrupt):
                envs.close(timeout_s=limit_s)
        with pytest.raises(VectorMisused, match="closed"):
            envs.step(actions())
    envs.close(timeout_s=0.05)
    assert envs.closed
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not settled(before, SETTLE_S)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("backend", ISOLATED)
def test_a_fork_of_the_program_leaves_its_workers_alone(backend: str) -> None:
    with headrace.VectorEnv([Failing(env) for env in range(COUNT)], **BACKENDS[backend]) as envs:
        envs.reset(seed=1)
        pids, child = envs.worker_pids(), os.fork()
        if child == 0:
            try:
                with pytest.raises(VectorMisused, match="belongs to the process that was forked"):
                    envs.step(actions())
                envs.__exit__(None, None, None)  # as `sys.exit` within the block
                assert envs.closed
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for _ in range(3):
            envs.step(actions())
            assert envs.valid.all()
        assert envs.worker_pids() == pids


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy, pickle.dumps, cloudpickle.dumps])
def test_it_is_neither_copied_nor_pickled(backend: str, copies: Callable[[Any], Any]) -> None:
    with headrace.VectorEnv([Failing(env) for env in range(COUNT)], **BACKENDS[backend]) as envs:
        envs.reset(seed=1)
        with pytest.raises(VectorMisused, match="a vector environment cannot be copied or pickled"):
            copies(envs)
        assert envs.step(actions())[0][:, 0].tolist() == [0, 1, 2, 3]


class Restated(headrace.VectorEnv):
    """Says itself how it is made again."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__([Failing(env) for env in range(count)], workers=0)

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Restated.__init__(self, state["count"])


class Reduced(Restated):
    __getstate__ = headrace.VectorEnv.__getstate__

    def __reduce__(self) -> Any:
        return Reduced, (self.count,)


@pytest.mark.parametrize("kind", [Restated, Reduced])
def test_one_that_says_how_it_is_made_again_is_copied(kind: type[Restated]) -> None:
    with kind(2) as envs, copy.deepcopy(envs) as copied, pickle.loads(pickle.dumps(envs)) as read:
        for one in (copied, read):
            assert type(one) is kind
            assert one is not envs
            one.reset(seed=1)
        copied.close()
        envs.reset(seed=1)
        assert envs.step([0, 0])[0][:, 0].tolist() == [0, 1]


def test_a_worker_that_takes_no_message_is_not_told_as_a_step_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.vector.pool.TELL_S", 0.3)
    factories = [Failing(0, how="hang", at=1), Failing(1)]
    with headrace.VectorEnv(factories, workers=1, threads_per_worker=1, step_timeout_s=600.0) as envs:
        envs.reset(seed=1)
        envs.send(np.zeros(1, np.int64), [0])
        (worker,) = envs._opened.backend.crew.handles.values()
        deadline = Deadline(60.0)
        while not worker.seats.inside(lambda _env: True) and not deadline.passed:
            poll_fds({}, 0.001)
        envs.send_reset([1], [None], {"map": np.zeros(20_000_000, np.uint8)})  # more than there is room for
        envs.receive(min_envs=2)
        told = next(fault for fault in envs.faults if fault.env == 0)
    assert told.kind == "died"
    assert "made no room for a message for 0.3 s while it was inside step() of environment 0" in told.message
    assert not {"limit", "interrupted", "time-out"} & set(told.message.split())


def test_nobody_is_left_of_a_worn_out_worker_that_ends() -> None:
    """Its heir was started already, and those who were to move there have to be parted."""
    budget = FaultBudget(per_env=50, total=500, backoff_s=0.0)
    factories = [Failing(0, how="stubborn", at=1), Failing(1, how="stubborn", at=1), Failing(2)]
    with headrace.VectorEnv(factories, workers=1, threads_per_worker=3, step_timeout_s=0.3, budget=budget) as envs:
        envs.reset(seed=1)
        envs.send(np.zeros(2, np.int64), [0, 1])
        envs.receive(min_envs=2)  # both threads are left alone, and a worker is started that is to take their place
        crew = envs._opened.backend.crew
        old = next(handle for handle in crew.handles.values() if handle.successor is not None)
        os.kill(old.child.pid, signal.SIGKILL)
        assert wait_for_end(old.child.pid, old.child.pidfd, 30.0)
        for _ in range(2):
            envs.send(np.zeros(1, np.int64), [2])
            envs.receive(min_envs=1)
        envs.send(np.zeros(2, np.int64), [0, 1])
        envs.receive(min_envs=2)
        deadline = Deadline(30.0)
        while not all(len(crew.housed(handle)) for handle in crew.handles.values()) and not deadline.passed:
            envs.send(np.zeros(1, np.int64), [2])  # whoever waits for an answer sees who has ended
            envs.receive(min_envs=1)
            poll_fds({}, 0.01)
        assert all(len(crew.housed(handle)) for handle in crew.handles.values())
        assert len(envs.worker_pids()) <= 3


@pytest.mark.own_server
def test_a_dead_fork_server_is_told_in_words_of_vector_environments() -> None:
    with headrace.VectorEnv([Failing(env) for env in range(2)], workers=1, threads_per_worker=1) as envs:
        envs.reset(seed=1)
        pid = envs._opened.backend.crew.server.pid
        os.kill(pid, signal.SIGKILL)

        def step_on() -> None:
            for _ in range(1000):  # the worker goes with it; whose end is seen first is open
                envs.step([0, 0])

        with pytest.raises(ComponentDied) as caught:
            step_on()
        assert str(caught.value) == (
            "[SUP-001] the fork server is gone: it ended\n"
            f"  pid: {pid}\n"
            "  exit code: -9\n"
            "  fix: see in the kernel's log whether the machine was out of memory; if it was, take fewer workers"
        )
