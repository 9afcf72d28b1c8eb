"""One language-model run, from configuration to summary: the parent's side. It never blocks on a child."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import ComponentDied, ComponentStalled, HeadraceError, RunDirectoryError
from headrace.ipc.forkserver import Advice, ForkServer
from headrace.llm.config import RLConfig
from headrace.llm.launch.aside import Aside
from headrace.llm.launch.blaming import culprit_of, error_of, gone_for_good
from headrace.llm.launch.children import Shared, Targets, child_specs, components, plan_of, standstill_s
from headrace.llm.launch.chronicle import Chronicle, OnLine
from headrace.llm.launch.deciding import AskToStop, Begin, BeginAgain, Cast, Course, Fail, Phase, Step
from headrace.llm.launch.following import LogFollower
from headrace.llm.launch.freezes import Freezes
from headrace.llm.launch.place import Endpoints, LanguageRun, read_endpoints, write_endpoints
from headrace.llm.launch.rooting import find_root, waits_in_vain
from headrace.llm.launch.summary import Tally, audited, summarize, unbalanced
from headrace.llm.launch.wording import stage_line
from headrace.llm.payloads import INFERENCE, TRAINER, TWIN, Basics
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.premises import Premises
from headrace.runtime.standstill import StandstillWatch
from headrace.supervision.messages import Done, Report
from headrace.supervision.spec import (
    BecameReady,
    ChildSpec,
    Event,
    Exited,
    ForkServerLost,
    Nothing,
    Overdue,
    Reported,
    RestartBudget,
    Started,
)
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.board import Board, State
from headrace.telemetry.events import EventLog
from headrace.telemetry.looks import ALIVE, Look
from headrace.telemetry.metrics import MetricsSink
from headrace.telemetry.summaries import left

_POLL_S = 0.25
_GRACE_S = 5.0
"""Seconds a component has to leave once another one's end has ended the run; the trainer, which saves, has longer."""
_IN_VAIN_S = 2.0
_PRELOAD = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
)
"""transformers imports these only when they are used, which takes each process several seconds."""
_ADVICE = Advice(late="see its log for what it was importing, or raise deadlines.start_s")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be run."""

    config: RLConfig
    place: LanguageRun
    """Made and held by the caller."""
    cast: Cast
    run_id: str
    run: Path
    """The run directory that the components share; of a whole run that of ``place``."""
    resume: Path | None = None
    """Checkpoint to go on from."""
    endpoint: str | None = None
    """Of a server that another launcher looks after."""
    targets: Targets = field(default_factory=Targets)
    preload: tuple[str, ...] = _PRELOAD
    """Imported once for all processes."""
    sessions: int = 1
    tally: Tally = field(default_factory=Tally)
    """What earlier sessions have told."""
    began_s: float = 0.0
    """Seconds that earlier sessions took."""
    notes: tuple[str, ...] = ()
    """What was found damaged when it was made ready to go on, and what follows from that."""
    aside: Aside | None = None
    """What is put aside so that it can go on."""

    @property
    def endpoints_file(self) -> Path:
        """Where its components find each other."""
        return self.run / "endpoints.json"

    @property
    def basics(self) -> Basics:
        """What all components are told."""
        own = self.place.path.absolute()
        run = self.run.absolute()
        return Basics(config=self.config, run=run, run_id=self.run_id, own=None if own == run else own)


def launch(what: Launch, on_line: OnLine | None = None, on_turn: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run it to its end, whatever the end. Where it goes on and learns nothing, a result of before stays.

    Args:
        what: See there.
        on_line: Called with every line that a component prints, and every one that the launcher has to say.
        on_turn: Called several times a second, whether or not there is a line; it must not wait.

    Returns:
        What ``summary.json`` holds, which is written as well (``unwritten``: why it could not be), unless one of before stays;
        ``exit_code`` says how the run ended.

    Raises:
        ConfigError: The server's port is taken.
        RunDirectoryError: It goes on, and its directory cannot be written.
    """
    with Interrupts() as interrupts:  # until all is written: whoever asks once more does not lose how the run ended
        try:
            return _launch(what, on_line, on_turn, interrupts)
        finally:
            if what.aside is not None:
                what.aside.settle()


