"""A plan as people and programs read it: pure functions from measurements and predictions to sentences and values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.cli.drawing import NOTHING
from headrace.cli.train import without
from headrace.runtime.advisor import (
    PARTS,
    SAME,
    WAITS,
    Costs,
    Judged,
    Plan,
    Prediction,
    limiting,
    recommended,
)
from headrace.runtime.advisor import (
    to_json as costs_json,
)
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.learnerways import Way, best
from headrace.telemetry.wording import amount

_SHARES = (*PARTS, "waiting")
_NOTED = 0.25
"""Cores of others from which on they are told of."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found."""

    name: str
    """Of the configuration."""
    config: ExperimentConfig
    settings: tuple[str, ...]
    """That were changed in it."""
    costs: Costs
    figures: Mapping[str, Any]
    judged: tuple[Judged, ...]
    cores: int
    busy_cores: float
    ways: tuple[Way, ...] = ()
    """Of the learner, that were timed."""

    @property
    def choice(self) -> Judged:
        """What is recommended."""
        return recommended(self.judged)

    @property
    def command(self) -> str:
        """That runs it."""
        own, way = self.config.learn, self.way
        changes = {} if way is None else way.changes
        learner = {key: value for key, value in changes.items() if getattr(own, key.rpartition(".")[2]) != value}
        settings = without(self.settings, [*self.choice.plan.changes, *learner])
        settings += [f"{key}={value}" for key, value in learner.items()]
        changed = [word for setting in settings for word in ("--set", setting)]
        return f"{shlex.join(['headrace', 'train', self.name, *changed])} {self.choice.plan.flags}"

    @property
    def way(self) -> Way | None:
        """Of the learner, that is recommended; None: none was timed."""
        return best(self.ways, self.choice.plan, self.cores)


def in_words(report: Report) -> str:
    """The report as people read it."""
    parts = [list(_measured(report)), list(_table(report)), list(_ways(report)), list(_recommendation(report))]
    return "\n" + "\n\n".join("\n".join(part) for part in parts if part)


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    choice, calls = report.choice, report.figures["calls"]
    return {
        "recommended": _plan_json(choice.plan) | {"command": report.command, "measured": choice.measured is not None},
        "sentence": sentence(report),
        "config": report.name,
        "cores": report.cores,
        "busy_cores": round(report.busy_cores, 2),
        "step": {
            "count": calls["steps"], "cpu_s": report.costs.step_cpu_s, "mean_s": report.costs.mean_step_s,
            "median_s": calls["median_s"], "p99_s": calls["p99_s"], "max_s": calls["max_s"],
            "waits": report.costs.waits, "barrier": report.costs.barrier(_environments(report)),
        },
        "costs": {name: value for name, value in costs_json(report.costs).items() if name != "step_s"},
        "plans": [_judged_json(one) for one in report.judged],
        "learner": [asdict(way) for way in report.ways],
    }  # fmt: skip


def sentence(report: Report) -> str:
    """What to do, and why."""
    choice = report.choice
    inline = next((one for one in report.judged if one.plan.schedule == "inline" and _alike(one, choice)), None)
    limits = choice.expected.limits
    most = limiting(limits)
    limit = f"{_limit(choice.expected)} limits it ({limits[most]:.0%})"
    head = f"{choice.plan}"
    if choice.measured is None:
        head += ", by prediction alone"
    if choice is inline:
        return f"{head}: {_no_better(report, choice)}; {limit}"
    times = f"{choice.speed / inline.speed:.2g} times as fast as inline; " if inline is not None else ""
    exact = ", and learns bit for bit what inline learns" if choice.plan.schedule == "lockstep" else ""
    return f"{head}: {times}{limit}{exact}; {_more(report, choice)}"


def _alike(one: Judged, other: Judged) -> bool:
    """Whether two may be compared: both were measured, or neither."""
    return (one.measured is None) == (other.measured is None)


def _no_better(report: Report, choice: Judged) -> str:
    others = [one for one in report.judged if one is not choice and _alike(one, choice)]
    if not others:
        return "there is no other plan"
    best = max(others, key=lambda one: one.speed)
    times = best.speed / choice.speed
    if times < SAME:
        return f"{best.plan} is slower ({times:.2f} times as fast)"
    return f"{best.plan} is {times:.2f} times as fast, which is not worth its processes"


def _more(report: Report, choice: Judged) -> str:
    """Whether more collectors would make it faster, by prediction."""
    plan, speed = choice.plan, choice.prediction.pace.steps_per_s
    more = [
        one for one in report.judged if one.plan.schedule == plan.schedule and one.plan.collectors > plan.collectors
    ]
    groups = report.config.env.groups
    if plan.collectors >= groups:
        return f"it cannot have more collectors than groups of lanes ({groups}): see env.lanes and env.group_size"
    if not more:
        return f"more than {amount(plan.collectors, 'collector')} would only wait for each other's cores"
    best = max(more, key=lambda one: one.prediction.pace.steps_per_s)
    times = best.prediction.pace.steps_per_s / speed
    if times * SAME > 1.0:
        but = "it was not run: raise --check" if best.measured is None else "it was not so when it ran"
        return f"{best.plan} should be {times:.2g} times as fast again, but {but}"
    return f"beyond {amount(plan.collectors, 'collector')} {_limit(best.prediction)} limits"


