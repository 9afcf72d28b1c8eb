"""The doctor's verdict on everything that is known about a run, in whole sentences."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest

from board_support import PLAN, START_NS, component, look
from headrace.cli.doctor import in_words
from headrace.core.errors import ConfigError
from headrace.monitor import doctor
from headrace.monitor.doctor import diagnose, diagnose_stretch, shares
from headrace.monitor.snapshot import Disk, Memory, Snapshot
from headrace.runtime.config import load_config
from headrace.telemetry.blame import Condition
from headrace.telemetry.board import Activity, State
from headrace.telemetry.header import Header
from headrace.telemetry.looks import Process

HEADER = Header("run-7", 4, 10, 77, START_NS, 1_700_000_000, "this boot", "fox")
GB = 10**9


def at(now_s: float, steps: int, *, since_s: float | None = None, rss_bytes: int = GB):
    """A run that gets on."""
    since_s = now_s - 0.1 if since_s is None else since_s
    processes = {
        "supervisor": Process(10, alive=True, rss_bytes=GB // 10),
        "learner": Process(11, alive=True, rss_bytes=GB),
        "collector-0": Process(12, alive=True, cpu_s=now_s, rss_bytes=rss_bytes),
    }
    return look(
        now_s,
        component("supervisor", Activity.WAIT_CHILD, now_s - 0.1),
        component("learner", Activity.UPDATE, since_s, step=steps, env_steps=steps, updates=steps, pid=11),
        component("collector-0", Activity.ENV_STEP, since_s, lane=1, step=steps, env_steps=steps, pid=12),
        processes=processes,
    )


WELL = Snapshot(
    looks=(at(99.0, 5_000), at(100.0, 5_120)), header=HEADER, plan=PLAN, this_host="fox",
    disk=Disk(50 * GB, 100 * GB), memory=Memory(8 * GB, 16 * GB),
)  # fmt: skip
IDLE = replace(WELL, looks=(at(99.0, 5_000, since_s=98.5), at(100.0, 5_000, since_s=98.5)))
"""Nothing was counted between the looks, and nothing is old enough to be blamed for that."""
GETS_ON = "the run gets on: 120 environment steps/s and 120 updates/s"


def event(kind: str, t_s: float, name: str = "collector-0", text: str = "", **facts):
    return {"kind": kind, "t_s": t_s, "component": name, "text": text or f"{name} {kind}"} | facts


def test_a_run_that_gets_on():
    found = diagnose(WELL)
    assert found.to_json() == {
        "verdict": GETS_ON,
        "culprit": None,
        "state": "healthy",
        "stages": [
            {
                "component": "supervisor", "state": "waiting", "activity": "wait.child", "since_s": 0.1,
                "waits_on": None, "rate": None,
            },
            {
                "component": "learner", "state": "running", "activity": "update", "since_s": 0.1,
                "waits_on": None, "rate": 120.0,
            },
            {
                "component": "collector-0", "state": "running", "activity": "env.step", "since_s": 0.1,
                "waits_on": None, "rate": 120.0,
            },
        ],
        "evidence": [],
        "remedy": "",
    }  # fmt: skip
    assert found.exit_code == 0


# Runs that are over.


def test_finished():
    summary = {"outcome": "completed", "error": None, "wall_s": 12.34, "env_steps": 400, "updates": 1}
    found = diagnose(replace(WELL, summary=summary, live=False))
    assert (found.state, found.culprit, found.exit_code) == (Condition.FINISHED, None, 0)
    assert found.verdict == "the run completed after 12.3 s with 400 environment steps and 1 update"
    found = diagnose(replace(WELL, summary=summary | {"outcome": "interrupted"}, live=False))
    assert found.verdict == "the run was interrupted after 12.3 s with 400 environment steps and 1 update"


SPENT = (
    "[SUP-003] collector-0 ended and is not started again: it ended again after 1 restart within 300 s\n"
    "  last time: run_envs:make in lane 0 raised ValueError in step()\n"
    "  error: ValueError: burn map corrupt, tile 7\n"
    "  lane: 0\n"
    "  fix: read the last lines of logs/collector-0.log"
)


def test_failed_because_a_collector_kept_dying_of_an_exception():
    summary = {"outcome": "failed", "error": SPENT, "wall_s": 12.34}
    found = diagnose(replace(WELL, summary=summary, live=False, events=[event("fault", 12.0)]))
    assert (found.state, found.culprit, found.exit_code) == (Condition.FAILED, "collector-0", 1)
    assert found.verdict == (
        "the run failed after 12.3 s: collector-0 ended and is not started again: it ended again after 1 restart "
        "within 300 s; run_envs:make in lane 0 raised ValueError in step(); ValueError: burn map corrupt, tile 7"
    )
    assert found.remedy == "read the last lines of logs/collector-0.log"
    assert found.evidence == ("lane: 0", "12.0 s after the start: collector-0 fault")


def test_given_up():
    error = "[SUP-002] collector-1 has been inside env.step for 31 s (limit 30 s)\n  fix: repair it"
    verdict = event("verdict", 50.0, "collector-1", "collector-1 holds the run up")
    told = [event("fault", 49.0, "learner"), verdict]
    found = diagnose(replace(WELL, summary={"outcome": "stalled", "error": error, "wall_s": 50.0}, events=told))
    assert (found.state, found.culprit) == (Condition.FAILED, "collector-1")
    assert found.verdict == "the run gave up after 50.0 s: collector-1 has been inside env.step for 31 s (limit 30 s)"


def test_a_failure_without_an_event_is_laid_on_whom_its_sentence_names():
    error = "[SUP-001] learner ended although nobody asked it to: killed by SIGKILL\n  fix: read its log"
    found = diagnose(replace(WELL, summary={"outcome": "failed", "error": error, "wall_s": 3.0}, live=False))
    assert found.culprit == "learner"


FORK_SERVER = "[SUP-001] the fork server ended: killed by SIGKILL\n  fix: look for who kills processes"


def failed(error: str, *events, **more):
    summary = {"outcome": "failed", "error": error, "wall_s": 3600.0} | more
    return diagnose(replace(WELL, summary=summary, live=False, events=events)).culprit


def test_a_fault_that_was_mended_is_no_culprit_of_another_end():
    mended = event("fault", 10.0), event("restarted", 10.2)
    end = event("fault", 3600.0, "supervisor")
    assert failed(FORK_SERVER, *mended, end) is None
    assert failed(FORK_SERVER, mended[0], event("ready", 12.0), end) is None
    assert failed(FORK_SERVER, *mended, event("fault", 3599.0), end) == "collector-0"


def test_a_culprit_is_a_component():
    assert failed(FORK_SERVER, event("fault", 10.0, "environment of lane 3", how="hung")) is None


def test_whom_the_summary_names_is_the_culprit():
    told = event("fault", 3599.0), event("verdict", 3599.5, "learner")
    assert failed(FORK_SERVER, *told, culprit="trainer") == "trainer"
    assert failed(FORK_SERVER, *told, culprit=None) is None
    assert failed(SPENT, *told, culprit=None) == "collector-0"  # its sentence does


def test_a_killed_parent():
    found = diagnose(replace(WELL, looks=(at(83.2, 5_000),), live=False, silent_s=300.4))
    assert (found.state, found.culprit, found.exit_code) == (Condition.DEAD, "supervisor", 1)
    assert found.verdict == (
        "supervisor (pid 10) ended without a summary 83.2 s after the start of the run, 300 s ago: "
        "it was killed, or the machine ran out of memory"
    )
    assert found.evidence[0] == "learner and collector-0 still run, and leave when they notice"
    assert found.remedy.endswith("go on from its newest checkpoint: headrace train --resume --run-dir RUN")
    assert (
        "at the last sign of life collector-0 had been inside env.step of lane 1, step 5000 for 0.1 s" in found.evidence
    )


def over(state: State, **changes):
    """A run whose supervisor has ended by itself and left no summary."""
    ended = look(83.2, component("supervisor", since_s=83.2, state=state), component("learner", state=State.ENDED))
    return diagnose(replace(WELL, looks=(ended,), live=False, silent_s=300.4, **changes))


@pytest.mark.parametrize("state", [State.ENDED, State.FAILED])
def test_a_summary_for_which_there_was_no_room(state):
    told = event("ended", 83.0, "supervisor", "run ended: completed")
    found = over(state, events=[told], disk=Disk(0, 50 * GB))
    assert (found.state, found.culprit, found.exit_code) == (Condition.FAILED, "supervisor", 1)
    assert found.verdict == (
        "supervisor (pid 10) ended by itself 83.2 s after the start of the run, 300 s ago, and its summary could not be "
        "written; the disk of the run directory is full: 0 MB of 50.0 GB are free"
    )
    assert found.evidence == ("the last that was written: run ended: completed",)
    assert found.remedy == (
        "make room on that disk; go on from its newest checkpoint: headrace train --resume --run-dir RUN"
    )


@pytest.mark.parametrize("where", [{}, {"here": False}, {"here": False, "this_host": "hare", "disk": Disk(0, GB)}])
def test_a_summary_that_a_run_could_not_write_where_its_directory_was_moved(where):
    moved = event("fault", 83.1, "supervisor", "the run directory L1 was moved", code="CFG-003")
    found = over(State.FAILED, events=[moved, event("ended", 83.2, "supervisor", "run ended: failed")], **where)
    assert found.verdict == (
        "supervisor (pid 10) ended by itself 83.2 s after the start of the run, 300 s ago, and its summary could not be "
        "written; it had failed: the run directory L1 was moved"
    )
    assert found.remedy.startswith("go on from its newest checkpoint")


def test_a_full_disk_is_told_beside_a_killed_parent():
    found = diagnose(replace(WELL, looks=(at(83.2, 5_000),), live=False, disk=Disk(0, 50 * GB)))
    assert found.evidence[1] == "the disk of the run directory is full: 0 MB of 50.0 GB are free"


def test_a_restarted_machine():
    found = diagnose(replace(WELL, looks=(at(83.2, 5_000),), here=False, live=False))
    assert (found.state, found.culprit) == (Condition.DEAD, None)
    assert found.verdict == "the machine or container was restarted while the run went on, 83.2 s after its start"
    assert found.remedy == "go on from its newest checkpoint: headrace train --resume --run-dir RUN"


def test_a_copy_from_another_machine_tells_what_was():
    copy = replace(WELL, looks=(at(83.2, 5_000, since_s=60.0),), here=False, live=False, this_host="hare")
    found = diagnose(copy)
    assert (found.state, found.culprit) == (Condition.STALLED, "collector-0")
    assert found.verdict == (
        "when this copy of a run on fox was made, 83.2 s after its start, collector-0 has been inside env.step "
        "of lane 1, step 5000 for 23.2 s (limit 30 s)"
    )


@pytest.mark.parametrize(
    ("live", "state", "verdict"),
    [
        (True, Condition.STARTING, "the run is starting: it has no board yet"),
        (False, Condition.DEAD, "the run ended before it had a board that can be read"),
    ],
)
def test_a_run_without_a_board(live, state, verdict):
    found = diagnose(Snapshot(live=live))
    assert (found.state, found.verdict, found.stages) == (state, verdict, ())


# What the system tells.


def test_a_full_disk():
    found = diagnose(replace(WELL, disk=Disk(3_100_000, 50 * GB)))
    assert (found.state, found.culprit, found.exit_code) == (Condition.STARVED, None, 3)
    assert found.verdict == (
        "the disk of the run directory is full: 3 MB of 50.0 GB are free, so events, metrics and checkpoints are lost"
    )


def test_a_directory_that_cannot_be_written():
    found = diagnose(replace(WELL, disk=Disk(50 * GB, 100 * GB, "its file system is read-only")))
    assert found.verdict == (
        "the run directory cannot be written (its file system is read-only), "
        "so events, metrics and checkpoints are lost"
    )


def test_memory_that_is_nearly_used_up():
    found = diagnose(
        replace(WELL, memory=Memory(GB // 2, 16 * GB), looks=(at(99.0, 1), at(100.0, 2, rss_bytes=9 * GB)))
    )
    assert (found.state, found.culprit) == (Condition.STARVED, "collector-0")
    assert found.verdict == (
        "the machine runs out of memory: 500 MB of 16.0 GB are left, and collector-0 holds the most of this run, 9.0 GB"
    )


def test_memory_that_other_programs_hold_is_laid_on_nobody():
    found = diagnose(replace(WELL, memory=Memory(GB // 2, 64 * GB)))
    assert (found.state, found.culprit) == (Condition.STARVED, None)
    assert found.verdict == (
        "the machine runs out of memory: 500 MB of 64.0 GB are left, and other programs hold it: this run has 2.1 GB"
    )
    assert found.remedy == "end what else uses memory, or give the run a machine with more of it"


def keeping(at_s: float, rss_bytes: int):
    """A keeper of 40 MB, and what its supervisor has counted with the program that it runs."""
    view = component("trainer", Activity.COMMAND, at_s, kind="command", pid=11, rss_bytes=rss_bytes)
    return look(at_s, view, processes={"trainer": Process(11, alive=True, rss_bytes=40_000_000)})


def test_memory_of_what_a_component_has_started_is_its_own():
    looks = (keeping(99.0, 700_000_000), keeping(100.0, 700_000_000))
    found = diagnose(replace(WELL, looks=looks, memory=Memory(20_000_000, 1_200_000_000)))
    assert (found.state, found.culprit) == (Condition.STARVED, "trainer")
    assert found.verdict == (
        "the machine runs out of memory: 20 MB of 1.2 GB are left, and trainer holds the most of this run, 700 MB"
    )
    assert "replay.capacity" not in found.remedy
    looks = (keeping(99.0, GB), keeping(100.0, GB + 400_000_000))
    found = diagnose(replace(WELL, looks=looks))
    assert found.verdict == "trainer grows by 200 MB a second and holds 1.4 GB: the 8.0 GB that are left last 40.0 s"


def test_memory_that_grows():
    looks = (at(98.0, 5_000, rss_bytes=GB), at(100.0, 5_240, rss_bytes=GB + 400_000_000))
    found = diagnose(replace(WELL, looks=looks))
    assert (found.state, found.culprit) == (Condition.STARVED, "collector-0")
    assert (
        found.verdict == "collector-0 grows by 200 MB a second and holds 1.4 GB: the 8.0 GB that are left last 40.0 s"
    )
    slower = (looks[0], at(100.0, 5_240, rss_bytes=GB + 20_000_000))
    assert diagnose(replace(WELL, looks=slower)).state is Condition.HEALTHY


AGAIN = tuple(event("restarted", second) for second in (10.0, 80.0, 90.0, 95.0))


def restarted(waits_since_s: float):
    """Looks at a collector that was started a moment ago, and at the learner that waits for it."""
    learner = component(
        "learner", Activity.WAIT_ROWS, waits_since_s, waits_on="collector-0", env_steps=5_000, updates=9, pid=11
    )
    starting = component("collector-0", Activity.START, 98.5, state=State.STARTING, pid=13)
    return look(99.0, learner, starting), look(100.0, learner, starting)


def test_a_component_that_is_restarted_and_gets_nowhere():
    events = [*AGAIN, event("fault", 94.0)]
    found = diagnose(replace(WELL, looks=restarted(91.0), events=events))
    assert (found.state, found.culprit) == (Condition.LIVELOCKED, "collector-0")
    assert found.verdict == (
        "collector-0 is started again and again and gets nowhere: 3 restarts within 60 s (5 within 300 s are allowed), "
        "and no environment step or update within the last 1.0 s"
    )
    assert found.evidence == ("94.0 s after the start: collector-0 fault",)


@pytest.mark.parametrize(
    "changes",
    [
        {"looks": restarted(97.0)},  # the learner has not waited for long
        {"looks": IDLE.looks},  # it is inside an update
        {"events": [event("restarted", second) for second in (60.0, 61.0, 62.0)]},  # that is over
    ],
)
def test_restarts_alone_are_no_livelock(changes):
    found = diagnose(replace(WELL, **{"looks": restarted(91.0), "events": AGAIN} | changes))
    assert found.state is not Condition.LIVELOCKED
    assert "collector-0 was restarted " in found.verdict


@pytest.mark.parametrize("waits_on", ["collector-0", "collector-1", None])
@pytest.mark.parametrize("first", [Activity.START, Activity.WAIT_RESTART])
@pytest.mark.parametrize("second", [Activity.START, Activity.WAIT_RESTART])
def test_those_that_are_restarted_and_get_nowhere_do_not_excuse_each_other(waits_on, first, second):
    collectors = [
        component(name, activity, 98.5, state=State.STARTING, deadline_s=5.0, pid=13)
        for name, activity in (("collector-0", first), ("collector-1", second))
    ]
    learner = component("learner", Activity.WAIT_ROWS, 91.0, waits_on=waits_on)
    looks = look(99.0, learner, *collectors), look(100.0, learner, *collectors)
    events = [event("restarted", at, f"collector-{place}") for at in (80.0, 85.0, 95.0) for place in (0, 1)]
    assert diagnose(replace(WELL, looks=looks, events=events)).state is Condition.LIVELOCKED


def programs(*views):
    """A run of somebody else's programs, of which no configuration tells what is allowed."""
    supervisor = component("supervisor", Activity.WAIT_CHILD, 99.9)
    looks = (look(99.0, supervisor, *views), look(100.0, supervisor, *views))
    return Snapshot(looks=looks, header=HEADER, this_host="fox", memory=Memory(8 * GB, 16 * GB))


