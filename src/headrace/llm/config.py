"""What a language-model run may be told, section by section: types, units, defaults, bounds.

One file describes all three components, so nothing is configured twice; endpoints and directories are handed out by the
launcher. `headrace.llm.loading` reads and composes files.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from headrace.core.config import Arguments, Section
from headrace.core.errors import ConfigError
from headrace.llm.messages import LEAST_TEMPERATURE

COMPONENTS = ("inference", "orchestrator", "trainer")
"""Ids of the components, in the order in which they are started."""


class RLRunConfig(Section):
    """How long the run lasts, who runs when, and where it lives."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Every random stream of the run is derived from it."""
    schedule: Literal["inline", "async"] = "async"
    """async: three processes. inline: the single-process twin, which calls the same code in turn."""
    steps: int = Field(default=100, ge=1)
    """Steps of the trainer after which the run ends."""
    run_duration_s: float | None = Field(default=None, gt=0)
    """Wall-clock seconds after which the run ends in order; not set: no limit."""
    directory: str = "runs"
    """Folder in which a run directory is made when none is given."""


class ModelConfig(Section):
    """The language model: a checkpoint on disk, or a tiny Llama made from nothing."""

    path: str | None = None
    """Folder of a Hugging Face checkpoint with its tokenizer; not set: a tiny one is made."""
    hidden: int = Field(default=64, ge=8)
    """Width; must be a multiple of ``heads``."""
    layers: int = Field(default=3, ge=1)
    heads: int = Field(default=4, ge=1)
    context_tokens: int = Field(default=96, ge=8)
    """Most tokens of an episode, prompt included; one that would need more is cut and counted."""
    dtype: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden % self.heads:
            raise ConfigError(
                "model.heads does not divide model.hidden",
                hidden=self.hidden,
                heads=self.heads,
                fix="choose a width that is a multiple of the heads",
            )
        return self


class TextEnvConfig(Section):
    """The environment that asks and judges."""

    name: str | None = "wordle"
    """One that comes with Headrace: wordle, reverse-text; or ``verifiers``."""
    factory: str | None = None
    """``module:function`` that returns a `headrace.envs.text.protocol.TextEnvironment`; then ``name`` must not be set."""
    kwargs: Arguments = Field(default_factory=dict)
    """Passed to it."""
    max_turns: int = Field(default=8, ge=1)
    """Messages of the model after which an episode is cut."""

    @model_validator(mode="before")
    @classmethod
    def _factory_alone(cls, values: Any) -> Any:
        """Whoever names a factory means it instead of the default; a file cannot say that ``name`` is not set."""
        if isinstance(values, dict) and values.get("factory") is not None and "name" not in values:
            return {**values, "name": None}
        return values

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.name is None) == (self.factory is None):
            raise ConfigError(
                "env.name and env.factory are both set, or neither is",
                name=self.name,
                factory=self.factory,
                fix="set one of them",
            )
        return self


class SamplingConfig(Section):
    """How training rollouts are sampled; evaluations too, with a temperature of their own."""

    max_tokens: int = Field(default=8, ge=1)
    """Per message of the model."""
    temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE)
    top_p: float = Field(default=1.0, gt=0, le=1)


class FilterConfig(Section):
    """Which completed groups are not trained on; each is counted under its reason."""

    zero_advantage: bool = True
    """Those whose rewards are all equal: they have no gradient."""
    easy_above: float | None = None
    """Those whose mean reward is above this."""
    hard_below: float | None = None
    """Those whose mean reward is below this."""
    give_up_after: int = Field(default=20, ge=1)
    """Batches' worth of groups filtered in a row after which the run ends and says why."""


