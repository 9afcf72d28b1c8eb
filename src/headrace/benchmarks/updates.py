"""Stable-Baselines3 and SBX, updating from a replay that is full and does not change. Peers' processes only.

Both draw their batches themselves (about 0.13 ms of each update); everybody else is handed batches that are ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.benchmarks.sides import SBX, Opened, Request, in_windows, version_of
from headrace.benchmarks.tasks import TASKS
from headrace.benchmarks.work import ACTIONS, BATCH, HIDDEN, OBSERVATIONS, REPLAY_ROWS
from headrace.benchmarks.zoo import algorithm

_UPDATES_A_CALL = 20
"""Of Stable-Baselines3, which gains nothing from more."""


def open_side(request: Request) -> Opened:
    """See `sides`; ``work`` is td3, sac, dqn or ppo, ``per_call`` SBX's updates a call."""
    library, _, _ = request["side"].partition(",")
    opened = _ppo if request["work"] == "ppo" else _off_policy
    return Opened(version_of(library), in_windows(opened(library, request)))


def _off_policy(library: str, request: Request) -> Callable[[], int]:
    from stable_baselines3.common.logger import Logger

    kind, _ = algorithm(library, request["work"], request["threads"])
    model = kind("MlpPolicy", _nothing(request["work"] == "dqn"), buffer_size=REPLAY_ROWS, batch_size=BATCH, seed=0,
                 device="cpu", policy_kwargs={"net_arch": list(HIDDEN)})  # fmt: skip
    model.set_logger(Logger(None, []))
    _fill(model.replay_buffer)
    per_call = request.get("per_call") or _UPDATES_A_CALL

    def work() -> int:
        model.train(gradient_steps=per_call, batch_size=BATCH)
        return per_call

    for _ in range(2 if library == SBX else 1):  # compiles; of one update a call, with an actor's step and without
        work()
    return work


def _nothing(discrete: bool) -> Any:
    """An environment that has spaces, and is never stepped."""
    import gymnasium
    import numpy as np
    from gymnasium import spaces

    class Nothing(gymnasium.Env):
        observation_space = spaces.Box(-1.0, 1.0, (OBSERVATIONS,), np.float32)
        action_space = spaces.Discrete(ACTIONS) if discrete else spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)

    return Nothing()


def _fill(replay: Any) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    for array in (replay.observations, replay.next_observations, replay.rewards):
        array[...] = generator.standard_normal(array.shape, np.float32)
    chosen = generator.integers(ACTIONS, size=replay.actions.shape)
    drawn = generator.uniform(-1.0, 1.0, replay.actions.shape)
    replay.actions[...] = chosen if np.issubdtype(replay.actions.dtype, np.integer) else drawn
    replay.full = True


def _ppo(library: str, request: Request) -> Callable[[], int]:
    """Collecting and training in turns, as ``learn`` does, until nobody asks."""
    from stable_baselines3.common.callbacks import CallbackList
    from stable_baselines3.common.env_util import make_vec_env

    given = dict(TASKS["cartpole-ppo"].zoo)
    env = make_vec_env(TASKS["cartpole-ppo"].env, given.pop("n_envs"), seed=0)
    given |= {name: float(given[name].removeprefix("lin_")) for name in ("learning_rate", "clip_range")}
    kind, _ = algorithm(library, "ppo", request["threads"])
    model = kind("MlpPolicy", env, seed=0, device="cpu", **given)
    _, callback = model._setup_learn(10**9, CallbackList([]))  # noqa: SLF001 - what learn() begins with
    callback.on_training_start({}, {})

    def work() -> int:
        before = int(model.num_timesteps)
        model.collect_rollouts(env, callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        model.train()
        return int(model.num_timesteps) - before

    work()
    return work
