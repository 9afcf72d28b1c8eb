"""The requests of all environments, without the environments: what was asked, what was answered, what follows.

Events go in, instructions come out; no process, thread or clock. A request has a sequence number, an answer names the
one it belongs to, and nothing but that answer, a fault or the caller's taking it moves a slot: time alone never does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from headrace.core.clock import backoff_s
from headrace.core.errors import VectorMisused

Ids = NDArray[np.int64]
_NEVER = np.inf


class SlotState(IntEnum):
    """Where the request of one environment is."""

    IDLE = 0
    """There is none: the last answer was taken."""
    BUSY = 1
    """It was handed out; the answer with its number is awaited."""
    HELD = 2
    """Its environment is being replaced; it is asked again when its pause is over."""
    READY = 3
    """Its answer waits to be taken."""
    FAILED = 4
    """Its environment failed, and the caller has to reset it."""
    LOST = 5
    """The budget of replacements is spent."""


# Members of an enum are slow to look up, and numpy wants numbers.
_IDLE, _BUSY, _HELD, _READY, _FAILED, _LOST = (int(state) for state in SlotState)


@dataclass(frozen=True, slots=True)
class Cut:
    """Instruction: answer the request with the end of the episode, marked as not valid."""

    env: int


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Instruction: the request stays open; ask a replacement for a reset when `Slots.due` names it."""

    env: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Raise:
    """Instruction: tell the caller by an exception."""

    env: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Instruction: the budget is spent."""

    env: int
    faults: int
    allowed: int
    of_all: bool
    """Whether the common budget is the one that is spent, and not the environment's own."""


Instruction = Cut | AskAgain | Raise | GiveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How faults are answered; see `headrace.vector.options.FaultBudget`."""

    raises: bool
    """Whether the caller is told by an exception, instead of a replacement."""
    cuts: bool
    """Whether a step that failed is answered at once; otherwise its answer needs the replacement's observation."""
    per_env: int
    total: int
    window_s: float
    backoff_s: float
    longest_pause_s: float


