"""``headrace replay``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.train import import_from_here
from headrace.core.errors import ReplayDiffers
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.until import parse_until

if TYPE_CHECKING:
    from headrace.runtime.moments import Moment, Replayed
    from headrace.runtime.replayer import Replayer


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--until", metavar="EVENT", help="Stop before it, with a Python prompt: 1204, update:410, version:9, chunk:3.17."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def replay(run: Path, until: str | None, as_json: bool) -> int:
    """Replay the record of RUN, a run directory, in this process, and compare everything bit for bit.

    Exit code 0: identical; 4: something differs, and it is said which event, lane, row and field, and the likely cause;
    2: the record cannot be used; 3: an environment hangs in the replay.
    """
    import_from_here()
    place = RunDirectory.open(run)
    if until is not None:
        parse_until(until)

    from headrace.runtime.replayer import Replayer
    from headrace.runtime.replaywatch import watched

    try:
        with Replayer(place) as replayer:
            with watched(replayer.board, replayer.config.deadlines), _progress(replayer, shown=not as_json) as show:
                moment = replayer.run(until, show)
            found = replayer.outcome()
            if moment is not None and not as_json:
                _prompt(replayer, moment)
                return 0
    except ReplayDiffers as error:
        if not as_json:
            raise
        facts = {name: str(value) for name, value in error.facts.items()}
        click.echo(json.dumps({"identical": False, "error": error.what, "fix": error.fix, **facts}, ensure_ascii=False))
        return error.exit_code
    if as_json:
        at = {} if moment is None else {"stopped": str(moment)}
        click.echo(json.dumps({"identical": True, **asdict(found), **at}))
    else:
        click.echo(in_words(found))
    return 0


def in_words(found: Replayed) -> str:
    """A replay as people read it."""
    lines = [str(found)]
    if found.failed is not None:
        lines.append(f"  there the learner failed, as is recorded: {found.failed}")
    elif not found.ended:
        lines.append("  the record ends before the run did: it was killed, or goes on, or its disk was full")
    if found.torn_bytes:
        lines.append(f"  {found.torn_bytes:,} bytes of a last event were not written to their end, and are left out")
    lines += [f"  this machine differs, to no effect: {sentence}" for sentence in found.machine]
    return "\n".join(lines)


def banner_of(moment: Moment, *, on_policy: bool) -> str:
    """What is at hand at the prompt, and what may be done so that the replay can still go on."""
    made = (
        "  learner.update()             makes the next update, of the rollout that is open or else of the next one\n"
        if on_policy
        else "  batch = learner.batch()      draws the batch of the next update, which can be drawn once\n"
        "  algorithm.update(batch)      makes that update; nothing goes on without it once the batch is drawn\n"
    )
    return (
        f"replay stands {moment}; everything so far is identical\n"
        "replay, learner, algorithm, block (the lanes) and config are at hand:\n"
        f"{made}"
        "  replay.run('update:420')     goes on, and still compares"
    )


def _prompt(replayer: Replayer, moment: Moment) -> None:
    """A Python prompt with the live objects."""
    import code

    names: dict[str, Any] = {
        "replay": replayer,
        "learner": replayer.learner,
        "algorithm": replayer.learner.algorithm,
        "block": replayer.block,
        "config": replayer.config,
    }
    banner = banner_of(moment, on_policy=replayer.config.on_policy)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C ends what was typed, not the session
    try:
        code.interact(banner=banner, local=names, exitmsg="")
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def _progress(replayer: Replayer, *, shown: bool) -> Iterator[Callable[[Moment], None] | None]:
    """A bar on standard error, where that is a terminal."""
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    from headrace.cli.bars import bar

    columns = TextColumn("replaying"), BarColumn(), TextColumn("{task.fields[at]}"), TimeRemainingColumn()
    with bar(*columns) as drawn:
        task = drawn.add_task("replaying", total=replayer.record_bytes, at="")
        shown_event = 0

        def show(moment: Moment) -> None:
            nonlocal shown_event
            if moment.event >= shown_event + 20 or (moment.update is not None and moment.update % 100 == 0):
                shown_event = moment.event
                at = f"event {moment.event:,}, update {replayer.learner.updates:,}"
                drawn.update(task, completed=moment.position, at=at, refresh=True)

        yield show
