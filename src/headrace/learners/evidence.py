"""What the checks for suspicious data look at: one window of rows, and what is remembered of those before it.

Letters in shapes: N rows of the window, C observation columns, A action columns. A column is one number of an
observation, named like ``obs[3]`` or ``obs.camera[0,4]``.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.specs import Leaf, leaves
from headrace.lanes.layout import CUT, FINAL, INFO_KEYS, LOST, STEP

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Digests = NDArray[np.uint64]

MOST_COLUMNS = 512
"""Of a larger observation evenly chosen columns are looked at; its digest covers all of it."""
_KEPT_STARTS = 64
_KEPT_LENGTHS = 200
_MOST_REWARDS = 9
_SHIFT = np.uint64(29)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the data that a person should know."""

    kind: str
    severity: Literal["warning", "info"]
    """``warning``: hardly ever right. ``info``: often right, and worth knowing."""
    text: str
    """One or two sentences with the numbers."""
    facts: dict[str, Any]
    about: tuple[object, ...] = ()
    """What it is about: told again when this changes, not when only numbers do."""
    subject: str = ""
    """Tells findings of one kind apart that may hold at the same time."""

    def plain(self) -> dict[str, Any]:
        """As ``summary.json`` has it."""
        return {"kind": self.kind, "severity": self.severity, "text": self.text, "facts": self.facts}


