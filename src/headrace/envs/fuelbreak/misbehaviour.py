"""The faults and delays that an environment can be asked for, to try out what runs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np

from headrace.core import seeding
from headrace.core.errors import EnvironmentRaised
from headrace.envs.fuelbreak.settings import Misbehaviour
from headrace.ipc.channel import poll_fds

Wait = Callable[[float], None]


def idle(seconds: float) -> None:
    """Wait in the kernel, on nothing, without using a processor."""
    poll_fds({}, seconds)


def kill_myself() -> None:
    """End this process as the out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Troublemaker:
    """Does in each step what `Misbehaviour` asks for.

    Args:
        settings: What to do.
        env_id: Which of several environments this is; other ids, other draws.
        wait: Waits so many seconds; tests hand in their own.
        crash: Ends the process; tests hand in their own.
    """

    def __init__(
        self, settings: Misbehaviour, env_id: int, *, wait: Wait = idle, crash: Callable[[], None] = kill_myself
    ) -> None:
        self._settings = settings
        self._env_id = env_id
        self._wait = wait
        self._crash = crash
        self._factor = settings.slow_factor if env_id in settings.slow_env_ids else 1.0
        self._faults = self._delays = np.random.Generator(np.random.PCG64(0))
        self._leaked: list[np.ndarray] = []

    def seed(self, seed: int) -> None:
        """Begin the streams of faults and of delays that belong to an environment's seed."""
        self._faults = seeding.generator(seed, "fuelbreak.faults", self._env_id)
        self._delays = seeding.generator(seed, "fuelbreak.delays", self._env_id)

    def step(self, work: Callable[[], None]) -> None:
        """Misbehave, or not, at the beginning of a step.

        Args:
            work: What one busy repeat does.

        Raises:
            EnvironmentRaised: With probability ``p_raise``, or because a hang has lasted ``hang_s`` seconds.
        """
        settings = self._settings
        if settings.leak_mb:
            self._leaked.append(np.ones(int(settings.leak_mb * 2**20), np.uint8))  # written, so that it is resident
        if settings.p_hang or settings.p_crash or settings.p_raise:
            self._maybe_fail()
        if settings.delay_s:
            self._wait(settings.delay_s * self._tail())
        if settings.busy_repeats:
            for _ in range(round(settings.busy_repeats * self._tail())):
                work()

    def _maybe_fail(self) -> None:
        settings = self._settings
        draw = self._faults.random()
        if draw < settings.p_hang:
            self._wait(settings.hang_s)
            raise self._raised(f"hung on purpose for {settings.hang_s:g} s, and nobody ended it", "p_hang")
        if draw < settings.p_hang + settings.p_crash:
            self._crash()
        elif draw < settings.p_hang + settings.p_crash + settings.p_raise:
            raise self._raised("raised on purpose", "p_raise")

    def _tail(self) -> float:
        """A log-normal factor of median 1, or of ``slow_factor`` in a slow environment."""
        return self._factor * float(np.exp(self._settings.tail_sigma * self._delays.standard_normal()))

    def _raised(self, what: str, knob: str) -> EnvironmentRaised:
        return EnvironmentRaised(
            f"FuelBreakEnv {what}",
            fix=f"Set {knob} to 0 if this is not meant.",
            env_id=self._env_id,
            **{knob: getattr(self._settings, knob)},
        )
