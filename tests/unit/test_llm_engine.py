"""The engine says what a plain forward pass says, always the same, and frees what is not needed any more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.errors import ComponentError, ConfigError
from headrace.llm.engine import forward
from headrace.llm.engine.building import prove
from headrace.llm.engine.engine import Engine, EngineCounts
from headrace.llm.engine.forward import LlamaForward
from headrace.llm.messages import LEAST_TEMPERATURE, Completion, Failure, GenerationRequest
from llm_serving_support import (
    CONTEXT,
    VOCABULARY,
    gpt2,
    llama,
    plain_logprobs,
    ragged,
    redrawn,
    run,
    single_thread,
    wanted,
)


def gpt_neo(kinds: str, window: int) -> Any:
    """One that lays a mask of its own over ours, as if the texts of a pass all ended in the same column."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    shape = GPTNeoConfig(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=32, num_layers=2, num_heads=4,
        attention_types=[[[kinds, "global"], 1]], window_size=window, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return redrawn(GPTNeoForCausalLM(shape), 0)


MODELS = {
    "llama": llama,
    "shared heads, tied": lambda: llama(shared=2, tied=True),
    "gpt2": gpt2,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


def engine_of(model: object, slots: int = 16, *, kv_reuse: bool = True) -> Engine:
    return Engine(model, slots=slots, context_tokens=CONTEXT, kv_reuse=kv_reuse)


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("kv_reuse", [True, False])
def test_logprobs_are_those_of_a_plain_forward_pass(kind: str, kv_reuse: bool) -> None:
    """Ragged prompts and answers, more requests than slots, three turns of each session."""
    model = MODELS[kind]()
    engine = engine_of(model, 48, kv_reuse=kv_reuse)
    requests = [dataclasses.replace(one, session=one.id) for one in ragged(40)]
    worst = 0.0
    for turn in range(3):
        completions = run(engine, requests)
        following = []
        for request, said in zip(requests, completions, strict=True):
            expected = plain_logprobs(model, request.prompt_ids, said.token_ids)
            worst = max(worst, (expected - torch.tensor(said.logprobs)).abs().max().item())
            prompt = (*request.prompt_ids, *said.token_ids, 1, 2, 3)
            if len(prompt) < CONTEXT:
                following.append(dataclasses.replace(request, prompt_ids=prompt, seed=request.seed + turn + 1))
        requests = following
    assert worst < 1e-5
    assert (engine.counts.reused_tokens > 500) is kv_reuse


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_is_what_generate_says(kind: str) -> None:
    model = MODELS[kind]()
    requests = [wanted(place, 5 + place, temperature=0.0, max_tokens=12) for place in range(6)]
    for request, said in zip(requests, run(engine_of(model, 4), requests), strict=True):
        prompt = torch.tensor([request.prompt_ids])
        whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
        assert said.token_ids == tuple(whole[0, prompt.shape[1] :].tolist())


def test_a_llama_is_run_without_its_modules() -> None:
    assert LlamaForward.fits(llama())
    assert not LlamaForward.fits(gpt2())


def test_the_same_calls_give_the_same_bits_whatever_ran_before() -> None:
    requests = [dataclasses.replace(one, session=one.id) for one in ragged(30)]
    fresh = run(engine_of(llama()), requests)
    used = engine_of(llama())
    run(used, [dataclasses.replace(one, session=f"other {one.id}", seed=99) for one in ragged(37)])
    used.submit([dataclasses.replace(wanted(50), id="cancelled")], lambda *_: None)
    used.step()
    used.cancel(["cancelled"])
    assert run(used, requests) == fresh


@pytest.mark.table
def test_a_request_draws_from_its_own_stream() -> None:
    """Whoever else is served: the same tokens, and log-probabilities equal up to rounding."""
    one = wanted(3, max_tokens=20)
    alone = run(engine_of(llama()), [one])[0]
    among = run(engine_of(llama()), [*ragged(3), dataclasses.replace(one, id="x"), wanted(9)])[3]
    assert among.token_ids == alone.token_ids
    np.testing.assert_allclose(among.logprobs, alone.logprobs, atol=1e-5)
    other_seed = run(engine_of(llama()), [dataclasses.replace(one, seed=4)])[0]
    assert other_seed.token_ids != alone.token_ids


def test_temperature_is_part_of_the_distribution() -> None:
    model = llama()
    request = wanted(5, temperature=0.5, max_tokens=10)
    said = run(engine_of(model), [request])[0]
    expected = plain_logprobs(model, request.prompt_ids, said.token_ids, temperature=0.5)
    torch.testing.assert_close(torch.tensor(said.logprobs), expected, atol=1e-5, rtol=0)


def test_ends_with_a_stop_token_and_includes_it() -> None:
    request = wanted(2, max_tokens=30)
    long = run(engine_of(llama()), [request])[0]
    assert long.finish_reason == "length"
    assert len(long.token_ids) == 30
    stop = long.token_ids[5]
    first = long.token_ids.index(stop)
    stopped = run(engine_of(llama()), [dataclasses.replace(request, stop_ids=(VOCABULARY - 1, stop))])[0]
    cut = min(first, long.token_ids.index(VOCABULARY - 1) if VOCABULARY - 1 in long.token_ids else 99)
    assert stopped.token_ids == long.token_ids[: cut + 1]
    assert stopped.finish_reason == "stop"


def test_the_context_ends_a_completion() -> None:
    said = run(engine_of(llama()), [wanted(0, CONTEXT - 3, max_tokens=50)])[0]
    assert len(said.token_ids) == 3
    assert said.finish_reason == "length"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (wanted(0, CONTEXT), "too_long"),
        (wanted(0, 0), "empty"),
        (wanted(0, max_tokens=0), "refused"),
        (wanted(0, temperature=-1.0), "refused"),
        (wanted(0, top_p=0.0), "refused"),
        (GenerationRequest(id="x", prompt_ids=(VOCABULARY,), max_tokens=1), "refused"),
        (GenerationRequest(id="x", prompt_ids=(-1,), max_tokens=1), "refused"),
        (wanted(0, stop_ids=(2**70,)), "refused"),  # in no array; once admitted it would end the engine
        (wanted(0, stop_ids=(-1,)), "refused"),
        (wanted(0, stop_ids=(1,) * (VOCABULARY + 1)), "refused"),  # every row makes room for as many
    ],
)
def test_refuses_what_cannot_be_served(request_: GenerationRequest, reason: str) -> None:
    engine = engine_of(llama())
    answers: list[Completion | Failure] = []
    engine.submit([request_], lambda _, answer: answers.append(answer))
    assert not engine.step()
    (answer,) = answers
    assert isinstance(answer, Failure)
    assert answer.reason == reason
    assert not answer.may_retry
    assert engine.counts.refused == 1


