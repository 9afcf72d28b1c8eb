"""Where a replay is to stop, as a user writes it."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.record.events import NOT_KEPT, BatchesTrained, ChunkCommitted, LanePart, PolicyPublished
from headrace.runtime.moments import Moment
from headrace.runtime.until import parse_until

CHUNK = ChunkCommitted(12, 0, 3, 17, 2, last=False, place=NOT_KEPT, lanes=(LanePart(8, 8, 0),))
MOMENTS = {
    "event 9": Moment(9, PolicyPublished(8, 7, 0), 900, None),
    "update 9": Moment(10, BatchesTrained(8, np.zeros((4, 3), np.uint32)), 950, 9),
    "event 10": Moment(10, BatchesTrained(8, np.zeros((4, 3), np.uint32)), 950, None),
    "update 13, before chunk 3.17": Moment(11, CHUNK, 1000, 13),
    "chunk 3.17": Moment(11, CHUNK, 1000, None),
    "update 14, before version 9": Moment(12, PolicyPublished(14, 9, 0), 1050, 14),
    "version 9": Moment(12, PolicyPublished(14, 9, 0), 1050, None),
}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (9, "event 9"),
        ("9", "event 9"),
        (" event:9\n", "event 9"),
        ("event:10", "event 10"),
        ("update:9", "update 9"),
        ("update:13", "update 13, before chunk 3.17"),
        ("chunk:3.17", "chunk 3.17"),
        ("version:9", "version 9"),
        ("version:8", None),
        ("chunk:17.3", None),
        ("chunk:3.1", None),
        ("update:10", None),
    ],
)
def test_each_form_means_one_moment(text, name):
    stop = parse_until(text)
    assert [found for found, moment in MOMENTS.items() if stop(moment)] == ([name] if name else [])


@pytest.mark.parametrize("text", ["", "update", "update:", "update:-1", "step:9", "chunk:3", "chunk:3.x", "9.5", "9 9"])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError) as raised:
        parse_until(text)
    assert str(raised.value) == (
        f"[CFG-001] {text!r} names no event of a record\n"
        "  expected: 1204, event:1204, update:410, version:9 or chunk:3.17 (group 3, chunk 17)\n"
        "  fix: write it in one of these forms"
    )


def test_a_moment_says_where_it_stands():
    assert str(MOMENTS["update 13, before chunk 3.17"]) == "before update 13 (event 11, ChunkCommitted, comes after it)"
    assert str(MOMENTS["version 9"]) == "before event 12 (PolicyPublished)"
