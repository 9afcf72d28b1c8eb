"""``headrace supervise``."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from headrace.cli.drawing import NOTHING
from headrace.cli.ending import typed
from headrace.cli.unheard import conclude, going_on, never_waiting, pass_on
from headrace.commands.config import SuperviseConfig, load
from headrace.commands.tree import children_now, end_adopted
from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import RunDirectoryError
from headrace.core.files import write_whole
from headrace.ipc.child import adopt_orphans
from headrace.runtime.rundir import RunDirectory

_ELSEWHERE = "choose another --run-dir, or leave it out for a new one under run.directory"
_NAME_WIDTH = 16
_END_S = 5.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where the run is kept.")
@click.option("--quiet", is_flag=True, help="Do not show what the processes print.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object at the end; all else goes to standard error."
)
def supervise(file: Path, run_dir: Path | None, quiet: bool, as_json: bool) -> int:
    """Run the processes that FILE describes, anybody's, in order, and end them all when one of them fails or hangs.

    Exit code 0: all that has an end is done, or the time is over; 1: one failed, or nothing is done; 3: one was not ready, or
    got on no more, in time; 2: FILE is wrong; 130: interrupted.
    """
    config = load(file)
    with claim(run_dir, config) as run:
        summary = _run(config, run, Terminal(MonotonicClock(), lines=not quiet, errors=as_json))
    return conclude(json.dumps(summary, ensure_ascii=False) if as_json else ending(summary, run.path), summary)


def _run(config: SuperviseConfig, run: RunDirectory, terminal: Terminal) -> dict[str, Any]:
    from headrace.commands import launcher
    from headrace.runtime.interrupts import Interrupts
    from headrace.runtime.premises import Premises

    # Should the fork server be killed, what it had started becomes ours, and not everybody's.
    others = children_now()
    adopt_orphans()
    places = launcher.Places(run.board_file, run.events_file, run.logs_dir, run.stacks_dir)
    premises = Premises(run.path, run.lock_file, (run.logs_dir,))
    try:
        with Interrupts() as interrupts:

            def asked() -> int:
                pass_on()  # what its reader had no room for; asked many times a second
                return interrupts.count

            with never_waiting(), premises.told_first():
                kept = run.write_summary, premises.require_there
                summary = launcher.supervise(config, places, terminal, asked, MonotonicClock(), *kept)
    finally:
        end_adopted(_END_S, others)
    return summary | {"run_dir": str(run.path)}


def claim(path: Path | None, config: SuperviseConfig) -> RunDirectory:
    """Make a run directory, take its lock, write the effective configuration into it.

    Raises:
        RunDirectoryError: It belongs to a live or an earlier run, or cannot be written.
    """
    run = RunDirectory(path or _new_place(config, datetime.now(tz=UTC).astimezone()))
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        run.take_lock(_ELSEWHERE)
        remains = [one for one in (run.config_file, run.board_file, run.events_file, run.summary_file) if one.exists()]
        if remains:
            raise RunDirectoryError(f"{run.path} already holds a run", found=remains[0].name, fix=_ELSEWHERE)
        write_whole(run.config_file, [config.to_toml().encode()])
        run.logs_dir.mkdir(exist_ok=True)
        run.stacks_dir.mkdir(exist_ok=True)
    except OSError as error:
        run.close()
        raise RunDirectoryError(
            f"the run directory {run.path} cannot be written",
            problem=f"{type(error).__name__}: {error}",
            fix="choose another --run-dir, on a disk with room where you may write",
        ) from None
    except RunDirectoryError:
        run.close()
        raise
    return run


def _new_place(config: SuperviseConfig, now: datetime) -> Path:
    title = re.sub(r"[^A-Za-z0-9_.-]+", "-", config.run.name).lower()
    return Path(config.run.directory) / f"{title}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class Terminal:
    """Shows all processes' lines as one stream, each with its time and its process.

    Args:
        clock: The machine's monotonic one, on which times are told.
        lines: Whether to show what processes print, and not only what the supervisor says.
        errors: Whether all goes to standard error.
    """

    def __init__(self, clock: Clock, *, lines: bool, errors: bool) -> None:
        self._lines = lines
        self._errors = errors
        self._zero = datetime.now(tz=UTC).astimezone() - timedelta(seconds=clock.now())
        self._echo = going_on(self._print)

    def line(self, component: str, at_s: float, text: str) -> None:
        """A line of a process."""
        if self._lines:
            self._echo(f"{self._time(at_s)} {component:<{_NAME_WIDTH}} | {text}")

    def told(self, at_s: float, text: str) -> None:
        """What the supervisor says."""
        self._echo(f"{self._time(at_s)} {'headrace':<{_NAME_WIDTH}} * {text}")

    def _time(self, at_s: float) -> str:
        return f"{self._zero + timedelta(seconds=at_s):%H:%M:%S.%f}"[:-3]

    def _print(self, text: str) -> None:
        click.echo(text, err=self._errors)


def ending(summary: Mapping[str, Any], run: Path) -> str:
    """The end of a run in a few lines."""
    lines = [f"{summary['outcome']} after {summary['wall_s']:,.1f} s: {summary['why'] or 'it ended'}"]
    width = max([_NAME_WIDTH, *(len(name) + 2 for name in summary["processes"])])
    for name, facts in summary["processes"].items():
        counts = [f"{key} {facts[key]}" for key in ("faults", "restarts") if facts[key]]
        told = ", ".join([facts["stage"], *counts]) + (f": {facts['trouble']}" if facts["trouble"] else "")
        lines.append(f"  {name:<{width}}{told or NOTHING}")
    lines.append(f"  {'run':<{width}}{run}")
    if summary["outcome"] in {"failed", "stalled"}:
        own, logs = (shlex.quote(str(path)) for path in (run, run / "logs"))
        doctor = f"{typed('headrace')} doctor {own}"
        lines.append(f"  {'next':<{width}}{doctor}    {logs} holds what every process printed")
    return "\n".join(lines)