def program(name: str, activity: Activity = Activity.COMMAND, **more):
    return component(name, activity, 99.5, kind="command", **more)


def test_a_program_that_is_restarted_again_and_again_beside_one_that_runs():
    helper = program("helper", Activity.WAIT_READY, state=State.STARTING)
    events = [event("restarted", second, "helper") for second in (80.0, 90.0, 95.0)]
    found = diagnose(replace(programs(program("trainer"), helper), events=events))
    assert (found.state, found.culprit) == (Condition.HEALTHY, "helper")
    assert found.verdict == "the run gets on: trainer runs and helper starts; helper was restarted 3 times within 60 s"
    assert found.remedy == "read the end of logs/helper.log"
    found = diagnose(replace(programs(helper), events=events))
    assert (found.state, found.culprit) == (Condition.LIVELOCKED, "helper")
    assert found.verdict == (
        "helper is started again and again and gets nowhere: 3 restarts within 60 s, "
        "and no sign of progress within the last 1.0 s"
    )
    stopped = program("helper", Activity.STOP, state=State.STOPPING)
    assert diagnose(replace(programs(stopped), events=events)).state is Condition.HEALTHY


def test_programs_a_run_goes_on_without():
    run = programs(program("main"), program("tb", state=State.FAILED), program("helper", state=State.FAILED))
    texts = tuple(f"the run goes on without {name}: it has never become ready" for name in ("tb", "helper"))
    first, second = (event("degraded", 1.0, name, text) for name, text in zip(("tb", "helper"), texts, strict=True))
    gets_on = "the run gets on: main runs, tb failed and helper failed"
    found = diagnose(replace(run, events=[first]))
    assert (found.verdict, found.remedy) == (f"{gets_on}; {texts[0]}", "read the end of logs/tb.log")
    found = diagnose(replace(run, events=[first, second]))
    assert (found.verdict, found.evidence) == (f"{gets_on}; the run goes on without tb and helper", texts)
    assert found.remedy == "read the ends of logs/tb.log and logs/helper.log"
    summary = {"outcome": "completed", "error": None, "wall_s": 9.0, "did": "3 processes", "left_out": ["tb", "helper"]}
    found = diagnose(replace(run, summary=summary, live=False))
    assert (found.state, found.culprit) == (Condition.FINISHED, "tb")
    assert found.verdict == "the run completed after 9.0 s with 3 processes; it went on without tb and helper"
    assert diagnose(replace(run, summary=summary | {"left_out": []}, live=False)).culprit is None


