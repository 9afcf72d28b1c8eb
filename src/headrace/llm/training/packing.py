"""Samples of differing lengths laid into rectangles of tokens, as one forward pass takes them.

A row holds several samples one after the other. Positions begin anew with each, and none sees another, so what is computed
is what each sample alone would give. On one core this trained a fifth faster than rows of one sample each, sorted by length and
padded (``bench/grpo.py``, best of nine rounds on a busy machine: 33,000 against 27,000 tokens per CPU second).

What comes after a sample's last trained token is left out: nothing is learned from it. Letters in shapes: R rows, W columns,
K trained tokens, S samples of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.llm.messages import Sample

ROW_TOKENS = 96
"""A row is as wide as the longest sample, and at least this: wider ones compare more tokens in vain (192: 27,000 tokens/s)."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One rectangle, and where its trained tokens are predicted. Trained tokens come sample by sample."""

    input_ids: NDArray[np.int64]  # [R, W]
    positions: NDArray[np.int64]  # [R, W]
    segments: NDArray[np.int64]  # [R, W]
    """Which sample of its row a token belongs to; -1 where there is none."""
    rows: NDArray[np.int64]  # [K]
    columns: NDArray[np.int64]  # [K]
    """Where the token before it lies, whose output predicts it."""
    targets: NDArray[np.int64]  # [K]
    behaviour: NDArray[np.float32]  # [K]
    owner: NDArray[np.int64]  # [K]
    """Its sample, as a place in ``members``."""
    members: NDArray[np.int64]  # [S]
    """Places of the pass's samples in what was packed."""

    @property
    def tokens(self) -> int:
        """Tokens of samples in it, without what fills the rows."""
        return int((self.segments >= 0).sum())

    def attention(self) -> NDArray[np.bool_]:
        """Which token may see which, [R, 1, W, W]: those before it in its own sample, and itself."""
        width = self.segments.shape[1]
        same = self.segments[:, :, None] == self.segments[:, None, :]
        seen: NDArray[np.bool_] = (same & np.tri(width, dtype=np.bool_))[:, None]
        return seen


def pack(samples: Sequence[Sample], tokens_per_pass: int, row_tokens: int = ROW_TOKENS) -> list[Pass]:
    """Lay samples into as few rectangles of at most ``tokens_per_pass`` tokens as first-fit-decreasing finds.

    The same samples always give the same rectangles.

    Args:
        samples: Each with a trained token, none longer than ``tokens_per_pass``.
        tokens_per_pass: Most cells of a rectangle, those that only fill it included.
        row_tokens: Width of a row, if the longest sample is not longer.
    """
    if not samples:
        return []
    lengths = np.array([_length(sample) for sample in samples])
    width = max(int(lengths.max()), min(row_tokens, tokens_per_pass))
    rows = _first_fit(lengths, width)
    per_pass = max(1, tokens_per_pass // width)
    return [_rectangle(samples, lengths, rows[start : start + per_pass]) for start in range(0, len(rows), per_pass)]


def _length(sample: Sample) -> int:
    """Tokens that go in: all before the last trained one."""
    return int(np.flatnonzero(sample.trained)[-1])


def _first_fit(lengths: NDArray[np.int64], width: int) -> list[list[int]]:
    """Which samples share a row; the longest first, each into the first row that has room."""
    rows: list[list[int]] = []
    room = np.zeros(len(lengths), np.int64)
    for index in np.argsort(-lengths, kind="stable").tolist():
        fitting = np.flatnonzero(room[: len(rows)] >= lengths[index])
        row = int(fitting[0]) if len(fitting) else len(rows)
        if row == len(rows):
            rows.append([])
            room[row] = width
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def _rectangle(samples: Sequence[Sample], lengths: NDArray[np.int64], rows: Sequence[Sequence[int]]) -> Pass:
    width = max(int(lengths[row].sum()) for row in map(list, rows))
    input_ids, positions = np.zeros((2, len(rows), width), np.int64)
    segments = np.full((len(rows), width), -1)
    members: list[int] = []
    parts: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        at = 0
        for segment, index in enumerate(row):
            sample, end = samples[index], at + int(lengths[index])
            input_ids[place, at:end] = sample.token_ids[: end - at]
            positions[place, at:end] = np.arange(end - at)
            segments[place, at:end] = segment
            parts.append(_trained(sample, end - at, place, at, len(members)))
            members.append(index)
            at = end
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Pass(input_ids=input_ids, positions=positions, segments=segments, members=np.array(members), **columns)


def _trained(sample: Sample, length: int, row: int, at: int, owner: int) -> dict[str, NDArray[Any]]:
    """Where the trained tokens of a sample are predicted that begins in column ``at``."""
    chosen = np.flatnonzero(sample.trained[1 : length + 1])  # [k], place of the token before
    return {
        "rows": np.full(len(chosen), row),
        "columns": at + chosen,
        "targets": sample.token_ids[chosen + 1].astype(np.int64),
        "behaviour": sample.logprobs[chosen + 1],
        "owner": np.full(len(chosen), owner),
    }
