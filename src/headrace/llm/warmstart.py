"""The process that a run begins with: it makes the model and its first version, and ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core.clock import Clock, MonotonicClock
from headrace.core.errors import ConfigError
from headrace.envs.text.asking import problems_of, shown_by
from headrace.envs.text.building import build_text_environment, close_environment
from headrace.envs.text.protocol import TextEnvironment
from headrace.ipc.channel import Channel
from headrace.ipc.child import ChildContext
from headrace.llm import modelfiles, tiny, weights
from headrace.llm.config import RLConfig
from headrace.llm.demonstrations import Teaching, first_of, tokens_of
from headrace.llm.fitting import check_texts
from headrace.llm.messages import PublishedWeights
from headrace.llm.payloads import Basics, WarmStartPayload
from headrace.llm.rendering import Renderer
from headrace.llm.tuning import TunedStep, tune
from headrace.supervision.messages import Done, Ready, Report, Stop
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, Slot, State

_REPORTS = 100
"""Of the loss, in a whole warm start at most."""
_PROBE_TOKENS = 64


def warm_start(context: ChildContext) -> None:
    """Make ``model/``, tune the model if that is wanted, publish version 0, say `Done`.

    A stop in the middle publishes nothing: half a warm start would be taken for a whole one when the run goes on.
    """
    payload: WarmStartPayload = context.payload
    basics = payload.basics
    torch.set_num_threads(basics.config.trainer.threads)
    with ExitStack() as stack:
        slot = stack.enter_context(Board.attach(basics.board)).slot(context.id)
        slot.enter(Activity.WARM_START)
        start = begin(basics, context.id)
        stack.callback(close_environment, start.env)
        tell(context.control, slot, Ready({"parameters": start.parameters}))
        slot.set_state(State.RUNNING)
        telling = _Telling(context.control, slot, MonotonicClock(), basics.config.sft.steps_to_make)
        if not _tuned(start, basics.config, telling):
            tell(context.control, slot, Done({"stopped": True, "steps": telling.steps}), last=True)
            return
        telling.tell_cut(basics.config.model.context_tokens)
        slot.enter(Activity.PUBLISH)
        published = publish_first(start, basics)
        slot.count("version", published.version)
        facts = {"version": published.version, "sha256": published.sha256, "parameters": start.parameters}
        tell(context.control, slot, Done(facts | telling.summary()), last=True)


@dataclass(frozen=True, slots=True)
class Start:
    """A model that is ready to be tuned, and what it is tuned with."""

    env: TextEnvironment
    renderer: Renderer
    model: nn.Module
    """Float32, on the trainer's device."""

    @property
    def parameters(self) -> int:
        """Numbers in the model."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def begin(basics: Basics, component: str) -> Start:
    """Build the environment, make ``model/``, take the weights of ``sft.checkpoint`` if one is named.

    Raises:
        ConfigError: Model, checkpoint or template are not what is needed, or the model cannot be shown the problems.
        EnvironmentFault: The environment cannot be built, or its dataset is none.
    """
    config = basics.config
    env = build_text_environment(config.env.name, config.env.factory, config.env.kwargs, component=component)
    model = tiny.make_model_folder(config.model, env, basics.model, config.run.seed)
    tokenizer = tiny.load_tokenizer(basics.model)
    if config.sft.checkpoint is not None:
        _take_over(model, tokenizer, Path(config.sft.checkpoint))
    renderer = Renderer(tokenizer)
    check_texts(renderer, problems_of(env, "train"), config.model.context_tokens)
    return Start(env, renderer, model.to(config.trainer.device))


def publish_first(start: Start, basics: Basics) -> PublishedWeights:
    """Publish the model as version 0, rounded to the type it is served in."""
    model = tiny.served_copy(start.model.to("cpu"), basics.config.model.dtype)
    probe = weights.make_probe(model, probe_tokens(start)[: basics.config.model.context_tokens])
    return weights.publish(
        model.state_dict(),
        version=0,
        weights_dir=basics.weights,
        run_id=basics.run_id,
        probe=probe,
        metadata={"sft_steps": basics.config.sft.steps_to_make, modelfiles.KEY: modelfiles.sums_of(basics.model)},
    )


def probe_tokens(start: Start) -> tuple[int, ...]:
    """What weights are proved by: the beginning of an episode, as the teacher plays it where there is one."""
    problem = first_of(problems_of(start.env, "train"))
    if getattr(start.env, "demonstration", None) is None:
        ids = [*start.renderer.opening(problem.opening), *start.renderer.completion("abc")]
    else:
        ids, _ = tokens_of(shown_by(start.env, "demonstration", problem, 0), problem, start.renderer)
    return tuple(ids[:_PROBE_TOKENS])


class _Telling:
    """What the supervisor is told, and what it says."""

    def __init__(self, control: Channel, slot: Slot, clock: Clock, steps: int) -> None:
        self._control = control
        self._slot = slot
        self._clock = clock
        self._of = steps
        self._every = max(1, steps // _REPORTS)
        self._began_s = clock.now()
        self._tokens = self._episodes = self._cut = 0
        self._loss: float | None = None
        self.steps = 0

    def on_step(self, tuned: TunedStep) -> bool:
        """Note a step; False if the supervisor wants it to be the last.

        Raises:
            ChannelClosed: The supervisor is gone.
        """
        self.steps, self._loss = tuned.step, tuned.loss
        self._tokens += tuned.tokens
        self._episodes += tuned.episodes
        self._cut += tuned.cut
        self._slot.count("updates", tuned.step)
        if tuned.step % self._every == 0:
            facts = {"step": tuned.step, "steps": self._of} | self._rates()
            tell(self._control, self._slot, Report("sft", facts))
        return not any(isinstance(message, Stop) for message in self._control.receive_all())

    def tell_cut(self, context_tokens: int) -> None:
        """Tell, if so, that ends of demonstrations were not learned."""
        if self._cut:
            text = (
                f"{self._cut:,} of {self._episodes:,} demonstrations were longer than model.context_tokens = {context_tokens:,} "
                "and were cut: nobody learns how they end"
            )
            facts = {"kind": "demonstrations_cut", "text": text, "cut": self._cut, "episodes": self._episodes}
            tell(self._control, self._slot, Report("alarm", facts))

    def summary(self) -> dict[str, Any]:
        """Of all steps."""
        return {"sft_steps": self.steps} | (self._rates() if self.steps else {})

    def _rates(self) -> dict[str, Any]:
        took_s = max(self._clock.now() - self._began_s, 1e-9)
        return {"loss": self._loss, "tokens_per_s": self._tokens / took_s, "cut": self._cut}


def _tuned(start: Start, config: RLConfig, telling: _Telling) -> bool:
    """Whether all steps were made."""
    if not config.sft.steps_to_make:
        return True
    teaching = Teaching(start.env, start.renderer, config.sft.expert_fraction, config.model.context_tokens)
    teaching.check()

    def batch_of(step: int) -> Any:
        return teaching.batch(config.run.seed, step, config.sft.batch_size)

    steps = tune(start.model, config.sft, batch_of, config.trainer.device)
    return all(telling.on_step(tuned) for tuned in steps)


def _take_over(model: nn.Module, tokenizer: Any, source: Path) -> None:
    """Give the model the weights of a run directory's newest version, or of a Hugging Face folder."""
    run = (source / "weights").is_dir()
    tensors = _newest_of_run(source) if run else tiny.load_model(source).state_dict()
    theirs = tiny.load_tokenizer(source / "model" if run else source)
    if theirs.get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            "sft.checkpoint was made for another vocabulary",
            checkpoint=source,
            its_tokens=len(theirs),
            tokens=len(tokenizer),
            fix="use the environment and the model that it was made with",
        )
    tiny.fill(model, {name: tensor.float() for name, tensor in tensors.items()}, source)


def _newest_of_run(run: Path) -> Mapping[str, Tensor]:
    def tensors_of(folder: Path) -> Mapping[str, Tensor]:
        # Whose run it is does not matter here; that the tensors are those of their manifest does.
        run_id = json.loads((folder / weights.MANIFEST).read_bytes())["run_id"]
        modelfiles.require_same_model(run / "model", folder, run_id)
        return weights.read(folder, run_id)[1]

    found = weights.of_newest(run / "weights", tensors_of)
    if found is None:
        raise ConfigError(
            "sft.checkpoint is a run directory in which nothing was published", checkpoint=run, fix="name another one"
        )
    return found
