"""Reports of the components as lines that people read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.llm.config import RLConfig

_Form = tuple[str, str, str, float]
_TRAINER: tuple[_Form, ...] = (
    ("time/step", "Time", "{:.2f} s", 1.0),
    ("loss/mean", "Loss", "{:.4f}", 1.0),
    ("entropy/mean", "Entropy", "{:.3f}", 1.0),
    ("mismatch_kl/mean", "Mismatch KL", "{:.1e}", 1.0),
    ("optim/grad_norm", "Grad. Norm", "{:.3f}", 1.0),
    ("optim/lr", "LR", "{:.2e}", 1.0),
    ("is_clipped/mean", "Clipped", "{:.1f} %", 100.0),
    ("off_policy/max", "Off-Policy", "{:.0f} max", 1.0),
    ("perf/tokens_per_s", "Throughput", "{:,.0f} tokens/s", 1.0),
    ("time/wait_for_batch", "Waited", "{:.2f} s", 1.0),
)
_ORCHESTRATOR: tuple[_Form, ...] = (
    ("time/generate", "Time", "{:.2f} s", 1.0),
    ("train/reward/mean", "Reward", "{:.3f}", 1.0),
    ("train/win_rate", "Win", "{:.1f} %", 100.0),
    ("batch/effective_groups", "Effective groups", "{:.0f}", 1.0),
    ("batch/filtered", "Filtered", "{:.0f}", 1.0),
    ("batch/failed", "Failed", "{:.0f}", 1.0),
    ("batch/retried", "Retried", "{:.0f}", 1.0),
    ("batch/stale", "Stale", "{:.0f}", 1.0),
    ("batch/cancelled", "Cancelled", "{:.0f}", 1.0),
    ("time/wait_for_policy", "Waited", "{:.2f} s", 1.0),
)


def step_line(step: int, steps: int, metrics: Mapping[str, Any], component: str) -> str:
    """``Step 12/250 | Time 0.42 s | Loss 0.0123 | …``: what is not measured is left out.

    Args:
        step: Its number.
        steps: Of the run.
        metrics: By their names in TensorBoard.
        component: ``trainer``, ``orchestrator`` or ``twin``, which is both.
    """
    forms = {"trainer": _TRAINER, "orchestrator": _ORCHESTRATOR}.get(component, (*_ORCHESTRATOR[1:], *_TRAINER))
    parts = [f"Step {step}/{steps}"]
    for name, title, form, factor in forms:
        value = metrics.get(name)
        if isinstance(value, int | float):
            parts.append(f"{title} {form.format(value * factor)}")
    return " | ".join(parts)


def stage_line(ids: Sequence[str], config: RLConfig) -> str:
    """What is begun with the start of these components, and how long that may take before it counts as stalled.

    Args:
        ids: Started together; none: what they need is imported.
        config: Of the run.
    """
    start_s = f"{config.deadlines.start_s:g} s"
    first = ids[0] if ids else ""
    if not ids:
        return f"imports torch and transformers, once for all components: seconds, the first time a minute; at most {start_s}"
    if first == "warm-start":
        steps = config.sft.steps_to_make
        made = "reads model and tokenizer" if config.model.path else "makes model and tokenizer"
        taught = f", learns from demonstrations for {steps:,} steps" if steps else ""
        return f"warm-start {made}{taught}, publishes version 0; at most {config.deadlines.warm_start_s:g} s"
    if first == "inference":
        return f"inference loads the newest weights and has to generate a token before it is called ready; at most {start_s}"
    return f"{' and '.join(ids)} begin: {config.run.steps:,} steps; each says what it does from its first one on"


def evaluation_line(facts: Mapping[str, Any]) -> str:
    """``evaluation of version 40: 85.0 % won (79.1 to 90.2 %), mean reward 1.32, 120 episodes``."""
    interval = ""
    if isinstance(facts.get("low"), int | float) and isinstance(facts.get("high"), int | float):
        interval = f" ({100 * facts['low']:.1f} to {100 * facts['high']:.1f} %)"
    reward = facts.get("mean_reward")
    mean = f", mean reward {reward:.3f}" if isinstance(reward, int | float) else ""
    won = facts.get("win_rate")
    rate = f"{100 * won:.1f} % won" if isinstance(won, int | float) else "no win rate"
    return f"evaluation of version {facts.get('version')}: {rate}{interval}{mean}, {facts.get('episodes', 0)} episodes"
