"""What a run may be told, section by section: types, units, defaults, bounds.

Every section is frozen, refuses unknown keys and never converts a value silently.
The file format is TOML; `headrace.runtime.config` puts the sections together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from headrace.core import toml
from headrace.core.errors import ConfigError
from headrace.core.refusals import refusal


class Section(BaseModel):
    """Base of every section: frozen, strict, each field documented by the string below it.

    Raises:
        ConfigError: A key is unknown, or a value has the wrong type or is out of bounds. The message names the
            dotted key as seen from the section that was constructed, the value and the bound.
    """

    # Not `use_attribute_docstrings`: a fifth of what an import takes; see `headrace.core.refusals`.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, *positional: Any, **values: Any) -> None:
        if positional:
            raise ConfigError(
                f"{type(self).__name__} is given its keys by name",
                found=", ".join(map(repr, positional))[:200],
                fix="write name=value; what is trained in, and for how long, goes to headrace.train(env=..., algorithm=..., steps=...)",
            )
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise refusal(type(self), error, values) from None

    # A section inside a section must not come through the `__init__` above: it would raise with a path that
    # starts in the middle. pydantic skips an `__init__` that carries this mark, as its own does.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """As pydantic's, but refuses with a `ConfigError`."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise refusal(cls, error, obj) from None


Arguments = Annotated[dict[str, Any], AfterValidator(toml.as_read_back)]
"""Of a factory of the user's, as ``config.toml`` can hold them."""


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


_MOST_WORKERS = 256


class EnvConfig(Section):
    """The environment, how many copies, and how they are grouped."""

    id: str | None = None
    """A Gymnasium id, e.g. ``Pendulum-v1`` or ``my_module:MyEnv-v0``."""
    factory: str | None = None
    """``module:function`` that returns a Gymnasium environment; instead of ``id``."""
    kwargs: Arguments = Field(default_factory=dict)
    """Passed to the factory or to ``gymnasium.make``."""
    lanes: int = Field(default=6, ge=1, le=4096)
    """Environment copies, each with its own random streams and ring of rows."""
    group_size: int = Field(default=1, ge=1, le=128)
    """Lanes that share one policy call. Part of the result; must divide ``lanes``."""
    max_episode_steps: int | None = Field(default=None, ge=1)
    """Truncate episodes after so many steps, on top of the environment's own limit. An environment whose class
    has a method ``truncate_after`` is handed the number as well: one that pays in the last step of an episode has to know which one
    that is. Wrappers with a ``step`` of their own may count otherwise: they are handed it if they have the method, and nobody in them."""
    continuing: bool = False
    """Episodes are not expected to end; without it a long run in which none ends is warned about."""
    frame_stack: int = Field(default=1, ge=1, le=64)
    """Frames a policy sees at once, oldest first; stored once, stacked when read."""
    cast_observations: bool = False
    """Convert observations whose dtype differs from the declared one, and say so once, instead of refusing them."""
    workers: int | Literal["auto"] = Field(default=0)
    """Processes of each collector that step its environments while it acts for all of them; ``"auto"`` measures what
    pays. An environment that hangs or dies there is replaced alone. 0: the collector steps them itself."""
    on_fault: Literal["replace", "raise"] = "replace"
    """With ``workers``: what follows when an environment raises, breaks its contract or returns what is not finite.
    replace: its episode is cut, and another one takes its place. raise: its collector ends, as without workers."""

    @model_validator(mode="after")
    def _workers_fit(self) -> Self:
        if self.workers == "auto" or 0 <= self.workers <= _MOST_WORKERS:
            return self
        raise ConfigError(
            f'env.workers must be "auto", or from 0 to {_MOST_WORKERS}',
            value=self.workers,
            fix="give it the number of cores that a collector may use",
        )

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


def factory_name(factory: Callable[..., object]) -> str:
    """``module:function`` of a callable, for ``env.factory`` and for messages when an object was handed over."""
    function = getattr(factory, "func", factory)  # functools.partial
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}:{owner.__qualname__}"


