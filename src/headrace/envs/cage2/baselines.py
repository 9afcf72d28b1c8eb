"""Policies to compare with, for many copies at once: observations [N, 52 or more] to actions [N]."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.envs.cage2 import network as net
from headrace.envs.cage2 import rules
from headrace.envs.cage2.env import OBSERVATION_BITS
from headrace.envs.cage2.vector import CAGE2Vector

Policy = Callable[[NDArray[np.uint8]], NDArray[np.int64]]

_SLEEP = net.action_of(net.SLEEP)
_RESTORES = np.array([net.action_of(net.RESTORE, host) for host in range(len(net.HOSTS))])


def asleep(seen: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Do nothing."""
    return np.full(len(seen), _SLEEP)


def at_random(seen: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.int64]:
    """Every action as likely as the others."""
    return rng.integers(0, len(net.ACTIONS), len(seen))


def greedy_restore(seen: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Restore a host that is believed compromised, a privileged one first, then in the order of the hosts; else sleep.

    Never User0: red begins there and stays.
    """
    bits = seen[:, :OBSERVATION_BITS].reshape(len(seen), -1, 4)
    belief = bits[:, :, 2] + 2 * bits[:, :, 3]
    worth = np.where(belief >= rules.BELIEVED_USER, belief, 0)
    worth[:, net.FOOTHOLD] = 0
    worst = worth.argmax(axis=1)  # the first of equals
    return np.where(worth.max(axis=1) > 0, _RESTORES[worst], _SLEEP)


POLICIES: Final[tuple[str, ...]] = ("random", "asleep", "greedy restore")


def policy(name: str, rng: np.random.Generator) -> Policy:
    """One of `POLICIES` by name; ``rng`` is for those that draw."""
    found: dict[str, Policy] = {
        "random": partial(at_random, rng=rng),
        "asleep": asleep,
        "greedy restore": greedy_restore,
    }
    return found[name]


def episode_returns(act: Policy, *, episodes: int, seed: int = 0, **settings: Any) -> NDArray[np.float64]:
    """Returns of episodes, [episodes], episode ``i`` with seed ``seed + i``; settings as `CAGE2Vector`'s, with an end."""
    env = CAGE2Vector(episodes, **settings)
    seen, _ = env.reset(seed=seed)
    while not env.over:
        seen = env.step(act(seen))[0]
    return env.episode_returns
