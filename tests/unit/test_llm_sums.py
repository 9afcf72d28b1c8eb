"""Sums of files, without torch: the same as of the tensors, and none of a file that is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headrace.llm.sums import file_sha256, sealed, unsealed
from headrace.llm.weights import tensors_sha256

KINDS = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    made = {kind: torch.arange(6).reshape(2, 3).to(getattr(torch, kind)) for kind in KINDS}
    return made | {"a.scalar": torch.tensor(2.5), "nothing": torch.zeros(0, 4)}


def test_the_sum_of_a_file_is_that_of_its_tensors(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, tmp_path / "x", {"format": "pt"})
    assert file_sha256(tmp_path / "x") == tensors_sha256(tensors)


def test_every_byte_that_is_changed_or_missing_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_file({"w": torch.arange(3.0), "b": torch.ones(2, dtype=torch.int8)}, path)
    whole, known = path.read_bytes(), file_sha256(path)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        for content in (bytes(changed), whole[:place], whole[:place] + whole[place + 1 :]):
            path.write_bytes(content)
            try:
                found = file_sha256(path)
            except ValueError:
                continue
            padding = whole[place : place + 1] == b" "  # of the header: means nothing
            assert padding or found != known, place


@pytest.mark.parametrize(
    "header", [b"[]", b"3", b'{"a": 3}', b'{"a": {"data_offsets": [0, 9], "dtype": "F32", "shape": [1]}}', b"{"]
)
def test_what_is_no_such_file_is_told_as_one_kind_of_error(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(ValueError, match=r"header|bytes too few|Expecting"):
        file_sha256(tmp_path / "x")


def test_a_seal_holds_for_the_whole_manifest() -> None:
    facts = {"version": 3, "carry": {"books": {"requested": 4}}, "text": "ä"}
    assert unsealed(sealed(facts)) == facts
    for other in (sealed(facts).replace(b"4", b"5"), json.dumps(facts).encode(), b"[1]", b"{", b"3"):
        with pytest.raises(ValueError, match=r"seal differ|JSON object|Expecting"):
            unsealed(other)
