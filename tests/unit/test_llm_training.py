"""The trainer: gradients are those of the samples alone, nothing is learned from what the policy did not choose."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.grpo import group_advantages
from headrace.core.clock import FakeClock
from headrace.core.errors import BatchRefused, ConfigError, NonFiniteValue, RunDirectoryError
from headrace.llm.attending import refuse_partial_attention
from headrace.llm.config import RLConfig
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import Batch, Sample
from headrace.llm.training.forward import Device, said
from headrace.llm.training.packing import pack
from headrace.llm.training.rates import rate_at
from headrace.llm.training.trainer import Trainer
from llm_serving_support import gpt2, redrawn
from llm_support import VOCABULARY, alone_logprobs, batch, sample, sampled_by, tiny_model


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run; more threads than free cores make small matrices many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    """Never trained: take a copy."""
    return tiny_model()


def rl_config(**sections: Any) -> RLConfig:
    given_sections = {"trainer": {"lr": 1e-2, "tokens_per_pass": 96}} | sections
    return RLConfig.model_validate(given_sections)


def build(model: Any, config: RLConfig | None = None, **more: Any) -> Trainer:
    return Trainer(copy.deepcopy(model), config or rl_config(), run_id="run", clock=FakeClock(), **more)


def samples_of(lengths: list[tuple[int, int]]) -> list[Sample]:
    return [sample(index, prompt=prompt, reply=reply) for index, (prompt, reply) in enumerate(lengths)]


# --- packing


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=20), st.integers(64, 400))
def test_every_trained_token_is_packed_once_with_its_own_context(lengths: list[tuple[int, int]], limit: int) -> None:
    samples = samples_of(lengths)
    found: dict[tuple[int, int], tuple[int, float, list[int]]] = {}
    for part in pack(samples, limit):
        assert part.input_ids.size <= limit
        attention = part.attention()
        for row, column, target, behaviour, owner in zip(
            part.rows, part.columns, part.targets, part.behaviour, part.owner, strict=True
        ):
            seen = np.flatnonzero(attention[row, 0, column])
            context = part.input_ids[row, seen].tolist()
            assert part.positions[row, seen].tolist() == list(range(len(seen)))
            key = int(part.members[owner]), len(seen)
            assert key not in found
            found[key] = int(target), float(behaviour), context
    expected = {
        (index, place): (int(one.token_ids[place]), float(one.logprobs[place]), one.token_ids[:place].tolist())
        for index, one in enumerate(samples)
        for place in np.flatnonzero(one.trained)
    }
    assert found == expected


def test_packing_fills_rows_and_is_repeated_exactly() -> None:
    samples = samples_of([(4, 1 + index * 7 % 40) for index in range(50)])
    passes = pack(samples, 512)
    assert sum(part.input_ids.size for part in passes) < 1.1 * sum(int(one.trained.nonzero()[0][-1]) for one in samples)
    for first, second in zip(passes, pack(samples, 512), strict=True):
        assert np.array_equal(first.input_ids, second.input_ids)
        assert np.array_equal(first.members, second.members)


def test_nothing_to_pack_is_no_pass() -> None:
    assert pack([], 64) == []


def test_packed_log_probabilities_are_those_of_the_samples_alone(model: Any) -> None:
    config = rl_config()
    samples = samples_of([(3, 9), (8, 2), (20, 30), (1, 1), (5, 5), (2, 17)])
    for part in pack(samples, 128):
        logprobs = said(model, part, config.sampling, Device("cpu", autocast=False)).logprob
        alone = torch.cat([alone_logprobs(model, samples[index])[samples[index].trained] for index in part.members])
        torch.testing.assert_close(logprobs, alone, atol=2e-6, rtol=0)


def test_eager_attention_keeps_samples_apart_too(model: Any) -> None:
    """It adds the mask to its scores: one of truth values would let everything through."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    (part,) = pack(samples_of([(3, 9), (8, 2), (20, 30)]), 128)
    config = rl_config()
    found = [said(one, part, config.sampling, Device("cpu", autocast=False)).logprob for one in (model, eager)]
    torch.testing.assert_close(found[0], found[1], atol=2e-6, rtol=0)


def test_attention_that_takes_no_such_mask_is_refused(model: Any) -> None:
    other = copy.deepcopy(model)
    other.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="attention: flash_attention_2"):
        build(other)


