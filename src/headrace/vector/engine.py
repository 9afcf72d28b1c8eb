"""Between the caller's questions and where environments run: nothing is waited for that can be answered already."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import HeadraceError, RestartBudgetSpent, VectorMisused
from headrace.vector import losses
from headrace.vector.complaints import Complaints
from headrace.vector.events import Answers, Backend, Event, Failure, Moves
from headrace.vector.faults import Fault, FaultKind, Problem
from headrace.vector.pending import Pending
from headrace.vector.renewal import Renewal
from headrace.vector.rows import Rows, row_of
from headrace.vector.slab import Kind, Slab
from headrace.vector.slots import AskAgain, Cut, GiveUp, Raise, Slots, SlotState

Ids = NDArray[np.int64]
_KEPT_FAULTS = 1000
_LONG_S = 3600.0


class Engine:
    """Asks, waits, and makes of every fault what the policy says.

    Args:
        backend: Where environments run.
        rows: Their newest observations.
        slots: Their requests.
        mode: The autoreset mode.
        clock: For pauses and time-outs.
    """

    def __init__(
        self, backend: Backend, rows: Rows, slots: Slots, mode: AutoresetMode, clock: Clock | None = None
    ) -> None:
        size = slots.num_envs
        self.slots = slots
        self.rows = rows
        self.faults: deque[Fault] = deque(maxlen=_KEPT_FAULTS)
        """The last ones."""
        self.pending = Pending(rows, size)
        self.renewal = Renewal(size)
        self.ended = np.zeros(size, np.bool_)
        """Whose episode is over."""
        self.any_ended = False
        """Whether anybody's is; only while `calm`."""
        self._backend = backend
        self._hand_out = partial(_hand_out, backend, slots, self.renewal)
        self._mode = mode
        self._disabled = mode is AutoresetMode.DISABLED
        self._clock = clock or MonotonicClock()
        self.complaints = Complaints()
        """Of which the caller is to be told by exceptions."""
        self._spent: HeadraceError | None = None
        self._size = size
        self._everybody = np.arange(size)
        self._none = np.zeros(size, np.bool_)
        self._common: int | None = None
        """Number of everybody's newest question while all are idle and nothing is pending; None: not known."""
        self._unwritten = 0
        """Steps that were made since, and are not in the slots yet."""
        self._first = 0

    def calm(self) -> int | None:
        """The number of everybody's newest question, if all are idle and have observations, and nothing is pending."""
        if self._common is None:
            waiting = self.renewal.broken or self.renewal.moving or self.pending or self.complaints or self._spent
            seq = self.slots.seq
            if not waiting and self.slots.idle() and (seq == seq[0]).all() and (self.pending.row >= 0).all():
                self._common = int(seq[0])
                self.any_ended = bool(self.ended.any())
        return self._common

    def went(self, first: int, resets: Sequence[int]) -> None:
        """Everybody was stepped, or reset, outside of the slots, and has answered; see `calm`.

        Args:
            first: The first of the rows where their observations are.
            resets: Those that were reset.
        """
        assert self._common is not None
        self._common += 1
        self._unwritten += 1
        self._first = first
        for env in resets:
            self.renewal.steps[env] -= 1

    def leave_calm(self) -> None:
        """From here on things go the ordinary way: what happened outside of the slots is written into them."""
        self._common = None
        if self._unwritten:
            self.slots.seq += self._unwritten
            self.renewal.steps += self._unwritten
            np.add(self._everybody, self._first, out=self.pending.row)
            self._unwritten = 0

    def reset(self, ids: Ids, seeds: Sequence[int | None], options: Any, *, drops: bool = False) -> None:
        """Ask for a reset.

        Args:
            ids: Whom.
            seeds: One each.
            options: For all of them; a list: one each.
            drops: Whether, after an exception, answers are forgotten that were ready beside the fault.
        """
        self._raise_if_spent()
        self.leave_calm()
        each = options if isinstance(options, list) else [options] * len(ids)
        given = _prepared(self._backend, ids, each, "options")
        if drops and self.complaints.raised:
            _pass_over(self.slots, self.pending, self.complaints, ids)
        now = self.slots.send(ids, self._none[ids], self._clock.now())
        self.complaints.raised = False
        self.renewal.remember(ids, seeds, options)
        self.renewal.options.update(given)  # as they are handed out, again and again if need be
        self._ask_resets(now, self.renewal.seeds_of(now))

    def step(self, ids: Ids, columns: Sequence[NDArray[Any]], actions: Sequence[Any]) -> None:
        """Ask for a step; those whose episode is over are reset instead, as Gymnasium's next-step mode has it.

        Args:
            ids: Whom.
            columns: Their actions, per leaf.
            actions: Their actions, if they are objects.
        """
        self._raise_if_spent()
        slab, slots = self._backend.slab, self.slots
        by_env = _prepared(self._backend, ids, actions, "an action") if actions else {}
        if len(ids) == self._size and self.calm() is not None and not (self.any_ended and self._disabled):
            self.leave_calm()
            resets = self.ended if self._mode is AutoresetMode.NEXT_STEP else self._none
            for own, column in zip(slab.actions, columns, strict=True):
                own[:] = column
            slots.send_all()  # now: from here to where they are handed out no signal's handler finds room
            slots.is_step ^= resets
            slab.seq[:] = slots.seq
            slab.kind[:] = resets  # a reset without a seed is kind 1, a step 0
            self._hand_out(ids, slab.seq, {}, by_env)
            self.renewal.steps += slots.is_step
            return
        self.leave_calm()
        self._step_some(ids, columns, by_env)

    def _step_some(self, ids: Ids, columns: Sequence[NDArray[Any]], actions: Mapping[int, Any]) -> None:
        """Any of them, in any state."""
        slab, ended = self._backend.slab, self.ended[ids]
        self.pending.check_observed(ids)
        if self._disabled and ended.any():
            raise VectorMisused(
                f"the episode of environment {ids[ended][0]} is over and it was not reset; nothing was sent",
                fix='reset it with reset(options={"reset_mask": terminations | truncations})',
            )
        resets = ended if self._mode is AutoresetMode.NEXT_STEP else self._none[ids]
        steps = ~resets
        now = self.slots.send(ids, steps, self._clock.now())
        self.complaints.raised = False
        for own, column in zip(slab.actions, columns, strict=True):
            own[ids] = column
        seqs = self.slots.seq[ids]
        slab.seq[ids] = seqs
        slab.kind[ids] = resets
        broken, moving = self.renewal.broken, self.renewal.moving
        if not broken and not moving:
            self._hand_out(now, seqs if now is ids else slab.seq[now], {}, actions)
            self.renewal.steps[ids] += steps
            return
        stepped = self.slots.is_step[now]
        gone = np.array([env in broken for env in now.tolist()], np.bool_) & stepped
        due = np.array([self.renewal.due(env) for env in now.tolist()], np.bool_) & ~stepped
        renewed = self._renewed(now[due], {}) if due.any() else {}
        asked, lost = now[~gone], now[gone]
        try:
            if len(asked):
                self._hand_out(asked, slab.seq[asked], renewed, actions)
                self.renewal.steps[asked] += self.slots.is_step[asked]
        finally:
            for env in lost[self.slots.state[lost] == SlotState.BUSY].tolist():  # unless nobody was asked
                self.renewal.steps[env] += 1
                self._fail(env, int(self.slots.seq[env]), broken[env])

    def gather(self, ids: Ids | None, enough: int, timeout_s: float | None = None) -> None:
        """Wait until enough environments are ready, or failed.

        Args:
            ids: Of these; None: of all.
            enough: How many.
            timeout_s: At most so long; None: as long as it takes, which the limits of each call bound.

        Raises:
            RestartBudgetSpent: One of them failed once too often.
        """
        until_s, looked = self._clock.now() + (_LONG_S * 24 if timeout_s is None else timeout_s), False
        while True:
            now_s = self._clock.now()
            due = self.slots.due(now_s)
            if len(due):
                self._ask_resets(due, self.renewal.seeds_of(due))
            missing = enough - self.slots.count_done(ids)
            self._raise_if_spent()
            late = looked and now_s >= until_s  # without any time there is still what has come already
            if missing <= 0 or late or (self.complaints and ids is None and enough < self._size):
                return
            looked, wait_s = True, max(0.0, until_s - now_s)
            due_s = self.slots.next_due_s()
            if due_s is not None:
                wait_s = min(wait_s, max(0.0, due_s - now_s))
            try:
                events = self._backend.poll(missing, wait_s)
            except BaseException:
                self.interrupted()
                raise
            for event in events:
                self.take_in(event)

    @property
    def slab(self) -> Slab:
        """Questions and answers."""
        return self._backend.slab

    def take_in(self, event: Event) -> None:
        """Make of an event what follows from it."""
        self.leave_calm()
        match event:
            case Answers():
                self._answered(event)
            case Failure(env, seq, problem):
                self._fail(env, seq, problem)
            case Moves(ids):
                self.renewal.moving.update(ids)

    def interrupted(self) -> None:
        """After an exception: what became of environments whose calls it broke off in this process is not known."""
        ids = np.array(self._backend.broken_off(), np.int64)
        if not len(ids):
            return
        self.leave_calm()
        self.slots.forget(ids)
        for env in ids.tolist():
            self.pending.keep(env, row_of(env, int(self.slots.seq[env]), self._size))
        self.pending.drop(ids)
        self.renewal.settled(ids)
        self.renewal.broken_off(ids, losses.interrupted_here)

    def check_idle(self, what: str) -> None:
        """Whether nothing is asked.

        Raises:
            VectorMisused: Something is.
        """
        self._raise_if_spent()
        open_ids = self.slots.asked()
        if len(open_ids):
            raise _not_idle(what, open_ids)

    def _ask_resets(self, ids: Ids, seeds: Mapping[int, int | None]) -> None:
        """Ask for resets that are open."""
        self._hand_out(ids, self.slots.seq[ids], self._renewed(ids, seeds), {})

    def _renewed(self, ids: Ids, seeds: Mapping[int, int | None]) -> dict[int, tuple[int | None, Any]]:
        """What goes with resets; broken ones are renewed, with a seed derived from their last one."""
        slab = self._backend.slab
        slab.seq[ids] = self.slots.seq[ids]
        resets: dict[int, tuple[int | None, Any]] = {}
        for env in ids.tolist():
            seed = seeds.get(env)
            slab.kind[env] = Kind.RESET
            if self.renewal.due(env):
                self.faults += (late := self.renewal.late(env))
                self.pending.tell(*late)
                slab.kind[env] = Kind.RENEW
                seed = self.renewal.renew(env, seed)
            resets[env] = (seed, self.renewal.options.get(env))
        return resets

    def _answered(self, answers: Answers) -> None:
        ids = self.slots.answered(answers.ids, answers.seqs)
        if not len(ids):
            return
        slab, pending = self._backend.slab, self.pending
        pending.row[ids] = row_of(ids, self.slots.seq[ids], self._size)
        ended = slab.terminated[ids] | slab.truncated[ids]
        same_step = self._mode is AutoresetMode.SAME_STEP
        self.ended[ids] = False if same_step else ended
        if answers.probes:
            pending.stamp(ids, answers.probes, self.slots.is_step[ids], ended if same_step else self._none[ids])
        pending.take_in(ids, answers, slab)
        self.renewal.settled(ids)
        if same_step and self.renewal.moving:
            over = ids[ended & self.slots.is_step[ids]]
            _move_on(self.slots, pending, slab, np.array([env for env in over if env in self.renewal.moving], np.int64))

    def _fail(self, env: int, seq: int, problem: Problem) -> None:
        """An environment is gone."""
        stepped = bool(self.slots.is_step[env])
        own = problem.kind is not FaultKind.LOST_WITH_WORKER
        instruction = self.slots.failed(env, seq, self._clock.now(), own=own)
        if instruction is None and seq >= 0:
            return  # of a question that is not awaited any more
        self.renewal.gone(env, problem, asked=instruction is not None)
        if instruction is None:
            return  # whoever steps or resets it next is told
        self.pending.keep(env, row_of(env, seq, self._size))
        fault = problem.of(env, int(self.renewal.steps[env]))
        self.faults.append(fault)
        match instruction:
            case Cut():
                _cut(self._backend.slab, self.pending, fault)
                self.ended[env] = True
            case AskAgain():
                self.pending.ask_again(fault, stepped=stepped)
            case Raise():
                self.ended[env] = False
                if env in self.pending.over:  # whoever is told by an exception gets no answer
                    self.pending.drop(np.array([env]))
                self.complaints.add(fault)
            case GiveUp():
                self._spent = _spent(fault, instruction)

    def _raise_if_spent(self) -> None:
        if self._spent is not None:
            raise self._spent


