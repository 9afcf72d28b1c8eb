"""Where what happens in a language-model run is written and shown: events, metrics, lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.clock import Clock
from headrace.llm.launch.following import LogFollower
from headrace.llm.launch.summary import Tally, total
from headrace.llm.launch.wording import evaluation_line, step_line
from headrace.telemetry.events import EventLog
from headrace.telemetry.metrics import MetricsSink


@dataclass(frozen=True, slots=True)
class Line:
    """One line for whoever looks on."""

    at_s: float
    """Seconds since the run began."""
    component: str
    text: str
    weight: str = "log"
    """log: what a component printed. step, event, alarm: the launcher's own words."""


OnLine = Callable[[Line], None]

_TAKEN = {"kind": "what", "component": "of", "text": "words", "pid": "process", "t_s": "time_s", "tell": "told"}
"""Names that an event has already, and what facts of that name are called in it."""
_SFT_LINES = 20
"""Lines that a warm start is shown with; the metrics have every report."""


class Chronicle:
    """Writes what happens, keeps count, and shows it.

    Args:
        events: Of the run.
        metrics: Of the run.
        tally: Kept up to date.
        follower: Of the logs, which it also writes.
        clock: Monotonic.
        steps: The run is to have.
        on_line: Who looks on; None: nobody.
    """

    def __init__(
        self,
        events: EventLog,
        metrics: MetricsSink,
        tally: Tally,
        follower: LogFollower,
        clock: Clock,
        steps: int,
        on_line: OnLine | None,
    ) -> None:
        self._events, self._metrics, self.tally = events, metrics, tally
        self._follower, self._clock, self._steps = follower, clock, steps
        self._on_line = on_line
        self._sft_line = -1
        self.ended_early = False
        """Whether whoever looks on wants the run to end."""

    @property
    def wall_s(self) -> float:
        """Seconds since the run began."""
        return self._clock.now() - self._events.started_s

    @property
    def lost_lines(self) -> dict[str, int]:
        """What could not be written, by file."""
        return {"events": self._events.lost, "metrics": self._metrics.lost, "logs": self._follower.lost}

    def say(
        self, kind: str, component: str, text: str, *, pid: int | None = None, tell: bool = False, **facts: object
    ) -> None:
        """Write an event; ``tell``: also show it."""
        self._events.emit(kind, component, text, pid=pid if pid is not None else os.getpid(), **facts)
        if tell:
            self.show(component, text, "event")

    def show(self, component: str, text: str, weight: str = "log") -> None:
        """Show a line, and put it into the component's log, unless it comes from there: a run can be followed by its files."""
        if weight != "log":
            self._follower.write(component, f"{self.wall_s:8.1f} s  {'! ' if weight == 'alarm' else ''}{text}")
        if self._on_line is not None:
            self._on_line(Line(self.wall_s, component, text, weight))

    def follow(self, *ended: str) -> None:
        """Show what the components have printed since the last call; of those that have ended also an unfinished last line."""
        if self._on_line is None:
            return
        for component, text in self._follower.lines(*ended):
            self.show(component, text)

    def report(self, component: str, kind: str, facts: Mapping[str, Any]) -> None:
        """A component has told something."""
        match kind:
            case "step":
                self._on_step(component, facts)
            case "batch":
                self._on_batch(component, facts)
            case "evaluation":
                self._on_evaluation(component, facts)
            case "rollout_books":
                self._on_books(facts)
            case "alarm":
                self._on_alarm(component, facts)
            case "sft":
                self._on_sft(component, facts)
            case _:
                self.say(kind, component, str(facts.get("text", kind)), **_free(facts))

    def take_over(self, facts: Mapping[str, Any]) -> None:
        """Last facts of a component: what of them belongs into the summary."""
        books = facts.get("rollout_books") or facts.get("books")
        if isinstance(books, Mapping):
            self.tally.books = dict(books)
        for name in ("version", "weights_sha256"):
            if facts.get(name) is not None:
                setattr(self.tally, name, facts[name])
        if isinstance(facts.get("sha256"), str):
            self.tally.weights_sha256 = facts["sha256"]

    def done(self, component: str, facts: Mapping[str, Any]) -> None:
        """A component has done its work. Of a warm start that is an event: whoever goes on with the run makes none."""
        self.take_over(facts)
        steps, loss = facts.get("sft_steps"), facts.get("loss")
        if steps and isinstance(loss, int | float):
            self.tally.sft_steps, self.tally.sft_loss = int(steps), float(loss)
            self.say("tuned", component, f"warm start of {steps:,} steps, loss {loss:.4f}", steps=steps, loss=loss)

    def _on_step(self, component: str, facts: Mapping[str, Any]) -> None:
        metrics = dict(facts.get("metrics", {}))
        step = int(facts["step"])
        self.tally.note_step(step, metrics)
        self.take_over(facts)
        self._metrics.write(step, step, self.wall_s, _numbers(metrics))
        self.show(component, step_line(step, self._steps, metrics, component), "step")

    def _on_batch(self, component: str, facts: Mapping[str, Any]) -> None:
        metrics = dict(facts.get("metrics", {}))
        step = int(facts["step"]) + 1  # the trainer counts steps that are made, the orchestrator those to be made
        self.tally.note_batch(step, int(metrics.get("batch/samples", 0)))
        self._metrics.write(step, self.tally.steps, self.wall_s, _numbers(metrics))
        self.show(component, step_line(step, self._steps, metrics, "orchestrator"), "step")

    def _on_books(self, facts: Mapping[str, Any]) -> None:
        self.tally.books = dict(facts)
        counts = {f"books/{name}": total(value) for name, value in facts.items()}
        self._metrics.write(self.tally.batches, self.tally.steps, self.wall_s, _numbers(counts))

    def _on_evaluation(self, component: str, facts: Mapping[str, Any]) -> None:
        self.tally.note_evaluation(facts)
        step = int(facts.get("step", 0))
        values = {f"eval/{name}": facts.get(name) for name in ("win_rate", "mean_reward", "low", "high")}
        self._metrics.write(step, self.tally.steps, self.wall_s, _numbers(values))
        self.say("evaluated", component, evaluation_line(facts), tell=True, **_free(facts))

    def _on_alarm(self, component: str, facts: Mapping[str, Any]) -> None:
        self.tally.alarms.append({"component": component, **facts})
        text = str(facts.get("text", facts.get("kind", "alarm")))
        self.say("alarm", component, text, **_free(facts))
        self.show(component, text, "alarm")

    def _on_sft(self, component: str, facts: Mapping[str, Any]) -> None:
        step, loss, steps = int(facts.get("step", 0)), facts.get("loss"), int(facts.get("steps", 0))
        self.tally.sft_steps = max(self.tally.sft_steps, step)
        if isinstance(loss, int | float):
            self.tally.sft_loss = float(loss)
            self._metrics.write(step, None, self.wall_s, {"sft/loss": float(loss)})
        if not steps or step * _SFT_LINES // steps > self._sft_line:
            self._sft_line = step * _SFT_LINES // steps if steps else 0
            of = f"SFT step {step}/{steps}" if steps else f"SFT step {step}"
            self.show(component, f"{of} | Loss {loss:.4f}" if loss is not None else of, "step")


def _free(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts under names that an event does not have already."""
    return {_TAKEN.get(name, name): value for name, value in facts.items() if name != "text"}


def alarm_of(event: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary says of an alarm, of the event that it was written as."""
    names = {ours: name for name, ours in _TAKEN.items()}
    facts = {names.get(name, name): value for name, value in event.items() if name not in _TAKEN}
    return {"component": event.get("component"), **facts, "text": event.get("text")}


def _numbers(values: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        name: float(value) for name, value in values.items() if isinstance(value, int | float) and value is not None
    }
