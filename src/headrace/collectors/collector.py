"""Steps the environments of one group and writes what happens into its lanes.

The same object runs under every schedule: in the learner's process, or in a collector's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Actor
from headrace.collectors.restoring import Episodes, bring_back, not_restored
from headrace.collectors.streams import LaneStreams
from headrace.core import seeding
from headrace.core.errors import EnvironmentFault, EnvironmentRaised, HeadraceError, NonFiniteValue
from headrace.core.specs import assemble, handed_over
from headrace.envs.contract import ObservationCheck
from headrace.lanes.credits import Commit, LaneCommit
from headrace.lanes.derive import observe
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import INFO_KEYS, STEP
from headrace.telemetry.board import Activity, Slot

_ODD_KEYS = frozenset(INFO_KEYS)


def says_something(value: object) -> bool:
    """Whether a value in ``info`` is more than None, False, 0 or empty. Never asks an object of the user's."""
    if isinstance(value, np.ndarray | np.generic):
        return bool(value.any())
    if isinstance(value, bool | int | float | str | bytes | list | tuple | dict | set):
        return bool(value)
    return value is not None


@dataclass(frozen=True, slots=True)
class Group:
    """Which lanes a collector object steps, and what their random streams hang on."""

    number: int
    lanes: tuple[int, ...]
    seed: int
    """Of the run."""
    incarnation: int = 0
    """How often the group's random streams have been begun anew, because its collector was replaced."""
    random_steps: int = 0
    """Transitions per lane whose actions are uniformly random."""
    environment: str = "environment"
    """Name for messages."""
    cast: bool = False
    """Convert observations of another dtype instead of refusing them."""


def raised(error: Exception, call: str, environment: str, lane: int, step: int) -> HeadraceError:
    """What an environment raised, in our words; an error that is ours already says it itself.

    Args:
        error: What it raised.
        call: ``reset`` or ``step``.
        environment: Its name.
        lane: -1 in an evaluation.
        step: The lane's transition it was to be; for ``reset``, those before it.
    """
    if isinstance(error, HeadraceError):
        return error
    return EnvironmentRaised(
        f"{environment} {f'in lane {lane}' if lane >= 0 else 'in an evaluation'} raised {type(error).__name__} "
        f"in {call}()",
        error=f"{type(error).__name__}: {error}",
        **({"lane": lane} if lane >= 0 else {}),
        step=step,
        fix="see the traceback in the component's log; the environment must not raise in the middle of an episode",
    )


@dataclass(slots=True)
class _Lane:
    """One environment and its state between steps."""

    number: int
    env: gymnasium.Env[Any, Any]
    writer: LaneWriter
    streams: LaneStreams
    running: bool = False
    """Whether an episode is running."""


class PolicySource(Protocol):
    """Where a collector takes policies from: a `SnapshotReader`, or a record's."""

    version: int
    """Of the policy in use."""

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """All that acting needs, valid until the second `refresh` from now."""
        ...

    def refresh(self) -> bool:
        """Take the version that is to be used now; whether it is another one."""
        ...


