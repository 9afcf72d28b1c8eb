"""What the log watch has to say: findings, the limits behind them, and when each began and ended."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum

from headrace.core.errors import ConfigError

QUOTE_CHARACTERS = 160


class Severity(StrEnum):
    """How bad a finding is."""

    WARNING = "warning"
    """Worth a look; training may be well."""
    ERROR = "error"
    """Training is not going on as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, in plain words."""

    kind: str
    """Which rule found it, e.g. ``silence``."""
    subject: str = ""
    """What it is about where a rule can find several at once: a pid, a name in the log, a message."""
    severity: Severity
    sentence: str
    """What was seen, with numbers."""
    remedy: str
    """What to do, as an imperative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """From when on something counts as wrong."""

    silence_s: float = 60.0
    """Seconds without a new line. A log that is slow by habit gets more, see ``patience``."""
    patience: float = 10.0
    """How many times its usual gap a log may be silent, or episodes may stay away."""
    episode_s: float = 300.0
    """Seconds without a finished episode."""
    repeats: int = 3
    """How often the same time-out or waiting message makes a finding; an error is one at once."""
    still_readings: int = 20
    """How many equal readings of a number that should move make a finding."""
    quiet_s: float = 300.0
    """Seconds of other lines after which a message counts as over."""
    memory_window_s: float = 300.0
    """Seconds over which the slope of a process's memory is taken."""
    memory_growth_bytes: float = 64 * 2**20
    """Growth within that window which is not worth a word; so is a twentieth of what the process has."""
    busy_share: float = 0.5
    """Of one core; from here on a process counts as busy."""
    idle_share: float = 0.02
    """Of one core; all processes together below it count as idle."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not value > 0:
                raise ConfigError(
                    f"{limit.name} is {value:g}: the watch would find fault with every log",
                    fix=f"give {limit.name} a value above 0; the default is {limit.default}",
                )


@dataclass(slots=True)
class Spell:
    """A finding from its beginning to its end."""

    finding: Finding
    """As last seen; its numbers move on while it lasts."""
    began_s: float
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A spell that has just begun, or just ended."""

    spell: Spell
    at_s: float

    @property
    def began(self) -> bool:
        """Whether it is the beginning."""
        return self.spell.ended_s is None


@dataclass(slots=True)
class Findings:
    """Which findings there are and were. Ended ones beyond ``KEPT`` are only counted."""

    KEPT = 200

    open: dict[tuple[str, str], Spell] = field(default_factory=dict)
    ended: list[Spell] = field(default_factory=list)
    forgotten: int = 0

    def update(self, found: Iterable[Finding], now_s: float) -> list[Change]:
        """Compare with what was found last time.

        Returns:
            What has ended, then what has begun.
        """
        seen = {(finding.kind, finding.subject): finding for finding in found}
        changes = [Change(spell, now_s) for spell in self._close(seen.keys(), now_s)]
        for key, finding in seen.items():
            spell = self.open.get(key)
            if spell is not None:
                spell.finding = finding
                continue
            self.open[key] = Spell(finding, now_s)
            changes.append(Change(self.open[key], now_s))
        return changes

    def all(self) -> list[Spell]:
        """Every spell that is kept, in the order of their beginnings."""
        return sorted([*self.ended, *self.open.values()], key=lambda spell: spell.began_s)

    def __bool__(self) -> bool:
        return bool(self.open or self.ended)

    def _close(self, seen: Container[tuple[str, str]], now_s: float) -> Iterator[Spell]:
        for key in [key for key in self.open if key not in seen]:
            spell = self.open.pop(key)
            spell.ended_s = now_s
            self.ended.append(spell)
            yield spell
        excess = max(0, len(self.ended) - self.KEPT)
        self.forgotten += excess
        del self.ended[:excess]


def duration(seconds: float) -> str:
    """Seconds for people: ``45 s``, ``12 min``, ``3.4 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number(value: float) -> str:
    """A number as a person would write it: thousands separated, no more digits than it needs."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.5g}"


def quoted(text: str) -> str:
    """A line of the log between quotation marks, shortened."""
    text = " ".join(text.split())
    return f'"{text if len(text) <= QUOTE_CHARACTERS else text[: QUOTE_CHARACTERS - 1] + "…"}"'
