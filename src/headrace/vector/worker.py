"""A worker: the process in which several environments are stepped, in turn or each in a thread of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from types import FrameType
from typing import Any

import cloudpickle

from headrace.core.clock import monotonic_s
from headrace.core.errors import ChannelClosed
from headrace.ipc.child import ChildContext
from headrace.vector.confined import Confined
from headrace.vector.desk import Batch, Desk, copy_facts
from headrace.vector.faults import Interrupted, Problem, from_exception
from headrace.vector.instances import twice
from headrace.vector.messages import (
    Abandon,
    Assignment,
    Attach,
    Built,
    Call,
    Details,
    Leave,
    NotBuilt,
    Packed,
    Returned,
    Spaces,
    sealed,
    unpack,
)
from headrace.vector.patience import SPIN_S, Patience
from headrace.vector.rows import settle
from headrace.vector.signals import Waiter
from headrace.vector.stepping import Phase
from headrace.vector.threads import EachDone, EachWork, InThreads, as_told

INTERRUPT_SIGNAL = signal.SIGUSR1
_LOOK_S = 5.0
_PUBLISH_S = 0.002
"""Shorter gains nothing: to publish costs what ten cheap steps cost."""


def serve(context: ChildContext) -> None:
    """Target of a worker process."""
    output = context.fds["output"]
    for place in (1, 2):
        os.dup2(output, place)
    os.close(output)
    _Worker(context).run()


class InTurn:
    """Steps environments one after the other, and can be interrupted in any of them.

    Args:
        desk: Of the worker.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._marks = desk.mailbox.marks
        self._phases = desk.mailbox.phases
        self._number = 0
        self._others = 0
        signal.signal(INTERRUPT_SIGNAL, self._on_interrupt)

    def run(self, batch: Batch) -> None:
        """Do all of it; answers leave as the parent takes them, or when two milliseconds have passed since the last."""
        marks, clock, number = self._marks, monotonic_s, self._number
        done, count = 0, len(batch.work)
        pending = zip(batch.work, batch.arguments, strict=True)
        while done < count:
            returned: list[Any] = []
            append = returned.append
            due = clock() + _PUBLISH_S
            portion = itertools.islice(pending, self._desk.mailbox.portions or count)
            try:
                for work, argument in portion:
                    number += 1
                    marks[0] = number
                    append(work(argument))
                    marks[0] = -number
                    if clock() >= due:
                        break
            except BaseException as error:  # noqa: BLE001 - an environment's own code: its exception is an answer
                marks[0] = -number
                if len(returned) < number - self._number:  # else it had come back when it was interrupted
                    append(self._problem(error))
            self._number = number
            self._publish(batch, done, returned)
            done += len(returned)

    def each(self, phase: Phase, ids: list[int], work: EachWork) -> EachDone:
        """Do something else with environments in turn, until one fails; values so far, and what went wrong."""
        values: dict[int, Any] = {}
        for env in ids:
            self._others += 1
            number = self._desk.mailbox.other_number(self._others, env)
            self._phases[0] = phase
            try:
                self._marks[0] = number
                values[env] = work(env)
                self._marks[0] = -number
            except BaseException as error:  # noqa: BLE001 - an environment's own code: its exception is an answer
                self._marks[0] = -number
                return values, (env, as_told(error, Phase(self._phases[0])))
            finally:
                self._phases[0] = Phase.STEP
        return values, None

    def send(self, message: object) -> None:
        """Say something to the parent; see `Desk.send`."""
        self._desk.send(message)

    def close(self) -> None:
        """Nothing runs on its own here."""

    def abandon(self, env: int, number: int) -> None:
        """Not here: what is stuck is interrupted."""

    def _publish(self, batch: Batch, start: int, returned: list[Any]) -> None:
        end = start + len(returned)
        resets = frozenset(place - start for place in batch.resets) if batch.resets else batch.resets
        where = batch.where[start:end]
        settled = settle(self._desk.rows, where, returned, resets)
        if self._desk.publish(batch.ids[start:end], batch.seqs[start:end], where, settled):
            self._desk.wake()

    def _problem(self, error: BaseException) -> Problem:
        phase = Phase(self._phases[0])
        self._phases[0] = Phase.STEP
        return from_exception(error, phase.label)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        target = self._desk.mailbox.take_target()
        if target > 0 and self._marks[0] == target:  # otherwise that call is over
            raise Interrupted


def _settled_down(given: Assignment) -> Confined | None:
    """Where there are threads: a turn lasts until its thread waits, and goes to another one on the same core."""
    if given.threaded and hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return None if given.core is None else Confined(given.core)


