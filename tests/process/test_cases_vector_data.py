"""What others reported about their vector environments, tried on ours: ends of episodes, stacks, seeds, spaces, values.

Named as in the collection of reports. Every test runs in this process and in workers; with `make test-all` in threads of workers too.
"""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import headrace
from headrace.core.errors import HeadraceError
from vector_cases import Count, Draws, Image, Masked, Painted, Precise, Rewards, Structured, curriculum
from vector_support import BACKENDS, drive_and_pair

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server")]

EXAMPLES = Path(__file__).parents[2] / "examples"
STAY = np.zeros(4, np.int64)


@pytest.fixture(params=["serial", "worker", pytest.param("threads", marks=pytest.mark.table)])
def backend(request: pytest.FixtureRequest) -> Any:
    """Keyword arguments of every way to run environments."""
    return BACKENDS[request.param]


def counters(backend: Any, count: int = 4, limit: int = 3, **options: Any) -> headrace.VectorEnv:
    return headrace.VectorEnv([partial(Count, limit)] * count, **{**backend, **options})


MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)


# Group E, ends of episodes


@MODES
def test_e062_e066_e067_e073_pairs_are_successors_and_the_last_observation_is_there(backend, mode):
    """Of three episodes of three steps: nine transitions, none into a reset observation."""
    with counters(backend, autoreset_mode=mode) as envs:
        pairs = drive_and_pair(envs, STAY, transitions=9)
    for mine in pairs:
        assert mine == [(0, 1, 1.0, False), (1, 2, 2.0, False), (2, 3, 3.0, True)] * 3


@MODES
def test_e065_lengths_and_returns_are_those_of_the_environment(backend, mode):
    """As Gymnasium's own wrapper counts them, in the environment and around the vector."""
    inside = partial(lambda: gymnasium.wrappers.RecordEpisodeStatistics(Count(3)))
    with headrace.VectorEnv([inside] * 4, autoreset_mode=mode, **backend) as envs:
        counted = finished(envs, mode)
    with counters(backend, autoreset_mode=mode) as envs:
        around = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
        assert finished(around, mode) == counted == [(6.0, 3)] * 8