class OrchestratorConfig(Section):
    """Rollouts: which, how many at once, and how old they may become."""

    groups_per_step: int = Field(default=32, ge=1)
    """Groups in one batch of the trainer."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of the same problem, compared with each other."""
    max_policy_lag: int = Field(default=1, ge=0, le=64)
    """Versions by which the oldest token of a sample may be older than the policy that is trained on it. 0: synchronous, strictly
    on-policy and, with our own engine, the same as the single-process twin, bit for bit: whoever asks over ``/v1`` gives way."""
    groups_in_flight: int | None = Field(default=None, ge=1)
    """Most groups begun and not complete; not set: ``groups_per_step``."""
    rollout_timeout_s: float = Field(default=120.0, gt=0)
    """A rollout that takes longer has failed; its group goes on without it. Of what is left of it, one completion may take
    four fifths."""
    max_retries: int = Field(default=2, ge=0)
    """Times a rollout that failed is begun again."""
    backoff_s: float = Field(default=0.2, ge=0)
    """Pause before the first retry; doubles with each further one."""
    smallest_group: int = Field(default=2, ge=2)
    """A group with fewer rollouts left is dropped, and another problem takes its place."""
    failures_in_row: int = Field(default=200, ge=1)
    """Rollouts failed without one completed in between after which the run ends and names the reason."""
    curriculum: str | None = None
    """``module:function``; makes the object that is asked which problem comes next. Not set: shuffled passes over all."""
    filter: FilterConfig = FilterConfig()


class RLEvaluationConfig(Section):
    """Evaluation on problems that are never trained on."""

    every_steps: int = Field(default=20, ge=0)
    """Trainer steps between evaluations; 0: only before the first and after the last."""
    problems: int = Field(default=0, ge=0)
    """Of the evaluation split, the first so many; 0: all."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each."""
    temperature: float = Field(default=1.0, ge=0)
    alarm_drop: float = Field(default=0.15, gt=0)
    """A win rate this far below the best so far, and further than chance explains, is reported as a fault of the run."""


class InferenceConfig(Section):
    """The server of completions."""

    backend: Literal["headrace", "vllm", "external"] = "headrace"
    """headrace: our own, over transformers. vllm: ``vllm serve``, started here. external: ``url``."""
    url: str | None = None
    """external only: root of an OpenAI-compatible server, e.g. ``http://host:8000``."""
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0: one that is free."""
    slots: int = Field(default=256, ge=1)
    """Completions generated at the same time; others wait."""
    max_waiting: int = Field(default=4096, ge=0)
    """Requests that may wait; more are answered 503. Without policy lag a whole batch of rollouts asks at once."""
    kv_reuse: bool = True
    """Keep what was computed for a session's tokens until its next request; without policy lag our own engine keeps nothing."""
    threads: int = Field(default=1, ge=1, le=256)
    device: str = "cpu"
    command: list[str] = Field(default_factory=list)
    """vllm only: the command in place of ``vllm serve``, e.g. that of its own virtual environment."""


class LossConfig(Section):
    """What one token contributes; ratio = exp(log-probability of the trainer - that of the sampler)."""

    kind: Literal["grpo", "gspo", "cispo", "icepop"] = "grpo"
    """grpo: PPO's clip per token. gspo: the same with one length-normalised ratio per sample. cispo: the ratio, clipped and
    detached, weighs the log-probability. icepop: a token whose ratio leaves the interval is masked."""
    clip_low: float = Field(default=0.2, ge=0)
    """grpo, gspo: the ratio is clipped at 1 - this. cispo: likewise. icepop: the lower end of the interval itself."""
    clip_high: float = Field(default=0.28, ge=0)
    """grpo, gspo, cispo: clipped at 1 + this. icepop: the upper end itself."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Of the KL divergence to the policy that training began with."""
    entropy_weight: float = Field(default=0.0, ge=0)
    normalise: Literal["tokens", "samples", "constant"] = "tokens"
    """tokens: divided by all trained tokens of the batch. samples: mean over samples of the mean over their tokens. constant:
    by ``context_tokens`` times samples."""


class AdvantageConfig(Section):
    """A rollout's advantage within its group."""

    baseline: Literal["mean", "leave-one-out"] = "mean"
    divide_by_std: bool = False
    """As in the first GRPO; makes large steps of almost solved problems."""


