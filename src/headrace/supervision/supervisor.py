"""The parent of all processes of a run: starts them, sees them end, finds the stuck ones; decides nothing itself.

What follows from an exit is decided in `headrace.supervision.policy`; whether and when to act on it is the
runtime's, which first has to save what the dead child left in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.ipc.channel import Deadline
from headrace.ipc.forkserver import ForkServer
from headrace.supervision.child import SupervisedChild
from headrace.supervision.evidence import Own, Sampler
from headrace.supervision.messages import Stop, ToChild
from headrace.supervision.policy import WATCHED, Phase, RestartPolicy
from headrace.supervision.spec import (
    NOT_STARTED,
    ChildSpec,
    Event,
    Exited,
    ForkServerLost,
    GiveUp,
    Instruction,
    Overdue,
    Restart,
    RestartBudget,
    Started,
)
from headrace.supervision.watchdog import LOOK_S, Watchdog
from headrace.telemetry.board import Activity, Board, State
from headrace.telemetry.waits import wait_readable

_DIE_S = 10.0


class Supervisor:
    """Starts the children of a run, and tells what becomes of them.

    A context manager: leaving it asks every child to stop, kills those that do not, and ends the fork server, all in
    bounded time. Nothing here ever waits for a child.

    Args:
        fork_server: Starts the processes; taken over, and closed on leaving.
        board: Of the run, attached for writing; has a slot for every child.
        specs: The children, in the order of their start.
        budget: For restarts.
        clock: Monotonic.
        logs_dir: Existing folder for ``<id>.log``.
        stacks_dir: Existing folder for the stacks of children that miss a deadline.

    Raises:
        ConfigError: Two children have one id, or one has no slot.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        board: Board,
        specs: Sequence[ChildSpec],
        budget: RestartBudget,
        clock: Clock,
        logs_dir: Path,
        stacks_dir: Path,
    ) -> None:
        self._fork_server = fork_server
        self._board = board
        self._clock = clock
        self.policy = RestartPolicy(budget)
        """Decides what follows from an exit."""
        self._children = {
            spec.id: SupervisedChild(spec, board.slot(spec.id), Path(logs_dir), Path(stacks_dir)) for spec in specs
        }
        if len(self._children) < len(specs):
            raise ConfigError(
                "two children of a supervisor have the same id",
                ids=", ".join(spec.id for spec in specs),
                fix="give every child an id of its own",
            )
        self._watchdog = Watchdog(self._children, board)
        self._events: list[Event] = []
        self._slot = board.slot("supervisor") if "supervisor" in board.ids else None
        self._sampler = Sampler([*self._children.values(), Own(self._slot)], clock)

    def start_all(self) -> None:
        """Start every child, in the order of the specs.

        Raises:
            HeadraceError: As for `start`; those before are running.
        """
        for child_id in self._children:
            self.start(child_id)

    def start(self, child_id: str) -> None:
        """Start a child that is not running; `poll` then tells what becomes of it.

        Raises:
            ConfigError: There is none of this id, or its payload cannot be pickled.
            ComponentError: It is running already, or cannot be started.
        """
        child = self._child(child_id)
        child.start(self._fork_server, self._clock.now())
        self._events.append(Started(child_id, child.pid, child.life.incarnation))

    def poll(self, timeout_s: float) -> list[Event]:
        """What has happened since the last call, in order; waits up to ``timeout_s`` seconds if nothing has.

        Also carries out what is due: starts delayed children, dumps and kills overdue ones.
        """
        until_s = self._clock.now() + timeout_s
        while True:
            self._turn()
            left_s = until_s - self._clock.now()
            if self._events or left_s <= 0:
                events, self._events = self._events, []
                return events
            wait_readable(
                self._slot,
                self.fds(),
                activity=Activity.WAIT_CHILD,
                on=None,
                need=1,
                have=0,
                timeout_s=min(left_s, self._next_turn_s()),
                raise_on_timeout=False,
            )

    def fds(self) -> list[int]:
        """Descriptors that are readable when `poll` has something to tell, for whoever waits on more than this."""
        return self._fork_server.fds() + [fd for child in self._children.values() for fd in child.fds()]

    def decide(self, exited: Exited) -> Instruction:
        """What follows from an exit. Ask once per `Exited`: a granted restart is counted."""
        child = self._child(exited.id)
        if self._fork_server.error is not None and not exited.expected:
            return GiveUp(exited.id, "the fork server is gone, so nothing can be started again")
        decision = self.policy.decide(child.spec, exited, self._clock.now())
        if isinstance(decision, Restart):
            child.due_s = self._clock.now() + decision.after_s
        return decision

    def restart(self, child_id: str) -> None:
        """Start a child again, as a new incarnation, as soon as the pause that `decide` ordered is over.

        Does not wait for that: a later `poll` starts it and tells so by `Started`. Until then its slot shows the pause.

        Raises:
            ComponentError: It is still running.
        """
        child = self._child(child_id)
        child.life.move(Phase.DELAYED)
        child.slot.add("restarts")
        child.slot.set_pid(0)
        child.slot.set_state(State.STARTING)
        child.slot.waiting(Activity.WAIT_RESTART, deadline_s=max(0.0, child.due_s - self._clock.now()))
        self._start_delayed()

    def send(self, child_id: str, message: ToChild) -> bool:
        """Send a message to a child, after those sent before; False if it is not running.

        Never waits: what does not fit into its channel is sent on by later calls of `poll`.
        """
        return self._child(child_id).send(message)

    def stop(self, ids: Iterable[str], reason: str) -> None:
        """Ask children to stop. One that has not left after its ``stop_timeout_s`` is dumped and killed by `poll`."""
        for child_id in ids:
            child = self._child(child_id)
            if child.life.phase is Phase.DELAYED:
                _leave_ended(child)
            elif child.life.phase in WATCHED:
                child.life.move(Phase.STOPPING)
                child.due_s = self._clock.now() + child.spec.stop_timeout_s
                child.send(Stop(reason))

    def condemn(self, late: Overdue) -> None:
        """Treat a child as one that missed a deadline, for what a caller has seen: stacks, then SIGKILL, then `Exited`."""
        child = self._child(late.id)
        if child.life.phase in {*WATCHED, Phase.STOPPING}:
            child.begin_dump(late)
            self._events.append(late)

    def kill_all(self, ids: Iterable[str] | None = None) -> None:
        """Kill every child, or only these, now; `poll` then tells that they have ended. Counts as asked."""
        for child in self._children.values() if ids is None else map(self._child, ids):
            if child.life.phase is Phase.DELAYED:
                _leave_ended(child)
            elif child.alive:
                child.life.asked = child.life.dismissed = True
                child.kill()

    def alive(self) -> list[str]:
        """Children that have a process, in the order of the specs."""
        return [child_id for child_id, child in self._children.items() if child.alive]

    def pid(self, child_id: str) -> int:
        """Process id of a child's current or last incarnation; 0 before the first."""
        return self._child(child_id).pid

    def close(self) -> None:
        """End everything in bounded time: ask, wait, dump, kill; then the fork server. Again is harmless."""
        try:
            self.stop(self._children, "the supervisor is closing")
            for child in self._children.values():
                child.life.dismissed = True
            limits = [child.spec.stop_timeout_s for child in self._children.values() if child.alive]
            _poll_until_gone(self, Deadline(max(limits, default=0.0) + 1.0))
            self.kill_all()
            _poll_until_gone(self, Deadline(_DIE_S))
        finally:
            self._fork_server.close()
            for child in self._children.values():
                child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _child(self, child_id: str) -> SupervisedChild:
        self._board.index(child_id)  # names the ids there are
        return self._children[child_id]

    def _turn(self) -> None:
        """One round over everything, without waiting."""
        was_well = self._fork_server.error is None
        ended = {child.pid for child in self._fork_server.collect()}
        if was_well and self._fork_server.error is not None:
            self._events.append(ForkServerLost(self._fork_server.error))
        for child in self._children.values():
            for event in child.receive():
                self._events.append(event)
                if child.life.was_ready:
                    self.policy.note_ready(child.spec.id)
            if child.alive and child.pid in ended:
                self._events.append(child.end())
        self._start_delayed()
        self._sampler.look()
        self._events += self._watchdog.look(self._clock.now())

    def _start_delayed(self) -> None:
        now_s = self._clock.now()
        for child_id, child in self._children.items():
            if child.life.phase is Phase.DELAYED and now_s >= child.due_s:
                try:
                    self.start(child_id)
                except HeadraceError as error:
                    # Nobody is here to catch it; like a child that fails at once, it is an exit with a reason.
                    child.life.move(Phase.ENDED)
                    self._events.append(Exited(id=child_id, exit_code=1, how=NOT_STARTED, error=error))

    def _next_turn_s(self) -> float:
        """Seconds until there is something to do although nothing happens."""
        now_s = self._clock.now()
        due = [child.due_s - now_s for child in self._children.values() if child.life.phase is Phase.DELAYED]
        return max(0.0, min([self._watchdog.next_look_s(), *due]))


def _leave_ended(child: SupervisedChild) -> None:
    """It is not started again after all."""
    child.life.move(Phase.ENDED)
    child.slot.set_state(State.ENDED if child.life.asked else State.FAILED)


def _poll_until_gone(supervisor: Supervisor, deadline: Deadline) -> None:
    while supervisor.alive() and not deadline.passed:
        supervisor.poll(min(LOOK_S, deadline.left_s()))
