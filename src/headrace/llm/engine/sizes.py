"""How large models and caches are, found without making them: nothing here imports torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from headrace.core.errors import ConfigError
from headrace.llm.config import ModelConfig, RLConfig

BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2}
"""A number takes."""

_MLP_MATRICES = 9
"""Square ones of the width that the feed-forward part of a tiny model is as large as: three that are thrice as wide."""
_CHARACTERS = 64
"""Tokens of a tiny model, about."""
_HEADER_BYTES = 8
"""The length of a safetensors file's header takes, which is JSON."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a model keeps of a token, in numbers."""

    layers: int
    heads: int
    """Of keys and values."""
    head_width: int

    @classmethod
    def of(cls, config: Any) -> Self:
        """That of a causal language model of transformers, by its configuration."""
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            heads=getattr(config, "num_key_value_heads", None) or heads,
            head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
        )

    def block(self, rows: int, columns: int) -> tuple[int, int, int, int, int, int]:
        """Shape of the keys and values of ``R`` rows of ``S`` tokens: [L, 2, R, H, S, D]."""
        return self.layers, 2, rows, self.heads, columns, self.head_width


def cache_rows(slots: int, *, kv_reuse: bool) -> int:
    """Rows of an engine's cache: those that are generated, those that are kept for sessions, one to score in."""
    return slots + (slots if kv_reuse else 0) + 1


def keeps_sessions(config: RLConfig) -> bool:
    """Whether an engine of this run keeps what it computed for a session.

    Never without policy lag: a server that was started again between two turns keeps nothing, and whole texts passed anew come
    to other last bits than their ends passed behind what was kept. There a completion follows from its call alone.
    """
    return config.inference.kv_reuse and config.orchestrator.max_policy_lag > 0


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Of a model."""

    parameters: int
    hidden: int
    vocabulary: int
    cache: CacheShape

    @classmethod
    def of(cls, section: ModelConfig) -> Self:
        """That of a run: a checkpoint's by its ``config.json`` and the headers of its files, a tiny model's about.

        Raises:
            ConfigError: The checkpoint cannot be read.
        """
        if section.path is not None:
            return cls._of_checkpoint(Path(section.path))
        shape = CacheShape(section.layers, section.heads, section.hidden // section.heads)
        matrices = section.layers * (4 + _MLP_MATRICES)
        parameters = matrices * section.hidden**2 + 2 * _CHARACTERS * section.hidden
        return cls(parameters, section.hidden, _CHARACTERS, shape)

    @classmethod
    def _of_checkpoint(cls, folder: Path) -> Self:
        from transformers import AutoConfig  # takes seconds

        try:
            if not folder.is_dir():  # transformers would take it for a name on a hub
                raise FileNotFoundError("there is no such folder")
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            return cls(_stored(folder, config), config.hidden_size, config.vocab_size, CacheShape.of(config))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(
                "how large the model is cannot be told",
                folder=folder,
                problem=str(error).strip().partition("\n")[0],
                fix="name a folder with the config.json and the weights of a causal language model",
            ) from error


def _stored(folder: Path, config: Any) -> int:
    """Numbers in the files that are loaded; those in other files lie beside them.

    Raises:
        OSError: There are none.
    """
    files = _files(folder, "model.safetensors")
    if files:
        return sum(map(_numbers_of, files))
    files = _files(folder, "pytorch_model.bin")
    if not files:
        raise FileNotFoundError("there are no weights: neither model.safetensors nor pytorch_model.bin")
    dtype = str(getattr(config, "dtype", None)).removeprefix("torch.")
    return sum(file.stat().st_size for file in files) // BYTES_OF.get(dtype, BYTES_OF["float32"])


def _files(folder: Path, name: str) -> list[Path]:
    """The file of this name, or the parts that its index lists."""
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
    parts = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [folder / part for part in sorted(set(parts))]


def _numbers_of(file: Path) -> int:
    """Of all its tensors, by its header."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_HEADER_BYTES), "little")
        if length > file.stat().st_size:
            raise ValueError(f"{file.name} is no safetensors file")
        header = json.loads(opened.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
