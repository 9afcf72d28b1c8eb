"""What the parent tells its supervisor about each child."""

from __future__ import annotations

from pathlib import Path

import pytest
from gymnasium import spaces

from headrace.core.config import DeadlinesConfig
from headrace.runtime.config import load_config
from headrace.runtime.payloads import Basics, EnvSpaces
from headrace.runtime.resources import Resources, child_specs
from headrace.telemetry.board import Activity

NOBODYS = {Activity.NONE, Activity.IDLE, Activity.STOP, Activity.WAIT_CHILD}
"""No child is busy with these: stopping has a limit of its own, and waiting for children is the supervisor's."""
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
    [({}, 150.0, 480.0), ({"deadlines__credit_s": 40.0}, 50.0, 160.0), ({"deadlines__rows_s": 200.0}, 150.0, 400.0)],
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
