"""How many of the attempts at rollouts come to nothing, while most rollouts are completed by a later one. Pure."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from headrace.llm.messages import Failure

_STRETCH = 200  # attempts over which their share is looked at
_MUCH = 0.05  # share of them that is told
_FEWEST = 5  # failures below which a share says nothing
_DETAIL_CHARS = 300


class Attempts:
    """Looks at the share of attempts that fail. Says when it becomes large, and again only after a stretch without any failure.

    An attempt that fails is made again ``orchestrator.max_retries`` times, so a fault in few of an environment's calls costs
    time and tokens and makes rollouts old, and hardly any of them is counted as failed.
    """

    def __init__(self) -> None:
        self._stretch: deque[str] = deque(maxlen=_STRETCH)
        """Reasons; empty: it was completed."""
        self._told = False

    def completed(self) -> None:
        """One was completed."""
        self._stretch.append("")
        if len(self._stretch) == _STRETCH and not any(self._stretch):
            self._told = False

    def failed(self, failure: Failure) -> list[dict[str, Any]]:
        """One failed.

        Returns:
            Alarms, as they are reported.
        """
        self._stretch.append(failure.reason)
        reasons = Counter(reason for reason in self._stretch if reason)
        count, attempts = reasons.total(), len(self._stretch)
        if self._told or count < _FEWEST or count < _MUCH * attempts:
            return []
        self._told = True
        most, of_it = reasons.most_common(1)[0]
        last = (failure.detail or failure.reason)[:_DETAIL_CHARS]
        text = (
            f"{100 * count / attempts:.0f} % of the last {attempts:,} attempts at rollouts failed, most of them "
            f"({of_it:,}) for {most}; what may be tried again is, and only the rest counts as failed; the last: {last}"
        )
        return [
            {
                "kind": "attempts_fail",
                "text": text,
                "value": count / attempts,
                "limit": _MUCH,
                "reason": most,
                "last": last,
            }
        ]
