"""Where a replay stands, and what it has come to."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.record.events import Event


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a replay: what comes next has not been done."""

    event: int
    """Number of the next event, from 1."""
    upcoming: Event
    position: int
    """Byte of the record after it."""
    update: int | None
    """Number of the update that comes before it; None: the event itself is next."""

    def __str__(self) -> str:
        name = type(self.upcoming).__name__
        if self.update is not None:
            return f"before update {self.update:,} (event {self.event:,}, {name}, comes after it)"
        return f"before event {self.event:,} ({name})"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A record that was replayed to its end, everything as recorded."""

    events: int
    updates: int
    env_steps: int
    weights_sha256: str
    ended: bool
    """Whether the run ended in order; if not, the record ends where it failed, or was killed, or where its disk was full."""
    torn_bytes: int
    """Bytes of a last event that was not written to its end."""
    failed: str | None
    """The error that the learner ended with where the record ends; None: with none, as far as is recorded."""
    machine: tuple[str, ...]
    """How this machine and its libraries differ from those of the record."""

    def __str__(self) -> str:
        return f"identical: {self.events:,} events, {self.updates:,} updates, weights {self.weights_sha256}"
