"""Which files of rows are still needed."""

from __future__ import annotations

import pytest

from headrace.record.segments import SegmentContents


@pytest.fixture
def contents() -> SegmentContents:
    """Two lanes; the second one stops after the second segment."""
    found = SegmentContents(2)
    for segment, lane, stop in [(0, 0, 10), (0, 1, 12), (1, 0, 15), (1, 0, 20), (1, 1, 30), (2, 0, 40)]:
        found.note(segment, lane, stop)
    return found


@pytest.mark.parametrize(
    ("floors", "oldest"),
    [
        ([0, 0], 0),
        ([10, 99], 0),  # the observation after row 9 is in segment 0
        ([11, 12], 0),
        ([11, 13], 1),
        ([20, 31], 1),
        ([21, 30], 1),
        ([21, 31], 2),
        ([99, 99], 2),  # nothing that was written is needed; what comes next is
    ],
)
def test_oldest_that_is_needed(contents: SegmentContents, floors, oldest):
    assert contents.oldest_needed(floors) == oldest


def test_before_the_first_row_nothing_is_missing():
    assert SegmentContents(2).oldest_needed([0, 0]) == 0


def test_those_that_are_gone_are_not_needed(contents: SegmentContents):
    contents.forget_before(1)
    assert contents.oldest_needed([0, 0]) == 1
    contents.forget_before(9)
    assert contents.oldest_needed([0, 0]) == 0