def is_of_its_program(where: str | None) -> bool:
    """Whether a `factory_name` tells nothing to other programs: of a main module, of a lambda or of a local function.

    Another main module may well have something of that name, which is something else.
    """
    module, _, function = (where or "").partition(":")
    return module in {"__main__", "__mp_main__"} or "<" in function


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
    n_step: int = Field(default=1, ge=1, le=64)
    """Rewards summed before the bootstrap; derived when a batch is gathered."""
    slack_steps: int | None = Field(default=None, ge=1)
    """async only: environment steps collection may be ahead of the ratio; not set: as few as keep the learner busy, one
    round of chunks to two. While no lane holds the rows of an ``n_step`` transition, more are collected."""


class RolloutConfig(Section):
    """On-policy algorithms only: how what was collected becomes rollouts, of which each step is trained on in one epoch set.

    A rollout is one chunk of every group: ``collect.chunk_steps`` steps of every lane.
    """

    max_policy_lag: int = Field(default=0, ge=0, le=64)
    """async only: versions by which the policy that chose an action may be older than the one that learns from it. 0:
    strictly on-policy, and what is learned is the same under every schedule; above, collectors go on meanwhile."""
    order: Literal["chunk", "arrival"] = "chunk"
    """async only. chunk: a rollout is made of the chunks of one number, whoever was first. arrival: of those that were there
    first, however slow another group is; such a run is not repeated by another one."""
    whole_episodes: bool = False
    """Train on episodes that are over, and keep what was collected of the others until they are. Their first steps may then
    be older than ``max_policy_lag``, by a version per rollout that they last."""
    kept_rows: int = Field(default=4096, ge=1)
    """With ``whole_episodes``: rows of each lane that can be kept while an episode goes on."""


class CollectConfig(Section):
    """How collectors hand over what they collect."""

    chunk_steps: int = Field(default=32, ge=1, le=4096)
    """Environment steps per lane that are committed at once."""
    window_chunks: int = Field(default=2, ge=1, le=64)
    """async only: chunks a group may be ahead of what the learner has acknowledged."""
    random_steps: int = Field(default=10_000, ge=0)
    """Environment steps, over all lanes, at the start of a run whose actions are uniformly random."""
    threads: int = Field(default=1, ge=1, le=64)
    """Threads numpy and torch may use in each collector; and torch wherever it acts, also in a learner that has others."""
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
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of products inside networks that are trained; weights, gradients and optimisers are float32 in any case. Part of the
    result. bfloat16: on the CPU nothing but factors of products is rounded, on accelerators also what is between layers, and what
    a network of the user's own returns. TD3, SAC and DQN, on processors made for it, where ``headrace plan`` says that it is faster."""
    compiled: bool = False
    """PPO and V-trace only: gradients by loops that are compiled when the learner starts, which takes it seconds and needs numba
    (extra ``fast``). For perceptrons with tanh or relu, layers of at most 128 units, on the CPU; one choice without a mask, or
    continuous actions. Part of the result, in its last bits: such a run is replayed and resumed where numba is, too."""
    begin_from: str | None = None
    """On-policy algorithms only: a run directory, or a checkpoint in one (``RUN/checkpoints/VERSION``), whose networks and
    running statistics this run begins with; everything else begins anew. They are kept with the record. Not set: fresh ones."""


class EvaluationConfig(Section):
    """Evaluation of frozen policies in a process of its own."""

    every_steps: int = Field(default=10_000, ge=0)
    """Environment steps between evaluations; 0: only at the end."""
    episodes: int = Field(default=10, ge=0)
    """Complete episodes per evaluation, always the same seeds; 0: no evaluation at all."""
    target: float | None = None
    """Mean return at which the run ends in order, successfully; not set: it goes on."""
    random_baseline: bool = True
    """Also play the same episodes with uniformly random actions, once, for comparison."""
    episode_limit: bool = True
    """Whether ``env.max_episode_steps`` cuts these episodes as well; otherwise only the environment itself ends them."""


WHILE_CREDIT = ("commit_s", "update_s", "publish_s", "checkpoint_s")
"""Limits of what the learner may be busy with while a collector waits for credit."""
WHILE_ROWS = ("start_s", "reset_s", "step_s")
"""Limits of what a collector may be busy with while the learner waits for rows."""