class _Worker:
    def __init__(self, context: ChildContext) -> None:
        self._context = context
        self._desk = Desk(context)
        self._confined = _settled_down(self._desk.given)
        self._seats: InTurn | InThreads = InThreads(self._desk) if self._desk.given.threaded else InTurn(self._desk)
        self._taken = 0
        self._heard = 0
        """Messages that were looked for."""
        self._leave = False
        self._patience = Patience(most_s=SPIN_S if self._desk.given.eager else 0.0)
        self._waiter = Waiter()
        self._waiter.add(self._desk.ordered.reader_fd)
        self._waiter.add(context.control.fileno())

    def run(self) -> None:
        """Work until told to leave, or until nobody is left to work for."""
        if self._desk.given.build and not self._build():
            self._linger()
            return
        with contextlib.suppress(ChannelClosed):
            while not self._leave:
                self._turn()
        self._close()

    def _has_orders(self) -> bool:
        return self._desk.mailbox.ordered != self._taken

    def _turn(self) -> None:
        mailbox = self._desk.mailbox
        woken: list[Any] | None = None
        if not self._patience.lasts(self._has_orders):
            woken = mailbox.rest.until(self._has_orders, lambda: self._waiter.wait(_LOOK_S))
            if woken == []:
                self._leave = not self._context.parent_alive()
                return
        if self._confined is not None:
            self._confined.look()
        # In this order: what belongs to a question was sent before it, so it is there once the question is seen.
        orders = mailbox.orders(self._taken)
        told = mailbox.rest.told
        if woken or told != self._heard:  # a system call costs what ten cheap steps cost
            self._heard = told
            self._desk.ordered.clear()
            for message in self._desk.hear():
                self._take(message)
        if len(orders):
            self._taken += len(orders)
            self._seats.run(self._desk.batch(orders))

    def _take(self, message: object) -> None:
        match message:
            case Attach():
                self._desk.attach(message)
            case Details():
                self._desk.note(message)
            case Packed():
                self._take(unpack(message))
            case Call():
                self._call(message)
            case Abandon(env, number):
                self._seats.abandon(env, number)
            case Leave():
                self._leave = True

    def _call(self, message: Call) -> None:
        bodies, name = self._desk.bodies, message.name

        def call(env: int) -> Any:
            args, kwargs = cloudpickle.loads(message.data)
            return bodies[env].call(name, args, kwargs, seed=message.gone.get(env))

        def put(env: int) -> None:
            value, gone = cloudpickle.loads(message.data)[env], message.gone
            bodies[env].set_attribute(name, value, gone=env in gone, seed=gone.get(env))

        values, problem = self._seats.each(Phase.CALL, message.ids, put if message.sets else call)
        for env, value in {} if message.sets or problem else values.items():
            try:
                values[env] = sealed(value, by_name=True)
            except Exception as error:  # noqa: BLE001 - pickling runs code of others, which may raise anything
                problem = env, as_told(error, Phase.CALL)
                break
        self._seats.send(Returned(message.number, {} if message.sets or problem else values, problem))

    def _build(self) -> bool:
        """Build every environment; whether that worked."""
        bodies = self._desk.bodies
        _, problem = self._seats.each(Phase.CONSTRUCT, list(bodies), lambda env: bodies[env].build())
        if problem is not None:
            self._seats.send(NotBuilt(*problem))
            return False
        made: list[Any] = [body.env for body in bodies.values()]
        found_twice = twice(dict(zip(bodies, made, strict=True)))
        if found_twice is not None:
            self._seats.send(NotBuilt(*found_twice))
            return False
        groups: list[tuple[Any, Any, list[int]]] = []
        for index, env in zip(bodies, made, strict=True):
            for observation, action, ids in groups:
                if env.observation_space == observation and env.action_space == action:
                    ids.append(index)
                    break
            else:
                groups.append((env.observation_space, env.action_space, [index]))
        spaces = [Spaces(tuple(ids), observation, action) for observation, action, ids in groups]
        self._seats.send(Built(spaces, copy_facts(made[0].metadata), made[0].render_mode))
        return True

    def _linger(self) -> None:
        """Wait to be ended: what this worker had to say would be lost with it."""
        while self._context.parent_alive():
            self._waiter.wait(_LOOK_S)

    def _close(self) -> None:
        self._seats.close()
        for body in self._desk.bodies.values():
            with contextlib.suppress(BaseException):  # the others are to be closed, too
                body.drop(close=True)
