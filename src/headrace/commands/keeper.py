"""Keeps one program of somebody else's: runs it, reads all it prints, sees whether it is ready and gets on, ends it whole.

A child of the supervisor. It judges its program itself (`headrace.commands.vigil`) and tells why it ended; what follows
is decided by the supervisor.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from headrace.commands.config import ProcessConfig
from headrace.commands.output import Output
from headrace.commands.probes import Files, Prober, Seen, files_of, look_progress, look_ready, taken
from headrace.commands.tree import Tree, exit_in_words
from headrace.commands.vigil import LOST, Judgement, Limits, Vigil
from headrace.core.errors import ChannelClosed, ComponentDied, ComponentError, ComponentStalled
from headrace.ipc.channel import Channel, Deadline, poll_fds
from headrace.ipc.child import ChildContext
from headrace.supervision.messages import Done, Failed, Ready, Report, Stop
from headrace.telemetry.board import Activity, Board, Slot, SlotView, State

KILL_S = 5.0
"""Seconds that ending a whole tree may take."""

BEAT_S = 1.0
"""Seconds between two signs of life of a keeper whose program is well."""

SHOWN_PROCESSES = 8
"""Processes of a program that an error names."""

_TURN_S = 0.25
_WAKE_BYTES = 4096
_PROBE_FAST_S, _PROBE_SLOW_S = 0.2, 5.0
_LOOKS = 100.0
_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Orders:
    """What a keeper is started with."""

    process: ProcessConfig
    board: Path


def keep(context: ChildContext) -> None:
    """The target of a keeper's process."""
    orders: Orders = context.payload
    with Board.attach(orders.board) as board, Keeper(context, orders.process, board) as keeper:
        keeper.run()


