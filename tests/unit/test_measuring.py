"""What a timed run notes, and what costs its figures come to."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from agent_envs import Comers
from headrace.core.errors import ConfigError
from headrace.envs.agents import ParallelCopy
from headrace.envs.toy import Target
from headrace.runtime.measuring import Stopwatch, TimedCalls, binned, calls_in, costs_of


class Hands:
    """A clock, and a processor time, that are set by hand."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0

    def watch(self, warm_s: float) -> Stopwatch:
        return Stopwatch(warm_s, lambda: self.now_s, lambda: self.cpu_s)

    def pass_by(self, seconds: float, cpu_s: float) -> None:
        self.now_s += seconds
        self.cpu_s += cpu_s


def test_time_belongs_to_what_was_switched_to():
    hands = Hands()
    watch = hands.watch(warm_s=100.0)
    hands.pass_by(9.0, 9.0)
    watch.begin_round()
    for name, seconds, cpu_s in (
        ("policy", 1.0, 0.5),
        ("env.step", 2.0, 0.25),
        ("update", 4.0, 4.0),
        ("end", 0.0, 0.0),
    ):
        watch.switch(name)
        hands.pass_by(seconds, cpu_s)
    assert watch.spent == {
        "chunk": [1, 0.0, 0.0],
        "policy": [1, 1.0, 0.5],
        "env.step": [1, 2.0, 0.25],
        "update": [1, 4.0, 4.0],
    }
    assert watch.updates == [(4.0, 4.0)]
    assert watch.begun_s == 9.0


def test_counting_begins_anew_once_when_it_is_warm():
    hands = Hands()
    watch = hands.watch(warm_s=10.0)
    begun = []
    for _ in range(4):
        hands.pass_by(6.0, 6.0)
        watch.begin_round()
        watch.chunks += 1
        hands.pass_by(1.0, 1.0)
        watch.switch("update")
        begun.append((watch.begun_s, watch.chunks))
    assert begun == [(6.0, 1), (13.0, 1), (13.0, 2), (13.0, 3)]
    assert watch.spent["chunk"] == [3, 3.0, 3.0]
    assert len(watch.updates) == 3  # from the first on: what to leave out is decided by their number


def test_calls_are_noted_and_do_what_they_do(tmp_path):
    env = TimedCalls(tmp_path, alone=True)(Target(limit=3), 5)
    first, _ = env.reset(seed=3)
    assert np.array_equal(first, Target(limit=3).reset(seed=3)[0])
    ends = [env.step(np.zeros(1, np.float32))[3] for _ in range(3)]
    env.reset()
    env.close()
    assert ends == [False, False, True]
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["5"]
    found = calls_in(tmp_path, 0.0)
    assert (found["steps"], found["resets"], found["resets_again"]) == (3, 2, 1)
    assert 0.0 < found["median_s"] <= found["p99_s"] <= found["max_s"] <= found["step_s"][0]


def test_calls_of_an_environment_of_many_agents_are_noted(tmp_path):
    copy = TimedCalls(tmp_path, alone=False)(ParallelCopy(Comers(), "comers"), 0)
    there = copy.reset(0)
    copy.step(dict.fromkeys(there, 0))
    copy.close()
    found = calls_in(tmp_path, 0.0)
    assert (found["steps"], found["resets"], found["resets_again"]) == (1, 1, 0)


def test_calls_before_the_beginning_do_not_count(tmp_path):
    record = struct.Struct("=dddd")
    first = [(1.0, 9.0, 9.0, 1.0), (2.0, 9.0, 9.0, 0.0), (10.0, 0.25, 0.5, 0.0), (11.0, 1.0, 1.0, 1.0)]
    second = [(10.0, 3.0, 3.0, 1.0), (12.0, 0.75, 0.5, 0.0)]
    for name, calls in (("0-1.bin", first), ("1-1.bin", second), ("2-1.bin", [])):
        (tmp_path / name).write_bytes(b"".join(record.pack(*call) for call in calls) + b"cut")
    found = calls_in(tmp_path, 10.0)
    assert (found["steps"], found["step_s"], found["max_s"]) == (2, [1.0, 1.0], 0.75)
    assert (found["resets"], found["reset_s"], found["resets_again"]) == (2, [4.0, 4.0], 1)
    assert found["a_reset_s"] == [13 / 3, 13 / 3]
    assert found["binned"] == [[0.25, 0.75], [0.5, 0.5]]


def test_bins_keep_the_mean_and_the_tail():
    walls = np.concatenate([np.full(9_990, 1.0), np.full(10, 1001.0)])
    kept, cpus = binned(np.stack([walls, walls / 2], axis=1))
    assert len(kept) == len(cpus) == 512
    assert np.mean(kept) == pytest.approx(walls.mean(), rel=0.03)
    assert max(kept) > 400.0
    assert binned(np.zeros((0, 2))) == [[], []]


