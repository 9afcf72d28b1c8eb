"""A learner under ``inline`` that times each piece of its work, and what its figures come to.

It is the very learner of a run, with the environments, the actor, the lanes and the record of one; a clock is read
wherever it tells the board what it does, and around every call of an environment, in whatever process that is made.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.core.clock import MonotonicClock, monotonic_s, perf_counter_s
from headrace.core.errors import ConfigError
from headrace.core.files import write_whole
from headrace.envs.agents import ParallelCopy
from headrace.ipc.child import ChildContext
from headrace.lanes.credits import Commit
from headrace.runtime.advisor import Costs
from headrace.runtime.beginning import begin
from headrace.runtime.groups import InlineGroups
from headrace.runtime.lockstep import run_rounds
from headrace.runtime.payloads import BuiltEnv, LearnerPayload
from headrace.runtime.training import Training, open_groups
from headrace.supervision.messages import Ready
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, Slot, State

TARGET = f"{__name__}:main"
FIGURES_FILE = "figures.json"
_LOGS = "calls"

_CALL = struct.Struct("=dddd")  # begun, lasted, processor time, kind
_STEP, _RESET = 0.0, 1.0
_WARM = 0.2
"""Part of the time after which counting begins: first calls take longer than all others."""
_FIRST_UPDATES = 3
_BINS = 512
_TRIED = 2000
_COMPUTES = 0.05
"""A step that waits for less than this part of its time computes; what it waited for was a core."""
_SCHEDSTAT = Path("/proc/self/schedstat")


class CallLog:
    """Times the calls of one environment, and keeps them in a file.

    A call in which its thread never gave its core away has computed all the time; what it lacked was a core that others had.

    Args:
        path: Appended to.
        cpu: Processor time of whoever makes the calls.
    """

    def __init__(self, path: Path, cpu: Callable[[], float]) -> None:
        self._file = path.open("ab")
        self._cpu = cpu

    def timed(self, kind: float, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make the call."""
        waits = _waits()
        begun_s, cpu_s = monotonic_s(), self._cpu()
        returned = call(*args, **kwargs)
        used_s, lasted_s = self._cpu() - cpu_s, monotonic_s() - begun_s
        if _waits() == waits:
            lasted_s = min(lasted_s, used_s)
        self._file.write(_CALL.pack(begun_s, lasted_s, used_s, kind))
        return returned

    def close(self) -> None:
        """What was noted is on disk then."""
        self._file.close()


def _waits() -> int:
    """How often this thread has given its core away by itself."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class TimedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose calls are timed."""

    def __init__(self, env: gymnasium.Env[Any, Any], log: CallLog) -> None:
        super().__init__(env)
        self._log = log

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As of the environment."""
        returned: tuple[Any, dict[str, Any]] = self._log.timed(_RESET, self.env.reset, seed=seed, options=options)
        return returned

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As of the environment."""
        returned: tuple[Any, Any, bool, bool, dict[str, Any]] = self._log.timed(_STEP, self.env.step, action)
        return returned

    def close(self) -> None:
        """The log too."""
        try:
            super().close()
        finally:
            self._log.close()


class TimedAgents:
    """An environment of many agents whose calls are timed."""

    def __init__(self, env: Any, log: CallLog) -> None:
        self._env, self._log = env, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """As of the environment."""
        return self._log.timed(_RESET, self._env.reset, *args, **kwargs)

    def step(self, actions: Any) -> Any:
        """As of the environment."""
        return self._log.timed(_STEP, self._env.step, actions)

    def close(self) -> None:
        """The log too."""
        close = getattr(self._env, "close", None)
        try:
            if close is not None:
                close()
        finally:
            self._log.close()


@dataclass(frozen=True, slots=True)
class TimedCalls:
    """Puts a clock around environments, here or in workers."""

    folder: Path
    alone: bool
    """Whether a process makes the calls of one environment at a time, so that its processor time is that one's."""

    def __call__(self, env: BuiltEnv, lane: int) -> BuiltEnv:
        """An environment that notes its calls in a file of its own."""
        log = CallLog(self.folder / f"{lane}-{os.getpid()}.bin", time.process_time if self.alone else time.thread_time)
        if isinstance(env, ParallelCopy):
            env.env = TimedAgents(env.env, log)
            return env
        return TimedEnv(env, log)


