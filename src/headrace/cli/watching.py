"""A run of Headrace, looked at again and again from outside: its components, its numbers, a verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headrace.cli import ending, rlview, supervise
from headrace.cli.doctor import in_words, stage_table, what_to_do, what_was_seen
from headrace.cli.drawing import number
from headrace.cli.fitting import Part, Picture, table_of
from headrace.cli.unheard import hurry, nobody_reads, pass_on
from headrace.core.toml import read_table
from headrace.ipc.channel import Deadline, poll_fds
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import places, read_numbers, read_run
from headrace.monitor.snapshot import Diagnosis
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.rundir import RunDirectory

_TICK_S = 0.25
_EVERY_S = {True: 2.0, False: 10.0}
"""Between two looks: on a terminal, where the last one is drawn over, and elsewhere."""
_BOOKS = ("requested", "completed", "failed", "stale", "cancelled", "in_flight", "trained", "filtered", "pending")


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at one board shows."""

    path: Path
    diagnosis: Diagnosis
    numbers: Mapping[str, float]
    table: Mapping[str, Any]
    """Its configuration."""
    summary: Mapping[str, Any] | None
    over: bool

    @classmethod
    def at(cls, path: Path) -> Self:
        """Look; takes a second.

        Raises:
            RunDirectoryError: There is no run.
        """
        snapshot = read_run(path)
        table = read_table(RunDirectory(path).config_file)
        over = snapshot.summary is not None or not snapshot.live
        return cls(path, diagnose(snapshot), read_numbers(path), table, snapshot.summary, over)

    def in_words(self) -> str:
        """As people read it."""
        if self.summary is not None:
            return f"{in_words(self.diagnosis)}\n\n{self._ending(self.summary)}"
        return f"run         {self.path}\n{self._number_lines()}\n\n{in_words(self.diagnosis)}"

    def parts(self) -> list[Part]:
        """As `in_words`, for a terminal that may be too low for it: the verdict first, then what to do, then the rest."""
        found = self.diagnosis
        rows = partial(table_of, what="components")
        parts = [
            Part(stage_table(found.stages, no_wrap=True), 6, least=3, shorten=rows, gap=True) if found.stages else None,
            Part(Text(f"{found.state.value}: {found.verdict}"), 0, gap=True),
            Part(Text(what_was_seen(found)), 3, least=3, gap=True) if found.evidence else None,
            Part(Text(what_to_do(found)), 2, gap=True) if found.remedy else None,
        ]
        kept = [part for part in parts if part is not None]
        if self.summary is not None:
            return [*kept, Part(Text(self._ending(self.summary)), 5, least=1, gap=True)]
        return [Part(Text(f"run         {self.path}"), 1, gap=True), Part(Text(self._number_lines()), 4), *kept]

    def _ending(self, summary: Mapping[str, Any]) -> str:
        return _ending_of(summary, self.table)(summary, self.path)

    def _number_lines(self) -> str:
        return "\n".join(f"{title:<12}{text}" for title, text in number_lines(self.numbers, self.table))

    def to_json(self) -> dict[str, Any]:
        """As programs read it."""
        return {"run": str(self.path), **self.diagnosis.to_json(), "numbers": dict(self.numbers)}


def _ending_of(summary: Mapping[str, Any], table: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Path], str]:
    """How a run of its kind tells of its end."""
    if summary.get("kind") == "commands":
        return supervise.ending
    return rlview.ending if "orchestrator" in table else ending.ending


def watch_run(run: Path, *, once: bool, run_duration: float | None, as_json: bool) -> tuple[bool, bool]:
    """Show a run until it is over, the time is, or Ctrl-C.

    Args:
        run: Its directory; where components were started alone, all of them are shown, to their end.
        once: Look once.
        run_duration: Seconds; None: no limit.
        as_json: Print one object at the end, and nothing before.

    Returns:
        Whether anything is wrong at the end, and whether it was interrupted.

    Raises:
        RunDirectoryError: There is no run in it.
    """
    RunDirectory.open(run)
    shown: set[Path] = set()
    limit = Deadline(math.inf if run_duration is None else run_duration)
    with Interrupts() as interrupts, _Screen(silent=as_json) as screen:
        while True:
            # Whoever was shown is so at its end too, though it is not alive any more.
            shown = {*places(run), *(place for place in shown if RunDirectory(place).board_file.exists())}
            seen = [Sight.at(place) for place in sorted(shown)]
            screen.show(seen)
            if once or all(sight.over for sight in seen) or nobody_reads():
                break
            due = Deadline(screen.every_s)
            while not (due.passed or limit.passed or interrupts.count):
                poll_fds({}, _TICK_S)
                pass_on()
            if limit.passed or interrupts.count:
                break
        interrupted = interrupts.count > 0
    if interrupted:
        hurry()
    if as_json:
        click.echo(json.dumps({"components": [sight.to_json() for sight in seen]}, ensure_ascii=False))
    return not all(sight.diagnosis.state.well for sight in seen), interrupted


