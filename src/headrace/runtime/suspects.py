"""Why a stored action is not the one that follows from its row: what else it does follow from, bit for bit.

A suspect is accepted only if it leads to every wrong action it says anything about. Letters: R rows of a lane, T its
transitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.specs import Leaf
from headrace.record.causes import Clues, cause_of_rows
from headrace.record.diff import FILE_A_BUG, ROUNDING, Cause, RowDifference, bits
from headrace.runtime.reacting import Hindsight, LaneChunk, Rows, Setting, Sight, needs_policy, sight, steps_of
from headrace.telemetry.wording import amount
from headrace.telemetry.wording import names as listed

_MOST_VERSIONS = 64
"""Policies that are tried."""
_TELLING = 8
"""Values at an end of their range that have to fit before it is no chance."""
_ENDLESS = 2**62
"""Random steps that never end."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """One way in which the stored actions may have come about."""

    name: str
    """Of the cause."""
    sentence: str
    made: Rows | None
    """[R] rows with the actions it leads to; None: it cannot be tried."""
    moved: NDArray[np.bool_] | None = None
    """[T] transitions it says anything about; None: all."""


def cause_of_actions(
    hindsight: Hindsight,
    difference: RowDifference,
    made: Mapping[int, Rows],
    versions: Sequence[int],
    machine: Sequence[str] = (),
) -> Cause:
    """Why the stored actions of a lane differ from those that were made again.

    Args:
        hindsight: Of the chunk and the lane.
        difference: The first one.
        made: Rows of all lanes of the group, with the actions made again.
        versions: Of the policies at hand.
        machine: How this machine differs from the one that computed the chunk, one sentence each. If it does, a suspect
            is accepted that leads to the stored actions but for rounding.
    """
    setting, lane = hindsight.setting, hindsight.lane
    if difference.field == "version":
        sentence = f"the event names policy {difference.replayed}, and the row was made by policy {difference.recorded}"
        return Cause("other_weights", sentence, FILE_A_BUG)
    nearest = sorted(versions, key=lambda version: (abs(version - hindsight.version), version))[:_MOST_VERSIONS]
    trial = _Trial(setting, hindsight.chunk.lane(lane), made[lane], ROUNDING if machine else 0.0)
    found = trial.fitting(_suspects(hindsight, nearest))
    if found is not None:
        return found
    if not needs_policy(setting, hindsight.chunk):
        sentence = "the action is not the uniformly random one: its generator stood elsewhere, or a policy acted"
        return Cause("exploration_differs", sentence, FILE_A_BUG, tuple(machine))
    clues = Clues(
        others={other: rows for other, rows in made.items() if other != lane},
        versions=nearest,
        acts=hindsight.acts,
        acts_seeing=hindsight.acts_seeing,
        machine=machine,
    )
    return cause_of_rows(difference, trial.stored, made[lane], clues)


def _suspects(hindsight: Hindsight, versions: Sequence[int]) -> Iterator[_Suspect]:
    yield from _shifted(hindsight)
    yield from _of_other_lanes(hindsight)
    own = hindsight.version
    for version in versions:
        if version != own:
            sentence = f"the action fits policy {version}, and the record names policy {own}"
            yield _Suspect("other_weights", sentence, hindsight.again(version))
    if hindsight.setting.geometry.told:  # of what was not drawn there would be nothing to tell, so none is made
        return
    sentence = f"the action is what policy {own} chooses without exploration: it was not applied"
    yield _Suspect("exploration_differs", sentence, hindsight.again(own, explore=False))
    for steps, words in ((0, "the policy's"), (_ENDLESS, "a uniformly random one")):
        sentence = f"the action is {words}, and collect.random_steps says otherwise"
        moved = replace(hindsight, setting=replace(hindsight.setting, random_steps=steps))
        yield _Suspect("exploration_differs", sentence, moved.again(own))


def _shifted(hindsight: Hindsight) -> Iterator[_Suspect]:
    own, lane = hindsight.version, hindsight.lane
    for shift, words, row in (
        (-1, "the observation it led to", "before"),
        (1, "the observation before the one it answers", "after"),
    ):
        seen = sight(hindsight.setting, hindsight.chunk.lane(lane), shift)
        sentence = f"each action is stored with {words}: it fits the observation of the row {row} it"
        yield _Suspect("observation_shifted", sentence, hindsight.again(own, sights={lane: seen}), seen.moved)


def _of_other_lanes(hindsight: Hindsight) -> Iterator[_Suspect]:
    own, lane, setting = hindsight.version, hindsight.lane, hindsight.setting
    for other in hindsight.chunk.lanes:
        if other.lane == lane:
            continue
        for seen in _sights_of(setting, other, hindsight.chunk.lane(lane)):
            sentence = f"the action fits what lane {other.lane} had seen: its input was built from there"
            yield _Suspect("other_lane", sentence, hindsight.again(own, sights={lane: seen}))
        sentence = f"the action fits the lane's own observation with the exploration of lane {other.lane}"
        yield _Suspect("exploration_differs", sentence, hindsight.again(own, streams={lane: other.lane}))


def _sights_of(setting: Setting, other: LaneChunk, mine: LaneChunk) -> Iterator[Sight]:
    """What a lane is shown where its input is built from another one; the stack counted by either lane's episode."""
    theirs, own = sight(setting, other), sight(setting, mine)
    if len(theirs.t) != len(own.t):
        return
    yield theirs
    if setting.geometry.frame_stack > 1:
        yield replace(theirs, t=own.t)