def test_several_turns_are_trained_without_what_the_environment_said_between(model: Any) -> None:
    """The gradient does not depend on the marks of tokens that are not trained, and is that of the trained ones."""
    talk = sample(0, prompt=3, reply=9)
    trained = talk.trained.copy()
    trained[6:9] = False
    talk = dataclasses.replace(talk, trained=trained, logprobs=np.where(trained, talk.logprobs, 0), advantage=1.0)
    config = rl_config(trainer={"tokens_per_pass": 96, "lr": 1e-9, "max_grad_norm": 1e9})
    trainer = build(model, config)
    trainer.step(Batch(run_id="run", step=0, samples=(talk,)))
    own = copy.deepcopy(model)
    logprobs = alone_logprobs(own, talk)[torch.from_numpy(trained)]
    ratio = (logprobs - torch.from_numpy(talk.logprobs[trained])).exp()
    (-torch.minimum(ratio, ratio.clamp(0.8, 1.28)).mean()).backward()
    for parameter, expected in zip(trainer._parameters, own.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["grpo", "gspo", "cispo", "icepop"])
@pytest.mark.parametrize("normalise", ["tokens", "samples", "constant"])
def test_gradients_do_not_depend_on_how_samples_are_packed(model: Any, kind: str, normalise: str) -> None:
    whole = sampled_by(tiny_model(1), batch(0, 24))
    loss = {"kind": kind, "normalise": normalise, "kl_weight": 0.1, "entropy_weight": 0.01}
    if kind == "icepop":
        loss |= {"clip_low": 0.125, "clip_high": 8.0}
    trainers = [
        build(model, rl_config(trainer={"lr": 1e-9, "tokens_per_pass": size, "loss": loss}), initial=tiny_model(2))
        for size in (96, 8192)
    ]
    first, second = (trainer.step(whole) for trainer in trainers)
    assert first["perf/passes"] > second["perf/passes"] == 1.0
    for one, other in zip(trainers[0]._parameters, trainers[1]._parameters, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-7, rtol=1e-4)
    held = "is_masked/mean" if kind == "icepop" else "is_clipped/mean"
    assert ("is_masked/mean" in first) != ("is_clipped/mean" in first)
    for name in ("loss/mean", "entropy/mean", "mismatch_kl/mean", held, "initial_kl/mean"):
        assert first[name] == pytest.approx(second[name], rel=1e-4, abs=1e-7), name


# --- a step


@pytest.mark.table
def test_with_a_rate_of_nothing_nothing_changes(model: Any) -> None:
    """Weights stay, sampler and trainer agree, and go on agreeing."""
    config = rl_config()
    still = config.model_copy(update={"trainer": config.trainer.model_copy(update={"lr": 0.0})})
    trainer = build(model, still)
    before = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    probe = trainer.probe([1, 2, 3, 4])
    norms = set()
    for step in range(3):
        metrics = trainer.step(sampled_by(model, batch(step, 8)))
        assert metrics["mismatch_kl/max"] < 1e-6
        assert metrics["importance_ratio/max"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["optim/grad_norm"] > 0
        norms.add(metrics["optim/grad_norm"])
    assert len(norms) == 1, "the gradient of one step is in that of the next"
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.tensors().items())
    assert trainer.probe([1, 2, 3, 4]) == probe


def test_what_was_better_than_its_group_becomes_likelier(model: Any) -> None:
    one, other = sample(0), sample(1)
    whole = Batch(
        run_id="run",
        step=0,
        samples=(dataclasses.replace(one, advantage=1.0), dataclasses.replace(other, advantage=-1.0)),
    )
    whole = sampled_by(model, whole)
    trainer = build(model)
    trainer.step(whole)
    with torch.no_grad():
        after = [float(alone_logprobs(trainer._model, one)[one.trained].sum()) for one in whole.samples]
    before = [float(one.logprobs.sum()) for one in whole.samples]
    assert after[0] > before[0]
    assert after[1] < before[1]


