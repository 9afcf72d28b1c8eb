"""The gradient of actor and critic, and their optimiser, by compiled loops: those of `headrace.algorithms.compiled`."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
from torch import Tensor, nn

from headrace.algorithms.actor_critic import AT_ONCE, ActorCritic
from headrace.algorithms.encoding import Float32, Float64
from headrace.algorithms.flat import FlatAdam, FlatParameters
from headrace.algorithms.heads import CategoricalHead, Head
from headrace.algorithms.networks import Perceptron
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig, refuse_loops, without_loops
from headrace.algorithms.rollouts import Batch
from headrace.core.errors import ConfigError

_NO_CLIP = -1.0


def compiled_gradient(
    config: PPOConfig | VTraceConfig, network: ActorCritic, head: Head, flat: FlatParameters
) -> CompiledGradient:
    """What computes the gradient in a few compiled calls instead of a hundred.

    Args:
        config: The algorithm's section.
        network: Actor and critic; their parameters lie in ``flat``.
        head: Of the action space.
        flat: See ``network``.

    Raises:
        ConfigError: Numba cannot be imported, or there are no loops for this.
    """
    device = flat.value.device.type
    found = without_loops(config) if device == "cpu" else f"learn.device = {device}"
    if found is not None:
        refuse_loops(found)
    if isinstance(head, CategoricalHead) and head.components > 1:
        raise ConfigError(
            "there are no compiled loops for several choices at once",
            found=f"an action of {head.components} choices",
            fix="set learn.compiled = false",
        )
    return CompiledGradient(config, network, flat, _loops())


def _loops() -> Any:
    try:
        return importlib.import_module("headrace.algorithms.compiled")
    except (ImportError, OSError) as error:  # absent, made for another numpy, or its library does not load
        raise ConfigError(
            "learn.compiled needs numba, which cannot be imported here",
            found=f"{type(error).__name__}: {error}",
            fix="install it, which the extra fast does, or set learn.compiled = false; the bits of a result differ by it",
        ) from error


class CompiledGradient:
    """Adds gradients of minibatches. Made by `compiled_gradient`.

    Args:
        config: The algorithm's section.
        network: Perceptrons.
        flat: Their parameters.
        loops: The module `headrace.algorithms.compiled`.
    """

    def __init__(
        self, config: PPOConfig | VTraceConfig, network: ActorCritic, flat: FlatParameters, loops: Any
    ) -> None:
        self._config, self._loops = config.loss, loops
        values, grads = flat.numpy(), flat.grad.numpy()
        self._grads = grads
        start = network.actor_scalars()
        stop = start + (0 if network.log_std is None else len(network.log_std))
        self._spread = None if network.log_std is None else (values[start:stop], grads[start:stop])
        room = _Room()
        self._actor = _Net(network.actor, values[:start], grads[:start], room)
        self._critic = _Net(network.critic, values[stop:], grads[stop:], room)

    def add(self, batch: Batch, clip: float | None) -> dict[str, float]:
        """Add the gradient of a minibatch to that of the parameters; what is measured, as `OnPolicy.update` names it."""
        rows, config, loops, obs = len(batch.logprob), self._config, self._loops, batch.obs.numpy()
        actor, outputs, grad = self._actor.of(rows)
        loops.forward(obs, actor, outputs)
        how = (batch.logprob, batch.advantage), _NO_CLIP if clip is None else clip, -config.entropy_weight / rows, grad
        if self._spread is None:
            found = loops.of_choices(outputs, batch.action.reshape(rows), *how)
        else:
            found = loops.of_points(outputs, batch.action, *how, self._spread)
        loops.back(grad, obs, actor)
        measured = dict(zip(("policy_loss", "entropy", "approx_kl", "clip_fraction"), found, strict=True))
        if clip is None:
            del measured["clip_fraction"]

        critic, values, grad = self._critic.of(rows)
        loops.forward(obs, critic, values)
        value_clip = _NO_CLIP if config.value_clip is None else config.value_clip
        loss = loops.of_values(values, batch.target, batch.value, value_clip, config.value_weight, grad)
        loops.back(grad, obs, critic)
        return {**measured, "value_loss": loss}

    def values(self, obs: Tensor) -> Float64:
        """See `ActorCritic.values`."""
        return self._critic.outputs(obs, self._loops)[:, 0].astype(np.float64)

    def outputs(self, obs: Tensor) -> Float32:
        """See `ActorCritic.outputs`."""
        return self._actor.outputs(obs, self._loops)

    def clip(self, most: float | None) -> float:
        """See `FlatParameters.clip`."""
        return float(self._loops.shorten(self._grads, math.inf if most is None else most))

    def adam(self, flat: FlatParameters, lr: float, betas: tuple[float, float], eps: float) -> FlatAdam:
        """The optimiser of ``flat``, whose gradient this is."""
        return _Adam(self._loops, flat, lr, betas, eps)


class _Adam(FlatAdam):
    """`FlatAdam` within rounding; a tenth of the time is what torch takes to find its kernel.

    Args:
        loops: The module `headrace.algorithms.compiled`.
        parameters: As the rest, `FlatAdam`'s; in host memory.
    """

    def __init__(
        self, loops: Any, parameters: FlatParameters, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(parameters, lr, betas, eps)
        moments = self.moments()
        self._loops = loops
        self._vectors = parameters.numpy(), parameters.grad.numpy(), moments["exp_avg"], moments["exp_avg_sq"]

    def _apply(self) -> None:
        beta1, beta2 = self.betas
        lr, root = self.lr / (1.0 - beta1**self.steps), math.sqrt(1.0 - beta2**self.steps)
        self._loops.adam(self._vectors, (lr, root, beta1, beta2, self.eps))


class _Room:
    """What is overwritten by one network after the other, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self._taken = [np.empty(0, np.float32)] * 3

    def of(self, *sizes: int) -> list[Float32]:
        """Arrays of so many numbers, of whatever value."""
        pairs = zip(self._taken, sizes, strict=True)
        self._taken = [taken if len(taken) >= size else np.empty(size, np.float32) for taken, size in pairs]
        return [taken[:size] for taken, size in zip(self._taken, sizes, strict=True)]


