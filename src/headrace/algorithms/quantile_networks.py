"""The networks of IQN for learning, several policies' in one: each layer is one batched matrix product over all of them.

Letters in shapes: P policies, B transitions of each, O encoded observation, K quantiles, C cosines, E embedding, H hidden,
n actions, R rows of one policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from headrace.algorithms.configs import QuantileNetworkConfig
from headrace.algorithms.quantile_acting import Layer, layers
from headrace.core import seeding

_SIGMA = 0.5
"""Spread of a noisy weight at the start, times the root of the number of inputs (section 3.2 of arXiv:1706.10295)."""

Noise = Mapping[str, tuple[Tensor, Tensor]]
"""By layer: of its inputs [P, inputs] and of its outputs [P, outputs]."""


class Linears(nn.Module):
    """The same linear layer of every policy.

    Args:
        layer: Its sizes, and whether it is noisy.
        draws: What each policy's weights are drawn from.
    """

    weight: Tensor
    bias: Tensor
    weight_sigma: Tensor
    bias_sigma: Tensor

    def __init__(self, layer: Layer, draws: Sequence[torch.Generator]) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(layer.inputs)
        for name, shape in layer.shapes:
            values = torch.empty(len(draws), *shape)
            if name.endswith("_sigma"):
                values.fill_(_SIGMA * bound)
            else:
                for value, draw in zip(values, draws, strict=True):
                    value.uniform_(-bound, bound, generator=draw)
            self.register_parameter(name, nn.Parameter(values))

    def forward(self, x: Tensor, noise: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[P, R, outputs] of ``x`` [P, R, inputs]; without ``noise`` the means of what is noisy.

        *Source*: equations 9 to 11 of arXiv:1706.10295, factorised.
        """
        weight, bias = self.weight, self.bias
        if noise is not None:
            inputs, outputs = noise
            weight = torch.addcmul(weight, self.weight_sigma, outputs.unsqueeze(2) * inputs.unsqueeze(1))
            bias = torch.addcmul(bias, self.bias_sigma, outputs)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class QuantileNetworks(nn.Module):
    """Quantile values of every policy (section 3 of arXiv:1806.06923).

    Args:
        config: Sizes, and what is added to the plain network.
        inputs: O.
        actions: n.
        seed: The run's; each policy's weights come from a stream of their own, those of the first from that of a policy that
            is alone.
        policies: P.
    """

    observation: Linears
    fraction: Linears
    hidden: Linears
    advantage: Linears
    value: Linears
    _frequencies: Tensor

    def __init__(self, config: QuantileNetworkConfig, inputs: int, actions: int, seed: int, policies: int) -> None:
        super().__init__()
        self.noisy_layers = tuple(layer for layer in layers(config, inputs, actions) if layer.noisy)
        draws = [
            torch.Generator().manual_seed(seeding.integer(seed, "initialisation", *((policy,) if policy else ())))
            for policy in range(policies)
        ]
        for layer in layers(config, inputs, actions):
            self.add_module(layer.name, Linears(layer, draws))
        self._dueling = config.dueling
        self.register_buffer(
            "_frequencies", torch.arange(config.cosines, dtype=torch.float32) * math.pi, persistent=False
        )

    def forward(self, x: Tensor, taus: Tensor, noise: Noise) -> Tensor:
        """Quantile values [P, B, K, n].

        Args:
            x: [P, B, O].
            taus: [P, B, K] quantile fractions.
            noise: Of the noisy layers; empty: they are their means.
        """
        hidden = self._hidden(x, taus, noise)  # [P, B, K, H]
        values = self._values(hidden.flatten(1, 2), noise)
        return values.view(*taus.shape, -1)

    def mean(self, x: Tensor, taus: Tensor, noise: Noise) -> Tensor:
        """Mean of the quantile values, [P, B, n], taken before the heads: they are linear."""
        return self._values(self._hidden(x, taus, noise).mean(dim=2), noise)

    def _hidden(self, x: Tensor, taus: Tensor, noise: Noise) -> Tensor:
        policies, rows, quantiles = taus.shape
        seen = self.observation(x).relu_().unsqueeze(2)  # [P, B, 1, E]
        cosines = torch.cos(taus.unsqueeze(3) * self._frequencies)  # [P, B, K, C]
        fractions = self.fraction(cosines.flatten(1, 2)).relu_()  # [P, B * K, E]
        mixed = (seen * fractions.view(policies, rows, quantiles, -1)).flatten(1, 2)
        hidden: Tensor = self.hidden(mixed, noise.get("hidden")).relu_()
        return hidden.view(policies, rows, quantiles, -1)

    def _values(self, hidden: Tensor, noise: Noise) -> Tensor:
        advantage: Tensor = self.advantage(hidden, noise.get("advantage"))  # [P, R, n]
        if not self._dueling:
            return advantage
        value: Tensor = self.value(hidden, noise.get("value"))
        return advantage + (value - advantage.mean(dim=2, keepdim=True))


class Draws:
    """Quantile fractions and noise of updates, each policy's from a generator of its own: no policy moves another's.

    Drawn on the CPU on every device, so that the stream is the same one.

    Args:
        seed: The run's. Stream used: ``quantiles``.
        policies: P.
        noisy: Layers that take noise.
        device: Where it is wanted.
    """

    def __init__(self, seed: int, policies: int, noisy: Sequence[Layer], device: torch.device) -> None:
        self._generators = [
            torch.Generator().manual_seed(seeding.integer(seed, "quantiles", *((policy,) if policy else ())))
            for policy in range(policies)
        ]
        self._noisy = tuple(noisy)
        self._device = device

    def taus(self, rows: int, count: int) -> Tensor:
        """Quantile fractions [P, rows, count], uniform in [0, 1)."""
        drawn = [torch.rand(rows, count, generator=generator) for generator in self._generators]
        return torch.stack(drawn).to(self._device)

    def noise(self) -> Noise:
        """A sample of every noisy layer's noise, one for all rows."""
        return {layer.name: (self._spread(layer.inputs), self._spread(layer.outputs)) for layer in self._noisy}

    def _spread(self, size: int) -> Tensor:
        """``sign(x) sqrt(|x|)`` of normals, [P, size]."""
        normal = torch.stack([torch.randn(size, generator=generator) for generator in self._generators])
        return (normal.sign() * normal.abs().sqrt()).to(self._device)

    def state(self) -> Tensor:
        """Of all generators, uint8 [P, bytes]."""
        return torch.stack([generator.get_state() for generator in self._generators])

    def load_state(self, state: Tensor) -> None:
        """Go on from `state`."""
        for generator, saved in zip(self._generators, state, strict=True):
            generator.set_state(saved.clone())
