"""Books of rollouts: every rollout is in one place, and the sums say so."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from headrace.core.errors import DataLossError
from headrace.llm.orchestration.books import MOVES, Place, RolloutBooks

REASONS = ("timeout", "environment", "easy")


class Keeping(RuleBasedStateMachine):
    """Any calls, beside a dictionary that says where each rollout must be."""

    rollouts = Bundle("rollouts")

    def __init__(self) -> None:
        super().__init__()
        self.books = RolloutBooks()
        self.places: dict[str, Place] = {}
        self.reasons: dict[str, str] = {}
        self.attempts = 0
        self.tried: set[str] = set()

    @rule(target=rollouts)
    def request(self) -> str:
        name = f"g{len(self.places)}.0"
        self.books.request(name)
        self.places[name] = Place.IN_FLIGHT
        return name

    @rule(rollout=rollouts)
    def attempt(self, rollout: str) -> None:
        if self.places[rollout] is not Place.IN_FLIGHT or rollout in self.tried:
            with pytest.raises(DataLossError):
                self.books.attempt(rollout)
            return
        self.books.attempt(rollout)
        self.attempts += 1
        self.tried.add(rollout)

    @rule(rollout=rollouts)
    def attempt_failed(self, rollout: str) -> None:
        if rollout not in self.tried:
            with pytest.raises(DataLossError):
                self.books.attempt_failed(rollout, "timeout")
            return
        self.books.attempt_failed(rollout, "timeout")
        self.tried.remove(rollout)

    @rule(rollout=rollouts, to=st.sampled_from(Place), reason=st.sampled_from(("", *REASONS)))
    def move(self, rollout: str, to: Place, reason: str) -> None:
        allowed = to in MOVES.get(self.places[rollout], ())
        if not allowed or (to in {Place.FAILED, Place.FILTERED}) != bool(reason):
            with pytest.raises(DataLossError):
                self.books.move(rollout, to, reason)
            return
        self.books.move(rollout, to, reason)
        self.places[rollout], self.reasons[rollout] = to, reason
        self.tried.discard(rollout)

    @rule()
    def reopen(self) -> None:
        """What is open when a run ends is cancelled in the next one's books."""
        self.books = RolloutBooks.from_json(json.loads(json.dumps(self.books.to_json())))
        self.places = {name: Place.CANCELLED if place in MOVES else place for name, place in self.places.items()}
        self.tried.clear()

    @invariant()
    def they_say_where_each_is(self) -> None:
        self.books.audit()
        found = self.books.to_json()
        for place in Place:
            there = [name for name, now in self.places.items() if now is place]
            counted = found[place.value]
            if isinstance(counted, dict):
                assert counted == {
                    reason: sum(self.reasons[name] == reason for name in there)
                    for reason in REASONS
                    if any(self.reasons[name] == reason for name in there)
                }
            else:
                assert counted == len(there)
        assert found["requested"] == len(self.places)
        assert found["attempts"] == self.attempts


Keeping.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestBooks = Keeping.TestCase


def test_a_rollout_that_is_open_is_not_requested_again() -> None:
    books = RolloutBooks()
    books.request("g0.1")
    with pytest.raises(DataLossError, match=r"rollout g0\.1 was requested again, which it cannot be"):
        books.request("g0.1")


def test_no_attempt_fails_that_was_not_made() -> None:
    books = RolloutBooks()
    books.request("g0.1")
    for _ in range(2):
        books.attempt("g0.1")
        books.attempt_failed("g0.1", "server")
        with pytest.raises(DataLossError, match=r"rollout g0\.1 was failed without being tried"):
            books.attempt_failed("g0.1", "timeout")
    assert books.to_json()["failed_attempts"] == {"server": 2}


def test_books_that_do_not_balance_are_refused() -> None:
    counts = RolloutBooks().to_json() | {"requested": 1}
    with pytest.raises(DataLossError, match="the books of the rollouts do not balance"):
        RolloutBooks.from_json(counts)
