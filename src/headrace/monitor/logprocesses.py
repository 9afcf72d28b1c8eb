"""What is wrong with somebody's processes: samples of them go in, findings come out.

Only `sample` and `exit_code_of` look at real processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from headrace.core.procstat import EXIT_STATUS, PROC, STARTED, stat_fields
from headrace.monitor.logfindings import Finding, Severity, WatchLimits, duration

SETTLED_S = 10.0
"""A child that has lived this long is one that training needs, not a helper of a moment."""
GRACE_S = 5.0
"""What ends within this of the processes that were named ends with them; a zombie is collected within it."""
SAMPLES = 120
CPU_WINDOW_S = 20.0
"""Seconds over which the use of a core is taken."""
LEAST_CPU_S = 0.5
"""Seconds of observation without which nothing is said about the use of a core."""
UNSEEN = "unseen"
"""Status of a process that belongs to somebody else, so that the system tells nothing about it."""
MOST_GONE = 200
"""Ended processes that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One process at one moment."""

    pid: int
    at_s: float
    name: str
    started_s: float
    """When it started, on a clock that nobody sets; with the pid it names a process for good."""
    status: str
    """As psutil has it: ``running``, ``sleeping``, ``stopped``, ``zombie``, …"""
    cpu_s: float
    """Processor time used since its start, in user code and in the kernel."""
    rss_bytes: int
    exit_code: int | None = None
    """Of a zombie, where the system tells; negative: the signal that ended it."""


@dataclass(slots=True)
class Watched:
    """What is known of one process."""

    newest: ProcessSample
    named: bool
    """Given by the user, not found as somebody's child."""
    first_s: float
    zombie_since_s: float | None = None
    gone_since_s: float | None = None
    cpu: deque[tuple[float, float]] = field(default_factory=deque)
    """(moment, processor seconds) within `CPU_WINDOW_S`."""
    memory: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """(moment, resident bytes), thinned so that the window fits."""

    @property
    def ended(self) -> bool:
        """Whether it does no more work."""
        return self.gone_since_s is not None or self.zombie_since_s is not None

    def ended_s(self) -> float:
        """When it was first seen to have ended."""
        return min(s for s in (self.zombie_since_s, self.gone_since_s) if s is not None)

    @property
    def title(self) -> str:
        """How it is called in sentences."""
        return f"process {self.newest.pid} ({self.newest.name})"

    def cores(self) -> float | None:
        """Cores in use of late; None if not watched for long enough."""
        if len(self.cpu) < 2 or self.cpu[-1][0] - self.cpu[0][0] < LEAST_CPU_S:
            return None
        return max(0.0, (self.cpu[-1][1] - self.cpu[0][1]) / (self.cpu[-1][0] - self.cpu[0][0]))


