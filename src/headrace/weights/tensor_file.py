"""Arrays in a safetensors file, written straight from where they lie.

The library's own ``save_file`` is not used: it does not say what it wrote, and calls a full disk an error of the
tensors. Its readers read these files, and compare no checksum: the format has none. Ours stands first in the metadata:
a CRC-32 of the whole file, in which eight zeros are in its place.

*Source*: the format as the safetensors project describes it: eight bytes with the header's length, the header as
JSON, the arrays one after the other without a gap.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from headrace.core.files import FileMark, write_new, write_whole

_ALIGNMENT = 64
_SUM, _NO_SUM = "crc32", "0" * 8
_SUM_AT = 8 + len(f'{{"__metadata__":{{"{_SUM}":"')
"""Byte of a file at which its checksum begins."""
_PIECE_BYTES = 1 << 20
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
        metadata: Text kept beside them; `crc32` is ours.
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
    """Arrays and metadata of a file, compared with its checksum if it has one; an earlier version wrote none.

    Raises:
        OSError: It cannot be read.
        SafetensorError: It is damaged.
    """
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
    written = metadata.pop(_SUM, None)
    if written is not None and written != (found := _sum_of(path)):
        raise SafetensorError(f"content and checksum differ: CRC-32 {written} was written, {found} is there")
    return load_file(path), metadata


def _pieces(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    assert _SUM not in metadata, "reserved"
    header: dict[str, Any] = {"__metadata__": {_SUM: _NO_SUM, **metadata}}
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
    head = len(text).to_bytes(8, "little") + text
    pieces = [part.reshape(-1).view(np.uint8).data for part in parts]
    crc32 = zlib.crc32(head)
    for piece in pieces:
        crc32 = zlib.crc32(piece, crc32)
    yield head[:_SUM_AT] + f"{crc32:08x}".encode() + head[_SUM_AT + len(_NO_SUM) :]
    yield from pieces


def _sum_of(path: Path) -> str:
    """The checksum that a file ought to hold."""
    with path.open("rb", buffering=0) as file:
        crc32 = zlib.crc32(file.read(_SUM_AT) + _NO_SUM.encode())
        file.seek(len(_NO_SUM), 1)
        while piece := file.read(_PIECE_BYTES):
            crc32 = zlib.crc32(piece, crc32)
    return f"{crc32:08x}"
