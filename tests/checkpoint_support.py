"""Checkpoints whose content tells a number in every place, so that a mixture of two would be seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.learners.checkpoint import LearnerState
from headrace.learners.checkpoints import Checkpoint, CheckpointStore

POLICY = "policy.safetensors"


def state(number: int) -> LearnerState:
    arrays = {"actor": np.full(40, number, np.float32), "count": np.array([number])}
    return LearnerState(arrays, {"updates": number, "generator": {"state": 2**100 + number}})


def policy(number: float) -> dict[str, np.ndarray]:
    return {"actor": np.full(20, number, np.float32), "scale": np.array([0.1])}


def facts(number: int, **more: object) -> dict[str, object]:
    return {"env_steps": 100 * number, "oldest_segment": number // 3, "rows": [4, 640], "exact": True, **more}


def put(store: CheckpointStore, version: int, number: int | None = None, **more: object) -> Path:
    """A checkpoint whose content tells its number."""
    number = version if number is None else number
    return store.write(version, state(number), facts(number, **more), policy(number), {"env_steps": 100 * number})


def number_of(checkpoint: Checkpoint) -> int:
    """Which of the contents it holds; everything in it has to say the same."""
    loaded = checkpoint.load()
    number = loaded.facts["updates"]
    expected, arrays = state(number), checkpoint.policy()[0]
    assert loaded.facts == expected.facts
    assert {name: array.tobytes() for name, array in loaded.arrays.items()} == {
        name: array.tobytes() for name, array in expected.arrays.items()
    }
    assert checkpoint.facts["env_steps"] == 100 * number
    assert arrays["actor"].tolist() == policy(number)["actor"].tolist()
    return number


def newest(folder: Path, *problems: str, oldest_segment: int | None = None) -> tuple[int, int] | None:
    """Version and number of the newest sound one, seen by somebody who knows only the folder."""
    found, told = CheckpointStore(folder, keep=3).newest_sound(oldest_segment)
    assert told == list(problems)
    return None if found is None else (found.version, number_of(found))
