"""A million steps of 32 environments that hang, die and raise at random: is every row the true successor it claims to be?

Half of the rows come through ``step``, half through ``send`` and ``receive``. Each observation tells environment, copy,
episode, step and a trace of all actions; a row of another environment, another episode or an earlier action ends the
soak with what came and what had to. At the end every fault that was provoked has been told, as what it was, and no
other was.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _processes import Load
from _report import machine, options
from gymnasium.vector import AutoresetMode

from headrace.testing.vectorcheck import Soak

RATES = {
    "sleep": 2e-5, "loop": 1e-5, "sigstop": 1e-5, "sigkill": 2e-5, "exit-3": 1e-5, "raises": 2e-4, "nan-reward": 5e-5,
}  # fmt: skip
"""Per step of each environment."""
ENVS = 32


def soak(given: Any, name: str, mode: AutoresetMode, *, as_ready: bool) -> dict[str, Any]:
    """What was checked, and how long it took."""
    wanted = Soak(
        rows=given.steps // 2, num_envs=ENVS, mode=mode, rates=RATES, as_ready=as_ready, seed=given.seed
    )  # fmt: skip
    load, began_s = Load(), time.perf_counter()
    with TemporaryDirectory() as folder:
        found = wanted.run(Path(folder), workers=2, threads_per_worker=1, step_timeout_s=given.step_timeout_s)
    return {
        "name": name, "mode": mode.name, "seconds": round(time.perf_counter() - began_s, 1),
        "others_used_cores": round(load.cores(), 2), **found.counts, "provoked": dict(found.provoked),
        "told": dict(found.told), "unaccounted": found.unaccounted,
    }  # fmt: skip


def main() -> None:
    given = options(__doc__ or "", steps=1_000_000, seed=1, step_timeout_s=1.0).parse_args()
    rows = [
        soak(given, "step", AutoresetMode.NEXT_STEP, as_ready=False),
        soak(given, "send and receive", AutoresetMode.SAME_STEP, as_ready=True),
    ]
    if given.json:
        print(json.dumps({"machine": machine(), "rows": rows}))
    else:
        print(", ".join(f"{name} {value}" for name, value in machine().items()))
        for row in rows:
            print(", ".join(f"{name} {value}" for name, value in row.items()))
    if any(row["unaccounted"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
