"""V-trace on CartPole with collectors ahead of the learner: environment steps to 475, beside the same without any lag.

All runs are asynchronous, of the preset `cartpole-ppo` with V-trace instead of PPO: clipped, twenty epochs. What is compared is
what is learned from a step, not how fast steps are made. Learning is a lottery over seeds: medians, and the spread is told. Who
does not reach the target counts with the steps it was given.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from _processes import Load, end_tidily
from _report import Row, compare, less_is_better, options, report

import headrace
from headrace.core import toml
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.presets import resolve

LAGS = (1, 2, 3, 4)
MOST_STEPS = 1.3
"""Times the steps without a lag that are promised at most."""


def configuration(lag: int) -> ExperimentConfig:
    """The preset with V-trace, and with a group for every two lanes, so that collectors are apart."""
    table = toml.read(resolve("cartpole-ppo"))
    table["algorithm"] |= {"name": "vtrace", "correction": {"trace_lambda": table["algorithm"].pop("gae_lambda")}}
    table["env"]["group_size"], table["run"]["collectors"] = 2, 2
    table["rollout"] = {"max_policy_lag": lag}
    table["evaluation"]["random_baseline"] = False
    table |= {"record": {"enabled": False}, "checkpoint": {"enabled": False}}
    return ExperimentConfig.model_validate(table)


def steps_to_target(lag: int, seed: int) -> int:
    """Environment steps at the first evaluation that reached the target, or all there were."""
    config = configuration(lag)
    with tempfile.TemporaryDirectory() as folder:
        told = headrace.train(config, schedule="async", seed=seed, run_dir=Path(folder) / "run").summary
    if told["error"] is not None:
        raise RuntimeError(told["error"])
    assert told["policy_lag"]["max"] <= lag, told["policy_lag"]
    target = config.evaluation.target
    reached = [point["env_steps"] for point in told["evaluations"] if point["mean_reward"] >= target]
    steps: int = reached[0] if reached else told["env_steps"]
    print(f"lag {lag}, seed {seed}: {steps:,} steps, lag {told['policy_lag']['mean']:.2f} in the mean", file=sys.stderr)
    return steps


def rows(seeds: int) -> list[Row]:
    """Each lag beside none."""
    found = {lag: [float(steps_to_target(lag, seed)) for seed in range(seeds)] for lag in (0, *LAGS)}
    version, pooled = importlib.metadata.version("headrace"), [steps for lag in LAGS for steps in found[lag]]
    made = [(f"lag {lag}", found[lag]) for lag in LAGS] + [("lags 1 to 4 together", pooled)]
    beside = (f"none, median {statistics.median(found[0]):,.0f}", version)
    return [
        replace(less_is_better(compare(name, "CartPole-v1", beside, (steps, found[0]), "steps")), target=1 / MOST_STEPS)
        for name, steps in made
    ]


def main() -> None:
    parser = options("V-trace with a lag, beside none.", seeds=8)
    given = parser.parse_args()
    end_tidily()
    load = Load()
    found = rows(given.seeds)
    report(found, as_json=given.json, others_cores=round(load.cores(), 2))


if __name__ == "__main__":
    main()
