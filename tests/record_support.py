"""Events for tests: hypothesis strategies for each class, and one hand-written event of each."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from headrace.record.events import (
    NOT_KEPT,
    BatchesTrained,
    ChunkCommitted,
    GroupSalvaged,
    LanePart,
    LearnerSucceeded,
    Note,
    PolicyPublished,
    RowPlace,
    SalvagedLane,
    StateSaved,
    StepsLost,
    WeightsHashed,
)

counts = st.integers(0, 2**63 - 1)
signed = st.integers(-(2**63), 2**63 - 1)
words = st.integers(0, 2**32 - 1)
places = st.just(NOT_KEPT) | st.builds(RowPlace, st.integers(0, 2**32 - 2), counts)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def chunks(draw):
    carry = draw(st.integers(0, 9))
    lane = st.builds(LanePart, counts, counts, words, st.binary(min_size=carry, max_size=carry))
    lanes = draw(st.lists(lane, min_size=1, max_size=5))
    whole = st.builds(
        ChunkCommitted, counts, words, words, counts, counts, st.booleans(), places, st.just(tuple(lanes))
    )
    return draw(whole)


salvages = st.builds(
    GroupSalvaged, counts, words, words, counts, counts, places,
    st.lists(
        st.builds(SalvagedLane, counts, counts, counts, st.booleans(), counts, words), min_size=1, max_size=5
    ).map(tuple),
)  # fmt: skip
batches = st.builds(
    BatchesTrained,
    counts,
    st.lists(st.tuples(words, words, words), max_size=20).map(lambda rows: np.array(rows, np.uint32).reshape(-1, 3)),
)
hashes = st.builds(
    WeightsHashed,
    counts,
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=4),
)
notes = st.builds(Note, counts, st.text(max_size=12), st.dictionaries(st.text(), json_values, max_size=4))
events = st.one_of(
    chunks(),
    salvages,
    batches,
    st.builds(PolicyPublished, counts, counts, words),
    hashes,
    st.builds(StateSaved, counts, counts),
    st.builds(LearnerSucceeded, counts, signed),
    notes,
    st.builds(StepsLost, counts, words, counts, st.lists(st.tuples(words, words), max_size=5).map(tuple)),
)

ONE_OF_EACH = (
    PolicyPublished(0, 1, 0xDEADBEEF),
    ChunkCommitted(
        0, 2, 1, 7, 3, last=True, place=RowPlace(4, 4096),
        lanes=(LanePart(12, 11, 1, b"carry--1"), LanePart(13, 12, 2, b"carry--2")),
    ),
    BatchesTrained(0, np.arange(18, dtype=np.uint32).reshape(6, 3)),
    GroupSalvaged(
        6, 2, 1, 8, 3, NOT_KEPT,
        (
            SalvagedLane(15, 2, 1, cut=True, episodes_begun=4, checksum=5),
            SalvagedLane(13, 0, 0, cut=False, episodes_begun=5, checksum=0),
        ),
    ),
    WeightsHashed(6, "ab" * 32, {"optimiser_steps": 6, "epsilon": 0.1}),
    StateSaved(6, 1),
    LearnerSucceeded(6, -1),
    Note(6, "evaluated", {"version": 3, "returns": [1.5, -2.25], "best": None}),
    StepsLost(6, 1, 9, ((2, 0), (3, 0), (3, 7))),
)  # fmt: skip
