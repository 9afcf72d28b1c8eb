"""A policy loaded from two files acts as in the run's own evaluations, without an environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import headrace
from headrace.algorithms.registry import build_actor, build_algorithm
from headrace.core.errors import (
    ConfigError,
    NonFiniteValue,
    ObservationMismatch,
    RunDirectoryError,
    SnapshotCorrupt,
)
from headrace.core.spaces import space_facts
from headrace.envs.toy import SPACES, Sampler
from headrace.runtime.config import dump_toml, load_config
from headrace.runtime.evaluation import Player, evaluate_run
from headrace.runtime.payloads import EnvSpaces
from headrace.runtime.policy import Policy, load_policy
from headrace.runtime.rundir import RunDirectory
from headrace.weights.policy_file import save_policy
from run_envs import Traced

BOX = spaces.Box(np.array([-2, 0.5], np.float32), np.array([2, 3], np.float32))


def config(**settings):
    given = {"env.id": "no_such_module:Nothing-v0", "algorithm.actor.hidden": [16, 8]}
    return load_config("pendulum-td3", given | {key.replace("__", "."): value for key, value in settings.items()})


def trained(config, observation, action=BOX) -> dict[str, np.ndarray]:
    """What a learner publishes, with a normaliser that has seen something."""
    policy = EnvSpaces(observation, action).policy(config)
    algorithm = build_algorithm(config.algorithm, policy.observation_space, action, seed=3)
    return {
        name: array + 0.25 if array.dtype.kind == "f" else array for name, array in algorithm.policy_arrays().items()
    }


def run(folder: Path, config, observation, action=BOX, versions=(4,)) -> Path:
    """A run directory with nothing but what is needed."""
    folder.mkdir()
    (folder / "config.toml").write_text(dump_toml(config))
    for version in versions:
        facts = {"env_steps": 100 * version, **space_facts(observation, action)}
        save_policy(folder / "checkpoints", version, trained(config, observation, action), facts)
    return folder


class Followed(gymnasium.Wrapper):
    """Shows a policy all that a player sees, and compares what the two do."""

    def __init__(self, env, policy: Policy) -> None:
        super().__init__(env)
        self.policy, self.compared = policy, 0

    def reset(self, **kwargs):
        self.obs, info = self.env.reset(**kwargs)
        self.policy.begin_episode()
        return self.obs, info

    def step(self, action):
        ours = self.policy.act(self.obs)
        assert type(ours) is type(action)
        assert (ours.dtype, ours.shape, ours.tobytes()) == (action.dtype, action.shape, action.tobytes())
        assert self.policy.action_space.contains(ours)
        self.compared += 1
        self.obs, *rest = self.env.step(action)
        return self.obs, *rest


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("space", SPACES)
def test_it_acts_as_the_player_of_evaluations_bit_for_bit(tmp_path, space, depth):
    settings = config(env__frame_stack=depth)
    env = Sampler(space, limit=6)
    policy = load_policy(run(tmp_path / "run", settings, env.observation_space, env.action_space))
    followed = Followed(env, policy)
    actor = build_actor(EnvSpaces(env.observation_space, env.action_space).policy(settings))
    actor.load(trained(settings, env.observation_space, env.action_space))
    Player(followed, settings, "sampler", actor).play(3)
    assert followed.compared == 18
    assert (policy.version, policy.env_steps) == (4, 400)


def test_public_name(tmp_path):
    env = Sampler("box")
    folder = run(tmp_path / "run", config(), env.observation_space)
    action = headrace.load_policy(str(folder)).act(env.reset(seed=1)[0])
    assert BOX.contains(action)
    assert {"load_policy", "Policy"} <= set(headrace.__all__)


def test_an_episode_begins_with_its_first_frame_repeated(tmp_path):
    space = SPACES["box"]
    policy = load_policy(run(tmp_path / "run", config(env__frame_stack=3), space))
    frames = [np.full(3, value, np.float32) for value in (0.1, -0.7, 0.9)]
    first = [policy.act(frame) for frame in frames]
    assert not np.array_equal(policy.act(frames[0]), first[0])
    policy.begin_episode()
    np.testing.assert_array_equal([policy.act(frame) for frame in frames], first)


def test_an_environment_may_reuse_its_array(tmp_path):
    space = SPACES["box"]
    folder = run(tmp_path / "run", config(env__frame_stack=3), space)
    frames = [np.full(3, value, np.float32) for value in (0.1, -0.7, 0.9, 0.3)]
    one, other, same = load_policy(folder), load_policy(folder), np.zeros(3, np.float32)
    for frame in frames:
        same[:] = frame
        np.testing.assert_array_equal(one.act(same), other.act(frame))


def test_actions_are_new_arrays(tmp_path):
    policy = load_policy(run(tmp_path / "run", config(), SPACES["box"]))
    first = policy.act(np.zeros(3, np.float32))
    copy = first.copy()
    policy.act(np.ones(3, np.float32))
    np.testing.assert_array_equal(first, copy)


def test_the_newest_or_a_named_version(tmp_path):
    folder = run(tmp_path / "run", config(), SPACES["box"], versions=(4, 11, 9))
    assert load_policy(folder).version == 11
    assert load_policy(folder, 9).env_steps == 900
    with pytest.raises(RunDirectoryError, match="policy 5 of this run is missing") as caught:
        load_policy(folder, 5)
    assert caught.value.facts["other_versions"] == "4, 9, 11"


def test_the_two_files_are_enough(tmp_path):
    folder = run(tmp_path / "run", config(), SPACES["dict"])
    obs = SPACES["dict"].sample()
    expected = load_policy(folder).act(obs)
    copies = tmp_path / "copies"
    copies.mkdir()
    for file in (folder / "config.toml", folder / "checkpoints" / "4" / "policy.safetensors"):
        shutil.copy(file, copies)
    shutil.rmtree(folder)
    for version in (None, 4):
        policy = load_policy(copies, version)
        np.testing.assert_array_equal(policy.act(obs), expected)
    assert policy.version == 4
    with pytest.raises(RunDirectoryError) as caught:
        load_policy(copies, 5)
    assert str(caught.value) == (
        f"[CFG-002] {copies} does not hold policy 5\n"
        f"  file: {copies / 'policy.safetensors'}\n"
        "  found: policy 4\n"
        "  fix: leave the version out, or name the run directory itself"
    )


def test_no_torch_and_no_environment(tmp_path):
    folder = run(tmp_path / "run", config(env__id=None, env__factory="no_such_module:make"), SPACES["box"])
    code = (
        "import sys, numpy, headrace\n"
        "headrace.load_policy(sys.argv[1]).act(numpy.zeros(3, numpy.float32))\n"
        "sys.exit(' '.join({'torch', 'Box2D', 'no_such_module'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""


# What is refused


def test_observation_that_does_not_fit(tmp_path):
    policy = load_policy(run(tmp_path / "run", config(), SPACES["box"]))
    with pytest.raises(ObservationMismatch, match="expected: float32 array of shape"):
        policy.act(np.zeros(3))
    with pytest.raises(NonFiniteValue) as caught:
        policy.act(np.array([0, np.nan, 0], np.float32))
    assert str(caught.value) == (
        "[ENV-003] policy 4 was given an observation with a number that is not finite\n"
        "  field: obs\n"
        "  found: [ 0. nan  0.]\n"
        "  step: 0\n"
        "  fix: find out why the environment returns it; no action follows from it"
    )
    cast = load_policy(run(tmp_path / "cast", config(env__cast_observations=True), SPACES["box"]))
    np.testing.assert_array_equal(cast.act(np.zeros(3)), policy.act(np.zeros(3, np.float32)))


def test_a_refused_observation_is_not_part_of_the_stack(tmp_path):
    folder = run(tmp_path / "run", config(env__frame_stack=3), SPACES["box"])
    one, other = load_policy(folder), load_policy(folder)
    for value in (0.1, 0.2):
        with pytest.raises(NonFiniteValue):
            one.act(np.full(3, np.inf, np.float32))
        frame = np.full(3, value, np.float32)
        np.testing.assert_array_equal(one.act(frame), other.act(frame))


def test_no_policy_yet(tmp_path):
    folder = run(tmp_path / "run", config(), SPACES["box"], versions=())
    with pytest.raises(RunDirectoryError, match="holds no policy") as caught:
        load_policy(folder)
    assert caught.value.fix == "wait for the run's first evaluation or checkpoint, or choose another run"
    with pytest.raises(RunDirectoryError, match="holds no run"):
        load_policy(tmp_path)


@pytest.mark.parametrize("outcome", ["failed", "interrupted", "completed"])
@pytest.mark.parametrize("read", [load_policy, lambda folder: evaluate_run(RunDirectory(folder))])
def test_nobody_waits_for_a_policy_of_a_run_that_has_ended(tmp_path, read, outcome):
    folder = run(tmp_path / "a run", config(), SPACES["box"], versions=())
    RunDirectory(folder).write_summary({"outcome": outcome})
    with pytest.raises(RunDirectoryError, match="holds no policy") as caught:
        read(folder)
    assert caught.value.fix == (
        f"choose another run: this one ended ({outcome}) before there was one, see headrace doctor '{folder}'"
    )


def test_policy_that_does_not_say_its_spaces(tmp_path):
    folder = run(tmp_path / "run", config(), SPACES["box"], versions=())
    save_policy(folder / "checkpoints", 3, trained(config(), SPACES["box"]), {"env_steps": 5})
    with pytest.raises(RunDirectoryError) as caught:
        load_policy(folder)
    assert str(caught.value) == (
        "[CFG-002] the policy's file does not say on what spaces it acts\n"
        f"  file: {folder / 'checkpoints' / '3' / 'policy.safetensors'}\n"
        "  expected: observation_space and action_space\n"
        "  found: env_steps, version\n"
        "  fix: an older Headrace wrote it; `headrace eval RUN`, which builds the environment, can play it"
    )


def test_files_that_do_not_belong_together(tmp_path):
    folder = run(tmp_path / "run", config(), SPACES["box"])
    (folder / "config.toml").write_text(dump_toml(config(algorithm__actor__hidden=[5])))
    with pytest.raises(SnapshotCorrupt, match=r"file: .*policy\.safetensors"):
        load_policy(folder)
    (folder / "config.toml").write_text("[run]\nsteps = -1\n")
    with pytest.raises(ConfigError, match=r"run\.steps"):
        load_policy(folder)


def test_damaged_file(tmp_path):
    folder = run(tmp_path / "run", config(), SPACES["box"])
    path = folder / "checkpoints" / "4" / "policy.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
    with pytest.raises(RunDirectoryError, match="policy 4 of this run is damaged\n"):
        load_policy(folder)
    path.rename(folder / "policy.safetensors")
    with pytest.raises(RunDirectoryError, match=r"policy\.safetensors is damaged\n"):
        load_policy(folder)


def test_what_the_environment_of_a_run_returns_is_what_it_acts_on(tmp_path):
    env = Traced(limit=4)
    policy = load_policy(run(tmp_path / "run", config(), env.observation_space, env.action_space))
    obs, _ = env.reset(seed=1)
    assert env.action_space.contains(policy.act(obs))
    assert policy.observation_space == env.observation_space
