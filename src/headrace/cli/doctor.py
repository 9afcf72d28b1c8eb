"""``headrace doctor``."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from headrace.cli.drawing import NOTHING
from headrace.monitor.snapshot import Diagnosis, Stage

_WIDTH = 100


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def doctor(run: Path, as_json: bool) -> int:
    """Say in one sentence what holds RUN up, a run directory: of a live, stuck, dead, finished or copied run.

    Reads only; no process of the run is asked. Exit code 0: nobody has to do anything; 3: it is held up;
    1: it has failed or died.
    """
    from headrace.monitor.doctor import diagnose
    from headrace.monitor.reader import read_run

    found = diagnose(read_run(run))
    click.echo(json.dumps(found.to_json(), ensure_ascii=False) if as_json else in_words(found))
    return found.exit_code


def in_words(found: Diagnosis) -> str:
    """A diagnosis as people read it: table, verdict, evidence, remedy."""
    parts = [plain(stage_table(found.stages))] if found.stages else []
    parts.append(f"{found.state.value}: {found.verdict}\n")
    parts += [f"{text}\n" for text in (what_was_seen(found), what_to_do(found)) if text]
    return "\n".join(parts).rstrip()


def what_was_seen(found: Diagnosis) -> str:
    """Its evidence under a headline; empty if there is none."""
    return "\n  ".join(["seen", *found.evidence]) if found.evidence else ""


def what_to_do(found: Diagnosis) -> str:
    """Its remedy under a headline; empty if there is none."""
    return f"what to do\n  {found.remedy}" if found.remedy else ""


def stage_table(stages: Sequence[Stage], *, no_wrap: bool = False) -> Table:
    """The components, a row each; ``no_wrap``: also where that is too wide."""
    table = Table(box=None, padding=(0, 3, 0, 0))
    for title in ("component", "state", "activity", "since", "rate", "waits on", "pid"):
        table.add_column(title, justify="right" if title in ("since", "rate") else "left", no_wrap=no_wrap)
    for one in stages:
        table.add_row(
            one.component,
            one.state,
            one.activity or NOTHING,
            NOTHING if one.since_s is None else f"{one.since_s:,.1f} s",
            NOTHING if one.rate is None else f"{one.rate:,.1f}/s",
            one.waits_on or NOTHING,
            _process(one),
        )
    return table


def plain(table: Table) -> str:
    """A table as text without colours, for terminals and files alike."""
    drawn = io.StringIO()
    Console(file=drawn, width=_WIDTH, no_color=True, force_terminal=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"


def _process(one: Stage) -> str:
    """Its number, and whether there is no such process although there should be."""
    if not one.pid or (one.activity is None and not one.alive):
        return NOTHING  # it has ended, as it should
    return str(one.pid) if one.alive is not False else f"{one.pid} gone"
