"""``headrace twin``."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from headrace.cli import early
from headrace.cli.drawing import showing
from headrace.cli.train import import_from_here, overrides_of
from headrace.cli.twinreport import in_words, to_json
from headrace.cli.unheard import complain, going_on
from headrace.core.cores import usable_cores
from headrace.core.errors import RecordDamaged, RunDirectoryError
from headrace.core.files import write_whole
from headrace.runtime.config import ExperimentConfig, load_config
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.twin import (
    REFERENCE,
    SCHEDULES,
    PlannedRun,
    TwinRun,
    Twins,
    bands,
    evaluation_marks,
    exact_schedules,
    first_other_evaluation,
    plan_twins,
)
from headrace.telemetry.events import plain

DIFFERENT = 4


@click.command()
@click.argument("config")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="How many, from run.seed on."
)
@click.option("--steps", type=int, metavar="N", help="Environment steps of every run.")
@click.option(
    "--schedules", default=",".join(SCHEDULES), show_default=True, metavar="NAMES", help="Inline is the reference."
)
@click.option(
    "--lockstep-seeds", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Compared by hash."
)
@click.option("--collectors", type=int, metavar="N", help="Collector processes.")
@click.option(
    "--margin", type=click.FloatRange(min=0.0, max=1.0, min_open=True), default=0.1, show_default=True, metavar="SHARE",
    help="Of the gain over random play; a difference up to that counts as none.",
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration; repeatable.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Where runs, twin.json and twin.png are kept."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--quiet", is_flag=True, help="Print nothing but the report.")
def twin(config: str, out: Path | None, as_json: bool, quiet: bool, **given: Any) -> int:
    """Train the same under inline, lockstep and async, and say whether parallel learns what sequential learns.

    CONFIG is a preset's name or a TOML file. Runs follow each other. Exit code 4: a schedule that has to come to the weights of
    inline did not; 0: all did, whatever the learning curves say; 1: they did, and a summary.json could not be written. A run that
    fails ends the report with its own error and code.
    """
    import_from_here()
    flags = {name: given[name] for name in ("steps", "collectors")}
    settings = overrides_of(given["settings"], flags)
    if flags["steps"] is not None:
        settings.setdefault("run.run_duration_s", None)
    experiment = load_config(config, settings)
    named = [name.strip() for name in given["schedules"].split(",") if name.strip()]
    planned = plan_twins(experiment, named, given["seeds"], given["lockstep_seeds"])
    with early.importing():
        import headrace.cli.twinplot
        import headrace.monitor.sampler
        import headrace.runtime.experiment
        import headrace.runtime.twinrecords  # noqa: F401
    title = Path(config).stem
    folder = _folder(out, experiment, title)
    runs = list(_runs(planned, folder, quiet=quiet or as_json))
    if runs[-1].summary["outcome"] != "completed":
        return _failed(runs[-1], folder / planned[len(runs) - 1].name, as_json=as_json)
    exact = exact_schedules(experiment)
    twins = Twins(experiment.run.steps, tuple(runs), given["margin"], experiment.run.collectors, usable_cores(), exact)
    return _report(twins, experiment, folder, title, as_json=as_json)


def _runs(planned: Sequence[PlannedRun], folder: Path, *, quiet: bool) -> Iterator[TwinRun]:
    """Make the runs of the report, one after the other; nothing follows one that does not complete.

    Raises:
        KeyboardInterrupt: A person has interrupted one; it has ended in order.
    """
    for place, one in enumerate(planned, 1):
        if not quiet:
            going_on(click.echo)(f"run {place} of {len(planned)}: {one.schedule}, seed {one.seed}")
        run = _run(one, folder, quiet=quiet)
        if run.summary["outcome"] == "interrupted":
            raise KeyboardInterrupt
        yield run
        if run.summary["outcome"] != "completed":
            return


def _run(planned: PlannedRun, folder: Path, *, quiet: bool) -> TwinRun:
    """Make one run, and watch it."""
    from headrace.monitor.sampler import Sampler
    from headrace.runtime.experiment import run_experiment

    with ExitStack() as stack:
        run_dir = stack.enter_context(RunDirectory.create(folder / planned.name, planned.config))
        sampler = stack.enter_context(Sampler(run_dir.board_file))
        show = None if quiet else stack.enter_context(showing())
        summary = run_experiment(planned.config, run_dir, show)
    if "unwritten" in summary:
        complain(f"{run_dir.path}: {summary['unwritten']}")
    return TwinRun(planned.schedule, planned.seed, summary, sampler.use.spent())


def _failed(run: TwinRun, path: Path, *, as_json: bool) -> int:
    """Tell why there is no report."""
    error = str(run.summary["error"])
    if as_json:
        click.echo(json.dumps({"verdict": None, "error": error, "run": str(path)}, ensure_ascii=False))
    else:
        click.echo(
            f"{error}\n\nno report: the run under {run.schedule} with seed {run.seed} failed; it is kept in {path}",
            err=True,
        )
    return int(run.summary["exit_code"])


def _report(twins: Twins, config: ExperimentConfig, folder: Path, title: str, *, as_json: bool) -> int:
    difference, marks = _difference(twins, folder), evaluation_marks(config)
    told = plain({"config": title, "folder": str(folder), **to_json(twins, difference)})
    write_whole(folder / "twin.json", [f"{json.dumps(told, indent=2, ensure_ascii=False)}\n".encode()])
    drawn = _draw(twins, marks, folder / "twin.png", title)
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        click.echo(in_words(twins, marks, difference))
        click.echo(f"\nkept in {folder}: twin.json, {'twin.png, ' if drawn else ''}and every run")
    return DIFFERENT if difference is not None else int(any("unwritten" in run.summary for run in twins.runs))


def _difference(twins: Twins, folder: Path) -> dict[str, Any] | None:
    """Where ``inline`` and a schedule that has to equal it part, of the first seed in which they do."""
    from headrace.runtime.twinrecords import first_difference_of

    other = next((one for one in twins.identities if not one.equal), None)
    if other is None:
        return None
    seed, names = other.seed, (REFERENCE, other.schedule)
    records = [folder / f"{schedule}-{seed}" / "record" for schedule in names]
    try:
        found = first_difference_of(records[0], records[1], names)
    except RecordDamaged as error:
        return {"seed": seed, "sentence": f"{_by_evaluations(twins, seed, names)}; {error.what}"}
    if found is None:
        return {"seed": seed, "sentence": f"{_by_evaluations(twins, seed, names)}; the records of both hold the same"}
    return {"seed": seed, "sentence": found.sentence + _restarted(twins, seed), **found.facts}


def _by_evaluations(twins: Twins, seed: int, names: tuple[str, str]) -> str:
    curves = [run.curve for schedule in names for run in twins.of(schedule) if run.seed == seed]
    at = first_other_evaluation(curves[0], curves[1])
    return "no evaluation differs" if at is None else f"evaluations differ from {at:,} steps on"


def _restarted(twins: Twins, seed: int) -> str:
    """What excuses a difference: a process that was replaced learns from other rows."""
    restarted = [run.schedule for run in twins.runs if run.seed == seed and run.summary.get("restarts")]
    return f"; processes of {' and '.join(restarted)} were restarted" if restarted else ""


def _draw(twins: Twins, marks: list[int], path: Path, title: str) -> bool:
    from headrace.cli.twinplot import DrawnCurve, png, render

    schedules = [REFERENCE, "async"] + ["lockstep"] * any(
        not one.equal for one in twins.identities if one.schedule == "lockstep"
    )
    curves = [
        DrawnCurve(schedule, list(bands([run.curve for run in twins.of(schedule)], marks)), len(twins.of(schedule)))
        for schedule in schedules
        if twins.of(schedule)
    ]
    baselines = [curve.random for run in twins.of(REFERENCE) if (curve := run.curve).random is not None]
    random = sum(baselines) / len(baselines) if baselines else None
    picture = render(curves, random, f"{title}: {twins.steps:,} steps under each schedule")
    if picture is None:
        return False
    write_whole(path, [png(picture)])
    return True


def _folder(out: Path | None, config: ExperimentConfig, title: str) -> Path:
    """A folder for the runs and the report; what has run stays in it, however this ends."""
    now = datetime.now(tz=UTC).astimezone()
    folder = out or Path(config.run.directory) / f"twin-{title}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunDirectoryError(
                f"{folder} is not empty",
                fix="choose another --out, or leave it out for a new folder under run.directory",
            )
    except OSError as error:
        raise RunDirectoryError(
            f"{folder} cannot be used for the runs",
            problem=f"{type(error).__name__}: {error}",
            fix="choose another --out",
        ) from None
    return folder
