"""Which lanes a run goes on without, and why: faults in, decisions out; no process and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class FaultBudget:
    """How often the environment of one lane may be replaced within a window of time.

    Args:
        allowed: So often.
        window_s: Seconds after which a fault is forgiven.
    """

    def __init__(self, allowed: int, window_s: float) -> None:
        self.allowed = allowed
        self._window_s = window_s
        self._faults_s: dict[int, list[float]] = {}

    def note(self, lane: int, now_s: float) -> int:
        """The environment of a lane has failed; how often it has within the window, this time included.

        Args:
            lane: Its number.
            now_s: The time, on the clock of all calls.
        """
        recent = [at_s for at_s in self._faults_s.get(lane, ()) if now_s - at_s < self._window_s]
        self._faults_s[lane] = [*recent, now_s]
        return len(self._faults_s[lane])

    def faults(self, lane: int) -> int:
        """Faults of a lane that were not forgiven when it failed last."""
        return len(self._faults_s.get(lane, ()))


@dataclass(frozen=True, slots=True)
class Loss:
    """Groups that are left out from now on."""

    component: str
    groups: tuple[int, ...]
    lanes: tuple[int, ...]
    reason: str
    whole: bool
    """Whether nothing is left for the component to do."""

    def __str__(self) -> str:
        word = "lane" if len(self.lanes) == 1 else "lanes"
        who = f"{self.component} and its {word}" if self.whole else f"{word}"
        return f"the run goes on without {who} {', '.join(map(str, self.lanes))}: {self.reason}"


class Losses:
    """Counts the faults of lanes, and knows what is left out.

    Args:
        owned: Groups of each collector, by its id.
        lanes: Lanes of each group.
        lane_faults: Faults of one lane after which its group is left out; None: never.
        window_s: Seconds after which a fault is forgiven.
    """

    def __init__(
        self,
        owned: Mapping[str, Sequence[int]],
        lanes: Sequence[Sequence[int]],
        lane_faults: int | None,
        window_s: float,
    ) -> None:
        self._owned = owned
        self._lanes = lanes
        self._lane_faults = lane_faults
        self._window_s = window_s
        self._faults = FaultBudget(0, window_s)
        self._left_out: set[int] = set()
        self.losses: list[Loss] = []
        """All there were, oldest first."""

    @property
    def lanes_lost(self) -> int:
        """Lanes that are left out."""
        return sum(len(loss.lanes) for loss in self.losses)

    @property
    def nobody_left(self) -> bool:
        """Whether no lane is left."""
        return len(self._left_out) == len(self._lanes)

    def note(self, lane: int, now_s: float) -> None:
        """The environment of a lane took its collector down; -1: no environment did.

        Args:
            lane: Its number.
            now_s: The time, on the clock of all calls.
        """
        if lane >= 0:
            self._faults.note(lane, now_s)

    def leave_out_if_due(self, component: str, lane: int) -> Loss | None:
        """Leave the group of a lane out if that has failed too often; None: it has not, or is none of this collector's.

        Args:
            component: The collector's id.
            lane: Whose fault was just noted.
        """
        count = self.faults(lane)
        groups = [group for group in self._owned[component] if lane in self._lanes[group]]
        if not groups or self._lane_faults is None or count < self._lane_faults:
            return None
        times = "once" if count == 1 else f"{count} times"
        return self._leave_out(
            component, groups, f"the environment of lane {lane} failed {times} within {self._window_s:g} s"
        )

    def drop(self, component: str, reason: str) -> Loss:
        """Leave a whole collector out: all that it still has."""
        return self._leave_out(component, [g for g in self._owned[component] if g not in self._left_out], reason)

    def faults(self, lane: int) -> int:
        """Faults of a lane that are not forgiven; 0 for -1."""
        return self._faults.faults(lane)

    def summary(self) -> dict[str, Any] | None:
        """``lanes``, ``collectors`` (those that are left out whole) and ``reason``; None if nothing is left out."""
        if not self.losses:
            return None
        return {
            "lanes": sorted(lane for loss in self.losses for lane in loss.lanes),
            "collectors": sorted({loss.component for loss in self.losses if loss.whole}),
            "reason": "; ".join(loss.reason for loss in self.losses),
        }

    def _leave_out(self, component: str, groups: Sequence[int], reason: str) -> Loss:
        self._left_out.update(groups)
        lanes = tuple(lane for group in groups for lane in self._lanes[group])
        whole = self._left_out.issuperset(self._owned[component])
        loss = Loss(component, tuple(groups), lanes, reason, whole)
        self.losses.append(loss)
        return loss
