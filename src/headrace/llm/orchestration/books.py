"""The books of rollouts: each that was asked for is in exactly one place, and leaves it only by a move that exists.

    requested = completed + failed + stale + cancelled + in flight
    completed = trained + filtered + pending

A rollout counts as *failed*, once, under the reason of its last attempt, when it is given up; attempts that failed before
are counted apart and invent no rollout. A rollout that was completed and became too old before its batch was shipped is
*stale*, and completed no longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Any, Self

from headrace.core.errors import DataLossError


class Place(Enum):
    """Where a rollout is."""

    IN_FLIGHT = "in_flight"
    PENDING = "pending"
    """Completed, and waiting for its batch."""
    FAILED = "failed"
    STALE = "stale"
    CANCELLED = "cancelled"
    FILTERED = "filtered"
    TRAINED = "trained"
    """Shipped to the trainer."""


MOVES: dict[Place, frozenset[Place]] = {
    Place.IN_FLIGHT: frozenset({Place.PENDING, Place.FAILED, Place.STALE, Place.CANCELLED}),
    Place.PENDING: frozenset({Place.TRAINED, Place.FILTERED, Place.STALE, Place.CANCELLED}),
}
"""Where a rollout may go. From the other places none does. Completed ones are cancelled only when a run ends, or is resumed
from an earlier state, before their batch was full."""

_REASONED = frozenset({Place.FAILED, Place.FILTERED})


class RolloutBooks:
    """Counts what became of every rollout. Pure."""

    def __init__(self) -> None:
        self._open: dict[str, Place] = {}
        self._ended: Counter[Place] = Counter()
        self._reasons: dict[Place, Counter[str]] = {place: Counter() for place in _REASONED}
        self._requested = 0
        self._attempts = 0
        self._tried: set[str] = set()
        """Those of which an attempt is under way."""
        self._attempt_failures: Counter[str] = Counter()

    def request(self, rollout: str) -> None:
        """A rollout is begun.

        Raises:
            DataLossError: It is open already.
        """
        if rollout in self._open:
            raise self._illegal(rollout, "requested again")
        self._open[rollout] = Place.IN_FLIGHT
        self._requested += 1

    def attempt(self, rollout: str) -> None:
        """A rollout in flight is tried, for the first time or again."""
        self._in_flight(rollout, "tried")
        if rollout in self._tried:
            raise self._illegal(rollout, "tried twice at a time")
        self._tried.add(rollout)
        self._attempts += 1

    def attempt_failed(self, rollout: str, reason: str) -> None:
        """The attempt at it failed; whether the rollout did is not said."""
        self._in_flight(rollout, "failed")
        if rollout not in self._tried:
            raise self._illegal(rollout, "failed without being tried")
        self._tried.remove(rollout)
        self._attempt_failures[reason] += 1

    def move(self, rollout: str, to: Place, reason: str = "") -> None:
        """It leaves its place.

        Args:
            rollout: Its id.
            to: Where it goes.
            reason: One word; needed for ``FAILED`` and ``FILTERED``, and only there.

        Raises:
            DataLossError: There is no such move, or it has, or lacks, a reason.
        """
        place = self._open.get(rollout)
        if place is None or to not in MOVES[place]:
            raise self._illegal(rollout, f"moved to {to.value}")
        if (to in _REASONED) != bool(reason):
            raise self._illegal(rollout, f"moved to {to.value} with reason {reason!r}")
        self._tried.discard(rollout)
        if to in MOVES:
            self._open[rollout] = to
            return
        del self._open[rollout]
        self._ended[to] += 1
        if reason:
            self._reasons[to][reason] += 1

    def count(self, place: Place) -> int:
        """How many are there now."""
        if place in MOVES:
            return sum(at is place for at in self._open.values())
        return self._ended[place]

    def at(self, place: Place) -> list[str]:
        """Ids of the open ones that are there."""
        return [rollout for rollout, now in self._open.items() if now is place]

    @property
    def requested(self) -> int:
        """All that were ever begun."""
        return self._requested

    def audit(self) -> None:
        """Check that the books balance.

        Raises:
            DataLossError: They do not.
        """
        now = self.to_json()
        ends = now["completed"] + sum(now["failed"].values()) + now["stale"] + now["cancelled"] + now["in_flight"]
        parts = now["trained"] + sum(now["filtered"].values()) + now["pending"]
        if now["requested"] != ends or now["completed"] != parts:
            raise DataLossError(
                "the books of the rollouts do not balance",
                **now,
                fix="file a bug with the run directory's events.jsonl",
            )

    def to_json(self) -> dict[str, Any]:
        """All counts, by name."""
        pending, trained = self.count(Place.PENDING), self.count(Place.TRAINED)
        return {
            "requested": self._requested,
            "completed": pending + trained + self.count(Place.FILTERED),
            "failed": dict(self._reasons[Place.FAILED]),
            "stale": self.count(Place.STALE),
            "cancelled": self.count(Place.CANCELLED),
            "in_flight": self.count(Place.IN_FLIGHT),
            "trained": trained,
            "filtered": dict(self._reasons[Place.FILTERED]),
            "pending": pending,
            "attempts": self._attempts,
            "failed_attempts": dict(self._attempt_failures),
        }

    @classmethod
    def from_json(cls, counts: Mapping[str, Any]) -> Self:
        """Books as they were. What was in flight or pending is not there any more, and counts as cancelled.

        Raises:
            DataLossError: They do not balance.
        """
        books = cls()
        books._requested = int(counts["requested"])
        books._attempts = int(counts["attempts"])
        books._attempt_failures = Counter(counts["failed_attempts"])
        for place in _REASONED:
            books._reasons[place] = Counter(counts[place.value])
            books._ended[place] = books._reasons[place].total()
        for place in (Place.STALE, Place.CANCELLED, Place.TRAINED):
            books._ended[place] = int(counts[place.value])
        books._ended[Place.CANCELLED] += int(counts["in_flight"]) + int(counts["pending"])
        books.audit()
        return books

    def _in_flight(self, rollout: str, what: str) -> None:
        if self._open.get(rollout) is not Place.IN_FLIGHT:
            raise self._illegal(rollout, what)

    def _illegal(self, rollout: str, what: str) -> DataLossError:
        place = self._open.get(rollout)
        return DataLossError(
            f"rollout {rollout} was {what}, which it cannot be",
            place=place.value if place else "not open",
            fix="file a bug: the orchestrator lost track of a rollout",
        )
