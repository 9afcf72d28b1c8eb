"""What the watch decides about processes: samples in, findings out; no process is started here."""

from __future__ import annotations

import math
import os

import psutil
import pytest

from headrace.monitor.logfindings import Severity, WatchLimits
from headrace.monitor.logprocesses import (
    SAMPLES,
    UNSEEN,
    ProcessSample,
    ProcessWatch,
    climb,
    exit_code_of,
    exit_words,
    sample,
    size,
)

MIB = 2**20


def one(pid, at_s, **changes):
    facts = {"name": "python", "started_s": float(pid), "status": "sleeping", "cpu_s": 0.0, "rss_bytes": 100 * MIB}
    return ProcessSample(pid=pid, at_s=at_s, **{**facts, **changes})


@pytest.fixture
def watch():
    return ProcessWatch([1], WatchLimits())


def feed(watch, seconds, start_s=0.0, **of_pid):
    """One sample a second; ``p1=lambda t: {...}`` gives the facts of process 1."""
    for i in range(seconds):
        at_s = start_s + i
        watch.feed([one(int(name[1:]), at_s, **facts(at_s)) for name, facts in of_pid.items()], at_s)


def told(watch, now_s, silent_for_s=None):
    return {finding.kind: finding.sentence for finding in watch.findings(now_s, silent_for_s)}


def test_busy_while_the_log_stands_still(watch):
    feed(watch, 30, p1=lambda t: {"cpu_s": 0.98 * t}, p2=lambda t: {})
    assert told(watch, 29.0) == {}
    assert told(watch, 29.0, silent_for_s=80.0) == {
        "busy": "process 1 (python) uses 98% of a core while the log has stood still for 80 s: it loops, or is in one"
        " very long call"
    }


def test_idle_while_the_log_stands_still(watch):
    feed(watch, 30, p1=lambda t: {}, p2=lambda t: {"cpu_s": 0.001 * t}, p3=lambda t: {})
    assert told(watch, 29.0, silent_for_s=80.0) == {
        "idle": "none of the 3 processes computes (0.1% of a core) while the log has stood still for 80 s: they wait for"
        " one another, or for something outside"
    }
    [found] = watch.findings(29.0, 80.0)
    assert found.remedy.endswith("py-spy dump --pid 1 and --pid 2 and --pid 3")


def test_only_the_last_seconds_count(watch):
    feed(watch, 100, p1=lambda t: {"cpu_s": min(t, 50.0)})
    assert "idle" in told(watch, 99.0, silent_for_s=80.0)


def test_nothing_is_said_about_what_was_not_seen(watch):
    feed(watch, 1, p1=lambda t: {})
    assert told(watch, 0.0, silent_for_s=80.0) == {}
    feed(watch, 30, start_s=1.0, p1=lambda t: {}, p2=lambda t: {"status": UNSEEN})
    assert told(watch, 30.0, silent_for_s=80.0) == {}


def test_a_stopped_process(watch):
    feed(watch, 1, p1=lambda t: {"status": "stopped"})
    assert told(watch, 0.0)["stopped"].startswith("process 1 (python) has been stopped (SIGSTOP or Ctrl-Z)")


def test_a_zombie_after_its_grace(watch):
    feed(watch, 20, p1=lambda t: {}, p2=lambda t: {})
    feed(watch, 5, 20.0, p1=lambda t: {}, p2=lambda t: {"status": "zombie", "exit_code": 0})
    assert told(watch, 24.0) == {}
    assert told(watch, 25.0) == {
        "zombie": "process 2 (python) has ended, exit code 0 while 1 other goes on and stays a zombie: its parent does"
        " not notice"
    }


def test_a_worker_that_was_killed_is_told_at_once(watch):
    feed(watch, 3, p1=lambda t: {}, p2=lambda t: {})
    feed(watch, 1, 3.0, p1=lambda t: {}, p2=lambda t: {"status": "zombie", "exit_code": -9})
    feed(watch, 1, 4.0, p1=lambda t: {})
    [found] = watch.findings(4.0, None)
    assert (found.kind, found.severity) == ("ended", Severity.ERROR)
    assert found.sentence == "process 2 (python) has ended, killed by SIGKILL while 1 other goes on"


