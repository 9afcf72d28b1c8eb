"""Arrays in a safetensors file, written straight from where they lie.

The library's own ``save_file`` is not used: it does not say what it wrote, and calls a full disk an error of the
tensors. Its readers read these files.

*Source*: the format as the safetensors project describes it: eight bytes with the header's length, the header as
JSON, the arrays one after the other without a gap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file

from headrace.core.files import FileMark, write_new, write_whole

_ALIGNMENT = 64
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "uint64": "U64",
    "int32": "I32",
    "uint32": "U32",
    "int16": "I16",
    "uint16": "U16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def save_tensors(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str], *, new: bool = False
) -> FileMark:
    """Write a file, or replace it in one piece.

    Args:
        path: The file.
        arrays: Of whole or floating-point numbers or truth values; any shape and layout.
        metadata: Text kept beside them.
        new: Whether it must not be there yet.

    Returns:
        What it is recognised by.

    Raises:
        FileExistsError: It is there, and was to be new.
        OSError: It cannot be written; the one before is unharmed, and nothing else is left.
    """
    write = write_new if new else write_whole
    return write(path, _pieces(arrays, metadata))


def load_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and metadata of a file.

    Raises:
        OSError: It cannot be read.
        SafetensorError: It is damaged.
    """
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
    return load_file(path), metadata


def _pieces(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts, end = [], 0
    # The widest first, so that each array begins at a multiple of its own width.
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        assert array.dtype.name in _NAMES, f"{name}: {array.dtype} has no place in this format"
        part = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + part.nbytes],
        }
        parts.append(part)
        end += part.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for part in parts:
        yield part.reshape(-1).view(np.uint8).data
