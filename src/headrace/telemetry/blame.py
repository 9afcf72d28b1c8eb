"""Who is to blame: from what is seen on a board to the one component that holds the run up, in one sentence.

Pure: looks go in, a verdict comes out. The doctor calls it from outside, the supervisor when it gives a run up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.telemetry.board import Activity, SlotView, State
from headrace.telemetry.looks import ALIVE, CHURN, ELSEWHERE, IDLE, WORK, Flow, Look, Plan, cycle
from headrace.telemetry.wording import (
    activity_of,
    again,
    amount,
    and_waiters,
    asked_to_leave,
    is_in,
    names,
    place,
    processor,
    seconds,
    times,
    verb,
    wait_lines,
    waiting_for,
    way_out,
)

PATIENCE_S = 5.0
"""Seconds a wait or a silence has to last before somebody is blamed for it."""

_SETTLED_S = 1.0


class Condition(StrEnum):
    """The run as a whole, in one word."""

    HEALTHY = "healthy"
    STARTING = "starting"
    WARMING_UP = "warming-up"
    STALLED = "stalled"
    DEADLOCKED = "deadlocked"
    STARVED = "starved"
    LIVELOCKED = "livelocked"
    DEAD = "dead"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def well(self) -> bool:
        """Whether nobody has to do anything."""
        return self in {Condition.HEALTHY, Condition.STARTING, Condition.WARMING_UP, Condition.FINISHED}


@dataclass(frozen=True, slots=True)
class Blame:
    """A verdict."""

    condition: Condition
    sentence: str
    """What holds the run up, with numbers; one sentence without a full stop."""
    culprit: str | None = None
    """Id of the component to blame, if there is one."""
    evidence: tuple[str, ...] = ()
    """What else was seen, a line each."""
    remedy: str = ""
    """What to do, as an imperative; empty if nothing."""


def blame(looks: Sequence[Look], plan: Plan | None = None) -> Blame:
    """Who holds a run up.

    Args:
        looks: At its board, oldest first, of one moment or of several. Rates need two. The last one's time must be
            on the clock of the board: of a run that is over, the time of its last sign of life.
        plan: What its configuration lets one expect; None: the defaults.

    Returns:
        The verdict; `Condition.well` if there is nobody to blame.
    """
    flow = Flow(looks, plan or Plan())
    for rule in _RULES:
        found = rule(flow)
        if found is not None:
            return found
    raise AssertionError("the last rule always finds something")


# One rule a function, the surest first; each says None if it does not apply.


def _stopped(flow: Flow) -> Blame | None:
    """A process that was stopped by a signal explains whatever else stands still."""
    stopped = [name for name in flow.views if (process := flow.process(name)) is not None and process.stopped]
    if not stopped:
        return None
    supervisors = [name for name in stopped if flow.views[name].kind == "supervisor"]
    culprit = supervisors[0] if supervisors else max(stopped, key=lambda name: len(flow.waiters(name)))
    how = "stopped by a signal (SIGSTOP, Ctrl-Z or a debugger)"
    if supervisors:
        others = [name for name in stopped if name != culprit]
        also = f"; {names(others)} {verb(others, 'is', 'are')} stopped too" if others else ""
        sentence = f"{culprit} is {how}, so nobody looks after the run{also}"
    else:
        view = flow.views[culprit]
        sentence = f"{culprit} is {how} inside {place(view)}{and_waiters(flow, culprit)}"
    pids = " ".join(str(process.pid) for name in stopped if (process := flow.process(name)) is not None)
    return Blame(
        Condition.STALLED, sentence, culprit, wait_lines(flow),
        f"let it go on with `kill -CONT {pids}`, or end the debugger; the deadlines of the run still hold",
    )  # fmt: skip


def _gone(flow: Flow) -> Blame | None:
    """A process that ended while the board says that it runs."""
    gone = [view for view in flow.views.values() if flow.gone(view)]
    if not gone:
        return None
    view = max(gone, key=lambda one: len(flow.waiters(one.id)))
    sentence = (
        f"{view.id} (pid {view.pid}) is gone while the board says {view.state.name.lower()}: "
        f"it was inside {place(view)} {seconds(flow.age_s(view))} ago{and_waiters(flow, view.id)}"
    )
    others = tuple(f"{one.id} (pid {one.pid}) is gone too" for one in gone if one is not view)
    remedy = f"read the end of logs/{view.id}.log; the supervisor replaces what ends, so see whether it still runs"
    return Blame(Condition.DEAD, sentence, view.id, (*others, *wait_lines(flow)), remedy)


def _leaving(flow: Flow) -> Blame | None:
    """Somebody else's programs are asked to leave, and have their own time for that: the run is ending."""
    leaving = [view for view in flow.of_kind("command") if view.state is State.STOPPING]
    if not leaving:
        return None
    first, *others = sorted(leaving, key=lambda view: flow.age_s(view) - view.deadline_s)
    return _supervisor_silent(flow) or Blame(
        Condition.HEALTHY,
        f"the run is ending: {asked_to_leave(first, flow)}",
        evidence=tuple(asked_to_leave(view, flow) for view in others),
    )


