"""Follows what a vector environment of `told_envs.Told` returns, and refuses what no environment can have said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from headrace.core.clock import MonotonicClock
from told_envs import ACTION, BUILD, EPISODE, INDEX, T

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)

BACKENDS: Mapping[str, Mapping[str, Any]] = {
    "serial": {"workers": 0},
    "worker": {"workers": 2, "threads_per_worker": 1},
    "threads": {"workers": 2, "threads_per_worker": 4},
    "split": {"workers": 1, "threads_per_worker": 1, "here": 2},
}
"""In this process; in two workers, in turn; in two workers, each environment in a thread of its own; half and half."""


@dataclass(slots=True)
class Cut:
    """One row that was told to be cut by a fault."""

    env: int
    fault: str
    message: str
    step: int


@dataclass(slots=True)
class Answer:
    """One row, without what is told about it."""

    obs: Any
    reward: float
    ended: bool
    final: Any


@dataclass(slots=True)
class Seen:
    """What is known of one environment."""

    obs: Any = None
    """The newest observation that came from it."""
    over: bool = False
    """Whether its episode has ended, or was cut, so that it has to begin anew."""
    replaced: bool = False
    """Whether the next observation comes from another object than the last."""
    transitions: int = 0
    episodes: int = 0
    builds: list[int] = field(default_factory=list)


class Follower:
    """Checks every row; raises AssertionError at the first that is not what its environment did.

    Args:
        count: Environments.
        mode: The autoreset mode.
        limit: Steps of an episode.
    """

    def __init__(self, count: int, mode: AutoresetMode, limit: int = 7) -> None:
        self.envs = [Seen() for _ in range(count)]
        self.cuts: list[Cut] = []
        """Rows that no environment has made."""
        self.mended: list[Cut] = []
        """Faults in a reset, which a replacement has made good: the row is true."""
        self.asked = False
        """Whether replacements may have been asked for something, and were reset for that, before their first episode."""
        self._mode, self._limit = mode, limit

    def began(self, reset: tuple[Any, Mapping[str, Any]], env_ids: Sequence[int] | None = None) -> None:
        """What a reset returned, [N, 5] and infos; or the rows of the named environments out of it."""
        observations, infos = reset
        told = cuts_in(infos, range(len(self.envs)))
        for env in range(len(self.envs)) if env_ids is None else env_ids:
            self._mend(told.pop(env, None))
            self._begin(env, observations[env])
        assert not told, f"told of environments that were not reset: {told}"

    def stepped(self, actions: Any, result: Sequence[Any], valid: Any) -> None:
        """What ``step(actions)`` of the whole vector returned."""
        self.received(range(len(self.envs)), actions, result, valid)

    def received(self, env_ids: Sequence[int], actions: Any, result: Sequence[Any], valid: Any) -> None:
        """What some environments returned, row by row; ``infos`` is as long as the vector."""
        observations, rewards, terminations, truncations, infos = result
        assert rewards.dtype == np.float64
        assert (terminations.dtype, truncations.dtype, np.asarray(valid).dtype) == (np.bool_,) * 3
        told = cuts_in(infos, env_ids)
        for row, env in enumerate(env_ids):
            assert not terminations[row], "Told never terminates"
            answer = Answer(observations[row], float(rewards[row]), bool(truncations[row]), final_obs(infos, row))
            if valid[row]:
                begins = self._mode is AutoresetMode.NEXT_STEP and self.envs[env].over
                assert begins or env not in told, f"environment {env} is valid and cut: {told[env]}"
                self._mend(told.pop(env, None))
                self._follow(env, int(actions[row]), answer)
            else:
                assert env in told, f"environment {env} is not valid, and nobody says why"
                self.cuts.append(told.pop(env))
                self._cut(env, answer)
        assert not told, f"told of environments that are not among the results: {told}"

    @property
    def over(self) -> Any:
        """Which have to be reset by the caller, [N]."""
        return np.array([seen.over for seen in self.envs])

    def _mend(self, cut: Cut | None) -> None:
        if cut is not None:
            self.mended.append(cut)
            self.envs[cut.env].replaced = True

    def _begin(self, env: int, obs: Any) -> None:
        seen = self.envs[env]
        assert obs[INDEX] == env, f"row {env} holds an observation of environment {obs[INDEX]:g}"
        assert (obs[T], obs[ACTION]) == (0, 0), f"environment {env} begins with {obs}"
        if seen.obs is not None:
            same = obs[BUILD] == seen.obs[BUILD]
            assert same != seen.replaced, f"environment {env} was{'' if seen.replaced else ' not'} replaced: {obs}"
            assert obs[EPISODE] == (seen.obs[EPISODE] + 1 if same else self.asked)
        if not seen.builds or seen.builds[-1] != obs[BUILD]:
            seen.builds.append(int(obs[BUILD]))
        seen.obs, seen.over, seen.replaced = np.array(obs), False, False

    def _follow(self, env: int, action: int, answer: Answer) -> None:
        seen = self.envs[env]
        if seen.over:
            assert self._mode is AutoresetMode.NEXT_STEP, f"environment {env} goes on after its end"
            assert (answer.reward, answer.ended) == (0.0, False)
            self._begin(env, answer.obs)
            return
        begins = self._mode is AutoresetMode.SAME_STEP and answer.ended
        last = answer.final if begins else answer.obs
        expected = [env, seen.obs[BUILD], seen.obs[EPISODE], seen.obs[T] + 1, action]
        assert list(last) == expected, f"after {list(seen.obs)} and action {action} comes {list(last)}"
        assert answer.reward == action
        assert answer.ended == (last[T] == self._limit)
        seen.transitions += 1
        seen.episodes += answer.ended
        seen.obs, seen.over = np.array(last), answer.ended
        if begins:
            self._begin(env, answer.obs)

    def _cut(self, env: int, answer: Answer) -> None:
        seen = self.envs[env]
        assert (answer.reward, answer.ended) == (0.0, True), f"a cut row of environment {env}: {answer}"
        same_step = self._mode is AutoresetMode.SAME_STEP
        last = answer.final if same_step else answer.obs
        assert list(last) == list(seen.obs), f"a cut row shows {list(last)}, the last observation was {list(seen.obs)}"
        seen.over = seen.replaced = True
        if same_step:
            self._begin(env, answer.obs)


def final_obs(infos: Mapping[str, Any], row: int) -> Any:
    """The last observation of an episode that ended in this step; None if there is none."""
    return infos["final_obs"][row] if "final_obs" in infos and infos["_final_obs"][row] else None


def cuts_in(infos: Mapping[str, Any], env_ids: Sequence[int]) -> dict[int, Cut]:
    """Which environments are told to be cut in this step."""
    told = infos.get("headrace")
    if told is None:
        return {}
    return {
        env: Cut(env, str(told["fault"][row]), str(told["message"][row]), int(told["step"][row]))
        for row, env in enumerate(env_ids)
        if told["_fault"][row]
    }


def drive(envs: Any, follower: Follower, steps: int, *, seed: int | None = 0) -> None:
    """Reset, then step the whole vector; under DISABLED reset what is over."""
    count = envs.num_envs
    follower.began(envs.reset(seed=seed))
    for number in range(steps):
        actions = np.arange(count) + 1000 * (number % 90)
        follower.stepped(actions, envs.step(actions), envs.valid)
        over = follower.over
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and over.any():
            follower.began(envs.reset(options={"reset_mask": over}), np.flatnonzero(over).tolist())


def drive_ready(
    envs: Any, follower: Follower, rows: int, *, each: int = 0, seed: int | None = 0, timeout_s: float = 30.0
) -> None:
    """Step whichever environment is ready; under DISABLED reset what is over.

    Ends when so many rows have come in, and ``each`` environment has made so many transitions.
    """
    follower.began(envs.reset(seed=seed))
    clock, open_actions = MonotonicClock(), {}
    free, received = list(range(envs.num_envs)), 0
    due_s = clock.now() + timeout_s
    while (more := received < rows or min(seen.transitions for seen in follower.envs) < each) or open_actions:
        if free and more:
            actions = {env: 100 * (received % 900) + env for env in free}
            envs.send(np.array([actions[env] for env in free]), env_ids=free)
            open_actions |= actions
        result = envs.receive(min_envs=1, timeout_s=1.0)
        assert clock.now() < due_s, f"nothing came from {sorted(open_actions)}"
        free = [int(env) for env in result.env_ids]
        assert len(set(free)) == len(free)
        sent = [open_actions.pop(env) for env in free]
        columns = (result.observations, result.rewards, result.terminations, result.truncations, result.infos)
        follower.received(free, sent, columns, result.valid)
        received += len(free)
        over = follower.over
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and over.any() and not open_actions:
            follower.began(envs.reset(options={"reset_mask": over}), np.flatnonzero(over).tolist())
            free = list(range(envs.num_envs))
        elif envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            free = [env for env in free if not over[env]]


def drive_and_pair(envs: Any, actions: Any, *, transitions: int) -> list[list[tuple[int, int, float, bool]]]:
    """Per environment its first transitions as any learner would store them: observation, next, reward, end.

    Observations are of shape (1,). Works for all autoreset modes, by the rules of Gymnasium alone.
    """
    mode = envs.metadata["autoreset_mode"]
    found: list[list[tuple[int, int, float, bool]]] = [[] for _ in range(envs.num_envs)]
    obs, _ = envs.reset(seed=0)
    over = np.zeros(envs.num_envs, np.bool_)
    while min(map(len, found)) < transitions:
        then, rewards, terminations, truncations, infos = envs.step(actions)
        ends = terminations | truncations
        for env in np.flatnonzero(~over):
            last = final_obs(infos, env) if mode is AutoresetMode.SAME_STEP and ends[env] else then[env]
            found[env].append((int(obs[env, 0]), int(last[0]), float(rewards[env]), bool(ends[env])))
        over = ends if mode is AutoresetMode.NEXT_STEP else over
        obs = then
        if mode is AutoresetMode.DISABLED and ends.any():
            obs, _ = envs.reset(options={"reset_mask": ends})
    return [mine[:transitions] for mine in found]
