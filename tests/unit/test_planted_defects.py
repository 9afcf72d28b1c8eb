"""Each defect is planted in the run that is recorded; the replay, with sound code, finds and names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.algorithms.td3 import TD3
from headrace.collectors.collector import Collector
from headrace.lanes import derive
from headrace.lanes.layout import Geometry
from headrace.lanes.samplers import UniformSampler
from headrace.runtime.replayer import replay
from headrace.weights.snapshot import SnapshotReader
from record_here import Tamper, difference, record_here, tampered


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Callable[..., Any]:
    """Record a run with an attribute replaced, put the attribute back, and replay."""

    def plant(owner: object, name: str, value: object, **settings: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            run = record_here(tmp_path / "run", **settings)
        return difference(run)

    return plant


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"run__schedule": "async"},
        {"run__schedule": "async", "replay__capacity": 160, "env__frame_stack": 2, "replay__n_step": 2},
        {"env__group_size": 2, "algorithm__exploration": {"kind": "ornstein-uhlenbeck"}},
    ],
    ids=["inline", "eager", "eager with eviction, stacks and returns", "groups and correlated noise"],
)
def test_without_a_defect_everything_is_identical(tmp_path, settings):
    found = replay(record_here(tmp_path / "run", **settings))
    assert (found.ended, found.torn_bytes, found.updates > 300) == (True, 0, True)


def test_guard_zone_removed(tmp_path, monkeypatch):
    """In the code of both: a replay reads no row while it is written, because it does one thing at a time."""
    monkeypatch.setattr(Geometry, "guard_rows", property(lambda self: 2))
    error = difference(record_here(tmp_path / "run", run__schedule="async", replay__capacity=160))
    assert error.facts["cause"] == "row_read_while_written"
    assert "the batch holds rows that were being written" in error.what
    assert "batch of update " in error.what


def test_weights_swapped(planted):
    refresh = SnapshotReader.refresh

    def old_weights(self: SnapshotReader) -> bool:
        before = {name: array.copy() for name, array in self.arrays.items()}
        new = refresh(self)
        if self.version == 4:
            for name, array in self.arrays.items():
                array[...] = before[name]
        return new

    error = planted(SnapshotReader, "refresh", old_weights)
    assert error.facts["cause"] == "other_weights"
    assert "the action fits policy 3, and the record names policy 4" in error.what
    assert error.facts["field"].startswith("action")


def drop(rows: Any) -> Any:
    return renumbered(np.delete(rows, 3), rows)


def duplicate(rows: Any) -> Any:
    return renumbered(np.concatenate([rows[:3], rows[2:-1]]), rows)


def swap(rows: Any) -> Any:
    return renumbered(rows[[0, 1, 3, 2, *range(4, len(rows))]], rows)


def shift_observations(rows: Any) -> Any:
    shifted = rows.copy()
    shifted["obs"][1:-1] = rows["obs"][2:]  # the first is what the step before led to, and has been read already
    return shifted


def renumbered(rows: Any, before: Any) -> Any:
    """Steps and transitions count on, as a defect leaves them that is not in the counting."""
    rows = rows.astype(before.dtype)
    for name in ("t", "transitions", "kind"):
        rows[name] = before[name][: len(rows)]
    return rows


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("tamper", "cause"),
    [
        (drop, "transition_dropped"),
        (duplicate, "transition_duplicated"),
        (swap, "transitions_reordered"),
        (shift_observations, "observation_shifted"),
    ],
)
def test_rows_are_not_what_happened(planted, tamper: Tamper, cause: str):
    changed = tampered(Collector.collect, 3, 2, tamper)
    error = planted(Collector, "collect", changed, collect__chunk_steps=16)
    assert error.facts["cause"] == cause, str(error)
    assert "chunk 3 of group 2), lane 2, row " in error.what


def test_double_target_update(planted):
    move = TD3._move_targets

    def twice(self: TD3) -> None:
        move(self)
        move(self)

    error = planted(TD3, "_move_targets", twice)
    assert error.facts["cause"] == "update_rule_differs"
    assert "target" in error.what


def test_stack_built_from_another_lane(planted):
    observations = Collector._observations

    def crossed(self: Collector) -> Any:
        seen = observations(self)
        return {name: array[::-1].copy() for name, array in seen.items()}

    error = planted(Collector, "_observations", crossed, env__group_size=2, env__frame_stack=3)
    assert error.facts["cause"] == "other_lane", str(error)


def test_stack_built_wrongly_for_the_learner(planted):
    def crossed(*given: Any) -> Any:
        return np.roll(derive_padded(*given), 1, axis=0)

    derive_padded = derive._padded
    error = planted(derive, "_padded", crossed, env__frame_stack=3, collect__random_steps=470, run__steps=480)
    assert error.facts["cause"] == "batch_built_differs", str(error)


def test_environment_with_an_unseeded_generator(tmp_path):
    error = difference(record_here(tmp_path / "run", env__factory="run_envs:unseeded"))
    assert error.facts["cause"] == "environment_not_deterministic"
    assert "the environment is not deterministic under its seed" in error.what
    assert error.facts["field"].startswith("obs")


def test_a_batch_of_other_rows(planted):
    sample = UniformSampler.sample

    def draws_more(self: Any, batch_size: int) -> Any:
        self.generator.random()
        return sample(self, batch_size)

    error = planted(UniformSampler, "sample", draws_more)
    assert error.facts["cause"] == "sampling_differs"


def test_tampering_itself_changes_nothing_else(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "collect", tampered(Collector.collect, 3, 2, lambda rows: rows))
        run = record_here(tmp_path / "run")
    assert replay(run).ended
