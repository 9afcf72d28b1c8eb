"""Whole runs in tests: small, from one warm fork server, with the stored rows kept for inspection."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core import seeding
from headrace.ipc.forkserver import ForkServer
from headrace.lanes.layout import CUT, FINAL, LOST, STEP
from headrace.runtime import experiment
from headrace.runtime.api import Run
from headrace.telemetry.events import read_events

SMALL: Mapping[str, object] = {
    "run.steps": 400,
    "env.lanes": 6,
    "replay.learning_starts": 100,
    "replay.capacity": 20_000,
    "collect.chunk_steps": 8,
    "collect.random_steps": 100,
    "evaluation.episodes": 0,
    "evaluation.every_steps": 0,
    "algorithm.batch_size": 32,
    "algorithm.actor.hidden": [16],
    "algorithm.critic.hidden": [16],
}
"""A run of a second or less, once its processes are up."""
PPO: Mapping[str, object] = {
    "algorithm.name": "ppo",
    "algorithm.batch_size": 24,
    "algorithm.epochs": 2,
    "algorithm.network": {"actor": {"hidden": [8]}, "critic": {"hidden": [8]}},
}
"""Settings of a small on-policy run, for what `SMALL` says of TD3."""

SAC: Mapping[str, object] = {
    "algorithm.name": "sac",
    "algorithm.batch_size": 32,
    "algorithm.actor.hidden": [16],
    "algorithm.critic.hidden": [16],
    "algorithm.temperature.lr": 1e-3,
}
"""Settings of a small run of SAC, for what `SMALL` says of TD3."""
FIXED_SAC: Mapping[str, object] = {key: SAC[key] for key in SAC if key != "algorithm.temperature.lr"} | {
    "algorithm.temperature.kind": "fixed"
}
"""As `SAC`, with a temperature that is not learned."""
SBX: Mapping[str, object] = {"algorithm.rule": "sbx", "algorithm.policy_delay": 3}
"""TD3 by another rule: its targets move in two updates of three without the actor."""


def small(**settings: Any) -> dict[str, object]:
    """`SMALL` with these settings, keys with ``__`` for the dot; of the algorithm only theirs where they name one."""
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    without = ["algorithm."] if "algorithm.name" in dotted else []
    if dotted.get("algorithm.name") in ("ppo", "vtrace"):
        without += ["replay.", "collect.random_steps"]
    return {key: value for key, value in SMALL.items() if not key.startswith(tuple(without))} | dotted


_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


def replace_run(place: Path, elsewhere: Path, *folders: str) -> None:
    """Move a run away, and put a directory in its place that another run might hold, with these folders.

    It is made beforehand, and where the system can both change places in one step: a component of the run that looks in between
    would find, and tell, that there is less of it.
    """
    other = elsewhere.with_name("another")
    for name in folders:
        (other / name).mkdir(parents=True)
    (other / "lock").touch()
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    if exchange is not None and exchange(_HERE, bytes(place), _HERE, bytes(other), _EXCHANGE) == 0:
        other.rename(elsewhere)
        return
    place.rename(elsewhere)
    other.rename(place)


def dawdling(gate: Path, inner: str, slow_from: int, **kwargs: object) -> dict[str, Any]:
    """Arguments of `Runs.train`: an environment that is slow from this step of its own on until ``gate`` is there."""
    told = {"inner": inner, "gate": str(gate), "slow_from": slow_from}
    return {"env": "run_envs:dawdling", "kwargs": told | kwargs}


class LentServer:
    """A fork server that stays when its borrower closes it."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def close(self) -> None:
        """Its owner closes it."""


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has imported torch: a run from it starts in a tenth of the time."""
    log = tmp_path_factory.mktemp("forkserver") / "forkserver.log"
    modules = (
        "headrace.runtime.training",
        "headrace.algorithms.td3",
        "headrace.algorithms.sac",
        "headrace.algorithms.dqn",
        "torch",
        "run_envs",
    )
    with ForkServer(modules, {"OMP_NUM_THREADS": "1"}, log) as server:
        server._read_link()
        yield server


class Runs:
    """Trains in small; keeps the rows of the last run, which would go with its memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.rows: list[np.ndarray] = []
        """Per lane, every row up to the newest complete one, and whatever became of it."""

    def train(self, env: str = "run_envs:make", *, kwargs: Mapping[str, object] | None = None, **settings: Any) -> Run:
        """A run of an environment factory or id; settings are keys with ``__`` for the dot."""
        self._number += 1
        place = "env.id" if "-v" in env else "env.factory"
        return headrace.train(
            run_dir=self._folder / f"run-{self._number}",
            settings={place: env, "env.kwargs": dict(kwargs or {}), **small(**settings)},
        )

    def keep(self, books: Any) -> None:
        """Copy the rows of a run that has just ended."""
        block = books._block
        first = block.geometry.first_row
        self.rows = [
            np.concatenate([piece.copy() for piece in block.pieces(lane, first, int(block.rows_written[lane]))])
            for lane in range(block.geometry.lanes)
        ]

    def lend(self, server: ForkServer, patch: pytest.MonkeyPatch) -> None:
        """Start the processes of these runs from a server that stays, and keep their rows."""
        audit = experiment.audit

        def kept_and_audited(books: Any, lanes: int) -> dict[str, Any]:
            if books is not None:
                self.keep(books)
            return audit(books, lanes)

        @contextlib.contextmanager
        def lent(*_: object) -> Iterator[LentServer]:
            yield LentServer(server)

        patch.setattr(experiment, "audit", kept_and_audited)
        patch.setattr(experiment, "_fork_server", lent)


