"""``headrace debug-run``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from rich.table import Table

from headrace.cli.doctor import in_words, plain
from headrace.cli.drawing import NOTHING
from headrace.cli.train import import_from_here, overrides_of
from headrace.cli.unheard import complain
from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import RunDirectoryError
from headrace.monitor.doctor import Share, diagnose_stretch, shares
from headrace.monitor.reader import machine_memory, read_run, take_look
from headrace.monitor.snapshot import Diagnosis, Snapshot
from headrace.runtime.config import load_config
from headrace.runtime.progress import Progress
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.board import Board
from headrace.telemetry.looks import Look

_EVERY_S = 1.0


@click.command("debug-run")
@click.argument("config")
@click.option("--collectors", type=int, metavar="N", help="Collector processes; default: as configured.")
@click.option("--run-duration", type=float, default=30.0, show_default=True, metavar="SECONDS", help="Of training.")
@click.option("--schedule", type=click.Choice(["inline", "lockstep", "async"]), help="Who runs when.")
@click.option("--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where the run is kept.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def debug_run(config: str, run_dir: Path | None, as_json: bool, **given: Any) -> int:
    """Train as CONFIG says for thirty seconds, watch every stage, and say what limits the run or holds it up.

    Exit codes as of `headrace doctor`; 1 also where summary.json could not be written; 130: interrupted.
    """
    import_from_here()
    experiment = load_config(config, overrides_of(given.pop("settings"), given))
    with RunDirectory.create(run_dir, experiment, name=f"debug-{Path(config).stem}") as place:
        from headrace.runtime.experiment import run_experiment

        try:
            with Watcher(place.board_file) as watcher:
                summary = run_experiment(experiment, place, watcher.on_progress)
        except BaseException:  # passed on; a start that left nothing behind leaves no folder either
            place.discard_if_empty()
            raise
        found, table = _whole(place.path, watcher.looks, summary)
    if as_json:
        told = found.to_json() | {"run": str(place.path), "outcome": summary["outcome"]}
        told["time"] = [_share_json(share) for share in table]
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        click.echo("\n".join([_drawn(table), in_words(found), "", f"run  {place.path}"]))
    if "unwritten" in summary:
        complain(summary["unwritten"])
    code = int(summary["exit_code"])
    return code if summary["outcome"] == "interrupted" else found.exit_code or code


def _whole(path: Path, looks: list[Look], summary: Mapping[str, Any]) -> tuple[Diagnosis, tuple[Share, ...]]:
    """The verdict on all of a run that is over, however much of it could be kept."""
    after = read_run(path)
    snapshot = Snapshot(
        looks=[*looks, *after.looks], header=after.header, plan=after.plan, summary=summary, events=after.events,
        this_host=after.this_host, memory=machine_memory(),
    )  # fmt: skip
    return diagnose_stretch(snapshot), shares(looks, after.plan) if len(looks) > 1 else ()


class Watcher:
    """Looks at a run's board every second while the run itself goes on in this process.

    Args:
        board_file: The run makes it after its start.
        clock: Monotonic.
    """

    def __init__(self, board_file: Path, clock: Clock | None = None) -> None:
        self.looks: list[Look] = []
        self._file = board_file
        self._clock = clock or MonotonicClock()
        self._due_s = 0.0
        self._board: Board | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def on_progress(self, progress: Progress) -> None:
        """Take a look if it is time to; the supervisor calls this a few times a second."""
        now_s = self._clock.now()
        if now_s < self._due_s:
            return
        if self._board is None:
            try:
                self._board = self._stack.enter_context(Board.open(self._file))
            except RunDirectoryError:
                return
        self._due_s = now_s + _EVERY_S
        self.looks.append(take_look(self._board))


def _drawn(table: tuple[Share, ...]) -> str:
    drawn = Table(box=None, padding=(0, 3, 0, 0), title="over the whole time", title_justify="left")
    for title in ("component", "mean rate", "busy with", "waited on"):
        drawn.add_column(title, justify="right" if title == "mean rate" else "left")
    for share in table:
        drawn.add_row(
            share.component,
            NOTHING if share.rate is None else f"{share.rate:,.1f}/s",
            _percentages(share.busy_with),
            _percentages(share.waited_on),
        )
    return plain(drawn)


def _percentages(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {part:.0%}" for name, part in list(parts.items())[:3]) or NOTHING


def _share_json(share: Share) -> dict[str, Any]:
    return {
        "component": share.component,
        "rate": share.rate,
        "busy_with": share.busy_with,
        "waited_on": share.waited_on,
    }