class TrainerConfig(Section):
    """The trainer."""

    lr: float = Field(default=5e-4, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to ``lr``."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Of the rate after the warm-up, to ``final_lr_fraction``, which it has from step ``decay_steps`` on."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Of the trainer, the warm-up included; not set: ``run.steps``. A resume changes nothing of it: with more ``run.steps``
    it has to be set to what it was."""
    final_lr_fraction: float = Field(default=0.1, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    epochs: int = Field(default=1, ge=1)
    """Passes over a batch, one gradient step for each of ``minibatches``."""
    minibatches: int = Field(default=1, ge=1)
    tokens_per_pass: int = Field(default=8192, ge=64)
    """Most tokens (padding or packing included) in one forward and backward pass; gradients of a minibatch accumulate."""
    threads: int = Field(default=1, ge=1, le=256)
    device: str = "cpu"
    loss: LossConfig = LossConfig()
    advantage: AdvantageConfig = AdvantageConfig()


class SFTConfig(Section):
    """Supervised warm start on episodes that the environment's teacher shows; needs an environment that has one."""

    steps: int = Field(default=0, ge=0)
    """0: none."""
    batch_size: int = Field(default=64, ge=1)
    """Episodes per step."""
    lr: float = Field(default=3e-3, gt=0)
    expert_fraction: float = Field(default=1.0, ge=0, le=1)
    """Share of problems shown as the expert plays them, the others as a novice does, where the environment knows one."""
    checkpoint: str | None = None
    """A run directory (of ``headrace sft``, or of a whole run) or a Hugging Face folder, whose newest weights are taken
    instead: version 0 has them as they are, and none of ``steps`` is made."""

    @property
    def steps_to_make(self) -> int:
        """``steps``, or 0 where weights are taken instead: what they had learned would be overwritten."""
        return 0 if self.checkpoint is not None else self.steps


class RLDeadlinesConfig(Section):
    """Seconds an activity may take before the component that is busy with it is called stalled."""

    start_s: float = Field(default=120.0, gt=0)
    """From the request to start until a component is ready; for inference: after one real generation."""
    warm_start_s: float = Field(default=1800.0, gt=0)
    """The whole supervised warm start."""
    generate_s: float = Field(default=60.0, gt=0)
    """One forward pass of the server; and any request without an answer of its own limit."""
    env_s: float = Field(default=30.0, gt=0)
    """One call of the environment."""
    batch_s: float = Field(default=300.0, gt=0)
    """The trainer waiting for its batch to arrive."""
    policy_s: float = Field(default=300.0, gt=0)
    """The orchestrator waiting for a policy that is new enough."""
    train_s: float = Field(default=300.0, gt=0)
    """One pass of the trainer over part of a batch, or one gradient step."""
    weights_s: float = Field(default=120.0, gt=0)
    """Publishing weights, or having the server load and prove them."""
    evaluate_s: float = Field(default=240.0, gt=0)
    """One evaluation. Less than ``batch_s``, since the trainer waits meanwhile."""
    checkpoint_s: float = Field(default=120.0, gt=0)
    stop_s: float = Field(default=20.0, gt=0)


class RLSupervisionConfig(Section):
    """What follows when a component dies or misses a deadline."""

    inference_restarts: int = Field(default=2, ge=0)
    """Times the server is started again within ``restart_window_s``; it is given the newest weights."""
    restart_window_s: float = Field(default=600.0, gt=0)
    backoff_s: float = Field(default=0.5, ge=0)
    probe_tolerance: float | None = Field(default=None, gt=0)
    """Most by which a log-probability of the probe may differ between server and trainer after an update, in nats; not set:
    1e-3, and with ``model.dtype = "bfloat16"`` 0.5."""
    mismatch_alarm: float = Field(default=0.05, gt=0)
    """Mismatch KL between sampler and trainer of a step above which a fault of the run is reported."""
    entropy_alarm: float = Field(default=0.02, ge=0)
    """Mean entropy per token, in nats, below which a fault of the run is reported while the win rate is below 95 %."""


PROBE_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.5}
"""By ``model.dtype``. In bfloat16 two ways to compute the same differed by 0.01 to 0.31, the more the larger the scores are;
one layer that stayed behind by ten updates of 5e-4 made 0.36 to 2.2 of them."""