@pytest.fixture
def runs(tmp_path: Path, warm_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Small runs from the warm fork server."""
    kept = Runs(tmp_path)
    kept.lend(warm_server, monkeypatch)
    return kept


def assert_books(run: Run) -> None:
    """The equations of the books, from the totals and for every lane."""
    books = run.summary["books"]
    assert books["balanced"], books
    for book in (books, *books["lanes"]):
        rejected = book["rejected"]
        rejected = sum(rejected.values()) if isinstance(rejected, Mapping) else rejected
        assert book["produced"] == book["committed"] + book["salvaged"] + rejected + book["in_flight"], book
        left = book["evicted"] + book.get("consumed", 0)
        assert book["committed"] + book["salvaged"] == book["resident"] + left, book
    assert run.summary["env_steps"] == books["committed"] + books["salvaged"]


def assert_gapless(rows: np.ndarray, lane: int, *, restarts: int = 0, seed: int = 0) -> None:
    """Rows of `run_envs.Traced`: every episode and step of the lane once, in order, each with its own observation.

    A collector that dies between a reset and the first step after it leaves an episode without a row, so as many
    numbers may be missing as there were restarts.
    """
    assert rows["transitions"][rows["kind"] == STEP].tolist() == list(range(1, int((rows["kind"] == STEP).sum()) + 1))
    ends = np.flatnonzero(np.isin(rows["kind"], (FINAL, CUT, LOST)))
    episodes = [episode for episode in np.split(rows, ends + 1) if len(episode)]
    numbers = [int(episode["episode"][0]) for episode in episodes]
    assert numbers == sorted(set(numbers))
    assert not numbers or numbers[-1] + 1 - len(numbers) <= restarts
    for number, episode in zip(numbers, episodes, strict=True):
        assert set(episode["episode"].tolist()) == {number}
        assert episode["t"].tolist() == list(range(len(episode)))
        told = [[seeding.integer(seed, "environment", lane, number), t] for t in range(len(episode))]
        assert episode["obs"].tolist() == told


def events(run: Run | Path, kind: str, component: str | None = None) -> list[dict[str, Any]]:
    """Events of a kind, oldest first."""
    path = run.path if isinstance(run, Run) else run
    found = read_events(path / "events.jsonl")
    return [event for event in found if event["kind"] == kind and component in (None, event["component"])]


def summary(run_dir: Path) -> dict[str, Any]:
    """What a run has left."""
    return dict(json.loads((run_dir / "summary.json").read_text()))
