"""``headrace monitor``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headrace.cli.given import given
from headrace.cli.unheard import nobody_reads, pass_on
from headrace.cli.watching import watch_run
from headrace.core.errors import ConfigError
from headrace.monitor.logfindings import Change, Spell, WatchLimits, duration
from headrace.monitor.logplot import check_plot_path
from headrace.monitor.logsession import LogSession
from headrace.runtime.interrupts import Interrupts

FOUND = 1
INTERRUPTED = 130
_DEFAULTS = WatchLimits()


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--log-file", type=click.Path(path_type=Path), metavar="FILE", help="The log to follow.")
@click.option(
    "--pid",
    "pids",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="A process to watch with all its children; repeatable.",
)
@click.option("--once", is_flag=True, help="Judge what is there now, and end.")
@click.option("--run-duration", type=float, metavar="SECONDS", help="End after so many seconds.")
@click.option(
    "--silence-s",
    type=float,
    default=_DEFAULTS.silence_s,
    show_default=True,
    metavar="SECONDS",
    help="Without a new line for so long, a log is silent (more for one that is slow by habit).",
)
@click.option(
    "--episode-s",
    type=float,
    default=_DEFAULTS.episode_s,
    show_default=True,
    metavar="SECONDS",
    help="Without a finished episode for so long, something is wrong.",
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw the log's numbers there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end and nothing else.")
def monitor(
    run: Path | None,
    log_file: Path | None,
    pids: tuple[int, ...],
    once: bool,
    plot: Path | None,
    as_json: bool,
    *,
    run_duration: float | None,
    **seconds: float,
) -> int:
    """Watch RUN, a run directory, or training that Headrace did not start, by its log and its processes.

    Of RUN every component is shown, what it waits for, the newest numbers and a verdict, until the run is over. A log is
    followed until every --pid has ended. Both end with Ctrl-C. Exit codes: 0 nothing found, 1 something was, 2 wrong
    command, 130 interrupted.
    """
    if once and run_duration is not None:
        raise ConfigError("--once and --run-duration contradict each other", fix="give one of them")
    if run is not None:
        _refuse_more_than_a_run()
        wrong, interrupted = watch_run(run, once=once, run_duration=run_duration, as_json=as_json)
        return INTERRUPTED if interrupted else FOUND if wrong else 0
    if log_file is None:
        raise ConfigError(
            "nothing is named that could be watched",
            fix="name a run directory: headrace monitor RUN; or a log of training that is not ours: --log-file FILE",
        )
    if plot is not None:
        check_plot_path(plot)
    limits = WatchLimits(silence_s=seconds["silence_s"], episode_s=seconds["episode_s"])
    with Interrupts() as interrupts, LogSession(log_file, pids, limits, plot) as session:

        def over() -> bool:
            pass_on()
            return interrupts.count > 0 or nobody_reads()

        looks = iter([session.judge_once()]) if once else session.follow(over, run_duration)
        for changes in looks:
            if not as_json:
                _tell(session, changes)
        interrupted = interrupts.count > 0
        outcome = "interrupted" if interrupted else "judged" if once else "ended"
        session.draw()
        exit_code = INTERRUPTED if interrupted else FOUND if session.found else 0
        if as_json:
            click.echo(json.dumps({**session.report(outcome), "exit_code": exit_code}, allow_nan=False))
        else:
            click.echo(_summary(session, outcome, plot))
    return exit_code


def _refuse_more_than_a_run() -> None:
    others = [name for name, was in given("log_file", "pids", "plot", "silence_s", "episode_s").items() if was]
    if others:
        raise ConfigError(
            f"{others[0]} is for training that Headrace did not start, and a run was named",
            fix=f"leave {' and '.join(others)} out, or the run",
        )


def _tell(session: LogSession, changes: list[Change]) -> None:
    at = f"[{duration(session.watched_s())}]"
    for note in session.notes:
        click.echo(f"{at} note: {note}")
    for change in changes:
        finding = change.spell.finding
        if change.began:
            click.echo(f"{at} {finding.severity}: {finding.sentence}\n    do: {finding.remedy}")
        else:
            lasted = duration(change.at_s - change.spell.began_s)
            click.echo(f"{at} over after {lasted}: {finding.sentence}")


def _summary(session: LogSession, outcome: str, plot: Path | None) -> str:
    spells = session.found.all()
    counts = f"{session.log.lines:,} lines read, {len(session.log.numbers.series):,} numbers followed"
    lines = [f"{outcome} after {duration(session.watched_s())}: {counts}, {_findings(len(spells))}"]
    lines += [f"  {_state(spell):<8}{spell.finding.severity}: {spell.finding.sentence}" for spell in spells]
    if session.found.forgotten:
        lines.append(f"  and {session.found.forgotten:,} more that are over")
    if plot is not None:
        drawn = plot.exists()
        lines.append(f"  plot    {plot}" if drawn else "  plot    none: no number was read twice")
    return "\n".join(lines)


def _findings(count: int) -> str:
    return "nothing found" if not count else f"{count} finding{'s' if count > 1 else ''}"


def _state(spell: Spell) -> str:
    return "open" if spell.ended_s is None else "over"
