"""What is known about a run from outside, at one moment and between two: plain values, no process, no clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.telemetry.board import Activity, SlotView, State

ALIVE = frozenset({State.STARTING, State.READY, State.RUNNING, State.WAITING, State.STOPPING})
"""States in which a component should have a process."""

IDLE = frozenset({Activity.NONE, Activity.IDLE, Activity.WAIT_COMMANDS, Activity.WAIT_CHILD, Activity.WAIT_REQUESTS})
"""Activities in which a component needs nothing from anybody."""

ELSEWHERE = "elsewhere"
"""Kind of a component that another launcher looks after: its slot says nothing."""

WORK = ("env_steps", "updates", "rows", "evaluations", "checkpoints", "episodes")
"""Counters that rise when a run gets on."""

CHURN = {"dropped": "dropped", "retries": "retried", "rejected": "rejected"}
"""Counters that also rise when it does not, and what they count. Restarts are judged by their times, which the events tell."""

_NO_WORK = frozenset({*IDLE, Activity.WAIT_NEEDED, Activity.WAIT_PROGRESS, Activity.WAIT_RESTART})
"""Activities in which a component is not at work: nobody wants anything of it, it is not there, or its sign is late."""

MAIN_COUNTER = {
    "learner": "updates",
    "trainer": "updates",
    "collector": "env_steps",
    "evaluator": "evaluations",
    "orchestrator": "episodes",
    "twin": "updates",
    "inference": "rows",
    "command": "updates",
}
"""By kind of component: what its own work is counted in."""

DEFAULT_LIMITS: Mapping[Activity, float] = {
    Activity.START: 60.0,
    Activity.ENV_CONSTRUCT: 60.0,
    Activity.ENV_RESET: 60.0,
    Activity.UPDATE: 60.0,
    Activity.PUBLISH: 60.0,
    Activity.CHECKPOINT: 60.0,
    Activity.COMMIT: 120.0,
    Activity.EVALUATE: 600.0,
    Activity.WAIT_CREDIT: 120.0,
    Activity.WAIT_ROWS: 120.0,
    Activity.WARM_START: 1800.0,
    Activity.GENERATE: 60.0,
    Activity.WAIT_BATCH: 300.0,
    Activity.WAIT_POLICY: 300.0,
    Activity.COMMAND: math.inf,  # what it does is not known; that it gets on is watched by its own signs
}
"""Seconds, where the run's configuration does not tell."""

_OTHER_LIMIT_S = 30.0
_SOFT = 3.0
_SOFT_AT_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class Process:
    """What the system says about a component's process."""

    pid: int
    alive: bool
    stopped: bool = False
    """By SIGSTOP, Ctrl-Z or a debugger."""
    runnable: bool = False
    """Whether it had something to compute at that moment, and may only have waited for a free core."""
    cpu_s: float | None = None
    """Processor seconds it has used since it began."""
    rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The board at one moment."""

    now_ns: int
    """On the machine's monotonic clock, as the times on the board."""
    views: Sequence[SlotView]
    processes: Mapping[str, Process] = field(default_factory=dict)
    """By component; empty where process numbers mean nothing or nobody asked."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run's configuration lets one expect; every value may be missing."""

    limits: Mapping[Activity, float] = field(default_factory=dict)
    """Seconds an activity may last."""
    learning_starts: int | None = None
    capacity: int | None = None
    """Rows the replay holds."""
    ratio: float | None = None
    """Declared updates per environment step; None: free running, or not known."""
    max_policy_lag: int | None = None
    """On-policy, by how many versions an acting policy may be older than the one that learns; None: there is a replay."""
    group_size: int = 1
    """Lanes that are stepped one after the other by one collector."""
    evaluates: bool = True
    """Whether frozen policies are evaluated."""
    max_restarts: int | None = None
    restart_window_s: float = 300.0

    def limit_s(self, activity: Activity) -> float:
        """Seconds after which an activity has lasted too long."""
        return self.limits.get(activity, DEFAULT_LIMITS.get(activity, _OTHER_LIMIT_S))


