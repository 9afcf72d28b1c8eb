"""Which rows each file of the row log holds, so that those nobody needs any more can be deleted."""

from __future__ import annotations

from collections.abc import Sequence


class SegmentContents:
    """Up to which row of each lane the rows of every segment reach.

    Args:
        lanes: Number of lanes.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._stops: dict[int, list[int]] = {}

    def note(self, segment: int, lane: int, stop: int) -> None:
        """Rows of a lane up to ``stop`` were appended to a segment."""
        self._stops.setdefault(segment, [-1] * self._lanes)[lane] = stop

    def oldest_needed(self, floors: Sequence[int]) -> int:
        """The first segment without which something would be missing; 0 before the first row.

        Args:
            floors: Row number per lane from which on rows, and the observation that follows them, are needed.
        """
        for segment in sorted(self._stops):
            if any(stop >= floor for stop, floor in zip(self._stops[segment], floors, strict=True)):
                return segment
        return max(self._stops, default=0)

    def forget_before(self, segment: int) -> None:
        """Segments before this one are gone."""
        self._stops = {number: stops for number, stops in self._stops.items() if number >= segment}
