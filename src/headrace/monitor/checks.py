"""What files and the system tell about a run beyond its board. Pure: a snapshot in, a verdict or a remark out."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.monitor.snapshot import Memory, Snapshot
from headrace.supervision.evidence import SAMPLE_S
from headrace.telemetry.blame import PATIENCE_S, Blame, Condition, blame
from headrace.telemetry.board import State
from headrace.telemetry.looks import ALIVE, Flow, Look
from headrace.telemetry.wording import amount, names, place, seconds, verb

_FULL_BYTES = 16 * 2**20
_SCARCE = 0.05
_CONSIDERABLE = 0.25
"""Share of the memory in use from which on it is the run that runs out of it."""
_GROWTH_BYTES = 16 * 2**20
_AHEAD = 60.0
"""Memory growth is extrapolated over so many times the period in which it was seen."""
_LOOP_S = 60.0
_LOOP_RESTARTS = 3
_BEHIND = 2
_NEVER_HIT = "never_hit"


class Remark(NamedTuple):
    """Something worth a word although the run gets on, or is over."""

    component: str | None
    text: str
    """Half a sentence."""
    remedy: str = ""
    also: tuple[str, ...] = ()
    """What else belongs to it, a line each."""


def ended(snapshot: Snapshot) -> Blame | None:
    """The run has written its summary."""
    summary = snapshot.summary
    if summary is None:
        return None
    outcome = str(summary.get("outcome", "ended"))
    after = f"after {seconds(float(summary.get('wall_s') or 0.0))}"
    if not summary.get("error"):
        steps, updates = int(summary.get("env_steps") or 0), int(summary.get("updates") or 0)
        did = summary.get("did") or f"{amount(steps, 'environment step')} and {amount(updates, 'update')}"
        how = "was interrupted" if outcome == "interrupted" else outcome
        finished = Blame(Condition.FINISHED, f"the run {how} {after} with {did}")
        return with_remarks(finished, standing(snapshot), snapshot)
    what, facts = _told(str(summary["error"]))
    last = "; ".join(facts[name] for name in ("last time", "error") if name in facts)
    gave_up = "gave up" if outcome == "stalled" else "failed"
    evidence = [f"{name}: {value}" for name, value in facts.items() if name not in {"last time", "error", "fix"}]
    return Blame(
        Condition.FAILED,
        f"the run {gave_up} {after}: {what}" + (f"; {last}" if last else ""),
        _culprit(snapshot, summary, what),
        (*evidence, *seen(snapshot)),
        facts.get("fix", "read events.jsonl and logs/"),
    )


def no_board(snapshot: Snapshot) -> Blame | None:
    """There is nothing to look at but the configuration."""
    if snapshot.looks:
        return None
    if snapshot.goes_on:
        return Blame(Condition.STARTING, "the run is starting (it goes on): what it loads takes a moment")
    if snapshot.live:
        return Blame(Condition.STARTING, "the run is starting: it has no board yet")
    return Blame(
        Condition.DEAD, "the run ended before it had a board that can be read", "supervisor", seen(snapshot),
        f"the message of its command told why it ended; {snapshot.go_on}",
    )  # fmt: skip


def unsummed(snapshot: Snapshot) -> Blame | None:
    """The supervisor ended by itself, as its board says, and left no summary: it could not be written."""
    header = snapshot.header
    if header is None or not snapshot.ended_by_itself:
        return None
    ended_s = max(0.0, (snapshot.supervisors[-1].since_ns - header.created_ns) / 1e9)
    faults = [one for one in snapshot.events if (one.get("kind"), one.get("component")) == ("fault", "supervisor")]
    why = f"; it had failed: {faults[-1].get('text')}" if faults else ""
    full, make_room = _why_not_kept(snapshot) if header.host == snapshot.this_host else ("", "")
    last = [f"the last that was written: {event.get('text')}" for event in snapshot.events[-1:]]
    return Blame(
        Condition.FAILED,
        f"supervisor (pid {header.supervisor_pid}) ended by itself {seconds(ended_s)} after the start of the "
        f"run{_ago(snapshot)}, and its summary could not be written{why}{full and f'; {full}'}",
        "supervisor",
        (*last, *seen(snapshot)),
        f"{make_room and f'{make_room}; '}{snapshot.go_on}",
    )


def orphaned(snapshot: Snapshot) -> Blame | None:
    """The supervisor is gone and has left no summary."""
    header = snapshot.header
    if snapshot.live or header is None or not (snapshot.here or header.host == snapshot.this_host):
        return None
    doing = _last_activities(snapshot)
    if not snapshot.here:
        return Blame(
            Condition.DEAD,
            f"the machine or container was restarted while the run went on, {seconds(snapshot.run_s)} after its start",
            None, doing, snapshot.go_on,
        )  # fmt: skip
    left = [name for name, process in snapshot.looks[-1].processes.items() if process.alive and name != "supervisor"]
    still = (f"{names(left)} still run, and leave when they notice",) if left else ()
    full, _ = _why_not_kept(snapshot)
    return Blame(
        Condition.DEAD,
        f"supervisor (pid {header.supervisor_pid}) ended without a summary {seconds(snapshot.run_s)} after the start "
        f"of the run{_ago(snapshot)}: it was killed, or the machine ran out of memory",
        "supervisor",
        (*still, *([full] if full else []), *doing, *seen(snapshot)),
        f"ask the system's log for the out-of-memory killer; {snapshot.go_on}",
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
        (*found.evidence, *seen(snapshot)),
        found.remedy or f"ask the doctor on {header.host}, where the processes can be seen",
    )


def no_room(snapshot: Snapshot) -> Blame | None:
    """What the run makes cannot be kept."""
    full, make_room = _why_not_kept(snapshot)
    if not full:
        return None
    sentence = f"{full}, so events, metrics and checkpoints are lost"
    return Blame(Condition.STARVED, sentence, None, (), f"{make_room}; a run that still runs goes on by itself")


def _why_not_kept(snapshot: Snapshot) -> tuple[str, str]:
    """Why nothing can be kept where the run lies, and what to do; twice nothing if something can."""
    disk = snapshot.disk
    if disk is None or (disk.problem is None and disk.free_bytes >= _FULL_BYTES):
        return "", ""
    if disk.problem is not None:
        return f"the run directory cannot be written ({disk.problem})", "make the directory writable"
    free = f"{_size(disk.free_bytes)} of {_size(disk.total_bytes)} are free"
    return f"the disk of the run directory is full: {free}", "make room on that disk"


def no_memory(snapshot: Snapshot) -> Blame | None:
    """The machine is out of memory, or soon will be."""
    memory = snapshot.memory
    look = snapshot.looks[-1] if snapshot.looks else None
    if memory is None or look is None:
        return None
    sizes = _sizes(look)
    if not sizes:
        return None
    remedy = "lower what its own settings let it hold, if it is by design; else look for what it keeps"
    if any(view.kind == "learner" for view in look.views):
        remedy = "lower replay.capacity or env.lanes if it is by design; else look for what the environment keeps"
    if memory.available_bytes < _SCARCE * memory.total_bytes:
        return _scarce(sizes, memory, remedy)
    return _growing(snapshot, sizes, memory.available_bytes, remedy)


def _sizes(look: Look) -> dict[str, int]:
    """Bytes that each component that lives holds: its process, or with all that has started, as its supervisor counts it."""
    counted = {view.id: view.counters["rss_bytes"] for view in look.views}
    return {
        name: max(process.rss_bytes or 0, counted.get(name, 0))
        for name, process in look.processes.items()
        if process.alive
    }


def _scarce(sizes: Mapping[str, int], memory: Memory, remedy: str) -> Blame:
    largest = max(sizes, key=lambda name: sizes[name])
    left = f"the machine runs out of memory: {_size(memory.available_bytes)} of {_size(memory.total_bytes)} are left, "
    held = sum(sizes.values())
    if held < _CONSIDERABLE * (memory.total_bytes - memory.available_bytes):
        return Blame(
            Condition.STARVED, f"{left}and other programs hold it: this run has {_size(held)}", None, (),
            "end what else uses memory, or give the run a machine with more of it",
        )  # fmt: skip
    return Blame(
        Condition.STARVED,
        f"{left}and {largest} holds the most of this run, {_size(sizes[largest])}",
        largest,
        (),
        remedy,
    )


def _growing(snapshot: Snapshot, sizes: Mapping[str, int], available_bytes: int, remedy: str) -> Blame | None:
    flow = Flow(snapshot.looks, snapshot.plan)
    before = _sizes(snapshot.looks[0])
    growth = {name: size - before[name] for name, size in sizes.items() if name in before}
    fastest = max(growth, key=lambda name: growth[name], default=None)
    if fastest is None or growth[fastest] < _GROWTH_BYTES or flow.span_s <= 0.0:
        return None
    # What it has started is counted now and then: that may have grown since the count before.
    counted = sizes[fastest] > (snapshot.looks[-1].processes[fastest].rss_bytes or 0)
    per_s = growth[fastest] / (max(flow.span_s, SAMPLE_S) if counted else flow.span_s)
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
    if not recent or flow.span_s <= 0.0 or flow.total(["env_steps", "updates", "rows"]):
        return None
    component, count = recent.most_common(1)[0]
    view = flow.views.get(component)
    if view is None or view.state not in ALIVE or view.state is State.STOPPING or count < _LOOP_RESTARTS:
        return None
    over = not _restarts(snapshot, _LOOP_S / _LOOP_RESTARTS)[component]
    loopers = {name for name, restarts in recent.items() if restarts >= _LOOP_RESTARTS}
    if over or flow.others_at_work(loopers, PATIENCE_S):
        return None
    what = "sign of progress" if view.kind == "command" else "environment step or update"
    budget = snapshot.plan.max_restarts
    ends = f" ({budget} within {snapshot.plan.restart_window_s:g} s are allowed)" if budget is not None else ""
    return Blame(
        Condition.LIVELOCKED,
        f"{component} is started again and again and gets nowhere: {amount(count, 'restart')} within {_LOOP_S:g} s"
        f"{ends}, and no {what} within the last {seconds(flow.span_s)}",
        component,
        seen(snapshot),
        f"read the end of logs/{component}.log; what it names has to be repaired, restarts do not help",
    )


def remarks(snapshot: Snapshot) -> list[Remark]:
    """What is worth a word although the run gets on."""
    found = standing(snapshot)
    window_s, budget = snapshot.plan.restart_window_s, snapshot.plan.max_restarts
    for component, count in _restarts(snapshot, window_s).most_common(1):
        if budget is not None and count >= max(2, budget / 2):
            text = f"{component} was restarted {count} times within {window_s:g} s, and more than {budget} end the run"
            found.append(Remark(component, text))
    for component, count in _restarts(snapshot, _LOOP_S).most_common(1):
        if budget is None and count >= _LOOP_RESTARTS:
            text = f"{component} was restarted {count} times within {_LOOP_S:g} s"
            found.append(Remark(component, text, f"read the end of logs/{component}.log"))
    behind = _unevaluated(snapshot)
    if snapshot.plan.evaluates and behind >= _BEHIND:
        found.append(Remark(None, f"the evaluation is {behind} policies behind"))
    return found


def with_remarks(found: Blame, remarks: Iterable[Remark], snapshot: Snapshot) -> Blame:
    """A verdict on a run that nothing holds up, and what else there is to say."""
    remarks = list(remarks)
    culprit = next((one.component for one in remarks if one.component is not None), None)
    also = (line for one in remarks for line in one.also)
    return Blame(
        found.condition,
        "; ".join([found.sentence, *(one.text for one in remarks)]),
        found.culprit or culprit,
        (*found.evidence, *also, *recent_faults(snapshot)),
        "; ".join(filter(None, [found.remedy, *(one.remedy for one in remarks)])),
    )


def with_those_beside(found: Blame, snapshot: Snapshot) -> Blame:
    """A verdict on a whole run, and who was started alone in its directory since, and is alive."""
    if not snapshot.beside:
        return found
    alone = names([place.rpartition("/")[2] for place in snapshot.beside])
    live = f"{alone}, started alone, {verb(snapshot.beside, 'is', 'are')} alive in its directory"
    which = alone if len(snapshot.beside) == 1 else "the first"
    ask = f"headrace doctor {shlex.quote(snapshot.beside[0])}" + f" looks at {which}"
    remedy = found.remedy
    if remedy and found.condition in {Condition.DEAD, Condition.FAILED}:  # no whole run takes the directory meanwhile
        remedy = f"end {alone} first (Ctrl-C or SIGTERM), then {remedy}"
    return replace(found, sentence=f"{found.sentence}; {live}", remedy="; ".join(filter(None, [ask, remedy])))


def seen(snapshot: Snapshot) -> tuple[str, ...]:
    """Beside a verdict on something else: what stands, and the newest faults, a line each."""
    lines = [line for one in standing(snapshot) for line in (one.text, *one.also)]
    return (*lines, *recent_faults(snapshot))


def standing(snapshot: Snapshot) -> list[Remark]:
    """What the run itself has found wrong and goes on with: in its summary, or in its events while there is none."""
    return [remark for rule in (_ledger, _degraded, _suspicious, _alarmed) if (remark := rule(snapshot)) is not None]


def _ledger(snapshot: Snapshot) -> Remark | None:
    """What was done against what the configuration declares."""
    told = _found(snapshot, "ledger", "ledger", lambda event: event.get("name"))
    wrong = [one for one in told if one.get("ok") is not True and one.get("name") != _NEVER_HIT]
    never = _never_hit(snapshot)
    if not wrong:
        text = f"{amount(len(never), 'declared interval')} {verb(never, 'is', 'are')} out of this run's reach"
        return Remark(None, text, "shorten it, or make the run longer", never) if never else None
    first, *others = wrong
    more = f" (and {len(others)} more of the ledger)" if others else ""
    lines = tuple(str(one.get("text")) for one in others)
    return Remark("learner", f"{first.get('text')}{more}", str(first.get("remedy") or ""), (*lines, *never))


def _never_hit(snapshot: Snapshot) -> tuple[str, ...]:
    """Intervals that were known to be out of reach when the run was started."""
    events = [event for event in snapshot.events if event.get("kind") == "ledger" and event.get("name") == _NEVER_HIT]
    return tuple(dict.fromkeys(str(event.get("text")) for event in events))


def _degraded(snapshot: Snapshot) -> Remark | None:
    """Lanes, or processes, that the run goes on without."""
    remedy = "see reproducers/ and logs/ for what took these lanes down"
    if snapshot.summary is not None:
        left_out = snapshot.summary.get("left_out")
        if left_out:
            return Remark(left_out[0], f"it went on without {names(left_out)}", _read_logs(left_out))
        lost = snapshot.summary.get("degraded")
        if not lost:
            return None
        collectors = lost.get("collectors") or [None]
        return Remark(
            collectors[0], f"it went on without {_lanes(lost.get('lanes', ()))}: {lost.get('reason')}", remedy
        )
    events = [event for event in snapshot.events if event.get("kind") == "degraded"]
    if not events:
        return None
    components = list(dict.fromkeys(str(event.get("component")) for event in events))
    told = [event.get("lanes") for event in events]  # a disk may have made anything of it
    lanes = sorted(lane for one in told if isinstance(one, list) for lane in one if isinstance(lane, int))
    remedy, what = (remedy, _lanes(lanes)) if lanes else (_read_logs(components), names(components))
    texts = tuple(str(event.get("text")) for event in events)
    if len(events) == 1:
        return Remark(components[0], texts[0], remedy)
    return Remark(components[-1], f"the run goes on without {what}", remedy, texts)


def _read_logs(components: Sequence[str]) -> str:
    logs = [f"logs/{component}.log" for component in components]
    return f"read {verb(logs, 'the end', 'the ends')} of {names(logs)}"


def _suspicious(snapshot: Snapshot) -> Remark | None:
    """Data that the environments may have made up."""
    told = _found(snapshot, "suspicious", "warnings", lambda event: event.get("finding"))
    texts = [str(one.get("text")) for one in told if _warns(one)]
    if not texts:
        return None
    return Remark(
        None, f"{amount(len(texts), 'warning')} about the data {'stands' if len(texts) == 1 else 'stand'}",
        "read what the warnings mean in docs/guides/not-learning.md", tuple(texts),
    )  # fmt: skip


def _alarmed(snapshot: Snapshot) -> Remark | None:
    """What a run of a language model has raised an alarm about."""
    told = _found(snapshot, "alarm", "alarms", lambda event: event.get("text"))
    texts = tuple(str(one.get("text") or one.get("kind")) for one in told)
    if not texts:
        return None
    return Remark(None, f"{amount(len(texts), 'alarm')} {'was' if len(texts) == 1 else 'were'} raised", "", texts)


def _found(
    snapshot: Snapshot, kind: str, key: str, identity: Callable[[Mapping[str, Any]], object]
) -> list[Mapping[str, Any]]:
    """What the summary lists under ``key``; without one, the newest event of a kind for each identity."""
    if snapshot.summary is not None:
        return [one for one in snapshot.summary.get(key) or () if isinstance(one, Mapping)]
    return list({str(identity(event)): event for event in snapshot.events if event.get("kind") == kind}.values())


def _warns(finding: Mapping[str, Any]) -> bool:
    return finding.get("severity") == "warning"


def _lanes(lanes: Iterable[int]) -> str:
    numbers = [str(lane) for lane in lanes]
    return f"lane{'' if len(numbers) == 1 else 's'} {names(numbers)}"


def _restarts(snapshot: Snapshot, within_s: float) -> Counter[str]:
    """By component; without those of whoever did right to leave, see `headrace.runtime.incidents.Incidents.note`."""
    since_s, found, free = snapshot.run_s - within_s, Counter[str](), set[str]()
    for event in snapshot.events:
        component = str(event.get("component"))
        if event.get("kind") == "not_restored" and "lane" in event:
            free.add(component)
        elif event.get("kind") == "restarted":
            found[component] += component not in free and float(event.get("t_s") or 0.0) >= since_s
            free.discard(component)
    return +found


def _unevaluated(snapshot: Snapshot) -> int:
    """Policies frozen for evaluation after the newest one that was evaluated."""
    versions: dict[str, list[int]] = {"evaluated": [], "policy": []}
    for event in snapshot.events:
        version = event.get("version")
        if isinstance(version, int):  # of random actions it is null
            versions.get(str(event.get("kind")), []).append(version)
    return sum(version > max(versions["evaluated"], default=0) for version in versions["policy"])


def recent_faults(snapshot: Snapshot) -> tuple[str, ...]:
    """The newest faults, a line each."""
    faults = [event for event in snapshot.events if event.get("kind") in {"fault", "stacks", "verdict"}]
    return tuple(
        f"{float(event.get('t_s') or 0.0):.1f} s after the start: {event.get('text')}" for event in faults[-3:]
    )


def _ago(snapshot: Snapshot) -> str:
    return f", {seconds(snapshot.silent_s)} ago" if snapshot.silent_s is not None else ""


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
    newest = None
    for line in lines:
        if newest is not None and line.startswith("    "):  # of a fact with several lines, as the end of a log
            facts[newest] += f"\n    {line.strip()}"
            continue
        name, colon, value = line.strip().partition(":")
        if colon and line.startswith("  "):
            newest = name
            facts.setdefault(name, value.strip())
    return re.sub(r"^\[[A-Z]+-\d+\] ", "", first), facts


def _culprit(snapshot: Snapshot, summary: Mapping[str, Any], what: str) -> str | None:
    """Whom the summary names; in one that names nobody either way: the run's own verdict, its sentence, an open fault."""
    ids = [view.id for view in snapshot.looks[-1].views] if snapshot.looks else []
    named = next((name for name in ids if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", what)), None)
    if "culprit" in summary:
        return named if summary["culprit"] is None else str(summary["culprit"])
    verdicts = [str(event.get("component")) for event in snapshot.events if event.get("kind") == "verdict"]
    if verdicts and verdicts[-1] != "supervisor":
        return verdicts[-1]
    return named or _at_fault(snapshot, ids)


def _at_fault(snapshot: Snapshot, ids: Sequence[str]) -> str | None:
    """The component of the last fault, if none has taken its place since."""
    open_faults: dict[str, None] = {}
    for event in snapshot.events:
        component = str(event.get("component"))
        if event.get("kind") in {"fault", "restarted", "ready"}:
            open_faults.pop(component, None)
        if event.get("kind") == "fault" and component in ids and component != "supervisor":
            open_faults[component] = None
    return next(reversed(open_faults), None)


def _size(number_bytes: float) -> str:
    """In units people know: ``3 MB``, ``1.2 GB``."""
    return f"{number_bytes / 1e9:,.1f} GB" if number_bytes >= 1e9 else f"{number_bytes / 1e6:,.0f} MB"
