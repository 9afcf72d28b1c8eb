"""The commonest case, without detours: environments in this process, all of them stepped, nothing wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from headrace.vector.engine import Engine
from headrace.vector.events import Answers, Event, Failure
from headrace.vector.infos import Infos, columns_of
from headrace.vector.rows import Settled
from headrace.vector.serial import Serial

Stepped = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class FastLane:
    """Steps all environments of a `Serial` past the slots and the slab, while nothing is pending.

    Args:
        engine: Told of everything that is out of the ordinary.
        serial: Its backend.
        mode: The autoreset mode.
    """

    def __init__(self, engine: Engine, serial: Serial, mode: AutoresetMode) -> None:
        self._engine = engine
        self._serial = serial
        self._mode = mode
        self._rows = engine.rows
        self._size = engine.slots.num_envs
        self.asked = False
        """Whether the last `step` that returned None has asked everybody, and the engine has only to be waited for."""

    def step(self, columns: list[NDArray[Any]], actions: list[Any]) -> Stepped | None:
        """What `VectorEnv.step` returns; None: it goes the ordinary way; see `asked`."""
        self.asked = False
        engine, size = self._engine, self._size
        common = engine.calm()
        if common is None or self._rows.layout.objects or self._serial.probing:
            return None
        ended = engine.ended
        resets: list[int] = []
        if engine.any_ended:
            if self._mode is AutoresetMode.DISABLED:
                return None  # the engine says what is wrong
            resets = np.flatnonzero(ended).tolist()
        first = ((common + 1) & 1) * size
        try:
            settled = self._serial.step_all(first, resets, columns, actions)
        except KeyboardInterrupt:
            engine.interrupted()
            raise
        if settled.problems:
            self._go_round(settled, resets)
            self.asked = True
            return None
        engine.went(first, resets)
        terminations, truncations = np.array((settled.terminated, settled.truncated), np.bool_)
        engine.any_ended = False
        if self._mode is AutoresetMode.SAME_STEP:
            pass  # nobody's episode is over: it was reset already
        elif True in settled.terminated or True in settled.truncated:
            np.logical_or(terminations, truncations, out=ended)
            engine.any_ended = True
        elif resets:
            ended[:] = False
        infos = Infos(size)
        if settled.infos:
            alike = columns_of(settled.infos)
            infos.fill({} if alike else settled.infos, [alike] if alike else [], None)
        observations = self._rows.layout.batch([array[first : first + size].copy() for array in self._rows.arrays], [])
        return observations, np.array(settled.rewards, np.float64), terminations, truncations, infos.batch

    def _go_round(self, settled: Settled, resets: list[int]) -> None:
        """Something is wrong with some: let the engine believe that all were asked in the ordinary way."""
        engine, slab = self._engine, self._engine.slab
        engine.leave_calm()
        ids = np.arange(self._size)
        engine.slots.send_all()
        engine.slots.is_step[resets] = False
        engine.renewal.count(resets)
        slab.reward[:], slab.terminated[:], slab.truncated[:] = settled.rewards, settled.terminated, settled.truncated
        good = np.ones(self._size, np.bool_)
        good[list(settled.problems)] = False
        seqs = engine.slots.seq.copy()
        events: list[Event] = [Answers(ids[good], seqs[good], settled.infos)]
        events += [Failure(env, int(seqs[env]), problem) for env, problem in settled.problems.items()]
        for event in events:
            engine.take_in(event)
