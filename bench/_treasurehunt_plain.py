"""The original's sequential loop, written anew from its specification: one process, one network call per agent and turn.

Everything the original computes is computed, and nothing else: a stack of frames per agent, a network evaluated at random
quantiles for one observation, a ring of rows, and one training step of each agent's network after an epoch. What made it
wrong is left out where that costs nothing. The world itself is ours, which is faster than the original's; so this loop is
faster than it was, and whoever is ahead of it by some factor is ahead of the original by more.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.envs.treasurehunt import TreasureHuntParallel

ACTIONS, QUANTILES, COSINES, WIDTH, FRAMES = 4, 12, 64, 250, 5
GAMMA, LR, TAU, CAPACITY, TURNS = 0.99, 2.5e-4, 0.001, 1024, 50


class Noisy(nn.Module):
    """A linear layer whose weights are drawn anew while it is trained (arXiv:1706.10295)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_spread = nn.Parameter(torch.full((outputs, inputs), 0.5 * bound))
        self.bias_spread = nn.Parameter(torch.full((outputs,), 0.5 * bound))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return functional.linear(x, self.weight, self.bias)
        rows, columns = (torch.randn(n) for n in self.weight.shape)
        rows, columns = (noise.sign() * noise.abs().sqrt() for noise in (rows, columns))
        weight = self.weight + self.weight_spread * torch.outer(rows, columns)
        return functional.linear(x, weight, self.bias + self.bias_spread * rows)


class Quantiles(nn.Module):
    """The network of one agent."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.seen, self.cosine = nn.Linear(inputs, WIDTH), nn.Linear(COSINES, WIDTH)
        self.hidden, self.advantage, self.value = Noisy(WIDTH, WIDTH), Noisy(WIDTH, ACTIONS), Noisy(WIDTH, 1)
        self.register_buffer("steps", math.pi * torch.arange(1, COSINES + 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        taus = torch.rand(len(x), QUANTILES, 1)
        seen = torch.relu(self.seen(x)).unsqueeze(1)
        both = seen * torch.relu(self.cosine(torch.cos(taus * self.steps)))
        hidden = torch.relu(self.hidden(both))
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(dim=2, keepdim=True), taus


class Agent:
    """One agent: its networks, its ring of rows, its stack of frames."""

    def __init__(self, features: int, batch: int) -> None:
        self.batch = batch
        self.local, self.target = Quantiles(FRAMES * features), Quantiles(FRAMES * features)
        self.target.load_state_dict(self.local.state_dict())
        self.adam = torch.optim.Adam(self.local.parameters(), lr=LR)
        self.obs = np.zeros((CAPACITY, features), np.float32)
        self.action, self.reward = np.zeros(CAPACITY, np.int64), np.zeros(CAPACITY, np.float32)
        self.done = np.zeros(CAPACITY, np.float32)
        self.size = self.at = 0

    def act(self, obs: np.ndarray, epsilon: float) -> int:
        if np.random.random() < epsilon:  # noqa: NPY002 - as a plain script does
            return int(np.random.randint(ACTIONS))  # noqa: NPY002
        places = np.arange(self.at - FRAMES + 1, self.at)
        stack = np.concatenate([self.obs[places % CAPACITY].ravel(), obs])
        self.local.eval()
        with torch.no_grad():
            values, _ = self.local(torch.from_numpy(stack)[None])
        return int(values.mean(dim=1).argmax())

    def keep(self, obs: np.ndarray, action: int, reward: float, done: bool) -> None:
        self.obs[self.at], self.action[self.at] = obs, action
        self.reward[self.at], self.done[self.at] = reward, done
        self.at, self.size = (self.at + 1) % CAPACITY, min(self.size + 1, CAPACITY)

    def train(self) -> None:
        if self.size <= self.batch + FRAMES + 1:
            return
        last = np.random.choice(self.size - FRAMES - 2, self.batch, replace=False) + FRAMES - 1  # noqa: NPY002
        places = last[:, None] + np.arange(1 - FRAMES, 1)
        state = torch.from_numpy(self.obs[places].reshape(self.batch, -1))
        after = torch.from_numpy(self.obs[places + 1].reshape(self.batch, -1))
        action, reward, done = (torch.from_numpy(part[last]) for part in (self.action, self.reward, self.done))
        valid = 1 - torch.from_numpy(self.done[places[:, :-1]]).amax(dim=1)
        self.local.train()
        with torch.no_grad():
            best = self.local(after)[0].mean(dim=1).argmax(dim=1)
            worth = self.target(after)[0].gather(2, best[:, None, None].expand(-1, QUANTILES, 1)).squeeze(2)
            goal = reward[:, None] + GAMMA**3 * worth * (1 - done[:, None])
        values, taus = self.local(state)
        chosen = values.gather(2, action[:, None, None].expand(-1, QUANTILES, 1))
        error = goal[:, None, :] - chosen
        huber = functional.huber_loss(chosen.expand_as(error), goal[:, None, :].expand_as(error), reduction="none")
        loss = ((taus - (error.detach() < 0).float()).abs() * huber * valid[:, None, None]).mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.local.parameters(), 1.0)
        self.adam.step()
        with torch.no_grad():
            for ours, theirs in zip(self.target.parameters(), self.local.parameters(), strict=True):
                ours.lerp_(theirs, TAU)


def rate(agents: int, batch: int, epochs: int, warm: int) -> float:
    """Agent steps a second, training included.

    Args:
        agents: In the one world.
        batch: Transitions of a training step.
        epochs: That are timed.
        warm: Before, until every epoch ends with a training step of every agent.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    env = TreasureHuntParallel(num_agents=agents, max_turns=TURNS)
    names = env.possible_agents
    everybody = {name: Agent(env.observation_space(name).shape[0], batch) for name in names}
    start, epsilon = 0.0, 0.5  # half of all actions are the network's, as half-way through the original's training
    for epoch in range(warm + epochs):
        if epoch == warm:
            start = time.perf_counter()
        obs, _ = env.reset(seed=epoch)
        while env.agents:
            seen = {name: obs[name].astype(np.float32) for name in names}
            actions = {name: one.act(seen[name], epsilon) for name, one in everybody.items()}
            obs, rewards, _, truncated, _ = env.step(actions)
            for name, one in everybody.items():
                one.keep(seen[name], actions[name], rewards[name], truncated[name])
        for one in everybody.values():
            one.train()
    return agents * TURNS * epochs / (time.perf_counter() - start)