def test_refuses_more_than_may_wait_and_an_id_twice() -> None:
    engine = Engine(llama(), slots=2, context_tokens=CONTEXT, max_waiting=2)
    answers: list[tuple[int, Completion | Failure]] = []
    engine.submit(ragged(5), lambda *answer: answers.append(answer))
    assert [(answer.reason, answer.may_retry) for _, answer in answers] == [("refused", False)] * 5  # nor ever
    answers.clear()
    engine.submit(ragged(4), lambda *_: None)
    engine.submit([wanted(4)], lambda *answer: answers.append(answer))
    assert [(answer.reason, answer.may_retry) for _, answer in answers] == [("busy", True)]
    engine = Engine(llama(), slots=2, context_tokens=CONTEXT, max_waiting=2)
    answers.clear()
    engine.submit([wanted(0), wanted(0)], lambda *answer: answers.append(answer))
    ((place, twice),) = answers
    assert (place, getattr(twice, "reason", "")) == (1, "refused")


def test_cancelled_requests_free_their_rows_and_tell_nobody() -> None:
    engine = engine_of(llama(), 4)
    told: list[int] = []
    engine.submit([wanted(place, max_tokens=20) for place in range(6)], lambda place, _: told.append(place))
    engine.step()
    engine.step()
    assert (engine.running, engine.waiting) == (4, 2)
    assert engine.cancel(["r1", "r5", "nobody"]) == 2
    assert (engine.running, engine.waiting) == (3, 1)
    while engine.step():
        pass
    assert sorted(told) == [0, 2, 3, 4]
    assert engine.counts.requests == engine.counts.completed + engine.counts.cancelled == 6


