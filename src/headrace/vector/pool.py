"""Environments in worker processes: asked through shared memory, watched, and their workers replaced."""

from __future__ import annotations

import contextlib
import math
import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from headrace.core.clock import MonotonicClock
from headrace.core.errors import HeadraceError, VectorMisused
from headrace.ipc.child import Failed
from headrace.vector import losses
from headrace.vector.crew import TELL_S, Crew
from headrace.vector.events import Answers, Event, Failure, Moves
from headrace.vector.faults import FaultKind, Problem
from headrace.vector.handle import Handle, ask_those_left
from headrace.vector.interrupts import is_programs
from headrace.vector.messages import Call, Details, Packed, Returned, sealed, unpack
from headrace.vector.parting import parted
from headrace.vector.patience import SPIN_S, Patience
from headrace.vector.seats import Late
from headrace.vector.slab import Kind, Note, Slab
from headrace.vector.slots import Slots, SlotState
from headrace.vector.stepping import Phase
from headrace.vector.watch import Verdict

INTERRUPT_SIGNAL = signal.SIGUSR1
Ids = NDArray[np.int64]


class Pool:
    """A `headrace.vector.events.Backend` over a crew whose environments are built.

    Args:
        crew: Owned from now on.
        slab: Shared with it.
        slots: Who is asked what; only read here.
    """

    def __init__(self, crew: Crew, slab: Slab, slots: Slots) -> None:
        self.slab = slab
        self.here = 0
        self._slots = slots
        self.crew = crew
        self._limits = crew.options.limits
        self._clock = MonotonicClock()
        self._interrupted: dict[int, Late] = {}
        self._orders: list[tuple[Handle, Ids, int]] = []
        """The newest ones, with how many questions each worker had been asked before."""
        self._newest: tuple[int, int] | None = None
        """Environment and number of the first of them."""
        self._calls = 0
        self._eager = crew.options.template.eager
        self._patience = Patience(most_s=SPIN_S if self._eager else 0.0)
        self.look_at_s = 0.0
        """When somebody is to look whether a worker is late; by the monotonic clock."""
        self.later: list[Event] = []
        """Known, and not told yet."""

    def prepare(self, values: Mapping[int, Any], what: str) -> dict[int, Any]:
        """See `Backend.prepare`; one that is for several is pickled once."""
        given: dict[int, Any] = {}
        for env, value in values.items():
            if id(value) not in given:
                given[id(value)] = _sealed(value, what, env)
        return {env: given[id(value)] for env, value in values.items()}

    def submit(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> None:
        """See `Backend.submit`."""
        now_s = self._clock.now()
        for env in resets:
            if self.slab.kind[env] == Kind.RENEW:
                self.crew.move(env)
        groups = self.crew.grouped(ids)
        # Before anybody is asked: workers were started, and are to be written to, and both may fail.
        details = [_details(part, resets, actions) for _, part in groups] if resets or actions else [None] * len(groups)
        for (handle, _), told in zip(groups, details, strict=True):
            if told is not None:
                handle.tell(told, TELL_S)
        self._orders = [(handle, part, handle.mailbox.ordered) for handle, part in groups]
        self._newest = (ids[0], seqs[0]) if len(ids) else None
        for handle, part in groups:  # nothing is waited for any more
            handle.order(part, now_s, wakes=not self._eager)

    def ask_rest(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> bool:
        """See `Backend.ask_rest`."""
        if not len(ids) or self._newest != (ids[0], seqs[0]):
            return False  # it had not come to these
        orders = [(handle, part, handle.mailbox.ordered != before) for handle, part, before in self._orders]
        return ask_those_left(orders, self._clock.now())

    def poll(self, missing: int, timeout_s: float) -> list[Event]:
        """See `Backend.poll`."""
        events, self.later = self.later, []
        if events:
            return events
        asked = [handle for handle in self.crew.handles.values() if handle.open > 0]
        enough = min(missing, sum(handle.open for handle in asked))  # 0: a replacement has to wait
        for handle in asked:
            handle.mailbox.portion(math.ceil(enough / len(asked)))
        if timeout_s > 0.0 and not 0 < enough <= _given(self.crew):
            until_s = self._clock.now() + timeout_s
            if not (enough and self._patience.lasts(lambda: _given(self.crew) >= enough)):
                self._sleep(enough, until_s)
        events = self._collect()
        if self.crew.alarm or self._clock.now() >= self.look_at_s:
            try:
                self._look(events)
            except BaseException:
                self.later = events  # they were taken in, and are told by the next poll
                raise
        return events

    def call(
        self, name: str, data: Any, ids: list[int], gone: Mapping[int, int | None], *, sets: bool
    ) -> dict[int, Any]:
        """See `Backend.call`.

        One that does not return in time is interrupted, or its worker is ended; `poll` tells of the latter.
        """
        self._calls += 1
        packed = _sealed(data, f"what goes with {name or 'a function'}", ids[0], cloudpickle.dumps)
        wanted: dict[int, list[int]] = {}
        now_s, lost = self._clock.now(), {env: gone[env] for env in ids if env in gone}
        for env in lost if sets else ():
            self.crew.move(env)
        for handle, part in self.crew.grouped(np.array(sorted(ids), np.int64)):
            handle.seats.begin(part, now_s)
            wanted[handle.index] = part.tolist()
            handle.called |= dict.fromkeys(wanted[handle.index], self._calls)
            handle.tell(Call(self._calls, wanted[handle.index], name, packed, sets, lost), TELL_S)
        values: dict[int, Any] = {}
        problems: list[tuple[int, Any]] = []
        while wanted:
            self.crew.wait(self._limits.look_s)
            for index, own in list(wanted.items()):
                reply = self._reply(index, own)
                if reply is not None:
                    problems += _read(reply, values)
                    self.later += _broken_by(reply)
                    del wanted[index]
        if problems:
            env, problem = min(problems, key=lambda found: found[0])
            raise losses.call_failed(name, env, problem)
        return {env: values.get(env) for env in ids}

    def broken_off(self) -> Sequence[int]:
        """See `Backend.broken_off`; workers go on."""
        return ()

    def close(self, timeout_s: float) -> None:
        """See `Backend.close`."""
        vars(self).pop("slab", None)  # it is gone already if an interrupt has broken off the last attempt
        self.crew.close(timeout_s)

    def pids(self) -> dict[int, int]:
        """See `Backend.pids`."""
        return {index: handle.child.pid for index, handle in sorted(self.crew.handles.items())}

    def _sleep(self, enough: int, until_s: float) -> None:
        """Until so many answers are there, a worker may have ended, or somebody is to look after them."""
        handles = self.crew.handles.values()
        while not self.crew.alarm:
            behind = [handle for handle in handles if handle.unanswered > 0]
            rest = enough - sum(handle.given for handle in handles)
            share = math.ceil(rest / max(1, len(behind)))
            if rest <= 0 < enough or not all(handle.wake_after(handle.given + share) for handle in behind):
                return
            now_s = self._clock.now()
            if now_s >= min(until_s, self.look_at_s):
                return
            self.crew.wait(min(until_s, self.look_at_s) - now_s)

    def _collect(self) -> list[Event]:
        """Answers that are there."""
        found = [(handle, handle.take()) for handle in self.crew.handles.values()]
        found = [(handle, ids) for handle, ids in found if len(ids)]
        if not found:
            return []
        ids = found[0][1] if len(found) == 1 else np.concatenate([part for _, part in found])
        answers = Answers(ids, self.slab.answered[ids])
        notes = self.slab.note[ids]
        if notes.any():
            answers.columns = [columns for handle, part in found for columns in handle.forms.columns(part, self.slab)]
        if not (notes == Note.MESSAGE).any() and not any(handle.written_off for handle, _ in found):
            return [answers]
        owners = [handle for handle, part in found for _ in range(len(part))]
        return self._with_extras(answers, notes, owners)

    def _with_extras(self, answers: Answers, notes: NDArray[np.uint8], owners: list[Handle]) -> list[Event]:
        """Answers with what was sent along."""
        listed, numbers = answers.ids.tolist(), answers.seqs.tolist()
        for place, handle in enumerate(owners):
            handle.written_off.discard((listed[place], numbers[place]))
        good = np.ones(len(listed), np.bool_)
        failures: list[Event] = []
        for place in np.flatnonzero(notes == Note.MESSAGE).tolist():
            env, seq, handle = listed[place], numbers[place], owners[place]
            extras = handle.extras_of(env, seq)
            if extras is None:
                good[place] = False
                failures.append(Failure(env, seq, losses.unreadable(handle.unreadable)))
            elif env in extras.problems:
                good[place] = False
                failures.append(Failure(env, seq, self._problem(handle, env, extras.problems[env])))
            else:
                answers.note(env, extras)
        answers.ids, answers.seqs = answers.ids[good], answers.seqs[good]
        return [answers, *failures]

    def _is_busy(self, env: int) -> bool:
        """Whether it was asked something and has not answered, as far as taken in."""
        return bool(self._slots.state[env] == SlotState.BUSY)

    def _problem(self, handle: Handle, env: int, problem: Problem) -> Problem:
        late = self._interrupted.pop(env, None)
        if problem.kind is FaultKind.HUNG and late is not None:
            return losses.interrupted(problem, env, handle.name, handle.child.pid, late)
        problem.error.place(worker=handle.name, pid=handle.child.pid)
        return problem

    def _look(self, events: list[Event]) -> None:
        """Who has ended, and who is late.

        Args:
            events: What is known and not taken in yet; what is found is added.
        """
        now_s = self._clock.now()
        self.look_at_s = now_s + self._limits.look_s
        self.crew.alarm = False
        for handle in list(self.crew.handles.values()):
            for env, late in handle.given_up().items():
                events += self._abandoned(handle, env, late)
            if handle.worn_out:
                self.crew.relieve(handle)
                events.append(Moves(tuple(self.crew.housed(handle))))
            # Of those it steps: others have moved to its successor, or have not come from its predecessor yet.
            busy = [env for env in self.crew.housed(handle) if self._is_busy(env) and env not in handle.giving_up]
            self._watch(handle, busy if handle.open > 0 else [], now_s)
        self.crew.server.collect()
        for handle in list(self.crew.handles.values()):
            if handle.child.exit_code is not None:
                self._ended(handle, handle.child.exit_code, events)
        if self.crew.server.error is not None:
            raise self.crew.server.error

    def _watch(self, handle: Handle, busy: list[int], now_s: float) -> None:
        if handle.culprit is not None:
            if handle.dump is None or handle.dump.finished():
                handle.child.kill()
            return
        if not busy and not handle.giving_up:
            return
        found = handle.seats.look([*busy, *handle.giving_up], self._limits, now_s)
        for verdict, late in sorted(found, key=lambda one: one[1].number <= 0):  # who is in a call is to blame first
            if verdict is Verdict.INTERRUPT:
                self._interrupt(handle, late)
            elif handle.culprit is None:
                if handle.threaded and late.number <= 0:  # it has not begun: somebody else holds the process up
                    late = handle.seats.longest(handle.awaits(self._is_busy), self._limits, now_s) or late
                handle.condemn(late, self.crew.stacks, self._limits.dump_s)

    def _interrupt(self, handle: Handle, late: Late) -> None:
        if handle.threaded:
            if late.number > 0:  # others wait for the process, and not the process for them
                handle.give_up(late, TELL_S)
        elif late.env is not None:
            self._interrupted[late.env] = late
            handle.mailbox.interrupt(late.number)
            handle.child.send_signal(INTERRUPT_SIGNAL)

    def _abandoned(self, handle: Handle, env: int, late: Late) -> list[Event]:
        """A thread was left alone: its question is answered by that, if there is one."""
        handle.read()
        problem = losses.abandoned(env, handle.name, handle.child.pid, late, handle.stuck_in.pop(env, None))
        if not self._is_busy(env):  # it was in a call, from which Ctrl-C has called the caller away
            return [Failure(env, -1, problem)]
        seq = int(self._slots.seq[env])
        handle.written_off.add((env, seq))
        return [Failure(env, seq, problem)]

    def _ended(self, handle: Handle, exit_code: int, events: list[Event]) -> None:
        """A worker has ended: what it had answered counts, everything else is lost."""
        handle.read()
        events += self._collect()
        answered = {env for event in events if isinstance(event, Answers) for env in event.ids.tolist()}
        said = next((message.error for message in handle.replies if isinstance(message, Failed)), None)
        housed, end = self.crew.housed(handle), _end(handle, exit_code, said)
        suspects = _suspects(handle, housed, end, handle.awaits(self._is_busy))
        for env in sorted(housed, key=lambda env: env not in suspects):  # who is to blame is told of first
            problem = suspects.get(env) or losses.lost_with(end, suspects)
            asked = self._is_busy(env) and env not in answered
            events.append(Failure(env, int(self._slots.seq[env]) if asked else -1, problem))
        apart, together = parted(housed, suspects, again=handle.succeeds)
        heir = handle.successor
        self.crew.bury(handle, list(suspects))
        if heir is not None:
            together = _inherited(heir, self.crew)
        # If one cannot be started, each gets one when it is asked, and whoever asks is told why that fails.
        with contextlib.suppress(HeadraceError, OSError):
            for group in together + apart:
                self.crew.spawn(group, build=False).succeeds = True

    def _reply(self, index: int, own: list[int]) -> Returned | None:
        """What a worker returned from the newest call, or what has to stand for it."""
        handle = self.crew.handles.get(index)
        if handle is None:
            return Returned(self._calls, {}, (own[0], losses.call_lost()))
        for message in handle.replies:
            if isinstance(message, Returned) and message.number == self._calls:
                handle.replies.clear()
                reply, gone = _with_left_alone(handle, message)
                self.later += gone
                return reply
        if handle.child.ended():
            self.crew.server.collect()
            if self.crew.server.error is not None:
                raise self.crew.server.error
            if handle.child.exit_code is None:
                return None  # in a moment; whoever asked next would find a worker that is gone
            self.crew.alarm = True
            return Returned(self._calls, {}, (own[0], losses.call_lost()))
        # Of threads only those that are in it still: a seat whose call is over is late with nothing.
        inside = [env for env, _ in handle.seats.inside(lambda env: env in own)]
        self._watch(handle, inside or own, self._clock.now())
        return None


def _given(crew: Crew) -> int:
    """How many answers are there. Until there are enough they are left lying: to take them in costs."""
    return sum(handle.given for handle in crew.handles.values())


def _inherited(heir: Handle, crew: Crew) -> list[list[int]]:
    """Whoever is no suspect has moved to it, so nobody else has to house them; where all were, it has nothing to do, and ends."""
    heir.succeeds = True
    if not crew.housed(heir):
        heir.child.kill()
    return []


def _end(handle: Handle, exit_code: int, said: HeadraceError | None) -> losses.End:
    """How a worker has ended, and if we ended it, what held it up."""
    held: dict[str, object] = {}
    late, dump = handle.culprit, handle.dump
    if dump is not None and late is not None:
        # In no call the current thread waits for work: another one holds it up.
        stuck_in = dump.where() if _is_named(late) else "; ".join(dump.threads())
        held |= {"stuck_in": stuck_in} if stuck_in else {}
    if handle.was_stopped:
        held["stopped"] = "its process had been stopped by a signal"
    return losses.End(handle.name, handle.child.pid, exit_code, said, late, handle.unheard, held)


def _is_named(late: Late) -> bool:
    """Whether a worker was ended for a call that it is in."""
    return late.env is not None and late.number > 0


def _suspects(handle: Handle, housed: list[int], end: losses.End, busy: Callable[[int], bool]) -> dict[int, Problem]:
    """Environments that may have ended their worker, with what is said of each; if there is one, it did.

    Those that it was in a call of; where it was in none everybody, as each may have left a thread behind.
    """
    late = end.late
    if late is not None and late.env is not None and _is_named(late) and late.env in housed:
        told = losses.made_no_room if end.unheard else losses.culprit_ended
        return {late.env: told(late.env, end, late)}
    # In what it is when we end it for something else, it may have come only since.
    found = handle.seats.inside(busy) if late is None else []
    inside = {env: Phase(phase).label for env, phase in found if env in housed}
    if len(inside) == 1:
        return {env: losses.died(env, end, phase) for env, phase in inside.items()}
    if len(housed) == 1:
        return {env: losses.ended_alone(env, end) for env in housed}
    suspected = inside or housed
    return {env: losses.lost_with(end, suspected, inside.get(env, "step")) for env in suspected}


def _details(part: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]) -> Packed | None:
    """What one worker is told beside its questions; None: nothing."""
    own = part.tolist()
    own_resets = {env: (sealed(resets[env][0]), resets[env][1]) for env in own if env in resets}
    own_actions = {env: actions[env] for env in own if env in actions}
    if not (own_resets or own_actions):
        return None
    return Packed(pickle.dumps(Details(own_resets, own_actions), protocol=pickle.HIGHEST_PROTOCOL))


def _sealed(value: Any, what: str, env: int, seal: Callable[[Any], Any] = sealed) -> Any:
    try:
        return seal(value)
    except Exception as error:  # pickling runs code of others, which may raise anything
        if is_programs(error):
            raise
        raise VectorMisused(
            f"{what} for environment {env} cannot be pickled, and it runs in a worker",
            error=f"{type(error).__name__}: {error}",
            fix="leave out what cannot be pickled, or take workers=0",
        ) from error


def _read(reply: Returned, values: dict[int, Any]) -> list[tuple[int, Any]]:
    """Take in what a worker has returned; environments whose values are missing, and why."""
    problems = [reply.problem] if reply.problem else []
    for env, value in reply.values.items():
        try:
            values[env] = unpack(value)
        except Exception as error:  # to read it runs code of others, which may raise anything
            if is_programs(error):
                raise
            problems.append((env, losses.unreadable_value(error)))
    return problems


def _with_left_alone(handle: Handle, reply: Returned) -> tuple[Returned, list[Event]]:
    """A reply, with what its worker cannot know of a thread it left alone; and others it left, whose environments are gone."""
    left = {
        env: losses.abandoned(env, handle.name, handle.child.pid, late, handle.stuck_in.pop(env, None))
        for env, late in handle.given_up().items()
    }
    if reply.problem is not None and reply.problem[0] in left:
        first = reply.problem[0]
        reply = replace(reply, problem=(first, left.pop(first)))
    return reply, [Failure(env, -1, problem) for env, problem in left.items()]


def _broken_by(reply: Returned) -> list[Event]:
    """A call that had to be interrupted leaves an environment in an unknown state."""
    match reply.problem:
        case (env, Problem(kind=FaultKind.HUNG) as problem):
            return [Failure(env, -1, problem)]
    return []