def test_restarts_that_climb_while_the_run_gets_on():
    found = diagnose(replace(WELL, events=[event("restarted", second) for second in (10.0, 80.0, 95.0)]))
    assert (found.state, found.culprit) == (Condition.HEALTHY, "collector-0")
    assert found.verdict == (f"{GETS_ON}; collector-0 was restarted 3 times within 300 s, and more than 5 end the run")
    assert diagnose(replace(WELL, events=[event("restarted", 10.0)])).verdict == GETS_ON


def test_an_evaluation_that_falls_behind():
    events = [event("policy", second, "learner", version=second) for second in (10, 20, 30)]
    events.insert(1, event("evaluated", 15, "evaluator", version=10))
    found = diagnose(replace(WELL, events=events))
    assert (found.state, found.culprit) == (Condition.HEALTHY, None)
    assert found.verdict == f"{GETS_ON}; the evaluation is 2 policies behind"
    without = replace(WELL, events=events[:1] + events[2:], plan=replace(PLAN, evaluates=False))
    assert diagnose(without).verdict == GETS_ON


MOVED = "the target critic moved 820 times in 410 updates; algorithm.policy_delay 2 declares 205"


def mismatch(name: str = "target_critic_moves", text: str = MOVED, **facts):
    return {
        "name": name, "done": 820, "declared": 205, "text": text, "severity": "warning", "remedy": "move it once", "ok": False
    } | facts  # fmt: skip


