"""``headrace verify``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.train import import_from_here
from headrace.core.errors import ReplayDiffers
from headrace.runtime.rundir import RunDirectory

if TYPE_CHECKING:
    from headrace.runtime.verifier import Verified

_MOST = 8


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--samples", type=click.IntRange(min=1), default=200, show_default=True, metavar="N", help="Chunks to look at."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    default=0.0,
    show_default=True,
    metavar="X",
    help="Relative difference of actions that is accepted; needed only on a machine that did not record the run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def verify(run: Path, samples: int, tolerance: float, as_json: bool) -> int:
    """Make actions of RUN again, a run directory, from its stored observations and policies, and compare.

    RUN may be live, dead or finished. Exit code 0: all are as recorded; 4: one is not, and it is said which and why; 2: there
    is nothing that can be verified.
    """
    import_from_here()
    place = RunDirectory.open(run)
    place.read_config()  # refuses a run of another kind in its own words, before a record is looked for

    from headrace.runtime.verifier import verify_run

    try:
        with _progress(shown=not as_json) as show:
            found = verify_run(place, samples, tolerance=tolerance, on_progress=show)
    except ReplayDiffers as error:
        if not as_json:
            raise
        facts = {name: str(value) for name, value in error.facts.items()}
        click.echo(json.dumps({"verified": False, "error": error.what, "fix": error.fix, **facts}, ensure_ascii=False))
        return error.exit_code
    click.echo(json.dumps(to_json(found, tolerance), ensure_ascii=False) if as_json else in_words(found, tolerance))
    return 0


def in_words(found: Verified, tolerance: float) -> str:
    """A verification as people read it."""
    what = f"verified: {found.rows:,} actions in {_chunks(found.chunks)}"
    if found.versions:
        what += f" of {'policy' if len(found.versions) == 1 else 'policies'} {_versions(found.versions)}"
    if found.random:
        what += f" (in {_chunks(found.random)} all of them random)" if found.versions else " of random actions"
    exact = not found.largest_difference
    how = "as recorded, bit for bit" if exact else f"as recorded within {tolerance:g}"
    lines = [f"{what}: all {how}"]
    if not exact:
        lines.append(f"  largest difference {found.largest_difference:.2g} of the largest action")
    lines += [f"  this machine differs: {sentence}" for sentence in found.machine]
    lines += [f"  not verified: {_chunks(count)}: {reason}" for reason, count in found.skipped.items()]
    return "\n".join(lines)


def to_json(found: Verified, tolerance: float) -> dict[str, object]:
    """The same for programs."""
    return {
        "verified": True,
        "chunks": found.chunks,
        "actions": found.rows,
        "policies": list(found.versions),
        "random_chunks": found.random,
        "largest_difference": found.largest_difference,
        "tolerance": tolerance,
        "skipped": dict(found.skipped),
        "machine": list(found.machine),
    }


def _chunks(count: int) -> str:
    return f"{count:,} chunk{'s' * (count != 1)}"


def _versions(versions: tuple[int, ...]) -> str:
    """All of them; of many, the first few, how many more, and the last."""
    if len(versions) <= _MOST:
        return ", ".join(map(str, versions))
    first = ", ".join(map(str, versions[: _MOST - 2]))
    return f"{first} and {len(versions) - _MOST + 2} more up to {versions[-1]}"


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, where that is a terminal."""
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    from headrace.cli.bars import bar

    with bar() as drawn:
        task = drawn.add_task("verifying", total=None)

        def show(done: int, of: int) -> None:
            drawn.update(task, completed=done, total=of, refresh=True)

        yield show
