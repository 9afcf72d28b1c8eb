"""The messages of the data path, and who is granted how many chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.lanes.credits import CREDIT_BYTES, Commit, Credit, CreditBook, LaneCommit, commit_bytes
from headrace.lanes.rate_limiter import RateLimiter

UINT32 = st.integers(0, 2**32 - 1)
COUNT = st.integers(0, 2**63 - 1)
LANES = st.lists(st.builds(LaneCommit, COUNT, COUNT, UINT32, st.booleans()), max_size=5).map(tuple)


@given(st.builds(Commit, UINT32, UINT32, COUNT, COUNT, st.booleans(), LANES))
def test_a_commit_survives_its_pipe(commit: Commit) -> None:
    data = commit.pack()
    assert Commit.unpack(data) == commit
    assert len(data) == commit_bytes(len(commit.lanes))


@given(st.builds(Credit, UINT32, UINT32, COUNT, COUNT, COUNT, st.booleans()))
def test_a_credit_survives_its_pipe(credit: Credit) -> None:
    data = credit.pack()
    assert Credit.unpack(data) == credit
    assert len(data) == CREDIT_BYTES


def test_a_credit_passes_through_a_pipe_in_one_piece() -> None:
    assert CREDIT_BYTES <= 512  # the least that POSIX allows PIPE_BUF to be


def test_chunks_go_to_those_who_were_given_least() -> None:
    book = CreditBook(groups=3, chunk_steps=10, window=4)
    assert book.grant(0, 40, [0, 1, 2]) == [0, 1, 2]
    assert book.limit == [2, 1, 1]
    assert book.outstanding_steps == 40


def test_no_group_is_ahead_by_more_than_its_window() -> None:
    book = CreditBook(groups=2, chunk_steps=10, window=3)
    book.grant(0, 10_000, [0, 1])
    assert book.limit == [3, 3]
    assert book.grant(0, 10_000, [0, 1]) == []
    book.on_commit(1)
    assert book.grant(10, 10_000, [0, 1]) == [1]
    assert book.limit == [3, 4]


def test_only_those_who_are_there_are_granted_anything() -> None:
    book = CreditBook(groups=2, chunk_steps=10, window=2)
    assert book.grant(0, 10_000, [1]) == [1]
    assert book.limit == [0, 2]
    assert book.grant(0, 10_000, []) == []


def test_what_a_lost_group_had_not_used_goes_to_others() -> None:
    book = CreditBook(groups=2, chunk_steps=10, window=4)
    book.grant(0, 40, [0, 1])
    book.on_commit(0)
    assert book.on_lost(0) == 1
    assert book.outstanding_steps == 20
    assert book.grant(10, 40, [1]) == [1]
    assert book.limit == [1, 3]


@pytest.mark.parametrize(("allowed", "chunks"), [(0, 0), (1, 1), (10, 1), (11, 2), (-50, 0)])
def test_an_allowance_is_rounded_up_to_whole_chunks(allowed: int, chunks: int) -> None:
    book = CreditBook(groups=1, chunk_steps=10, window=9)
    book.grant(0, allowed, [0])
    assert book.limit == [chunks]


class LearnerAndCollectors(RuleBasedStateMachine):
    """Any order of commits, updates and deaths, under the rules an asynchronous run follows.

    The learner updates when an update is due; a group collects when it holds a credit. At no point may neither be
    possible before the run is at its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limiter: RateLimiter | None = None

    @precondition(lambda self: self.limiter is None)
    @rule(
        groups=st.integers(1, 4), chunk=st.integers(1, 12), window=st.integers(1, 3), starts=st.integers(1, 60),
        ratio=st.sampled_from([0.01, 0.1, 1 / 3, 0.7, 1.0, 2.5, 8.0]), slack=st.integers(1, 60),
        last=st.integers(1, 200),
    )  # fmt: skip
    def begin(self, groups: int, chunk: int, window: int, starts: int, ratio: float, slack: int, last: int) -> None:
        self.limiter = RateLimiter(starts, ratio, slack, last)
        self.book = CreditBook(groups, chunk, window)
        self.chunk, self.window, self.target = chunk, window, last
        self.here = set(range(groups))
        self.env_steps = self.updates = 0
        self.grant()

    def grant(self) -> None:
        assert self.limiter is not None
        allowed = self.limiter.steps_allowed(self.updates)
        before = self.env_steps + self.book.outstanding_steps
        self.book.grant(self.env_steps, allowed, sorted(self.here))
        after = self.env_steps + self.book.outstanding_steps
        assert after <= max(before, allowed + self.chunk - 1), "slack exceeded by a whole chunk"

    def holders(self) -> list[int]:
        return [group for group in sorted(self.here) if self.book.limit[group] > self.book.committed[group]]

    @property
    def due(self) -> bool:
        assert self.limiter is not None
        return self.updates < self.limiter.updates_due(self.env_steps)

    @precondition(lambda self: self.limiter is not None and self.holders())
    @rule(data=st.data())
    def chunk_arrives(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.holders()))
        self.book.on_commit(group)
        self.env_steps += self.chunk
        self.grant()

    @precondition(lambda self: self.limiter is not None and self.due)
    @rule()
    def update(self) -> None:
        self.updates += 1
        self.grant()

    @precondition(lambda self: self.limiter is not None and self.here)
    @rule(data=st.data())
    def collector_dies(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.here)))
        self.here.discard(group)
        self.env_steps += data.draw(st.integers(0, (self.book.limit[group] - self.book.committed[group]) * self.chunk))
        self.book.on_lost(group)
        self.grant()

    @precondition(lambda self: self.limiter is not None and len(self.here) < len(self.book.limit))
    @rule(data=st.data())
    def collector_comes_back(self, data: st.DataObject) -> None:
        missing = [group for group in range(len(self.book.limit)) if group not in self.here]
        self.here.add(data.draw(st.sampled_from(missing)))
        self.grant()

    @invariant()
    def somebody_can_go_on(self) -> None:
        if self.limiter is None or not self.here or self.env_steps >= self.target:
            return
        assert self.due or self.holders(), "the learner waits for rows, and nobody may collect"

    @invariant()
    def no_window_is_exceeded(self) -> None:
        if self.limiter is not None:
            ahead = [limit - done for limit, done in zip(self.book.limit, self.book.committed, strict=True)]
            assert all(0 <= chunks <= self.window for chunks in ahead)

    def teardown(self) -> None:
        """Whatever happened, with one collector back the run ends: at its target, at its ratio."""
        if self.limiter is None:
            return
        self.here.add(0)
        self.grant()
        for _ in range(100_000):
            if self.due:
                self.updates += 1
            elif self.env_steps < self.target:
                group = self.holders()[0]
                self.book.on_commit(group)
                self.env_steps += self.chunk
            else:
                break
            self.grant()
        assert self.env_steps >= self.target
        assert self.updates == self.limiter.updates_due(self.env_steps)
        measured, since = (
            self.limiter.measured(self.env_steps, self.updates),
            self.env_steps - self.limiter.learning_starts,
        )
        if measured is not None:
            assert self.limiter.ratio is not None
            assert abs(measured - self.limiter.ratio) <= 1 / since + 1e-9


TestLearnerAndCollectors = LearnerAndCollectors.TestCase


@given(st.integers(1, 4), st.integers(1, 20), st.integers(1, 3), st.integers(1, 200), st.integers(1, 500))
def test_a_run_without_faults_ends_less_than_a_chunk_behind_its_target(
    groups: int, chunk: int, window: int, slack: int, target: int
) -> None:
    limiter, book = RateLimiter(10, 1.0, slack, target), CreditBook(groups, chunk, window)
    env_steps = updates = 0
    while True:
        book.grant(env_steps, limiter.steps_allowed(updates), range(groups))
        open_groups = [group for group in range(groups) if book.limit[group] > book.committed[group]]
        if updates < limiter.updates_due(env_steps):
            updates += 1
        elif open_groups:
            book.on_commit(open_groups[-1])
            env_steps += chunk
        else:
            break
    assert target <= env_steps < target + chunk
