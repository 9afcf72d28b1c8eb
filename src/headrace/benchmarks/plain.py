"""TD3, SAC and DQN as CleanRL's scripts have them: plain modules, torch's Adam as it comes, targets moved a parameter at a time.

Written anew in its style (https://github.com/vwxyzjn/cleanrl, td3_continuous_action.py, sac_continuous_action.py, dqn.py); the rules are
its, the hyperparameters those of whoever asks. Actions are within [-1, 1]. Peers' processes only.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from headrace.benchmarks.sides import PLAIN, Opened, Request, in_windows, version_of
from headrace.benchmarks.work import ACTIONS, HIDDEN, OBSERVATIONS, ready_batches

Settings = Mapping[str, Any]
Batch = Mapping[str, Tensor]
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Agent(Protocol):
    """Learns, and acts."""

    def update(self, batch: Batch) -> None:
        """One update."""
        ...

    def explore(self, obs: Tensor) -> Tensor:
        """The action of one observation in training."""
        ...

    def greedy(self, obs: Tensor) -> Tensor:
        """The action of one observation in an evaluation."""
        ...


def open_side(request: Request) -> Opened:
    """See `sides`; ``work`` is td3, sac, dqn or ppo."""
    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    if request["work"] == "ppo":
        from headrace.benchmarks.plain_training import ppo_rounds

        return Opened(version_of(PLAIN), in_windows(ppo_rounds()))
    agent = AGENTS[request["work"]](OBSERVATIONS, ACTIONS, {})
    ready = [{name: torch.as_tensor(array) for name, array in one.items()} for one in ready_batches(request["work"])]
    batches = itertools.cycle(ready)

    def work() -> int:
        agent.update(next(batches))
        return 1

    work()
    return Opened(version_of(PLAIN), in_windows(work))


def perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Critic(nn.Module):
    """Value [B] of observation and action."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.layers = perceptron([observations + actions, *HIDDEN, 1])

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """[B]."""
        value: Tensor = self.layers(torch.cat([obs, action], 1)).view(-1)
        return value


