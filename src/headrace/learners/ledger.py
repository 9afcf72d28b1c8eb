"""The ledger of learning: what was done beside what the configuration declares, and every mismatch in a sentence.

Pure: plain numbers in, entries out. `headrace.learners.ledgerbook` does the counting, `headrace.learners.intervals` finds
what can be known before a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.algorithms.exploration import scale_at
from headrace.learners.intervals import Sections, exploration_of, round_steps
from headrace.telemetry.wording import amount

_EXACT = 1e-9
"""Share by which numbers that are no counts may differ."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that is counted and declared."""

    name: str
    done: float
    declared: float
    tolerance: float
    """By how much they may differ while a run goes on; in which direction depends on the entry."""
    unit: str
    ok: bool
    sentence: str
    """Both numbers, in words."""
    remedy: str = ""
    """What to do if it is not ok."""

    def plain(self) -> dict[str, Any]:
        """As reports, events and ``summary.json`` have it."""
        return {
            "name": self.name,
            "done": self.done,
            "declared": self.declared,
            "tolerance": self.tolerance,
            "unit": self.unit,
            "ok": self.ok,
            "severity": "info" if self.ok else "warning",
            "text": self.sentence,
            "remedy": "" if self.ok else self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Tally:
    """How often something was done that is due at intervals."""

    done: int
    declared: int
    """How often it was due so far."""
    spare: int
    """How many more there may be, for reasons of their own."""

    @property
    def ok(self) -> bool:
        """Whether none is missing and none too many."""
        return self.declared <= self.done <= self.declared + self.spare


@dataclass(frozen=True, slots=True)
class Published:
    """What the newest published policy explores with."""

    version: int
    env_steps: int
    """Environment steps stored when it was published."""
    scale: float


@dataclass(frozen=True, slots=True)
class InUse:
    """The policy that a group's newest chunk was made with."""

    owner: str
    """Id of the component that steps the group."""
    group: int
    version: int
    least: int
    """The newest policy that was published before the chunk can have begun."""
    newest: int
    """The newest published policy."""


@dataclass(frozen=True, slots=True)
class Age:
    """How long ago a checkpoint was written."""

    s: float
    env_steps: int
    step_jump: int
    """Most environment steps that have arrived between two moments at which one could be written."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was counted; what has no source is None or empty, and then has no entry."""

    algorithm: Mapping[str, float]
    """From `headrace.algorithms.base.Algorithm.ledger`."""
    updates: int
    env_steps: int
    asked_updates: int | None = None
    """Updates the learner asked the algorithm for."""
    behind: int = 0
    """Updates that were missing when the learner took the place of another one."""
    published: Tally | None = None
    newest: Published | None = None
    evaluations: Tally | None = None
    checkpoint: Age | None = None
    in_use: Sequence[InUse] = ()
    fallen: Mapping[str, float] = field(default_factory=dict)
    """Counts of the algorithm that were higher before, and how high."""


def entries(facts: Facts, config: Sections) -> list[Entry]:
    """Every entry there is a source for, in a fixed order."""
    return [entry for rule in _RULES for entry in rule(facts, config)]


# One rule a function.


def _algorithm(facts: Facts, config: Sections) -> Iterator[Entry]:
    """Optimisers, targets and rates, by the names the algorithm gives them."""
    for name, done in facts.algorithm.items():
        declared = facts.algorithm.get(f"{name}_declared", facts.fallen.get(name))
        if declared is None or name.endswith("_declared"):
            continue
        ok = name not in facts.fallen and (done == declared or _rounded(done, declared))
        yield _kind_of(name)(name, done, declared, ok, facts, config)


def _moves(name: str, done: float, declared: float, ok: bool, facts: Facts, config: Sections) -> Entry:
    what = name.removesuffix("_moves").replace("_", " ")
    declares = _declares(config, "policy_delay", "target.every_updates")
    if getattr(config.algorithm, "rule", None) == "sbx":
        declares = 'algorithm.rule "sbx" declares'  # whatever the delay of the actor
    return Entry(
        name, done, declared, 0.0, "moves", ok,
        f"the {what} moved {amount(int(done), 'time')} in {amount(facts.updates, 'update')}; "
        f"{declares} {_number(declared)}{_fall(name, facts, '')}",
        "move each target network once per update that declares it, in one place (`FlatParameters.lerp_`); what was "
        "learned so far was learned with another speed of the targets",
    )  # fmt: skip


def _steps(name: str, done: float, declared: float, ok: bool, facts: Facts, config: Sections) -> Entry:
    what = name.removesuffix("_steps").replace("_", " ")
    delay = ("policy_delay",) if what == "actor" else ()
    return Entry(
        name, done, declared, 0.0, "steps", ok,
        f"the optimiser of the {what} has made {amount(int(done), 'step')} in {amount(facts.updates, 'update')}; "
        f"{_declares(config, *delay)} {_number(declared)}"
        f"{_fall(name, facts, ': it was made again, and its moments began anew')}",
        "step each optimiser once per update that declares it, and make it once, when the algorithm is built",
    )  # fmt: skip


def _optimisers(name: str, done: float, declared: float, ok: bool, facts: Facts, config: Sections) -> Entry:
    what = name.removesuffix("_optimisers").replace("_", " ")
    return Entry(
        name, done, declared, 0.0, "optimisers", ok,
        f"{amount(int(done), 'optimiser')} {'was' if done == 1 else 'were'} made for the {what}, where {_number(declared)} "
        f"is declared{'' if ok else ': each begins without moments'}",
        "make each optimiser once, when the algorithm is built; go on with its moments by `load_state`",
    )  # fmt: skip


def _lr(name: str, done: float, declared: float, ok: bool, facts: Facts, config: Sections) -> Entry:
    what = name.removesuffix("_lr").replace("_", " ")
    return Entry(
        name, done, declared, _EXACT * abs(declared), "", ok,
        f"the learning rate of the {what} is {_number(done)}; {_declares(config, name, f'{what}.lr', 'lr')} {_number(declared)}",
        "hand the configured rate to the optimiser, and leave it alone or declare the schedule it follows",
    )  # fmt: skip


def _other(name: str, done: float, declared: float, ok: bool, facts: Facts, config: Sections) -> Entry:
    return Entry(
        name, done, declared, 0.0, "", ok,
        f"{name} is {_number(done)} after {amount(facts.updates, 'update')}; {_declares(config)} {_number(declared)}",
        f"see where the algorithm counts {name}",
    )  # fmt: skip


_Kind = Callable[[str, float, float, bool, Facts, Sections], Entry]
_KINDS: Mapping[str, _Kind] = {"_moves": _moves, "_steps": _steps, "_optimisers": _optimisers, "_lr": _lr}


def _kind_of(name: str) -> _Kind:
    return next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), _other)