class Slots:
    """One slot per environment.

    Args:
        num_envs: How many.
        policy: How faults are answered.
    """

    def __init__(self, num_envs: int, policy: Policy) -> None:
        self.state = np.full(num_envs, _IDLE, np.uint8)
        self.seq = np.zeros(num_envs, np.int64)
        """Number of the newest request."""
        self.is_step = np.zeros(num_envs, np.bool_)
        """Whether the newest request is a step, and not a reset."""
        self._policy = policy
        self._due_s = np.full(num_envs, _NEVER)
        self._not_before_s = np.zeros(num_envs)
        self._paused_until_s = 0.0
        """The last of these."""
        self._faults_s: list[deque[float]] = [deque() for _ in range(num_envs)]
        self._all_faults_s: deque[float] = deque()
        self._held = 0
        """How many are held."""
        self._newest: tuple[Ids | None, NDArray[np.uint8] | int] = None, _IDLE
        """Whom the newest questions are for, None: everybody; and how they were before."""
        self._nobody = np.zeros(0, np.int64)

    @property
    def num_envs(self) -> int:
        """How many slots there are."""
        return len(self.state)

    def idle(self) -> bool:
        """Whether every slot is idle."""
        return not self.state.any()

    def asked(self) -> Ids:
        """Environments whose request is open, or has an answer that was not taken: busy, held or ready; ascending."""
        return np.flatnonzero((self.state >= _BUSY) & (self.state <= _READY))

    def ready(self) -> Ids:
        """Environments whose answer waits to be taken, ascending."""
        return np.flatnonzero(self.state == _READY)

    def count_done(self, ids: Ids | None) -> int:
        """How many of these, or of all, are not waited for: ready, failed or lost."""
        return int(np.count_nonzero((self.state if ids is None else self.state[ids]) >= _READY))

    def send(self, ids: Ids, steps: NDArray[np.bool_], now_s: float) -> Ids:
        """The caller asks; new numbers are given out.

        Args:
            ids: Whom, each once.
            steps: Which of them are to be stepped, and not reset.
            now_s: The time.

        Returns:
            Those to hand out at once. The others' replacements have to wait; `due` names them later.

        Raises:
            VectorMisused: One of them is not free for this; nothing has changed.
        """
        states = self.state[ids]
        if np.count_nonzero(states):
            wrong = (states != _IDLE) & ~((states == _FAILED) & ~steps)
            if wrong.any():
                raise self._not_free(ids[wrong])
        self._newest = ids, states
        self.seq[ids] += 1
        self.is_step[ids] = steps
        self.state[ids] = _BUSY
        if now_s >= self._paused_until_s:
            return ids
        waits = ~steps & (self._not_before_s[ids] > now_s)
        held = ids[waits]
        self.state[held] = _HELD
        self._due_s[held] = self._not_before_s[held]
        self._held += len(held)
        return ids[~waits]

    def send_all(self) -> None:
        """The caller asks every environment for a step, and every slot is idle and free to.

        The same as `send`, for the commonest case.
        """
        self._newest = None, _IDLE
        self.seq += 1
        self.is_step[:] = True
        self.state[:] = _BUSY

    def undo(self) -> None:
        """The newest questions, of `send`, `send_all` or `due`, were not handed out: as if they had not been asked."""
        ids, before = self._newest
        where = slice(None) if ids is None else ids
        held = before == _HELD
        self._held += int(np.count_nonzero(held)) - int(np.count_nonzero(self.state[where] == _HELD))
        self._due_s[where] = np.where(held, 0.0, _NEVER)  # a pause that was over is over
        self.state[where] = before
        self.seq[where] -= 1

    def answered(self, ids: Ids, seqs: Ids) -> Ids:
        """Answers have come in.

        Returns:
            Those that were awaited, and are now ready. The others are answers to older requests.
        """
        awaited = (self.state[ids] == _BUSY) & (self.seq[ids] == seqs)
        accepted = ids if np.count_nonzero(awaited) == len(ids) else ids[awaited]
        self.state[accepted] = _READY
        return accepted

    def hold(self, ids: Ids) -> None:
        """Of these answers, which have just come in, a part is missing: `due` names them at once, for a reset elsewhere."""
        self.state[ids] = _HELD
        self._due_s[ids] = 0.0
        self._held += len(ids)

    def failed(self, env: int, seq: int, now_s: float, *, own: bool = True) -> Instruction | None:
        """The environment that a request was handed to has failed, and is gone.

        Args:
            env: Which.
            seq: The number of that request.
            now_s: The time.
            own: Whether it is to blame; otherwise its own budget is not touched, and its replacement need not wait.

        Returns:
            What follows; None if that request is not awaited any more.
        """
        if self.state[env] != _BUSY or self.seq[env] != seq:
            return None
        if self._policy.raises:
            self.state[env] = _FAILED
            return Raise(env)
        faults, of_all = self._note(env, now_s, own=own)
        if faults:
            self.state[env] = _LOST
            return GiveUp(env, faults, self._policy.total if of_all else self._policy.per_env, of_all)
        pause_s = self._pause_s(len(self._faults_s[env])) if own else 0.0
        self._not_before_s[env] = now_s + pause_s
        self._paused_until_s = max(self._paused_until_s, now_s + pause_s)
        if self.is_step[env] and self._policy.cuts:
            self.state[env] = _READY
            return Cut(env)
        self.state[env] = _HELD
        self._due_s[env] = now_s + pause_s
        self._held += 1
        return AskAgain(env, pause_s)

    def due(self, now_s: float) -> Ids:
        """Held requests whose pause is over: they are to be asked for a reset now, under new numbers."""
        if not self._held:
            return self._nobody
        ids = np.flatnonzero(self._due_s <= now_s)
        if len(ids):
            self._newest = ids, self.state[ids]
            self._held -= len(ids)
            self._due_s[ids] = _NEVER
            self.state[ids] = _BUSY
            self.is_step[ids] = False
            self.seq[ids] += 1
        return ids

    def next_due_s(self) -> float | None:
        """When the next pause is over; None if nobody waits."""
        return float(self._due_s.min()) if self._held else None

    def take(self, ids: Ids) -> None:
        """The caller has taken these answers.

        Raises:
            VectorMisused: One of them is not ready; nothing has changed.
        """
        others = self.state[ids] != _READY
        if np.count_nonzero(others):
            raise self._not_free(ids[others])
        self.state[ids] = _IDLE

    def forget(self, ids: Ids) -> None:
        """The caller itself broke off what was going on with these, and nobody goes on with it: no answer is awaited."""
        open_ids = ids[self.state[ids] < _READY]
        self._held -= int(np.count_nonzero(self.state[open_ids] == _HELD))
        self.state[open_ids] = _IDLE
        self._due_s[open_ids] = _NEVER

    def _note(self, env: int, now_s: float, *, own: bool) -> tuple[int, bool]:
        """Remember a fault; how many were too many and of whom, or 0."""
        faults, everybody, policy = self._faults_s[env], self._all_faults_s, self._policy
        for times in (faults, everybody) if own else (everybody,):
            times.append(now_s)
            while now_s - times[0] > policy.window_s:
                times.popleft()
        if own and len(faults) > policy.per_env:
            return len(faults), False
        return (len(everybody), True) if len(everybody) > policy.total else (0, False)

    def _pause_s(self, faults: int) -> float:
        policy = self._policy
        return backoff_s(policy.backoff_s, faults - 2, policy.longest_pause_s) if faults >= 2 else 0.0

    def _not_free(self, ids: Sequence[int] | Ids) -> VectorMisused:
        env = int(ids[0])
        state = SlotState(self.state[env])
        said = {
            SlotState.IDLE: ("was asked for nothing", "send it an action first"),
            SlotState.BUSY: ("is still busy with an earlier request", "receive() its answer first"),
            SlotState.HELD: ("is being replaced, and its earlier request is open", "receive() its answer first"),
            SlotState.READY: ("has an answer that was not taken", "receive() it first"),
            SlotState.FAILED: ("failed and was not reset", 'reset it with reset(options={"reset_mask": mask})'),
            SlotState.LOST: ("is lost: its budget of replacements is spent", "close the vector environment"),
        }[state]
        return VectorMisused(
            f"environment {env} {said[0]}; nothing was sent",
            **({"as_many_others": len(ids) - 1} if len(ids) > 1 else {}),
            fix=said[1],
        )