def finished(envs: Any, mode: AutoresetMode) -> list[tuple[float, int]]:
    """Return and length of the first eight finished episodes."""
    found: list[tuple[float, int]] = []
    envs.reset(seed=0)
    while len(found) < 8:
        *_, terminations, truncations, infos = envs.step(STAY)
        ends = terminations | truncations
        told = infos.get("episode") or infos.get("final_info", {}).get("episode")
        if told:
            found += [(float(told["r"][env]), int(told["l"][env])) for env in np.flatnonzero(ends)]
        if mode is AutoresetMode.DISABLED and ends.any():
            envs.reset(options={"reset_mask": ends})
    return found


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``examples/cleanrl_ppo.py``, with the constants of the reports."""
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module("cleanrl_ppo")
    monkeypatch.setattr(module, "GAMMA", 0.9)
    monkeypatch.setattr(module, "LAMBDA", 0.95)
    return module


def one_episode(example: Any, rewards: list[float], values: list[float]) -> Any:
    """A rollout of one environment whose last step ends the episode."""
    columns = {"rewards": rewards, "values": values, "last_values": [0.0] * 3}
    flags = {"ends": [False, False, True], "valid": [True] * 3}
    rollout = example.Rollout.empty(1)
    for name, column in (columns | flags).items():
        setattr(rollout, name, torch.tensor(column)[:, None])
    return rollout


@pytest.mark.parametrize(
    ("last_value", "expected"),
    [(2.0, [2.06882, 1.484, 0.8]), (0.0, [0.752975, -0.055, -1.0])],
    ids=["truncated", "terminated"],
)
def test_e063_which_end_bootstraps(example, last_value, expected):
    rollout = one_episode(example, [1.0] * 3, [2.0] * 3)
    rollout.last_values[2] = last_value
    np.testing.assert_allclose(example.advantages(rollout, torch.tensor([7.0]))[:, 0], expected, rtol=1e-5)


def test_e064_from_what_it_bootstraps(example):
    rollout = one_episode(example, [1.0] * 3, [2.0] * 3)
    rollout.last_values[2] = 5.0
    target = example.advantages(rollout, torch.tensor([7.0]))[2, 0] + rollout.values[2, 0]
    np.testing.assert_allclose(target, 5.5)


def test_a_cut_row_leaves_no_trace_in_the_advantages_before_it(example):
    """They are as if the episode had been truncated one step earlier, at the observation that the cut row repeats."""
    cut = one_episode(example, [1.0, 3.0, 0.0], [2.0, 4.0, 6.0])
    cut.valid[2], cut.last_values[2] = False, 6.0
    shorter = one_episode(example, [1.0, 3.0, 0.0], [2.0, 4.0, 0.0])
    shorter.ends[1], shorter.last_values[1] = True, 6.0
    ours, theirs = (example.advantages(rollout, torch.tensor([7.0])) for rollout in (cut, shorter))
    np.testing.assert_allclose(ours[:2], theirs[:2], rtol=1e-6)
    assert ours[2] == 0


def test_e068_a_reward_at_the_very_end_comes_with_its_last_observation(backend):
    with headrace.VectorEnv([partial(Rewards, [0.0, 0.0, 1.0])] * 4, **backend) as envs:
        for mine in drive_and_pair(envs, STAY, transitions=6):
            assert mine == [(0, 1, 0.0, False), (1, 2, 0.0, False), (2, 3, 1.0, True)] * 2


@MODES
def test_e069_a_reset_in_mid_episode_counts_afresh(backend, mode):
    with counters(backend, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        envs.step(STAY)
        envs.step(STAY)
        envs.reset()
        assert [envs.step(STAY)[3].tolist() for _ in range(3)] == [[False] * 4, [False] * 4, [True] * 4]


def test_e071_f082_the_last_stack_is_whole_and_the_first_is_not_mixed(backend):
    """A stack of frames inside the environment, with the padding of its first frame."""
    stacked = partial(lambda: gymnasium.wrappers.FrameStackObservation(Count(6), 4, padding_type="reset"))
    with headrace.VectorEnv([stacked] * 2, autoreset_mode=AutoresetMode.SAME_STEP, **backend) as envs:
        first = envs.reset(seed=0)[0]
        for _ in range(6):
            observations, _, _, _, infos = envs.step(np.zeros(2, np.int64))
        assert first[0, :, 0].tolist() == [0, 0, 0, 0]
        assert observations[:, :, 0].tolist() == [[0, 0, 0, 0]] * 2
        assert [last[:, 0].tolist() for last in infos["final_obs"]] == [[3, 4, 5, 6]] * 2


def test_e072_a_loop_that_looks_at_both_flags_ends(backend):
    with counters(backend, count=1) as envs:
        envs.reset(seed=0)
        ends = [envs.step(np.zeros(1, np.int64))[2:4] for _ in range(3)]
        assert [(bool(terminated[0]), bool(truncated[0])) for terminated, truncated in ends] == [
            (False, False), (False, False), (False, True),
        ]  # fmt: skip


# Group F, arrays that are the caller's own


@pytest.mark.parametrize("nested", [False, True], ids=["array", "dict"])
def test_f083_k139_what_was_returned_does_not_change_any_more(backend, nested):
    """The environment changes one array in place; and later steps do not write into earlier results."""
    with headrace.VectorEnv([partial(Count, 9, own=True, nested=nested)] * 3, **backend) as envs:
        returned = [envs.reset(seed=0)[0], *(envs.step(np.zeros(3, np.int64))[0] for _ in range(4))]
        kept = [obs["x"] if nested else obs for obs in returned]
    assert [obs[:, 0].tolist() for obs in kept] == [[t] * 3 for t in range(5)]


def test_f083_what_receive_returns_is_the_callers_own_too(backend):
    with headrace.VectorEnv([partial(Count, 9, own=True)] * 3, **backend) as envs:
        envs.reset(seed=0)
        kept = []
        for _ in range(4):
            envs.send(np.zeros(3, np.int64))
            kept.append(envs.receive(min_envs=3, timeout_s=10.0))
    assert [sorted(got.observations[:, 0]) for got in kept] == [[t] * 3 for t in range(1, 5)]


# Group I, seeds


def draws(backend: Any, seed: Any) -> list[list[float]]:
    """What four environments draw in their first four episodes."""
    with headrace.VectorEnv([Draws] * 4, autoreset_mode=AutoresetMode.SAME_STEP, **backend) as envs:
        found = [envs.reset(seed=seed)[0][:, 0].tolist()]
        for _ in range(3):
            for _ in range(3):
                observations, *_ = envs.step(STAY)
            found.append(observations[:, 0].tolist())
    return found


def test_i113_i114_i115_i116_i117_draws_differ_and_repeat(backend):
    found = draws(backend, 7)
    assert len({draw for episode in found for draw in episode}) == 16
    assert draws(backend, 7) == found
    assert draws(backend, 8)[0][:3] == found[0][1:]  # environment i begins with seed + i, as in Gymnasium
    assert draws(backend, [7, 8, 9, 10]) == found
    assert draws(BACKENDS["serial"], 7) == found
    expected = [
        int(np.random.Generator(np.random.PCG64(np.random.SeedSequence(7 + i))).integers(2**31)) for i in range(4)
    ]
    assert found[0] == expected


def test_i114_without_a_seed_they_differ_too(backend):
    assert len(set(draws(backend, None)[0])) == 4


# Group K, spaces and values


@pytest.mark.parametrize("shape", ["(1,)", "0d", "float64", "float32", "int", "bool", "mixed"])
def test_k134_k146_rewards_are_numbers_whatever_they_come_as(backend, shape):
    rewards = {
        "(1,)": [np.array([1.5])], "0d": [np.array(1.5)], "float64": [np.float64(1.5)], "float32": [np.float32(1.5)],
        "int": [1], "bool": [True], "mixed": [0, 0.5, np.array([1.5])],
    }[shape]  # fmt: skip
    plain = [float(np.asarray(reward).reshape(())) for reward in rewards]
    with headrace.VectorEnv([partial(Rewards, rewards)] * 4, autoreset_mode=AutoresetMode.SAME_STEP, **backend) as envs:
        envs.reset(seed=0)
        for t in range(6):
            got = envs.step(STAY)[1]
            assert (got.shape, got.dtype) == ((4,), np.float64)
            assert got.tolist() == [plain[t % 3 % len(plain)]] * 4
        assert envs.valid.all()


def test_k134_two_rewards_are_refused_with_environment_and_shape(backend):
    factories = [partial(Rewards, [1.0]), partial(Rewards, [np.array([1.5, 2.5])])]
    with headrace.VectorEnv(factories, on_fault="raise", **backend) as envs:
        envs.reset(seed=0)
        with pytest.raises(HeadraceError, match=r"(?s)env: 1.*reward.*\(2,\)|reward.*env: 1.*\(2,\)"):
            envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("kind", ["tuple", "dict", "discrete"])
def test_k135_k136_k137_k138_structured_observations_are_batched_by_field(backend, kind):
    with headrace.VectorEnv([partial(Structured, i, kind) for i in range(3)], **backend) as envs:
        observations, _ = envs.reset(seed=0)
        for t in range(3):
            if kind == "tuple":
                assert [field.tolist() for field in observations] == [[0, 1, 2], [t % 4, (1 + t) % 4, (2 + t) % 4]]
            elif kind == "dict":
                assert observations["a"].tolist() == [0, 1, 2]
                assert observations["b"]["c"].tolist() == [[10 * i + t, -t] for i in range(3)]
                assert observations["d"][0].tolist() == [t % 5] * 3
            else:
                assert observations.tolist() == [100 * i + t for i in range(3)]
            assert envs.observation_space.contains(observations)
            observations, *_ = envs.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("order", ["hwc", "chw"])
def test_k140_k141_images_keep_bytes_shape_and_order(backend, order):
    with headrace.VectorEnv([partial(Image, order)] * 2, **backend) as envs:
        observations, _ = envs.reset(seed=0)
        assert (observations.dtype, observations[0].nbytes) == (np.uint8, 105)
        assert observations.shape == ((2, 5, 7, 3) if order == "hwc" else (2, 3, 5, 7))
        assert observations[1][(4, 6, 2) if order == "hwc" else (2, 4, 6)] == 192
        observations, *_ = envs.step(np.zeros(2, np.int64))
        assert observations[1][(0, 6, 1) if order == "hwc" else (1, 0, 6)] == 32


def test_k142_float64_observations_of_a_float32_space_work(backend):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one warning is allowed
        with headrace.VectorEnv([Precise] * 2, **backend) as envs:
            first = envs.reset(seed=0)[0]
            then = envs.step(np.zeros(2, np.int64))[0]
            assert envs.valid.all()
    assert (first.dtype, then.dtype) == (np.float32, np.float32)
    np.testing.assert_array_equal(then[1], np.array([0.3, 0.4], np.float32))


@pytest.mark.thin(2)
def test_k144_no_illegal_action_in_ten_thousand(backend):
    """Masks of observation and info belong to the environment and the step they come with, also right after a reset."""
    rng = np.random.default_rng(0)
    with headrace.VectorEnv([partial(Masked, index) for index in range(4)], on_fault="raise", **backend) as envs:
        observations, infos = envs.reset(seed=0)
        for _ in range(2_500):
            np.testing.assert_array_equal(observations["action_mask"], infos["action_mask"])
            chances = observations["action_mask"] * rng.random((4, 5))
            observations, _, _, _, infos = envs.step(chances.argmax(axis=1))


def test_k145_an_attribute_is_set_where_it_is(backend):
    with headrace.VectorEnv([curriculum] * 4, **backend) as envs:
        assert envs.reset(seed=0)[0][:, 0].tolist() == [0] * 4
        envs.set_attr("difficulty", 3)
        assert envs.step(STAY)[0][:, 0].tolist() == [3] * 4
        envs.set_attr("difficulty", [1, 2, 3, 4])
        assert envs.step(STAY)[0][:, 0].tolist() == [1, 2, 3, 4]
        assert envs.get_attr("difficulty") == (1, 2, 3, 4)
        with pytest.raises(AttributeError, match="dificulty"):
            envs.set_attr("dificulty", 5)
        assert envs.step(STAY)[0][:, 0].tolist() == [1, 2, 3, 4]


def test_k147_a_space_of_ones_own_works_or_is_named_at_start(backend):
    """Gymnasium batches an unknown space as a tuple, and so it travels."""
    with headrace.VectorEnv([Painted] * 2, **backend) as envs:
        assert envs.reset(seed=0)[0] == ("red", "red")
        assert envs.step(np.array([0, 1]))[0] == ("red", "green")