class DeadlinesConfig(Section):
    """Seconds an activity may take before the component that is busy with it is called stalled. Each is finite.

    Whoever misses one has its stacks written and is killed; what follows is told in the section ``supervision``.
    """

    start_s: float = Field(default=60.0, gt=0)
    """From the request to start until the component reports that it is ready, imports included, but not what the
    learner of a run that goes on reads of its record."""
    reset_s: float = Field(default=60.0, gt=0)
    """One ``reset()`` of one environment."""
    step_s: float = Field(default=30.0, gt=0)
    """One ``step()`` of one environment, or one answer of the policy that acts."""
    commit_s: float = Field(default=60.0, gt=0)
    """Handing over one chunk of rows, or taking it over."""
    credit_s: float | None = Field(default=None, gt=0)
    """A collector waiting for credit gives up after so long if the learner did nothing at all meanwhile; one that does
    not (it is frozen) is found a quarter later. Not set: ``wait_s``, or twice the longest of ``commit_s``, ``update_s``,
    ``publish_s`` and ``checkpoint_s`` if that is more."""
    rows_s: float | None = Field(default=None, gt=0)
    """The learner waiting for rows gives up after so long if no collector it waits for did anything meanwhile. Not
    set: twice the limit for credit, so that it outlives the replacement of frozen collectors, or twice the longest of
    ``start_s``, ``reset_s`` and ``step_s`` if that is more."""
    update_s: float = Field(default=60.0, gt=0)
    """One gradient step, its batch included."""
    publish_s: float = Field(default=60.0, gt=0)
    """Publishing a policy, or loading a published one."""
    wait_s: float = Field(default=120.0, gt=0)
    """Any other wait on another component: for commands, or for room in a channel."""
    evaluate_s: float = Field(default=600.0, gt=0)
    """One evaluation, all its episodes."""
    checkpoint_s: float = Field(default=60.0, gt=0)
    """Writing one checkpoint; or, where a run goes on, reading one, and then its record from each event to the next."""
    stall_s: float = Field(default=300.0, gt=0)
    """The run as a whole: given up after so long without one row, update or evaluation, whatever its components do.
    Never less than twice the longest of the limits above, so that a slow step or evaluation is not taken for it."""
    stop_s: float = Field(default=20.0, gt=0)
    """From the request to stop until the component has left; also closing one environment."""

    @model_validator(mode="after")
    def _learner_outlives_a_frozen_collector(self) -> Self:
        if self.rows_limit_s <= FROZEN * self.credit_limit_s:
            raise ConfigError(
                "the learner would give up before a collector that is frozen is found",
                rows_s=self.rows_limit_s,
                credit_s=self.credit_limit_s,
                fix=f"raise deadlines.rows_s above {FROZEN * self.credit_limit_s:g}, or lower deadlines.credit_s",
            )
        return self

    @model_validator(mode="after")
    def _who_waits_outlives_what_was_raised(self) -> Self:
        """Where somebody is given more time than usual, nobody else gives up earlier because it was told to."""
        waits = (("credit_s", self.credit_limit_s, WHILE_CREDIT), ("rows_s", self.rows_limit_s, WHILE_ROWS))
        for key, limit_s, names in waits:
            for name in names:
                value = getattr(self, name)
                if value > type(self).model_fields[name].default and value >= limit_s:
                    raise ConfigError(
                        f"deadlines.{name} would be overruled: who waits meanwhile would give up before",
                        **{name: value, key: limit_s},
                        fix=f"raise deadlines.{key} above {value:g}, or remove it: then it follows by itself",
                    )
        return self

    @property
    def stall_limit_s(self) -> float:
        """``stall_s``, or what it is raised to."""
        longest = max(self.start_s, self.reset_s, self.step_s, self.update_s, self.evaluate_s, self.rows_limit_s)
        return max(self.stall_s, 2.0 * longest)

    @property
    def credit_limit_s(self) -> float:
        """``credit_s``, or what stands for it."""
        if self.credit_s is not None:
            return self.credit_s
        return max(self.wait_s, 2.0 * self._longest_s(WHILE_CREDIT))

    @property
    def rows_limit_s(self) -> float:
        """``rows_s``, or what stands for it."""
        if self.rows_s is not None:
            return self.rows_s
        return 2.0 * max(self.credit_limit_s, self._longest_s(WHILE_ROWS))

    def _longest_s(self, names: Sequence[str]) -> float:
        return max(float(getattr(self, name)) for name in names)