def _waited_for_in_vain(flow: Flow) -> Blame | None:
    """Somebody waits for a component that has ended, or that does nothing and waits for nobody."""
    for name, on in flow.waits().items():
        waiter, culprit = flow.views[name], flow.views[on]
        if not _long(flow, waiter) or (culprit.state in ALIVE and culprit.activity not in IDLE):
            continue
        if culprit.kind in {"supervisor", ELSEWHERE}:
            continue
        remedy = f"read the end of logs/{on}.log and the last events of {on} in events.jsonl"
        if culprit.state in ALIVE:
            sentence = (
                f"{waiting_for(waiter, flow)}, which does nothing ({activity_of(culprit)}, {times(culprit, flow)})"
            )
            return Blame(Condition.STALLED, sentence, on, wait_lines(flow), remedy)
        how = {State.EMPTY: "was never started", State.FAILED: "has failed"}.get(culprit.state, "has ended")
        return Blame(
            Condition.DEAD, f"{waiting_for(waiter, flow)}, which {how}", on, wait_lines(flow),
            f"{remedy}; it does not come back by itself, so end the run and start it again",
        )  # fmt: skip
    return None


def _nobody_collects(flow: Flow) -> Blame | None:
    """The learner waits for rows, and every collector has ended."""
    collectors = flow.of_kind("collector")
    if not collectors or any(view.state in ALIVE for view in collectors):
        return None
    for learner in flow.of_kind("learner"):
        if learner.activity is Activity.WAIT_ROWS and _long(flow, learner):
            failed = [view.id for view in collectors if view.state is State.FAILED] or [view.id for view in collectors]
            restarts = sum(view.counters["restarts"] for view in collectors)
            return Blame(
                Condition.DEAD,
                f"learner has waited {seconds(flow.age_s(learner))} for rows, and no collector is left: "
                f"{names(failed)} ended after {amount(restarts, 'restart')}",
                failed[0],
                wait_lines(flow),
                f"read the end of logs/{failed[0]}.log, repair what it names and start the run again",
            )
    return None


def _deadlock(flow: Flow) -> Blame | None:
    """A ring of waits in which nothing has moved, while nobody outside it works on what they need."""
    ring = [flow.views[name] for name in cycle(flow.needs())]
    settled_s = _SETTLED_S if all(view.waits_on for view in ring) else PATIENCE_S
    if not ring or not all(flow.still(view) and flow.age_s(view) >= settled_s for view in ring):
        return None
    kinds = {view.kind for view in ring}
    outside = [view for view in flow.alive() if view not in ring and view.kind in kinds]
    if any(not flow.still(view) or (not view.waits_on and view.activity not in IDLE) for view in outside):
        return None  # e.g. the learner names one of several collectors, and another one is at work
    links = ", and ".join(waiting_for(view, flow) for view in ring)
    sentence = f"{links}: {'neither' if len(ring) == 2 else 'none of them'} can go on"
    remedy = "end the run; its stacks and events belong in a bug report, for no configuration may lead to this"
    plan = flow.plan
    for learner in flow.of_kind("learner"):
        steps = learner.counters["env_steps"]
        if plan.learning_starts is None or plan.capacity is None or plan.learning_starts <= plan.capacity:
            break
        sentence += (
            f", for the learner starts at {plan.learning_starts:,} environment steps, has {steps:,}, "
            f"and the replay holds {plan.capacity:,}"
        )
        remedy = "lower replay.learning_starts or raise replay.capacity, and start the run again"
    return Blame(Condition.DEADLOCKED, sentence, ring[0].id, wait_lines(flow), remedy)