NEVER = mismatch("never_hit", "evaluation.every_steps 5,000 is never reached", remedy="change it")
OTHER = mismatch(
    "critic_lr", "the learning rate of the critic is 0.1; algorithm.critic_lr declares 0.001", remedy="other"
)


def test_a_ledger_that_does_not_balance_while_the_run_gets_on():
    told = [event("ledger", 3.0, "learner") | mismatch(text=text) for text in ("an older number", MOVED)]
    found = diagnose(replace(WELL, events=told))
    assert (found.state, found.culprit, found.exit_code) == (Condition.HEALTHY, "learner", 0)
    assert found.verdict == f"{GETS_ON}; {MOVED}"
    assert found.remedy == "move it once"
    assert found.evidence == ()


def test_several_mismatches_are_one_sentence_and_lines():
    told = [event("ledger", 3.0, "learner") | one for one in (NEVER, mismatch(), OTHER)]
    found = diagnose(replace(WELL, events=told))
    assert found.verdict == f"{GETS_ON}; {MOVED} (and 1 more of the ledger)"
    assert found.evidence == (OTHER["text"], NEVER["text"])


def test_intervals_that_are_never_reached_are_no_mismatch():
    other = NEVER | {"text": "learn.publish_every 9,000 is never reached"}
    told = [event("ledger", 0.1, "supervisor") | one for one in (NEVER, other, NEVER)]
    found = diagnose(replace(WELL, events=told))
    assert (found.verdict, found.culprit) == (f"{GETS_ON}; 2 declared intervals are out of this run's reach", None)
    assert found.evidence == (NEVER["text"], other["text"])
    assert found.remedy == "shorten it, or make the run longer"
    found = diagnose(replace(WELL, summary=DONE | {"ledger": []}, events=told[:1]))
    assert (found.verdict, found.evidence) == (
        f"{ENDED}; 1 declared interval is out of this run's reach",
        (NEVER["text"],),
    )


