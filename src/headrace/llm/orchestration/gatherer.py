"""Collects what rollouts ask for, and asks for it together: prompt lists cost a fraction of single prompts.

Results of a forward pass depend, in their last bits, on what is computed together. In rounds, a call is made when every
rollout that is alive waits for a completion, in the order of their keys: then the calls, and so all results, are the same
whatever the order and the delay of answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headrace.llm.messages import ANSWER_SHARE, Completion, Failure, GenerationRequest, Generator

Key = tuple[int, int]
"""Group and sample."""


@dataclass(frozen=True, slots=True)
class _Asked:
    request: GenerationRequest
    answer: asyncio.Future[Completion | Failure]
    deadline_s: float

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.answer.cancelled()


def _alike(asked: list[_Asked], now_s: float) -> list[list[_Asked]]:
    """Parts whose calls are answered before the time of any of their requests is over."""
    parts: list[list[_Asked]] = []
    shortest_s = 0.0
    for one in sorted(asked, key=lambda one: one.deadline_s):
        left_s = max(0.0, one.deadline_s - now_s)
        if not parts or ANSWER_SHARE * left_s > shortest_s:
            parts.append([])
            shortest_s = left_s
        parts[-1].append(one)
    return parts


class Gatherer:
    """Stands between rollouts and what generates their completions.

    Args:
        generator: Generates.
        rounds: Call only when every member waits. Otherwise with whatever there is.
        at_once: Without rounds, most requests that are given to the generator and not answered.
        answered: Told of each answer as it arrives.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        rounds: bool,
        at_once: int,
        answered: Callable[[Completion | Failure], None] = lambda _: None,
    ) -> None:
        self._generator = generator
        self._rounds = rounds
        self._at_once = at_once
        self._answered = answered
        self._waiting: dict[Key, _Asked] = {}
        self._members = 0
        self._calls: dict[asyncio.Task[None], list[_Asked]] = {}
        self._flush_planned = False

    @property
    def outstanding(self) -> int:
        """Requests that are with the generator."""
        return sum(map(len, self._calls.values()))

    def enter(self) -> None:
        """A rollout is alive. Said before it runs, so that no round begins without it."""
        self._members += 1

    def leave(self) -> None:
        """It is over."""
        self._members -= 1
        self._look()

    async def complete(self, key: Key, request: GenerationRequest, deadline_s: float) -> Completion | Failure:
        """The answer to ``request`` of the rollout ``key``; ``deadline_s`` is on the event loop's clock."""
        answer: asyncio.Future[Completion | Failure] = asyncio.get_running_loop().create_future()
        asked = self._waiting[key] = _Asked(request, answer, deadline_s)
        self._look()
        try:
            return await answer
        except asyncio.CancelledError:
            self._give_up()
            raise
        finally:
            if self._waiting.get(key) is asked:
                del self._waiting[key]

    async def close(self) -> None:
        """Give up the calls that run."""
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=5.0)

    def _give_up(self) -> None:
        """End the calls of which no answer is wanted any more, so that the server is free for others."""
        for call, asked in self._calls.items():
            if all(one.given_up for one in asked):
                call.cancel()

    def _look(self) -> None:
        if self._rounds:
            if self._waiting and len(self._waiting) >= self._members:
                self._send(len(self._waiting))
        elif self._waiting and not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)  # with what others ask for in this turn of the loop

    def _flush(self) -> None:
        self._flush_planned = False
        room = self._at_once - self.outstanding
        if room > 0 and self._waiting:
            self._send(room)

    def _send(self, most: int) -> None:
        keys = sorted(key for key, asked in self._waiting.items() if not asked.given_up)[:most]
        if not keys:
            return
        loop, asked = asyncio.get_running_loop(), [self._waiting.pop(key) for key in keys]
        for part in [asked] if self._rounds else _alike(asked, loop.time()):
            call = loop.create_task(self._call(part))
            self._calls[call] = part
            call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        """Said by the loop, as a call that is cancelled before its first turn runs nothing of its own, no ``finally`` either."""
        del self._calls[call]
        self._look()

    async def _call(self, asked: list[_Asked]) -> None:
        left_s = max(one.deadline_s for one in asked) - asyncio.get_running_loop().time()
        try:
            answers = await self._generator.generate([one.request for one in asked], max(0.0, left_s))
            for one, answer in zip(asked, answers, strict=True):
                self._answered(answer)
                if not one.answer.done():
                    one.answer.set_result(answer)
        except Exception as error:  # noqa: BLE001 - not lost: each of those who wait raises it
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(error)
