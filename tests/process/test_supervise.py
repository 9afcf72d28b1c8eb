"""`headrace supervise` against real programs that fail in real ways: each is named, and nothing of any of them is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.cli.supervise import claim
from headrace.commands.config import load
from headrace.core.errors import ComponentDied, ConfigError, RunDirectoryError
from headrace.ipc.forkserver import ForkServer
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.supervision.spec import BecameReady, Exited
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.board import Board, State
from headrace.telemetry.events import read_events
from run_support import replace_run
from supervise_support import (
    Command,
    Watched,
    answering,
    free_port,
    number_in,
    run_file,
    running,
    triple,
    wait_until_gone,
)

pytestmark = pytest.mark.process

PYTHON = sys.executable

FLOOD = "import sys; [sys.stdout.write('x' * 100_000) for _ in range(100)]; print(); print('flooded')"
DETACHED = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), file=open("grandchild", "w"))
        os.execvp("sleep", ["sleep", "1000"])
    os._exit(0)
os.wait()
while not os.path.exists("grandchild"): pass
sys.exit(7)
"""

ZOO = f"""
[run]
run_duration_s = 100.0
[process.never_ready]
command = "sleep 1000"
ready = {{ http = "http://127.0.0.1:9/health", start_s = 1.5 }}
[process.behind]
command = "sleep 1000"
needs = ["never_ready"]
[process.leaves]
command = ['sh', '-c', 'echo up; exit 0']
ready = {{ log = "up" }}
[process.killed]
command = ['sh', '-c', 'echo up; kill -9 $$']
ready = {{ log = "up" }}
[process.stopped]
command = ['sh', '-c', 'echo up; kill -STOP $$']
ready = {{ log = "up" }}
stopped_s = 1.0
[process.silent]
command = ['sh', '-c', 'echo up; while :; do echo busy with nothing; sleep 0.1; done']
ready = {{ log = "up" }}
progress = {{ log = 'step', progress_s = 1.5 }}
[process.stuck]
command = ['sh', '-c', 'echo up; while :; do echo step 5; sleep 0.1; done']
ready = {{ log = "up" }}
progress = {{ log = 'step (\\d+)', progress_s = 1.5 }}
[process.files]
command = ['sh', '-c', 'for i in 1 2 3; do touch batch-$i; sleep 0.5; done; sleep 1000']
ready = {{ file = "batch-*" }}
progress = {{ file = "batch-*", progress_s = 2.0 }}
[process.flood]
command = ['{PYTHON}', '-c', "{FLOOD}"]
lifetime = "until-done"
ready = {{ log = "flooded" }}
[process.open_end]
command = "sleep 1000"
lifetime = "until-done"
[process.stubborn]
command = ['sh', '-c', 'trap "" TERM; echo up; while :; do sleep 0.1; done']
ready = {{ log = "up" }}
stop_s = 0.5
[process.parent]
command = ['{PYTHON}', '-c', '''{DETACHED}''']
ready = {{ log = "up" }}
[process.pattern]
command = ['sh', '-c', 'echo up; echo RuntimeError: CUDA out of memory; sleep 1000']
ready = {{ log = "up" }}
fail_pattern = "CUDA out of memory"
[process.again]
command = ['sh', '-c', 'echo up; if [ -e begun ]; then exit 0; fi; touch begun; exit 3']
lifetime = "until-done"
ready = {{ log = "up" }}
restart = {{ max = 1, backoff_s = 0.0 }}
[process.missing]
command = "no-such-program --at-all"
[process.squatted]
command = "sleep 1000"
ready = {{ http = "http://127.0.0.1:{{port}}/health" }}
[process.mute]
command = ['sh', '-c', 'exec > mute 2>&1; echo quiet; sleep 1000']
ready = {{ file = "mute" }}
[process.polite]
command = ['sh', '-c', 'trap "echo leaving; exit 0" INT; echo up; while :; do sleep 0.05; done']
ready = {{ log = "up" }}
stop_signal = "SIGINT"
"""

