"""Environments that block, each in a thread of its own inside one worker."""

from __future__ import annotations

import contextlib
import functools
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.core.errors import ChannelClosed, HeadraceError
from headrace.vector.desk import Batch, Desk
from headrace.vector.faults import Interrupted, Problem, from_exception
from headrace.vector.messages import LeftAlone
from headrace.vector.rows import settle
from headrace.vector.stepping import Phase

_LOOK_S = 5.0
_LISTEN_S = 0.05
"""How long the parent waits to be heard while environments do something else than step; a small part of its patience."""

EachWork = Callable[[int], Any]
"""Something to do with one environment."""
_Done = queue.SimpleQueue[tuple[int, Any, Any]]
"""Environment, value, and what went wrong instead."""
EachDone = tuple[dict[int, Any], tuple[int, Any] | None]
"""Values by environment; and the first that failed, with what is wrong."""


def as_told(error: BaseException, phase: Phase) -> HeadraceError | Problem:
    """What an exception is to the parent: our own errors say it all already."""
    return error if isinstance(error, HeadraceError) else from_exception(error, phase.label)


class _Seat:
    """One thread and what it is to do."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.abandoned = False
        self._thread = threading.Thread(target=self._work, name=f"env-{number}", daemon=True)
        self._thread.start()

    def stuck_in(self) -> str | None:
        """Its thread's innermost frame."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - the interpreter's only way to tell
        return frame and f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"

    def _work(self) -> None:
        while not self.abandoned:
            try:
                job = self.jobs.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if job is None:
                return
            with contextlib.suppress(ChannelClosed):  # the main thread sees that too, and ends the process
                job()


class InThreads:
    """Steps every environment in a thread of its own. One that is stuck is left alone: its answer is not taken.

    Args:
        desk: Of the worker.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._marks = desk.mailbox.marks
        self._phases = desk.mailbox.phases
        self._seats: dict[int, _Seat] = {}
        self._publishing = threading.Lock()

    def run(self, batch: Batch) -> None:
        """Hand all of it out."""
        seats = [self._seat(env) for env in batch.ids]
        jobs = [functools.partial(self._step, seat, batch, place) for place, seat in enumerate(seats)]
        for seat, job in zip(seats, jobs, strict=True):  # quickly: each wakes a thread, which then waits for this one
            seat.jobs.put(job, timeout=_LOOK_S)

    def each(self, phase: Phase, ids: list[int], work: EachWork) -> EachDone:
        """Do something else with environments, all at once; values, and what went wrong with the first.

        A call that the parent gives up meanwhile counts as one that went wrong.

        Raises:
            ChannelClosed: The parent is gone.
        """
        done: _Done = queue.SimpleQueue()
        for env in ids:
            seat = self._seat(env)
            seat.jobs.put(self._other_job(seat, phase, functools.partial(work, env), env, done), timeout=_LOOK_S)
        values: dict[int, Any] = {}
        problems: dict[int, Any] = {}
        while len(values) + len(problems) < len(ids):
            with contextlib.suppress(queue.Empty):
                env, value, problem = done.get(timeout=_LISTEN_S)
                if problem is None:
                    values[env] = value
                else:
                    problems[env] = problem
            if phase is Phase.CALL:  # nobody gives up while environments are built: that ends the start
                given_up = [env for env in self._given_up() if env in ids]
                problems.update({env: from_exception(Interrupted(), phase.label) for env in given_up})
        first = min(problems, default=None)
        return {env: values[env] for env in ids if env in values}, None if first is None else (first, problems[first])

    def send(self, message: object) -> None:
        """Say something to the parent, which these threads do too: one message at a time.

        Raises:
            ChannelClosed: The parent is gone.
        """
        self._enter()
        try:
            self._desk.send(message)
        finally:
            self._publishing.release()

    def abandon(self, env: int, number: int) -> bool:
        """Leave the thread of this environment alone if it is still in that call, and whether it was.

        The next question makes a new thread.
        """
        place = self._desk.seats[env]
        self._enter()
        try:
            stuck = self._marks[place] == number
            if stuck:
                left = self._seats.pop(place)
                left.abandoned = True
                self._desk.send(LeftAlone(env, left.stuck_in()))
                self._marks[place] = -number
                self._desk.renew(env)
                self._desk.mailbox.left_alone[place] += 1
        finally:
            self._publishing.release()
        self._desk.mailbox.note_heard()
        return stuck

    def close(self) -> None:
        """Let the threads end that can."""
        for seat in self._seats.values():
            seat.jobs.put(None, timeout=_LOOK_S)

    def _given_up(self) -> list[int]:
        """Environments whose threads the parent has given up since somebody listened."""
        return [told.env for told in self._desk.hear_abandons() if self.abandon(told.env, told.number)]

    def _seat(self, env: int) -> _Seat:
        number = self._desk.seats[env]
        if number not in self._seats:
            self._seats[number] = _Seat(number)
        return self._seats[number]

    def _step(self, seat: _Seat, batch: Batch, place: int) -> None:
        """One question, in its environment's thread."""
        marks, own, row = self._marks, seat.number, batch.where[place]
        number = abs(marks[own]) + 1
        marks[own] = number
        returned: Any
        try:
            returned = batch.work[place](batch.arguments[place])
        except BaseException as error:  # noqa: BLE001 - an environment's own code: its exception is an answer
            returned = from_exception(error, Phase(self._phases[own]).label)
        self._enter()
        try:
            wake = not seat.abandoned and self._publish(seat, batch, place, row, returned)
        finally:
            self._publishing.release()
        if wake:
            self._desk.wake()

    def _publish(self, seat: _Seat, batch: Batch, place: int, row: int, returned: Any) -> bool:
        """Give one answer; whether the parent is to be woken. Until then, it counts as being in its call."""
        wake = self._lay_down(batch, place, row, returned)
        self._phases[seat.number] = Phase.STEP
        self._marks[seat.number] = -self._marks[seat.number]
        return wake

    def _lay_down(self, batch: Batch, place: int, row: int, returned: Any) -> bool:
        if not self._desk.talks and self._desk.rows.write_plain(row, returned):
            return self._desk.publish_plain(batch.ids[place], batch.seqs[place], returned)
        where, here = range(row, row + 1), slice(place, place + 1)
        settled = settle(self._desk.rows, where, [returned], (0,) if place in batch.resets else ())
        return self._desk.publish(batch.ids[here], batch.seqs[here], where, settled)

    def _other_job(
        self, seat: _Seat, phase: Phase, work: Callable[[], Any], env: int, done: _Done
    ) -> Callable[[], None]:
        def job() -> None:
            number = abs(self._marks[seat.number]) + 1
            self._phases[seat.number] = phase
            self._marks[seat.number] = number
            value = problem = None
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001 - an environment's own code: its exception is an answer
                problem = as_told(error, Phase(self._phases[seat.number]))
            self._enter()
            try:
                if not seat.abandoned:  # otherwise its place is another thread's by now
                    self._marks[seat.number] = -number
                    self._phases[seat.number] = Phase.STEP
                    done.put((env, value, problem), timeout=_LOOK_S)
            finally:
                self._publishing.release()

        return job

    def _enter(self) -> None:
        """One thread at a time lays down an answer; it takes microseconds, or until the parent has room for infos."""
        while not self._publishing.acquire(timeout=_LOOK_S):
            pass