class RLCheckpointConfig(Section):
    """Checkpoints of the trainer, orchestrator included."""

    every_steps: int = Field(default=50, ge=0)
    """Steps between two; one is also written at every end. 0: only then."""
    keep: int = Field(default=2, ge=1)


class RLConfig(Section):
    """Everything a language-model run is told.

    Raises:
        ConfigError: A section refuses a value, or two contradict each other.
    """

    run: RLRunConfig = RLRunConfig()
    model: ModelConfig = ModelConfig()
    env: TextEnvConfig = TextEnvConfig()
    sampling: SamplingConfig = SamplingConfig()
    orchestrator: OrchestratorConfig = OrchestratorConfig()
    evaluation: RLEvaluationConfig = RLEvaluationConfig()
    inference: InferenceConfig = InferenceConfig()
    trainer: TrainerConfig = TrainerConfig()
    sft: SFTConfig = SFTConfig()
    deadlines: RLDeadlinesConfig = RLDeadlinesConfig()
    supervision: RLSupervisionConfig = RLSupervisionConfig()
    checkpoint: RLCheckpointConfig = RLCheckpointConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        for check in _CHECKS:
            check(self)
        return self

    @property
    def probe_tolerance(self) -> float:
        """What is set, or follows from ``model.dtype``, in nats."""
        return self.supervision.probe_tolerance or PROBE_TOLERANCES[self.model.dtype]

    def settled(self) -> Self:
        """The same with what otherwise follows from the length of the run, which may change, written out."""
        trainer = self.trainer
        if trainer.decay == "constant" or trainer.decay_steps is not None:
            return self
        return self.model_copy(update={"trainer": trainer.model_copy(update={"decay_steps": self.run.steps})})


def _inline_is_on_policy(config: RLConfig) -> None:
    if config.run.schedule == "inline" and config.orchestrator.max_policy_lag:
        raise ConfigError(
            "run.schedule inline calls the components in turn, so no policy can lag",
            max_policy_lag=config.orchestrator.max_policy_lag,
            fix="set orchestrator.max_policy_lag = 0, or run.schedule = async",
        )


def _rounds_fit(config: RLConfig) -> None:
    """Without lag, completions of all that plays are asked for in one call; our engine refuses one it can never hold."""
    section, inference, evaluation = config.orchestrator, config.inference, config.evaluation
    if section.max_policy_lag or inference.backend != "headrace":
        return
    batch, most = section.groups_per_step * section.group_size, inference.slots + inference.max_waiting
    trained = min(batch, (section.groups_in_flight or section.groups_per_step) * section.group_size)
    evaluated = min(batch, evaluation.problems * evaluation.samples or batch)
    asked = max(trained, evaluated)
    if asked > most:
        raise ConfigError(
            "without policy lag all rollouts that play are asked for in one call, and the server never takes as many",
            asked_at_once=f"{asked:,}, in {'training' if trained == asked else 'evaluation'}",
            taken_at_most=f"{most:,}: inference.slots {inference.slots:,} + inference.max_waiting {inference.max_waiting:,}",
            fix=f"set inference.max_waiting = {asked - inference.slots}, or make orchestrator.groups_per_step smaller",
        )


def _url_fits(config: RLConfig) -> None:
    section = config.inference
    if (section.backend == "external") != (section.url is not None):
        raise ConfigError(
            "inference.url belongs to inference.backend external, and is needed there",
            backend=section.backend,
            url=section.url,
            fix="set both, or neither",
        )


def _temperature_divides(config: RLConfig) -> None:
    asked = config.evaluation.temperature
    if 0 < asked < LEAST_TEMPERATURE:
        raise ConfigError(
            "evaluation.temperature is so small that scores divided by it are infinite",
            temperature=asked,
            least_above_0=LEAST_TEMPERATURE,
            fix="set it to 0, which takes the likeliest token",
        )