class Keeper:
    """See the module.

    Args:
        context: Of its process.
        process: What to run, and how it is judged.
        board: Attached.
    """

    def __init__(self, context: ChildContext, process: ProcessConfig, board: Board) -> None:
        self._id, self._control = context.id, context.control
        self._process = process
        self._display = Display(board, board.slot(context.id), process)
        self._last_failure = ""
        """What the last look that found nothing has found instead."""
        self._told_s = 0.0
        self._next_telling = Deadline(0.0)
        self._said_ready = False
        self._alive: list[str] = []
        """What is left of the program, and may not be killed."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        before = _seen_before(self._id, process)
        if isinstance(before, ComponentDied):
            say_why(self._control, before)
        try:
            self._tree = Tree(self._id, process.command, process.cwd, {**os.environ, **process.env})
        except ComponentDied as error:
            say_why(self._control, error)
        progress = process.progress
        limits = Limits(
            start_s=process.ready.start_s, alive_s=process.ready.alive_s, stopped_s=process.stopped_s,
            progress_s=None if progress is None else progress.progress_s,
        )  # fmt: skip
        self._vigil = Vigil(limits, time.monotonic(), time.thread_time())
        self._output = Output(self._tree.output_fd, 1, process, self._vigil)
        self._probers = _probers(process, before, self._wake_writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tree.kill(KILL_S)
        self._tree.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def run(self) -> None:
        """Follow the program to its end."""
        self._display.starting()
        while True:
            self._wait()
            stop = self._heed()
            self._output.read()
            if stop is not None:
                self._stop(stop)
                return
            code = self._tree.ended()
            if code is not None:
                self._on_end(code)
                return
            self._look()
            self._judge()
            self._tell()

    def _wait(self) -> None:
        """Until something happens, a quarter of a second at most."""
        poll_fds(
            dict.fromkeys([self._control.fileno(), self._wake_reader, *self._signs_of_life()], select.POLLIN), _TURN_S
        )
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, _WAKE_BYTES)

    def _signs_of_life(self, *, running: bool = True) -> list[int]:
        """What is readable when the program prints or ends; an output it has closed, and an end that is known, always would be."""
        fds = [] if self._output.closed else [self._tree.output_fd]
        return fds + ([self._tree.pidfd] if self._tree.pidfd >= 0 and running else [])

    def _heed(self) -> Stop | None:
        try:
            messages = self._control.receive_all()
        except ChannelClosed:
            return Stop("nobody is left to work for")
        return next((message for message in messages if isinstance(message, Stop)), None)

    def _tell(self) -> None:
        """Pass lines on, and when it last got on; what finds no room waits, for nobody may hold the program up."""
        with contextlib.suppress(ChannelClosed):  # the next turn sees that
            if self._output.pass_on(self._control) and not self._next_telling.passed:
                return
            news = self._said_ready and self._vigil.progress_s > self._told_s
            if news and self._next_telling.passed and self._control.flush():
                facts = {"progress_s": self._vigil.progress_s, "signs": self._vigil.signs}
                if self._control.try_send(Report("progress", facts)):
                    self._told_s = self._vigil.progress_s
                    self._next_telling = Deadline(BEAT_S)

    def _look(self) -> None:
        """Look for its signs outside of its output."""
        now_s = time.monotonic()
        self._vigil.note_stopped(now_s, stopped=self._tree.stopped())
        ready, progress = self._probers
        seen: Seen | None = None
        if self._vigil.ready_s is None:
            seen = ready.turn() if ready is not None else None
            if seen is not None and seen.good:
                self._vigil.note_ready(now_s)
        elif progress is not None:
            seen = progress.turn()
            if seen is not None and seen.number is not None:
                self._vigil.note_number(seen.number, now_s)
            if seen is not None and seen.idle:
                self._vigil.note_idle(now_s)
        if seen is not None:
            self._last_failure = seen.why

    def _judge(self) -> None:
        now_s = time.monotonic()
        judgement = self._vigil.judge(now_s, time.thread_time())
        self._say_ready()
        facts = _failed_by(self._output)
        if facts:
            what = f"{self._id} lives and has failed: a line matches its fail_pattern"
            self._fail(ComponentDied(what, **facts, fix=f"read the last lines of logs/{self._id}.log"))
        if judgement in LOST:
            self._fail(self._lost(judgement, now_s))
        self._display.show(judgement, self._vigil.signs)

    def _say_ready(self) -> None:
        """Say that it is ready, without waiting; what finds no room is said in the next turn."""
        ready = self._ready()
        if ready is not None:
            with contextlib.suppress(ChannelClosed):  # the next turn sees that
                self._said_ready = self._control.try_send(ready)

    def _ready(self) -> Ready | None:
        """What is to be said of its readiness; None: it is not, or that was said."""
        if self._vigil.ready_s is None or self._said_ready:
            return None
        return Ready({"after_s": round(self._vigil.ready_s - self._vigil.started_s, 3)})

    def _lost(self, judgement: Judgement, now_s: float) -> ComponentStalled:
        facts: dict[str, object] = {"last_look": self._last_failure} if self._last_failure else {}
        facts["processes"] = "; ".join(self._tree.in_words()[:SHOWN_PROCESSES])
        key = {Judgement.LATE: "ready.start_s", Judgement.STALLED: "progress.progress_s"}.get(judgement, "stopped_s")
        fix = f"read the last lines of logs/{self._id}.log; raise {key} if it is only slow"
        return ComponentStalled(f"{self._id} {self._vigil.in_words(judgement, now_s)}", **facts, fix=fix)

    def _on_end(self, code: int) -> None:
        """It has ended by itself."""
        self._end_rest()
        self._look_once_more()
        facts = _failed_by(self._output)
        if code == 0 and not facts and self._process.lifetime == "until-done":
            self._last_words(Done({"lines": self._output.lines}))
            return
        fix = f"read the last lines of logs/{self._id}.log"
        what = f"{self._id} {exit_in_words(code)}"
        if code == 0 and facts:
            what += " and has failed: a line matches its fail_pattern"
        elif code == 0:
            what += ", and it should live as long as the run"
            fix += '; set lifetime = "until-done" if code 0 means that its work is done'
        self._last_words(Failed(ComponentDied(what, **facts, fix=fix)))
        sys.exit(1)

    def _look_once_more(self) -> None:
        """It may have shown in its last moment that it is ready; looks are seconds apart."""
        looker, _ = self._probers
        if self._vigil.ready_s is None and looker is not None and self._process.ready.file is not None:
            seen = looker.last()
            if seen.good:
                self._vigil.note_ready(time.monotonic())

    def _stop(self, stop: Stop) -> None:
        """It has to leave: ask it, read on meanwhile, then kill what is left."""
        self._display.stopping()
        asked = self._tree.signal(self._process.stop_number)
        deadline = Deadline(self._process.stop_s)
        # Not only for the program itself: a shell around it is gone at once, and what it had started is still saving its work.
        while asked and not self._tree.group_gone() and not deadline.passed and self._control.peer_alive():
            signs = self._signs_of_life(running=self._tree.ended() is None)
            poll_fds(dict.fromkeys(signs, select.POLLIN), min(_TURN_S, deadline.left_s()))
            self._output.read()
        heeded = not asked or self._tree.group_gone()
        self._end_rest()
        self._last_words(self._left(stop.reason, heeded=heeded))

    def _fail(self, error: ComponentError) -> NoReturn:
        """It lives, and may not go on."""
        self._end_rest()
        self._last_words(Failed(error))
        sys.exit(1)

    def _end_rest(self) -> None:
        """Kill what is left of it, and read what all of them had printed."""
        if not self._tree.kill(KILL_S):
            self._alive = self._tree.in_words_left()
        self._output.read_last()

    def _last_words(self, verdict: Done | Failed | Report) -> None:
        """Tell all that is left to tell, and at last what came of it."""

        def tell(message: object) -> None:
            hand_over(self._control, message, self._display.leaving)

        ready = self._ready()  # it may have been, for a moment
        if ready is not None:
            tell(ready)
        self._output.pass_all_on(tell)
        if self._alive and not isinstance(verdict, Report):
            tell(self._left("it has ended", heeded=True))
        tell(verdict)

    def _left(self, reason: str, *, heeded: bool) -> Report:
        return Report("left", {"reason": reason, "heeded": heeded, "alive": self._alive[:SHOWN_PROCESSES]})


def say_why(control: Channel, error: ComponentError) -> NoReturn:
    """Tell why, and end this process; a traceback of ours would only hide the program's own last lines."""
    hand_over(control, Failed(error), lambda: None)
    sys.exit(1)