DONE = {"outcome": "completed", "error": None, "wall_s": 12.34, "env_steps": 400, "updates": 410}
ENDED = "the run completed after 12.3 s with 400 environment steps and 410 updates"
FINE = mismatch("critic_steps", "the optimiser of the critic has made 410 steps", ok=True, severity="info")


def test_a_ledger_that_did_not_balance_at_the_end():
    summary = DONE | {"ledger": [FINE, mismatch()]}
    # The summary knows better than the events.
    told = [event("ledger", 1.0, "learner") | one for one in (NEVER, OTHER)]
    found = diagnose(replace(WELL, summary=summary, events=told))
    assert (found.state, found.culprit) == (Condition.FINISHED, "learner")
    assert found.verdict == f"{ENDED}; {MOVED}"
    assert (found.evidence, found.remedy) == ((NEVER["text"],), "move it once")
    assert diagnose(replace(WELL, summary=DONE | {"ledger": [FINE]})).verdict == ENDED


def test_lanes_a_run_goes_on_without():
    text = "the run goes on without collector-1 and its lanes 3, 4, 5: its budget is spent"
    first = event("degraded", 40.0, "collector-1", text, lanes=[3, 4, 5])
    found = diagnose(replace(WELL, events=[first]))
    assert (found.verdict, found.culprit) == (f"{GETS_ON}; {text}", "collector-1")
    assert found.remedy == "see reproducers/ and logs/ for what took these lanes down"
    second = event("degraded", 50.0, "collector-0", "the run goes on without lane 0: it failed 3 times", lanes=[0])
    found = diagnose(replace(WELL, events=[first, second]))
    assert found.verdict == f"{GETS_ON}; the run goes on without lanes 0, 3, 4 and 5"
    assert found.evidence == (text, second["text"])