def _declares(config: Sections, *keys: str) -> str:
    """Who declares a number: the first of these settings that the algorithm has, with its value unless that is it."""
    for key in keys:
        value: Any = config.algorithm
        for part in key.split("."):
            value = getattr(value, part, None)
        if value is not None:
            return f"algorithm.{key}{'' if key.endswith('lr') else f' {_number(value)}'} declares"
    return "the algorithm declares"


def _fall(name: str, facts: Facts, meaning: str) -> str:
    before = facts.fallen.get(name)
    return "" if before is None else f"; the count has fallen from {_number(before)}{meaning}"


def _counted(facts: Facts, config: Sections) -> Iterator[Entry]:
    """Whether the algorithm counts its updates."""
    asked = facts.asked_updates
    if asked is not None:
        yield Entry(
            "updates_counted", facts.updates, asked, 0.0, "updates", facts.updates == asked,
            f"the algorithm counts {amount(facts.updates, 'update')}; the learner asked for {asked:,}",
            "count `updates` up by one in each call of the algorithm's `update`",
        )  # fmt: skip


def _ratio(facts: Facts, config: Sections) -> Iterator[Entry]:
    """Updates against the replay ratio; they may be behind by what is collected ahead of them, and never in front."""
    replay = config.replay
    starts = max(1, replay.learning_starts)
    if config.declared_ratio is None or replay.ratio is None or facts.env_steps < starts:
        return
    due = 1 + math.floor((facts.env_steps - starts) * replay.ratio)
    one = round_steps(config)
    ahead = math.ceil(((replay.slack_steps or 2 * one) + one) * replay.ratio) + 2
    tolerance = max(ahead, facts.behind)
    yield Entry(
        "updates", facts.updates, due, tolerance, "updates", due - tolerance <= facts.updates <= due,
        f"{amount(facts.updates, 'update')} in {amount(facts.env_steps, 'environment step')}; replay.ratio "
        f"{replay.ratio:g} from step {starts:,} on declares {due:,}, of which {tolerance:,} may be outstanding",
        "ask `headrace doctor` of this run what the learner waits for",
    )  # fmt: skip


def _published(facts: Facts, config: Sections) -> Iterator[Entry]:
    found = facts.published
    if found is None:
        return
    declared = f"learn.publish_every {config.learn.publish_every:,} declares {found.declared:,}, beside those for evaluations and checkpoints"
    if config.run.schedule != "async":
        declared = f"one after each round with updates is declared, {found.declared:,}"
    yield Entry(
        "policies_published", found.done, found.declared, found.spare, "policies", found.ok,
        f"{_policies(found.done)} published in {amount(facts.updates, 'update')}; {declared}",
        "keep the run directory and file a bug: collectors act with other policies than the configuration declares",
    )  # fmt: skip