def _limit(prediction: Prediction) -> str:
    part = limiting(prediction.limits)
    if part == "waiting":
        return f"waiting for {'a core' if prediction.for_cores > prediction.limits[part] / 2 else 'the slowest'}"
    return "writing rows" if part == "rows" else f"the {part}"


def _environments(report: Report) -> int:
    return report.config.env.lanes // report.config.agents.count


def _measured(report: Report) -> Iterator[str]:
    costs, calls, figures = report.costs, report.figures["calls"], report.figures
    size, updates = report.config.env.group_size, int(figures["spent"].get("update", [0])[0])
    yield (
        f"{report.name} on {amount(report.cores, 'core')}: {figures['lasted_s']:.1f} s timed under inline, "
        f"{amount(figures['transitions'], 'environment step')}, {amount(updates, 'update')}"
    )
    yield (
        f"  environment  a step takes {time(costs.mean_step_s)}, {time(costs.step_cpu_s)} of it processor time "
        f"(median {time(calls['median_s'])}, 99 % below {time(calls['p99_s'])}, longest {time(calls['max_s'])}); "
        f"a reset {time(costs.reset_s)}"
    )
    envs = _environments(report)
    if envs > 1:
        yield f"  barrier      the slowest of {envs} takes {costs.barrier(envs):.2f} times the mean"
    if costs.waits > WAITS:
        yield f"  cores        a step waits {costs.waits:.0%} of its time and leaves its core to others meanwhile"
    yield f"  policy       {time(costs.act_s)} for {amount(size, 'lane')}"
    yield f"  rows         {time(costs.row_s)} each, {time(costs.chunk_s)} a chunk"
    yield (
        f"  learner      an update takes {time(costs.update_s)}, to publish {time(costs.publish_s)}, "
        f"to take over a chunk {time(costs.commit_s)}"
    )
    busy = [report.busy_cores, *(one.busy_cores for one in report.judged if one.busy_cores is not None)]
    if max(busy) > _NOTED:
        told = " to ".join(dict.fromkeys(f"{cores:.1f}" for cores in (min(busy), max(busy))))
        yield (
            f"  note         other work had {told} cores meanwhile; what is predicted is for what it "
            f"left of them. Measure again with nothing beside it"
        )


def _table(report: Report) -> Iterator[str]:
    heads = "".join(f"{name:>13}" for name in _SHARES)
    width = max(len(str(one.plan)) for one in report.judged) + 2
    yield f"{'':<{width}}{'environment steps/s':>26}   limited by"
    yield f"{'plan':<{width}}{'predicted':>10}{'measured':>10}{'':>6} {heads}"
    for one in report.judged:
        limits = one.expected.limits
        measured = NOTHING if one.measured is None else _speed(one.measured.steps_per_s)
        error = "" if one.error is None else f"{one.error:+.0%}"
        shares = "".join(f"{limits[name]:>13.0%}" for name in _SHARES)
        why = f"   {one.why_not}" if one.why_not else ""
        yield f"{one.plan!s:<{width}}{_speed(one.expected.pace.steps_per_s):>10}{measured:>10}{error:>6} {shares}{why}"


def _ways(report: Report) -> Iterator[str]:
    for way in report.ways:
        if way.update_s is None:
            yield f"learner, {way}: {way.why_not}"
        else:
            yield f"learner, {way}: an update takes {time(way.update_s)}{'   <-' if way is report.way else ''}"


def _recommendation(report: Report) -> Iterator[str]:
    starts = [one.start_s for one in report.judged if one.start_s is not None]
    yield f"recommended: {sentence(report)}"
    yield f"  {report.command}"
    if starts:
        yield f"  to start takes {max(starts):.1f} s, which no speed here contains"


def time(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def _speed(steps_per_s: float) -> str:
    return f"{steps_per_s:,.0f}" if steps_per_s >= 10 else f"{steps_per_s:.2g}"


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {"schedule": plan.schedule, "collectors": plan.collectors if plan.schedule != "inline" else None}


def _judged_json(one: Judged) -> dict[str, Any]:
    predicted, measured = one.expected.pace, one.measured
    return {
        **_plan_json(one.plan),
        "predicted_steps_per_s": predicted.steps_per_s,
        "predicted_updates_per_s": predicted.updates_per_s,
        "measured_steps_per_s": None if measured is None else measured.steps_per_s,
        "measured_updates_per_s": None if measured is None else measured.updates_per_s,
        "error": one.error,
        "not_measured": one.why_not,
        "start_s": one.start_s,
        "busy_cores": None if one.busy_cores is None else round(one.busy_cores, 2),
        "limited_by": dict(one.expected.limits),
        "waiting_for_cores": one.expected.for_cores,
    }
