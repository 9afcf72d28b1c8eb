"""Requests of rollouts in one call: in rounds only when all wait, otherwise as there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from headrace.llm.messages import Completion, Failure, GenerationRequest
from headrace.llm.orchestration.gatherer import Gatherer
from orchestration_support import pause, run_in_fake_time


class Noting:
    """Answers after a second; notes what came together, and when."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, list[str]]] = []

    async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        self.calls.append((round(asyncio.get_running_loop().time(), 3), [request.id for request in requests]))
        await pause(1.0)
        return [Failure("made_up", request.id) for request in requests]


def request(name: str) -> GenerationRequest:
    return GenerationRequest(id=name, prompt_ids=(1,), max_tokens=1)


class Turn:
    """Awaited, it lets everybody else who can go on do so once."""

    def __await__(self) -> Iterator[None]:
        yield


async def turns(count: int) -> None:
    for _ in range(count):
        await Turn()


async def member(gatherer: Gatherer, key: int, turns: int, thinks_s: float = 0.0) -> list[str]:
    said = []
    for turn in range(turns):
        await pause(thinks_s)
        answer = await gatherer.complete((key, 0), request(f"{key}/{turn}"), 1e6)
        assert isinstance(answer, Failure)
        said.append(answer.detail)
    gatherer.leave()
    return said


def played(*, rounds: bool, at_once: int, members: list[tuple[int, float]]) -> tuple[Noting, list[list[str]]]:
    generator = Noting()

    async def main() -> list[list[str]]:
        gatherer = Gatherer(generator, rounds=rounds, at_once=at_once)  # type: ignore[arg-type]
        for _ in members:
            gatherer.enter()
        tasks = [member(gatherer, key, turns, thinks) for key, (turns, thinks) in enumerate(members)]
        answers = await asyncio.gather(*reversed(tasks))  # the last one asks first
        await gatherer.close()
        return list(reversed(answers))

    return generator, run_in_fake_time(main())


def test_a_round_waits_for_the_slowest_and_is_in_order() -> None:
    generator, answers = played(rounds=True, at_once=1, members=[(2, 0.0), (3, 5.0), (1, 0.0)])
    assert [ids for _, ids in generator.calls] == [["0/0", "1/0", "2/0"], ["0/1", "1/1"], ["1/2"]]
    assert answers == [["0/0", "0/1"], ["1/0", "1/1", "1/2"], ["2/0"]]


def test_without_rounds_nobody_waits_for_others() -> None:
    generator, _ = played(rounds=False, at_once=64, members=[(2, 0.0), (2, 0.25)])
    assert generator.calls == [(0.0, ["0/0"]), (0.25, ["1/0"]), (1.0, ["0/1"]), (1.5, ["1/1"])]


def test_what_is_asked_in_one_turn_goes_together_as_far_as_there_is_room() -> None:
    generator, answers = played(rounds=False, at_once=3, members=[(1, 0.0)] * 5)
    assert generator.calls == [(0.0, ["0/0", "1/0", "2/0"]), (1.0, ["3/0", "4/0"])]
    assert answers == [[f"{key}/0"] for key in range(5)]


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_round_goes_on_without_who_is_cancelled(asks_first: bool) -> None:
    generator = Noting()

    async def main() -> list[str]:
        gatherer = Gatherer(generator, rounds=True, at_once=1)  # type: ignore[arg-type]
        gatherer.enter()
        gatherer.enter()
        gone = asyncio.create_task(member(gatherer, 0, 1, thinks_s=0.0 if asks_first else 99.0))
        gone.add_done_callback(lambda _: gatherer.leave())
        stays = asyncio.create_task(member(gatherer, 1, 1, thinks_s=1.0 if asks_first else 0.0))
        await pause(0.5)
        gone.cancel()
        await asyncio.wait({gone}, timeout=1.0)
        return await stays

    assert run_in_fake_time(main()) == ["1/0"]
    assert [ids for _, ids in generator.calls] == [["1/0"]]


