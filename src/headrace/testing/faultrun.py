"""Provokes one fault in a real short run of a user's configuration, and checks what was promised.

The run goes on or ends as designed, the sentence names the culprit, the books balance to the unit, and five seconds
after its end nothing is left of it. The parent imports no torch, and is this process, except where the fault is the
parent's own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import psutil

from headrace.core.clock import Clock, MonotonicClock
from headrace.core.config import EnvConfig
from headrace.core.errors import HeadraceError
from headrace.envs.building import build_environment
from headrace.ipc.channel import Deadline
from headrace.ipc.processes import pidfd_of, wait_for_end
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_run
from headrace.runtime.config import ExperimentConfig, dump_toml
from headrace.runtime.experiment import run_experiment
from headrace.runtime.progress import Progress
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board, State
from headrace.telemetry.events import read_events
from headrace.testing import leaks, provoke
from headrace.testing.faultkinds import KINDS, LANE, Kind, Pace, choose, component_of, expected_words, shrink, under

__all__ = ["KINDS", "Result", "choose", "provoke_fault", "provoke_faults"]

GONE_S = 5.0
"""Seconds after a run's end within which everything of it must be gone."""

_RUN_S = 180.0
_RUN_MOST_S = 8.0
"""Training that is asked of a run by time at most: in the others something is started anew, once."""
_LOOK_S = 0.05
_SUSPENDED_S = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one fault."""

    kind: str
    passed: bool
    seconds: float
    sentence: str
    """What the user would read."""
    broken: tuple[str, ...] = ()
    """Promises that did not hold."""
    skipped: str | None = None
    """Why it could not be provoked here; it then counts as passed."""
    run: Path | None = None
    """The run's directory, kept because something did not hold."""
    steps_per_s: float | None = None
    """Environment steps of all lanes, while it trained."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        run = str(self.run) if self.run else None
        named = {"kind": self.kind, "passed": self.passed, "seconds": round(self.seconds, 3), "sentence": self.sentence}
        return {**named, "broken": list(self.broken), "skipped": self.skipped, "run": run}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run left, for the judge."""

    outcome: str
    exit_code: int
    summary: Mapping[str, Any] | None
    sentence: str
    """Everything that was said about the fault, the first line first."""
    happened: bool
    left: Mapping[str, list[str]]


