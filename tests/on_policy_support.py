"""Rollouts that a policy has really acted, in a world of random observations and ends, and PPO's update in plain torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.algorithms.base import Rollout
from headrace.algorithms.on_policy import OnPolicy
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.algorithms.ppo import build_ppo
from headrace.algorithms.registry import build_actor, told_leaves
from headrace.algorithms.vtrace import build_vtrace

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = spaces.Discrete(4, start=2)
BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)
MASKED = spaces.Dict({"see": OBS, "mask": spaces.MultiBinary(4)})
MASK = {"actions": {"mask_leaf": "obs.mask"}}
SMALL = {"actor": {"hidden": [8]}, "critic": {"hidden": [9]}}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As runs have it: for networks this small, two threads wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learner(
    action: spaces.Space[Any] = DISCRETE, obs: spaces.Space[Any] = OBS, seed: int = 0, **changes: Any
) -> OnPolicy:
    return build_ppo(PPOConfig(**{"network": SMALL, "batch_size": 8, "epochs": 3, **changes}), obs, action, seed)


def corrector(action: spaces.Space[Any] = DISCRETE, seed: int = 0, **changes: Any) -> OnPolicy:
    return build_vtrace(VTraceConfig(**{"network": SMALL, "batch_size": 8, **changes}), OBS, action, seed)


def random_observations(space: spaces.Space[Any], rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    see = rng.uniform(-2, 2, (count, 3)).astype(np.float32)
    if isinstance(space, spaces.Dict):
        mask = (rng.random((count, 4)) < 0.5).astype(np.int8)
        mask[np.arange(count), rng.integers(0, 4, count)] = 1
        return {"obs.see": see, "obs.mask": mask}
    return {"obs": see}


def rollout(algorithm: OnPolicy, seed: int = 0, steps: int = 5, streams: int = 4, ends: str = "...tuc") -> Rollout:
    """Of streams whose every step ends as one of ``ends``: it goes on, terminates, is truncated, or is cut."""
    rng = np.random.default_rng(seed)
    policy = algorithm.policy
    actor = build_actor(policy)
    actor.load({name: array.copy() for name, array in algorithm.policy_arrays().items()})
    noise = [actor.noise(np.random.default_rng((seed, lane))) for lane in range(streams)]
    kinds = rng.choice(list(ends), (steps, streams))
    # Every step has two observations; that it led to is the next step's unless the episode ended.
    obs = random_observations(policy.observation_space, rng, (2 * steps + 1) * streams)
    at, then = np.zeros((steps, streams), np.intp), np.zeros((steps, streams), np.intp)
    places = np.arange(streams)
    acted: list[dict[str, np.ndarray]] = []
    for step in range(steps):
        at[step] = places
        acted.append(dict(actor.act({name: array[places] for name, array in obs.items()}, noise)))
        then[step] = (2 * step + 1) * streams + np.arange(streams)
        places = np.where(kinds[step] == ".", then[step], then[step] + streams)
    over = kinds != "."
    ended = over.copy()
    ended[-1] = True
    return Rollout(
        obs=obs,
        at=at,
        then=then,
        action={"action": np.stack([one["action"] for one in acted])},
        told={
            leaf.path: np.stack([one[leaf.path] for one in acted])
            for leaf in told_leaves(policy.config, policy.action_space)
        },
        reward=rng.standard_normal((steps, streams)),
        terminated=kinds == "t",
        ended=ended,
        episode_ended=over,
        valid=np.ones((steps, streams), bool),
        version=np.zeros((steps, streams), np.int64),
        t=np.full((steps, streams), 7),  # as if the first steps had been in rollouts before
        lanes=np.arange(streams),
    )


def permuted(told: Rollout, order: np.ndarray) -> Rollout:
    """The same streams in another order."""
    return Rollout(
        obs=told.obs,
        action={name: array[:, order] for name, array in told.action.items()},
        told={name: array[:, order] for name, array in told.told.items()},
        lanes=told.lanes[order],
        **{
            name: getattr(told, name)[:, order]
            for name in ("at", "then", "reward", "terminated", "ended", "episode_ended", "valid", "version", "t")
        },
    )


def learn(algorithm: OnPolicy, told: Rollout) -> int:
    """The whole epoch set; how many updates it took."""
    before = algorithm.updates
    algorithm.begin(told)
    while algorithm.pending:
        algorithm.update()
    return algorithm.updates - before


def arrays(algorithm: OnPolicy) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in algorithm.state().items()}


class Plain:
    """One update of PPO from all of a rollout, in the plainest torch: distributions, modules and optimiser of its own."""

    def __init__(self, algorithm: OnPolicy) -> None:
        self.config = algorithm._config
        self.space = algorithm.policy.action_space
        self.network = copy.deepcopy(algorithm._network)
        adam = self.config.optimiser
        self.adam = torch.optim.Adam(
            self.network.parameters(), lr=self.config.lr, betas=(adam.beta1, adam.beta2), eps=adam.eps
        )

    def values(self, obs: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return self.network.critic(obs).squeeze(1).double().numpy()

    def distribution(self, obs: torch.Tensor, legal: torch.Tensor | None) -> torch.distributions.Distribution:
        outputs = self.network.actor(obs)
        if isinstance(self.space, spaces.Box):
            normal = torch.distributions.Normal(outputs, self.network.log_std.exp())
            return torch.distributions.Independent(normal, 1)
        if legal is not None:
            outputs = torch.where(legal, outputs, torch.tensor(-1e9))
        return torch.distributions.Categorical(logits=outputs)

    def update(
        self, obs: torch.Tensor, legal: torch.Tensor | None, action: torch.Tensor, old: torch.Tensor,
        advantage: np.ndarray, target: np.ndarray,
    ) -> None:  # fmt: skip
        loss = self.config.loss
        found = self.distribution(obs, legal)
        ratio = (found.log_prob(action) - old).exp()
        gain = torch.from_numpy(advantage).float()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        rows = [
            min(float(a) * r, float(a) * r.clamp(1 - self.config.clip, 1 + self.config.clip))
            for a, r in zip(gain, ratio, strict=True)
        ]
        value = self.network.critic(obs).squeeze(1)
        wrong = ((value - torch.from_numpy(target).float()) ** 2).mean()
        total = -sum(rows) / len(rows) + loss.value_weight * wrong - loss.entropy_weight * found.entropy().mean()
        self.adam.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.optimiser.max_grad_norm)
        self.adam.step()


def bent(inputs: int, outputs: int) -> torch.nn.Module:
    """A network of the user's own."""
    return torch.nn.Sequential(torch.nn.Linear(inputs, 7), torch.nn.Softplus(), torch.nn.Linear(7, outputs))