@dataclass(slots=True)
class Stopwatch:
    """How long each piece of the learner's work took."""

    warm_s: float = 0.0
    """When counting begins, on the monotonic clock."""
    now: Callable[[], float] = monotonic_s
    cpu: Callable[[], float] = time.process_time
    spent: dict[str, list[float]] = field(default_factory=dict)
    """By name: how often, time, processor time."""
    updates: list[tuple[float, float]] = field(default_factory=list)
    """Time and processor time of each, from the first on."""
    chunks: int = 0
    transitions: int = 0
    begun_s: float = 0.0
    _name: str = "start"
    _at_s: float = 0.0
    _cpu_s: float = 0.0
    _held: tuple[float, float] = (0.0, 0.0)
    _warm: bool = False

    def switch(self, name: str) -> None:
        """Something else begins."""
        now_s, cpu_s = self.now(), self.cpu()
        lasted_s, used_s = now_s - self._at_s, cpu_s - self._cpu_s
        entry = self.spent.setdefault(self._name, [0.0, 0.0, 0.0])
        entry[0] += 1.0
        entry[1] += lasted_s
        entry[2] += used_s
        if self._name == "update":
            self.updates.append((lasted_s, used_s))
        self._name, self._at_s, self._cpu_s = name, now_s, cpu_s

    def begin_round(self) -> None:
        """Before chunks are collected."""
        self.switch("chunk")
        if not self.begun_s or (not self._warm and self._at_s >= self.warm_s):
            self._warm = self._at_s >= self.warm_s
            self.begun_s, self._held = self._at_s, scheduled_s()
            self.spent.clear()
            self.chunks = self.transitions = 0

    @property
    def held(self) -> float:
        """Time it waited for a core per second of computing."""
        cpu_s, waited_s = (after - before for after, before in zip(scheduled_s(), self._held, strict=True))
        return waited_s / cpu_s if cpu_s > 0.0 else 0.0


def scheduled_s() -> tuple[float, float]:
    """How long this thread had a core, and how long it waited for one; 0 where the system does not tell."""
    try:
        had_ns, waited_ns = _SCHEDSTAT.read_text().split()[:2]
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(had_ns) / 1e9, int(waited_ns) / 1e9


class TimedSlot(Slot):
    """A place on the board whose component is timed."""

    def __init__(self, board: Board, index: int, watch: Stopwatch) -> None:
        super().__init__(board, index)
        self._watch = watch

    def enter(self, activity: Activity, lane: int = -1, step: int = -1) -> None:
        """See `Slot`."""
        super().enter(activity, lane, step)
        self._watch.switch(activity.label)

    def waiting(
        self, activity: Activity, *, on: str | None = None, need: int = 0, have: int = 0, deadline_s: float = 0.0
    ) -> None:
        """See `Slot`."""
        super().waiting(activity, on=on, need=need, have=have, deadline_s=deadline_s)
        self._watch.switch(activity.label)


class TimedGroups(InlineGroups):
    """Groups whose chunks are counted."""

    def __init__(self, watch: Stopwatch, *args: Any) -> None:
        super().__init__(*args)
        self._watch = watch

    def take(self) -> list[Commit]:
        """See `InlineGroups`."""
        self._watch.begin_round()
        commits = super().take()
        self._watch.switch("taken")
        self._watch.chunks += len(commits)
        self._watch.transitions += sum(lane.transitions for commit in commits for lane in commit.lanes)
        return commits