def _prepared(backend: Backend, ids: Ids, values: Sequence[Any], what: str) -> dict[int, Any]:
    """Options or actions, one each; see `Backend.prepare`."""
    return backend.prepare(dict(zip(ids.tolist(), values, strict=True)), what)


def _hand_out(
    backend: Backend,
    slots: Slots,
    renewal: Renewal,
    ids: Ids,
    seqs: Ids,
    resets: Mapping[int, Any],
    actions: Mapping[int, Any],
) -> None:
    """Hand out the newest questions. If that fails, it is as if they had not been asked, and they can be again.

    Unless somebody had been asked already: its answer has the number of this question, and is that of no other one.
    """
    try:
        backend.submit(ids, seqs, resets, actions)
    except BaseException as error:
        if backend.ask_rest(ids, seqs, resets, actions):
            renewal.steps[ids] += slots.is_step[ids]
            raise
        slots.undo()
        renewal.settled(np.setdiff1d(np.arange(slots.num_envs), slots.asked()))
        for env in resets:
            if backend.slab.kind[env] == Kind.RENEW:
                renewal.broken[env] = losses.not_renewed(error)
        raise


def _pass_over(slots: Slots, pending: Pending, complaints: Complaints, ids: Ids) -> None:
    """Forget answers and complaints that nobody received, unless these cannot be reset: then nothing changes."""
    if np.isin(slots.state[ids], (SlotState.BUSY, SlotState.HELD)).any():
        return
    ready = slots.ready()
    slots.take(ready)
    pending.drop(ready)
    complaints.clear()


