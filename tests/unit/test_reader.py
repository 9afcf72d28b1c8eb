"""What the doctor reads from a run directory and from the system, without changing either."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from board_support import another_process, rewritten
from headrace.commands.config import load as supervised
from headrace.core.errors import RunDirectoryError
from headrace.monitor import reader
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_plan, read_run
from headrace.runtime.config import dump_toml, load_config
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.blame import Condition
from headrace.telemetry.board import Activity, Board, State, process_start
from headrace.telemetry.events import EventLog
from headrace.telemetry.looks import Plan

COMPONENTS = [("supervisor", "supervisor"), ("learner", "learner"), ("collector-0", "collector")]


@pytest.fixture
def run(tmp_path) -> Iterator[RunDirectory]:
    config = load_config(None, {"env.id": "Pendulum-v1", "deadlines.step_s": 7.0, "replay.learning_starts": 123})
    with RunDirectory.create(tmp_path / "run", config) as place:
        yield place


@pytest.fixture
def board(run) -> Iterator[Board]:
    with Board.create(run.board_file, COMPONENTS) as board:
        board.slot("supervisor").set_state(State.RUNNING)
        for name, _ in COMPONENTS[1:]:
            slot = board.slot(name)
            slot.begin(0)
            slot.set_pid(os.getpid())
            slot.set_state(State.RUNNING)
        board.slot("learner").waiting(Activity.WAIT_ROWS, on="collector-0", need=1)
        board.slot("collector-0").enter(Activity.ENV_STEP, 3, 17)
        yield board


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def test_a_live_run_is_looked_at_twice(run, board):
    paused = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        board.slot("learner").count("env_steps", 40)

    found = read_run(run.path, between_s=0.5, pause=pause)
    assert paused == [0.5]
    assert (found.live, found.here, found.header.run_id) == (True, True, board.header.run_id)
    first, second = found.looks
    assert [look.views[1].counters["env_steps"] for look in found.looks] == [0, 40]
    assert second.now_ns > first.now_ns
    process = second.processes["collector-0"]
    assert (process.pid, process.alive, process.stopped) == (os.getpid(), True, False)
    assert process.rss_bytes > 2**20
    assert found.memory.total_bytes >= found.memory.available_bytes > 0
    assert found.disk.total_bytes > 0


def test_what_to_do_after_a_kill_names_the_run(run, board):
    another_process(board)
    run.close()
    (run.checkpoint_dir(3)).mkdir()
    (run.checkpoint_dir(3) / "checkpoint.json").touch()
    found = diagnose(read_run(run.path, pause=lambda _: None))
    assert found.remedy.endswith(f"go on from its newest checkpoint: headrace train --resume --run-dir {run.path}")


def test_what_to_do_after_a_kill_of_a_language_model_run(tmp_path):
    def remedy(path: Path) -> str:
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.toml").write_text("[orchestrator]\n")
        with Board.create(path / "board", COMPONENTS) as board:
            another_process(board)
        return diagnose(read_run(path, pause=lambda _: None)).remedy

    run = tmp_path / "my run"
    anew = f"headrace rl @ '{run}/config.toml' --run-dir '{run}'"
    assert remedy(run).endswith(
        f"; it left nothing to go on from; begin it again in its directory, as it was begun or by: {anew}"
    )
    (run / "weights" / "2").mkdir(parents=True)
    (run / "weights" / "2" / "manifest.json").touch()
    assert remedy(run).endswith(
        "; it left no checkpoint to go on from; begin another like it in a directory of its own: headrace rl @ "
        f"'{run}/config.toml'; --set 'sft.checkpoint={run}' gives it the newest weights of this one"
    )
    (run / "checkpoints" / "3").mkdir(parents=True)
    (run / "checkpoints" / "3" / "manifest.json").touch()
    assert remedy(run).endswith(f"; go on from its newest checkpoint: headrace rl --resume --run-dir '{run}'")
    shared = tmp_path / "shared"
    assert remedy(shared / "alone" / "inference").endswith(f"; start it again: headrace inference --run-dir {shared}")


def test_nothing_is_changed(run, board):
    before = contents(run.path)
    diagnose(read_run(run.path, pause=lambda _: None))
    assert contents(run.path) == before


def test_what_the_configuration_lets_one_expect(run):
    plan = read_plan(run.config_file)
    assert plan.limit_s(Activity.ENV_STEP) == 7.0
    assert plan.limit_s(Activity.UPDATE) == 60.0
    assert (plan.learning_starts, plan.capacity, plan.ratio) == (123, 1_000_000, 1.0)
    assert (plan.max_restarts, plan.restart_window_s) == (5, 300.0)


@pytest.mark.parametrize(
    "text", [None, "no [toml", 'replay = 3\ndeadlines = "x"\n', '[replay]\ncapacity = "many"\nratio = true\n']
)
def test_a_configuration_of_any_other_kind_says_nothing(tmp_path, text):
    path = tmp_path / "config.toml"
    if text is not None:
        path.write_text(text)
    assert read_plan(path) == Plan()


def test_free_running_has_no_ratio(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(dump_toml(load_config(None, {"env.id": "Pendulum-v1", "replay.free_running": True})))
    assert read_plan(path).ratio is None


def test_a_component_whose_number_belongs_to_somebody_else_now_is_gone(run, board):
    words = board.words
    at = (4096 + 2 * 512 + 184) // 8
    words[at] = process_start(os.getpid()) + 1
    found = diagnose(read_run(run.path, pause=lambda _: None))
    assert (found.state, found.culprit) == (Condition.DEAD, "collector-0")
    assert found.verdict.startswith(f"collector-0 (pid {os.getpid()}) is gone while the board says running")
    assert [stage.state for stage in found.stages] == ["running", "waiting", "gone"]


def test_of_a_killed_run_the_last_sign_of_life_counts_and_nobody_waits(run, board):
    with EventLog(run.events_file, started_s=board.header.created_ns / 1e9 - 5.0) as events:
        events.emit("fault", "collector-0", "collector-0 had hiccups")
    another_process(board)
    run.close()

    def pause(seconds: float) -> None:
        raise AssertionError("there is nothing to wait for")

    found = read_run(run.path, pause=pause)
    assert (found.live, found.here, len(found.looks)) == (False, True, 1)
    assert found.run_s == pytest.approx(5.0, abs=0.5)
    assert 0.0 <= found.silent_s + 5.0 < 60.0
    verdict = diagnose(found)
    assert (verdict.state, verdict.culprit) == (Condition.DEAD, "supervisor")
    assert any("collector-0 had hiccups" in line for line in verdict.evidence)


def test_a_copy_on_another_machine(run, board):
    rewritten(board, machine="another boot", host="fox")
    run.close()
    found = read_run(run.path)
    assert (found.live, found.here, found.silent_s, found.looks[0].processes) == (False, False, None, {})
    verdict = diagnose(found)
    assert verdict.verdict.startswith("when this copy of a run on fox was made, 0.0 s after its start, ")
    assert [stage.alive for stage in verdict.stages] == [None, None, None]


def test_this_machine_after_a_restart(run, board):
    rewritten(board, machine="another boot")
    run.close()
    verdict = diagnose(read_run(run.path))
    assert verdict.state is Condition.DEAD
    assert verdict.verdict.startswith("the machine or container was restarted while the run went on, ")


def test_a_live_run_in_another_container_of_this_machine_is_known_by_its_lock(run, board, monkeypatch):
    monkeypatch.setattr(reader, "PATIENCE_S", 0.0)  # the board was made a moment ago, which would tell as well
    boot = board.header.machine.partition(" ")[0]
    rewritten(board, machine=f"{boot} pid:[1]", host="fox")
    found = read_run(run.path, pause=lambda _: None)
    assert (found.live, found.here, len(found.looks)) == (True, False, 2)
    assert found.looks[1].processes == {}
    run.close()  # gives the lock back
    assert not read_run(run.path, pause=lambda _: None).live


@pytest.fixture
def sibling(run, board, monkeypatch):
    """The run goes on in another container of this machine, where its lock is not seen from."""
    boot = board.header.machine.partition(" ")[0]
    rewritten(board, machine=f"{boot} pid:[1]", host="fox")
    monkeypatch.setattr(reader, "_locked", lambda _: False)
    return board


def test_a_run_in_another_container_lives_if_its_board_moves(run, sibling, monkeypatch):
    monkeypatch.setattr(reader, "PATIENCE_S", 0.0)  # so that only the two looks can tell
    found = read_run(run.path, pause=lambda _: sibling.slot("collector-0").enter(Activity.ENV_STEP, 4, 18))
    assert (found.live, found.here, len(found.looks)) == (True, False, 2)
    assert diagnose(found).state is not Condition.DEAD
    assert not read_run(run.path, pause=lambda _: None).live


def test_a_run_in_another_container_lives_if_its_supervisor_was_there_a_moment_ago(run, sibling, monkeypatch):
    sibling.slot("supervisor").waiting(Activity.WAIT_CHILD)
    assert read_run(run.path, pause=lambda _: None).live
    hour_ns = time.monotonic_ns() + 3600 * 10**9
    monkeypatch.setattr(reader.time, "monotonic_ns", lambda: hour_ns)
    assert not read_run(run.path, pause=lambda _: None).live


def test_a_lock_that_components_share_which_were_started_alone_is_no_whole_run_s(run):
    run.close()
    with run.lock_file.open() as shared:
        fcntl.flock(shared, fcntl.LOCK_SH)
        assert not reader._locked(run.lock_file)
        fcntl.flock(shared, fcntl.LOCK_EX)
        assert reader._locked(run.lock_file)


def test_a_lock_of_another_file_system_is_another_one(run, tmp_path, monkeypatch):
    assert reader._locked(run.lock_file)
    mine = next(
        line for line in Path("/proc/locks").read_text().splitlines() if f":{run.lock_file.stat().st_ino} " in line
    )
    device = mine.split()[-3].rpartition(":")[0]
    read_text = Path.read_text

    def of_another(path, *args, **kwargs):
        text = read_text(path, *args, **kwargs)
        return text.replace(f" {device}:", " ff:ff:") if path == Path("/proc/locks") else text

    monkeypatch.setattr(Path, "read_text", of_another)
    assert not reader._locked(run.lock_file)


def test_a_run_that_ends_while_it_is_looked_at_has_ended(run, board, monkeypatch):
    done = {"outcome": "completed", "error": None, "wall_s": 3.0, "env_steps": 5, "updates": 2}
    opened = Board.open

    def open_late(path):
        run.write_summary(done)
        another_process(board)
        run.close()
        return opened(path)

    monkeypatch.setattr(reader.Board, "open", open_late)
    found = read_run(run.path, pause=lambda _: None)
    assert (found.live, diagnose(found).state) == (False, Condition.FINISHED)


def test_a_run_that_ends_before_it_has_a_board_has_ended(run, monkeypatch):
    def ends(_):
        run.write_summary({"outcome": "failed", "error": "[CFG-001] x\n  fix: y", "wall_s": 3.0})
        return False

    monkeypatch.setattr(reader, "_locked", ends)
    assert diagnose(read_run(run.path)).state is Condition.FAILED


def test_what_to_do_after_a_kill_of_a_supervised_run(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    (run / "config.toml").write_text('[process.server]\ncommand = "true"\n')
    with Board.create(run / "board", COMPONENTS) as board:
        another_process(board)
    found = diagnose(read_run(run, pause=lambda _: None))
    assert found.remedy.endswith(f"; start it again: headrace supervise '{run / 'config.toml'}'")
    assert list(supervised(run / "config.toml").process) == ["server"]


def test_a_run_without_evaluations_is_expected_to_make_none(tmp_path):
    for episodes in (0, 5):
        path = tmp_path / f"{episodes}.toml"
        path.write_text(dump_toml(load_config(None, {"env.id": "Pendulum-v1", "evaluation.episodes": episodes})))
        assert read_plan(path).evaluates == bool(episodes)


def test_a_run_that_has_no_board_yet_and_one_that_never_had_one(run):
    assert diagnose(read_run(run.path)).state is Condition.STARTING
    run.close()
    assert diagnose(read_run(run.path)).state is Condition.DEAD


def test_a_damaged_board_hides_no_summary(run, board):
    board.path.write_bytes(b"rubbish")
    run.write_summary({"outcome": "completed", "error": None, "wall_s": 3.0, "env_steps": 5, "updates": 2})
    found = diagnose(read_run(run.path))
    assert (found.state, found.stages) == (Condition.FINISHED, ())


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(RunDirectoryError, match="holds no run"):
        read_run(tmp_path)


def test_of_a_long_event_file_the_end_is_read(run, board, monkeypatch):
    monkeypatch.setattr(reader, "_TAIL_BYTES", 200)
    lines = [
        json.dumps({"kind": "fault", "t_s": float(n), "component": "learner", "text": f"no {n}"}) for n in range(50)
    ]
    run.events_file.write_text("\n".join([*lines, "[1]", "rubbish", '{"half": ']))
    found = read_run(run.path, pause=lambda _: None)
    assert [event["text"] for event in found.events] == ["no 48", "no 49"]


def test_a_full_or_forbidden_directory(run, board, monkeypatch):
    monkeypatch.setattr("headrace.monitor.reader.os.access", lambda *_: False)
    found = diagnose(read_run(run.path, pause=lambda _: None))
    assert found.state is Condition.STARVED
    assert found.verdict.startswith("the run directory cannot be written (its permissions do not allow it)")


def test_the_limit_of_a_container_counts_as_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_CGROUP", tmp_path)
    unlimited = reader.machine_memory()
    for name, text in (
        ("memory.max", "4194304\n"),
        ("memory.current", "3145728\n"),
        ("memory.stat", "inactive_file 1024\n"),
    ):
        (tmp_path / name).write_text(text)
    limited = reader.machine_memory()
    assert (limited.total_bytes, limited.available_bytes) == (4_194_304, 1_049_600)
    assert unlimited.total_bytes > limited.total_bytes


def test_the_doctor_is_soon_done_and_loads_no_torch_and_nothing_of_the_user(run, board):
    code = textwrap.dedent("""
        import json, sys
        from headrace.cli.main import main
        try:
            main(sys.argv[1:])
        finally:
            sys.stderr.write(json.dumps([name for name in ("torch", "headrace.algorithms.td3") if name in sys.modules]))
    """)
    command = [sys.executable, "-c", code, "doctor", str(run.path), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(ended.stderr) == []
    found = json.loads(ended.stdout)
    assert set(found) == {"verdict", "culprit", "state", "stages", "evidence", "remedy"}
    assert set(found["stages"][0]) == {"component", "state", "activity", "since_s", "waits_on", "rate"}
    assert (
        ended.returncode == {"warming-up": 0, "stalled": 3}[found["state"]]
    )  # after 2.3 s in env.step it is the latter


def test_a_pause_ends():
    before_ns = time.monotonic_ns()
    reader._pause(0.01)
    assert time.monotonic_ns() - before_ns >= 9_000_000


def test_what_was_told_once_is_found_however_long_the_run_has_gone_on(run, board):
    with EventLog(run.events_file) as events:
        events.emit("started", "supervisor", "long ago")
        events.emit("degraded", "collector-0", "the run goes on without lane 0: it failed", lanes=[0])
        events.emit("ledger", "learner", "moved twice", name="target_moves", severity="warning")
        for number in range(3_000):
            events.emit("checkpoint", "learner", "x" * 100, version=number)
        events.emit("ledger", "learner", "and the rate", name="critic_lr", severity="warning")
    found = read_run(run.path, pause=lambda _: None).events
    assert [event["kind"] for event in found[:3]] == ["degraded", "ledger", "checkpoint"]
    assert [event["kind"] for event in found].count("ledger") == 2
    assert len(found) < 2_500
    versions = [event["version"] for event in found[2:-1]]
    assert versions == list(range(versions[0], 3_000))


def test_of_a_resumed_run_only_the_present_session_counts_and_its_clock(run, board):
    begins = json.dumps({"t_s": 900.0, "kind": "resumed", "component": "supervisor"})
    lines = [
        json.dumps({"t_s": 1.0, "kind": "started", "component": "supervisor"}),
        json.dumps({"t_s": 880.0, "kind": "restarted", "component": "collector-0"}),
        begins,
        json.dumps({"t_s": 902.5, "kind": "resumed", "component": "learner"}),  # another learner in this session
        json.dumps({"t_s": 903.0, "kind": "restarted", "component": "collector-0"}),
    ]
    run.events_file.write_text("\n".join([*lines, ""]))
    found = read_run(run.path, between_s=0.0)
    assert [(event["kind"], event["t_s"]) for event in found.events] == [
        ("resumed", 0.0),
        ("resumed", 2.5),
        ("restarted", 3.0),
    ]
    filler = json.dumps({"t_s": 904.0, "kind": "x", "component": "learner", "text": "y" * 300})
    run.events_file.write_text("\n".join([begins, *[filler] * 1000, lines[-1], ""]))
    assert read_run(run.path, between_s=0.0).events[-1]["t_s"] == 3.0


COMPLETED = {"outcome": "completed", "error": None, "wall_s": 3.0, "env_steps": 5, "updates": 2}
FAILED = {"outcome": "failed", "error": "[CFG-001] x\n  fix: y", "wall_s": 3.0}


@pytest.mark.parametrize("summary", [None, COMPLETED, FAILED])
@pytest.mark.parametrize("of", ["a process that is gone", "another start of the machine"])
def test_a_run_that_somebody_goes_on_with_and_that_has_no_board_yet_is_starting(run, board, summary, of):
    with EventLog(run.events_file) as events:
        events.emit("fault", "collector-0", "collector-0 had hiccups")
    if summary is not None:
        run.write_summary(summary)
    rewritten(board, machine="another boot") if of.startswith("another") else another_process(board)
    found = diagnose(read_run(run.path, pause=lambda _: None))
    assert (found.state, found.exit_code, found.evidence, found.remedy) == (Condition.STARTING, 0, (), "")
    assert found.verdict.startswith("the run is starting (it goes on)")
    run.close()  # it was ended before it had a board: what was true before is so again
    expected = {None: Condition.DEAD, "completed": Condition.FINISHED, "failed": Condition.FAILED}
    assert diagnose(read_run(run.path)).state is expected[summary and summary["outcome"]]


def test_a_session_that_has_its_board_has_nothing_to_do_with_an_earlier_summary(run, board):
    run.write_summary(FAILED)
    found = read_run(run.path, pause=lambda _: None)
    assert (found.summary, found.live, len(found.looks)) == (None, True, 2)
    board.slot("supervisor").set_state(State.ENDED)  # now it is its own
    assert diagnose(read_run(run.path, pause=lambda _: None)).state is Condition.FAILED


def test_a_session_that_is_killed_before_its_first_event_has_none(run):
    with EventLog(run.events_file, started_s=time.monotonic() - 30.0) as events:
        events.emit("resumed", "supervisor", "an earlier session goes on")
        events.emit("fault", "collector-0", "collector-0 had hiccups")
    with Board.create(run.board_file, COMPONENTS, events_file=run.events_file) as board:
        another_process(board)
    run.close()
    found = read_run(run.path)
    assert found.events == ()
    assert 0.0 <= found.run_s < 1.0
    assert found.silent_s >= 0.0
    verdict = diagnose(found)
    assert (verdict.state, verdict.evidence) == (Condition.DEAD, ())
    assert "-" not in verdict.verdict.partition(": ")[0]


def test_events_of_a_session_count_from_its_first_one_also_where_the_beginning_was_lost(run):
    with EventLog(run.events_file, started_s=time.monotonic() - 30.0) as events:
        events.emit("fault", "collector-0", "collector-0 had hiccups")
        with Board.create(run.board_file, COMPONENTS, events_file=run.events_file) as board:
            board.slot("supervisor").set_state(State.RUNNING)
        events.emit("started", "supervisor", "begins")
    (event,) = read_run(run.path, pause=lambda _: None).events
    assert (event["kind"], event["t_s"]) == ("started", 0.0)


@pytest.mark.parametrize("left", [0, 0.5])
def test_events_of_a_session_are_seen_also_where_the_file_was_cut_under_it(run, left):
    with EventLog(run.events_file, started_s=time.monotonic() - 900.0) as events:
        for number in range(200):
            events.emit("note", "learner", f"old {number}")
        with Board.create(run.board_file, COMPONENTS, events_file=run.events_file) as board:
            board.slot("supervisor").set_state(State.RUNNING)
            events.emit("resumed", "supervisor", "goes on")
            os.truncate(run.events_file, int(board.header.events_from * left))
            events.emit("cut", "learner", "ends the line that was cut")
            events.emit("fault", "collector-0", "collector-0 had hiccups")
            found = read_run(run.path, pause=lambda _: None)
            assert (found.live, found.events[-1]["kind"]) == (True, "fault")
            another_process(board)
    run.close()
    assert read_run(run.path).silent_s >= 0.0
