"""Makes the actions of a chunk again from the rows that were stored, bit for bit as the collector computed them.

No environment is needed: the stored observations are what the policy had seen. What it may have seen instead, and how
it may have explored instead, can be tried as well; that is how a wrong action is traced to what was done. Letters:
N lanes of a group, R rows of a lane, T its transitions, S frames of a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.algorithms.base import Actor
from headrace.collectors.copies import stand_in
from headrace.collectors.streams import LaneStreams
from headrace.lanes.derive import observe
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import ABSENT, LOST, STEP, Geometry, steps_among
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.payloads import EnvSpaces

Arrays = Mapping[str, NDArray[Any]]
Rows = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Setting:
    """What acting hangs on that is the same in a whole run."""

    geometry: Geometry
    action_space: spaces.Space[Any]
    """Of one environment."""
    seed: int
    """Of the run."""
    random_steps: int
    """Transitions per lane whose actions are uniformly random."""

    @classmethod
    def of(cls, config: ExperimentConfig, env_spaces: EnvSpaces) -> Self:
        """That of a run."""
        random_steps = -(-config.collect.random_steps // config.env.lanes)
        return cls(env_spaces.geometry(config), env_spaces.action, config.run.seed, random_steps)


@dataclass(frozen=True, slots=True)
class LaneChunk:
    """What one lane has of a chunk."""

    lane: int
    rows: Rows
    """[S - 1 + R] its rows, and before them the S - 1 that a stack may reach back to; zeros where there are none, or
    none is reached."""
    carry: NDArray[np.float32] | None
    """Exploration state the chunk began with; None: a fresh one, as in the first chunk of an incarnation."""

    @classmethod
    def in_block(cls, block: LaneBlock, lane: int, start: int, stop: int, carry: NDArray[np.float32] | None) -> Self:
        """Rows ``start`` to ``stop`` (row numbers) that are in the lanes; copied."""
        pieces = block.pieces(lane, start - (block.geometry.frame_stack - 1), stop)
        return cls(lane, np.concatenate([piece.copy() for piece in pieces]), carry)


@dataclass(frozen=True, slots=True)
class GroupChunk:
    """A chunk of a group: what its lanes hold, and what their random streams hang on."""

    incarnation: int
    """Of the group's random streams."""
    number: int
    lanes: tuple[LaneChunk, ...]
    """All of the group, in its order: bits depend on how many observations a policy is shown at once."""

    def lane(self, number: int) -> LaneChunk:
        """The lane of that number."""
        return next(lane for lane in self.lanes if lane.lane == number)


@dataclass(frozen=True, slots=True)
class Sight:
    """What the policy is shown in each of the T steps of a lane's chunk."""

    windows: Rows
    """[T, S] neighbouring rows, the newest last."""
    t: NDArray[np.int64]
    """[T] step in the episode of the newest."""
    moved: NDArray[np.bool_]
    """[T] whether the newest is another row than the transition's own."""


def sight(setting: Setting, chunk: LaneChunk, shift: int = 0) -> Sight:
    """What a lane's policy saw in each step; or, shifted, what it would have seen had it been shown the row after or before.

    Args:
        setting: Of the run.
        chunk: The lane's.
        shift: 0; 1: the row after; -1: the row before. Where that is of another episode, or not at hand, it is the
            transition's own row.
    """
    rows, depth = chunk.rows, setting.geometry.frame_stack
    own = steps_of(setting, chunk) + depth - 1
    other = np.clip(own + shift, depth - 1, len(rows) - 1)
    follows = rows["t"][other] == rows["t"][own].astype(np.int64) + shift  # else it is of another episode
    newest = np.where(follows, other, own)
    windows = rows[newest[:, None] + np.arange(1 - depth, 1)]
    return Sight(windows, rows["t"][newest].astype(np.int64), newest != own)


def steps_of(setting: Setting, chunk: LaneChunk) -> NDArray[np.int64]:
    """[T] places of a chunk's steps among its R rows: its transitions, and the steps that brought the lane none."""
    return np.flatnonzero(steps_among(chunk.rows["kind"][setting.geometry.frame_stack - 1 :]))


def needs_policy(setting: Setting, chunk: GroupChunk) -> bool:
    """Whether any action of a chunk was a policy's; the others are uniformly random."""
    return any(
        (lane.rows["transitions"][lane.rows["kind"] == STEP] > setting.random_steps).any() for lane in chunk.lanes
    )