def _stuck(flow: Flow) -> Blame | None:
    """A component has been in one activity, and not waiting, for longer than is usual."""
    stuck = [
        view
        for view in flow.alive()
        if view.activity not in IDLE
        and (view.activity is Activity.WAIT_ENV or not view.activity.name.startswith("WAIT_"))
        and flow.still(view)
        and flow.age_s(view) >= flow.soft_s(view)
    ]
    if not stuck:
        return None
    view = max(stuck, key=lambda one: (len(flow.waiters(one.id)), flow.age_s(one) / flow.limit_s(one)))
    sentence = (
        f"{view.id} has been inside {place(view)} for {seconds(flow.age_s(view))} "
        f"(limit {flow.limit_s(view):g} s){processor(flow, view)}{and_waiters(flow, view.id)}"
    )
    others = tuple(is_in(flow, one) for one in stuck if one is not view)
    return Blame(
        Condition.STALLED, sentence, view.id, (*_barrier(flow, view), *others, *wait_lines(flow)), way_out(view)
    )


def _supervisor_silent(flow: Flow) -> Blame | None:
    """The supervisor looks at its children several times a second, or something keeps it from doing so."""
    for view in flow.of_kind("supervisor"):
        busy = view.state in ALIVE and flow.still(view) and flow.age_s(view) >= PATIENCE_S
        if busy and flow.alive():
            return Blame(
                Condition.STALLED,
                f"{view.id} has not looked after the run for {seconds(flow.age_s(view))}",
                view.id,
                wait_lines(flow),
                "see what its process does (py-spy dump); a progress callback or a full terminal may hold it up",
            )
    return None


def _livelock(flow: Flow) -> Blame | None:
    """Counters of trouble rise while not one counter of work does, for longer than those who wait for it usually wait."""
    # Of components that others look after nobody here can see whether they get what they need.
    if flow.total(WORK) or not flow.total(CHURN) or flow.of_kind(ELSEWHERE):
        return None
    view = max(flow.views.values(), key=lambda one: sum(flow.rise(one, counter) for counter in CHURN))
    if flow.others_at_work({view.id}):
        return None
    counts = names(
        [f"{flow.rise(view, counter):,} {what}" for counter, what in CHURN.items() if flow.rise(view, counter)]
    )
    return Blame(
        Condition.LIVELOCKED,
        f"{view.id} moves and gets nowhere: {counts} within {seconds(flow.span_s)}, and not one environment step, update "
        f"or evaluation meanwhile{and_waiters(flow, view.id)}",
        view.id,
        wait_lines(flow),
        f"read the last events of {view.id} in events.jsonl: they say why its work comes to nothing",
    )


def _unasked(flow: Flow) -> Blame | None:
    """Servers alone, whose clients other launchers look after: nobody asks them for anything, and that is no standstill."""
    alive = flow.alive()
    if not alive or not flow.of_kind(ELSEWHERE) or any(view.activity is not Activity.WAIT_REQUESTS for view in alive):
        return None
    servers = [view.id for view in alive]
    latest = min(flow.age_s(view) for view in alive)
    return Blame(
        Condition.HEALTHY,
        f"{names(servers)} {verb(servers, 'is', 'are')} idle and {verb(servers, 'waits', 'wait')} for requests: "
        f"nobody has asked for anything for {seconds(latest)}",
    )


def _silence(flow: Flow) -> Blame | None:
    """Nothing moves, and nobody waits for anybody."""
    alive = [view for view in flow.alive() if view.kind != "evaluator"]
    if not alive or flow.waits() or not all(flow.still(view) for view in alive):
        return None
    latest = max(alive, key=lambda view: view.since_ns)
    if flow.age_s(latest) < PATIENCE_S or any(view.activity not in IDLE for view in alive):
        return None
    sentence = (
        f"nothing has moved for {seconds(flow.age_s(latest))} and nobody waits for anybody; "
        f"the last to move was {latest.id} ({activity_of(latest)})"
    )
    remedy = f"read the end of logs/{latest.id}.log; end the run with Ctrl-C, which saves its state"
    return Blame(Condition.STALLED, sentence, latest.id, wait_lines(flow), remedy)


def _coming_back(flow: Flow) -> Blame | None:
    """Somebody waits for a component that has failed and is about to be started again."""
    for waiter, view in ((flow.views[name], flow.views[on]) for name, on in flow.waits().items()):
        long = waiter.kind == "command" or _long(flow, waiter)  # a program's keeper shows a wait only once it is long
        if long and view.activity is Activity.WAIT_RESTART and view.state in ALIVE:
            return _started_again(view, flow)
    return None


def _started_again(view: SlotView, flow: Flow) -> Blame:
    sentence = f"{view.id} has failed and {again(view, flow)}{and_waiters(flow, view.id)}"
    why = f"read the end of logs/{view.id}.log for why it failed"
    return Blame(Condition.STARTING, sentence, view.id, wait_lines(flow), why)


