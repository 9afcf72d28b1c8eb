"""A tiny Llama over characters, made from nothing; and loading of models and tokenizers, tiny or not.

Transformers takes seconds to import, so it is imported where it is needed.
"""

from __future__ import annotations

import copy
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.llm.config import ModelConfig

PAD, UNKNOWN, SYSTEM, USER, ASSISTANT, END = "<pad>", "<unk>", "<system>", "<user>", "<assistant>", "<end>"
_SPECIAL = (PAD, UNKNOWN, SYSTEM, USER, ASSISTANT, END)
"""Ids 0 to 5."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<end>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
"""A token per role in front of a message, and one that ends those of the model: the fewest that can be told apart."""

_PRINTABLE = string.printable.rstrip("\t\r\x0b\x0c")
_MLP_RATIO = 3


def make_tokenizer(characters: Iterable[str], context_tokens: int) -> Any:
    """A Hugging Face tokenizer with one token per character, and one for each role.

    Args:
        characters: Those it knows; others become ``<unk>``.
        context_tokens: Most tokens of a text, noted for those who ask.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = [*_SPECIAL, *sorted(set(characters))]
    tokens = Tokenizer(models.WordLevel({token: index for index, token in enumerate(known)}, unk_token=UNKNOWN))
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokens.decoder = decoders.Fuse()
    fast: Any = PreTrainedTokenizerFast  # untyped there
    tokenizer = fast(
        tokenizer_object=tokens,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(config: ModelConfig, vocabulary: int, seed: int) -> torch.nn.Module:
    """A Llama of the configured size, drawn from the stream ``model`` of ``seed``.

    Global generators are as before afterwards.
    """
    from transformers import LlamaConfig

    shape = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=vocabulary,
        hidden_size=config.hidden,
        intermediate_size=_MLP_RATIO * config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        head_dim=config.hidden // config.heads,
        max_position_embeddings=config.context_tokens,
        tie_word_embeddings=False,
        pad_token_id=_SPECIAL.index(PAD),
        bos_token_id=None,
        eos_token_id=_SPECIAL.index(END),
    )
    model = _built(shape, "float32")
    _draw(model, seed, config.hidden**-0.5)
    return model


def make_model_folder(config: ModelConfig, env: object, folder: Path, seed: int) -> torch.nn.Module:
    """Make ``folder`` what a model is loaded with: its configuration and tokenizer; the weights are published apart.

    Args:
        config: Describes a tiny model, or names a checkpoint.
        env: Its ``alphabet``, if it has one that is not empty, is what a tiny model can read; otherwise printable ASCII.
        folder: Made if missing.
        seed: Of the run.

    Returns:
        The model, float32, on the CPU.

    Raises:
        ConfigError: The checkpoint cannot be loaded.
    """
    if config.path is None:
        characters = getattr(env, "alphabet", "") or _PRINTABLE
        tokenizer = make_tokenizer(characters, config.context_tokens)
        model = make_model(config, len(tokenizer), seed)
    else:
        tokenizer = load_tokenizer(Path(config.path))
        model = load_model(Path(config.path))
    model.config.dtype = getattr(torch, config.dtype)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
    return model


def load_model(
    folder: Path, tensors: Mapping[str, torch.Tensor] | None = None, *, dtype: str = "float32"
) -> torch.nn.Module:
    """The model of a Hugging Face folder, on the CPU, ready to train or to generate. Nothing is downloaded.

    Args:
        folder: Holds the configuration; without ``tensors`` the weights as well.
        tensors: The weights, by the names of the model's state.
        dtype: ``float32`` or ``bfloat16``.

    Raises:
        ConfigError: The folder holds no such model, or ``tensors`` are those of another one.
    """
    if tensors is None:
        return _pretrained(folder, dtype)
    from transformers import AutoConfig

    model = _built(_attempt(folder, lambda: AutoConfig.from_pretrained(folder, local_files_only=True)), dtype)
    fill(model, tensors, folder)
    return model


