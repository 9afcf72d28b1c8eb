"""Evaluations: complete episodes, the same ones every time, seen as in training."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace.algorithms.registry import build_random_actor
from headrace.core.errors import ConfigError, EnvironmentRaised, ObservationMismatch, RunDirectoryError
from headrace.envs.toy import Target, sampler
from headrace.runtime.config import load_config
from headrace.runtime.evaluation import Player, Scores, _write_gif, build_judge
from headrace.runtime.payloads import Basics, EnvSpaces, build_run_environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import choice_envs
from run_envs import Traced, gambler


def config(**settings):
    return load_config("pendulum-td3", {key.replace("__", "."): value for key, value in settings.items()})


class Echo:
    """Acts with the newest number it sees."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def act(self, obs, noise=None):
        assert noise is None, "evaluations are greedy"
        self.seen.append(obs["obs"].copy())
        return {"action": obs["obs"].reshape(1, -1)[:, -1:].astype(np.float32)}


def test_answering_right_gets_the_known_best_return():
    assert Player(Target(limit=7), config(), "target", Echo()).play(3) == Scores((7.0, 7.0, 7.0))


def test_whoever_follows_the_steps_is_shown_the_first_episode():
    steps: list[int] = []
    Player(Target(limit=7), config(), "target", Echo()).play(3, lambda: steps.append(1))
    assert len(steps) == 7


def test_random_play_is_the_same_every_time_also_with_global_generators():
    first, second = (Player(gambler(), config(), "gambler").play(5) for _ in range(2))
    env = gambler()
    player = Player(env, config(), "gambler")
    player.play(2)
    assert first == second == player.play(5)
    assert len(set(first.returns)) == 5
    assert Player(gambler(), config(run__seed=1), "gambler").play(5) != first


@pytest.mark.parametrize("name", ["plots", "gates"])
def test_random_play_keeps_to_what_can_be_chosen_and_is_the_same_every_time(name):
    """These environments raise at anything else."""
    env, settings = getattr(choice_envs, name)(), {"plots": choice_envs.PLOTS, "gates": choice_envs.GATES}[name]
    whole = load_config(None, {"env.factory": f"choice_envs:{name}", **settings})
    actor = build_random_actor(EnvSpaces(env.observation_space, env.action_space).policy(whole))
    first, second = (Player(env, whole, name, actor, explores=True).play(6) for _ in range(2))
    assert first == second
    assert len(set(first.returns)) > 2


def test_short_episodes_are_not_favoured():
    scores = Player(sampler("dict", limit=4), config(), "sampler").play(6)
    assert scores.returns == (10.0,) * 6


def test_stacked_frames_begin_with_the_first_one_repeated():
    echo = Echo()
    Player(Traced(limit=4), config(env__frame_stack=3), "traced", echo).play(1)
    assert [seen[0, :, 1].tolist() for seen in echo.seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]


@pytest.mark.parametrize(("limited", "steps"), [(True, 3), (False, 10)])
def test_a_limit_for_training_cuts_evaluations_unless_told_otherwise(tmp_path, limited, steps):
    settings = {"env__max_episode_steps": 3, "evaluation__episode_limit": limited}
    basics = Basics(config(env__factory="headrace.envs.toy:counter", **settings), tmp_path / "board")
    with closing(build_judge(basics, "evaluator")) as env:
        env.reset(seed=0)
        ends = [any(env.step(env.action_space.sample())[2:4]) for _ in range(steps)]
    assert ends == [False] * (steps - 1) + [True]
    with closing(build_run_environment(basics, 0, "collector-0")) as env:
        env.reset(seed=0)
        assert [any(env.step(env.action_space.sample())[2:4]) for _ in range(3)] == [False, False, True]


def test_doing_without_a_limit_that_is_not_there_is_refused():
    with pytest.raises(ConfigError) as caught:
        config(evaluation__episode_limit=False)
    assert "evaluation.episode_limit would be ignored" in str(caught.value)


def test_interval():
    assert Scores((3.0,)).interval is None
    low, high = Scores((1.0, 3.0)).interval
    assert low == pytest.approx(2 - 12.7062)  # of Student's t with one degree of freedom
    assert high == pytest.approx(2 + 12.7062)
    assert Scores((1.0, 3.0)).facts() == {"mean_reward": 2.0, "interval": (low, high), "episodes": 2}


@pytest.mark.parametrize("episodes", [2, 5, 10])
def test_interval_holds_the_mean_in_95_of_100_evaluations(episodes: int):
    """With 1.96 standard errors it were 71, 87 and 92 of 100."""
    low, high = Scores(tuple(range(episodes))).interval  # its half is a multiple of the standard deviation
    factor = (high - low) / 2 / np.std(range(episodes), ddof=1)
    returns = np.random.default_rng(5).standard_normal((20_000, episodes))
    held = np.abs(returns.mean(1)) <= factor * returns.std(1, ddof=1)
    assert 0.94 < held.mean() < 0.96


@pytest.mark.parametrize(("at", "call"), [(3, "step"), (0, "reset")])
def test_environment_that_raises(at, call):
    with pytest.raises(EnvironmentRaised) as caught:
        Player(Traced(fault="fail", at=at), config(), "park").play(1)
    assert caught.value.what == f"park in an evaluation raised ValueError in {call}()"
    assert caught.value.facts == {"error": "ValueError: burn map corrupt, tile 7", "step": at}


def test_observation_that_does_not_fit():
    with pytest.raises(ObservationMismatch, match="found: float64 array of shape"):
        Player(Traced(fault="wrong_shape", at=2), config(), "park").play(1)


def test_what_is_drawn_first_makes_its_folder(tmp_path):
    frames = [np.full((4, 4, 3), shade, np.uint8) for shade in (0, 255)]
    place = tmp_path / "renders" / "newest.gif"
    for _ in range(2):
        _write_gif(frames, place)
        with Image.open(place) as drawn:
            assert drawn.n_frames == 2


def test_what_was_drawn_before_stays_until_all_of_the_new_is_there(tmp_path, monkeypatch):
    place = tmp_path / "newest.gif"
    place.write_bytes(b"before")

    def leave(*_):
        assert place.read_bytes() == b"before"
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.core.files.os.fsync", leave)
    with pytest.raises(KeyboardInterrupt):
        _write_gif([np.zeros((4, 4, 3), np.uint8)], place)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


def test_what_is_drawn_and_cannot_be_written_is_told(tmp_path):
    (tmp_path / "renders").write_bytes(b"no folder")
    with pytest.raises(RunDirectoryError, match="cannot be written to"):
        _write_gif([np.zeros((4, 4, 3), np.uint8)], tmp_path / "renders" / "newest.gif")
