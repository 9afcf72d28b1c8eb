"""One environment of several goes wrong inside a step: it alone is replaced, it is named, and nothing is invented.

`vector_support.Follower` checks every row of every environment in all tests here.
"""

from __future__ import annotations

import functools
import itertools
import os
import select
import signal
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import headrace
from headrace.core.errors import (
    ComponentDied,
    ComponentStalled,
    EnvironmentRaised,
    HeadraceError,
    NonFiniteValue,
    ObservationMismatch,
    RestartBudgetSpent,
    UnknownAttribute,
)
from headrace.ipc.channel import poll_fds
from headrace.vector.options import FaultBudget
from told_envs import DEATHS, HANGS, LIES, NOT_FINITE, RAISES, SOFT_HANGS, WORDS, Make, Meeting, Told, Trouble, told
from vector_envs import Texts
from vector_support import BACKENDS, MODES, Cut, Follower, drive, drive_ready

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server"), pytest.mark.thin(4)]

COUNT, CULPRIT, AT, STEPS = 4, 1, 3, 24
STEP_S = 1.5
"""Limit of a step; long, or a busy machine makes more culprits than there are."""
ISOLATED = ("worker", "threads")
OFTEN = FaultBudget(per_env=50, backoff_s=0.0)


def cells(whats: Any, backends: Any) -> list[Any]:
    """What, backend and mode in all combinations; one mode of each is tried in every run, the others in `test-all`."""
    found = []
    for number, (what, backend) in enumerate(itertools.product(whats, backends)):
        for place, mode in enumerate(MODES):
            marks = [] if place == number % len(MODES) else [pytest.mark.table]
            found.append(pytest.param(what, backend, mode, marks=marks, id=f"{what}-{backend}-{mode.value}"))
    return found


