"""The acting half for continuous actions: observation -> network -> tanh -> noise -> action; numpy alone.

Python's own cost matters here: one lane asks for one action at a time. So everything that can be worked
out is worked out in `load` or for a new number of lanes, and a call is a dozen numpy calls into buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Arrays, LaneNoise, PolicySpec
from headrace.algorithms.configs import ExplorationConfig, NetworkConfig
from headrace.algorithms.encoding import ActionBox, ObservationEncoder, normalize
from headrace.algorithms.exploration import ActionNoise, lane_noise
from headrace.core.arrays import aligned
from headrace.core.errors import SnapshotCorrupt
from headrace.core.specs import leaves

Float32 = NDArray[np.float32]

_ZERO = np.zeros((), np.float32)
_ONE = np.ones((), np.float32)
_EXP_LIMIT = np.float32(80.0)  # exp() of more overflows float32
_LAYER_NORM_EPSILON = np.float32(1e-5)  # torch's default


class Network(Protocol):
    """A policy network whose weights come as one flat vector."""

    def load(self, flat: Float32) -> None:
        """Use these weights [P] from now on; they stay valid and unchanged until the next `load`."""
        ...

    def forward(self, x: Float32) -> Float32:
        """Outputs [N, outputs] for ``x`` [N, inputs]; a buffer that the next call overwrites."""
        ...


class BoxActor:
    """Fulfils `headrace.algorithms.base.Actor` for deterministic policies over a Box.

    Args:
        policy: What to rebuild.
        network: From encoded observations to actions before tanh.
        exploration: Kind of noise; its scale comes with each snapshot.

    Raises:
        UnsupportedSpace: The spaces of ``policy`` do not suit.
    """

    def __init__(self, policy: PolicySpec, network: Network, exploration: ExplorationConfig) -> None:
        self._encoder = ObservationEncoder(policy.observation_space)
        self._box = ActionBox(policy.action_space)
        self._network = network
        self._exploration = exploration
        self._scale: NDArray[np.float32] = np.zeros((), np.float32)
        self._mean: Float32 | None = None
        self._std: Float32 | None = None
        self._first_leaf = leaves(policy.observation_space, "obs")[0].path
        self._lanes = 0
        self._resize(1)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Actor.load`.

        Raises:
            SnapshotCorrupt: The snapshot was made for another policy; the old one stays in use.
        """
        if "actor" not in arrays or "exploration_scale" not in arrays:
            raise misfit("arrays 'actor' and 'exploration_scale'", f"arrays {sorted(arrays)}")
        self._network.load(arrays["actor"])
        self._scale = np.array(arrays["exploration_scale"][0], np.float32)
        self._mean = arrays.get("obs_mean")
        self._std = arrays.get("obs_std")

    def noise(self, generator: np.random.Generator) -> LaneNoise:
        """See `Actor.noise`."""
        return lane_noise(self._exploration, self._box.size, generator)

    def act(self, obs: Arrays, noise: Sequence[LaneNoise] | None = None) -> Arrays:
        """See `Actor.act`. The returned array is new; environments may keep it."""
        lanes = len(obs[self._first_leaf])
        if lanes != self._lanes:
            self._resize(lanes)
        self._encoder.encode(obs, self._x)
        if self._mean is not None and self._std is not None:
            normalize(self._x, self._mean, self._std)
        action = self._network.forward(self._x)  # [N, A]
        np.tanh(action, out=action)
        if noise is not None:
            self._explore(action, noise)
        return {"action": self._box.denormalize(action)}

    def _explore(self, action: Float32, noise: Sequence[LaneNoise]) -> None:
        # Only `noise` of this very actor makes them, hence ActionNoise.
        for lane, row in zip(cast("Sequence[ActionNoise]", noise), self._noise_rows, strict=True):
            lane.draw(row)
        self._noise *= self._scale
        action += self._noise  # what this pushes out of the range, the action box clips

    def _resize(self, lanes: int) -> None:
        self._lanes = lanes
        self._x = aligned((lanes, self._encoder.size))
        self._noise = aligned((lanes, self._box.size))
        self._noise_rows = list(self._noise)