@pytest.mark.parametrize("temperature", [0.7, 1.5])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_log_probabilities_are_of_the_distribution_that_was_drawn_from(
    model: Any, temperature: float, top_p: float
) -> None:
    """Otherwise the ratio of the first token of the first version is not 1."""
    config = rl_config(sampling={"temperature": temperature, "top_p": top_p})
    drawn = sampled_by_nucleus(model, temperature, top_p)
    metrics = build(model, config).step(Batch(run_id="run", step=0, samples=(drawn,)))
    assert metrics["mismatch_kl/max"] < 1e-10
    plain = build(model).step(Batch(run_id="run", step=0, samples=(drawn,)))
    assert plain["mismatch_kl/max"] > 1e-3


def sampled_by_nucleus(model: Any, temperature: float, top_p: float) -> Sample:
    """A sample whose tokens are really drawn from the likeliest ones, in the simplest way."""
    draw = np.random.default_rng(5)
    tokens, logprobs = [1, 2, 3], [0.0, 0.0, 0.0]
    for _ in range(12):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].double() / temperature
        chances = torch.softmax(logits, -1).numpy()
        order = np.argsort(-chances)
        kept = order[: int(np.searchsorted(np.cumsum(chances[order]), top_p)) + 1]
        own = chances[kept] / chances[kept].sum()
        place = draw.choice(len(kept), p=own)
        tokens.append(int(kept[place]))
        logprobs.append(float(np.log(own[place])))
    trained = np.arange(len(tokens)) >= 3
    return Sample(
        rollout="g0.0",
        group=0,
        problem="word",
        token_ids=np.array(tokens, np.int32),
        trained=trained,
        logprobs=np.array(logprobs, np.float32),
        versions=np.where(trained, 0, -1).astype(np.int32),
        reward=1.0,
        advantage=1.0,
    )


def test_minibatches_and_epochs_use_every_sample_in_each_epoch(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build(model, rl_config(trainer={"tokens_per_pass": 96, "epochs": 2, "minibatches": 3}))
    seen: list[list[str]] = []
    gradient_step = trainer._gradient_step

    def noted(samples: Any, *rest: Any) -> int:
        seen.append([one.rollout for one in samples])
        return gradient_step(samples, *rest)

    monkeypatch.setattr(trainer, "_gradient_step", noted)
    whole = batch(0, 8)
    trainer.step(whole)
    assert [len(part) for part in seen] == [3, 3, 2] * 2
    everyone = sorted(one.rollout for one in whole.samples)
    assert sorted(chain(*seen[:3])) == sorted(chain(*seen[3:])) == everyone
    assert seen[:3] != seen[3:]


def test_the_same_batches_make_the_same_weights_bit_for_bit(model: Any) -> None:
    config = rl_config(trainer={"tokens_per_pass": 96, "epochs": 2, "minibatches": 2, "lr": 1e-2})
    first, second = build(model, config), build(model, config)
    for step in range(3):
        assert first.step(batch(step, 7)) == second.step(batch(step, 7))
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in first.tensors().items())


def test_mismatch_is_what_sampler_and_trainer_disagree_about_before_anything_moves(model: Any) -> None:
    """Epochs move the policy away from the sampler; that is no mismatch."""
    whole = sampled_by(model, batch(0, 8))
    config = rl_config(trainer={"tokens_per_pass": 96, "lr": 0.1, "epochs": 4})
    metrics = build(model, config).step(whole)
    assert metrics["mismatch_kl/max"] < 1e-6
    assert metrics["importance_ratio/max"] > 1.1
    assert metrics["is_clipped/mean"] > 0