class Scene:
    """Four environments, of which one gets into trouble once, under a follower."""

    def __init__(self, tmp_path: Path, backend: str, mode: AutoresetMode, what: str, **options: Any) -> None:
        trouble = Trouble(what, at=AT, marker=str(tmp_path / "marker"))
        limits = {} if backend in ("serial", "split") else {"step_timeout_s": STEP_S}
        self.envs = headrace.VectorEnv(
            told(COUNT, CULPRIT, trouble), autoreset_mode=mode, **{**limits, **BACKENDS[backend], **options}
        )
        self.follower = Follower(COUNT, mode)
        self.homes = dict(self.envs.call("ping"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.envs.close()

    @property
    def housemates(self) -> set[int]:
        """Environments in the culprit's process."""
        return {index for index, pid in self.homes.items() if pid == self.homes[CULPRIT]} - {CULPRIT}

    def assert_only(self, kind: str, lost: set[int] = frozenset()) -> Cut:  # type: ignore[assignment]
        """One fault, told of the culprit; ``lost`` went with its worker, and nothing happened to the others."""
        [cut] = [cut for cut in self.follower.cuts if cut.env == CULPRIT]
        assert (cut.fault, cut.step) == (kind, AT), cut
        assert f"env: {CULPRIT}" in cut.message
        # A housemate that was just being reset is given a replacement's reset: its row is true, and tells of the fault.
        others = [cut for cut in self.follower.cuts + self.follower.mended if cut.env != CULPRIT]
        assert {cut.env for cut in others} == lost
        assert len(others) == len(lost)
        for other in others:
            assert other.fault == "lost-with-worker"
            assert f"environment {CULPRIT}" in other.message
        assert [(fault.env, str(fault.kind)) for fault in self.envs.faults if fault.env == CULPRIT] == [(CULPRIT, kind)]
        for env, seen in enumerate(self.follower.envs):
            assert len(seen.builds) == (2 if env in {CULPRIT, *lost} else 1)
            assert seen.transitions > STEPS // 2
        return cut


def lost_with(scene: Scene, what: str, backend: str) -> set[int]:
    """Who shares the fate of the culprit: all in its process, if only that process's end helps."""
    if what in SOFT_HANGS or (what == "swallow" and backend == "threads"):
        return set()
    return scene.housemates


@pytest.mark.thin(3)
@pytest.mark.parametrize(("what", "backend", "mode"), cells(HANGS, ISOLATED))
def test_a_hang_is_ended_and_named(tmp_path, what, backend, mode):
    with Scene(tmp_path, backend, mode, what) as scene:
        drive(scene.envs, scene.follower, STEPS)
        cut = scene.assert_only("hung", lost_with(scene, what, backend))
    assert "step" in cut.message
    assert "1.5" in cut.message
    assert what not in SOFT_HANGS or ".py" in cut.message  # where it hung


@pytest.mark.parametrize(("what", "backend", "mode"), cells(DEATHS, ISOLATED))
def test_a_death_is_named_with_its_signal(tmp_path, what, backend, mode):
    with Scene(tmp_path, backend, mode, what) as scene:
        drive(scene.envs, scene.follower, STEPS)
        cut = scene.assert_only("died", scene.housemates)
    says = {"exit-0": "0", "exit-3": "3", "sigkill": "SIGKILL", "sigsegv": "SIGSEGV"}[what]
    assert says in cut.message


@pytest.mark.parametrize(("what", "backend", "mode"), cells(RAISES, BACKENDS))
def test_an_exception_costs_nobody_else_anything(tmp_path, what, backend, mode):
    with Scene(tmp_path, backend, mode, what) as scene:
        drive(scene.envs, scene.follower, STEPS)
        cut = scene.assert_only("raised")
    assert {"raises": f"ValueError: {WORDS}", "unpicklable": "RefusesToTravel", "sys-exit": "SystemExit"}[
        what
    ] in cut.message
    assert ", in step" in cut.message  # the environment's own traceback


@pytest.mark.parametrize(
    ("what", "backend", "mode"),
    [*cells(LIES, ("serial",)), *cells(list(LIES)[::2], ("worker",)), *cells(list(LIES)[1::2], ("threads",))],
)
def test_a_lie_reaches_nobody(tmp_path, what, backend, mode):
    with Scene(tmp_path, backend, mode, what) as scene:
        drive(scene.envs, scene.follower, STEPS)
        cut = scene.assert_only("not-finite" if what in NOT_FINITE else "contract")
    assert "found: " in cut.message


ASKED = ("raises", "exit-3", "gil", "sleep")


@pytest.mark.parametrize(
    ("what", "backend", "mode"), [*cells(ASKED, ISOLATED), *cells(["raises"], ["serial", "split"])]
)
def test_whoever_was_lost_can_be_asked_before_it_is_reset(tmp_path, what, backend, mode):
    """What answers is what goes on: nothing that was set in between is lost by the reset."""
    with Scene(tmp_path, backend, mode, what) as scene:
        envs, follower = scene.envs, scene.follower

        follower.began(envs.reset(seed=0))
        for number in range(AT):
            follower.stepped(np.full(COUNT, number), envs.step(np.full(COUNT, number)), envs.valid)
        assert CULPRIT in {cut.env for cut in follower.cuts}
        assert [int(image[0, 0, 0]) for image in envs.render()] == [0, 1, 2, 3]
        marks = (10, 11, 12, 13)
        envs.set_attr("mark", marks)
        builds, follower.asked = envs.get_attr("build"), True
        with pytest.raises(UnknownAttribute):
            envs.get_attr("nothing_of_this_name")
        for number in range(STEPS):
            over = follower.over
            if mode is AutoresetMode.DISABLED and over.any():
                follower.began(envs.reset(options={"reset_mask": over}), np.flatnonzero(over).tolist())
            follower.stepped(np.full(COUNT, number), envs.step(np.full(COUNT, number)), envs.valid)
        assert (envs.get_attr("mark"), envs.get_attr("build")) == (marks, builds)
        assert tuple(seen.builds[-1] for seen in follower.envs) == builds
        lost = scene.housemates if what in ("exit-3", "gil") else set()
        assert {cut.env for cut in follower.cuts} == {CULPRIT, *lost}
        assert len(envs.faults) == 1 + len(lost)


class Masked(Told):
    """Has something to say only once it was reset, as many have."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observed = super().reset(seed=seed)
        self.mask = self.np_random.random(2)
        return observed

    def action_masks(self) -> Any:
        return self.mask


class Inner(gymnasium.Wrapper[Any, Any, Any, Any]):
    """What a wrapper of Gymnasium's own holds: gets into trouble in the third step of its first object."""

    def __init__(self, env: Any, trouble: Trouble) -> None:
        super().__init__(env)
        self._told = Told(trouble=trouble)

    def step(self, action: Any) -> Any:
        self._told.step(action)
        return super().step(action)


def pole(trouble: Trouble | None) -> Any:
    made = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    return made if trouble is None else Inner(made, trouble)


@pytest.mark.parametrize(
    ("what", "backend", "mode"),
    [*cells(["raises", "sleep", "exit-3"], ISOLATED), *cells(["raises"], ["serial", "split"])],
)
def test_what_needs_a_reset_is_read_after_every_step(tmp_path, what, backend, mode):
    """Masks before every action, a picture after it: one fault is no reason to end the program."""
    first, second = (Trouble(what, at=AT, marker=str(tmp_path / name)) for name in ("first", "second"))
    limits = {} if backend in ("serial", "split") else {"step_timeout_s": STEP_S}
    options = {"autoreset_mode": mode, **limits, **BACKENDS[backend]}
    masked = [functools.partial(Masked, index, trouble=first if index == CULPRIT else None) for index in range(COUNT)]
    poles = [functools.partial(pole, second if index == CULPRIT else None) for index in range(COUNT)]
    for factories, read in ((masked, "action_masks"), (poles, "render")):
        with headrace.VectorEnv(factories, **options) as envs:
            envs.reset(seed=0)
            for _ in range(AT + 2):
                *_, terminations, truncations, _ = envs.step(np.zeros(COUNT, np.int64))
                found = envs.call(read)
                assert [np.shape(one) for one in found] == [(2,) if read == "action_masks" else (400, 600, 3)] * COUNT
                over = terminations | truncations
                if mode is AutoresetMode.DISABLED and over.any():
                    envs.reset(options={"reset_mask": over})
            assert CULPRIT in {fault.env for fault in envs.faults}


def test_what_answers_for_a_lost_environment_is_reset_as_its_replacement_will_be(tmp_path):
    trouble = Trouble("exit-3", at=AT, marker=str(tmp_path / "marker"))
    with headrace.VectorEnv([functools.partial(Masked, trouble=trouble)], workers=1, threads_per_worker=1) as envs:
        envs.reset(seed=0)
        while not envs.faults:
            envs.step([0])
        [asked] = envs.call("action_masks")
        assert envs.call("action_masks")[0].tolist() == asked.tolist()
        envs.step([0])
        assert envs.call("action_masks")[0].tolist() == asked.tolist()
        envs.step([0])
        assert envs.valid.all()


@pytest.mark.parametrize("backend", ["serial", *ISOLATED])
def test_whoever_failed_can_be_asked_before_the_caller_resets_it(tmp_path, backend):
    with Scene(tmp_path, backend, AutoresetMode.NEXT_STEP, "raises", on_fault="raise") as scene:
        envs, follower = scene.envs, scene.follower
        with pytest.raises(EnvironmentRaised):
            drive(envs, follower, STEPS)
        envs.receive(min_envs=COUNT - 1, timeout_s=30.0)
        before = envs.get_attr("build")[CULPRIT]
        assert before == follower.envs[CULPRIT].builds[0]  # the very one that raised, as it is
        envs.set_attr("mark", [5] * COUNT)
        assert envs.get_attr("build")[CULPRIT] != before
        follower.asked = True
        envs.reset(options={"reset_mask": np.arange(COUNT) == CULPRIT})
        envs.step(np.zeros(COUNT, np.int64))
        assert envs.get_attr("mark") == (5,) * COUNT


def test_a_replacement_that_cannot_be_built_within_a_call_is_a_factory_that_fails(tmp_path):
    marker = tmp_path / "marker"

    def once() -> Told:
        if marker.exists():
            raise ValueError(WORDS)
        return Told(0, trouble=Trouble("raises", at=1, marker=str(marker)))

    with headrace.VectorEnv([once, Make(1)], workers=1, threads_per_worker=1) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        with pytest.raises(
            EnvironmentRaised, match=f"mark of environment 0: the environment's factory raised ValueError: {WORDS}"
        ):
            envs.set_attr("mark", 1)
        marker.unlink()
        assert [index for index, _ in envs.call("ping")] == [0, 1]


@pytest.mark.parametrize(("what", "backend", "mode"), cells(("sleep", "sigkill", "raises", "nan-obs"), ISOLATED))
def test_the_others_are_received_meanwhile(tmp_path, what, backend, mode):
    """As ready: no row of another environment waits for the one that hangs."""
    with Scene(tmp_path, backend, mode, what) as scene:
        drive_ready(scene.envs, scene.follower, 40 * COUNT, each=STEPS)
        kind = {"sleep": "hung", "sigkill": "died", "raises": "raised", "nan-obs": "not-finite"}[what]
        scene.assert_only(kind, scene.housemates if what == "sigkill" else set())


@pytest.mark.parametrize("backend", ISOLATED)
def test_who_is_lost_at_the_end_of_an_episode_is_told_of_once(tmp_path, backend):
    """The culprit dies while its housemate is reset, or just before or after: cut or mended, and never neither."""
    with Scene(tmp_path, backend, AutoresetMode.NEXT_STEP, "sigkill") as scene:
        [housemate] = scene.housemates
        follower = scene.follower
        follower.began(scene.envs.reset(seed=0))

        def step(*env_ids: int) -> None:
            scene.envs.send(np.zeros(len(env_ids), np.int64), env_ids=np.array(env_ids))
            result = scene.envs.receive(min_envs=len(env_ids), timeout_s=30.0)
            columns = result.observations, result.rewards, result.terminations, result.truncations, result.infos
            follower.received(result.env_ids.tolist(), np.zeros(COUNT), columns, result.valid)

        for _ in range(AT - 1):
            step(CULPRIT)
        while not follower.envs[housemate].over:
            step(housemate)
        step(CULPRIT, housemate)
        for _ in range(STEPS):
            step(*range(COUNT))
        scene.assert_only("died", {housemate})


@pytest.mark.parametrize("over", [True, False], ids=["after-its-end", "amid-an-episode"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ISOLATED)
def test_who_is_lost_while_asked_nothing_is_told_of_at_its_reset(tmp_path, backend, mode, over):
    with Scene(tmp_path, backend, mode, "sigkill") as scene:
        [housemate] = scene.housemates
        envs, follower = scene.envs, scene.follower
        follower.began(envs.reset(seed=0))

        def step(env: int) -> None:
            envs.send(np.zeros(1, np.int64), env_ids=[env])
            result = envs.receive(min_envs=1, timeout_s=30.0)
            columns = result.observations, result.rewards, result.terminations, result.truncations, result.infos
            follower.received([env], np.zeros(1), columns, result.valid)

        for _ in range(AT - 1):
            step(CULPRIT)
        step(housemate)
        while over and mode is not AutoresetMode.SAME_STEP and not follower.envs[housemate].over:
            step(housemate)
        step(CULPRIT)
        follower.began(envs.reset(options={"reset_mask": np.arange(COUNT) == housemate}), [housemate])
        assert [(cut.env, cut.fault) for cut in follower.mended] == [(housemate, "lost-with-worker")]
        follower.began(envs.reset())
        assert [fault.env for fault in envs.faults] == [CULPRIT, housemate]


def test_what_is_ready_is_handed_out_while_one_hangs(tmp_path):
    with Scene(tmp_path, "threads", AutoresetMode.NEXT_STEP, "sleep", step_timeout_s=60.0) as scene:
        envs, follower = scene.envs, scene.follower
        follower.began(envs.reset(seed=0))
        for number in range(AT):
            envs.send(np.full(COUNT, number))
            result = envs.receive(min_envs=COUNT - (number == AT - 1), timeout_s=30.0)
            columns = result.observations, result.rewards, result.terminations, result.truncations, result.infos
            follower.received(result.env_ids.tolist(), np.full(COUNT, number), columns, result.valid)
        assert sorted(result.env_ids) == [0, 2, 3]
        nothing = envs.receive(min_envs=1, timeout_s=0.0)
        assert len(nothing.env_ids) == 0
        with pytest.raises(HeadraceError, match="VEC-001"):
            envs.send(np.zeros(1, np.int64), env_ids=[CULPRIT])


@pytest.mark.parametrize("backend", ISOLATED)
@pytest.mark.parametrize("what", [pytest.param("gil", marks=pytest.mark.table), "sigkill"])
def test_who_took_others_down_once_does_it_no_second_time(tmp_path, what, backend):
    """It fails in every life: the first costs its housemates their episodes, later ones only its own."""
    trouble = Trouble(what, at=AT)
    with headrace.VectorEnv(
        told(COUNT, CULPRIT, trouble), step_timeout_s=STEP_S, budget=OFTEN, **BACKENDS[backend]
    ) as envs:
        follower = Follower(COUNT, AutoresetMode.NEXT_STEP)
        drive(envs, follower, 4 * AT)
    cuts = [cut.env for cut in follower.cuts]
    assert cuts.count(CULPRIT) >= 3
    assert len(cuts) - cuts.count(CULPRIT) == len({env for env in cuts if env != CULPRIT})


def end_worker_of(envs: headrace.VectorEnv, env: int) -> None:
    """As a thread does that an environment has left behind, when nobody is in a call."""
    crew: Any = envs._opened.backend.crew  # type: ignore[attr-defined]
    child = next(handle for handle in crew.handles.values() if env in crew.housed(handle)).child
    child.kill()
    assert poll_fds({child.pidfd: select.POLLIN}, 20.0)


@pytest.mark.parametrize("threads", [1, COUNT])
def test_who_took_others_down_while_nobody_is_in_a_call_is_alone_before_long(threads):
    """Each time it is put together with half of those that it may have been; nobody's own budget is touched by that."""
    budget = FaultBudget(per_env=1, backoff_s=0.0)
    with headrace.VectorEnv(told(COUNT), workers=1, threads_per_worker=threads, budget=budget) as envs:
        follower = Follower(COUNT, AutoresetMode.NEXT_STEP)
        drive(envs, follower, 2)
        for _ in range(3):
            end_worker_of(envs, CULPRIT)
            for number in range(3):
                actions = np.full(COUNT, number)
                follower.stepped(actions, envs.step(actions), envs.valid)
        assert len(envs.worker_pids()) == 3
    cuts = [(cut.env, cut.fault) for cut in follower.cuts]
    assert sorted(cuts) == [
        (0, "lost-with-worker"), (0, "lost-with-worker"), (1, "died"), (1, "lost-with-worker"), (1, "lost-with-worker"),
        (2, "lost-with-worker"), (3, "lost-with-worker"),
    ]  # fmt: skip
    whole, half = follower.cuts[0].message, follower.cuts[-2].message
    assert "one of environments 0, 1, 2, 3 ended it, or somebody else did" in whole
    assert "one of environments 0, 1 ended it, or somebody else did" in half
    assert "ended while it was in none of its calls: killed by SIGKILL" in follower.cuts[-1].message


def test_who_took_others_down_while_all_are_in_a_call_is_alone_before_long():
    """With threads: none of them is told to have died, of three that did not."""
    trouble = Trouble("exit-3", at=AT)
    made = [functools.partial(Meeting, env, 7, trouble if env == CULPRIT else None) for env in range(COUNT)]
    with headrace.VectorEnv(made, workers=1, threads_per_worker=COUNT, step_timeout_s=15.0, budget=OFTEN) as envs:
        follower = Follower(COUNT, AutoresetMode.NEXT_STEP)
        drive(envs, follower, 4 * (AT + 1))
    cuts = [(cut.env, cut.fault) for cut in follower.cuts]
    assert [cuts.count((env, "lost-with-worker")) for env in range(COUNT)] == [2, 2, 1, 1]
    assert cuts.count((CULPRIT, "died")) == 2
    assert len(cuts) == 8
    assert "ended (exit code 3), and one of environments 0, 1, 2, 3 ended it\n" in follower.cuts[0].message


@pytest.mark.parametrize("threads", [1, COUNT])
def test_what_headrace_ended_is_not_told_to_have_been_killed(threads):
    with headrace.VectorEnv(told(COUNT), workers=1, threads_per_worker=threads, step_timeout_s=STEP_S) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(COUNT, np.int64))
        [pid] = envs.worker_pids().values()
        os.kill(pid, signal.SIGSTOP)
        envs.step(np.zeros(COUNT, np.int64))
        assert not envs.valid.any()
        for fault in envs.faults:
            assert fault.kind == "lost-with-worker"
            assert "which Headrace ended: no sign of life for " in fault.message
            assert " s (limit 1.5 s), and one of environments 0, 1, 2, 3 held it up\n" in fault.message
            assert "\n  stopped: its process had been stopped by a signal\n" in fault.message
            assert "SIGKILL" not in fault.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_spent_budget_ends_it_with_the_last_cause(tmp_path, backend):
    with headrace.VectorEnv(
        told(COUNT, CULPRIT, Trouble("raises", at=AT)),
        budget=FaultBudget(per_env=2, backoff_s=0.0),
        **BACKENDS[backend],
    ) as envs:
        follower = Follower(COUNT, AutoresetMode.NEXT_STEP)
        with pytest.raises(RestartBudgetSpent) as caught:
            drive(envs, follower, 100)
    assert [cut.env for cut in follower.cuts] == [CULPRIT] * 2
    assert f"environment {CULPRIT}" in str(caught.value)
    assert WORDS in str(caught.value)
    assert "failed 3 times" in str(caught.value)


RAISED = {
    "sleep": ComponentStalled, "swallow": ComponentStalled, "sigstop": ComponentStalled, "sigkill": ComponentDied,
    "raises": EnvironmentRaised, "unpicklable": EnvironmentRaised, "nan-reward": NonFiniteValue,
    "shape-1": ObservationMismatch, "none": ObservationMismatch,
}  # fmt: skip


OUTLIVED = [what for what, error in RAISED.items() if not issubclass(error, ComponentStalled | ComponentDied)]
"""What the process of the environment survives."""


@pytest.mark.parametrize(("what", "backend", "mode"), [*cells(RAISED, ISOLATED), *cells(OUTLIVED, ("serial",))])
def test_raising_leaves_the_others_usable(tmp_path, what, backend, mode):
    with Scene(tmp_path, backend, mode, what, on_fault="raise") as scene:
        envs, follower = scene.envs, scene.follower
        with pytest.raises(RAISED[what]) as caught:
            drive(envs, follower, STEPS)
        assert (caught.value.facts["env"], caught.value.facts["step"]) == (CULPRIT, AT)
        if what == "raises":
            assert f"ValueError: {WORDS}" in str(caught.value)
            assert "told_envs.py" in str(caught.value)
        lost = scene.housemates if what in ("sigstop", "sigkill") or (what, backend) == ("swallow", "worker") else set()
        rest = envs.receive(min_envs=COUNT - 1 - len(lost), timeout_s=30.0)
        sent = [env + 1000 * (AT - 1) for env in rest.env_ids.tolist()]
        columns = rest.observations, rest.rewards, rest.terminations, rest.truncations, rest.infos
        follower.received(rest.env_ids.tolist(), sent, columns, rest.valid)
        ended = np.isin(np.arange(COUNT), [CULPRIT, *lost])
        fresh, infos = envs.reset(options={"reset_mask": ended})
        for env in np.flatnonzero(~ended):
            assert list(fresh[env]) == list(follower.envs[env].obs), "its episode goes on"
        for env in np.flatnonzero(ended):
            follower.envs[env].replaced = True
        follower.began((fresh, infos), np.flatnonzero(ended).tolist())
        for number in range(2):
            actions = np.full(COUNT, number)
            follower.stepped(actions, envs.step(actions), envs.valid)
    assert follower.cuts == []


@pytest.mark.thin(1)
@pytest.mark.parametrize("backend", ["serial", "worker", "threads"])
def test_parts_by_another_name_are_one_environments_fault(backend: str) -> None:
    wrong = {"box": np.zeros(2, np.float32), "txt": "x"}
    options = {**BACKENDS[backend], **({} if backend == "serial" else {"workers": 1})}
    with headrace.VectorEnv([Texts(), Texts(at=2, wrong=wrong), Texts()], **options) as envs:
        envs.reset(seed=0)
        for step in range(1, 5):
            observations = envs.step([0, 0, 0])[0]
            assert envs.valid.tolist() == [True, step != 2, True]
            assert observations["box"][[0, 2], 0].tolist() == [step, step]
            assert observations["text"][0] == observations["text"][2] == "ab"
        assert [(fault.env, fault.kind.value) for fault in envs.faults] == [(1, "contract")]
