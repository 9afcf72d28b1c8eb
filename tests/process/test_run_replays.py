"""Runs of several processes, some of which are killed, frozen or hang, replay bit for bit in one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any

import pytest

import choice_envs
from headrace.cli.main import main
from headrace.record.trace import Trace
from replay_support import Blows, Case, blows, headrace, lags, recorded, replayed_alike, salvages, successions
from run_support import SAC, SBX, Runs, assert_books

__all__ = ["blows"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

LONG: Mapping[str, Any] = {
    "run__steps": 2208,
    "algorithm__normalize_observations": True,
    "record__hash_every": 100,
    "supervision__backoff_s": 0.0,
}
"""2,000 updates and some."""
SLOW = {"step_s": 0.002}
"""Long enough for the learner to save while it trains."""
SLOW_FROM = 200
"""Of 368 steps in each lane; the last blow of a case comes after some 200."""
FROZEN = {
    "deadlines__step_s": 2.0, "deadlines__wait_s": 2.0, "deadlines__commit_s": 2.0, "deadlines__credit_s": 2.0,
    "deadlines__rows_s": 4.0,
}  # fmt: skip
OU = {"algorithm__exploration": {"kind": "ornstein-uhlenbeck", "scale": 0.3}}
SUCCEEDS = {"supervision__learner_death": "resume", "supervision__learner_save_every_s": 0.05}
POISON = {"fault": "kill", "at": 3, "lanes": [3]}

PLAIN = {
    "pendulum": Case("Pendulum-v1"),
    "toy, collector killed": Case(fault="kill", happened={"died": 1}),
    "toy, hung and replaced": Case(fault="hang", settings={"deadlines__step_s": 1.5}, happened={"stalled": 1}),
}
IN_EVERY_RUN = "toy, collector killed"
"""Of the tests."""
MORE = {
    "hockey": Case("headrace/Hockey-v0", settings={"run__collectors": 3}),
    "hockey, collector killed": Case(
        "headrace/Hockey-v0", blows=[("collector-1", SIGKILL, 200)], happened={"died": 1},
        settings={**OU, "env__group_size": 2},
    ),
    "hockey, frozen collector": Case(
        "headrace/Hockey-v0", blows=[("collector-0", SIGSTOP, 200)], happened={"stalled": 1}, settings=FROZEN
    ),
    "pendulum, noise that remembers": Case("Pendulum-v1", settings={**OU, "env__group_size": 2, "run__collectors": 3}),
    "pendulum, eviction, stacks, returns": Case(
        "Pendulum-v1", settings={"replay__capacity": 360, "env__frame_stack": 3, "replay__n_step": 3}
    ),
    "pendulum, killed twice, all rows": Case(
        "Pendulum-v1", blows=[("collector-0", SIGKILL, 150), ("collector-0", SIGKILL, 600)], happened={"died": 2},
        settings={**OU, "record__rows": "all", "run__steps": 4000, "replay__capacity": 600},
    ),
    "pendulum, no rows kept": Case(
        "Pendulum-v1", settings={"record__rows": "none", "checkpoint__enabled": False, "run__collectors": 1}
    ),
    "global generators": Case("run_envs:gambler", settings={"env__group_size": 3}),
    "global generators, collector killed": Case(
        "run_envs:gambler", blows=[("collector-1", SIGKILL, 150)], happened={"died": 1},
        settings={"run__steps": 4000},
    ),
    "toy, noise, group of two, killed": Case(
        fault="kill", happened={"died": 1}, settings={**OU, "env__group_size": 2, "env__frame_stack": 2}
    ),
    "toy, freezes": Case(fault="freeze", settings={"deadlines__step_s": 1.5}, happened={"stalled": 1}),
    "toy, raises in step": Case(fault="fail", happened={"died": 1}, settings={"env__group_size": 2}),
    "toy, killed in reset": Case(
        "run_envs:provoked", fault="sigkill", at=20, happened={"died": 1},
        kwargs={"what": "sigkill", "place": "reset", "lane": 3, "lanes": 6},
    ),
    "toy, killed while rows leave": Case(
        fault="kill", at=200, happened={"died": 1}, settings={"replay__capacity": 360, "replay__n_step": 2, **OU}
    ),
    "toy, learner killed": Case(
        blows=[("learner", SIGKILL, 200), ("learner", SIGKILL, 900)], kwargs=SLOW, settings=SUCCEEDS
    ),
    "toy, learner killed before it saved": Case(
        blows=[("learner", SIGKILL, 200)], kwargs=SLOW, settings={**SUCCEEDS, "supervision__learner_save_every_s": 1e6}
    ),
    "toy, learner and collector killed": Case(
        blows=[("collector-1", SIGKILL, 150), ("learner", SIGKILL, 600), ("collector-0", SIGKILL, 1100)],
        kwargs=SLOW, happened={"died": 3}, settings={**SUCCEEDS, **OU, "env__group_size": 3},
    ),
}  # fmt: skip
"""With those above, the twenty of the acceptance."""
assert len(PLAIN) + len(MORE) == 20
PRIORITY = {"algorithm.priority.enabled": True, "algorithm.priority.beta_updates": 1500}
CHOOSING = {
    "map, prioritised, collector killed": Case(
        "choice_envs:plots", blows=[("collector-1", SIGKILL, 300)], happened={"died": 1},
        settings={**choice_envs.PLOTS, **PRIORITY, "replay.capacity": 600},
    ),
    "cartpole, prioritised, learner killed": Case(
        "choice_envs:slow_cartpole", blows=[("learner", SIGKILL, 300), ("learner", SIGKILL, 900)], kwargs=SLOW,
        settings={**choice_envs.SMALL, **PRIORITY, **SUCCEEDS, "replay.capacity": 900, "env.group_size": 3},
    ),
    "cartpole": Case("CartPole-v1", settings=choice_envs.SMALL),
    "cartpole, prioritised, learner killed before it saved": Case(
        "choice_envs:slow_cartpole", blows=[("learner", SIGKILL, 300)], kwargs=SLOW,
        settings={**choice_envs.SMALL, **PRIORITY, **SUCCEEDS, "supervision.learner_save_every_s": 1e6},
    ),
    "mask, three steps, prioritised": Case(
        "choice_envs:gates", settings={**choice_envs.GATES, **PRIORITY, "replay.n_step": 3, "algorithm.dueling": True}
    ),
}  # fmt: skip
"""What chooses: its exploration, its masks, its priorities."""
SQUASHED = {**SAC, "algorithm.normalize_observations": True}
CONTINUOUS = {
    "sac, three steps, collector killed": Case(
        "Pendulum-v1", blows=[("collector-1", SIGKILL, 300)], happened={"died": 1},
        settings={**SQUASHED, "env.group_size": 2, "replay.n_step": 3, "run__steps": 4000},
    ),
    "sac, toy, hung and replaced": Case(
        fault="hang", happened={"stalled": 1}, settings={**SAC, "deadlines.step_s": 1.5, "replay.capacity": 360}
    ),
    "sac, learner killed": Case(
        blows=[("learner", SIGKILL, 200), ("learner", SIGKILL, 900)], kwargs=SLOW, settings={**SQUASHED, **SUCCEEDS}
    ),
    "sbx, learner killed": Case(
        blows=[("learner", SIGKILL, 200), ("learner", SIGKILL, 900)], kwargs=SLOW, settings={**SBX, **SUCCEEDS}
    ),
}  # fmt: skip
"""What acts with numbers and is not TD3 as published."""


def trained(runs: Runs, blows: Blows, case: Case, marker: Path) -> Any:
    """The run of a case, in which what was to happen has happened."""
    kwargs = dict(case.kwargs)
    if case.fault is not None:
        kwargs |= {"at": case.at, "marker": str(marker)} | ({} if "what" in kwargs else {"fault": case.fault})
    where = blows.env(case.env, SLOW_FROM, kwargs) if case.blows else {"env": case.env, "kwargs": kwargs}
    blows.plan(case.blows)
    long = {k: v for k, v in LONG.items() if "algorithm.name" not in case.settings or not k.startswith("algorithm__")}
    run = runs.train(**where, **{**long, **case.settings})
    assert run.completed, run.summary["error"]
    assert_books(run)
    assert run.summary["updates"] >= 2000
    assert marker.exists() == (case.fault is not None)
    assert blows.sent == list(case.blows)
    for kind, times in case.happened.items():
        assert run.summary["faults"].get(kind, 0) >= times, run.summary["faults"]
    events = recorded(run)
    lost = sum(victim != "learner" for victim, _, _ in case.blows) + (case.fault is not None)
    assert salvages(events) >= lost
    assert len(successions(events)) == sum(victim == "learner" for victim, _, _ in case.blows)
    return run


@pytest.mark.table
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[] if name == IN_EVERY_RUN else pytest.mark.table)
        for name, case in (PLAIN | MORE | CHOOSING | CONTINUOUS).items()
    ],
)
def test_an_asynchronous_run_replays_bit_for_bit(runs: Runs, blows: Blows, tmp_path: Path, case: Case):
    run = trained(runs, blows, case, tmp_path / "marker")
    assert len(lags(recorded(run))) > 1, "nobody was ahead of anybody: this run was not asynchronous"
    replayed_alike(run)


@pytest.mark.table
@pytest.mark.parametrize("schedule", ["inline", "lockstep"])
def test_a_succeeded_learner_is_replayed_under_every_schedule(runs: Runs, blows: Blows, tmp_path: Path, schedule: str):
    case = Case(
        blows=[("learner", SIGKILL, 200), ("learner", SIGKILL, 900)], kwargs=SLOW,
        settings={**SUCCEEDS, **OU, "run__schedule": schedule, "env__group_size": 2},
    )  # fmt: skip
    replayed_alike(trained(runs, blows, case, tmp_path / "marker"))


@pytest.mark.table
def test_a_lane_that_was_left_out_is_replayed(runs: Runs, tmp_path: Path):
    run = runs.train(
        "poison_envs:make", kwargs=POISON, supervision__when_spent="degrade", **LONG
    )  # fmt: skip
    assert run.completed, run.summary["error"]
    assert run.summary["degraded"]["lanes"] == [3]
    replayed_alike(run)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, warm_server: Any) -> Path:
    """The directory of a run that is only looked at."""
    with pytest.MonkeyPatch.context() as patch:
        runs = Runs(tmp_path_factory.mktemp("finished"))
        runs.lend(warm_server, patch)
        return runs.train("run_envs:make", **{**LONG, "run__steps": 800}).path


def test_the_command_says_that_everything_is_identical(finished: Path, capfd: pytest.CaptureFixture[str]):
    summary = json.loads((finished / "summary.json").read_text())
    with Trace.open(finished / "record" / "trace.bin") as trace:
        events = sum(1 for _ in trace.events())
    with pytest.raises(SystemExit) as left:
        main(["replay", str(finished)])
    printed, errors = capfd.readouterr()
    assert (left.value.code, errors) == (0, "")
    updates, weights = summary["updates"], summary["weights_sha256"]
    assert printed == f"identical: {events:,} events, {updates:,} updates, weights {weights}\n"


@pytest.mark.table
def test_the_command_says_so_to_a_program(finished: Path):
    summary = json.loads((finished / "summary.json").read_text())
    told = headrace("replay", finished, "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found.pop("events") > 100
    assert found == {
        "identical": True, "updates": summary["updates"], "env_steps": summary["env_steps"],
        "weights_sha256": summary["weights_sha256"], "ended": True, "failed": None, "torn_bytes": 0, "machine": [],
    }  # fmt: skip


@pytest.mark.table
def test_the_command_stops_with_a_prompt_that_reads_from_standard_input(finished: Path):
    lines = [
        "print('updates', learner.updates, len(batch.reward) if 'batch' in dir() else 'no batch')",
        "batch = learner.batch()",
        "_ = algorithm.update(batch)",
        "print('updates', learner.updates, len(batch.reward))",
        "print(replay.run('update:420'))",
        "print('at the end:', replay.run(), block.rows_written.sum() > 0, config.run.seed)",
        "replay.run('update:1')",
    ]
    told = headrace("replay", finished, "--until", "update:410", given="\n".join(lines) + "\n")
    assert told.returncode == 0, told.stderr
    assert "replay stands before update 410 (event " in told.stderr
    assert "; everything so far is identical\n" in told.stderr
    assert "[CFG-001] the record does not come to update:1, or is past it" in told.stderr
    answers = [line.lstrip("> ") for line in told.stdout.splitlines()]
    assert answers[:2] == ["updates 409 no batch", "updates 410 32"]
    assert answers[2].startswith("before update 420 (event ")
    assert answers[3] == "at the end: None True 0"


@pytest.mark.table
def test_a_place_that_the_record_does_not_come_to_is_a_usage_error(finished: Path):
    told = headrace("replay", finished, "--until", "version:100000")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("[CFG-001] the record does not come to version:100000, or is past it\n")
    told = headrace("replay", finished, "--until", "yesterday")
    assert told.returncode == 2
    assert told.stderr.startswith("[CFG-001] 'yesterday' names no event of a record\n")
