"""A language-model run as text: where its logs are, every component's lines with its name before them, the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.ending import typed
from headrace.runtime.remains import Onward, onward
from headrace.runtime.rundir import RunDirectory

if TYPE_CHECKING:
    from headrace.llm.launch.chronicle import Line
    from headrace.llm.launch.launcher import Launch

_WIDTH = 12
_COLOURS = {
    "inference": "cyan", "orchestrator": "magenta", "trainer": "green", "warm-start": "yellow", "twin": "green",
    "supervisor": "blue",
}  # fmt: skip
_CURVE_CELLS = 40


def opening(what: Launch) -> str:
    """What is started, and where everything it prints is kept."""
    place = what.place
    logs = "\n".join(f"  {name:<14}{place.log_file(name)}" for name in what.cast.ids)
    follow = shlex.join(["tail", "-F", *(str(place.log_file(name)) for name in what.cast.ids)])
    return f"run           {place.path}\nlogs\n{logs}\n  {'all':<14}{follow}"


def make_printer(*, colours: bool | None = None) -> Callable[[Line], None]:
    """Prints a line of a component: seconds since the start, its name, what it says."""
    painted = sys.stdout.isatty() if colours is None else colours

    def show(line: Line) -> None:
        name = f"{line.component:<{_WIDTH}}"
        text = line.text
        if painted:
            name = click.style(name, fg=_COLOURS.get(line.component))
            text = click.style(text, fg="red", bold=True) if line.weight == "alarm" else text
        elif line.weight == "alarm":
            text = f"! {text}"
        click.echo(f"{line.at_s:8.1f} s  {name}  {text}")

    return show


def ending(summary: Mapping[str, Any], run: Path) -> str:
    """The end of a run in a few lines; a line whose values are missing is left out."""
    steps = f": {summary['steps']:,} steps" if summary.get("steps") is not None else ""
    lines = [f"{summary.get('outcome', 'ended')} after {summary.get('wall_s') or 0.0:,.1f} s{steps}"]
    lines += [f"  {title:<14}{text}" for title, text in _facts(summary)]
    points = summary.get("evaluations") or []
    if points:
        lines += ["", *curve(points), ""]
    lines.append(f"  {'run':<14}{run}")
    headrace, own = typed("headrace"), shlex.quote(str(run))
    curves = f"{typed('tensorboard')} --logdir {shlex.quote(str(run / 'tensorboard'))}"
    if summary.get("error"):
        logs = shlex.quote(str(run / "logs"))
        lines.append(f"  {'next':<14}{headrace} doctor {own}    {logs} holds what every process printed")
    elif run.parent.name == "alone":  # of one component, see `headrace.llm.launch.alone`
        lines.append(f"  {'next':<14}{headrace} {run.name} --run-dir {shlex.quote(str(run.parent.parent))}")
    elif summary.get("outcome") == "interrupted":
        lines.append(f"  {'next':<14}{_after_interrupt(run, headrace)}    {curves}")
    else:
        lines.append(f"  {'next':<14}{curves}")
    return "\n".join(lines)


def _after_interrupt(run: Path, headrace: str) -> str:
    match onward(RunDirectory(run)):
        case Onward.RESUME:
            return f"{headrace} rl --resume --run-dir {shlex.quote(str(run))}"
        case Onward.ANEW:
            return "begin again, with the same command: there is no checkpoint to go on from"
        case Onward.ELSEWHERE:
            return "begin again, with another --run-dir: there is no checkpoint to go on from"


def books_line(books: Mapping[str, Any]) -> str:
    """``requested 2,048 = completed 2,040 + failed 8 (timeout 8); completed 2,040 = trained 2,000 + filtered 40 (…)``.

    Where attempts failed that were made again, also ``; of 2,300 attempts 260 failed (timeout 8, environment 252)``.
    """
    ends = _terms(books, ("completed", "failed", "stale", "cancelled", "in_flight"))
    parts = _terms(books, ("trained", "shipped", "filtered", "pending"))
    verdict = "" if books.get("balanced") is not False else "   THE BOOKS DO NOT BALANCE"
    sign = "=" if books.get("balanced") is not False else "≠"
    requested, completed = _count(books.get("requested")), _count(books.get("completed"))
    return f"requested {requested:,} {sign} {ends}; completed {completed:,} {sign} {parts}{_attempts(books)}{verdict}"


def curve(points: list[dict[str, Any]]) -> list[str]:
    """Win rates as bars, one line an evaluation."""
    rows = [f"{'step':>12}  {'won':>7}  {'mean reward':>12}"]
    for point in points:
        rate = point.get("win_rate") or 0.0
        reward = point.get("mean_reward")
        told = f"{reward:12.3f}" if isinstance(reward, int | float) else f"{'-':>12}"
        bar = "█" * round(rate * _CURVE_CELLS)
        rows.append(f"{point.get('step', 0):>12,}  {100 * rate:5.1f} %  {told}  {bar}".rstrip())
    return rows


def _facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if summary.get("sft"):
        yield "warm start", f"{summary['sft']['steps']:,} steps, loss {summary['sft']['loss']:.4f}"
    if summary.get("books"):
        yield "books", books_line(summary["books"])
    lag = summary.get("policy_lag") or {}
    if lag.get("max") is not None:
        yield "policy lag", f"{lag['mean']:.2f} mean, {lag['max']:.0f} max, {lag['declared']:.0f} allowed"
    faults = {kind: count for kind, count in (summary.get("faults") or {}).items() if count}
    if faults:
        yield "faults", ", ".join(f"{kind} {count:,}" for kind, count in faults.items())
    if summary.get("restarts"):
        yield "restarts", f"{summary['restarts']:,}"
    for alarm in summary.get("alarms") or ():
        yield "alarm", str(alarm.get("text", alarm.get("kind")))
    if summary.get("lost_lines"):
        told = " and ".join(f"{count:,} of {file}" for file, count in summary["lost_lines"].items())
        yield "lost lines", f"{told} could not be written: the disk was full, or not to be written to"


def _terms(books: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Terms that are not 0, the first in any case."""
    terms = []
    for name in names:
        value = books.get(name)
        if _count(value) or name == names[0]:
            terms.append(f"{name.replace('_', ' ')} {_count(value):,}{_reasons(value)}")
    return " + ".join(terms)


def _attempts(books: Mapping[str, Any]) -> str:
    """Failures that became no failed rollout, for they were tried again."""
    failed = books.get("failed_attempts")
    if _count(failed) <= _count(books.get("failed")):
        return ""
    return f"; of {_count(books.get('attempts')):,} attempts {_count(failed):,} failed{_reasons(failed)}"


def _reasons(value: object) -> str:
    if not isinstance(value, Mapping):
        return ""
    return " (" + ", ".join(f"{reason} {count:,}" for reason, count in value.items() if count) + ")"


def _count(value: object) -> int:
    if isinstance(value, Mapping):
        return sum(int(count) for count in value.values())
    return int(value) if isinstance(value, int | float) else 0
