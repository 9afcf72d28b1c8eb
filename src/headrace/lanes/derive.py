"""What is not stored: stacks of frames, next observations and n-step returns, from windows of rows.

One stream of rows is stored per lane; everything else follows from ``t`` and ``kind``. Acting and learning call
the same functions, so the stack a policy acted on is the stack it is trained on. Letters: B batch,
W rows of a window, S frames of a stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    return _padded(frames, t, frames.shape[1])


def _padded(frames: NDArray[Any], t: NDArray[np.integer[Any]], depth: int) -> NDArray[Any]:
    """A copy of frames [B, W, ...]: of the first ``depth`` places those before an episode's first frame repeat it.

    The row itself is at place ``depth - 1``, and ``t`` [B] is its step. Of the places behind it none is changed, so every
    ``depth`` neighbours up to the episode's end are the stack of the last one.
    """
    padded = frames.copy()
    young = np.flatnonzero(t < depth - 1)
    if len(young):
        begin = depth - 1 - t[young]
        places = np.maximum(np.arange(depth - 1), begin[:, None])  # [Y, S - 1]
        padded[young, : depth - 1] = frames[young[:, None], places]
    return padded


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
    at, steps = frame_stack - 1, windows.shape[1] - frame_stack
    first = windows[:, at]
    if steps == 1:
        ends = _Ends(first["reward"], ~first["terminated"] * gamma, np.zeros(0, np.int64), np.zeros(0, np.int64))
    else:
        ends = _ends(windows[:, at:], gamma)
    obs, next_obs = {}, {}
    for leaf in observation:
        frames = windows[leaf.path]
        if frame_stack == 1:
            obs[leaf.path], following = frames[:, 0], frames[:, steps]
        else:
            frames = _padded(frames, first["t"], frame_stack)
            obs[leaf.path], following = frames[:, :frame_stack], frames[:, steps:]
        if len(ends.early):
            following = following.copy()
            places = ends.taken[:, None] + np.arange(frame_stack)
            following[ends.early] = frames[ends.early[:, None], places].reshape(len(ends.early), *following.shape[1:])
        next_obs[leaf.path] = following
    return Transitions(obs, {leaf.path: first[leaf.path] for leaf in action}, ends.reward, ends.discount, next_obs)


class _Ends(NamedTuple):
    """What the steps of each window amount to."""

    reward: NDArray[np.float64]
    """[B] n-step returns."""
    discount: NDArray[np.float64]
    """[B] of what follows."""
    early: NDArray[np.int64]
    """[E] windows in which the episode ends before the n-th step."""
    taken: NDArray[np.int64]
    """[E] steps each of those covers."""


def _ends(windows: NDArray[np.void], gamma: float) -> _Ends:
    """Of windows [B, 1 + n] that begin at the transition.

    Few end early, so discounts are first those of whole ones.
    """
    steps = windows.shape[1] - 1
    kind, rewards, terminated = windows["kind"], windows["reward"], windows["terminated"]
    reward: NDArray[np.float64] = rewards[:, 0] + 0.0  # no -0.0, which a sum that begins with nothing never is
    whole = np.ones(len(windows), bool)
    for k in range(1, steps):
        whole &= kind[:, k] == STEP
        np.add(reward, rewards[:, k] * gamma**k, out=reward, where=whole)
    powers = gamma ** np.arange(steps + 1)
    discount = ~terminated[:, steps - 1] * powers[steps]
    early = np.flatnonzero(~whole)
    taken = (kind[early, :steps] == STEP).argmin(axis=1)  # the first that is none
    discount[early] = ~terminated[early, taken - 1] * powers[taken]
    return _Ends(reward, discount, early, taken)


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