class _Screen:
    """Draws a text over the last one on a terminal, and below it elsewhere."""

    def __init__(self, *, silent: bool) -> None:
        console = Console()
        self._silent, self._shown = silent, ""
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal and not silent else None
        self.every_s = _EVERY_S[self._live is not None or silent]

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text(self._shown))  # all of it, however low the terminal is: its end draws it
            self._live.stop()

    def show(self, seen: Sequence[Sight]) -> None:
        text = "\n\n".join(sight.in_words() for sight in seen)
        if self._live is not None:
            self._live.update(Picture([part for sight in seen for part in sight.parts()]), refresh=True)
        elif not self._silent:
            click.echo(f"\n{text}" if self._shown else text)
        self._shown = text


def number_lines(numbers: Mapping[str, float], table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The newest numbers of a run, a title and a text each; what was not measured is left out.

    Args:
        numbers: As `read_numbers` finds them.
        table: The run's configuration.
    """
    lines = _language if "orchestrator" in table else _control
    for title, parts in lines(_Numbers(numbers), table):
        told = [part for part in parts if part]
        if told:
            yield title, ", ".join(told)


class _Numbers:
    """Texts of numbers that may be missing."""

    def __init__(self, numbers: Mapping[str, float]) -> None:
        self.numbers = numbers

    def told(self, name: str, form: Callable[[float], str] | str) -> str:
        """Its text; empty where it was not measured."""
        value = self.numbers.get(name)
        if value is None:
            return ""
        return form.format(value) if isinstance(form, str) else form(value)


def _language(seen: _Numbers, table: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    told, steps = seen.told, table.get("run", {}).get("steps")
    began = "updates" in seen.numbers
    yield (
        "progress",
        [
            told("updates", f"{{:,.0f}} of {steps:,} steps")
            if began
            else told("step", "step {:,.0f} of the warm start"),
            told("wall_s", "{:,.1f} s") if began else told("sft/loss", "loss {:.3f}"),
        ],
    )
    yield (
        "reward",
        [
            told("train/reward/mean", "{:.3f} mean"),
            told("train/win_rate", lambda rate: f"{100 * rate:.1f} % won"),
            told("eval/win_rate", lambda rate: f"{100 * rate:.1f} % won in the newest evaluation"),
        ],
    )
    yield "training", [
        told("loss/mean", "loss {:.4f}"), told("entropy/mean", "entropy {:.3f}"),
        told("mismatch_kl/mean", "mismatch KL {:.1e}"), told("perf/tokens_per_s", "{:,.0f} tokens/s"),
    ]  # fmt: skip
    allowed = table.get("orchestrator", {}).get("max_policy_lag")
    lag = told("off_policy/max", "{:.0f} max")
    yield "policy lag", [told("off_policy/mean", "{:.2f} mean"), lag, f"{allowed} allowed" if lag else ""]
    yield (
        "waits",
        [
            told("time/wait_for_batch", "trainer {:.2f} s for the last batch"),
            told("time/wait_for_policy", "orchestrator {:.2f} s for the last policy"),
        ],
    )
    books = {name: int(seen.numbers[f"books/{name}"]) for name in _BOOKS if f"books/{name}" in seen.numbers}
    yield "books", [rlview.books_line(books) if books else ""]


def _control(seen: _Numbers, table: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    told, steps = seen.told, table.get("run", {}).get("steps")
    of = f" of {steps:,}" if steps else ""
    yield "progress", [
        told("step", f"{{:,.0f}}{of} environment steps"), told("updates", "{:,.0f} updates"), told("wall_s", "{:,.1f} s")
    ]  # fmt: skip
    yield "rates", [
        told("time/fps", "{:,.0f} environment steps/s"), told("headrace/updates_per_s", "{:,.0f} updates/s"),
        told("headrace/replay_ratio", "replay ratio {:.2f}"),
    ]  # fmt: skip
    yield "policy lag", [told("headrace/policy_lag", "{:.1f} mean")]
    yield (
        "return",
        [
            told("rollout/ep_rew_mean", number),
            told("headrace/episodes", "{:,.0f} episodes"),
            told("eval/mean_reward", lambda value: f"{number(value)} in the newest evaluation"),
        ],
    )
