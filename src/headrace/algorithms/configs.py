"""Hyperparameters of every algorithm. No torch here: the supervisor reads them too."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.core.config import Section


class NetworkConfig(Section):
    """A multilayer perceptron, or a network of the user's own."""

    hidden: list[int] = Field(default=[256, 256], min_length=1)
    """Units of each hidden layer."""
    activation: Literal["relu", "tanh", "elu", "silu"] = "relu"
    """Between the layers."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation."""
    factory: str | None = None
    """``module:function(inputs, outputs) -> torch.nn.Module`` instead of the perceptron; collectors then act in torch.
    It returns raw outputs (TD3 squashes the actor's itself) and uses neither batch statistics nor dropout."""


class ExplorationConfig(Section):
    """Noise added to actions, in units of half the action range."""

    kind: Literal["gaussian", "ornstein-uhlenbeck", "none"] = "gaussian"
    """Ornstein-Uhlenbeck starts at zero in every episode."""
    scale: float = Field(default=0.1, ge=0)
    """Standard deviation at the start of the schedule; for Ornstein-Uhlenbeck, of one step's increment."""
    final_scale: float | None = Field(default=None, ge=0)
    """Standard deviation at its end; not set: constant."""
    decay_steps: int = Field(default=1, ge=1)
    """Environment steps, over all lanes, from ``scale`` to ``final_scale``, linear."""
    theta: float = Field(default=0.15, gt=0)
    """Ornstein-Uhlenbeck: pull to zero per step."""


class TD3Config(Section):
    """Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018, arXiv:1802.09477)."""

    name: Literal["td3"] = "td3"
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount per environment step."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Share of the online weights mixed into the target weights at each actor update."""
    batch_size: int = Field(default=256, ge=1)
    """Transitions per update."""
    actor_lr: float = Field(default=3e-4, gt=0)
    critic_lr: float = Field(default=3e-4, gt=0)
    policy_noise: float = Field(default=0.2, ge=0)
    """Standard deviation of the target smoothing noise, in units of half the action range."""
    noise_clip: float = Field(default=0.5, ge=0)
    """Largest target smoothing noise, in the same unit."""
    policy_delay: int = Field(default=2, ge=1)
    """Critic updates per actor update."""
    normalize_observations: bool = False
    """Scale observations by running mean and standard deviation, taken from the rows as they are committed."""
    actor: NetworkConfig = NetworkConfig()
    critic: NetworkConfig = NetworkConfig()
    exploration: ExplorationConfig = ExplorationConfig()


TD3 = TD3Config
