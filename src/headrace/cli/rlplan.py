"""``headrace plan`` of a language-model configuration: one process or three, by short runs of each."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import early
from headrace.cli.drawing import NOTHING
from headrace.cli.train import overrides_of, without
from headrace.cli.unheard import going_on
from headrace.core.errors import ConfigError
from headrace.core.extras import require_language_models
from headrace.telemetry.wording import amount

if TYPE_CHECKING:
    from headrace.llm.comparing import Tried
    from headrace.llm.config import RLConfig
    from headrace.llm.planning import WarmStart

STEPS = 8
_NOTED = 0.25
"""Cores of others from which on they are told of."""
_HEADS = {
    "time/generate": "generate",
    "time/forward_backward": "train",
    "time/wait_for_batch": "wait batch",
    "time/wait_for_policy": "wait policy",
    "time/broadcast_weights": "publish",
    "time/update_weights": "load",
}


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found."""

    name: str
    """Of the configuration."""
    settings: tuple[str, ...]
    """That were changed in it."""
    cores: int
    steps: int
    """Of each run that count."""
    start: WarmStart
    tried: tuple[Tried, ...]

    def command(self, choice: Tried) -> str:
        """That runs it."""
        settings = without(self.settings, choice.way.changes)
        changed = [word for setting in settings for word in ("--set", setting)]
        return f"headrace rl @ {shlex.join([self.name, *changed])} {choice.way.flags}"


def plan_language_model(name: str, settings: tuple[str, ...], steps: int | None, *, as_json: bool) -> int:
    """Compare, and tell; the exit code."""
    from headrace.llm.loading import Source, load_rl_config

    config = load_rl_config([Source(name)], overrides_of(settings, {}))
    require_language_models()
    with early.importing():
        import headrace.llm.planning
    headrace.llm.planning.refuse(config)
    folder = Path(tempfile.mkdtemp(prefix="headrace-plan-"))
    code = 0
    try:
        code = _compare(name, config, settings, steps or STEPS, folder, quiet=as_json)
    finally:
        if code == 0:  # an interrupted plan too leaves no folder behind
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _compare(name: str, config: RLConfig, settings: tuple[str, ...], steps: int, folder: Path, *, quiet: bool) -> int:
    from headrace.core.cores import usable_cores
    from headrace.llm.comparing import recommended, ways
    from headrace.llm.planning import try_way, warm_start

    def say(text: str) -> None:
        if not quiet:
            going_on(click.echo)(text)

    if config.sft.steps_to_make:
        say(f"making the warm start, {amount(config.sft.steps_to_make, 'step')}, once for all runs")
    start = warm_start(config, folder)
    if start.error is not None:
        return _failed(start.error, start.exit_code, folder, quiet=quiet)
    tried = []
    for way in ways(config):
        say(f"running {way} for {amount(steps, 'step')}")
        tried.append(try_way(config, way, steps, start, folder))
    report = Report(name, settings, usable_cores(), steps, start, tuple(tried))
    if recommended(tried) is None:
        reasons = "\n".join(f"{one.way}: {one.why_not}" for one in tried)
        return _failed(f"none of the short runs came to an end\n{reasons}", 1, folder, quiet=quiet)
    click.echo(json.dumps(to_json(report), ensure_ascii=False) if quiet else in_words(report))
    return 0


def _failed(error: str, code: int, folder: Path, *, quiet: bool) -> int:
    """Tell why there is no plan; what the runs left is kept."""
    if quiet:
        click.echo(json.dumps({"recommended": None, "error": error, "run": str(folder)}, ensure_ascii=False))
    else:
        click.echo(f"{error}\n\nno plan; the runs are kept in {folder}", err=True)
    return code or 1


def in_words(report: Report) -> str:
    """The report as people read it."""
    parts = [list(_measured(report)), list(_table(report)), list(_times(report)), list(_recommendation(report))]
    return "\n" + "\n\n".join("\n".join(part) for part in parts)


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    from headrace.llm.comparing import recommended

    choice = recommended(report.tried)
    assert choice is not None, "without one there is no report"
    return {
        "recommended": {"schedule": choice.way.schedule, "max_policy_lag": choice.way.lag, "command": report.command(choice)},
        "sentence": sentence(report.tried),
        "config": report.name,
        "cores": report.cores,
        "steps": report.steps,
        "warm_start": {
            "steps": report.start.steps, "took_s": report.start.took_s,
            "checkpoint": None if report.start.steps else report.start.checkpoint,
        },
        "plans": [_tried_json(one) for one in report.tried],
    }  # fmt: skip


def sentence(tried: Sequence[Tried]) -> str:
    """What to do, and why."""
    from headrace.llm.comparing import at_lag_0, recommended

    choice = recommended(tried)
    assert choice is not None, "without one there is no report"
    others = [one for one in tried if one.measured and one is not choice]
    parts = [f"{choice.way}: {_against(choice, others)}; {_limit(choice)}"]
    if choice.way.lag:
        parts.append(
            f"it learns from samples up to {amount(choice.way.lag, 'version')} old ({choice.lag_mean:.2f} on average here), "
            "which the others do not"
        )
        same = at_lag_0(tried)
        if same is not None:
            rest = [one for one in tried if one.measured and not one.way.lag and one is not same]
            parts.append(f"at lag 0, where both learn the same bit for bit, {same.way} wins: {_against(same, rest)}")
    return "; ".join(parts)