class ProcessWatch:
    """The state of the processes that were named, and of all their descendants."""

    def __init__(self, pids: Iterable[int], limits: WatchLimits) -> None:
        self.limits = limits
        self.named = frozenset(pids)
        self.watched: dict[int, Watched] = {}
        self.most_rss_bytes = 0
        """Largest sum over all processes."""

    def feed(self, samples: Sequence[ProcessSample], at_s: float) -> None:
        """Take one look at all of them; whoever was there before and is not among them has ended."""
        for sample in samples:
            known = self.watched.get(sample.pid)
            if known is None or known.newest.started_s != sample.started_s:
                if known is not None and known.named:
                    known.gone_since_s = known.gone_since_s or at_s
                    continue  # the pid has been given to somebody else
                known = self.watched[sample.pid] = Watched(sample, sample.pid in self.named, at_s)
            self._note(known, sample)
        there = {sample.pid for sample in samples}
        for pid, known in self.watched.items():
            if pid not in there and known.gone_since_s is None:
                known.gone_since_s = at_s
        self.most_rss_bytes = max(self.most_rss_bytes, sum(sample.rss_bytes for sample in samples))
        self._forget()

    def to_sample(self) -> set[int]:
        """The pids to look at next: those named, and descendants that would be lost once their parent has ended."""
        return {pid for pid, known in self.watched.items() if known.gone_since_s is None} | self.named

    def all_ended(self, now_s: float) -> bool:
        """Whether every process that was named has ended, and whatever ends with them has had its time."""
        named = [known for known in self.watched.values() if known.named]
        return len(named) == len(self.named) > 0 and all(
            known.ended and now_s - known.ended_s() >= GRACE_S for known in named
        )

    def findings(self, now_s: float, silent_for_s: float | None) -> list[Finding]:
        """Everything that is wrong at this moment.

        Args:
            now_s: On the samples' clock.
            silent_for_s: For how long the log has stood still beyond its limit; None if it moves.
        """
        found = [finding for known in self.watched.values() for finding in self._of_one(known, now_s)]
        if silent_for_s is not None:
            found += self._while_silent(silent_for_s)
        return found

    def _note(self, known: Watched, sample: ProcessSample) -> None:
        known.newest = sample
        if sample.status == psutil.STATUS_ZOMBIE:
            known.zombie_since_s = known.zombie_since_s if known.zombie_since_s is not None else sample.at_s
            return
        if sample.status == UNSEEN:
            return
        known.cpu.append((sample.at_s, sample.cpu_s))
        while len(known.cpu) > 2 and sample.at_s - known.cpu[1][0] >= CPU_WINDOW_S:
            known.cpu.popleft()
        if not known.memory or sample.at_s - known.memory[-1][0] >= self.limits.memory_window_s / SAMPLES:
            known.memory.append((sample.at_s, sample.rss_bytes))

    def _forget(self) -> None:
        gone = [pid for pid, known in self.watched.items() if known.gone_since_s is not None and not known.named]
        for pid in gone[: max(0, len(gone) - MOST_GONE)]:
            del self.watched[pid]

    def _of_one(self, known: Watched, now_s: float) -> Iterator[Finding]:
        if known.ended:
            yield from self._end(known, now_s)
            return
        if known.newest.status == psutil.STATUS_STOPPED:
            yield Finding(
                kind="stopped",
                subject=str(known.newest.pid),
                severity=Severity.ERROR,
                sentence=f"{known.title} has been stopped (SIGSTOP or Ctrl-Z); it does nothing until it is continued",
                remedy=f"continue it with kill -CONT {known.newest.pid}, or end it",
            )
        yield from self._climbing(known)

    def _end(self, known: Watched, now_s: float) -> Iterator[Finding]:
        code = known.newest.exit_code
        since_s = known.ended_s()
        # A zombie that was there at the first look, and stays, is no helper of a moment either.
        stays = known.gone_since_s is None and now_s - since_s >= SETTLED_S
        settled = known.named or stays or since_s - known.first_s >= SETTLED_S
        wrong = bool(code)
        if not settled and not wrong:
            return
        others = sum(not other.ended for other in self.watched.values())
        alone = others > 0 and now_s - since_s >= GRACE_S
        is_zombie = known.gone_since_s is None and alone
        if wrong or alone:
            collected = " and stays a zombie: its parent does not notice" if is_zombie else ""
            left = f" while {others} other{'s go' if others > 1 else ' goes'} on" if others else ""
            yield Finding(
                kind="zombie" if is_zombie else "ended",
                subject=str(known.newest.pid),
                severity=Severity.ERROR if wrong or is_zombie else Severity.WARNING,
                sentence=f"{known.title} has ended, {exit_words(code)}{left}{collected}",
                remedy="whoever waits for this process waits for ever: read its last lines in the log, then start the"
                " training again"
                if others
                else "read its last lines in the log for the reason",
            )

    def _climbing(self, known: Watched) -> Iterator[Finding]:
        recent = [(at, rss) for at, rss in known.memory if known.newest.at_s - at <= self.limits.memory_window_s]
        slope = climb(recent, 0.8 * self.limits.memory_window_s)
        if slope is None:
            return
        window_s = recent[-1][0] - recent[0][0]
        if slope * window_s < max(self.limits.memory_growth_bytes, 0.05 * recent[-1][1]):
            return
        yield Finding(
            kind="memory",
            subject=str(known.newest.pid),
            severity=Severity.WARNING,
            sentence=f"the memory of {known.title} climbs steadily: {size(recent[0][1])} to {size(recent[-1][1])} in"
            f" {duration(window_s)}, {size(slope * 3600)} an hour",
            remedy="a replay buffer that is being filled does the same until it is full: compare with its size. Otherwise"
            " look for lists that only grow (infos, episode histories, tensors kept with their graph)",
        )

    def _while_silent(self, silent_for_s: float) -> Iterator[Finding]:
        alive = [known for known in self.watched.values() if not known.ended]
        using = {known.newest.pid: cores for known in alive if (cores := known.cores()) is not None}
        busy = [known for known in alive if using.get(known.newest.pid, 0.0) >= self.limits.busy_share]
        for known in busy:
            yield Finding(
                kind="busy",
                subject=str(known.newest.pid),
                severity=Severity.ERROR,
                sentence=f"{known.title} uses {using[known.newest.pid]:.0%} of a core while the log has stood still for"
                f" {duration(silent_for_s)}: it loops, or is in one very long call",
                remedy=f"see where it is: py-spy dump --pid {known.newest.pid}",
            )
        if alive and len(using) == len(alive) and sum(using.values()) < self.limits.idle_share:
            many = (
                f"none of the {len(alive)} processes computes"
                if len(alive) > 1
                else f"{alive[0].title} does not compute"
            )
            yield Finding(
                kind="idle",
                severity=Severity.ERROR,
                sentence=f"{many} ({sum(using.values()):.1%} of a core) while the log has stood still for"
                f" {duration(silent_for_s)}: {'they wait for one another' if len(alive) > 1 else 'it waits'}, or for"
                " something outside",
                remedy="see what each waits for, beginning with the parent: py-spy dump --pid "
                + " and --pid ".join(str(known.newest.pid) for known in alive[:5]),
            )


