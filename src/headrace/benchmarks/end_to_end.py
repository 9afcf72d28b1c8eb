"""Trainings to a target, ours beside peers': every seed on every side, and the rows that compare them.

One training after the other, seeds taking turns. Learning is a lottery over seeds: rows have medians, and the spread is
told. Who does not reach the target counts with the steps and seconds it was given.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.benchmarks.ours import training
from headrace.benchmarks.processes import SideFailedError, opened
from headrace.benchmarks.report import Row, compare, less_is_better
from headrace.benchmarks.sides import PLAIN, RLLIB, SAMPLE_FACTORY, SBX, ZOO, Found
from headrace.benchmarks.tasks import TASKS, Task
from headrace.core.errors import ConfigError

TO_TARGET = {"steps": "steps", "wall_s": "s", "updates_per_s": "updates/s"}
TO_THE_END = {"return": "return", "wall_s": "s", "updates_per_s": "updates/s"}
LESS_IS_BETTER = ("steps", "wall_s")
MODULES = {
    ZOO: "headrace.benchmarks.zoo",
    SBX: "headrace.benchmarks.zoo",
    PLAIN: "headrace.benchmarks.plain_training",
    SAMPLE_FACTORY: "headrace.benchmarks.sample_factory",
    RLLIB: "headrace.benchmarks.rllib",
}
_WITH_MUJOCO = "pip install 'PATH_OF_THE_CLONE[peers,mujoco]'"

Trainings = Mapping[str, Sequence[Found]]
"""What each side found, by its name, for every seed."""


class Comparison:
    """Trains one task after the other.

    Args:
        pythons: Interpreters that peers are looked for in, in this order; ours are run by this one.
        seeds: 0 and so on.
        steps: Of each training at most; None: as the task says.
        sides: Only these; empty: all there are.
        tell: Told what came of each training.
    """

    def __init__(
        self, pythons: Sequence[Path], seeds: int, steps: int | None, sides: Sequence[str], tell: Callable[[str], None]
    ) -> None:
        self._pythons, self._seeds, self._steps = pythons, seeds, steps
        self._sides, self._tell = sides, tell
        self.absent: dict[str, str] = {}
        """Side and task to the reason why it has no figures there."""

    def rows(self, name: str) -> list[Row]:
        """Each of ours beside each peer; nothing where ours are not there."""
        return list(rows(name, TASKS[name], self.trainings(name)))

    def trainings(self, name: str) -> dict[str, list[Found]]:
        """What each side found that was there to the end."""
        found: dict[str, list[Found]] = {side: [] for side in self._there(name)}
        for seed in range(self._seeds):
            for side, results in found.items():
                if f"{side}, {name}" in self.absent:
                    continue
                try:
                    told = self._train(name, side, seed)
                except SideFailedError as error:
                    self.absent[f"{side}, {name}"] = str(error)
                    continue
                results.append(told)
                self._tell(f"{name}, {side}, seed {seed}: {_in_words(told)}")
        return {side: results for side, results in found.items() if f"{side}, {name}" not in self.absent}

    def _there(self, name: str) -> list[str]:
        """Sides that are wanted, and of ours those that this version has; none if it has none."""
        task, ours = TASKS[name], []
        wanted = [side for side in (*task.ours, *task.peers) if not self._sides or side in self._sides]
        for side in (side for side in wanted if side in task.ours):
            try:
                training(task, task.ours[side])
                ours.append(side)
            except ConfigError as error:
                self.absent[f"{side}, {name}"] = error.what
        peers = [side for side in wanted if side in task.peers]
        return [*ours, *peers] if ours or self._sides else []

    def _train(self, name: str, side: str, seed: int) -> Found:
        task = TASKS[name]
        mine = side in task.ours
        request = {"side": side, "module": "headrace.benchmarks.ours" if mine else MODULES[side], "ours": mine,
                   "task": name, "named": side, "remedy": _WITH_MUJOCO if "mujoco" in task.needs else None}  # fmt: skip
        with opened([Path(sys.executable)] if mine else self._pythons, request) as process:
            told = process.ask({"seed": seed, "steps": self._steps}, task.limit_s)
            return {**told, "version": process.version, "wall_s": told["since_start_s"]}


def rows(name: str, task: Task, found: Trainings) -> Iterator[Row]:
    """Each of ours beside each peer."""
    measured = TO_THE_END if task.target is None else TO_TARGET
    for ours in (side for side in task.ours if side in found):
        for peer in (side for side in task.peers if side in found):
            note = f"{(_within if task.target is None else _reached)(found, ours, peer)}; {_evaluated(found, peer)}"
            for key, unit in measured.items():
                sides = [result[key] for result in found[ours]], [result[key] for result in found[peer]]
                row = compare(f"{name}, {ours}", task.env, (peer, found[peer][0]["version"]), sides, unit)
                row = less_is_better(row) if key in LESS_IS_BETTER else row
                yield replace(row, note=note, target=task.promised.get((ours, peer, key)))


def _in_words(told: Found) -> str:
    reached = "reached it" if told["reached"] else f"return {told['return']:.1f}"
    return f"{reached} after {told['steps']:,} steps, {told['wall_s']:.1f} s"


def _reached(found: Trainings, *sides: str) -> str:
    return ", ".join(
        f"{side} reached it {sum(result['reached'] for result in found[side])} of {len(found[side])} times"
        for side in sides
    )


def _evaluated(found: Trainings, peer: str) -> str:
    """What of the peer's seconds ours do not have: see `judging`."""
    spent_s = statistics.median(result["evaluation_s"] for result in found[peer])
    return f"{peer}'s training stood still for its evaluations for {spent_s:.1f} s, ours are made beside it"


def _within(found: Trainings, ours: str, peer: str) -> str:
    """Whether our median return lies within the peer's seeds."""
    own = statistics.median(result["return"] for result in found[ours])
    theirs = [result["return"] for result in found[peer]]
    low, high = min(theirs), max(theirs)
    where = "below" if own < low else "above" if own > high else "inside"
    return (
        f"{ours}: return {own:.1f}, {where} what {peer} reached over its seeds ({len(theirs)}), {low:.1f} to {high:.1f}"
    )