def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move a target a parameter at a time."""
    for param, target_param in zip(online.parameters(), target.parameters(), strict=True):
        target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)


class TD3:
    """Of `Agent`."""

    def __init__(self, observations: int, actions: int, given: Settings) -> None:
        self.tau, self.noise = given.get("tau", 0.005), given.get("noise", 0.1)
        self.actor = nn.Sequential(perceptron([observations, *HIDDEN, actions]), nn.Tanh())
        self.qf1, self.qf2 = Critic(observations, actions), Critic(observations, actions)
        self.target_actor = copy.deepcopy(self.actor)
        self.qf1_target, self.qf2_target = copy.deepcopy(self.qf1), copy.deepcopy(self.qf2)
        lr = given.get("learning_rate", 3e-4)
        self.q_optimizer = optim.Adam([*self.qf1.parameters(), *self.qf2.parameters()], lr=lr)
        self.actor_optimizer = optim.Adam(self.actor.parameters(), lr=lr)
        self.updates = 0

    def update(self, batch: Batch) -> None:
        """Of `Agent`."""
        with torch.no_grad():
            noise = (torch.randn_like(batch["action"]) * 0.2).clamp(-0.5, 0.5)
            next_action = (self.target_actor(batch["next_obs"]) + noise).clamp(-1, 1)
            next_obs = batch["next_obs"]
            next_q = torch.min(self.qf1_target(next_obs, next_action), self.qf2_target(next_obs, next_action))
            target = batch["reward"] + batch["discount"] * next_q
        qf1_loss = functional.mse_loss(self.qf1(batch["obs"], batch["action"]), target)
        qf2_loss = functional.mse_loss(self.qf2(batch["obs"], batch["action"]), target)
        self.q_optimizer.zero_grad()
        (qf1_loss + qf2_loss).backward()
        self.q_optimizer.step()
        self.updates += 1
        if self.updates % 2 == 0:
            actor_loss = -self.qf1(batch["obs"], self.actor(batch["obs"])).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            follow(self.target_actor, self.actor, self.tau)
            follow(self.qf1_target, self.qf1, self.tau)
            follow(self.qf2_target, self.qf2, self.tau)

    def explore(self, obs: Tensor) -> Tensor:
        """Of `Agent`."""
        action = self.greedy(obs)
        noisy: Tensor = (action + torch.randn_like(action) * self.noise).clamp(-1, 1)
        return noisy

    def greedy(self, obs: Tensor) -> Tensor:
        """Of `Agent`."""
        action: Tensor = self.actor(obs[None])[0]
        return action


class SAC:
    """Of `Agent`; its temperature is learned."""

    def __init__(self, observations: int, actions: int, given: Settings) -> None:
        self.tau = given.get("tau", 0.005)
        self.body = nn.Sequential(perceptron([observations, *HIDDEN]), nn.ReLU())
        self.fc_mean, self.fc_log_std = nn.Linear(HIDDEN[-1], actions), nn.Linear(HIDDEN[-1], actions)
        self.qf1, self.qf2 = Critic(observations, actions), Critic(observations, actions)
        self.qf1_target, self.qf2_target = copy.deepcopy(self.qf1), copy.deepcopy(self.qf2)
        lr = given.get("learning_rate", 3e-4)
        self.q_optimizer = optim.Adam([*self.qf1.parameters(), *self.qf2.parameters()], lr=lr)
        self.actor_optimizer = optim.Adam(
            [*self.body.parameters(), *self.fc_mean.parameters(), *self.fc_log_std.parameters()], lr=lr
        )
        self.target_entropy = -float(actions)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.a_optimizer = optim.Adam([self.log_alpha], lr=lr)

    def update(self, batch: Batch) -> None:
        """Of `Agent`; the actor is updated with every critic update, as in Stable-Baselines3."""
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            next_obs = batch["next_obs"]
            next_action, next_log_pi = self.act(next_obs)
            next_q = torch.min(self.qf1_target(next_obs, next_action), self.qf2_target(next_obs, next_action))
            target = batch["reward"] + batch["discount"] * (next_q - alpha * next_log_pi)
        qf1_loss = functional.mse_loss(self.qf1(batch["obs"], batch["action"]), target)
        qf2_loss = functional.mse_loss(self.qf2(batch["obs"], batch["action"]), target)
        self.q_optimizer.zero_grad()
        (qf1_loss + qf2_loss).backward()
        self.q_optimizer.step()

        action, log_pi = self.act(batch["obs"])
        min_q = torch.min(self.qf1(batch["obs"], action), self.qf2(batch["obs"], action))
        actor_loss = (alpha * log_pi - min_q).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        alpha_loss = (-self.log_alpha.exp() * (log_pi.detach() + self.target_entropy)).mean()
        self.a_optimizer.zero_grad()
        alpha_loss.backward()
        self.a_optimizer.step()
        follow(self.qf1_target, self.qf1, self.tau)
        follow(self.qf2_target, self.qf2, self.tau)

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] drawn, and their log-probabilities [B]."""
        body = self.body(obs)
        mean, log_std = self.fc_mean(body), torch.tanh(self.fc_log_std(body))
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        drawn = normal.rsample()
        action = torch.tanh(drawn)
        log_prob = normal.log_prob(drawn) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1)

    def explore(self, obs: Tensor) -> Tensor:
        """Of `Agent`."""
        action: Tensor = self.act(obs[None])[0][0]
        return action

    def greedy(self, obs: Tensor) -> Tensor:
        """Of `Agent`."""
        action: Tensor = torch.tanh(self.fc_mean(self.body(obs[None])))[0]
        return action


class DQN:
    """Of `Agent`; Huber's loss and shortened gradients, as in Stable-Baselines3, which CleanRL has not."""

    def __init__(self, observations: int, actions: int, given: Settings) -> None:
        self.q_network = perceptron([observations, *HIDDEN, actions])
        self.target_network = copy.deepcopy(self.q_network)
        self.optimizer = optim.Adam(self.q_network.parameters(), lr=given.get("learning_rate", 3e-4))
        self.given = given
        self.actions, self.epsilon = actions, 1.0

    def update(self, batch: Batch) -> None:
        """Of `Agent`."""
        with torch.no_grad():
            target = batch["reward"] + batch["discount"] * self.target_network(batch["next_obs"]).max(dim=1)[0]
        value = self.q_network(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
        loss = functional.smooth_l1_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.q_network.parameters(), 10.0)
        self.optimizer.step()

    def step_taken(self, steps: int) -> None:
        """The environment has been stepped so often: epsilon falls, and now and then the target network follows."""
        final, lasts = self.given["exploration_final_eps"], self.given["exploration_steps"]
        self.epsilon = max(final, 1 - (1 - final) * steps / lasts)
        if steps % self.given["target_update_interval"] == 0:
            follow(self.target_network, self.q_network, 1.0)

    def explore(self, obs: Tensor) -> Tensor:
        """Of `Agent`."""
        return torch.randint(self.actions, ()) if float(torch.rand(())) < self.epsilon else self.greedy(obs)

    def greedy(self, obs: Tensor) -> Tensor:
        """Of `Agent`."""
        best: Tensor = self.q_network(obs).argmax()
        return best


AGENTS: Mapping[str, Callable[[int, int, Settings], Agent]] = {"td3": TD3, "sac": SAC, "dqn": DQN}
