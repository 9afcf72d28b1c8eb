"""What a run leaves as ``summary.json``: its counts, and whether its books balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headrace.core.errors import DataLossError
from headrace.lanes.replay import LaneBooks, balanced
from headrace.runtime.config import ExperimentConfig, config_sha256
from headrace.runtime.scores import EvaluationQueue


def audit(books: LaneBooks | None, lanes: int) -> dict[str, Any]:
    """The books of all lanes, in total and one by one.

    Args:
        books: None if the run ended before there were lanes.
        lanes: Their number.
    """
    if books is not None:
        for lane in range(lanes):
            books.settle(lane)  # the learner may have been killed in the middle of a change
    each = [books.lane(lane) for lane in range(lanes)] if books is not None else []
    names = ["produced", "committed", "salvaged", "evicted", "resident", "in_flight"]
    names += ["consumed"] if each and "consumed" in each[0] else []
    total: dict[str, Any] = {name: sum(lane[name] for lane in each) for name in names}
    rejected = sum(lane["rejected"] for lane in each)
    total["rejected"] = {"not_finite": rejected} if rejected else {}
    total["balanced"] = all(balanced(lane) for lane in each)
    total["lanes"] = each
    return total


def unbalanced(books: Mapping[str, Any]) -> DataLossError:
    """The error that names the first lane whose books do not balance."""
    lane, counts = next((number, lane) for number, lane in enumerate(books["lanes"]) if not balanced(lane))
    return DataLossError(
        f"the books of lane {lane} do not balance",
        **counts,
        fix="keep the run directory and file a bug: this is never the user's fault",
    )


def summarize(
    config: ExperimentConfig,
    outcome: Mapping[str, Any],
    learner: Mapping[str, Any],
    books: Mapping[str, Any] | None,
    evaluations: EvaluationQueue,
    faults: Mapping[str, int],
    resumes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Put the summary together.

    Args:
        config: Of the run.
        outcome: ``outcome``, ``error``, ``culprit``, ``exit_code``, ``updates``, ``wall_s``, ``training_s``, ``degraded``,
            ``lost_lines`` (by file; what a full disk cost).
        learner: The learner's last facts; empty if it never told any.
        books: From `audit`; None if a resumed run ended before its experience was there again.
        evaluations: All of them.
        faults: By kind, and ``restarts``, of all sessions.
        resumes: Where each session but the first began and what was lost by that, oldest first.
    """
    begun = resumes[-1] if resumes else {"env_steps": 0, "updates": 0}
    env_steps = books["committed"] + books["salvaged"] if books is not None else begun["env_steps"]
    return {
        "outcome": outcome["outcome"],
        "error": outcome["error"],
        "culprit": outcome["culprit"],
        "exit_code": outcome["exit_code"],
        "schedule": config.run.schedule,
        "collectors": config.run.collectors if config.run.schedule != "inline" else 0,
        "seed": config.run.seed,
        "config_sha256": config_sha256(config),
        "wall_s": round(outcome["wall_s"], 3),
        "env_steps": env_steps,
        "updates": outcome["updates"],
        "books": dict(books) if books is not None else None,
        **_told_by(learner),
        "warnings": [*learner.get("warnings", []), *_nothing_learned(config, outcome, env_steps)],
        "replay_ratio": _ratio(config, learner),
        "faults": {kind: count for kind, count in faults.items() if kind != "restarts"},
        "restarts": faults.get("restarts", 0),
        "degraded": outcome["degraded"],
        "lost_lines": {file: count for file, count in outcome["lost_lines"].items() if count},
        "throughput": _throughput(
            env_steps - begun["env_steps"], outcome["updates"] - begun["updates"], outcome["training_s"]
        ),
        **_evaluations(evaluations),
        "sessions": 1 + len(resumes),
        "resumes": [dict(one) for one in resumes],
    }


def _told_by(learner: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "episodes": learner.get("episodes"),
        "ledger": learner.get("ledger", []),
        "policy_lag": learner.get("lag"),
        "policy_version": learner.get("version"),
        "first_update_at": learner.get("first_update_at"),
        "weights_sha256": learner.get("weights_sha256"),
    }


def _nothing_learned(config: ExperimentConfig, outcome: Mapping[str, Any], env_steps: int) -> Iterator[dict[str, Any]]:
    """What to tell of a run that ended as declared and has learned nothing; as `headrace.learners.evidence.Finding`."""
    if outcome["outcome"] != "completed" or outcome["updates"] or not env_steps:
        return
    why = "make the run longer"
    if config.rollout.whole_episodes:
        why = "rollout.whole_episodes trains on episodes that are over, and none was; make the run longer, or set it to false"
    text = f"no update was made in {env_steps:,} environment steps: {why}"
    yield {"kind": "no_update", "severity": "warning", "text": text, "facts": {"env_steps": env_steps}}


def _ratio(config: ExperimentConfig, learner: Mapping[str, Any]) -> dict[str, float | None]:
    return {"declared": config.declared_ratio, "measured": learner.get("ratio")}


def _throughput(env_steps: int, updates: int, training_s: float | None) -> dict[str, float | None]:
    """Of this session."""
    return {
        "env_steps_per_s": env_steps / training_s if training_s else None,
        "updates_per_s": updates / training_s if training_s else None,
    }


def _evaluations(queue: EvaluationQueue) -> dict[str, Any]:
    """Of all sessions."""
    return {
        "evaluations": [asdict(point) for point in queue.points],
        "evaluations_skipped": queue.skipped,
        "random_baseline": asdict(queue.random_baseline) if queue.random_baseline else None,
    }
