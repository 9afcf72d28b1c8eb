"""Four environments of which one misbehaves, in a vector environment of ours or of a peer; run in its own process.

    python _vector_fault_side.py '{"side": "Gymnasium Async", "fault": "env hangs", "step_timeout_s": 2}'

prints a JSON object for each stage it reaches: ``started``, then ``done`` or ``error``, then ``closed``. Whoever
started it has a watch and sees at which stage it stays.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from _vector_envs import makers
from _vector_sides import version

COUNT = 4
ROUNDS = 120
ENOUGH = 50
"""Rows of every environment, unless a fault was told."""
ACTIONS = np.zeros(COUNT, np.int64)


@dataclass(frozen=True)
class Batch:
    """What one step returned."""

    ids: Sequence[int]
    observations: Any
    rewards: Any
    over: Any
    valid: Any = None
    """None: nobody says."""
    told: Sequence[str] = ()
    """What was said about faults."""


@dataclass
class Watch:
    """Compares each observation with the one before."""

    last: dict[int, float | None] = field(default_factory=dict)
    over: dict[int, bool] = field(default_factory=dict)
    garbage: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=lambda: [0] * COUNT)
    """Of each environment, right ones only."""

    def look(self, batch: Batch) -> None:
        self.told += batch.told
        for at, env in enumerate(batch.ids):
            if batch.valid is not None and not batch.valid[at]:
                self.last[env] = None
            else:
                wrong = self._wrong(env, np.asarray(batch.observations[at]), float(batch.rewards[at]))
                self.garbage += [wrong] if wrong else []
                self.rows[env] += not wrong
            self.over[env] = bool(batch.over[at])

    def _wrong(self, env: int, obs: np.ndarray, reward: float) -> str | None:
        before, reset = self.last.get(env), self.over.get(env, False)
        self.last[env] = None
        if obs.shape != (4,) or obs.dtype != np.float32 or not np.isfinite(obs).all() or obs[0] != env:
            return f"env {env} returned {np.array2string(obs, separator=', ')}"
        self.last[env] = step = float(obs[1])
        if before is not None and step != before + 1 and not (reset and step in (before, 0.0)):  # 0: of a replacement
            return f"env {env} went from step {before:g} to step {step:g}"
        if reward != step and not reset:
            return f"env {env} returned the observation of step {step:g} with the reward of step {reward:g}"
        return None


class GymnasiumAsync:
    distribution = "gymnasium"

    def __init__(self, fault: str, step_timeout_s: float) -> None:
        from gymnasium.vector import AsyncVectorEnv

        self.envs = AsyncVectorEnv(makers(f"fault: {fault}", COUNT))
        self.envs.reset()

    def step(self) -> Batch:
        observations, rewards, terminated, truncated, _ = self.envs.step(ACTIONS)
        return Batch(range(COUNT), observations, rewards, terminated | truncated)

    def close(self) -> None:
        self.envs.close()


class GymnasiumAsyncTimeout(GymnasiumAsync):
    """With its own deadline; whoever meets it tries again, once."""

    def __init__(self, fault: str, step_timeout_s: float) -> None:
        super().__init__(fault, step_timeout_s)
        self.timeout_s, self.patient = step_timeout_s, True

    def step(self) -> Batch:
        try:
            self.envs.step_async(ACTIONS)
            observations, rewards, terminated, truncated, _ = self.envs.step_wait(timeout=self.timeout_s)
        except multiprocessing.TimeoutError:
            if not self.patient:
                raise
            self.patient = False
            return self.step()
        return Batch(range(COUNT), observations, rewards, terminated | truncated)


class StableBaselines:
    distribution = "stable-baselines3"

    def __init__(self, fault: str, step_timeout_s: float) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self.envs = SubprocVecEnv(makers(f"fault: {fault}", COUNT))
        self.envs.reset()

    def step(self) -> Batch:
        observations, rewards, over, _ = self.envs.step(ACTIONS)
        return Batch(range(COUNT), observations, rewards, over)

    def close(self) -> None:
        self.envs.close()


class Puffer:
    distribution = "pufferlib"

    def __init__(self, fault: str, step_timeout_s: float) -> None:
        from _vector_sides import puffer

        self.envs = puffer(makers(f"fault: {fault}", COUNT), workers=2, batch=COUNT)
        self.envs.async_reset(0)
        self.envs.recv()

    def step(self) -> Batch:
        self.envs.send(ACTIONS)
        observations, rewards, terminated, truncated, _, ids, _ = self.envs.recv()
        return Batch(list(ids), np.array(observations), np.array(rewards), np.array(terminated) | np.array(truncated))

    def close(self) -> None:
        self.envs.close()


class Ours:
    """Two workers, so that the misbehaving environment has a neighbour in its own."""

    distribution = "headrace"
    as_ready = False
    on_fault = "replace"

    def __init__(self, fault: str, step_timeout_s: float) -> None:
        import headrace

        self.envs = headrace.VectorEnv(
            makers(f"fault: {fault}", COUNT), workers=2, step_timeout_s=step_timeout_s, on_fault=self.on_fault
        )
        self.envs.reset(seed=0)
        if self.as_ready:
            self.envs.send(ACTIONS)

    def step(self) -> Batch:
        if not self.as_ready:
            observations, rewards, terminated, truncated, infos = self.envs.step(ACTIONS)
            ended, ids = terminated | truncated, list(range(COUNT))
            return Batch(ids, observations, rewards, ended, self.envs.valid, told(infos, ids))
        got = self.envs.receive(2)
        ids = got.env_ids.tolist()
        self.envs.send(ACTIONS[ids], got.env_ids)
        ended = got.terminations | got.truncations
        return Batch(ids, got.observations, got.rewards, ended, got.valid, told(got.infos, ids))

    def close(self) -> None:
        self.envs.close()


class OursAsReady(Ours):
    as_ready = True


class OursRaising(Ours):
    on_fault = "raise"


def told(infos: dict[str, Any], ids: Sequence[int]) -> list[str]:
    """What `headrace.VectorEnv` says about faults in these rows."""
    ours = infos.get("headrace", {})
    mask = ours.get("_fault", ())
    return [f"env {ids[at]} {ours['fault'][at]}" for at, there in enumerate(mask) if there]


SIDES: dict[str, Callable[[str, float], Any]] = {
    "headrace": Ours,
    "headrace, receive": OursAsReady,
    "headrace, on_fault=raise": OursRaising,
    "Gymnasium Async": GymnasiumAsync,
    "Gymnasium Async, timeout": GymnasiumAsyncTimeout,
    "SB3 Subproc": StableBaselines,
    "PufferLib, 2 workers": Puffer,
}


def say(stage: str, **facts: Any) -> None:
    print(json.dumps({"stage": stage, **facts}), flush=True)


def run(subject: Any) -> None:
    """Step until the end of the fault or of the rounds."""
    watch = Watch()
    try:
        for number in range(100 * ROUNDS):
            if number >= ROUNDS and (watch.told or min(watch.rows) >= ENOUGH):
                break  # who takes whichever are ready has many rows of the others before a hang is over
            watch.look(subject.step())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        say("error", type=type(error).__name__, text=str(error), garbage=watch.garbage[:1])
    else:
        say("done", garbage=watch.garbage[:1], told=watch.told, rows=watch.rows)


def main() -> None:
    request = json.loads(sys.argv[1])
    make = SIDES[request["side"]]
    found = version(make.distribution)
    if found is None:
        say("missing", distribution=make.distribution)
        return
    subject = make(request["fault"], request["step_timeout_s"])
    say("started", version=found)
    run(subject)
    subject.close()
    say("closed")


if __name__ == "__main__":
    main()
