"""What is not stored: stacks of frames, next observations and n-step returns, from windows of rows.

One stream of rows is stored per lane; everything else follows from ``t`` and ``kind``. Acting and learning call
the same functions, so the stack a policy acted on is the stack it is trained on. Letters: B batch,
W rows of a window, S frames of a stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.algorithms.base import Transitions
from headrace.core.errors import UnsupportedSpace
from headrace.core.specs import Leaf
from headrace.lanes.layout import STEP


def stack(frames: NDArray[Any], t: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """The frames of each row's episode, oldest first; before its first frame, the first is repeated.

    Args:
        frames: [B, S, ...] one field of S neighbouring rows, the row itself last.
        t: [B] step in the episode of the row itself.

    Returns:
        [B, S, ...]: place ``S - 1 - j`` holds the frame of row ``i - min(j, t)``.
    """
    depth = frames.shape[1]
    back = np.minimum(np.arange(depth - 1, -1, -1), t[:, None])  # [B, S]
    stacked: NDArray[Any] = frames[np.arange(len(frames))[:, None], depth - 1 - back]
    return stacked


def observe(rows: NDArray[np.void], leaves: Sequence[Leaf], t: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
    """Observations of rows, stacked where more than one row is given.

    Args:
        rows: [B, S] neighbouring rows, the row itself last.
        leaves: Of the observation space.
        t: [B] step in the episode of the row itself.

    Returns:
        Per leaf [B, ...] if S is 1, else [B, S, ...].
    """
    if rows.shape[1] == 1:
        return {leaf.path: rows[leaf.path][:, 0] for leaf in leaves}
    return {leaf.path: stack(rows[leaf.path], t) for leaf in leaves}


def transitions(
    windows: NDArray[np.void], observation: Sequence[Leaf], action: Sequence[Leaf], frame_stack: int, gamma: float
) -> Transitions:
    """Transitions of windows of rows.

    Args:
        windows: [B, S + n] neighbouring rows: the transition's stack ends at place S - 1, n steps follow.
            That row must be of kind STEP.
        observation: Leaves of the observation space.
        action: Leaves of the action space.
        frame_stack: S.
        gamma: Discount per step.

    Returns:
        Transitions whose return covers n steps or fewer, where the stretch ends. A terminated end has
        discount 0; a truncated or cut one bootstraps from the observation it ended with.
    """
    at = frame_stack - 1
    steps = windows.shape[1] - frame_stack
    first = windows[:, at]
    if steps == 1:
        reward: NDArray[np.float64] = first["reward"]
        discount = ~first["terminated"] * gamma
        following = windows[:, 1:]
        t_next = first["t"] + 1 if frame_stack > 1 else first["t"]  # without a stack nobody asks
    else:
        rows = np.arange(len(windows))
        reward, taken = _returns(windows[:, at:], gamma)
        last = windows[rows, at + taken - 1]
        discount = np.where(last["terminated"], 0.0, gamma**taken)
        following = windows[rows[:, None], taken[:, None] + np.arange(frame_stack)]
        t_next = last["t"] + 1
    return Transitions(
        obs=observe(windows[:, :frame_stack], observation, first["t"]),
        action={leaf.path: first[leaf.path] for leaf in action},
        reward=reward,
        discount=discount,
        next_obs=observe(following, observation, t_next),
    )


def _returns(windows: NDArray[np.void], gamma: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """N-step returns of windows [B, 1 + n] that begin at the transition, and the steps each covers."""
    steps = windows.shape[1] - 1
    kind, rewards = windows["kind"], windows["reward"]
    total = np.zeros(len(windows))
    taken = np.zeros(len(windows), np.int64)
    alive = np.ones(len(windows), bool)
    for k in range(steps):
        alive &= kind[:, k] == STEP
        total += np.where(alive, rewards[:, k], 0.0) * gamma**k
        taken += alive
    return total, taken


def stacked_space(space: spaces.Space[Any], depth: int) -> spaces.Space[Any]:
    """The space a policy sees when ``depth`` frames are stacked: every leaf gains a first axis of that length.

    Raises:
        UnsupportedSpace: A part that is neither an array nor a Dict or Tuple of arrays.
    """
    if depth == 1:
        return space
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: stacked_space(inner, depth) for key, inner in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(inner, depth) for inner in space.spaces])
    if isinstance(space, spaces.Box):
        low, high = (np.repeat(bound[None], depth, axis=0) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)
    if isinstance(space, spaces.Discrete):
        start = np.full(depth, space.start)
        return spaces.MultiDiscrete(np.full(depth, space.n), dtype=space.dtype.type, start=start)
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (np.repeat(part[None], depth, axis=0) for part in (space.nvec, space.start))
        return spaces.MultiDiscrete(nvec, dtype=space.dtype.type, start=start)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary((depth, *space.shape))
    raise UnsupportedSpace(
        "frames of this observation space cannot be stacked", found=str(space), fix="set env.frame_stack = 1"
    )
