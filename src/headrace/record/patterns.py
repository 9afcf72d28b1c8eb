"""Ways in which recorded rows may be the replay's rows in another place: lost, repeated, swapped, shifted, another lane's.

A pattern is sure only if chance does not explain it: a number with many digits lies, bit for bit, where the pattern
wants it and not where it belongs, or so many rows of few values fit that one guess in a thousand would. Letters: R rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.record.diff import ENDS, STEP, UNFINISHED, RowFields, bits, unequal
from headrace.telemetry.wording import amount

_BITS = 10.0
"""Surprise that is no chance: one guess in a thousand."""
_DISTINCT = 0.75
"""Share of different values from which on a column of floats is measured, and not one of a few values."""
_WHOLE_NUMBERS = 8
"""Whole numbers that have to move together before it is no chance."""
_TRIES = 32
"""Places, rows or columns that are looked at before one that tells is given up."""

Places = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Contents:
    """What rows hold, as numbers: two are equal where the bytes are. Counters and versions are left out."""

    observation: Places  # [R]
    action: Places  # [R]  -1 in a row without a transition; so is the outcome
    outcome: Places  # [R]  reward and ends
    kind: Places  # [R]
    whole: Places  # [R]  all of these


class _Numbering:
    """Gives equal bytes the same number."""

    def __init__(self, fields: RowFields) -> None:
        self._fields = fields
        self._known: dict[bytes, int] = {}

    def contents(self, rows: NDArray[np.void]) -> Contents:
        """What these rows hold."""
        kind = rows["kind"].astype(np.int64)
        observation = self._of_fields(rows, self._fields.observation)
        action, outcome = self._of_fields(rows, self._fields.action), self._of_fields(rows, ("reward", *ENDS))
        action[kind != STEP] = outcome[kind != STEP] = -1
        whole = self._numbers(np.stack([observation, action, outcome, kind], axis=1))
        return Contents(observation, action, outcome, kind, whole)

    def _of_fields(self, rows: NDArray[np.void], names: Sequence[str]) -> Places:
        return self._numbers(np.concatenate([bits(rows, name) for name in names], axis=1))

    def _numbers(self, parts: NDArray[Any]) -> Places:
        known = self._known
        return np.array([known.setdefault(part.tobytes(), len(known)) for part in parts], np.int64)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to explain the recorded rows from the first one on that holds something else."""

    name: str
    """Of the cause."""
    sentence: str
    explained: int
    """Rows it explains, from that one on."""
    of: int
    """Rows that could have shown it."""
    sure: bool
    """Chance does not explain it."""


@dataclass(slots=True)
class Comparison:
    """One lane's rows as recorded and as replayed, and the replayed rows of the other lanes of its group."""

    recorded: NDArray[np.void]
    replayed: NDArray[np.void]
    others: Mapping[int, NDArray[np.void]]
    first_row: int
    """Number of the first row."""
    fields: RowFields = field(init=False)
    was: Contents = field(init=False)
    now: Contents = field(init=False)
    elsewhere: dict[int, Contents] = field(init=False)
    in_place: Flags = field(init=False)
    """Which rows that both sides have hold the same, counters and versions aside."""
    first: int = field(init=False)
    """Place of the first row that does not; or the one after the last that both sides have."""

    def __post_init__(self) -> None:
        self.fields = RowFields.of(self.recorded.dtype)
        numbering = _Numbering(self.fields)
        self.was, self.now = numbering.contents(self.recorded), numbering.contents(self.replayed)
        self.elsewhere = {lane: numbering.contents(rows) for lane, rows in self.others.items()}
        places = np.arange(min(len(self.recorded), len(self.replayed)))
        self.in_place = _same(self.was, self.now, places, places)
        self.first = _run(self.in_place)

    @property
    def same_length(self) -> bool:
        """Whether both sides have as many rows."""
        return len(self.recorded) == len(self.replayed)

    @property
    def rest(self) -> int:
        """Recorded rows from the first difference on."""
        return len(self.recorded) - self.first

    def row(self, place: int) -> int:
        """Number of the row at a place."""
        return self.first_row + int(place)


def patterns(compared: Comparison) -> list[Pattern]:
    """All patterns that explain the first row that holds something else; empty if no row does."""
    if compared.first == len(compared.recorded):
        missing = len(compared.replayed) - compared.first
        sentence = f"transitions were dropped: the record lacks the last {amount(missing, 'row')} of the replay"
        return [Pattern("transition_dropped", sentence, 0, 0, sure=True)] if missing else []
    found = [*_moved(compared), *_reordered(compared), *_overwritten(compared)]
    return [*found, *_observation_shifted(compared), *_other_lane(compared)]


def _same(was: Contents, now: Contents, left: Places, right: Places) -> Flags:
    """Which pairs of rows hold the same; of one that is unfinished, the observation is all there is."""
    unfinished = (was.kind[left] == UNFINISHED) | (now.kind[right] == UNFINISHED)
    seen = was.observation[left] == now.observation[right]
    flags: Flags = np.where(unfinished, seen, was.whole[left] == now.whole[right])
    return flags