def test_events_that_a_disk_has_changed_end_no_diagnosis():
    told = [event("degraded", 40.0, "collector-1", "left", lanes=lanes) for lanes in (None, 3, "text", ["a", 3], [4])]
    assert "without lanes 3 and 4" in diagnose(replace(WELL, events=told)).verdict
    odd = [event("ledger", 41.0, "learner", "odd") | {"name": ["a"]}]
    assert "odd" in diagnose(replace(WELL, events=odd)).verdict


def test_lanes_a_run_went_on_without():
    lost = {"lanes": [0], "collectors": [], "reason": "it failed 3 times"}
    found = diagnose(replace(WELL, summary=DONE | {"degraded": lost}))
    assert (found.verdict, found.culprit) == (f"{ENDED}; it went on without lane 0: it failed 3 times", None)
    whole = lost | {"lanes": [2, 3], "collectors": ["collector-1"]}
    found = diagnose(replace(WELL, summary=DONE | {"degraded": whole}))
    assert (found.verdict, found.culprit) == (
        f"{ENDED}; it went on without lanes 2 and 3: it failed 3 times",
        "collector-1",
    )
    assert diagnose(replace(WELL, summary=DONE | {"degraded": None, "warnings": []})).verdict == ENDED


def test_warnings_about_the_data():
    zero = {"kind": "zero_part", "severity": "warning", "text": "obs.camera is all zero", "facts": {}}
    info = {"kind": "few_rewards", "severity": "info", "text": "2 different rewards so far", "facts": {}}
    found = diagnose(replace(WELL, summary=DONE | {"warnings": [info, zero]}))
    assert found.verdict == f"{ENDED}; 1 warning about the data stands"
    assert found.evidence == ("obs.camera is all zero",)
    assert found.remedy == "read what the warnings mean in docs/guides/not-learning.md"
    told = [
        event("suspicious", 5.0, "learner", "in lane 1", finding="stuck_lane", severity="warning"),
        event("suspicious", 6.0, "learner", "in lanes 1 and 2", finding="stuck_lane", severity="warning"),
        event("suspicious", 7.0, "learner", "obs.camera is all zero", finding="zero_part", severity="warning"),
        event("suspicious", 7.0, "learner", "few rewards", finding="few_rewards", severity="info"),
    ]
    found = diagnose(replace(WELL, events=told))
    assert found.verdict == f"{GETS_ON}; 2 warnings about the data stand"
    assert found.evidence == ("in lanes 1 and 2", "obs.camera is all zero")


