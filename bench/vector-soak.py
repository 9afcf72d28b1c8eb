"""A million steps of 32 environments that hang, die and raise at random: is every row the true successor it claims to be?

Half of the rows come through ``step``, half through ``send`` and ``receive``. Each observation tells environment, copy,
episode, step and a trace of all actions; a row of another environment, another episode or an earlier action ends the
soak with both rows. At the end every fault that was provoked has been told, as what it was, and no other was.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from _processes import Load
from _report import machine, options
from gymnasium.vector import AutoresetMode

import headrace
from headrace.testing import vectorcheck as vc
from headrace.vector.options import FaultBudget

RATES = {
    "sleep": 2e-5,
    "loop": 1e-5,
    "sigstop": 1e-5,
    "sigkill": 2e-5,
    "exit-3": 1e-5,
    "raises": 2e-4,
    "nan-reward": 5e-5,
}
"""Per step of each environment."""
BUDGET = FaultBudget(per_env=10**6, total=10**6, backoff_s=0.0)
"""Faults are what this is about."""
ENVS = 32


def soak(rows: int, seed: int, step_timeout_s: float, mode: AutoresetMode, drive: Callable[..., Any]) -> dict[str, Any]:
    """What was checked and what went wrong, counted.

    Raises:
        vc.NotASuccessor: A row was not what had to come.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        factories = [vc.CountingFactory(env, folder, RATES, seed) for env in range(ENVS)]
        check, load, began_s = vc.SuccessorCheck(mode), Load(), time.perf_counter()
        envs = headrace.VectorEnv(
            factories, workers=2, step_timeout_s=step_timeout_s, autoreset_mode=mode, budget=BUDGET
        )
        try:
            drive(envs, check, np.random.default_rng(seed), rows)
        finally:
            envs.close()
        provoked = vc.provocations(folder)
    return {
        "mode": mode.name, "seconds": time.perf_counter() - began_s, "others_cores": load.cores(), **check.counts,
        "provoked": Counter(cause.what for cause in provoked), "told": Counter(fault.kind for fault in check.told),
        "unaccounted": check.unaccounted(provoked),
    }  # fmt: skip


def through_step(envs: Any, check: vc.SuccessorCheck, draws: np.random.Generator, rows: int) -> None:
    vc.step_all(envs, check, rows // ENVS, draws)


def through_receive(envs: Any, check: vc.SuccessorCheck, draws: np.random.Generator, rows: int) -> None:
    vc.take_ready(envs, check, rows, draws, ENVS // 2)


def main() -> None:
    given = options(__doc__ or "", steps=1_000_000, seed=1, step_timeout_s=1.0).parse_args()
    share = given.steps // 2
    results = {
        "step": soak(share, given.seed, given.step_timeout_s, AutoresetMode.NEXT_STEP, through_step),
        "receive": soak(share, given.seed + 1, given.step_timeout_s, AutoresetMode.SAME_STEP, through_receive),
    }
    if given.json:
        print(json.dumps({"machine": machine(), "rows": [{"name": name, **found} for name, found in results.items()]}))
    else:
        print(", ".join(f"{name} {value}" for name, value in machine().items()))
        for name, found in results.items():
            print(name, *(f"  {key}: {value}" for key, value in found.items()), sep="\n")
    if any(found["unaccounted"] for found in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
