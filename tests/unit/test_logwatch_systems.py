"""The logs of the five systems that Headrace replaces, in small: each gets the sentence that would have helped."""

from __future__ import annotations

import pytest

from headrace.monitor.logfindings import Severity, WatchLimits
from headrace.monitor.logwatch import LogWatch, date_lines

HOCKEY = [
    f"2025-03-01 12:{i // 60:02d}:{i % 60:02d} [INFO] Episode {i * 50}: train=0, buffer={min(1366, i * 400)},"
    f" reward={-3.0 - (i * 7 % 5):.2f}, 244.0 ep/s"
    for i in range(51)
]
TREASURE_HUNT = [
    "Starting multiprocessing experiment with 5 agents",
    *(f"Epoch: {i}, loss: 0.0, reward: {i % 7 - 3}, epsilon: {1 - i / 100:.2f}" for i in range(30)),
    "Error in actor process: unable to resize file </torch_4123_0> to the right size",
    "Experiment completed!",
]
FUEL_BREAK_MADE_UP = [
    f"[MetaEp {i}] steps=20 eps={1 - i / 200:.3f} loss=0.0{i % 9 + 1} ep_reward=-1.000 step_reward=-0.05"
    " burned_area=1000.0"
    for i in range(1, 31)
]
FUEL_BREAK_FROZEN = [
    *(
        f"[MetaEp {i}] steps=20 eps=0.9 loss=0.0{i} ep_reward=-0.{i} step_reward=-0.05 burned_area=13{i}.0"
        for i in range(9)
    ),
    *(f"WARNING env {i} step timed out after 8.0 s, using dummy data" for i in (3, 17, 60)),
    "gymnasium.error.AlreadyPendingCallError: Calling `close` while waiting for a pending call to `step` to complete.",
]
WORDLE = [
    "12:00:01    INFO Startup complete. Showing trainer logs...",
    "12:00:02    INFO Starting training loop (max_steps=100)",
    "12:00:02    INFO Waiting for training batch to arrive",
]
CAGE2 = [
    *(f"Update {i} | Episodes {i * 25} | Env reward {-820 + i} | Compliance 0.{50 + i} | 1.1 eps/s" for i in range(25)),
    *("Worker 7 error: BrokenPipeError: [Errno 32] Broken pipe" for _ in range(3)),
]


def watched(lines, idle_s=0.0, every_s=1.0):
    """A watch that has seen these lines, one each ``every_s``, and is asked ``idle_s`` after the last."""
    log = LogWatch(WatchLimits(), 0.0)
    for i, line in enumerate(lines):
        log.feed(line, i * every_s)
    return {found.kind: found for found in log.findings((len(lines) - 1) * every_s + idle_s)}


def test_hockey_names_the_trainer_that_never_began_and_the_buffer_that_does_not_fill():
    found = watched(HOCKEY)
    assert set(found) == {"not-training"}
    assert found["not-training"].sentence == (
        "train=0 in the last 51 readings while Episode went from 0 to 2,500: training has never begun;"
        " buffer stands at 1,366"
    )
    assert found["not-training"].severity is Severity.ERROR
    assert "look at whatever moves rows from the collectors' queue into the buffer" in found["not-training"].remedy


def test_hockey_with_a_trainer_that_works_is_left_alone():
    assert watched([line.replace("train=0", f"train={i}") for i, line in enumerate(HOCKEY)]) == {}


def test_hockey_with_a_trainer_that_stops():
    lines = [line.replace("train=0", f"train={min(i, 10) * 40}") for i, line in enumerate(HOCKEY)]
    assert watched(lines)["not-training"].sentence.startswith(
        "train=400 in the last 41 readings while Episode went from 500 to 2,500: training has stopped"
    )


def test_treasure_hunt_completed_after_an_error_with_a_loss_nobody_computed():
    found = watched(TREASURE_HUNT)
    assert set(found) == {"constant", "error", "finished-after-error"}
    assert found["constant"].sentence == "loss is exactly 0 in all 30 readings"
    assert found["finished-after-error"].sentence == (
        'the log says "Experiment completed!" in line 33, but an error came before it, in line 32: "Error in actor'
        ' process: unable to resize file </torch_4123_0> to the right size"'
    )


def test_fuel_break_rewards_that_were_made_up():
    log = LogWatch(WatchLimits(), 0.0)
    for i, line in enumerate(FUEL_BREAK_MADE_UP):
        log.feed(line, float(i))
    assert {found.subject: found.sentence for found in log.findings(30.0)} == {
        "ep_reward": "ep_reward is exactly -1 in all 30 readings",
        "step_reward": "step_reward is exactly -0.05 in all 30 readings",
        "burned_area": "burned_area is exactly 1,000 in all 30 readings",
    }
    assert "stand-in environment" in log.findings(30.0)[0].remedy


def test_fuel_break_time_outs_then_silence():
    found = watched(FUEL_BREAK_FROZEN, idle_s=95.0)
    assert set(found) == {"repeated-time-out", "error", "silence"}
    assert found["repeated-time-out"].sentence == (
        'time-out 3 times in 2.0 s (lines 10 to 12): "WARNING env 3 step timed out after 8.0 s, using dummy data"'
    )
    assert found["silence"].sentence == (
        "no new line for 95 s (limit 60 s, usual gap 1.0 s); the last one:"
        ' "gymnasium.error.AlreadyPendingCallError: Calling `close` while waiting for a pending call to `step` to'
        ' complete."'
    )


def test_wordle_waits_for_a_batch_that_never_comes():
    found = watched(WORDLE, idle_s=312.0)
    assert set(found) == {"silence"}
    assert found["silence"].sentence == (
        'no new line for 5 min (limit 60 s); the last one: "12:00:02 INFO Waiting for training batch to arrive"'
    )
    assert found["silence"].remedy.startswith("look at the one that is waited for, not at the one that waits")


def test_cage2_worker_errors_are_counted():
    found = watched(CAGE2)
    assert set(found) == {"repeated-error"}
    assert found["repeated-error"].sentence == (
        'error 3 times in 2.0 s (lines 26 to 28): "Worker 7 error: BrokenPipeError: [Errno 32] Broken pipe"'
    )


@pytest.mark.parametrize("lines", [HOCKEY, WORDLE])
def test_lines_are_dated_by_their_own_times(lines):
    moments = date_lines(lines, 1000.0)
    assert moments[-1] == 1000.0
    assert moments[0] == 1000.0 - (50.0 if lines is HOCKEY else 1.0)
