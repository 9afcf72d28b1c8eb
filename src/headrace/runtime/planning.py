"""Real short runs behind a plan: one that is timed inside, and one of each plan that is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import ConfigError
from headrace.runtime.advisor import Plan, configured
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.experiment import run_experiment
from headrace.runtime.load import Load
from headrace.runtime.measuring import FIGURES_FILE, TARGET
from headrace.runtime.progress import Progress
from headrace.runtime.rehearsal import Pace
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board

_ENDLESS = 10**12
_WARM = 0.25
"""Part of a run's time after which counting begins."""
_LEAST_CHANGES = 2

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a timed run came to; None in place of the figures if it failed, as its summary tells."""

    summary: Summary
    values: Mapping[str, Any] | None
    busy_cores: float
    """That other work had meanwhile."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a real run of a plan came to."""

    summary: Summary
    pace: Pace | None
    """None: too little happened."""
    start_s: float | None
    """Until the first rows were there."""
    busy_cores: float
    """That other work had meanwhile."""


def short_run(config: ExperimentConfig, seconds: float) -> dict[str, object]:
    """Changes that make a run which does from its beginning what a long one does most of the time."""
    rounds = config.env.lanes * config.collect.chunk_steps
    return {
        "run.steps": _ENDLESS,
        "run.run_duration_s": seconds,
        **({} if config.on_policy else {"replay.learning_starts": min(config.replay.learning_starts, rounds)}),
        "collect.random_steps": 0,
        "evaluation.every_steps": 0,
        "evaluation.episodes": 0,
        "evaluation.target": None,
        "checkpoint.enabled": False,
    }


def measure(config: ExperimentConfig, seconds: float, folder: Path) -> Figures:
    """Run it under ``inline`` for so long, each piece of its work timed.

    Args:
        config: Of the run.
        seconds: Of training.
        folder: Where the run is kept.

    Raises:
        ConfigError: It cannot be run so.
    """
    further = {**short_run(config, seconds), "replay.free_running": False, "supervision.learner_death": "fail"}
    short = configured(config, Plan("inline"), further)
    if short is None:
        raise ConfigError(
            "this configuration cannot be run under inline, and that is where everything is timed",
            schedule=config.run.schedule,
            fix="see what headrace train says to it with --schedule inline",
        )
    before = Load.now()
    with RunDirectory.create(folder / "timed", short) as place:
        summary = run_experiment(short, place, learner_target=TARGET)
    file = place.path / FIGURES_FILE
    values = json.loads(file.read_text()) if file.is_file() and _completed(summary) else None
    return Figures(summary, values, Load.now().others_since(before))


def check(config: ExperimentConfig, plan: Plan, seconds: float, folder: Path) -> Checked:
    """Run a plan for real for so long, and look at its counters.

    Args:
        config: Of the run.
        plan: That its configuration allows.
        seconds: Of training.
        folder: Where the run is kept.
    """
    short = configured(config, plan, short_run(config, seconds))
    assert short is not None, "only plans that it allows are checked"
    name, before = f"{plan.schedule}-{plan.collectors}", Load.now()
    with RunDirectory.create(folder / name, short) as place, Readings(place.board_file) as readings:
        summary = run_experiment(short, place, readings.on_progress)
    return Checked(summary, readings.pace(_WARM * seconds), readings.start_s, Load.now().others_since(before))


def _completed(summary: Summary) -> bool:
    return bool(summary["outcome"] == "completed")


@dataclass(frozen=True, slots=True)
class Reading:
    """The learner's counters at a moment."""

    at_s: float
    env_steps: int
    updates: int


@dataclass(slots=True)
class Readings:
    """Reads a run's counters now and then, while the run itself goes on in this process."""

    board_file: Path
    clock: Clock = field(default_factory=MonotonicClock)
    found: list[Reading] = field(default_factory=list)
    """Whenever they had changed."""
    begun_s: float = 0.0
    _board: Board | None = None

    def __enter__(self) -> Self:
        self.begun_s = self.clock.now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.__exit__(kind, error, trace)

    def on_progress(self, progress: Progress) -> None:
        """The supervisor calls this a few times a second."""
        if self._board is None:
            self._board = Board.open(self.board_file)
        counters = self._board.read("learner").counters
        steps, updates = counters["env_steps"], counters["updates"]
        if steps and (not self.found or steps > self.found[-1].env_steps):
            self.found.append(Reading(self.clock.now(), steps, updates))

    @property
    def start_s(self) -> float | None:
        """Until the first rows were there."""
        return self.found[0].at_s - self.begun_s if self.found else None

    def pace(self, warm_s: float) -> Pace | None:
        """How fast it got on, from the first change after so many seconds to the last one; None without two."""
        learning = [one for one in self.found if one.updates]
        late = [one for one in learning if one.at_s - learning[0].at_s >= warm_s]
        kept = late if len(late) >= _LEAST_CHANGES else learning
        if len(kept) < _LEAST_CHANGES:
            return None
        first, last = kept[0], kept[-1]
        lasted_s = last.at_s - first.at_s
        return Pace((last.env_steps - first.env_steps) / lasted_s, (last.updates - first.updates) / lasted_s)
