"""Runs of `headrace supervise` in tests: short programs, and what was told of them."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from headrace.commands.config import load
from headrace.commands.launcher import Places, supervise
from headrace.core.clock import MonotonicClock
from headrace.core.procstat import STATE, stat_fields
from headrace.ipc.channel import Deadline, poll_fds
from headrace.telemetry.board import Board
from headrace.telemetry.events import read_events
from headrace.telemetry.summaries import write_summary

LIMIT_S = 100.0  # bounds a failure; a success never waits for it

TRIPLE = """
[run]
run_duration_s = 100.0
[process.inference]
command = ['{python}', '-u', '-c', '''{server}''', '{port}']
ready = {{ http = "http://127.0.0.1:{port}/health", json_holds = {{ status = "ok" }} }}
progress = {{ http = "http://127.0.0.1:{port}/metrics", metric = "generated_total", pending = "running", progress_s = {limits[0]} }}
stop_s = 5.0
[process.orchestrator]
command = ['sh', '-c', '''{orchestrator}''']
needs = ["inference"]
ready = {{ log = "orchestrator is up" }}
progress = {{ log = 'shipped batch (\\d+)', progress_s = {limits[1]} }}
essential = {essential}
stop_s = 5.0
[process.trainer]
command = ['sh', '-c', '''echo Waiting for training batch to arrive; {trainer}''']
needs = ["orchestrator"]
lifetime = "until-done"
ready = {{ log = "Waiting" }}
progress = {{ log = 'step (\\d+)', progress_s = {limits[2]} }}
stop_s = 5.0
"""
"""Three programs as PRIME-RL's: a server, one that ships batches, one that waits for them."""

SERVER = """
import http.server, sys, threading
calls = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global calls
        calls += GROWS
        body = b'{"status": "ok"}' if self.path == "/health" else b"generated_total %d\\nrunning RUNNING\\n" % calls
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def triple(
    orchestrator: str,
    trainer: str = "sleep 1000",
    *,
    essential: bool = True,
    grows: int = 1,
    running: int = 0,
    limits: tuple[float, float, float] = (90.0, 90.0, 90.0),
) -> str:
    """The file of a run of three.

    Args:
        orchestrator: What it does, for a shell.
        trainer: The same, after it has begun to wait.
        essential: Whether the run ends with it.
        grows: By how much the server's tokens grow with each look.
        running: Requests that the server says it has.
        limits: Seconds without progress, in the order of the needs.
    """
    server = SERVER.replace("GROWS", str(grows)).replace("RUNNING", str(running))
    return TRIPLE.format(
        python=sys.executable, server=server, port=free_port(), orchestrator=orchestrator, trainer=trainer,
        essential=str(essential).lower(), limits=limits,
    )  # fmt: skip


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class _Yes(http.server.BaseHTTPRequestHandler):
    """Answers everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, form: str, *values: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def answering() -> Iterator[int]:
    """The port of a server that answers everything with 200."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Yes) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join(LIMIT_S)


@dataclass
class Watched:
    """An onlooker that keeps what it is shown."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def line(self, component: str, at_s: float, text: str) -> None:
        self.lines.append((component, text))

    def told(self, at_s: float, text: str) -> None:
        self.said.append(text)


@dataclass
class Run:
    """One that has ended."""

    folder: Path
    summary: dict[str, Any]
    watched: Watched

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.folder / "events.jsonl") if event["kind"] == kind]

    def fault(self, name: str) -> str:
        """The sentence about the only fault of a process."""
        [event] = [event for event in self.events("fault") if event["component"] == name]
        return str(event["text"])

    def log(self, name: str) -> bytes:
        return (self.folder / "logs" / f"{name}.log").read_bytes()


def run_file(folder: Path, text: str, interrupts=lambda watched: 0, watched: Watched | None = None) -> Run:
    """Run it in this process.

    Args:
        folder: Becomes the run directory.
        text: The file.
        interrupts: How often the user has asked to end it, given what was told so far.
        watched: Who looks on.
    """
    file = folder / "run.toml"
    file.write_text(text)
    for name in ("logs", "stacks"):
        (folder / name).mkdir()
    places = Places(folder / "board", folder / "events.jsonl", folder / "logs", folder / "stacks")
    write = partial(write_summary, folder / "summary.json")
    watched = watched or Watched()
    summary = supervise(load(file), places, watched, lambda: interrupts(watched), MonotonicClock(), write)
    return Run(folder, summary, watched)


class Command:
    """`headrace supervise` as a process of its own, begun by a shell."""

    def __init__(
        self, folder: Path, text: str, *arguments: str, through: str = 'exec "$@"', stdout: int | None = None
    ) -> None:
        self.run_dir = folder / "run"
        (folder / "run.toml").write_text(text)
        code = "import sys; sys.argv[0] = 'headrace'; from headrace.cli.main import main; main()"
        self._output = (folder / "output").open("w+b")
        self.process = subprocess.Popen(
            ["sh", "-c", through, "sh", sys.executable, "-c", code, "supervise", "run.toml", "--run-dir", "run", *arguments],
            cwd=folder, stdout=self._output if stdout is None else stdout,
            stderr=subprocess.STDOUT if stdout is None else self._output,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)
        self._output.close()

    def output(self) -> str:
        """All it has printed."""
        return Path(self._output.name).read_text()

    def ended(self) -> int:
        """Its exit code, once it has one."""
        return self.process.wait(LIMIT_S)

    def until(self, kind: str, component: str) -> dict[str, Any]:
        """The first event of a kind about a component, once it is there."""
        deadline = Deadline(LIMIT_S)
        while not deadline.passed:
            for event in read_events(self.run_dir / "events.jsonl"):
                if (event["kind"], event["component"]) == (kind, component):
                    return event
            assert self.process.poll() is None, self.output()
            poll_fds({}, 0.05)
        raise AssertionError(f"no {kind} of {component}: {self.output()}")

    def keeper(self, name: str) -> int:
        """Process number of a keeper."""
        with Board.open(self.run_dir / "board") as board:
            return board.read(name).pid


def wait_until_gone(pids: list[int]) -> None:
    """Until none of these processes runs."""
    deadline = Deadline(LIMIT_S)
    while any(running(pid) for pid in pids):
        assert not deadline.passed, [pid for pid in pids if running(pid)]
        poll_fds({}, 0.02)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)  # it may have become ours


def running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    fields = stat_fields(pid)
    return bool(fields) and fields[STATE] not in {"Z", "X"}


def number_in(path: Path) -> int:
    """What a program has written into a file, once it is there."""
    deadline = Deadline(LIMIT_S)
    while not (path.exists() and path.read_text().endswith("\n")):
        assert not deadline.passed, path
        poll_fds({}, 0.02)
    return int(path.read_text())
