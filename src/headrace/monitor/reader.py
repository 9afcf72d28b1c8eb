"""Reads a run from outside: its board, its files, and what the system says about its processes. Changes nothing.

No process of the run is asked, so it works when all of them are stuck or gone. The configuration is read as a plain
table: neither the user's code nor the run's version of Headrace is needed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from headrace.algorithms.on_policy_configs import ON_POLICY
from headrace.core.errors import RunDirectoryError
from headrace.core.toml import read_table
from headrace.ipc.channel import poll_fds
from headrace.monitor.snapshot import OVER, Disk, Memory, Snapshot
from headrace.runtime.remains import way_on
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.blame import PATIENCE_S
from headrace.telemetry.board import Activity, Board, SlotView
from headrace.telemetry.events import is_number
from headrace.telemetry.header import Header, process_start, this_machine
from headrace.telemetry.looks import Look, Plan, Process

BETWEEN_S = 0.8
"""Seconds between the two looks that give rates."""

_TAIL_BYTES = 256 * 1024
_LASTING = ("ledger", "degraded", "suspicious", "resumed")
"""Kinds of events that are told once and hold from then on, so that they are looked for in the whole file."""
_MOST_BYTES = 64 * 2**20
_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = {
    Activity.START: "start_s",
    Activity.ENV_CONSTRUCT: "start_s",
    Activity.ENV_RESET: "reset_s",
    Activity.ENV_STEP: "step_s",
    Activity.WAIT_ENV: "step_s",
    Activity.ENV_CLOSE: "stop_s",
    Activity.POLICY: "step_s",
    Activity.COMMIT: "commit_s",
    Activity.UPDATE: "update_s",
    Activity.PUBLISH: "publish_s",
    Activity.CHECKPOINT: "checkpoint_s",
    Activity.EVALUATE: "evaluate_s",
    Activity.WAIT_CREDIT: "credit_s",
    Activity.WAIT_ROWS: "rows_s",
}
_LANGUAGE_LIMITS = {
    Activity.START: "start_s",
    Activity.ENV_CONSTRUCT: "start_s",
    Activity.ENV_RESET: "env_s",
    Activity.ENV_STEP: "env_s",
    Activity.GENERATE: "generate_s",
    Activity.SCORE: "generate_s",
    Activity.LOAD_WEIGHTS: "weights_s",
    Activity.PUBLISH: "weights_s",
    Activity.UPDATE: "train_s",
    Activity.SAMPLE: "train_s",
    Activity.CHECKPOINT: "checkpoint_s",
    Activity.EVALUATE: "evaluate_s",
    Activity.WARM_START: "warm_start_s",
    Activity.WAIT_BATCH: "batch_s",
    Activity.WAIT_POLICY: "policy_s",
    Activity.WAIT_COMPLETIONS: "evaluate_s",
}
"""The same of language-model runs."""
_OTHERWISE = {"credit_s": "wait_s", "rows_s": "wait_s", "commit_s": "wait_s", "publish_s": "update_s"}
"""Where a key is not given (or the run is of a version that did not know it)."""


def _pause(seconds: float) -> None:
    poll_fds({}, seconds)


def read_run(path: str | Path, *, between_s: float = BETWEEN_S, pause: Callable[[float], None] = _pause) -> Snapshot:
    """Look at a run: live, stuck, dead, finished, or copied from another machine.

    Args:
        path: The run directory.
        between_s: Seconds between the two looks at a live run; it takes little longer than that.
        pause: Lets that time pass.

    Raises:
        RunDirectoryError: There is no run in it, it is shared by components that were started alone, or its summary is
            damaged.
    """
    run = RunDirectory.open(path)
    apart = places(path)
    if apart[0] != Path(path):
        raise RunDirectoryError(
            f"the components of {path} were started alone, and each has a board of its own",
            components=", ".join(place.name for place in apart),
            fix=f"name one of them, e.g. headrace doctor {shlex.quote(str(apart[0]))}, or have all of them shown: "
            f"headrace monitor {shlex.quote(str(path))}",
        )
    summary = run.read_summary()
    found = Snapshot(
        plan=read_plan(run.config_file),
        summary=summary,
        this_host=socket.gethostname()[:63],
        disk=_disk(run.path) if summary is None else None,
        beside=tuple(str(place) for place in apart[1:]),
    )
    with ExitStack() as stack:
        events_from = 0
        try:
            board = stack.enter_context(Board.open(run.board_file))
        except RunDirectoryError:
            found = replace(found, events=_tail(run.events_file), live=_locked(run.lock_file))
        else:
            if _is_of_before(board, run):
                return replace(found, summary=None, goes_on=True, disk=_disk(run.path))
            events_from = board.header.events_from
            if summary is not None and _has_begun(board, run):
                found = replace(found, summary=None, disk=_disk(run.path))
            found = replace(found, events=_tail(run.events_file, events_from))
            found = _look_at(found, board, run, between_s, pause)
    if found.summary is not None:
        return found
    if found.live:  # perhaps only the program that had begun it
        return replace(found, go_on=way_on(run)) if found.ended_by_itself else found
    # It may have ended in order since the summary was looked for.
    return replace(found, summary=run.read_summary(), events=_tail(run.events_file, events_from), go_on=way_on(run))


def places(path: str | Path) -> list[Path]:
    """Where boards of a run are: in its directory, or, if its components were started alone, in one for each.

    Both, the run's own first, where a whole run is over and some were started alone since: those that are alive.
    """
    own = Path(path)
    apart = sorted(place.parent for place in own.glob("alone/*/board"))
    if apart and not (own / "board").exists():
        return apart
    return [own, *(place for place in apart if _locked(RunDirectory(place).lock_file))]


def read_numbers(path: str | Path) -> dict[str, float]:
    """The newest value of each name in ``metrics.jsonl``, as far as its last quarter of a mebibyte goes.

    Besides the names of TensorBoard ``step``, ``updates`` and ``wall_s``; none where nothing was written yet.
    """
    found: dict[str, float] = {}
    own: dict[str, float] = {}
    for row in _rows(RunDirectory(Path(path)).metrics_file):
        numbers = {name: float(value) for name, value in row.items() if is_number(value)}
        if "updates" in numbers and "step" in numbers:  # others (an evaluation) are written under the step they are of
            own["step"] = numbers["step"]
        found |= numbers
    return found | own


def _look_at(
    found: Snapshot, board: Board, run: RunDirectory, between_s: float, pause: Callable[[float], None]
) -> Snapshot:
    header = board.header
    same_boot = header.machine.partition(" ")[0] == this_machine().partition(" ")[0]
    may_live = found.summary is None and (header.supervisor_alive() if header.here else same_boot)
    looks: tuple[Look, ...] = ()
    if may_live:
        first = take_look(board)
        pause(between_s)
        looks = (first, take_look(board))
    if not may_live or not (header.here or _locked(run.lock_file) or _moves(*looks)):
        last_ns = _last_sign_ns(header, board.read_all(), found.events)
        # Not negative: events of a file that was cut bear a clock that began with the run.
        silent_s = max(0.0, (time.monotonic_ns() - last_ns) / 1e9) if same_boot else None
        look = Look(last_ns, board.read_all(), processes(header, board.read_all()) if header.here else {})
        return replace(found, looks=(look,), header=header, here=header.here, live=False, silent_s=silent_s)
    return replace(
        found, looks=looks, header=header, here=header.here, events=_tail(run.events_file, header.events_from),
        summary=None if _has_begun(board, run) else run.read_summary(), memory=machine_memory(),
    )  # fmt: skip


def _is_of_before(board: Board, run: RunDirectory) -> bool:
    """Whether the board is that of an earlier session, and somebody who goes on with the run has not made a new one yet."""
    header = board.header
    elsewhere = (
        header.machine.partition(" ")[0] != this_machine().partition(" ")[0]
    )  # on this machine, but not here: who knows
    gone = not header.supervisor_alive() if header.here else elsewhere
    return gone and _locked(run.lock_file)  # in this order: whoever ends gives the lock back before it is gone


def _has_begun(board: Board, run: RunDirectory) -> bool:
    """Whether the board is that of a session that has not come to its end, so that a summary is of an earlier one."""
    header = board.header
    over = any(view.kind == "supervisor" and view.state in OVER for view in board.read_all())
    return not over and header.here and header.supervisor_alive() and _locked(run.lock_file)


def _moves(first: Look, second: Look) -> bool:
    """Whether a run lives whose processes cannot be seen from here, because they are in another container of this machine.

    The clock is the same, so its board tells: the supervisor enters its wait anew all the time. The lock tells only where
    it is seen: the system lists none whose owner has no number here.
    """
    supervisors = [view.age_s(second.now_ns) for view in second.views if view.kind == "supervisor"]
    return first.views != second.views or min(supervisors, default=PATIENCE_S) < PATIENCE_S


def take_look(board: Board) -> Look:
    """The board of a live run, and its processes, as they are now."""
    views = board.read_all()
    return Look(time.monotonic_ns(), views, processes(board.header, views) if board.header.here else {})


def processes(header: Header, views: list[SlotView]) -> dict[str, Process]:
    """What the system says about every process on the board that has a number."""
    numbers = {view.id: (view.pid, view.pid_start) for view in views if view.pid > 0}
    for view in views:
        if view.kind == "supervisor":
            numbers[view.id] = (header.supervisor_pid, header.supervisor_start)
    return {name: _process(pid, start) for name, (pid, start) in numbers.items()}


def _process(pid: int, start: int) -> Process:
    if start and process_start(pid) != start:  # it ended, and another one may have its number
        return Process(pid, alive=False)
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status = process.status()
            times, memory = process.cpu_times(), process.memory_info()
    except psutil.NoSuchProcess:
        return Process(pid, alive=False)
    except psutil.Error:  # of another user: it is there, and that is all we may know
        return Process(pid, alive=True)
    return Process(
        pid,
        alive=status not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD},
        stopped=status in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP},
        runnable=status == psutil.STATUS_RUNNING,
        cpu_s=times.user + times.system,
        rss_bytes=memory.rss,
    )


def machine_memory() -> Memory:
    """What is left of the machine's memory, or of the container's if that has less."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        # File pages count as used and are given up first when memory is needed.
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        left = limit - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return Memory(available, total)
    return Memory(max(0, min(available, left)), min(total, limit))