class _Trial:
    """Looks which suspect leads to the actions that are stored.

    Args:
        setting: Of the run.
        chunk: The lane's.
        made: [R] its rows with their actions made again.
        slack: Relative difference that is none.
    """

    def __init__(self, setting: Setting, chunk: LaneChunk, made: Rows, slack: float) -> None:
        self.stored = chunk.rows[setting.geometry.frame_stack - 1 :]
        """[R] the lane's rows."""
        self._leaves, self._slack = setting.geometry.acted, slack
        self._steps = steps_of(setting, chunk)
        self._wrong = ~self._fits(made)
        self._inside = _inside(self.stored[self._steps], setting)

    def fitting(self, suspects: Iterator[_Suspect]) -> Cause | None:
        """The suspect that explains most; several that explain as much are told as such. None: none explains any."""
        held: dict[str, tuple[int, _Suspect]] = {}
        for suspect in suspects:
            explained = self._explained(suspect)
            if explained > held.get(suspect.name, (0, suspect))[0]:
                held[suspect.name] = explained, suspect
        if not held:
            return None
        most = max(explained for explained, _ in held.values())
        best = [suspect for explained, suspect in held.values() if explained == most]
        wrong = amount(int(self._wrong.sum()), "wrong action")
        exact = "but for rounding" if self._slack else "bit for bit"
        evidence = f"it explains {most} of {wrong} of the lane in this chunk, {exact}"
        if len(best) > 1:
            told = tuple(f"{suspect.name}: {suspect.sentence}" for suspect in best)
            sentence = f"the values fit {listed([suspect.name for suspect in best])} alike"
            return Cause("ambiguous", sentence, FILE_A_BUG, (*told, evidence))
        return Cause(best[0].name, best[0].sentence, FILE_A_BUG, (evidence,))

    def _explained(self, suspect: _Suspect) -> int:
        """How many wrong actions a suspect leads to; 0 where one contradicts it, or chance may have done it."""
        if suspect.made is None:
            return 0
        asked = self._wrong if suspect.moved is None else self._wrong & suspect.moved
        telling = (self._inside & asked).any() or asked.sum() >= _TELLING
        return int(asked.sum()) if telling and self._fits(suspect.made)[asked].all() else 0

    def _fits(self, made: Rows) -> NDArray[np.bool_]:
        """[T] where all parts of the action are the same."""
        was, now = self.stored[self._steps], made[self._steps]
        found: NDArray[np.bool_] = np.logical_and.reduce([self._same(was, now, leaf) for leaf in self._leaves])
        return found

    def _same(self, was: Rows, now: Rows, leaf: Leaf) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (bits(was, leaf.path) == bits(now, leaf.path)).all(axis=1)
        if self._slack and leaf.dtype.kind == "f":
            same |= close(was[leaf.path], now[leaf.path], self._slack)
        return same


def close(was: NDArray[Any], now: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    """[T] where floating-point actions differ by no more than ``tolerance`` of the largest number among them all."""
    before, after = (part.reshape(len(was), -1).astype(np.float64) for part in (was, now))
    limit = tolerance * max(np.abs(before).max(initial=0.0), np.abs(after).max(initial=0.0))
    near: NDArray[np.bool_] = (np.abs(before - after) <= limit).all(axis=1)
    return near


def _inside(stored: Rows, setting: Setting) -> NDArray[np.bool_]:
    """[T] where a part of the action lies inside its range; many policies choose what lies at its end."""
    found = np.zeros(len(stored), np.bool_)
    for leaf in setting.geometry.acted:
        space: Any = setting.action_space
        for key in leaf.keys:
            space = space[key]
        if isinstance(space, spaces.Box):
            values = stored[leaf.path]
            inside = (values > space.low) & (values < space.high)
            found |= inside.reshape(len(stored), -1).any(axis=1)
    return found