def hand_over(control: Channel, message: object, meanwhile: Callable[[], None]) -> None:
    """Send what must not be lost: waits for as long as anybody is at the other end, who may be suspended (Ctrl-Z).

    Args:
        control: To the supervisor.
        message: What it is to know.
        meanwhile: Called now and then while there is no room.
    """
    with contextlib.suppress(ComponentError):  # nobody is left to tell
        accepted = control.try_send(message)
        while not (accepted and control.flush()) and control.peer_alive():
            meanwhile()
            poll_fds({control.fileno(): select.POLLOUT}, _TURN_S)
            accepted = accepted or control.try_send(message)


class Display:
    """A keeper's place on the board.

    Args:
        board: Attached.
        slot: Of the component.
        process: What it needs, and how long it may take.
    """

    def __init__(self, board: Board, slot: Slot, process: ProcessConfig) -> None:
        self._board, self._slot, self._process = board, slot, process
        self._shown: tuple[Activity, str | None] | None = None
        self._beat = Deadline(0.0)
        self._signs = 0

    def starting(self) -> None:
        """The program runs, and its sign of readiness is waited for."""
        self._slot.set_state(State.STARTING)
        self._slot.waiting(Activity.WAIT_READY, deadline_s=self._process.ready.start_s)

    def stopping(self) -> None:
        """It was asked to leave."""
        self._slot.set_state(State.STOPPING)
        self._slot.waiting(Activity.STOP, deadline_s=self._process.stop_s)

    def leaving(self) -> None:
        """Its program is over, and is still to be told of: each call is a sign of this keeper's own life."""
        self._slot.enter(*self._slot.resume())

    def show(self, judgement: Judgement, signs: int) -> None:
        """Keep the board true; while all is well, each beat is a sign of this keeper's own life.

        Args:
            judgement: Of now.
            signs: How often it has shown that it gets on.
        """
        if signs > self._signs:
            self._slot.add("updates", signs - self._signs)
            self._signs = signs
        if judgement is Judgement.QUIET and self._process.progress is not None:
            on = suspect(self._process.needs, [self._board.read(name) for name in self._process.needs])
            if self._shown != (Activity.WAIT_PROGRESS, on):
                self._slot.set_state(State.RUNNING)
                self._slot.waiting(Activity.WAIT_PROGRESS, on=on, deadline_s=self._process.progress.progress_s)
                self._shown = (Activity.WAIT_PROGRESS, on)
        elif judgement is Judgement.WELL and (self._shown != (Activity.COMMAND, None) or self._beat.passed):
            self._slot.set_state(State.RUNNING)
            self._slot.enter(Activity.COMMAND)
            self._shown = (Activity.COMMAND, None)
            self._beat = Deadline(BEAT_S)


def _failed_by(output: Output) -> dict[str, str]:
    """The line that says that the program has failed, as a fact of an error; empty: there is none."""
    return {} if output.failed_by is None else {"line": output.failed_by[:_SHOWN_CHARACTERS]}


def _seen_before(name: str, process: ProcessConfig) -> Files | ComponentDied:
    """What would be taken for its signs, and is there before it is: files; an answer is a fault."""
    ready = process.ready
    if ready.file is not None:
        return files_of(ready.file, Path(process.cwd))
    if ready.http is not None and not ready.shared and taken(partial(look_ready, ready, Path(process.cwd))).good:
        return ComponentDied(
            f"{name} was not started: something else answers as it should",
            http=ready.http,
            fix="end what listens there, or give this process another port; if that is meant, set ready.shared = true",
        )
    return frozenset()


def _probers(process: ProcessConfig, before: Files, wake_fd: int) -> tuple[Prober | None, Prober | None]:
    """Who looks for readiness, and who for progress; None where lines or time tell."""
    cwd, ready, progress = Path(process.cwd), process.ready, process.progress
    first = second = None
    if ready.http is not None or ready.file is not None:
        first = Prober(partial(look_ready, ready, cwd, before), ready.probe_s, pace_s(ready.start_s), wake_fd)
    if progress is not None and progress.log is None:
        second = Prober(partial(look_progress, progress, cwd), progress.probe_s, pace_s(progress.progress_s), wake_fd)
    return first, second


def pace_s(limit_s: float) -> float:
    """Seconds between two looks for something that may take so long."""
    return min(_PROBE_SLOW_S, max(_PROBE_FAST_S, limit_s / _LOOKS))


_TROUBLE = {State.FAILED: 0, State.EMPTY: 1, State.STARTING: 2, State.WAITING: 3}
"""Not ENDED: one whose work is done is not missed."""


def suspect(needs: list[str], views: list[SlotView]) -> str | None:
    """Which of the processes that are needed is most likely the reason why nothing comes; None: they look well."""
    troubled = [(_TROUBLE[view.state], name) for name, view in zip(needs, views, strict=True) if view.state in _TROUBLE]
    return min(troubled)[1] if troubled else None