def test_what_is_reported(model: Any) -> None:
    clock = FakeClock()
    trainer = Trainer(copy.deepcopy(model), rl_config(orchestrator={"max_policy_lag": 2}), run_id="run", clock=clock)
    trainer.version = 5
    whole = batch(5, 4, facts={"train/win_rate": 0.25})
    old = dataclasses.replace(whole.samples[0], versions=np.where(whole.samples[0].trained, 3, -1).astype(np.int32))
    whole = dataclasses.replace(whole, samples=(old, *whole.samples[1:]))
    passes: list[int] = []
    metrics = trainer.step(whole, lambda number: (passes.append(number), clock.advance(0.5))[0])
    trained = [int(one.trained.sum()) for one in whole.samples]
    assert passes == list(range(len(passes)))
    assert metrics["off_policy/max"] == 2.0
    assert metrics["off_policy/mean"] == pytest.approx(2 * trained[0] / sum(trained))
    assert metrics["time/forward_backward"] == 0.5 * len(passes)
    assert metrics["perf/tokens_per_s"] == sum(len(one.token_ids) for one in whole.samples) / (0.5 * len(passes))
    assert "train/win_rate" not in metrics, "the orchestrator tells that itself"
    assert metrics["train/effective/reward/mean"] == pytest.approx(np.mean([one.reward for one in whole.samples]))
    assert metrics["batch/trained_tokens"] == sum(trained)
    assert not metrics.keys() & {"initial_kl/mean", "is_masked/mean", "is_masked/samples"}, "nobody measured them"
    assert trainer.version == 6
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_rollout_that_is_masked_in_every_epoch_is_counted_once(model: Any, minibatches: int) -> None:
    loss = {"kind": "icepop", "clip_low": 0.125, "clip_high": 8.0}
    settings = {"tokens_per_pass": 96, "lr": 1e-9, "epochs": 4, "minibatches": minibatches, "loss": loss}
    whole = batch(0, 2)
    # The sampler was certain of every token, and the model is not.
    samples = tuple(dataclasses.replace(one, logprobs=np.zeros_like(one.logprobs)) for one in whole.samples)
    metrics = build(model, rl_config(trainer=settings)).step(dataclasses.replace(whole, samples=samples))
    assert metrics["is_masked/samples"] == metrics["batch/samples"] == 2.0


def test_rates_rise_and_fall() -> None:
    section = rl_config(
        trainer={"lr": 1.0, "warmup_steps": 4, "decay": "linear", "final_lr_fraction": 0.5, "tokens_per_pass": 96}
    ).trainer
    assert [rate_at(section, step, 9) for step in range(10)] == [0.25, 0.5, 0.75, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.5]
    cosine = section.model_copy(update={"decay": "cosine", "warmup_steps": 0})
    assert [round(rate_at(cosine, step, 5), 4) for step in range(6)] == [1, 0.9268, 0.75, 0.5732, 0.5, 0.5]
    assert rate_at(section.model_copy(update={"decay": "constant"}), 8, 9) == 1.0


# --- what is refused


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"run_id": "old"}, RunDirectoryError, "batch of another run"),
        ({"step": 3}, BatchRefused, "it is of step 3, and step 2 is trained"),
        ({"samples": ()}, BatchRefused, "no token in it was chosen by the policy"),
        ({"samples": (sample(0, reply=0),)}, BatchRefused, "no token in it was chosen by the policy"),
        ({"samples": (sample(0, version=0),)}, BatchRefused, "a token is 2 versions old, and 1 are allowed"),
        ({"samples": (sample(0, version=3),)}, BatchRefused, "a token is newer than the policy"),
        ({"samples": (sample(0, prompt=0, version=2),)}, BatchRefused, "the first token of a sample"),
        ({"samples": (sample(0, prompt=95, version=2),)}, BatchRefused, "a sample has 100 tokens, and 96 fit"),
        (
            {"samples": (sample(0, version=2, token_ids=np.full(9, VOCABULARY, np.int32)),)},
            BatchRefused,
            "a token is none of the 33",
        ),
        ({"samples": (sample(0, version=2, versions=np.zeros(3, np.int32)),)}, BatchRefused, "differ in length"),
        ({"samples": (sample(0, version=2, advantage=np.nan),)}, NonFiniteValue, "whose advantage are not finite"),
        (
            {"samples": (sample(0, version=2, logprobs=np.full(9, -np.inf, np.float32)),)},
            NonFiniteValue,
            "whose logprobs are not finite",
        ),
    ],
)
def test_a_batch_that_breaks_what_was_declared_changes_nothing(
    model: Any, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    trainer = build(model, version=2)
    before = trainer.state()
    with pytest.raises(error, match=says):
        trainer.step(dataclasses.replace(batch(2), **change))
    assert trainer.version == 2
    after = trainer.state()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_ratio_that_overflows_is_an_error_that_names_its_sample(model: Any) -> None:
    """A token that the sampler found impossible: the gradient is infinite, and no weight may have changed."""
    whole = sampled_by(model, batch(0, 4))
    bad = dataclasses.replace(whole.samples[2], logprobs=np.where(whole.samples[2].trained, -200, 0).astype(np.float32))
    bad = dataclasses.replace(bad, advantage=-1.0)
    config = rl_config(trainer={"tokens_per_pass": 96, "loss": {"clip_high": 1e30, "kind": "cispo"}})
    config = config.model_copy(
        update={
            "trainer": config.trainer.model_copy(
                update={"loss": config.trainer.loss.model_copy(update={"clip_high": np.inf})}
            )
        }
    )
    trainer = build(model, config)
    before = trainer.state()
    with pytest.raises(NonFiniteValue) as raised:
        trainer.step(dataclasses.replace(whole, samples=(*whole.samples[:2], bad, whole.samples[3])))
    assert raised.value.facts["rollout"] == bad.rollout
    assert raised.value.facts["step"] == 0
    after = trainer.state()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert trainer.step(whole)["optim/grad_norm"] > 0


@pytest.mark.parametrize(
    ("config", "seen"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64}, False),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 96}, True),
        ({"layer_types": ["full_attention", "linear_attention"]}, False),
        ({"layer_types": ["full_attention"], "sliding_window": 8}, True),
        ({"layers_block_type": ["attention", "mamba"]}, False),
        ({"layers_block_type": ["attention", "attention"]}, True),
        ({"attention_layers": ["global", "local"], "window_size": 64}, False),
        ({"attention_layers": ["global", "local"], "window_size": 96}, True),
        ({"attention_layers": ["global"], "window_size": 8}, True),
        ({"sliding_window": 64}, False),
        ({"sliding_window": 64, "use_sliding_window": False}, True),
        ({"sliding_window": None}, True),
        ({}, True),
    ],
)
def test_a_model_that_does_not_attend_to_everything_is_refused(config: dict[str, Any], seen: bool) -> None:
    other: Any = SimpleNamespace(config=SimpleNamespace(**config))
    with nullcontext() if seen else pytest.raises(ConfigError, match="do not attend to the whole context"):
        refuse_partial_attention(other, 96)