def act_again(
    actor: Actor,
    setting: Setting,
    chunk: GroupChunk,
    *,
    sights: Mapping[int, Sight] | None = None,
    streams: Mapping[int, int] | None = None,
    explore: bool = True,
) -> dict[int, Rows]:
    """The actions of a chunk once more: one policy call a step for all lanes, as the collector makes it.

    What a policy noted beside an action (``logprob``) is made again with it, from the same policy call.

    Args:
        actor: With the policy loaded that acted; where `needs_policy` is false, none need be.
        setting: Of the run.
        chunk: With stored rows; a lane may have a transition less than another, as after a salvage.
        sights: By lane, what its policy is shown instead of the lane's own rows: another lane's `sight`, or its own
            shifted.
        streams: By lane, the lane whose exploration it is given instead of its own, as that lane has it: forgotten where
            that lane's episodes begin.
        explore: False: the policy acts greedily; one that tells of its actions cannot, for it then tells nothing.

    Returns:
        By lane, a copy of its R rows with the actions made again.
    """
    given, shown = streams or {}, sights or {}
    depth = setting.geometry.frame_stack
    lanes = []
    for one in chunk.lanes:
        drawn = _Streams(actor, setting, chunk, given.get(one.lane, one.lane))
        lanes.append(_Lane(setting, one, shown.get(one.lane) or sight(setting, one), drawn))
    acts = needs_policy(setting, chunk)
    windows, t = np.zeros((len(lanes), depth), setting.geometry.dtype), np.zeros(len(lanes), np.int64)
    for step in range(max(len(lane.places) for lane in lanes)):
        away = []
        for place, lane in enumerate(lanes):
            lane.streams.begin_step(step)
            if lane.absent(step):
                away.append(place)
            elif step < len(lane.places):
                windows[place], t[place] = lane.sight.windows[step], lane.sight.t[step]
        stand_in(away, windows, t)
        noise = [lane.streams.drawn.noise for lane in lanes] if explore else None
        actions = actor.act(observe(windows, setting.geometry.observation, t), noise) if acts else {}
        for place, lane in enumerate(lanes):
            if step < len(lane.places):
                lane.put(step, actions, place)
    return {lane.number: lane.made for lane in lanes}


class _Streams:
    """Random streams of one lane from a chunk's beginning on."""

    def __init__(self, actor: Actor, setting: Setting, chunk: GroupChunk, lane: int) -> None:
        own = chunk.lane(lane)
        self.drawn = LaneStreams(setting.seed, lane, chunk.incarnation, actor, setting.action_space)
        if own.carry is not None:
            self.drawn.noise.carry[:] = own.carry
        self.drawn.begin_chunk(chunk.number, random_actions=True)
        self._begins = frozenset(np.flatnonzero(sight(setting, own).t == 0).tolist())

    def begin_step(self, step: int) -> None:
        """Before the policy acts: where an episode begins, nothing is left of the exploration before."""
        if step in self._begins:
            self.drawn.noise.begin_episode()


@dataclass(slots=True)
class _Lane:
    """One lane while its actions are made."""

    setting: Setting
    stored: LaneChunk
    sight: Sight
    streams: _Streams
    places: NDArray[np.int64] = field(init=False)
    made: Rows = field(init=False)

    def __post_init__(self) -> None:
        self.places = steps_of(self.setting, self.stored)
        self.made = self.stored.rows[self.setting.geometry.frame_stack - 1 :].copy()

    @property
    def number(self) -> int:
        """Of the lane."""
        return self.stored.lane

    def absent(self, step: int) -> bool:
        """Whether the lane's agent was not there in a step."""
        return step < len(self.places) and bool(self.made["kind"][self.places[step]] == ABSENT)

    def put(self, step: int, actions: Arrays, place: int) -> None:
        """Write the action of a step: the policy's, or a random one."""
        if self.absent(step):
            return
        row, leaves = self.places[step], self.setting.geometry.acted
        lost = bool(self.made["kind"][row] == LOST)  # an action was drawn, and none is stored
        if self.made["transitions"][row] + lost <= self.setting.random_steps:
            value = self.streams.drawn.random_actions.sample()
            for leaf in () if lost else leaves:
                self.made[leaf.path][row] = np.asarray(leaf.of(value), leaf.dtype)
            return
        if lost:
            return
        for leaf in leaves:
            self.made[leaf.path][row] = actions[leaf.path][place]


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What the policies at hand would have done in a chunk, as `headrace.record.causes.Clues` asks for it."""

    actor: Actor
    setting: Setting
    chunk: GroupChunk
    lane: int
    """The one that is asked about."""
    version: int
    """Of the policy that acted."""
    policy_of: Callable[[int], Arrays | None]
    """Arrays of a policy, each on a 64-byte boundary; None: it is not at hand."""

    def acts(self, version: int) -> Rows | None:
        """Actions that policy would have chosen for the lane, [R]; None if it is not at hand."""
        return self.again(version)

    def acts_seeing(self, other: int) -> Rows | None:
        """Actions for another lane's observations instead of the lane's own; None if the policy is not at hand."""
        seen = sight(self.setting, self.chunk.lane(other))
        if len(seen.t) < len(steps_of(self.setting, self.chunk.lane(self.lane))):
            return None
        return self.again(self.version, sights={self.lane: seen})

    def again(self, version: int, **instead: Any) -> Rows | None:
        """The lane's rows from `act_again` with that policy; ``instead`` are its keywords."""
        if needs_policy(self.setting, self.chunk):
            arrays = self.policy_of(version)
            if arrays is None:
                return None
            self.actor.load(arrays)
        return act_again(self.actor, self.setting, self.chunk, **instead)[self.lane]