def _against(choice: Tried, others: Sequence[Tried]) -> str:
    """How much faster it is than each of the others, and whether that is certain."""
    from headrace.llm.comparing import SAME, hard_to_tell

    if not others:
        return "nothing else was measured"
    told = []
    for one in others:
        times = one.steps_per_s / choice.steps_per_s
        doubt = " (their steps differ as much among themselves: raise --steps)" if hard_to_tell(choice, one) else ""
        if times <= 1.0:
            told.append(f"{1 / times:.2f} times as fast as {one.way}{doubt}")
        else:
            assert times * SAME <= 1.0 + 1e-9, "a choice is as good as the best"
            told.append(f"{one.way} is {times:.2f} times as fast, which is not worth its processes{doubt}")
    return ", ".join(told)


def _limit(one: Tried) -> str:
    from headrace.llm.comparing import TOGETHER

    if not one.shares:
        return "what limits it was not seen"
    name = one.limit
    who = {"inference": "the inference", "trainer": "the trainer", "environment": "the environment"}
    who |= {"handover": "handing weights and batches over", "waiting": "waiting for each other's messages and cores"}
    together = one.shares.get(TOGETHER, 0.0)
    if together > one.shares[name]:
        return f"more than one is at work for {together:.0%} of the time, and {who[name]} limits the rest ({one.shares[name]:.0%})"
    return f"{who[name]} limits it ({one.shares[name]:.0%})"


def _measured(report: Report) -> Iterator[str]:
    start = report.start
    yield f"{report.name} on {amount(report.cores, 'core')}: {amount(report.steps, 'step')} of each, evaluations left out"
    if start.steps:
        yield f"  warm start   all {amount(start.steps, 'step')}, made once in {start.took_s:.1f} s and shared"
    elif start.checkpoint is not None:
        yield f"  warm start   that of {start.checkpoint}"
    else:
        yield "  warm start   none is configured"
    busy = [one.busy_cores for one in report.tried if one.measured]
    if max(busy) > _NOTED:
        yield (
            f"  note         other work had {min(busy):.1f} to {max(busy):.1f} cores meanwhile, not the same for each run. "
            "Measure again with nothing beside it"
        )


def _table(report: Report) -> Iterator[str]:
    from headrace.llm.comparing import PARTS, TOGETHER, WAITING

    heads = "".join(f"{name:>13}" for name in (*PARTS, TOGETHER, WAITING))
    yield f"{'':<16}{'':>9}{'middle half':>20}   at work alone"
    yield f"{'plan':<16}{'steps/s':>9}{'of step times':>20}{heads}"
    for one in report.tried:
        if not one.measured:
            yield f"{one.way!s:<16}{NOTHING:>9}   {one.why_not}"
            continue
        low, high = one.middle_s
        shares = "".join(f"{one.shares.get(name, 0.0):>13.0%}" for name in (*PARTS, TOGETHER, WAITING))
        yield f"{one.way!s:<16}{one.steps_per_s:>9.3g}{f'{low:.2f} to {high:.2f} s':>20}{shares}"


def _times(report: Report) -> Iterator[str]:
    yield f"{'seconds a step':<16}" + "".join(f"{head:>13}" for head in _HEADS.values())
    for one in report.tried:
        if one.measured:
            cells = "".join(f"{f'{one.times_s[name]:.3f}' if name in one.times_s else NOTHING:>13}" for name in _HEADS)
            yield f"{one.way!s:<16}{cells}"


def _recommendation(report: Report) -> Iterator[str]:
    from headrace.llm.comparing import recommended

    choice = recommended(report.tried)
    assert choice is not None, "without one there is no report"
    yield f"recommended: {sentence(report.tried)}"
    yield f"  {report.command(choice)}"


def _tried_json(one: Tried) -> dict[str, Any]:
    told: dict[str, Any] = {"schedule": one.way.schedule, "max_policy_lag": one.way.lag, "not_measured": one.why_not}
    if not one.measured:
        return told | {"measured_steps_per_s": None}
    return told | {
        "measured_steps_per_s": one.steps_per_s,
        "step_s": list(one.steps_s),
        "middle_half_s": list(one.middle_s),
        "times_s": dict(one.times_s),
        "limited_by": dict(one.shares),
        "limit": one.limit,
        "lag_mean": one.lag_mean,
        "busy_cores": round(one.busy_cores, 2),
    }


def refuse_options(given: dict[str, bool], kind: str, instead: str) -> None:
    """Refuse options that the other kind of plan has.

    Args:
        given: Of each whether it was on the command line.
        kind: Of configuration.
        instead: What this kind has.

    Raises:
        ConfigError: One was.
    """
    for option, was_given in given.items():
        if was_given:
            raise ConfigError(f"{option} says nothing about a plan for {kind}", fix=instead)
