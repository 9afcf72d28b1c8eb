"""TorchRL collects from a ``headrace.VectorEnv`` through its own ``GymWrapper``, and trains PPO on what is valid.

``GymWrapper`` takes vector environments that reset in the same step, or that leave it to the caller, which TorchRL
prefers. It reads infos only through readers; `ValidRows` is one for `VectorEnv.valid`.

Run it with ``python examples/torchrl_collector.py [STEPS]``.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Binary, Composite
from torchrl.envs import GymWrapper
from torchrl.envs.gym_like import BaseInfoDictReader
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import headrace

ENVS, FRAMES_PER_BATCH, EPOCHS, MINIBATCH = 8, 1024, 4, 256


class ValidRows(BaseInfoDictReader):
    """Writes into every row whether an environment made it."""

    def __init__(self, envs: headrace.VectorEnv) -> None:
        self._envs = envs

    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Called with what ``step`` or ``reset`` returned."""
        return tensordict.set("valid", torch.as_tensor(self._envs.valid)[:, None])

    @property
    def info_spec(self) -> Composite:
        """One flag per environment."""
        return Composite(valid=Binary(1, shape=(ENVS, 1), dtype=torch.bool), shape=(ENVS,))


def make() -> gymnasium.Env[Any, Any]:
    """One environment."""
    return gymnasium.make("CartPole-v1")


def net(out: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))


def train_on(batch: TensorDictBase, loss: ClipPPOLoss, gae: GAE, optimizer: torch.optim.Optimizer) -> None:
    """Some epochs over the valid rows of one batch, [N, T]."""
    with torch.no_grad():
        gae(batch)
    rows = batch[batch["next", "valid"].squeeze(-1)]
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(rows)).split(MINIBATCH):
            losses: TensorDict = loss(rows[chosen])
            optimizer.zero_grad()
            sum(value for name, value in losses.items() if name.startswith("loss_")).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step()


def main(steps: int) -> None:
    """Train for so many steps of all environments together, and tell how it went."""
    torch.manual_seed(1)
    envs = headrace.VectorEnv([make] * ENVS, autoreset_mode=AutoresetMode.DISABLED, step_timeout_s=5.0)
    env = GymWrapper(envs, categorical_action_encoding=True)
    env.set_info_dict_reader(ValidRows(envs))
    actor = ProbabilisticActor(
        TensorDictModule(net(2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(net(1), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

    collector = Collector(
        env,
        actor,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=steps,
        auto_register_policy_transforms=False,  # none is recurrent
    )
    frames = episodes = invalid = 0
    try:
        for batch in collector:
            train_on(batch, loss, gae, optimizer)
            ended = int(batch["next", "done"].sum())
            frames, episodes = frames + batch.numel(), episodes + ended
            invalid += int((~batch["next", "valid"]).sum())
            print(f"{frames} steps, {episodes} episodes, {batch.numel() / max(ended, 1):.1f} steps per episode of late")
    finally:
        collector.shutdown()
    print(f"{invalid} rows left out")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
