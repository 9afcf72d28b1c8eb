"""Where a run goes on: the newest checkpoint that is sound, whose record is too, and what is lost behind it."""

from __future__ import annotations

import os
import pickle

import pytest

from headrace.core.config import EnvConfig
from headrace.core.errors import RunDirectoryError
from headrace.record.events import NOT_KEPT, GroupSalvaged, LearnerSucceeded, Note, SalvagedLane
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.resume import ResumePoint
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.survey import find_resume_point
from headrace.telemetry.board import Board
from resume_support import CHUNK_STEPS, CHUNK_UPDATES, PastRun


@pytest.fixture
def past(tmp_path):
    return PastRun(tmp_path / "run")


def found(past: PastRun) -> ResumePoint:
    return find_resume_point(RunDirectory(past.end(None)), past.config)


def test_newest_checkpoint_and_what_is_lost_behind_it(past):
    past.learn(3)
    past.checkpoint()
    past.learn(2)
    newest = past.checkpoint()
    past.learn(4)
    point = found(past)
    assert (point.folder, point.version, point.env_steps, point.updates) == (
        newest, 2, 5 * CHUNK_STEPS, 5 * CHUNK_UPDATES,
    )  # fmt: skip
    assert (point.lost_env_steps, point.lost_updates) == (4 * CHUNK_STEPS, 4 * CHUNK_UPDATES)
    assert point.facts["trace_bytes"] > 0
    assert (point.session, point.problems) == (1, ())
    assert str(point) == (
        "goes on at 50 steps and 20 updates; 40 environment steps and 16 updates after that checkpoint are lost"
    )
    assert pickle.loads(pickle.dumps(point)) == point


def test_damaged_events_are_named_and_cost_nothing_else(past):
    past.learn(3)
    past.event("evaluated", "evaluator", version=None)  # and what else?
    past.checkpoint()
    point = found(past)
    assert point.problems == ("line 1 of events.jsonl is damaged",)
    with past.place.events_file.open("ab") as file:
        file.write(b'{"t_s": "soon", "kind": "policy", "component": "learner"}\n')
    point = find_resume_point(RunDirectory(past.place.path), past.config)
    assert point.problems == ("2 lines of events.jsonl are damaged, the first is line 1",)
    assert point.session == 1


def test_run_that_ended_with_a_checkpoint_loses_nothing(past):
    past.learn(3)
    past.checkpoint()
    past.trace.write(Note(past.updates, "ended", {}))
    point = found(past)
    assert (point.lost_env_steps, point.lost_updates) == (0, 0)
    assert str(point) == "goes on at 30 steps and 12 updates; nothing is lost"


def test_what_the_record_no_longer_took_is_lost_too(past):
    past.learn(3)
    past.checkpoint()
    past.learn(1)  # the last that is on record
    place = RunDirectory(past.end(None))
    with Board.create(place.board_file, [("supervisor", "supervisor"), ("learner", "learner")]) as board:
        board.slot("learner").count("env_steps", 900)
        board.slot("learner").count("updates", 400)
    point = find_resume_point(place, past.config)
    assert (point.lost_env_steps, point.lost_updates) == (900 - 3 * CHUNK_STEPS, 400 - 3 * CHUNK_UPDATES)


def test_salvaged_steps_are_lost_too_and_updates_of_a_dead_learner_are_not_counted_twice(past):
    past.learn()
    past.checkpoint()
    past.learn(3)
    lanes = tuple(SalvagedLane(0, salvaged, 0, cut=True, episodes_begun=1, checksum=0) for salvaged in (3, 4))
    past.trace.write(GroupSalvaged(past.updates, 0, 0, 0, 0, NOT_KEPT, lanes))
    past.trace.write(LearnerSucceeded(2 * CHUNK_UPDATES, 1))  # it began again from an older state
    point = found(past)
    assert point.lost_env_steps == 3 * CHUNK_STEPS + 7
    assert point.lost_updates == CHUNK_UPDATES


def test_torn_tail_of_the_record_is_lost_and_not_counted(past):
    past.learn()
    past.checkpoint()
    past.learn(2)
    size = past.trace.position
    os.truncate(past.trace.path, size - 1)
    point = found(past)
    assert (point.lost_env_steps, point.lost_updates) == (2 * CHUNK_STEPS, CHUNK_UPDATES)