def read_plan(config_file: Path) -> Plan:
    """What a run's ``config.toml`` lets one expect; a file that cannot be read says nothing."""
    table = read_table(config_file)
    if not table:
        return Plan()
    if "orchestrator" in table:
        return _language_plan(table)
    deadlines, replay = _section(table, "deadlines"), _section(table, "replay")
    found = {activity: deadlines.get(key, deadlines.get(_OTHERWISE.get(key, ""))) for activity, key in _LIMITS.items()}
    limits = {activity: float(limit_s) for activity, limit_s in found.items() if _is_number(limit_s)}
    on_policy = _section(table, "algorithm").get("name") in ON_POLICY
    return Plan(
        limits=limits,
        learning_starts=None if on_policy else _whole(replay.get("learning_starts")),
        capacity=_whole(replay.get("capacity")),
        ratio=None if on_policy or replay.get("free_running") else _number(replay.get("ratio")),
        max_policy_lag=_whole(_section(table, "rollout").get("max_policy_lag")) if on_policy else None,
        group_size=_whole(_section(table, "env").get("group_size")) or 1,
        evaluates=_section(table, "evaluation").get("episodes") != 0,
        max_restarts=_whole(_section(table, "supervision").get("max_restarts")),
        restart_window_s=_number(_section(table, "supervision").get("restart_window_s")) or 300.0,
    )


