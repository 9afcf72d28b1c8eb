"""Steps the environments of one group and writes what happens into its lanes.

The same object runs under every schedule: in the learner's process, or in a collector's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Actor, Arrays
from headrace.collectors.copies import copies_of, stand_in
from headrace.collectors.finite import refuse_non_finite
from headrace.collectors.remote import RemoteEnv
from headrace.collectors.restoring import Episodes, bring_back, kept_rows
from headrace.collectors.stepping import Group, SteppedLane, refused
from headrace.collectors.streams import LaneStreams
from headrace.core import seeding
from headrace.core.errors import EnvironmentFault, NonFiniteValue, ObservationMismatch
from headrace.core.specs import handed_over
from headrace.envs.agents import Seat
from headrace.envs.contract import ObservationCheck
from headrace.lanes.credits import Commit, LaneCommit
from headrace.lanes.derive import observe
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.telemetry.board import Activity, Slot

Course = Generator[None, None, Commit]
"""A chunk while it is collected: goes on until it needs environments in other processes, see `Collector.awaited`."""
LostSteps = Collection[tuple[int, int]]
"""(lane, number of the step in the chunk) of steps that environments did not come back from, as a record has them."""
Environment = gymnasium.Env[Any, Any]


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
        envs: One environment per lane, in the same order; here all of them, or all in other processes (`RemoteEnv`).
        block: The lanes.
        actor: The acting half of the algorithm.
        reader: Where new policies come from.
        slot: The component's place on the board.
        resume: Go on with the episodes that are running in the lanes; `restore` comes before `collect` then.
    """

    def __init__(
        self,
        group: Group,
        envs: Sequence[Environment],
        block: LaneBlock,
        actor: Actor,
        reader: PolicySource,
        slot: Slot,
        *,
        resume: bool = False,
    ) -> None:
        self.group = group
        self.on_lost: Callable[[EnvironmentFault], None] | None = None
        """Told of each environment in another process that was lost, while its lane is as it was then. What it raises
        ends the collector. None: the first one does."""
        self.rebuild: Callable[[int], Environment] | None = None
        """Makes the environment of a lane anew, for a replay of a run in which it was lost."""
        self.on_cast: Callable[[str], None] | None = None
        """Told when the first observation is converted, in a sentence."""
        self._block = block
        self._actor = actor
        self._reader = reader
        self._slot = slot
        self._check = ObservationCheck(
            envs[0].observation_space, group.environment, cast=group.cast, on_cast=self._tell_cast
        )
        self.remote = envs[0].owner if isinstance(envs[0], RemoteEnv) else None
        """Whose environments these are, if workers step them."""
        self._lanes = [self._lane(number, env, resume) for number, env in zip(group.lanes, envs, strict=True)]
        self._copies = copies_of(self._lanes, group, slot) if isinstance(envs[0], Seat) else []
        self._windows = block.windows(block.geometry.frame_stack)
        self._places = np.zeros(len(envs), np.int64)
        self._t = np.zeros(len(envs), np.int64)

    def _lane(self, number: int, env: Environment, resume: bool) -> SteppedLane:
        streams = LaneStreams(self.group.seed, number, self.group.incarnation, self._actor, env.action_space)
        writer = LaneWriter(self._block, number, resume=resume)
        return SteppedLane(self.group, number, env, writer, streams, self._check, self._slot, self._block)

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
        for copy in self._copies:
            copy.restore(episodes, self._check, stopping)
        for lane in () if self._copies else self._lanes:
            if not lane.running:
                continue
            rows, seed = kept_rows(episodes, lane.number), self.group.seed
            bring_back(lane.env, rows, lane.number, seed, self._check, self._slot, stopping)

    def collect(
        self, chunk: int, steps: int, stopping: Callable[[], bool] | None = None, lost: LostSteps = frozenset()
    ) -> Commit:
        """Collect one chunk at one go. Arguments, returns and raises as `course`."""
        return completed(self.course(chunk, steps, stopping, lost))

    def course(
        self, chunk: int, steps: int, stopping: Callable[[], bool] | None = None, lost: LostSteps = frozenset()
    ) -> Course:
        """Collect one chunk, and stop wherever environments in other processes have to come back first.

        Whoever goes on before they are back waits for them there.

        Args:
            chunk: Its number in the group.
            steps: Of every lane; each adds a transition, or a row of kind LOST where its environment was lost.
            stopping: Asked between steps; true ends the chunk early.
            lost: Steps in which the environment is not asked, but made anew: in the run it was lost there.

        Returns:
            The commit; the rows are complete and finite.

        Raises:
            EnvironmentFault: The environment broke its contract. Rows before the fault are in the lanes.
        """
        begun = self._begin(chunk)
        try:
            for number in range(steps):
                if stopping is not None and stopping():
                    break
                yield from self._step(number, lost)
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
                    self._block.checksum(lane.number, row, lane.writer.row), running,
                )
                for lane, (row, transitions), running in zip(self._lanes, begun, self._running(), strict=True)
            ),
        )  # fmt: skip

    def _running(self) -> list[bool]:
        """Whether an episode of each lane's environment is running."""
        if self._copies:
            return [copy.running for copy in self._copies for _ in copy.lanes]
        return [lane.running for lane in self._lanes]

    def repeat(self, chunk: int, steps: Sequence[int], lost: LostSteps = frozenset()) -> None:
        """Make a part of a chunk again that a collector which is gone had made.

        Args:
            chunk: Its number.
            steps: Of each lane; the collector may have been killed between two lanes of a step.
            lost: As in `course`.
        """
        self._begin(chunk)
        for number in range(max(steps)):
            for _ in self._step(number, lost, [number < count for count in steps]):
                pass

    @property
    def awaited(self) -> list[RemoteEnv]:
        """Environments of the group that are at work in other processes."""
        return [env for lane in self._lanes if (env := lane.awaited) is not None]

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
            lane.streams.begin_chunk(chunk, random_actions=lane.acts_at_random)
            self._block.chunk_begun[lane.number] = chunk, lane.writer.row
            self._block.incarnation[lane.number] = group.incarnation
        return [(lane.writer.row, lane.writer.transitions) for lane in self._lanes]

    def _step(self, number: int, lost: LostSteps, wanted: Sequence[bool] | None = None) -> Generator[None]:
        """One step of every lane, or of those that are wanted; its number in the chunk."""
        block, version = self._block, self._reader.version
        if self._copies:
            self._step_copies(version, wanted)
            return
        idle = [lane for lane in self._lanes if not lane.running]
        if idle:
            yield from self._reset(idle)
        actions = self._act()
        for place, lane in enumerate(self._lanes):
            if wanted is not None and not wanted[place]:
                continue
            if lane.acts_at_random:
                action = lane.random_action()
            else:
                action = [handed_over(actions[leaf.path][place]) for leaf in block.geometry.acted]
            if lost and (lane.number, number) in lost:
                self._renew(lane)
            elif self.remote is None:
                lane.step(action, version)
            else:
                lane.send_step(action)
        if self.remote is not None:
            self.remote.flush()
            yield
            self._finish(version)

    def _act(self) -> Arrays:
        """What the policy says to the newest observation of every lane, [N, ...] per leaf."""
        block = self._block
        for place, lane in enumerate(self._lanes):
            self._places[place] = block.place(lane.number, lane.writer.row - block.geometry.first_row)
            self._t[place] = lane.writer.t
        if self._copies:
            stand_in([place for place, lane in enumerate(self._lanes) if not lane.running], self._places, self._t)
        self._slot.enter(Activity.POLICY)
        try:
            # All lanes at once, always: another number of rows may round differently.
            return self._actor.act(self._observations(), [lane.streams.noise for lane in self._lanes])
        except (ObservationMismatch, NonFiniteValue) as error:  # of a row of what it was shown
            if "row" in error.facts:
                lane = self._lanes[int(str(error.facts.pop("row")))]
                error.place(environment=self.group.environment, lane=lane.number, step=lane.writer.transitions)
            raise

    def _step_copies(self, version: int, wanted: Sequence[bool] | None) -> None:
        """One step of every copy, or of the lanes among theirs that are wanted."""
        for copy in self._copies:
            if not copy.running:
                copy.reset()
        actions = self._act()
        start = 0
        for copy in self._copies:
            stop = start + len(copy.lanes)
            chosen = [
                lane.random_action()
                if lane.running and lane.acts_at_random
                else [handed_over(actions[leaf.path][start + place]) for leaf in self._block.geometry.acted]
                for place, lane in enumerate(copy.lanes)
            ]
            some = None if wanted is None else wanted[start:stop]
            if some is None or any(some):
                copy.step(chosen, version, some)
            start = stop

    def _finish(self, version: int) -> None:
        """Take what environments in other processes have come to, and close the episodes of those that were lost."""
        for lane in self._lanes:
            try:
                lane.finish_step(version)
            except EnvironmentFault as error:
                self._tell_lost(refused(error, "step", lane))
                lane.lose(version)

    def _reset(self, idle: list[SteppedLane]) -> Generator[None]:
        """Begin an episode in lanes that have none; where that fails in another process, in its replacement."""
        while idle:
            if self.remote is not None:
                for lane in idle:
                    lane.send_reset()
                self.remote.flush()
                yield
            again = []
            for lane in idle:
                try:
                    lane.reset()
                except EnvironmentFault as error:
                    self._tell_lost(refused(error, "reset", lane))
                    again.append(lane)
            idle = again

    def _tell_cast(self, text: str) -> None:
        if self.on_cast is not None:
            self.on_cast(text)

    def _tell_lost(self, error: EnvironmentFault) -> None:
        if self.remote is None or self.on_lost is None:
            raise error
        self.on_lost(error)

    def _renew(self, lane: SteppedLane) -> None:
        """Do what the run did when it lost the lane's environment in this step."""
        assert self.rebuild is not None, "only a replay knows beforehand"
        lane.env.close()
        lane.env = self.rebuild(lane.number)
        lane.lose(self._reader.version)

    def _observations(self) -> dict[str, NDArray[Any]]:
        """What the policy sees, by the function that also makes the batches it is trained on."""
        g = self._block.geometry
        rows = self._windows[self._places].view(g.dtype).reshape(len(self._places), g.frame_stack)
        return observe(rows, g.observation, self._t)

    def _refuse_non_finite(self, begun: Sequence[tuple[int, int]]) -> None:
        stretches = (
            (lane.number, start, lane.writer.row, lane.running)
            for lane, (start, _) in zip(self._lanes, begun, strict=True)
        )
        refuse_non_finite(self._block, stretches, self.group.environment)

    def close(self) -> None:
        """Close the environments and drop all views of the shared memory."""
        for lane in self._lanes:
            lane.close()
        del self._windows


def completed(course: Course) -> Commit:
    """The commit of a course that is followed to its end at one go."""
    while True:
        try:
            next(course)
        except StopIteration as end:
            commit: Commit = end.value
            return commit


def followed(courses: Sequence[tuple[Collector, Course]]) -> list[Commit]:
    """The commits of courses, in their order; while one waits for environments, those of other collectors get on."""
    commits: dict[int, Commit] = {}
    while len(commits) < len(courses):
        first: dict[Collector, int] = {}
        for place, (collector, _) in enumerate(courses):
            if place not in commits:
                first.setdefault(collector, place)  # of one collector, each has to end before the next begins
        ready = [place for collector, place in first.items() if not collector.awaited]
        if not ready:
            wait_for_any(list(first))
        for place in ready:
            try:
                next(courses[place][1])
            except StopIteration as end:
                commits[place] = end.value
    return [commits[place] for place in range(len(courses))]


def wait_for_any(collectors: Iterable[Collector]) -> bool:
    """Wait, for a moment, until one of them may get on; whether there is anything to wait for."""
    sets = [awaited for collector in collectors if (awaited := collector.awaited)]
    if sets:
        sets[0][0].owner.wait(sets)
    return bool(sets)