FAULTY = {
    "never_ready", "behind", "leaves", "killed", "stopped", "silent", "stuck", "files", "parent", "pattern", "again",
    "missing", "squatted",
}  # fmt: skip
READY = ("mute is ready", "stubborn is ready", "polite is ready", "flood is done", "again is done")


def not_essential(text):
    """Every process of a file made one the run goes on without."""
    return text.replace("\ncommand = ", "\nessential = false\ncommand = ")


def seen_enough(watched):
    """Ends the zoo once everybody in it has done what it is there for."""
    told = "\n".join(watched.said)
    left_out = FAULTY - {"behind", "again"}
    gone = "behind cannot be started" in told and all(f"goes on without {name}:" in told for name in left_out)
    return int(gone and all(text in told for text in READY))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "mute").touch()  # of an older run; it says nothing
    with answering() as port:
        return run_file(folder, not_essential(ZOO).replace("{port}", str(port)), seen_enough)


@pytest.mark.thin(13)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("never_ready", "never_ready is not ready after 1."),
        ("behind", "behind cannot be started: it needs never_ready, which is not ready after"),
        ("leaves", "leaves exited with code 0, and it should live as long as the run"),
        ("killed", "killed was killed by SIGKILL (often the out-of-memory killer)"),
        ("stopped", "stopped is stopped by a signal for 1"),
        ("silent", "silent makes no progress for 1."),
        ("stuck", "stuck makes no progress for 1."),
        ("files", "files makes no progress for 2."),
        ("parent", "parent exited with code 7"),
        ("pattern", "pattern lives and has failed: a line matches its fail_pattern"),
        ("again", "again exited with code 3"),
        ("missing", "missing could not be started"),
        ("squatted", "squatted was not started: something else answers as it should"),
    ],
)
def test_each_fault_is_named(zoo, name, sentence):
    assert zoo.fault(name).startswith(sentence)


def test_what_was_seen_instead_is_told(zoo):
    [fault] = [event for event in zoo.events("fault") if event["component"] == "never_ready"]
    assert "Connection refused" in fault["error"]
    [fault] = [event for event in zoo.events("fault") if event["component"] == "stopped"]
    assert "processes: pid " in fault["error"]
    assert "kill -STOP $$" in fault["error"]


def test_a_flood_is_kept_whole_and_blocks_nobody(zoo):
    assert len(zoo.log("flood")) == 10_000_001 + len("flooded\n")
    assert zoo.summary["processes"]["flood"]["stage"] == "done"
    shown = sum(len(text) for name, text in zoo.watched.lines if name == "flood")
    assert 0 < shown < 10_000_000  # and the rest was counted
    assert any("more lines of flood are only in logs/flood.log" in text for text in zoo.watched.said)


def test_who_does_not_leave_is_killed_and_who_leaves_is_heard(zoo):
    assert [event["text"] for event in zoo.events("killed")] == ["stubborn did not leave within 0.5 s and was killed"]
    assert ("polite", "leaving") in zoo.watched.lines


def test_a_grandchild_in_a_session_of_its_own_is_gone(zoo):
    assert not running(number_in(zoo.folder / "grandchild"))


def test_a_restart_within_the_budget_goes_on(zoo):
    again = zoo.summary["processes"]["again"]
    assert (again["stage"], again["restarts"], again["faults"]) == ("done", 1, 1)
    assert not [event for event in zoo.events("restarted") if event["component"] != "again"]


def test_the_end_was_asked_for(zoo):
    assert (zoo.summary["outcome"], zoo.summary["exit_code"]) == ("interrupted", 130)


def test_whom_it_went_on_without_is_told(zoo):
    assert sorted(zoo.summary["left_out"]) == sorted(FAULTY - {"again"})


SAVES = """
import os, select, signal, sys
shell = os.getppid()
def stop(*_):
    while os.getppid() == shell: pass
    select.select([], [], [], SECONDS)
    open("saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("up")
signal.pause()
"""

