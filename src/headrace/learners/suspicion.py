"""Looks for data that an environment may have made up, or that nothing can be learned from.

Rows are only copied when they arrive; every few thousand of them are judged at once. Nothing is changed or refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.lanes.layout import present
from headrace.learners.evidence import Columns, Finding, History, Window
from headrace.learners.oddities import CHECKS, OF_THE_WHOLE_RUN, Expected

WINDOW_ROWS = 2_000
"""Rows of all lanes that are judged together; more where there are many lanes, fewer where a row is large."""
ROWS_PER_LANE = 100
LEAST_ROWS = 500
"""Rows without which nothing is said, at the end of a run."""
_MOST_BYTES = 16 * 2**20


class Suspicion:
    """Gathers rows, judges them window by window, remembers what was found.

    Args:
        dtype: Of a row.
        lanes: Their number.
        observation: The space of one observation.
        action: The space of an action.
        expected: What the configuration says about the data.
        info_counts: [lanes, 6] steps in which a key of `evidence.INFO_KEYS` was set, live; None: not counted.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        lanes: int,
        observation: spaces.Space[Any],
        action: spaces.Space[Any],
        expected: Expected,
        info_counts: NDArray[np.int32] | None = None,
    ) -> None:
        self._columns, self._actions = Columns.of(observation, "obs"), Columns.of(action, "action")
        self._expected = expected
        self._info_counts = info_counts
        size = min(max(WINDOW_ROWS, ROWS_PER_LANE * lanes), max(LEAST_ROWS, _MOST_BYTES // dtype.itemsize))
        self._rows = np.zeros(size, dtype)
        # Copied as bytes: numpy would copy a structured row field by field.
        self._bytes = self._rows.view(np.dtype((np.void, dtype.itemsize)))
        self._lanes = np.zeros(size, np.int64)
        self._filled = 0
        self._history = History(lanes, len(self._columns.names))
        self._findings: dict[tuple[str, str], Finding] = {}
        self._news: list[Finding] = []

    def add(self, lane: int, rows: NDArray[np.void]) -> None:
        """Take notice of a lane's next rows, in order; a window that becomes full is judged.

        Args:
            lane: Their lane.
            rows: Complete rows, contiguous; copied.
        """
        rows = present(rows).view(self._bytes.dtype)
        while len(rows):
            part = rows[: len(self._rows) - self._filled]
            stop = self._filled + len(part)
            self._bytes[self._filled : stop] = part
            self._lanes[self._filled : stop] = lane
            self._filled = stop
            rows = rows[len(part) :]
            if stop == len(self._rows):
                self._judge()

    def close(self) -> None:
        """Judge what has come since the last full window, if it is enough to say something."""
        if self._filled >= LEAST_ROWS:
            self._judge()

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far, each kind with its newest numbers; warnings first."""
        return sorted(self._findings.values(), key=lambda finding: finding.severity != "warning")

    def news(self) -> list[Finding]:
        """What was found, or has changed, since the last call."""
        news, self._news = self._news, []
        return news

    def _judge(self) -> None:
        window = Window.of(self._rows[: self._filled], self._lanes[: self._filled], self._columns, self._actions)
        self._filled = 0
        self._history.take_in(window)
        if self._info_counts is not None:
            self._history.info[:] = self._info_counts
        found = [finding for check in CHECKS for finding in check(window, self._history, self._expected)]
        kinds = {finding.kind for finding in found}
        for key in [key for key in self._findings if key[0] in OF_THE_WHOLE_RUN - kinds]:
            del self._findings[key]
        for finding in found:
            self._note(replace(finding, facts={**finding.facts, "seen_at_step": self._history.rows}))

    def _note(self, finding: Finding) -> None:
        key = finding.kind, finding.subject
        before = self._findings.get(key)
        self._findings[key] = finding
        if before is None or (before.about, before.severity) != (finding.about, finding.severity):
            self._news.append(finding)

    def release(self) -> None:
        """Drop the view of shared memory."""
        self._info_counts = None
