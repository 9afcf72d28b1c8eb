"""The likely cause of the first row in which a replay differs from its record.

A cause is named only where the values leave no other that is as likely; where they do, all that fit are told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.record.diff import (
    COUNTERS,
    ENDS,
    FILE_A_BUG,
    ROUNDING,
    SAME_MACHINE,
    STEP,
    Cause,
    RowDifference,
    RowFields,
    relative_difference,
    unequal,
)
from headrace.record.patterns import Comparison, Pattern, patterns
from headrace.telemetry.wording import names as listed

Actions = Mapping[str, NDArray[Any]] | NDArray[np.void]
"""Actions of consecutive rows by leaf path, [R, ...]; rows of the lane's own dtype will do."""

_AFTER = "after the same seed, actions and values"
_SEED = "draw everything from self.np_random, which reset(seed=...) sets, and let no clock, thread or earlier episode decide"


class Repeat(StrEnum):
    """What came of playing the episode twice in one process: same seed, same actions."""

    NOT_TRIED = "not tried"
    SAME = "same"
    """Every value was the same, with the global generators left as they were."""
    SAME_IF_RESEEDED = "same if reseeded"
    """Only when Python's, numpy's and torch's global generators had been set to the same state before."""
    DIFFERENT = "different"
    """Not even then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What the caller knows beside a lane's rows; what it does not know stays out."""

    others: Mapping[int, NDArray[np.void]] = field(default_factory=dict)
    """Replayed rows of the group's other lanes, by lane."""
    versions: Sequence[int] = ()
    """Of the policies that can be tried, the likeliest first."""
    acts: Callable[[int], Actions | None] | None = None
    """Actions that policy would have chosen in the replayed rows, exploration included; None: it is not kept."""
    acts_seeing: Callable[[int], Actions | None] | None = None
    """Actions for another lane's observations instead of the lane's own, as when a stack is built from it."""
    machine: Sequence[str] = ()
    """How this machine and its libraries differ from those of the record, one sentence each."""
    repeat: Repeat = Repeat.NOT_TRIED


UNUSED_BYTES = Cause(
    "unused_bytes_differ",
    "only bytes that hold nothing differ, so nothing was learned from them",
    "keep the run directory and file a bug; native code of the environment may write into memory that is not its own",
)
"""Where a checksum differs and no field does, or only a field that such a row does not use."""


def cause_of_rows(
    difference: RowDifference, recorded: NDArray[np.void], replayed: NDArray[np.void], clues: Clues
) -> Cause:
    """Why a lane's rows differ.

    Args:
        difference: What `headrace.record.diff.first_difference` found in these rows.
        recorded: [R] rows of the lane.
        replayed: [R'] The same rows, made again.
        clues: What else is known.
    """
    if difference.unused:
        return UNUSED_BYTES
    first_row = difference.row - difference.place
    compared = Comparison(recorded, replayed, clues.others, first_row)
    found = patterns(compared)
    sure = [pattern for pattern in found if pattern.sure]
    if sure:
        return _best(sure)
    cause = _without_pattern(difference, recorded, replayed, clues)
    weak = tuple(f"may be chance: {pattern.sentence}" for pattern in found if pattern.explained > 1)[:3]
    return Cause(cause.name, cause.sentence, cause.fix, (*cause.evidence, *weak, *_same_elsewhere(compared)))


def _best(found: Sequence[Pattern]) -> Cause:
    """The pattern that explains most; several causes that explain as much are told as such."""
    most = max(pattern.explained for pattern in found)
    by_name: dict[str, Pattern] = {}
    for pattern in found:
        if pattern.explained == most:
            by_name.setdefault(pattern.name, pattern)
    held = [f"{p.name} explains {p.explained} of {p.of} rows: {p.sentence}" for p in by_name.values()]
    if len(by_name) > 1:
        return Cause("ambiguous", f"the values fit {listed(list(by_name))} alike", FILE_A_BUG, tuple(held))
    (best,) = by_name.values()
    return Cause(
        best.name,
        best.sentence,
        FILE_A_BUG,
        (f"it explains {best.explained} of {best.of} rows",) * bool(best.explained),
    )