def _starting(flow: Flow) -> Blame | None:
    """The learner, or every collector, has not begun."""
    workers = [view for view in flow.views.values() if view.kind not in {"supervisor", "probe", "evaluator", ELSEWHERE}]
    begun = {State.RUNNING, State.WAITING, State.STOPPING, State.ENDED, State.FAILED}
    for kind in dict.fromkeys(view.kind for view in workers):
        if any(view.state in begun for view in workers if view.kind == kind):
            continue
        starting = [view for view in flow.alive() if view.state in {State.STARTING, State.READY}]
        if not starting:
            return Blame(Condition.STARTING, f"the run is starting: no {kind} has a process yet")
        if paused := [view for view in starting if view.kind == kind and view.activity is Activity.WAIT_RESTART]:
            return _started_again(paused[0], flow)
        view = min(starting, key=lambda one: (one.kind == "evaluator", one.waits_on is not None, -flow.age_s(one)))
        return Blame(Condition.STARTING, f"the run is starting: {is_in(flow, view)} (limit {flow.limit_s(view):g} s)")
    return None


def _warming_up(flow: Flow) -> Blame | None:
    """Fewer environment steps are stored than the learner starts at."""
    starts = flow.plan.learning_starts
    for learner in flow.of_kind("learner"):
        have = learner.counters["env_steps"]
        if starts is None or learner.state not in ALIVE or learner.counters["updates"] or have >= starts:
            continue
        sentence = f"the learner starts at {starts:,} environment steps and has {have:,}"
        rate = flow.rate(learner, "env_steps")
        if rate:
            left_s = (starts - have) / rate
            sentence += f"; {rate:,.0f} more come in each second, so it starts in about {seconds(left_s)}"
        elif rate is not None:
            view = _slowest(flow, _makers(flow, learner))
            where = f"; {is_in(flow, view)}" if view is not None else ""
            sentence += f", and none came in within the last {seconds(flow.span_s)}{where}"
        return Blame(Condition.WARMING_UP, sentence, evidence=wait_lines(flow))
    return None


def _starved(flow: Flow) -> Blame | None:
    """The learner has waited for rows for long, and those who make them are slow."""
    for learner in flow.of_kind("learner", "trainer"):
        makers = _makers(flow, learner)
        view = _slowest(flow, makers)
        if view is None or not _long(flow, learner):
            continue
        steps = sum(flow.work_rate(maker) or 0.0 for maker in makers)
        rate = f", and {names([maker.id for maker in makers])} make {steps:,.1f} environment steps/s"
        pace = rate if flow.span_s and view.kind == "collector" else ""
        return Blame(
            Condition.STARVED,
            f"{learner.id} starves: it has waited {times(learner, flow)} for rows{pace}; {is_in(flow, view)}",
            view.id,
            (*_barrier(flow, view), *wait_lines(flow)),
            "make the environment's step faster, raise env.lanes and run.collectors, or lower collect.chunk_steps",
        )
    return None


def _commands(flow: Flow) -> Blame | None:
    """Somebody else's programs: only their signs of readiness and progress are known."""
    commands = flow.of_kind("command")
    if not commands:
        return None
    quiet = [view for view in commands if view.activity is Activity.WAIT_PROGRESS and view.state in ALIVE]
    if quiet:
        view = min(quiet, key=lambda one: (one.waits_on is not None, -flow.age_s(one)))
        return Blame(
            Condition.STALLED,
            f"{view.id} has shown no progress for {seconds(flow.age_s(view))} "
            f"(limit {view.deadline_s:g} s){and_waiters(flow, view.id)}",
            view.id,
            wait_lines(flow),
            f"read the end of logs/{view.id}.log, and see where it is: py-spy dump --pid of its program",
        )
    doing = [f"{view.id} {_fares(view, flow)}" for view in commands]
    return Blame(Condition.HEALTHY, f"the run gets on: {names(doing)}", evidence=wait_lines(flow))


def _fares(view: SlotView, flow: Flow) -> str:
    """How somebody else's program fares, in a word or two."""
    if view.activity is Activity.WAIT_RESTART and view.state in ALIVE:
        return again(view, flow)
    words = {State.RUNNING: "runs", State.STARTING: "starts", State.WAITING: "waits", State.EMPTY: "was not started"}
    return words.get(view.state, view.state.name.lower())


