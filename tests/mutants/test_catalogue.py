"""Every cause of "it does not learn" that was catalogued has a mutant, or a reason why there can be none.

The catalogue is that of a system whose sequential version learned and whose multiprocessing version did not: 41 possible
causes in twelve groups, and T1 to T13, found later in its source. docs/guides/not-learning.md goes through it for users.
"""

from __future__ import annotations

import re
from collections import Counter

from mutant_support import CHECKOUT, read

GROUPS = {0: 4, 1: 3, 2: 3, 3: 3, 4: 4, 5: 3, 6: 3, 7: 3, 8: 3, 9: 4, 10: 3, 11: 2, 12: 3}
"""How many causes each group has; ids count from 1, those of group 0 and all others alike."""
CATALOGUE = [f"{group}.{number}" for group, count in GROUPS.items() for number in range(1, count + 1)]
TRUE_CAUSES = [f"T{number}" for number in range(1, 14)]
EVERY = [*CATALOGUE, *TRUE_CAUSES]

WITHOUT = {
    "8.2": "no place: no tensor is moved between processes. Batches are gathered in host memory and moved once, where "
    "they become tensors (algorithms/sampled.py and continuous.py), to the one device the learner has",
    "8.3": "no place: no model is shared. Weights travel as numpy snapshots in host memory, and acting needs no torch "
    "(test_acting::test_acting_needs_no_torch)",
    "9.1": "a hyper-parameter, the same in one process; `headrace twin` decides between it and the parallel run",
    "9.2": "a hyper-parameter, as 9.1",
    "9.3": "a hyper-parameter, as 9.1",
    "9.4": "a hyper-parameter, as 9.1",
}
"""Causes that are no patch of our code, and why."""


def claimed() -> Counter[str]:
    return Counter(cause for mutant in read() for cause in mutant.causes)


def test_catalogue_is_whole():
    assert len(CATALOGUE) == 41
    assert len(TRUE_CAUSES) == 13


def test_every_cause_has_a_mutant_or_a_reason():
    counts = claimed()
    neither = [cause for cause in EVERY if not counts[cause] and cause not in WITHOUT]
    both = [cause for cause in EVERY if counts[cause] and cause in WITHOUT]
    assert (neither, both) == ([], [])


def test_nothing_is_claimed_that_is_not_in_the_catalogue():
    assert {*claimed(), *WITHOUT} <= {*EVERY}


def test_guide_speaks_of_every_cause():
    guide = (CHECKOUT / "docs" / "guides" / "not-learning.md").read_text()
    _, found, table = guide.partition("\n## The catalogue\n")
    assert found
    ids = [cause for row in re.findall(r"^\| ([^|]+) \|", table, flags=re.MULTILINE) for cause in row.split(", ")]
    assert sorted(set(ids) - {"id", "---"}) == sorted(EVERY)
    assert len(ids) == len(set(ids))