def _same_elsewhere(c: Comparison) -> tuple[str, ...]:
    """Where else the first differing observation stands, which no pattern made use of."""
    if c.first >= len(c.recorded):
        return ()
    places = np.flatnonzero(c.now.observation == c.was.observation[c.first])
    if len(places) != 1 or places[0] == c.first:
        return ()
    return (f"the recorded observation of row {c.row(c.first)} is the replay's of row {c.row(places[0])}",)


def _without_pattern(
    difference: RowDifference, recorded: NDArray[np.void], replayed: NDArray[np.void], clues: Clues
) -> Cause:
    """The cause as the first differing field tells it."""
    fields, name, place = RowFields.of(recorded.dtype), difference.field, difference.place
    if name in fields.observation:
        start = "reset" if difference.t == 0 else "step"
        rounding = _largest(recorded, replayed, place, fields.observation) < ROUNDING
        return _of_environment(f"{start}() returned another observation {_AFTER}", rounding=rounding, clues=clues)
    if name in ("reward", *ENDS):
        rounding = difference.fields == ("reward",) and _largest(recorded, replayed, place, ("reward",)) < ROUNDING
        what = "reward" if name == "reward" else "end of the episode"
        return _of_environment(f"step() returned another {what} {_AFTER}", rounding=rounding, clues=clues)
    if name in fields.action:
        return _of_action(difference, recorded, replayed, clues)
    if name == "version":
        sentence = f"the record's rows were made by policy {difference.recorded}, the replay's by {difference.replayed}"
        return Cause("other_weights", sentence, FILE_A_BUG)
    if name in COUNTERS or name == "kind":
        sentence = "observations, actions and rewards are equal up to there; rows were counted or ended in another way"
        return Cause("bookkeeping_differs", sentence, FILE_A_BUG)
    return Cause("length_differs", "all rows that both hold are equal; the record goes on", FILE_A_BUG)


def _largest(recorded: NDArray[np.void], replayed: NDArray[np.void], place: int, names: Sequence[str]) -> float:
    """Largest relative difference in these fields of one row."""
    pairs = ((np.asarray(recorded[name][place]), np.asarray(replayed[name][place])) for name in names)
    return max(relative_difference(was, now) for was, now in pairs)


def _of_environment(before: str, *, rounding: bool, clues: Clues) -> Cause:
    """Seed, actions and all earlier values are equal, and the environment answers something else."""
    machine = tuple(clues.machine)
    if clues.repeat is Repeat.SAME_IF_RESEEDED:
        sentence = "the environment, or code it calls, draws from a global generator"
        evidence = "the episode repeats in one process only if the global generators are set to the same state before"
        fix = "draw from self.np_random instead of random, numpy.random or torch's global generator"
        return Cause("global_generator", sentence, fix, (before, evidence, *machine))
    if clues.repeat is not Repeat.DIFFERENT and machine and (rounding or clues.repeat is Repeat.SAME):
        sentence = "the environment computes something else on this machine" + (", by rounding" if rounding else "")
        return Cause("other_machine", sentence, SAME_MACHINE, (before, *machine))
    if rounding and clues.repeat is Repeat.SAME:
        return _rounding((before,))
    told = {
        Repeat.SAME: "the episode repeats in one process: something outlives an episode there, or differs by process",
        Repeat.DIFFERENT: "played twice in one process with the same seed and actions, the episode differs as well",
    }
    seen = (told[clues.repeat],) if clues.repeat in told else ()
    return Cause(
        "environment_not_deterministic", "the environment is not deterministic under its seed", _SEED,
        (before, *seen, *machine),
    )  # fmt: skip


def _rounding(evidence: tuple[str, ...]) -> Cause:
    sentence = "the values differ by rounding only, though machine and libraries are as recorded"
    fix = "look for a library whose number of threads, or choice of instructions, is not fixed"
    return Cause("rounding_differs", sentence, fix, evidence)