@pytest.mark.table
def test_what_a_row_says_does_not_change_when_its_neighbour_leaves() -> None:
    model = llama()
    engine = engine_of(model, 4)
    answers: dict[int, Completion | Failure] = {}
    requests = [wanted(place, 10 + 7 * place, max_tokens=20) for place in range(4)]
    engine.submit(requests, answers.__setitem__)
    for _ in range(5):
        engine.step()
    engine.cancel(["r0"])
    while engine.step():
        pass
    for place in (1, 2, 3):
        said = answers[place]
        assert isinstance(said, Completion)
        expected = plain_logprobs(model, requests[place].prompt_ids, said.token_ids)
        torch.testing.assert_close(torch.tensor(said.logprobs), expected, atol=1e-5, rtol=0)


def test_a_model_of_nan_fails_its_requests_and_nothing_else_later() -> None:
    model = llama()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_of(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
        model.model.layers[0].self_attn.v_proj.weight.fill_(torch.nan)
    answers: list[Completion | Failure] = []
    engine.submit([wanted(1, 40)], lambda _, answer: answers.append(answer))
    engine.step()
    assert [getattr(answer, "reason", "") for answer in answers] == ["not_finite"]
    model.load_state_dict(kept)
    beside = [wanted(1, 5), wanted(2, 50)]  # the first is masked where the row held NaN
    assert run(engine, beside) == run(engine_of(llama()), beside)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("slots", "kv_reuse"), [(4, True), (4, False), (1, True)])
def test_an_engine_that_was_proved_is_as_it_was(kind: str, slots: int, kv_reuse: bool) -> None:
    engine = Engine(MODELS[kind](), slots=slots, context_tokens=CONTEXT, kv_reuse=kv_reuse, max_waiting=0)
    counting = engine.counts
    assert not engine.proven
    assert prove(engine).finish_reason == "length"
    assert (engine.running, engine.waiting, engine.counts, engine.proven) == (0, 0, EngineCounts(), True)
    assert counting.prefix_hits == kv_reuse
    for place in range(slots):  # no room went to the proof
        run(engine, [dataclasses.replace(wanted(place), session=f"s{place}")])
    assert engine.evictions == 0


@pytest.mark.parametrize("context", [2, 3, 8, 9, 17])
def test_an_engine_with_hardly_any_room_is_proved(context: int) -> None:
    prove(Engine(llama(), slots=2, context_tokens=context))


def test_a_model_with_a_window_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not attend to the whole context"):
        engine_of(gpt_neo("local", window=8))


