"""Groups that were begun and not shipped when a run was interrupted: a resume begins them anew, and skips none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from headrace.llm.messages import Batch, Failure, GenerationRequest
from headrace.llm.orchestration.books import Place
from headrace.llm.orchestration.orchestrator import Orchestrator
from headrace.llm.orchestration.problems import ShuffledPasses
from headrace.llm.orchestration.rollout import Rollout, RolloutSpec
from orchestration_support import Bench, MadeUp, SumGame, rl_config, same_samples

PASS = 20
SIZE = 4
_GONE = (Place.TRAINED, Place.FILTERED, Place.STALE)


@dataclass
class Followed(Bench):
    """Writes down what each group was of, in which order they were begun, and which had ended when a batch was shipped."""

    begun: dict[int, str] = field(default_factory=dict)
    ended: dict[int, Place] = field(default_factory=dict)
    ended_by: list[dict[int, Place]] = field(default_factory=list)
    _failed: Counter[int] = field(default_factory=Counter)

    def make(self) -> Orchestrator:
        made = super().make()
        player, move = made._collecting.player, made.books.move
        assert player is not None
        play = player.play

        def moved(rollout: str, to: Place, reason: str = "") -> None:
            move(rollout, to, reason)
            group = int(rollout[1:].partition(".")[0])
            self._failed[group] += to is Place.FAILED
            if to in _GONE or self._failed[group] == SIZE:
                self.ended[group] = to

        class Player:
            async def play(_self, spec: RolloutSpec) -> Rollout | Failure:  # noqa: N805
                assert self.begun.setdefault(spec.group, spec.problem.id) == spec.problem.id
                return await play(spec)

        made._collecting.player = Player()
        made.books.move = moved  # type: ignore[method-assign]
        return made

    async def ship(self, batch: Batch) -> None:
        shipped = {sample.group: Place.TRAINED for sample in batch.samples}
        self.ended_by.append(self.ended | shipped)
        await super().ship(batch)


def eventful(lag: int, *, carry: Any = None, version: int = 0, **more: Any) -> Followed:
    """Groups are filtered; all of one fails, and one is overtaken until it is stale."""

    def fails(request: GenerationRequest) -> Failure | None:
        lost = request.id.startswith("g5.") or request.id == "g8.0/t1"
        return Failure("connection", "gone") if lost else None

    config = rl_config(
        steps=9, lag=lag, orchestrator={"groups_in_flight": 7, "group_size": SIZE, "backoff_s": 0.4, **more}
    )
    return Followed(config, MadeUp(answer=fails), SumGame(problems=PASS), carry=carry, version=version)


def kept(batch: Batch) -> Any:
    return json.loads(json.dumps(batch.carry))


@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_a_pass_that_is_interrupted_anywhere_skips_no_problem(lag: int) -> None:
    whole = eventful(lag).run()
    assert Place.FILTERED in whole.ended.values()
    assert whole.ended[5] is Place.FAILED
    assert (Place.STALE in whole.ended.values()) == (lag > 0)
    assert sorted(whole.begun[number] for number in whole.ended if number < PASS) == sorted(
        f"p{n}" for n in range(PASS)
    )
    in_flight = 0
    for batch, before in zip(whole.batches[:-1], whole.ended_by, strict=False):
        carry = kept(batch)
        rest = eventful(lag, carry=carry, version=batch.step + 1).run()
        assert not before.keys() & rest.ended.keys()
        assert sorted(before.keys() | rest.ended.keys()) == list(range(len(before) + len(rest.ended)))
        assert all(rest.begun[number] == name for number, name in whole.begun.items() if number in rest.begun)
        assert list(rest.begun) == sorted(rest.begun), "those from before come first"
        numbers = [number for number in (before | rest.ended) if number < PASS]
        assert Counter((whole.begun | rest.begun)[number] for number in numbers) == {f"p{n}": 1 for n in range(PASS)}
        books = rest.books
        assert books["cancelled"] == carry["books"]["in_flight"] + carry["books"]["pending"]
        assert books["in_flight"] == books["pending"] == 0
        in_flight += len(carry["collecting"]["begun"])
    assert (in_flight > 0) == (lag > 0)


def test_a_second_resume_knows_those_that_the_first_had_not_begun() -> None:
    carry = kept(eventful(3).run().batches[0])
    waiting = [number for number, _, _ in carry["collecting"]["begun"]]
    one_by_one = eventful(3, carry=carry, version=1, groups_in_flight=1).run()
    again = {number for number, _, _ in kept(one_by_one.batches[0])["collecting"]["begun"]}
    left = set(waiting) - one_by_one.ended_by[0].keys()
    assert left
    assert left <= again


class Owing(ShuffledPasses):
    """Has a list of what it gave out and was not told of."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(list(ids), 5)
        self.owed: list[str] = []

    def next(self, rng: np.random.Generator) -> str:
        self.owed.append(super().next(rng))
        return self.owed[-1]

    def told(self, problem: str, rewards: Sequence[float]) -> None:
        self.owed.remove(problem)  # raises if it was told twice

    def state(self) -> Any:
        return [super().state(), self.owed]

    def restore(self, state: Any) -> None:
        super().restore(state[0])
        self.owed = list(state[1])


