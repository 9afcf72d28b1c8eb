"""PPO in one file, in the manner of CleanRL, on an environment that hangs, dies and raises now and then.

Three places differ from a loop over ``gymnasium.vector.AsyncVectorEnv``: the class, the rows that ``envs.valid`` says no
environment has made, and truncated episodes, whose last observation is in ``infos["final_obs"]``.

Run it with ``python examples/cleanrl_ppo.py [STEPS] [FAULTS_PER_STEP]``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

import headrace

ENVS, HORIZON, EPOCHS, MINIBATCHES = 8, 128, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.95, 0.2, 0.01, 1e-3


class Unreliable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment as they are: with a small probability a step raises, or never comes back."""

    def __init__(self, env: gymnasium.Env[Any, Any], faults: float, seed: int) -> None:
        super().__init__(env)
        self._faults, self._draws = faults, np.random.default_rng(seed)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, or do not."""
        if self._draws.random() < self._faults:
            if self._draws.random() < 0.1:
                while True:
                    pass
            raise RuntimeError("the simulator lost its licence")
        return self.env.step(action)


def make(index: int, faults: float) -> gymnasium.Env[Any, Any]:
    """One environment. A replacement is built by the same call, so what it draws must not depend on the index alone."""
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    seed = int(np.random.SeedSequence().entropy or 0)
    return Unreliable(env, faults, seed + index) if faults else env


class Agent(nn.Module):
    """Policy and value, two small networks."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()

        def net(out: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out)
            )

        self.actor, self.critic = net(actions), net(1)

    def policy(self, obs: Tensor) -> torch.distributions.Categorical:
        """The distribution of actions, [B, A]."""
        return torch.distributions.Categorical(logits=self.actor(obs))

    def value(self, obs: Tensor) -> Tensor:
        """[B]."""
        values: Tensor = self.critic(obs)
        return values.squeeze(-1)


@dataclass(slots=True)
class Rollout:
    """What ``HORIZON`` steps of all environments gave. [T, N] but for the observations, [T, N, O]."""

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    ends: Tensor
    """Whether the episode ended with this step, or was cut."""
    last_values: Tensor
    """Where it ended: the value of its last observation if it was truncated, 0 if it terminated."""
    valid: Tensor
    """Whether an environment made this row; the others are not trained on."""

    @classmethod
    def empty(cls, observations: int) -> Rollout:
        """Room."""
        flat = [torch.zeros(HORIZON, ENVS) for _ in range(5)]
        actions, ends = torch.zeros(HORIZON, ENVS, dtype=torch.int64), torch.zeros(HORIZON, ENVS, dtype=torch.bool)
        obs = torch.zeros(HORIZON, ENVS, observations)
        return cls(obs, actions, flat[0], flat[1], flat[2], ends, flat[3], torch.ones_like(ends))


def advantages(rollout: Rollout, next_value: Tensor) -> Tensor:
    """Generalised advantage estimation that crosses neither an episode's end nor an invalid row, [T, N].

    Args:
        rollout: T steps.
        next_value: Value of the observation after the last of them, [N].
    """
    result = torch.zeros_like(rollout.rewards)
    after, gae = next_value, torch.zeros_like(next_value)
    for t in reversed(range(len(result))):
        bootstrap = torch.where(rollout.ends[t], rollout.last_values[t], after)
        delta = rollout.rewards[t] + GAMMA * bootstrap - rollout.values[t]
        gae = delta + GAMMA * LAMBDA * gae * ~rollout.ends[t]
        gae = gae * rollout.valid[t]  # the row before it ends in the value of the last observation, as it should
        result[t], after = gae, rollout.values[t]
    return result


@dataclass(slots=True)
class Books:
    """What happened, for the last line."""

    steps: int = 0
    invalid: int = 0
    episodes: int = 0
    updates: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    faults: dict[str, int] = field(default_factory=dict)


@torch.no_grad()
def collect(envs: headrace.VectorEnv, agent: Agent, obs: Tensor, books: Books) -> tuple[Rollout, Tensor]:
    """Play ``HORIZON`` steps; the rollout, and the observations it ended with, [N, O]."""
    rollout = Rollout.empty(obs.shape[1])
    for t in range(HORIZON):
        policy = agent.policy(obs)
        action = policy.sample()
        rollout.obs[t], rollout.actions[t] = obs, action
        rollout.log_probs[t], rollout.values[t] = policy.log_prob(action), agent.value(obs)

        next_obs, rewards, terminations, truncations, infos = envs.step(action.numpy())
        rollout.rewards[t] = torch.as_tensor(rewards)
        rollout.ends[t] = torch.as_tensor(terminations | truncations)
        rollout.valid[t] = torch.as_tensor(envs.valid)
        for env in np.flatnonzero(truncations):
            rollout.last_values[t, env] = agent.value(torch.as_tensor(infos["final_obs"][env])[None])[0]
        obs = torch.as_tensor(next_obs)
        keep_books(books, envs.valid, infos)
    return rollout, obs


def keep_books(books: Books, valid: np.ndarray, infos: dict[str, Any]) -> None:
    """Count a step, finished episodes and faults."""
    books.steps += int(valid.sum())
    books.invalid += int((~valid).sum())
    if "headrace" in infos:
        for env in np.flatnonzero(~valid):
            fault = str(infos["headrace"]["fault"][env])
            books.faults[fault] = books.faults.get(fault, 0) + 1
    final = infos.get("final_info", {})
    if "episode" in final:
        for env in np.flatnonzero(final["_episode"]):
            books.episodes += 1
            books.returns.append(float(final["episode"]["r"][env]))


def minibatches(rollout: Rollout, advantage: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The valid rows, shuffled anew in every epoch."""
    flat = [
        part.flatten(0, 1)[rollout.valid.flatten()]
        for part in (rollout.obs, rollout.actions, rollout.log_probs, advantage, advantage + rollout.values)
    ]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(flat[0])).chunk(MINIBATCHES):
            yield tuple(part[rows] for part in flat)


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, advantage: Tensor) -> None:
    """One PPO update."""
    for obs, actions, old_log_probs, adv, targets in minibatches(rollout, advantage):
        policy = agent.policy(obs)
        ratio = (policy.log_prob(actions) - old_log_probs).exp()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        policy_loss = -torch.min(adv * ratio, adv * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        value_loss = 0.5 * (agent.value(obs) - targets).square().mean()
        optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss - ENTROPY * policy.entropy().mean()).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()


def main(steps: int, faults: float) -> Books:
    """Train for so many steps of all environments together, and tell how it went."""
    torch.manual_seed(1)
    env_fns: list[Callable[[], gymnasium.Env[Any, Any]]] = [partial(make, index, faults) for index in range(ENVS)]
    books = Books()
    with headrace.VectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP, step_timeout_s=1.0) as envs:
        agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n)
        optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
        obs = torch.as_tensor(envs.reset(seed=1)[0])
        while books.steps < steps:
            rollout, obs = collect(envs, agent, obs, books)
            with torch.no_grad():
                advantage = advantages(rollout, agent.value(obs))
            update(agent, optimizer, rollout, advantage)
            books.updates += 1
    mean = sum(books.returns) / len(books.returns) if books.returns else None
    print(f"{books.steps} steps, {books.episodes} episodes, {books.updates} updates, mean return {mean}")
    print(f"{books.invalid} rows left out: {books.faults or 'no faults'}")
    return books


if __name__ == "__main__":
    main(
        steps=int(sys.argv[1]) if len(sys.argv) > 1 else 50_000,
        faults=float(sys.argv[2]) if len(sys.argv) > 2 else 0.0005,
    )
