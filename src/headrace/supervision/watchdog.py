"""Finds children that miss a deadline, has them write down where they are, and then kills them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.supervision.child import SupervisedChild, finishing
from headrace.supervision.policy import WATCHED, Phase, overdue
from headrace.supervision.spec import Overdue
from headrace.telemetry.board import Board

LOOK_S = 0.25
"""Seconds between two looks at the board. Nobody is called overdue on the first look alone, so that processes which
were frozen together with their supervisor (a paused container) get time to move on."""

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
        self._next_look_s: float | None = None

    def look(self, now_s: float) -> list[Overdue]:
        """Go on with dumps and kills and, when it is time to, look for missed deadlines.

        Args:
            now_s: The time on the machine's monotonic clock, which is the board's.

        Returns:
            Who has just been found; their stacks are being written.
        """
        for child in self._children.values():
            child.go_on_dumping()
        if self._next_look_s is not None and now_s < self._next_look_s:
            return []
        self._next_look_s = now_s + LOOK_S
        found = self._too_long_in_one_activity(now_s)
        found += [late for child in self._children.values() if (late := child.late(now_s)) is not None]
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

    def _too_long_in_one_activity(self, now_s: float) -> list[Overdue]:
        """Those that were too long in the very same activity at the last look already."""
        watched = [name for name, child in self._children.items() if child.life.phase in WATCHED or finishing(child)]
        found = overdue(map(self._board.read, watched), self._deadlines, int(now_s * 1e9))
        confirmed = [late for late, since_ns in found if self._suspects.get(late.id) == since_ns]
        self._suspects = {late.id: since_ns for late, since_ns in found}
        return confirmed
