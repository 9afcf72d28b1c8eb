"""Environments behind the interface of a vector environment, in the test's own process: answers in a drawn order, faults where
a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from headrace.core.errors import EnvironmentRaised, HeadraceError
from headrace.vector.env import Received
from headrace.vector.faults import Fault, FaultKind

Planned = Mapping[tuple[int, int], str]
"""Kind of fault by (place of the environment, number of the call to it, from 1; its resets count)."""


class FakeActor:
    """Answers with the version it has loaded and the newest t it sees; counts what it is asked."""

    def __init__(self) -> None:
        self.loaded: list[float] = []
        self.seen: list[np.ndarray] = []
        self.episodes = 0
        self.carry = np.zeros(0, np.float32)

    def load(self, arrays):
        self.loaded.append(float(arrays["bias"][0]))

    def noise(self, generator):
        return self

    def begin_episode(self):
        self.episodes += 1

    def act(self, obs, noise=None):
        assert len(noise) == len(obs["obs"])
        self.seen.append(obs["obs"].copy())
        newest = obs["obs"].reshape(len(noise), -1)[:, -1:]
        return {"action": (newest / 100).astype(np.float32)}


class FakeVector:
    """See `headrace.collectors.remote.Vector`.

    Args:
        factories: Of its environments.
        planned: Faults; the environment is not called then, but built anew.
        seed: Of the order of answers.
    """

    def __init__(
        self, factories: Sequence[Callable[[], gymnasium.Env[Any, Any]]], planned: Planned | None = None, seed: int = 0
    ) -> None:
        self.factories = list(factories)
        self.envs = [factory() for factory in factories]
        self.planned = dict(planned or {})
        self.calls = [0] * len(self.envs)
        self.sent: list[tuple[str, tuple[int, ...]]] = []
        self.asked: list[int] = []
        """What every `receive` was asked for."""
        self.closed = False
        self.faults: list[Fault] = []
        self._errors: list[HeadraceError] = []
        self._ready: dict[int, tuple[Any, ...]] = {}
        self._order = np.random.default_rng(seed)
        self._open: dict[int, Callable[[], tuple[Any, ...]]] = {}

    def send(self, actions: Any, env_ids: Sequence[int]) -> None:
        self.sent.append(("step", tuple(env_ids)))
        for place, action in zip(
            env_ids, iterate(_batched(self.envs[0].action_space, len(env_ids)), actions), strict=True
        ):
            self._begin(place, lambda place=place, action=action: self.envs[place].step(action))

    def send_reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        self.sent.append(("reset", tuple(env_ids)))
        for place, seed in zip(env_ids, seeds, strict=True):
            self._begin(place, lambda place=place, seed=seed: self._reset(place, seed))

    def _reset(self, place: int, seed: int) -> tuple[Any, ...]:
        obs, info = self.envs[place].reset(seed=seed)
        return obs, 0.0, False, False, info

    def _begin(self, place: int, call: Callable[[], tuple[Any, ...]]) -> None:
        assert place not in self._open, "it is busy"
        self._open[place] = call

    def receive(self, min_envs: int, timeout_s: float) -> Received:
        if self._errors:
            raise self._errors.pop()
        assert self._open or self._ready, "nothing was sent"
        self.asked.append(min_envs)
        places = self._order.permutation(sorted(self._open))[:min_envs].tolist()
        found = {}
        for place in places:
            call = self._open.pop(place)
            self.calls[place] += 1
            kind = self.planned.get((place, self.calls[place]))
            if kind is None:
                found[place] = call()
                continue
            error = EnvironmentRaised("it raised ValueError: tile 7", error="ValueError: tile 7", fix="mend it")
            self.faults.append(Fault(place, FaultKind(kind), "step", self.calls[place], error))
            self._errors.append(error)
            self.envs[place].close()
            self.envs[place] = self.factories[place]()
        self._ready |= found
        if self._errors:
            raise self._errors.pop()
        ready, self._ready = self._ready, {}
        return self._answers(sorted(ready), [ready[place] for place in sorted(ready)])

    def _answers(self, places: list[int], found: list[tuple[Any, ...]]) -> Received:
        observations, rewards, terminations, truncations, infos = zip(*found, strict=True)
        space = self.envs[0].observation_space
        batch = concatenate(space, observations, create_empty_array(space, len(places)))
        keys = {key for info in infos for key in info}
        told: dict[str, Any] = {key: np.array([info.get(key, 0) for info in infos]) for key in keys}
        told |= {f"_{key}": np.array([key in info for info in infos]) for key in keys}
        return Received(
            np.array(places), batch, np.array(rewards, np.float64), np.array(terminations), np.array(truncations), told,
            np.ones(len(places), np.bool_),
        )  # fmt: skip

    def close(self) -> None:
        self.closed = True


def _batched(space: gymnasium.Space[Any], count: int) -> gymnasium.Space[Any]:
    return gymnasium.vector.utils.batch_space(space, count)
