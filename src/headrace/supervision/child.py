"""One supervised child: its process, its channel, its phase, its log and its stacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import ChannelClosed, ComponentError, EnvironmentFault, HeadraceError
from headrace.ipc.forkserver import Child, ForkServer
from headrace.ipc.stacks import StackDump
from headrace.supervision.evidence import NativeDump, Usage, started_bytes, usage, write_evidence
from headrace.supervision.messages import Done, Failed, Ready, Report, ToChild
from headrace.supervision.policy import ALIVE, Life, Phase
from headrace.supervision.spec import BecameReady, ChildSpec, Event, Exited, Overdue, Reported, describe_exit
from headrace.telemetry.board import Activity, Slot, State

DUMP_S = 1.0
"""Seconds a stuck child is given to write its stacks."""

LAUNCHER_MARK = "[headrace] "
"""Before lines of a component's log that its launcher put there: they are no last words of the component."""

_TAIL_LINES = 50
_TAIL_BYTES = 16384
_ENVIRONMENT = {
    Activity.ENV_CONSTRUCT: "construct",
    Activity.ENV_RESET: "reset",
    Activity.ENV_STEP: "step",
    Activity.ENV_CLOSE: "close",
}


class SupervisedChild:
    """What a `headrace.supervision.supervisor.Supervisor` keeps for each child.

    Args:
        spec: Its description.
        slot: On the board; written here before it lives and after.
        logs_dir: For its log.
        stacks_dir: For its stacks.
    """

    def __init__(self, spec: ChildSpec, slot: Slot, logs_dir: Path, stacks_dir: Path) -> None:
        self.spec = spec
        self.slot = slot
        self.life = Life(spec.id)
        self.due_s = 0.0
        """Delayed: when it is started again. Stopping: when it is called overdue."""
        self._log = logs_dir / f"{spec.id}.log"
        self._stacks_dir = stacks_dir
        self._child: Child | None = None
        self._clear(0.0)

    def _clear(self, now_s: float) -> None:
        """Forget the last incarnation."""
        self._outbox: deque[ToChild] = deque()
        self._error: HeadraceError | None = None
        self._done = False
        self._late: Overdue | None = None
        self._dump: StackDump | None = None
        self._native: NativeDump | None = None
        self.used: Usage | None = None
        """The newest sample of what it uses."""
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        self._started_s = now_s

    @property
    def alive(self) -> bool:
        """Whether it has a process."""
        return self.life.phase in ALIVE

    @property
    def pid(self) -> int:
        """Of the current or last incarnation; 0 before the first."""
        return self._child.pid if self._child is not None else 0

    @property
    def _stacks(self) -> Path:
        return self._stacks_dir / f"{self.spec.id}.{self.life.incarnation}.txt"

    def start(self, fork_server: ForkServer, now_s: float) -> None:
        """Start its next incarnation.

        Raises:
            HeadraceError: It is running, or cannot be started; in the latter case it may be tried again.
        """
        before = self.life.phase
        self.life.move(Phase.STARTING)
        self.close()
        self._clear(now_s)
        self.slot.begin(self.life.incarnation)  # before the child exists: from then on, the slot is the child's
        try:
            self._child = fork_server.spawn(
                self.spec.id,
                self.spec.target,
                self.spec.payload(self.life.incarnation),
                self.spec.fds(),
                self._log,
                self._stacks,
            )
        except BaseException:
            self.life.phase = before  # not a move of the child's life: there was no child
            self.slot.set_state(State.FAILED)
            raise
        self.slot.set_pid(self._child.pid)

    def fds(self) -> list[int]:
        """Its control channel, while something may come of it."""
        child = self._child
        return [child.control.fileno()] if child and self.alive and not child.control.closed_by_peer else []

    def send(self, message: ToChild) -> bool:
        """Send a message, or keep it until there is room; False if it is not running."""
        if not self.fds():
            return False
        self._outbox.append(message)
        self._send_on()
        return True

    def receive(self) -> list[Event]:
        """What it has said since the last call."""
        # Not `fds`: a child that has left no longer takes messages, but its last words are still to be read.
        if self._child is None or not self.alive:
            return []
        self._send_on()
        events: list[Event] = []
        while True:
            try:
                messages = self._child.control.receive_all()
            except ChannelClosed:
                return events
            except ComponentError as error:
                events.append(Reported(self.spec.id, Report("unreadable", {"error": str(error)})))
                continue
            if not messages:
                return events
            events += [event for message in messages if (event := self._event(message)) is not None]

    def kill(self) -> None:
        """Send it SIGKILL."""
        if self.life.phase is not Phase.KILLED:
            self.life.move(Phase.KILLED)
        if self._child is not None:
            self._child.kill()

    def late(self, now_s: float, unseen_s: Callable[[float], float] = lambda _: 0.0) -> Overdue | None:
        """Whether it takes too long to become ready, or to stop.

        What it reads of an earlier session may take any time: that has a limit of its own, from each progress to the
        next, and the time to become ready is counted from its end.

        Args:
            now_s: The time, on the clock of all calls.
            unseen_s: How much of the time since a moment nobody has watched, beyond what was told before: it has so much
                longer.
        """
        limits, starting = self.spec.deadlines, self.life.phase is Phase.STARTING
        if starting:
            self._started_s += unseen_s(self._started_s)
        elif self.life.phase is Phase.STOPPING:
            self.due_s += unseen_s(self.due_s - self.spec.stop_timeout_s)
        if starting and Activity.RESUME in limits and self.slot.resume()[0] is Activity.RESUME:
            self._started_s = now_s
        start_limit_s, for_s = limits.get(Activity.START), now_s - self._started_s
        if starting and start_limit_s is not None and for_s > start_limit_s:
            return Overdue(self.spec.id, "start", for_s, start_limit_s)
        if finishing(self):
            self.due_s = now_s + self.spec.stop_timeout_s
        if self.life.phase is Phase.STOPPING and now_s > self.due_s:
            limit_s = self.spec.stop_timeout_s
            return Overdue(self.spec.id, "stop", limit_s + now_s - self.due_s, limit_s)
        return None

    def begin_dump(self, late: Overdue) -> None:
        """It missed a deadline: have it write its stacks. `go_on_dumping` then kills it."""
        self.life.move(Phase.DUMPING)
        self._late = late
        self.sample()
        self._write_evidence(str(late), tail(self._log, self._log_from))
        if self._child is not None:
            self._dump = StackDump(self._child.send_signal, self._child.pid, self._stacks, DUMP_S)

    def go_on_dumping(self) -> None:
        """Kill it once its stacks are written, or its time for that is over."""
        if self.life.phase is not Phase.DUMPING or (self._dump is not None and not self._dump.finished()):
            return
        if self._native is None and self.pid:
            self._native = NativeDump(self.pid, self._stacks)
        if self._native is None or self._native.finished():
            self.kill()

    def sample(self) -> None:
        """Note what it uses now, on the board too."""
        used = usage(self.pid) if self.pid else None
        if used is not None:
            self.used = used
            self.slot.count("rss_bytes", used.rss_bytes + started_bytes(self.pid))

    def end(self) -> Exited:
        """Its process has ended, and what it had said was received: the event that tells so."""
        self.life.move(Phase.ENDED)
        exit_code = self._child.exit_code if self._child is not None else None
        event = self._exited(-1 if exit_code is None else exit_code)
        self.slot.set_state(State.ENDED if event.expected else State.FAILED)
        self.slot.count("rss_bytes", 0)
        if not event.expected:
            self.slot.add("faults")
            if event.stalled is None:  # or it was written before the kill
                self._write_evidence(event.how, event.log_tail)
        elif event.stalled is None:
            self._stacks.unlink(missing_ok=True)
        self.due_s = 0.0
        self.close()
        return event

    def close(self) -> None:
        """Give its descriptors back."""
        if self._native is not None:
            self._native.close()
        if self._child is not None:
            self._child.close()

    def _write_evidence(self, what: str, log_tail: list[str]) -> None:
        headline = f"{self.spec.id}, incarnation {self.life.incarnation}, pid {self.pid}: {what}"
        write_evidence(self._stacks, headline, self.used, log_tail)

    def _exited(self, exit_code: int) -> Exited:
        if self._dump is not None:
            self._dump.finished()  # looks once more, at what it wrote before it was killed
        dumped = self._dump is not None and self._dump.succeeded
        how = describe_exit(exit_code)
        stalled = str(self._late) if self._late is not None else None
        if stalled is not None:
            how = "killed by the supervisor because it missed a deadline"
            if self._dump is not None and self._dump.was_stopped:
                stalled += "; its process had been stopped by a signal"
        call, lane, step = place(self.slot, self._error)
        return Exited(
            id=self.spec.id,
            exit_code=exit_code,
            how=how,
            error=self._error,
            asked=self.life.asked,
            dismissed=self.life.dismissed,
            done=self._done,
            was_ready=self.life.was_ready,
            stalled=stalled,
            stuck_in=self._dump.where() if self._dump is not None and dumped else None,
            stacks=self._stacks if dumped else None,
            log_tail=tail(self._log, self._log_from),
            call=call,
            lane=lane,
            step=step,
            used=self.used,
            incarnation=self.life.incarnation,
            pid=self.pid,
        )

    def _send_on(self) -> None:
        """Hand over what is waiting, as far as there is room."""
        if self._child is None:
            return
        try:
            self._child.control.flush()
            while self._outbox and self._child.control.try_send(self._outbox[0]):
                self._outbox.popleft()
        except ChannelClosed:
            self._outbox.clear()  # its end will be reported

    def _event(self, message: object) -> Event | None:
        match message:
            case Ready(facts):
                if self.life.phase is not Phase.STARTING:
                    return None  # it was told to stop, or is late, meanwhile
                self.life.move(Phase.READY)
                self.sample()  # so that something is known of one that ends soon
                return BecameReady(self.spec.id, self.life.incarnation, facts)
            case Failed(error):
                self._error = error
                return None
            case Done():
                self._done = True
        return Reported(self.spec.id, message)


def finishing(child: SupervisedChild) -> bool:
    """Whether it was told to stop and is at work that it may finish, which has a limit of its own."""
    return child.life.phase is Phase.STOPPING and child.slot.resume()[0] in child.spec.finishes


def place(slot: Slot, error: HeadraceError | None) -> tuple[str | None, int, int]:
    """The call of an environment a child ended in, the lane and the step; (None, -1, -1) if it was in none.

    The step is the lane's number of transitions before the call, except for what an environment raised.

    Args:
        slot: The child's, as it left it.
        error: What it reported.
    """
    if isinstance(error, EnvironmentFault):
        # By now its slot shows the clearing up that followed.
        lane, step = error.facts.get("lane"), error.facts.get("step")
        if isinstance(lane, int) and isinstance(step, int):
            return "raised", lane, step
    activity, lane, step = slot.resume()
    call = _ENVIRONMENT.get(activity)
    return (call, lane, step) if call is not None else (None, -1, -1)


def tail(path: Path, start: int) -> list[str]:
    """The last lines of a log from byte ``start`` on, without what the launcher put there; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
            return [line for line in lines if not line.startswith(LAUNCHER_MARK)][-_TAIL_LINES:]
    except OSError:
        return []
