"""A run of somebody else's processes, from its file to its summary: who is started when, who is to blame, who is ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.commands.chronicle import Chronicle, Onlooker
from headrace.commands.config import ProcessConfig, SuperviseConfig
from headrace.commands.keeper import KILL_S, SHOWN_PROCESSES, Orders, pace_s
from headrace.commands.ordering import blocked_by, hopeless, needed_by, next_to_stop, startable
from headrace.commands.roots import Sign, Stage, Standing, condition, never_started, path_to_root, sentence, silent_too
from headrace.commands.tree import in_words_below
from headrace.core.clock import Clock
from headrace.core.errors import (
    ComponentDied,
    ComponentError,
    ComponentStalled,
    HeadraceError,
    RestartBudgetSpent,
)
from headrace.ipc.forkserver import ForkServer
from headrace.supervision.child import tail
from headrace.supervision.messages import Report
from headrace.supervision.spec import (
    NOT_STARTED,
    BecameReady,
    ChildSpec,
    Event,
    Exited,
    ForkServerLost,
    GiveUp,
    Overdue,
    Reported,
    Restart,
    RestartBudget,
    Started,
)
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.board import Activity, Board, State
from headrace.telemetry.events import EventLog
from headrace.telemetry.summaries import left

KEEPER_S = 15.0
"""Seconds a keeper may show no sign of its own life, or be later than what it should have noticed itself."""

_POLL_S = 0.25
_TAIL_LINES = 8


@dataclass(frozen=True, slots=True)
class Places:
    """Where a run keeps what it leaves; the folders exist."""

    board: Path
    events: Path
    logs: Path
    stacks: Path


def supervise(
    config: SuperviseConfig,
    places: Places,
    onlooker: Onlooker,
    interrupts: Callable[[], int],
    clock: Clock,
    write: Callable[[Mapping[str, Any]], None],
    require_there: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run it to its end, whatever the end.

    Args:
        config: What to run.
        places: Where.
        onlooker: Who is shown it.
        interrupts: How often the user has asked to end it: once in order, twice at once.
        clock: Monotonic, the machine's.
        write: Keeps the summary, see `headrace.telemetry.summaries.left`.
        require_there: Raises once the places are not there any more.

    Returns:
        The summary, which was handed to ``write`` as well; ``unwritten``: why it could not be written.
    """
    names = list(config.process)
    components = [("supervisor", "supervisor"), *((name, "command") for name in names)]
    with (
        Board.create(places.board, components, events_file=places.events) as board,
        EventLog(places.events, clock) as events,
    ):
        board.slot("supervisor").set_state(State.RUNNING)
        launch = Launch(config, places, board, Chronicle(events, onlooker, clock), clock)
        try:
            with _supervisor(config, places, board, clock) as supervisor:
                launch.run(supervisor, interrupts, require_there)
        except HeadraceError as error:
            launch.fail(error)
        except BaseException as error:
            # Not of the run itself: a bug, or whoever looks on has raised.
            launch.fail(
                ComponentDied(
                    _raised(error), error=error, fix="see the traceback; if it ends inside Headrace, file a bug"
                )
            )
            board.slot("supervisor").set_state(State.FAILED)
            left(launch.summary(), write)
            raise
        summary = launch.summary()
        board.slot("supervisor").set_state(State.FAILED if summary["error"] else State.ENDED)
        return left(summary, write)


@contextmanager
def _supervisor(config: SuperviseConfig, places: Places, board: Board, clock: Clock) -> Iterator[Supervisor]:
    specs = [_spec(name, process, places) for name, process in config.process.items()]
    with (
        ForkServer(["headrace.commands.keeper"], {}, places.logs / "forkserver.log", children_adopt=True) as server,
        Supervisor(server, board, specs, RestartBudget(), clock, places.logs, places.stacks) as supervisor,
    ):
        yield supervisor


