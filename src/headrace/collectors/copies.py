"""Copies of environments of many agents, each agent in a lane of its own: all of a copy step at once.

In each step of its group a lane either makes a transition, or its agent was not there and it has a row of kind ABSENT. So
the lanes of a copy have as many steps as one another, whoever comes and goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.collectors.restoring import Episodes, bring_back_agents, kept_rows
from headrace.collectors.stepping import Group, SteppedLane, raised
from headrace.core import seeding
from headrace.core.errors import EnvironmentFault
from headrace.envs.agents import ParallelCopy, Seat
from headrace.envs.contract import ObservationCheck
from headrace.telemetry.board import Activity, Slot


class AgentLanes:
    """One copy and the lanes of its agents.

    Args:
        copy: The environment.
        lanes: One per agent, in the order of its agents.
        seed: Of the run.
        environment: Its name, for messages.
        slot: The component's place on the board.
    """

    def __init__(
        self, copy: ParallelCopy, lanes: Sequence[SteppedLane], seed: int, environment: str, slot: Slot
    ) -> None:
        self.lanes = list(lanes)
        self._copy = copy
        self._seed = seed
        self._environment = environment
        self._slot = slot
        self.running = False
        """Whether an episode of the copy is running."""

    @property
    def first(self) -> SteppedLane:
        """The lane by which the copy is told."""
        return self.lanes[0]

    @property
    def episode(self) -> int:
        """Number of the newest episode of the copy; -1 before the first."""
        return max(lane.writer.episode for lane in self.lanes)

    def reset(self) -> None:
        """Begin the copy's next episode, in which some agents may not be there yet.

        Raises:
            EnvironmentFault: The environment raised, or broke its contract.
        """
        number, first = self.episode + 1, self.first
        steps = first.writer.transitions
        self._slot.enter(Activity.ENV_RESET, first.number, steps)
        try:
            there = self._copy.reset(seeding.integer(self._seed, "environment", first.number, number))
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise self._told(error, "reset", steps) from error
        for agent, lane in enumerate(self.lanes):
            if agent in there:
                lane.begin(there[agent], number)
            else:
                lane.writer.begin_absent(number)
        self.running = True

    def restore(self, episodes: Episodes, check: ObservationCheck, stopping: Callable[[], bool]) -> None:
        """Bring the copy to where its lanes' rows end, if an episode of it is running.

        Args:
            episodes: Of every lane of a copy in which one is. Its lanes' rows alone do not tell: those who are there may
                have come in the very last step.
            check: Of the environment's observations.
            stopping: Asked between steps; true ends it early, and no step may follow.

        Raises:
            EpisodeNotRestored: The environment did something else than what is stored, or too little is stored.
        """
        if not any(lane.running or lane.number in episodes for lane in self.lanes):
            return
        rows = {agent: kept_rows(episodes, lane.number) for agent, lane in enumerate(self.lanes)}
        joined = bring_back_agents(self._copy, rows, self.first.number, self._seed, check, self._slot, stopping)
        for agent, obs in joined.items():
            self.lanes[agent].begin(obs, self.episode)
        self.running = True

    def step(self, actions: Sequence[list[Any]], version: int, wanted: Sequence[bool] | None = None) -> None:
        """One step of the copy.

        Args:
            actions: Per lane, per leaf; those of agents that are not there are not used.
            version: Of the policy that chose them.
            wanted: Lanes that are written; None: all of them. After a step with others none may follow.

        Raises:
            EnvironmentFault: The environment raised, or broke its contract. Nothing was stored but the actions.
        """
        there = [agent for agent, lane in enumerate(self.lanes) if lane.running]
        written = range(len(self.lanes)) if wanted is None else [agent for agent, want in enumerate(wanted) if want]
        for agent in there:
            if agent in written:
                self.lanes[agent].writer.intend(actions[agent])
        first = self.lanes[there[0]]
        at = first.writer.transitions
        self._slot.enter(Activity.ENV_STEP, first.number, at)
        try:
            turn = self._copy.step({agent: self.lanes[agent].assembled(actions[agent]) for agent in there})
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise self._told(error, "step", at + 1) from error
        for agent in written:
            lane = self.lanes[agent]
            if agent in turn.returned:
                lane.store(actions[agent], turn.returned[agent], turn.infos.get(agent), version)
            else:
                lane.writer.absent(version)
            if agent in turn.joined:
                lane.begin(turn.joined[agent], self.episode)
        self.running = not turn.over

    def _told(self, error: Exception, call: str, step: int) -> Exception:
        if isinstance(error, EnvironmentFault):
            error.place(lane=self.first.number, step=step)
        return raised(error, call, self._environment, self.first.number, step)


def copies_of(lanes: Sequence[SteppedLane], group: Group, slot: Slot) -> list[AgentLanes]:
    """The copies that lanes with seats belong to, each with its own; in the order of the lanes."""
    found: dict[int, tuple[ParallelCopy, list[SteppedLane]]] = {}
    for lane in lanes:
        assert isinstance(lane.env, Seat), "of a group either all lanes are agents' or none"
        found.setdefault(id(lane.env.copy), (lane.env.copy, []))[1].append(lane)
    return [AgentLanes(copy, own, group.seed, group.environment, slot) for copy, own in found.values()]


def stand_in(away: Sequence[int], *shown: NDArray[Any]) -> None:
    """Show lanes whose agent is not there what the first lane that has one is shown.

    All lanes act at once, and what those do is not used; but it has to be something that one can act on.

    Args:
        away: Places of those lanes.
        shown: Arrays [N, ...] with a place for each lane; changed.
    """
    if not away:
        return
    there = np.setdiff1d(np.arange(len(shown[0])), away)
    if len(there):
        for array in shown:
            array[list(away)] = array[there[0]]