def _language_plan(table: Mapping[str, Any]) -> Plan:
    """What the configuration of a language-model run lets one expect."""
    deadlines, supervision = _section(table, "deadlines"), _section(table, "supervision")
    found = {activity: _number(deadlines.get(key)) for activity, key in _LANGUAGE_LIMITS.items()}
    return Plan(
        limits={activity: limit_s for activity, limit_s in found.items() if limit_s is not None},
        max_restarts=_whole(supervision.get("inference_restarts")),
        restart_window_s=_number(supervision.get("restart_window_s")) or 300.0,
    )


def _last_sign_ns(header: Header, views: list[SlotView], events: Any) -> int:
    """When the run last wrote anything; every later time on its board would be invented."""
    signs = [header.created_ns, *(view.since_ns for view in views)]
    signs += [header.created_ns + int(event["t_s"] * 1e9) for event in events]
    return max(signs)


def _tail(path: Path, begin: int = 0) -> tuple[dict[str, Any], ...]:
    """The last events, and of the earlier ones those that hold for good; of a file of any length.

    Args:
        path: The file.
        begin: Where the session begins in it.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if begin > size:  # somebody has cut it since: all that it holds is looked at, by the times it bears
                begin = 0
            start = max(begin, size - _TAIL_BYTES)
            earlier = _lasting(file, max(begin, start - _MOST_BYTES), start)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return ()
    # A first half and an unfinished last one are left out.
    found = (_event(line) for line in (*earlier, *lines[1 if start > begin else 0 : -1]))
    return _this_session([event for event in found if event is not None], begin)


def _rows(path: Path) -> list[dict[str, Any]]:
    """The last lines of a file of JSON objects; those that are cut or damaged are left out."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return []
    found = (_row(line) for line in lines)
    return [row for row in found if row is not None]