def _exploration(facts: Facts, config: Sections) -> Iterator[Entry]:
    """What the newest policy explores with, against the schedule."""
    newest, exploration = facts.newest, exploration_of(config)
    if newest is None or exploration is None:
        return
    declared = scale_at(exploration, newest.env_steps)
    tolerance = _EXACT * abs(declared)
    yield Entry(
        "exploration_scale", newest.scale, declared, tolerance, "", abs(newest.scale - declared) <= tolerance,
        f"policy {newest.version:,} explores with scale {newest.scale:.4g}; algorithm.exploration declares {declared:.4g} "
        f"at step {newest.env_steps:,}, at which it was published",
        "set `exploration_scale` in the algorithm's `observe` and hand the same array out in `policy_arrays`",
    )  # fmt: skip


def _in_use(facts: Facts, config: Sections) -> Iterator[Entry]:
    """Whether published policies reach those who act: one entry if they do, else one for each who is left behind."""
    late: dict[str, InUse] = {}
    for found in facts.in_use:
        if found.version < found.least and found.version <= late.get(found.owner, found).version:
            late[found.owner] = found
    for owner, found in sorted(late.items()):
        yield Entry(
            f"policy_in_use/{owner}", found.version, found.least, 0.0, "version", ok=False,
            sentence=f"{owner} acts with policy {found.version:,} (group {found.group}) since "
            f"{amount(found.newest - found.version, 'publication')}, although policy {found.least:,} was there before its "
            "newest chunk began: new weights do not reach it",
            remedy=f"restart the run, or end {owner} so that it is replaced; if it comes again, keep the run directory and "
            "file a bug",
        )  # fmt: skip
    if facts.in_use and not late:
        oldest = min(facts.in_use, key=lambda found: found.version)
        yield Entry(
            "policy_in_use", oldest.version, oldest.least, 0.0, "version", ok=True,
            sentence=f"the oldest policy behind a group's newest chunk is {oldest.version:,}, of {oldest.owner}; the newest "
            f"published one is {oldest.newest:,}",
        )  # fmt: skip


def _evaluations(facts: Facts, config: Sections) -> Iterator[Entry]:
    found = facts.evaluations
    if found is not None:
        yield Entry(
            "evaluations", found.done, found.declared, found.spare, "policies", found.ok,
            f"{_policies(found.done)} frozen for evaluation up to step {facts.env_steps:,}; evaluation.every_steps "
            f"{config.evaluation.every_steps:,} declares {found.declared:,}, beside the one at the end",
            "keep the run directory and file a bug: evaluations are missing or made twice",
        )  # fmt: skip


def _checkpoints(facts: Facts, config: Sections) -> Iterator[Entry]:
    """How old the newest checkpoint is: it may become twice as old as declared, for one may take long to be written."""
    age, checkpoint = facts.checkpoint, config.checkpoint
    if age is None:
        return
    remedy = "see events.jsonl for checkpoints that could not be written: the disk may be full"
    if checkpoint.every_s is not None:
        tolerance = checkpoint.every_s + config.deadlines.checkpoint_s
        yield Entry(
            "checkpoint_age_s", round(age.s, 3), checkpoint.every_s, tolerance, "s", age.s <= checkpoint.every_s + tolerance,
            f"no checkpoint was written for {age.s:,.0f} s; checkpoint.every_s declares {checkpoint.every_s:g}", remedy,
        )  # fmt: skip
    if checkpoint.every_steps:
        tolerance = checkpoint.every_steps + 2 * age.step_jump
        yield Entry(
            "checkpoint_age_steps", age.env_steps, checkpoint.every_steps, tolerance, "environment steps",
            age.env_steps <= checkpoint.every_steps + tolerance,
            f"no checkpoint was written for {amount(age.env_steps, 'environment step')}; checkpoint.every_steps declares "
            f"{checkpoint.every_steps:,}", remedy,
        )  # fmt: skip


_RULES: tuple[Callable[[Facts, Sections], Iterator[Entry]], ...] = (
    _algorithm,
    _counted,
    _ratio,
    _published,
    _exploration,
    _in_use,
    _evaluations,
    _checkpoints,
)


def _rounded(one: float, other: float) -> bool:
    """Whether two numbers that are no counts are the same but for rounding."""
    counts = float(one).is_integer() and float(other).is_integer()
    return not counts and math.isclose(one, other, rel_tol=_EXACT, abs_tol=0.0)


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:g}"


def _policies(count: int) -> str:
    return "1 policy was" if count == 1 else f"{count:,} policies were"
