"""One suite for every schedule: what is learned does not depend on who runs when, and the books balance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import choice_envs
import headrace
from headrace.runtime.api import Run
from run_support import FIXED_SAC, PPO, SAC, SBX, Runs, assert_books, assert_gapless

pytestmark = [pytest.mark.process, pytest.mark.thin(2)]

SPACES = ["box", "image", "discrete", "multidiscrete", "multibinary", "tuple", "dict"]
SCHEDULES = ["inline", "lockstep", "async"]


def weights(runs: Runs, env: str, schedule: str, collectors: int, **settings: Any) -> str:
    run = runs.train(env, run__schedule=schedule, run__collectors=collectors, **settings)
    assert run.completed, run.summary["error"]
    assert_books(run)
    found = run.summary["weights_sha256"]
    assert isinstance(found, str)
    return found


def assert_same(runs: Runs, env: str, collectors: tuple[int, ...], **settings: Any) -> None:
    alone = weights(runs, env, "inline", 1, **settings)
    assert [weights(runs, env, "lockstep", number, **settings) for number in collectors] == [alone] * len(collectors)


@pytest.mark.table
def test_pendulum_learns_the_same_with_any_number_of_collectors(runs):
    assert_same(runs, "Pendulum-v1", (1, 3))


def test_hockey_learns_the_same_with_any_number_of_collectors(runs):
    assert_same(runs, "headrace/Hockey-v0", (1, 3), run__steps=250)


def test_the_seed_matters(runs):
    first, second = (weights(runs, "Pendulum-v1", "lockstep", 2, run__seed=seed) for seed in (0, 1))
    assert first != second


def test_groups_of_two_lanes(runs):
    assert_same(runs, "Pendulum-v1", (2, 3), env__group_size=2)


def test_whoever_acts_in_torch_has_the_threads_of_a_collector(runs):
    """In the learner's process too, which has others, and in a replay."""
    network = {"algorithm.actor.factory": "counting_networks:counting", "algorithm.actor.hidden": [256, 256]}
    found = []
    for schedule in ("inline", "lockstep"):
        run = runs.train(
            "Pendulum-v1", run__schedule=schedule, run__collectors=1, env__group_size=3, learn__threads=2,
            run__steps=160, replay__ratio=0.2, **network,
        )  # fmt: skip
        assert run.completed, run.summary["error"]
        found += [run.summary["weights_sha256"], headrace.replay(run.path).weights_sha256]
    assert found == [found[0]] * 4


def test_stacked_frames_and_n_step_returns(runs):
    assert_same(
        runs, "Pendulum-v1", (2,), env__frame_stack=3, replay__n_step=3, algorithm__normalize_observations=True,
    )  # fmt: skip


def test_eviction_correlated_noise_and_normaliser(runs):
    assert_same(
        runs, "Pendulum-v1", (2,), replay__capacity=300, replay__ratio=0.5,
        algorithm__exploration={"kind": "ornstein-uhlenbeck"}, algorithm__normalize_observations=True,
    )  # fmt: skip


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({**SAC, "algorithm.normalize_observations": True, "replay.n_step": 3}, id="sac"),
        pytest.param({**FIXED_SAC, "env.group_size": 2}, id="sac, groups of two"),
        pytest.param(SBX, id="td3 by the rule of sbx"),
    ],
)
def test_other_learners_of_continuous_actions(runs, settings):
    assert_same(runs, "Pendulum-v1", (1, 3), **settings)


@pytest.mark.parametrize("where", ["construct", "reset", "step"])
@pytest.mark.parametrize("settings", [pytest.param(choice_envs.SMALL, id="dqn"), pytest.param(PPO, id="ppo")])
def test_environment_that_changes_torch_for_its_process(runs, settings, where):
    """Default dtype, device, threads, gradients: under inline they were the learner's, and a replay's."""
    found = []
    for schedule in ("inline", "lockstep"):
        given = {"run.schedule": schedule, "run.collectors": 1, **settings}
        run = runs.train("torch_envs:setting", kwargs={"where": where}, **given)
        assert run.completed, run.summary["error"]
        assert 4.0 in runs.rows[0]["reward"]  # what it had set held for it
        found += [run.summary["weights_sha256"], headrace.replay(run.path).weights_sha256]
    assert found == [found[0]] * 4
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_module_that_changes_torch_when_it_is_imported(runs, schedule):
    """The learner's process imports it as well, to tell in the record where the environment comes from."""
    run = runs.train("torch_on_import:Double-v0", **{"run.schedule": schedule, **choice_envs.SMALL})
    assert run.completed, run.summary["error"]
    assert torch.get_default_dtype() == torch.float32