@pytest.mark.parametrize("file", ["checkpoint.json", "state-2.safetensors", "policy.safetensors"])
def test_damaged_checkpoint_is_skipped_and_told(past, file):
    past.learn()
    past.checkpoint()
    past.learn(2)
    path = past.checkpoint() / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    past.learn()
    point = found(past)
    assert (point.version, point.env_steps, point.lost_env_steps) == (1, CHUNK_STEPS, 3 * CHUNK_STEPS)
    (problem,) = point.problems
    assert f"{file} of checkpoint 2" in problem
    assert str(point).endswith(problem)


@pytest.mark.parametrize("what", ["trace", "damage", "rows", "segment"])
def test_checkpoint_whose_record_does_not_reach_as_far_is_skipped_and_told(past, what):
    past.learn()
    past.checkpoint()
    before, rows = past.trace.position, past.rows.position
    past.learn(40)  # several segments of rows
    past.checkpoint()
    newest = past.rows.position
    assert newest.segment > rows.segment
    path = past.end(None)
    record = path / "record"
    match what:
        case "trace":
            os.truncate(record / TRACE_FILE, before + 20)
        case "damage":
            with (record / TRACE_FILE).open("r+b") as file:
                file.seek(before + 20)
                file.write(b"\xff")
        case "rows":
            os.truncate(record / f"rows-{newest.segment:06d}.bin", newest.offset - 1)
        case "segment":
            (record / f"rows-{newest.segment:06d}.bin").unlink()
    point = find_resume_point(RunDirectory(path), past.config)
    assert point.version == 1
    (problem,) = point.problems
    assert problem.startswith("checkpoint 2 cannot be used: ")


def test_checkpoint_whose_rows_are_gone_is_not_offered(past):
    past.learn(40)
    past.checkpoint()
    past.checkpoint(oldest_segment=2)
    past.rows.drop_before(2)
    path = past.place.checkpoint_dir(2)
    (path / "checkpoint.json").unlink()
    with pytest.raises(RunDirectoryError, match="the rows of checkpoint 1 are gone"):
        found(past)


def test_run_without_a_checkpoint_says_what_there_is(past):
    past.learn()
    past.policy(7)
    past.policy(12)
    path = past.end(None)
    with pytest.raises(RunDirectoryError) as caught:
        find_resume_point(RunDirectory(path), past.config)
    assert str(caught.value) == (
        f"[CFG-002] {path} holds no checkpoint that the run could go on from\n"
        "  checkpoints: none was written\n"
        "  checkpoint enabled: True\n"
        "  policies: 2, the newest of version 12\n"
        "  fix: start a new run with another --run-dir; the newest policy of this one plays with "
        f"`headrace eval {path}`"
    )


def test_no_command_plays_a_run_whose_environment_was_handed_over(past):
    past.learn()
    past.policy(12)
    path = past.end(None)
    handed_over = past.config.model_copy(update={"env": EnvConfig(factory="__main__:make")})
    with pytest.raises(RunDirectoryError) as caught:
        find_resume_point(RunDirectory(path), handed_over)
    assert caught.value.fix == "start a new run with another --run-dir"


def test_session_is_counted_from_the_events(past):
    past.learn()
    past.checkpoint()
    for _ in range(2):
        past.event("resumed", version=1, env_steps=10, updates=4, lost_env_steps=0, lost_updates=0)
    past.event("resumed", "learner", updates=3)  # that is another learner in the place of one that died
    assert found(past).session == 3


def test_time_goes_on_from_the_newest_report_before_the_checkpoint(past):
    past.learn(3)
    past.checkpoint(session_s=77.0)
    past.learn(3)
    past.metrics(20, wall_s=5.5)  # an evaluation of a policy of step 20, finished late
    assert found(past).wall_s == 3.0


def test_time_of_a_run_without_metrics_is_that_of_its_learner(past):
    past.learn()
    past.checkpoint(session_s=77.0)
    past.place.metrics_file.unlink()
    assert found(past).wall_s == 77.0
