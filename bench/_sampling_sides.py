"""One side of a comparison of replay buffers, run in a process of its own: ours, arrays by hand, or a peer.

    python _sampling_sides.py '{"side": "headrace", "task": "prioritised", "rows": 1000000, "batches": 5000}'

prints one JSON object. Every side holds the same steps of 18 floats of observation and 4 of action: episodes of 200 of
which each ends as terminated. The first number of an observation says which step it is, so what is sampled can be
checked; a terminal observation has the negative number of its step.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

BATCH, EPISODE, GAMMA, STACK, STEPS = 256, 200, 0.99, 4, 3
ALPHA, BETA = 0.6, 0.4
CHECKED = 200
"""Batches that are looked at after the measurement."""
SLOW_TO_FILL = 50_000
"""Most rows of a buffer that takes only single steps, at some thousand a second. Few rows make it look faster."""
SEVERAL = 6
"""Lanes of the row that has several."""


@dataclass
class Side:
    """A full buffer."""

    version: str
    sample: Callable[[], Any]
    """All that comes before and after an update."""
    read: Callable[[Any], dict[str, np.ndarray]]
    """What was sampled, to be checked: ``obs``, ``next_obs`` (numbers of steps, [B] or [B, stack]), ``reward``, ``discount``."""


def reward_of(step: np.ndarray) -> np.ndarray:
    """What a step earned."""
    return (step * 7919 % 1000) / 1000.0


def error_of(number: np.ndarray) -> np.ndarray:
    """TD error of a step that is drawn by priority."""
    return 1.0 + 9.0 * (number.astype(np.int64) % 2)


def steps(rows: int) -> dict[str, np.ndarray]:
    """What a buffer of fields is filled with."""
    number = np.arange(rows)
    generator = np.random.default_rng(0)
    obs = generator.standard_normal((rows, 18), np.float32)
    obs[:, 0] = number
    done = number % EPISODE == EPISODE - 1
    following = np.roll(obs, -1, axis=0)
    following[done, 0] = -number[done] - 1
    return {
        "obs": obs,
        "next_obs": following,
        "act": np.zeros((rows, 4), np.float32),
        "rew": reward_of(number),
        "done": done,
    }


# --- sides


def headrace(task: str, rows: int) -> Side:
    from gymnasium import spaces

    from headrace.algorithms.configs import PriorityConfig
    from headrace.core.specs import leaves
    from headrace.ipc.shm import SharedBlock
    from headrace.lanes.credits import LaneCommit
    from headrace.lanes.derive import transitions
    from headrace.lanes.lane import LaneBlock
    from headrace.lanes.layout import FINAL, STEP, Geometry
    from headrace.lanes.prioritised import PrioritisedSampler
    from headrace.lanes.replay import Replay
    from headrace.lanes.samplers import UniformSampler

    seen = leaves(spaces.Box(-np.inf, np.inf, (18,), np.float32), "obs")
    did = leaves(spaces.Box(-1, 1, (4,), np.float32), "action")
    stack, n_step = STACK if task == "stack" else 1, STEPS if task == "n-step" else 1
    lanes = SEVERAL if task == "several lanes" else 1
    geometry = Geometry(lanes, rows, seen, did, 32, 2, stack, n_step)
    shared = SharedBlock.create(geometry.nbytes)
    block = LaneBlock(geometry, shared.buf)
    block.begin()
    replay, generator = Replay(block), np.random.default_rng(0)
    for lane in range(lanes):
        place = np.arange(geometry.resident_rows + 1)  # the last one only holds the observation it led to
        episode, t = np.divmod(place, EPISODE + 1)  # with the row of the terminal observation
        number = (lane * geometry.resident_rows // EPISODE + lane + episode) * EPISODE + t
        [piece] = block.pieces(lane, geometry.first_row, geometry.first_row + len(place))
        piece["obs"] = generator.standard_normal((len(place), 18), np.float32)
        piece["obs"][:, 0] = np.where(t == EPISODE, -number, number)
        piece["t"], piece["kind"], piece["terminated"] = t, np.where(t == EPISODE, FINAL, STEP), t == EPISODE - 1
        piece["reward"] = np.where(t == EPISODE, 0.0, reward_of(number))
        piece["transitions"] = np.cumsum(piece["kind"] == STEP)
        start, stop = geometry.first_row, geometry.first_row + geometry.resident_rows
        block.rows_written[lane] = stop
        replay.commit(lane, LaneCommit(stop, int(piece["transitions"][-2]), block.checksum(lane, start, stop)))

    def read(batch: Any) -> dict[str, np.ndarray]:
        return {"obs": batch.obs["obs"][..., 0], "next_obs": batch.next_obs["obs"][..., 0], "reward": batch.reward,
                "discount": batch.discount}  # fmt: skip

    version = importlib.metadata.version("headrace")
    if task != "prioritised":
        uniform = UniformSampler(replay, generator)
        return Side(version, lambda: transitions(uniform.sample(BATCH), seen, did, stack, GAMMA), read)
    sampler = PrioritisedSampler(replay, generator, PriorityConfig(enabled=True, alpha=ALPHA, beta=BETA))
    resident = np.arange(*replay.resident(0))
    resident = resident[block.rows["kind"][0, resident] == STEP]
    sampler.reprioritise(resident * 0, resident, error_of(block.rows["obs"][0, resident, 0]))

    def sample() -> Any:
        batch = transitions(sampler.sample(BATCH), seen, did, 1, GAMMA)
        batch.weight = sampler.weights(0)
        sampler.learned(error_of(batch.obs["obs"][:, 0]))
        return batch

    return Side(version, sample, read)


def numpy(task: str, rows: int) -> Side:
    """Five arrays, what one writes by hand."""
    if task not in ("uniform", "several lanes"):
        raise ModuleNotFoundError(name=f"{task} by hand")
    generator, filled = np.random.default_rng(0), steps(rows)
    arrays = list(filled.values())

    def sample() -> Any:
        index = generator.integers(rows, size=BATCH)
        return [array[index] for array in arrays]

    return Side(np.__version__, sample, lambda batch: {"obs": batch[0][:, 0], "next_obs": batch[1][:, 0],
                "reward": batch[3], "discount": np.where(batch[4], 0.0, GAMMA)})  # fmt: skip


def cpprb(task: str, rows: int) -> Side:
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    if task == "stack":
        raise ModuleNotFoundError(name="a stack at episode starts")
    if task == "n-step":
        rows = min(rows, SLOW_TO_FILL)
    shapes = {"obs": {"shape": 18}, "next_obs": {"shape": 18}, "act": {"shape": 4}, "rew": {}, "done": {}}
    filled, n_step = steps(rows), STEPS if task == "n-step" else 1
    if task == "prioritised":
        buffer = PrioritizedReplayBuffer(rows, shapes, alpha=ALPHA)
    elif task == "n-step":
        nstep = {"size": STEPS, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
        buffer = ReplayBuffer(rows, shapes, Nstep=nstep)
    else:
        buffer = ReplayBuffer(rows, shapes)
    _fill_cpprb(buffer, filled, one_by_one=task == "n-step")

    def read(batch: Any) -> dict[str, np.ndarray]:
        done = batch["done"][:, 0] > 0
        return {"obs": batch["obs"][:, 0], "next_obs": batch["next_obs"][:, 0], "reward": batch["rew"][:, 0],
                "discount": np.where(done, 0.0, GAMMA**n_step)}  # fmt: skip

    version = importlib.metadata.version("cpprb") + (f" ({rows:,} rows)" if task == "n-step" else "")
    if task != "prioritised":
        return Side(version, lambda: buffer.sample(BATCH), read)
    buffer.update_priorities(np.arange(rows), error_of(filled["obs"][:, 0]))

    def sample() -> Any:
        batch = buffer.sample(BATCH, beta=BETA)
        buffer.update_priorities(batch["indexes"], error_of(batch["obs"][:, 0]))
        return batch

    return Side(version, sample, read)


def _fill_cpprb(buffer: Any, filled: dict[str, np.ndarray], *, one_by_one: bool) -> None:
    for start in range(0, len(filled["done"]), EPISODE):
        part = {name: array[start : start + EPISODE] for name, array in filled.items()}
        if one_by_one:  # adding several steps at once raises where there are n-step returns
            for k in range(EPISODE):
                buffer.add(**{name: array[k] for name, array in part.items()})
            buffer.on_episode_end()
        else:
            buffer.add(**part)


def stable_baselines3(task: str, rows: int) -> Side:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

    if task in ("prioritised", "stack"):
        raise ModuleNotFoundError(name=f"{task} sampling")
    box = spaces.Box(-np.inf, np.inf, (18,), np.float32), spaces.Box(-1, 1, (4,), np.float32)
    if task == "n-step":
        buffer: Any = NStepReplayBuffer(rows, *box, device="cpu", n_steps=STEPS, gamma=GAMMA)
    else:
        buffer = ReplayBuffer(rows, *box, device="cpu", handle_timeout_termination=False)
    filled = steps(rows)
    buffer.observations[:, 0], buffer.next_observations[:, 0] = filled["obs"], filled["next_obs"]
    buffer.actions[:, 0], buffer.rewards[:, 0], buffer.dones[:, 0] = filled["act"], filled["rew"], filled["done"]
    buffer.full, buffer.pos = True, 0

    def read(batch: Any) -> dict[str, np.ndarray]:
        discount = GAMMA if batch.discounts is None else batch.discounts.numpy()[:, 0]
        return {"obs": batch.observations[:, 0].numpy(), "next_obs": batch.next_observations[:, 0].numpy(),
                "reward": batch.rewards[:, 0].numpy(),
                "discount": (1 - batch.dones[:, 0].numpy()) * discount}  # fmt: skip

    return Side(importlib.metadata.version("stable-baselines3"), lambda: buffer.sample(BATCH), read)


def tianshou(task: str, rows: int) -> Side:
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

    if task == "n-step":
        raise ModuleNotFoundError(name="n-step returns in the buffer")
    if task == "prioritised":
        buffer: Any = PrioritizedReplayBuffer(rows, ALPHA, BETA)
    else:
        buffer = ReplayBuffer(rows, stack_num=STACK if task == "stack" else 1)
    filled, never = steps(rows), np.zeros(rows, bool)
    buffer.set_batch(Batch(obs=filled["obs"], act=filled["act"], rew=filled["rew"], terminated=filled["done"],
                           truncated=never, done=filled["done"], obs_next=filled["next_obs"], info=Batch()))  # fmt: skip
    buffer._size, buffer.last_index = rows, np.array([rows - 1])  # noqa: SLF001 - single adds take a minute

    def read(batch: Any) -> dict[str, np.ndarray]:
        return {"obs": batch[0].obs[..., 0], "next_obs": batch[0].obs_next[..., 0], "reward": batch[0].rew,
                "discount": np.where(batch[0].terminated, 0.0, GAMMA)}  # fmt: skip

    version = importlib.metadata.version("tianshou")
    if task != "prioritised":
        return Side(version, lambda: buffer.sample(BATCH), read)
    buffer.update_weight(np.arange(rows), error_of(filled["obs"][:, 0]))

    def sample() -> Any:
        batch, index = buffer.sample(BATCH)
        buffer.update_weight(index, error_of(batch.obs[:, 0]))
        return batch, index

    return Side(version, sample, read)


SIDES = {"headrace": headrace, "numpy arrays": numpy, "cpprb": cpprb, "stable-baselines3": stable_baselines3,
         "tianshou": tianshou}  # fmt: skip


# --- what is right


def wrong(task: str, found: dict[str, np.ndarray]) -> dict[str, int]:
    """How many of a batch are not what they should be, by what it is; and how many are odd steps."""
    obs, next_obs = found["obs"], found["next_obs"]
    number = (obs[:, -1] if task == "stack" else obs).astype(np.int64)
    n_step = STEPS if task == "n-step" else 1
    t = number % EPISODE
    taken = np.minimum(n_step, EPISODE - t)
    ended = t + n_step >= EPISODE
    reward = sum(np.where(k < taken, reward_of(number + k), 0.0) * GAMMA**k for k in range(n_step))
    last = np.where(ended, -(number + taken), number + taken)
    bad = {
        "reward": np.abs(found["reward"] - reward) > 1e-5,
        "discount": np.abs(found["discount"] - np.where(ended, 0.0, GAMMA**taken)) > 1e-5,
        "next observation": (next_obs[:, -1] if task == "stack" else next_obs) != last,
    }
    bad["next observation"] &= ~ended | (task != "n-step")  # behind an end of several steps nobody looks
    if task == "stack":
        back = np.arange(STACK - 1, -1, -1)
        bad["stack"] = (obs != number[:, None] - np.minimum(back, t[:, None])).any(axis=1)
        wanted = (number + 1)[:, None] - np.minimum(back, t[:, None] + 1)
        bad["next stack"] = (next_obs[:, :-1] != wanted[:, :-1]).any(axis=1)
    return {**{name: int(rows.sum()) for name, rows in bad.items()}, "odd": int((number % 2).sum())}


def main() -> None:
    request = json.loads(sys.argv[1])
    task = request["task"]
    try:
        side = SIDES[request["side"]](task, request["rows"])
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    for _ in range(request["batches"] // 10):
        side.sample()
    start = time.process_time()
    for _ in range(request["batches"]):
        side.sample()
    rate = request["batches"] / (time.process_time() - start)
    counts = [wrong(task, side.read(side.sample())) for _ in range(CHECKED)]
    total = {name: sum(count[name] for count in counts) for name in counts[0]}
    odd = total.pop("odd") / (CHECKED * BATCH)
    print(json.dumps({"version": side.version, "rate": rate, "wrong": total, "odd": odd, "checked": CHECKED * BATCH}))


if __name__ == "__main__":
    main()
