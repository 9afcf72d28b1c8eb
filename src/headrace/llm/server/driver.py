"""Drives an engine from an event loop: forward passes and requests take turns in one thread."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from headrace.core.clock import Clock, MonotonicClock
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import Completion, Failure, GenerationRequest, PublishedWeights, ServedWeights
from headrace.telemetry.board import Activity, Slot

_TURNS_PER_PASS = 2
"""Turns of the loop between two passes: reading a request and answering one takes more than one turn."""


class Call:
    """Requests that were sent together, and their answers as they come.

    Args:
        requests: With ids that nobody else has.
    """

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self.requests = requests
        self.answers: list[Completion | Failure | None] = [None] * len(requests)
        self.missing = len(requests)
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, place: int, answer: Completion | Failure) -> None:
        """The answer of one."""
        self.answers[place] = answer
        self.missing -= 1
        if not self.missing and not self.complete.done():
            self.complete.set_result(None)

    def close(self, failure: Failure) -> None:
        """Answer those that have none."""
        for place, answer in enumerate(self.answers):
            if answer is None:
                self.take(place, failure)

    def all_answers(self, failure: Failure) -> list[Completion | Failure]:
        """One per request; ``failure`` where there is none."""
        return [failure if answer is None else answer for answer in self.answers]


@dataclass(slots=True)
class _Progress:
    """When something was generated, and since when somebody waits for it."""

    tokens: int = 0
    at_s: float = 0.0


@dataclass(slots=True)
class Driver:
    """Has an engine generate whenever somebody asks for something, and knows whether it does.

    Args:
        engine: Used from the loop's thread only.
        slot: On the board, if there is one.
        stalled_s: Seconds without a token, while requests wait, after which it counts as stalled.
        guests_apart: What guests ask for shares no forward pass with the rest, so that this stays the same to the last bit.
        clock: For that.
    """

    engine: Engine
    slot: Slot | None = None
    stalled_s: float = 60.0
    guests_apart: bool = False
    clock: Clock = field(default_factory=MonotonicClock)
    _calls: dict[int, Call] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _wake: asyncio.Future[None] | None = None
    _passed: asyncio.Future[None] | None = None
    _progress: _Progress = field(default_factory=_Progress)
    _stopping: bool = False

    async def run(self) -> None:
        """Generate until `stop`. An exception of the engine leaves here, after all who wait were told."""
        try:
            while not self._stopping:
                if not (self.engine.running or self.engine.waiting):
                    await self._idle()
                    continue
                self._pass()
                for _ in range(_TURNS_PER_PASS):
                    await asyncio.sleep(0)
        finally:
            self.stop()

    def stop(self) -> None:
        """Answer whoever waits that nothing more will be generated."""
        self._stopping = True
        for call in list(self._calls.values()):
            self.engine.cancel([request.id for request in call.requests])
            call.close(Failure("stopping", "the server stops"))
        self._rouse()

    def submit(self, requests: Sequence[GenerationRequest], *, guest: bool = False) -> Call:
        """Have the engine take requests; their ids need to be unique among themselves only. ``guest``: not the run's own."""
        number = next(self._numbers)
        apart = guest and self.guests_apart
        call = Call(
            [
                replace(request, id=f"{number}/{place}", guest=apart, session="" if apart else request.session)
                for place, request in enumerate(requests)
            ]
        )
        if not requests:
            call.complete.set_result(None)
        elif self._stopping:
            call.close(Failure("stopping", "the server stops"))
        else:
            if not self._calls:
                self._progress.at_s = self.clock.now()
            self._calls[number] = call
            call.complete.add_done_callback(lambda _: self._calls.pop(number, None))
            self.engine.submit(call.requests, call.take)
            self._rouse()
        return call

    def abandon(self, call: Call) -> None:
        """Nobody waits for it any more; its slots are free at once."""
        if call.missing:
            self.engine.cancel([request.id for request in call.requests])
            call.complete.cancel()

    def finish(self, call: Call, place: int) -> None:
        """What there is of a request is all of it: a text that ends it was said."""
        if call.answers[place] is not None:
            return
        call.take(place, self.engine.finish(call.requests[place].id))

    async def follow(self, call: Call) -> AsyncIterator[None]:
        """A turn after every pass, until the call is complete."""
        while not call.complete.done():
            if self._passed is None:
                self._passed = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._passed, call.complete}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            yield

    def load(self, published: PublishedWeights) -> ServedWeights:
        """Serve other weights from now on, see `Engine.load`."""
        with _Busy(self.slot, Activity.LOAD_WEIGHTS):
            served = self.engine.load(published)
        if self.slot:
            self.slot.count("version", served.version)
            self.slot.add("updates")
        return served

    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """See `Engine.score`."""
        with _Busy(self.slot, Activity.SCORE):
            return self.engine.score(token_ids)

    @property
    def outstanding(self) -> int:
        """Requests that wait for an answer."""
        return sum(call.missing for call in self._calls.values())

    def stalled_for_s(self) -> float:
        """Seconds since the last token, if requests wait for longer than they may; otherwise 0."""
        if not self._calls:
            return 0.0
        age_s = self.clock.now() - self._progress.at_s
        return age_s if age_s > self.stalled_s else 0.0

    def _pass(self) -> None:
        if self.slot:
            self.slot.enter(Activity.GENERATE)
        self.engine.step()
        counts, progress = self.engine.counts, self._progress
        if counts.generated_tokens > progress.tokens:
            progress.tokens, progress.at_s = counts.generated_tokens, self.clock.now()
        if self._passed is not None:
            self._passed.set_result(None)
            self._passed = None
        if self.slot:
            self.slot.count("rows", counts.generated_tokens)
            self.slot.count("episodes", counts.completed)

    async def _idle(self) -> None:
        if self.slot:
            self.slot.waiting(Activity.WAIT_REQUESTS)
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class _Busy:
    """The slot tells of something that is done between two passes."""

    def __init__(self, slot: Slot | None, activity: Activity) -> None:
        self._slot = slot
        self._activity = activity

    def __enter__(self) -> None:
        if self._slot:
            self._before = self._slot.resume()
            self._slot.enter(self._activity)

    def __exit__(self, *_: object) -> None:
        if self._slot:
            self._slot.enter(*self._before)