def _spec(name: str, process: ProcessConfig, places: Places) -> ChildSpec:
    orders = Orders(process, places.board.absolute())
    deadlines = {Activity.START: process.ready.start_s + KEEPER_S, Activity.COMMAND: KEEPER_S}
    if process.progress is not None:
        deadlines[Activity.WAIT_PROGRESS] = process.progress.progress_s + KEEPER_S
    again = process.restart
    return ChildSpec(
        id=name,
        kind="command",
        target="headrace.commands.keeper:keep",
        payload=lambda _incarnation: orders,
        deadlines=deadlines,
        stop_timeout_s=process.stop_s + KILL_S + KEEPER_S,
        significant=process.essential,
        budget=RestartBudget(max_restarts=again.max, window_s=again.window_s, backoff_s=again.backoff_s),
    )


class Launch:
    """Follows the events of one run and answers each.

    Args:
        config: What to run.
        places: Where.
        board: Of the run.
        chronicle: Where what happens is told.
        clock: Monotonic.
    """

    def __init__(
        self, config: SuperviseConfig, places: Places, board: Board, chronicle: Chronicle, clock: Clock
    ) -> None:
        self._config, self._places, self._board = config, places, board
        self._chronicle, self._say, self._clock = chronicle, chronicle.say, clock
        self._needs = {name: process.needs for name, process in config.process.items()}
        self._standings = {name: _standing(name, process, clock.now()) for name, process in config.process.items()}
        self._satisfied: set[str] = set()
        """Those that others may count on."""
        self._facts: dict[str, dict[str, Any]] = {
            name: {"restarts": 0, "faults": 0, "ready_after_s": None, "signs": 0} for name in config.process
        }
        self._begun_s = clock.now()
        self._why: str | None = None
        """Why the run is being ended; None: it goes on."""
        self._asked: set[str] = set()
        self._coming: set[str] = set()
        """Those that failed and are about to be started again."""
        self._left_out: list[str] = []
        self._interrupted = 0
        self._error: HeadraceError | None = None
        self._culprit: str | None = None
        self._broken: Exception | None = None
        """What was raised while others still had to leave."""

    def run(self, supervisor: Supervisor, interrupts: Callable[[], int], require_there: Callable[[], None]) -> None:
        """Start everybody in order, follow it to the end, stop everybody in reverse order.

        Raises:
            Exception: What whoever looks on has raised, or a bug; everybody has left in order.
        """
        self._supervisor = supervisor
        self._guarded(self._say, "started", "supervisor", f"run started: {', '.join(self._needs)}")
        self._guarded(self._start_due)
        while self._why is None or supervisor.alive():
            events = supervisor.poll(_POLL_S)
            self._guarded(require_there)  # first: nobody is to be blamed for what follows from that
            for event in events:
                self._guarded(self._on, event)
            self._guarded(self._heed, interrupts)
            for step in (self._start_due, self._see_whether_over):
                if self._why is None:
                    self._guarded(step)
            if self._why is not None:
                self._stop_next()
        _note_never_started(self._standings, self._board)
        if self._broken is not None:
            raise self._broken

    def _guarded(self, step: Callable[..., None], *args: object) -> None:
        """Take one step of the run; what it raises ends the run."""
        try:
            step(*args)
        except Exception as error:  # noqa: BLE001 - it must keep nobody from leaving in order; `run` raises it then
            if not isinstance(error, HeadraceError):
                self._chronicle.fall_silent()
            self._broken = self._broken or error
            self._end(error.what if isinstance(error, HeadraceError) else _raised(error))

    def fail(self, error: HeadraceError) -> None:
        """Note the reason the run fails for; the first one counts."""
        if self._error is None:
            self._error = error
            self._say("fault", "supervisor", error.what, code=error.code)

    def summary(self) -> dict[str, Any]:
        """What the run has come to."""
        error = self._error
        outcome, code = "completed", 0
        if error is not None:
            outcome, code = "stalled" if isinstance(error, ComponentStalled) else "failed", error.exit_code
        elif self._interrupted:
            outcome, code = "interrupted", 130
        processes = {name: self._facts[name] | _ended(standing) for name, standing in self._standings.items()}
        count = len(processes)
        self._say("ended", "supervisor", f"run ended: {outcome}{f' ({self._why})' if self._why else ''}")
        return {
            "kind": "commands",
            "outcome": outcome,
            "exit_code": code,
            "error": str(error) if error is not None else None,
            "culprit": self._culprit,
            "why": self._why,
            "wall_s": round(self._clock.now() - self._begun_s, 3),
            "did": f"{count} process{'' if count == 1 else 'es'}",
            "left_out": self._left_out,
            "processes": processes,
        }

    # What happened.

    def _on(self, event: Event) -> None:
        match event:
            case Started(name, pid, incarnation):
                now_s = self._clock.now()
                self._coming.discard(name)
                self._stand(name, stage=Stage.STARTING, since_s=now_s, started_s=now_s, progress_s=None, trouble=None)
                word = "started" if incarnation == 0 else f"started again (restart {incarnation})"
                self._say("started" if incarnation == 0 else "restarted", name, f"{name} {word}", pid=pid)
            case BecameReady(name, _, facts):
                now_s = self._clock.now()
                self._stand(name, stage=Stage.READY, since_s=now_s, progress_s=now_s)
                self._facts[name]["ready_after_s"] = facts["after_s"]
                self._satisfied.add(name)
                self._say("ready", name, f"{name} is ready after {facts['after_s']:.3g} s")
                if self._why is None:
                    self._start_due()  # at once: it may be gone in the very next event
            case Reported(name, Report("lines", facts)):
                self._chronicle.lines(name, facts)
            case Reported(name, Report("progress", facts)):
                self._stand(name, progress_s=facts["progress_s"])
                self._facts[name]["signs"] = facts["signs"]
            case Reported(name, Report("left", facts)):
                self._on_left(name, facts)
            case Overdue():
                self._say("stacks", event.id, f"the keeper of {event.id} is overdue: {event}")
            case Exited():
                self._on_exit(event)
            case ForkServerLost(error):
                self.fail(error)
                self._end(f"the fork server is gone: {error.what}")

    def _on_left(self, name: str, facts: dict[str, Any]) -> None:
        if not facts["heeded"]:
            limit_s = self._config.process[name].stop_s
            self._say("killed", name, f"{name} did not leave within {limit_s:g} s and was killed")
        if facts["alive"]:
            self._say("alive", name, f"{name} leaves processes that could not be killed: {'; '.join(facts['alive'])}")

    def _on_exit(self, event: Exited) -> None:
        name, now_s = event.id, self._clock.now()
        self._coming.discard(name)  # it may be that it could not be started again
        self._satisfied.discard(name)
        if event.asked:
            self._on_stopped(event)
            return
        if event.expected:
            self._on_done(name, was_ready=event.was_ready)
            return
        self._facts[name]["faults"] += 1
        stalled = isinstance(event.error, ComponentStalled) or event.stalled is not None
        self._stand(name, stage=Stage.FAILED, since_s=now_s, trouble=_trouble(event), stalled=stalled)
        path = path_to_root(name, self._standings, now_s)
        text = sentence(path, self._standings, now_s)
        self._say("fault", name, text, pid=event.pid, culprit=path[-1], error=event.error, log_tail=event.log_tail)
        if self._why is not None:
            return
        decision = self._supervisor.decide(event)
        if isinstance(decision, Restart):
            self._facts[name]["restarts"] += 1
            self._coming.add(name)
            self._supervisor.restart(name)
        elif isinstance(decision, GiveUp):
            self._give_up(event, path, decision)
        else:
            self._left_out.append(name)
            self._say("degraded", name, f"the run goes on without {name}: {decision.reason}")

    def _on_stopped(self, event: Exited) -> None:
        """Whatever its exit code: whether it failed a moment before it was told to stop, or then, is an accident."""
        name, trouble = event.id, None if event.expected else _trouble(event)
        self._stand(name, stage=Stage.STOPPED, since_s=self._clock.now(), trouble=trouble)
        slot = self._board.slot(name)  # nobody else's any more
        slot.set_state(State.ENDED)
        slot.count("faults", self._facts[name]["faults"])
        otherwise = "" if trouble is None else f", but not in order: {trouble}"
        self._say("stopped", name, f"{name} has left{otherwise}", pid=event.pid)

    def _on_done(self, name: str, *, was_ready: bool) -> None:
        ready = self._config.process[name].ready
        self._stand(name, stage=Stage.DONE, since_s=self._clock.now())
        if was_ready or ready.done or ready.alive_s is not None:
            self._satisfied.add(name)
        self._say("done", name, f"{name} is done")

    def _give_up(self, event: Exited, path: list[str], decision: GiveUp) -> None:
        """It ends the run."""
        error = event.error or event.to_error()
        what = sentence(path, self._standings, self._clock.now())
        kind = type(error) if isinstance(error, ComponentError) else ComponentDied  # the file was not wrong
        if decision.spent and not isinstance(error, ComponentStalled):
            kind = RestartBudgetSpent
        facts = {**error.facts, **({"restarts": decision.reason} if decision.spent else {})}
        self._blame(kind(what, **facts, fix=error.fix), path, {event.id: event.log_tail})

    def _blame(self, error: HeadraceError, path: list[str], tails: dict[str, list[str]]) -> None:
        """End the run, and say who is to blame, with that one's last words."""
        root = path[-1]
        idle = never_started(needed_by(root, self._needs), self._standings)
        if idle:
            error.facts["never_started"] = ", ".join(idle)
        if root != path[0] and root in self._supervisor.alive():
            below = in_words_below(self._supervisor.pid(root))
            error.facts[f"processes of {root}"] = "; ".join(below[:SHOWN_PROCESSES])
        if silent := silent_too(path, self._standings, self._clock.now()):
            error.facts["silent_too"] = ", ".join(silent)
        lines = tails.get(root) or tail(self._places.logs / f"{root}.log", 0)
        if lines:
            error.facts[f"last lines of {root}"] = "".join(f"\n    {line[:300]}" for line in lines[-_TAIL_LINES:])
        if root != path[0]:
            error.fix = f"read the last lines of logs/{root}.log"
        self._error, self._culprit = error, root
        self._chronicle.note("verdict", root, f"{root} is to blame")
        self._end(f"{path[0]} failed")

    # What follows.

    def _start_due(self) -> None:
        waiting = [name for name, standing in self._standings.items() if standing.stage is Stage.WAITING]
        for name in startable(self._needs, waiting, self._satisfied):
            if self._why is not None:
                return
            try:
                self._supervisor.start(name)
            except HeadraceError as error:
                self._on_exit(Exited(id=name, exit_code=1, how=NOT_STARTED, error=error))
            else:
                self._stand(name, stage=Stage.STARTING, since_s=self._clock.now())
        for name in waiting:
            on = blocked_by(name, self._needs, self._satisfied)
            view = self._board.read(name)
            if on is not None and (view.activity, view.waits_on) != (Activity.WAIT_NEEDED, on):
                slot = self._board.slot(name)  # nobody else's as long as it has no process
                slot.set_state(State.STARTING)
                slot.waiting(Activity.WAIT_NEEDED, on=on)

    def _see_whether_over(self) -> None:
        """Whether all is done, nobody is left, or the time is over."""
        limit_s = self._config.run.run_duration_s
        if limit_s is not None and self._clock.now() - self._begun_s >= limit_s:
            self._end(f"run.run_duration_s = {limit_s:g} is over")
            return
        self._see_who_cannot_start()
        lost = self._lost()
        over = {name for name, standing in self._standings.items() if standing.stage is Stage.DONE} | lost
        ends = [name for name, process in self._config.process.items() if process.lifetime == "until-done"]
        missing = [name for name in ends if name in lost]
        if ends and missing != ends and over.issuperset(ends):
            failed = f"; failed: {', '.join(missing)}" if missing else ""
            self._end(f"all that has an end is over{failed}")
        elif (ends and missing == ends) or over == set(self._needs):
            why = "nothing that has an end is done" if ends else "no process is left"
            self.fail(ComponentDied(why, fix="read the faults in events.jsonl"))
            self._end(why)

    def _see_who_cannot_start(self) -> None:
        """Whoever waits for one that will never be ready does not wait on."""
        waiting = {name for name, standing in self._standings.items() if standing.stage is Stage.WAITING}
        done = {name for name, standing in self._standings.items() if standing.stage is Stage.DONE}
        now_s = self._clock.now()
        for name, needed in hopeless(self._needs, waiting, self._lost() | (done - self._satisfied)).items():
            trouble = f"cannot be started: it needs {needed}, which {condition(self._standings[needed], now_s)}"
            self._stand(name, stage=Stage.FAILED, since_s=now_s, trouble=trouble)
            self._facts[name]["faults"] += 1
            path = path_to_root(name, self._standings, now_s)
            self._say("fault", name, f"{name} {trouble}", culprit=path[-1])
            if not self._config.process[name].essential:
                self._left_out.append(name)
            elif self._why is None:
                self._blame(ComponentDied(f"{name} {trouble}", fix=f"read logs/{path[-1]}.log"), path, {})

    def _lost(self) -> set[str]:
        """Those that failed and are not started again."""
        failed = {name for name, standing in self._standings.items() if standing.stage is Stage.FAILED}
        return failed - self._coming

    def _stop_next(self) -> None:
        """In reverse order: nobody is stopped while somebody who needs it lives."""
        wave = [name for name in next_to_stop(self._needs, self._supervisor.alive()) if name not in self._asked]
        if wave:
            self._asked |= set(wave)
            self._supervisor.stop(wave, self._why or "")

    def _end(self, why: str) -> None:
        if self._why is None:
            self._why = why
            self._supervisor.stop(set(self._needs) - set(self._supervisor.alive()), why)  # none is started again
            self._say("ending", "supervisor", f"everybody is stopped, the last first: {why}")

    def _heed(self, interrupts: Callable[[], int]) -> None:
        count = interrupts()
        if count > self._interrupted:
            self._interrupted = count
            if count > 1:
                self._supervisor.kill_all()
            self._end("interrupted")

    def _stand(self, name: str, **changes: Any) -> None:
        self._standings[name] = replace(self._standings[name], **changes)