def test_environment_that_draws_from_global_generators(runs):
    assert_same(runs, "run_envs:gambler", (3,), env__group_size=2)


@pytest.mark.thin(4)
@pytest.mark.parametrize("space", SPACES)
def test_spaces(runs, space):
    assert_same(runs, "headrace.envs.toy:sampler", (2,), kwargs={"space": space}, run__steps=200)


CHOOSING: dict[str, tuple[str, Mapping[str, object]]] = {
    "cartpole": ("CartPole-v1", {**choice_envs.SMALL, "env.group_size": 2}),
    "cartpole, prioritised, dueling, three steps": (
        "CartPole-v1",
        {
            **choice_envs.SMALL, "algorithm.priority.enabled": True, "algorithm.priority.beta_updates": 200,
            "algorithm.dueling": True, "replay.n_step": 3, "replay.capacity": 300,
        },
    ),
    "map": ("choice_envs:plots", {**choice_envs.PLOTS, "env.group_size": 2}),
    "map, prioritised, dueling, residual, stacked": (
        "choice_envs:plots",
        {
            **choice_envs.PLOTS, "algorithm.priority.enabled": True, "algorithm.dueling": True, "env.frame_stack": 2,
            "algorithm.map.residual": True, "algorithm.map.channels": [4, 8], "replay.capacity": 300,
        },
    ),
    "mask": ("choice_envs:gates", choice_envs.GATES),
}  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize("case", CHOOSING)
def test_what_chooses_learns_the_same_with_any_number_of_collectors(runs, case):
    env, settings = CHOOSING[case]
    assert_same(runs, env, (2,), **settings)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_transition_is_produced_once_and_counted(runs, schedule):
    run = runs.train(run__schedule=schedule, run__collectors=2)
    assert run.completed
    assert_books(run)
    books = run.summary["books"]
    assert books["produced"] == books["committed"] == run.summary["env_steps"] >= 400
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane)
    finished = sum(int(rows["truncated"].sum()) for rows in runs.rows)
    assert run.summary["episodes"] == {"finished": finished, "terminated": 0, "truncated": finished, "cut": 0}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ratio", [0.25, 2.0])
def test_measured_ratio_is_the_declared_one(runs, schedule, ratio):
    run = runs.train(run__schedule=schedule, run__collectors=2, replay__ratio=ratio)
    steps, updates = run.summary["env_steps"], run.summary["updates"]
    assert updates == 1 + int((steps - 100) * ratio)
    assert run.summary["replay_ratio"]["declared"] == ratio
    assert run.summary["replay_ratio"]["measured"] == updates / (steps - 100)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_starts_with_the_chunk_that_makes_it_possible(runs, schedule):
    run: Run = runs.train(run__schedule=schedule, run__collectors=2, env__lanes=2)
    chunk = 8
    most = chunk if schedule != "async" else 2 * 2 * chunk  # both windows may arrive at once
    assert 100 <= run.summary["first_update_at"] < 100 + most


HUNT: Mapping[str, Any] = {
    "algorithm.name": "iqn", "algorithm.batch_size": 32, "agents.count": 2, "agents.policies": "own", "env.lanes": 8,
    "env.group_size": 4, "env.frame_stack": 5, "replay.n_step": 3, "collect.random_steps": 0, "replay.ratio": 0.05,
    "algorithm.network.noisy": True, "algorithm.priority.enabled": True, "algorithm.priority.beta_updates": 20,
}  # fmt: skip
"""The treasure hunt with two agents that learn apart, and all that IQN can."""


@pytest.mark.table
def test_agents_with_policies_of_their_own(runs):
    assert_same(runs, "headrace/TreasureHunt-v0", (2,), kwargs={"num_agents": 2}, **HUNT)
