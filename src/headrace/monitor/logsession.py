"""Watching one log and some processes over time: the only part of the log watch that holds a file and a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import ConfigError
from headrace.ipc.channel import poll_fds
from headrace.monitor.logfindings import Change, Finding, Findings, Severity, Spell, WatchLimits, duration, number
from headrace.monitor.logplot import draw
from headrace.monitor.logprocesses import LEAST_CPU_S, ProcessSample, ProcessWatch, sample
from headrace.monitor.logtail import LogTail, TailRead
from headrace.monitor.logwatch import LogWatch, date_lines

LOOK_EVERY_S = 1.0
PLOT_EVERY_S = 30.0


def wall_s() -> float:
    """Seconds since 1970, for the age of a file only."""
    return datetime.now(tz=UTC).timestamp()


def pause(seconds: float) -> None:
    """Let time pass between two looks."""
    poll_fds({}, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the watch takes from outside; tests hand in their own."""

    clock: Clock
    wall_s: Callable[[], float] = wall_s
    pause: Callable[[float], None] = pause
    sample: Callable[[set[int], float], list[ProcessSample]] = sample


class LogSession:
    """One watch over a log and the processes that belong to it.

    Args:
        path: The log; it need not exist yet.
        pids: Processes to watch together with their descendants.
        limits: From when on something is wrong.
        plot: Where to draw the numbers, or None.
        around: Clock and eyes.

    Raises:
        ConfigError: One of the pids names no process, or the log can never be read.
    """

    def __init__(
        self,
        path: Path,
        pids: tuple[int, ...] = (),
        limits: WatchLimits | None = None,
        plot: Path | None = None,
        around: Surroundings | None = None,
    ) -> None:
        self._limits = limits or WatchLimits()
        self._around = around or Surroundings(clock=MonotonicClock())
        self._started_s = self._around.clock.now()
        self._tail = LogTail(path)
        self._plot = plot
        self._plot_due_s = self._started_s + PLOT_EVERY_S
        self._read_before = self._missing = False
        self._read_bytes = self._skipped_bytes = 0
        self.log = LogWatch(self._limits, self._started_s)
        self.processes = ProcessWatch(pids, self._limits)
        self.found = Findings()
        self.notes: list[str] = []
        """What happened to the file since the last look, e.g. that it was truncated."""
        for pid in pids:
            if not _exists(pid):
                raise ConfigError(
                    f"there is no process {pid}", fix="name a running process; pgrep -af python lists some"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tail.close()

    def look(self) -> list[Change]:
        """Look at the file and the processes; never waits.

        Returns:
            The findings that have begun or ended since the last look.
        """
        now_s = self._around.clock.now()
        self.notes = []
        self._read(now_s)
        if self.processes.named:
            self.processes.feed(self._around.sample(self.processes.to_sample(), now_s), now_s)
        if self._plot is not None and now_s >= self._plot_due_s:
            self._plot_due_s = now_s + PLOT_EVERY_S
            self.draw()
        return self.found.update(self._findings(now_s), now_s)

    def judge_once(self) -> list[Change]:
        """Judge what is there now. With processes it takes a moment, in which their use of the cores is measured.

        Raises:
            ConfigError: There is no log.
        """
        if self._tail.modified_s() is None:
            raise ConfigError(
                f"{self._tail.path} does not exist", fix="name an existing log; without --once the watch waits for it"
            )
        if self.processes.named:
            now_s = self._around.clock.now()
            self.processes.feed(self._around.sample(self.processes.to_sample(), now_s), now_s)
            self._around.pause(2 * LEAST_CPU_S)
        return self.look()

    def follow(self, until: Callable[[], bool], for_s: float | None = None) -> Iterator[list[Change]]:
        """Look again and again.

        Args:
            until: Asked between two looks, at most `LOOK_EVERY_S` apart; True ends the watch.
            for_s: Seconds after which the watch ends; None: only ``until`` and the end of all named processes end it.

        Yields:
            What `look` returned.
        """
        while not until():
            yield self.look()
            now_s = self._around.clock.now()
            if self.processes.all_ended(now_s) or (for_s is not None and now_s - self._started_s >= for_s):
                return
            self._around.pause(LOOK_EVERY_S)

    def draw(self) -> bool:
        """Draw the plot that was asked for; False if there is nothing to draw."""
        return self._plot is not None and draw(self.log.numbers, self._plot, self._tail.path.name)

    def watched_s(self) -> float:
        """For how long this watch has lasted."""
        return self._around.clock.now() - self._started_s

    def report(self, outcome: str) -> dict[str, Any]:
        """Everything that was seen, ready for JSON.

        Args:
            outcome: How the watch ended, e.g. ``interrupted``.
        """
        return {
            "log_file": str(self._tail.path),
            "outcome": outcome,
            "watched_s": round(self.watched_s(), 1),
            "lines": self.log.lines,
            "read_bytes": self._read_bytes,
            "skipped_bytes": self._skipped_bytes,
            "messages": {str(kind): count for kind, count in self.log.counts.items()},
            "findings": [self._told(spell) for spell in self.found.all()],
            "findings_left_out": self.found.forgotten,
            "numbers": {
                name: {
                    "readings": series.count,
                    "first": _json(series.first),
                    "last": _json(series.last),
                    "min": _json(series.lowest),
                    "max": _json(series.highest),
                }
                for name, series in self.log.numbers.series.items()
            },
            "processes": [
                {
                    "pid": known.newest.pid,
                    "name": known.newest.name,
                    "named": known.named,
                    "ended": known.ended,
                    "exit_code": known.newest.exit_code,
                    "cores": known.cores(),
                    "rss_bytes": known.newest.rss_bytes,
                }
                for known in self.processes.watched.values()
            ],
        }

    def _read(self, now_s: float) -> None:
        age_s = max(0.0, self._around.wall_s() - (self._tail.modified_s() or self._around.wall_s()))
        got = self._tail.read()
        newest_s = now_s if self._read_before else now_s - age_s
        moments = [newest_s] * len(got.lines) if self._read_before else date_lines(got.lines, newest_s)
        for line, at_s in zip(got.lines, moments, strict=True):
            self.log.feed(line, at_s)
        self.log.feed_bytes(got.read_bytes, got.unreadable_bytes, newest_s)
        self.log.feed_unfinished(self._tail.unfinished)
        self._note(got)

    def _note(self, got: TailRead) -> None:
        name = self._tail.path.name
        if got.restarted:
            self.notes.append(f"{name} was {got.restarted}; reading it from its start")
        if got.skipped_bytes:
            self.notes.append(f"{name} grew faster than it is read; {number(got.skipped_bytes)} bytes were skipped")
        if got.missing and not self._missing:
            self.notes.append(f"{name} {'is gone' if self._read_before else 'does not exist yet'}; waiting for it")
        self._missing = got.missing
        self._read_before = self._read_before or not got.missing
        self._read_bytes += got.read_bytes
        self._skipped_bytes += got.skipped_bytes

    def _findings(self, now_s: float) -> list[Finding]:
        silent = self.log.is_silent(now_s)
        found = self.log.findings(now_s)
        if self._missing and silent:
            found = [finding for finding in found if finding.kind != "silence"]
            found.append(
                Finding(
                    kind="no-file",
                    severity=Severity.ERROR,
                    sentence=f"there has been no {self._tail.path.name} for {duration(self.log.silent_s(now_s))}",
                    remedy="check the path; many programs open their log only with the first line they write",
                )
            )
        return found + self.processes.findings(now_s, self.log.silent_s(now_s) if silent else None)

    def _told(self, spell: Spell) -> dict[str, Any]:
        return {
            "kind": spell.finding.kind,
            "subject": spell.finding.subject,
            "severity": str(spell.finding.severity),
            "sentence": spell.finding.sentence,
            "remedy": spell.finding.remedy,
            "began_s": round(spell.began_s - self._started_s, 1),
            "ended_s": None if spell.ended_s is None else round(spell.ended_s - self._started_s, 1),
        }


def _exists(pid: int) -> bool:
    try:
        return bool(psutil.pid_exists(pid))
    except OverflowError:  # larger than any pid of this system
        return False


def _json(value: float) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return value if abs(value) < float("inf") else None
