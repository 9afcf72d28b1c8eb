"""Treasure hunt: agent steps a second at 10 x 10 with 2 agents and epochs of 50 turns, with training and alone.

With training: the preset `treasurehunt-iqn-small` with what the original computes (batches of 64, noisy layers, one training
step of each agent's network for an epoch), asynchronously and in one process, beside the original's sequential loop written
anew (`_treasurehunt_plain.py`), and beside what the original itself was measured at on this kind of machine. Wall clock, from
the first step to the last. The preset as it is, asynchronous beside inline, is the third comparison.

Alone: ours is the vector environment, in one thread: actions checked, a turn of every copy, rewards and observations of every
agent. Beside it the same copies one after another, as a loop over parallel environments, which is what a collector does
without the vector environment; and what is promised. Everything counts CPU seconds; a step that only resets is not
counted as one, but its time is.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _report import Row, compare, options, report, take_turns
from _treasurehunt_plain import rate

import headrace
from headrace.envs.treasurehunt import TreasureHuntParallel, TreasureHuntVector

AGENTS, TURNS = 2, 50
PROMISED = 200_000.0
SMALL, LARGE = 64, 256
"""Copies of the world in one vector environment."""
ORIGINAL = 855.0
"""Agent steps a second of the original's sequential version, training included, as measured for its specification."""
AS_THE_ORIGINAL: Mapping[str, Any] = {"algorithm.batch_size": 64, "algorithm.network.noisy": True}


def drawn(epochs: int, copies: int) -> np.ndarray:
    """Actions of all epochs, [epochs, turns, copies, agents]; drawing them is nobody's work here."""
    return np.random.default_rng(0).integers(0, 4, (epochs, TURNS, copies, AGENTS))


def vector_rate(copies: int, epochs: int) -> Callable[[], float]:
    """Agent steps per CPU second of the vector environment."""
    env = TreasureHuntVector(copies * AGENTS, num_agents=AGENTS, max_turns=TURNS)
    actions = drawn(epochs, copies).reshape(epochs, TURNS, -1)

    def measure() -> float:
        env.reset(seed=0)
        start = time.process_time()
        for epoch in actions:
            for chosen in epoch:
                env.step(chosen)
            env.step(chosen)  # resets
        return actions.size / (time.process_time() - start)

    return measure


def loop_rate(copies: int, epochs: int) -> Callable[[], float]:
    """The same of parallel environments, one after another."""
    envs = [TreasureHuntParallel(num_agents=AGENTS, max_turns=TURNS) for _ in range(copies)]
    names = envs[0].possible_agents
    actions = [
        [[dict(zip(names, own, strict=True)) for own in turn] for turn in epoch]
        for epoch in drawn(epochs, copies).tolist()
    ]

    def measure() -> float:
        for number, env in enumerate(envs):
            env.reset(seed=number)
        start = time.process_time()
        for epoch in actions:
            for turn in epoch:
                for env, chosen in zip(envs, turn, strict=True):
                    env.step(chosen)
            for env in envs:
                env.reset()
        return epochs * TURNS * copies * AGENTS / (time.process_time() - start)

    return measure


def environment(epochs: int, rounds: int) -> list[Row]:
    """The environment alone."""
    peer = ("parallel environments, in a loop", headrace.__version__)
    unit, rows = "agent steps/CPU s", []
    for copies in (SMALL, LARGE):
        ours, theirs = take_turns(rounds, vector_rate(copies, epochs), loop_rate(copies, max(1, epochs // 10)))
        name = f"{copies} copies in one vector"
        rows.append(compare(name, "10x10, 2 agents", peer, (ours, theirs), unit))
        promise = compare(name, "10x10, 2 agents", ("what is promised", "one core"), (ours, [PROMISED]), unit)
        rows.append(replace(promise, target=1.0))
    return rows


def trained_rate(schedule: str, steps: int, settings: Mapping[str, Any]) -> Callable[[], float]:
    """Agent steps a second of the preset, training included."""

    def measure() -> float:
        with tempfile.TemporaryDirectory() as folder:
            run = headrace.train(
                "treasurehunt-iqn-small", schedule=schedule, steps=steps, run_dir=Path(folder) / "run",
                settings={**settings, "evaluation.every_steps": 0, "evaluation.episodes": 0},
            )  # fmt: skip
        if run.summary["error"] is not None:
            raise RuntimeError(run.summary["error"])
        return float(run.summary["throughput"]["env_steps_per_s"])

    return measure


def training(steps: int, rounds: int) -> list[Row]:
    """With training."""
    unit, where = "agent steps/s", "10x10, 2 agents"
    plain = lambda: rate(AGENTS, AS_THE_ORIGINAL["algorithm.batch_size"], 60, 20)  # noqa: E731
    sides = [trained_rate(schedule, steps, AS_THE_ORIGINAL) for schedule in ("async", "inline")]
    asynchronous, inline, theirs = take_turns(rounds, *sides, plain)
    own, loop = ("the original, as measured", "1.x"), ("its loop, written anew", headrace.__version__)
    rows = []
    for name, ours in (("training, async", asynchronous), ("training, inline", inline)):
        rows += [compare(name, where, own, (ours, [ORIGINAL]), unit), compare(name, where, loop, (ours, theirs), unit)]
    rows[0] = replace(rows[0], target=3.0)
    both = take_turns(rounds, *(trained_rate(schedule, 2 * steps, {}) for schedule in ("async", "inline")))
    name, peer = "treasurehunt-iqn-small, async", ("the same, inline", headrace.__version__)
    return [*rows, replace(compare(name, where, peer, (both[0], both[1]), unit), target=1.6)]


def main() -> None:
    parser = options(__doc__ or "", epochs=20, rounds=5, steps=30_000)
    parser.add_argument("--env", action="store_true", help="the environment alone")
    given = parser.parse_args()
    rows = environment(given.epochs, given.rounds)
    if not given.env:
        rows += training(given.steps, min(3, given.rounds))
    report(rows, as_json=given.json)


if __name__ == "__main__":
    main()