def main(context: ChildContext) -> None:
    """Entry point of the learner's process."""
    payload: LearnerPayload = context.payload
    config, folder = payload.basics.config, payload.basics.board.parent
    (folder / _LOGS).mkdir(exist_ok=True)
    timed = TimedCalls(folder / _LOGS, alone=config.env.workers != "auto")
    payload = replace(payload, basics=replace(payload.basics, around=timed))
    watch = Stopwatch()
    with ExitStack() as stack:
        board = stack.enter_context(Board.attach(payload.basics.board))
        slot = TimedSlot(board, board.index(context.id), watch)
        begun = stack.enter_context(begin(payload, context.fds, slot, context.control))
        make = functools.partial(TimedGroups, watch)
        with open_groups(payload, context.fds, board, slot, begun, context.control, make) as groups:
            begun.learner.publish()
            facts = {
                "layout": begun.layout, "resumed": None, "streams": begun.streams,
                "record_lost": begun.keeper.record_lost,
            }  # fmt: skip
            tell(context.control, slot, Ready(facts))
            slot.set_state(State.RUNNING)
            training = Training(begun.learner, groups, context.control, config, begun.keeper, slot, MonotonicClock())
            watch.warm_s = monotonic_s() + _WARM * (config.run.run_duration_s or 0.0)
            schedule = run_rounds(training)
            watch.switch("end")
        calls = calls_in(folder / _LOGS, watch.begun_s)
        figures = {**_figures(watch), "calls": calls, "workers": bool(config.env.workers)}
        write_whole(folder / FIGURES_FILE, [json.dumps(figures).encode()])
        training.finish(schedule)


def _figures(watch: Stopwatch) -> dict[str, Any]:
    """All that was counted, as plain values."""
    return {
        "spent": dict(watch.spent),
        "updates": watch.updates[min(_FIRST_UPDATES, max(0, len(watch.updates) - 1)) :],
        "chunks": watch.chunks,
        "transitions": watch.transitions,
        "held": watch.held,
        "lasted_s": monotonic_s() - watch.begun_s if watch.begun_s else 0.0,
        "switch_s": switch_s(),
        "noting_s": noting_s(),
    }


def switch_s() -> float:
    """What it costs to switch a stopwatch."""
    watch = Stopwatch()
    begun_s = perf_counter_s()
    for _ in range(_TRIED):
        watch.switch("tried")
    return (perf_counter_s() - begun_s) / _TRIED


def noting_s() -> tuple[float, float]:
    """What it costs to time a call: as part of what is noted, and beside it."""
    log = CallLog(Path(os.devnull), time.process_time)
    try:
        begun_s = perf_counter_s()
        for _ in range(_TRIED):
            log.timed(_STEP, bool)
        whole_s = (perf_counter_s() - begun_s) / _TRIED
        inside_s = min(whole_s, _clock_s())
    finally:
        log.close()
    return inside_s, whole_s - inside_s


def _clock_s() -> float:
    begun_s = perf_counter_s()
    for _ in range(_TRIED):
        time.process_time()
    return (perf_counter_s() - begun_s) / _TRIED


