"""Where a replay first differs from its record, field by field and bit by bit, and how that is told to a user.

Likely causes are found in `headrace.record.causes`. Everything here is a function of arrays and numbers.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ReplayDiffers
from headrace.telemetry.wording import amount

UNFINISHED = 0
"""Kind of a row that holds an observation and nothing else yet: what the last step led to."""
STEP = 1
"""Kind of a row that holds a transition, as in `headrace.lanes.layout`."""
ENDS = ("terminated", "truncated")
COUNTERS = ("episode", "t", "transitions")
LENGTH = "rows"
"""Stands for a field where the record and the replay hold another number of rows."""
ROUNDING = 1e-5
"""Relative difference below which two results may be the same sum, added up in another order."""
FILE_A_BUG = "keep the run directory and file a bug; what was learned after this event rests on it"
SAME_MACHINE = "replay it on the machine that recorded it, with the same versions of all libraries and the same threads"

_HEAD = frozenset({"reward", "version", "kind", *ENDS, *COUNTERS})
_PLURALS = {
    "version": "policy versions", "reward": "rewards", "terminated": "ends of an episode",
    "truncated": "ends of an episode", "kind": "kinds of rows", LENGTH: "numbers of rows",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowFields:
    """The fields of a row: those of the observation and of the action, and all in the order in which they come about."""

    observation: tuple[str, ...]
    action: tuple[str, ...]

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> RowFields:
        """Of a row as `headrace.lanes.layout.row_dtype` lays it out: observation, head, action."""
        names = dtype.names or ()
        head = [place for place, name in enumerate(names) if name in _HEAD]
        return cls(names[: head[0]], names[head[-1] + 1 :])

    def in_time(self, *, transition: bool = True) -> tuple[str, ...]:
        """All fields, the one that was known first in front; what does not count in such a row is last.

        A row begins with an observation; whether the episode goes on is known with it. A policy acts, the environment
        answers, and only then is all that counted.
        """
        acted, left_over = (self.action, ()) if transition else ((), self.action)
        return (*self.observation, "kind", "version", *acted, "reward", *ENDS, *COUNTERS, *left_over)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """The first value of a lane's rows that differs."""

    lane: int
    row: int
    """Its number in the lane."""
    place: int
    """Its place in the arrays that were compared."""
    episode: int
    """As recorded; so is `t`. Where the record has no such row, as replayed."""
    t: int
    field: str
    """Name in the row, e.g. ``obs.camera``; `LENGTH` where one side has more rows, and all before are equal."""
    index: tuple[int, ...] = ()
    """Place inside the field's array; empty for a single value."""
    recorded: str
    """The value; a float with its bits where the two print alike or nearly so."""
    replayed: str
    unused: bool = False
    """The row holds no transition, and this field of it nothing: bytes that were left over."""
    fields: tuple[str, ...] = ()
    """All fields of the row that differ."""
    rows: int = 0
    """How many rows differ, this one included; of those that both sides have."""
    recorded_rows: int
    replayed_rows: int

    @property
    def compared(self) -> str:
        """What differs, as a plural: ``observations``."""
        if self.unused:
            return "unused bytes"
        if self.field in COUNTERS:
            return "counters"
        return _PLURALS.get(self.field, "actions" if self.field.partition(".")[0] == "action" else "observations")

    @property
    def value(self) -> str:
        """The field and the place in it: ``obs.camera[0, 3]``."""
        return self.field + (f"[{', '.join(map(str, self.index))}]" if self.index else "")

    def facts(self) -> dict[str, str]:
        """What a report shows of it, in order."""
        facts = {
            "at": f"episode {self.episode}, step {self.t}",
            "field": self.value,
            "recorded": self.recorded,
            "replayed": self.replayed,
        }
        both = min(self.recorded_rows, self.replayed_rows)
        if self.field != LENGTH:
            facts["differing"] = f"{', '.join(self.fields)} of this row; {self.rows} of {amount(both, 'row')}"
        if self.recorded_rows != self.replayed_rows:
            facts["rows"] = f"{self.recorded_rows} recorded, {self.replayed_rows} replayed"
        return facts


@dataclass(frozen=True, slots=True)
class Cause:
    """The likely cause of a difference."""

    name: str
    """Short and stable, e.g. ``environment_not_deterministic``."""
    sentence: str
    """The same in plain words, to follow a semicolon."""
    fix: str
    """What to do, as an imperative."""
    evidence: tuple[str, ...] = ()
    """What speaks for it, or should be known beside it; one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first event of a record that a replay does not come to, with the likely cause; its text is the report."""

    event: int
    """Its number in the record."""
    kind: str
    """What it is: ``chunk 17 of group 3``, ``batch of update 410``, ``policy 12``."""
    updates: int
    """Gradient steps made before it."""
    cause: Cause
    compared: str = ""
    """What differs, as a plural: ``batches``; known by itself where `difference` is given."""
    difference: RowDifference | None = None
    recorded: str = ""
    """The value where no row is at fault, e.g. a checksum."""
    replayed: str = ""

    @property
    def headline(self) -> str:
        """One sentence: where, what, and why."""
        where, compared = f"event {self.event:,} ({self.kind})", self.compared
        if self.difference is not None:
            where += f", lane {self.difference.lane}, row {self.difference.row}"
            compared = compared or self.difference.compared
        return f"{where}: recorded and replayed {compared or 'values'} differ; {self.cause.sentence}"

    def facts(self) -> dict[str, str]:
        """Everything beside the headline and what to do, in order."""
        facts = {"after": amount(self.updates, "update")}
        if self.difference is not None:
            facts |= self.difference.facts()
        if self.recorded or self.replayed:
            facts |= {"recorded": self.recorded, "replayed": self.replayed}
        facts["cause"] = self.cause.name
        if self.cause.evidence:
            facts["evidence"] = "\n    ".join(self.cause.evidence)
        return facts

    def __str__(self) -> str:
        lines = "".join(f"\n  {name}: {value}" for name, value in self.facts().items())
        return f"{self.headline}{lines}\n  fix: {self.cause.fix}"

    def to_error(self) -> ReplayDiffers:
        """The same as an error."""
        return ReplayDiffers(self.headline, fix=self.cause.fix, **self.facts())


