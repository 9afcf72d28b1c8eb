"""What a learner of several policies has to know of each: whose lanes are whose, and what each has to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.lanes.rate_limiter import RateLimiter
from headrace.lanes.replay import LaneBooks, Replay
from headrace.lanes.samplers import Sampler
from headrace.lanes.several import SeveralSamplers


@dataclass(frozen=True, slots=True)
class LearnedPolicies:
    """The policies of a run."""

    names: tuple[str, ...] = ()
    """Empty where there is one."""
    of_lane: tuple[int, ...] = ()
    """Number of the policy that acts in each lane."""

    def of(self, lanes: Sequence[int], counts: Sequence[int]) -> NDArray[np.intp] | None:
        """Policy of each of so many observations of lanes; None where there is one policy."""
        if not self.names:
            return None
        return np.repeat([self.of_lane[lane] for lane in lanes], counts)

    def ratios(self, books: LaneBooks, updates: int) -> dict[str, float]:
        """Updates per transition of each policy's own, of all it has made; without those that have made none.

        One far above the others' is of a policy whose agents are seldom there: it learns the same few again and again.
        """
        own = self._of_each(books.committed + books.salvaged)
        return {name: updates / count for name, count in zip(self.names, own, strict=True) if count}

    def named(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Metrics of an algorithm, ``train/<number of the policy>/<name>`` by the policy's name instead."""
        found = {}
        for name, value in metrics.items():
            section, _, rest = name.partition("/")
            number, _, last = rest.partition("/")
            if self.names and last and number.isdecimal():
                name = f"{section}/{self.names[int(number)]}/{last}"
            found[name] = value
        return found

    def refuse_endless_want(self, sampler: Sampler, limiter: RateLimiter, replay: Replay, updates: int) -> None:
        """An update of all policies needs experience of each; where nothing more may be collected, it would never be made.

        A policy whose agents have made steps, in no lane as many as one n-step transition takes, is given time for more.

        Raises:
            ConfigError: One is due, a policy has nothing to learn from, and no more may be collected.
        """
        if not isinstance(sampler, SeveralSamplers) or (env_steps := replay.env_steps) < limiter.steps_allowed(updates):
            return
        if updates >= limiter.updates_due(env_steps) or not (wanting := sampler.wanting):
            return
        books = replay.books
        held = self._of_each(books.committed + books.salvaged - books.evicted)
        if empty := [number for number in wanting if not held[number]]:
            raise ConfigError(
                f"policy {self.names[empty[0]]} has nothing to learn from: no step of its agents is in the replay",
                env_steps=env_steps,
                updates_due=limiter.updates_due(env_steps),
                policies_without_experience=", ".join(self.names[number] for number in empty),
                fix="let these agents share a policy with others (agents.policies), or keep rows until they come: raise "
                "replay.learning_starts if they come late, replay.capacity if they have been there before",
            )
        if env_steps >= limiter.steps_allowed(updates, starved=True):
            n_step = replay.geometry.n_step
            raise ConfigError(
                f"policy {self.names[wanting[0]]} has too little to learn from: no lane of its agents holds the "
                f"{n_step} steps of one transition",
                n_step=n_step,
                env_steps=env_steps,
                updates_due=limiter.updates_due(env_steps),
                steps_held=", ".join(f"{self.names[number]} {held[number]:,}" for number in wanting),
                fix="lower replay.n_step, let these agents share a policy with others (agents.policies), or raise "
                "replay.learning_starts so that they make more steps before the first update",
            )

    def _of_each(self, steps: NDArray[np.int64]) -> list[int]:
        """Steps per lane, summed for each policy."""
        of_lane = np.array(self.of_lane)
        return [int(steps[of_lane == policy].sum()) for policy in range(len(self.names))]