BEHIND_A_SHELL = f"""
[process.saves]
command = ['sh', '-c', '"$0" -uc "$1"; true', '{PYTHON}', '''{SAVES.replace("SECONDS", "0.5")}''']
ready = {{ log = "up" }}
stop_s = 90.0
[process.lingers]
command = ['sh', '-c', '"$0" -uc "$1"; true', '{PYTHON}', '''{SAVES.replace("SECONDS", "1000.0")}''']
ready = {{ log = "up" }}
stop_s = 0.5
[process.daemon]
command = ['sh', '-c', 'setsid sleep 1000 & echo up; wait']
ready = {{ log = "up" }}
stop_s = 90.0
"""


def test_what_a_shell_has_started_has_as_long_to_leave_as_the_shell(tmp_path):
    run = run_file(tmp_path, BEHIND_A_SHELL, lambda watched: int(sum("is ready" in text for text in watched.said) == 3))

    assert (tmp_path / "saved").exists()
    assert [event["text"] for event in run.events("killed")] == ["lingers did not leave within 0.5 s and was killed"]


DIES = "echo orchestrator is up; echo ValueError: no environment is called wordle >&2; exit 1"


def seen_together(monkeypatch, name):
    """From now on a supervisor is told that it is ready and that it has ended at once, as where a machine is slow."""
    poll, held = Supervisor.poll, []

    def polled(supervisor, timeout_s):
        held.extend(poll(supervisor, timeout_s))
        kinds = {type(event) for event in held if getattr(event, "id", None) == name}
        if BecameReady in kinds and Exited not in kinds:
            return []
        found = held[:]
        held.clear()
        return found

    monkeypatch.setattr(Supervisor, "poll", polled)


@pytest.mark.thin(2)
@pytest.mark.parametrize("together", [False, True])
def test_the_trainer_that_waits_for_ever_is_ended_and_the_orchestrator_named(tmp_path, monkeypatch, together):
    if together:
        seen_together(monkeypatch, "orchestrator")
    run = run_file(tmp_path, triple(DIES, essential=False, limits=(90.0, 90.0, 1.5)))

    assert (run.summary["outcome"], run.summary["exit_code"], run.summary["culprit"]) == ("stalled", 3, "orchestrator")
    error = run.summary["error"]
    assert error.startswith("[SUP-002] trainer makes no progress for 1.")
    assert "it needs orchestrator: exited with code 1 " in error
    assert "ValueError: no environment is called wordle" in error
    begun = [event["component"] for event in run.events("started")]
    assert begun == ["supervisor", "inference", "orchestrator", "trainer"]
    ready = [event["component"] for event in run.events("ready")]
    assert ready == ["inference", "orchestrator", "trainer"]
    assert [event["component"] for event in run.events("stopped")] == ["inference"]


@pytest.mark.table
def test_one_that_is_needed_and_dies_ends_everybody_at_once(tmp_path):
    run = run_file(tmp_path, triple(DIES))

    assert (run.summary["outcome"], run.summary["exit_code"], run.summary["culprit"]) == ("failed", 1, "orchestrator")
    assert run.summary["error"].startswith("[SUP-001] orchestrator exited with code 1\n")
    assert "ValueError: no environment" in run.summary["error"]


@pytest.mark.table
@pytest.mark.parametrize(("running", "culprit"), [(3, "inference"), (0, "orchestrator")])
def test_a_silent_server_is_the_root_if_it_has_work(tmp_path, running, culprit):
    ships = "echo orchestrator is up; for i in 1 2 3; do echo shipped batch $i; sleep 0.5; done; touch all; sleep 1000"
    trains = "while [ ! -e all ]; do sleep 0.05; done; echo step 1; echo step 2; sleep 1000"
    run = run_file(tmp_path, triple(ships, trains, grows=0, running=running, limits=(90.0, 90.0, 3.0)))

    assert (run.summary["exit_code"], run.summary["culprit"]) == (3, culprit)