def bits(rows: NDArray[np.void], name: str) -> NDArray[np.uint8]:
    """The bytes of one field, [R, bytes]."""
    fields = rows.dtype.fields
    assert fields is not None, "a row is structured"
    flat = np.ascontiguousarray(rows[name]).reshape(-1)
    return flat.view(np.uint8).reshape(len(rows), fields[name][0].itemsize)


def first_difference(
    recorded: NDArray[np.void], replayed: NDArray[np.void], *, lane: int, first_row: int
) -> RowDifference | None:
    """The first value in which a lane's rows differ: in the first such row, the field that was known first.

    Values are compared bit by bit: NaN equals itself, and -0.0 is not 0.0.

    Args:
        recorded: [R] rows of the lane, in order, as `headrace.lanes.layout.row_dtype` lays them out. The last one may
            be of kind `UNFINISHED`: an observation the last step led to, all else zeros.
        replayed: [R'] The same rows, made again.
        lane: Its number.
        first_row: Number of the first of these rows.

    Returns:
        None if all fields are equal. Where a checksum says otherwise, bytes that belong to no field differ.
    """
    fields, both = RowFields.of(recorded.dtype), min(len(recorded), len(replayed))
    names = fields.in_time()
    differs = {name: (bits(recorded[:both], name) != bits(replayed[:both], name)).any(axis=1) for name in names}
    rows = np.flatnonzero(np.logical_or.reduce(list(differs.values())))
    if not len(rows):
        return _of_lengths(recorded, replayed, lane, first_row + both)
    place = int(rows[0])
    transition = STEP in (recorded["kind"][place], replayed["kind"][place])
    there = tuple(name for name in fields.in_time(transition=transition) if differs[name][place])
    name = there[0]
    index, was, now = _first_value(np.asarray(recorded[name][place]), np.asarray(replayed[name][place]))
    return RowDifference(
        lane=lane, row=first_row + place, place=place, episode=int(recorded["episode"][place]),
        t=int(recorded["t"][place]), field=name, index=index, recorded=was, replayed=now, fields=there, rows=len(rows),
        unused=not transition and name in fields.action, recorded_rows=len(recorded), replayed_rows=len(replayed),
    )  # fmt: skip


def _of_lengths(recorded: NDArray[np.void], replayed: NDArray[np.void], lane: int, row: int) -> RowDifference | None:
    """That one side has more rows, where all that both have are equal."""
    place = min(len(recorded), len(replayed))
    if len(recorded) == len(replayed):
        return None
    more = recorded if len(recorded) > place else replayed
    return RowDifference(
        lane=lane, row=row, place=place, episode=int(more["episode"][place]), t=int(more["t"][place]), field=LENGTH,
        recorded=amount(len(recorded), "row"), replayed=amount(len(replayed), "row"),
        recorded_rows=len(recorded), replayed_rows=len(replayed),
    )  # fmt: skip


def _first_value(was: NDArray[Any], now: NDArray[Any]) -> tuple[tuple[int, ...], str, str]:
    """Place of the first element that differs, and both values as text."""
    first = int(np.flatnonzero(unequal(was, now))[0])
    index = tuple(int(at) for at in np.unravel_index(first, was.shape)) if was.shape else ()
    return index, *_texts(was.reshape(-1)[first], now.reshape(-1)[first])


def unequal(was: NDArray[Any], now: NDArray[Any]) -> NDArray[np.bool_]:
    """Which elements of two arrays of the same dtype and shape differ in any bit, as one flat array."""
    pair = (
        np.ascontiguousarray(part).reshape(-1).view(np.uint8).reshape(was.size, was.itemsize) for part in (was, now)
    )
    was_bytes, now_bytes = pair
    differ: NDArray[np.bool_] = (was_bytes != now_bytes).any(axis=1)
    return differ


def relative_difference(was: NDArray[Any], now: NDArray[Any]) -> float:
    """Largest difference of two arrays of the same shape, in parts of their largest value.

    Infinite where nothing can be said: for numbers that are not floats, or not finite.
    """
    if was.dtype.kind != "f" or not (np.isfinite(was).all() and np.isfinite(now).all()):
        return 0.0 if not unequal(was, now).any() else math.inf
    was, now = was.astype(np.float64), now.astype(np.float64)
    scale = max(np.abs(was).max(initial=0.0), np.abs(now).max(initial=0.0))
    with np.errstate(over="ignore"):
        return float(np.abs(was - now).max(initial=0.0) / scale) if scale else 0.0


def _texts(was: np.generic, now: np.generic) -> tuple[str, str]:
    """Both values, in as many digits as tell them from all others; with their bits if they look alike."""
    texts = str(was), str(now)
    alike = texts[0] == texts[1] or relative_difference(np.asarray(was), np.asarray(now)) < ROUNDING
    return (f"{texts[0]} ({_hex(was)})", f"{texts[1]} ({_hex(now)})") if alike else texts


def _hex(value: np.generic) -> str:
    if value.dtype.kind == "f" and np.isfinite(value):
        return float(value).hex()
    return f"bits 0x{int.from_bytes(value.tobytes(), sys.byteorder):0{2 * value.nbytes}x}"
