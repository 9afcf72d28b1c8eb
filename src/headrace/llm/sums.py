"""Sums by which what a run has written is recognised, in files and in memory. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SEAL = "seal"
_KINDS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Types as safetensors names them, and as torch does."""


class TensorSum:
    """What a set of tensors is recognised by: names, types, shapes, bytes; to be added in the order of their names."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, name: str, kind: str, shape: tuple[int, ...], content: bytes | memoryview) -> None:
        """Add one; ``kind`` as torch writes it, e.g. ``bfloat16``."""
        self._digest.update(f"{name}\0{kind}\0{shape}\0".encode())
        self._digest.update(content)

    def hex(self) -> str:
        """Of all so far."""
        return self._digest.hexdigest()


def file_sha256(path: Path) -> str:
    """The sum of the tensors in a safetensors file, as `headrace.llm.weights.tensors_sha256` gives it of the tensors.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no such file, or not all of one.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        if not 0 < length <= size - 8:
            raise ValueError("it is cut off, or no safetensors file")
        header: Any = json.loads(file.read(length))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as content:
            return _summed(header, content[8 + length :])


def sealed(facts: Mapping[str, Any]) -> bytes:
    """Facts as the JSON of a manifest, with a sum over all of them."""
    return json.dumps({**facts, _SEAL: _sum_of(facts)}, indent=1).encode()


def unsealed(content: bytes) -> dict[str, Any]:
    """What `sealed` was given.

    Raises:
        ValueError: It is something else, or was changed.
    """
    facts: Any = json.loads(content)
    if not isinstance(facts, dict):
        raise ValueError(f"a JSON object is expected, and this is a {type(facts).__name__}")
    if facts.pop(_SEAL, None) != _sum_of(facts):
        raise ValueError("content and seal differ")
    return facts


def _sum_of(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _summed(header: Any, content: memoryview) -> str:
    total, end = TensorSum(), 0
    try:
        entries = sorted((name, entry) for name, entry in header.items() if name != "__metadata__")
        for name, entry in entries:
            begin, stop = entry["data_offsets"]
            end = max(end, stop)
            with content[begin:stop] as part:
                total.add(name, _KINDS[entry["dtype"]], tuple(entry["shape"]), part)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its header is none of a safetensors file: {type(error).__name__}: {error}") from None
    finally:
        left = len(content) - end
        content.release()
    if left:
        raise ValueError(f"it has {abs(left)} bytes too {'many' if left > 0 else 'few'}")
    return total.hex()