@pytest.mark.table
def test_a_needed_one_that_is_never_ready_says_who_was_never_started(tmp_path):
    never = 'json_holds = { status = "good" }, start_s = 1.5'
    run = run_file(tmp_path, triple("exit 1").replace('json_holds = { status = "ok" }', never))

    assert (run.summary["exit_code"], run.summary["culprit"]) == (3, "inference")
    assert run.summary["error"].startswith("[SUP-002] inference is not ready after 1.")
    assert "last look: GET http://127.0.0.1:" in run.summary["error"]
    assert "never started: orchestrator, trainer" in run.summary["error"]


@pytest.mark.table
def test_the_budget_of_restarts_ends_the_run(tmp_path):
    text = """
    [process.worker]
    command = ['sh', '-c', 'echo up; exit 4']
    ready = { log = "up" }
    restart = { max = 2, backoff_s = 0.0 }
    """
    run = run_file(tmp_path, text)

    assert run.summary["error"].startswith("[SUP-003] worker exited with code 4\n")
    assert run.summary["processes"]["worker"] | {"ready_after_s": 0} == {
        "restarts": 2, "faults": 3, "ready_after_s": 0, "signs": 0, "stage": "failed", "trouble": "exited with code 4",
    }  # fmt: skip


@pytest.mark.table
def test_steps_that_prepare_come_first_and_the_end_is_in_order(tmp_path):
    text = """
    [process.prepare]
    command = ['sh', '-c', 'touch prepared']
    lifetime = "until-done"
    ready = { done = true }
    [process.server]
    command = ['sh', '-c', 'test -e prepared && echo serving && sleep 1000']
    needs = ["prepare"]
    ready = { log = "serving" }
    [process.job]
    command = ['sh', '-c', 'echo worked']
    needs = ["server"]
    lifetime = "until-done"
    """
    run = run_file(tmp_path, text)

    assert (run.summary["outcome"], run.summary["exit_code"]) == ("completed", 0)
    assert {name: facts["stage"] for name, facts in run.summary["processes"].items()} == {
        "prepare": "done", "server": "stopped", "job": "done",
    }  # fmt: skip


EXAMPLE = Path(__file__).parents[2] / "examples" / "supervise"


def example(folder, **changes):
    """The example's files beside each other, on a port of its own; some words changed."""
    (folder / "parts.py").write_text((EXAMPLE / "parts.py").read_text())
    text = (EXAMPLE / "rl.toml").read_text().replace("18080", str(free_port())).replace("python3", PYTHON)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.table
def test_the_example_trains_to_its_end(tmp_path):
    run = run_file(tmp_path, example(tmp_path))

    assert (run.summary["outcome"], run.summary["exit_code"]) == ("completed", 0)
    stages = {name: facts["stage"] for name, facts in run.summary["processes"].items()}
    assert stages == {"inference": "stopped", "orchestrator": "done", "trainer": "done"}
    assert ("trainer", "step 4 reward") in [(name, text[:13]) for name, text in run.watched.lines]


@pytest.mark.table
@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ("die", 1, "[SUP-001] orchestrator exited with code 1\n"),
        ("hang", 3, "[SUP-002] trainer makes no progress for 5."),
    ],
)
def test_the_example_names_the_orchestrator(tmp_path, how, code, sentence):
    run = run_file(tmp_path, example(tmp_path, well=how))

    assert (run.summary["exit_code"], run.summary["culprit"]) == (code, "orchestrator")
    assert run.summary["error"].startswith(sentence)


PARTS = """
[process.server]
command = ['sh', '-c', 'echo $$ > server.pid; setsid sleep 1000 & echo $! > below.pid; echo up; wait']
ready = { log = "up" }
restart = { max = 1, backoff_s = 0.0 }
stop_s = 5.0
[process.user]
command = ['sh', '-c', 'echo $$ > user.pid; echo up; sleep 1000']
needs = ["server"]
ready = { log = "up" }
stop_s = 5.0
"""


