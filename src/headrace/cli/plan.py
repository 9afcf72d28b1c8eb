"""``headrace plan``."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import early
from headrace.cli.given import given
from headrace.cli.rlplan import plan_language_model, refuse_options
from headrace.cli.train import import_from_here, overrides_of
from headrace.cli.unheard import going_on
from headrace.core.errors import ConfigError
from headrace.runtime.config import ExperimentConfig, describes_language_model, load_config

if TYPE_CHECKING:
    from headrace.runtime.advisor import Judged, Plan, Prediction

USAGE = 2
_TIMED = 0.3
"""Part of the seconds in which one run is timed inside; the rest goes to the plans that are checked."""

_ROUNDS = 4
"""Chunks of every group after which a speed can be told."""
_LEAST = 0.1
"""Cores that are left for us, whatever others have."""


@click.command()
@click.argument("config")
@click.option(
    "--seconds", type=click.FloatRange(min=1.0), default=20.0, show_default=True, metavar="S",
    help="Of training in all runs together; to start their processes comes on top.",
)  # fmt: skip
@click.option("--check", "most", type=click.IntRange(min=2), default=4, show_default=True, metavar="N",
              help="How many plans are run for real: inline, the configured one, the best by prediction.")  # fmt: skip
@click.option("--no-check", is_flag=True, help="Run none of them: predictions alone.")
@click.option("--learner", is_flag=True, help="Also time the learner with other numbers of threads and in bfloat16.")
@click.option("--steps", type=click.IntRange(min=2), metavar="N",
              help="Language models only: steps of the trainer in each short run, 8 unless given.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def plan(  # noqa: PLR0913 - a command's options
    config: str,
    seconds: float,
    most: int,
    no_check: bool,
    learner: bool,
    steps: int | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Say how CONFIG had best be run here: inline, in lockstep or asynchronously, with how many collectors, and what limits it.

    CONFIG is a preset's name or a TOML file. One short run is timed inside, every plan is predicted from that, the best are
    run for real, without evaluations and checkpoints, and compared by their counters. Nothing is kept, unless a run fails.

    Of a language-model configuration the single process and the three are run for --steps, after one warm start.
    """
    import_from_here()
    if describes_language_model(config):
        refuse_options(given("seconds", "most", "no_check", "learner"), "a language-model run", "say --steps N")
        return plan_language_model(config, settings, steps, as_json=as_json)
    refuse_options(given("steps"), "a run with collectors", "say --seconds S")
    if no_check and any(given("most").values()):
        raise ConfigError("--check and --no-check contradict each other", fix="give one of them")
    experiment = load_config(config, overrides_of(settings, {}))
    with early.importing():
        import headrace.cli.planreport
        import headrace.runtime.planning  # noqa: F401
    folder = Path(tempfile.mkdtemp(prefix="headrace-plan-"))
    try:
        planner = _Planner(config, experiment, settings, folder, quiet=as_json)
        code = planner.run(seconds, 0 if no_check else most, learner=learner)
    except BaseException:  # passed on; an interrupted plan leaves no folder behind
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if code in (0, USAGE):
        shutil.rmtree(folder, ignore_errors=True)
    return code


class _Planner:
    """Measures, predicts, checks and tells."""

    def __init__(
        self, name: str, config: ExperimentConfig, settings: Sequence[str], folder: Path, *, quiet: bool
    ) -> None:
        self._name, self._config, self._settings = name, config, settings
        self._folder = folder
        self._quiet = quiet

    def run(self, seconds: float, most: int, *, learner: bool) -> int:
        """The exit code."""
        from headrace.cli.planreport import Report, in_words, to_json
        from headrace.core.cores import usable_cores
        from headrace.runtime.advisor import candidates, predict
        from headrace.runtime.learnerways import timed
        from headrace.runtime.measuring import costs_of
        from headrace.runtime.planning import measure

        timed_s = seconds * (_TIMED if most else 1.0)
        self._say(f"timing {timed_s:.3g} s under inline")
        figures = measure(self._config, timed_s, self._folder)
        _require_heard(figures.summary)
        if figures.values is None:
            return self._failed(figures.summary)
        costs = costs_of(figures.values, self._config.env.group_size // self._config.agents.count)
        cores = usable_cores()

        def predicted(plan: Plan, busy_cores: float) -> Prediction:
            return predict(self._config, plan, costs, max(_LEAST, cores - busy_cores))

        plans = candidates(self._config, costs, cores)
        predictions = [predicted(one, figures.busy_cores) for one in plans]
        judged = self._judged(predictions, predicted, seconds - timed_s, most)
        ways = timed(self._config, cores, timed_s, self._folder, self._say) if learner else []
        report = Report(
            self._name, self._config, tuple(self._settings), costs, figures.values, tuple(judged), cores,
            figures.busy_cores, tuple(ways),
        )  # fmt: skip
        click.echo(json.dumps(to_json(report), ensure_ascii=False) if self._quiet else in_words(report))
        return 0

    def _judged(
        self,
        predictions: Sequence[Prediction],
        predicted: Callable[[Plan, float], Prediction],
        seconds: float,
        most: int,
    ) -> list[Judged]:
        from headrace.runtime.advisor import Judged, worth_checking
        from headrace.runtime.planning import check

        chosen = worth_checking(self._config, predictions, _affordable(self._config, predictions, seconds, most))
        found: dict[Plan, Judged] = {}
        for plan in chosen:
            each_s = seconds / len(chosen)
            self._say(f"running {plan} for {each_s:.3g} s")
            checked = check(self._config, plan, each_s, self._folder)
            _require_heard(checked.summary)
            error = checked.summary["error"]
            too_short = None if checked.pace else "too few rounds to measure: raise --seconds"
            why_not = str(error).splitlines()[0] if error else too_short
            then = predicted(plan, checked.busy_cores)
            prediction = next(one for one in predictions if one.plan == plan)
            pace = None if error else checked.pace
            found[plan] = Judged(prediction, pace, why_not, checked.start_s, checked.busy_cores, then)
        return [found.get(one.plan, Judged(one)) for one in predictions]

    def _failed(self, summary: Mapping[str, Any]) -> int:
        """Tell why there is no plan; what the run left is kept, unless what is wrong was found before it began."""
        error, code = str(summary["error"]), int(summary["exit_code"]) or 1
        run = None if code == USAGE else str(self._folder)
        if self._quiet:
            click.echo(json.dumps({"recommended": None, "error": error, "run": run}, ensure_ascii=False))
        else:
            kept = "" if run is None else f"\n\nno plan: the run that was to be timed failed; it is kept in {run}"
            click.echo(f"{error}{kept}", err=True)
        return code

    def _say(self, text: str) -> None:
        if not self._quiet:
            going_on(click.echo)(text)


def _affordable(config: ExperimentConfig, predictions: Sequence[Prediction], seconds: float, most: int) -> int:
    """How many plans can be run for long enough; two, so that there is something to compare, or as many as wanted."""
    slowest = min(one.pace.steps_per_s for one in predictions)
    needed_s = _ROUNDS * config.env.lanes * config.collect.chunk_steps / slowest
    return min(most, max(2, int(seconds / needed_s)))


def _require_heard(summary: Mapping[str, Any]) -> None:
    """Whoever interrupts a run means the command.

    Raises:
        KeyboardInterrupt: It was interrupted, and has ended in order.
    """
    if summary["outcome"] == "interrupted":
        raise KeyboardInterrupt