def climb(readings: Sequence[tuple[float, int]], least_s: float) -> float | None:
    """Bytes a second by which memory grows steadily; None if it does not, or was not watched for ``least_s``.

    The slope is the median of all slopes between two readings (Theil-Sen), so that a few spikes do not matter; and
    the medians of the four quarters must rise, the last step by at least half of the first, so that the end of a
    start-up is no leak.
    """
    if len(readings) < 12 or readings[-1][0] - readings[0][0] < least_s:
        return None
    quarter = len(readings) / 4
    parts = [readings[int(i * quarter) : int((i + 1) * quarter)] for i in range(4)]
    middles = [statistics.median(rss for _, rss in part) for part in parts]
    steps = [after - before for before, after in pairwise(middles)]
    if min(steps) <= 0 or steps[-1] < 0.5 * steps[0]:
        return None
    thinned = readings[:: max(1, len(readings) // 40)]
    slopes = [
        (rss - earlier_rss) / (at - earlier_at)
        for i, (at, rss) in enumerate(thinned)
        for earlier_at, earlier_rss in thinned[:i]
        if at > earlier_at
    ]
    return max(0.0, statistics.median(slopes))


def exit_words(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "exit code unknown"
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def size(nbytes: float) -> str:
    """Bytes for people."""
    return f"{nbytes / 2**30:,.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.1f} MiB"


def sample(pids: Iterable[int], at_s: float) -> list[ProcessSample]:
    """Look at these processes and all their descendants; those that have gone are left out."""
    seen: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            seen[pid] = process
            seen.update({child.pid: child for child in process.children(recursive=True)})
    found = (_sample_one(process, at_s) for process in seen.values())
    return [one for one in found if one is not None]


def exit_code_of(pid: int, proc: Path = PROC) -> int | None:
    """The exit code of a zombie, negative for a signal; None where the system does not tell."""
    fields = stat_fields(pid, proc)
    if len(fields) <= EXIT_STATUS:
        return None
    status = int(fields[EXIT_STATUS])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def _started_s(process: psutil.Process) -> float:
    fields = stat_fields(process.pid)
    return int(fields[STARTED]) / os.sysconf("SC_CLK_TCK") if fields else process.create_time()


def _sample_one(process: psutil.Process, at_s: float) -> ProcessSample | None:
    try:
        with process.oneshot():
            status, name, started_s = process.status(), process.name(), _started_s(process)
            if status == psutil.STATUS_ZOMBIE:
                return ProcessSample(
                    pid=process.pid,
                    at_s=at_s,
                    name=name,
                    started_s=started_s,
                    status=status,
                    cpu_s=0.0,
                    rss_bytes=0,
                    exit_code=exit_code_of(process.pid),
                )
            times = process.cpu_times()
            return ProcessSample(
                pid=process.pid,
                at_s=at_s,
                name=name,
                started_s=started_s,
                status=status,
                cpu_s=times.user + times.system,
                rss_bytes=process.memory_info().rss,
            )
    except psutil.AccessDenied:
        return ProcessSample(
            pid=process.pid, at_s=at_s, name="of another user", started_s=0.0, status=UNSEEN, cpu_s=0.0, rss_bytes=0
        )
    except psutil.Error:
        return None