class Collector:
    """The group's loop: observe, act, step, write; one chunk a call.

    Args:
        group: Which lanes.
        envs: One environment per lane, in the same order.
        block: The lanes.
        actor: The acting half of the algorithm.
        reader: Where new policies come from.
        slot: The component's place on the board.
        resume: Go on with the episodes that are running in the lanes; `restore` comes before `collect` then.
    """

    def __init__(
        self,
        group: Group,
        envs: Sequence[gymnasium.Env[Any, Any]],
        block: LaneBlock,
        actor: Actor,
        reader: PolicySource,
        slot: Slot,
        *,
        resume: bool = False,
    ) -> None:
        self.group = group
        self._block = block
        self._actor = actor
        self._reader = reader
        self._slot = slot
        g = block.geometry
        self._observation_space, self._action_space = envs[0].observation_space, envs[0].action_space
        self._check = ObservationCheck(self._observation_space, group.environment, cast=group.cast)
        self._lanes = [self._lane(number, env, resume) for number, env in zip(group.lanes, envs, strict=True)]
        self._windows = block.windows(g.frame_stack)
        self._places = np.zeros(len(envs), np.int64)
        self._t = np.zeros(len(envs), np.int64)
        self._finite_obs = [leaf.path for leaf in g.observation if leaf.dtype.kind == "f"]

    def _lane(self, number: int, env: gymnasium.Env[Any, Any], resume: bool) -> _Lane:
        streams = LaneStreams(self.group.seed, number, self.group.incarnation, self._actor, self._action_space)
        writer = LaneWriter(self._block, number, resume=resume)
        return _Lane(number, env, writer, streams, running=writer.t > 0)

    def restore(self, episodes: Episodes, stopping: Callable[[], bool]) -> None:
        """Bring environments and exploration to where the lanes' rows end; all slots of a lane's carry are the same.

        Args:
            episodes: Of the lanes in which one is running.
            stopping: Asked between steps; true ends it early, and no step may follow. The lanes are as they were.

        Raises:
            EpisodeNotRestored: An environment did something else than what is stored, or too little is stored. Nothing
                was written.
        """
        for lane in self._lanes:
            lane.streams.noise.carry[:] = self._block.carry[lane.number, 0]
            if not lane.running:
                continue
            if lane.number not in episodes:
                raise not_restored(lane.number, problem="its first rows are no longer kept")
            rows, seed = episodes[lane.number], self.group.seed
            bring_back(lane.env, rows, lane.number, seed, self._check, self._slot, stopping)

    def collect(self, chunk: int, steps: int, stopping: Callable[[], bool] | None = None) -> Commit:
        """Collect one chunk.

        Args:
            chunk: Its number in the group.
            steps: Per lane.
            stopping: Asked between steps; true ends the chunk early.

        Returns:
            The commit; the rows are complete and finite.

        Raises:
            EnvironmentFault: The environment broke its contract. Rows before the fault are in the lanes.
        """
        begun = self._begin(chunk)
        try:
            for _ in range(steps):
                if stopping is not None and stopping():
                    break
                self._step()
        except EnvironmentFault:
            self._refuse_non_finite(begun)  # the first bad value is to blame, not what it led to
            raise
        self._refuse_non_finite(begun)
        slot = chunk % self._block.geometry.carry_slots
        for lane in self._lanes:
            self._block.carry[lane.number, slot] = lane.streams.noise.carry
        return Commit(
            self.group.incarnation, self.group.number, chunk, self._reader.version, last=False,
            lanes=tuple(
                LaneCommit(
                    lane.writer.row, lane.writer.transitions - transitions,
                    self._block.checksum(lane.number, row, lane.writer.row),
                )
                for lane, (row, transitions) in zip(self._lanes, begun, strict=True)
            ),
        )  # fmt: skip

    def repeat(self, chunk: int, transitions: Sequence[int]) -> None:
        """Make a part of a chunk again that a collector which is gone had made.

        Args:
            chunk: Its number.
            transitions: Of each lane; the collector may have been killed between two lanes of a step.
        """
        begun = self._begin(chunk)
        ends = [before + count for (_, before), count in zip(begun, transitions, strict=True)]
        while missing := [lane.writer.transitions < end for lane, end in zip(self._lanes, ends, strict=True)]:
            if not any(missing):
                return
            self._step(missing)

    def _begin(self, chunk: int) -> list[tuple[int, int]]:
        """Take the newest policy, put every random stream to the chunk's beginning.

        Returns:
            Row number and transitions of each lane.
        """
        group = self.group
        if self._reader.refresh():
            self._actor.load(self._reader.arrays)
        seeding.seed_global_generators(group.seed, "global", group.number, group.incarnation, chunk)
        for lane in self._lanes:
            lane.streams.begin_chunk(chunk, random_actions=lane.writer.transitions < group.random_steps)
            self._block.chunk_begun[lane.number] = chunk, lane.writer.transitions
            self._block.incarnation[lane.number] = group.incarnation
        return [(lane.writer.row, lane.writer.transitions) for lane in self._lanes]

    def _step(self, wanted: Sequence[bool] | None = None) -> None:
        """One step of every lane, or of those that are wanted."""
        slot, block = self._slot, self._block
        for place, lane in enumerate(self._lanes):
            if not lane.running:
                self._reset(lane)
            self._places[place] = block.place(lane.number, lane.writer.row - block.geometry.first_row)
            self._t[place] = lane.writer.t
        slot.enter(Activity.POLICY)
        actions = self._actor.act(self._observations(), [lane.streams.noise for lane in self._lanes])
        for place, lane in enumerate(self._lanes):
            if wanted is not None and not wanted[place]:
                continue
            if lane.writer.transitions < self.group.random_steps:
                action = self._random_action(lane)
            else:
                action = [handed_over(actions[leaf.path][place]) for leaf in block.geometry.action]
            self._step_lane(lane, action)

    def _observations(self) -> dict[str, NDArray[Any]]:
        """What the policy sees, by the function that also makes the batches it is trained on."""
        g = self._block.geometry
        rows = self._windows[self._places].view(g.dtype).reshape(len(self._places), g.frame_stack)
        return observe(rows, g.observation, self._t)

    def _random_action(self, lane: _Lane) -> list[Any]:
        value = lane.streams.random_actions.sample()
        return [np.asarray(leaf.of(value), leaf.dtype)[()] for leaf in self._block.geometry.action]

    def _step_lane(self, lane: _Lane, action: list[Any]) -> None:
        writer = lane.writer
        writer.intend(action)  # before the board says so: whoever finds this step unfinished finds what it was
        self._slot.enter(Activity.ENV_STEP, lane.number, writer.transitions)
        leaves = self._block.geometry.action
        value = action[0] if not leaves[0].keys else assemble(
            self._action_space, {leaf.path: part for leaf, part in zip(leaves, action, strict=True)}, "action"
        )  # fmt: skip
        info: Any  # a dict, says Gymnasium; nobody checks it
        try:
            *returned, info = lane.env.step(value)
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise raised(error, "step", self.group.environment, lane.number, writer.transitions + 1) from error
        if info and isinstance(info, dict) and not _ODD_KEYS.isdisjoint(info):
            self._count_odd(lane.number, info)
        obs, reward, ended = self._check.transition(returned, lane.number, writer.transitions + 1)
        if writer.one_array_each and type(obs) is np.ndarray:
            writer.step_arrays(action[0], reward, ended, obs, self._reader.version)
        else:
            writer.step(action, reward, ended, self._parts(obs), self._reader.version)
        if ended[0] or ended[1]:
            lane.running = False

    def _count_odd(self, lane: int, info: Mapping[str, Any]) -> None:
        """Count keys by which the environment says that it failed."""
        for place, key in enumerate(INFO_KEYS):
            if says_something(info.get(key)):
                self._block.info_counts[lane, place] += 1

    def _reset(self, lane: _Lane) -> None:
        writer = lane.writer
        self._slot.enter(Activity.ENV_RESET, lane.number, writer.transitions)
        seed = seeding.integer(self.group.seed, "environment", lane.number, writer.episode + 1)
        try:
            obs, _ = lane.env.reset(seed=seed)
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise raised(error, "reset", self.group.environment, lane.number, writer.transitions) from error
        writer.begin_episode(self._parts(self._check.check(obs, lane.number, writer.transitions)))
        lane.streams.noise.begin_episode()
        lane.running = True

    def _parts(self, obs: Any) -> list[Any]:
        """A checked observation as numpy values per leaf."""
        leaves = self._block.geometry.observation
        if not leaves[0].keys and type(obs) is np.ndarray:
            return [obs]
        return [np.asarray(leaf.of(obs), leaf.dtype) for leaf in leaves]

    def _refuse_non_finite(self, begun: Sequence[tuple[int, int]]) -> None:
        """Look at all rows of the chunk at once: no NaN is committed, and the first one is named."""
        for lane, (start, _) in zip(self._lanes, begun, strict=True):
            row = start
            for rows in self._block.pieces(lane.number, start, lane.writer.row + lane.running):
                bad = []
                # The observation of a row came before its reward, and may well be why that is bad too.
                for order, path in enumerate((*self._finite_obs, "reward")):
                    values = rows[path] if path != "reward" else rows[path][: lane.writer.row - row]
                    if not np.isfinite(values).all():
                        bad.append((_first_bad(values), order, path, values))
                if bad:
                    _, _, path, values = min(bad, key=lambda found: found[:2])
                    raise self._non_finite(lane, path, values, rows, row)
                row += len(rows)

    def _non_finite(
        self, lane: _Lane, path: str, values: NDArray[Any], rows: NDArray[np.void], first: int
    ) -> NonFiniteValue:
        """The error for the first bad value; ``first`` is the number of the first of the rows."""
        bad = _first_bad(values)
        if path == "reward":
            call, step = "step", int(rows["transitions"][bad])
        else:
            # An observation is stored in the row after the step that returned it.
            before = self._block.rows[lane.number, (first + bad - 1) % self._block.geometry.ring_rows]
            call, step = ("step" if before["kind"] == STEP else "reset"), int(before["transitions"])
        return NonFiniteValue(
            f"{self.group.environment} in lane {lane.number} returned a value that is not finite from {call}()",
            field=path,
            expected="finite numbers",
            found=values[bad],
            lane=lane.number,
            step=step,
            fix="find out why the environment returns it; nothing of this chunk from here on was stored",
        )

    def close(self) -> None:
        """Close the environments and drop all views of the shared memory."""
        for lane in self._lanes:
            self._slot.enter(Activity.ENV_CLOSE, lane.number)
            lane.env.close()
            lane.writer.release()
        del self._windows


def _first_bad(values: NDArray[Any]) -> int:
    """The first row, [R, ...], with a value that is not finite; there is one."""
    return int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[0])