@pytest.mark.parametrize(
    ("kinds", "kv_reuse"),
    [("global", True), ("local", True), ("local", False)],
)
def test_one_that_looks_at_the_shape_of_a_pass_is_refused(
    kinds: str, kv_reuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing in its configuration is known to say so."""
    monkeypatch.setattr(forward, "refuse_partial_attention", lambda *_: None)
    engine = engine_of(gpt_neo(kinds, window=8), kv_reuse=kv_reuse)
    with pytest.raises(ConfigError, match="what the model says of a text depends on what is passed beside it"):
        prove(engine)


def with_positions(kind: str, count: int) -> Any:
    """A model that has so many positions, by whatever name."""
    from transformers import AutoConfig, AutoModelForCausalLM

    wide = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": count}
    own: dict[str, Any] = {
        "gpt2": wide,
        "gptj": {**wide, "rotary_dim": 4},
        "ctrl": {**wide, "dff": 64},
        "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": count},
        "opt": {
            "hidden_size": 32, "ffn_dim": 64, "word_embed_proj_dim": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": count,
        },
    }[kind]  # fmt: skip
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    from_config: Any = AutoModelForCausalLM.from_config
    return redrawn(from_config(AutoConfig.for_model(kind, vocab_size=VOCABULARY, **ends, **own)), 0)


@pytest.mark.parametrize("kind", ["gpt2", "opt", "gptj", "mpt", "ctrl"])
def test_a_model_with_fewer_positions_than_the_context_is_refused(kind: str) -> None:
    """Beyond what is proved by generating, where its first longer text would end the server."""
    model = with_positions(kind, 300)
    with pytest.raises(ConfigError, match=r"has no positions for model\.context_tokens = 400"):
        prove(Engine(model, slots=1, context_tokens=400))
    engine = Engine(model, slots=1, context_tokens=300)
    prove(engine)
    [said] = run(engine, [wanted(0, 290, max_tokens=9)])
    assert len(said.token_ids) == 9


def test_one_without_finite_scores_generates_nothing() -> None:
    model = llama()
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(ComponentError, match="generates nothing"):
        prove(engine_of(model))


def test_score_is_that_of_a_plain_forward_pass() -> None:
    model = llama()
    ids = wanted(0, CONTEXT).prompt_ids
    scored = torch.tensor(engine_of(model).score(ids))
    torch.testing.assert_close(scored, plain_logprobs(model, ids[:1], ids[1:]), atol=1e-5, rtol=0)
    assert engine_of(model).score([3]) == ()


def test_sessions_give_way_to_later_ones() -> None:
    engine = engine_of(llama(), 4)
    requests = [dataclasses.replace(wanted(place), session=f"s{place}") for place in range(6)]
    first = run(engine, requests)
    assert engine.evictions == 2
    again = [
        dataclasses.replace(request, prompt_ids=(*request.prompt_ids, *said.token_ids, 1))
        for request, said in zip(requests, first, strict=True)
    ]
    for request in again[2:]:
        run(engine, [request])
    assert engine.counts.prefix_hits == 4


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-39, 1e-31, -1.0, float("nan")])
def test_a_temperature_by_which_scores_become_infinite_is_refused(temperature: float) -> None:
    answers: list[Completion | Failure] = []
    engine_of(llama(), slots=2).submit([wanted(1, temperature=temperature)], lambda _, answer: answers.append(answer))
    (answer,) = answers
    assert isinstance(answer, Failure)
    assert (answer.reason, answer.about, answer.may_retry) == ("refused", "temperature", False)
    assert answer.detail == f"temperature is {temperature:g}, and must be 0, or at least 1e-30"


def test_the_least_temperature_draws_the_likeliest_of_large_scores() -> None:
    model = llama()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e5)
    greedy, least = (
        run(engine_of(model, slots=2), [wanted(1, temperature=temperature)])[0]
        for temperature in (0.0, LEAST_TEMPERATURE)
    )
    assert greedy.token_ids == least.token_ids
    assert set(least.logprobs) == {0.0}


# --- guests


def rounds(engine: Engine, guests: int) -> list[list[Completion | Failure]]:
    """What becomes of two rounds of a run, the second of which goes on with the first's sessions, while guests ask in between."""
    asked, answers, got = 0, [], 0

    def ask() -> None:
        nonlocal asked
        if asked < guests:
            one = dataclasses.replace(wanted(100 + asked, 5 + asked), id=f"guest {asked}", guest=True)
            asked += 1
            engine.submit([one], lambda _, answer: come.append(answer))

    come: list[Completion | Failure] = []
    begun = [dataclasses.replace(one, session=one.id, stop_ids=()) for one in ragged(13)]
    for turn in range(2):
        ask()
        engine.step()  # a guest runs where there is one
        told: dict[int, Completion | Failure] = {}
        engine.submit(begun, told.__setitem__)
        ask()
        while len(told) < len(begun):
            engine.step()
            assert len({job.request.guest for job in engine._rows.jobs}) <= 1  # they share no pass
            got += 1
            if got % 7 == 0:
                ask()
        answers.append([told[place] for place in range(len(begun))])
        begun = [
            dataclasses.replace(one, prompt_ids=(*one.prompt_ids, *said.token_ids)[:80], id=f"{one.id} {turn}")
            for one, said in zip(begun, answers[-1], strict=True)
            if isinstance(said, Completion)
        ]
    while engine.step():
        pass
    assert len(come) == asked == guests
    assert all(isinstance(one, Completion) for one in come)
    return answers


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_guests_change_no_bit_of_what_others_are_answered(kind: str) -> None:
    model = MODELS[kind]()
    alone, among = (rounds(engine_of(model, slots=4), guests) for guests in (0, 9))
    assert among == alone


def test_a_guest_gives_way_at_once_and_is_answered_as_if_undisturbed() -> None:
    """With its prompt and what it has said it goes on where its stream was; the versions say which weights said what."""
    asked = [dataclasses.replace(wanted(place, 3 + place, max_tokens=90 - place), guest=True) for place in range(3)]
    alone = run(engine_of(llama(), slots=2), asked)
    engine, come, told = engine_of(llama(), slots=2), {}, {}  # the third has to wait in any case
    engine.submit(asked, come.__setitem__)
    for turn, passes in enumerate((1, 30, 2, 40)):
        for _ in range(passes):
            engine.step()
        before = engine.so_far("r0")
        engine.submit([dataclasses.replace(wanted(turn, max_tokens=5), id=f"turn {turn}")], told.__setitem__)
        engine.step()
        assert len(engine.so_far(f"turn {turn}")[0]) == 1  # a rollout waits for no guest
        assert engine.so_far("r0") == before  # whoever streams it sees nothing vanish
        while not told:
            engine.step()
        told.clear()
        engine.served = dataclasses.replace(engine.served, version=turn + 1)
    while engine.step():
        pass
    for place, said in enumerate(alone):
        assert come[place].token_ids == said.token_ids
        np.testing.assert_allclose(come[place].logprobs, said.logprobs, atol=1e-5)
        assert come[place].finish_reason == said.finish_reason
    counts = [come[0].versions.count(version) for version in range(5)]
    assert counts == [1, 30, 2, 40, len(alone[0].token_ids) - 73]
    assert engine.counts.prompt_tokens == sum(len(one.prompt_ids) for one in asked) + 4 * len(wanted(0).prompt_ids)
    assert engine.counts.completed == len(asked) + 4


def test_a_guest_that_gave_way_can_be_ended_and_forgotten() -> None:
    engine = engine_of(llama(), slots=4)
    engine.submit(
        [dataclasses.replace(wanted(place, max_tokens=50), guest=True) for place in range(3)], lambda *_: None
    )
    for _ in range(7):
        engine.step()
    engine.submit([wanted(9, max_tokens=50)], lambda *_: None)
    engine.step()
    assert (engine.running, engine.waiting) == (1, 3)
    tokens = engine.so_far("r1")[0]
    assert len(tokens) == 7
    assert engine.finish("r1").token_ids == tokens
    assert engine.cancel(["r0"]) == 1
    assert (engine.running, engine.waiting) == (1, 1)
    assert engine.so_far("r0") == engine.so_far("r1") == ((), (), ())


def test_guests_take_nobody_elses_room_to_wait() -> None:
    """One that waits is told so; what is asked for otherwise is taken as if there were none."""
    engine = Engine(llama(), slots=2, context_tokens=CONTEXT, max_waiting=2)
    guests = [dataclasses.replace(wanted(place), guest=True) for place in range(4)]
    engine.submit(guests, lambda *_: None)
    assert engine.busy(1, guest=True) == Failure("busy", "4 requests wait already")
    assert engine.busy(4) is None
    engine.step()
    assert engine.busy(4) is None
    engine.submit([wanted(place) for place in range(10, 13)], lambda *_: None)
    assert engine.busy(1) is None
    assert engine.busy(2) == Failure("busy", "3 requests wait already")
    assert engine.cancel({"r0", "r3", "r10"}) == 3
    assert (engine.running, engine.waiting) == (1, 3)