@pytest.mark.parametrize("lag", [1, 3])
def test_a_curriculum_is_told_once_of_each_group_that_it_was_asked_for(lag: int) -> None:
    section = {"curriculum": f"{__name__}:Owing"}
    whole = eventful(lag, **section).run()
    for batch in whole.batches[:-1]:
        rest = eventful(lag, carry=kept(batch), version=batch.step + 1, **section).run()
        [_, owed] = kept(rest.batches[-1])["collecting"]["problems"]["curriculum"]
        lost = [
            number for number, place in (whole.ended_by[batch.step] | rest.ended).items() if place is not Place.TRAINED
        ]
        assert set(owed) <= {(whole.begun | rest.begun)[number] for number in lost}, "of those without any reward alone"


def test_a_checkpoint_from_before_goes_on_with_the_next_problem() -> None:
    carry = kept(eventful(2).run().batches[2])
    assert carry["collecting"].pop("begun")
    rest = eventful(2, carry=carry, version=3).run()
    assert min(rest.begun) == carry["collecting"]["next_group"]
    assert len(rest.batches) == 6


def test_a_problem_that_the_environment_has_no_more_is_told() -> None:
    carry = kept(eventful(2).run().batches[2])
    carry["collecting"]["begun"][0][1] = "p99"
    rest = eventful(2, carry=carry, version=3).run()
    [alarm] = [facts for facts in rest.reports("alarm") if facts["kind"] == "problems_gone"]
    assert alarm["text"] == "1 groups are not begun anew, as dataset('train') lacks their problems; the first: p99"
    assert carry["collecting"]["begun"][0][0] not in rest.begun
    assert len(rest.batches) == 6


def test_the_same_rollouts_have_the_same_random_streams() -> None:
    """Tokens follow from the seed of a request alone here."""
    whole = eventful(1).run()
    rest = eventful(1, carry=kept(whole.batches[3]), version=4).run()
    said = [
        {s.rollout: s.token_ids.tolist() for batch in bench.batches for s in batch.samples} for bench in (whole, rest)
    ]
    again = (
        {f"g{number}.0" for number, _, _ in kept(whole.batches[3])["collecting"]["begun"]}
        & said[0].keys()
        & said[1].keys()
    )
    assert again
    assert all(said[0][name] == said[1][name] for name in again)


def test_at_lag_zero_nothing_is_begun_anew() -> None:
    whole = eventful(0).run()
    rest = eventful(0, carry=kept(whole.batches[3]), version=4).run()
    assert all(batch.carry["collecting"]["begun"] == [] for batch in whole.batches)
    assert all(same_samples(a, b) for a, b in zip(whole.batches[4:], rest.batches, strict=True))
