"""A twin report as people and programs read it: pure functions from runs to sentences, tables and plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.cli.drawing import NOTHING, number
from headrace.runtime.comparing import Comparison, Estimate, Finding, seeds_needed
from headrace.runtime.twin import REFERENCE, SCHEDULES, Identity, Speed, TwinRun, Twins, bands, time_of
from headrace.telemetry.wording import amount, names

_FASTER = 1.05
"""Below this many times the speed of ``inline`` nobody would call it faster."""
_MOST_ROWS = 12
_SHORT = 16


def identity_sentence(identities: Sequence[Identity]) -> str:
    """Whether the one schedule that all of these are of came to the weights of ``inline``."""
    schedule = identities[0].schedule
    seeds = _seeds([one.seed for one in identities])
    other = [one.seed for one in identities if not one.equal]
    if not other:
        return f"{schedule} comes to the weights of inline, bit for bit ({seeds})"
    return f"{schedule} does NOT come to the weights of inline ({_seeds(other)}), and has to, bit for bit"


def learning_sentence(found: Comparison, steps: int) -> str:
    """Whether ``async`` learns what ``inline`` learns."""
    if found.difference is None:
        return f"cannot tell whether async learns what inline learns: {_without_scores(found)}"
    apart, after = _apart(found.difference), f"after {steps:,} steps, {amount(found.difference.count, 'seed')}"
    margin = f"±{number(found.margin)}" if found.margin is not None else None
    gained = f"inline gained {number(found.gain.mean)} over random play" if found.gain is not None else ""
    match found.finding:
        case Finding.SAME:
            return f"async learns what inline learns: {apart} {after}; {gained}, and up to {margin} counts as the same"
        case Finding.LESS | Finding.MORE:
            return f"async learns {found.finding.value} than inline: {apart} {after}" + (
                f"; {gained}" if gained else ""
            )
        case Finding.NOTHING_LEARNED:
            return (
                f"there is nothing to compare yet: inline itself is not shown to beat random play {after} "
                f"({_interval(found.gain)} better)"
            )
    doubt = (
        f"cannot tell with {amount(found.difference.count, 'seed')} whether async learns what inline learns: {apart}"
    )
    return f"{doubt} after {steps:,} steps{_why_undecided(found)}"


def speed_parts(twins: Twins, speed: Speed) -> list[str]:
    """How fast ``async`` is beside ``inline``, then what limits it, one piece each."""
    times = f"{speed.ratio:.2f} times as fast as inline in environment steps per second"
    if speed.ratio >= _FASTER:
        head = f"async is {times}"
    elif speed.ratio > 1 / _FASTER:
        head = f"async is as fast as inline and no faster ({speed.ratio:.2f} times)"
    else:
        head = f"async is slower than inline: {times}"
    return [head, *_limits(twins, speed)]


def verdict(twins: Twins) -> str:
    """The whole report in one sentence: whether parallel learns what sequential learns."""
    return "; ".join(_findings(twins))


def in_words(twins: Twins, marks: Sequence[int], difference: Mapping[str, Any] | None) -> str:
    """The report as people read it.

    Args:
        twins: All runs.
        marks: Environment steps at which they were evaluated.
        difference: Where ``inline`` and ``lockstep`` part, if they do: ``sentence``, ``seed``.
    """
    parts = []
    if twins.identities:
        parts.append(["must be equal: the weights", *_hashes(twins.identities)])
        if difference is not None:
            parts[-1].append(f"  first difference, seed {difference['seed']}: {difference['sentence']}")
    told = "mean return, with the lowest and the highest of all seeds"
    parts.append([told if "async" in twins.exact else f"may differ: {told}", *_curves(twins, marks)])
    if twins.learning is not None and twins.learning.difference is not None and not twins.proved:
        parts.append(["score: the mean of the evaluations in the last third of the steps", *_scores(twins)])
    parts.append(["speed", *_speeds(twins)])
    time = list(_times(twins))
    if time:
        parts.append(["time of every component, sampled while it trained", *time])
    parts.append(["verdict", *_verdict_lines(twins)])
    return "\n\n".join("\n".join(lines) for lines in parts)


def to_json(twins: Twins, difference: Mapping[str, Any] | None) -> dict[str, Any]:
    """The report as plain values."""
    learning, speed = twins.learning, twins.speed
    return {
        "verdict": verdict(twins),
        "identical": all(one.equal for one in twins.identities) if twins.identities else None,
        "first_difference": dict(difference) if difference is not None else None,
        "learning": None if learning is None else learning.to_json() | {"share": twins.share},
        "speed": None
        if speed is None
        else {
            "sentence": "; ".join(speed_parts(twins, speed)),
            "ratio": speed.ratio,
            "learning_share": speed.learning,
            "possible": speed.possible,
            "disturbed": speed.disturbed,
            "cores": twins.cores,
        },
        "steps": twins.steps,
        "collectors": twins.collectors,
        "runs": [_run_json(run, twins.steps) for run in twins.runs],
    }


def _run_json(run: TwinRun, steps: int) -> dict[str, Any]:
    kept = (
        "outcome", "weights_sha256", "wall_s", "env_steps", "updates", "replay_ratio", "policy_lag", "throughput",
        "restarts", "evaluations", "evaluations_skipped", "random_baseline",
    )  # fmt: skip
    told = {name: run.summary.get(name) for name in kept}
    time = [spent.to_json() for spent in run.spent]
    return {"schedule": run.schedule, "seed": run.seed, **told, "score": run.curve.score(steps), "time": time}


def _verdict_lines(twins: Twins) -> Iterator[str]:
    yield from (f"  {sentence}" for sentence in _findings(twins))
    if twins.speed is not None:
        head, *reasons = speed_parts(twins, twins.speed)
        yield f"  {head}"
        yield from (f"    {reason}" for reason in reasons)


def _findings(twins: Twins) -> Iterator[str]:
    yield from (identity_sentence(found) for found in _by_schedule(twins.identities))
    if twins.learning is not None and not twins.proved:
        yield learning_sentence(twins.learning, twins.steps)


def _by_schedule(identities: Sequence[Identity]) -> list[list[Identity]]:
    names = dict.fromkeys(one.schedule for one in identities)
    return [[one for one in identities if one.schedule == name] for name in names]


def _hashes(identities: Sequence[Identity]) -> Iterator[str]:
    for found in _by_schedule(identities):
        yield f"  {'seed':>6}  {'inline':<{_SHORT}}  {found[0].schedule}"
        for one in found:
            told = "equal" if one.equal else "DIFFERENT"
            yield f"  {one.seed:>6}  {one.reference[:_SHORT]}  {one.other[:_SHORT]}  {told}"


def _curves(twins: Twins, marks: Sequence[int]) -> Iterator[str]:
    shown = [schedule for schedule in SCHEDULES if twins.of(schedule)]
    drawn = {
        schedule: {mark: rest for mark, *rest in bands([run.curve for run in twins.of(schedule)], marks)}
        for schedule in shown
    }
    yield f"  {'steps':>12}" + "".join(f"  {schedule:>30}" for schedule in shown)
    for mark in _even_choice(marks):
        cells = [_band(drawn[schedule].get(mark)) for schedule in shown]
        yield f"  {mark:>12,}" + "".join(f"  {cell:>30}" for cell in cells)
    baselines = [curve.random for run in twins.of(REFERENCE) if (curve := run.curve).random is not None]
    if baselines:
        yield f"  {'random':>12}  {number(sum(baselines) / len(baselines)):>30}"


def _band(values: Sequence[float] | None) -> str:
    if values is None:
        return NOTHING
    mean, low, high = values
    return number(mean) if low == high else f"{number(mean)} ({number(low)} to {number(high)})"


def _scores(twins: Twins) -> Iterator[str]:
    yield f"  {'seed':>6}  {'inline':>12}  {'async':>12}  {'difference':>12}"
    for one, other in zip(twins.of(REFERENCE), twins.of("async"), strict=True):
        left, right = one.curve.score(twins.steps), other.curve.score(twins.steps)
        if left is not None and right is not None:
            yield f"  {one.seed:>6}  {number(left):>12}  {number(right):>12}  {number(right - left):>12}"


def _speeds(twins: Twins) -> Iterator[str]:
    yield f"  {'':<10}  {'runs':>4}  {'seconds each':>12}  {'env steps/s':>12}  {'updates/s':>12}  {'policy lag':>10}"
    for schedule in SCHEDULES:
        runs = twins.of(schedule)
        if runs:
            lag = _mean([(run.summary.get("policy_lag") or {}).get("mean") for run in runs])
            speeds = [
                _mean([(run.summary.get("throughput") or {}).get(key) for run in runs])
                for key in ("env_steps_per_s", "updates_per_s")
            ]
            wall = _mean([run.summary.get("wall_s") for run in runs])
            cells = [_figure(wall, ",.1f"), *(_figure(speed, ",.0f") for speed in speeds), _figure(lag, ".1f")]
            widths = (12, 12, 12, 10)
            row = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            yield f"  {schedule:<10}  {len(runs):>4}  {row}"


def _times(twins: Twins) -> Iterator[str]:
    for schedule in SCHEDULES:
        for kind in ("learner", "collector", "evaluator"):
            shares, cpu = time_of(twins.of(schedule), kind)
            if shares:
                used = "" if cpu is None else f"   ({cpu:.0%} of a core)"
                yield f"  {schedule:<10}{kind:<11}{_percentages(shares)}{used}"


def _limits(twins: Twins, speed: Speed) -> Iterator[str]:
    """Where the time goes, in the order in which it explains the speed."""
    if speed.disturbed is not None:
        yield (
            f"inline got {speed.disturbed:.0%} of a core: other work held the cores, so measure again with nothing beside it"
        )
    if speed.learning is not None and speed.possible is not None:
        cores = amount(twins.cores, "core")
        yield (
            f"inline spends {speed.learning:.0%} of its time learning, so {amount(twins.collectors, 'collector')} on "
            f"{cores} {'makes' if twins.collectors == 1 else 'make'} it {speed.possible:.2f} times as fast by overlapping alone"
        )
    if speed.ratio >= _FASTER:
        return
    for kind in ("learner", "collector"):
        shares, _ = time_of(twins.of("async"), kind)
        if shares:
            yield f"under async {'the learner' if kind == 'learner' else 'collectors'}: {_percentages(shares, most=2)}"
    used = [time_of(twins.of("async"), kind)[1] for kind in ("learner", "evaluator")]
    collectors = time_of(twins.of("async"), "collector")[1]
    known = [one for one in used if one is not None]
    if known and collectors is not None:
        yield f"its processes use {sum(known) + collectors * twins.collectors:.1f} of {amount(twins.cores, 'core')}"


def _percentages(shares: Mapping[str, float], most: int = 3) -> str:
    return ", ".join(f"{name} {part:.0%}" for name, part in list(shares.items())[:most])


def _why_undecided(found: Comparison) -> str:
    if found.difference is not None and found.difference.low is None:
        return "; one seed says nothing about the next: add --seeds 5"
    if found.margin is None:
        return "; without a gain over random play nothing says how much would be too much (evaluation.random_baseline)"
    assert found.difference is not None
    told = f", and up to ±{number(found.margin)} would count as the same"
    needed = seeds_needed(found.difference, found.margin)
    if needed is not None and needed > found.difference.count:
        told += f"; if differences go on like that, about {needed} seeds would show it"
    return told


def _without_scores(found: Comparison) -> str:
    return f"no finite evaluation in {names(found.missing)} (evaluation.episodes, evaluation.every_steps)"


def _apart(difference: Estimate) -> str:
    side = "better" if difference.mean > 0.0 else "worse" if difference.mean < 0.0 else "apart"
    if difference.low is None or difference.high is None:
        return f"{number(abs(difference.mean))} {side}"
    return f"{number(difference.mean)} apart ({number(difference.low)} to {number(difference.high)})"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return NOTHING
    return f"{number(estimate.mean)}, {number(estimate.low)} to {number(estimate.high)}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {names([str(seed) for seed in seeds])}"


def _even_choice(marks: Sequence[int]) -> list[int]:
    if len(marks) <= _MOST_ROWS:
        return list(marks)
    return [marks[round(place * (len(marks) - 1) / (_MOST_ROWS - 1))] for place in range(_MOST_ROWS)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _figure(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
