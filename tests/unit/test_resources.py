"""What the parent tells its supervisor about each child."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

from headrace.core.config import DeadlinesConfig
from headrace.core.errors import ConfigError
from headrace.lanes.credits import Credit
from headrace.runtime.config import load_config
from headrace.runtime.payloads import Basics, EnvSpaces
from headrace.runtime.resources import Resources, child_specs
from headrace.telemetry.board import Activity

NOBODYS = {Activity.NONE, Activity.IDLE, Activity.STOP, Activity.WAIT_CHILD, Activity.WAIT_RESTART}
"""No child is busy with these: stopping has a limit of its own, and waiting for children, or to start one again, is the supervisor's."""
ELSEWHERE = {
    Activity.COMMAND, Activity.GENERATE, Activity.SCORE, Activity.WARM_START, Activity.WAIT_REQUESTS, Activity.WAIT_BATCH,
    Activity.WAIT_POLICY, Activity.WAIT_COMPLETIONS, Activity.WAIT_READY, Activity.WAIT_NEEDED, Activity.WAIT_PROGRESS,
}  # fmt: skip
"""Of runs of another kind: language models, and anybody's programs."""


def specs(resources: Resources | None = None, **settings: object):
    config = load_config("pendulum-td3", {key.replace("__", "."): value for key, value in settings.items()})
    return {
        spec.id: spec for spec in child_specs(Basics(config, Path("board")), resources or Resources(config), Path("c"))
    }


@pytest.mark.parametrize("child_id", ["probe", "learner", "collector-0", "evaluator"])
def test_every_activity_has_a_limit(child_id):
    limits = specs()[child_id].deadlines
    assert set(Activity) - NOBODYS - ELSEWHERE == set(limits)
    assert all(0 < limit_s < float("inf") for limit_s in limits.values())


OWN_TESTS = {"credit_s", "rows_s", "stall_s"}


@pytest.mark.parametrize("name", [name for name in DeadlinesConfig.model_fields if name not in OWN_TESTS])
def test_every_deadline_limits_something(name):
    usual, longer = specs()["evaluator"], specs(**{f"deadlines__{name}": 777.0})["evaluator"]
    changed = {activity for activity in Activity if usual.deadlines.get(activity) != longer.deadlines.get(activity)}
    assert changed


@pytest.mark.parametrize(
    ("settings", "credit_s", "rows_s"),
    [
        ({}, 150.0, 480.0),
        ({"deadlines__credit_s": 40.0}, 50.0, 240.0),
        ({"deadlines__credit_s": 80.0}, 100.0, 320.0),
        ({"deadlines__rows_s": 200.0}, 150.0, 400.0),
        ({"deadlines__wait_s": 1.0}, 150.0, 480.0),
        *(
            ({f"deadlines__{name}": 300.0}, 750.0, 2400.0)
            for name in ("commit_s", "update_s", "publish_s", "checkpoint_s")
        ),
        *(({f"deadlines__{name}": 300.0}, 150.0, 1200.0) for name in ("start_s", "reset_s", "step_s")),
    ],
)
def test_who_waits_is_called_frozen_only_after_it_should_have_given_up_itself(settings, credit_s, rows_s):
    limits = specs(**settings)["learner"].deadlines
    assert (limits[Activity.WAIT_CREDIT], limits[Activity.WAIT_ROWS]) == (credit_s, rows_s)


def test_only_collectors_are_expendable_and_only_if_asked_for():
    assert [spec.id for spec in specs().values() if spec.expendable] == []
    assert [spec.id for spec in specs(supervision__when_spent="degrade").values() if spec.expendable] == [
        "collector-0",
        "collector-1",
    ]


def test_a_replacement_is_not_given_groups_that_are_left_out():
    resources = Resources(load_config("pendulum-td3"))
    resources.spaces = EnvSpaces(spaces.Discrete(2), spaces.Discrete(2))
    resources.layout = object()  # type: ignore[assignment]
    resources.streams = [0] * 6
    payload = specs(resources)["collector-1"].payload
    assert payload(0).groups == (1, 3, 5)
    resources.left_out.add(3)
    assert payload(1).groups == (1, 5)


MANY = {
    "env.lanes": 4096, "collect.chunk_steps": 1, "replay.capacity": 40_000, "replay.learning_starts": 100,
    "run.collectors": 2,
}  # fmt: skip
BOX = EnvSpaces(spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-1.0, 1.0, (1,)))


def allocated(request: pytest.FixtureRequest, **settings: Any) -> Resources:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    resources = Resources(load_config("pendulum-td3", {**MANY, **given}))
    request.addfinalizer(resources.close)
    resources.allocate(BOX)
    return resources


@pytest.mark.parametrize(
    ("settings", "groups", "window"),
    [
        ({}, 2048, 2),
        ({"run__schedule": "lockstep", "run__collectors": 1}, 4096, 1),
        ({"env__group_size": 128, "run__collectors": 1}, 32, 2),
        ({"run__collectors": 3, "collect__window_chunks": 4}, 1366, 4),
    ],
    ids=["async", "lockstep", "large commits", "another window"],
)
def test_pipes_hold_all_that_may_be_in_flight_while_nobody_reads(request, settings, groups, window):
    resources = allocated(request, **settings)
    credit_pipe, commit_pipe = resources._pipes[0]
    for number in range(groups * (2 * window + 1)):  # of a collector that has died, of its successor, and of the end
        credit_pipe.put(Credit(0, number % groups, 0, 1, 1, stop=False).pack())
    for _ in range(groups * (window + 2)):
        commit_pipe.put(bytes(commit_pipe.message_bytes))


def test_more_groups_than_pipes_can_carry_are_refused_before_anything_starts(request, monkeypatch):
    control = fcntl.fcntl

    def refuse(fd: int, command: int, size: int = 0) -> int:
        if command == fcntl.F_SETPIPE_SZ and size > 2**16:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return control(fd, command, size)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    allocated(request, run__collectors=16)
    with pytest.raises(ConfigError) as caught:
        allocated(request, run__collectors=4)
    assert str(caught.value) == (
        "[CFG-001] the collectors have more groups than their pipes to the learner can carry the messages of: "
        "Operation not permitted\n"
        "  groups of a collector: 1,024 (4,096 lanes in groups of 1, 4 collectors)\n"
        "  messages in flight: 5,120 of 40 bytes (2 chunks ahead in each group)\n"
        "  needed bytes: 212992\n"
        "  fix: raise env.group_size or run.collectors, lower env.lanes or collect.window_chunks, or raise "
        "/proc/sys/fs/pipe-max-size and /proc/sys/fs/pipe-user-pages-soft"
    )


def test_a_learner_in_another_s_place_is_told_that_the_record_has_ended():
    resources = Resources(load_config("pendulum-td3"))
    resources.spaces = EnvSpaces(spaces.Discrete(2), spaces.Discrete(2))
    payload = specs(resources)["learner"].payload
    assert payload(0).record_lost is None
    resources.record_lost = "OSError: no space"
    assert payload(1).record_lost == "OSError: no space"
