"""What the processes of one vector environment share: rows of questions and answers, and a mailbox per worker.

Who writes what is fixed: of an environment that is asked something, everything but the question is the worker's until
it has answered; of all others, everything is the parent's. Nothing is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.ipc.fences import WEAKLY_ORDERED, fence
from headrace.ipc.shm import SharedBlock
from headrace.vector.rest import Rest
from headrace.vector.spaces import Layout

_ALIGN = 64


class Kind(IntEnum):
    """What an environment is asked."""

    STEP = 0
    AUTORESET = 1
    """Reset it, without a seed."""
    RESET = 2
    """Reset it with what was sent along."""
    RENEW = 3
    """The same, but a new one: what there is of the old one is thrown away."""


class Note(IntEnum):
    """What else belongs to an answer. Any other number: an info in `Slab.numbers`, of the form that has this number."""

    NOTHING = 0
    MESSAGE = 1
    """Infos, or parts of the observation that are no arrays."""


FIRST_FORM, LAST_FORM = 2, 255
_NUMBERS = 32
"""Longer infos travel as messages."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of the slab."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


def plan(observations: Layout, actions: Layout, num_envs: int, *, shared_rows: bool) -> tuple[list[Field], int]:
    """Where every array lies, and how many bytes there are in all."""
    wanted: list[tuple[str, Any, tuple[int, ...]]] = [
        ("seq", np.int64, (num_envs,)),
        ("kind", np.uint8, (num_envs,)),
        ("reward", np.float64, (num_envs,)),
        ("terminated", np.bool_, (num_envs,)),
        ("truncated", np.bool_, (num_envs,)),
        ("answered", np.int64, (num_envs,)),
        ("note", np.uint8, (num_envs,)),
        ("numbers", np.float64, (_NUMBERS, num_envs)),
    ]
    wanted += [(f"action{i}", part.dtype, (num_envs, *part.shape)) for i, part in enumerate(actions.arrays)]
    if shared_rows:
        wanted += [(f"row{i}", part.dtype, (2 * num_envs, *part.shape)) for i, part in enumerate(observations.arrays)]
    fields, end = [], 0
    for name, dtype, shape in wanted:
        kind = np.dtype(dtype)
        fields.append(Field(name, kind, shape, end))
        end += kind.itemsize * int(np.prod(shape, dtype=np.int64))
        end += -end % _ALIGN
    return fields, max(end, 1)


class Slab:
    """The arrays, by what they are.

    Args:
        fields: From `plan`.
        arrays: One per field.
    """

    def __init__(self, fields: Sequence[Field], arrays: Sequence[NDArray[Any]]) -> None:
        by_name = {field.name: array for field, array in zip(fields, arrays, strict=True)}
        self.seq = by_name["seq"]
        """[N]; number of the newest question. The parent's."""
        self.kind = by_name["kind"]
        """[N]; of the newest question, a `Kind`. The parent's."""
        self.actions = [by_name[field.name] for field in fields if field.name.startswith("action")]
        """Per leaf of the action space, [N, ...]. The parent's."""
        self.reward = by_name["reward"]
        self.terminated = by_name["terminated"]
        self.truncated = by_name["truncated"]
        self.answered = by_name["answered"]
        """[N]; number of the question that the newest answer belongs to."""
        self.note = by_name["note"]
        """[N]; what else belongs to the answer, a `Note`."""
        self.numbers = by_name["numbers"]
        """[K, N]; infos of so many numbers at most, written by `headrace.vector.infos.Columns.lay_down`."""
        self.rows = [by_name[field.name] for field in fields if field.name.startswith("row")]
        """Per array of the observation space, [2 * N, ...]; empty if they are not shared."""

    @classmethod
    def over(cls, block: SharedBlock, fields: Sequence[Field]) -> Slab:
        """Over shared memory."""
        return cls(fields, [block.array(field.dtype, field.shape, field.offset) for field in fields])

    @classmethod
    def private(cls, fields: Sequence[Field]) -> Slab:
        """In this process's own memory."""
        return cls(fields, [np.zeros(field.shape, field.dtype) for field in fields])


_OWN = 6
_HEADER = _OWN + Rest.NUMBERS
"""Numbers at the beginning of a mailbox: its own, and those of its `Rest`."""
_OTHER = 1 << 40
_ORDERED, _COMPLETED, _WAKE_AT, _TARGET, _HEARD, _PORTION = range(_OWN)