def calls_in(folder: Path, since_s: float) -> dict[str, Any]:
    """What the calls of all environments come to, as plain values."""
    files = [
        np.frombuffer(path.read_bytes()[: path.stat().st_size // _CALL.size * _CALL.size]) for path in folder.iterdir()
    ]
    each = [calls.reshape(-1, 4) for calls in files if len(calls)]
    calls = np.concatenate([np.zeros((0, 4)), *each])
    begun = sum(bool(calls[0, 0] >= since_s) for calls in each)  # the very first episodes: a run has them once
    everything, calls = calls, calls[calls[:, 0] >= since_s]
    steps, resets = calls[calls[:, 3] == _STEP, 1:3], calls[calls[:, 3] == _RESET, 1:3]
    walls = steps[:, 0] if len(steps) else np.zeros(1)
    return {
        "steps": len(steps), "step_s": _sums(steps), "resets": len(resets), "reset_s": _sums(resets),
        "resets_again": max(0, len(resets) - begun), "a_reset_s": _means(everything[everything[:, 3] == _RESET, 1:3]),
        "binned": binned(steps), "median_s": float(np.median(walls)),
        "p99_s": float(np.quantile(walls, 0.99)), "max_s": float(walls.max()),
    }  # fmt: skip


def _means(calls: NDArray[np.float64]) -> list[float]:
    return [float(mean) for mean in calls.mean(axis=0)] if len(calls) else [0.0, 0.0]


def _sums(calls: NDArray[np.float64]) -> list[float]:
    return [float(calls[:, 0].sum()), float(calls[:, 1].sum())]


def binned(steps: NDArray[np.float64]) -> list[list[float]]:
    """Durations and processor times [S, 2], each sorted, as the means of at most 512 equally large parts [2][bins]."""
    if not len(steps):
        return [[], []]
    parts = [np.array_split(np.sort(column), min(_BINS, len(steps))) for column in steps.T]
    return [[float(part.mean()) for part in column] for column in parts]


def costs_of(figures: Mapping[str, Any], copies: int) -> Costs:
    """What the figures say a piece of each kind of work costs, with a core of its own.

    Args:
        figures: As `main` left them.
        copies: Environments that act together.

    Raises:
        ConfigError: Something was not done once.
    """
    calls, held = figures["calls"], figures["held"]
    steps, updates = calls["steps"], figures["updates"]
    for count, what in ((steps, "environment step"), (figures["chunks"], "chunk"), (len(updates), "update")):
        if not count:
            raise _too_short(what, figures)
    inside_s, beside_s = figures["noting_s"]
    step_s, step_cpu_s = _own(calls["step_s"], held, steps * inside_s)
    _, resets_cpu_s = _own(calls["reset_s"], held, calls["resets"] * inside_s)
    reset_s, reset_cpu_s = _own(calls["a_reset_s"], held, inside_s)
    spent = {name: _own(entry[1:], held, entry[0] * figures["switch_s"]) for name, entry in figures["spent"].items()}
    acting = steps / copies
    in_env_s = sum(spent.get(name, (0.0, 0.0))[1] for name in ("env.step", "env.reset"))
    row_s = in_env_s
    if not figures["workers"]:  # the calls themselves were made here
        row_s -= step_cpu_s + resets_cpu_s + (steps + calls["resets"]) * beside_s
    update_s, update_cpu_s = _own([sum(column) for column in zip(*updates, strict=True)], held, 0.0)
    return Costs(
        step_s=_spread(calls["binned"], step_s / steps, step_cpu_s / steps),
        step_cpu_s=step_cpu_s / steps,
        reset_s=reset_s,
        reset_cpu_s=reset_cpu_s,
        resets_per_step=calls["resets_again"] / steps,
        act_s=_each(spent, "policy", acting),
        row_s=max(0.0, row_s) / max(1, figures["transitions"]),
        chunk_s=_each(spent, "chunk", figures["chunks"]),
        commit_s=_each(spent, "commit", figures["chunks"]),
        update_s=update_s / len(updates),
        update_cpu_s=update_cpu_s / len(updates),
        publish_s=_each(spent, "publish", figures["spent"].get("publish", [1.0])[0]),
    )


def _own(sums: Iterable[float], held: float, clocks_s: float) -> tuple[float, float]:
    """Time and processor time, without what was spent waiting for a core or reading clocks."""
    wall_s, cpu_s = sums
    cpu_s = max(0.0, cpu_s - clocks_s)
    return max(wall_s - clocks_s - held * cpu_s, min(wall_s, cpu_s)), cpu_s


def _each(spent: Mapping[str, tuple[float, float]], name: str, count: float) -> float:
    return spent.get(name, (0.0, 0.0))[0] / max(count, 1.0)


def _spread(binned_s: list[list[float]], mean_s: float, cpu_s: float) -> tuple[float, ...]:
    """Durations of steps with this mean: of one that computes its processor times, which nobody beside it makes longer."""
    computes = cpu_s >= (1.0 - _COMPUTES) * mean_s
    values = binned_s[1] if computes else binned_s[0]
    found = sum(values) / len(values)
    return tuple(value * mean_s / found for value in values) if found > 0.0 else (mean_s,)


def _too_short(what: str, figures: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"the time was too short to measure anything: there was no {what}",
        measured=f"{figures['lasted_s']:.1f} s, {figures['calls']['steps']:,} environment steps",
        fix="raise --seconds, or lower collect.chunk_steps or env.lanes, so that a round of chunks takes less",
    )