@pytest.mark.parametrize(
    ("config", "seen"),
    [
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 64}}, False),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 96}}, True),
        ({"rope_parameters": {"rope_type": "dynamic"}, "max_position_embeddings": 64}, False),
        ({"rope_parameters": {"rope_type": "dynamic"}, "max_position_embeddings": 96}, True),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}, "max_position_embeddings": 64}, False),
        ({"rope_parameters": {"rope_type": "llama3"}, "max_position_embeddings": 64}, True),
        ({"rope_parameters": None}, True),
    ],
)
def test_rotations_that_depend_on_what_else_is_in_the_pass_are_refused(config: dict[str, Any], seen: bool) -> None:
    other: Any = SimpleNamespace(config=SimpleNamespace(**config))
    with nullcontext() if seen else pytest.raises(ConfigError, match="turns positions by the longest text of a pass"):
        refuse_partial_attention(other, 96)


def test_a_model_with_a_window_is_not_trained(model: Any) -> None:
    narrow = copy.deepcopy(model)
    narrow.config.sliding_window = 8
    with pytest.raises(ConfigError, match="do not attend to the whole context"):
        build(narrow)


def test_a_model_with_fewer_positions_than_the_context_is_not_trained() -> None:
    other = gpt2()
    with pytest.raises(ConfigError, match=r"GPT2LMHeadModel has no positions for model\.context_tokens = 97"):
        build(other, rl_config(model={"context_tokens": 97}))
    build(other, rl_config(model={"context_tokens": 96}))


def test_a_model_is_passed_nothing_before_it_is_on_the_trainers_device(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, told = copy.deepcopy(model), []
    move, forward = other.to, other.forward
    monkeypatch.setattr(other, "to", lambda device: told.append(f"moved to {device}") or move(device))
    # Its signature is looked at, too.
    monkeypatch.setattr(
        other, "forward", functools.wraps(forward)(lambda **given: told.append("passed") or forward(**given))
    )
    Trainer(other, rl_config(), run_id="run", clock=FakeClock())
    assert told[:2] == ["moved to cpu", "passed"]
    assert told.count("moved to cpu") == 1


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Roberta", {"is_decoder": True, "pad_token_id": 1}),  # its first position is 2
        ("Bert", {"is_decoder": False}),  # it looks at what follows
    ],
)
def test_a_model_that_says_something_else_of_a_text_alone_is_not_trained(kind: str, settings: dict[str, Any]) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **sizes, **settings)
    model_class = {"Roberta": transformers.RobertaForCausalLM, "Bert": transformers.BertLMHeadModel}[kind]
    other = redrawn(model_class(config), 0)
    with pytest.raises(
        ConfigError, match="says something else of a text under our mask and positions than of the text alone"
    ):
        build(other)
    with pytest.raises(ConfigError, match="says something else of a text"):
        Engine(other, slots=2, context_tokens=96)