class Flow:
    """A run between its first and its last look.

    Args:
        looks: One or more, oldest first, of the same board.
        plan: Of the run.
    """

    def __init__(self, looks: Sequence[Look], plan: Plan) -> None:
        self.looks = looks
        self.plan = plan
        self.last = looks[-1]
        self.views = {view.id: view for view in self.last.views}
        self.span_s = (self.last.now_ns - looks[0].now_ns) / 1e9
        """Seconds between the first look and the last; 0 for a single one."""
        self._before = {view.id: view for view in looks[0].views} if len(looks) > 1 else {}

    def age_s(self, view: SlotView) -> float:
        """Seconds it has been in its present activity."""
        return view.age_s(self.last.now_ns)

    def limit_s(self, view: SlotView) -> float:
        """Seconds after which its present activity has lasted too long; its own limit, if it tells one."""
        return view.deadline_s or self.plan.limit_s(view.activity)

    def soft_s(self, view: SlotView) -> float:
        """Seconds after which its present activity is worth a word."""
        limit_s = self.limit_s(view)
        if view.activity in {Activity.START, Activity.ENV_CONSTRUCT, Activity.STOP}:
            return limit_s
        return max(_SOFT_AT_LEAST_S, limit_s / _SOFT)

    def at_work(self, view: SlotView) -> bool:
        """Whether it is at work, or waits for that of others, and not for longer than is usual.

        Then the run gets on as far as anybody can tell, although nothing is counted between two looks.
        """
        known = (
            view.activity is not Activity.COMMAND or view.kind == "command"
        )  # a server's keeper tells only that it lives
        return known and view.activity not in _NO_WORK and self.age_s(view) < self.soft_s(view)

    def others_at_work(self, components: Collection[str], patience_s: float = math.inf) -> bool:
        """Whether any but these is at work, evaluation aside; who has waited for one of them for so long is not."""
        graph = self.waits()
        waiters = {name for name in graph if not set(path(graph, name)).isdisjoint(components)}
        makers = {view.id for view in self.of_kind("collector") if view.state in ALIVE}
        if makers.issubset(components):  # then whoever waits for rows, and names nobody, waits for them
            waiters |= {view.id for view in self.of_kind("learner") if view.activity is Activity.WAIT_ROWS}
        return any(
            self.at_work(view) and not (view.id in waiters and self.age_s(view) >= patience_s)
            for view in self.alive()
            if view.id not in components and view.kind != "evaluator"
        )

    def still(self, view: SlotView) -> bool:
        """Whether nothing about it has changed between the looks; a single look cannot tell, and says yes."""
        before = self._before.get(view.id)
        return before is None or _words(before) == _words(view)

    def rise(self, view: SlotView, counter: str) -> int:
        """By how much a counter has risen; one that begins anew with a new process counts from 0."""
        before = self._before.get(view.id)
        now = view.counters.get(counter, 0)
        if before is None:
            return 0
        was = before.counters.get(counter, 0)
        return now - was if now >= was else now

    def total(self, counters: Iterable[str]) -> int:
        """By how much they have risen, over all components."""
        return sum(self.rise(view, counter) for counter in counters for view in self.views.values())

    def rate(self, view: SlotView, counter: str) -> float | None:
        """By how much a counter rises per second; None with a single look."""
        return self.rise(view, counter) / self.span_s if self.span_s > 0.0 else None

    def work_rate(self, view: SlotView) -> float | None:
        """Its own work per second, of a collector also in the middle of a chunk; None if it has no such work."""
        counter = MAIN_COUNTER.get(view.kind)
        before = self._before.get(view.id)
        if counter is None or before is None or self.span_s <= 0.0:
            return None
        done = self.rise(view, counter)
        if not done and counter == "env_steps" and before.step >= 0 and before.incarnation == view.incarnation:
            # Nothing was committed; but lanes of a group take turns, so each has done about as many steps as this one.
            done = max(0, view.step - before.step) * self.plan.group_size
        return done / self.span_s

    def alive(self) -> list[SlotView]:
        """Components that should have a process, without the supervisor."""
        return [view for view in self.views.values() if view.state in ALIVE and view.kind != "supervisor"]

    def of_kind(self, *kinds: str) -> list[SlotView]:
        """Components of these kinds."""
        return [view for view in self.views.values() if view.kind in kinds]

    def process(self, component: str) -> Process | None:
        """What the system said about its process at the last look."""
        return self.last.processes.get(component)

    def gone(self, view: SlotView) -> bool:
        """Whether it should have a process, and had none at the first look either."""
        return view.state in ALIVE and all(
            (process := look.processes.get(view.id)) is not None and not process.alive for look in self.looks
        )

    def cpu_share(self, component: str) -> float | None:
        """Processor time its process used between the looks, as a share of one core; None where not known."""
        first, last = self.looks[0].processes.get(component), self.process(component)
        if first is None or last is None or first.pid != last.pid or self.span_s <= 0.0:
            return None
        if first.cpu_s is None or last.cpu_s is None:
            return None
        return max(0.0, (last.cpu_s - first.cpu_s) / self.span_s)

    def always_runnable(self, component: str) -> bool:
        """Whether its process had something to compute at every look."""
        return all((process := look.processes.get(component)) is not None and process.runnable for look in self.looks)

    def waits(self) -> dict[str, str]:
        """The wait-for graph: who needs something from whom."""
        return {
            view.id: view.waits_on
            for view in self.views.values()
            if view.state in ALIVE and view.activity not in IDLE and view.waits_on in self.views
        }

    def needs(self) -> dict[str, str]:
        """As `waits`, where a learner that waits for rows and names nobody needs them from the first collector that waits."""
        graph = self.waits()
        waiting = [view.id for view in self.of_kind("collector") if view.id in graph]
        for view in self.of_kind("learner") if waiting else []:
            if view.state in ALIVE and view.activity is Activity.WAIT_ROWS:
                graph.setdefault(view.id, waiting[0])
        return graph

    def waiters(self, component: str) -> list[str]:
        """Who waits for it, also through others, in the order of the board."""
        graph = self.waits()
        return [name for name in graph if name != component and component in path(graph, name)]


def path(graph: Mapping[str, str], start: str) -> list[str]:
    """Whom ``start`` waits for, whom that one waits for, and so on, until nobody or somebody again."""
    found: list[str] = []
    here: str | None = graph.get(start)
    while here is not None and here not in found:
        found.append(here)
        here = graph.get(here)
    return found


def cycle(graph: Mapping[str, str]) -> list[str]:
    """Components that wait for each other in a ring, from the first in the graph on; empty if there is none."""
    for start in graph:
        ring = path(graph, start)
        if ring and ring[-1] == start:
            return [start, *ring[:-1]]
    return []


def _words(view: SlotView) -> tuple[object, ...]:
    counts = tuple(value for name, value in view.counters.items() if name != "rss_bytes")
    return view.pid, view.incarnation, view.state, view.activity, view.lane, view.step, view.since_ns, counts
