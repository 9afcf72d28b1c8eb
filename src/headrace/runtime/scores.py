"""What evaluations come to, and their queue: one at a time, in order, and none waits for ever behind the others."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.runtime.comparing import t_quantile
from headrace.runtime.history import History
from headrace.runtime.progress import EvaluationPoint

_MOST_WAITING = 3


@dataclass(frozen=True, slots=True)
class Scores:
    """Returns of complete episodes."""

    returns: tuple[float, ...]
    agents: Mapping[str, float] = field(default_factory=dict)
    """Mean return of each agent, where the environment has many; ``returns`` are sums over them."""

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.returns))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean (Student's t); None for fewer than two episodes."""
        count = len(self.returns)
        if count < 2:
            return None
        half = t_quantile(count - 1) * float(np.std(self.returns, ddof=1)) / math.sqrt(count)
        return self.mean - half, self.mean + half

    def facts(self) -> dict[str, Any]:
        """Plain values, as events and summaries have them."""
        facts = {"mean_reward": self.mean, "interval": self.interval, "episodes": len(self.returns)}
        return {**facts, "agents": dict(self.agents)} if self.agents else facts


class EvaluationQueue:
    """Orders frozen policies for the evaluator. Facts in, facts out; no process.

    An evaluator slower than training is not waited for: the oldest orders but the first are skipped, and counted. What
    an earlier session did not come to is made up for, before what is ordered now; what it had skipped stays skipped.

    Args:
        baseline: Whether uniformly random actions are evaluated first, unless they were in an earlier session.
        enabled: Whether there is an evaluator at all.
        history: Of the run's earlier sessions, whose evaluations stand.
        policies: Versions that are on disk, of those earlier sessions.
    """

    def __init__(
        self, *, baseline: bool, enabled: bool, history: History | None = None, policies: Collection[int] = ()
    ) -> None:
        known = history or History()
        self._enabled = enabled
        self._waiting: deque[dict[str, Any]] = deque()
        if baseline and enabled and known.random_baseline is None:
            self._waiting.append({"version": None, "env_steps": None})
        self._running: dict[str, Any] | None = None
        self._skipped = 0
        self.points: list[EvaluationPoint] = list(known.evaluations)
        """What has been evaluated, oldest first."""
        self.random_baseline: EvaluationPoint | None = known.random_baseline
        self._ordered: set[int | None] = {point.version for point in self.points}
        """Versions that are not to be played again."""
        self._last: list[dict[str, Any]] = []
        """Orders that have ended an earlier session, and would end this one: see `next`."""
        for version, order in known.unevaluated.items():
            if not enabled or version <= self._newest or version not in policies:
                self._skipped += (
                    1  # they are played in order, so one that is older than the newest result had been skipped
                )
            elif version in known.given_up:
                self._ordered.add(version)
                self._last.append(order)
            else:
                self.order(order)

    @property
    def skipped(self) -> int:
        """Policies that were to be evaluated in any session, and are not: skipped, or not come to yet."""
        waiting = (
            [*self._waiting, *self._last] if self._running is None else [self._running, *self._waiting, *self._last]
        )
        return self._skipped + sum(order["version"] is not None for order in waiting)

    @property
    def _newest(self) -> int:
        """Version of the newest policy that came to a result."""
        return max((point.version or 0 for point in self.points), default=0)

    @property
    def idle(self) -> bool:
        """Whether nothing is running or waiting."""
        return self._running is None and not self._waiting and not self._last

    def order(self, facts: Mapping[str, Any]) -> None:
        """A frozen policy shall be evaluated, unless it was ordered before: ``version``, ``env_steps``."""
        if not self._enabled or facts["version"] in self._ordered:
            return
        self._ordered.add(facts["version"])
        self._waiting.append({"version": facts["version"], "env_steps": facts["env_steps"]})
        while len(self._waiting) > _MOST_WAITING:
            del self._waiting[1]
            self._skipped += 1

    def next(self, *, over: bool = False) -> dict[str, Any] | None:
        """The order to give now, if the evaluator is free and there is one.

        Args:
            over: Whether training is. What has ended an earlier session is tried again only then, and only the newest of it
                if nothing newer came to a result: whoever mends an environment wants that of the final policy.
        """
        if over and self._running is None and not self._waiting:
            again = [order for order in self._last if order["version"] > self._newest][-1:]
            self._skipped += len(self._last) - len(again)
            self._last = []
            self._waiting.extend(again)
        if self._running is not None or not self._waiting:
            return None
        self._running = self._waiting.popleft()
        return self._running

    def lost(self) -> int | None:
        """The evaluator is gone; what it was busy with comes first again. Version of that policy, if it was one."""
        if self._running is None:
            return None
        version: int | None = self._running["version"]
        self._waiting.appendleft(self._running)
        self._running = None
        return version

    def finished(self, facts: Mapping[str, Any]) -> EvaluationPoint:
        """Note a result: ``version``, ``env_steps``, ``mean_reward``, ``interval``, ``episodes``."""
        self._running = None
        point = EvaluationPoint.of(facts)
        if point.version is None:
            self.random_baseline = point
        else:
            self.points.append(point)
        return point
