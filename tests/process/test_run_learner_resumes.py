"""A learner dies in the middle of a run, and another one goes on in its place."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.runtime.replayer import replay
from headrace.supervision.spec import Reported, Started
from headrace.supervision.supervisor import Supervisor
from run_support import Runs, assert_books, assert_gapless, events

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