def refused(monkeypatch, name, error, after=0):
    """From now on a process cannot be started, or not once more after so many starts."""
    spawn, starts = ForkServer.spawn, []

    def spawned(server, child_id, *args):
        starts.append(child_id)
        if child_id == name and starts.count(name) > after:
            raise error
        return spawn(server, child_id, *args)

    monkeypatch.setattr(ForkServer, "spawn", spawned)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ComponentDied("late could not be started", fix="see"), "late could not be started"),
        (ConfigError("late may not open files", fix="see"), "late could not be started: may not open files"),
    ],
)
def test_one_that_cannot_be_started_ends_the_others_in_order(tmp_path, monkeypatch, error, what):
    refused(monkeypatch, "late", error)
    run = run_file(tmp_path, PARTS + '[process.late]\ncommand = "true"\nneeds = ["user"]\n')

    assert (run.summary["outcome"], run.summary["exit_code"], run.summary["culprit"]) == ("failed", 1, "late")
    assert run.summary["error"].startswith(f"[SUP-001] {what}\n")
    assert [event["component"] for event in run.events("stopped")] == ["user", "server"]
    stages = {name: facts["stage"] for name, facts in run.summary["processes"].items()}
    assert stages == {"server": "stopped", "user": "stopped", "late": "failed"}


def test_one_that_cannot_be_started_again_is_waited_for_by_nobody(tmp_path, monkeypatch):
    refused(monkeypatch, "flaky", ComponentDied("flaky could not be started", fix="see"), after=1)
    text = """
    [run]
    run_duration_s = 50.0
    [process.flaky]
    command = ['sh', '-c', 'echo up; exit 1']
    lifetime = "until-done"
    ready = { log = "up" }
    restart = { max = 1, backoff_s = 0.0 }
    [process.never]
    command = "sleep 1000"
    ready = { log = "never" }
    [process.behind]
    command = "true"
    needs = ["flaky", "never"]
    lifetime = "until-done"
    [process.other]
    command = "true"
    lifetime = "until-done"
    """
    run = run_file(tmp_path, not_essential(textwrap.dedent(text)))

    assert (run.summary["outcome"], run.summary["why"]) == (
        "completed", "all that has an end is over; failed: flaky, behind",
    )  # fmt: skip
    assert run.fault("behind") == "behind cannot be started: it needs flaky, which could not be started"


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path):
    with Command(tmp_path, PARTS) as command:
        command.until("ready", "user")
        pids = [number_in(tmp_path / f"{name}.pid") for name in ("server", "below", "user")]
        assert all(map(running, pids))
        command.process.kill()
        command.ended()
        wait_until_gone(pids)
    found = diagnose(read_run(command.run_dir))
    assert (found.culprit, found.exit_code) == ("supervisor", 1)


@pytest.mark.table
def test_a_killed_keeper_takes_all_of_its_program_along_and_is_replaced(tmp_path):
    with Command(tmp_path, PARTS) as command:
        command.until("ready", "user")
        pids = [number_in(tmp_path / f"{name}.pid") for name in ("server", "below")]
        os.kill(command.keeper("server"), signal.SIGKILL)
        wait_until_gone(pids)
        command.until("restarted", "server")
        command.process.send_signal(signal.SIGINT)
        assert command.ended() == 130
    assert json.loads((command.run_dir / "summary.json").read_text())["processes"]["server"]["restarts"] == 1


@pytest.mark.table
def test_nothing_is_left_when_the_fork_server_is_killed(tmp_path):
    with Command(tmp_path, PARTS) as command:
        command.until("ready", "user")
        pids = [number_in(tmp_path / f"{name}.pid") for name in ("server", "below", "user")]
        pid = command.process.pid
        [server] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        os.kill(server, signal.SIGKILL)
        assert command.ended() == 1
        wait_until_gone(pids)
    assert "fork server is gone" in command.output()


