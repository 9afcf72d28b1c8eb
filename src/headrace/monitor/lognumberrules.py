"""What the numbers of a log say by themselves, apart from any time."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.monitor.logfindings import Finding, Severity, WatchLimits, number
from headrace.monitor.lognumbers import (
    BY_ITSELF_STILL,
    EPISODES,
    LOSSES,
    SCORES,
    STEPS,
    STORES,
    UPDATES,
    Numbers,
    Series,
)
from headrace.monitor.logphrases import leaf

MOST_NAMED = 5
"""Findings of one rule that are told apart; the rest would only hide them."""


def not_updating(numbers: Numbers, limits: WatchLimits) -> Iterator[Finding]:
    """Updates stand still while episodes or steps go on."""
    for series in numbers.called(UPDATES):
        if not stands_still(series, limits):
            continue
        start = series.run_start()
        grown = numbers.grown_since(start, (EPISODES, STEPS))
        if grown is None or grown[0] == series.name:
            continue
        stores = [store for store in numbers.called(STORES) if store.run >= limits.still_readings]
        where = "".join(f"; {store.name} stands at {number(store.last)}" for store in stores[:2])
        never = series.last == 0 and series.highest == 0
        yield Finding(
            kind="not-training",
            subject=series.name,
            severity=Severity.ERROR,
            sentence=f"{series.name}={number(series.last)} in the last {series.run:,} readings while {went(grown)}: "
            f"{'training has never begun' if never else 'training has stopped'}{where}",
            remedy="episodes are played but do not reach the trainer: look at whatever moves rows from the collectors'"
            " queue into the buffer (is that thread or process alive?), then compare the number of rows that training"
            " waits for with what the buffer holds and can hold",
        )


def constant(numbers: Numbers, limits: WatchLimits) -> Iterator[Finding]:
    """Losses and scores that have one value only, as a stand-in for something that failed would."""
    named = 0
    for series in numbers.series.values():
        name = leaf(series.name)
        is_loss, is_score = bool(LOSSES.fullmatch(name)), bool(SCORES.fullmatch(name)) or name.startswith("burned")
        if BY_ITSELF_STILL.fullmatch(name) or not (is_loss or is_score) or not stands_still(series, limits):
            continue
        named += 1
        if named > MOST_NAMED:
            return
        yield Finding(
            kind="constant",
            subject=series.name,
            severity=Severity.WARNING,
            sentence=f"{series.name} is exactly {number(series.last)} in "
            + (
                f"all {series.run:,} readings"
                if series.run == series.count
                else f"the last {series.run:,} readings; it had other values before"
            ),
            remedy="a loss that never moves is one that nobody computes: find where it is logged, and whether an update"
            " happens at all"
            if is_loss
            else "look for a place that puts a fixed value where something failed (an except branch, a time-out, a"
            " stand-in environment), and print what the environment really returns",
        )


def not_finite(numbers: Numbers) -> Iterator[Finding]:
    """NaN and infinity, the name that had them first leading."""
    broken = [series for series in numbers.series.values() if series.not_finite]
    for series in sorted(broken, key=lambda each: each.not_finite_line)[:MOST_NAMED]:
        yield Finding(
            kind="not-finite",
            subject=series.name,
            severity=Severity.ERROR,
            sentence=f"{series.name} is {series.last} since line {series.not_finite_line}"
            f" ({series.not_finite:,} reading{'s' if series.not_finite > 1 else ''})",
            remedy="stop here: what is trained from now on is lost. Go back to a checkpoint from before that line, and"
            " check rewards and observations for values that are not finite",
        )


def stands_still(series: Series, limits: WatchLimits, times: int = 1) -> bool:
    """Whether a number has not moved for much longer than it ever did before."""
    return series.run >= max(times * limits.still_readings, 3 * series.longest_run)


def went(grown: tuple[str, float, float]) -> str:
    """The way a counter went, in words."""
    name, before, now = grown
    return f"{name} went from {number(before)} to {number(now)}"
