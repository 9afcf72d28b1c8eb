"""What is printed when a run has ended, whatever the end: from ``summary.json`` to text."""

from __future__ import annotations

import os
import shlex
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cli.drawing import curve
from headrace.core.config import is_of_its_program
from headrace.core.toml import read_table
from headrace.runtime.progress import EvaluationPoint
from headrace.runtime.remains import Onward, onward
from headrace.runtime.rundir import RunDirectory

_NEXT = {
    "completed": "{headrace} eval {run}    {tensorboard} --logdir {events}",
    "interrupted": "{headrace} eval {run}    {tensorboard} --logdir {events}",
    "failed": "{headrace} doctor {run}    {logs} holds what every process printed",
    "stalled": "{headrace} doctor {run}    {stacks} holds where it stood still",
}
_MODULES = {"headrace": "headrace", "tensorboard": "tensorboard.main"}
"""What Python runs for a command."""


def ending(summary: Mapping[str, Any], run: Path) -> str:
    """The end of a run in a few lines; a line whose values are missing is left out.

    Args:
        summary: As in ``summary.json``.
        run: The run directory.
    """
    lines = [_headline(summary)]
    for title, text in _facts(summary):
        lines.append(f"  {title:<14}{text}")
    points = [EvaluationPoint.of(found) for found in summary.get("evaluations") or ()]
    baseline = summary.get("random_baseline")
    if points:
        lines += ["", *curve(points, EvaluationPoint.of(baseline) if baseline else None), ""]
    lines.append(f"  {'run':<14}{run}")
    upcoming = _NEXT.get(str(summary.get("outcome")))
    if upcoming is not None:
        if _of_its_program(run):  # no command has the callable that its environments are made by
            upcoming = upcoming.removeprefix("{headrace} eval {run}    ")
        elif summary.get("outcome") == "interrupted" and onward(RunDirectory(run)) is Onward.RESUME:
            upcoming = f"{{headrace}} train --resume --run-dir {{run}}    {upcoming}"
        words = {command: typed(command) for command in ("headrace", "tensorboard")}
        places = {"run": run, "events": run / "tensorboard", "logs": run / "logs", "stacks": run / "stacks"}
        words |= {name: shlex.quote(str(path)) for name, path in places.items()}
        lines.append(f"  {'next':<14}{upcoming.format(**words)}")
    return "\n".join(lines)


def typed(command: str) -> str:
    """How a command of this installation is typed in a shell: its name where that finds it, else its path.

    Where no script of it is found, as where packages lie in a folder of their own, the module that Python runs for it.
    """
    here = next((path for path in _places(command) if path.is_file() and os.access(path, os.X_OK)), None)
    if here is None:
        return f"{shlex.quote(sys.executable)} -m {_MODULES[command]}"
    found = shutil.which(command)
    if found is not None and Path(found).resolve() == here.resolve():
        return command
    return shlex.quote(os.path.relpath(here) if here.is_relative_to(Path.cwd()) else str(here))


def _places(command: str) -> Iterator[Path]:
    """Where a script may lie: beside the one that was started, beside Python, and where installers put it."""
    started = Path(sys.argv[0])
    if started.name in _MODULES:
        # What was started may be a link, beside which others of its name lie.
        yield started.absolute() if started.name == command else started.resolve().with_name(command)
    yield Path(sys.executable).parent / command
    yield Path(sysconfig.get_path("scripts"), command)
    if site.ENABLE_USER_SITE:
        yield Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")), command)


def _of_its_program(run: Path) -> bool:
    """Whether its environments are made by a callable that only the program has which began it; False where that is not told."""
    env = read_table(run / "config.toml").get("env")
    return isinstance(env, dict) and is_of_its_program(env.get("factory"))


def books_line(books: Mapping[str, Any]) -> str:
    """The books' equation with this run's numbers, terms of 0 left out.

    ``produced 12,345 = committed 12,300 + salvaged 45``; where it does not hold, ``≠`` and a plain word.
    """
    rejected: Mapping[str, int] = books.get("rejected") or {}
    terms = [f"committed {books.get('committed', 0):,}"]
    if books.get("salvaged"):
        terms.append(f"salvaged {books['salvaged']:,}")
    if sum(rejected.values()):
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in rejected.items() if count)
        terms.append(f"rejected {sum(rejected.values()):,} ({reasons})")
    if books.get("in_flight"):
        terms.append(f"in flight {books['in_flight']:,}")
    balanced = books.get("balanced")
    sign = "≠" if balanced is False else "="
    verdict = "" if balanced is not False else "   THE BOOKS DO NOT BALANCE"
    return f"produced {books.get('produced', 0):,} {sign} {' + '.join(terms)}{verdict}"


def _headline(summary: Mapping[str, Any]) -> str:
    words = [str(summary.get("outcome", "ended"))]
    if summary.get("wall_s") is not None:
        words.append(f"after {summary['wall_s']:,.1f} s")
    counts = [
        f"{summary[key]:,} {name}"
        for key, name in (("env_steps", "environment steps"), ("updates", "updates"))
        if summary.get(key) is not None
    ]
    return " ".join(words) + (": " + ", ".join(counts) if counts else "")


def _facts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    resumes = summary.get("resumes")
    if resumes:
        yield "sessions", _sessions(resumes)
    yield from _flow(summary)
    episodes = summary.get("episodes")
    if episodes:
        kinds = [f"{episodes[kind]:,} {kind}" for kind in ("terminated", "truncated", "cut") if kind in episodes]
        yield "episodes", f"{episodes.get('finished', 0):,} finished ({', '.join(kinds)})"
    faults = {kind: count for kind, count in (summary.get("faults") or {}).items() if count}
    if faults:
        yield "faults", ", ".join(f"{kind} {count:,}" for kind, count in faults.items())
    if summary.get("restarts"):
        yield "restarts", f"{summary['restarts']:,}"
    degraded = summary.get("degraded")
    if degraded:
        lanes = ", ".join(map(str, degraded["lanes"]))
        yield "degraded", f"went on without lane{'s' * (len(degraded['lanes']) > 1)} {lanes}: {degraded['reason']}"
    lost = summary.get("lost_lines")
    if lost:
        told = " and ".join(f"{count:,} of {file}" for file, count in lost.items())
        yield "lost lines", f"{told} could not be written: the disk was full, or not to be written to"
    for found in summary.get("warnings") or ():
        if found["severity"] == "warning":
            yield "suspicious", found["text"]


def _sessions(resumes: Sequence[Mapping[str, Any]]) -> str:
    steps, updates = (sum(one[key] or 0 for one in resumes) for key in ("lost_env_steps", "lost_updates"))
    lost = f"{steps:,} environment steps and {updates:,} updates were lost between them" if steps or updates else ""
    return f"{1 + len(resumes)}, this one from step {resumes[-1]['env_steps']:,}" + (f"; {lost}" if lost else "")


def _flow(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if summary.get("books"):
        yield "books", books_line(summary["books"])
    speed = summary.get("throughput") or {}
    rates = [
        f"{speed[key]:,.0f} {name}"
        for key, name in (("env_steps_per_s", "environment steps/s"), ("updates_per_s", "updates/s"))
        if speed.get(key) is not None
    ]
    if rates:
        yield "speed", ", ".join(rates)
    for key, title, form in (("replay_ratio", "replay ratio", ".3f"), ("policy_lag", "policy lag", ".1f")):
        values = {name: value for name, value in (summary.get(key) or {}).items() if value is not None}
        if values:
            yield title, ", ".join(f"{value:{form}} {name}" for name, value in values.items())