def test_an_interrupt_stops_the_last_first_and_the_doctor_sees_who_waits(tmp_path):
    text = (
        PARTS
        + '[process.late]\ncommand = "sleep 9"\nneeds = ["slow"]\n[process.slow]\ncommand = "sleep 1000"\nready = { log = "never" }\n'
    )
    with Command(tmp_path, text, "--json", "--quiet") as command:
        command.until("ready", "user")
        command.until("started", "slow")
        found = diagnose(read_run(command.run_dir))
        assert {stage.component: stage.waits_on for stage in found.stages if stage.waits_on} == {"late": "slow"}
        command.process.send_signal(signal.SIGTERM)
        assert command.ended() == 130
    summary = json.loads(command.output().splitlines()[-1])
    assert summary["processes"]["late"]["stage"] == "waiting"
    events = [json.loads(line) for line in (command.run_dir / "events.jsonl").read_text().splitlines()]
    stopped = [event["component"] for event in events if event["kind"] == "stopped"]
    assert stopped.index("user") < stopped.index("server")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_directory_is_moved_ends_and_says_so(tmp_path, replaced):
    """Also the one that starts meanwhile is not to blame: it finds no folder for its log."""
    text = PARTS + '[process.late]\ncommand = "true"\nneeds = ["user"]\nlifetime = "until-done"\n'
    text += "[process.first]\ncommand = ['sh', '-c', 'until [ -e moved ]; do sleep 0.05; done']\nlifetime = \"until-done\"\n"
    with Command(tmp_path, text.replace('needs = ["user"]', 'needs = ["user", "first"]'), "--quiet") as command:
        command.until("ready", "user")
        if replaced:
            replace_run(command.run_dir, tmp_path / "elsewhere", "logs")
        else:
            command.run_dir.rename(tmp_path / "elsewhere")
        (tmp_path / "moved").touch()
        assert command.ended() == 1
    said = command.output()
    assert "[CFG-003] the run directory run was removed, moved or replaced" in said
    assert "make room" not in said
    assert "\nfailed after " in said
    assert "\n  user            stopped\n" in said
    assert not [*tmp_path.rglob("summary.json*")]


def test_a_run_directory_is_used_once(tmp_path):
    with Command(tmp_path, '[process.p]\ncommand = "true"\nlifetime = "until-done"') as command:
        assert command.ended() == 0
    found = diagnose(read_run(command.run_dir))
    assert (found.exit_code, "with 1 process" in found.verdict) == (0, True)

    with pytest.raises(RunDirectoryError, match="already holds a run"):
        claim(command.run_dir, load(tmp_path / "run.toml"))
    with claim(tmp_path / "other", load(tmp_path / "run.toml")), pytest.raises(RunDirectoryError, match="in use"):
        claim(tmp_path / "other", load(tmp_path / "run.toml"))


def test_what_a_shell_has_started_before_is_left_alone(tmp_path):
    others = 'sleep 1000 & echo $! > in-its-session; setsid sleep 1000 & echo $! > in-another; exec "$@"'
    with Command(tmp_path, '[process.p]\ncommand = "true"\nlifetime = "until-done"', through=others) as command:
        assert command.ended() == 0
    pids = [number_in(tmp_path / name) for name in ("in-its-session", "in-another")]
    assert all(map(running, pids))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(pids)


def test_a_file_that_is_made_in_the_last_moment_is_seen(tmp_path):
    """Looks are five seconds apart where a start may take ten minutes."""
    text = """
    [process.prepare]
    command = ['sh', '-c', 'touch made']
    lifetime = "until-done"
    ready = { file = "made" }
    [process.user]
    command = "true"
    needs = ["prepare"]
    lifetime = "until-done"
    """
    run = run_file(tmp_path, text)

    assert (run.summary["outcome"], run.summary["error"]) == ("completed", None)
    assert "prepare is ready" in "\n".join(run.watched.said)


