"""Finds children that miss a deadline, has them write down where they are, and then kills them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.core.clock import away_s
from headrace.supervision.child import SupervisedChild, finishing
from headrace.supervision.policy import WATCHED, Phase, overdue
from headrace.supervision.spec import Overdue
from headrace.telemetry.board import Board

LOOK_S = 0.25
"""Seconds between two looks at the board. Nobody is called overdue on the first look alone, so that processes which
were frozen together with their supervisor (a paused container) get time to move on; see `away_s` too."""

_SETTLE_S = 0.01  # between two looks at stacks that are being written


class Watchdog:
    """Enforces the deadlines of a supervisor's children.

    Args:
        children: By id.
        board: Where they tell what they are doing.
    """

    def __init__(self, children: Mapping[str, SupervisedChild], board: Board) -> None:
        self._children = children
        self._board = board
        self._deadlines = {child_id: child.spec.deadlines for child_id, child in children.items()}
        self._suspects: dict[str, int] = {}  # id -> beginning of the activity that was too long at the last look
        self._allowed: dict[str, tuple[int, float]] = {}
        """Id -> beginning of its activity, and how much longer than its limit that may last."""
        self._looked_s: float | None = None

    def look(self, now_s: float) -> list[Overdue]:
        """Go on with dumps and kills and, when it is time to, look for missed deadlines.

        Args:
            now_s: The time on the machine's monotonic clock, which is the board's.

        Returns:
            Who has just been found; their stacks are being written.
        """
        for child in self._children.values():
            child.go_on_dumping()
        looked_s = self._looked_s
        if looked_s is not None and now_s < looked_s + LOOK_S:
            return []
        self._looked_s = now_s

        def unseen_s(since_s: float) -> float:
            return 0.0 if looked_s is None else away_s(now_s - max(looked_s, since_s), LOOK_S)

        found = self._too_long_in_one_activity(now_s, unseen_s)
        found += [late for child in self._children.values() if (late := child.late(now_s, unseen_s)) is not None]
        caught = []
        for late in found:
            child = self._children[late.id]
            if child.life.phase in {*WATCHED, Phase.STOPPING}:  # found on two counts, it is dumped once
                child.begin_dump(late)
                caught.append(late)
        return caught

    def next_look_s(self) -> float:
        """Seconds until `look` should be called again."""
        dumping = any(child.life.phase is Phase.DUMPING for child in self._children.values())
        return _SETTLE_S if dumping else LOOK_S

    def _too_long_in_one_activity(self, now_s: float, unseen_s: Callable[[float], float]) -> list[Overdue]:
        """Those that were too long in the very same activity at the last look already."""
        watched = [name for name, child in self._children.items() if child.life.phase in WATCHED or finishing(child)]
        views = [self._board.read(child_id) for child_id in watched]
        for view in views:
            begun_ns, allowance_s = self._allowed.get(view.id, (0, 0.0))
            before_s = allowance_s if begun_ns == view.since_ns else 0.0
            self._allowed[view.id] = view.since_ns, before_s + unseen_s(view.since_ns / 1e9)
        seen = [
            (replace(late, for_s=late.for_s - self._allowed[late.id][1]), since_ns)
            for late, since_ns in overdue(views, self._deadlines, int(now_s * 1e9))
        ]
        found = [(late, since_ns) for late, since_ns in seen if late.for_s > late.limit_s]
        confirmed = [late for late, since_ns in found if self._suspects.get(late.id) == since_ns]
        self._suspects = {late.id: since_ns for late, since_ns in found}
        return confirmed
