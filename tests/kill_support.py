"""Sessions of `headrace train` that are killed, whole, where it hurts: from a warm process, so that each begins in no time.

`Nursery` is the end in the test. The other one, this module run as a program, has imported what sessions need, and forks
each; a session's fork server is forked as well. Nothing else about a session is different from one that a shell starts.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import psutil

from headrace.core.clock import MonotonicClock
from session_support import board_updates

LIMIT_S = 60.0
CALLS = (
    "write",
    "pwrite",
    "pwritev",
    "fsync",
    "fdatasync",
    "ftruncate",
    "replace",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
)
"""Calls that change files, or make a change last."""
MODULES = ("headrace.cli.train", "headrace.ipc.server", "headrace.runtime.sessions", "headrace.runtime.experiment",
           "headrace.runtime.training", "headrace.runtime.components", "headrace.runtime.evaluation",
           "headrace.algorithms.td3", "torch")  # fmt: skip
"""What a session needs."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a session is killed."""

    where: str
    """root, learner, checkpoint: at a call that changes a file in the parent, in the learner, or while the learner writes
    a checkpoint; evaluator: when an evaluation begins; saved: when a checkpoint is whole while an evaluation is not made;
    trace: at a size of the record; updates: by the board."""
    at: int
    """Number of the call, from 0; bytes beyond the newest checkpoint; updates beyond it."""

    @classmethod
    def draw(cls, draws: random.Random) -> Self:
        """Any."""
        where = draws.choice(
            ("root", "learner", "learner", "checkpoint", "checkpoint", "evaluator", "trace", "updates")
        )
        most = {"root": 24, "learner": 150, "checkpoint": 45, "evaluator": 1, "trace": 12_000, "updates": 150}
        return cls(where, draws.randrange(most[where]))


class Nursery:
    """Starts sessions and sees them end, one at a time."""

    def __init__(self) -> None:
        here = Path(__file__).parent
        path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "error"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, run: Path, *arguments: str, until: Moment | None = None) -> int:
        """One session of a run, to its end or until it is killed; its exit code, negative for a signal.

        What it prints is appended to a file beside the run.
        """
        assert self._process.stdin is not None
        order = {
            "arguments": ["train", *arguments, "--run-dir", str(run), "--quiet"],
            "log": f"{run}.log",
            "moment": asdict(until) if until is not None else None,
        }
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        pid = int(self._answer())
        if until is not None and until.where in ("trace", "updates"):
            self._kill_at(pid, run, until)
        return int(self._answer())

    def _kill_at(self, pid: int, run: Path, until: Moment) -> None:
        """Look again and again; not with a pidfd, as the session is another process's child."""
        reached = {"trace": _trace_bytes, "updates": board_updates}[until.where]
        clock, target = MonotonicClock(), until.at + reached(run)
        due_s = clock.now() + LIMIT_S
        while reached(run) < target or (until.where == "trace" and not _begun(run, pid)):
            ended, _, _ = select.select([self._process.stdout], [], [], 0.0005)
            if ended:
                return
            assert clock.now() < due_s, f"{until} was not reached"
        kill_family(pid)

    def _answer(self) -> bytes:
        out = self._process.stdout
        assert out is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([out], [], [], LIMIT_S)
            piece = out.read(1) if ready else b""
            assert piece, "the session, or what it has started, does not end"
            line += piece
        return line


def _trace_bytes(run: Path) -> int:
    path = run / "record" / "trace.bin"
    return path.stat().st_size if path.exists() else 0


def _begun(run: Path, pid: int) -> bool:
    return (run / "lock").read_text().strip() == str(pid)


def kill_family(root: int) -> None:
    """SIGKILL for a process and everything below it; for oneself last."""
    try:
        below = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    pids = [root, *(one.pid for one in below if one.pid != os.getpid())]
    for pid in [*pids, os.getpid()] if os.getpid() in {one.pid for one in below} else pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# The other end.


