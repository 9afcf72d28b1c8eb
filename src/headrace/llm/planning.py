"""Real short runs behind `headrace plan` of a language-model configuration: one warm start, then one run of each way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.clock import MonotonicClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.llm.comparing import Tried, Way, at_work, steps_of, why_not
from headrace.llm.config import RLConfig
from headrace.llm.launch.launcher import launch
from headrace.llm.launch.starting import begin
from headrace.runtime.load import Load
from headrace.telemetry.board import Board
from headrace.telemetry.boardwatch import BoardWatch
from headrace.telemetry.looks import ALIVE

_LEFT_OUT = 1
"""Steps at the beginning that do not count: they also fill the pipeline."""
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What all the runs begin with."""

    checkpoint: str | None
    """For ``sft.checkpoint``."""
    steps: int
    """0: none was made."""
    took_s: float
    error: str | None = None
    exit_code: int = 0


def refuse(config: RLConfig, what: str = "headrace plan") -> None:
    """Refuse to make runs that are thrown away, where they would not be among themselves.

    Args:
        config: Of such a run.
        what: Makes them, for the message.

    Raises:
        ConfigError: It would load the weights of these runs into a server that others may be using.
    """
    if config.inference.backend == "external":
        raise ConfigError(
            f"{what} makes short runs, and inference.backend external would be given their weights, whoever else uses it",
            url=config.inference.url,
            fix='set inference.backend = "headrace" or "vllm" for it',
        )


def warm_start(config: RLConfig, folder: Path) -> WarmStart:
    """Make it once, with all its steps: how long games are, and what is filtered, depends on it.

    Raises:
        KeyboardInterrupt: It was interrupted, and has ended in order.
    """
    if not config.sft.steps_to_make:
        return WarmStart(config.sft.checkpoint, 0, 0.0)
    began_s = MonotonicClock().now()
    what = begin(config, folder / "warm-start", "plan", only_warm_start=True)
    with what.place:
        summary = launch(what)
    require_heard(summary)
    took_s = MonotonicClock().now() - began_s
    return WarmStart(
        str(what.place.path), config.sft.steps_to_make, took_s, summary["error"], int(summary["exit_code"])
    )


def short_config(config: RLConfig, way: Way, steps: int, start: WarmStart) -> RLConfig:
    """The configuration of a short run: ``steps`` that count, those left out before them, and those still in the pipeline after."""
    table: dict[str, Any] = config.model_dump()
    table["run"] |= {"schedule": way.schedule, "steps": _LEFT_OUT + steps + way.lag, "run_duration_s": None}
    table["orchestrator"] |= {"max_policy_lag": way.lag}
    # The first and the last version are always evaluated, which is outside of what counts: one game each.
    table["evaluation"] |= {"every_steps": 0, "problems": 1, "samples": 1}
    table["sft"] |= {"steps": 0, "checkpoint": start.checkpoint}
    table["checkpoint"] |= {"every_steps": 0}
    return RLConfig.model_validate(table)


def try_way(config: RLConfig, way: Way, steps: int, start: WarmStart, folder: Path) -> Tried:
    """Run it, and measure.

    Args:
        config: Of the run that is planned.
        way: How to run it.
        steps: Of the trainer that count.
        start: What it begins with.
        folder: Where the run is kept.

    Raises:
        KeyboardInterrupt: It was interrupted, and has ended in order.
    """
    reason = why_not(config, way)
    if reason is not None:
        return Tried(way, why_not=reason)
    last = _LEFT_OUT + steps
    before = Load.now()
    try:
        what = begin(
            short_config(config, way, steps, start), folder / str(way).replace(", ", "-").replace(" ", ""), "plan"
        )
        shares = Shares(_LEFT_OUT, last)
        with what.place, BoardWatch(what.place.board_file, _LOOK_S, shares.look, "headrace-plan-watch"):
            summary = launch(what)
    except HeadraceError as error:
        return Tried(way, why_not=error.what)
    require_heard(summary)
    others = Load.now().others_since(before)
    if summary["error"] is not None:
        return Tried(way, why_not=str(summary["error"]).splitlines()[0], busy_cores=others)
    lines = [json.loads(line) for line in what.place.metrics_file.read_text(encoding="utf-8").splitlines()]
    steps_s, times_s = steps_of(lines, _LEFT_OUT, last)
    lag = summary["policy_lag"]["mean"] or 0.0
    return Tried(way, steps_s, times_s, shares.of_all(), lag, None, others)


class Shares:
    """Who was at work, look by look.

    Args:
        first: Step of the trainer after which looks count.
        last: Step with which they end.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._counts: Counter[str] = Counter()

    def look(self, board: Board) -> None:
        """Take one."""
        alive = (view for view in board.read_all() if view.state in ALIVE)  # others show what they did last
        views = ((view.id, view.activity, view.counters["updates"]) for view in alive)
        found = at_work(views, self._first, self._last)
        if found is not None:
            self._counts[found] += 1

    def of_all(self) -> dict[str, float]:
        """Of the looks that counted; empty if there were none."""
        return {name: count / self._counts.total() for name, count in self._counts.most_common()}


def require_heard(summary: Mapping[str, Any]) -> None:
    """Whoever interrupts a run means the command.

    Raises:
        KeyboardInterrupt: The run was interrupted, and has ended in order.
    """
    if summary["outcome"] == "interrupted":
        raise KeyboardInterrupt
