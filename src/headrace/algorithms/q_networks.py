"""Torch networks that say what every action is worth: perceptrons, and fully convolutional ones over a map.

Letters: B batch, O encoded observation, C channels, H x W cells, n actions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headrace.algorithms.configs import DQNConfig, MapConfig
from headrace.algorithms.encoding import MapPlace, ObservationEncoder, map_place
from headrace.algorithms.networks import UndrawnConv2d, UndrawnLinear, build_network
from headrace.algorithms.passes import Memory, Pass, pass_of

_MOST_GROUPS = 8
"""Groups into which the channels of a map are divided to be normalised, at most."""
_LEAST_CHANNELS = 4
"""Channels in a group. One that is normalised alone says no longer how much there is of anything."""


def build_q_network(
    config: DQNConfig, encoder: ObservationEncoder, actions: int, generator: torch.Generator
) -> nn.Module:
    """A network [B, O] -> [B, n] on the CPU, initialised from ``generator`` alone.

    Args:
        config: Of the algorithm.
        encoder: Of the observations.
        actions: n.
        generator: On the CPU.

    Raises:
        ConfigError: A network factory does not do.
        UnsupportedSpace: There is no such map in the observation.
    """
    if config.map.leaf is not None:
        return MapNetwork(
            config.map, map_place(config.map.leaf, encoder, actions), dueling=config.dueling, draw=generator
        )
    network = build_network(config.network, encoder.size, actions + config.dueling, generator)
    return Dueling(network) if config.dueling else network


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q-values [B, n] from ``value`` [B, 1] and ``advantage`` [B, n] (equation 9 of arXiv:1511.06581)."""
    return value + advantage - advantage.mean(dim=1, keepdim=True)


class Dueling(nn.Module):
    """Takes the first of a network's 1 + n outputs for the value of the observation."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Q-values [B, n] of ``x`` [B, O]."""
        out: Tensor = self.network(x)
        return dueling(out[:, :1], out[:, 1:])


def q_pass_of(network: nn.Module, memory: Memory) -> Pass:
    """The fastest way through a network of `build_q_network`; see `headrace.algorithms.passes.pass_of`."""
    return DuelingPass(network, memory) if isinstance(network, Dueling) else pass_of(network, memory)


class DuelingPass:
    """Fulfils `Pass`: value and advantages come out of the network inside, and `dueling` is a matrix product."""

    def __init__(self, network: Dueling, memory: Memory) -> None:
        self._inner = pass_of(network.network, memory)
        self._matrix = torch.empty(0)  # [1 + n, n]  made when n is known

    def __call__(self, x: Tensor) -> Tensor:
        """See `Pass.__call__`."""
        return self._dueling(self._inner(x))

    def traced(self, x: Tensor) -> Tensor:
        """See `Pass.traced`."""
        return self._dueling(self._inner.traced(x))

    def back(self, grad: Tensor, *, weights: bool = True, inputs: int = 0) -> Tensor | None:
        """See `Pass.back`."""
        return self._inner.back(grad @ self._matrix.t(), weights=weights, inputs=inputs)

    def _dueling(self, out: Tensor) -> Tensor:
        if not len(self._matrix):
            unit = torch.eye(out.shape[1], device=out.device)
            self._matrix = dueling(unit[:, :1], unit[:, 1:])  # a linear function's matrix is what it makes of the unit
        return out @ self._matrix


class MapNetwork(nn.Module):
    """3x3 convolutions over the map, then one value per cell; the same weights everywhere, so it is of no fixed size.

    Dueling, the value of the observation is a linear function of the mean over all cells.

    Args:
        config: Channels and blocks.
        place: Of the map.
        dueling: Whether it has a value beside the cells' advantages.
        draw: What its weights are drawn from.
    """

    def __init__(self, config: MapConfig, place: MapPlace, *, dueling: bool, draw: torch.Generator) -> None:
        super().__init__()
        self._place = place
        layers: list[nn.Module] = []
        inputs = place.channels
        for depth, channels in enumerate(config.channels):
            block = Residual if config.residual and depth else Convolution
            layers.append(block(inputs, channels, normed=config.group_norm, draw=draw))
            inputs = channels
        self.trunk = nn.Sequential(*layers)
        # Of advantages what is added to all of them counts for nothing.
        self.cells = _drawn(UndrawnConv2d(inputs, 1, 1, bias=not dueling), inputs, draw)
        self.value = _drawn(UndrawnLinear(inputs, 1), inputs, draw) if dueling else None

    def forward(self, x: Tensor) -> Tensor:
        """Q-values [B, H * W] of ``x`` [B, O]."""
        return self.exact_part(self.rounded_part(x))

    def rounded_part(self, x: Tensor) -> Tensor:
        """[B, C, H, W]; see `headrace.algorithms.networks.InTwo`, which this fulfils."""
        place = self._place
        picture = x[:, place.start : place.stop].reshape(-1, place.channels, place.height, place.width)
        features: Tensor = self.trunk(picture)
        return features

    def exact_part(self, inner: Tensor) -> Tensor:
        """See `headrace.algorithms.networks.InTwo.exact_part`."""
        cells: Tensor = self.cells(inner).flatten(1)
        return cells if self.value is None else dueling(self.value(inner.mean(dim=(2, 3))), cells)


class Convolution(nn.Module):
    """A 3x3 convolution, a norm, a rectifier."""

    def __init__(self, inputs: int, outputs: int, *, normed: bool, draw: torch.Generator) -> None:
        super().__init__()
        self.convolution = _convolution(inputs, outputs, draw)
        self.norm = _norm(outputs) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[B, outputs, H, W] of ``x`` [B, inputs, H, W]."""
        return torch.relu(self.norm(self.convolution(x)))


class Residual(nn.Module):
    """Two 3x3 convolutions and a way around them (He et al. 2016, arXiv:1512.03385)."""

    def __init__(self, inputs: int, outputs: int, *, normed: bool, draw: torch.Generator) -> None:
        super().__init__()
        self.first = Convolution(inputs, outputs, normed=normed, draw=draw)
        self.second = _convolution(outputs, outputs, draw)
        self.norm = _norm(outputs) if normed else nn.Identity()
        skip = inputs == outputs
        self.around = nn.Identity() if skip else _drawn(UndrawnConv2d(inputs, outputs, 1), inputs, draw)

    def forward(self, x: Tensor) -> Tensor:
        """[B, outputs, H, W] of ``x`` [B, inputs, H, W]."""
        return torch.relu(self.norm(self.second(self.first(x))) + self.around(x))


def _convolution(inputs: int, outputs: int, draw: torch.Generator) -> nn.Module:
    return _drawn(UndrawnConv2d(inputs, outputs, 3, padding=1), 9 * inputs, draw)


def _norm(channels: int) -> nn.Module:
    fitting = (n for n in range(1, _MOST_GROUPS + 1) if channels % n == 0 and channels // n >= _LEAST_CHANNELS)
    return nn.GroupNorm(max(fitting, default=1), channels)  # begins as 1 and 0: nothing is drawn


def _drawn(layer: nn.Module, fan_in: int, draw: torch.Generator) -> nn.Module:
    """Torch's own initialisation, uniform within 1/sqrt(fan_in), but drawn from our generator."""
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=draw)
    return layer