def _move_on(slots: Slots, pending: Pending, slab: Slab, ids: Ids) -> None:
    """These, whose episodes have ended within the step, are to begin the next ones where they move to."""
    if len(ids):
        pending.hold(ids, slab)
        slots.hold(ids)


def _cut(slab: Slab, pending: Pending, fault: Fault) -> None:
    """Answer a step by the end of the episode."""
    env = fault.env
    slab.reward[env], slab.terminated[env], slab.truncated[env] = 0.0, False, True
    pending.cut.add(env)
    pending.tell(fault)


def _not_idle(what: str, open_ids: Ids) -> VectorMisused:
    return VectorMisused(
        f"{what} cannot be asked of environments that were sent actions",
        open=f"{len(open_ids)} environments, the first is {open_ids[0]}",
        fix="receive() their answers first",
    )


def _spent(fault: Fault, given_up: GiveUp) -> RestartBudgetSpent:
    whose = "environments failed" if given_up.of_all else f"environment {fault.env} failed"
    return RestartBudgetSpent(
        f"{whose} {given_up.faults} times; the budget allows {given_up.allowed} replacements",
        env=fault.env,
        kind=fault.kind.value,
        step=fault.step,
        last_cause=f"\n{fault.message}",
        fix="repair what the last cause names, or allow more faults with budget=FaultBudget(per_env=..., total=...)",
    )
