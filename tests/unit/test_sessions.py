"""Opening a run directory: for a new run, or for one that goes on; what is refused, what is put aside."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.core.seeding import STREAMS
from headrace.learners.checkpoint import STATE_FILE
from headrace.runtime import sessions
from headrace.runtime.config import load_config
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.sessions import resume_or_begin
from headrace.telemetry import metrics
from headrace.telemetry.board import Board
from resume_support import CHUNK_STEPS, PastRun, files, lines


@pytest.fixture
def past(tmp_path):
    """A run that has learned, kept a checkpoint, and learned on."""
    made = PastRun(tmp_path / "run")
    made.learn(3)
    made.checkpoint()
    made.learn(2)
    return made


@contextmanager
def begun(path, overrides):
    """A session that goes on, once it has made its board."""
    with resume_or_begin(path, None, overrides) as session:
        with session.make_way():
            Board.create(path / "board", [("supervisor", "supervisor")]).close()
        yield session


def plain_copy(run):
    """Configuration and directory are as they were."""
    return files(run), sorted(path.name for path in run.iterdir())


# A new run


def test_new_run_begins_where_there_is_none(tmp_path):
    with resume_or_begin(tmp_path / "run", "pendulum-td3", {"run.steps": 20_000}) as session:
        assert session.resume is None
        assert session.note == f"{tmp_path / 'run'} holds no run yet: a new run starts there"
        assert session.config.run.steps == 20_000
        assert session.place.is_live()
    assert not session.place.is_live()


def test_without_a_configuration_there_has_to_be_a_run(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"holds no run\n  expected: .*config\.toml\n  found: no such folder"):
        resume_or_begin(tmp_path / "run", None, {"run.steps": 20_000})
    assert list(tmp_path.iterdir()) == []


def test_environment_alone_is_enough_for_a_new_run(tmp_path):
    with resume_or_begin(tmp_path / "run", None, {"env.id": "Pendulum-v1"}) as session:
        assert session.config.env.id == "Pendulum-v1"


def test_run_that_ended_before_its_first_step_begins_anew_with_its_own_configuration(tmp_path):
    with RunDirectory.create(tmp_path, load_config("pendulum-td3", {"run.seed": 7})) as run:
        run.events_file.write_text("{}\n")
        run.write_summary({"outcome": "failed", "books": {"produced": 0}})
    with resume_or_begin(tmp_path, None, {"replay.ratio": 0.5}) as session:  # nothing was learned, so all may change
        assert (session.config.run.seed, session.config.replay.ratio) == (7, 0.5)
        assert session.resume is None
        assert "ended before its first environment step: a new run starts there" in session.note
        assert (tmp_path / "earlier" / "1" / "summary.json").is_file()


@pytest.mark.parametrize("given", [None, "pendulum-td3"])
def test_run_that_was_killed_in_its_first_moment_begins_anew(tmp_path, given):
    RunDirectory.create(tmp_path, load_config("pendulum-td3", {"run.seed": 7})).close()
    before = (tmp_path / "config.toml").read_text()
    with resume_or_begin(tmp_path, given, {}) as session:
        assert session.config.run.seed == (7 if given is None else 0)
        assert "holds a configuration and nothing else" in session.note
    assert (tmp_path / "config-1.toml").read_text() == before


@pytest.fixture
def killed_early(tmp_path):
    """A run that was killed after 40 steps, and before its first checkpoint."""
    made = PastRun(tmp_path / "run")
    made.learn(4)
    path = made.end(None)
    with Board.create(made.place.board_file, [("learner", "learner")]) as board:
        board.slot("learner").count("env_steps", 40)
    return path


def test_run_that_was_killed_before_its_first_checkpoint_begins_anew_and_what_is_lost_is_told(killed_early):
    before = files(killed_early)
    with resume_or_begin(killed_early, None, {"run.seed": 3}) as session:
        assert session.resume is None
        assert session.config.run.seed == 3
        assert session.note == (
            f"{killed_early} holds a run that was killed before its first checkpoint, so its 40 environment steps are "
            "lost: a new run starts there"
        )
    kept = {name: data for name, data in files(killed_early).items() if name.startswith("earlier/1/")}
    assert kept == {f"earlier/1/{name}": data for name, data in before.items()}


@pytest.mark.parametrize("why_not", ["policy", "summary", "disabled"])
def test_run_without_a_checkpoint_that_has_something_else_is_not_put_aside(killed_early, why_not):
    run = RunDirectory(killed_early)
    match why_not:
        case "policy":
            run.checkpoint_dir(7).mkdir()
            (run.checkpoint_dir(7) / "policy.safetensors").write_bytes(b"a policy")
        case "summary":
            run.write_summary({"outcome": "completed", "books": {"produced": 40}})
        case "disabled":
            text = run.config_file.read_text().replace("[checkpoint]\nenabled = true", "[checkpoint]\nenabled = false")
            run.config_file.write_text(text)
            assert not run.read_config().checkpoint.enabled
    before = files(killed_early)
    with pytest.raises(RunDirectoryError, match="holds no checkpoint"):
        resume_or_begin(killed_early, None, {})
    assert files(killed_early) == before


def test_run_that_is_about_to_begin_is_not_disturbed(tmp_path):
    with RunDirectory.create(tmp_path, load_config("pendulum-td3")):
        with pytest.raises(RunDirectoryError, match="in use by a run that is alive"):
            resume_or_begin(tmp_path, None, {})
        assert not (tmp_path / "config-1.toml").exists()


@pytest.mark.parametrize("begun", ["summary", "board"])
def test_run_with_a_checkpoint_never_counts_as_one_that_has_not_begun(past, begun):
    """As after a resume that failed, or was killed, before the experience was there again."""
    past.place.metrics_file.unlink()
    path = past.end("failed" if begun == "summary" else None)
    run = RunDirectory(path)
    if begun == "summary":
        run.write_summary({"outcome": "failed", "books": {"produced": 0}})
    with Board.create(run.board_file, [("learner", "learner")]):
        pass
    with resume_or_begin(path, None, {}) as session:
        assert session.resume is not None
    with pytest.raises(RunDirectoryError):
        RunDirectory.create(path, past.config)


# What is refused, and leaves everything as it was


@pytest.mark.parametrize(
    ("given", "overrides", "first_line"),
    [
        (None, {"replay.ratio": 0.5}, "replay.ratio decides what is learned"),
        (None, {"replay.capasity": 5}, "unknown key replay.capasity"),
        (None, {"run.steps": 0}, "run.steps must be at least 1"),
        ("hockey-td3", {}, "env.id decides what is learned"),
    ],
)
def test_refused_configuration(past, given, overrides, first_line):
    path = past.end("interrupted")
    before = files(path)
    with pytest.raises(ConfigError) as caught:
        resume_or_begin(path, given, overrides)
    assert caught.value.what.startswith(first_line)
    assert files(path) == before
    assert not RunDirectory(path).is_live()


def test_live_run_is_refused(past):
    before = files(past.place.path)
    with pytest.raises(RunDirectoryError) as caught:
        resume_or_begin(past.place.path, None, {})
    assert str(caught.value) == (
        f"[CFG-002] {past.place.path} is in use by a run that is alive\n"
        f"  pid: {os.getpid()}\n"
        "  fix: wait for its end, or end it in order with Ctrl-C or SIGTERM"
    )
    assert files(past.place.path) == before
    assert past.place.is_live()
    past.end()


def test_run_that_has_all_its_steps_is_refused_until_it_is_given_more(tmp_path):
    config = load_config("pendulum-td3", {"run.steps": 30, "replay.learning_starts": 5, "collect.random_steps": 5})
    past = PastRun(tmp_path / "run", config)
    past.learn(3)
    past.checkpoint()
    path = past.end()
    before = files(path)
    with pytest.raises(ConfigError) as caught:
        resume_or_begin(path, None, {})
    assert str(caught.value) == (
        "[CFG-001] nothing to do: the run has its 30 steps\n"
        f"  run: {path}\n"
        "  env steps: 30\n"
        "  fix: raise run.steps (--steps N)"
    )
    assert files(path) == before
    with resume_or_begin(path, None, {"run.steps": 60}) as session:
        assert (session.resume.env_steps, session.config.run.steps) == (30, 60)


@pytest.mark.parametrize("outcome", [None, "interrupted"])
def test_run_with_all_its_steps_that_has_not_come_to_its_end_is_brought_there(tmp_path, outcome):
    """Its last updates or its last evaluation are missing."""
    config = load_config("pendulum-td3", {"run.steps": 30, "replay.learning_starts": 5, "collect.random_steps": 5})
    past = PastRun(tmp_path / "run", config)
    past.learn(3)
    past.checkpoint()
    with resume_or_begin(past.end(outcome), None, {}) as session:
        assert session.resume.env_steps == 30


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        ("__main__:make", "was handed over in Python, so it has to be handed over again"),
        ("somewhere:<lambda>", "was handed over in Python, so it has to be handed over again"),
        ("somewhere:outer.<locals>.make", "was handed over in Python, so it has to be handed over again"),
        ("no_such_module_anywhere.inner:make", "cannot be imported here"),
    ],
)
def test_environment_that_cannot_be_built_again_is_told_before_anything_starts(tmp_path, factory, what):
    past = PastRun(tmp_path / "run", load_config("pendulum-td3", {"env.factory": factory}))
    past.learn(3)
    past.checkpoint()
    path = past.end()
    before = files(path)
    with pytest.raises(ConfigError, match=what):
        resume_or_begin(path, None, {})
    assert files(path) == before
    with resume_or_begin(path, None, {"env.factory": factory}, has_factory=True) as session:
        assert session.config.env.factory == factory


# What is put aside


def test_configuration_is_replaced_only_by_another_one_and_the_old_one_is_kept(past):
    path = past.end("interrupted")
    before = (path / "config.toml").read_text()
    with begun(path, {"run.steps": past.config.run.steps}):
        assert not (path / "config-1.toml").exists()
        assert (path / "config.toml").read_text() == before
    with begun(path, {"run.steps": 77_000, "evaluation.episodes": 3}) as session:
        assert RunDirectory(path).read_config() == session.config
    (kept,) = path.glob("config-*.toml")
    assert kept.read_text() == before
    second = (path / "config.toml").read_text()
    with begun(path, {"run.steps": 78_000}):
        newest = max(path.glob("config-*.toml"))
        assert newest != kept
        assert newest.read_text() == second


def test_configuration_that_was_edited_is_taken_and_told(past):
    path = past.end("interrupted")
    file = path / "config.toml"
    text = file.read_text()
    assert "steps = 15000\n" in text
    file.write_text(text.replace("steps = 15000\n", "steps = 16000\n"))
    with begun(path, {}) as session:
        assert session.config.run.steps == 16_000
        assert str(session.resume).endswith(
            "; config.toml was edited since it was written, and whether that changes what is learned is not known"
        )
    file.write_text(text)
    with begun(path, {}) as session:
        assert session.resume.problems == ()


def test_a_run_of_other_random_streams_goes_on_and_that_is_told(past, monkeypatch):
    path = past.end("interrupted")
    monkeypatch.setattr("headrace.runtime.belonging.STREAMS", STREAMS + 1)
    with resume_or_begin(path, None, {}) as session:
        assert str(session.resume).endswith(
            "; the run was begun by another version of Headrace and goes on with the random numbers of this one, "
            "so no version can replay or verify it as a whole"
        )


def test_what_is_of_the_past_is_put_aside_and_what_stands_stays(past):
    past.policy(1 + past.version)
    past.policy(5 + past.version)
    (past.place.checkpoints_dir / STATE_FILE).write_bytes(b"a state that no successor may take")
    (past.place.stacks_dir / "collector-0.0.txt").write_text("stacks")
    reproducers = past.place.path / "reproducers"
    reproducers.mkdir()
    (reproducers / "collector-0-lane-0-0.json").write_text("{}")
    past.place.log_file("learner").write_text("hello")
    path = past.end("failed")
    summary, before = (path / "summary.json").read_bytes(), files(path)
    with begun(path, {}):
        now = files(path)
    assert {name: data for name, data in now.items() if "earlier" in name} == {
        "earlier/summary-1.json": summary,
        "earlier/metrics-1.jsonl": now["earlier/metrics-1.jsonl"],
        "earlier/checkpoints-1/2/policy.safetensors": b"a policy",
        "earlier/checkpoints-1/6/policy.safetensors": b"a policy",
        f"earlier/checkpoints-1/{STATE_FILE}": b"a state that no successor may take",
        "earlier/stacks-1/collector-0.0.txt": b"stacks",
        "earlier/reproducers-1/collector-0-lane-0-0.json": b"{}",
    }
    gone = {"summary.json", "checkpoints/2/policy.safetensors", "checkpoints/6/policy.safetensors",
            f"checkpoints/{STATE_FILE}", "stacks/collector-0.0.txt", "reproducers/collector-0-lane-0-0.json"}  # fmt: skip
    assert set(before) - set(now) == gone
    changed = {name for name in before.keys() & now.keys() if before[name] != now[name]}
    assert changed == {"metrics.jsonl", "board"}
    assert (path / "stacks").is_dir()


def test_lines_of_metrics_beyond_the_checkpoint_are_kept_elsewhere(past):
    path = past.end(None)
    with begun(path, {}) as session:
        assert session.resume.env_steps == 3 * CHUNK_STEPS
    assert [line["step"] for line in lines(path / "metrics.jsonl")] == [30]
    assert [line["step"] for line in lines(path / "earlier" / "metrics-1.jsonl")] == [50]


def test_evaluations_of_policies_that_will_not_be_do_not_decide_which_is_the_best(past):
    past.store.note_evaluation(1, 1.0)
    past.checkpoint()
    past.store.note_evaluation(2, 9.0)
    (past.place.checkpoint_dir(2) / "state-2.safetensors").unlink()
    path = past.end(None)
    with begun(path, {}):
        assert past.store.best_version() == 1
    assert (path / "earlier" / "checkpoints-1" / "2" / "checkpoint.json").is_file()


def test_every_resume_has_a_number_of_its_own(past):
    path = past.end("interrupted")
    for number in (1, 2, 3):
        with begun(path, {}) as session:
            session.place.write_summary({"outcome": "interrupted", "number": number})
    assert sorted(found.name for found in (path / "earlier").glob("summary-*")) == [
        "summary-1.json", "summary-2.json", "summary-3.json",
    ]  # fmt: skip


# Until its board is made


class Ended(BaseException):
    """The session is ended here."""


@pytest.mark.parametrize("where", ["_prepare", "_cut_metrics", "_change_config", "block", "asked"])
def test_whoever_ends_it_before_finds_everything_as_it_was(past, monkeypatch, where):
    (past.place.stacks_dir / "collector-0.0.txt").write_text("stacks")
    past.policy(2)
    path = past.end("completed")
    before = plain_copy(path)

    def end(*rest):
        if where != "asked":
            raise Ended
        return True

    def board():
        Board.create(path / "board", [("supervisor", "supervisor")]).close()
        assert (path / "summary.json").is_file()
        if where == "block":
            raise Ended

    with monkeypatch.context() as patch, resume_or_begin(path, None, {"run.steps": 77_000}) as session:
        assert plain_copy(path) == before
        if where != "block":
            patch.setattr(sessions, where, end)
        with pytest.raises(KeyboardInterrupt if where == "asked" else Ended), session.make_way():
            board()
    assert plain_copy(path) == before


def test_metrics_are_copied_only_where_some_are_cut(past):
    past.checkpoint()
    path = past.end("completed")
    copies = set()
    with resume_or_begin(path, None, {"run.steps": 77_000}) as session, session.make_way():
        copies = {found.name for found in (path / "earlier").iterdir()}
    assert copies == {"board-1"}


def test_copies_that_somebody_who_was_killed_has_left_are_removed_by_the_next_who_goes_on(past):
    path = past.end("completed")
    child = os.fork()
    if child == 0:
        try:
            with resume_or_begin(path, None, {"run.steps": 77_000}) as session, session.make_way():
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = {found.name for found in (path / "earlier").iterdir()}
    assert left == {"metrics-1.whole", "metrics-1.jsonl", "board-1"}
    with begun(path, {"run.steps": 78_000}):
        now = {found.name for found in (path / "earlier").iterdir()}
    assert now == {"metrics-1.jsonl", "summary-2.json"}


# A disk that does not take it


def refuse(patch, owner, name, text=None):
    """The call fails as on a full disk, at the path that contains ``text``."""
    real = getattr(owner, name)

    def full(path, *rest, **more):
        if text is None or text in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *rest, **more)

    patch.setattr(owner, name, full)


@pytest.mark.parametrize(
    ("owner", "name", "text"),
    [
        (Path, "mkdir", "earlier"),
        (sessions, "write_whole", "config-1"),
        (sessions, "write_whole", "config.toml"),
        (Path, "rename", "summary.json"),
        (Path, "rename", "stacks"),
        (Path, "mkdir", "stacks"),
        (Path, "mkdir", "checkpoints-1"),
        (Path, "rename", "checkpoints/2"),
        (sessions.CheckpointStore, "forget_newer", None),
        (metrics, "write_whole", "metrics-1"),
        (metrics, "write_whole", "metrics.jsonl"),
        (sessions, "write_whole", "metrics-1.whole"),
        (sessions, "write_whole", "board-1"),
    ],
)
def test_whatever_fails_the_run_is_as_it_was(past, monkeypatch, owner, name, text):
    past.policy(2)
    (past.place.stacks_dir / "collector-0.0.txt").write_text("stacks")
    path = past.end("failed")
    before = plain_copy(path)
    with monkeypatch.context() as patch:
        if text == "stacks" and name == "mkdir":
            patch.setattr(RunDirectory, "folders", lambda run: ())  # they are there
        refuse(patch, owner, name, text)
        with pytest.raises(
            RunDirectoryError, match=r"cannot be written\n  problem: OSError: .*No space left on device"
        ):
            begun(path, {"run.steps": 77_000}).__enter__()
    assert plain_copy(path) == before
    assert not RunDirectory(path).is_live()
    with resume_or_begin(path, None, {"run.steps": 77_000}) as session:
        assert session.resume.version == 1


def test_directory_that_cannot_be_locked_is_told(past, monkeypatch):
    path = past.end("failed")
    before = files(path)

    def read_only(*rest):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(RunDirectoryError, match=r"cannot be written\n  problem: OSError: .*Read-only file system"):
        resume_or_begin(path, None, {})
    monkeypatch.undo()
    assert files(path) == before