def figures(**changes):
    """Of eight groups' steps of two environments, which compute: nothing was in the way."""
    calls = {
        "steps": 16, "step_s": [1.6, 1.6], "resets": 2, "reset_s": [0.4, 0.4], "resets_again": 1, "a_reset_s": [0.2, 0.2],
        "binned": [[0.05, 0.15], [0.05, 0.15]], "median_s": 0.1, "p99_s": 0.15, "max_s": 0.15,
    }  # fmt: skip
    spent = {
        "chunk": [2, 0.5, 0.5], "policy": [8, 0.8, 0.8], "env.step": [16, 1.92, 1.92], "env.reset": [2, 0.48, 0.48],
        "commit": [2, 0.3, 0.3], "publish": [4, 1.0, 1.0], "update": [3, 7.0, 7.0],
    }  # fmt: skip
    return {
        "calls": calls | changes.pop("calls", {}), "spent": spent, "updates": [(1.0, 1.0), (3.0, 3.0)], "chunks": 2,
        "transitions": 16, "held": 0.0, "lasted_s": 12.0, "switch_s": 0.0, "noting_s": (0.0, 0.0), "workers": False,
    } | changes  # fmt: skip


def test_costs_of_what_computes():
    found = costs_of(figures(), copies=2)
    assert found.step_s == pytest.approx((0.05, 0.15))
    assert (found.step_cpu_s, found.waits) == (pytest.approx(0.1), 0.0)
    assert (found.reset_s, found.reset_cpu_s, found.resets_per_step) == pytest.approx((0.2, 0.2, 1 / 16))
    assert found.act_s == pytest.approx(0.1)  # eight times for two lanes
    assert found.row_s == pytest.approx((1.92 + 0.48 - 1.6 - 0.4) / 16)
    assert (found.chunk_s, found.commit_s, found.publish_s) == pytest.approx((0.25, 0.15, 0.25))
    assert (found.update_s, found.update_cpu_s) == pytest.approx((2.0, 2.0))


def test_what_was_spent_on_clocks_is_not_the_runs():
    """A switch takes 10 ms; to note a call 10 ms of the call and 20 ms beside it."""
    found = costs_of(figures(switch_s=0.01, noting_s=(0.01, 0.005)), copies=2)
    assert found.step_cpu_s == pytest.approx(0.1 - 0.01)
    assert found.act_s == pytest.approx(0.1 - 0.01)
    inside = 1.6 - 0.16 + 0.4 - 0.02
    assert found.row_s == pytest.approx((1.92 - 0.16 + 0.48 - 0.02 - inside - 18 * 0.005) / 16)


def test_waiting_for_a_core_is_not_the_runs():
    """For each second of computing half a second was spent waiting for a core: all took one and a half times as long."""
    slowed = figures(held=0.5, calls={"step_s": [2.4, 1.6], "binned": [[0.01, 0.29], [0.05, 0.15]]})
    slowed["spent"]["policy"] = [8, 1.2, 0.8]
    slowed["updates"] = [(1.5, 1.0), (4.5, 3.0)]
    found = costs_of(slowed, copies=2)
    assert (found.mean_step_s, found.act_s, found.update_s) == pytest.approx((0.1, 0.1, 2.0))
    assert found.step_s == pytest.approx((0.05, 0.15))  # as they computed


def test_steps_that_sleep_are_told_from_steps_that_were_held_up():
    sleeps = figures(held=0.5, calls={"step_s": [16.0, 1.6], "binned": [[0.5, 1.5], [0.05, 0.15]]})
    found = costs_of(sleeps, copies=2)
    assert found.mean_step_s == pytest.approx((16.0 - 0.8) / 16)
    assert found.step_s == pytest.approx((0.5 * 0.95, 1.5 * 0.95))
    assert found.waits == pytest.approx(1.0 - 0.1 / 0.95)


def test_calls_in_workers_are_not_taken_off_this_process():
    assert costs_of(figures(workers=True), copies=2).row_s == pytest.approx((1.92 + 0.48) / 16)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"calls": {"steps": 0}}, "environment step"),
        ({"chunks": 0}, "chunk"),
        ({"updates": []}, "update"),
    ],
)
def test_what_was_never_done_cannot_be_measured(changes, what):
    with pytest.raises(ConfigError) as refused:
        costs_of(figures(**changes), copies=2)
    steps = changes.get("calls", {}).get("steps", 16)
    assert str(refused.value) == (
        f"[CFG-001] the time was too short to measure anything: there was no {what}\n"
        f"  measured: 12.0 s, {steps} environment steps\n"
        "  fix: raise --seconds, or lower collect.chunk_steps or env.lanes, so that a round of chunks takes less"
    )