def _well(flow: Flow) -> Blame:
    """Nobody is to blame: say who sets the pace."""
    learners, collectors = flow.of_kind("learner", "trainer"), flow.of_kind("collector")
    if learners and not any(view.state in ALIVE for view in learners):
        busy = [is_in(flow, view) for view in flow.alive()]
        return Blame(Condition.HEALTHY, f"training is over; {names(busy) or 'the run is closing down'}")
    if flow.span_s <= 0.0:
        doing = [f"{view.id} was inside {place(view)} for {times(view, flow)}" for view in flow.alive()]
        return Blame(Condition.HEALTHY, f"nobody stood still: {names(doing) or 'no component had begun'}")
    if flow.of_kind("orchestrator", "inference", "twin"):
        return Blame(Condition.HEALTHY, _language_pace(flow))
    steps, updates = flow.total(["env_steps"]), sum(flow.rise(view, "updates") for view in learners)
    if learners and "env_steps" in learners[0].counters:
        steps = sum(flow.rise(view, "env_steps") for view in learners)  # collectors count the same steps once more
    sentence = (
        f"the run gets on: {steps / flow.span_s:,.0f} environment steps/s and {updates / flow.span_s:,.0f} updates/s"
    )
    return Blame(Condition.HEALTHY, sentence + _pace(flow, learners, collectors))


_RULES: tuple[Callable[[Flow], Blame | None], ...] = (
    _stopped,
    _gone,
    _leaving,
    _waited_for_in_vain,
    _nobody_collects,
    _deadlock,
    _stuck,
    _supervisor_silent,
    _livelock,
    _unasked,
    _silence,
    _coming_back,
    _starting,
    _warming_up,
    _starved,
    _commands,
    _well,
)


def _makers(flow: Flow, learner: SlotView) -> list[SlotView]:
    """Whoever makes the rows it waits for; nobody if it does not wait for any."""
    if learner.activity not in {Activity.WAIT_ROWS, Activity.WAIT_RESULTS}:
        return []
    collectors = [view for view in flow.of_kind("collector") if view.state in ALIVE]
    return collectors or [flow.views[name] for name in (learner.waits_on,) if name in flow.views]


def _slowest(flow: Flow, makers: Sequence[SlotView]) -> SlotView | None:
    """Who has been at work on one thing for the longest."""
    busy = [view for view in makers if view.activity not in IDLE and not view.waits_on]
    return max(busy, key=flow.age_s, default=None)


def _language_pace(flow: Flow) -> str:
    """Rollouts and steps of a language-model run, and who waits for whom."""
    orchestrators, trainers = flow.of_kind("orchestrator", "twin"), flow.of_kind("trainer", "twin")
    rollouts = sum(flow.rise(view, "episodes") for view in orchestrators) / flow.span_s
    updates = sum(flow.rise(view, "updates") for view in trainers) / flow.span_s
    sentence = f"the run gets on: {rollouts:,.1f} rollouts/s and {updates:,.1f} updates/s"
    waits = tuple(waiting_for(flow.views[name], flow) for name in flow.waits())
    return f"{sentence}; {waits[0]}" if waits else sentence


def _pace(flow: Flow, learners: Sequence[SlotView], collectors: Sequence[SlotView]) -> str:
    """Who waits for whom by design."""
    credit = _share(flow, [view.id for view in collectors], Activity.WAIT_CREDIT)
    rows = _share(flow, [view.id for view in learners], Activity.WAIT_ROWS)
    if credit >= 0.5 and credit >= rows:
        lag = flow.plan.max_policy_lag
        if lag is not None:
            return (
                f"; the learner sets the pace, and the collectors wait for it because of rollout.max_policy_lag {lag}"
            )
        ratio = f" of {flow.plan.ratio:g}" if flow.plan.ratio is not None else ""
        return f"; the learner sets the pace, and the collectors wait for it because of the replay ratio{ratio}"
    if rows >= 0.5:
        return "; the environments set the pace, and the learner waits for their rows"
    return ""


def _share(flow: Flow, ids: Sequence[str], activity: Activity) -> float:
    """In which share of the looks these components were in ``activity``."""
    seen = [view.activity is activity for look in flow.looks for view in look.views if view.id in ids]
    return sum(seen) / len(seen) if seen else 0.0


def _long(flow: Flow, waiter: SlotView) -> bool:
    """Whether it waits for longer than is worth keeping silent about."""
    return flow.age_s(waiter) >= PATIENCE_S and flow.still(waiter)


def _barrier(flow: Flow, view: SlotView) -> tuple[str, ...]:
    """The lanes that cannot be stepped meanwhile."""
    if view.lane < 0 or flow.plan.group_size < 2 or view.activity not in {Activity.ENV_STEP, Activity.ENV_RESET}:
        return ()
    others = flow.plan.group_size - 1
    return (f"{amount(others, 'other lane')} of its group {'waits' if others == 1 else 'wait'} for lane {view.lane}",)