def _icepop_interval(config: RLConfig) -> None:
    loss = config.trainer.loss
    if loss.kind == "icepop" and not loss.clip_low < 1.0 < loss.clip_high:
        raise ConfigError(
            "trainer.loss icepop masks every token whose ratio leaves [clip_low, clip_high], and 1 is not inside",
            clip_low=loss.clip_low,
            clip_high=loss.clip_high,
            fix="set, for instance, clip_low = 0.125 and clip_high = 8",
        )


def _group_fits(config: RLConfig) -> None:
    section = config.orchestrator
    if section.smallest_group > section.group_size:
        raise ConfigError(
            "orchestrator.smallest_group is larger than group_size, so every group would be dropped",
            smallest_group=section.smallest_group,
            group_size=section.group_size,
            fix="set it to 2",
        )


def _steps_are_filled(config: RLConfig) -> None:
    """Minibatches cannot be more than samples."""
    section, trainer = config.orchestrator, config.trainer
    if trainer.minibatches > section.groups_per_step * section.smallest_group:
        raise ConfigError(
            "trainer.minibatches is larger than a batch may be",
            minibatches=trainer.minibatches,
            smallest_batch=section.groups_per_step * section.smallest_group,
            fix="make fewer minibatches",
        )


def _vllm_can_serve(config: RLConfig) -> None:
    model = config.model
    if config.inference.backend != "vllm":
        return
    if config.run.schedule == "inline":
        raise ConfigError(
            "run.schedule inline runs our own engine in the twin's process, and inference.backend is vllm",
            fix="set run.schedule = async, or inference.backend = headrace",
        )
    if not re.fullmatch(r"cpu|cuda(:\d+)?", config.inference.device):
        raise ConfigError(
            "vLLM computes where its build does, and cannot be told inference.device",
            device=config.inference.device,
            can="cpu, cuda, cuda:N",
            fix="set one of these",
        )
    head = model.hidden // model.heads
    if config.inference.device == "cpu" and model.path is None and head not in _VLLM_CPU_HEADS:
        raise ConfigError(
            f"vLLM on a CPU computes no attention with {head} numbers per head",
            hidden=model.hidden,
            heads=model.heads,
            can=", ".join(map(str, _VLLM_CPU_HEADS)),
            fix="set model.heads = model.hidden / 32, or to another quotient of these",
        )


_VLLM_CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of vLLM 0.32; others end its engine at the start."""


def _evaluations_are_waited_for(config: RLConfig) -> None:
    section = config.deadlines
    if section.evaluate_s >= section.batch_s:
        raise ConfigError(
            "deadlines.evaluate_s is not below batch_s, so the trainer would give up during an evaluation that is in time",
            evaluate_s=section.evaluate_s,
            batch_s=section.batch_s,
            fix="raise batch_s, or lower evaluate_s",
        )


def _nothing_is_ignored(config: RLConfig) -> None:
    trainer, inference = config.trainer, config.inference
    kept = type(trainer).model_fields["final_lr_fraction"].default
    for key, is_ignored, why in (
        (
            "trainer.final_lr_fraction",
            trainer.decay == "constant" and trainer.final_lr_fraction != kept,
            "the rate does not fall",
        ),
        (
            "trainer.decay_steps",
            trainer.decay == "constant" and trainer.decay_steps is not None,
            "the rate does not fall",
        ),
        ("inference.command", inference.command and inference.backend != "vllm", "only vLLM is started by a command"),
    ):
        if is_ignored:
            raise ConfigError(f"{key} would be ignored: {why}", fix=f"remove {key}, or change what it belongs to")


_CHECKS = (
    _nothing_is_ignored,
    _inline_is_on_policy,
    _rounds_fit,
    _url_fits,
    _temperature_divides,
    _icepop_interval,
    _group_fits,
    _steps_are_filled,
    _vllm_can_serve,
    _evaluations_are_waited_for,
)
