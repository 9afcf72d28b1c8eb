"""Whole runs of environments of many agents: every schedule, policies of their own, faults, replay, resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest

import headrace
from choice_envs import SMALL
from headrace.cli.main import main
from headrace.core.errors import ConfigError, ObservationMismatch
from headrace.lanes.layout import ABSENT, CUT, FINAL, STEP, steps_among
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.verifier import verify_run
from replay_support import Blows, blows, replayed_alike
from run_support import PPO, Runs, assert_books, events
from session_support import assert_replays, in_sessions, outcome

__all__ = ["blows"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

MANY: Mapping[str, Any] = {
    **SMALL, "env.lanes": 6, "env.group_size": 3, "agents.count": 3, "run.steps": 600, "collect.random_steps": 60,
    "replay.ratio": 0.5,
}  # fmt: skip
OWN: Mapping[str, Any] = {**MANY, "agents.policies": "own"}
PACKS: Mapping[str, Any] = {**MANY, "agents.policies": {"first": ["a"], "others": ["*"]}}
INLINE: Mapping[str, Any] = {"run.schedule": "inline", "run.collectors": 1}
LOCKSTEP: Mapping[str, Any] = {"run.schedule": "lockstep", "run.collectors": 2}
ASYNC: Mapping[str, Any] = {"run.schedule": "async", "run.collectors": 2}


def assert_whole_lives(rows: np.ndarray, agent: int) -> None:
    """Rows of `agent_envs.Comers`: each life of the agent from its first turn on, its own, and everything of it once."""
    assert rows["transitions"][rows["kind"] == STEP].tolist() == list(range(1, int((rows["kind"] == STEP).sum()) + 1))
    there = rows[rows["kind"] != ABSENT]
    assert set(there["obs"][:, 0].tolist()) <= {float(agent)}
    for life in np.split(there, np.flatnonzero(np.isin(there["kind"], (FINAL, CUT))) + 1):
        if len(life):
            assert life["t"].tolist() == list(range(len(life)))
            assert len(set(life["episode"].tolist())) == len(set(life["obs"][:, 2].tolist())) == 1
            assert np.diff(life["obs"][:, 1]).tolist() == [1.0] * (len(life) - 1)
            steps = life[life["kind"] == STEP]
            np.testing.assert_allclose(
                steps["reward"], steps["obs"][:, 1] + 1 + 0.1 * agent + 0.01 * steps["action"], rtol=1e-6
            )


@pytest.mark.parametrize(
    "policies",
    [OWN, *(pytest.param(one, marks=pytest.mark.table) for one in (MANY, PACKS))],
    ids=["own", "shared", "packs"],
)
def test_every_schedule_learns_the_same(runs: Runs, policies: Mapping[str, Any]) -> None:
    found = []
    for schedule in (INLINE, LOCKSTEP):
        run = runs.train("agent_envs:comers", **policies, **schedule)
        assert run.completed, run.summary["error"]
        assert_books(run)
        found.append(run.summary["weights_sha256"])
        for lane, rows in enumerate(runs.rows):
            assert_whole_lives(rows, lane % 3)
        steps = {int(steps_among(rows["kind"]).sum()) for rows in runs.rows}
        assert len(steps) == 1  # chunks of a group have as many steps in each lane, and each group made as many
    assert found[0] == found[1]


@pytest.mark.table
def test_a_run_of_several_processes_replays_and_verifies(runs: Runs) -> None:
    run = runs.train("agent_envs:comers", **OWN, **ASYNC, evaluation__every_steps=150, evaluation__episodes=2)
    assert run.completed, run.summary["error"]
    assert_books(run)
    replayed_alike(run)
    found = verify_run(RunDirectory.open(run.path), samples=100_000)
    assert (found.largest_difference, found.machine) == (0.0, ())
    assert len(found.versions) >= 2
    evaluation = run.summary["evaluations"][-1]
    assert set(evaluation["agents"]) == {"a", "b", "c"}
    assert evaluation["mean_reward"] == pytest.approx(sum(evaluation["agents"].values()))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert any("eval/b/mean_reward" in line for line in lines)
    assert any(line.get("rollout/c/episodes") for line in lines)


def test_counts_are_those_of_agents_that_leave(runs: Runs) -> None:
    """Case agents_leave: eleven transitions an episode, five, two and four, of which c's may be bootstrapped from."""
    run = runs.train("agent_envs:leavers", **OWN, **ASYNC)
    assert run.completed, run.summary["error"]
    for lane, rows in enumerate(runs.rows):
        length, total, terminated = [(5, 14.0, True), (2, -4.0, True), (4, 4.0, False)][lane % 3]
        ends = np.flatnonzero(rows["kind"] == FINAL)
        assert len(ends) >= 5
        for end in ends.tolist():
            life = rows[end - length : end]
            assert life["t"].tolist() == list(range(length))
            assert life["reward"].sum() == total
            assert (bool(life["terminated"][-1]), bool(life["truncated"][-1])) == (terminated, not terminated)
    episodes = run.summary["episodes"]
    assert episodes["truncated"] == pytest.approx(episodes["terminated"] / 2, abs=4)