def _standing(name: str, process: ProcessConfig, now_s: float) -> Standing:
    sign, slack_s, progress = Sign.NONE, 0.0, process.progress
    if progress is not None:
        sign = Sign.RESULTS if progress.http is None else Sign.WORK if progress.pending is not None else Sign.ANSWERS
        slack_s = 0.0 if progress.log is not None else pace_s(progress.progress_s)
    return Standing(id=name, needs=tuple(process.needs), since_s=now_s, sign=sign, slack_s=slack_s)


def _note_never_started(standings: Mapping[str, Standing], board: Board) -> None:
    for name, standing in standings.items():
        if standing.started_s is None:
            slot = board.slot(name)
            slot.enter(Activity.NONE)
            slot.set_state(State.EMPTY)


def _raised(error: BaseException) -> str:
    """What is no fault of a process, in words."""
    return f"the supervisor, or whoever looks on, raised {type(error).__name__}"


def _trouble(event: Exited) -> str:
    """What happened to it, as the end of a sentence that begins with its name."""
    if event.error is not None:
        told, unstarted = event.error.what.removeprefix(f"{event.id} "), NOT_STARTED.removeprefix("it ")
        return told if event.how != NOT_STARTED or told.startswith(unstarted) else f"{unstarted}: {told}"
    if event.stalled is not None:
        return f"was killed because its keeper was stuck: {event.stalled}"
    return f"lost its keeper: {event.how}"


def _ended(standing: Standing) -> dict[str, Any]:
    return {"stage": standing.stage.value, "trouble": standing.trouble}
