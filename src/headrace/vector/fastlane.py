"""The commonest case, without detours: all environments are stepped, and nothing is wrong with any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from headrace.vector.barrier import Barrier
from headrace.vector.engine import Engine
from headrace.vector.events import Answers, Backend, Event, Failure
from headrace.vector.infos import Columns, Info, Infos, columns_of
from headrace.vector.interrupts import is_programs
from headrace.vector.pool import Pool
from headrace.vector.rows import Settled
from headrace.vector.serial import Serial
from headrace.vector.slab import Kind
from headrace.vector.slots import SlotState
from headrace.vector.split import Split

Stepped = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
_Answered = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], bool, dict[str, Any]]
"""Observations, rewards, terminations, truncations, whether there are any of these, infos."""


class FastLane:
    """Steps all environments past the slots, while nothing is pending.

    Args:
        engine: Told of everything that is out of the ordinary.
        backend: The engine's.
        mode: The autoreset mode.
        copies: Whether observations are the caller's own; otherwise they change with a later step.
    """

    def __init__(self, engine: Engine, backend: Backend, mode: AutoresetMode, *, copies: bool) -> None:
        self._engine = engine
        self._backend = backend
        self._copies = copies
        self._mode = mode
        self._rows = engine.rows
        self._size = engine.slots.num_envs
        self._serial = backend if isinstance(backend, Serial) else None
        pool = backend if isinstance(backend, Pool) else None
        if isinstance(backend, Split):
            self._serial, pool = backend.serial, backend.pool
        self._barrier = None if pool is None else Barrier(pool)
        self._here = backend.here
        # A worker may end while it writes. Here one half is enough, and stays in the cache.
        self._halves = 1 if isinstance(backend, Serial) and self._rows.checked_first else 2
        self._in_arrays = not (self._rows.layout.objects or (self._serial is not None and self._serial.probing))
        self._collects: type[Infos] = Infos
        self.asked = False
        """Whether the last `step` that returned None has asked everybody, and the engine has only to be waited for."""

    def step(self, columns: list[NDArray[Any]], actions: list[Any], collects: type[Infos] = Infos) -> Stepped | None:
        """What `VectorEnv.step` returns; None: it goes the ordinary way; see `asked`.

        Args:
            columns: Actions per leaf.
            actions: Actions, if they are objects.
            collects: What becomes of infos.
        """
        self.asked, self._collects = False, collects
        engine = self._engine
        common = engine.calm()
        if common is None or not self._in_arrays:
            return None
        if self._barrier is not None and (actions or not self._barrier.undisturbed):
            return None
        resets: list[int] = []
        if engine.any_ended:
            if self._mode is AutoresetMode.DISABLED:
                return None  # the engine says what is wrong
            resets = np.flatnonzero(engine.ended).tolist()
        seq = common + 1
        if self._barrier is None:
            answered = self._alone(seq, resets, columns, actions)
        else:
            answered = self._together(self._barrier, seq, resets, columns)
        if answered is None:
            self.asked = True
            return None
        observations, rewards, terminations, truncations, ended, infos = answered
        engine.went(self._first(seq), resets)
        # Where the next episode begins within the step, nobody's is over.
        engine.any_ended = ended and self._mode is not AutoresetMode.SAME_STEP
        if engine.any_ended:
            np.logical_or(terminations, truncations, out=engine.ended)
        elif resets:
            engine.ended[:] = False
        return observations, rewards, terminations, truncations, infos

    def _alone(self, seq: int, resets: list[int], columns: list[NDArray[Any]], actions: list[Any]) -> _Answered | None:
        """Step everybody in this process; observations are laid down in rows. None if the engine has to go on.

        Args:
            seq: The number of everybody's next question.
            resets: Who is reset instead.
            columns: Actions per leaf.
            actions: Actions, if they are objects.
        """
        assert self._serial is not None
        settled = None
        try:
            settled = self._serial.step_all(self._first(seq), resets, columns, actions)
            infos: dict[str, Any] | None = {}
            if settled.infos and not settled.problems:
                infos = self._put_together(settled.infos, self._columns_of(settled.infos))
            if infos is not None and not settled.problems:
                terminated, truncated = settled.terminated, settled.truncated
                return (
                    self._observations(seq),
                    np.array(settled.rewards, np.float64),
                    np.array(terminated, np.bool_),
                    np.array(truncated, np.bool_),
                    any(terminated) or any(truncated),
                    infos,
                )
        except BaseException:  # Ctrl-C, what another signal's handler raises, or a lack of memory
            # Otherwise nobody has done anything. Others may have been stopped by an earlier call.
            if settled is not None or self._serial.stopped is self._serial.everybody:
                self._hand_over(resets, settled)
            self._engine.interrupted()
            raise
        self._hand_over(resets, settled)
        return None

    def _together(self, barrier: Barrier, seq: int, resets: list[int], columns: list[NDArray[Any]]) -> _Answered | None:
        """The same where there are workers, and maybe environments in this process besides."""
        settled, own, infos, all_there = None, None, None, False
        answered: _Answered | None = None
        try:
            self._ask(barrier, seq, resets, columns)
            settled = self._step_here(seq, resets, columns)
            if settled is not None:  # now: workers are not ready yet
                own = self._columns_of(settled.infos) if settled.infos else None
                self._lay_down(settled)
            if settled is None or not settled.problems:
                all_there = barrier.answered()
            if all_there:
                infos = self._put_together({} if settled is None else settled.infos, own)
            if infos is not None:
                slab = self._engine.slab
                terminated, truncated = slab.terminated.copy(), slab.truncated.copy()
                ended = b"\1" in terminated.tobytes() or b"\1" in truncated.tobytes()
                answered = self._observations(seq), slab.reward.copy(), terminated, truncated, ended, infos
        except BaseException:
            self._break_off(barrier, resets, settled)
            raise
        if answered is None:
            self._hand_over(resets, settled)
            return None
        barrier.pass_by()
        return answered

    def _columns_of(self, infos: Mapping[int, Info]) -> Columns | None:
        return columns_of(infos) if self._collects is Infos else None

    def _put_together(self, infos: Mapping[int, Info], own: Columns | None) -> dict[str, Any] | None:
        """The infos of a batch; None if Gymnasium cannot put them together either: who takes them raises the same.

        Args:
            infos: By environment, of those in this process.
            own: The same, if they are all of one form.
        """
        barrier = self._barrier
        if barrier is None:
            if own is not None and len(own.envs) == self._size:
                return own.batch()
        elif barrier.silent and not infos:
            return {}
        try:
            return self._joined(infos, own)
        except Exception as error:  # the rule is Gymnasium's, and the values are anybody's
            if is_programs(error):
                raise
            return None

    def _joined(self, infos: Mapping[int, Info], own: Columns | None) -> dict[str, Any]:
        barrier, columns = self._barrier, [] if own is None else [own]
        if barrier is not None:
            form, numbers = barrier.form(), self._engine.slab.numbers
            here_as_well = self._here == 0 if own is None else len(own.envs) == self._here and own.form == form
            if form is not None and self._collects is Infos and here_as_well and (own is None or own.lay_down(numbers)):
                return form.batch(numbers)
            columns += barrier.columns()
        batch = self._collects(self._size)
        batch.fill({} if own else infos, columns, None)
        return batch.batch

    def _ask(self, barrier: Barrier, seq: int, resets: list[int], columns: list[NDArray[Any]]) -> None:
        slab = self._engine.slab
        for own, column in zip(slab.actions, columns, strict=True):
            own[:] = column
        slab.seq.fill(seq)
        slab.kind.fill(Kind.STEP)
        if resets:
            slab.kind[resets] = Kind.AUTORESET
        barrier.ask()

    def _step_here(self, seq: int, resets: list[int], columns: list[NDArray[Any]]) -> Settled | None:
        if self._serial is None:
            return None
        here = self._here
        mine = [env for env in resets if env < here]
        return self._serial.step_all(self._first(seq), mine, [column[:here] for column in columns], [])

    def _observations(self, seq: int) -> Any:
        first = self._first(seq)
        arrays = [array[first : first + self._size] for array in self._rows.arrays]
        return self._rows.layout.batch([array.copy() for array in arrays] if self._copies else arrays, [])

    def _first(self, seq: int) -> int:
        """The first of the rows for answers of this number."""
        return seq % self._halves * self._size

    def _lay_down(self, settled: Settled) -> None:
        slab, here = self._engine.slab, self._here
        slab.reward[:here] = settled.rewards
        slab.terminated[:here] = settled.terminated
        slab.truncated[:here] = settled.truncated

    def _break_off(self, barrier: Barrier, resets: list[int], settled: Settled | None) -> None:
        """After an exception: workers go on; their answers have the numbers of these questions, so nobody is asked again.

        Args:
            barrier: Before those in workers.
            resets: Who was reset.
            settled: Answers of those in this process; None: there are none.
        """
        if not barrier.ask_rest():
            return  # as if nothing had been asked
        self._hand_over(resets, settled)
        self._engine.interrupted()
        waiting = np.flatnonzero(self._engine.slots.state[: self._here] == SlotState.BUSY)
        if len(waiting):  # nothing of theirs had begun
            self._backend.submit(waiting, self._engine.slots.seq[waiting], {}, {})

    def _hand_over(self, resets: list[int], settled: Settled | None) -> None:
        """Let the engine believe that all were asked in the ordinary way, and those in this process have answered.

        Args:
            resets: Who was reset.
            settled: These answers; None: there are none.
        """
        engine = self._engine
        engine.leave_calm()
        engine.slots.send_all()
        engine.slots.is_step[resets] = False
        engine.renewal.count(resets)
        if settled is None:
            return
        self._lay_down(settled)
        good = np.ones(self._here, np.bool_)
        good[list(settled.problems)] = False
        ids, seqs = np.flatnonzero(good), engine.slots.seq.copy()
        events: list[Event] = [Answers(ids, seqs[ids], settled.infos)]
        events += [Failure(env, int(seqs[env]), problem) for env, problem in settled.problems.items()]
        for event in events:
            engine.take_in(event)
        engine.pending.row[ids] = ids + self._first(int(seqs[0]))
