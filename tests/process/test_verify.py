"""``headrace verify`` on runs that were made the usual way."""

from __future__ import annotations

import json
from typing import Any

import pytest

import choice_envs
import headrace
from headrace.cli.main import main
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.verifier import verify_run
from run_support import SAC, Runs

SETTINGS = {
    "run__steps": 1_200,
    "env__lanes": 4,
    "evaluation__every_steps": 200,
    "evaluation__episodes": 1,
    "collect__random_steps": 150,
}
OU = {"algorithm__exploration__kind": "ornstein-uhlenbeck"}


@pytest.mark.parametrize(
    ("schedule", "collectors", "group_size", "frame_stack", "algorithm"),
    [
        pytest.param("inline", 1, 2, 1, OU, marks=pytest.mark.table),
        ("async", 2, 1, 3, OU),
        pytest.param("async", 2, 2, 1, SAC, marks=pytest.mark.table),
    ],
    ids=["inline", "async", "sac"],
)
def test_real_run_is_verified_bit_for_bit(
    runs: Runs, capsys: pytest.CaptureFixture[str], schedule: str, collectors: int, group_size: int, frame_stack: int,
    algorithm: dict[str, Any],
) -> None:  # fmt: skip
    run = runs.train(
        "acting_support:drift", run__schedule=schedule, run__collectors=collectors, env__group_size=group_size,
        env__frame_stack=frame_stack, algorithm__normalize_observations=frame_stack == 1, **SETTINGS, **algorithm,
    )  # fmt: skip
    found = verify_run(RunDirectory.open(run.path), samples=100_000)
    assert (found.largest_difference, found.machine) == (0.0, ())
    assert len(found.versions) >= 3
    assert found.random >= 4 // group_size
    assert found.chunks > found.random
    assert found.rows <= found.chunks * 8 * group_size
    assert set(found.skipped) <= {"the policy that acted was not kept"}
    assert found.chunks + sum(found.skipped.values()) >= 1_200 // (8 * group_size)
    with pytest.raises(SystemExit) as left:
        main(["verify", str(run.path), "--json", "--samples", "10"])
    assert left.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verified"], told["chunks"], told["largest_difference"]) == (True, 10, 0.0)


@pytest.mark.parametrize("name", [pytest.param("plots", marks=pytest.mark.table), "gates"])
def test_what_was_chosen_is_verified_bit_for_bit_also_where_it_was_random(runs: Runs, name: str) -> None:
    settings = {"plots": choice_envs.PLOTS, "gates": choice_envs.GATES}[name]
    run = runs.train(
        f"choice_envs:{name}", run__schedule="async", run__collectors=2, run__steps=1_200, env__lanes=4, env__group_size=2,
        evaluation__every_steps=200, evaluation__episodes=1, record__rows="all",
        **{**settings, "algorithm.exploration.final_epsilon": 0.3},
    )  # fmt: skip
    found = verify_run(RunDirectory.open(run.path), samples=100_000)
    assert (found.largest_difference, found.machine, found.random) == (0.0, (), 0)
    assert found.chunks >= len(found.versions) >= 3
    assert found.rows >= 16 * found.chunks - 16  # two lanes of eight steps; the last chunk may be shorter
    policy = headrace.load_policy(run.path)
    obs, _ = (env := getattr(choice_envs, name)()).reset(seed=3)
    env.step(policy.act(obs))  # which refuses what cannot be chosen
