"""A whole watch, with a clock and processes of its own making; and the command line on top of it."""

from __future__ import annotations

import json
import os

import pytest

from headrace.cli.main import main
from headrace.core.errors import ConfigError
from headrace.monitor.logfindings import WatchLimits
from headrace.monitor.logprocesses import ProcessSample
from headrace.monitor.logsession import LogSession, Surroundings

EPOCH_S = 1_700_000_000.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "training.log"


@pytest.fixture
def world(clock):
    """Clock, and processes that use no core."""

    class World:
        def __init__(self):
            self.pids, self.waited = {os.getpid()}, []

        def pause(self, seconds):
            self.waited.append(seconds)
            clock.advance(seconds)

        def sample(self, pids, at_s):
            facts = {"name": "python", "started_s": 1.0, "status": "sleeping", "cpu_s": 0.0, "rss_bytes": 2**20}
            return [ProcessSample(pid=pid, at_s=at_s, **facts) for pid in pids & self.pids]

    world = World()
    world.around = Surroundings(
        clock=clock, wall_s=lambda: EPOCH_S + clock.now(), pause=world.pause, sample=world.sample
    )
    return world


def write(path, text, age_s=0.0, now_s=0.0):
    with path.open("a") as file:
        file.write(text)
    os.utime(path, (EPOCH_S + now_s - age_s,) * 2)


def told(changes):
    return [(change.spell.finding.kind, change.began) for change in changes]


def test_a_finding_begins_and_ends(path, world, clock):
    write(path, "step=1\n")
    with LogSession(path, around=world.around) as session:
        assert session.look() == []
        clock.advance(61.0)
        assert told(session.look()) == [("silence", True)]
        clock.advance(5.0)
        assert session.look() == []
        write(path, "step=2\n", now_s=clock.now())
        assert told(session.look()) == [("silence", False)]
        [spell] = session.found.all()
        assert (spell.began_s, spell.ended_s) == (61.0, 66.0)
        assert spell.finding.sentence.startswith("no new line for 66 s")


def test_the_age_of_the_file_counts(path, world):
    write(path, "step=1\n", age_s=3600.0)
    with LogSession(path, around=world.around) as session:
        assert told(session.judge_once()) == [("silence", True)]
        assert session.found.all()[0].finding.sentence.startswith("no new line for 60 min")


def test_idle_processes_are_found_at_once(path, world):
    write(path, "Waiting for training batch to arrive", age_s=312.0)
    with LogSession(path, (os.getpid(),), around=world.around) as session:
        assert told(session.judge_once()) == [("silence", True), ("idle", True)]
        assert '"Waiting for training batch to arrive"' in session.found.all()[0].finding.sentence
        assert world.waited == [1.0]


def test_a_file_that_is_never_written(path, world):
    with LogSession(path, around=world.around) as session:
        follow = session.follow(until=lambda: False, for_s=65.0)
        assert [change for changes in follow for change in told(changes)] == [("no-file", True)]
        assert session.found.all()[0].finding.sentence == "there has been no training.log for 65 s"
        assert session.watched_s() == 65.0


def test_what_happens_to_the_file_is_noted(path, world):
    with LogSession(path, around=world.around) as session:
        session.look()
        assert session.notes == ["training.log does not exist yet; waiting for it"]
        write(path, "a long first line\n")
        session.look()
        assert session.notes == []
        path.write_text("new\n")
        session.look()
        assert session.notes == ["training.log was truncated; reading it from its start"]
        path.unlink()
        session.look()
        assert session.notes == ["training.log is gone; waiting for it"]


def test_the_watch_ends_with_its_processes(path, world):
    write(path, "step=1\n")
    with LogSession(path, (os.getpid(),), around=world.around) as session:
        looks = session.follow(until=lambda: False)
        next(looks)
        world.pids = set()
        assert [told(changes) for changes in looks] == [[]] * 6
        assert not session.found


def test_a_plot_is_drawn_while_the_watch_goes_on(path, world, tmp_path):
    write(path, "step=1 loss=2\nstep=2 loss=1\n")
    plot = tmp_path / "a.png"
    with LogSession(path, plot=plot, around=world.around) as session:
        for _ in session.follow(until=plot.exists, for_s=100.0):
            pass
        assert 30.0 <= session.watched_s() < 35.0


def test_a_pid_that_is_none_is_refused(path):
    with pytest.raises(ConfigError, match="there is no process 4194304999"):
        LogSession(path, (4194304999,))


def test_a_report_is_json(path, world):
    write(path, "step=1 loss=nan\nstep=2 loss=nan\nValueError: x\n")
    with LogSession(path, (os.getpid(),), WatchLimits(), around=world.around) as session:
        session.judge_once()
        report = json.loads(json.dumps(session.report("judged"), allow_nan=False))
    assert report["numbers"]["loss"] == {"readings": 2, "first": None, "last": None, "min": None, "max": None}
    assert report["messages"] == {"error": 1, "other": 2}
    assert {finding["kind"] for finding in report["findings"]} == {"error", "not-finite"}
    assert report["processes"][0]["pid"] == os.getpid()


# the command


def headrace(*arguments):
    with pytest.raises(SystemExit) as left:
        main(["monitor", *map(str, arguments)])
    return left.value.code


def test_a_log_without_fault(path, capsys):
    path.write_text("".join(f"step={i} loss={1 / (i + 1)}\n" for i in range(30)))
    assert headrace("--log-file", path, "--once") == 0
    out, err = capsys.readouterr()
    assert out.startswith("judged after ")
    assert out.endswith(": 30 lines read, 2 numbers followed, nothing found\n")
    assert err == ""


def test_a_log_with_a_fault(path, capsys, tmp_path):
    path.write_text("".join(f"step={i} loss=nan\n" for i in range(30)))
    assert headrace("--log-file", path, "--once", "--plot", tmp_path / "a.png") == 1
    out = capsys.readouterr().out
    assert "error: loss is nan since line 1 (30 readings)\n    do: stop here" in out
    assert "1 finding\n  open    error: loss is nan since line 1 (30 readings)\n" in out
    assert out.endswith("plot    none: no number was read twice\n")


def test_json_is_one_object_and_nothing_else(path, capsys):
    path.write_text("RuntimeError: boom\n")
    assert headrace("--log-file", path, "--once", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["exit_code"], found["lines"]) == ("judged", 1, 1)
    assert found["findings"][0]["sentence"] == 'error once (line 1): "RuntimeError: boom"'


def test_a_watch_of_limited_time(path, capsys):
    path.write_text("step=1\n")
    assert headrace("--log-file", path, "--run-duration", "0.001") == 0
    assert capsys.readouterr().out.startswith("ended after ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--once"], "training.log does not exist"),
        (["--once", "--run-duration", "3"], "--once and --run-duration contradict each other"),
        (["--plot", "a.pdf"], "--plot a.pdf is no PNG"),
        (["--silence-s", "0"], "silence_s is 0"),
        (["--pid", "4194304999"], "there is no process 4194304999"),
        (["--pid", "0"], "0 is not in the range"),
        (["--silence", "3"], "has no option --silence"),
    ],
)
def test_wrong_commands(path, capsys, arguments, words):
    assert headrace("--log-file", path, *arguments) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert "Traceback" not in err
    assert out == ""