def test_what_stands_is_told_beside_another_verdict():
    told = [event("ledger", 3.0, "learner") | mismatch(), event("fault", 4.0)]
    stuck = replace(WELL, looks=(at(99.0, 5_000, since_s=50.0), at(100.0, 5_000, since_s=50.0)), events=told)
    failed = replace(WELL, summary={"outcome": "failed", "error": SPENT, "wall_s": 1.0, "ledger": [mismatch()]})
    for snapshot in (stuck, failed, replace(WELL, looks=(at(83.2, 5_000),), live=False, events=told)):
        found = diagnose(snapshot)
        assert not found.state.well
        assert MOVED not in found.verdict
        assert MOVED in found.evidence


def test_warm_up_longer_than_the_buffer_is_refused_before_anything_starts():
    with pytest.raises(ConfigError) as caught:
        load_config(None, {"env.id": "Pendulum-v1", "replay.capacity": 5_000, "replay.learning_starts": 6_000})
    assert str(caught.value).startswith(
        "[CFG-001] the learner would wait for ever: it starts after more steps than the replay can hold\n"
    )


# A stretch of time.


def stuck_from(second: int, until: int = 30):
    """A run whose collector stands still from some second on."""
    return [at(float(now), 100 * min(now, second), since_s=float(min(now, second)) - 0.1) for now in range(until)]


def test_what_held_a_stretch_up_for_half_of_it_is_its_verdict():
    found = diagnose_stretch(replace(WELL, looks=stuck_from(4), plan=PLAN))
    assert (found.state, found.culprit) == (Condition.STALLED, "collector-0")
    assert found.verdict.startswith("collector-0 has been inside env.step of lane 1, step 400 for 25.1 s (limit 30 s)")
    assert found.evidence[0] == "so at 16 of 29 looks"


def test_what_held_a_stretch_up_for_a_while_is_told_beside_the_verdict():
    looks = [*stuck_from(10, 22), *(at(float(now), 100 * now) for now in range(22, 40))]
    found = diagnose_stretch(replace(WELL, looks=looks, plan=replace(PLAN, group_size=1)))
    assert (found.state, found.culprit) == (Condition.HEALTHY, None)
    assert found.verdict == "the run gets on: 100 environment steps/s and 100 updates/s"
    assert found.evidence == (
        (
            "stalled at 2 of 39 looks: collector-0 has been inside env.step of lane 1, step 1000 for 11.1 s (limit 30 s) "
            "and uses 100% of a core: it spins without getting on"
        ),
    )


def test_a_run_that_was_over_before_it_could_be_watched_is_not_said_to_be_starting():
    starting = [
        look(float(second), component("learner", Activity.START, 0.0, state=State.STARTING)) for second in (1, 2)
    ]
    found = diagnose_stretch(replace(WELL, looks=starting, summary=DONE, plan=PLAN))
    assert found.state == Condition.FINISHED
    assert found.verdict.startswith("the run completed")
    assert found.evidence[-1].startswith("training was over before it could be looked at twice")
    found = diagnose_stretch(replace(WELL, looks=starting, summary=DONE | {"outcome": "interrupted"}, plan=PLAN))
    assert (found.verdict.startswith("the run was interrupted"), found.evidence) == (True, ())


