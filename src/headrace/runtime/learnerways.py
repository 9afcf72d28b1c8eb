"""With how many threads, in which precision, and by which loops the learner of a run is the fastest here: each way is timed in a real run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.runtime.advisor import SAME, Plan
from headrace.runtime.config import ExperimentConfig, load_config
from headrace.runtime.measuring import costs_of
from headrace.runtime.planning import Figures, measure


@dataclass(frozen=True, slots=True)
class Way:
    """How a learner works, and what an update takes it."""

    threads: int
    precision: str
    update_s: float | None = None
    """None: it was not timed."""
    why_not: str | None = None
    compiled: bool = False

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{threads}, {self.precision}{', compiled' if self.compiled else ''}"

    @property
    def changes(self) -> dict[str, object]:
        """The keys of the configuration that make it."""
        return {"learn.threads": self.threads, "learn.precision": self.precision, "learn.compiled": self.compiled}


def ways(config: ExperimentConfig, cores: int) -> Iterator[tuple[Way, ExperimentConfig]]:
    """Every way that the configuration allows, one thread and float32 first; never more threads than cores."""
    threads = [*(2**power for power in range(cores.bit_length()) if 2**power < cores), cores]
    possible = [Way(count, precision) for precision in ("float32", "bfloat16") for count in threads]
    for way in (*possible, Way(1, "float32", compiled=True)):  # which uses one thread, however many there are
        try:
            yield way, load_config(config, way.changes)
        except ConfigError:  # of an algorithm that is not learned in it
            continue


def timed(
    config: ExperimentConfig,
    cores: int,
    seconds: float,
    folder: Path,
    say: Callable[[str], None],
    timing: Callable[[ExperimentConfig, float, Path], Figures] = measure,
) -> list[Way]:
    """Time each way in a short run under ``inline``.

    Args:
        config: Of the run.
        cores: That may be used.
        seconds: Of training, of each.
        folder: Where the runs are kept.
        say: Told what is done.
        timing: Times a run.
    """
    found = []
    for number, (way, changed) in enumerate(ways(config, cores)):
        say(f"timing the learner with {way} for {seconds:.3g} s")
        place = folder / f"learner-{number}"
        place.mkdir()
        figures = timing(changed, seconds, place)
        if figures.values is None:
            error = str(figures.summary["error"]).splitlines()[0]
            found.append(replace(way, why_not=error))
        else:
            lanes = config.env.group_size // config.agents.count
            found.append(replace(way, update_s=costs_of(figures.values, lanes).update_s))
    return found


def best(found: Sequence[Way], plan: Plan, cores: int) -> Way | None:
    """The fastest that leaves every collector of a plan a core; of those that are as good the first. None: none was timed."""
    spare = max(1, cores - (plan.collectors if plan.schedule == "async" else 0))
    known = [(way, way.update_s) for way in found if way.update_s is not None and way.threads <= spare]
    if not known:
        return None
    fastest = min(update_s for _, update_s in known)
    return next(way for way, update_s in known if update_s * SAME <= fastest)
