"""What a language-model run leaves as ``summary.json``: its counts, and whether its books balance. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from headrace.core.errors import ComponentStalled, DataLossError, HeadraceError
from headrace.llm.config import RLConfig
from headrace.runtime.config import config_sha256
from headrace.telemetry.events import is_number

_LAG = ("off_policy/mean", "off_policy/max", "batch/trained_tokens")
_PLACES = ("stale", "cancelled", "in_flight")


@dataclass(slots=True)
class Tally:
    """What the components have told so far."""

    steps: int = 0
    """Of the trainer, those of earlier sessions included."""
    batches: int = 0
    """Shipped by the orchestrator, likewise."""
    begun: int = 0
    """Steps that earlier sessions have made."""
    untrained: dict[int, int] = field(default_factory=dict)
    """Rollouts of the batches that are shipped and not trained on yet, by the step that trains on them."""
    version: int | None = None
    """Newest that was published."""
    weights_sha256: str | None = None
    books: dict[str, Any] | None = None
    """Of rollouts, as the orchestrator told them last."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    """By kind: died, stalled."""
    restarts: int = 0
    lag_sum: float = 0.0
    """Of all tokens, versions by which they were older than the policy that was trained on them, as the trainer measured."""
    lag_max: float | None = None
    tokens: float = 0.0
    """Trained on."""
    sft_steps: int = 0
    sft_loss: float | None = None

    @classmethod
    def going_on(cls, step: int) -> Self:
        """Of a session that goes on from a checkpoint, whose every step had its batch."""
        return cls(steps=step, batches=step, begun=step)

    def count_fault(self, kind: str) -> None:
        """A component has failed."""
        self.faults[kind] = self.faults.get(kind, 0) + 1

    def note_batch(self, step: int, rollouts: int) -> None:
        """The orchestrator has shipped what the trainer makes that step of."""
        self.batches = step
        if step > self.steps:
            self.untrained[step] = rollouts

    def settle(self) -> None:
        """The run is over: what was shipped and not trained on, as the books have it, is not trained."""
        left = sum(self.untrained.values())
        if self.books is not None and left:
            self.books = {**self.books, "trained": total(self.books.get("trained")) - left, "shipped": left}
        self.untrained = {}

    def note_evaluation(self, facts: Mapping[str, Any]) -> None:
        """A version was evaluated; where it had been before a resume, this is what counts."""
        version = facts.get("version")
        self.evaluations = [one for one in self.evaluations if one.get("version") != version]
        self.evaluations.append(dict(facts))
        self.evaluations.sort(key=lambda one: total(one.get("version")))

    def go_back(self, step: int) -> None:
        """A session goes on from the checkpoint of this step: what came after it is of a past that is forgotten."""
        self.evaluations = [one for one in self.evaluations if total(one.get("step")) <= step]
        self.alarms = [one for one in self.alarms if _step_of(one) <= step]

    def note_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The trainer has made a step."""
        self.steps = max(self.steps, step)
        self.untrained = {at: count for at, count in self.untrained.items() if at > self.steps}
        self.note_lag(metrics)

    def note_lag(self, metrics: Mapping[str, Any]) -> None:
        """How old the tokens of a step of the trainer were, by what it reported of it."""
        if all(is_number(metrics.get(name)) for name in _LAG):
            mean, most, tokens = (float(metrics[name]) for name in _LAG)
            self.lag_sum += mean * tokens
            self.tokens += tokens
            self.lag_max = max(most, self.lag_max or 0.0)


def audited(books: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The books of rollouts with ``balanced``; None if there are none."""
    if books is None:
        return None
    failed, filtered = total(books.get("failed")), total(books.get("filtered"))
    completed = total(books.get("completed"))
    ends = completed + failed + sum(total(books.get(place)) for place in _PLACES)
    parts = filtered + sum(total(books.get(place)) for place in ("trained", "shipped", "pending"))
    return {**books, "balanced": total(books.get("requested")) == ends and completed == parts}


def unbalanced(books: Mapping[str, Any]) -> DataLossError:
    """The error that ends a run whose books do not balance."""
    counts = {name: value for name, value in books.items() if name != "balanced"}
    return DataLossError(
        "the books of the rollouts do not balance",
        **counts,
        fix="keep the run directory and file a bug: this is never the user's fault",
    )


def outcome_of(error: HeadraceError | None, *, interrupted: bool) -> tuple[str, int]:
    """How a run ended, in a word and as an exit code. Exit code 3 alone is no standstill: refused data and weights have it too."""
    if error is not None:
        return ("stalled" if isinstance(error, ComponentStalled) else "failed"), error.exit_code
    return ("interrupted", 130) if interrupted else ("completed", 0)


def summarize(
    config: RLConfig, tally: Tally, error: HeadraceError | None, facts: Mapping[str, Any], *, interrupted: bool
) -> dict[str, Any]:
    """Put the summary together.

    Args:
        config: Of the run.
        tally: What the components told.
        error: Why the run failed.
        facts: ``run_id``, ``wall_s``, ``training_s``, ``culprit``, ``lost_lines``, ``sessions``.
        interrupted: Whether it was asked to end by a signal.
    """
    outcome, code = outcome_of(error, interrupted=interrupted)
    training_s = facts.get("training_s")
    books = audited(tally.books)
    return {
        "outcome": outcome,
        "error": str(error) if error is not None else None,
        "exit_code": code,
        "culprit": facts.get("culprit"),
        "kind": "language-model",
        "did": f"{tally.steps:,} steps of the trainer and {total((books or {}).get('requested')):,} rollouts",
        "run_id": facts["run_id"],
        "schedule": config.run.schedule,
        "seed": config.run.seed,
        "config_sha256": config_sha256(config),
        "wall_s": round(float(facts["wall_s"]), 3),
        "training_s": None if training_s is None else round(float(training_s), 3),
        "steps": tally.steps,
        "updates": tally.steps,
        "policy_version": tally.version,
        "weights_sha256": tally.weights_sha256,
        "books": books,
        "policy_lag": {
            "declared": float(config.orchestrator.max_policy_lag),
            "mean": tally.lag_sum / tally.tokens if tally.tokens else None,
            "max": tally.lag_max,
        },
        "evaluations": tally.evaluations,
        "alarms": tally.alarms,
        "faults": dict(tally.faults),
        "restarts": tally.restarts,
        "sft": {"steps": tally.sft_steps, "loss": tally.sft_loss} if tally.sft_steps else None,
        "throughput": {"steps_per_s": (tally.steps - tally.begun) / training_s if training_s else None},
        "lost_lines": {name: count for name, count in facts["lost_lines"].items() if count},
        "sessions": facts.get("sessions", 1),
    }


def _step_of(alarm: Mapping[str, object]) -> int:
    """The step that it belongs to: who collects speaks of steps that are made, and the alarm is of the one to come."""
    return total(alarm.get("step")) + (alarm.get("component") == "orchestrator")


def total(value: object) -> int:
    """A count, or the sum of counts by reason."""
    if isinstance(value, Mapping):
        return sum(int(count) for count in value.values())
    return int(value) if isinstance(value, int | float) else 0
