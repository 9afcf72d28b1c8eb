"""A whole run over an environment that makes data up: who is told, where, and how often."""

from __future__ import annotations

import functools
import json

import pytest

import headrace
from headrace.cli.ending import ending
from run_support import assert_books, events

pytestmark = pytest.mark.process

LONG = {"run__steps": 5_000, "collect__chunk_steps": 16, "replay__ratio": 0.01}


@pytest.mark.parametrize("schedule", ["inline", "async"])
def test_made_up_data_is_told_everywhere_and_the_run_goes_on(runs, schedule, monkeypatch):
    shown = []
    monkeypatch.setattr(headrace, "train", functools.partial(headrace.train, on_progress=shown.append), raising=False)
    run = runs.train("suspicious_envs:Dummy", run__schedule=schedule, **LONG)
    assert run.summary["outcome"] == "completed"
    assert_books(run)
    found = {one["kind"]: one for one in run.summary["warnings"]}
    assert set(found) == {"info_dummy"}
    assert found["info_dummy"]["severity"] == "warning"
    assert found["info_dummy"]["facts"]["steps"] > 500
    # Once, although every window finds it again.
    (event,) = events(run, "suspicious")
    assert (event["component"], event["finding"], event["severity"]) == ("learner", "info_dummy", "warning")
    assert event["text"].startswith('info["dummy"] was set in ')
    assert event["text"] in {progress.message for progress in shown}
    assert f"suspicious    {found['info_dummy']['text']}" in ending(run.summary, run.path)
    metrics = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["headrace/data_warnings"] == 1


def test_honest_run_is_silent(runs):
    run = runs.train("suspicious_envs:Honest", **LONG)
    assert run.summary["outcome"] == "completed"
    assert run.summary["warnings"] == []
    assert events(run, "suspicious") == []
    assert "suspicious" not in ending(run.summary, run.path)


def test_short_run_is_judged_at_its_end_and_notes_are_not_printed(runs):
    run = runs.train("suspicious_envs:NoReward", run__steps=900)
    (found,) = run.summary["warnings"]
    assert (found["kind"], found["severity"]) == ("zero_reward", "info")
    assert [event["finding"] for event in events(run, "suspicious")] == ["zero_reward"]
    assert "suspicious" not in ending(run.summary, run.path)


@pytest.mark.table
def test_task_that_goes_on_for_ever_says_so_in_its_configuration(runs):
    # In rounds both lanes make as many steps as each other; asynchronously, one may not come to the 5,000 it takes.
    never = {"run__steps": 12_000, "run__schedule": "lockstep", "env__lanes": 2, "collect__chunk_steps": 32,
             "replay__ratio": 0.01}  # fmt: skip
    warned = runs.train("suspicious_envs:NeverEnds", **never)
    assert [one["kind"] for one in warned.summary["warnings"]] == ["no_episode_ends"]
    meant = runs.train("suspicious_envs:NeverEnds", env__continuing=True, **never)
    assert meant.summary["warnings"] == []