def test_a_pass_too_small_for_a_sample_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match="one sample may have more tokens than a pass"):
        build(model, rl_config(model={"context_tokens": 128}))


def test_the_initial_policy_is_needed_for_its_kl(model: Any) -> None:
    with pytest.raises(ConfigError, match="needs the model that training began with"):
        build(model, rl_config(trainer={"tokens_per_pass": 96, "loss": {"kl_weight": 0.1}}))


def test_bfloat16_is_what_is_published_and_float32_what_is_trained(model: Any) -> None:
    trainer = build(model, rl_config(model={"dtype": "bfloat16"}))
    trainer.step(sampled_by(model, batch(0, 4)))
    assert {tensor.dtype for tensor in trainer.tensors().values()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in trainer._parameters} == {torch.float32}
    served = copy.deepcopy(model)
    for parameter in served.parameters():  # buffers stay as they are, see `served_copy`
        parameter.data = parameter.data.to(torch.bfloat16)
    served.load_state_dict(trainer.tensors())
    with torch.no_grad():
        logits = served(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).logits.float()
    expected = torch.log_softmax(logits[0, :-1], -1)[[0, 1], [2, 3]]
    assert trainer.probe([1, 2, 3]).logprobs == pytest.approx(expected.tolist(), abs=0)


# --- it learns


def rollouts_of(model: Any, step: int, wanted: int) -> Batch:
    """Groups of eight replies of three tokens, drawn from ``model``; rewarded for every token that is the wanted one."""
    draws = torch.Generator().manual_seed(step)
    tokens = torch.arange(8).repeat_interleave(8)[:, None]  # a prompt of one token for each of eight groups
    logprobs = torch.zeros(64, 1)
    with torch.no_grad():
        for _ in range(3):
            said_next = torch.log_softmax(model(input_ids=tokens, use_cache=False).logits[:, -1], -1)
            chosen = torch.multinomial(said_next.exp(), 1, generator=draws)
            logprobs = torch.cat([logprobs, said_next.gather(-1, chosen)], 1)
            tokens = torch.cat([tokens, chosen], 1)
    rewards = (tokens[:, 1:] == wanted).sum(1).numpy().astype(np.float64)
    groups = np.repeat(np.arange(8), 8)
    advantages = group_advantages(rewards, groups)
    trained = np.array([False, True, True, True])
    samples = tuple(
        Sample(
            rollout=f"g{group}.{index}",
            group=int(group),
            problem=str(group),
            token_ids=tokens[index].numpy().astype(np.int32),
            trained=trained,
            logprobs=logprobs[index].numpy(),
            versions=np.where(trained, step, -1).astype(np.int32),
            reward=float(rewards[index]),
            advantage=float(advantages[index]),
        )
        for index, group in enumerate(groups)
    )
    return Batch(run_id="run", step=step, samples=samples)


@pytest.mark.thin(4)
@pytest.mark.parametrize("kind", ["grpo", "gspo", "cispo", "icepop"])
def test_each_loss_learns_what_is_rewarded(model: Any, kind: str) -> None:
    """From a token in 33 to two of three."""
    loss = {"kind": kind} | ({"clip_low": 0.125, "clip_high": 8.0} if kind == "icepop" else {})
    trainer = build(model, rl_config(trainer={"lr": 1e-2, "tokens_per_pass": 512, "epochs": 2, "loss": loss}))
    means = []
    for step in range(30):
        metrics = trainer.step(rollouts_of(trainer._model, step, wanted=7))
        means.append(metrics["train/effective/reward/mean"])
        assert metrics["mismatch_kl/max"] < 1e-6
        assert metrics["off_policy/max"] == 0
    assert means[0] < 0.5
    assert np.mean(means[-5:]) > 2.0
