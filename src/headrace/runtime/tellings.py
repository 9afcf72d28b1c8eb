"""What components report, as events: kind, sentence, and whether whoever looks on is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Telling:
    """An event in the making."""

    kind: str
    text: str
    facts: Mapping[str, Any]
    tell: bool = False
    once: bool = False
    """Several components may find the same; it is told of the first."""


def telling(kind: str, facts: Mapping[str, Any]) -> Telling:
    """The event a report becomes.

    Args:
        kind: Of the report.
        facts: Of the report.
    """
    match kind:
        case "frozen":
            return Telling("policy", f"policy {facts['version']} at {facts['env_steps']:,} steps", facts)
        case "not_frozen":
            text = f"policy {facts['version']} could not be written, so it is not evaluated: {facts['problem']}"
            return Telling(kind, text, facts, tell=True)
        case "saved":
            text = f"checkpoint {facts['version']} at {facts['env_steps']:,} steps, {facts['updates']:,} updates"
            return Telling("checkpoint", text, facts)
        case "not_saved":
            return Telling(kind, f"a checkpoint could not be written: {facts['problem']}", facts, tell=True)
        case "record_lost":
            text = f"the record ends here, and training goes on without it: {facts['problem']}"
            return Telling(kind, text, facts, tell=True)
        case "not_restored":
            text = f"the episodes running in group {facts['group']} are cut: {facts['problem'].splitlines()[0]}"
            return Telling(kind, text, facts, tell=True)
        case "evaluated":
            name = "random actions" if facts["version"] is None else f"policy {facts['version']}"
            return Telling(kind, f"{name}: mean return {facts['mean_reward']:.2f}", facts)
        case "suspicious":
            kept = {"finding": facts["kind"], "severity": facts["severity"], "facts": facts["facts"]}
            return Telling(kind, facts["text"], kept, tell=facts["severity"] == "warning")
        case "ledger" | "cast":
            kept = {name: value for name, value in facts.items() if name != "text"}
            return Telling(kind, facts["text"], kept, tell=facts["severity"] == "warning", once=kind == "cast")
    return Telling(kind, kind, facts)
