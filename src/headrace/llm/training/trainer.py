"""The trainer: makes the next version of a policy of one batch of rollouts. Knows no file, process or deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.algorithms.grpo import TokenLosses, Tokens, kl_to, token_losses, token_weights
from headrace.core import seeding
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, NonFiniteValue
from headrace.llm.attending import refuse_missing_positions, refuse_other_than_alone, refuse_partial_attention
from headrace.llm.config import RLConfig
from headrace.llm.messages import Batch, Probe, Sample
from headrace.llm.tiny import served_copy
from headrace.llm.training.checking import check_batch, off_policy
from headrace.llm.training.forward import Device, attention_kind, said
from headrace.llm.training.packing import Pass, pack
from headrace.llm.training.rates import rate_at
from headrace.llm.training.tallies import Tally
from headrace.llm.weights import make_probe

_MODEL, _OPTIMISER = "model.", "optimiser."
_MATRIX = 2
_ATTENTION = ("sdpa", "eager")


class Trainer:
    """A model, its optimiser, and how many steps they have made.

    Weights, gradients and moments are float32; with ``model.dtype = "bfloat16"`` matrices are multiplied in bfloat16 and the
    published weights are rounded to it. Layers that drop at random are not used, because a ratio would be wrong.

    Args:
        model: A causal language model of transformers, float32; taken over.
        config: Of the run.
        run_id: Of the run; batches of others are refused.
        clock: For what is reported about time.
        version: Of the model.
        initial: The model that training began with, if a loss needs it (``trainer.loss.kl_weight``).

    Raises:
        ConfigError: A pass is too small for one sample, the initial model is needed and missing, or attention cannot be masked.
    """

    def __init__(
        self,
        model: nn.Module,
        config: RLConfig,
        *,
        run_id: str,
        clock: Clock,
        version: int = 0,
        initial: nn.Module | None = None,
    ) -> None:
        model.eval()  # also while it is looked at: what is dropped at random would differ each time
        self._model = model.to(config.trainer.device)  # before it is tried: elsewhere that takes a large one its time
        _refuse(self._model, config, initial)
        self.version = version
        self.at_rest = True
        """Whether the weights are those of the version, and no gradient step beyond it was made."""
        self._config = config
        self._run_id = run_id
        self._clock = clock
        self._device = Device(config.trainer.device, config.model.dtype == "bfloat16")
        self._initial = None if initial is None else initial.to(config.trainer.device).eval()
        self._parameters = [one for one in self._model.parameters() if one.requires_grad]
        self._optimiser = _optimiser(self._parameters, config)

    def step(self, batch: Batch, on_pass: Callable[[int], None] = lambda _: None) -> dict[str, float]:
        """Train on a batch; the version is one higher afterwards.

        Args:
            batch: Of the step that is the version now.
            on_pass: Called before each pass over a part of it, and before each gradient step, with a number that counts them.

        Returns:
            What is to be reported, by metric name.

        Raises:
            RunDirectoryError: The batch is of another run.
            BatchRefused: It breaks what was declared, e.g. the lag. Nothing has changed.
            NonFiniteValue: A number in it, or a loss or a gradient, is NaN or infinite. With one gradient step nothing has
                changed; of several, those before it are made.
        """
        config, began_s = self._config, self._clock.now()
        check_batch(
            batch,
            run_id=self._run_id,
            step=self.version,
            max_policy_lag=config.orchestrator.max_policy_lag,
            vocabulary=int(self._model.config.vocab_size),  # type: ignore[union-attr, arg-type]
            longest=config.model.context_tokens,
        )
        samples = [sample for sample in batch.samples if sample.trained.any()]
        rate = rate_at(config.trainer, self.version, config.run.steps)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        tally = Tally()
        passes = 0
        for minibatch in self._minibatches(samples):
            passes = self._gradient_step(minibatch, tally, passes, on_pass)
        self.version += 1
        self.at_rest = True
        took_s = self._clock.now() - began_s
        lags = off_policy(batch)
        return {
            "train/effective/reward/mean": float(np.mean([sample.reward for sample in batch.samples])),
            **tally.metrics(masks=config.trainer.loss.kind == "icepop", epochs=config.trainer.epochs),
            "optim/lr": rate,
            "off_policy/mean": float(lags.mean()),
            "off_policy/max": float(lags.max()),
            "batch/samples": float(len(samples)),
            "batch/trained_tokens": float(len(lags)),
            "time/forward_backward": took_s,
            "perf/tokens_per_s": config.trainer.epochs * sum(len(one.token_ids) for one in samples) / max(took_s, 1e-9),
            "perf/passes": float(passes),
        }

    def tensors(self) -> dict[str, Tensor]:
        """The weights as they are published: by the names of the model's state, in the type that is served."""
        kind = torch.bfloat16 if self._config.model.dtype == "bfloat16" else torch.float32
        state = self._model.state_dict()
        return {
            name: tensor.detach().to(kind if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in state.items()
        }

    def probe(self, token_ids: Sequence[int]) -> Probe:
        """What the published weights say of a text."""
        model = self._model
        if self._config.model.dtype == "bfloat16":
            model = served_copy(model, "bfloat16")  # what a server runs: rounded weights, no float32 anywhere
        return make_probe(model, token_ids)

    def state(self) -> dict[str, Tensor]:
        """Everything that changes, by name, for a checkpoint; copies, on the CPU."""
        moments = self._optimiser.state_dict()["state"]
        state = {f"{_MODEL}{name}": tensor for name, tensor in self._model.state_dict().items()}
        state |= {
            f"{_OPTIMISER}{index}.{key}": value for index, values in moments.items() for key, value in values.items()
        }
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}

    def load_state(self, state: Mapping[str, Tensor], version: int) -> None:
        """Go on from what `state` gave after so many steps.

        Raises:
            RuntimeError: It is of another model.
        """
        self._model.load_state_dict(
            {name.removeprefix(_MODEL): tensor for name, tensor in state.items() if name.startswith(_MODEL)}
        )
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            if name.startswith(_OPTIMISER):
                index, _, key = name.removeprefix(_OPTIMISER).partition(".")
                moments.setdefault(int(index), {})[key] = tensor.clone()
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.version = version

    def _minibatches(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """What each gradient step of this step learns from; every epoch in another order."""
        trainer = self._config.trainer
        if trainer.minibatches == 1:
            return [list(samples)] * trainer.epochs
        draw = seeding.generator(self._config.run.seed, "minibatches", self.version)
        parts: list[NDArray[np.int64]] = []
        for _ in range(trainer.epochs):
            parts += np.array_split(draw.permutation(len(samples)), trainer.minibatches)
        return [[samples[index] for index in part] for part in parts if len(part)]

    def _gradient_step(
        self, samples: Sequence[Sample], tally: Tally, passes: int, on_pass: Callable[[int], None]
    ) -> int:
        """One step down the gradient of a minibatch; how many passes there were by now."""
        config = self._config.trainer
        self._optimiser.zero_grad(set_to_none=True)
        weights, loss = self._weights(samples), 0.0
        for part in pack(samples, config.tokens_per_pass):
            on_pass(passes)
            passes += 1
            loss += self._backward(samples, part, weights, tally)
        on_pass(passes)
        norm = float(nn.utils.clip_grad_norm_(self._parameters, config.max_grad_norm))
        if not (np.isfinite(loss) and np.isfinite(norm)):
            self._blame(samples, weights, loss, norm)
        self.at_rest = False
        self._optimiser.step()
        tally.losses.append(loss)
        tally.norms.append(norm)
        return passes

    def _weights(self, samples: Sequence[Sample]) -> NDArray[np.float32]:
        lengths = np.array([int(sample.trained.sum()) for sample in samples])
        normalise = self._config.trainer.loss.normalise
        return token_weights(normalise, lengths, self._config.model.context_tokens).astype(np.float32)

    def _backward(self, samples: Sequence[Sample], part: Pass, weights: NDArray[np.float32], tally: Tally) -> float:
        """Add the gradient of a pass; its share of the loss."""
        settings, device = self._config.trainer.loss, self._device
        found = said(self._model, part, self._config.sampling, device)
        advantages = np.array([samples[index].advantage for index in part.members], np.float32)
        tokens = Tokens(
            logprob=found.logprob,
            behaviour=device.tensor(part.behaviour),
            advantage=device.tensor(advantages[part.owner]),
            sample=device.tensor(part.owner),
            samples=len(part.members),
        )
        losses = token_losses(settings.kind, tokens, settings.clip_low, settings.clip_high)
        weight = device.tensor(weights[part.members[part.owner]])
        with torch.set_grad_enabled(settings.entropy_weight > 0):
            entropy = found.entropy()
        kl = self._initial_kl(part, found.logprob)
        loss = (weight * self._combined(losses, entropy, kl)).sum()
        loss.backward()
        tally.add(tokens, losses, entropy, kl)
        if not tally.losses:
            tally.compare(tokens)
        return float(loss.detach())

    def _combined(self, losses: TokenLosses, entropy: Tensor, kl: Tensor | None) -> Tensor:
        settings = self._config.trainer.loss
        combined = losses.loss
        if settings.entropy_weight:
            combined = combined - settings.entropy_weight * entropy
        if kl is not None:
            combined = combined + settings.kl_weight * kl
        return combined

    def _initial_kl(self, part: Pass, logprob: Tensor) -> Tensor | None:
        if self._initial is None:
            return None
        with torch.no_grad():
            reference = said(self._initial, part, self._config.sampling, self._device).logprob
        return kl_to(reference, logprob)

    def _blame(self, samples: Sequence[Sample], weights: NDArray[np.float32], loss: float, norm: float) -> NoReturn:
        """Find the sample whose own loss or gradient is not finite, and raise."""
        facts: dict[str, object] = {"sample": "none alone, only their sum"}
        for index, sample in enumerate(samples):
            self._optimiser.zero_grad(set_to_none=True)
            (part,) = pack([sample], self._config.trainer.tokens_per_pass)
            own = self._backward([sample], part, weights[index : index + 1], Tally())
            size = float(nn.utils.clip_grad_norm_(self._parameters, 1.0))
            if not (np.isfinite(own) and np.isfinite(size)):
                facts = {
                    "rollout": sample.rollout,
                    "problem": sample.problem,
                    "its_loss": own,
                    "its_gradient_norm": size,
                }
                break
        self._optimiser.zero_grad(set_to_none=True)
        raise NonFiniteValue(
            f"trainer: the loss or its gradient is not finite in step {self.version}; no weight was changed",
            step=self.version,
            loss=loss,
            gradient_norm=norm,
            **facts,
            fix="lower trainer.lr; with a ratio that overflowed, also orchestrator.max_policy_lag",
        )


def _refuse(model: nn.Module, config: RLConfig, initial: nn.Module | None) -> None:
    refuse_partial_attention(model, config.model.context_tokens)
    if attention_kind(model) not in _ATTENTION:
        raise ConfigError(
            "packed samples need attention that takes a mask of its own for each pair of tokens",
            attention=attention_kind(model),
            allowed=", ".join(_ATTENTION),
            fix='load the model with attn_implementation="sdpa"',
        )
    refuse_missing_positions(model, config.model.context_tokens)
    refuse_other_than_alone(model, config.model.context_tokens)
    if config.model.context_tokens > config.trainer.tokens_per_pass:
        raise ConfigError(
            "one sample may have more tokens than a pass of the trainer",
            model_context_tokens=config.model.context_tokens,
            trainer_tokens_per_pass=config.trainer.tokens_per_pass,
            fix="raise trainer.tokens_per_pass at least to model.context_tokens",
        )
    if config.trainer.loss.kl_weight and initial is None:
        raise ConfigError(
            "trainer.loss.kl_weight needs the model that training began with",
            kl_weight=config.trainer.loss.kl_weight,
            fix="keep version 0 of the weights, or set trainer.loss.kl_weight = 0",
        )


def _optimiser(parameters: Sequence[nn.Parameter], config: RLConfig) -> torch.optim.AdamW:
    """AdamW; gains and biases do not decay."""
    matrices = [one for one in parameters if one.dim() >= _MATRIX]
    others = [one for one in parameters if one.dim() < _MATRIX]
    groups = [
        {"params": matrices, "weight_decay": config.trainer.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.trainer.lr)
