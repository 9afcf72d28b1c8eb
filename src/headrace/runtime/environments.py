"""The environments of a process whose workers step them: how they are made, and what follows when one is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from headrace.collectors.remote import RemoteEnvs
from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import EnvironmentFault, EnvironmentLost, EnvironmentRaised
from headrace.envs.building import environment_name
from headrace.envs.contract import ObservationCheck
from headrace.lanes.lane import LaneBlock
from headrace.lanes.replay import LaneBooks
from headrace.runtime.payloads import Basics, EnvSpaces, GroupBeginning, build_lane_environment, group_lanes
from headrace.runtime.reproducers import reproducer, running_steps, write_reproducer
from headrace.supervision.losses import FaultBudget
from headrace.supervision.messages import Report
from headrace.supervision.spec import Exited
from headrace.telemetry.board import Activity, Slot
from headrace.vector.env import VectorEnv

_OWN_FAULTS = frozenset({"raised", "contract", "not-finite"})
"""Kinds of faults in which an environment has come back, with something wrong."""
_REPRODUCERS = 8
"""Of each lane's faults the first so many leave a file."""


def remote_environments(basics: Basics, spaces: EnvSpaces, lanes: Mapping[int, int], slot: Slot) -> RemoteEnvs | None:
    """The environments of these lanes in workers of this process, if the run has them there.

    Args:
        basics: Of the run.
        spaces: Of one environment.
        lanes: Incarnation of the random streams of each lane.
        slot: The component's place on the board.

    Raises:
        EnvironmentFault: One could not be built.
    """
    config = basics.config
    if not config.env.workers:
        return None
    slot.enter(Activity.ENV_CONSTRUCT)
    limits = config.deadlines
    vector = VectorEnv(
        [partial(_build, basics, lane, incarnation, slot.id) for lane, incarnation in lanes.items()],
        workers=config.env.workers,
        threads_per_worker="auto" if config.env.workers == "auto" else 1,
        step_timeout_s=limits.step_s,
        reset_timeout_s=limits.reset_s,
        start_timeout_s=limits.start_s,
        close_timeout_s=0.5 * limits.stop_s,
        on_fault="raise",  # what follows a fault is decided here, and on record
        autoreset_mode=AutoresetMode.DISABLED,
        cast_observations=False,  # but by `_Cast`, where it is asked for
    )
    return RemoteEnvs(vector, tuple(lanes), spaces.observation, spaces.action, slot)


def _build(basics: Basics, lane: int, incarnation: int, component: str) -> gymnasium.Env[Any, Any]:
    """One lane's environment, in the process that steps it."""
    env = build_lane_environment(basics, lane, incarnation, component)
    if not basics.config.env.cast_observations:
        return env
    name = environment_name(basics.config.env, basics.env_factory)
    return _Cast(env, ObservationCheck(env.observation_space, name, cast=True), lane)