@dataclass(frozen=True, slots=True)
class Columns:
    """The leaves of a space as columns of numbers, with the bounds the space declares."""

    leaves: tuple[Leaf, ...]
    names: tuple[str, ...]  # C
    chosen: tuple[NDArray[np.intp], ...]
    """Per leaf, which of its flattened elements are looked at."""
    low: Floats  # [C]  -inf where a column has no declared bound, or is no float
    high: Floats  # [C]
    rounded: Flags  # [C]  whether networks see them as float32, which has not all numbers of their dtype
    complete: bool
    """Whether every element is looked at."""

    @classmethod
    def of(cls, space: spaces.Space[Any], prefix: str) -> Columns:
        """Columns of a space whose leaves are called by ``prefix``."""
        found = leaves(space, prefix)
        total = sum(_size(leaf) for leaf in found)
        stride = max(1, -(-total // MOST_COLUMNS))
        chosen = tuple(np.arange(0, _size(leaf), stride) for leaf in found)
        names = [name for leaf, places in zip(found, chosen, strict=True) for name in _names(leaf, places)]
        bounds = [_bounds(space, leaf, places) for leaf, places in zip(found, chosen, strict=True)]
        low, high = (np.concatenate([pair[side] for pair in bounds]) for side in (0, 1))
        rounded = np.repeat([_is_rounded(space, leaf) for leaf in found], [len(places) for places in chosen])
        return cls(found, tuple(names), chosen, low, high, rounded, stride == 1)

    def values(self, rows: NDArray[np.void]) -> Floats:
        """The columns of rows, [N, C]."""
        parts = [
            rows[leaf.path].reshape(len(rows), -1)[:, places].astype(np.float64)
            for leaf, places in zip(self.leaves, self.chosen, strict=True)
        ]
        return np.concatenate(parts, axis=1) + 0.0  # -0.0 becomes 0.0: equal numbers shall have equal digests

    def lit(self, rows: NDArray[np.void]) -> Flags:
        """Whether any number of each leaf is not zero, [N, leaves]; of whole leaves, also where few are looked at."""
        parts = [rows[leaf.path].reshape(len(rows), -1).any(axis=1) for leaf in self.leaves]
        return np.stack(parts, axis=1)

    def digests(self, rows: NDArray[np.void], values: Floats) -> Digests:
        """A number per row, [N], that is the same for equal values and differs for others."""
        if self.complete:
            return mix(values.view(np.uint64))
        parts = [np.ascontiguousarray(rows[leaf.path]).reshape(len(rows), -1) for leaf in self.leaves]
        found = np.zeros(len(rows), np.uint64)
        for place in range(len(rows)):
            checksum = 0
            for part in parts:
                checksum = zlib.crc32(part[place].tobytes(), checksum)
            found[place] = checksum
        return found

    def at_bounds(self, values: Floats) -> Flags:
        """Which numbers lie on a declared finite bound, [N, C]."""
        return (np.isfinite(self.low) & (values <= self.low)) | (np.isfinite(self.high) & (values >= self.high))


def mix(words: Digests) -> Digests:
    """One digest per row of 64-bit words, [N, C] to [N]; the order of the columns counts."""
    # Numbers that came from float32 or small integers have only zeros in their lower half, and a product would keep
    # them there: the halves are mixed before and after.
    words = (words ^ (words >> _SHIFT)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(32)
    factors = np.random.default_rng(words.shape[1]).integers(1, 2**63, words.shape[1], np.uint64) | np.uint64(1)
    return np.asarray((words * factors).sum(axis=1), np.uint64)


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of all lanes, sorted by lane; each lane's in order and without a gap."""

    rows: int
    lane: NDArray[np.int64]  # [N]
    t: NDArray[np.int64]  # [N]  step in the episode
    step: Flags  # [N]  whether the row is a transition
    final: Flags  # [N]  whether it holds an episode's terminal observation
    cut: Flags  # [N]
    terminated: Flags  # [N]
    ended: Flags  # [N]
    reward: Floats  # [N]
    obs: Floats  # [N, C]
    digest: Digests  # [N]
    lit: Flags  # [N, leaves]  see `Columns.lit`
    action: Floats  # [N, A]
    columns: Columns
    actions: Columns
    follows: Flags  # [N]  whether the row before is the step that led to this observation
    starts: NDArray[np.intp]
    """Index of each lane's first row."""

    @classmethod
    def of(cls, rows: NDArray[np.void], lane: NDArray[np.int64], columns: Columns, actions: Columns) -> Window:
        """Take a window's rows apart. ``rows`` and ``lane``: [N], in the order of their commits."""
        order = np.argsort(lane, kind="stable")
        rows, lane = rows[order], lane[order]
        obs = columns.values(rows)
        t, kind = rows["t"].astype(np.int64), rows["kind"]
        terminated = rows["terminated"].astype(bool)
        first = np.r_[True, lane[1:] != lane[:-1]]
        return cls(
            rows=len(rows), lane=lane, t=t, step=kind == STEP, final=kind == FINAL, cut=(kind == CUT) | (kind == LOST),
            terminated=terminated, ended=terminated | rows["truncated"].astype(bool),
            reward=rows["reward"].astype(np.float64), obs=obs, digest=columns.digests(rows, obs), lit=columns.lit(rows),
            action=actions.values(rows), columns=columns, actions=actions,
            follows=~first & (t > 0), starts=np.flatnonzero(first),
        )  # fmt: skip

    @property
    def zero(self) -> Flags:
        """Rows whose whole observation is zero, [N]."""
        return np.asarray(~self.lit.any(axis=1))

    @property
    def lanes(self) -> list[int]:
        """Lanes that have rows in it."""
        return [int(self.lane[start]) for start in self.starts]

    @property
    def came_with(self) -> Floats:
        """The reward each observation came with, [N]; NaN where it is not in the window."""
        return np.where(self.follows, np.r_[np.nan, self.reward[:-1]], np.nan)

    @property
    def still(self) -> Flags:
        """Rows of lanes with one single observation, [N]; lanes of fewer than 50 rows are not judged."""
        lengths = np.diff(np.r_[self.starts, self.rows])
        same = np.logical_and.reduceat(self.digest == np.repeat(self.digest[self.starts], lengths), self.starts)
        return np.repeat(same & (lengths >= 50), lengths)


@dataclass(slots=True)
class History:
    """What is remembered of all windows."""

    lanes: int
    columns: int
    rows: int = 0
    varied: Flags = field(init=False)  # [C]
    constant: set[int] = field(default_factory=set)
    """Columns that were constant in some window."""
    rewards: Counter[float] = field(default_factory=Counter)
    """How often each reward came, while there are few values."""
    many_rewards: bool = False
    starts: dict[int, deque[int]] = field(default_factory=dict)
    """Digests of the newest first observations, per lane."""
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT_LENGTHS))
    """Of the newest episodes that terminated."""
    longest: int = 0
    """Steps of the longest episode, whatever ended it."""
    truncated: int = 0
    """Episodes that were truncated and not terminated."""
    since_end: NDArray[np.int64] = field(init=False)
    """Steps each lane has made since an episode ended in it."""
    ends: int = 0
    info: NDArray[np.int64] = field(init=False)  # [lanes, 6]

    def __post_init__(self) -> None:
        self.varied = np.zeros(self.columns, bool)
        self.since_end = np.zeros(self.lanes, np.int64)
        self.info = np.zeros((self.lanes, len(INFO_KEYS)), np.int64)

    def take_in(self, window: Window) -> None:
        """Remember what later windows are compared with; all but ``varied``, which is of windows before."""
        self.rows += int(window.step.sum())
        self._rewards(window)
        self._episodes(window)
        for place in np.flatnonzero(window.step & (window.t == 0)).tolist():
            lane = int(window.lane[place])
            self.starts.setdefault(lane, deque(maxlen=_KEPT_STARTS)).append(int(window.digest[place]))

    def _rewards(self, window: Window) -> None:
        if self.many_rewards:
            return
        values, counts = np.unique(window.reward[window.step], return_counts=True)
        if len(values) <= _MOST_REWARDS:
            self.rewards.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        self.many_rewards = len(values) > _MOST_REWARDS or len(self.rewards) > _MOST_REWARDS

    def _episodes(self, window: Window) -> None:
        final = np.flatnonzero(window.final & window.follows)
        lengths, terminated = window.t[final], window.terminated[final - 1]
        self.lengths.extend(lengths[terminated].tolist())
        self.truncated += int((~terminated).sum())
        self.ends += int(window.final.sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        stops = np.r_[window.starts[1:], window.rows]
        for lane, start, stop in zip(window.lanes, window.starts, stops, strict=True):
            ends = np.flatnonzero(window.final[start:stop])
            after = start + int(ends[-1]) if len(ends) else start
            self.since_end[lane] = (0 if len(ends) else self.since_end[lane]) + int(window.step[after:stop].sum())


def listed(names: Sequence[object], most: int = 6) -> str:
    """``a, b and c``; of many the first few, and how many more there are."""
    texts = [str(name) for name in names]
    if len(texts) > most:
        return f"{', '.join(texts[:most])} and {len(texts) - most:,} more"
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]])) if texts else ""


