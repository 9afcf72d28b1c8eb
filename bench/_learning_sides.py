"""What sides of a learning benchmark share: one training, in a process of its own, judged alike whoever trains.

Everybody plays ten greedy episodes with seeds that stay the same through a training, after every so many steps, and stops
where their mean return reaches the target; without one, what counts is the return at the end. Seconds count from the
start of the process: imports, compilation and evaluations are in them. Imports nothing of Headrace but in its own side,
and nothing that is not in Python before that: peers' environments run it too. A side imports it first, for the clock.
"""

from __future__ import annotations

import time

BEGAN_S = time.perf_counter()

import importlib  # noqa: E402
import importlib.metadata  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from dataclasses import dataclass, field, replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

EPISODES = 10
EVALUATION_SEED = 10_000
OURS = {"async, 2 cores": "async", "inline": "inline"}
"""Our sides, and the schedule of each."""


@dataclass(frozen=True)
class Task:
    """What is to be learned, with the hyperparameters of rl-zoo."""

    env: str
    preset: str
    target: float | None
    """Mean return at which a training ends; None: it ends with its last step, and the return then is what counts."""
    every_steps: int
    """Steps between two evaluations; 0: only at the end."""
    most_steps: int
    peers: tuple[str, ...]
    zoo: dict[str, Any]
    needs: tuple[str, ...] = ()
    """Modules without which the environment cannot be built."""
    promised: dict[str, float] = field(default_factory=dict)
    """Least ratio of asynchronous training beside Stable-Baselines3, by what is measured."""


Side = Callable[[Task, int, str], dict[str, Any]]


def headrace(task: Task, seed: int, schedule: str) -> dict[str, Any]:
    """Ours: the preset, as it is."""
    from headrace import train

    with tempfile.TemporaryDirectory() as folder:
        settings = {"evaluation.random_baseline": False, "evaluation.every_steps": task.every_steps,
                    "evaluation.episodes": EPISODES}  # fmt: skip
        if task.target is not None:
            settings["evaluation.target"] = task.target
        run = train(task.preset, schedule=schedule, seed=seed, steps=task.most_steps, run_dir=Path(folder) / "run",
                    settings=settings)  # fmt: skip
    told = run.summary
    if told["error"] is not None:
        raise RuntimeError(told["error"])
    points = sorted(told["evaluations"], key=lambda point: point["env_steps"])
    reached = [p["env_steps"] for p in points if task.target is not None and p["mean_reward"] >= task.target]
    return {
        "version": importlib.metadata.version("headrace"), "reached": bool(reached),
        "steps": reached[0] if reached else told["env_steps"], "return": points[-1]["mean_reward"],
        "updates_per_s": told["throughput"]["updates_per_s"],
    }  # fmt: skip


class Judge:
    """Evaluates a peer's policy now and then, and keeps what came of it.

    Args:
        task: Whose target counts.
        env: Where episodes are played; nobody else uses it.
        act: The greedy policy, of one observation.
    """

    def __init__(self, task: Task, env: Any, act: Callable[[Any], Any]) -> None:
        self._task, self._env, self._act = task, env, act
        self.reached_at: int | None = None
        """Steps after which the target was reached; None: not yet."""
        self.newest = float("nan")
        """Mean return of the last evaluation."""
        self.spent_s = 0.0

    def is_due(self, steps: int) -> bool:
        """Whether a policy is to be evaluated after so many steps."""
        return self._task.every_steps > 0 and steps > 0 and steps % self._task.every_steps == 0

    def look(self, steps: int) -> None:
        """Evaluate the policy, which has learned from so many steps."""
        began_s = time.perf_counter()
        self.newest = sum(self._episode(number) for number in range(EPISODES)) / EPISODES
        if self._task.target is not None and self.newest >= self._task.target and self.reached_at is None:
            self.reached_at = steps
        self.spent_s += time.perf_counter() - began_s

    def _episode(self, number: int) -> float:
        obs, _ = self._env.reset(seed=EVALUATION_SEED + number)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = self._env.step(self._act(obs))
            total += float(reward)
            over = terminated or truncated
        return total

    def found(self, steps: int) -> dict[str, Any]:
        """What is told of a training of so many steps."""
        reached = self.reached_at is not None
        return {"reached": reached, "steps": self.reached_at if reached else steps, "return": self.newest}


def greedy(model: Any) -> Callable[[Any], Any]:
    """The greedy policy of a model of Stable-Baselines3 or SBX; observations are normalised as in its training."""
    chooses = hasattr(model.action_space, "n")
    normaliser = model.get_vec_normalize_env()

    def act(obs: Any) -> Any:
        seen = obs if normaliser is None else normaliser.normalize_obs(obs)
        action, _ = model.predict(seen, deterministic=True)
        return int(action) if chooses else action

    return act


def version_of(library: str) -> str:
    """Of an installed peer, by the name of its side."""
    return importlib.metadata.version("sbx-rl" if library == "sbx" else library)


def answer_request(tasks: Mapping[str, Task], peers: Mapping[str, Side]) -> None:
    """Train as the request in the arguments says, and print what came of it.

    A request has ``side``, ``task`` and ``seed``; ``steps`` trains shorter than the task says. What is not installed is
    told as ``missing``.
    """
    request = json.loads(sys.argv[1])
    task, side = tasks[request["task"]], request["side"]
    if request.get("steps"):
        task = replace(task, most_steps=request["steps"])
    try:
        for module in task.needs:
            importlib.import_module(module)
        train = headrace if side in OURS else peers[side]
        found = train(task, request["seed"], OURS.get(side, side))
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}))
        return
    print(json.dumps({**found, "wall_s": time.perf_counter() - BEGAN_S}))