@pytest.mark.parametrize(
    ("every", "told"),
    [(5, ("collector-0 was found in the step of lane 2 at 17 of 20 looks: it is the slow one",)), (1, ())],
)
def test_the_slow_lane_of_a_stretch(every, told):
    def views(second: int):
        lane = 2 if second % every else second // every % 3
        learner = component("learner", Activity.UPDATE, second, env_steps=second, updates=second)
        return learner, component("collector-0", Activity.ENV_STEP, second, lane=lane, env_steps=second)

    found = diagnose_stretch(Snapshot(looks=[look(float(second), *views(second)) for second in range(20)], plan=PLAN))
    assert found.evidence == told


def test_the_shares_of_a_stretch():
    def views(second: int):
        waits = second % 4 == 0
        activity = Activity.WAIT_CREDIT if waits else Activity.ENV_STEP
        return (
            component("supervisor", Activity.WAIT_CHILD, second),
            component("collector-0", activity, second, env_steps=10 * second, waits_on="learner" if waits else None),
            component("learner", Activity.START, 0.0, state=State.STARTING),
        )

    table = shares([look(float(second), *views(second)) for second in range(8)], PLAN)
    assert [(one.component, one.rate, one.busy_with, one.waited_on) for one in table] == [
        ("collector-0", 10.0, {"env.step": 0.75, "wait.credit": 0.25}, {"learner": 0.25}),
        ("learner", 0.0, {"start": 1.0}, {}),
    ]


# How it is drawn.


def test_in_words():
    found = diagnose(replace(WELL, looks=(at(99.0, 5_000, since_s=80.0), at(100.0, 5_000, since_s=80.0))))
    text = in_words(found)
    lines = text.splitlines()
    assert lines[0].split() == ["component", "state", "activity", "since", "rate", "waits", "on", "pid"]
    assert lines[3].split() == ["collector-0", "running", "env.step", "20.0", "s", "0.0/s", "-", "12"]
    assert f"stalled: {found.verdict}" in lines
    assert lines[-2:] == ["what to do", f"  {found.remedy}"]
    assert json.loads(json.dumps(found.to_json()))["culprit"] == "collector-0"


def seen_in(lanes, since=None):
    """Looks at a collector in the step of these lanes, one a second."""
    since = since or range(len(lanes))
    return [
        look(
            float(second),
            component("learner", Activity.UPDATE, second, env_steps=second, updates=second),
            component("collector-0", Activity.ENV_STEP, since[second], lane=lane, env_steps=second),
        )
        for second, lane in enumerate(lanes)
    ]


@pytest.mark.parametrize(("group_size", "twice"), [(64, 2), (128, 2), (128, 3)])
def test_a_lane_that_is_met_again_among_many_is_not_the_slow_one(group_size, twice):
    lanes = [*range(25 - twice + 1), *[0] * (twice - 1)]
    found = diagnose_stretch(Snapshot(looks=seen_in(lanes), plan=replace(PLAN, group_size=group_size)))
    assert len(lanes) == 25
    assert found.evidence == ()


def test_one_step_that_is_seen_again_and_again_counts_once():
    lanes = [*range(12), *[3] * 8]
    plan = replace(PLAN, group_size=32)
    found = diagnose_stretch(Snapshot(looks=seen_in(lanes, [*range(12), *[12] * 8]), plan=plan))
    assert found.evidence == ()
    found = diagnose_stretch(Snapshot(looks=seen_in(lanes), plan=plan))
    assert found.evidence == ("collector-0 was found in the step of lane 3 at 9 of 20 looks: it is the slow one",)


@pytest.mark.parametrize(("hits", "tries", "share"), [(0, 5, 0.3), (3, 5, 0.3), (5, 5, 0.3), (900, 1500, 0.5)])
def test_the_tail_of_the_binomial(hits, tries, share):
    exact = sum(
        Fraction(math.comb(tries, k)) * Fraction(share) ** k * (1 - Fraction(share)) ** (tries - k)
        for k in range(hits, tries + 1)
    )
    assert doctor._at_least(hits, tries, share) == pytest.approx(float(exact), rel=1e-9)
