"""What a run may be told, section by section: types, units, defaults, bounds.

Every section is frozen, refuses unknown keys and never converts a value silently.
The file format is TOML; `headrace.runtime.config` puts the sections together.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.core.errors import ConfigError


class Section(BaseModel):
    """Base of every section: frozen, strict, each field documented by the string below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class RunConfig(Section):
    """How long the run lasts, who runs when, and where it lives."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Every random stream of the run is derived from it."""
    schedule: Literal["inline", "lockstep", "async"] = "async"
    """inline: one process. lockstep: parallel and deterministic. async: free-running, recorded."""
    collectors: int = Field(default=2, ge=1, le=512)
    """Collector processes; they share the groups. Does not change results in inline and lockstep."""
    steps: int = Field(default=1_000_000, ge=1)
    """Environment steps, over all lanes, after which collecting ends (rounded up to a whole round of chunks)."""
    run_duration_s: float | None = Field(default=None, gt=0)
    """Wall-clock seconds after which the run ends in order; not set: no limit."""
    directory: str = "runs"
    """Folder in which a run directory is made when none is given."""


class EnvConfig(Section):
    """The environment, how many copies, and how they are grouped."""

    id: str | None = None
    """A Gymnasium id, e.g. ``Pendulum-v1`` or ``my_module:MyEnv-v0``."""
    factory: str | None = None
    """``module:function`` that returns a Gymnasium environment; instead of ``id``."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the factory or to ``gymnasium.make``."""
    lanes: int = Field(default=6, ge=1, le=4096)
    """Environment copies, each with its own random streams and ring of rows."""
    group_size: int = Field(default=1, ge=1, le=128)
    """Lanes that share one policy call. Part of the result; must divide ``lanes``."""
    max_episode_steps: int | None = Field(default=None, ge=1)
    """Truncate episodes after so many steps, on top of the environment's own limit."""
    cast_observations: bool = False
    """Convert observations whose dtype differs from the declared one, with one warning, instead of refusing them."""

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.lanes % self.group_size:
            raise ConfigError(
                "env.group_size does not divide env.lanes",
                lanes=self.lanes,
                group_size=self.group_size,
                fix="choose a group_size that divides lanes",
            )
        return self

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.lanes // self.group_size


class ReplayConfig(Section):
    """How experience is kept, and how fast each side may go."""

    capacity: int = Field(default=1_000_000, ge=2)
    """Rows kept over all lanes; the oldest of a lane leaves first."""
    learning_starts: int = Field(default=10_000, ge=0)
    """Environment steps stored before the first update."""
    ratio: float | None = Field(default=1.0, gt=0)
    """Gradient updates per environment step after ``learning_starts``; "free" is spelled by ``free_running``."""
    free_running: bool = False
    """async only: let collectors and learner run as fast as each can, whatever the ratio."""
    slack_steps: int | None = Field(default=None, ge=1)
    """async only: environment steps collection may be ahead of the ratio; not set: two rounds of chunks."""

    @model_validator(mode="after")
    def _would_wait_for_ever(self) -> Self:
        if self.learning_starts > self.capacity:
            raise ConfigError(
                "the learner would wait for ever: it starts after more steps than the replay can hold",
                learning_starts=self.learning_starts,
                capacity=self.capacity,
                fix="lower replay.learning_starts or raise replay.capacity",
            )
        return self


class CollectConfig(Section):
    """How collectors hand over what they collect."""

    chunk_steps: int = Field(default=32, ge=1, le=4096)
    """Environment steps per lane that are committed at once."""
    window_chunks: int = Field(default=2, ge=1, le=64)
    """async only: chunks a group may be ahead of what the learner has acknowledged."""
    random_steps: int = Field(default=10_000, ge=0)
    """Environment steps, over all lanes, at the start of a run whose actions are uniformly random."""
    threads: int = Field(default=1, ge=1, le=64)
    """Threads numpy and torch may use in each collector."""
    preload: list[str] = Field(default_factory=list)
    """Modules the fork server imports once, so that collectors need not."""


class LearnConfig(Section):
    """The learner process."""

    publish_every: int = Field(default=50, ge=1)
    """async only: updates between two published policies. The others publish once a round."""
    threads: int = Field(default=1, ge=1, le=256)
    """Threads torch may use in the learner. Part of the result."""
    device: str = "cpu"
    """torch device of the learner, e.g. ``cpu`` or ``cuda``."""


class EvaluationConfig(Section):
    """Evaluation of frozen policies in a process of its own."""

    every_steps: int = Field(default=10_000, ge=0)
    """Environment steps between evaluations; 0: only at the end."""
    episodes: int = Field(default=10, ge=0)
    """Complete episodes per evaluation, always the same seeds; 0: no evaluation at all."""
    random_baseline: bool = True
    """Also play the same episodes with uniformly random actions, once, for comparison."""


class DeadlinesConfig(Section):
    """Seconds an activity may take before the component that is busy with it is called stalled."""

    start_s: float = Field(default=60.0, gt=0)
    reset_s: float = Field(default=60.0, gt=0)
    step_s: float = Field(default=30.0, gt=0)
    update_s: float = Field(default=60.0, gt=0)
    wait_s: float = Field(default=120.0, gt=0)
    """Any wait on another component: rows, credits, a commit, weights."""
    evaluate_s: float = Field(default=600.0, gt=0)
    """One evaluation, all its episodes."""
    checkpoint_s: float = Field(default=60.0, gt=0)
    stop_s: float = Field(default=20.0, gt=0)
    """From the request to stop until the component has left."""


class SupervisionConfig(Section):
    """When a component that died is started again."""

    max_restarts: int = Field(default=5, ge=0)
    """Restarts of one component allowed within ``restart_window_s``; one more ends the run."""
    restart_window_s: float = Field(default=300.0, gt=0)
    backoff_s: float = Field(default=0.1, ge=0)
    """Pause before the first restart; doubles with each further one in the window."""
