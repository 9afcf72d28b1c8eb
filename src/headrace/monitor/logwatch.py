"""What is wrong with training, read from its log alone: lines and moments go in, findings come out.

Nothing here reads a file or a clock.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.monitor.logfindings import Finding, Severity, WatchLimits, duration, number, quoted
from headrace.monitor.lognumberrules import MOST_NAMED, constant, not_finite, not_updating, stands_still, went
from headrace.monitor.lognumbers import EPISODES, SCORES, STEPS, UPDATES, Numbers
from headrace.monitor.logphrases import Kind, kind_of, leaf, normalised, numbers_in, stamp_in

MOST_MESSAGES = 300
MOST_GAP_S = 7 * 86400.0
"""Two lines whose times are further apart do not mean the same clock."""
BINARY_SHARE = 0.1
"""Unreadable characters per byte above which a file is no log."""

_FINISHED_EPISODE = re.compile(r"\bepisode\b.*\b(?:finished|done|ended|complete[d]?|over)\b", re.IGNORECASE)

REMEDIES = {
    Kind.ERROR: "read the lines around it in the log: what raised is named there, and what came after may only follow",
    Kind.TIME_OUT: "find out which environment or request it is (always the same one, or all in turn): one calls for a"
    " look into that one with py-spy dump, all call for a longer limit or fewer of them at once",
    Kind.WAITING: "look at the one that is waited for, not at the one that waits: is its process alive (--pid), and what"
    " does its own log say",
}


@dataclass(slots=True)
class Message:
    """One message and its repetitions."""

    kind: Kind
    example: str
    count: int
    first_line: int
    last_line: int
    first_s: float
    last_s: float


class Gaps:
    """How long it usually takes until something happens again."""

    def __init__(self) -> None:
        self._gaps_s: deque[float] = deque(maxlen=64)
        self.last_s: float | None = None

    def tick(self, at_s: float) -> None:
        """It has happened. What happens at the same moment counts once."""
        if self.last_s is not None and at_s > self.last_s:
            self._gaps_s.append(at_s - self.last_s)
        self.last_s = at_s if self.last_s is None else max(at_s, self.last_s)

    def usual_s(self) -> float | None:
        """Nine of ten gaps are shorter; None while fewer than three are known."""
        if len(self._gaps_s) < 3:
            return None
        return sorted(self._gaps_s)[int(0.9 * (len(self._gaps_s) - 1))]

    def limit_s(self, least_s: float, patience: float) -> float:
        """How long it may take: ``least_s``, or ``patience`` times the usual gap if that is more."""
        return max(least_s, patience * (self.usual_s() or 0.0))


class LogWatch:
    """The state of a log.

    Args:
        limits: From when on something is wrong.
        started_s: Now, on the clock that all other moments are given in.
    """

    def __init__(self, limits: WatchLimits, started_s: float) -> None:
        self.limits = limits
        self.numbers = Numbers()
        self.lines = 0
        self.last_line = ""
        self.finished_line = 0
        """The line that said all is done, 0 if none did or others came after it."""
        self.messages: OrderedDict[str, Message] = OrderedDict()
        self.counts: Counter[Kind] = Counter()
        self._arrivals = Gaps()
        self._episodes = Gaps()
        self._progress = Gaps()
        self._episode_seen_line = 0
        self._started_s = started_s
        self._first_s: float | None = None
        self._bytes = self._unreadable = 0

    def feed(self, text: str, at_s: float) -> None:
        """Take one line that came at ``at_s``."""
        self.lines += 1
        self.last_line = text
        self._first_s = at_s if self._first_s is None else self._first_s
        self._arrivals.tick(at_s)
        kind = kind_of(text)
        self.counts[kind] += 1
        if kind in REMEDIES:
            self._remember(kind, text, at_s)
        self.finished_line = self.lines if kind is Kind.FINISHED else 0
        found = numbers_in(text)
        if self._ends_an_episode(text, found):
            self._episodes.tick(at_s)
            self._episode_seen_line = self.lines
        if any(self._grew(name, value) for name, value in found.items() if _counts(name)):
            self._progress.tick(at_s)
        self.numbers.add(self.lines, at_s, found)

    def feed_bytes(self, read: int, unreadable: int, at_s: float) -> None:
        """Take notice that the file has grown, also where no line has come to its end yet."""
        self._bytes += read
        self._unreadable += unreadable
        if read:
            self._arrivals.last_s = max(at_s, self._arrivals.last_s or at_s)

    def feed_unfinished(self, text: str) -> None:
        """Take notice of a last line without an end."""
        if text:
            self.last_line = text

    def silent_s(self, now_s: float) -> float:
        """For how long no line has come."""
        return now_s - (self._arrivals.last_s if self._arrivals.last_s is not None else self._started_s)

    def silence_limit_s(self) -> float:
        """For how long none may come."""
        return self._arrivals.limit_s(self.limits.silence_s, self.limits.patience)

    def is_silent(self, now_s: float) -> bool:
        """Whether the log stands still although it has not said that all is done."""
        return not self.finished_line and self.silent_s(now_s) > self.silence_limit_s()

    def findings(self, now_s: float) -> list[Finding]:
        """Everything that is wrong at this moment."""
        rules = (
            self._silence(now_s),
            self._repeated(),
            self._episodes_away(now_s),
            self._no_progress(now_s),
            not_updating(self.numbers, self.limits),
            constant(self.numbers, self.limits),
            not_finite(self.numbers),
            self._ended_after_error(),
            self._unreadable_file(),
        )
        return [finding for rule in rules for finding in rule]

    def _remember(self, kind: Kind, text: str, at_s: float) -> None:
        key = normalised(text)
        known = self.messages.get(key)
        if known is None:
            self.messages[key] = Message(kind, text, 1, self.lines, self.lines, at_s, at_s)
            if len(self.messages) > MOST_MESSAGES:
                self.messages.popitem(last=False)
            return
        known.count, known.last_line, known.last_s = known.count + 1, self.lines, at_s
        self.messages.move_to_end(key)

    def _ends_an_episode(self, text: str, found: dict[str, float]) -> bool:
        counters = [name for name in found if EPISODES.fullmatch(leaf(name))]
        if counters:
            return any(self._grew(name, found[name]) for name in counters)
        if any(True for _ in self.numbers.called(EPISODES)):
            return False  # it is that counter which tells
        return bool(_FINISHED_EPISODE.search(text)) or any(SCORES.fullmatch(leaf(name)) for name in found)

    def _grew(self, name: str, value: float) -> bool:
        known = self.numbers.series.get(name)
        return value > 0 if known is None else value > known.last

    def _silence(self, now_s: float) -> Iterator[Finding]:
        if not self.is_silent(now_s):
            return
        usual_s = self._arrivals.usual_s()
        habit = f", usual gap {duration(usual_s)}" if usual_s is not None else ""
        last = f"; the last one: {quoted(self.last_line)}" if self.last_line else ""
        what = "no new line" if self.lines else "no line at all"
        yield Finding(
            kind="silence",
            severity=Severity.ERROR,
            sentence=f"{what} for {duration(self.silent_s(now_s))} (limit {duration(self.silence_limit_s())}{habit}){last}",
            remedy=REMEDIES[Kind.WAITING]
            if kind_of(self.last_line) is Kind.WAITING
            else "see whether its processes live and where they are: --pid N here, py-spy dump --pid N for the line of code",
        )

    def _repeated(self) -> Iterator[Finding]:
        newest_s = self._arrivals.last_s or 0.0
        due = [
            message
            for message in self.messages.values()
            if newest_s - message.last_s <= self.limits.quiet_s
            and (message.count >= self.limits.repeats or message.kind is Kind.ERROR)
        ]
        for message in sorted(due, key=lambda each: -each.count)[:MOST_NAMED]:
            over_s = message.last_s - message.first_s
            within = f" in {duration(over_s)}" if over_s > 0 else ""
            places = f"line {message.first_line}"
            if message.count > 1:
                places = f"lines {message.first_line} to {message.last_line}"
            times = "once" if message.count == 1 else f"{message.count:,} times{within}"
            grave = message.count >= self.limits.repeats and message.kind is not Kind.WAITING
            yield Finding(
                kind=f"repeated-{message.kind}" if message.count > 1 else str(message.kind),
                subject=normalised(message.example),
                severity=Severity.ERROR if grave else Severity.WARNING,
                sentence=f"{message.kind} {times} ({places}): {quoted(message.example)}",
                remedy=REMEDIES[message.kind],
            )

    def _episodes_away(self, now_s: float) -> Iterator[Finding]:
        if self.is_silent(now_s) or self.finished_line or self._first_s is None:
            return  # a silent log shows no episodes either
        counter = max(self.numbers.called(EPISODES), key=lambda series: series.count, default=None)
        if self._episodes.last_s is None and counter is None:
            return  # nothing says that this log would tell
        away_s = now_s - (self._episodes.last_s if self._episodes.last_s is not None else self._first_s)
        limit_s = self._episodes.limit_s(self.limits.episode_s, self.limits.patience)
        grown = self.numbers.grown_since(self._episode_seen_line, (STEPS,))
        still = counter is not None and stands_still(counter, self.limits, 10)
        if grown is None or not (away_s > limit_s or still):
            return
        ended = f"{counter.name}={number(counter.last)}" if counter is not None else "the last one"
        since = f" for {duration(away_s)} (limit {duration(limit_s)})" if away_s > limit_s else ""
        readings = f" in {counter.run:,} readings" if counter is not None and not since else ""
        yield Finding(
            kind="no-episode",
            severity=Severity.ERROR,
            sentence=f"no episode has finished{since}{readings}, {ended}, while {went(grown)}",
            remedy="check that the environment ends at all (a time limit that sets truncated), and that ends are passed on"
            " by every wrapper and queue between it and this log",
        )

    def _no_progress(self, now_s: float) -> Iterator[Finding]:
        if self.is_silent(now_s) or self.finished_line or self._progress.last_s is None:
            return
        counters = [series for series in self.numbers.series.values() if _counts(series.name) and series.is_counter]
        away_s = now_s - self._progress.last_s
        limit_s = self._progress.limit_s(self.limits.silence_s, self.limits.patience)
        still = bool(counters) and all(stands_still(series, self.limits) for series in counters)
        if not counters or not (away_s > limit_s or still):
            return
        at = ", ".join(f"{series.name}={number(series.last)}" for series in counters[:3])
        how_long = f" for {duration(away_s)} (limit {duration(limit_s)})" if away_s > limit_s else ""
        readings = "" if how_long else f" in the last {min(series.run for series in counters):,} readings"
        yield Finding(
            kind="no-progress",
            severity=Severity.ERROR,
            sentence=f"lines still come, but nothing has moved{how_long}{readings}: {at}; the last line:"
            f" {quoted(self.last_line)}",
            remedy="the part that writes the log lives, the part that trains does not: give all its processes with --pid,"
            " and read what the others log",
        )

    def _ended_after_error(self) -> Iterator[Finding]:
        errors = [message for message in self.messages.values() if message.kind is Kind.ERROR]
        if not self.finished_line or not errors:
            return
        worst = errors[-1]
        yield Finding(
            kind="finished-after-error",
            severity=Severity.ERROR,
            sentence=f"the log says {quoted(self.last_line)} in line {self.finished_line}, but an error came before it, in"
            f" line {worst.last_line}: {quoted(worst.example)}",
            remedy="do not take this run as complete: compare the episodes and updates it made with what was asked for",
        )

    def _unreadable_file(self) -> Iterator[Finding]:
        if self._bytes and self._unreadable > BINARY_SHARE * self._bytes:
            yield Finding(
                kind="not-text",
                severity=Severity.WARNING,
                sentence=f"{self._unreadable / self._bytes:.0%} of the file is no text; hardly anything can be read from it",
                remedy="name the file that standard output goes to; event files of TensorBoard and checkpoints are no logs",
            )


def date_lines(lines: Sequence[str], newest_s: float) -> list[float]:
    """When lines that were there already came: by the times they carry, the last of them at ``newest_s``.

    Lines without a time came with the one before; if no line has one, all came at ``newest_s``.
    """
    elapsed_s, before = 0.0, None
    moments = []
    for line in lines:
        stamp = stamp_in(line)
        if stamp is not None:
            # Backwards: midnight without a date, or a restart. Far ahead: lines with a date among lines without one.
            gone_s = stamp - before if before is not None else 0.0
            elapsed_s += gone_s if 0.0 < gone_s < MOST_GAP_S else 0.0
            before = stamp
        moments.append(elapsed_s)
    return [newest_s - (elapsed_s - moment) for moment in moments]


def _counts(name: str) -> bool:
    return any(pattern.fullmatch(leaf(name)) for pattern in (STEPS, EPISODES, UPDATES))
