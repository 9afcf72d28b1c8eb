"""What is trained from its start to a target, with which hyperparameters. Peers' processes import it too.

Those of DQN and PPO are rl-zoo's, with which ours are the presets; those of TD3 and SAC are the presets' (on Pendulum a learning rate
of 1e-3, a batch of 256 and one update a step, after 1,000 random steps, of SAC after 100), on HalfCheetah rl-zoo's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from headrace.benchmarks.sides import PLAIN, RLLIB, SAMPLE_FACTORY, SBX, ZOO, Found

EPISODES = 10
ASYNC, INLINE = "async, 2 cores", "inline"
BFLOAT16, SBX_RULE = "bfloat16", "SBX's rule"


@dataclass(frozen=True)
class Ours:
    """One of our sides: how the preset is run."""

    schedule: str
    settings: Mapping[str, object] = field(default_factory=dict)


OURS: Mapping[str, Ours] = MappingProxyType({ASYNC: Ours("async"), INLINE: Ours("inline")})
HALVED: Mapping[str, object] = MappingProxyType({"learn.precision": "bfloat16"})
OFF_POLICY: Mapping[str, Ours] = MappingProxyType(
    {
        **OURS,
        f"{ASYNC}, {BFLOAT16}": Ours("async", HALVED),
        f"{INLINE}, {BFLOAT16}": Ours("inline", HALVED),
    }
)
TD3_SIDES: Mapping[str, Ours] = MappingProxyType(
    {
        **OFF_POLICY,
        f"{ASYNC}, {SBX_RULE}": Ours("async", {"algorithm.rule": "sbx"}),
        f"{INLINE}, {SBX_RULE}": Ours("inline", {"algorithm.rule": "sbx"}),
    }
)


@dataclass(frozen=True)
class Task:
    """What is to be learned."""

    env: str
    algorithm: str
    preset: str
    target: float | None
    """Mean return at which a training ends; None: it ends with its last step, and the return then is what counts."""
    every_steps: int
    """Steps between two evaluations; 0: only at the end."""
    most_steps: int
    peers: tuple[str, ...]
    zoo: Mapping[str, Any]
    """As Stable-Baselines3 takes them."""
    needs: tuple[str, ...] = ()
    """Modules without which the environment cannot be built."""
    ours: Mapping[str, Ours] = field(default_factory=lambda: OURS)
    promised: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """Least ratio, by our side, the peer and what is measured."""
    limit_s: float = 3600.0
    """Of one training."""


def _beside(peer: str, key: str, ratios: Mapping[str, float]) -> dict[tuple[str, str, str], float]:
    """The same promise of each of our sides."""
    return {(side, peer, key): ratio for side, ratio in ratios.items()}


_ZOO_PEERS = (ZOO, SBX)
_CARTPOLE_STEPS, _LUNARLANDER_STEPS, _PENDULUM_STEPS = 60_000, 150_000, 15_000
_PENDULUM = {
    "learning_rate": 1e-3, "batch_size": 256, "buffer_size": 200_000, "learning_starts": 1_000, "gamma": 0.99,
    "tau": 0.005, "train_freq": 1, "gradient_steps": 1,
}  # fmt: skip
_FASTER = dict.fromkeys(OURS, 1 / 0.6)
_HALVED_FASTER = {f"{side}, {BFLOAT16}": 1 / 0.45 for side in OURS}

TASKS: Mapping[str, Task] = MappingProxyType({
    "pendulum-td3": Task(
        "Pendulum-v1", "td3", "pendulum-td3", -200.0, 500, _PENDULUM_STEPS, (*_ZOO_PEERS, PLAIN),
        {**_PENDULUM, "noise": 0.1}, ours=TD3_SIDES,
        promised=_beside(ZOO, "wall_s", {**_FASTER, **_HALVED_FASTER})),
    "pendulum-sac": Task(
        "Pendulum-v1", "sac", "pendulum-sac", -200.0, 500, _PENDULUM_STEPS, (*_ZOO_PEERS, PLAIN),
        {**_PENDULUM, "learning_starts": 100}, ours=OFF_POLICY, promised=_beside(ZOO, "wall_s", dict.fromkeys(OURS, 1 / 0.65))),
    "cartpole-dqn": Task(
        "CartPole-v1", "dqn", "cartpole-dqn", 475.0, 2_500, _CARTPOLE_STEPS, (*_ZOO_PEERS, PLAIN), {
            "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99,
            "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_final_eps": 0.04,
            "exploration_fraction": 8_000 / _CARTPOLE_STEPS},
        promised=_beside(ZOO, "steps", {ASYNC: 1.0}) | _beside(ZOO, "wall_s", {ASYNC: 1.0})),
    "cartpole-ppo": Task(
        "CartPole-v1", "ppo", "cartpole-ppo", 475.0, 2_560, 100_000, (*_ZOO_PEERS, PLAIN, SAMPLE_FACTORY, RLLIB), {
            "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
            "ent_coef": 0.0, "learning_rate": "lin_0.001", "clip_range": "lin_0.2"},
        promised=_beside(ZOO, "wall_s", dict.fromkeys(OURS, 1 / 0.35)) | _beside(PLAIN, "wall_s", dict.fromkeys(OURS, 1.0))
        | _beside(RLLIB, "wall_s", dict.fromkeys(OURS, 1.0))),
    "halfcheetah-sac": Task(
        "HalfCheetah-v5", "sac", "halfcheetah-sac", None, 0, 100_000, _ZOO_PEERS, {
            "learning_rate": 3e-4, "batch_size": 256, "buffer_size": 1_000_000, "learning_starts": 10_000, "gamma": 0.99,
            "tau": 0.005, "train_freq": 1, "gradient_steps": 1},
        needs=("mujoco",), ours=OFF_POLICY, promised=_beside(ZOO, "wall_s", dict.fromkeys(OURS, 1 / 0.65)), limit_s=7200.0),
    "lunarlander-dqn": Task(
        "LunarLander-v3", "dqn", "lunarlander-dqn", 200.0, 5_000, _LUNARLANDER_STEPS, _ZOO_PEERS, {
            "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
            "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_final_eps": 0.1,
            "exploration_fraction": 12_000 / _LUNARLANDER_STEPS}, needs=("Box2D",),
        promised=_beside(ZOO, "steps", {ASYNC: 1.0}) | _beside(ZOO, "wall_s", {ASYNC: 1.0})),
    "lunarlander-ppo": Task(
        "LunarLander-v3", "ppo", "lunarlander-ppo", 200.0, 16_384, 1_000_000, (*_ZOO_PEERS, SAMPLE_FACTORY), {
            "n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
            "ent_coef": 0.01}, needs=("Box2D",),
        promised=_beside(ZOO, "steps", {ASYNC: 1.0}) | _beside(ZOO, "wall_s", {ASYNC: 1 / 0.6})
        | _beside(SAMPLE_FACTORY, "wall_s", dict.fromkeys(OURS, 1.0))),
    "halfcheetah-ppo": Task(
        "HalfCheetah-v5", "ppo", "halfcheetah-ppo", None, 0, 300_000, _ZOO_PEERS, {
            "normalize": True, "n_envs": 1, "n_steps": 512, "batch_size": 64, "gamma": 0.98, "learning_rate": 2.0633e-5,
            "ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8,
            "vf_coef": 0.58096, "policy_kwargs": {"log_std_init": -2.0, "ortho_init": False, "activation_fn": "relu",
                                                  "net_arch": {"pi": [256, 256], "vf": [256, 256]}}},
        needs=("mujoco",)),
})  # fmt: skip
"""``lin_x``: from x to 0, linear over the steps of the task; ``normalize``: observations and rewards, as in rl-zoo; ``noise``:
standard deviation of the noise added to actions, of half their range."""
UNLESS_NAMED = ("lunarlander-dqn", "lunarlander-ppo", "halfcheetah-ppo")
"""What takes long, and nothing is promised of it that the others do not show."""


def beginning(value: float | str) -> float:
    """Where a schedule of rl-zoo begins; a number stays."""
    return float(value.removeprefix("lin_")) if isinstance(value, str) else value


def one_training(task: Task, train: Callable[[Task, int], Found]) -> Callable[[Mapping[str, Any]], Found]:
    """A turn of one training of ``task``, with ``seed`` and, to end earlier, ``steps``."""

    def turn(question: Mapping[str, Any]) -> Found:
        shorter = replace(task, most_steps=question["steps"]) if question.get("steps") else task
        return train(shorter, question["seed"])

    return turn
