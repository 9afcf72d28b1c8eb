"""Brings an environment back into the middle of an episode: the stored actions once more, from the stored seed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace.core import seeding
from headrace.core.errors import EpisodeNotRestored
from headrace.core.specs import assemble
from headrace.envs.contract import ObservationCheck
from headrace.lanes.lane import LaneBlock
from headrace.telemetry.board import Activity, Slot


def bring_back(
    env: gymnasium.Env[Any, Any], block: LaneBlock, lane: int, seed: int, check: ObservationCheck, slot: Slot
) -> None:
    """Repeat a lane's running episode, comparing everything the environment returns with what is stored, bit for bit.

    Args:
        env: Fresh.
        block: The lanes; the last row of this one is of kind STEP.
        lane: Which.
        seed: Of the run.
        check: Of the environment's observations.
        slot: The component's place on the board.

    Raises:
        EpisodeNotRestored: It did something else, or the episode's first rows are gone.
    """
    rows = _episode(block, lane)
    leaves, episode = block.geometry.observation, int(rows[0]["episode"])
    slot.enter(Activity.ENV_RESET, lane, 0)
    try:
        obs, _ = env.reset(seed=seeding.integer(seed, "environment", lane, episode))
        for step, row in enumerate(rows):
            found = check.check(obs, lane, step)
            for leaf in leaves:
                _compare(lane, step, leaf.path, row[leaf.path], np.asarray(leaf.of(found), leaf.dtype))
            if step == len(rows) - 1:
                return
            slot.enter(Activity.ENV_STEP, lane, step)
            parts = {leaf.path: np.array(row[leaf.path]) for leaf in block.geometry.action}
            *returned, _ = env.step(assemble(env.action_space, parts, "action"))
            obs, reward, (terminated, truncated) = check.transition(returned, lane, step + 1)
            for name, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
                _compare(lane, step, name, row[name], np.asarray(value, row[name].dtype))
    except EpisodeNotRestored:
        raise
    except Exception as error:  # user code may raise anything; that too is something else than what is stored
        raise _not_restored(lane, error=f"{type(error).__name__}: {error}") from error


def _episode(block: LaneBlock, lane: int) -> Any:
    """Rows of the running episode, and the one that holds the observation they led to; a copy."""
    stop = int(block.rows_written[lane])
    last = block.rows[lane, (stop - 1) % block.geometry.ring_rows]
    start = stop - 1 - int(last["t"])
    oldest = int(block.resident_from[lane])
    if start < oldest:
        raise _not_restored(lane, problem=f"its first {oldest - start:,} rows have been evicted from the replay")
    return np.concatenate([piece.copy() for piece in block.pieces(lane, start, stop + 1)])


def _compare(lane: int, step: int, field: str, stored: Any, found: Any) -> None:
    if np.asarray(stored).tobytes() != found.tobytes():
        raise _not_restored(lane, step=step, field=field, stored=stored, found=found)


def _not_restored(lane: int, **facts: object) -> EpisodeNotRestored:
    return EpisodeNotRestored(
        f"the episode that was running in lane {lane} could not be brought back by repeating its actions",
        lane=lane,
        **facts,
        fix="nothing is lost but its continuation: it is cut there; set checkpoint.restore_episodes = false for "
        "environments that are no function of their seed",
    )
