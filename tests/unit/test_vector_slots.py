"""The requests of environments, without environments: what follows from what, whatever the order of events."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.errors import VectorMisused
from headrace.vector.slots import AskAgain, Cut, GiveUp, Policy, Raise, Slots, SlotState

COUNT = 4


def policy(**changes: object) -> Policy:
    usual = {
        "raises": False,
        "cuts": True,
        "per_env": 3,
        "total": 100,
        "window_s": 10.0,
        "backoff_s": 1.0,
        "longest_pause_s": 3.0,
    }
    return Policy(**{**usual, **changes})  # type: ignore[arg-type]


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def yes(count: int) -> np.ndarray:
    return np.ones(count, np.bool_)


def asked(slots: Slots, *envs: int, now_s: float = 0.0) -> np.ndarray:
    slots.send(ids(*envs), yes(len(envs)), now_s)
    return slots.seq[list(envs)]


def test_an_answer_to_an_older_question_is_not_taken() -> None:
    slots = Slots(COUNT, policy())
    old = asked(slots, 1).copy()
    slots.answered(ids(1), old)
    slots.take(ids(1))
    new = asked(slots, 1)
    assert slots.answered(ids(1), old).tolist() == []
    assert slots.state[1] == SlotState.BUSY
    assert slots.answered(ids(1), new).tolist() == [1]
    assert slots.answered(ids(1), new).tolist() == []  # once
    assert slots.state[1] == SlotState.READY


def test_a_failure_of_an_older_question_is_none_of_the_newest() -> None:
    slots = Slots(COUNT, policy())
    old = int(asked(slots, 1)[0])
    slots.answered(ids(1), ids(old))
    slots.take(ids(1))
    new = int(asked(slots, 1)[0])
    assert slots.failed(1, old, 0.0) is None
    assert slots.state[1] == SlotState.BUSY
    assert slots.failed(1, new, 0.0) == Cut(1)


def test_what_another_one_did_is_not_laid_on_an_environment_but_on_all() -> None:
    slots = Slots(COUNT, policy(per_env=1, total=4, cuts=False))
    for _ in range(4):
        assert slots.failed(2, int(asked(slots, 2)[0]), 0.0, own=False) == AskAgain(2, 0.0)
        slots.answered(slots.due(0.0), slots.seq[[2]])
        slots.take(ids(2))
    assert slots.failed(2, int(asked(slots, 2)[0]), 0.0, own=False) == GiveUp(2, 5, 4, of_all=True)


def test_a_question_to_one_who_is_busy_changes_nothing() -> None:
    slots = Slots(COUNT, policy())
    asked(slots, 2)
    before = slots.seq.copy(), slots.state.copy()
    with pytest.raises(VectorMisused, match="environment 2 is still busy"):
        slots.send(ids(0, 2), yes(2), 0.0)
    np.testing.assert_array_equal(slots.seq, before[0])
    np.testing.assert_array_equal(slots.state, before[1])


def test_what_is_not_ready_cannot_be_taken() -> None:
    slots = Slots(COUNT, policy())
    asked(slots, 0)
    with pytest.raises(VectorMisused, match="environment 1 was asked for nothing"):
        slots.take(ids(1))
    with pytest.raises(VectorMisused, match="environment 0 is still busy"):
        slots.take(ids(0))


def test_a_step_that_fails_is_cut_and_a_reset_that_fails_is_asked_again() -> None:
    slots = Slots(COUNT, policy())
    seq = int(asked(slots, 0)[0])
    assert slots.failed(0, seq, 0.0) == Cut(0)
    assert slots.state[0] == SlotState.READY
    slots.take(ids(0))
    slots.send(ids(0), ~yes(1), 0.0)
    assert slots.failed(0, int(slots.seq[0]), 0.0) == AskAgain(0, 1.0)
    assert slots.state[0] == SlotState.HELD
    assert slots.next_due_s() == 1.0
    assert slots.due(0.9).tolist() == []
    before = int(slots.seq[0])
    assert slots.due(1.0).tolist() == [0]
    assert (slots.state[0], slots.seq[0]) == (SlotState.BUSY, before + 1)
    assert slots.next_due_s() is None
    assert slots.due(9.0).tolist() == []


def test_where_a_cut_needs_an_observation_the_step_is_asked_again_as_a_reset() -> None:
    slots = Slots(COUNT, policy(cuts=False))
    assert slots.failed(3, int(asked(slots, 3)[0]), 5.0) == AskAgain(3, 0.0)
    assert slots.due(5.0).tolist() == [3]
    assert not slots.is_step[3]


def test_pauses_grow_and_hold_up_the_next_reset_only() -> None:
    slots = Slots(COUNT, policy(per_env=9))
    pauses = []
    for _ in range(5):
        seq = int(asked(slots, 0)[0])
        slots.failed(0, seq, 0.0)
        slots.take(ids(0))
        now = slots.send(ids(0, 1), np.array([False, True]), 0.0)
        pauses.append(slots.next_due_s() or 0.0)
        assert 1 in now.tolist()
        slots.due(100.0)
        slots.answered(ids(0, 1), slots.seq[:2])
        slots.take(ids(0, 1))
    assert pauses == [0.0, 1.0, 2.0, 3.0, 3.0]


def test_any_number_of_faults_can_be_counted() -> None:
    slots = Slots(COUNT, policy(per_env=10_000, total=10_000, cuts=False))
    for _ in range(1100):
        found = slots.failed(0, int(asked(slots, 0)[0]), 0.0)
        slots.forget(ids(0))
    assert found == AskAgain(0, 3.0)


def test_the_budget_of_one_environment() -> None:
    slots = Slots(COUNT, policy(per_env=2))
    for now_s in (0.0, 1.0):
        slots.failed(0, int(asked(slots, 0, now_s=now_s)[0]), now_s)
        slots.take(ids(0))
    assert slots.failed(0, int(asked(slots, 0, now_s=2.0)[0]), 2.0) == GiveUp(0, 3, 2, of_all=False)
    assert slots.state[0] == SlotState.LOST
    with pytest.raises(VectorMisused, match="environment 0 is lost"):
        asked(slots, 0)


def test_faults_are_forgiven_when_the_window_has_passed() -> None:
    slots = Slots(COUNT, policy(per_env=1))
    for now_s in (0.0, 10.1, 20.2):
        assert slots.failed(0, int(asked(slots, 0, now_s=now_s)[0]), now_s) == Cut(0)
        slots.take(ids(0))


def test_the_budget_of_all() -> None:
    slots = Slots(COUNT, policy(total=2))
    for env in (0, 1):
        assert slots.failed(env, int(asked(slots, env)[0]), 0.0) == Cut(env)
    assert slots.failed(2, int(asked(slots, 2)[0]), 0.0) == GiveUp(2, 3, 2, of_all=True)


def test_whoever_wants_to_be_told_by_an_exception_has_to_reset() -> None:
    slots = Slots(COUNT, policy(raises=True))
    assert slots.failed(1, int(asked(slots, 1)[0]), 0.0) == Raise(1)
    with pytest.raises(VectorMisused, match="environment 1 failed and was not reset"):
        asked(slots, 1)
    assert slots.send(ids(1), ~yes(1), 0.0).tolist() == [1]


def test_everybody_at_once_is_everybody_one_by_one() -> None:
    one, other = Slots(COUNT, policy()), Slots(COUNT, policy())
    one.send_all()
    other.send(np.arange(COUNT), yes(COUNT), 0.0)
    for field in ("state", "seq", "is_step"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))


class Life(RuleBasedStateMachine):
    """Any order of questions, answers (also late ones), faults, pauses and takes."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(COUNT, policy(per_env=1000, total=10_000))
        self.now_s = 0.0
        self.open: dict[int, int] = {}
        self.old: list[tuple[int, int]] = []
        self.ready: set[int] = set()
        self.counts: Counter[str] = Counter()

    @rule(env=st.integers(0, COUNT - 1), steps=st.booleans())
    def ask(self, env: int, steps: bool) -> None:
        free = env not in self.ready and self.slots.state[env] == SlotState.IDLE
        before = self.slots.seq.copy()
        try:
            self.slots.send(ids(env), np.array([steps]), self.now_s)
        except VectorMisused:
            assert not free
            np.testing.assert_array_equal(self.slots.seq, before)
            return
        assert free
        assert self.slots.seq[env] == before[env] + 1
        self.open[env] = int(self.slots.seq[env])
        self.counts["asked"] += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        env = data.draw(st.sampled_from(sorted(self.open)))
        busy = self.slots.state[env] == SlotState.BUSY
        taken = self.slots.answered(ids(env), self.slots.seq[[env]])
        assert taken.tolist() == ([env] if busy else [])
        if busy:
            self.old.append((env, int(self.slots.seq[env])))
            self.ready.add(env)
            del self.open[env]

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def answer_late(self, data: st.DataObject) -> None:
        env, seq = data.draw(st.sampled_from(self.old))
        assert self.slots.answered(ids(env), ids(seq)).tolist() == []
        assert self.slots.failed(env, seq, self.now_s) is None

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        env = data.draw(st.sampled_from(sorted(self.open)))
        seq, busy = int(self.slots.seq[env]), self.slots.state[env] == SlotState.BUSY
        instruction = self.slots.failed(env, seq, self.now_s)
        assert (instruction is None) == (not busy)
        if busy:
            self.old.append((env, seq))
        if isinstance(instruction, Cut):
            self.ready.add(env)
            del self.open[env]

    @rule(by_s=st.floats(0.0, 5.0))
    def pass_time(self, by_s: float) -> None:
        before = self.slots.state.copy()
        self.now_s += by_s
        for env in self.slots.due(self.now_s).tolist():
            assert before[env] == SlotState.HELD
            assert self.slots.state[env] == SlotState.BUSY
            before[env] = SlotState.BUSY
        np.testing.assert_array_equal(self.slots.state, before)  # time alone does nothing else

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        taken = sorted(self.ready)
        self.slots.take(ids(*taken))
        self.counts["taken"] += len(taken)
        self.ready.clear()

    @invariant()
    def every_question_is_open_ready_or_taken(self) -> None:
        state = self.slots.state
        waiting = {env for env in range(COUNT) if state[env] in (SlotState.BUSY, SlotState.HELD)}
        assert waiting == set(self.open)
        assert {env for env in range(COUNT) if state[env] == SlotState.READY} == self.ready
        assert self.counts["asked"] == self.counts["taken"] + len(self.open) + len(self.ready)
        assert self.slots.count_done(None) == len(self.ready)
        assert self.slots.idle() == (not self.open and not self.ready)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
