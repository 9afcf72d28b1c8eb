"""Notices that a run as a whole stands still although nobody in it misses a deadline, and says who holds it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from headrace.core.clock import monotonic_ns
from headrace.core.errors import ComponentStalled
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.resources import activity_limits
from headrace.telemetry.blame import Blame, blame
from headrace.telemetry.board import SlotView
from headrace.telemetry.looks import WORK, Look, Plan

_LOOK_EVERY_NS = 1_000_000_000
_AWAY_NS = 30_000_000_000
"""Between two looks; their supervisor takes them every second."""
_LOOKS_KEPT = 5


class StandstillWatch:
    """Looks at the board now and then; decides by counters alone whether a run gets on.

    Args:
        limit_s: Seconds without any work after which the run is given up.
        plan: What one may expect of the run.
        views: What every component is doing.
        now_ns: The time, on the board's clock.
    """

    def __init__(
        self,
        limit_s: float,
        plan: Plan,
        views: Callable[[], Sequence[SlotView]],
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._limit_s = limit_s
        self._plan = plan
        self._views = views
        self._now_ns = now_ns
        self._looks: deque[Look] = deque(maxlen=_LOOKS_KEPT)
        self._work = -1
        self._moved_ns = now_ns()

    def look(self) -> ComponentStalled | None:
        """Look, at most once a second.

        Returns:
            The error that ends the run, once nothing has been done in it for the whole limit.
        """
        now_ns = self._now_ns()
        since_ns = now_ns - self._looks[-1].now_ns if self._looks else _LOOK_EVERY_NS
        if since_ns < _LOOK_EVERY_NS:
            return None
        if since_ns > _AWAY_NS:  # all was frozen together, and gets time to move on
            self._moved_ns += since_ns
        views = self._views()
        self._looks.append(Look(now_ns, views))
        work = sum(view.counters[name] for view in views for name in WORK)
        if work != self._work:
            self._work, self._moved_ns = work, now_ns
        still_s = (now_ns - self._moved_ns) / 1e9
        return self._given_up(still_s) if still_s > self._limit_s else None

    def verdict(self) -> Blame | None:
        """Who holds the run up, as far as its newest looks tell; None if nobody does."""
        found = blame([*self._looks, Look(self._now_ns(), self._views())], self._plan)
        return None if found.condition.well else found

    def _given_up(self, still_s: float) -> ComponentStalled:
        found = self.verdict()
        still = f"nothing was collected, learned or evaluated for {still_s:.0f} s"
        if found is None:
            return ComponentStalled(
                f"the run stands still: {still}",
                limit=f"{self._limit_s:g} s",
                fix="see what every component was doing: `headrace doctor RUN`",
            )
        facts = {f"evidence {number}": line for number, line in enumerate(found.evidence, 1)}
        return ComponentStalled(f"{found.sentence}; {still}", **facts, fix=found.remedy or "see `headrace doctor RUN`")


def watch_for(config: ExperimentConfig, views: Callable[[], Sequence[SlotView]]) -> StandstillWatch:
    """The watch of a run of this configuration."""
    return StandstillWatch(config.deadlines.stall_limit_s, plan(config), views)


def plan(config: ExperimentConfig) -> Plan:
    """What a run's configuration lets one expect of it."""
    return Plan(
        limits=activity_limits(config.deadlines),
        learning_starts=0 if config.on_policy else config.replay.learning_starts,
        capacity=config.replay.capacity,
        ratio=config.declared_ratio,
        max_policy_lag=config.rollout.max_policy_lag if config.on_policy else None,
        group_size=config.env.group_size,
        evaluates=config.evaluation.episodes > 0,
        max_restarts=config.supervision.max_restarts,
        restart_window_s=config.supervision.restart_window_s,
    )