def test_helpers_of_a_moment_may_go(watch):
    feed(watch, 3, p1=lambda t: {}, p2=lambda t: {})
    feed(watch, 20, 3.0, p1=lambda t: {})
    assert told(watch, 22.0) == {}


def test_all_that_end_together_end_well(watch):
    feed(watch, 20, p1=lambda t: {}, p2=lambda t: {})
    feed(watch, 1, 20.0, p1=lambda t: {})
    watch.feed([], 21.0)
    assert not watch.all_ended(25.0)
    assert watch.all_ended(26.0)
    assert told(watch, 26.0) == {}


def test_children_that_outlive_the_process_that_was_named(watch):
    feed(watch, 20, p1=lambda t: {}, p2=lambda t: {})
    feed(watch, 6, 20.0, p2=lambda t: {})
    assert watch.to_sample() == {1, 2}
    assert told(watch, 25.0) == {"ended": "process 1 (python) has ended, exit code unknown while 1 other goes on"}


def test_a_pid_that_was_given_to_somebody_else_has_ended(watch):
    feed(watch, 20, p1=lambda t: {})
    feed(watch, 10, 20.0, p1=lambda t: {"started_s": 99.0, "name": "firefox"})
    assert watch.all_ended(29.0)


def test_a_watch_over_nothing_never_ends():
    assert not ProcessWatch([], WatchLimits()).all_ended(100.0)


def test_memory_that_climbs(watch):
    feed(watch, 301, p1=lambda t: {"rss_bytes": int((500 + t) * MIB)})
    text = told(watch, 300.0)["memory"]
    assert text.startswith("the memory of process 1 (python) climbs steadily: 50")
    assert text.endswith(" in 5 min, 3.5 GiB an hour")
    assert len(watch.watched[1].memory) <= SAMPLES


@pytest.mark.parametrize(
    "rss_mib",
    [
        lambda t: 500.0,
        lambda t: 500 + 300 * (1 - math.exp(-t / 20)),  # a start-up
        lambda t: 500 + 400 * math.sin(t / 10),
        lambda t: 500 + (2000 if 100 < t < 110 else 0),  # a spike
        lambda t: 500 + t / 100,  # 3 MiB in five minutes
        lambda t: 5000 - t,
    ],
)
def test_memory_that_does_not(watch, rss_mib):
    feed(watch, 301, p1=lambda t: {"rss_bytes": int(rss_mib(t) * MIB)})
    assert told(watch, 300.0) == {}


def test_the_slope_is_not_moved_by_spikes():
    readings = [(float(t), t * MIB + (1000 * MIB if t % 25 == 3 else 0)) for t in range(100)]
    assert climb(readings, 60.0) == pytest.approx(MIB, rel=0.05)
    assert climb(readings[:11], 1.0) is None
    assert climb(readings, 200.0) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [(None, "exit code unknown"), (3, "exit code 3"), (-11, "killed by SIGSEGV"), (-77, "killed by signal 77")],
)
def test_exit_codes_in_words(code, words):
    assert exit_words(code) == words


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3 << 8, 3), (9, -9), (139, -11)])
def test_the_exit_code_of_a_zombie(tmp_path, status, code):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a ) b) Z {' '.join(['0'] * 48)} {status}\n")
    assert exit_code_of(7, tmp_path) == code
    assert exit_code_of(8, tmp_path) is None


def test_a_process_stays_the_same_when_the_clock_is_set(monkeypatch):
    before, *_ = sample([os.getpid()], 1.0)
    boot_time = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 1.0)
    after, *_ = sample([os.getpid()], 2.0)
    assert after.started_s == before.started_s > 0


def test_sizes():
    assert (size(1.5 * 2**30), size(3 * MIB)) == ("1.5 GiB", "3.0 MiB")


def test_ended_processes_are_remembered_within_bounds(watch):
    for pid in range(2, 500):
        watch.feed([one(1, float(pid)), one(pid, float(pid))], float(pid))
    assert len(watch.watched) <= 203
    assert 1 in watch.watched
