"""On-policy runs: what is learned does not hang on who runs when, lag is bounded, and every step is trained on once."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import replace
from signal import SIGTERM
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import ReplayDiffers
from headrace.lanes.layout import STEP
from headrace.record.events import ChunkCommitted, GroupSalvaged, StepsLost
from headrace.record.rows import segment_name
from headrace.record.trace import Trace, TraceWriter
from headrace.runtime.api import Run
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.verifier import KeptPolicies, verify_run
from replay_support import blows, recorded, salvages
from run_support import PPO, Runs, assert_books, assert_gapless, events
from session_support import assert_completed, assert_replays, go_on, outcome

__all__ = ["blows"]

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

CHOOSES: Mapping[str, Any] = {"env.id": "CartPole-v1", "env.frame_stack": 2}
DRAWS: Mapping[str, Any] = {
    "env.id": "Pendulum-v1", "algorithm.normalize": {"observations": True, "rewards": True}, "env.max_episode_steps": 30,
}  # fmt: skip
GROUPED = {"env.group_size": 2}
VTRACE = {"algorithm.name": "vtrace"}
SEES = {"algorithm.normalize": {"observations": True}}
"""For `run_envs.Traced`, which observes a random seed."""


def schedule(name: str, collectors: int = 1, **more: Any) -> dict[str, Any]:
    return {"run.schedule": name, "run.collectors": collectors, **more}


def trained(runs: Runs, *settings: Mapping[str, Any], **more: Any) -> Run:
    merged = {key: value for one in (PPO, *settings) for key, value in one.items()}
    run = runs.train(merged.pop("env.id", "run_envs:make"), **merged, **more)
    assert_completed(run)
    return run


def assert_all_trained_on(run: Run) -> None:
    books = run.summary["books"]
    assert (books["resident"], books["in_flight"], books["evicted"]) == (0, 0, 0)
    assert books["consumed"] == run.summary["env_steps"]


WAYS = [("lockstep", 2), ("async", 1), ("async", 2), ("async", 3)]


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("settings", "ways"),
    [
        pytest.param(CHOOSES, [("async", 3)], id="discrete, stacked"),
        pytest.param(DRAWS, [("lockstep", 2), ("async", 2)], id="box, normalised"),
        pytest.param(CHOOSES, WAYS, id="discrete, stacked, all", marks=pytest.mark.table),
        pytest.param(DRAWS, WAYS, id="box, normalised, all", marks=pytest.mark.table),
        pytest.param({**CHOOSES, **GROUPED, "env.workers": 2}, WAYS, id="workers", marks=pytest.mark.table),
        pytest.param({**DRAWS, **GROUPED, **VTRACE}, WAYS, id="vtrace", marks=pytest.mark.table),
        pytest.param({**DRAWS, "learn.compiled": True}, [("async", 2)], id="compiled", marks=pytest.mark.table),
    ],
)
def test_strictly_on_policy_every_schedule_learns_the_same(runs, settings, ways):
    alone = trained(runs, schedule("inline"), settings)
    assert_all_trained_on(alone)
    assert alone.summary["policy_lag"] == {"mean": 0.0, "max": 0}
    for name, collectors in ways:
        other = trained(runs, schedule(name, collectors), settings)
        assert outcome(other) == outcome(alone), (name, collectors)


@pytest.mark.parametrize("order", ["chunk", pytest.param("arrival", marks=pytest.mark.table)])
def test_within_the_declared_lag_nothing_is_older_and_the_run_replays(runs, order):
    ahead = schedule("async", 2, **{"rollout.max_policy_lag": 2, "rollout.order": order})
    run = trained(runs, ahead, DRAWS)
    assert_all_trained_on(run)
    assert 0 <= run.summary["policy_lag"]["max"] <= 2
    assert_replays(run)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(schedule("lockstep", 2), id="lockstep", marks=pytest.mark.table),
        pytest.param(schedule("async", 2, **{"rollout.max_policy_lag": 1}), id="async"),
        pytest.param(
            schedule("async", 3, **{"rollout.max_policy_lag": 1, "rollout.order": "arrival"}), id="arrival",
            marks=pytest.mark.table,
        ),
        pytest.param(schedule("async", 2), id="strict", marks=pytest.mark.table),
    ],
)  # fmt: skip
def test_a_collector_that_dies_in_a_rollout_costs_an_episode_and_no_step(runs, tmp_path, how):
    kwargs = {"fault": "kill", "at": 20, "marker": str(tmp_path / "marker")}
    run = trained(runs, how, SEES, kwargs=kwargs)
    assert run.summary["faults"]["died"] == run.summary["restarts"] == 1
    assert salvages(recorded(run)) >= 1
    assert run.summary["books"]["salvaged"] > 0
    assert run.summary["policy_lag"]["max"] <= how.get("rollout.max_policy_lag", 0)
    assert_replays(run)


def test_a_collector_that_dies_before_the_first_step_of_a_round_holds_nobody_up(runs, tmp_path):
    kwargs = {"fault": "fail", "at": 1, "marker": str(tmp_path / "marker")}
    run = trained(runs, schedule("async"), SEES, kwargs=kwargs)
    assert (run.summary["faults"], run.summary["restarts"]) == ({"died": 1}, 1)
    assert run.summary["books"]["salvaged"] == 0
    assert_replays(run)


@pytest.mark.table
@pytest.mark.parametrize("lag", [0, pytest.param(1, marks=pytest.mark.table)])
def test_who_is_frozen_is_blamed_and_nobody_who_waits_for_the_same_rollout(runs, tmp_path, lag):
    """The other collector has waited for credit three times as long as it may when the frozen one is found."""
    kwargs = {"fault": "freeze", "at": 20, "marker": str(tmp_path / "marker")}
    limits = {
        "deadlines.step_s": 1.5,
        "deadlines.credit_s": 0.4,
        "deadlines.rows_s": 60.0,
        "supervision.backoff_s": 0.0,
    }
    how = schedule("async", 2, **{"rollout.max_policy_lag": lag})
    run = trained(runs, how, SEES, limits, kwargs=kwargs)
    assert (run.summary["faults"], run.summary["restarts"]) == ({"stalled": 1}, 1)
    (fault,) = events(run, "fault")
    (restart,) = events(run, "restarted")
    assert fault["component"] == restart["component"]
    assert_replays(run)


@pytest.mark.parametrize(
    "how", [schedule("inline"), pytest.param(schedule("async", 2), marks=pytest.mark.table)], ids=["inline", "async"]
)
def test_whole_episodes_are_trained_on_and_the_rest_is_kept(runs, how):
    run = trained(runs, how, SEES, {"rollout.whole_episodes": True}, kwargs={"limit": 11})
    books = run.summary["books"]
    kept = [len(rows) - 1 - np.flatnonzero(rows["kind"] != STEP)[-1] for rows in runs.rows]
    assert [lane["resident"] for lane in books["lanes"]] == kept
    assert books["consumed"] == run.summary["episodes"]["finished"] * 11
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane)
    assert_replays(run)


@pytest.mark.table
def test_of_whole_episodes_one_that_is_cut_is_trained_on_too(runs, tmp_path):
    kwargs = {"fault": "kill", "at": 20, "limit": 11, "marker": str(tmp_path / "marker")}
    run = trained(runs, schedule("lockstep", 2), SEES, {"rollout.whole_episodes": True}, kwargs=kwargs)
    assert run.summary["episodes"]["cut"] > 0
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane, restarts=1)
        assert (
            run.summary["books"]["lanes"][lane]["resident"] == len(rows) - 1 - np.flatnonzero(rows["kind"] != STEP)[-1]
        )
    assert_replays(run)


@pytest.mark.parametrize("name", ["async", pytest.param("lockstep", marks=pytest.mark.table)])
def test_of_a_chunk_that_was_begun_and_no_more_the_replay_knows_too(runs, tmp_path, name):
    """What was kept back of its lane goes into another rollout than that of lanes whose chunk was not begun."""
    kwargs = {"fault": "kill", "at": 17, "limit": 11, "marker": str(tmp_path / "marker")}
    run = trained(runs, schedule(name, 2), SEES, {"rollout.whole_episodes": True}, kwargs=kwargs)
    assert run.summary["books"]["salvaged"] == 0
    assert len({event.chunk for event in recorded(run) if isinstance(event, GroupSalvaged)}) == 2
    assert_replays(run)


@pytest.mark.table
@pytest.mark.parametrize("name", ["inline", "async"])
def test_an_environment_that_is_lost_costs_its_episode_and_a_step(runs, tmp_path, name):
    kwargs = {"fault": "kill", "at": 13, "marker": str(tmp_path / "marker")}
    workers = {"env.workers": 2, "env.group_size": 2, "deadlines.step_s": 1.0}
    run = trained(runs, schedule(name), SEES, workers, kwargs=kwargs)
    assert run.summary["faults"]["environment_died"] == 1
    assert any(isinstance(event, StepsLost) for event in recorded(run))
    assert_all_trained_on(run)
    assert_replays(run)


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param([schedule("inline"), schedule("lockstep", 2), schedule("inline")], id="rounds"),
        pytest.param([schedule("async", number) for number in (2, 3, 1)], id="async", marks=pytest.mark.table),
    ],
)
def test_stopped_and_resumed_it_learns_the_same(runs, chain):
    first, *others = [{**session, "run.steps": steps} for session, steps in zip(chain, (216, 408, 600), strict=True)]
    whole = trained(runs, schedule("inline"), DRAWS, run__steps=600)
    stopped = trained(runs, first, DRAWS)
    for session in others:
        stopped = go_on(stopped, **session)
        assert_completed(stopped)
    assert outcome(stopped) == outcome(whole)
    assert_replays(stopped)


@pytest.mark.table
@pytest.mark.parametrize(
    "how", [schedule("inline"), schedule("async", 2, **{"rollout.max_policy_lag": 2})], ids=["inline", "async"]
)
def test_interrupted_and_resumed(runs, blows, how):
    """In one process it learns the same as one that was not; with a lag every step is trained on all the same."""
    blows.plan([("learner", SIGTERM, 10)], lambda _, number: os.kill(os.getpid(), number))
    stopped = runs.train(**blows.env("Pendulum-v1", 30), **{**PPO, **how, **SEES, "run.steps": 720})
    assert blows.sent
    assert stopped.summary["outcome"] == "interrupted"
    assert stopped.summary["env_steps"] < 720
    assert_books(stopped)
    run = go_on(stopped)
    assert_completed(run)
    assert_all_trained_on(run)
    assert_replays(run)
    if how["run.schedule"] == "inline":
        whole = trained(runs, how, SEES, {"run.steps": 720, "env.id": "Pendulum-v1"})
        assert outcome(run) == outcome(whole)


KEPT = {"evaluation.every_steps": 48, "evaluation.episodes": 1, "record.rows": "all"}
"""Every policy and every row."""


@pytest.mark.parametrize(
    "settings",
    [pytest.param(CHOOSES, id="discrete", marks=pytest.mark.table), pytest.param({**DRAWS, **GROUPED}, id="box")],
)
def test_log_probabilities_are_verified_bit_for_bit(runs, settings):
    run = trained(runs, schedule("lockstep", 2), settings, KEPT)
    place = RunDirectory.open(run.path)
    found = verify_run(place, samples=100_000)
    assert (found.largest_difference, found.machine, found.random) == (0.0, (), 0)
    assert found.chunks >= 10
    _nudge_logprob(run, found.versions[-1])
    with pytest.raises(ReplayDiffers) as caught:
        verify_run(place, samples=100_000)
    assert "logprob" in str(caught.value)
    assert caught.value.facts["chunks"].startswith("1 of ")


def _nudge_logprob(run: Run, version: int) -> None:
    """Change the last bit of one log-probability of this policy in the record, and the checksum that vouches for it."""
    with Trace.open(run.path / "record" / "trace.bin") as trace:
        header, listed = trace.header, [event for _, event in trace.events()]
    chunks = [(number, event) for number, event in enumerate(listed) if isinstance(event, ChunkCommitted)]
    number, event = next((number, event) for number, event in chunks if event.version == version)
    starts = [before.lanes[0].stop for at, before in chunks if before.group == event.group and at < number]
    config = RunDirectory.open(run.path).read_config()
    spaces = KeptPolicies(run.path / "checkpoints", config).spaces
    geometry = spaces.geometry(config)
    first = event.lanes[0]
    file, begin = run.path / "record" / segment_name(event.place.segment), event.place.offset
    data = bytearray(file.read_bytes())
    end = begin + (first.stop - max([geometry.first_row, *starts])) * geometry.dtype.itemsize
    rows = np.frombuffer(data[begin:end], geometry.dtype).copy()
    rows["logprob"][0] = np.nextafter(rows["logprob"][0], np.float32(0))
    data[begin:end] = rows.tobytes()
    file.write_bytes(data)
    lanes = (replace(first, checksum=zlib.crc32(rows.tobytes())), *event.lanes[1:])
    listed[number] = replace(event, lanes=lanes)
    (run.path / "record" / "trace.bin").unlink()
    with TraceWriter.create(run.path / "record" / "trace.bin", header) as writer:
        for event in listed:
            writer.write(event)
