"""CAGE2-v0: steps a CPU second on one core, and what simple policies reach.

Steps: ours is the vector environment in one thread, actions checked, rewards, observations and resets included; beside it
the same copies one after another as single environments, what is promised, and what CybORG 2.1 itself was measured at for the
specification (626 steps/s on this kind of machine; it cannot be installed here). Then the single environment, and both with
a workflow. A step that only resets is not counted as one, but its time is.

Policies (`--policies N`): mean and standard deviation of the returns of N episodes of 100 steps for each policy and red
agent, beside what is published for CybORG 2.1 (leader board of CAGE Challenge 2, means of 1000 episodes).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import gymnasium
import numpy as np
from _report import Row, compare, options, report, take_turns

import headrace
from headrace.envs.cage2.baselines import POLICIES, episode_returns, policy
from headrace.envs.cage2.network import OPPONENTS
from headrace.envs.registration import CAGE2_ID, CAGE2_WORKFLOW_ID

STEPS = 100
SMALL, LARGE = 64, 256
PROMISED, PROMISED_SINGLE, CYBORG = 50_000.0, 10_000.0, 626.0
PUBLISHED = {("random", "b_line"): -726.92, ("random", "meander"): -566.41, ("random", "sleep"): -8.94}
PUBLISHED |= {("asleep", "b_line"): -1134.03, ("asleep", "meander"): -972.43, ("asleep", "sleep"): 0.0}


def vector_rate(env_id: str, copies: int, episodes: int) -> Callable[[], float]:
    """Steps per CPU second of the vector environment, actions drawn beforehand."""
    env = gymnasium.make_vec(env_id, copies, "vector_entry_point", red=OPPONENTS[:2])
    actions = np.random.default_rng(0).integers(0, 145, (episodes, STEPS, copies))

    def measure() -> float:
        env.reset(seed=0)
        start = time.process_time()
        for episode in actions:
            for chosen in episode:
                env.step(chosen)
            env.step(chosen)  # resets
        return actions.size / (time.process_time() - start)

    return measure


def single_rate(env_id: str, copies: int, episodes: int) -> Callable[[], float]:
    """The same of single environments, one after another."""
    envs = [gymnasium.make(env_id, red=OPPONENTS[:2], disable_env_checker=True) for _ in range(copies)]
    actions = np.random.default_rng(0).integers(0, 145, (episodes, STEPS, copies)).tolist()

    def measure() -> float:
        for number, env in enumerate(envs):
            env.reset(seed=number)
        start = time.process_time()
        for episode in actions:
            for chosen in episode:
                for env, action in zip(envs, chosen, strict=True):
                    env.step(action)
            for env in envs:
                env.reset()
        return episodes * STEPS * copies / (time.process_time() - start)

    return measure


def steps(episodes: int, rounds: int) -> list[Row]:
    """Rates, side by side."""
    unit, where, rows = "steps/CPU s", "Scenario 2, b_line or meander", []
    loop, promise = ("single environments, in a loop", headrace.__version__), ("what is promised", "one core")
    original = ("CybORG, as measured", "2.1")
    for copies in (SMALL, LARGE):
        sides = vector_rate(CAGE2_ID, copies, episodes), single_rate(CAGE2_ID, copies, max(1, episodes // 20))
        ours, theirs = take_turns(rounds, *sides)
        name = f"{copies} copies in one vector"
        rows.append(compare(name, where, loop, (ours, theirs), unit))
        rows.append(replace(compare(name, where, promise, (ours, [PROMISED]), unit), target=1.0))
    rows.append(compare(name, where, original, (ours, [CYBORG]), unit))
    singles = {"one environment": CAGE2_ID, "one environment, with a workflow": CAGE2_WORKFLOW_ID}
    for name, env_id in singles.items():
        (ours,) = take_turns(rounds, single_rate(env_id, 1, episodes))
        rows.append(replace(compare(name, where, promise, (ours, [PROMISED_SINGLE]), unit), target=1.0))
    (ours,) = take_turns(rounds, vector_rate(CAGE2_WORKFLOW_ID, LARGE, episodes))
    name = f"{LARGE} copies, with workflows"
    rows.append(replace(compare(name, where, promise, (ours, [PROMISED]), unit), target=1.0))
    return rows


def policies(episodes: int) -> list[dict[str, object]]:
    """What each policy reaches against each red agent."""
    found = []
    for name in POLICIES:
        for red in OPPONENTS:
            act = policy(name, np.random.default_rng(1))
            returns = episode_returns(act, episodes=episodes, seed=0, red=red, max_steps=STEPS)
            published = PUBLISHED.get((name, red))
            row = {"policy": name, "red": red, "mean": returns.mean(), "std": returns.std(), "published": published}
            found.append(row)
    return found


def main() -> None:
    parser = options(__doc__ or "", episodes=40, rounds=5, policies=0)
    given = parser.parse_args()
    table = policies(given.policies) if given.policies else []
    report(steps(given.episodes, given.rounds), as_json=given.json, **({"policies": table} if given.json else {}))
    if table and not given.json:
        for row in table:
            told = "" if row["published"] is None else f"published {row['published']:10.2f}"
            print(f"{row['policy']:16}{row['red']:10}{row['mean']:10.2f} +- {row['std']:7.2f}   {told}".rstrip())


if __name__ == "__main__":
    main()
