"""``headrace eval``."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli import early
from headrace.cli.drawing import mean
from headrace.cli.train import import_from_here
from headrace.core.errors import ConfigError
from headrace.core.extras import require_language_models
from headrace.runtime.config import describes_language_model
from headrace.runtime.progress import EvaluationPoint
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.wording import amount


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--episodes", type=click.IntRange(min=1), metavar="N", help="Complete episodes; default: as in the run.")
@click.option("--version", type=click.IntRange(min=0), metavar="V", help="Policy version; default: the newest.")
@click.option("--render", is_flag=True, help="Also make a GIF of the first episode.")
def evaluate(run: Path, episodes: int | None, version: int | None, render: bool) -> None:
    """Play the policy of RUN, a run directory, without exploration; of a language-model run, the evaluation's problems."""
    import_from_here()
    place = RunDirectory.open(run)
    if describes_language_model(str(place.config_file)):
        _evaluate_language_model(run, episodes, version, render=render)
        return
    render_to = place.path / "renders" / f"{'newest' if version is None else version}.gif" if render else None

    from headrace.runtime.evaluation import evaluate_run

    found = evaluate_run(place, episodes, version, render_to)
    click.echo(f"policy version {found['version']}: {mean(EvaluationPoint.of(found))}")
    for agent, earned in found.get("agents", {}).items():
        click.echo(f"  {agent}: {earned:.2f}")
    if found.get("render_path") is not None:
        click.echo(f"rendered to {found['render_path']}")


def _evaluate_language_model(run: Path, episodes: int | None, version: int | None, *, render: bool) -> None:
    if render:
        raise ConfigError("a language-model run has no pictures to make a GIF of", run=run, fix="leave --render out")
    require_language_models()
    from headrace.llm.evaluatingapart import evaluate_apart
    from headrace.llm.launch.place import LanguageRun

    place = LanguageRun.open(run)
    early.hand_over()  # a process is begun, and a folder
    found = evaluate_apart(place, episodes, version, lambda text: click.echo(text, err=True))
    facts = found.facts()
    click.echo(
        f"policy version {found.version}: {found.win_rate:.1%} won ({facts['low']:.1%} to {facts['high']:.1%}), "
        f"mean reward {found.mean_reward:.3f}, {amount(found.episodes, 'rollout')} of {amount(found.problems, 'problem')}"
    )
    if found.failed:
        click.echo(f"  {amount(found.failed, 'rollout')} failed, and are in no mean")
