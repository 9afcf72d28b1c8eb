"""Fingerprints of a batch: whatever differs, one of them does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.lanes.derive import Transitions
from headrace.learners.witness import Drawn, batch_print

ROW = np.dtype({"names": ["obs", "reward"], "formats": ["<f8", "<f8"], "offsets": [0, 8], "itemsize": 64})


def drawn(n_step: int = 1) -> Drawn:
    """Five windows of a row and the one after it."""
    raw = np.random.default_rng(0).integers(0, 255, (5, (1 + n_step) * ROW.itemsize), np.uint8)
    values = np.arange(5.0)
    batch = Transitions({"obs": values}, {"action": values}, values.copy(), values.copy(), {"obs": values + 1})
    return Drawn(np.arange(5), raw.view(ROW), batch, n_step, observation_bytes=8)


def changed(one: Drawn, row: int, byte: int) -> Drawn:
    raw = one.windows.view(np.uint8).copy()
    raw[row, byte] ^= 1
    return replace(one, windows=raw.view(ROW))


def test_the_same_batch_has_the_same_prints():
    assert batch_print(drawn(), 16) == batch_print(drawn(), 16)


def test_other_places_change_the_first():
    one = drawn()
    other = replace(one, places=one.places[[1, 0, 2, 3, 4]].copy())
    assert [a == b for a, b in zip(batch_print(one, 0), batch_print(other, 0), strict=True)] == [False, True, True]


@pytest.mark.parametrize("row", [0, 4])
@pytest.mark.parametrize("byte", [0, 7, 9, 63, 64, 71])
def test_any_bit_of_a_row_or_of_the_observation_after_it_changes_the_second(row: int, byte: int):
    one = drawn()
    assert batch_print(changed(one, row, byte), 1)[1] != batch_print(one, 1)[1]


@pytest.mark.parametrize(("n_step", "byte"), [(1, 72), (1, 127), (3, 192), (3, 255)])
def test_what_may_be_written_just_then_does_not(n_step: int, byte: int):
    one = drawn(n_step)
    assert batch_print(changed(one, 2, byte), 1) == batch_print(one, 1)


def test_every_sixteenth_looks_at_what_was_made_of_the_rows():
    one = drawn()
    other = replace(one, batch=replace(one.batch, discount=one.batch.discount + 1))
    assert batch_print(one, 16)[2] != batch_print(other, 16)[2]
    assert batch_print(one, 16)[2] != 0
    assert batch_print(one, 15)[2] == batch_print(other, 15)[2] == 0


def test_the_weights_of_a_batch_are_looked_at_too():
    one = drawn()
    weighed = [replace(one, batch=replace(one.batch, weight=np.full(5, weight))) for weight in (1.0, 0.5)]
    assert len({batch_print(other, 16)[2] for other in (one, *weighed)}) == 3