@pytest.mark.table
def test_the_time_of_a_run_is_bounded(tmp_path):
    run = run_file(tmp_path, '[run]\nrun_duration_s = 1.0\n[process.server]\ncommand = "sleep 1000"\n')

    assert (run.summary["outcome"], run.summary["exit_code"]) == ("completed", 0)
    assert run.summary["why"] == "run.run_duration_s = 1 is over"


@pytest.mark.table
def test_a_second_interrupt_waits_for_nobody(tmp_path):
    text = """
    [process.stubborn]
    command = ['sh', '-c', 'trap "" TERM; echo up; while :; do sleep 0.1; done']
    ready = { log = "up" }
    stop_s = 1000.0
    """
    ready, ending = "stubborn is ready", "everybody is stopped, the last first: interrupted"
    run = run_file(
        tmp_path,
        text,
        lambda watched: sum(any(text.startswith(one) for text in watched.said) for one in (ready, ending)),
    )

    assert (run.summary["exit_code"], run.summary["processes"]["stubborn"]["stage"]) == (130, "stopped")


@pytest.mark.table
@pytest.mark.parametrize(
    ("second", "outcome", "code", "why"),
    [
        ("false", "failed", 1, "nothing that has an end is done"),
        ("true", "completed", 0, "all that has an end is over; failed: first"),
    ],
)
def test_work_of_which_nothing_is_done_has_failed(tmp_path, second, outcome, code, why):
    text = f"""
    [process.server]
    command = "sleep 1000"
    [process.first]
    command = "false"
    lifetime = "until-done"
    [process.second]
    command = "{second}"
    lifetime = "until-done"
    """
    run = run_file(tmp_path, not_essential(textwrap.dedent(text)))

    assert (run.summary["outcome"], run.summary["exit_code"], run.summary["why"]) == (outcome, code, why)


@pytest.mark.table
def test_a_run_whose_processes_are_all_gone_is_over(tmp_path):
    run = run_file(tmp_path, '[process.p]\ncommand = "false"\nessential = false\n')

    assert run.summary["error"].startswith("[SUP-001] no process is left")


@pytest.mark.table
@pytest.mark.parametrize("says", ["up", "user is ready"])
def test_an_onlooker_that_raises_ends_everybody_in_order_and_is_told(tmp_path, says):
    class Broken(Watched):
        def line(self, component, at_s, text):
            if (component, text) == ("user", says):
                raise RuntimeError("no terminal")

        def told(self, at_s, text):
            self.said.append(text)
            if any(said.startswith(says) for said in self.said):
                raise RuntimeError("no terminal")

    with pytest.raises(RuntimeError, match="no terminal"):
        run_file(tmp_path, PARTS, watched=Broken())
    assert not any(running(number_in(tmp_path / f"{name}.pid")) for name in ("server", "below", "user"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["error"].startswith("[SUP-001] the supervisor, or whoever looks on, raised RuntimeError")
    assert {facts["stage"] for facts in summary["processes"].values()} == {"stopped"}
    events = read_events(tmp_path / "events.jsonl")
    assert [event["component"] for event in events if event["kind"] == "stopped"] == ["user", "server"]
    with Board.open(tmp_path / "board") as board:  # where no summary can be written, it alone tells of an end in order
        assert board.read_all()[0].state is State.FAILED


@pytest.mark.table
def test_a_keeper_that_is_frozen_is_replaced(tmp_path):
    with Command(tmp_path, PARTS) as command:
        command.until("ready", "user")
        pid = number_in(tmp_path / "server.pid")
        os.kill(command.keeper("server"), signal.SIGSTOP)
        text = command.until("fault", "server")["text"]
        assert text.startswith("server was killed because its keeper was stuck: command for 15.")
        wait_until_gone([pid])
        command.until("restarted", "server")
        command.process.send_signal(signal.SIGINT)
        assert command.ended() == 130