class Mailbox:
    """Between the parent and one worker: who is asked, in what order, and who has answered, in what order.

    Rings of environment numbers, each written by one side only. A ring cannot overflow: no environment is asked twice
    without an answer in between.

    Args:
        block: Shared memory of `nbytes` bytes.
        num_envs: Of the whole vector environment.
    """

    def __init__(self, block: SharedBlock, num_envs: int) -> None:
        self._block = block
        self._num_envs = num_envs
        self.room = 2 * num_envs + 2
        self._numbers = block.buf[: _HEADER * 8].cast("q")
        self.rest = Rest(self._numbers[_OWN:])
        at = _HEADER * 8
        seats = num_envs + 1
        self.marks = block.buf[at : at + 8 * seats].cast("q")
        """[N + 1]; per seat the number of its newest call, negative once it is over. The worker's."""
        at += 8 * seats
        self.phases = block.buf[at : at + 8 * seats].cast("q")
        """[N + 1]; per seat a `headrace.vector.stepping.Phase`. The worker's."""
        at += 8 * seats
        self.left_alone = block.buf[at : at + 8 * seats].cast("q")
        """[N + 1]; per seat how often its thread was left alone, and another one took its place. The worker's."""
        at += 8 * seats
        self._orders = block.array(np.int64, (self.room,), at)
        at += 8 * self.room
        self._answers = block.array(np.int64, (self.room,), at)
        self._answer_numbers = block.buf[at : at + 8 * self.room].cast("q")

    @staticmethod
    def nbytes(num_envs: int) -> int:
        """How much memory one needs."""
        return 8 * (_HEADER + 3 * (num_envs + 1) + 2 * (2 * num_envs + 2))

    # The parent's side

    def order(self, ids: NDArray[np.int64]) -> bool:
        """Ask these, in this order; the questions themselves are in the slab. Whether the worker has to be woken."""
        ordered = self._numbers[_ORDERED]
        _put(self._orders, ordered, ids)
        if WEAKLY_ORDERED:  # here and where it is read: whoever has seen the number sees the questions
            fence()
        self._numbers[_ORDERED] = ordered + len(ids)
        return self.rest.needs_waking()

    def env_of(self, number: int) -> int | None:
        """Which environment a call of a worker that steps in turn belongs to; None for what is no call."""
        if number <= 0:
            return None
        if number >= _OTHER:
            return (number - _OTHER) % self._num_envs
        return int(self._orders[(number - 1) % self.room])

    def other_number(self, count: int, env: int) -> int:
        """The number of call ``count`` that is no question: building, a method, an attribute."""
        return _OTHER + count * self._num_envs + env

    def wake_after(self, completed: int) -> bool:
        """Be woken once, when so many answers have been given in all; False if there are as many already."""
        self._numbers[_WAKE_AT] = completed
        fence()
        return self._numbers[_COMPLETED] < completed

    def portion(self, size: int) -> None:
        """How many answers the parent takes in at a time; 0: all."""
        self._numbers[_PORTION] = size

    @property
    def ordered(self) -> int:
        """How many questions were put in all."""
        return self._numbers[_ORDERED]

    @property
    def completed(self) -> int:
        """How many answers were given in all."""
        return self._numbers[_COMPLETED]

    def answers(self, start: int, end: int) -> NDArray[np.int64]:
        """Who gave the answers from ``start`` on, before ``end``, counted from 0; ``end`` was read from `completed`."""
        if WEAKLY_ORDERED:  # as in `order`
            fence()
        return _get(self._answers, start, end)

    def interrupt(self, number: int) -> None:
        """Say which call is meant by the signal that follows."""
        self._numbers[_TARGET] = number

    # The worker's side

    def orders(self, start: int) -> NDArray[np.int64]:
        """Who is asked, from question ``start`` on, counted from 0."""
        ordered = self._numbers[_ORDERED]
        if WEAKLY_ORDERED:
            fence()
        return _get(self._orders, start, ordered)

    def answer(self, ids: Sequence[int]) -> bool:
        """These have answered; whether the parent is to be woken."""
        completed = self._numbers[_COMPLETED]
        _put(self._answers, completed, ids)
        if WEAKLY_ORDERED:
            fence()
        self._numbers[_COMPLETED] = completed + len(ids)
        fence()
        return completed < self._numbers[_WAKE_AT] <= completed + len(ids)

    def answer_one(self, env: int) -> bool:
        """The same for one environment."""
        completed = self._numbers[_COMPLETED]
        self._answer_numbers[completed % self.room] = env
        if WEAKLY_ORDERED:
            fence()
        self._numbers[_COMPLETED] = completed + 1
        fence()
        return completed + 1 == self._numbers[_WAKE_AT]

    @property
    def portions(self) -> int:
        """How many answers are to be given at a time, at most; 0: as many as there are."""
        return self._numbers[_PORTION]

    def take_target(self) -> int:
        """The call that is to be interrupted; 0 if there is none, or it was taken before."""
        target, self._numbers[_TARGET] = self._numbers[_TARGET], 0
        return target

    def note_heard(self) -> None:
        """One more `Abandon` was heard, and done if there was something to do."""
        fence()  # whoever sees the number sees what was done
        self._numbers[_HEARD] += 1

    @property
    def heard(self) -> int:
        """How many were heard; what was done for them may be looked at."""
        heard = self._numbers[_HEARD]
        fence()
        return heard

    def close(self) -> None:
        """Give the memory back; again is harmless. Views that somebody else has keep it alive."""
        self.rest.close()
        for view in (self._numbers, self.marks, self.phases, self.left_alone, self._answer_numbers):
            view.release()
        self._orders = self._answers = np.zeros(0, np.int64)
        self._block.close()


def _put(ring: NDArray[np.int64], at: int, ids: Sequence[int] | NDArray[np.int64]) -> None:
    start = at % len(ring)
    end = start + len(ids)
    if end <= len(ring):
        ring[start:end] = ids
    else:
        head = len(ring) - start
        ring[start:], ring[: end - len(ring)] = ids[:head], ids[head:]


def _get(ring: NDArray[np.int64], start: int, end: int) -> NDArray[np.int64]:
    first, last = start % len(ring), end % len(ring)
    if start == end:
        return ring[:0].copy()
    if first < last:
        return ring[first:last].copy()
    return np.concatenate([ring[first:], ring[:last]])
