"""`SB3VecEnv` beside SB3's own vector environments: the same numbers, and what SB3 has no word for."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

import headrace
from headrace.core.errors import ConfigError, HeadraceError, VectorMisused
from headrace.vector import sb3
from headrace.vector.barrier import Barrier
from headrace.vector.options import FaultBudget
from headrace.vector.sb3 import SB3VecEnv
from namesakes import Namesake
from told_envs import WORDS, T, Trouble, told
from vector_cases import Image, Structured, curriculum
from vector_support import BACKENDS

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("lent_server"), pytest.mark.thin(5)]


@pytest.fixture(params=["serial", "worker", pytest.param("threads", marks=pytest.mark.table)])
def backend(request: pytest.FixtureRequest) -> Any:
    """Keyword arguments of every way to run environments."""
    return BACKENDS[request.param]


def cartpole(limit: int = 20) -> gymnasium.Env[Any, Any]:
    return Monitor(gymnasium.make("CartPole-v1", max_episode_steps=limit))


class Telling(gymnasium.Env[Any, Any]):
    """Tells in a reset what it was given; its third step ends both ways at once."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    _t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {"seed": -1 if seed is None else seed, "t": (options or {}).get("t", 0)}

    def step(self, action: Any) -> Any:
        self._t += 1
        return np.full(1, self._t, np.float32), 0.5, self._t == 3, self._t == 3, {"late": self._t}


ENVIRONMENTS = {
    "telling": Telling,
    "cartpole": cartpole,
    "pendulum": partial(gymnasium.make, "Pendulum-v1", max_episode_steps=9),
    "image": Image,
    "dict": lambda: gymnasium.wrappers.FlattenObservation(Structured(3, "dict")),
    "drawn": partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array"),
}


def same(ours: Any, theirs: Any) -> None:
    """Arrays, dicts and numbers are equal, whatever type of number."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            if key != "t":  # seconds since the start, in the monitor's record
                same(ours[key], theirs[key])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            same(mine, other)
    else:
        np.testing.assert_array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


@pytest.mark.thin(12)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_everything_is_as_from_dummy_vec_env(backend, name):
    make = ENVIRONMENTS[name]
    theirs, ours = DummyVecEnv([make] * 3), SB3VecEnv([make] * 3, **backend)
    try:
        assert ours.seed(5) == theirs.seed(5)
        same(ours.reset(), theirs.reset())
        same(ours.reset_infos, theirs.reset_infos)
        theirs.action_space.seed(1)
        for _ in range(60):
            actions = np.array([theirs.action_space.sample() for _ in range(3)])
            (*mine, infos), (*others, their_infos) = ours.step(actions), theirs.step(actions)
            for left, right in zip(mine, others, strict=True):
                same(left, right)
            same(infos, their_infos)
            same(ours.reset_infos, theirs.reset_infos)
        same(ours.reset(), theirs.reset())
    finally:
        ours.close()


class Motley(Telling):
    """Infos whose types differ between environments, and which are changed after they were handed out."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.kept: dict[str, Any] = {"seen": np.zeros(1), "steps": 0}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, _ = super().reset(seed=seed)
        return observation, {"goal": (options or {}).get("goal"), "x": [1, 0.7, None][self.index]}

    def step(self, action: Any) -> Any:
        *answer, _ = super().step(action)
        self.kept["seen"] += 1
        self.kept["steps"] += 1
        own = {"x": [1, 0.7, None][self.index], "positions": np.arange(self.index + self._t), 3: (True, "text")}
        some = {"tag": np.float32(self.index)} if self.index == self._t else {}
        return *answer, self.kept if self._t == 2 else {**own, **some, "deep": {"x": [None, 2][self.index % 2]}}