def _run(flags: Flags) -> int:
    """How many are true before the first that is not."""
    wrong = np.flatnonzero(~flags)
    return int(wrong[0]) if len(wrong) else len(flags)


def _moved(c: Comparison) -> Iterator[Pattern]:
    """From the first difference on all rows are the replay's a little later or earlier: some are missing, or there twice."""
    lags = np.flatnonzero(c.now.observation == c.was.observation[c.first]) - c.first
    for lag in sorted((int(lag) for lag in lags if lag), key=abs)[:_TRIES]:
        left = np.arange(c.first, min(len(c.recorded), len(c.replayed) - lag))
        run = _run(_same(c.was, c.now, left, left + lag))
        if not run:
            continue
        moved = left[:run]
        claim = _Claim(moved, c.replayed, moved + lag, c.now.whole, math.log2(2 * len(lags)))
        rest_is_equal = run == c.rest and c.first + run + lag == len(c.replayed)
        sure = rest_is_equal or _sure(c, claim)
        explained = run - int(_stays(c, moved, moved + lag).sum())
        where = f"from row {c.row(c.first)} on the record holds what the replay has {amount(abs(lag), 'row')}"
        if lag > 0:
            yield Pattern("transition_dropped", f"a transition was dropped: {where} later", explained, len(left), sure)
        else:
            yield Pattern(
                "transition_duplicated", f"a transition was stored twice: {where} earlier", explained, len(left), sure
            )


def _stays(c: Comparison, left: Places, right: Places) -> Flags:
    """Which rows were found by an observation alone, and hold an action that only the row in their own place has."""
    alone = (c.was.kind[left] == UNFINISHED) != (c.now.kind[right] == UNFINISHED)
    own = c.now.action[np.minimum(left, len(c.replayed) - 1)]
    once = np.array([(c.now.action == number).sum() == 1 for number in own], np.bool_)
    flags: Flags = alone & (c.was.action[left] == own) & once
    return flags


def _reordered(c: Comparison) -> Iterator[Pattern]:
    """Between the first and the last difference lie the same rows in another order."""
    if not c.same_length:
        return
    wrong = np.flatnonzero(~c.in_place)
    window = slice(c.first, wrong[-1] + 1)
    kinds, counts = np.unique(c.now.whole[window], return_counts=True)
    if not np.array_equal(np.sort(c.was.whole[window]), np.repeat(kinds, counts)):
        return
    place_of = {int(number): place for place, number in enumerate(c.now.whole[window], c.first)}
    sources = np.array([place_of[int(number)] for number in c.was.whole[wrong]])
    orders = math.lgamma(counts.sum() + 1) - sum(math.lgamma(count + 1) for count in counts)
    sure = _sure(c, _Claim(wrong, c.replayed, sources, c.now.whole, orders / math.log(2)))
    shown = ", ".join(str(c.row(place)) for place in sources[:4]) + (", ..." if len(sources) > 4 else "")
    sentence = f"transitions were reordered: rows {c.row(c.first)} to {c.row(wrong[-1])} hold the replay's {shown}"
    yield Pattern("transitions_reordered", sentence, c.rest, c.rest, sure)


def _overwritten(c: Comparison) -> Iterator[Pattern]:
    """One row holds another one's transition, and all others are in place."""
    if not c.same_length or (~c.in_place).sum() != 1:
        return
    twins = np.flatnonzero(c.now.whole == c.was.whole[c.first])
    if not len(twins):
        return
    twin = min((int(place) for place in twins), key=lambda place: abs(place - c.first))
    claim = _Claim(np.array([c.first]), c.replayed, np.array([twin]), c.now.whole, math.log2(len(c.replayed)))
    sentence = f"row {c.row(c.first)} holds the transition of row {c.row(twin)} as well; its own is lost"
    yield Pattern("transition_duplicated", sentence, c.rest, c.rest, _sure(c, claim))


def _observation_shifted(c: Comparison) -> Iterator[Pattern]:
    """Actions and outcomes are in place, and the observations beside them are those of the next or previous step."""
    for step, words in ((1, "the observation it led to"), (-1, "the observation before the one it answers")):
        yield from _shifted_by(c, step, words)


def _shifted_by(c: Comparison, step: int, words: str) -> Iterator[Pattern]:
    left = np.arange(c.first, len(c.in_place))
    left = left[(left + step >= 0) & (left + step < len(c.replayed))]
    now, seen = c.now, c.was.observation[left]
    own = c.was.kind[left] == now.kind[left]
    own &= (c.was.action[left] == now.action[left]) & (c.was.outcome[left] == now.outcome[left])
    fits = seen == now.observation[left + step]
    steps = now.kind[left] == STEP
    moved = fits & steps & (seen != now.observation[left])
    # At an episode's border stands what the step there has, or what lies beyond the border.
    border = ~np.isin(now.kind[left + step], (STEP, UNFINISHED))
    beyond = np.clip(left + 2 * step, 0, len(c.replayed) - 1)
    fits |= border & ((seen == now.observation[beyond]) | (seen == now.observation[left]))
    run = _run(own & (fits | ~steps))
    if not moved[:run].any():
        return
    shifted = left[:run][moved[:run]]
    claim = _Claim(shifted, c.replayed, shifted + step, now.observation, 1.0, c.fields.observation)
    sentence = f"from row {c.row(c.first)} on each action is stored with {words}"
    yield Pattern("observation_shifted", sentence, int(steps[:run].sum()), int(steps.sum()), _sure(c, claim))