def test_one_that_takes_turns_is_trained(runs: Runs) -> None:
    run = runs.train(
        "agent_envs:taking_turns", **{**MANY, "agents.count": 2, "env.group_size": 2, "run.steps": 300}, **INLINE
    )
    assert run.completed, run.summary["error"]
    assert {len(rows[rows["kind"] == STEP]) for rows in runs.rows} == {runs.rows[0]["transitions"].max()}


@pytest.mark.table
def test_a_killed_collector_is_replaced_and_nothing_is_lost_or_doubled(runs: Runs, blows: Blows) -> None:
    blows.plan([("collector-1", SIGKILL, 50)])
    run = runs.train(
        **blows.env("agent_envs:comers", 100), **{**OWN, "run.steps": 900, "supervision.backoff_s": 0.0}, **ASYNC
    )
    assert run.completed, run.summary["error"]
    assert blows.sent
    assert run.summary["faults"] == {"died": 1}
    assert_books(run)
    for lane, rows in enumerate(runs.rows):
        assert_whole_lives(rows, lane % 3)
    replayed_alike(run)


def test_a_collector_that_dies_in_the_middle_of_a_step(runs: Runs, tmp_path: Path) -> None:
    run = runs.train(
        "agent_envs:comers", kwargs={"kill_at": 20, "marker": str(tmp_path / "killed")},
        **{**MANY, "supervision.backoff_s": 0.0}, **ASYNC,
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert run.summary["faults"] == {"died": 1}
    assert_books(run)
    for lane, rows in enumerate(runs.rows):
        assert_whole_lives(rows, lane % 3)
    assert not list(run.path.glob("reproducers/*"))


@pytest.mark.table
def test_stopped_and_resumed_it_learns_the_same(runs: Runs) -> None:
    settings = {**OWN, "run.steps": 720}
    whole = runs.train("agent_envs:comers", kwargs={"length": 40}, **settings, **INLINE)
    assert whole.completed, whole.summary["error"]
    sessions = [{**one, "run.steps": steps} for one, steps in ((INLINE, 216), (LOCKSTEP, 456), (INLINE, 720))]
    del settings["run.steps"]
    stopped = in_sessions(runs, "agent_envs:comers", sessions, {"length": 40}, **settings)
    assert outcome(stopped) == outcome(whole)
    assert all(event["problems"] == [] for event in events(stopped, "resumed"))
    assert_replays(stopped)


ON_POLICY: Mapping[str, Any] = {
    **PPO, "env.lanes": 6, "env.group_size": 3, "agents.count": 3, "collect.chunk_steps": 4,
}  # fmt: skip
RESUMED: Mapping[str, Mapping[str, Any]] = {
    "dqn": {**OWN, "collect.chunk_steps": 4, "collect.random_steps": 0, "replay.learning_starts": 24},
    "dqn_small_replay": {
        **OWN, "collect.chunk_steps": 4, "collect.random_steps": 0, "replay.learning_starts": 24,
        "replay.capacity": 72, "replay.n_step": 2, "env.frame_stack": 2,
    },
    "ppo": ON_POLICY,
}  # fmt: skip
"""Of three agents in each of two copies, four steps a chunk."""


def assert_resumed_alike(
    runs: Runs, env: str, kwargs: Mapping[str, object], case: str, chain: list[Mapping[str, Any]], steps: list[int]
) -> None:
    """Stopped after so many steps, it comes to what one that was never stopped comes to; and both are on record."""
    settings = {key: value for key, value in RESUMED[case].items() if key != "run.steps"}
    whole = runs.train(env, kwargs=kwargs, **settings, **{**INLINE, "run.steps": steps[-1]})
    assert whole.completed, whole.summary["error"]
    assert whole.summary["updates"] > 0
    sessions = [{**one, "run.steps": stop} for one, stop in zip(chain, steps, strict=True)]
    stopped = in_sessions(runs, env, sessions, kwargs, **settings)
    assert outcome(stopped) == outcome(whole)
    assert not events(stopped, "not_restored")
    assert_replays(stopped)


@pytest.mark.parametrize(
    ("case", "shift", "chain"),
    [
        ("dqn", 4, [INLINE, LOCKSTEP, INLINE]),
        pytest.param("dqn", 4, [INLINE, INLINE, INLINE], marks=pytest.mark.table),
        pytest.param("dqn", 3, [INLINE, LOCKSTEP, INLINE], marks=pytest.mark.table),
        ("ppo", 4, [INLINE, LOCKSTEP, INLINE]),
        pytest.param("ppo", 3, [LOCKSTEP, INLINE, LOCKSTEP], marks=pytest.mark.table),
    ],
)
def test_stopped_when_all_leave_as_others_come_it_learns_the_same(
    runs: Runs, case: str, shift: int, chain: list[Mapping[str, Any]]
) -> None:
    """After 20 and 40 steps of each copy: with shifts of 4 in such a step, with shifts of 3 before one and after one."""
    assert_resumed_alike(runs, "agent_envs:relay", {"shift": shift, "length": 44}, case, chain, [40, 80, 120])


@pytest.mark.parametrize("case", ["dqn_small_replay", pytest.param("ppo", marks=pytest.mark.table)])
def test_episodes_longer_than_the_lanes_are_brought_back(runs: Runs, case: str) -> None:
    """150 turns; a lane of the small replay may hold twelve rows, one of PPO four chunks of four."""
    chain = [INLINE, LOCKSTEP, INLINE]
    assert_resumed_alike(runs, "agent_envs:stayers", {"length": 150}, case, chain, [480, 768, 1200])


@pytest.mark.table
def test_those_who_have_just_come_leave_again_where_episodes_are_not_brought_back(runs: Runs) -> None:
    """The cut is in the record, though no row of theirs is."""
    settings = {key: value for key, value in RESUMED["dqn"].items() if key != "run.steps"}
    sessions = [{**INLINE, "run.steps": 40}, {"run.steps": 120, "checkpoint.restore_episodes": True}]
    run = in_sessions(
        runs, "agent_envs:relay", sessions, {"length": 44}, **settings, **{"checkpoint.restore_episodes": False}
    )
    told = events(run, "not_restored", "learner")
    assert [event["group"] for event in told] == [0, 1]
    assert all("no longer kept" in event["problem"] for event in told)
    assert_replays(run)


def test_the_agents_have_to_be_declared_as_they_are(runs: Runs) -> None:
    run = runs.train("agent_envs:comers", **{**MANY, "agents.count": 2, "env.group_size": 2}, **INLINE)
    assert run.summary["exit_code"] == 2
    assert "has 3 agents: a, b, c" in run.summary["error"]
    run = runs.train("agent_envs:comers", **{**MANY, "agents.policies": {"pack": ["wolf"]}}, **INLINE)
    assert "agent a has no policy" in run.summary["error"]
    with pytest.raises(ConfigError, match=r"no multiple of agents\.count"):
        runs.train("agent_envs:comers", **{**MANY, "env.lanes": 4, "env.group_size": 1})


@pytest.mark.parametrize("schedule", [ASYNC, LOCKSTEP], ids=["async", "lockstep"])
def test_a_policy_whose_agents_never_come_is_named(runs: Runs, schedule: Mapping[str, Any]) -> None:
    run = runs.train("agent_envs:absentee", **OWN, **schedule)
    assert run.summary["exit_code"] == 2
    assert "policy c has nothing to learn from" in run.summary["error"]
    assert run.summary["updates"] == 0
    assert_books(run)
    run = runs.train(
        "agent_envs:absentee", **MANY, **schedule
    )  # where it shares one, the others' experience is its own
    assert run.completed, run.summary["error"]
    assert {len(rows[rows["kind"] == STEP]) for rows in runs.rows[2::3]} == {0}


@pytest.mark.thin(2)
@pytest.mark.parametrize("schedule", [ASYNC, INLINE], ids=["async", "inline"])
def test_a_policy_whose_steps_are_too_few_for_a_return_is_waited_for(runs: Runs, schedule: Mapping[str, Any]) -> None:
    """Twelve steps beyond the first eight are far fewer than twenty turns of two copies."""
    run = runs.train(
        "agent_envs:comers", kwargs={"length": 40},
        **{**OWN, "collect.chunk_steps": 1, "replay.learning_starts": 8, "replay.n_step": 20}, **schedule,
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert run.summary["updates"] > 200
    assert_books(run)


def test_its_policies_are_evaluated_and_can_be_loaded(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.train("agent_envs:comers", **OWN, **INLINE, evaluation__every_steps=300, evaluation__episodes=2)
    with pytest.raises(SystemExit) as left:
        main(["eval", str(run.path), "--episodes", "2"])
    assert left.value.code == 0
    assert "policy version" in capsys.readouterr().out
    policy = headrace.load_policy(run.path)
    assert policy.agents == ("a", "b", "c")
    for wrong in (np.zeros(4, np.float32), {}, {"d": np.zeros(4, np.float32)}):
        with pytest.raises(ObservationMismatch, match="keys among a, b, c"):
            policy.act(wrong)
    env = __import__("agent_envs").comers(length=20)
    obs, _ = env.reset(seed=3)
    policy.begin_episode()
    while env.agents:
        actions = policy.act({agent: obs[agent] for agent in env.agents})
        assert set(actions) == set(env.agents)
        obs, *_ = env.step(actions)