def exactly(ours: Any, theirs: Any) -> None:
    """Equal, and of equal types."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            exactly(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        for mine, other in zip(ours, theirs, strict=True):
            exactly(mine, other)
    else:
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.table
@pytest.mark.parametrize("how", BACKENDS)
def test_infos_are_of_the_types_that_their_environments_gave_them(how):
    factories = [partial(Motley, env) for env in range(3)]
    theirs, ours = DummyVecEnv(factories), SB3VecEnv(factories, **BACKENDS[how])
    try:
        for envs in (theirs, ours):
            envs.set_options([{"goal": np.array([1, 2])}, {"goal": np.array([3, 4])}, {}])
            envs.reset()
        exactly(ours.reset_infos, theirs.reset_infos)
        kept = []
        for _ in range(7):
            mine, other = ours.step(np.zeros(3, np.int64))[3], theirs.step(np.zeros(3, np.int64))[3]
            kept.append((mine, other))
            exactly(ours.reset_infos, theirs.reset_infos)
        for mine, other in kept:
            for one, another in zip(mine, other, strict=True):
                exactly(one, another)
    finally:
        ours.close()


def test_seeds_and_options_reach_the_environments_they_are_for(backend):
    envs = SB3VecEnv([Telling] * 4, **backend)
    try:
        envs.seed(7)
        envs.set_options([{"t": 1}, {"t": 2}, {"t": 1}, {}])
        envs.reset()
        assert envs.reset_infos == [{"seed": 7 + env, "t": t} for env, t in enumerate((1, 2, 1, 0))]
        envs.reset()
        assert envs.reset_infos == [{"seed": -1, "t": 0}] * 4
        envs.set_options({"t": 3})
        envs.reset()
        assert envs.reset_infos == [{"seed": -1, "t": 3}] * 4
    finally:
        envs.close()
    assert envs.envs.closed


class Repeating(Telling):
    """Tells in a reset which options it was given."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], dict(options or {})


def test_options_are_the_environments_own_whatever_they_are_called(backend):
    envs = SB3VecEnv([Repeating] * 2, **backend)
    given = {"reset_mask": np.array([True, False]), "z": 1}
    try:
        for options in (given, [given, {"z": 2}]):
            envs.set_options(options)
            envs.reset()
            exactly(envs.reset_infos, [options] * 2 if options is given else options)
        assert "reset_mask" in given
    finally:
        envs.close()


def test_a_seed_that_is_none_breaks_nothing():
    envs = SB3VecEnv([Telling] * 4, workers=0)
    try:
        for options in ([{}] * 4, [{"t": 1}, {}, {}, {}]):
            envs.seed(-1)
            envs.set_options(options)
            with pytest.raises(VectorMisused, match="a seed is None or a whole number from 0"):
                envs.reset()
            envs.seed(7)
            envs.reset()
            assert [info["seed"] for info in envs.reset_infos] == [7, 8, 9, 10]
        assert not envs.envs.faults
    finally:
        envs.close()


def test_questions_reach_the_environments_they_are_for(backend):
    envs = SB3VecEnv([curriculum] * 4, **backend)
    try:
        envs.set_attr("difficulty", 3, indices=[0, 2])
        assert envs.get_attr("difficulty") == [3, 0, 3, 0]
        assert envs.get_attr("difficulty", indices=2) == [3]
        assert envs.env_method("get_wrapper_attr", "difficulty", indices=(3, 0)) == [0, 3]
        assert envs.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True] * 4
        assert envs.env_is_wrapped(Monitor, indices=[1]) == [False]
        assert envs.has_attr("difficulty")
        assert not envs.has_attr("dificulty")
        with pytest.raises(AttributeError, match="dificulty"):
            envs.set_attr("dificulty", 1)
        envs.reset()
        assert envs.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [3, 0, 3, 0]
    finally:
        envs.close()


