"""Treasure hunt: agent steps a second of the environment alone, at 10 x 10 with 2 agents and epochs of 50 turns.

Ours is the vector environment, in one thread: actions checked, a turn of every copy, rewards and observations of every
agent. Beside it the same copies one after another, as a loop over parallel environments, which is what a collector does
without the vector environment; and what is promised. Everything counts CPU seconds; a step that only resets is not
counted as one, but its time is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from _report import Row, compare, options, report, take_turns

import headrace
from headrace.envs.treasurehunt import TreasureHuntParallel, TreasureHuntVector

AGENTS, TURNS = 2, 50
PROMISED = 200_000.0
SMALL, LARGE = 64, 256
"""Copies of the world in one vector environment."""


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


def main() -> None:
    parser = options(__doc__ or "", epochs=20, rounds=5)
    parser.add_argument("--env", action="store_true", help="the environment alone, which is the only part there is")
    given = parser.parse_args()
    report(environment(given.epochs, given.rounds), as_json=given.json)


if __name__ == "__main__":
    main()
