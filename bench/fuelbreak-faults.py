"""Fuel breaks learnt while environments hang and crash: beside the same without faults and in turn, and random placement.

`fuelbreak-dqn` trains for so many seconds in one collector that acts for 32 environments in workers, of which each hangs
and crashes once in a thousand steps; its twin makes as many steps inline, without faults. Both policies, random placement
and placement by influence are then judged on landscapes nobody trained on, each by the same fires.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _report import machine, options

from headrace import load_policy
from headrace.core.seeding import generator
from headrace.envs.fuelbreak import FuelBreakEnv, Landscape, evaluate_plan, influence_plan, random_plan

HELD_OUT = 100_000
"""The first landscape that is not trained on."""
FIRES, PLANNING_FIRES, BUDGET = 200, 400, 200
FAULTY: Mapping[str, object] = {
    "run.schedule": "async", "run.collectors": 1, "env.workers": 2, "deadlines.step_s": 2.0,
    "env.kwargs.p_hang": 0.001, "env.kwargs.p_crash": 0.001,
    "supervision.max_restarts": 10_000,
}  # fmt: skip
Plan = Callable[[int, Landscape], np.ndarray]


def train(folder: Path, **settings: object) -> dict[str, Any]:
    """A run's summary."""
    pairs = {"run.seed": 0, **settings}
    given = [part for key, value in pairs.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [str(Path(sys.executable).with_name("headrace")), "train", "fuelbreak-dqn", "--quiet"]
    subprocess.run([*command, "--run-dir", str(folder), *given], check=True, env={**os.environ}, stdout=sys.stderr)
    return dict(json.loads((folder / "summary.json").read_text()))


def learned(run: Path) -> Plan:
    """What a run's newest policy cuts."""
    policy, env = load_policy(run), FuelBreakEnv(first_raster=HELD_OUT, budget=BUDGET)

    def plan(number: int, _land: Landscape) -> np.ndarray:
        observation, _ = env.reset(seed=number, options={"raster": number})
        policy.begin_episode()
        over = False
        while not over:
            observation, _, terminated, truncated, _ = env.step(policy.act(observation))
            over = terminated or truncated
        return env.plan

    return plan


def judge(plans: Mapping[str, Plan], rasters: int) -> dict[str, list[float]]:
    """Of each plan, the share of burned cells that it saves, for every landscape."""
    env = FuelBreakEnv(first_raster=HELD_OUT, budget=BUDGET)
    found: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(rasters):
        raster = env.rasters[number]
        land = Landscape(raster, env.weather)
        fires = land.draw(FIRES, generator(number, "held-out fires"))
        for name, plan in plans.items():
            found[name].append(float(evaluate_plan(raster, plan(number, land), fires).reduction))
    return found


def main() -> None:
    given = options(__doc__ or "", seconds=600, rasters=40).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        faulty = train(folder / "faulty", **{"run.run_duration_s": given.seconds}, **FAULTY)
        steps = {"run.steps": faulty["env_steps"], "run.run_duration_s": 100 * given.seconds}
        twin = train(folder / "twin", **{"run.schedule": "inline"}, **steps)
        found = judge(
            {
                "with faults": learned(folder / "faulty"),
                "inline twin": learned(folder / "twin"),
                "random": lambda number, land: random_plan(land, BUDGET, generator(number, "random plan")),
                "influence": lambda number, land: influence_plan(
                    land, BUDGET, land.draw(PLANNING_FIRES, generator(number, "planning fires"))
                ),
            },
            given.rasters,
        )
    runs = {
        name: {key: summary.get(key) for key in ("outcome", "env_steps", "updates", "faults", "wall_s")}
        for name, summary in (("with faults", faulty), ("inline twin", twin))
    }
    if given.json:
        print(json.dumps({"machine": machine(), "runs": runs, "saved": found}))
        return
    for name, summary in runs.items():
        print(name, summary)
    for name, saved in found.items():
        error = statistics.stdev(saved) / len(saved) ** 0.5
        print(f"{name:12s} saves {statistics.mean(saved):6.1%} of burned cells, standard error {error:.1%}")
    for name in ("with faults", "inline twin"):
        ahead = [ours - theirs for ours, theirs in zip(found[name], found["random"], strict=True)]
        error = statistics.stdev(ahead) / len(ahead) ** 0.5
        print(f"{name:12s} is {statistics.mean(ahead):+.1%} from random placement, standard error {error:.1%}")


if __name__ == "__main__":
    main()
