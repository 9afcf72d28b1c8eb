"""``headrace faults``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from headrace.cli.train import import_from_here, overrides_of
from headrace.runtime.config import load_config

_WIDTH = 22


@click.command()
@click.argument("config")
@click.option("--kind", "kinds", multiple=True, metavar="NAME", help="Only this fault; repeatable. See --list.")
@click.option("--list", "listing", is_flag=True, help="Print the faults, one a line, and provoke none.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def faults(config: str, kinds: tuple[str, ...], listing: bool, settings: tuple[str, ...], as_json: bool) -> int:
    """Provoke faults in short runs of CONFIG, a preset's name or a TOML file, and check that the promises hold.

    One line for each: whether everything held, the seconds it took, and what you would read. Exit code 0: every promise
    held; 1: one did not, and that run is kept.
    """
    from headrace.testing.faultrun import choose, provoke_faults

    chosen = choose(kinds)
    if listing:
        listed = [{"kind": kind.name, "meaning": kind.meaning} for kind in chosen]
        lines = "\n".join(f"{kind.name:<{_WIDTH}}{kind.meaning}" for kind in chosen)
        click.echo(json.dumps({"faults": listed}, ensure_ascii=False) if as_json else lines)
        return 0
    import_from_here()
    experiment = load_config(config, overrides_of(settings, {}))
    results = []
    with _folder() as folder:
        for result in provoke_faults(experiment, chosen, folder):
            results.append(result)
            if not as_json:
                click.echo("\n".join(_lines(result)))
    failed = [result for result in results if not result.passed]
    if as_json:
        told = {"passed": not failed, "faults": [result.to_json() for result in results]}
        click.echo(json.dumps(told, ensure_ascii=False))
    elif failed:
        click.echo(f"{len(failed)} of {len(results)} faults: a promise did not hold")
    else:
        click.echo(f"every promise held ({len(results)} faults)")
    return 1 if failed else 0


def _lines(result: Any) -> Iterator[str]:
    word = "FAIL" if not result.passed else "skip" if result.skipped else "pass"
    yield f"{word}  {result.kind:<{_WIDTH}}{result.seconds:5.1f} s  {result.skipped or result.sentence}"
    for promise in result.broken:
        yield f"      {promise}"
    if result.run is not None:
        yield f"      run  {result.run}"


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for the runs; it goes unless a run is kept in it."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-faults-"))
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()
