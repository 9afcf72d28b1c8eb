"""Environments that workers step while this process acts: a vector environment, one slot of it per lane."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from headrace.core.errors import ComponentError, EnvironmentLost, HeadraceError
from headrace.lanes.layout import INFO_KEYS
from headrace.telemetry.board import Activity, Slot
from headrace.vector.env import Received
from headrace.vector.faults import Fault, FaultKind

_LOOK_S = 0.25
"""Longest wait after which whoever waits looks after everything else."""


class Vector(Protocol):
    """What is asked of a `headrace.VectorEnv`, with ``on_fault="raise"``, whose environments nobody else resets."""

    @property
    def faults(self) -> Sequence[Fault]:
        """The newest faults, the newest last."""

    def send(self, actions: Any, env_ids: Sequence[int]) -> None:
        """Have these environments begin a step."""

    def send_reset(self, env_ids: Sequence[int], seeds: Sequence[int | None]) -> None:
        """Have these environments begin an episode."""

    def receive(self, min_envs: int, timeout_s: float) -> Received:
        """What has come, once it is so many, or the time is over; raises the error of one fault, if there is any."""

    def close(self) -> None:
        """End every worker."""


class _Phase(Enum):
    """Where one environment is."""

    IDLE = "idle"
    BUSY = "at work"
    BACK = "back"
    """Its answer is here, and nobody has taken it."""


class RemoteEnv(gymnasium.Env[Any, Any]):
    """One environment of a `RemoteEnvs`. ``reset`` and ``step`` wait; what was sent before, they only complete.

    Args:
        owner: Whose it is.
        place: Its number there.
        lane: Its lane.
        observation_space: Of it.
        action_space: Of it.
    """

    def __init__(
        self, owner: RemoteEnvs, place: int, lane: int, observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
    ) -> None:  # fmt: skip
        self.observation_space = observation_space
        self.action_space = action_space
        self.place, self.lane = place, lane
        self.at_step = 0
        """Transitions of the lane before the call that was sent last."""
        self.owner = owner
        self._phase = _Phase.IDLE
        self._call = ""
        self._answer: tuple[Any, ...] | EnvironmentLost = ()

    @property
    def busy(self) -> bool:
        """Whether a call was sent and has not come back."""
        return self._phase is _Phase.BUSY

    def send_reset(self, seed: int | None, at_step: int = -1) -> None:
        """Begin ``reset``, with the owner's next `RemoteEnvs.flush`.

        Raises:
            ComponentError: A call was sent before and not completed.
        """
        self._send("reset", at_step)
        self.owner.resets.append((self.place, seed))

    def send_step(self, action: Any, at_step: int = -1) -> None:
        """Begin ``step``, with the owner's next `RemoteEnvs.flush`.

        Raises:
            ComponentError: A call was sent before and not completed.
        """
        self._send("step", at_step)
        self.owner.steps.append((self.place, action))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As Gymnasium's; ``options`` are not passed on.

        Raises:
            EnvironmentLost: It did not come back; it is being replaced, and may be reset again.
        """
        if self._phase is _Phase.IDLE:
            self.send_reset(seed)
        obs, *_, info = self._complete("reset")
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As Gymnasium's; of a step that was sent, the action is known.

        Raises:
            EnvironmentLost: It did not come back; it is being replaced, and has to be reset.
        """
        if self._phase is _Phase.IDLE:
            self.send_step(action)
        obs, reward, terminated, truncated, info = self._complete("step")
        return obs, reward, terminated, truncated, info

    def take(self, answer: tuple[Any, ...] | EnvironmentLost) -> None:
        """Its answer has come. For its owner."""
        self._move(_Phase.BUSY, _Phase.BACK)
        self._answer = answer

    def close(self) -> None:
        """Nothing: its owner closes all of them."""

    def lost(self, fault: Fault) -> EnvironmentLost:
        """The error that says what became of the call that was sent."""
        facts = {name: value for name, value in fault.error.facts.items() if name not in _TOLD_HERE}
        if "also_lost" in facts:
            facts["also_lost"] = self.owner.in_lanes(str(facts["also_lost"]))
        where = f"{self._call}()"
        if fault.phase == "construct":  # of a replacement, which is built when it is asked for a reset
            where, facts["phase"] = "its factory", fault.phase
        return EnvironmentLost(
            f"the environment of lane {self.lane} {_HOW.get(fault.kind, fault.kind)} in {where}",
            kind=str(fault.kind),
            problem=self.owner.in_lanes(fault.error.what),
            **facts,
            fix=self.owner.in_lanes(fault.error.fix),
        )

    def _send(self, call: str, at_step: int) -> None:
        self._move(_Phase.IDLE, _Phase.BUSY)
        self._call, self.at_step = call, at_step

    def _complete(self, call: str) -> tuple[Any, ...]:
        while self._phase is _Phase.BUSY:
            self.owner.wait([[self]])
        if self._call != call:
            raise _illegal(self.lane, f"{call}() was called, and {self._call}() was sent")
        self._move(_Phase.BACK, _Phase.IDLE)
        answer, self._answer = self._answer, ()
        if isinstance(answer, EnvironmentLost):
            raise answer
        return answer

    def _move(self, before: _Phase, after: _Phase) -> None:
        if self._phase is not before:
            raise _illegal(self.lane, f"it is {self._phase.value}, and should be {before.value}")
        self._phase = after


_HOW = {
    "hung": "hung",
    "died": "took its process down",
    "raised": "raised",
    "contract": "returned what it had not declared",
    "not-finite": "returned a value that is not finite",
    "lost-with-worker": "was lost with its process",
}
_TOLD_HERE = frozenset({"env", "step", "phase", "kind", "problem"})
"""Facts of a fault that count as the vector environment does, and are told in lanes here; or that are told otherwise."""
_NUMBERED = re.compile(r"\benvironments? (\d+(?:(?:, | to )\d+)*)")


def _illegal(lane: int, problem: str) -> ComponentError:
    return ComponentError(
        f"the environment of lane {lane} was asked for what it cannot do now",
        problem=problem,
        fix="if Headrace did this by itself, file a bug",
    )


class RemoteEnvs:
    """The environments of one process's lanes, in workers of a vector environment.

    Args:
        vector: Of as many environments, in the order of the lanes; closed by `close`.
        lanes: Their numbers.
        observation_space: Of one environment.
        action_space: Of one environment.
        slot: The component's place on the board.
    """

    def __init__(
        self, vector: Vector, lanes: Sequence[int], observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any], slot: Slot,
    ) -> None:  # fmt: skip
        self.steps: list[tuple[int, Any]] = []
        """(place, action) of the steps that are to be sent."""
        self.resets: list[tuple[int, int | None]] = []
        """(place, seed) of the resets that are to be sent."""
        self._vector = vector
        self._slot = slot
        self._action_space = action_space
        self._envs = [RemoteEnv(self, place, lane, observation_space, action_space) for place, lane in enumerate(lanes)]
        self._by_lane = {env.lane: env for env in self._envs}

    def env(self, lane: int) -> RemoteEnv:
        """The environment of a lane."""
        return self._by_lane[lane]

    def in_lanes(self, text: str) -> str:
        """A text of the vector environment, which numbers its environments, in the run's lanes."""

        def told(match: re.Match[str]) -> str:
            lanes = re.sub(r"\d+", lambda number: str(self._envs[int(number[0])].lane), match[1])
            return f"the environment of lane {lanes}" if lanes.isdigit() else f"the environments of lanes {lanes}"

        return _NUMBERED.sub(told, text)

    def flush(self) -> None:
        """Send what is to be sent: one message costs about as much for many environments as for one."""
        if self.steps:
            places, actions = zip(*self.steps, strict=True)
            self.steps.clear()
            self._vector.send(_batch(self._action_space, actions), places)
        if self.resets:
            places, seeds = zip(*self.resets, strict=True)
            self.resets.clear()
            self._vector.send_reset(places, seeds)

    def wait(self, sets: Sequence[Sequence[RemoteEnv]]) -> None:
        """Return when one of these sets of environments may be back as a whole, or it is time to look after other things.

        Whoever waits asks again: what was awaited may not be there yet. The board names an environment that is waited for.

        Args:
            sets: Of environments that are at work.
        """
        self.flush()
        at_work = [env for one in sets for env in one if env.busy]
        if not at_work:
            return
        self._show(at_work[0])
        # Nobody can go on before the smallest set is there, so nobody need be woken before.
        need = min(len([env for env in one if env.busy]) for one in sets)
        try:
            self._take(self._vector.receive(max(1, need), _LOOK_S))
        except HeadraceError as error:
            incident = self._incident(error)
            if not incident:
                raise
            for fault in incident:
                env = self._envs[fault.env]
                if env.busy:
                    env.take(env.lost(fault))

    def _incident(self, error: HeadraceError) -> list[Fault]:
        """The fault that an error tells of, and those of environments that went down with the same process.

        Those are the ones that follow upon it at once. Others of that process have an error of their own to tell of them:
        one environment was interrupted there, say, and the next one killed it.
        """
        faults = list(self._vector.faults)
        first = next((place for place in reversed(range(len(faults))) if faults[place].error is error), None)
        if first is None:
            return []
        pid = error.facts.get("pid")
        others = itertools.takewhile(
            lambda fault: fault.kind is FaultKind.LOST_WITH_WORKER and fault.error.facts.get("pid") == pid,
            faults[first + 1 :],
        )
        return [faults[first], *others]

    def _show(self, env: RemoteEnv) -> None:
        """Put on the board who is waited for, once, so that it shows since when."""
        waits = Activity.WAIT_ENV, env.lane, env.at_step
        if self._slot.resume() != waits:
            self._slot.enter(*waits)

    def _take(self, answers: Received) -> None:
        rewards = answers.rewards.tolist()
        ends = zip(answers.terminations.tolist(), answers.truncations.tolist(), strict=True)
        for row, (place, reward, ended) in enumerate(zip(answers.env_ids.tolist(), rewards, ends, strict=True)):
            self._envs[place].take((_row(answers.observations, row), reward, *ended, _info(answers.infos, row)))

    def close(self) -> None:
        """End every worker, whatever its environments are at."""
        self._vector.close()


def _batch(space: spaces.Space[Any], actions: Sequence[Any]) -> Any:
    """Actions as the batch that the vector environment takes."""
    if isinstance(space, spaces.Dict):
        return {key: _batch(inner, [action[key] for action in actions]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_batch(inner, [action[n] for action in actions]) for n, inner in enumerate(space.spaces))
    return np.stack(actions)


def _row(values: Any, row: int) -> Any:
    """One environment's part of a batch."""
    if isinstance(values, Mapping):
        return {key: _row(part, row) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_row(part, row) for part in values)
    return values[row, ...]


def _info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Of what an environment told beside its step, the keys by which it says that it failed."""
    return {key: infos[key][row] for key in INFO_KEYS if key in infos and infos[f"_{key}"][row]}
