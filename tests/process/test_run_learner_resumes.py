"""A learner dies in the middle of a run, and another one goes on in its place."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.learners.manifest import MANIFEST
from headrace.record.events import LearnerSucceeded
from headrace.runtime.replayer import replay
from headrace.supervision.messages import Stop
from headrace.supervision.spec import Reported, Started
from headrace.supervision.supervisor import Supervisor
from replay_support import recorded
from run_support import Runs, assert_books, assert_gapless, events
from session_support import assert_completed, assert_replays, go_on

pytestmark = pytest.mark.process
TARGET = 1200


@pytest.fixture
def kill_learner(monkeypatch):
    """Kill the learner when it reports so many updates, as often as asked; notes how far it had come."""
    seen: list[int] = []

    def install(at: list[int]) -> list[int]:
        poll = Supervisor.poll
        wanted = list(at)

        def polled(supervisor, timeout_s):
            found = poll(supervisor, timeout_s)
            for event in found:
                facts = getattr(getattr(event, "message", None), "facts", {})
                told = isinstance(event, Reported) and event.id == "learner" and "weights_sha256" not in facts
                if told and wanted and facts.get("updates", -1) >= wanted[0]:
                    wanted.pop(0)
                    seen.append(facts["updates"])
                    os.kill(supervisor.pid("learner"), signal.SIGKILL)
            return found

        monkeypatch.setattr(Supervisor, "poll", polled)
        return seen

    return install


@pytest.mark.table
@pytest.mark.thin(3)
@pytest.mark.parametrize("schedule", ["async", "lockstep", "inline"])
def test_another_learner_goes_on_with_the_same_experience(runs: Runs, kill_learner, schedule):
    killed_at = kill_learner([50, 400])

    run = runs.train(
        "run_envs:make",
        kwargs={"step_s": 0.002},
        run__schedule=schedule,
        run__steps=TARGET,
        supervision__learner_death="resume",
        supervision__learner_save_every_s=0.05,
        evaluation__episodes=1,
        evaluation__every_steps=300,
    )

    assert run.completed, run.summary["error"]
    assert len(killed_at) == 2
    assert_books(run)
    assert TARGET <= run.summary["env_steps"] <= TARGET + 48
    assert run.summary["replay_ratio"]["measured"] == pytest.approx(1.0, abs=0.1)
    resumed = events(run, "resumed", "learner")
    assert len(resumed) == 2
    for event in resumed:
        assert event["lost_updates"] >= 0
        assert event["missed_rows"] == 0
        assert event["text"].startswith(f"another learner goes on from update {event['updates']:,}; ")
    assert resumed[0]["updates"] < resumed[1]["updates"], "the second one goes on from what the first had added"
    for lane, rows in enumerate(runs.rows):
        assert_gapless(rows, lane, restarts=4)
    finished = run.summary["episodes"]["finished"]
    stored = sum(int(rows["truncated"].sum()) + int(rows["terminated"].sum()) for rows in runs.rows)
    assert finished == stored, "an episode that finished is never missing from the counts, nor there twice"
    assert run.summary["evaluations"][-1]["env_steps"] == run.summary["env_steps"]


def test_without_a_saved_state_it_starts_from_fresh_weights_with_all_experience(runs: Runs, kill_learner):
    kill_learner([50])
    run = runs.train(
        "run_envs:make",
        kwargs={"step_s": 0.002},
        run__steps=600,
        supervision__learner_death="resume",
        supervision__learner_save_every_s=1e6,
    )
    assert run.completed, run.summary["error"]
    (event,) = events(run, "resumed", "learner")
    assert event["updates"] == 0
    assert event["lost_updates"] >= 50
    assert run.summary["updates"] == pytest.approx(run.summary["env_steps"] - 100, abs=60)
    assert_books(run)


@pytest.mark.thin(2)
@pytest.mark.parametrize("schedule", ["async", "inline"])
def test_a_learner_that_dies_before_it_is_ready_is_simply_started_again(runs: Runs, monkeypatch, schedule):
    poll, killed = Supervisor.poll, []

    def polled(supervisor, timeout_s):
        found = poll(supervisor, timeout_s)
        if any(isinstance(event, Started) and event.id == "learner" for event in found) and not killed:
            killed.append(supervisor.pid("learner"))
            os.kill(killed[0], signal.SIGKILL)
        return found

    monkeypatch.setattr(Supervisor, "poll", polled)
    settings = {"run__schedule": schedule, "supervision__learner_death": "resume", "run__steps": 400}
    run = runs.train("run_envs:make", **settings)
    assert run.completed, run.summary["error"]
    assert (len(killed), run.summary["faults"]) == (1, {"died": 1})
    assert_books(run)
    assert replay(run.path).weights_sha256 == run.summary["weights_sha256"]


ENDED_BY = {
    "duration": {"run__run_duration_s": 1.0},
    "target": {"evaluation__every_steps": 300, "evaluation__target": -1e9},
}


@pytest.mark.thin(6)
@pytest.mark.parametrize("cause", ENDED_BY)
@pytest.mark.parametrize("schedule", ["async", "lockstep", "inline"])
def test_a_learner_that_dies_when_it_is_to_stop_is_succeeded_by_one_that_ends_the_run(
    runs: Runs, monkeypatch, schedule, cause
):
    send, killed = Supervisor.send, []

    def sent(supervisor, child_id, message):
        if isinstance(message, Stop) and not killed:
            killed.append(supervisor.pid(child_id))
            os.kill(killed[0], signal.SIGKILL)
        return send(supervisor, child_id, message)

    monkeypatch.setattr(Supervisor, "send", sent)
    run = runs.train(
        "run_envs:make",
        kwargs={"step_s": 0.002},
        run__schedule=schedule,
        run__steps=10_000_000,
        supervision__learner_death="resume",
        supervision__learner_save_every_s=0.05,
        evaluation__episodes=1,
        **ENDED_BY[cause],
    )
    assert run.completed, run.summary["error"]
    assert (len(killed), len(events(run, "resumed", "learner"))) == (1, 1)
    assert_books(run)
    assert run.summary["evaluations"][-1]["env_steps"] == run.summary["env_steps"]
    assert events(run, "checkpoint")[-1]["env_steps"] == run.summary["env_steps"]
    assert replay(run.path).weights_sha256 == run.summary["weights_sha256"]


@pytest.mark.table
def test_in_a_session_that_goes_on_it_needs_no_checkpoint_that_was_pruned(runs: Runs, kill_learner):
    run = runs.train(
        "run_envs:make",
        kwargs={"step_s": 0.002},
        run__steps=240,
        checkpoint__every_steps=60,
        checkpoint__keep=1,
        supervision__learner_death="resume",
        supervision__learner_save_every_s=1e6,
    )
    assert_completed(run)
    begun_at = run.summary["updates"]
    pruned = run.path / "checkpoints" / str(run.summary["policy_version"]) / MANIFEST
    assert pruned.exists()
    kill_learner([begun_at + 150])
    run = go_on(run, run__steps=TARGET)
    assert_completed(run)
    assert not pruned.exists()
    (event,) = events(run, "resumed", "learner")
    assert event["updates"] == begun_at
    assert_replays(run)


def test_a_record_that_has_ended_is_not_gone_on_with(runs: Runs, kill_learner):
    killed_at = kill_learner([300])
    run = runs.train(
        "run_envs:tight",
        kwargs={"file_bytes": 20_000, "spared": os.getpid(), "until": 60},
        run__schedule="inline",
        run__collectors=1,
        run__steps=960,
        checkpoint__every_steps=96,
        supervision__learner_death="resume",
        supervision__learner_save_every_s=1e6,
    )
    assert_completed(run)
    assert len(killed_at) == 1
    assert len(events(run, "resumed", "learner")) == 1
    assert len(events(run, "record_lost")) == 1
    assert events(run, "not_saved")[-1]["problem"].startswith("the record ended early (OSError: ")
    assert not any(isinstance(event, LearnerSucceeded) for event in recorded(run))
    found = replay(run.path)
    assert not found.ended
    assert 0 < found.updates < killed_at[0]
