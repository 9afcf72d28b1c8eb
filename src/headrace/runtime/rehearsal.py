"""The schedules in miniature: who works when, and how fast a run gets on by that. Numbers in, numbers out.

What each process does is a generator of spans, in the very order of `headrace.runtime.lockstep` and
`headrace.runtime.asynchronous`, by the run's own limiter and credits; `Timeline` lets them share the cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.lanes.credits import CreditBook
from headrace.lanes.rate_limiter import RateLimiter

_SLICES = 16
"""In so many parts the updates of one chunk of every group are made, between which commits are taken over."""
_CHUNKS = 500
"""Chunks over which a pace is taken, as long as those are a few rounds and not too many."""
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 32
_HALVINGS = 40
_TOGETHER = 1.0 + 1e-9
"""Spans that end within so much of the time to the first end, end together."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something a process does at one go."""

    wall_s: float
    """How long it takes with as many cores as it can use."""
    cpu_s: float
    """Processor time in it; the rest is waiting for something that is no process of the run."""

    def lasts_s(self, stretch: float) -> float:
        """How long it takes where computing takes ``stretch`` times as long as alone."""
        return self.wall_s + self.cpu_s * (stretch - 1.0)


Process = Generator[Span | None, None, None]
"""What a process does next; None: it waits for another one."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Learning from rounds that are used once (on-policy)."""

    updates: int
    """Gradient steps after each round: epochs times minibatches."""
    lag: int = 0
    """Rounds collecting may be ahead of learning; 0: they take turns under any schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the work is dealt out."""

    groups: int
    chunk_steps: int
    """Environment steps of one chunk of one group, over its lanes."""
    limiter: RateLimiter
    collectors: int = 1
    window_chunks: int = 2
    publish_every: int = 1
    rollout: Rollout | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """How long each piece of the work takes."""

    chunk: Callable[[int], Span]
    """The next chunk of a group."""
    commit: Span
    """Taking one over."""
    update: Span
    publish: Span


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a run gets on once it is under way."""

    steps_per_s: float
    updates_per_s: float


@dataclass(slots=True)
class _Course:
    """How far it has come."""

    shape: Shape
    env_steps: int = 0
    updates: int = 0
    rounds: int = 0
    collected: list[int] = field(init=False)
    limit: list[int] = field(init=False)
    """Chunks granted to each group."""
    arrived: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.collected, self.limit = [0] * self.shape.groups, [0] * self.shape.groups

    @property
    def due(self) -> int:
        """Updates that may be made now."""
        return self.shape.limiter.updates_due(self.env_steps) - self.updates

    def commit(self) -> None:
        self.env_steps += self.shape.chunk_steps
        self.rounds = self.env_steps // (self.shape.chunk_steps * self.shape.groups)


class Timeline:
    """Processes that share cores: each that computes gets as much of them as every other one.

    Args:
        processes: In the order in which they are asked what they do.
        cores: How many there are.
    """

    def __init__(self, processes: Sequence[Process], cores: float) -> None:
        self.now_s = 0.0
        self._processes = processes
        self._cores = cores
        self._spans: dict[int, Span] = {}
        self._left: dict[int, float] = {}
        """Share of each span that is still to be done."""
        self._ask()

    def step(self) -> None:
        """Go on to the next end of a span."""
        stretch = stretched(self._spans.values(), self._cores)
        lasts = {number: span.lasts_s(stretch) for number, span in self._spans.items()}
        first_s = min(self._left[number] * lasts[number] for number in lasts)
        self.now_s += first_s
        for number, whole_s in lasts.items():
            if self._left[number] * whole_s <= first_s * _TOGETHER:
                del self._spans[number], self._left[number]
            else:
                self._left[number] -= first_s / whole_s
        self._ask()

    def _ask(self) -> None:
        """Let everybody who has nothing to do look for something, until nobody finds anything more."""
        passes, found = 0, True
        while found or passes < 2:
            passes, found = passes + 1, False
            for number, process in enumerate(self._processes):
                if number not in self._spans and (span := next(process)) is not None:
                    self._spans[number], self._left[number] = span, 1.0
                    found = True
        assert self._spans, "somebody always has something to do"


def stretched(spans: Iterable[Span], cores: float) -> float:
    """How many times as long computing takes when all of these go on at once."""
    busy = [span for span in spans if span.cpu_s > 0.0 and span.wall_s > 0.0]
    if sum(span.cpu_s / span.wall_s for span in busy) <= cores:
        return 1.0
    if all(span.cpu_s == span.wall_s for span in busy):
        return len(busy) / cores
    low, high = 1.0, len(busy) / cores + 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        used = sum(span.cpu_s / span.lasts_s(middle) for span in busy)
        low, high = (middle, high) if used > cores else (low, middle)
    return high


def pace(schedule: str, shape: Shape, work: Work, cores: float, most: int = _MOST_ROUNDS) -> Pace:
    """How fast a run gets on.

    Args:
        schedule: ``inline``, ``lockstep`` or ``async``.
        shape: How the work is dealt out; ``inline`` has no collectors.
        work: How long its pieces take.
        cores: That the run has; infinity: as many as it can use.
        most: Chunks of every group over which it is taken, at most.
    """
    course = _Course(shape)
    timeline = Timeline(_processes(schedule, course, work), cores)
    rounds = min(most, max(_LEAST_ROUNDS, _CHUNKS // shape.groups))
    warm = rounds // 2
    marks: list[tuple[float, int, int]] = []
    while course.rounds < warm + rounds:
        before = course.rounds
        timeline.step()
        if course.rounds > before >= warm - 1:
            marks.append((timeline.now_s, course.env_steps, course.updates))
    (begin_s, steps, updates), (end_s, more_steps, more_updates) = marks[0], marks[-1]
    lasted_s = max(end_s - begin_s, 1e-12)
    steps_per_s, updates_per_s = (more_steps - steps) / lasted_s, (more_updates - updates) / lasted_s
    ratio = shape.limiter.ratio
    if schedule == "async" and shape.rollout is None and ratio is not None:
        steps_per_s = min(
            steps_per_s, updates_per_s / ratio
        )  # at first collecting may run ahead, and then not any more
    return Pace(steps_per_s, updates_per_s)


def _processes(schedule: str, course: _Course, work: Work) -> list[Process]:
    if schedule == "inline":
        return [_rounds(course, work, here=True)]
    collectors = [_collecting(number, course, work) for number in range(course.shape.collectors)]
    if schedule == "lockstep":
        return [_rounds(course, work, here=False), *collectors]
    return [(_free if course.shape.rollout is None else _ahead)(course, work), *collectors]


def _collecting(number: int, course: _Course, work: Work) -> Process:
    """A collector: the group that is furthest behind comes first."""
    own = range(number, course.shape.groups, course.shape.collectors)
    while True:
        ready = [group for group in own if course.collected[group] < course.limit[group]]
        if not ready:
            yield None
            continue
        group = min(ready, key=lambda group: (course.collected[group], group))
        yield work.chunk(group)
        course.collected[group] += 1
        course.arrived.append(group)


def _rounds(course: _Course, work: Work, *, here: bool) -> Process:
    """The learner in rounds; ``here``: it collects too."""
    groups, rollout = range(course.shape.groups), course.shape.rollout
    while True:
        for group in groups:
            course.limit[group] += 1
            if here:
                yield work.chunk(group)
                course.arrived.append(group)
        for group in groups:
            while group not in course.arrived:
                yield None
            course.arrived.remove(group)
            yield work.commit
            course.commit()
            if rollout is None and course.due > 0:
                yield from _update(course, work, course.due)
        if rollout is not None:
            yield from _update(course, work, rollout.updates)
        yield work.publish


def _free(course: _Course, work: Work) -> Process:
    """The learner that overlaps with collectors."""
    shape = course.shape
    book = CreditBook(shape.groups, shape.chunk_steps, shape.window_chunks)
    course.limit = book.limit
    slices = max(1, _SLICES // shape.groups)
    once = max(1, math.ceil((shape.limiter.ratio or 0.0) * shape.chunk_steps / slices))
    while True:
        while course.arrived:
            book.on_commit(course.arrived.pop(0))
            yield work.commit
            course.commit()
        book.grant(course.env_steps, shape.limiter.steps_allowed(course.updates), range(shape.groups))
        if course.due > 0:
            published = course.updates // shape.publish_every
            yield from _update(course, work, min(once, course.due))
            if course.updates // shape.publish_every > published:
                yield work.publish
        else:
            yield None


def _ahead(course: _Course, work: Work) -> Process:
    """The learner of rounds that are used once, while the next ones are collected."""
    rollout, trained = course.shape.rollout, 0
    assert rollout is not None, "it is told apart by that"
    waiting = [0] * course.shape.groups
    while True:
        course.limit = [trained + 1 + rollout.lag] * course.shape.groups
        while min(waiting) < 1:
            if not course.arrived:
                yield None
                continue
            waiting[course.arrived.pop(0)] += 1
            yield work.commit
            course.commit()
        waiting = [count - 1 for count in waiting]
        yield from _update(course, work, rollout.updates)
        yield work.publish
        trained += 1


def _update(course: _Course, work: Work, count: int) -> Process:
    yield Span(work.update.wall_s * count, work.update.cpu_s * count)
    course.updates += count