def _this_session(events: list[dict[str, Any]], begin: int) -> tuple[dict[str, Any], ...]:
    """Events since the run was resumed last, their time counted from there as the board counts it."""
    begins = [
        event["t_s"] for event in events if (event.get("kind"), event.get("component")) == ("resumed", "supervisor")
    ]
    if begin and not begins:  # it is told first, but a full disk may have lost it
        begins = [event["t_s"] for event in events[:1]]
    if not begins:
        return tuple(events)
    return tuple(event | {"t_s": event["t_s"] - begins[-1]} for event in events if event["t_s"] >= begins[-1])


def _lasting(file: BinaryIO, begin: int, end: int) -> list[bytes]:
    """Lines of lasting kinds that begin between two places in a file."""
    marks = [f'"kind": "{kind}"'.encode() for kind in _LASTING]
    file.seek(begin)
    at, found = begin, []
    while at < end:
        line = file.readline()
        at += len(line)
        if any(mark in line for mark in marks):
            found.append(line)
    return found


def _event(line: bytes) -> dict[str, Any] | None:
    event = _row(line)
    return event if event is not None and is_number(event.get("t_s")) else None


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode(errors="replace"))
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _disk(path: Path) -> Disk | None:
    try:
        usage = shutil.disk_usage(path)
        read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        owned = path.stat().st_uid == os.geteuid()
    except OSError:
        return None
    problem = None
    if read_only:
        problem = "its file system is read-only"
    elif owned and not os.access(path, os.W_OK | os.X_OK):
        problem = "its permissions do not allow it"
    return Disk(usage.free, usage.total, problem)


def _locked(lock_file: Path) -> bool:
    """Whether somebody holds the run's lock alone. Asks the system's list: trying the lock could disturb a run that starts."""
    try:
        with lock_file.open("rb") as file:
            info = Path(f"/proc/self/fdinfo/{file.fileno()}").read_text(encoding="ascii").split()
            inode = os.fstat(file.fileno()).st_ino
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
        held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        # Not `st_dev`, which on some file systems (btrfs) is of a part of it, and not what the list names.
        mount = info[info.index("mnt_id:") + 1]
        major, minor = next(parts[2] for parts in mounts if parts[0] == mount).split(":")
    except (OSError, ValueError, StopIteration):
        return False
    # 1: FLOCK  ADVISORY  WRITE 4711 08:01:123456 0 EOF
    wanted = f"{int(major):02x}:{int(minor):02x}:{inode}"
    return any(" FLOCK " in line and " WRITE " in line and line.split()[-3] == wanted for line in held)


def _section(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _whole(value: Any) -> int | None:
    return int(value) if _is_number(value) else None
