"""IQN written down once more, plainly and in float64, and learners and batches to compare it with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from headrace.algorithms.base import Transitions
from headrace.algorithms.configs import IQNConfig
from headrace.algorithms.iqn import IQN
from headrace.algorithms.quantile_networks import Noise

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Discrete(4, start=2)
SMALL = {"embedding": 10, "cosines": 6, "hidden": 9}
FEW = {"online": 5, "next": 7, "acting": 6}
MASKED = spaces.Dict({"see": OBS, "mask": spaces.MultiBinary(4)})


def config(**changes: Any) -> IQNConfig:
    network, quantiles = SMALL | changes.pop("network", {}), FEW | changes.pop("quantiles", {})
    return IQNConfig(**{"batch_size": 8, "network": network, "quantiles": quantiles, **changes})


def learner(seed: int = 0, policies: int = 1, **changes: Any) -> IQN:
    return IQN(config(**changes), OBS, ACTION, seed, policies=policies)


def masked_learner(**changes: Any) -> IQN:
    return IQN(config(actions={"mask_leaf": "obs.mask"}, **changes), MASKED, ACTION, 0)


def batch(seed: int = 0, n: int = 8, discount: float = 0.9, weight: np.ndarray | None = None) -> Transitions:
    rng = np.random.default_rng(seed)
    obs, following = rng.uniform(-2, 2, (2, n, 3)).astype(np.float32)
    action, reward = rng.integers(2, 6, n), rng.standard_normal(n)
    return Transitions({"obs": obs}, {"action": action}, reward, np.full(n, discount), {"obs": following}, weight)


def masked_batch(seed: int = 0, n: int = 8, legal: float = 0.5) -> Transitions:
    rng, plain = np.random.default_rng(seed), batch(seed, n)
    masks = (rng.random((2, n, 4)) < legal).astype(np.int8)
    plain.obs, plain.next_obs = (
        {"obs.see": part["obs"], "obs.mask": mask}
        for part, mask in zip((plain.obs, plain.next_obs), masks, strict=True)
    )
    return plain


def joined(batches: list[Transitions]) -> Transitions:
    """Policy by policy."""

    def both(parts: list[Any]) -> dict[str, np.ndarray]:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    weights = [b.weight for b in batches]
    return Transitions(
        both([b.obs for b in batches]),
        both([b.action for b in batches]),
        np.concatenate([b.reward for b in batches]),
        np.concatenate([b.discount for b in batches]),
        both([b.next_obs for b in batches]),
        None if weights[0] is None else np.concatenate(weights),
    )


def arrays(algorithm: Any) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in algorithm.state().items()}


class Told:
    """Stands in for what an update draws, and remembers the newest."""

    def __init__(self, algorithm: IQN) -> None:
        self.draws = algorithm._draws
        self.fractions: list[torch.Tensor] = []
        self.noises: list[Noise] = []
        algorithm._draws = self

    def forget(self) -> None:
        self.fractions, self.noises = [], []

    def taus(self, rows: int, count: int) -> torch.Tensor:
        self.fractions.append(self.draws.taus(rows, count))
        return self.fractions[-1]

    def noise(self) -> Noise:
        self.noises.append(self.draws.noise())
        return self.noises[-1]


class Repeated:
    """Gives again what one of the policies was given."""

    def __init__(self, told: Told, policy: int) -> None:
        self.fractions, self.noises, self.policy = list(told.fractions), list(told.noises), slice(policy, policy + 1)

    def taus(self, rows: int, count: int) -> torch.Tensor:
        taus = self.fractions.pop(0)[self.policy]
        assert taus.shape == (1, rows, count)
        return taus

    def noise(self) -> Noise:
        return {name: (one[self.policy], other[self.policy]) for name, (one, other) in self.noises.pop(0).items()}


class Plain:
    """One policy's update, transition by transition, quantile by quantile, in float64."""

    def __init__(self, algorithm: IQN, policy: int = 0) -> None:
        self.config, self.encoder, self.policy = algorithm._config, algorithm._inputs.encoder, policy
        self.q, self.target_q = ({
            name: parameter[policy].detach().double().requires_grad_()
            for name, parameter in network.named_parameters()
        } for network in (algorithm._q, algorithm._target_q))  # fmt: skip
        self.adam = torch.optim.Adam(self.q.values(), lr=self.config.lr)
        self.updates = 0
        self.norm = 0.0

    def linear(self, w: dict[str, torch.Tensor], name: str, x: torch.Tensor, noise: Noise) -> torch.Tensor:
        weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        if name in noise:
            inputs, outputs = (part[self.policy].double() for part in noise[name])
            weight = weight + w[f"{name}.weight_sigma"] * torch.outer(outputs, inputs)
            bias = bias + w[f"{name}.bias_sigma"] * outputs
        return weight @ x + bias

    def quantile(self, w: dict[str, torch.Tensor], x: torch.Tensor, tau: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Values of all actions [n] at one fraction."""
        seen = self.linear(w, "observation", x, {}).relu()
        cosines = torch.stack([torch.cos(torch.pi * i * tau.double()) for i in range(self.config.network.cosines)])
        mixed = seen * self.linear(w, "fraction", cosines, {}).relu()
        hidden = self.linear(w, "hidden", mixed, noise).relu()
        advantage = self.linear(w, "advantage", hidden, noise)
        if not self.config.network.dueling:
            return advantage
        return self.linear(w, "value", hidden, noise) + advantage - advantage.mean()

    def next_values(self, x: torch.Tensor, row: int, told: Told, legal: list[int]) -> list[torch.Tensor]:
        _, judging, *choosing = (taus[self.policy, row] for taus in told.fractions)
        _, judging_noise, *choosing_noise = told.noises
        judged = [self.quantile(self.target_q, x, tau, judging_noise) for tau in judging]
        chosen = judged
        if choosing:
            chosen = [self.quantile(self.q, x, tau, choosing_noise[0]) for tau in choosing[0]]
        if not legal:
            return [torch.zeros((), dtype=torch.float64) for _ in judged]
        means = sum(chosen) / len(chosen)
        best = max(legal, key=lambda action: float(means[action]))
        return [values[best] for values in judged]

    def encoded(self, obs: Any) -> torch.Tensor:
        rows = np.empty((len(next(iter(obs.values()))), self.encoder.size), np.float32)
        self.encoder.encode(obs, rows)
        return torch.tensor(rows).double()

    def update(self, b: Transitions, told: Told, legal: list[list[int]] | None = None) -> np.ndarray:
        """Make a step; TD errors as `IQN.update` tells them."""
        losses, errors = [], []
        for row, (x, following) in enumerate(zip(self.encoded(b.obs), self.encoded(b.next_obs), strict=True)):
            with torch.no_grad():
                after = self.next_values(following, row, told, [0, 1, 2, 3] if legal is None else legal[row])
                targets = [float(b.reward[row]) + float(b.discount[row]) * value for value in after]
            action = int(b.action["action"][row]) - 2
            loss, sizes, kappa = 0.0, [], self.config.quantiles.kappa
            for tau in told.fractions[0][self.policy, row]:
                value = self.quantile(self.q, x, tau, told.noises[0])[action]
                for target in targets:
                    delta = target - value
                    size = float(delta.detach().abs())
                    huber = delta**2 / 2 if size <= kappa else kappa * (delta.abs() - kappa / 2)
                    loss = loss + abs(float(tau) - (float(delta.detach()) < 0)) * huber / kappa
                    sizes.append(size)
            weight = 1.0 if b.weight is None else float(b.weight[row])
            losses.append(weight * loss / len(sizes))
            errors.append(np.mean(sizes))
        self.step(sum(losses) / len(losses))
        return np.array(errors)

    def step(self, loss: torch.Tensor) -> None:
        self.adam.zero_grad()
        loss.backward()
        self.loss = float(loss.detach())
        most = self.config.max_grad_norm
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.q.values(), 1e9 if most is None else most))
        self.grad = torch.cat([p.grad.ravel() for p in self.q.values()]).numpy().copy()
        self.adam.step()
        self.updates += 1
        target = self.config.target
        if self.updates % target.every_updates == 0:
            with torch.no_grad():
                for name, value in self.q.items():
                    self.target_q[name] = (1 - target.tau) * self.target_q[name] + target.tau * value

    def flat(self, name: str) -> np.ndarray:
        return torch.cat([p.detach().ravel() for p in getattr(self, name).values()]).numpy()