def _of_action(
    difference: RowDifference, recorded: NDArray[np.void], replayed: NDArray[np.void], clues: Clues
) -> Cause:
    """The observation is equal, and the policy answers something else."""
    leaves, place = RowFields.of(recorded.dtype).action, difference.place
    own = int(recorded["version"][place])
    lane, run = _fitting(clues.acts_seeing, list(clues.others), recorded, place, leaves)
    if lane:
        sentence = f"the action fits what lane {listed(lane)} had seen: its input was built from there"
        return Cause("other_lane", sentence, FILE_A_BUG, (f"it fits {run} rows in sequence",))
    versions, run = _fitting(clues.acts, clues.versions, recorded, place, leaves)
    if str(own) in versions:
        sentence = f"policy {own} does choose the recorded action; the replay had another exploration state or input"
        return Cause("exploration_differs", sentence, FILE_A_BUG, (f"it fits {run} rows in sequence",))
    if versions:
        sentence = f"the action fits policy {listed(versions)}, and the record names policy {own}"
        return Cause("other_weights", sentence, FILE_A_BUG, (f"it fits {run} rows in sequence",))
    largest = _largest(recorded, replayed, place, leaves)
    if largest < ROUNDING:
        by = f"the action differs by {largest:.1g} of its size"
        if not clues.machine:
            return _rounding((by,))
        sentence = "the policy's sums are rounded in another way on this machine"
        return Cause("other_machine", sentence, SAME_MACHINE, (by, *clues.machine))
    return _other_action(clues, own)


def _other_action(clues: Clues, own: int) -> Cause:
    """No policy that was tried chooses the recorded action."""
    if clues.acts is None or not clues.versions:
        sentence = f"the policy that acted was not policy {own} as the replay has it, or explored in another state"
        return Cause("other_weights", sentence, FILE_A_BUG, ("no other policy was tried", *clues.machine))
    sentence = "the observation is equal and no recorded policy chooses this action: exploration or input differed"
    return Cause(
        "exploration_differs", sentence, FILE_A_BUG,
        (f"tried: policy {listed([str(version) for version in clues.versions])}", *clues.machine),
    )  # fmt: skip


def _fitting(
    acts: Callable[[int], Actions | None] | None, candidates: Sequence[int], recorded: NDArray[np.void], place: int,
    leaves: Sequence[str],
) -> tuple[list[str], int]:  # fmt: skip
    """The candidates whose actions are the recorded ones for most rows from a place on, and for how many."""
    best: list[str] = []
    most = 1
    for candidate in candidates if acts is not None else ():
        acted = acts(candidate) if acts is not None else None
        run = _fits(acted, recorded, place, leaves) if acted is not None else 0
        if run >= most:
            best = [*(best if run == most else ()), str(candidate)]
            most = run
    return best, most


def _fits(acted: Actions, recorded: NDArray[np.void], place: int, leaves: Sequence[str]) -> int:
    """How many transitions from a place on hold these actions; others in between do not count."""
    run = 0
    length = min(len(recorded), *(len(acted[leaf]) for leaf in leaves))
    for row in range(place, length):
        if recorded["kind"][row] != STEP:
            continue
        if any(unequal(np.asarray(acted[leaf][row]), np.asarray(recorded[leaf][row])).any() for leaf in leaves):
            break
        run += 1
    return run


def cause_without_rows(clues: Clues) -> Cause:
    """Why a chunk's checksum differs, where the record did not keep its rows."""
    missing = "only the checksum was recorded: record.rows kept no rows of it"
    if clues.repeat in (Repeat.SAME_IF_RESEEDED, Repeat.DIFFERENT):
        return _of_environment(missing, rounding=False, clues=clues)
    if clues.machine:
        return Cause(
            "other_machine", "this machine or its libraries are not those of the record", SAME_MACHINE,
            (missing, *clues.machine),
        )  # fmt: skip
    sentence = "which value it is cannot be told without the rows"
    return Cause("unknown", sentence, 'record again with record.rows = "all"', (missing,))
