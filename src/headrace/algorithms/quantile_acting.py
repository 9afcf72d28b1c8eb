"""The network of IQN for acting: what each action is worth on average, over fixed quantiles; numpy alone.

Letters in shapes: N rows, O encoded observation, K quantiles, C cosines, E embedding, H hidden, n actions, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.algorithms.acting import misfit
from headrace.algorithms.configs import IQNConfig, QuantileNetworkConfig
from headrace.algorithms.encoding import Float32
from headrace.core.arrays import aligned

_ZERO = np.zeros((), np.float32)


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer, as acting and learning know it."""

    name: str
    inputs: int
    outputs: int
    noisy: bool = False

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Its parameters in the order in which they lie in the flat vector, by name."""
        plain = (("weight", (self.outputs, self.inputs)), ("bias", (self.outputs,)))
        return (*plain, *((f"{name}_sigma", shape) for name, shape in plain)) if self.noisy else plain


def layers(config: QuantileNetworkConfig, inputs: int, actions: int) -> tuple[Layer, ...]:
    """The layers of the network in the order in which their parameters lie in the flat vector."""
    heads = [Layer("advantage", config.hidden, actions, config.noisy)]
    if config.dueling:
        heads.append(Layer("value", config.hidden, 1, config.noisy))
    return (
        Layer("observation", inputs, config.embedding),
        Layer("fraction", config.cosines, config.embedding),
        Layer("hidden", config.embedding, config.hidden, config.noisy),
        *heads,
    )


def midpoints(quantiles: int) -> Float32:
    """Quantile fractions ``(i + 1/2) / K`` [K]: the middle of each of K equal parts of a distribution."""
    return ((np.arange(quantiles) + 0.5) / quantiles).astype(np.float32)


class QuantileForward:
    """A `headrace.algorithms.acting.Network`: mean quantile values [N, n], the quantiles being those of `midpoints`.

    So an action follows from weights and observation alone, and the cosines of the quantiles are worked out once for a
    snapshot. Behind the hidden layer everything is linear, so the mean over quantiles is taken there, and value and
    advantages are one matrix. Noise is off: noisy layers act with their means.

    Equal weights and inputs give bit-identical outputs for an equal number of rows.

    Args:
        config: Of the algorithm.
        inputs: O.
        actions: n.
    """

    def __init__(self, config: IQNConfig, inputs: int, actions: int) -> None:
        self._dueling = config.network.dueling
        self._layers = layers(config.network, inputs, actions)
        self._size = sum(math.prod(shape) for layer in self._layers for _, shape in layer.shapes)
        taus = midpoints(config.quantiles.acting)
        self._cosines = np.cos(np.pi * taus[:, None] * np.arange(config.network.cosines, dtype=np.float32))  # [K, C]
        self._rows = 0
        self._observation = aligned((inputs, config.network.embedding))
        self._observation_bias = aligned((config.network.embedding,))
        self._hidden = aligned((config.network.embedding, config.network.hidden))
        self._hidden_bias = aligned((config.network.hidden,))
        self._fractions = aligned((len(taus), 1, config.network.embedding))
        self._heads = aligned((config.network.hidden, actions))
        self._head_bias = aligned((actions,))

    def load(self, flat: Float32) -> None:
        """See `Network.load`.

        Raises:
            SnapshotCorrupt: Not ``float32 [P]`` for this network's P; the old weights stay in use.
        """
        if flat.shape != (self._size,) or flat.dtype != np.float32:
            raise misfit(f"weights: float32 [{self._size}]", f"weights: {flat.dtype} {list(flat.shape)}")
        found: dict[str, Float32] = {}
        start = 0
        for layer in self._layers:
            for name, shape in layer.shapes:
                end = start + math.prod(shape)
                found[f"{layer.name}.{name}"] = flat[start:end].reshape(shape)
                start = end
        # Turned round once, not in every product, which so takes a quarter less time.
        self._observation[...], self._observation_bias[:] = found["observation.weight"].T, found["observation.bias"]
        self._hidden[...], self._hidden_bias[:] = found["hidden.weight"].T, found["hidden.bias"]
        fractions = np.dot(self._cosines, found["fraction.weight"].T) + found["fraction.bias"]  # [K, E]
        np.maximum(fractions, _ZERO, out=self._fractions[:, 0])
        self._load_heads(found)

    def _load_heads(self, found: dict[str, Float32]) -> None:
        weight, bias = found["advantage.weight"], found["advantage.bias"]
        if self._dueling:
            weight = weight - weight.mean(axis=0) + found["value.weight"]
            bias = bias - bias.mean() + found["value.bias"]
        np.divide(weight.T, len(self._fractions), out=self._heads)  # of a sum over quantiles, so it is their mean
        self._head_bias[:] = bias

    def forward(self, x: Float32) -> Float32:
        """See `Network.forward`."""
        if len(x) != self._rows:
            self._resize(len(x))
        embedded, mixed, hidden, total, out = self._buffers
        np.dot(x, self._observation, out=embedded)
        np.add(embedded, self._observation_bias, out=embedded)
        np.maximum(embedded, _ZERO, out=embedded)
        np.multiply(self._fractions, embedded, out=mixed)
        np.dot(mixed.reshape(-1, mixed.shape[2]), self._hidden, out=hidden)
        np.add(hidden, self._hidden_bias, out=hidden)
        np.maximum(hidden, _ZERO, out=hidden)
        np.add.reduce(hidden.reshape(len(mixed), *total.shape), axis=0, out=total)
        np.dot(total, self._heads, out=out)
        np.add(out, self._head_bias, out=out)
        return out

    def _resize(self, rows: int) -> None:
        self._rows = rows
        quantiles, _, embedding = self._fractions.shape
        width, actions = self._heads.shape
        shapes = (
            (rows, embedding),
            (quantiles, rows, embedding),
            (quantiles * rows, width),
            (rows, width),
            (rows, actions),
        )
        self._buffers = tuple(aligned(shape) for shape in shapes)