class PerceptronForward:
    """A multilayer perceptron on views of the flat weight vector.

    The vector holds, layer by layer, ``weight`` [out, in] and ``bias`` [out], and after each hidden layer, if
    normalised, ``gain`` [out] and ``shift`` [out]: the order of ``parameters()`` of `networks.perceptron`.

    Equal weights and inputs give bit-identical outputs for an equal number of rows; a different number of
    rows may take another path through the matrix library.
    """

    def __init__(self, config: NetworkConfig, inputs: int, outputs: int) -> None:
        self._activate = ACTIVATIONS[config.activation]
        self._layer_norm = config.layer_norm
        self._widths = [*config.hidden, outputs]
        self._shapes = _parameter_shapes(config, inputs, outputs)
        self._size = sum(int(np.prod(shape)) for shape in self._shapes)
        self._layers: list[tuple[Float32, Float32, Float32 | None, Float32 | None]] = []
        self._rows = 0

    def load(self, flat: Float32) -> None:
        """See `Network.load`.

        Raises:
            SnapshotCorrupt: Not ``float32 [P]`` for this network's P; the old weights stay in use.
        """
        if flat.shape != (self._size,) or flat.dtype != np.float32:
            raise misfit(f"weights: float32 [{self._size}]", f"weights: {flat.dtype} {list(flat.shape)}")
        views: list[Float32] = []
        start = 0
        for shape in self._shapes:
            end = start + int(np.prod(shape))
            views.append(flat[start:end].reshape(shape))
            start = end
        layers, rest = [], iter(views)
        for depth in range(len(self._widths)):
            weight, bias = next(rest), next(rest)
            normed = self._layer_norm and depth < len(self._widths) - 1
            gain, shift = (next(rest), next(rest)) if normed else (None, None)
            layers.append((weight.T, bias, gain, shift))  # .T is a view; the matrix library reads it as it lies
        self._layers = layers

    def forward(self, x: Float32) -> Float32:
        """See `Network.forward`."""
        if len(x) != self._rows:
            self._resize(len(x))
        *hidden, (last_weight, last_bias, _, _) = self._layers
        for (weight, bias, gain, shift), out, spare in zip(hidden, self._outputs, self._spares, strict=False):
            np.dot(x, weight, out=out)
            np.add(out, bias, out=out)
            if gain is not None and shift is not None:
                _layer_norm(out, gain, shift, spare)
            self._activate(out, spare)
            x = out
        out = self._outputs[-1]
        np.dot(x, last_weight, out=out)
        np.add(out, last_bias, out=out)
        return out

    def _resize(self, rows: int) -> None:
        self._rows = rows
        self._outputs = [aligned((rows, width)) for width in self._widths]
        self._spares = [aligned((rows, width)) for width in self._widths[:-1]]


def _parameter_shapes(config: NetworkConfig, inputs: int, outputs: int) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    for width in config.hidden:
        shapes += [(width, inputs), (width,)]
        if config.layer_norm:
            shapes += [(width,), (width,)]
        inputs = width
    return [*shapes, (outputs, inputs), (outputs,)]


def _layer_norm(x: Float32, gain: Float32, shift: Float32, spare: Float32) -> None:
    """``(x - mean) / sqrt(variance + epsilon) * gain + shift`` over the last axis, in place."""
    np.subtract(x, x.mean(axis=1, keepdims=True), out=x)
    np.multiply(x, x, out=spare)
    deviation = np.sqrt(spare.mean(axis=1, keepdims=True) + _LAYER_NORM_EPSILON)
    np.divide(x, deviation, out=x)
    np.multiply(x, gain, out=x)
    np.add(x, shift, out=x)


def _relu(x: Float32, spare: Float32) -> None:
    np.maximum(x, _ZERO, out=x)


def _tanh(x: Float32, spare: Float32) -> None:
    np.tanh(x, out=x)


def _elu(x: Float32, spare: Float32) -> None:
    np.minimum(x, _ZERO, out=spare)
    np.expm1(spare, out=spare)
    np.maximum(x, _ZERO, out=x)
    np.add(x, spare, out=x)


def _silu(x: Float32, spare: Float32) -> None:
    np.negative(x, out=spare)
    np.minimum(spare, _EXP_LIMIT, out=spare)
    np.exp(spare, out=spare)
    np.add(spare, _ONE, out=spare)
    np.divide(x, spare, out=x)


ACTIVATIONS: Mapping[str, Callable[[Float32, Float32], None]] = {
    "relu": _relu,
    "tanh": _tanh,
    "elu": _elu,
    "silu": _silu,
}
"""In place on the first argument; the second is scratch of the same shape."""


def misfit(expected: str, found: str) -> SnapshotCorrupt:
    """The error that says that a snapshot is of another policy."""
    return SnapshotCorrupt(
        "a weights snapshot does not fit the policy that is to act with it",
        expected=expected,
        found=found,
        fix="act with the configuration the snapshot was trained with: the run directory's config.toml",
    )