def test_a_cut_looks_like_a_time_limit_and_says_that_it_is_none(backend, tmp_path):
    trouble = Trouble("raises", at=3, marker=str(tmp_path / "marker"))
    envs = SB3VecEnv(told(3, 1, trouble), **backend)
    try:
        last = envs.reset()
        for _ in range(3):
            before, (last, rewards, ends, infos) = last, envs.step(np.full(3, 5))
        assert ends.tolist() == [False, True, False]
        assert rewards.tolist() == [5.0, 0.0, 5.0]
        assert envs.valid.tolist() == [True, False, True]
        assert infos[1]["TimeLimit.truncated"] is True
        assert infos[1]["terminal_observation"].tolist() == before[1].tolist()
        assert last[1][T] == 0
        assert infos[1]["headrace"]["fault"] == "raised"
        assert WORDS in infos[1]["headrace"]["message"]
        assert infos[0] == infos[2] == {"TimeLimit.truncated": False}
        envs.step(np.full(3, 6))
        assert envs.valid.all()
    finally:
        envs.close()


@pytest.mark.parametrize("indices", [[], -1, [-1, 0], [0, 0, 2], (1,), np.array([2, 0]), np.flatnonzero([0]), range(2)])
def test_indices_are_counted_as_dummy_vec_env_counts_them(indices: Any) -> None:
    ours, theirs = SB3VecEnv([curriculum] * 3, workers=0), DummyVecEnv([curriculum] * 3)
    try:
        for envs in (ours, theirs):
            for env in range(3):
                envs.env_method("set_wrapper_attr", "difficulty", env, indices=env)
        asked = theirs.get_attr("difficulty", indices)
        assert ours.get_attr("difficulty", indices) == ours.env_method(
            "get_wrapper_attr", "difficulty", indices=indices
        )
        assert ours.get_attr("difficulty", indices) == asked
        assert ours.env_is_wrapped(Monitor, indices) == theirs.env_is_wrapped(Monitor, indices)
        ours.set_attr("difficulty", 7, indices)
        assert ours.get_attr("difficulty") == [7 if env in asked else env for env in range(3)]
    finally:
        ours.close()


@pytest.mark.parametrize("indices", [3, [-4], "a", [1.0], np.array([[0, 1]])])
def test_indices_that_name_no_environment_are_refused(indices: Any) -> None:
    envs = SB3VecEnv([curriculum] * 3, workers=0)
    try:
        with pytest.raises(VectorMisused, match="indices does not name environments"):
            envs.get_attr("difficulty", indices)
    finally:
        envs.close()


def test_metadata_is_that_of_the_environments(backend) -> None:
    ours, theirs = SB3VecEnv([cartpole] * 2, **backend), DummyVecEnv([cartpole] * 2)
    try:
        assert ours.metadata == theirs.metadata
        assert ours.metadata["render_fps"] == 50
    finally:
        ours.close()


@pytest.mark.table
@pytest.mark.parametrize("how", BACKENDS)
def test_infos_may_have_the_names_under_which_ends_are_told(how: str) -> None:
    factories = [partial(Namesake, 2 + env) for env in range(3)]
    ours, theirs = SB3VecEnv(factories, **BACKENDS[how]), DummyVecEnv(factories)
    try:
        exactly(ours.reset(), theirs.reset())
        exactly(ours.reset_infos, theirs.reset_infos)
        for _ in range(7):
            exactly(ours.step(np.zeros(3, np.int64)), theirs.step(np.zeros(3, np.int64)))
            exactly(ours.reset_infos, theirs.reset_infos)
            assert ours.valid.all()
    finally:
        ours.close()


class Keyed(Telling):
    """Its infos have keys that wrappers may read; one step of it raises."""

    def __init__(self, raises_at: int = 0) -> None:
        self._raises_at, self._all = raises_at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], {"t": 0, "began": True}

    def step(self, action: Any) -> Any:
        self._all += 1
        if self._all == self._raises_at:
            raise RuntimeError(WORDS)
        *answer, _ = super().step(action)
        return *answer, {"t": self._t, "deep": {"t": self._t}} | ({"episode": {}, "won": True} if answer[2] else {})


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (1, {"t": 0, "began": True}),
        (2, {"t": 1, "deep": {"t": 1}}),
        (4, {"t": 0, "began": True, "deep": {"t": 2}}),
        (5, {"t": 1, "deep": {"t": 1}}),
    ],
)
def test_a_cut_has_the_keys_that_its_environment_gave_last(at: int, said: Any, backend: Any) -> None:
    envs = SB3VecEnv([Keyed, partial(Keyed, at), Keyed], **backend)
    try:
        envs.reset()
        for _ in range(at):
            _, _, ends, infos = envs.step(np.zeros(3, np.int64))
        assert (ends[1], envs.valid.tolist()) == (True, [True, False, True])
        own = {"headrace", "terminal_observation", "TimeLimit.truncated"}
        assert own < infos[1].keys()
        exactly({key: value for key, value in infos[1].items() if key not in own}, said)
        exactly(envs.reset_infos[1], {"t": 0, "began": True})
    finally:
        envs.close()


