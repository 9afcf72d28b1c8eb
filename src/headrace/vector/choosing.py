"""Where environments had best run: measurements go in, a plan comes out."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LOOP_S = 1e-6
"""What a step costs beside the environment's own work."""
_BATCH_S = 40e-6
"""What a batch costs beside its steps: taking actions apart, putting answers together."""
_INFOS_HERE_S = 40e-6
"""More of that where there are infos."""
_ANSWER_S = 60e-6
"""More of it for what this process steps while workers step the rest."""
_AWAKE_S = 90e-6
"""A worker that waits awake sees a question, and answers; all of them at once."""
_ASK_AWAKE_S = 10e-6
"""To ask one such worker, and then the next."""
_WORKER_S = 210e-6
"""A worker that sleeps is woken, answers, and wakes this process; all workers at once."""
_INFOS_S = 120e-6
"""More of that where infos are to be laid down as well."""
_ASK_S = 45e-6
"""To wake one worker, and then the next."""
_COPY_S_PER_BYTE = 0.5e-9
_WORTH_IT = 1.15
"""Workers have to be so much faster, or they are not worth their memory."""
_WORTH_IT_BESIDE = 1.05
"""So much faster than workers alone this process has to be with them: in a worker a call that hangs can be ended."""
_BLOCKING = 0.5
"""A step that waits for more than this part of its time blocks."""
_SHORTEST_BLOCK_S = 100e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one environment was seen to do."""

    step_s: float
    """Wall time of a step, in the mean, with the resets between."""
    busy_s: float
    """CPU time of it, with the time it waited for a core."""
    steps: int
    """How many were measured; 0 if the first one did not return."""
    observation_bytes: int = 0
    infos: bool = False
    """Whether a step returned an info that is not empty."""
    alone: bool = False
    """Whether it uses no process and no thread of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to run on."""

    cores: int
    """That this process may use."""
    busy_cores: float = 0.0
    """In use by others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where environments run."""

    workers: int
    """0: in this process."""
    threads: int
    """Per worker; 1: its environments are stepped in turn."""
    reason: str
    here: int = 0
    """How many environments this process steps while workers step the others."""
    pinned: bool = False
    """Whether each worker keeps to one core, until others use most of it. Its threads take turns anyway, as the
    interpreter has it, and a turn that goes to another core takes several times as long."""

    def __str__(self) -> str:
        """In one line."""
        where = "in this process"
        if self.workers:
            each = f", {self.threads} threads each" if self.threads > 1 else ""
            where = f"{self.workers} worker{'s' if self.workers > 1 else ''}{each}"
            where += ", each on one core while it is free" if self.pinned else ""
        if self.here:
            where = f"{self.here} in this process and the others in {where}"
        return f"{where}: {self.reason}"

    __repr__ = __str__


def choose(
    measured: Measured | None,
    machine: Machine,
    num_envs: int,
    workers: int | None,
    threads: int | None,
    isolate: bool,
    here: int | None = None,
) -> Plan:
    """Where environments had best run.

    Args:
        measured: None if nothing was to be measured.
        machine: See there.
        num_envs: How many environments.
        workers: As asked; None: to be chosen.
        threads: As asked; None: to be chosen.
        isolate: Whether somebody has to be able to end a call that does not return.
        here: How many environments this process is to step beside workers, as asked; None: to be chosen.
    """
    reason = "as asked"
    if measured is not None and _blocks(measured):
        reason = f"a step waits {1 - _share(measured):.0%} of its {_time(measured.step_s)}"
        threads = threads or (2 if num_envs > (workers or 1) else 1)
    threads = threads or 1
    # What an environment starts by itself inherits the core: only those are pinned that start nothing.
    pinned = workers is None and threads > 1 and measured is not None and measured.alone
    if workers is None:
        why = _ENFORCED if isolate else _BESIDE if here else ""
        plan = _workers(measured, machine, num_envs, threads, why, may_split=here is None)
        workers, reason, here = plan.workers, plan.reason, plan.here or here
    beside = min(here or 0, num_envs - 1) if workers else 0
    workers = min(workers, num_envs - beside)
    if threads > 1 and workers:
        threads = max(threads, math.ceil((num_envs - beside) / workers))
    return Plan(workers, threads if workers else 1, reason, beside, pinned)


_ENFORCED = "workers, so that step_timeout_s can be enforced"
_BESIDE = "workers beside this process, as asked"


def _workers(
    measured: Measured | None, machine: Machine, num_envs: int, threads: int, why: str, *, may_split: bool
) -> Plan:
    """How many workers; ``why`` there has to be one, if there has."""
    free = max(1, round(machine.cores - machine.busy_cores))
    if measured is None or measured.steps == 0:
        reason = "its first steps failed or did not return in time, so it is kept away from this process"
        return Plan(max(1, min(free, num_envs)), threads, reason)
    said = f"a step takes {_time(measured.step_s)}"
    if threads > 1:
        return Plan(min(machine.cores, num_envs), threads, f"{said}, of which it waits {1 - _share(measured):.0%}")
    alone_s = _here_s(measured, num_envs)
    times = {count: _workers_s(measured, num_envs, count) for count in range(1, min(free, num_envs) + 1)}
    best = min(times, key=lambda count: times[count])
    said += f", {free} of {machine.cores} cores free" if free < machine.cores else f", {machine.cores} cores"
    if why:
        return Plan(best if alone_s > times[best] else 1, threads, f"{said}; {why}")
    here, split_s = _split(measured, num_envs, free - 1)
    expected = "expected to be {:.2g} times as fast as this process alone"
    if may_split and here and split_s * _WORTH_IT <= alone_s and split_s * _WORTH_IT_BESIDE <= times[best]:
        return Plan(free - 1, threads, f"{said}; {expected.format(alone_s / split_s)}", here)
    ratio = alone_s / times[best]
    if ratio >= _WORTH_IT and best > 1:
        return Plan(best, threads, f"{said}; {expected.format(ratio)}")
    return Plan(0, threads, f"{said}; workers would not be faster ({ratio:.2g} times)")


def _split(measured: Measured, num_envs: int, workers: int) -> tuple[int, float]:
    """How many environments this process had best step beside workers, and how long a batch then takes."""
    if not workers:
        return 0, math.inf
    step_s = measured.step_s + _LOOP_S
    ahead_s = _AWAKE_S - _ANSWER_S
    here = max(0, math.floor((num_envs * step_s / workers + ahead_s) / (step_s + step_s / workers)))
    there = math.ceil((num_envs - here) / workers)
    longest_s = max(here * step_s + _ANSWER_S, there * step_s + _AWAKE_S)
    return here if here < num_envs else 0, longest_s + workers * _ASK_AWAKE_S + _around_s(measured, num_envs)


def _here_s(measured: Measured, num_envs: int) -> float:
    """One batch in this process."""
    return num_envs * (measured.step_s + _LOOP_S) + _around_s(measured, num_envs)


def _workers_s(measured: Measured, num_envs: int, count: int) -> float:
    """One batch in so many workers."""
    longest = math.ceil(num_envs / count) * (measured.step_s + _LOOP_S)
    return longest + count * _ASK_S + _WORKER_S + measured.infos * _INFOS_S + _around_s(measured, num_envs)


def _around_s(measured: Measured, num_envs: int) -> float:
    """What a batch costs wherever it is made."""
    copying_s = num_envs * measured.observation_bytes * _COPY_S_PER_BYTE
    return _BATCH_S + measured.infos * _INFOS_HERE_S + copying_s


def _blocks(measured: Measured) -> bool:
    return measured.steps > 0 and measured.step_s >= _SHORTEST_BLOCK_S and _share(measured) < 1 - _BLOCKING


def _share(measured: Measured) -> float:
    return min(1.0, measured.busy_s / max(measured.step_s, 1e-9))


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"
