"""What files and the system tell about a run beyond its board. Pure: a snapshot in, a verdict or a remark out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from headrace.monitor.snapshot import Snapshot
from headrace.telemetry.blame import Blame, Condition, blame
from headrace.telemetry.looks import Flow
from headrace.telemetry.wording import amount, names, place, seconds

_FULL_BYTES = 16 * 2**20
_SCARCE = 0.05
_GROWTH_BYTES = 16 * 2**20
_AHEAD = 60.0
"""Memory growth is extrapolated over so many times the period in which it was seen."""
_LOOP_S = 60.0
_LOOP_RESTARTS = 3
_BEHIND = 2


def ended(snapshot: Snapshot) -> Blame | None:
    """The run has written its summary."""
    summary = snapshot.summary
    if summary is None:
        return None
    outcome = str(summary.get("outcome", "ended"))
    after = f"after {seconds(float(summary.get('wall_s') or 0.0))}"
    if not summary.get("error"):
        steps, updates = int(summary.get("env_steps") or 0), int(summary.get("updates") or 0)
        did = f"{amount(steps, 'environment step')} and {amount(updates, 'update')}"
        how = "was interrupted" if outcome == "interrupted" else outcome
        return Blame(Condition.FINISHED, f"the run {how} {after} with {did}", evidence=recent_faults(snapshot))
    what, facts = _told(str(summary["error"]))
    last = "; ".join(facts[name] for name in ("last time", "error") if name in facts)
    gave_up = "gave up" if outcome == "stalled" else "failed"
    evidence = [f"{name}: {value}" for name, value in facts.items() if name not in {"last time", "error", "fix"}]
    return Blame(
        Condition.FAILED,
        f"the run {gave_up} {after}: {what}" + (f"; {last}" if last else ""),
        _culprit(snapshot, what),
        (*evidence, *recent_faults(snapshot)),
        facts.get("fix", "read events.jsonl and logs/"),
    )


def no_board(snapshot: Snapshot) -> Blame | None:
    """There is nothing to look at but the configuration."""
    if snapshot.looks:
        return None
    if snapshot.live:
        return Blame(Condition.STARTING, "the run is starting: it has no board yet")
    return Blame(
        Condition.DEAD, "the run ended before it had a board that can be read", "supervisor", recent_faults(snapshot),
        "start it again in another directory; the message of its command told why it ended",
    )  # fmt: skip


def orphaned(snapshot: Snapshot) -> Blame | None:
    """The supervisor is gone and has left no summary."""
    header = snapshot.header
    if snapshot.live or header is None or not (snapshot.here or header.host == snapshot.this_host):
        return None
    ago = f", {seconds(snapshot.silent_s)} ago" if snapshot.silent_s is not None else ""
    doing = _last_activities(snapshot)
    if not snapshot.here:
        return Blame(
            Condition.DEAD,
            f"the machine or container was restarted while the run went on, {seconds(snapshot.run_s)} after its start",
            None, doing, "start the run again in another directory; its newest policy lies in checkpoints/",
        )  # fmt: skip
    left = [name for name, process in snapshot.looks[-1].processes.items() if process.alive and name != "supervisor"]
    still = (f"{names(left)} still run, and leave when they notice",) if left else ()
    return Blame(
        Condition.DEAD,
        f"supervisor (pid {header.supervisor_pid}) ended without a summary {seconds(snapshot.run_s)} after the start "
        f"of the run{ago}: it was killed, or the machine ran out of memory",
        "supervisor",
        (*still, *doing, *recent_faults(snapshot)),
        "ask the system's log for the out-of-memory killer; start the run again in another directory",
    )


def copied(snapshot: Snapshot) -> Blame | None:
    """The directory comes from another machine: the board tells what was, and nothing about now."""
    header = snapshot.header
    if snapshot.here or snapshot.live or header is None:
        return None
    found = blame(snapshot.looks, snapshot.plan)
    return Blame(
        found.condition,
        f"when this copy of a run on {header.host} was made, {seconds(snapshot.run_s)} after its start, "
        f"{found.sentence}",
        found.culprit,
        (*found.evidence, *recent_faults(snapshot)),
        found.remedy or f"ask the doctor on {header.host}, where the processes can be seen",
    )


def no_room(snapshot: Snapshot) -> Blame | None:
    """What the run makes cannot be kept."""
    disk = snapshot.disk
    if disk is None or (disk.problem is None and disk.free_bytes >= _FULL_BYTES):
        return None
    lost = "so events, metrics and checkpoints are lost"
    remedy = "make room on that disk; a run that still runs goes on by itself"
    if disk.problem is not None:
        sentence = f"the run directory cannot be written ({disk.problem}), {lost}"
        remedy = "make the directory writable; a run that still runs goes on by itself"
    else:
        sentence = f"the disk of the run directory is full: {_size(disk.free_bytes)} of {_size(disk.total_bytes)} are free, {lost}"
    return Blame(Condition.STARVED, sentence, None, (), remedy)


def no_memory(snapshot: Snapshot) -> Blame | None:
    """The machine is out of memory, or soon will be."""
    memory = snapshot.memory
    look = snapshot.looks[-1] if snapshot.looks else None
    if memory is None or look is None:
        return None
    sizes = {name: process.rss_bytes or 0 for name, process in look.processes.items() if process.alive}
    if not sizes:
        return None
    remedy = "lower replay.capacity or env.lanes if it is by design; else look for what the environment keeps"
    largest = max(sizes, key=lambda name: sizes[name])
    if memory.available_bytes < _SCARCE * memory.total_bytes:
        return Blame(
            Condition.STARVED,
            f"the machine runs out of memory: {_size(memory.available_bytes)} of {_size(memory.total_bytes)} are left, "
            f"and {largest} holds the most of this run, {_size(sizes[largest])}",
            largest, (), remedy,
        )  # fmt: skip
    return _growing(snapshot, sizes, memory.available_bytes, remedy)


def _growing(snapshot: Snapshot, sizes: Mapping[str, int], available_bytes: int, remedy: str) -> Blame | None:
    flow = Flow(snapshot.looks, snapshot.plan)
    before = {name: process.rss_bytes or 0 for name, process in snapshot.looks[0].processes.items() if process.alive}
    growth = {name: size - before[name] for name, size in sizes.items() if name in before}
    fastest = max(growth, key=lambda name: growth[name], default=None)
    if fastest is None or growth[fastest] < _GROWTH_BYTES or flow.span_s <= 0.0:
        return None
    per_s = growth[fastest] / flow.span_s
    left_s = available_bytes / per_s
    if left_s > _AHEAD * flow.span_s:
        return None
    return Blame(
        Condition.STARVED,
        f"{fastest} grows by {_size(per_s)} a second and holds {_size(sizes[fastest])}: "
        f"the {_size(available_bytes)} that are left last {seconds(left_s)}",
        fastest, (), remedy,
    )  # fmt: skip


def restart_loop(snapshot: Snapshot) -> Blame | None:
    """A component is started again and again, and the run does not get on meanwhile."""
    if not snapshot.looks:
        return None
    flow = Flow(snapshot.looks, snapshot.plan)
    recent = _restarts(snapshot, _LOOP_S)
    if not recent or flow.span_s <= 0.0 or flow.total(["env_steps", "updates"]):
        return None
    component, count = recent.most_common(1)[0]
    if count < _LOOP_RESTARTS:
        return None
    budget = snapshot.plan.max_restarts
    ends = f" ({budget} within {snapshot.plan.restart_window_s:g} s are allowed)" if budget is not None else ""
    return Blame(
        Condition.LIVELOCKED,
        f"{component} is started again and again and gets nowhere: {amount(count, 'restart')} within {_LOOP_S:g} s"
        f"{ends}, and no environment step or update within the last {seconds(flow.span_s)}",
        component,
        recent_faults(snapshot),
        f"read the end of logs/{component}.log; what it names has to be repaired, restarts do not help",
    )


def remarks(snapshot: Snapshot) -> list[tuple[str | None, str]]:
    """What is worth a word although the run gets on: (component or None, half a sentence)."""
    found: list[tuple[str | None, str]] = []
    window_s, budget = snapshot.plan.restart_window_s, snapshot.plan.max_restarts
    for component, count in _restarts(snapshot, window_s).most_common(1):
        if budget is not None and count >= max(2, budget / 2):
            found.append(
                (
                    component,
                    f"{component} was restarted {count} times within {window_s:g} s, and more than {budget} end the run",
                )
            )
    behind = _unevaluated(snapshot)
    if behind >= _BEHIND:
        found.append((None, f"the evaluation is {behind} policies behind"))
    return found


def _restarts(snapshot: Snapshot, within_s: float) -> Counter[str]:
    since_s = snapshot.run_s - within_s
    return Counter(
        str(event.get("component"))
        for event in snapshot.events
        if event.get("kind") == "restarted" and float(event.get("t_s") or 0.0) >= since_s
    )


def _unevaluated(snapshot: Snapshot) -> int:
    """Policies frozen for evaluation after the newest one that was evaluated."""
    versions: dict[str, list[int]] = {"evaluated": [], "checkpoint": []}
    for event in snapshot.events:
        version = event.get("version")
        if isinstance(version, int):  # of random actions it is null
            versions.get(str(event.get("kind")), []).append(version)
    return sum(version > max(versions["evaluated"], default=0) for version in versions["checkpoint"])


def recent_faults(snapshot: Snapshot) -> tuple[str, ...]:
    """The newest faults, a line each."""
    faults = [event for event in snapshot.events if event.get("kind") in {"fault", "stacks", "verdict"}]
    return tuple(
        f"{float(event.get('t_s') or 0.0):.1f} s after the start: {event.get('text')}" for event in faults[-3:]
    )


def _last_activities(snapshot: Snapshot) -> tuple[str, ...]:
    if not snapshot.looks:
        return ()
    flow = Flow(snapshot.looks, snapshot.plan)
    return tuple(
        f"at the last sign of life {view.id} had been inside {place(view)} for {seconds(flow.age_s(view))}"
        for view in flow.alive()
    )


def _told(error: str) -> tuple[str, dict[str, str]]:
    """An error's sentence and facts, from its text."""
    first, *lines = error.splitlines()
    facts: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.strip().partition(": ")
        if colon and line.startswith("  "):
            facts.setdefault(name, value)
    return re.sub(r"^\[[A-Z]+-\d+\] ", "", first), facts


def _culprit(snapshot: Snapshot, what: str) -> str | None:
    """Whom the run's own verdict names, or the last fault, or the error's sentence."""
    for kind in ("verdict", "fault"):
        named = [event.get("component") for event in snapshot.events if event.get("kind") == kind]
        others = [str(name) for name in named if name not in {None, "supervisor"}]
        if others:
            return others[-1]
    ids = [view.id for view in snapshot.looks[-1].views] if snapshot.looks else []
    return next((name for name in ids if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", what)), None)


def _size(number_bytes: float) -> str:
    """In units people know: ``3 MB``, ``1.2 GB``."""
    return f"{number_bytes / 1e9:,.1f} GB" if number_bytes >= 1e9 else f"{number_bytes / 1e6:,.0f} MB"