def test_a_monitor_reads_its_keywords_of_a_cut() -> None:
    envs = VecMonitor(SB3VecEnv([Keyed, partial(Keyed, 2)], workers=0), info_keywords=("t", "deep"))
    try:
        envs.reset()
        envs.step(np.zeros(2, np.int64))
        *_, infos = envs.step(np.zeros(2, np.int64))
        assert infos[1]["episode"]["t"] == 1
        assert infos[1]["headrace"]["fault"] == "raised"
    finally:
        envs.close()


class Flaky(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises in one of twenty steps."""

    def step(self, action: Any) -> Any:
        if self.env.unwrapped.np_random.random() < 0.05:
            raise RuntimeError(WORDS)
        return self.env.step(action)


def test_every_row_is_in_an_episode_that_finished_was_cut_or_goes_on(backend):
    """The monitor's lengths are those that were counted outside, and a cut episode is in no statistics."""
    make = partial(lambda: Monitor(Flaky(gymnasium.make("CartPole-v1"))))
    envs = SB3VecEnv([make] * 4, budget=FaultBudget(per_env=1000, total=4000, backoff_s=0.0), **backend)
    lengths, finished, cuts = [0] * 4, [], 0
    try:
        envs.seed(1)
        envs.reset()
        for _ in range(300):
            _, _, ends, infos = envs.step(np.array([0, 1, 0, 1]))
            for env, info in enumerate(infos):
                cuts += "headrace" in info
                lengths[env] += "headrace" not in info
                assert ("episode" in info) == (ends[env] and "headrace" not in info)
                if "episode" in info:
                    assert info["episode"]["l"] == lengths[env]
                    finished.append(lengths[env])
                lengths[env] *= not ends[env]
    finally:
        envs.close()
    assert cuts > 20
    assert len(finished) > 20


# After an exception


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has Ctrl-C come while the answers to a step of all are awaited, after so many steps."""

    def arm(steps: int) -> None:
        answered = Barrier.answered

        def interrupted(self: Barrier) -> bool:
            nonlocal steps
            steps -= 1
            if steps == -1:
                raise KeyboardInterrupt
            return answered(self)

        monkeypatch.setattr(Barrier, "answered", interrupted)

    return arm


@pytest.mark.usefixtures("one_thread")
def test_learning_and_evaluating_go_on_after_ctrl_c(ctrl_c: Any) -> None:
    envs = SB3VecEnv([partial(gymnasium.make, "CartPole-v1", max_episode_steps=9)] * 2, workers=1, threads_per_worker=1)
    try:
        model = PPO("MlpPolicy", envs, n_steps=8, batch_size=16, n_epochs=1, device="cpu")
        ctrl_c(3)
        with pytest.raises(KeyboardInterrupt):
            model.learn(16)
        evaluate_policy(model, envs, n_eval_episodes=2, warn=False)
        model.learn(16)
        assert not envs.envs.faults
    finally:
        envs.close()


@pytest.mark.parametrize("options", [{}, [{"t": 1}, {}]])
def test_a_reset_after_ctrl_c_drops_what_was_open(ctrl_c: Any, options: Any) -> None:
    envs = SB3VecEnv(told(2), workers=1, threads_per_worker=1)
    try:
        envs.reset()
        ctrl_c(1)
        envs.step(np.zeros(2, np.int64))
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.zeros(2, np.int64))
        with pytest.raises(VectorMisused, match=r"rows were dropped(.|\n)*reset\(\) first"):
            envs.step(np.zeros(2, np.int64))
        envs.set_options(options)
        assert envs.reset()[:, T].tolist() == [0, 0]
        assert envs.step(np.zeros(2, np.int64))[0][:, T].tolist() == [1, 1]
    finally:
        envs.close()


@pytest.mark.parametrize("options", [{}, [{"a": 1}, {}, {}]])
def test_a_reset_after_a_fault_that_was_raised(backend: Any, options: Any, tmp_path: Any) -> None:
    trouble = Trouble("raises", at=2, marker=str(tmp_path / "marker"))
    envs = SB3VecEnv(told(3, 1, trouble), on_fault="raise", **backend)
    try:
        envs.reset()
        envs.step(np.full(3, 5))
        with pytest.raises(HeadraceError, match=WORDS):
            envs.step(np.full(3, 5))
        assert len(envs.get_attr("build")) == 3
        envs.set_options(options)
        assert envs.reset()[:, T].tolist() == [0, 0, 0]
        assert envs.step(np.full(3, 5))[0][:, T].tolist() == [1, 1, 1]
    finally:
        envs.close()


# Beside SB3


def test_a_worker_does_not_import_what_its_environments_do_not_need() -> None:
    envs = SB3VecEnv([curriculum] * 2, workers=1, threads_per_worker=1)
    try:
        assert envs.env_is_wrapped(Monitor) == [False, False]
        assert envs.get_attr("difficulty") == [0, 0]
        assert envs.envs.apply(lambda _env: "torch" in sys.modules) == (False, False)
    finally:
        envs.close()


@pytest.mark.parametrize(
    ("factories", "options", "error"),
    [
        ([ENVIRONMENTS["drawn"], cartpole], {}, AssertionError),
        ([cartpole], {"autoreset_mode": AutoresetMode.NEXT_STEP}, ConfigError),
    ],
)
def test_what_was_made_is_closed_if_it_does_not_fit(factories, options, error, monkeypatch):
    made: list[headrace.VectorEnv] = []

    class Remembered(headrace.VectorEnv):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(sb3, "VectorEnv", Remembered)
    with pytest.raises(error):
        SB3VecEnv(factories, workers=0, **options)
    assert [envs.closed for envs in made] == [True]


def test_a_vector_in_another_mode_is_refused():
    with headrace.VectorEnv([cartpole] * 2, workers=0) as envs, pytest.raises(ConfigError, match="SAME_STEP"):
        SB3VecEnv(envs)


def test_options_beside_a_vector_are_refused():
    with (
        headrace.VectorEnv([cartpole] * 2, workers=0, autoreset_mode=AutoresetMode.SAME_STEP) as envs,
        pytest.raises(ConfigError, match="step_timeout_s"),
    ):
        SB3VecEnv(envs, step_timeout_s=1.0)


def test_a_factory_that_fails_leaves_nothing(backend):
    with pytest.raises(HeadraceError, match=WORDS):
        SB3VecEnv(told(2, 1, Trouble("raises", at=1, place="construct")), **backend)


def test_pictures_are_tiled(backend):
    envs = SB3VecEnv([ENVIRONMENTS["drawn"]] * 4, **backend)
    try:
        envs.reset()
        one = envs.get_images()[0]
        assert envs.render().shape == (2 * one.shape[0], 2 * one.shape[1], 3)
    finally:
        envs.close()


@pytest.mark.parametrize("wrap", [VecNormalize, VecMonitor, partial(VecFrameStack, n_stack=3)])
def test_sb3s_wrappers_fit_around_it(wrap):
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=20)
    theirs, ours = wrap(DummyVecEnv([make] * 2)), wrap(SB3VecEnv([make] * 2, workers=0))
    try:
        ours.seed(3)
        theirs.seed(3)
        same(ours.reset(), theirs.reset())
        for _ in range(50):
            actions = np.array([0, 1])
            (*mine, infos), (*others, their_infos) = ours.step(actions), theirs.step(actions)
            for left, right in zip(mine, others, strict=True):
                same(left, right)
            assert [info.keys() for info in infos] == [info.keys() for info in their_infos]
    finally:
        ours.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of torch that wait for each other take for ever where others use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.table
@pytest.mark.thin(4)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_training_is_the_same_as_with_dummy_vec_env(algorithm, backend):
    """Bit for bit, from the same seed."""
    settings = {"n_steps": 32, "n_epochs": 2} if algorithm is PPO else {"learning_starts": 50, "batch_size": 16}
    found = []
    for vec_env, options in ((DummyVecEnv, {}), (SB3VecEnv, backend)):
        envs = make_vec_env("CartPole-v1", 2, seed=1, vec_env_cls=vec_env, vec_env_kwargs=options)
        model = algorithm("MlpPolicy", envs, seed=1, device="cpu", **settings)
        model.learn(128)
        found.append((model.policy.state_dict(), evaluate_policy(model, envs, n_eval_episodes=3)))
        envs.close()
    (ours, our_score), (theirs, their_score) = found
    assert our_score == their_score
    for name, value in theirs.items():
        assert ours[name].equal(value), name


class Switches(gymnasium.Env[Any, Any]):
    """Three lights, which switches turn; the reward is how many are on.

    Args:
        space: Of its actions, which it wants to be members of it.
    """

    def __init__(self, space: Any = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.MultiBinary(3) if space is None else space
        self.strict = space is not None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.lights, self.t = self.np_random.integers(2, size=3), 0
        return self.lights.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space or not self.strict
        self.lights, self.t = (self.lights + np.asarray(action, np.int64)) % 2, self.t + 1
        return self.lights.astype(np.float32), float(self.lights.sum()), False, self.t == 5, {}


@pytest.mark.usefixtures("one_thread")
def test_training_with_switches_is_the_same_as_with_dummy_vec_env() -> None:
    """SB3 samples actions of MultiBinary as floats."""
    found = []
    for vec_env, options in ((DummyVecEnv, {}), (SB3VecEnv, {"workers": 0})):
        envs = make_vec_env(Switches, 2, seed=1, vec_env_cls=vec_env, vec_env_kwargs=options)
        model = PPO("MlpPolicy", envs, n_steps=8, batch_size=16, n_epochs=2, seed=1, device="cpu")
        model.learn(32)
        found.append(model.policy.state_dict())
        envs.close()
    for name, value in found[0].items():
        assert found[1][name].equal(value), name


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (gymnasium.spaces.MultiBinary(3), np.array([[0.0, 1.0, 1.0]], np.float32)),
        (gymnasium.spaces.MultiDiscrete([2, 3, 4], dtype=np.uint8), np.array([[1, 2, 3]])),
        (gymnasium.spaces.Box(-9, 9, (3,), np.int16), np.array([[-9.0, 0.0, 9.0]])),
        (gymnasium.spaces.Box(-9, 9, (3,), np.float32), np.array([[-9.0, 0.5, 9.0]])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_actions_come_in_the_dtype_of_their_space(space: Any, actions: Any) -> None:
    envs = SB3VecEnv([partial(Switches, space)], workers=0)
    try:
        envs.reset()
        envs.step(actions)
        assert envs.valid.all()
        for wrong in (actions + 0.5, np.full((1, 3), np.nan), np.full((1, 3), 2**40 + 1)):
            if space.dtype.kind != "f":
                with pytest.raises(VectorMisused, match="dtype of the action space"):
                    envs.step(wrong)
        envs.step(actions)
        assert envs.valid.all()
    finally:
        envs.close()


def test_it_is_not_copied_either():
    envs = SB3VecEnv([lambda: gymnasium.make("CartPole-v1")] * 2, workers=0)
    try:
        with pytest.raises(VectorMisused, match="cannot be copied or pickled"):
            copy.copy(envs)
        assert envs.reset().shape == (2, 4)
    finally:
        envs.close()