class _Cast(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Converts observations before anybody refuses them."""

    def __init__(self, env: gymnasium.Env[Any, Any], check: ObservationCheck, lane: int) -> None:
        super().__init__(env)
        self._check, self._lane = check, lane

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._check.check(obs, self._lane, 0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        return self._check.check(obs, self._lane, 0), *rest


def cast(text: str) -> Report:
    """What is told of observations that are converted (``env.cast_observations``), a sentence."""
    return Report("cast", {"severity": "warning", "text": text})


@contextmanager
def lent_environments(
    basics: Basics, spaces: EnvSpaces, beginnings: Mapping[int, GroupBeginning], block: LaneBlock, slot: Slot,
    tell: Callable[[Report], None],
) -> Iterator[dict[int, GroupBeginning]]:  # fmt: skip
    """Beginnings of groups whose environments, if workers of this process step them, are there and looked after.

    Who steps them here tells what is converted of their observations; what workers convert is told by the probe alone.

    Args:
        basics: Of the run.
        spaces: Of one environment.
        beginnings: By group.
        block: The lanes.
        slot: The component's place on the board.
        tell: Brings a report to the supervisor.

    Raises:
        EnvironmentFault: One could not be built.
    """
    groups = beginnings.items()
    lanes = {lane: begin.incarnation for group, begin in groups for lane in group_lanes(basics.config, group)}
    remote = remote_environments(basics, spaces, lanes, slot)
    if remote is None:
        yield {group: replace(begin, on_cast=lambda text: tell(cast(text))) for group, begin in groups}
        return
    with closing(remote):
        desk = FaultDesk(basics, slot.id, lanes, block, tell)
        yield {group: replace(begin, remote=remote, on_lost=desk) for group, begin in groups}


class FaultDesk:
    """Where a process that acts brings an environment that was lost: it is told, what led to it is kept, and counted.

    Args:
        basics: Of the run.
        component: Id of the process.
        incarnations: Of the random streams of each lane.
        block: The lanes.
        tell: Brings a report to the supervisor.
        clock: Monotonic.
    """

    def __init__(
        self,
        basics: Basics,
        component: str,
        incarnations: Mapping[int, int],
        block: LaneBlock,
        tell: Callable[[Report], None],
        clock: Clock | None = None,
    ) -> None:
        supervision = basics.config.supervision
        self._basics = basics
        self._component = component
        self._incarnations = incarnations
        self._block = block
        self._tell = tell
        self._clock = clock or MonotonicClock()
        degrade = supervision.when_spent == "degrade"
        allowed = supervision.lane_faults - 1 if degrade else supervision.max_restarts
        self._budget = FaultBudget(allowed, supervision.restart_window_s)
        self._kept: dict[int, int] = {}

    def __call__(self, error: EnvironmentFault) -> None:
        """An environment was lost; its lane is as it was when it happened.

        Args:
            error: With ``lane``, ``step`` and ``call`` among its facts.

        Raises:
            EnvironmentFault: It may not be replaced any more, or the configuration does not want it to be.
        """
        facts = error.facts
        lane, kind = int(str(facts["lane"])), str(facts.get("kind", "contract"))
        if kind in _OWN_FAULTS and self._basics.config.env.on_fault == "raise":
            raise EnvironmentRaised(error.what, fix=error.fix, **facts) if kind == "raised" else error
        count = self._budget.faults(lane)
        if kind != "lost-with-worker":  # that was another one's
            count = self._budget.note(lane, self._clock.now())
        spent = count > self._budget.allowed
        path = self._keep(error, lane, kind)
        self._tell(
            Report(
                "environment_lost",
                {
                    "how": kind, "lane": lane, "call": facts["call"], "step": facts["step"],
                    "problem": facts.get("problem", error.what), "error": str(error), "cut": self._cut(lane, error),
                    "faults": count, "allowed": self._budget.allowed, "replaced": not spent, "file": path,
                },
            )
        )  # fmt: skip
        if spent:
            raise self._spent(error, lane, count)

    def _cut(self, lane: int, error: EnvironmentFault) -> int | None:
        """Steps of the episode that ends with it; None: it was in a reset, so none does."""
        if error.facts["call"] == "reset":
            return None
        return running_steps(self._block, lane)

    def _spent(self, error: EnvironmentFault, lane: int, count: int) -> EnvironmentLost:
        window_s = self._basics.config.supervision.restart_window_s
        times = "once" if count == 1 else f"{count} times"
        return EnvironmentLost(
            f"the environment of lane {lane} failed {times} within {window_s:g} s, and is not replaced again",
            last_time=error.what,
            **error.facts,
            fix=error.fix,
        )

    def _keep(self, error: EnvironmentFault, lane: int, kind: str) -> str | None:
        """Write what led to it; the file's place in the run directory, if there is one."""
        number = self._kept[lane] = self._kept.get(lane, 0) + 1
        if kind not in {"hung", "died", "raised"} or number > _REPRODUCERS:
            return None
        facts = error.facts
        event = Exited(
            id=self._component,
            exit_code=int(str(facts.get("exit_code", -9))) if kind == "died" else 0,
            how=error.what,
            error=error if kind == "raised" else None,
            stalled=error.what if kind == "hung" else None,
            call=str(facts.get("phase", facts["call"])),  # it was asked for a reset, and was not built yet
            lane=lane,
            step=int(str(facts["step"])),
            incarnation=self._incarnations[lane],
        )
        found = reproducer(event, self._basics, self._block, LaneBooks(self._block), self._incarnations[lane])
        if found is None:
            return None
        path = write_reproducer(self._basics.board.parent / "reproducers", found, number)
        return None if path is None else f"{path.parent.name}/{path.name}"
