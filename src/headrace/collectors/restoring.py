"""Brings an environment back into the middle of an episode: the stored actions once more, from the stored seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core import seeding
from headrace.core.errors import EpisodeNotRestored
from headrace.core.specs import assemble, handed_over, leaves
from headrace.envs.agents import ParallelCopy
from headrace.envs.contract import ObservationCheck
from headrace.lanes.layout import STEP, steps_among
from headrace.telemetry.board import Activity, Slot

EPISODES_FILE = "running.npz"
"""Name of the file, in the record's folder, that holds the running episodes of a run that is being resumed."""
Episodes = Mapping[int, NDArray[np.void]]
"""Rows of the running episode of each lane that has one, from its reset on, and one more that holds the observation
the last row led to. None at all of a lane whose first rows are no longer kept."""


def save_episodes(path: Path, episodes: Episodes) -> None:
    """Write running episodes for the collectors that are to go on with them.

    Raises:
        OSError: They cannot be written.
    """
    raw = {str(lane): rows.view(np.uint8).reshape(len(rows), rows.itemsize) for lane, rows in episodes.items()}
    with path.open("wb") as file:
        np.savez(file, **raw)  # type: ignore[arg-type]  # its stub takes the names for keywords of its own


def load_episodes(path: Path, dtype: np.dtype[Any]) -> Episodes:
    """What `save_episodes` wrote."""
    with np.load(path) as raw:
        return {int(lane): raw[lane].view(dtype).reshape(-1) for lane in raw.files}


def bring_back(
    env: gymnasium.Env[Any, Any], rows: NDArray[np.void], lane: int, seed: int, check: ObservationCheck, slot: Slot,
    stopping: Callable[[], bool],
) -> None:  # fmt: skip
    """Repeat a lane's running episode, comparing everything the environment returns with what is stored, bit for bit.

    Args:
        env: Fresh.
        rows: See `Episodes`.
        lane: Which.
        seed: Of the run.
        check: Of the environment's observations.
        slot: The component's place on the board.
        stopping: Asked between steps; true leaves the environment where it is then, to be closed.

    Raises:
        EpisodeNotRestored: It did something else.
    """
    observation = leaves(env.observation_space, "obs")
    slot.enter(Activity.ENV_RESET, lane, 0)
    try:
        obs, _ = env.reset(seed=seeding.integer(seed, "environment", lane, int(rows[0]["episode"])))
        for step, row in enumerate(rows):
            found = check.check(obs, lane, step)
            for leaf in observation:
                _compare(lane, step, leaf.path, row[leaf.path], np.asarray(leaf.of(found), leaf.dtype))
            if step == len(rows) - 1 or stopping():
                return
            slot.enter(Activity.ENV_STEP, lane, step)
            slot.add("rows")  # a run that is at this for long does not stand still
            *returned, _ = env.step(_action(env.action_space, row))
            obs, reward, (terminated, truncated) = check.transition(returned, lane, step + 1)
            for name, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
                _compare(lane, step, name, row[name], np.asarray(value, row[name].dtype))
    except EpisodeNotRestored:
        raise
    except Exception as error:  # user code may raise anything; that too is something else than what is stored
        raise not_restored(lane, error=f"{type(error).__name__}: {error}") from error


def bring_back_agents(
    copy: ParallelCopy, rows: Mapping[int, NDArray[np.void]], first: int, seed: int, check: ObservationCheck, slot: Slot,
    stopping: Callable[[], bool],
) -> Mapping[int, Any]:  # fmt: skip
    """Repeat the running episode of a copy, comparing as `bring_back` does.

    Args:
        copy: Fresh.
        rows: See `Episodes`; of every agent, by its number, also of those that were not there.
        first: The first of the copy's lanes.
        seed: Of the run.
        check: Of the environment's observations.
        slot: The component's place on the board.
        stopping: Asked between steps; true leaves the copy where it is then, to be closed.

    Returns:
        First observations of agents that came with the last step, which no row holds.

    Raises:
        EpisodeNotRestored: It did something else.
    """
    steps = {agent: one[:-1][steps_among(one[:-1]["kind"])] for agent, one in rows.items()}
    count, episode = len(steps[0]), int(rows[0]["episode"][0])
    joined: Mapping[int, Any] = {}
    slot.enter(Activity.ENV_RESET, first, 0)
    try:
        stay = dict(copy.reset(seeding.integer(seed, "environment", first, episode)))
        for step in range(count):
            if stopping():
                return {}
            there = {agent: one[step] for agent, one in steps.items() if one[step]["kind"] == STEP}
            _compare_agents(copy, first, step, there, {**stay, **joined}, check)
            slot.enter(Activity.ENV_STEP, first, step)
            slot.add("rows")
            turn = copy.step({agent: _action(copy.action_space, row) for agent, row in there.items()})
            for agent, row in there.items():
                _, reward, ended = check.transition(turn.returned[agent], first + agent, step + 1)
                for name, value in (("reward", reward), ("terminated", ended[0]), ("truncated", ended[1])):
                    _compare(first + agent, step, name, row[name], np.asarray(value, row[name].dtype))
            joined = turn.joined
            gone = {agent for agent, row in there.items() if row["terminated"] or row["truncated"]}
            stay = {agent: one[0] for agent, one in turn.returned.items() if agent not in gone}
        if not stay and not joined:
            raise not_restored(first, step=count, problem="its environment says that the episode is over")
        _compare_agents(copy, first, count, {agent: rows[agent][-1] for agent in stay}, stay, check)
    except EpisodeNotRestored:
        raise
    except Exception as error:  # user code may raise anything; that too is something else than what is stored
        raise not_restored(first, error=f"{type(error).__name__}: {error}") from error
    return joined


def _compare_agents(
    copy: ParallelCopy, first: int, step: int, rows: Mapping[int, np.void], seen: Mapping[int, Any],
    check: ObservationCheck,
) -> None:  # fmt: skip
    """Whether the agents that are there are those that were, and see what they saw."""
    if rows.keys() != seen.keys():
        raise not_restored(first, step=step, field="agents", stored=sorted(rows), found=sorted(seen))
    for agent, row in rows.items():
        lane = first + agent
        found = check.check(seen[agent], lane, step)
        for leaf in leaves(copy.observation_space, "obs"):
            _compare(lane, step, leaf.path, row[leaf.path], np.asarray(leaf.of(found), leaf.dtype))


def _action(space: spaces.Space[Any], row: np.void) -> Any:
    parts = {leaf.path: handed_over(row[leaf.path]) for leaf in leaves(space, "action")}
    return assemble(space, parts, "action")


def _compare(lane: int, step: int, field: str, stored: Any, found: Any) -> None:
    if np.asarray(stored).tobytes() != found.tobytes():
        raise not_restored(lane, step=step, field=field, stored=stored, found=found)


def kept_rows(episodes: Episodes, lane: int) -> NDArray[np.void]:
    """Rows of the episode that is running in a lane.

    Raises:
        EpisodeNotRestored: They were not kept.
    """
    rows = episodes.get(lane)
    if rows is None or not len(rows):
        raise not_restored(lane, problem="its first rows are no longer kept")
    return rows


def not_restored(lane: int, **facts: object) -> EpisodeNotRestored:
    """The error that says so."""
    return EpisodeNotRestored(
        f"the episode that was running in lane {lane} could not be brought back by repeating its actions",
        lane=lane,
        **facts,
        fix="nothing is lost but its continuation: it is cut there; set checkpoint.restore_episodes = false for "
        "environments that are no function of their seed",
    )
