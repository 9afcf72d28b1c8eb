"""One run, from configuration to summary: the parent's side. It imports no torch and never blocks on a child."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import Any

from headrace.algorithms.registry import acts_in_torch
from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import ComponentDied, ComponentStalled, HeadraceError
from headrace.ipc.forkserver import Advice, ForkServer
from headrace.learners.intervals import never_hit
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.ending import Course, Ending
from headrace.runtime.history import history_for
from headrace.runtime.incidents import Chronicle, Incidents
from headrace.runtime.inheritance import beginning_of
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.observer import Observer
from headrace.runtime.payloads import Basics, EnvFactory
from headrace.runtime.premises import Premises
from headrace.runtime.progress import OnProgress
from headrace.runtime.resources import LEARNER, Resources, child_specs, collector_ids, components
from headrace.runtime.resume import ResumePoint
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.scores import EvaluationQueue
from headrace.runtime.standstill import watch_for
from headrace.runtime.summary import audit, summarize, unbalanced
from headrace.runtime.tellings import telling
from headrace.supervision.messages import Command, Done, Report
from headrace.supervision.spec import (
    BecameReady,
    ChildSpec,
    Event,
    Exited,
    ForkServerLost,
    GiveUp,
    Instruction,
    LeaveOut,
    Overdue,
    Reported,
    Restart,
    RestartBudget,
    Started,
)
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.board import Board, State
from headrace.telemetry.events import EventLog
from headrace.telemetry.metrics import MetricsSink
from headrace.telemetry.summaries import left
from headrace.weights.policy_file import whole_policies

_POLL_S = 0.25
_PRELOAD = ("headrace.runtime.components", "headrace.runtime.evaluation")
_ADVICE = Advice(
    lost="read its log; if the machine was out of memory, use fewer collectors",
    late="see its log for what it was importing; shorten collect.preload or raise deadlines.start_s",
)
Summary = dict[str, Any]


def run_experiment(
    config: ExperimentConfig,
    run_dir: RunDirectory,
    on_progress: OnProgress | None = None,
    env_factory: EnvFactory | None = None,
    resume: ResumePoint | None = None,
    learner_target: str = LEARNER,
    make_way: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Summary:
    """Run it to its end, whatever the end.

    Args:
        config: What to run.
        run_dir: Made and held by the caller.
        on_progress: Called a few times a second with the present state; the run ends in order once it returns True.
        env_factory: A callable that builds one environment, instead of ``env.id`` and ``env.factory``.
        resume: Where the run goes on; None: it is a new one.
        learner_target: ``module:function`` that its learner's process calls.
        make_way: Around what makes the board, see `headrace.runtime.sessions.Session.make_way`.

    Returns:
        What ``summary.json`` holds, which is written as well (``unwritten``: why it could not be); ``exit_code`` says how the
        run ended.
    """
    if resume is None:
        beginning_of(config)  # or a learner would find out that there is none
    clock, history = MonotonicClock(), history_for(run_dir.events_file, resume)
    with Interrupts() as interrupts, ExitStack() as stack:  # until all is written: whoever asks once more loses nothing
        with make_way():
            board = stack.enter_context(_board(config, run_dir))
        events = stack.enter_context(EventLog(run_dir.events_file, clock, clock.now() - history.last_s))
        metrics = stack.enter_context(_metrics(run_dir, resume))
        resources = stack.enter_context(closing(Resources(config)))
        resources.resume = resume
        evaluations = EvaluationQueue(
            baseline=config.evaluation.random_baseline, enabled=config.evaluation.episodes > 0, history=history,
            policies=whole_policies(run_dir.checkpoints_dir, history.unevaluated),
        )  # fmt: skip
        observer = Observer(config, board, metrics, evaluations, clock, on_progress, history)
        basics = Basics(config, run_dir.board_file.absolute(), env_factory)
        chronicle = Chronicle(events, observer)
        incidents = Incidents(basics, resources, observer, chronicle, run_dir.path, clock)
        experiment = Experiment(basics, chronicle, resources, observer, evaluations, incidents, clock)
        specs = child_specs(basics, resources, run_dir.checkpoints_dir.absolute(), learner_target)
        _supervise(experiment, run_dir, board, _supervisor(config, run_dir, board, specs, clock), interrupts)
        summary = experiment.summary()
        board.slot("supervisor").set_state(State.FAILED if summary["error"] else State.ENDED)
        summary = left(summary, run_dir.write_summary)
        observer.show(at_once=True)
        return summary


def _board(config: ExperimentConfig, run_dir: RunDirectory) -> Board:
    board = Board.create(run_dir.board_file, components(config), events_file=run_dir.events_file)
    board.slot("supervisor").set_state(State.RUNNING)
    return board


def _metrics(run_dir: RunDirectory, resume: ResumePoint | None) -> MetricsSink:
    at = resume.env_steps if resume is not None else None
    return MetricsSink(run_dir.metrics_file, run_dir.tensorboard_dir, resumed_at=at)


def _supervise(
    experiment: Experiment,
    run_dir: RunDirectory,
    board: Board,
    supervised: AbstractContextManager[Supervisor],
    interrupts: Interrupts,
) -> None:
    """Follow a run to its end; what is its own failure is noted, anything else goes on to the caller."""
    premises = Premises(run_dir.path, run_dir.lock_file, (run_dir.record_dir, run_dir.checkpoints_dir))
    try:
        with premises.told_first(), supervised as supervisor:
            experiment.run(supervisor, interrupts, premises.require_there)
    except HeadraceError as error:
        experiment.fail(error)
    except BaseException as error:
        # Not of the run itself: a bug, or whoever looks on has raised.
        experiment.fail(_own_failure(error), "supervisor")
        board.slot("supervisor").set_state(State.FAILED)
        left(experiment.summary(), run_dir.write_summary)
        raise


@contextmanager
def _supervisor(
    config: ExperimentConfig, run_dir: RunDirectory, board: Board, specs: Sequence[ChildSpec], clock: Clock
) -> Iterator[Supervisor]:
    budget = RestartBudget(
        max_restarts=config.supervision.max_restarts,
        window_s=config.supervision.restart_window_s,
        backoff_s=config.supervision.backoff_s,
    )
    with (
        _fork_server(config, run_dir) as server,
        Supervisor(server, board, specs, budget, clock, run_dir.logs_dir, run_dir.stacks_dir) as supervisor,
    ):
        yield supervisor


@contextmanager
def _fork_server(config: ExperimentConfig, run_dir: RunDirectory) -> Iterator[ForkServer]:
    threads = str(config.collect.threads)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    preload = (*_PRELOAD, *config.collect.preload)
    if acts_in_torch(config.algorithm):
        preload = (*preload, "torch")
    environment = dict.fromkeys(names, threads)
    log, timeout_s = run_dir.log_file("forkserver"), config.deadlines.start_s
    with ForkServer(preload, environment, log, start_timeout_s=timeout_s, advice=_ADVICE) as server:
        yield server


class Experiment:
    """Follows the events of one run and answers each.

    Args:
        basics: Of the run.
        chronicle: Where what happens is told.
        resources: What the children share.
        observer: What is known about the run.
        evaluations: The evaluation queue.
        incidents: Its faults.
        clock: Monotonic.
    """

    def __init__(
        self,
        basics: Basics,
        chronicle: Chronicle,
        resources: Resources,
        observer: Observer,
        evaluations: EvaluationQueue,
        incidents: Incidents,
        clock: Clock,
    ) -> None:
        self._config = basics.config
        self._chronicle, self._say = chronicle, chronicle.say
        self._incidents = incidents
        self._checkpoint: dict[str, Any] | None = _whole(observer.history.checkpoint)
        """Facts of the newest policy on disk."""
        self._resources = resources
        self._observer = observer
        self._evaluations = evaluations
        self._clock = clock
        self._course = Course()
        self._ending = Ending(basics.config, self._course, chronicle, resources, observer, clock)
        self._standstill = watch_for(basics.config, observer.views)
        self._updates_before = 0
        """Updates of the learner that died."""
        self._salvaging: dict[str, Instruction | None] = {}
        """Dead collectors whose rows are being saved, and what follows."""
        self._again: set[str] = set()
        """Who was told to start again, and has not yet; collectors that start with another learner have not failed."""
        self._recycling: dict[str, str] = {}
        """Collectors that were told to leave for their memory, and how much that is."""

    def run(self, supervisor: Supervisor, interrupts: Interrupts, require_there: Callable[[], None]) -> None:
        """Start everything, follow it to its end; ``require_there`` raises once the run directory is not there any more."""
        self._supervisor = supervisor
        if self._observer.history.point is not None:
            text, facts = self._observer.history.told()
            self._say("resumed", "supervisor", text, tell=True, **facts)
            self._observer.show(at_once=True)
        schedule = self._config.run.schedule
        self._say("started", "supervisor", f"run started: {schedule}", schedule=schedule)
        for text in never_hit(self._config):
            facts = {"name": "never_hit", "severity": "warning", "remedy": "change it, or make the run longer"}
            self._say("ledger", "supervisor", text, tell=True, **facts)
        supervisor.start("probe")
        while not self._course.over:
            events = supervisor.poll(_POLL_S)
            require_there()  # first: nobody is to be blamed for what follows from that
            for event in events:
                self._on(event)
            self._watch(interrupts)
            if self._observer.show():
                self._ending.request("whoever looks on has seen enough", self._supervisor)
        self._resources.stop_collecting()
        if self._course.interrupted or self._course.error is not None:
            supervisor.kill_all()  # whoever is still there has nothing to finish that anybody waits for

    def fail(self, error: HeadraceError, culprit: str | None = None) -> None:
        """Note the reason the run fails for, and whom that is laid on; the first one counts."""
        if self._course.error is None:
            self._course.error, self._course.culprit = error.in_run(self._incidents.folder), culprit
            self._say("fault", "supervisor", error.what, code=error.code)
            found = self._standstill.verdict() if isinstance(error, ComponentStalled) else None
            if found is not None:
                self._course.culprit = found.culprit
                self._say("verdict", found.culprit or "supervisor", found.sentence, remedy=found.remedy)

    def summary(self) -> Summary:
        """The summary, after everybody has left."""
        config, observer = self._config, self._observer
        books = None
        if observer.history.point is None or self._course.training_s:  # or its experience is not there again
            books = audit(self._resources.books, config.env.lanes)
            if not books["balanced"] and self._course.error is None:
                self._course.error = unbalanced(books)
        error = self._course.error
        outcome, code = self._course.outcome
        facts = {
            "outcome": outcome, "error": str(error) if error is not None else None, "exit_code": code,
            "culprit": self._course.culprit, "updates": observer.updates, "wall_s": observer.wall_s,
            "training_s": self._course.lasted_s, "degraded": self._incidents.losses.summary(),
        }  # fmt: skip
        self._say("ended", "supervisor", f"run ended: {outcome}", outcome=outcome)
        facts["lost_lines"] = self._chronicle.lost_lines
        faults, resumes = observer.faults, observer.history.resumes
        return summarize(config, facts, observer.learner, books, self._evaluations, faults, resumes)

    # What happened, one method each.

    def _on(self, event: Event) -> None:
        match event:
            case Started(child_id, pid, incarnation):
                kind = "restarted" if child_id in self._again else "started"
                self._again.discard(child_id)
                self._say(kind, child_id, f"{child_id} {kind}", pid=pid, incarnation=incarnation)
            case BecameReady():
                self._on_ready(event)
            case Reported(child_id, Report(kind, facts)):
                self._on_report(child_id, kind, facts)
            case Reported(child_id, Done(facts)):
                self._on_done(child_id, facts)
            case Overdue():
                self._say("stacks", event.id, f"{event.id} is overdue: {event}; its stacks are written", tell=True)
            case Exited():
                self._on_exit(event)
            case ForkServerLost(error):
                self.fail(error)
                self._course.over = True

    def _on_ready(self, event: BecameReady) -> None:
        self._say("ready", event.id, f"{event.id} is ready", incarnation=event.incarnation)
        if event.id == "learner":
            self._on_learner(event.facts)
        elif event.incarnation and event.id in collector_ids(self._config):
            left_out = self._incidents.groups_left_out(event.id)
            if left_out:  # a learner that took another's place has not been told
                self._order(event.id, "left_out", groups=left_out)
            self._order(event.id, "joined", incarnation=event.incarnation)

    def _on_learner(self, facts: dict[str, Any]) -> None:
        """It can take rows: start those who bring them."""
        self._course.training_s = self._course.training_s or [self._clock.now()]
        self._resources.layout = facts["layout"]
        self._resources.streams, self._resources.record_lost = facts["streams"], facts["record_lost"]
        resumed = facts["resumed"]
        if resumed is not None:
            again = self._updates_before - resumed["updates"]
            text = f"another learner goes on from update {resumed['updates']:,}; {again:,} updates are made again"
            self._say("resumed", "learner", text, tell=True, lost_updates=again, **resumed)
        self._course.successor = None
        if self._ending.falls_to(self._supervisor):
            return  # nobody is to bring it rows
        for child_id in collector_ids(self._config):
            if self._resources.groups_left(child_id):
                self._supervisor.start(child_id)

    def _on_report(self, child_id: str, kind: str, facts: dict[str, Any]) -> None:
        if kind == "metrics":
            self._observer.on_facts(facts)
            return
        if kind == "environment_lost":
            self._incidents.lost_environment(child_id, facts)
            return
        if kind == "salvaged":
            self._on_salvaged(f"collector-{facts['collector']}", facts["transitions"])
            return
        if kind == "saved" or (kind == "frozen" and not (self._checkpoint or {}).get("whole")):
            self._checkpoint = facts | {"whole": kind == "saved"}
        if kind == "frozen":
            self._evaluations.order(facts)
        elif kind == "evaluated":
            self._on_evaluated(facts)
        elif kind == "record_lost":
            self._resources.record_lost = facts["problem"]
        told = telling(kind, facts)
        self._say(told.kind, child_id, told.text, tell=told.tell, once=told.once, **told.facts)

    def _on_evaluated(self, facts: dict[str, Any]) -> None:
        point = self._observer.on_evaluation(facts)
        if point.version is None:
            return
        noted = {"kind": "evaluated", "version": point.version, "mean_reward": point.mean_reward}
        self._supervisor.send("learner", Command("note", noted))
        target = self._config.evaluation.target
        if target is not None and point.mean_reward >= target and not self._course.learner_done:
            self._ending.request(f"evaluation.target {target:g} is reached", self._supervisor)

    def _on_done(self, child_id: str, facts: dict[str, Any]) -> None:
        if child_id == "probe":
            self._resources.allocate(facts["spaces"])
            self._supervisor.start("learner")
            if self._config.evaluation.episodes:
                self._supervisor.start("evaluator")
        elif child_id == "learner":
            self._observer.on_facts(facts)
            self._course.learner_done = True
            self._course.training_s.append(self._clock.now())
            # One that was started while the learner left has not been told by it, and would wait for credit.
            self._supervisor.stop(collector_ids(self._config), "training is over")

    def _on_exit(self, event: Exited) -> None:
        is_collector = event.id in collector_ids(self._config)
        if is_collector and self._course.successor is not None:
            return  # it ended with the learner, and is started again with the next, which salvages its rows
        has_learner = "learner" in self._supervisor.alive() and not self._course.learner_done
        if event.expected or event.asked:  # what one that was told to leave had taken over is salvaged either way
            why = self._recycling.pop(event.id, None)
            if why is not None and has_learner and not self._ending.requested:
                event, instruction = self._incidents.recycled(event, why, self._supervisor)
                self._follow(event, instruction)
                self._salvage(event.id, instruction)
            elif is_collector and has_learner and not event.done:  # it was ended because it did not leave in time
                self._salvage(event.id, None)
            return
        self._incidents.note(event)
        if event.done or (is_collector and self._course.learner_done):
            return  # everything it had to give is there: what failed was its leaving
        version = self._evaluations.lost() if event.id == "evaluator" else None
        instruction = self._incidents.decide(event, self._supervisor)
        self._follow(event, instruction)
        if is_collector and has_learner:
            self._salvage(event.id, instruction)
        elif isinstance(instruction, Restart):
            self._restart(event.id)
        elif event.id == "evaluator":
            if version is not None:  # for the next session, which it would end as well
                self._say("not_evaluated", event.id, f"policy {version} is not evaluated", version=version)
            self._ending.request("the evaluator failed", self._supervisor)
        else:
            self._course.over = True

    def _succeed(self) -> None:
        collectors = set(collector_ids(self._config))
        if self._course.successor == "cleared for" and not collectors.intersection(self._supervisor.alive()):
            self._course.successor = "started"
            self._restart("learner")

    def _follow(self, event: Exited, instruction: Instruction) -> None:
        if isinstance(instruction, GiveUp):
            self.fail(self._incidents.error(event, instruction, self._checkpoint), event.id)

    def _salvage(self, collector_id: str, then: Instruction | None) -> None:
        self._salvaging[collector_id] = then
        self._order(collector_id, "lost")
        if left_out := self._incidents.groups_left_out(collector_id):
            self._order(collector_id, "left_out", groups=left_out)

    def _on_salvaged(self, child_id: str, transitions: int) -> None:
        text = f"{transitions:,} transitions of {child_id} salvaged"
        self._say("salvaged", child_id, text, tell=True, transitions=transitions)
        instruction = self._salvaging.pop(child_id)
        if isinstance(instruction, GiveUp):
            self._ending.request("a component failed", self._supervisor)
        elif not isinstance(instruction, LeaveOut) and not self._course.learner_done and not self._ending.requested:
            self._restart(child_id)

    # What follows.

    def _restart(self, child_id: str) -> None:
        if child_id == "learner" and self._course.learner_done:
            return  # it had told everything before it died, so another one would have nothing to do
        if child_id == "learner" and self._course.successor is None:
            # The collectors' credits died with it: they are ended, then `_succeed` starts another.
            self._course.successor = "cleared for"
            self._updates_before = self._observer.updates or 0
            self._salvaging.clear()
            self._recycling.clear()
            self._supervisor.kill_all(collector_ids(self._config))
            return
        self._observer.faults["restarts"] += 1
        self._again.add(child_id)
        self._supervisor.restart(child_id)

    def _order(self, collector_id: str, name: str, **facts: object) -> None:
        """Tell the learner about a collector."""
        number = int(collector_id.removeprefix("collector-"))
        self._supervisor.send("learner", Command(name, {"collector": number, **facts}))

    def _watch(self, interrupts: Interrupts) -> None:
        """What happens although no child tells anything."""
        late = self._ending.watch(interrupts, self._supervisor)
        still = self._standstill.look() if self._course.training and not self._ending.requested else None
        for error in (late, still):
            if error is not None:
                self.fail(error)
                self._course.over = True
        self._succeed()
        self._watch_memory()
        self._evaluate()

    def _watch_memory(self) -> None:
        """Have collectors that hold too much leave between two chunks; another one takes over."""
        if not self._course.training or self._ending.requested:
            return
        for child_id in set(collector_ids(self._config)) & set(self._supervisor.alive()) - set(self._recycling):
            if (why := self._incidents.too_large(child_id)) is not None:
                self._recycling[child_id] = why
                self._say("recycled", child_id, f"{child_id} is replaced: {why}", tell=True)
                self._supervisor.stop([child_id], why)

    def _evaluate(self) -> None:
        """Keep the evaluator busy, in a resumed run once a learner can end it; after training, wait for it, then for nobody."""
        course, resumed = self._course, self._observer.history.resumes
        free = "evaluator" in self._supervisor.alive() and (course.training_s or not resumed)
        if free and (order := self._evaluations.next(over=course.learner_done)) is not None:
            self._supervisor.send("evaluator", Command("evaluate", order))
        if course.learner_done and (self._evaluations.idle or course.interrupted or course.error is not None):
            course.over = course.over or not set(self._supervisor.alive()) & set(collector_ids(self._config))


def _whole(checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if checkpoint is None else checkpoint | {"whole": True}


def _own_failure(error: BaseException) -> ComponentDied:
    return ComponentDied(
        f"the supervisor, or whoever follows its progress, raised {type(error).__name__}",
        error=f"{type(error).__name__}: {error}",
        fix="see the traceback on the terminal; if it ends inside Headrace, file a bug",
    )
