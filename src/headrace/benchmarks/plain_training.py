"""Trainings as CleanRL's scripts have them: a loop, a replay in arrays, PPO in one function. Peers' processes only.

As in CleanRL's PPO, an episode that is cut off counts as ended. Its hyperparameters here are rl-zoo's; clipping follows its schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.distributions.categorical import Categorical

from headrace.benchmarks.judging import Judge
from headrace.benchmarks.plain import AGENTS, DQN, Agent
from headrace.benchmarks.sides import PLAIN, Found, Opened, Request, version_of
from headrace.benchmarks.tasks import TASKS, Task, one_training


def open_side(request: Request) -> Opened:
    """See `sides`; a turn is one training, with ``seed`` and, to end earlier, ``steps``."""
    task = TASKS[request["task"]]
    torch.set_num_threads(1)

    def train(shorter: Task, seed: int) -> Found:
        torch.manual_seed(seed)
        return (train_ppo if task.algorithm == "ppo" else train_off_policy)(shorter, seed)

    return Opened(version_of(PLAIN), one_training(task, train))


class Replay:
    """Transitions in arrays."""

    def __init__(self, capacity: int, observations: int, actions: int | None, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.obs, self.next_obs = (np.zeros((capacity, observations), np.float32) for _ in range(2))
        self.action = np.zeros(capacity, np.int64) if actions is None else np.zeros((capacity, actions), np.float32)
        self.reward, self.discount = (np.zeros(capacity, np.float32) for _ in range(2))
        self.rows = 0

    def add(self, obs: Any, action: Any, reward: float, discount: float, next_obs: Any) -> None:
        """One transition; the oldest leaves."""
        at = self.rows % len(self.obs)
        self.obs[at], self.action[at], self.reward[at], self.discount[at] = obs, action, reward, discount
        self.next_obs[at] = next_obs
        self.rows += 1

    def sample(self, size: int) -> dict[str, Tensor]:
        """A batch."""
        at = self._generator.integers(min(self.rows, len(self.obs)), size=size)
        return {
            name: torch.as_tensor(getattr(self, name)[at])
            for name in ("obs", "action", "reward", "discount", "next_obs")
        }


def train_off_policy(task: Task, seed: int) -> Found:
    """TD3, SAC or DQN, with the hyperparameters of the task."""
    env = gymnasium.make(task.env)
    zoo = {**task.zoo, "exploration_steps": task.zoo.get("exploration_fraction", 0.0) * task.most_steps}
    space = env.action_space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    half = 1.0 if discrete else float(space.high[0])  # type: ignore[attr-defined]  # a Box, the same on both sides of 0
    assert env.observation_space.shape is not None
    observations = env.observation_space.shape[0]
    actions = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else int(space.shape[0])  # type: ignore[index]
    agent = AGENTS[task.algorithm](observations, actions, zoo)
    replay = Replay(zoo["buffer_size"], observations, None if discrete else actions, seed)

    def greedy(obs: Any) -> Any:
        with torch.no_grad():
            action = agent.greedy(torch.as_tensor(obs)).numpy()
        return int(action) if discrete else action * half

    judge, began_s, updates, steps = Judge(task, seed, gymnasium.make(task.env), greedy), time.perf_counter(), 0, 0
    obs, _ = env.reset(seed=seed)
    space.seed(seed)
    for steps in range(1, task.most_steps + 1):
        action = _explore(agent, zoo, obs, steps, space, half)
        next_obs, reward, terminated, truncated, _ = env.step(action if discrete else action * half)
        replay.add(obs, action, float(reward), 0.0 if terminated else zoo["gamma"], next_obs)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if steps > zoo["learning_starts"] and steps % zoo["train_freq"] == 0:
            for _ in range(zoo["gradient_steps"]):
                agent.update(replay.sample(zoo["batch_size"]))
                updates += 1
        if judge.is_due(steps):
            judge.look(steps)
        if judge.reached_at is not None:
            break
    learning_s = time.perf_counter() - began_s - judge.spent_s
    return {**judge.found(steps), "updates_per_s": updates / learning_s}


@torch.no_grad()
def _explore(agent: Agent, zoo: Mapping[str, Any], obs: Any, steps: int, space: Any, half: float) -> Any:
    """What is done in training: at random until learning starts, and DQN now and then later on."""
    if isinstance(agent, DQN):
        agent.step_taken(steps)
        return int(agent.explore(torch.as_tensor(obs)))
    if steps <= zoo["learning_starts"]:
        return space.sample() / half
    return agent.explore(torch.as_tensor(obs)).numpy()


def _layer(inputs: int, outputs: int, std: float = np.sqrt(2)) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Policy(nn.Module):
    """CleanRL's agent of ppo.py."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            _layer(observations, 64), nn.Tanh(), _layer(64, 64), nn.Tanh(), _layer(64, 1, std=1.0)
        )
        self.actor = nn.Sequential(
            _layer(observations, 64), nn.Tanh(), _layer(64, 64), nn.Tanh(), _layer(64, actions, std=0.01)
        )

    def act(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, its log-probability, entropy and value, each [B]."""
        probs = Categorical(logits=self.actor(obs))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(obs).view(-1)


class PPO:
    """CleanRL's ppo.py in rounds: collects and learns from ``n_steps`` of every environment."""

    def __init__(self, task: Task, seed: int) -> None:
        self.zoo, count = task.zoo, task.zoo["n_envs"]
        self._generator = np.random.default_rng(seed)
        makers: list[Callable[[], Any]] = [lambda: gymnasium.make(task.env)] * count
        same_step = gymnasium.vector.AutoresetMode.SAME_STEP
        self.envs = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=same_step)
        self.policy = Policy(self.envs.single_observation_space.shape[0], self.envs.single_action_space.n)  # type: ignore[attr-defined,index]
        self.lr, self.clip = (float(self.zoo[name].removeprefix("lin_")) for name in ("learning_rate", "clip_range"))
        self.optimizer = optim.Adam(self.policy.parameters(), lr=self.lr, eps=1e-5)
        self.steps, self.updates, self.most_steps = 0, 0, task.most_steps
        self.next_obs = torch.as_tensor(self.envs.reset(seed=seed)[0])
        self.next_done = torch.zeros(count)

    def round(self) -> int:
        """Environment steps of one round."""
        left = max(0.0, 1.0 - self.steps / self.most_steps)
        self.optimizer.param_groups[0]["lr"] = left * self.lr
        rows = self._collect()
        self._learn(rows, left * self.clip)
        done = self.zoo["n_steps"] * self.zoo["n_envs"]
        self.steps += done
        return int(done)

    @torch.no_grad()
    def _collect(self) -> dict[str, Tensor]:
        shape = self.zoo["n_steps"], self.zoo["n_envs"]
        rows = {name: torch.zeros(shape) for name in ("logprob", "reward", "done", "value", "action")}
        rows["obs"] = torch.zeros((*shape, *self.next_obs.shape[1:]))
        for step in range(shape[0]):
            rows["obs"][step], rows["done"][step] = self.next_obs, self.next_done
            action, logprob, _, value = self.policy.act(self.next_obs)
            rows["action"][step], rows["logprob"][step], rows["value"][step] = action, logprob, value
            obs, reward, terminations, truncations, _ = self.envs.step(action.numpy())
            rows["reward"][step] = torch.as_tensor(reward)
            self.next_obs = torch.as_tensor(obs)
            self.next_done = torch.as_tensor(np.logical_or(terminations, truncations)).float()
        rows["advantage"] = self._advantages(rows)
        rows["return"] = rows["advantage"] + rows["value"]
        return {name: array.flatten(0, 1) for name, array in rows.items()}

    def _advantages(self, rows: Mapping[str, Tensor]) -> Tensor:
        gamma, found = self.zoo["gamma"], torch.zeros_like(rows["reward"])
        next_value, last, going_on = self.policy.critic(self.next_obs).view(-1), torch.zeros(()), 1.0 - self.next_done
        for t in reversed(range(len(found))):
            delta = rows["reward"][t] + gamma * next_value * going_on - rows["value"][t]
            found[t] = last = delta + gamma * self.zoo["gae_lambda"] * going_on * last
            next_value, going_on = rows["value"][t], 1.0 - rows["done"][t]
        return found

    def _learn(self, rows: Mapping[str, Tensor], clip: float) -> None:
        inds, size = np.arange(len(rows["reward"])), self.zoo["batch_size"]
        for _ in range(self.zoo["n_epochs"]):
            self._generator.shuffle(inds)
            for start in range(0, len(inds), size):
                at = inds[start : start + size]
                _, logprob, entropy, value = self.policy.act(rows["obs"][at], rows["action"][at])
                ratio, advantage = (logprob - rows["logprob"][at]).exp(), rows["advantage"][at]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = -advantage * torch.clamp(ratio, 1 - clip, 1 + clip)
                pg_loss = torch.max(-advantage * ratio, clipped).mean()
                v_loss = 0.5 * ((value - rows["return"][at]) ** 2).mean()
                loss = pg_loss - self.zoo["ent_coef"] * entropy.mean() + v_loss * 0.5
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()
                self.updates += 1


def train_ppo(task: Task, seed: int) -> Found:
    """PPO, with the hyperparameters of the task."""
    ppo = PPO(task, seed)

    def greedy(obs: Any) -> int:
        with torch.no_grad():
            return int(ppo.policy.actor(torch.as_tensor(obs)).argmax())

    judge, began_s = Judge(task, seed, gymnasium.make(task.env), greedy), time.perf_counter()
    while ppo.steps < task.most_steps and judge.reached_at is None:
        ppo.round()
        if judge.is_due(ppo.steps):
            judge.look(ppo.steps)
    learning_s = time.perf_counter() - began_s - judge.spent_s
    return {**judge.found(ppo.steps), "updates_per_s": ppo.updates / learning_s}


def ppo_rounds() -> Callable[[], int]:
    """Work of `learners`: rounds of CartPole, with schedules that do not end."""
    ppo = PPO(replace(TASKS["cartpole-ppo"], most_steps=10**9), 0)
    ppo.round()
    return ppo.round
