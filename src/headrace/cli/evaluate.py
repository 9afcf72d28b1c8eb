"""``headrace eval``."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.drawing import mean
from headrace.cli.train import import_from_here
from headrace.runtime.progress import EvaluationPoint
from headrace.runtime.rundir import RunDirectory


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--episodes", type=click.IntRange(min=1), metavar="N", help="Complete episodes; default: as in the run.")
@click.option("--version", type=click.IntRange(min=0), metavar="V", help="Policy version; default: the newest.")
@click.option("--render", is_flag=True, help="Also make a GIF of the first episode.")
def evaluate(run: Path, episodes: int | None, version: int | None, render: bool) -> None:
    """Play the policy of RUN, a run directory, without exploration."""
    import_from_here()
    place = RunDirectory.open(run)
    render_to = place.path / "renders" / f"{'newest' if version is None else version}.gif" if render else None

    from headrace.runtime.evaluation import evaluate_run

    found = evaluate_run(place, episodes, version, render_to)
    click.echo(f"policy version {found['version']}: {mean(EvaluationPoint.of(found))}")
    for agent, earned in found.get("agents", {}).items():
        click.echo(f"  {agent}: {earned:.2f}")
    if found.get("render_path") is not None:
        click.echo(f"rendered to {found['render_path']}")
