"""Who waits for a row, and whose turn it is: guests share no forward pass with the run."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.llm.engine.rows import Job, Said


@dataclass(slots=True)
class _Line:
    """Those of one kind."""

    jobs: deque[Job] = field(default_factory=deque)
    passes: int = 0
    """Forward passes for this kind."""


class Waiting:
    """Jobs without a row. What becomes of the run's does not depend on guests' (`GenerationRequest.guest`), to the last bit.

    Guests are admitted while nobody else runs or waits. When the run asks for something they give way at once, and go on later
    from what they have said: they are admitted whenever the run waits for its environments, and a rollout has no time to lose.
    """

    def __init__(self) -> None:
        self._run, self._guests = _Line(), _Line()

    def __len__(self) -> int:
        return len(self._run.jobs) + len(self._guests.jobs)

    def __iter__(self) -> Iterator[Job]:
        yield from self._run.jobs
        yield from self._guests.jobs

    def add(self, job: Job) -> None:
        """Behind all of its kind."""
        line = self._guests if job.request.guest else self._run
        job.waited_since = line.passes
        line.jobs.append(job)

    def displaces(self, running: Sequence[Job]) -> bool:
        """Whether guests run, and the run waits for their rows."""
        return bool(self._run.jobs and running and running[0].request.guest)

    def put_back(self, guests: Sequence[Job]) -> None:
        """In front of all other guests, what they have said being kept with them."""
        for job in guests:
            job.waited_since = self._guests.passes
        self._guests.jobs.extendleft(reversed(guests))

    def said(self, request_id: str) -> Said:
        """What somebody said who had to give way; nothing of others. Whoever gave way stands in front."""
        for job in itertools.takewhile(lambda job: job.said[0], self._guests.jobs):
            if job.request.id == request_id:
                return job.said
        return (), (), ()

    def drop(self, ids: Collection[str]) -> None:
        """Forget jobs."""
        for line in (self._run, self._guests):
            line.jobs = deque(job for job in line.jobs if job.request.id not in ids)

    def next(self, running: Sequence[Job]) -> tuple[deque[Job], int]:
        """Those of whom the first may be admitted beside who runs, and for how many passes of their kind the first has waited.

        Nobody runs whom somebody who waits displaces.
        """
        guests = running[0].request.guest if running else not self._run.jobs
        line = self._guests if guests else self._run
        return line.jobs, line.passes - line.jobs[0].waited_since if line.jobs else 0

    def note_pass(self, running: Sequence[Job]) -> None:
        """A forward pass was made for them."""
        line = self._guests if running[0].request.guest else self._run
        line.passes += 1

    def counted_for(self, guest: bool, running: Sequence[Job]) -> tuple[int, int]:
        """How many wait, and how many run, beside whom there has to be room: of the run's nobody but its own are counted."""
        if guest:
            return len(self), len(running)
        return len(self._run.jobs), sum(not job.request.guest for job in running[:1]) * len(running)
