"""The orchestrator with a made-up generator, trainer and clock: what it ships, and what it refuses."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import (
    ComponentStalled,
    ConfigError,
    EnvironmentRaised,
    NothingToTrain,
    RunDirectoryError,
    StaleWeights,
)
from headrace.envs.text.protocol import Judgement, Message, Problem, Reply
from headrace.llm.messages import Batch, Completion, Failure, GenerationRequest, PublishedWeights, ServedWeights
from headrace.llm.orchestration.attempts import Attempts
from headrace.llm.orchestration.filters import Losses
from headrace.llm.orchestration.problems import ShuffledPasses
from orchestration_support import Bench, FakeTimeLoop, MadeUp, SumGame, pause, rl_config, run_in_fake_time, same_samples


def lags(bench: Bench) -> list[int]:
    return [batch.step - int(v) for batch in bench.batches for s in batch.samples for v in s.versions[s.trained]]


def balanced(books: dict[str, Any]) -> bool:
    ends = books["completed"] + sum(books["failed"].values()) + books["stale"] + books["cancelled"]
    return books["requested"] == ends + books["in_flight"] and books["completed"] == (
        books["trained"] + sum(books["filtered"].values()) + books["pending"]
    )


@pytest.mark.parametrize("lag", [0, 1, 2, 4])
def test_every_step_gets_its_batch_and_no_token_is_too_old(lag: int) -> None:
    bench = Bench(rl_config(steps=6, lag=lag)).run()
    assert [batch.step for batch in bench.batches] == list(range(6))
    assert max(lags(bench)) <= lag
    assert min(lags(bench)) >= 0
    assert all(len({sample.group for sample in batch.samples}) == 3 for batch in bench.batches)
    assert balanced(bench.books)
    assert bench.books["in_flight"] == bench.books["pending"] == 0
    assert bench.books["trained"] == sum(len(batch.samples) for batch in bench.batches)


def test_lag_zero_is_strictly_on_policy() -> None:
    bench = Bench(rl_config(steps=6)).run()
    assert set(lags(bench)) == {0}
    assert all(batch.facts["off_policy/max"] == 0 for batch in bench.batches)


def test_a_lag_that_is_allowed_is_used() -> None:
    assert max(lags(Bench(rl_config(steps=8, lag=2), train_s=1.0).run())) == 2


def shuffled(seed: int) -> Any:
    draws = np.random.default_rng(seed)
    return lambda *_: float(draws.random())


@pytest.mark.parametrize("seed", range(3))
def test_at_lag_zero_the_order_of_answers_and_their_delay_change_no_bit(seed: int) -> None:
    first = Bench(rl_config(steps=5)).run()
    second = Bench(rl_config(steps=5), MadeUp(shuffled(seed)), train_s=0.01 * seed).run()
    assert first.generator.calls == second.generator.calls
    assert len(first.batches) == len(second.batches) == 5
    assert all(same_samples(a, b) for a, b in zip(first.batches, second.batches, strict=True))
    assert [a.carry for a in first.batches] == [b.carry for b in second.batches]
    assert [a.facts for a in first.batches] == [b.facts for b in second.batches]


def test_another_seed_makes_other_batches() -> None:
    first, other = Bench(rl_config()).run(), Bench(rl_config(run={"seed": 6, "steps": 4})).run()
    assert not same_samples(first.batches[0], other.batches[0])


def test_it_goes_on_from_a_batch_as_if_nothing_had_happened() -> None:
    config = rl_config(steps=6, evaluation={"every_steps": 2})
    whole = Bench(config).run()
    carry = dict(whole.batches[2].carry)
    rest = Bench(config, carry=carry, version=3).run()
    assert [batch.step for batch in rest.batches] == [3, 4, 5]
    assert all(same_samples(a, b) for a, b in zip(whole.batches[3:], rest.batches, strict=True))
    assert whole.batches[5].carry == rest.batches[2].carry
    assert whole.reports("evaluation")[2:] == rest.reports("evaluation")


def test_samples_hold_what_was_said_and_which_of_it_is_trained() -> None:
    bench = Bench(rl_config(steps=1)).run()
    for sample in bench.batches[0].samples:
        opening = SumGame().dataset("train")[int(sample.problem[1:])].opening
        assert sample.token_ids[:3].tolist() == [1, *map(int, opening[0].content.split())]
        assert not sample.trained[:3].any()
        assert (sample.versions[~sample.trained] == -1).all()
        assert (sample.logprobs[~sample.trained] == 0).all()
        assert (sample.logprobs[sample.trained] < 0).all()
        assert sample.token_ids[~sample.trained][3:].tolist() == [0]  # what the game said between the two turns
    assert abs(sum(sample.advantage for sample in bench.batches[0].samples)) < 1e-9


def test_a_rollout_that_fails_is_no_sample_and_its_group_goes_on() -> None:
    def broken(request: GenerationRequest) -> Failure | None:
        return Failure("connection", "gone") if request.id.startswith(("g0.1/", "g0.1+")) else None

    bench = Bench(rl_config(steps=2), MadeUp(answer=broken)).run()
    names = [sample.rollout for batch in bench.batches for sample in batch.samples]
    assert "g0.1" not in names
    assert {"g0.0", "g0.2", "g0.3"} <= set(names) or bench.books["filtered"]
    assert bench.books["failed"] == {"connection": 1}
    assert bench.books["failed_attempts"] == {"connection": 3}  # the first and two more
    assert bench.books["attempts"] == bench.books["requested"] + 2
    assert balanced(bench.books)
    [told] = bench.reports("failed")
    assert (told["rollout"], told["reason"], told["text"]) == ("g0.1", "connection", "gone")


def test_an_attempt_that_fails_is_made_again_and_invents_no_rollout() -> None:
    seen: set[str] = set()

    def once(request: GenerationRequest) -> Failure | None:
        name = request.id.partition("/")[0]
        first = name == "g1.2" and request.id not in seen
        seen.add(request.id)
        return Failure("connection") if first and request.id == "g1.2/t0" else None

    bench = Bench(rl_config(steps=2), MadeUp(answer=once)).run()
    assert bench.books["failed"] == {}
    assert bench.books["failed_attempts"] == {"connection": 1}
    assert bench.books["requested"] == len(
        {name.partition("/")[0].partition("+")[0] for name in seen if name[0] == "g"}
    )


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_environment_that_raises_is_told_with_its_text_and_never_a_reward_of_zero(
    error: type[BaseException],
) -> None:
    def burn(problem: Problem, _: Sequence[Message]) -> None:
        if problem.id == "p3":
            raise error("burn map corrupt, tile 7")

    bench = Bench(rl_config(steps=4), environment=SumGame(on_step=burn)).run()
    assert "p3" not in {sample.problem for batch in bench.batches for sample in batch.samples}
    assert set(bench.books["failed"]) == {"environment"}
    text = bench.reports("retry")[0]["text"]
    assert text == f"step() of problem p3 raised {error.__name__}: burn map corrupt, tile 7"
    assert balanced(bench.books)


def test_one_that_raises_always_ends_the_run_and_says_why() -> None:
    def burn(*_: object) -> None:
        raise ValueError("burn map corrupt, tile 7")

    config = rl_config(orchestrator={"failures_in_row": 10})
    with pytest.raises(NothingToTrain) as caught:
        Bench(config, environment=SumGame(on_step=burn, held_out=0)).run()
    assert str(caught.value) == (
        "[LLM-002] 10 rollouts failed in a row\n"
        "  step: 0\n"
        "  reasons: environment 10\n"
        f"  last: {caught.value.facts['last']}\n"
        "  fix: mend what the last failure says; `headrace check` plays one episode of the environment"
    )
    assert "burn map corrupt, tile 7" in str(caught.value.facts["last"])


def test_rewards_that_are_all_equal_end_the_run_and_say_why() -> None:
    bench = Bench(
        rl_config(orchestrator={"filter": {"give_up_after": 2}}),
        environment=SumGame(reward_of=lambda *_: 1.0),
    )
    with pytest.raises(NothingToTrain, match="6 groups in a row were not worth training on") as caught:
        bench.run()
    assert caught.value.facts["reasons"] == "zero_advantage 6"
    assert bench.reports("alarm")[0]["kind"] == "all_filtered"
    assert bench.books["filtered"] == {"zero_advantage": 24}
    assert balanced(bench.books)


def test_groups_that_are_filtered_are_replaced_and_counted() -> None:
    def reward(problem: Problem, said: list[int]) -> float:
        return 1.0 if problem.id == "p1" else float(sum(said) % 2)

    bench = Bench(rl_config(steps=5), environment=SumGame(reward_of=reward)).run()
    assert all(len({sample.group for sample in batch.samples}) == 3 for batch in bench.batches)
    assert "p1" not in {sample.problem for batch in bench.batches for sample in batch.samples}
    assert bench.books["filtered"]["zero_advantage"] >= 4
    assert (
        sum(batch.facts["batch/filtered"] for batch in bench.batches) * 4 == bench.books["filtered"]["zero_advantage"]
    )


def test_a_run_of_which_most_is_filtered_says_so_once_and_why() -> None:
    def reward(problem: Problem, said: list[int]) -> float:
        return float(sum(said) % 2) if problem.id == "p1" else float(problem.id != "p2")

    bench = Bench(
        rl_config(steps=2, orchestrator={"filter": {"give_up_after": 1000}}),
        environment=SumGame(problems=31, reward_of=reward),
    ).run()
    (alarm,) = bench.reports("alarm")
    assert (alarm["kind"], alarm["reason"], alarm["limit"]) == ("mostly_filtered", "zero_advantage", 0.9)
    assert 0.9 <= alarm["value"] < 1.0


def test_the_share_that_was_filtered_is_told_when_it_becomes_large_and_again_after_it_was_not() -> None:
    losses = Losses(1)
    look = functools.partial(losses.look, "p0", 8)
    assert [look(reason) for reason in ["easy"] * 5 + ["hard"] * 3 + [None]] == [[]] * 9
    assert look("zero_advantage") == [
        {
            "kind": "mostly_filtered",
            "text": "90 % of the last 80 rollouts completed were filtered, most of them (40) for easy: "
            "little of what is generated is trained on",
            "value": 0.9,
            "limit": 0.9,
            "reason": "easy",
        }
    ]
    assert [look(reason) for reason in ("easy", None, None)] == [[], [], []]
    assert [alarm["kind"] for _ in range(9) for alarm in look("hard")] == ["mostly_filtered"]


def test_a_run_of_which_little_is_filtered_says_nothing() -> None:
    bench = Bench(rl_config(steps=12)).run()
    assert sum(bench.books["filtered"].values())
    assert bench.reports("alarm") == []


def test_a_problem_that_always_fails_is_named_once() -> None:
    def burn(problem: Problem, _: Sequence[Message]) -> None:
        if problem.id == "p3":
            raise ValueError("burn map corrupt, tile 7")

    bench = Bench(rl_config(steps=12), environment=SumGame(on_step=burn)).run()
    (alarm,) = [alarm for alarm in bench.reports("alarm") if alarm["kind"] != "attempts_fail"]
    assert (
        alarm["text"] == "every rollout of problem p3 failed, in each of its last 3 groups; the last failure says why"
    )
    assert (alarm["kind"], alarm["problem"]) == ("problem_fails", "p3")


def test_attempts_that_are_made_again_are_counted_by_batch_and_told_once_they_are_many() -> None:
    calls = itertools.count()

    def reward(problem: Problem, said: list[int]) -> float:
        if next(calls) % 10 == 9:
            raise ValueError("no route to the judge")
        return float(sum(said) % 2)

    bench = Bench(rl_config(steps=12), environment=SumGame(reward_of=reward)).run()
    assert bench.books["failed"] == {}
    failures = bench.books["failed_attempts"]["environment"]
    assert failures >= 10
    assert sum(batch.facts.get("batch/retried", 0.0) for batch in bench.batches) == failures
    (alarm,) = bench.reports("alarm")
    assert (alarm["kind"], alarm["reason"], alarm["limit"]) == ("attempts_fail", "environment", 0.05)
    assert alarm["text"].startswith(
        "12 % of the last 41 attempts at rollouts failed, most of them (5) for environment; "
    )
    assert alarm["text"].endswith(" raised ValueError: no route to the judge")


def test_the_share_of_failed_attempts_is_told_again_only_after_a_stretch_without_any() -> None:
    attempts, failure = Attempts(), Failure("environment", "boom", may_retry=True)
    assert [attempts.failed(failure) for _ in range(4)] == [[]] * 4  # so few say nothing
    assert attempts.failed(failure) == [
        {
            "kind": "attempts_fail",
            "text": "100 % of the last 5 attempts at rollouts failed, most of them (5) for environment; "
            "what may be tried again is, and only the rest counts as failed; the last: boom",
            "value": 1.0,
            "limit": 0.05,
            "reason": "environment",
            "last": "boom",
        }
    ]
    for _ in range(199):
        attempts.completed()
    assert [attempts.failed(failure) for _ in range(20)] == [[]] * 20
    for _ in range(200):
        attempts.completed()
    assert [len(attempts.failed(failure)) for _ in range(10)] == [0] * 9 + [1]  # 10 of 200


class FirstIsShort(SumGame):
    """The problem that is played first is over after one message, and not worth training on."""

    first = ""

    def step(self, problem: Problem, transcript: Sequence[Message]) -> Reply:
        self.first = self.first or problem.id
        return Reply(done=True) if problem.id == self.first else super().step(problem, transcript)

    def reward(self, problem: Problem, transcript: Sequence[Message]) -> Judgement:
        judgement = super().reward(problem, transcript)
        return Judgement({"even": 1.0}, solved=True) if problem.id == self.first else judgement


def test_groups_that_take_a_place_join_the_next_round() -> None:
    bench = Bench(rl_config(steps=1), environment=FirstIsShort(held_out=0)).run()
    groups = [sorted({name.partition(".")[0] for name in call}) for call in bench.generator.calls]
    assert groups[:2] == [["g0", "g1", "g2"], ["g1", "g2", "g3"]]


class Stumbles(ShuffledPasses):
    """Raises when it is asked for its fourth problem, once."""

    def __init__(self, ids: list[str]) -> None:
        super().__init__(ids, 5)
        self._given = 0

    def next(self, rng: np.random.Generator) -> str:
        self._given += 1
        if self._given == 4:
            raise IndexError("no problem of this difficulty")
        return super().next(rng)


def test_what_a_curriculum_raises_while_others_play_ends_the_run() -> None:
    """It is asked as the group ends that another one is to take the place of."""
    section = {"curriculum": f"{__name__}:Stumbles"}
    bench = Bench(rl_config(steps=1, orchestrator=section), environment=FirstIsShort(held_out=0))
    with pytest.raises(
        EnvironmentRaised, match=r"next.. of the curriculum .*Stumbles raised IndexError: no problem of this"
    ):
        bench.run()
    assert balanced(bench.books)


class Counts(ShuffledPasses):
    """Keeps what NumPy counts from the third group on."""

    def __init__(self, ids: list[str]) -> None:
        super().__init__(ids, 5)

    def state(self) -> Any:
        return super().state() if self._taken < 3 else {"taken": np.int64(self._taken)}


def test_a_state_that_becomes_one_that_cannot_be_kept_ends_the_run_before_it_is_shipped() -> None:
    bench = Bench(rl_config(steps=2, orchestrator={"curriculum": f"{__name__}:Counts"}))
    with pytest.raises(
        ConfigError, match=r"state.. of the curriculum .*Counts is not what a checkpoint would give back"
    ):
        bench.run()
    assert not bench.batches
    assert balanced(bench.books)


def test_rollouts_of_a_batch_that_could_not_be_shipped_are_not_called_trained() -> None:
    bench = Bench(rl_config(steps=3, lag=1))
    ship = bench.ship

    async def full(batch: Batch) -> None:
        if batch.step == 1:
            raise RunDirectoryError("batch 1 cannot be written", fix="make room")
        await ship(batch)

    bench.ship = full  # type: ignore[method-assign]
    with pytest.raises(RunDirectoryError, match="batch 1 cannot be written"):
        bench.run()
    assert balanced(bench.books)
    assert bench.books["trained"] == len(bench.batches[0].samples) == bench.batches[0].carry["books"]["trained"]


def test_a_fact_that_not_every_rollout_has_is_averaged_over_those_that_have_it() -> None:
    class Sometimes(SumGame):
        def reward(self, problem: Problem, transcript: Sequence[Message]) -> Judgement:
            facts = {"moves": 4.0} if problem.id == self.dataset("train")[0].id else {}
            return Judgement({"even": float(len(transcript) % 2)}, solved=False, facts=facts)

    section = {"filter": {"zero_advantage": False}}
    bench = Bench(rl_config(steps=4, orchestrator=section), environment=Sometimes()).run()
    told = [batch.facts["train/moves/mean"] for batch in bench.batches if "train/moves/mean" in batch.facts]
    assert told
    assert set(told) == {4.0}


def test_easy_and_hard_groups_are_filtered_under_their_names() -> None:
    def reward(problem: Problem, said: list[int]) -> float:
        return {"p1": 0.9, "p2": -0.9}.get(problem.id, 0.0) + 0.05 * (sum(said) % 2)

    section = {"filter": {"easy_above": 0.5, "hard_below": -0.5}}
    bench = Bench(rl_config(steps=5, orchestrator=section), environment=SumGame(reward_of=reward)).run()
    assert {"easy", "hard"} <= set(bench.books["filtered"])
    assert not {"p1", "p2"} & {sample.problem for batch in bench.batches for sample in batch.samples}


def test_what_is_slow_fails_by_its_own_limit_and_the_others_are_trained_on() -> None:
    def again_and_again(request: GenerationRequest) -> Failure | None:
        return Failure("connection") if request.id.startswith("g0.2") else None

    section = {"rollout_timeout_s": 5.0, "backoff_s": 4.0}  # the pause before the second retry is over after 12 s
    bench = Bench(rl_config(steps=2, orchestrator=section), MadeUp(answer=again_and_again)).run()
    assert bench.books["failed"] == {"connection": 1}
    assert bench.books["failed_attempts"] == {"connection": 2}  # a third one was never made
    assert bench.books["attempts"] == bench.books["requested"] + 1
    assert len(bench.batches) == 2
    assert balanced(bench.books)


class OnlyJustLate(MadeUp):
    """The first answer to rollouts comes in time, and reading it lasts until their time is over."""

    async def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion | Failure]:
        is_first = not self.calls
        answers = await super().generate(requests, timeout_s)
        if is_first:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, FakeTimeLoop)
            loop.jump(timeout_s)
        return answers


def test_whoever_runs_out_of_time_as_it_asks_again_takes_no_room_with_it() -> None:
    """Its request is given up before it was sent; as many as there are slots, and nothing more could be asked for."""
    section = {"rollout_timeout_s": 10.0, "groups_per_step": 2, "group_size": 2, "max_retries": 0}
    config = rl_config(steps=4, lag=1, inference={"slots": 4}, orchestrator=section)
    bench = Bench(config, OnlyJustLate(), environment=SumGame(held_out=0)).run()
    assert bench.books["failed"] == {"timeout": 4}
    assert len(bench.batches) == 4
    assert balanced(bench.books)


def test_a_server_that_answers_nothing_is_named_within_its_limit() -> None:
    config = rl_config(orchestrator={"rollout_timeout_s": 10.0, "failures_in_row": 4})
    with pytest.raises(ComponentStalled) as caught:
        Bench(config, MadeUp(lambda *_: 1e6), environment=SumGame(held_out=0)).run()
    assert str(caught.value) == (
        "[SUP-002] orchestrator waited 9 s for inference\n"
        "  for what: any of the completions it was asked for\n"
        "  step: 0\n"
        "  version: 0\n"
        "  fix: see what inference is doing: `headrace doctor RUN`"
    )


def test_a_server_that_answers_nothing_in_an_evaluation_is_named_too() -> None:
    config = rl_config(orchestrator={"rollout_timeout_s": 10.0, "failures_in_row": 4})
    with pytest.raises(ComponentStalled, match="orchestrator waited 9 s for inference"):
        Bench(config, MadeUp(lambda *_: 1e6)).run()


@pytest.mark.parametrize("lag", [0, 2])
def test_a_trainer_that_publishes_nothing_is_named_within_its_limit(lag: int) -> None:
    bench = Bench(rl_config(steps=9, lag=lag, deadlines={"policy_s": 11.0}), trains=False)
    with pytest.raises(ComponentStalled, match="orchestrator waited 11 s for trainer") as caught:
        bench.run()
    assert caught.value.facts["for_what"] == "version 1 of the policy"
    assert len(bench.batches) == lag + 1  # as many as may be ahead


def test_a_first_policy_that_never_comes_is_named() -> None:
    with pytest.raises(ComponentStalled, match="waited 11 s for trainer"):
        Bench(rl_config(deadlines={"policy_s": 11.0}), version=-1).run()


def test_a_server_that_says_another_version_is_found() -> None:
    generator = MadeUp()

    async def keeps(published: PublishedWeights) -> ServedWeights:
        return ServedWeights(version=0, sha256="s0") if published.version else await load(published)

    async def load(published: PublishedWeights) -> ServedWeights:
        generator.version, generator.probe = published.version, published.probe
        return ServedWeights(version=published.version, sha256=published.sha256)

    generator.update = keeps
    with pytest.raises(StaleWeights, match="inference was given version 1 and says that it serves version 0"):
        Bench(rl_config(), generator).run()


def test_a_server_that_answers_200_and_keeps_its_weights_is_found() -> None:
    """One that cannot tell what is in its memory."""
    generator = MadeUp()

    async def lies(published: PublishedWeights) -> ServedWeights:
        generator.version = published.version
        generator.probe = generator.probe or published.probe  # that of the first stays
        return ServedWeights(version=published.version, sha256="")

    generator.update = lies
    with pytest.raises(StaleWeights) as caught:
        Bench(rl_config(), generator).run()
    assert str(caught.value) == (
        "[LLM-001] inference says that it serves version 1, and its log-probabilities are not that version's\n"
        "  largest difference nats: 0.25\n"
        "  probe tolerance: 0.001\n"
        "  probe tokens: 3\n"
        "  folder: w1\n"
        "  fix: use a weight-update route that loads every tensor; the old weights, or some of them, are still served"
    )


def test_a_checksum_that_differs_is_found_and_one_that_is_unknown_is_not() -> None:
    generator = MadeUp()

    async def other(published: PublishedWeights) -> ServedWeights:
        generator.version, generator.probe = published.version, published.probe
        return ServedWeights(version=published.version, sha256="" if published.version == 0 else "other")

    generator.update = other
    bench = Bench(rl_config(), generator)
    with pytest.raises(StaleWeights) as caught:
        bench.run()
    assert caught.value.facts["published_sha256"] == "s1"
    assert len(bench.batches) == 1


def test_a_version_that_does_not_exist_yet_is_found() -> None:
    def ahead(request: GenerationRequest) -> Completion | None:
        if request.id.startswith("e"):
            return None
        tokens = (2 + request.seed % 5, 9)
        return Completion(token_ids=tokens, logprobs=(-1.0, -1.0), versions=(7, 7), finish_reason="stop")

    with pytest.raises(StaleWeights, match="stamped tokens with version 7, which does not exist yet"):
        Bench(rl_config(), MadeUp(answer=ahead)).run()


def test_first_last_and_every_so_many_versions_are_evaluated() -> None:
    bench = Bench(rl_config(steps=5, evaluation={"every_steps": 2})).run()
    assert [facts["version"] for facts in bench.reports("evaluation")] == [0, 2, 4, 5]
    assert all(facts["episodes"] == 3 for facts in bench.reports("evaluation"))
    wins = {(facts["wins"] if "wins" in facts else facts["win_rate"]) for facts in bench.reports("evaluation")}
    assert len(wins) == 1  # fixed seeds, and a generator whose tokens follow from them


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_an_evaluation_is_answered_by_one_version(lag: int) -> None:
    seen: dict[str, set[int]] = {}
    generator = MadeUp(shuffled(1))

    def note(request: GenerationRequest) -> None:
        if request.id.startswith("e"):
            seen.setdefault(f"{len(bench.reports('evaluation'))}", set()).add(generator.version)

    generator.answer = note  # type: ignore[assignment]
    bench = Bench(rl_config(steps=8, lag=lag, evaluation={"every_steps": 2}), generator, train_s=0.2)
    bench.run()
    labels = [facts["version"] for facts in bench.reports("evaluation")]
    assert [seen[str(index)] for index in range(len(labels))] == [{version} for version in labels]
    assert labels[0] == 0
    assert labels[-1] == 8


def test_an_evaluation_answered_by_another_version_is_repeated_and_then_refused() -> None:
    def mislabelled(request: GenerationRequest) -> Completion | None:
        if not request.id.startswith("e1."):
            return None
        return Completion(token_ids=(2, 9), logprobs=(-1.0, -1.0), versions=(0, 3), finish_reason="stop")

    bench = Bench(rl_config(), MadeUp(answer=mislabelled))
    with pytest.raises(StaleWeights, match="an evaluation of version 0 was answered by version 3"):
        bench.run()
    assert [facts["kind"] for facts in bench.reports("alarm")] == ["evaluation_repeated"]
    assert bench.reports("evaluation") == []


def test_failed_rollouts_are_in_no_mean_of_an_evaluation() -> None:
    def broken(request: GenerationRequest) -> Failure | None:
        return Failure("refused", may_retry=False) if request.id.startswith("e0.") else None

    game = SumGame(reward_of=lambda problem, said: 1.0 if problem.id.startswith("p10") else float(sum(said) % 2))
    bench = Bench(rl_config(steps=1), MadeUp(answer=broken), game).run()
    first = bench.reports("evaluation")[0]
    assert (first["episodes"], first["failed"], first["win_rate"], first["mean_reward"]) == (2, 1, 1.0, 1.0)
    assert "refused" not in bench.books["failed"]  # those are books of training


def test_an_evaluation_that_falls_is_an_alarm() -> None:
    generator = MadeUp()
    game = SumGame(held_out=4)
    game.reward_of = lambda problem, said: (
        float(generator.version < 2) if problem.id.startswith("p10") else float(sum(said) % 2)
    )
    bench = Bench(rl_config(steps=4, evaluation={"every_steps": 1}), generator, game).run()
    alarms = bench.reports("alarm")
    assert [alarm["step"] for alarm in alarms] == [2, 3, 4]
    assert alarms[0]["text"] == "the evaluation fell to 0.0 % wins, from 100.0 % at best"


def test_a_fall_that_so_few_games_have_by_chance_is_no_alarm() -> None:
    generator = MadeUp()
    game = SumGame(held_out=3)  # three of three and none of three: 44 % and 56 % are within both intervals
    game.reward_of = lambda problem, said: (
        float(generator.version < 2) if problem.id.startswith("p10") else float(sum(said) % 2)
    )
    bench = Bench(rl_config(steps=3, evaluation={"every_steps": 1}), generator, game).run()
    assert [facts["win_rate"] for facts in bench.reports("evaluation")] == [1.0, 1.0, 0.0, 0.0]
    assert bench.reports("alarm") == []


def test_problems_that_are_trained_on_and_evaluated_are_refused() -> None:
    class Leaky(SumGame):
        def dataset(self, split: str) -> list[Problem]:
            problems = super().dataset("train")
            return problems if split == "train" else [Problem("other", problems[4].opening, problems[4].facts)]

    with pytest.raises(ConfigError, match="evaluation problem other is a training problem too"):
        Bench(rl_config(), environment=Leaky()).make()


def test_an_episode_that_finds_no_room_is_cut_judged_and_counted() -> None:
    bench = Bench(rl_config(steps=2, model={"context_tokens": 8}), environment=SumGame(turns=9)).run()
    assert all(len(sample.token_ids) <= 8 for batch in bench.batches for sample in batch.samples)
    assert all(batch.facts["batch/cut_context"] > 0 for batch in bench.batches)
    assert bench.books["failed"] == {}


def test_an_opening_that_finds_no_room_is_a_failure_that_is_not_tried_again() -> None:
    class Long(SumGame):
        def dataset(self, split: str) -> list[Problem]:
            return [
                Problem(one.id, (Message("user", "1 " * 30),), one.facts) if one.id == "p2" else one
                for one in super().dataset(split)
            ]

    bench = Bench(rl_config(steps=5, model={"context_tokens": 24}), environment=Long()).run()
    assert bench.books["failed"] == {"too_long": bench.books["failed_attempts"]["too_long"]}
    assert bench.books["failed"]["too_long"] % 4 == 0


def test_an_episode_is_cut_after_its_turns() -> None:
    bench = Bench(rl_config(steps=2, env={"max_turns": 3}), environment=SumGame(turns=9)).run()
    assert {batch.facts["train/turns/mean"] for batch in bench.batches} == {3.0}
    assert all(batch.facts["batch/cut_turns"] >= 12 for batch in bench.batches)


def test_stopping_cancels_what_runs_and_the_books_balance() -> None:
    bench = Bench(rl_config(steps=50, lag=1), MadeUp(lambda *_: 0.3))

    async def main() -> None:
        import asyncio

        orchestrator = bench.make()
        asyncio.get_running_loop().call_later(2.0, orchestrator.stop)
        await orchestrator.run()

    run_in_fake_time(main())
    assert 0 < len(bench.batches) < 50
    assert bench.books["cancelled"] > 0
    assert bench.books["in_flight"] == 0
    assert balanced(bench.books)


def test_stopping_does_not_wait_for_a_server_that_loads() -> None:
    generator = MadeUp()

    async def never(published: PublishedWeights) -> ServedWeights:
        await pause(1e6)
        raise AssertionError("it was not cancelled")

    generator.update = never
    bench = Bench(rl_config(), generator)

    async def main() -> float:
        import asyncio

        orchestrator = bench.make()
        asyncio.get_running_loop().call_later(2.0, orchestrator.stop)
        await orchestrator.run()
        return asyncio.get_running_loop().time()

    assert run_in_fake_time(main()) < 3.0
    assert bench.books["requested"] == 0


def test_a_group_that_is_overtaken_is_stale_and_never_trained_on() -> None:
    def fails_first(request: GenerationRequest) -> Failure | None:
        return Failure("connection") if request.id == "g1.0/t0" else None

    section = {"groups_per_step": 2, "groups_in_flight": 6, "backoff_s": 3.0}
    bench = Bench(rl_config(steps=30, lag=1, orchestrator=section), MadeUp(answer=fails_first), train_s=0.01).run()
    assert bench.books["stale"] == 4
    assert sum(batch.facts["batch/stale"] for batch in bench.batches) == 1
    assert 1 not in {sample.group for batch in bench.batches for sample in batch.samples}
    assert max(lags(bench)) <= 1
    assert balanced(bench.books)