FROZEN = 1.25
"""How many times its own limit a wait may last before its component, which should have given up, is called frozen."""


class SupervisionConfig(Section):
    """What follows when a component dies or misses a deadline."""

    max_restarts: int = Field(default=5, ge=0)
    """Restarts of one component allowed within ``restart_window_s``; then its budget is spent."""
    restart_window_s: float = Field(default=300.0, gt=0)
    """Seconds after which a restart is forgiven."""
    backoff_s: float = Field(default=0.1, ge=0)
    """Pause before the first restart; doubles with each further one in the window."""
    when_spent: Literal["fail", "degrade"] = "fail"
    """What follows once the budget of a collector is spent. fail: the run ends. degrade: it goes on without those
    lanes, and says so; it ends when no lane is left."""
    lane_faults: int = Field(default=3, ge=1)
    """degrade only: faults in one lane's environment within ``restart_window_s`` after which the lane's group alone is
    left out, and its collector goes on with the others."""
    learner_death: Literal["fail", "resume"] = "fail"
    """What follows when the learner dies. fail: the run ends and says what was lost. resume: another goes on with the
    same experience from the newest state saved; the updates since then are lost, told, and made again."""
    learner_save_every_s: float = Field(default=30.0, gt=0)
    """resume only: seconds between two saves of the learner's state."""
    max_rss_mib: float | None = Field(default=None, gt=0)
    """Resident MiB of a collector above which it is replaced between two chunks, at the cost of a restart; not set: no
    limit. For environments that leak."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        for key, other, value in (
            ("lane_faults", "when_spent", "degrade"),
            ("learner_save_every_s", "learner_death", "resume"),
        ):
            if getattr(self, other) != value and getattr(self, key) != type(self).model_fields[key].default:
                raise ConfigError(
                    f"supervision.{key} would be ignored",
                    **{key: getattr(self, key), other: getattr(self, other)},
                    fix=f'remove it, or set supervision.{other} = "{value}"',
                )
        return self

    @model_validator(mode="after")
    def _a_lane_would_never_be_left_out(self) -> Self:
        if self.when_spent == "degrade" and self.lane_faults > self.max_restarts + 1:
            raise ConfigError(
                "no lane would ever be left out alone: the budget of its collector is spent before",
                lane_faults=self.lane_faults,
                max_restarts=self.max_restarts,
                fix=f"set supervision.lane_faults to {self.max_restarts + 1} or less, or raise supervision.max_restarts",
            )
        return self


class RecordConfig(Section):
    """The record of a run, from which it can be replayed bit for bit and resumed."""

    enabled: bool = True
    """Write it. Without a record nothing can be replayed, verified or resumed."""
    rows: Literal["resident", "all", "none"] = "resident"
    """Which rows to keep on disk. resident: those the replay, or a kept checkpoint, holds; the others are deleted by the next
    checkpoint. all: every one. none: only their checksums; a replay can then say which chunk differs, but not how, and the
    run cannot be resumed."""
    batches: bool = True
    """Note a fingerprint of every batch, so that a replay can name the very update that differs."""
    hash_every: int = Field(default=1000, ge=1)
    """Updates between two hashes of all weights."""
    segment_mib: int = Field(default=64, ge=1, le=4096)
    """Size at which a file of rows is ended and the next one begun, in MiB."""


class CheckpointConfig(Section):
    """Checkpoints: everything it takes to go on with a run."""

    enabled: bool = True
    """Write them; also at every end of the run that leaves time for it."""
    every_s: float | None = Field(default=300.0, gt=0)
    """Seconds between two checkpoints; not set: only with ``every_steps``, and at the end."""
    every_steps: int = Field(default=0, ge=0)
    """Environment steps between two checkpoints; 0: only with ``every_s``, and at the end."""
    keep: int = Field(default=3, ge=1)
    """Newest checkpoints that are kept; the best by evaluation is kept too."""
    restore_episodes: bool = True
    """On resume, bring every environment back into its running episode by repeating the stored actions; what it returns
    is compared bit for bit. false: running episodes are cut, for environments that are slow or not deterministic."""