def _launch(
    what: Launch, on_line: OnLine | None, on_turn: Callable[[], None], interrupts: Interrupts
) -> dict[str, Any]:
    clock = MonotonicClock()
    place, config = what.place, what.config
    with ExitStack() as stack:
        serves = INFERENCE in what.cast.ids
        if serves:  # nobody is to be sent to where an earlier one was
            write_endpoints(what.endpoints_file, Endpoints(what.run_id))
        shared = stack.enter_context(Shared(config, serves=serves, alone=place.path != what.run))
        shared.endpoint = what.endpoint or shared.endpoint
        if serves:
            stack.enter_context(_told_where(what, shared.endpoint))
        parts = components(what.cast)
        with what.aside.making_way() if what.aside is not None else nullcontext():
            board = stack.enter_context(Board.create(place.board_file, parts, what.run_id, place.events_file))
        board.slot("supervisor").set_state(State.RUNNING)
        events = stack.enter_context(EventLog(place.events_file, clock, clock.now() - what.began_s))
        resumed_at = what.tally.steps if what.resume is not None else None
        metrics = stack.enter_context(MetricsSink(place.metrics_file, place.tensorboard_dir, resumed_at=resumed_at))
        follower = LogFollower({name: place.log_file(name) for name in what.cast.ids})
        chronicle = Chronicle(events, metrics, what.tally, follower, clock, config.run.steps, on_line)
        _tell_beginning(what, chronicle, shared.endpoint if serves else None)
        launcher = Launcher(what, chronicle, board, clock)
        specs = child_specs(what.basics, what.cast, shared, what.targets, what.resume)
        try:
            with (
                launcher.premises.told_first(),
                _fork_server(what) as server,
                _supervisor(what, server, board, specs, clock) as supervisor,
            ):
                launcher.run(supervisor, interrupts, lambda: server.awake or server.error is not None, on_turn)
        except HeadraceError as error:
            launcher.fail(error, "supervisor")
        except BaseException as error:
            # Not of the run itself: a bug, or whoever looks on has raised.
            launcher.fail(_own_failure(error), "supervisor")
            board.slot("supervisor").set_state(State.FAILED)
            left(launcher.summary(), place.write_summary)
            raise
        chronicle.follow(*what.cast.ids)
        summary = launcher.summary()
        if what.aside is not None and what.aside.in_vain(summary):
            text = "nothing was learned since the run was gone on with: it stays as it was, with its earlier summary"
            chronicle.say("kept", "supervisor", text, tell=True)
        board.slot("supervisor").set_state(State.FAILED if summary["error"] else State.ENDED)
        return left(summary, place.write_summary)


def _tell_beginning(what: Launch, chronicle: Chronicle, endpoint: str | None) -> None:
    """From what it goes on, where its own server will answer, and what was found damaged."""
    if what.resume is not None:  # before all else: whoever reads the events counts this session's time from here
        text = f"goes on from checkpoint {what.resume.name}"
        chronicle.say("resumed", "supervisor", text, checkpoint=what.resume.name, session=what.sessions)
    if endpoint is not None:
        chronicle.show(INFERENCE, f"answers at {endpoint}/v1 when it is ready", "event")
    for text in what.notes:
        chronicle.report("supervisor", "alarm", {"kind": "damaged", "text": text})


@contextmanager
def _told_where(what: Launch, endpoint: str | None) -> Iterator[None]:
    """``endpoints.json`` says where the server is, while it is there."""
    told = Endpoints(what.run_id, endpoint, socket.gethostname())
    write_endpoints(what.endpoints_file, told)
    try:
        yield
    finally:
        with suppress(RunDirectoryError):  # the folder may be another one's by now, or gone
            if read_endpoints(what.endpoints_file) == told:
                write_endpoints(what.endpoints_file, Endpoints(what.run_id))