class _Net:
    """One network as the loops have it (`headrace.algorithms.compiled.Net`), with room for minibatches.

    Args:
        network: A perceptron.
        values: [P] its parameters, live.
        grads: [P] their gradients, live.
        room: Shared with others, whose gradients are added at other times.
    """

    def __init__(self, network: nn.Module, values: Float32, grads: Float32, room: _Room) -> None:
        assert isinstance(network, Perceptron), "checked with the configuration"
        layers = network.linear
        self._widths = np.array([layers[0].in_features, *(layer.out_features for layer in layers)], np.int64)
        self._values, self._grads, self._tanh = values, grads, network.activation == "tanh"
        self._room = room
        self._made: dict[int, tuple[tuple[Any, ...], Float32, Float32]] = {}

    def of(self, rows: int) -> tuple[tuple[Any, ...], Float32, Float32]:
        """For a minibatch of so many rows: the network, what comes out of it, and the derivative by that, both [B, O]."""
        if rows not in self._made:
            if len(self._made) > 1:  # more than whole ones and the last of an epoch: their sizes may never come again
                self._made.clear()
            self._made[rows] = self._make(rows)
        return self._made[rows]

    def outputs(self, obs: Tensor, loops: Any) -> Float32:
        """[R, O] of any number of observations; nothing can be learned from them."""
        found = np.empty((len(obs), int(self._widths[-1])), np.float32)
        for start in range(0, len(obs), AT_ONCE):
            part = obs[start : start + AT_ONCE].numpy()
            loops.forward(part, self._make(len(part))[0], found[start : start + AT_ONCE])
        return found

    def _make(self, rows: int) -> tuple[tuple[Any, ...], Float32, Float32]:
        between, outputs = self._widths[1:-1], int(self._widths[-1])
        largest = int((self._widths[:-1] * self._widths[1:]).max())
        kept, turned, spare = self._room.of(rows * int(between.sum()), largest, 2 * rows * int(between.max()))
        net = self._widths, self._values, self._grads, kept, turned, spare.reshape(2, -1), self._tanh
        return net, np.empty((rows, outputs), np.float32), np.empty((rows, outputs), np.float32)