class UserEnvironment:
    """Builds the configured environment; named after it, so that messages read as without a fault.

    Args:
        config: The section ``env``.
    """

    def __init__(self, config: EnvConfig) -> None:
        self._source = EnvConfig(id=config.id, factory=config.factory)

    def __call__(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Build one."""
        return build_environment(self._source.model_copy(update={"kwargs": kwargs}))


class Strike:
    """Sends a signal to a process of a run once it is at work; to be called while the run goes on.

    Args:
        board_file: Of the run.
        kind: Whom, and which signal.
    """

    def __init__(self, board_file: Path, kind: Kind) -> None:
        self.done = False
        self._file, self._kind = board_file, kind

    def __call__(self, progress: Progress | None = None) -> None:
        """Look, and strike if it is time to."""
        if self.done:
            return
        with suppress(HeadraceError, ProcessLookupError, psutil.NoSuchProcess), Board.open(self._file) as board:
            pid = self._pid(board)
            if pid:
                os.kill(pid, self._kind.number)
                self.done = True

    def _pid(self, board: Board) -> int:
        """Of the victim, once it is at work; 0 before."""
        victim = self._kind.victim
        watched = {"fork server": "learner", "supervisor": "collector-1"}.get(victim, victim)
        view = board.read(watched)
        worked = view.counters["env_steps"] if view.kind != "evaluator" else 1
        if view.state not in (State.RUNNING, State.WAITING) or not view.pid or not worked:
            return 0
        if victim == "supervisor":
            return board.header.supervisor_pid
        return psutil.Process(view.pid).ppid() if victim == "fork server" else view.pid


def provoke_faults(config: ExperimentConfig, kinds: Sequence[Kind], folder: Path) -> Iterator[Result]:
    """Provoke one fault after the other; the first, which is none, sets the pace for the others.

    Args:
        config: The user's own.
        kinds: As `headrace.testing.faultkinds.choose` gives them.
        folder: Where runs are made. Those in which every promise held are removed.

    Returns:
        Each result as soon as it is there. Nothing follows a run that fails without a fault.

    Raises:
        KeyboardInterrupt: A person has interrupted it; everything has ended in order.
        ConfigError: See `headrace.testing.faultkinds.shrink`.
    """
    deadlines = {name: value for name, value in config.deadlines.model_dump().items() if value is not None}
    pace = Pace(deadlines=deadlines)
    for kind in kinds:
        result = provoke_fault(config, kind, pace, folder)
        yield result
        if kind.name != "none":
            continue
        if not result.passed:
            return
        step_s = 2.0 / result.steps_per_s if result.steps_per_s else 0.0
        pace = replace(pace, step_s=step_s, run_s=min(result.seconds, _RUN_MOST_S))


def provoke_fault(config: ExperimentConfig, kind: Kind, pace: Pace, folder: Path, clock: Clock | None = None) -> Result:
    """Provoke one fault and judge what follows.

    Args:
        config: The user's own.
        kind: The fault.
        pace: Measured by the run without a fault.
        folder: Where the run is made; it is removed when every promise held.
        clock: Monotonic.

    Raises:
        KeyboardInterrupt: A person has interrupted it; the run has ended in order.
        ConfigError: See `headrace.testing.faultkinds.shrink`.
    """
    clock = clock or MonotonicClock()
    started_s = clock.now()
    short, kind = shrink(config, kind, pace), under(kind, config)
    path, marker = folder / kind.name, folder / f"{kind.name}.marker"
    before = leaks.beginning()
    try:
        seen = _by_command(short, kind, path) if kind.where == "parent" else _here(short, kind, path, marker)
        seen = replace(seen, left=leaks.settled(before, GONE_S))
        impossible = (folder / f"{kind.name}.marker.impossible").exists()
        broken = () if impossible else tuple(broken_promises(kind, seen, expected_words(kind, short)))
    except KeyboardInterrupt:
        leaks.end_processes(before)  # first, or they write on
        shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        leaks.end_processes(before)
        for trace in folder.glob(f"{kind.name}.*"):
            trace.unlink()
    if not broken:
        shutil.rmtree(path)
    return Result(
        kind.name, not broken, clock.now() - started_s, seen.sentence.partition("\n")[0], broken,
        skipped="the environment has no such value" if impossible else None, run=path if broken else None,
        steps_per_s=seen.summary["throughput"]["env_steps_per_s"] if seen.summary else None,
    )  # fmt: skip


def broken_promises(kind: Kind, seen: Seen, words: list[str]) -> Iterator[str]:
    """Each promise that does not hold, in a sentence.

    Args:
        kind: The fault.
        seen: What the run left.
        words: What its sentence must contain.
    """
    if not seen.happened:
        yield "the fault did not happen before the run ended"
    if (seen.outcome, seen.exit_code) != (kind.outcome, kind.exit_code):
        yield f"ended as {seen.outcome}, exit code {seen.exit_code}; expected {kind.outcome}, {kind.exit_code}"
    missing = [word for word in words if word not in seen.sentence]
    if missing:
        yield f"what the user reads does not say {', '.join(map(repr, missing))}"
    if seen.summary is not None:
        yield from _unbooked(kind, seen.summary)
    yield from (f"left behind: {thing}" for things in seen.left.values() for thing in things)


def _unbooked(kind: Kind, summary: Mapping[str, Any]) -> Iterator[str]:
    books = summary["books"]
    rejected = sum(books["rejected"].values())
    if not books["balanced"] or books["produced"] != (
        books["committed"] + books["salvaged"] + rejected + books["in_flight"]
    ):
        yield f"the books do not balance: {books}"
    if kind.restarts is not None and summary["restarts"] != kind.restarts:
        yield f"{summary['restarts']} restarts; expected {kind.restarts}"
    idle = [number for number, lane in enumerate(books["lanes"]) if lane["produced"] <= kind.at]
    if kind.outcome == "completed" and idle:
        yield f"lanes {idle} did not get on after the fault"


def _here(short: ExperimentConfig, kind: Kind, path: Path, marker: Path) -> Seen:
    """A run whose parent is this process."""
    factory = None
    if kind.what is not None:
        plan = provoke.Plan(
            what=kind.what, place=kind.place, at=kind.at, lane=LANE, lanes=short.env.lanes, seed=short.run.seed,
            component=component_of(short) if kind.place == "construct" else "", marker=str(marker.absolute()),
        )  # fmt: skip
        factory = provoke.Factory(
            UserEnvironment(short.env), plan, name=short.env.factory or f"gymnasium:{short.env.id}"
        )
    with RunDirectory.create(path, short) as place:
        strike = Strike(place.board_file, kind)
        look: Callable[[Progress], None] | None = strike if kind.where == "component" else None
        summary = run_experiment(short, place, look, factory)
    if summary["outcome"] == "interrupted":
        raise KeyboardInterrupt
    happened = marker.exists() if kind.what is not None else strike.done or not kind.victim
    return Seen(summary["outcome"], summary["exit_code"], summary, _said(path, summary), happened, {})


def _said(path: Path, summary: Mapping[str, Any]) -> str:
    """What the user reads: the error that ended the run, or else the first fault that did not."""
    if summary["error"]:
        return str(summary["error"])
    told = [event for event in read_events(path / "events.jsonl") if event["kind"] == "fault"]
    if not told:
        return f"run {summary['outcome']} after {summary['wall_s']:.1f} s: {summary['env_steps']:,} environment steps"
    return "\n".join(filter(None, (told[0].get("error"), told[0]["text"])))


def _by_command(short: ExperimentConfig, kind: Kind, path: Path) -> Seen:
    """A run whose parent is a command of its own, which is sent the signal."""
    strike = Strike(path / "board", kind)
    deadline = Deadline(_RUN_S + (short.run.run_duration_s or 0.0))
    with _command(short, path) as process:
        with _watched(process.pid) as ended:
            while not strike.done and not ended(_LOOK_S) and not deadline.passed:
                strike()
            if kind.number == signal.SIGSTOP and strike.done:
                ended(_SUSPENDED_S)
                process.send_signal(signal.SIGCONT)
            while not ended(1.0) and not deadline.passed:
                pass
        out, err = _rest(process)
    place = RunDirectory.open(path)
    summary = place.read_summary()
    outcome = "killed" if summary is None else str(summary["outcome"])
    sentence = err.strip() or diagnose(read_run(path)).verdict
    return Seen(outcome, process.returncode, summary, sentence or out, strike.done, {})


def _rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate(timeout=GONE_S)


@contextmanager
def _command(short: ExperimentConfig, path: Path) -> Iterator[subprocess.Popen[str]]:
    """``headrace train``, in a process group of its own: a terminal's Ctrl-C is for us, and we then end it."""
    file = path.with_suffix(".toml")
    file.write_text(dump_toml(short), encoding="utf-8")
    # In the background of a shell script SIGINT is ignored, and so it would be by everybody we start.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from headrace.cli.main import main; main()"
    line = [sys.executable, "-c", program, "train", str(file), "--run-dir", str(path), "--quiet"]
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _watched(pid: int) -> Iterator[Callable[[float], bool]]:
    """A function that waits for the end of a process so many seconds, and says whether it has come."""
    pidfd = pidfd_of(pid)
    try:
        yield lambda timeout_s: wait_for_end(pid, pidfd, timeout_s)
    finally:
        if pidfd >= 0:
            os.close(pidfd)
