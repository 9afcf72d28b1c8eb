"""Whatever `SyncVectorEnv` returns, `headrace.VectorEnv` returns, wherever its environments run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import headrace
from headrace.core.errors import ConfigError, UnknownAttribute, VectorMisused
from namesakes import Namesake
from vector_envs import SPACES, Sampling, in_lists

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server"), pytest.mark.thin(4)]

BACKENDS: dict[str, dict[str, Any]] = {
    "here": {"workers": 0},
    "workers": {"workers": 2, "threads_per_worker": 1},
    "threads": {"workers": 2, "threads_per_worker": 4},
    "split": {"workers": 1, "threads_per_worker": 1, "here": 2},
}
MODES = list(AutoresetMode)
COUNT = 3


@contextlib.contextmanager
def both(factories: list[Any], backend: str, **options: Any) -> Iterator[tuple[Any, Any]]:
    shared = {name: options[name] for name in ("autoreset_mode", "observation_mode") if name in options}
    sync = SyncVectorEnv(factories, **shared)
    try:
        with headrace.VectorEnv(factories, **BACKENDS[backend], **options) as ours:
            yield sync, ours
    finally:
        sync.close()


def assert_same(expected: Any, found: Any) -> None:
    """Equal in values, types, dtypes and shapes."""
    assert type(expected) is type(found), (expected, found)
    if isinstance(expected, np.ndarray):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
        if expected.dtype == object:
            for one, other in zip(expected.ravel(), found.ravel(), strict=True):
                assert_same(one, other)
        else:
            np.testing.assert_array_equal(expected, found)
    elif isinstance(expected, dict):
        assert list(expected) == list(found)
        for key, value in expected.items():
            assert_same(value, found[key])
    elif isinstance(expected, tuple | list):
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            assert_same(one, other)
    else:
        assert expected == found


def play(sync: Any, ours: Any, *, seed: Any = 3, steps: int = 15, options: Any = None, disabled: bool = False) -> None:
    """The same questions to both; the same answers."""
    sync.action_space.seed(5)
    given = [None if options is None else dict(options) for _ in range(2)]
    assert_same(sync.reset(seed=seed, options=given[0]), ours.reset(seed=seed, options=given[1]))
    for _ in range(steps):
        actions = sync.action_space.sample()
        expected, found = sync.step(actions), ours.step(actions)
        assert_same(expected, found)
        ended = expected[2] | expected[3]
        if disabled and ended.any():
            assert_same(sync.reset(options={"reset_mask": ended}), ours.reset(options={"reset_mask": ended.copy()}))
    assert ours.valid.all()
    assert not ours.faults


@pytest.mark.thin(39)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SPACES)
def test_every_space(kind: str, mode: AutoresetMode, backend: str) -> None:
    factories = [Sampling(kind) for _ in range(COUNT)]
    with both(factories, backend, autoreset_mode=mode) as (sync, ours):
        assert_same(sync.metadata, ours.metadata)
        assert ours.observation_space == sync.observation_space
        assert ours.single_observation_space == sync.single_observation_space
        assert ours.action_space == sync.action_space
        play(sync, ours, disabled=mode is AutoresetMode.DISABLED)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("infos", ["flat", "sparse", "nested", "array", "mixed"])
def test_every_kind_of_info(infos: str, mode: AutoresetMode, backend: str) -> None:
    factories = [Sampling("box", infos=infos) for _ in range(COUNT)]
    with both(factories, backend, autoreset_mode=mode) as (sync, ours):
        play(sync, ours, options={"level": "hard"}, disabled=mode is AutoresetMode.DISABLED)


@pytest.mark.parametrize("backend", BACKENDS)
def test_infos_of_different_kinds(backend: str) -> None:
    """What one environment tells as a whole number and another as a fraction follows the first, as in Gymnasium."""
    factories = [Sampling("box", infos=infos) for infos in ("mixed", "flat", "none", "array", "flat")]
    with both(factories, backend) as (sync, ours):
        play(sync, ours)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_answers_in_lists(mode: AutoresetMode, backend: str) -> None:
    probes = {"t": headrace.Probe.attribute("unwrapped.t"), "end": headrace.Probe.info("n", at="episode_end")}
    with both([in_lists] * COUNT, backend, autoreset_mode=mode, probes=probes) as (sync, ours):
        play(sync, ours, disabled=mode is AutoresetMode.DISABLED)
        sync.reset(seed=3), ours.reset(seed=3)
        *_, terminated, truncated, _ = ours.step(ours.action_space.sample())
        assert ours.probes["t"].values.tolist() == [1] * COUNT
        assert ours.probes["end"].mask.tolist() == (terminated | truncated).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reward", ["int", "np", "bool", "array0d"])
def test_every_kind_of_reward(reward: str, backend: str) -> None:
    with both([Sampling("box", reward=reward) for _ in range(COUNT)], backend) as (sync, ours):
        play(sync, ours)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reward_of_shape_1_is_a_number(backend: str) -> None:
    """Gymnasium raises; the rewards are those of the same environments with plain numbers."""
    plain = SyncVectorEnv([Sampling("box") for _ in range(COUNT)])
    with headrace.VectorEnv([Sampling("box", reward="array") for _ in range(COUNT)], **BACKENDS[backend]) as ours:
        play(plain, ours)
    plain.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("action", ["box", "box0d", "multi_discrete", "multi_binary", "dict", "tuple", "text", "mixed"])
def test_every_kind_of_action(action: str, backend: str) -> None:
    factories = [Sampling("box", action=action, infos="echo") for _ in range(COUNT)]
    with both(factories, backend) as (sync, ours):
        play(sync, ours, steps=8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [7, [4, 5, 6], [4, None, 6]], ids=["number", "list", "holes"])
def test_seeds(seed: Any, backend: str) -> None:
    with both([Sampling("box") for _ in range(COUNT)], backend) as (sync, ours):
        if None in np.atleast_1d(np.array(seed, object)):
            sync.reset(seed=1), ours.reset(seed=1)
        play(sync, ours, seed=seed)
        assert_same(sync.np_random_seed, ours.np_random_seed)
        play(sync, ours, seed=None)  # generators go on


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds_are_whole_numbers_of_any_kind(backend: str) -> None:
    with both([Sampling("box") for _ in range(COUNT)], backend) as (sync, ours):
        for seed in (np.arange(COUNT), (np.int32(0), 1, np.uint8(2)), np.int64(0), np.array(0)):
            assert_same(sync.reset(seed=[0, 1, 2]), ours.reset(seed=seed))
            assert_same(sync.step([0] * COUNT), ours.step([0] * COUNT))
        assert ours.valid.all()
        assert not ours.faults


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_seed_is_refused_before_anybody_is_asked(backend: str) -> None:
    with headrace.VectorEnv([Sampling("box") for _ in range(COUNT)], **BACKENDS[backend]) as ours:
        for seed in (-1, [0, -1, 2], 0.5, [0.0, 1, 2], np.arange(3.0), np.array(1.5), "012", [0, 1]):
            with pytest.raises(VectorMisused, match="nothing was sent"):
                ours.reset(seed=seed)
        ours.reset(seed=1)
        for wrong in ([5], [5, 6, 7], 5, [5, -1], None):
            with pytest.raises(VectorMisused, match="nothing was sent"):
                ours.send_reset([2, 0], wrong)  # type: ignore[arg-type]
        for options in ([{}], ({}, {}, {})):
            with pytest.raises(VectorMisused, match="options for 2 environments; nothing was sent"):
                ours.send_reset([2, 0], [5, 6], options)
        for ids in ([[0], [1, 2]], None, "a"):
            with pytest.raises(VectorMisused, match="env_ids does not name environments"):
                ours.send_reset(ids, [5])  # type: ignore[arg-type]
        ours.step([0] * COUNT)
        assert ours.valid.all()
        assert not ours.faults


def hollow() -> gym.Env[Any, Any]:
    """An environment that observes no number at all."""
    shapes = {"a": (3, 0), "b": (0, 2), "c": (0,)}
    space = gym.spaces.Dict({name: gym.spaces.Box(-1, 1, shape, np.float32) for name, shape in shapes.items()})
    seen = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return gym.wrappers.TransformObservation(Sampling("box")(), lambda _: seen, space)


@pytest.mark.parametrize("backend", BACKENDS)
def test_observations_without_numbers(backend: str) -> None:
    with both([hollow] * 2, backend) as (sync, ours):
        play(sync, ours, steps=6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_reset_of_some(mode: AutoresetMode, backend: str) -> None:
    with both([Sampling("box", infos="flat") for _ in range(COUNT)], backend, autoreset_mode=mode) as (sync, ours):
        play(sync, ours, steps=0)
        mask = np.array([True, False, True])
        for seed in (11, None):
            options = [{"reset_mask": mask.copy(), "level": 3} for _ in range(2)]
            assert_same(sync.reset(seed=seed, options=options[0]), ours.reset(seed=seed, options=options[1]))
            actions = np.zeros(COUNT, np.int64) - 2
            assert_same(sync.step(actions), ours.step(actions))


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_and_attributes(backend: str) -> None:
    with both([Sampling("box") for _ in range(COUNT)], backend) as (sync, ours):
        play(sync, ours, steps=1)
        assert_same(sync.call("double", 3), ours.call("double", 3))
        assert_same(sync.call("double", by=5), ours.call("double", by=5))
        assert_same(sync.get_attr("t"), ours.get_attr("t"))
        assert_same(sync.render(), ours.render())
        for envs in (sync, ours):
            envs.set_attr("difficulty", [1, 2, 3])
        assert ours.get_attr("difficulty") == (1, 2, 3)
        ours.set_attr("difficulty", 9)
        assert ours.get_attr("difficulty") == (9, 9, 9)
        for envs in (sync, ours):
            with pytest.raises(AttributeError):
                envs.get_attr("nothing")
        with pytest.raises(UnknownAttribute, match="environment 0 has no attribute nothing"):
            ours.set_attr("nothing", 1)
        assert (sync.render_mode, sync.num_envs, sync.spec) == (ours.render_mode, ours.num_envs, ours.spec)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gymnasiums_wrappers_fit(backend: str) -> None:
    wrap = gym.wrappers.vector.RecordEpisodeStatistics
    with both([Sampling("box", infos="sparse") for _ in range(COUNT)], backend) as (sync, ours):
        one, other = wrap(sync), wrap(ours)
        one.reset(seed=1), other.reset(seed=1)
        for _ in range(12):
            expected, found = one.step(np.zeros(COUNT, np.int64)), other.step(np.zeros(COUNT, np.int64))
            for infos in (expected[4], found[4]):
                infos.get("episode", {}).pop("t", None)  # a time
            assert_same(expected, found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_differing_spaces(backend: str) -> None:
    with both([Bounded(high) for high in (1.0, 2.0)], backend, observation_mode="different") as (sync, ours):
        assert ours.observation_space == sync.observation_space
        assert_same(sync.reset(seed=0), ours.reset(seed=0))
    with pytest.raises(ConfigError, match="observation space of environment 1"):
        headrace.VectorEnv([Bounded(1.0), Bounded(2.0)], **BACKENDS[backend])


class Bounded:
    """Factory of environments whose bounds differ."""

    def __init__(self, high: float) -> None:
        self.high = high

    def __call__(self) -> gym.Env[Any, Any]:
        env = Sampling("box")()
        env.observation_space = gym.spaces.Box(-self.high, self.high, (3,), np.float32)
        env.unwrapped.observation_space = env.observation_space
        return env


@pytest.mark.parametrize("backend", ["workers", "threads"])
def test_observations_that_are_not_shared(backend: str) -> None:
    for kind in ("box", "mixed", "dict"):
        with both([Sampling(kind) for _ in range(COUNT)], backend, shared=False) as (sync, ours):
            play(sync, ours)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_actions_are_refused_before_anything_is_sent(backend: str) -> None:
    with headrace.VectorEnv([Sampling("box") for _ in range(4)], **BACKENDS[backend]) as ours:
        ours.reset(seed=1)
        with pytest.raises(VectorMisused) as told:
            ours.step(np.zeros(2, np.int64))
        assert str(told.value) == (
            "[VEC-001] 2 actions for 4 environments; nothing was sent\n"
            "  expected: 4\n  found: 2\n  fix: give one action per environment"
        )
        for wrong in (np.zeros(4), np.zeros((4, 1), np.int64), ["a"] * 4, None):
            with pytest.raises(VectorMisused):
                ours.step(wrong)
        assert ours.get_attr("t") == (0, 0, 0, 0)
        ours.step([0, 1, 2, 3])
        assert ours.get_attr("t") == (1, 1, 1, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_closed_is_closed(backend: str) -> None:
    ours = headrace.VectorEnv([Sampling("box")], **BACKENDS[backend])
    ours.close()
    ours.close()
    for work in (ours.reset, ours.receive, lambda: ours.step([0]), lambda: ours.send([0]), lambda: ours.get_attr("t")):
        with pytest.raises(VectorMisused, match="closed"):
            work()


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_the_callers_own(backend: str) -> None:
    with headrace.VectorEnv([Sampling("box") for _ in range(COUNT)], **BACKENDS[backend]) as ours:
        first = ours.reset(seed=1)[0]
        kept = first.copy()
        second, rewards, *_ = ours.step([0] * COUNT)
        copies = second.copy(), rewards.copy()
        second[:] = rewards[:] = 77
        third = ours.step([0] * COUNT)[0]
        ours.step([0] * COUNT)
        np.testing.assert_array_equal(first, kept)
        assert not (third == 77).any()
        assert (second == 77).all()
        assert copies[0].shape == second.shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_reset_without_steps(backend: str) -> None:
    with both([Sampling("box") for _ in range(COUNT)], backend) as (sync, ours):
        play(sync, ours, steps=0)
        play(sync, ours, steps=3, seed=None)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_sending_and_receiving_is_stepping(mode: AutoresetMode, backend: str) -> None:
    """Each environment, seen alone, does the same whatever order its answers are taken in."""
    factories = [Sampling("dict", infos="flat") for _ in range(5)]
    with both(factories, backend, autoreset_mode=mode) as (sync, ours):
        sync.reset(seed=2), ours.reset(seed=2)
        expected = [sync.step(np.full(5, -2)) for _ in range(12)]
        seen: list[list[Any]] = [[] for _ in range(5)]
        ours.send(np.full(3, -2), [4, 0, 2])
        ours.send(np.full(2, -2), [1, 3])
        while any(len(one) < 12 for one in seen):
            got = ours.receive(min_envs=2)
            for place, env in enumerate(got.env_ids.tolist()):
                seen[env].append((got.observations["b"][place], got.rewards[place], got.terminations[place]))
            again = [env for env in got.env_ids.tolist() if len(seen[env]) < 12]
            if again:
                ours.send(np.full(len(again), -2), again)
        for env, one in enumerate(seen):
            for step, (observation, reward, terminated) in enumerate(one):
                np.testing.assert_array_equal(observation, expected[step][0]["b"][env])
                assert (reward, terminated) == (expected[step][1][env], expected[step][2][env])


@pytest.mark.parametrize("backend", BACKENDS)
def test_mixing_is_refused(backend: str) -> None:
    with headrace.VectorEnv([Sampling("box") for _ in range(3)], **BACKENDS[backend]) as ours:
        with pytest.raises(VectorMisused, match="environment 0 was never reset"):
            ours.step([0, 0, 0])
        ours.reset(seed=1)
        with pytest.raises(VectorMisused, match="nothing to receive"):
            ours.receive()
        ours.send([0, 0], [2, 1])
        for work in (
            lambda: ours.step([0, 0, 0]),
            lambda: ours.send([0], [1]),
            lambda: ours.get_attr("t"),
            ours.reset,
        ):
            with pytest.raises(VectorMisused):
                work()
        for wrong in ([1, 1], [3], [-1], [], [0.5], [[0]]):
            with pytest.raises(VectorMisused, match="env_ids"):
                ours.send([0] * len(wrong), wrong)
        assert ours.receive(min_envs=9).env_ids.tolist() == [1, 2]
        assert ours.step([0, 0, 0])[0].shape == (3, 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_disabled_refuses_a_step_after_the_end(backend: str) -> None:
    with headrace.VectorEnv([Sampling("box")], autoreset_mode="Disabled", **BACKENDS[backend]) as ours:
        ours.reset(seed=0)
        while True:
            *_, terminations, truncations, _ = ours.step([0])
            if terminations.any() or truncations.any():
                break
        with pytest.raises(VectorMisused, match="the episode of environment 0 is over and it was not reset"):
            ours.step([0])
        ours.reset(options={"reset_mask": np.array([True])})
        ours.step([0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_infos_may_have_the_names_under_which_ends_are_told(mode: AutoresetMode, backend: str) -> None:
    """Within a step that ends an episode these names are the end's; Gymnasium gives what the next reset says."""
    options: dict[str, Any] = {"autoreset_mode": mode}
    same_step = mode is AutoresetMode.SAME_STEP
    sync = SyncVectorEnv([partial(Namesake, 3, resets_too=not same_step)] * COUNT, **options)
    with headrace.VectorEnv([partial(Namesake, 3)] * COUNT, **BACKENDS[backend], **options) as ours:
        found = ours.reset()
        assert [last.tolist() for last in found[1]["final_obs"]] == [[-7, -7]] * COUNT
        assert_same(sync.reset()[0], found[0])
        for _ in range(3):
            assert_same(sync.step(np.zeros(COUNT, np.int64)), ours.step(np.zeros(COUNT, np.int64)))
            assert ours.valid.all()
    sync.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ends_are_told_beside_infos_of_the_same_names(backend: str) -> None:
    """Some environments end, others go on, and their infos have these names."""
    with headrace.VectorEnv(
        [partial(Namesake, 2 + env) for env in range(COUNT)],
        **BACKENDS[backend],
        autoreset_mode=AutoresetMode.SAME_STEP,
    ) as ours:
        ours.reset()
        ours.step(np.zeros(COUNT, np.int64))
        infos = ours.step(np.zeros(COUNT, np.int64))[4]
        assert infos["final_obs"][0].tolist() == [2, 2]
        assert list(infos["final_obs"][1:]) == [{"score": 2}] * 2
        assert infos["final_info"]["final_info"]["won"].tolist() == [2, 0, 0]
        assert infos["final_info"]["won"].tolist() == [0, 2, 2]
        assert ours.valid.all()