def test_nobody_waits_longer_than_its_own_time_for_others() -> None:
    """A call is answered after `ANSWER_SHARE` of its longest time."""
    limits: list[tuple[list[str], float]] = []

    class Limited(Noting):
        async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
            limits.append(([request.id for request in requests], round(timeout_s, 3)))
            return await super().generate(requests, timeout_s)

    async def main(*, rounds: bool) -> None:
        gatherer = Gatherer(Limited(), rounds=rounds, at_once=9)  # type: ignore[arg-type]
        left_s = [10.0, 3.0, 3.5, 9.0, 0.0, -1.0]
        for _ in left_s:
            gatherer.enter()
        await asyncio.gather(*(gatherer.complete((key, 0), request(str(key)), left) for key, left in enumerate(left_s)))
        await gatherer.close()

    run_in_fake_time(main(rounds=False))
    assert sorted(limits) == [(["1", "2"], 3.5), (["3", "0"], 10.0), (["5", "4"], 0.0)]
    limits.clear()
    run_in_fake_time(main(rounds=True))
    assert limits == [(["0", "1", "2", "3", "4", "5"], 10.0)]


def test_what_a_generator_raises_reaches_everybody_who_waits() -> None:
    class Broken:
        async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion]:
            raise ValueError("a bug")

    async def main() -> list[object]:
        gatherer = Gatherer(Broken(), rounds=False, at_once=8)  # type: ignore[arg-type]
        return await asyncio.gather(
            *(gatherer.complete((key, 0), request(str(key)), 9.0) for key in range(2)), return_exceptions=True
        )

    assert [str(error) for error in run_in_fake_time(main())] == ["a bug", "a bug"]


def test_a_call_that_nobody_waits_for_is_ended() -> None:
    generator = Noting()
    ended: list[float] = []

    async def noting(requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        try:
            await pause(100.0)
        finally:
            ended.append(round(asyncio.get_running_loop().time(), 3))
        return []

    generator.generate = noting  # type: ignore[method-assign]

    async def main() -> None:
        gatherer = Gatherer(generator, rounds=False, at_once=8)  # type: ignore[arg-type]
        tasks = [asyncio.create_task(gatherer.complete((key, 0), request(str(key)), 999.0)) for key in range(2)]
        for task, after_s in zip(tasks, (2.0, 3.0), strict=True):
            asyncio.get_running_loop().call_later(after_s, task.cancel)
        await asyncio.wait(set(tasks), timeout=50.0)
        await pause(1.0)
        assert gatherer.outstanding == 0

    run_in_fake_time(main())
    assert ended == [3.0]


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("after_turns", range(5))
def test_whoever_gives_up_in_whichever_turn_gives_the_room_back(after_turns: int, rounds: bool) -> None:
    """Before the call is made, after that and before its first turn, in the middle of it."""
    generator = Noting()

    async def main() -> str:
        gatherer = Gatherer(generator, rounds=rounds, at_once=1)  # type: ignore[arg-type]
        gatherer.enter()
        gone = asyncio.create_task(gatherer.complete((0, 0), request("gone"), 9.0))
        gone.add_done_callback(lambda _: gatherer.leave())
        await turns(after_turns)
        gone.cancel()
        await asyncio.wait({gone}, timeout=1.0)
        await turns(3)
        assert gone.cancelled()
        assert gatherer.outstanding == 0
        gatherer.enter()
        async with asyncio.timeout(9.0):
            answer = await gatherer.complete((1, 0), request("next"), 9.0)
        assert isinstance(answer, Failure)
        await turns(1)
        assert gatherer.outstanding == 0
        return answer.detail

    assert run_in_fake_time(main()) == "next"


@pytest.mark.parametrize("given_up", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("rounds", [True, False])
def test_nothing_is_generated_that_was_given_up_in_the_turn_before(given_up: tuple[int, ...], rounds: bool) -> None:
    generator = Noting()

    async def main() -> None:
        gatherer = Gatherer(generator, rounds=rounds, at_once=8)  # type: ignore[arg-type]
        asking = [asyncio.create_task(gatherer.complete((key, 0), request(str(key)), 9.0)) for key in range(2)]
        for task in asking:
            gatherer.enter()
            task.add_done_callback(lambda _: gatherer.leave())
        if rounds:
            gatherer.enter()  # one who asks for nothing, and leaves in the turn in which others give up
        await turns(1)
        for key in given_up:
            asking[key].cancel()
        if rounds:
            gatherer.leave()
        await asyncio.wait(set(asking), timeout=5.0)

    run_in_fake_time(main())
    stay = [str(key) for key in range(2) if key not in given_up]
    assert [ids for _, ids in generator.calls] == ([stay] if stay else [])