def fill(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], source: Path) -> None:
    """Give a model other weights; each is converted to the type the model has.

    Args:
        model: To be filled.
        tensors: By the names of the model's state; of names that share a tensor one is enough.
        source: Where they come from, for messages.

    Raises:
        ConfigError: They are those of another model.
    """
    try:
        missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:  # torch's word for another shape
        raise _other_model(source, problem=error) from error
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    lacking = [name for name in missing if name not in tied]
    _require_own(source, missing=lacking, unexpected=unexpected)


def served_copy(model: torch.nn.Module, dtype: str) -> torch.nn.Module:
    """A copy as a server loads it: weights rounded to ``dtype``, and buffers, e.g. the frequencies of positions, as they are.

    ``model.to(dtype)`` rounds buffers as well, which moved log-probabilities by up to 0.01.
    """
    served = copy.deepcopy(model)
    for parameter in served.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return served


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a Hugging Face folder. Nothing is downloaded.

    Raises:
        ConfigError: There is none.
    """
    from transformers import AutoTokenizer

    return _attempt(folder, lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True))


def _pretrained(folder: Path, dtype: str) -> torch.nn.Module:
    """The model with the folder's weights; transformers would make up those that it lacks, and say so in a log."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    no_bar: Any = logging.disable_progress_bar  # untyped there
    no_bar()  # it fills a log with itself, and leaves a thread behind
    settings: dict[str, Any] = {"dtype": getattr(torch, dtype), "local_files_only": True}
    # Those of another shape are told beside those that are missing, in place of a RuntimeError.
    settings |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    with torch.random.fork_rng(devices=[]):
        model, found = _attempt(folder, lambda: AutoModelForCausalLM.from_pretrained(folder, **settings))
    _require_own(
        folder,
        missing=sorted(found["missing_keys"]),
        unexpected=sorted(found["unexpected_keys"]),
        of_another_shape=sorted(name for name, *_ in found["mismatched_keys"]),
    )
    own: torch.nn.Module = model.eval()
    return own


def _built(shape: Any, dtype: str) -> torch.nn.Module:
    """A model of this configuration with weights that are still to be set."""
    from transformers import AutoModelForCausalLM

    from_config: Any = AutoModelForCausalLM.from_config  # untyped there
    with torch.random.fork_rng(devices=[]):  # its own initialisation draws from the global generator
        model: torch.nn.Module = from_config(shape, dtype=getattr(torch, dtype))
    return model.eval()


def _draw(model: torch.nn.Module, seed: int, spread: float) -> None:
    """Matrices from a normal distribution, gains 1, biases 0.

    One over the root of the width, and not the 0.02 of large models: at a width of 64, 400 steps on an expert's games of Wordle led
    to 61 % of games won with 0.1, and to 41 % with 0.02 (one seed). Reversing letters is learned sooner with half of it.
    """
    draws = torch.Generator().manual_seed(seeding.integer(seed, "model"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=draws) * spread)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def _attempt(folder: Path, load: Callable[[], Any]) -> Any:
    try:
        if not folder.is_dir():  # transformers would take it for a name on a hub
            raise FileNotFoundError("there is no such folder")
        return load()
    except (OSError, ValueError, KeyError) as error:  # what transformers raises for files that are missing or wrong
        raise ConfigError(
            "there is no model that transformers can load",
            folder=folder,
            problem=str(error).strip().partition("\n")[0],
            fix="name a folder with config.json, the weights and a tokenizer, e.g. one made by save_pretrained",
        ) from error


def _require_own(source: Path, **wrong: Sequence[str]) -> None:
    """Refuse weights of which names are wrong, in whatever way."""
    if any(wrong.values()):
        raise _other_model(source, **{how: ", ".join(names[:3]) for how, names in wrong.items()})


def _other_model(folder: Path, **facts: object) -> ConfigError:
    return ConfigError(
        "these weights are those of another model",
        source=folder,
        **{name: value for name, value in facts.items() if value},
        fix="take the weights and config.json of the same model",
    )