def _supervisor(what: Launch, server: ForkServer, board: Board, specs: Sequence[ChildSpec], clock: Clock) -> Supervisor:
    place = what.place
    budget = RestartBudget(max_restarts=0)  # each that may be started again has one of its own
    return Supervisor(server, board, specs, budget, clock, place.logs_dir, place.stacks_dir)


@contextmanager
def _fork_server(what: Launch) -> Iterator[ForkServer]:
    modules = (*what.preload, *(what.targets.of(name, what.config).partition(":")[0] for name in what.cast.ids))
    environment = dict.fromkeys(_THREAD_VARIABLES, "1") | {"TOKENIZERS_PARALLELISM": "false"}
    log, timeout_s = what.place.log_file("forkserver"), what.config.deadlines.start_s
    with ForkServer(modules, environment, log, start_timeout_s=timeout_s, advice=_ADVICE) as server:
        yield server


class Launcher:
    """Follows the events of one run and answers each.

    Args:
        what: Is run.
        chronicle: Where what happens is told.
        board: Of the run.
        clock: Monotonic.
    """

    def __init__(self, what: Launch, chronicle: Chronicle, board: Board, clock: Clock) -> None:
        self._what = what
        self._config = what.config
        self._chronicle, self._say = chronicle, chronicle.say
        self._board, self._clock = board, clock
        place = what.place
        kept = place.checkpoints_dir, place.weights_dir, place.rollouts_dir
        self.premises = Premises(place.path, place.lock_file, kept)
        """Of its run directory."""
        self._course = Course(what.cast)
        self._error: HeadraceError | None = None
        self._culprit: str | None = None
        self._exited: dict[str, Exited] = {}
        """The last exit of each that has ended."""
        self._interrupts_seen = 0
        self._training_s: list[float] = []
        """Begin and end."""
        self._due_s: dict[str, float] = {}
        """When somebody who was told to leave for another one's fault is killed."""
        self._waits: dict[str, Look] = {}
        """The newest look in which each waited for somebody: whoever gives up may yet save what it has before it leaves."""
        self._plan = plan_of(what.config)
        self._standstill = StandstillWatch(standstill_s(what.config.deadlines), self._plan, board.read_all)
        self._freezes = Freezes(what.config.deadlines.generate_s)

    def run(
        self,
        supervisor: Supervisor,
        interrupts: Interrupts,
        imported: Callable[[], bool],
        on_turn: Callable[[], None],
    ) -> None:
        """Start everything, follow it to its end.

        Args:
            supervisor: Of the children.
            interrupts: Heeded.
            imported: Whether children can be started at once, or no more.
            on_turn: See `launch`.
        """
        self._supervisor = supervisor
        self._say("started", "supervisor", f"run started: {self._config.run.schedule}", run_id=self._what.run_id)
        self._chronicle.show("supervisor", stage_line((), self._config), "event")
        due_s = self._clock.now() + self._config.deadlines.start_s
        while not (imported() or interrupts.count) and self._clock.now() < due_s:
            supervisor.poll(_POLL_S)  # so that an interrupt need not wait for imports
            on_turn()
        if interrupts.count:
            self._watch_interrupts(interrupts)
        else:
            self._follow(self._course.begin())
        while self._course.phase is not Phase.OVER:
            events = supervisor.poll(_POLL_S)
            self.premises.require_there()  # first: nobody is to be blamed for what follows from that
            for event in events:
                self._on(event)
            self._chronicle.follow()
            on_turn()
            self._watch(interrupts)

    def fail(self, error: HeadraceError, culprit: str) -> None:
        """Note the reason the run fails for; the first one counts."""
        if self._error is not None:
            return
        self._error, self._culprit = error.in_run(self._what.place.path), culprit
        self._say("verdict", culprit, error.what, code=error.code)
        self._chronicle.show(culprit, str(error), "alarm")

    def summary(self) -> dict[str, Any]:
        """The summary, after everybody has left."""
        if {TRAINER, TWIN} & set(self._what.cast.ids):  # or nobody here knows what was trained on
            self._chronicle.tally.settle()
        books = audited(self._chronicle.tally.books)
        if books is not None and not books["balanced"] and self._error is None:
            self.fail(unbalanced(books), "orchestrator")
        begin, *end = [*self._training_s, None][:2] if self._training_s else [None]
        facts = {
            "run_id": self._what.run_id,
            "wall_s": self._chronicle.wall_s,
            "training_s": (end[0] or self._clock.now()) - begin if begin is not None else None,
            "culprit": self._culprit,
            "sessions": self._what.sessions,
        }
        interrupted = self._interrupts_seen > 0
        told = "failed" if self._error is not None else "interrupted" if interrupted else "completed"
        self._say("ended", "supervisor", f"run ended: {told}", outcome=told)
        facts["lost_lines"] = self._chronicle.lost_lines
        return summarize(self._config, self._chronicle.tally, self._error, facts, interrupted=interrupted)

    # What happened, one method each.

    def _on(self, event: Event) -> None:
        match event:
            case Started(child_id, pid, incarnation):
                kind = "started" if incarnation == 0 else "restarted"
                self._say(kind, child_id, f"{child_id} {kind}", pid=pid, incarnation=incarnation, tell=True)
            case BecameReady(child_id, incarnation, facts):
                self._on_ready(child_id, incarnation, facts)
            case Reported(child_id, Report(kind, facts)):
                self._chronicle.report(child_id, kind, facts)
            case Reported(child_id, Done(facts)):
                self._chronicle.done(child_id, facts)
                self._follow(self._course.done(child_id))
            case Overdue():
                self._say("stacks", event.id, f"{event.id} is overdue: {event}; its stacks are written", tell=True)
            case Exited():
                self._on_exit(event)
            case ForkServerLost(error):
                self.fail(error, "supervisor")
                self._follow(self._course.stop("the fork server is gone"))  # or those that leave now end no run
                self._supervisor.kill_all()

    def _on_ready(self, child_id: str, incarnation: int, facts: dict[str, Any]) -> None:
        self._say("ready", child_id, f"{child_id} is ready", incarnation=incarnation, tell=True, **_named(facts))
        if child_id in self._what.cast.workers and not self._training_s:
            self._training_s.append(self._clock.now())
        self._follow(self._course.ready(child_id))

    def _on_exit(self, event: Exited) -> None:
        self._chronicle.follow(event.id)  # its last words, before what follows from them
        # Of a worker that was told to stop, only its own word tells that all it had was saved.
        unsaid = event.id in self._what.cast.workers and event.was_ready and not (event.done or event.dismissed)
        expected = event.expected and not unsaid
        if not expected:
            kind = "stalled" if event.stalled is not None else "died"
            self._chronicle.tally.count_fault(kind)
            error = str(event.error) if event.error is not None else None
            self._say("fault", event.id, f"{event.id} {event.how}", pid=event.pid, tell=True, error=error, what=kind)
        self._exited[event.id] = event
        decision = Nothing(event.id) if expected else self._supervisor.decide(event)
        steps = self._course.ended(event.id, decision, expected=expected)
        if event.id == TRAINER and len(self._training_s) == 1:
            self._training_s.append(self._clock.now())
        self._follow(steps)

    def _follow(self, steps: Sequence[Step]) -> None:
        """Carry out what was decided."""
        for step in steps:
            match step:
                case Begin(ids):
                    self._chronicle.show("supervisor", stage_line(ids, self._config), "event")
                    for child_id in ids:
                        self._supervisor.start(child_id)
                case BeginAgain(child_id):
                    self._chronicle.tally.restarts += 1
                    self._supervisor.restart(child_id)
                case AskToStop(ids, reason):
                    self._ask(ids, reason)
                case Fail(child_id, reason):
                    self._blame(child_id, reason)

    def _ask(self, ids: Sequence[str], reason: str) -> None:
        self._say(
            "stopping", "supervisor", f"{', '.join(ids)} {'is' if len(ids) == 1 else 'are'} told to stop: {reason}"
        )
        self._supervisor.stop(ids, reason)
        if self._course.failed is not None:
            due_s = self._clock.now() + _GRACE_S
            self._due_s |= {name: due_s for name in ids if name != TRAINER}

    def _blame(self, child_id: str, reason: str) -> None:
        """Say whose end ends the run: the component's own, or, if it gave up waiting, that of whom it waited for."""
        event = self._exited[child_id]
        waited = [self._waits[child_id]] if child_id in self._waits and _gave_up_waiting(event) else []
        root = find_root(waited, child_id, self._plan)
        error = error_of(event, reason, root, self._what.place)
        self.fail(error, culprit_of(event, root))

    # What happens although no child tells anything.

    def _watch(self, interrupts: Interrupts) -> None:
        now = self._look = Look(time.monotonic_ns(), self._board.read_all())
        self._waits |= {view.id: now for view in now.views if view.state in ALIVE and view.waits_on is not None}
        self._watch_interrupts(interrupts)
        self._watch_duration()
        self._kill_the_late()
        self._miss_the_delayed()
        if self._course.phase not in {Phase.STARTING, Phase.RUNNING}:
            return
        self._watch_waits()
        self._watch_frozen()
        still = self._standstill.look() if self._training_s else None
        if still is not None:
            self._give_up("supervisor", still)

    def _watch_interrupts(self, interrupts: Interrupts) -> None:
        if interrupts.count > self._interrupts_seen:
            first, self._interrupts_seen = self._interrupts_seen == 0, interrupts.count
            if first:
                self._say("stopping", "supervisor", "interrupted: stopping in order", tell=True)
                self._follow(self._course.stop("interrupted"))
            else:
                self._supervisor.kill_all()

    def _watch_duration(self) -> None:
        limit_s = self._config.run.run_duration_s
        if limit_s is not None and self._training_s and self._clock.now() - self._training_s[0] >= limit_s:
            self._follow(self._course.stop("run_duration_s is over"))

    def _kill_the_late(self) -> None:
        late = [name for name, due_s in self._due_s.items() if self._clock.now() >= due_s]
        for name in late:
            del self._due_s[name]
        alive = set(self._supervisor.alive())
        if alive & set(late):
            self._supervisor.kill_all(sorted(alive & set(late)))

    def _miss_the_delayed(self) -> None:
        """Whoever was to be started again when the run closed has no process, and so no exit that could be told."""
        if self._course.phase is Phase.CLOSING:
            for child_id in self._course.alive - set(self._supervisor.alive()):
                self._follow(self._course.ended(child_id, Nothing(child_id), expected=True))

    def _watch_waits(self) -> None:
        ended = frozenset(self._exited) - self._course.alive
        found = waits_in_vain(self._look, ended, _IN_VAIN_S) if ended else None
        if found is not None:
            waiter, gone = found
            self._give_up(gone, gone_for_good(waiter, self._exited[gone], self._what.place))

    def _watch_frozen(self) -> None:
        for child_id in self._freezes.look(self._look.views, self._clock.now()):
            late = Overdue(child_id, "being stopped by a signal", self._freezes.limit_s, self._freezes.limit_s)
            self._supervisor.condemn(late)

    def _give_up(self, culprit: str, error: HeadraceError) -> None:
        self.fail(error, culprit)
        self._follow([step for step in self._course.give_up(culprit, error.what) if not isinstance(step, Fail)])


def _gave_up_waiting(event: Exited) -> bool:
    return isinstance(event.error, ComponentStalled) and event.stalled is None


def _named(facts: dict[str, Any]) -> dict[str, Any]:
    taken = {"kind", "component", "text", "pid", "tell", "incarnation"}
    return {name: value for name, value in facts.items() if name not in taken}


def _own_failure(error: BaseException) -> ComponentDied:
    return ComponentDied(
        f"the launcher, or whoever looks on, raised {type(error).__name__}",
        error=f"{type(error).__name__}: {error}",
        fix="see the traceback on the terminal; if it ends inside Headrace, file a bug",
    )
