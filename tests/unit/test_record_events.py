"""Events of a record: what is packed comes back, in layouts of known size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from headrace.record.events import (
    KINDS,
    NOT_KEPT,
    BatchesTrained,
    ChunkCommitted,
    GroupSalvaged,
    LanePart,
    Note,
    RowPlace,
    WeightsHashed,
)
from record_support import ONE_OF_EACH, events


def test_one_of_each_is_one_of_each():
    assert {type(event) for event in ONE_OF_EACH} == set(KINDS.values())
    assert all(KINDS[event.code] is type(event) for event in ONE_OF_EACH)
    assert sorted(KINDS) == list(range(1, len(KINDS) + 1))


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_an_event_comes_back(event):
    back = type(event).unpack(event.pack())
    assert back == event
    assert back.pack() == event.pack()


@pytest.mark.table
@given(events)
def test_any_event_comes_back(event):
    assert type(event).unpack(event.pack()) == event


def test_a_chunk_is_small():
    """A run writes one per group and chunk: 52 bytes, and 20 a lane besides its exploration state."""
    lanes = (LanePart(1, 1, 1, b"1234"), LanePart(2, 2, 2, b"5678"))
    chunk = ChunkCommitted(1, 2, 3, 4, 5, last=False, place=NOT_KEPT, lanes=lanes)
    assert len(chunk.pack()) == 52 + 2 * (20 + 4)


def test_rows_that_were_not_kept_have_no_place():
    for event in ONE_OF_EACH:
        if isinstance(event, GroupSalvaged):
            assert event.unpack(event.pack()).place is NOT_KEPT
    assert NOT_KEPT < RowPlace(0, 0) < RowPlace(0, 1) < RowPlace(1, 0)


def test_batches_are_compared_by_what_they_hold():
    prints = np.array([[1, 2, 0], [3, 4, 0]], np.uint32)
    same, other = BatchesTrained(5, prints.copy()), BatchesTrained(5, prints + 1)
    assert BatchesTrained(5, prints) == same
    assert hash(BatchesTrained(5, prints)) == hash(same)
    assert same != other
    assert same != BatchesTrained(6, prints)
    assert same != "something else"


def test_a_note_takes_what_json_does_not_know():
    note = Note(
        1, "checkpoint", {"steps": np.int64(7), "score": np.float32(0.5), "lost": float("nan"), "at": Path("a")}
    )
    assert Note.unpack(note.pack()).facts == {"steps": 7, "score": 0.5, "lost": None, "at": "a"}


def test_a_ledger_keeps_every_bit():
    ledger = {"learning_rate": 0.1 + 0.2, "steps": 2.0**53, "tiny": 5e-324, "none": float("inf")}
    assert WeightsHashed.unpack(WeightsHashed(0, "00" * 32, ledger).pack()).ledger == ledger
