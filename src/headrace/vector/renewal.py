"""Environments that are gone, and what their successors begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.core import seeding
from headrace.vector.events import Ids
from headrace.vector.faults import Fault, Problem


class Renewal:
    """What is remembered of every environment object, for when it has to be replaced.

    The seed of a replacement is `headrace.core.seeding.integer` of the last seed its environment was given, the name
    ``replacement``, the environment's number, and how often it was replaced; none if it never was given one.

    Args:
        num_envs: How many environments.
    """

    def __init__(self, num_envs: int) -> None:
        self.broken: dict[int, Problem] = {}
        """Environments that are gone and not renewed yet, and why."""
        self.untold: dict[int, Problem] = {}
        """Those of them that were asked nothing when it happened, so that nobody has been told."""
        self.moving: set[int] = set()
        """Environments that are well, and are to be renewed when their episode is over."""
        self.steps = np.zeros(num_envs, np.int64)
        """[N]; calls of step() of each environment object."""
        self.options: dict[int, Any] = {}
        """Of resets that are open."""
        self._asked: dict[int, int | None] = {}
        """Seeds of resets that the caller has asked for, and nobody has been handed yet."""
        self._seeds: list[int | None] = [None] * num_envs
        self._incarnations = [0] * num_envs

    def remember(self, ids: Ids, seeds: Sequence[int | None], options: Any) -> None:
        """The caller has asked for resets."""
        for env, seed in zip(ids.tolist(), seeds, strict=True):
            if seed is not None:
                self._seeds[env] = seed
            self._asked[env] = seed
            self.options[env] = options

    def seeds_of(self, ids: Ids) -> dict[int, int | None]:
        """Seeds of resets that are handed out now: the caller's, once; None: it gave none, or an attempt with it has failed."""
        return {env: self._asked.pop(env, None) for env in ids.tolist()}

    def due(self, env: int) -> bool:
        """Whether an environment is to be renewed when it is reset."""
        return env in self.broken or env in self.moving

    def gone(self, env: int, problem: Problem, *, asked: bool) -> None:
        """An environment is to be renewed before anything else; unless it was ``asked`` for something, `late` tells of it."""
        if not asked and env in self.untold:
            return  # that has cut its episode; what was to stand in its place has met nothing of it
        self.broken[env] = problem
        self.untold.pop(env, None)
        if not asked:
            self.untold[env] = problem

    def broken_off(self, ids: Ids, problem: Callable[[], Problem]) -> None:
        """What these were doing was broken off, whatever it was."""
        for env in ids.tolist():
            self._asked.pop(env, None)
            self.broken[env] = problem()

    def late(self, env: int) -> list[Fault]:
        """What nobody has been told of an environment that is about to be renewed; at most one fault."""
        return [self.untold.pop(env).of(env, int(self.steps[env]))] if env in self.untold else []

    def replacements(self) -> dict[int, int | None]:
        """Environments that are gone, and the seeds that `renew` is going to derive for them."""
        return {env: self._derived(env, self._incarnations[env] + 1) for env in self.broken}

    def renew(self, env: int, seed: int | None) -> int | None:
        """An environment that is gone is built anew; the seed it is reset with.

        Args:
            env: Which.
            seed: What the caller wants; None: it is derived.
        """
        self.broken.pop(env, None)
        self.moving.discard(env)
        self._incarnations[env] += 1
        self.steps[env] = 0
        return self._derived(env, self._incarnations[env]) if seed is None else seed

    def count(self, resets: Sequence[int]) -> None:
        """Everybody makes a step, but those that are reset."""
        self.steps += 1
        if resets:
            self.steps[list(resets)] -= 1

    def settled(self, ids: Ids) -> None:
        """These resets are answered."""
        if self.options:
            for env in ids.tolist():
                self.options.pop(env, None)

    def _derived(self, env: int, incarnation: int) -> int | None:
        last = self._seeds[env]
        return None if last is None else seeding.integer(last, "replacement", env, incarnation)
