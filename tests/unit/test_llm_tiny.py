"""The tiny model and its tokenizer: made from a seed, saved, loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headrace.core.errors import ConfigError
from headrace.envs.text.wordle import WordleEnvironment
from headrace.llm import tiny
from headrace.llm.config import ModelConfig

SMALL = ModelConfig(hidden=16, layers=1, heads=2, context_tokens=32)
NEVER = "this text was never meant to be a model"


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_model_is_drawn_from_its_seed_and_nothing_else() -> None:
    before = torch.get_rng_state()
    first = weights(tiny.make_model(SMALL, 20, seed=3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert same(first, weights(tiny.make_model(SMALL, 20, seed=3)))
    assert not same(first, weights(tiny.make_model(SMALL, 20, seed=4)))
    torch.set_rng_state(before)


def test_gains_are_one_and_matrices_are_not() -> None:
    for name, tensor in tiny.make_model(SMALL, 20, seed=0).named_parameters():
        if tensor.dim() == 1:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
        else:
            assert 0.5 < tensor.std().item() * SMALL.hidden**0.5 < 1.5, name


def test_the_default_model_has_the_size_that_was_measured() -> None:
    model = tiny.make_model(ModelConfig(), 39, seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 165_184


def test_a_folder_gives_back_the_model_and_its_tokenizer(tmp_path: Path) -> None:
    env = WordleEnvironment()
    made = tiny.make_model_folder(SMALL, env, tmp_path / "model", 0)
    tokenizer = tiny.load_tokenizer(tmp_path / "model")
    assert len(tokenizer) == len(env.alphabet) + 6
    ids = tokenizer.encode("<user>3<assistant>cat<end>", add_special_tokens=False)
    assert [tokenizer.decode([one]) for one in ids] == ["<user>", "3", "<assistant>", "c", "a", "t", "<end>"]
    assert tokenizer.decode(ids) == "<user>3<assistant>cat<end>"
    assert tokenizer.encode("!", add_special_tokens=False) == [tokenizer.unk_token_id]
    loaded = tiny.load_model(tmp_path / "model", made.state_dict())
    assert same(weights(made), weights(loaded))
    x = torch.tensor([ids])
    assert torch.equal(made(input_ids=x).logits, loaded(input_ids=x).logits)


def test_an_environment_that_names_no_characters_gets_all_that_can_be_printed(tmp_path: Path) -> None:
    tiny.make_model_folder(SMALL, WordleEnvironment(dialect="guide"), tmp_path, 0)
    tokenizer = tiny.load_tokenizer(tmp_path)
    text = "<guess>[Crane]</guess>\nY X ~ 9"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    made: Any = tiny.make_model(SMALL, 44, seed=1)
    made.config.save_pretrained(tmp_path / "hf")
    save_file(made.state_dict(), tmp_path / "hf" / "model.safetensors", {"format": "pt"})
    tiny.make_tokenizer("abc", 32).save_pretrained(tmp_path / "hf")
    config = ModelConfig(path=str(tmp_path / "hf"))
    again = tiny.make_model_folder(config, None, tmp_path / "model", 0)
    assert same(weights(made), weights(again))
    assert len(tiny.load_tokenizer(tmp_path / "model")) == 9


def tied() -> Any:
    """A small Llama whose first and last layer share their weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=12, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=16, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        return LlamaForCausalLM(shape)


def test_tied_tensors_need_to_be_there_once(tmp_path: Path) -> None:
    model = tied()
    model.config.save_pretrained(tmp_path)
    once = {name: tensor for name, tensor in weights(model).items() if name != "lm_head.weight"}
    for tensors in (weights(model), once):
        loaded = tiny.load_model(tmp_path, tensors)
        assert same(weights(model), weights(loaded))


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_weights_of_another_model_are_refused(tmp_path: Path, change: str) -> None:
    tensors = weights(tiny.make_model_folder(SMALL, WordleEnvironment(), tmp_path, 0))
    if change == "missing":
        del tensors["model.norm.weight"]
    elif change == "unexpected":
        tensors["model.more.weight"] = torch.zeros(1)
    else:
        tensors["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(ConfigError, match="these weights are those of another model"):
        tiny.load_model(tmp_path, tensors)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ("missing", {"missing": "lm_head.weight"}),
        ("unexpected", {"unexpected": "model.more.weight"}),
        ("shape", {"of_another_shape": "lm_head.weight"}),
    ],
)
def test_a_checkpoint_that_is_not_the_models_is_refused(tmp_path: Path, change: str, fact: dict[str, str]) -> None:
    """Transformers draws what is missing, and what has another shape, at random; that was trained on."""
    made: Any = tiny.make_model(SMALL, 44, seed=1)
    made.config.save_pretrained(tmp_path)
    tensors = weights(made)
    if change == "missing":
        del tensors["lm_head.weight"]
    elif change == "unexpected":
        tensors["model.more.weight"] = torch.zeros(1)
    else:
        tensors["lm_head.weight"] = torch.zeros(43, SMALL.hidden)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="these weights are those of another model") as raised:
        tiny.load_model(tmp_path)
    assert {name: raised.value.facts.get(name) for name in fact} == fact


def test_a_checkpoint_of_tied_weights_has_them_once(tmp_path: Path) -> None:
    model = tied()
    model.save_pretrained(tmp_path)
    assert same(weights(tiny.load_model(tmp_path)), weights(model))


@pytest.mark.parametrize("there", ["nothing", "empty", "rubbish"])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, there: str) -> None:
    folder = tmp_path / "model"
    if there != "nothing":
        folder.mkdir()
    if there == "rubbish":
        (folder / "config.json").write_text(NEVER)
        save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    for load in (tiny.load_model, tiny.load_tokenizer):
        with pytest.raises(ConfigError, match="there is no model that transformers can load"):
            load(folder)
