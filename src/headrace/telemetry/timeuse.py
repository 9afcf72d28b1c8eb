"""What each component of a run spent its time on, counted from looks at the board. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.telemetry.board import State
from headrace.telemetry.looks import ALIVE, Look, Process

_TRAINS = frozenset({State.RUNNING, State.WAITING})


@dataclass(frozen=True, slots=True)
class Spent:
    """One component over the training of a run."""

    component: str
    kind: str
    """``learner``, ``collector``, ``evaluator``."""
    samples: Mapping[str, int]
    """How often it was found in each activity, the most frequent first."""
    cpu_share: float | None
    """Processor time it used, as a share of one core; None where that is not known."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        cpu = None if self.cpu_share is None else round(self.cpu_share, 3)
        return {"component": self.component, "kind": self.kind, "samples": dict(self.samples), "cpu_share": cpu}


class TimeUse:
    """Counts activities look by look; only looks at which the learner trains count."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._kinds: dict[str, str] = {}
        self._processes: dict[str, list[tuple[int, Process]]] = {}
        """Of each component's newest process: the first look at it and the last one."""

    def add(self, look: Look) -> None:
        """Count one look. Looks should be evenly spaced; those with processes may be fewer."""
        if not any(view.kind == "learner" and view.state in _TRAINS for view in look.views):
            return
        for view in look.views:
            if view.kind == "supervisor" or view.state not in ALIVE:
                continue
            self._kinds[view.id] = view.kind
            self._counts.setdefault(view.id, Counter())[view.activity.label] += 1
            process = look.processes.get(view.id)
            if process is not None and process.cpu_s is not None:
                self._note(view.id, look.now_ns, process)

    def spent(self) -> tuple[Spent, ...]:
        """What has been counted, in the order in which components were first seen."""
        return tuple(
            Spent(name, self._kinds[name], dict(counts.most_common()), self._cpu_share(name))
            for name, counts in self._counts.items()
        )

    def _note(self, component: str, now_ns: int, process: Process) -> None:
        known = self._processes.get(component)
        if known is None or known[0][1].pid != process.pid:
            self._processes[component] = [(now_ns, process)]
        else:
            self._processes[component] = [known[0], (now_ns, process)]

    def _cpu_share(self, component: str) -> float | None:
        known = self._processes.get(component, [])
        if len(known) < 2:
            return None
        (begin_ns, first), (end_ns, last) = known
        if first.cpu_s is None or last.cpu_s is None or end_ns <= begin_ns:
            return None
        return max(0.0, last.cpu_s - first.cpu_s) / ((end_ns - begin_ns) / 1e9)