def _other_lane(c: Comparison) -> Iterator[Pattern]:
    """Whole rows, observations or actions are those of another lane."""
    known = c.first < len(c.replayed) and c.was.observation[c.first] == c.now.observation[c.first]
    if known and (c.was.action[c.first] < 0 or c.was.action[c.first] == c.now.action[c.first]):
        return
    names = c.fields.action if known else c.fields.observation
    side, mine = (c.was.action, c.now.action) if known else (c.was.observation, c.now.observation)
    own = bool((mine == side[c.first]).any())  # lanes may be alike
    for lane, there in c.elsewhere.items():
        now = there.action if known else there.observation
        run, at = _longest_run(c.first, side, now)
        if not run:
            continue
        left, right = np.arange(c.first, c.first + run), np.arange(at, at + run)
        doubt = math.log2(len(now) * len(c.elsewhere))
        sure = not own and _sure(c, _Claim(left, c.others[lane], right, now, doubt, names))
        whole = not known and bool(_same(c.was, there, left, right).all())
        what = "what" if whole else f"the {'action' if known else 'observation'} that"
        where = "step {t} of its episode {episode}".format(
            **{name: c.others[lane][name][at] for name in ("t", "episode")}
        )
        more = f", and the {run - 1} after it what follows there" if run > 1 else ""
        sentence = f"row {c.row(c.first)} holds {what} lane {lane} has at {where}{more}"
        yield Pattern("other_lane", sentence, run + _run(c.in_place[c.first + run :]), c.rest, sure)


def _longest_run(first: int, was: Places, now: Places) -> tuple[int, int]:
    """The longest run of equal numbers from place ``first`` of one side on, and where on the other it begins."""
    best = 0, 0
    starts = sorted((int(at) for at in np.flatnonzero(now == was[first])), key=lambda at: abs(at - first))
    for at in starts[:_TRIES]:
        length = min(len(was) - first, len(now) - at)
        run = _run(was[first : first + length] == now[at : at + length])
        best = max(best, (run, at), key=lambda found: found[0])
    return best


@dataclass(frozen=True, slots=True)
class _Claim:
    """That recorded rows hold what other rows hold."""

    left: Places
    """Places of the recorded rows."""
    source: NDArray[np.void]
    right: Places
    """Places of the other rows in their source."""
    numbers: Places
    """What every row of the source holds of what is claimed."""
    doubt: float
    """Bits: how many such claims were tried."""
    names: tuple[str, ...] = ()
    """The fields that are claimed; none: all of a row's content."""


def _sure(c: Comparison, claim: _Claim) -> bool:
    """Whether chance does not explain the rows of a claim that do not hold what belongs there."""
    stays = np.zeros(len(c.recorded), np.bool_)
    stays[: len(c.in_place)] = c.in_place
    gained = ~stays[claim.left]
    left, right = claim.left[gained], claim.right[gained]
    shares = [float((claim.numbers == claim.numbers[place]).mean()) for place in right]
    if -sum(math.log2(share) for share in shares) - claim.doubt >= _BITS:
        return True
    return any(_tells(c, claim, int(a), int(b)) for a, b in zip(left[:_TRIES], right[:_TRIES], strict=True))


def _tells(c: Comparison, claim: _Claim, place: int, at: int) -> bool:
    """Whether a recorded row shares a value with one elsewhere that cannot be there by chance."""
    fields, source, whole_numbers = c.fields, claim.source, 0
    transition = c.was.kind[place] == STEP == source["kind"][at]
    every = (*fields.observation, *((*fields.action, "reward") if transition else ()))
    for name in claim.names or every:
        here, there = np.asarray(c.recorded[name][place]), np.asarray(source[name][at])
        moved = ~unequal(here, there)
        seen = name in fields.observation
        if place < len(c.replayed) and (seen or c.now.kind[place] == STEP):
            moved &= unequal(np.asarray(c.replayed[name][place]), here)
        if here.dtype.kind != "f":
            whole_numbers += int(moved.sum())
            continue
        rows = source if seen else source[source["kind"] == STEP]
        if _measured(rows[name].reshape(len(rows), -1), there.reshape(-1), moved):
            return True
    return whole_numbers >= _WHOLE_NUMBERS


def _measured(columns: NDArray[Any], values: NDArray[Any], moved: Flags) -> bool:
    """Whether one of the values that moved has many digits, and is the only one of its kind in a column that varies.

    Args:
        columns: [R, E] what all rows hold.
        values: [E] what one of them holds.
        moved: [E] which of these moved.
    """
    telling = moved & np.isfinite(values) & (values != np.floor(values))
    for element in np.flatnonzero(telling)[:_TRIES]:
        column = columns[:, element]
        if (column == values[element]).sum() == 1 and len(np.unique(column)) >= _DISTINCT * len(column):
            return True
    return False