def in_lanes(lanes: Sequence[int]) -> str:
    """``lane 3`` or ``lanes 1, 4 and 5``."""
    return f"lane{'s' if len(lanes) > 1 else ''} {listed(lanes)}"


def _size(leaf: Leaf) -> int:
    return int(np.prod(leaf.shape, dtype=int))


def _names(leaf: Leaf, places: NDArray[np.intp]) -> list[str]:
    if not leaf.shape:
        return [leaf.path]
    indices = np.stack(np.unravel_index(places, leaf.shape), axis=1).tolist()
    return [f"{leaf.path}[{','.join(map(str, index))}]" for index in indices]


def _part(space: spaces.Space[Any], leaf: Leaf) -> Any:
    part: Any = space
    for key in leaf.keys:
        part = part[key]
    return part


def _is_rounded(space: spaces.Space[Any], leaf: Leaf) -> bool:
    """Choices are shown one-hot, whatever their dtype; only a Box is shown as the numbers it holds."""
    wide = leaf.dtype.itemsize > 4 if leaf.dtype.kind == "f" else leaf.dtype.itemsize >= 4
    return wide and isinstance(_part(space, leaf), spaces.Box)


def _bounds(space: spaces.Space[Any], leaf: Leaf, places: NDArray[np.intp]) -> tuple[Floats, Floats]:
    part = _part(space, leaf)
    if not isinstance(part, spaces.Box) or leaf.dtype.kind != "f":  # integers outside their bounds are refused
        return np.full(len(places), -np.inf), np.full(len(places), np.inf)
    low, high = (np.asarray(bound, np.float64).reshape(-1)[places] for bound in (part.low, part.high))
    largest = float(np.finfo(leaf.dtype).max)  # many write the largest float where they mean "no bound"
    return np.where(low <= -largest, -np.inf, low), np.where(high >= largest, np.inf, high)
