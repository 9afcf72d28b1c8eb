"""The generator in this process answers as the engine does, and forgets whom nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import ComponentError
from headrace.llm.engine.engine import Engine
from headrace.llm.engine.local import LocalGenerator
from headrace.llm.messages import ANSWER_SHARE, Completion, Failure, Probe, PublishedWeights
from headrace.llm.weights import make_probe, publish
from llm_serving_support import CONTEXT, llama, ragged, run, single_thread, wanted


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


def engine() -> Engine:
    return Engine(llama(), slots=8, context_tokens=CONTEXT)


def test_answers_in_order_as_the_engine_does() -> None:
    answers = asyncio.run(LocalGenerator(engine()).generate(ragged(12), 60.0))
    assert answers == run(engine(), ragged(12))


def test_callers_share_the_passes() -> None:
    over = engine()
    local = LocalGenerator(over)

    async def main() -> list[list[Completion | Failure]]:
        return await asyncio.gather(*(local.generate([wanted(place)], 60.0) for place in range(4)))

    answers = asyncio.run(main())
    assert all(isinstance(one, Completion) for (one,) in answers)
    assert over.counts.passes < 4 * 8


def test_a_deadline_that_passed_is_a_failure_and_frees_the_slot() -> None:
    over = engine()
    (answer,) = asyncio.run(LocalGenerator(over).generate([wanted(0)], 0.0))
    assert answer == Failure("timeout", "no answer within 0 s")
    assert (over.waiting, over.counts.cancelled) == (0, 1)


def test_one_slow_request_costs_no_other_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is complete is handed over while somebody still waits, as a server hands it over."""
    over, limits = engine(), []

    class AfterTenPasses:
        def __init__(self, limit_s: float) -> None:
            limits.append(limit_s)

        @property
        def passed(self) -> bool:
            return over.counts.passes >= 10

    monkeypatch.setattr("headrace.llm.engine.local.Deadline", AfterTenPasses)
    short, long = wanted(0, max_tokens=2), wanted(1, max_tokens=CONTEXT - 20)
    answers = asyncio.run(LocalGenerator(over).generate([long, short], 10.0))
    assert limits == [10.0 * ANSWER_SHARE]
    assert answers[0] == Failure("timeout", "no answer within 8 s")
    assert isinstance(answers[1], Completion)


def test_a_refused_request_is_a_failure_among_completions() -> None:
    answers = asyncio.run(LocalGenerator(engine()).generate([wanted(0), wanted(1, CONTEXT)], 60.0))
    assert isinstance(answers[0], Completion)
    assert isinstance(answers[1], Failure)


def test_loads_and_scores(tmp_path: Path) -> None:
    model = llama(5)
    probe = make_probe(model, [1, 2, 3])
    weights = publish(model.state_dict(), version=2, weights_dir=tmp_path, run_id="run", probe=probe, metadata={})
    local = LocalGenerator(engine())

    async def main() -> tuple[float, ...]:
        assert (await local.update_weights(weights, 1.0)).sha256 == weights.sha256
        return await local.score(probe.token_ids, 1.0)

    assert asyncio.run(main()) == pytest.approx(probe.logprobs, abs=1e-5)
    other = PublishedWeights(
        version=2, folder=weights.folder, sha256="0" * 64, run_id="run", probe=Probe(token_ids=(), logprobs=())
    )
    with pytest.raises(ComponentError, match="not those that were announced"):
        asyncio.run(local.update_weights(other, 1.0))
