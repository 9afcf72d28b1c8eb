"""What the parent knows about a run while it goes on: counts, rates, metrics; for progress, files and the summary."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from headrace.core.clock import Clock, monotonic_ns
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.history import History
from headrace.runtime.progress import ComponentProgress, EvaluationPoint, OnProgress, Progress
from headrace.runtime.scores import EvaluationQueue
from headrace.telemetry.board import Activity, Board, SlotView, State
from headrace.telemetry.metrics import MetricsSink

_WINDOW_S = 5.0
_SHOW_EVERY_S = 0.25
_FINISHED = frozenset({Activity.SAMPLE, Activity.UPDATE, Activity.PUBLISH, Activity.CHECKPOINT, Activity.RECORD})
"""What a learner that is told to stop is left to finish: each has a limit of its own."""


def warnings_in(facts: Mapping[str, Any]) -> int | None:
    """How many warnings about the data stand; None where the learner does not look."""
    found = facts.get("warnings")
    return None if found is None else sum(one["severity"] == "warning" for one in found)


class Observer:
    """Collects what components report and hands it on.

    Args:
        config: Of the run.
        board: Read for what every component is doing.
        metrics: Where numbers over time go.
        evaluations: The evaluation queue.
        clock: Monotonic.
        on_progress: Called a few times a second; None: nobody looks.
        history: Of the run's earlier sessions; None: there are none.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        board: Board,
        metrics: MetricsSink,
        evaluations: EvaluationQueue,
        clock: Clock,
        on_progress: OnProgress | None,
        history: History | None = None,
    ) -> None:
        self._config = config
        self._board = board
        self._metrics = metrics
        self._evaluations = evaluations
        self._clock = clock
        self._on_progress = on_progress
        self.history = history or History()
        self._resume = self.history.point
        self._started_s = clock.now() - (self._resume.wall_s if self._resume is not None else 0.0)
        self._shown_s = -_SHOW_EVERY_S
        self._history: deque[tuple[float, int, int]] = deque()
        self._own_work: dict[str, tuple[float, int]] = {}
        self.learner: dict[str, Any] = {}
        """The learner's newest facts."""
        self.faults: Counter[str] = Counter(self.history.faults)
        """By kind, and ``restarts``."""
        self.lanes_lost = 0
        """Lanes the run goes on without."""
        self.message: str | None = None
        """The newest thing worth a sentence."""

    @property
    def lost_metrics(self) -> int:
        """Lines and TensorBoard records that could not be written in this session."""
        return self._metrics.lost

    @property
    def wall_s(self) -> float:
        """Seconds the run has lasted: this session, and what is kept of those before it."""
        return self._clock.now() - self._started_s

    @property
    def updates(self) -> int:
        """Gradient steps the learner has made, also if it died before it could report them."""
        counted = self._board.read("learner").counters["updates"]
        return counted or (self._resume.updates if self._resume is not None else 0)

    def on_facts(self, facts: Mapping[str, Any]) -> None:
        """The learner told its counts."""
        self.learner = dict(facts)
        now_s = self._clock.now()
        if self._history and facts["updates"] < self._history[-1][2]:  # a successor, which makes some again
            self._history.clear()
        self._history.append((now_s, facts["env_steps"], facts["updates"]))
        while len(self._history) > 2 and now_s - self._history[0][0] > _WINDOW_S:
            self._history.popleft()
        steps_per_s, updates_per_s = self.rates()
        values: dict[str, float | None] = {
            "rollout/ep_rew_mean": facts["mean_return"],
            "rollout/ep_len_mean": facts["mean_length"],
            "time/fps": steps_per_s,
            "headrace/updates_per_s": updates_per_s,
            "headrace/replay_ratio": facts["ratio"],
            "headrace/policy_lag": facts["lag"]["mean"],
            "headrace/policy_version": facts["version"],
            "headrace/episodes": facts["episodes"]["finished"],
            "headrace/lanes_lost": self.lanes_lost,
            **self._memory(),
            "headrace/data_warnings": warnings_in(facts),
            **_by_agent(facts.get("agents", {})),
            **{f"headrace/replay_ratio/{name}": ratio for name, ratio in facts.get("policy_ratios", {}).items()},
            **facts["values"],
        }
        self._metrics.write(facts["env_steps"], facts["updates"], self.wall_s, values)

    def rss_bytes(self, child_id: str) -> int:
        """Resident bytes of a component, as last sampled; 0 without a process."""
        return self._board.read(child_id).counters["rss_bytes"]

    def _memory(self) -> dict[str, float | None]:
        """Resident bytes of every component that has a process."""
        sizes = {view.id: view.counters["rss_bytes"] for view in self._board.read_all()}
        return {f"headrace/rss_bytes/{name}": size or None for name, size in sizes.items()}

    def on_evaluation(self, facts: Mapping[str, Any]) -> EvaluationPoint:
        """An evaluation was finished."""
        point = self._evaluations.finished(facts)
        values: dict[str, float | None] = {"eval/mean_reward": point.mean_reward}
        values |= {f"eval/{agent}/mean_reward": mean for agent, mean in (point.agents or {}).items()}
        if point.version is None:
            values = {"eval/random_mean_reward": point.mean_reward}
        self._metrics.write(point.env_steps or 0, None, self.wall_s, values)
        return point

    def stuck_in_environment(self, child_id: str, for_s: float) -> str | None:
        """The call of an environment a component has been in for so long, in words; None if it is in none."""
        view = self._board.read(child_id)
        inside_s = view.age_s(monotonic_ns())
        if view.activity not in {Activity.ENV_RESET, Activity.ENV_STEP, Activity.ENV_CLOSE} or inside_s < for_s:
            return None
        return f"{view.activity.label} (lane {view.lane}, since {inside_s:.1f} s)"

    def finishes(self, child_id: str) -> bool:
        """Whether a component is at work that has a limit of its own, and would be lost if it were not finished."""
        return self._board.read(child_id).activity in _FINISHED

    def views(self) -> list[SlotView]:
        """What every component is doing."""
        return self._board.read_all()

    def rates(self) -> tuple[float | None, float | None]:
        """Environment steps and updates per second over the last seconds; None without two reports."""
        if len(self._history) < 2 or self._history[-1][0] == self._history[0][0]:
            return None, None
        (t0, steps0, updates0), (t1, steps1, updates1) = self._history[0], self._history[-1]
        return (steps1 - steps0) / (t1 - t0), (updates1 - updates0) / (t1 - t0)

    def show(self, *, at_once: bool = False) -> bool:
        """Hand the present state to whoever looks, a few times a second at most; whether the run is to end."""
        now_s = self._clock.now()
        if self._on_progress is None or (now_s - self._shown_s < _SHOW_EVERY_S and not at_once):
            return False
        self._shown_s = now_s
        facts = self.learner or self._at_the_resume()
        steps_per_s, updates_per_s = self.rates()
        return bool(
            self._on_progress(
                Progress(
                    wall_s=self.wall_s,
                    env_steps=facts.get("env_steps", 0),
                    env_steps_target=self._config.run.steps,
                    updates=facts.get("updates"),
                    env_steps_per_s=steps_per_s,
                    updates_per_s=updates_per_s,
                    replay_ratio=facts.get("ratio"),
                    policy_lag=facts.get("lag", {}).get("mean"),
                    episodes=facts.get("episodes", {}).get("finished"),
                    mean_return=facts.get("mean_return"),
                    mean_length=facts.get("mean_length"),
                    components=tuple(self._component(view) for view in self._board.read_all()),
                    evaluations=tuple(self._evaluations.points),
                    random_baseline=self._evaluations.random_baseline,
                    message=self._told(),
                )
            )
        )

    def _at_the_resume(self) -> dict[str, Any]:
        """What is known before the learner has told anything."""
        if self._resume is None:
            return {}
        return {"env_steps": self._resume.env_steps, "updates": self._resume.updates}

    def _told(self) -> str | None:
        """The newest message; what the run goes on without stays with it, so that no later one hides it."""
        if not self.lanes_lost:
            return self.message
        return f"{self.message} (the run goes on without {self.lanes_lost} of {self._config.env.lanes} lanes)"

    def _component(self, view: SlotView) -> ComponentProgress:
        doing = view.state not in {State.EMPTY, State.ENDED, State.FAILED}
        return ComponentProgress(
            id=view.id,
            state=view.state.name.lower(),
            activity=view.activity.label if doing else None,
            since_s=view.age_s(monotonic_ns()) if doing else None,
            waits_on=view.waits_on,
            rate=self._rate(view),
        )

    def _rate(self, view: SlotView) -> float | None:
        """Its own work per second since the last look; None for those that have no such work."""
        counter = {"learner": "updates", "collector": "env_steps"}.get(view.kind)
        if counter is None:
            return None
        now_s, count = self._clock.now(), view.counters[counter]
        before = self._own_work.get(view.id)
        if before is None or now_s - before[0] > _WINDOW_S or count < before[1]:
            self._own_work[view.id] = (now_s, count)
        if before is None or now_s == before[0]:
            return None
        return max(0.0, (count - before[1]) / (now_s - before[0]))


def _by_agent(agents: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """What the episodes of each agent came to, as TensorBoard names it."""
    names = {"mean_return": "ep_rew_mean", "mean_length": "ep_len_mean", "episodes": "episodes"}
    return {f"rollout/{agent}/{name}": told[key] for agent, told in agents.items() for key, name in names.items()}
