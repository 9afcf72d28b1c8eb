"""What led to a fault of an environment, as a file that `headrace.testing.reproduce` plays again.

The parent reads it out of the shared memory of the lanes, which outlives the process that died, whatever killed it.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core import seeding
from headrace.core.errors import EnvironmentRaised
from headrace.envs.building import environment_name
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import STEP
from headrace.lanes.replay import LaneBooks
from headrace.runtime.payloads import Basics
from headrace.supervision.spec import Exited
from headrace.telemetry.events import plain

_CALLS = frozenset({"construct", "reset", "step"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproducer:
    """One fault, with all that is needed to provoke it again. Its fields are the file's keys."""

    format: int = 1
    component: str
    incarnation: int
    lane: int
    episode: int
    call: str
    """construct, reset or step."""
    kind: str
    """raised, hang, signal or exit: how it showed itself."""
    what: str
    """The same in words."""
    error: str | None = None
    """``ValueError: tile 7``, if it was an exception and its own text is known."""
    exit_code: int = 0
    """Of the process; negative for a signal."""
    env: dict[str, Any]
    """The section ``env``."""
    construct_seed: int
    """What the global generators were seeded with before the environment was built."""
    seed: int
    """Given to ``reset()``."""
    global_seeds: list[tuple[int, int]]
    """(t, seed): what the global generators were seeded with before step t of the episode; t = -1: before its reset."""
    exact: bool
    """Whether these make an environment that draws from global generators repeat itself: it had a generator for itself,
    and the reset came first in its chunk."""
    actions: dict[str, list[Any]]
    """By leaf of the action space, one value a step; the last one is of the step that failed."""
    complete: bool
    """Whether the whole episode was still in the lane."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps of the episode, the failing one included."""
        return max((len(values) for values in self.actions.values()), default=0)


def reproducer(event: Exited, basics: Basics, block: LaneBlock, books: LaneBooks, streams: int) -> Reproducer | None:
    """What led to the end of a component, read before its rows are salvaged; None if no environment is to blame.

    An environment that broke its contract has been named with field and value; that needs no repeating. Of environments
    of many agents there is none yet.

    Args:
        event: Its end.
        basics: Of the run.
        block: The lanes.
        books: Theirs.
        streams: Incarnation of the random streams that the lane had; not that of the process in a session that goes on.
    """
    config, lane = basics.config, event.lane
    call = _call(event, books)
    if config.agents.count > 1 or call not in _CALLS or not 0 <= lane < block.geometry.lanes:
        return None
    begun = int(block.episodes_begun[lane])
    episode = begun if call != "step" else begun - 1
    actions = _actions(block, lane, episode) if call == "step" else {leaf.path: [] for leaf in block.geometry.action}
    steps = max((len(values) for values in actions.values()), default=0)
    before = books.transitions_before(lane, books.written(lane)) - (running_steps(block, lane) if call == "step" else 0)
    global_seeds, exact = _global_seeds(lane, basics, books, before, streams)
    kind, what = _kind(event)
    return Reproducer(
        component=event.id,
        incarnation=event.incarnation,
        lane=lane,
        episode=episode,
        call=call,
        kind=kind,
        what=what,
        error=_error(event),
        exit_code=event.exit_code,
        env=config.env.model_dump() | _factory(basics),
        construct_seed=seeding.integer(config.run.seed, "construct-global", lane, streams),
        seed=seeding.integer(config.run.seed, "environment", lane, episode),
        global_seeds=global_seeds,
        exact=exact and config.env.group_size == 1,
        actions=actions,
        complete=call != "step" or steps == running_steps(block, lane) + 1,
        versions=_versions(),
    )


def write_reproducer(folder: Path, found: Reproducer, number: int = 0) -> Path | None:
    """Write it as ``<component>-lane-<n>-<incarnation>.json``; None if the disk refuses.

    Args:
        folder: Where.
        found: What.
        number: Of the lane's faults in this incarnation, where it may have several; it follows in the name.
    """
    more = f".{number}" if number else ""
    path = folder / f"{found.component}-lane-{found.lane}-{found.incarnation}{more}.json"
    part = path.with_name(f"{path.name}.partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(plain(asdict(found))), encoding="utf-8")
        return part.replace(path)
    except OSError:
        return None


def _call(event: Exited, books: LaneBooks) -> str | None:
    if event.call != "raised":
        return event.call
    if not isinstance(event.error, EnvironmentRaised):
        return None
    if event.error.facts.get("phase") == "construct":
        return "construct"
    # A step that raised would have been the next transition; a reset comes between two.
    made = books.transitions_before(event.lane, books.written(event.lane))
    return "step" if event.step > made else "reset"


def _kind(event: Exited) -> tuple[str, str]:
    if event.stalled is not None:
        return "hang", event.stalled
    if event.error is not None:
        return "raised", event.error.what
    return ("signal" if event.exit_code < 0 else "exit"), event.how


def _error(event: Exited) -> str | None:
    found = None if event.error is None else event.error.facts.get("error")
    return None if found is None else str(found)


def running_steps(block: LaneBlock, lane: int) -> int:
    """Steps that were completed in the lane's running episode."""
    written = int(block.rows_written[lane])
    last = block.rows[lane, (written - 1) % block.geometry.ring_rows]
    runs = written > block.geometry.first_row and last["kind"] == STEP
    return int(last["t"]) + 1 if runs else 0


def _actions(block: LaneBlock, lane: int, episode: int) -> dict[str, list[Any]]:
    """Actions of the lane's running episode that are still there, and of the step that was not completed."""
    g = block.geometry
    written = int(block.rows_written[lane])
    # All but the row that is not complete; the ring has no room for more.
    pieces = block.pieces(lane, max(written - min(running_steps(block, lane), g.ring_rows - 1), g.first_row), written)
    unfinished = block.rows[lane, written % g.ring_rows : written % g.ring_rows + 1]
    found = {}
    for leaf in g.action:
        parts = [piece[leaf.path][piece["episode"] == episode] for piece in pieces]
        found[leaf.path] = np.concatenate([*parts, unfinished[leaf.path]]).tolist()
    return found


def _global_seeds(
    lane: int, basics: Basics, books: LaneBooks, before: int, streams: int
) -> tuple[list[tuple[int, int]], bool]:
    """Seeds of the chunks that the episode lies in, oldest first, and whether its reset came first in its chunk.

    Args:
        lane: Whose episode.
        basics: Of the run.
        books: Of the lanes.
        before: Transitions of the lane before the episode.
        streams: Incarnation of its random streams.
    """
    config = basics.config
    if config.env.workers:
        return [], False  # what an environment's own process draws from them, nobody seeds
    chunk, begun = books.chunk_begun(lane)
    found: list[tuple[int, int]] = []
    while True:
        seed = seeding.integer(config.run.seed, "global", lane // config.env.group_size, streams, chunk)
        found.insert(0, (begun - before if begun > before else -1, seed))
        if begun <= before or chunk == 0:
            return found, begun == before
        chunk, begun = chunk - 1, begun - config.collect.chunk_steps


def _factory(basics: Basics) -> dict[str, object]:
    """Where a callable that was handed over can be imported from, instead of what the section names."""
    if basics.env_factory is None:
        return {}
    return {"id": None, "factory": environment_name(basics.config.env, basics.env_factory)}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("headrace", "gymnasium", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
            found[name] = "not installed"
    return found