class _ForkedServer:
    """What `subprocess.Popen` is to a fork server's parent; the server has imported everything already."""

    def __init__(
        self, command: list[str], *, stdout: Any, pass_fds: list[int], env: Mapping[str, str], **_: Any
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            from headrace.ipc.server import main

            os.setsid()
            for target in (1, 2):
                os.dup2(stdout.fileno(), target)
            os.environ.update(env)
            _close_others({0, 1, 2, *pass_fds})
            main(pass_fds[0])

    def wait(self, timeout: float) -> int:
        clock = MonotonicClock()
        due_s = clock.now() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif clock.now() > due_s:
                raise subprocess.TimeoutExpired("the fork server", timeout)
            else:
                select.select([], [], [], 0.002)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _close_others(kept: set[int]) -> None:
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) not in kept:
            with contextlib.suppress(OSError):  # of the descriptor that listed them
                os.close(int(path.name))


def _strike_at(at: int, who: int, root: int, counting: Callable[[], bool]) -> None:
    """Put seams in: the process is killed at its so-manieth call, in the middle of what it writes, with all others."""
    calls = [0]

    def seam(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def seamed(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() == who and counting():
                calls[0] += 1
                if calls[0] == at + 1:
                    if name in ("write", "pwrite"):
                        call(args[0], args[1][: len(args[1]) // 2], *args[2:])
                    kill_family(root)
            return call(*args, **kwargs)

        return seamed

    for name in CALLS:
        setattr(os, name, seam(name, getattr(os, name)))


def _strike_when_saved(root: int) -> None:
    from headrace.runtime.experiment import Experiment

    reported = Experiment._on_report

    def told(run: Experiment, child_id: str, kind: str, facts: dict[str, Any]) -> None:
        if kind == "saved" and not run._evaluations.idle:
            kill_family(root)
        reported(run, child_id, kind, facts)

    Experiment._on_report = told  # type: ignore[method-assign]


def _arrange(moment: Moment) -> None:
    from headrace.runtime import checkpointing, training
    from headrace.telemetry.board import Activity, Slot

    root = os.getpid()
    if moment.where == "root":
        _strike_at(moment.at, root, root, lambda: True)
    elif moment.where == "evaluator":
        enter = Slot.enter

        def entered(slot: Slot, activity: Activity, *rest: Any) -> None:
            enter(slot, activity, *rest)
            if slot.id == "evaluator" and activity is Activity.EVALUATE:
                kill_family(root)

        Slot.enter = entered  # type: ignore[method-assign]
    elif moment.where == "saved":
        _strike_when_saved(root)
    elif moment.where in ("learner", "checkpoint"):
        main, checkpoint, begun = training.main, checkpointing.Keeper.checkpoint, [moment.where == "learner"]

        def main_with_seams(context: Any) -> None:
            _strike_at(moment.at, os.getpid(), root, lambda: begun[0])
            main(context)

        def checkpoint_counted(keeper: Any, *args: Any, **kwargs: Any) -> Any:
            begun[0] = True
            try:
                return checkpoint(keeper, *args, **kwargs)
            finally:
                begun[0] = moment.where == "learner"

        training.main = main_with_seams
        checkpointing.Keeper.checkpoint = checkpoint_counted  # type: ignore[method-assign]


def _session(order: Mapping[str, Any]) -> None:
    """A session, in a process of its own; does not return."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log, nothing = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        for target in (1, 2):
            os.dup2(log, target)
        _close_others({0, 1, 2})
        from headrace.cli.main import main
        from headrace.ipc import forkserver

        kept = {name: getattr(subprocess, name) for name in ("DEVNULL", "TimeoutExpired")}
        forkserver.subprocess = SimpleNamespace(Popen=_ForkedServer, **kept)  # type: ignore[assignment]
        if order["moment"] is not None:
            _arrange(Moment(**order["moment"]))
        code = main(order["arguments"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - the border of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    from headrace.ipc.child import adopt_orphans

    adopt_orphans()
    for line in sys.stdin.buffer:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _session(order)
        os.write(1, f"{pid}\n".encode())
        signal.alarm(int(LIMIT_S))
        _, status = os.waitpid(pid, 0)
        while True:  # everything it has started is gone too, or the alarm ends this process
            try:
                os.wait()
            except ChildProcessError:
                break
        signal.alarm(0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    _serve()
