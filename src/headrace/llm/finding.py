"""What a check has found: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Of one check."""

    OK = "ok"
    WARNING = "warning"
    """The run can be started; what is told may be worth a change."""
    FAILED = "failed"
    """The run would fail, or hang."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a preflight."""

    name: str
    verdict: Verdict
    text: str
    fix: str = ""
    """What to do, as an imperative; empty where nothing is."""
