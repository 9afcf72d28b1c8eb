"""Torch networks of what learns from its own rollouts: one that chooses, one that says what it is worth."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headrace.algorithms.encoding import Float32, Float64
from headrace.algorithms.heads import GaussianHead, Head
from headrace.algorithms.networks import build_network
from headrace.algorithms.on_policy_configs import ActorCriticConfig, PolicyNetworkConfig

_HIDDEN_GAIN = math.sqrt(2.0)
_POLICY_GAIN = 0.01
"""Small, so that at first no action is preferred."""
_VALUE_GAIN = 1.0
AT_ONCE = 8192
"""Observations that go through a network at once where nothing is learned."""


class ActorCritic(nn.Module):
    """Two networks, and the spread of continuous actions. In one flat vector they follow each other: actor, spread, critic.

    Args:
        config: Of both.
        inputs: Length of an encoded observation.
        head: Of the action space.
        generator: On the CPU; all of it is drawn from this alone.
    """

    def __init__(self, config: ActorCriticConfig, inputs: int, head: Head, generator: torch.Generator) -> None:
        super().__init__()
        self.actor = _network(config.actor, inputs, head.outputs, _POLICY_GAIN, generator)
        self.spread = _Spread(head.outputs, config.log_std) if isinstance(head, GaussianHead) else None
        self.critic = _network(config.critic, inputs, 1, _VALUE_GAIN, generator)

    @property
    def log_std(self) -> Tensor | None:
        """[A] of continuous actions."""
        return None if self.spread is None else self.spread.log_std

    def spread_now(self) -> Float32 | None:
        """`log_std` as numbers, live in host memory."""
        return None if self.log_std is None else self.log_std.detach().cpu().numpy()

    def add_to_spread(self, grad: Tensor) -> None:
        """Add the derivative of a loss by `log_std`, [A], to its gradient."""
        assert self.log_std is not None
        assert self.log_std.grad is not None
        self.log_std.grad.add_(grad)

    def value(self, obs: Tensor) -> Tensor:
        """[B] of ``obs`` [B, O]."""
        values: Tensor = self.critic(obs)
        return values.squeeze(1)

    @torch.no_grad()
    def values(self, obs: Tensor) -> Float64:
        """[R] of any number of observations [R, O]; nothing can be learned from it."""
        return torch.cat([self.value(part) for part in obs.split(AT_ONCE)]).double().cpu().numpy()

    @torch.no_grad()
    def outputs(self, obs: Tensor) -> Float32:
        """[R, n] of the actor, in the same way."""
        return torch.cat([self.actor(part) for part in obs.split(AT_ONCE)]).cpu().numpy()

    def actor_scalars(self) -> int:
        """Parameters of the actor's network."""
        return sum({id(p): p.numel() for p in self.actor.parameters()}.values())


class _Spread(nn.Module):
    def __init__(self, actions: int, log_std: float) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.full((actions,), log_std))


def _network(
    config: PolicyNetworkConfig, inputs: int, outputs: int, gain: float, generator: torch.Generator
) -> nn.Module:
    network = build_network(config.network(), inputs, outputs, generator)
    if config.factory is not None:
        return network
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else _HIDDEN_GAIN, generator=generator)
        nn.init.zeros_(layer.bias)
    return network
