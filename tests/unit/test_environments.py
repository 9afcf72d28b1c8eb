"""What follows when an environment that a worker steps is lost: told, kept, counted, and at last not replaced."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from headrace.core import seeding
from headrace.core.errors import EnvironmentFault, EnvironmentLost, EnvironmentRaised, ObservationMismatch
from headrace.core.specs import Leaf
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import Geometry
from headrace.runtime.config import load_config
from headrace.runtime.environments import FaultDesk
from headrace.runtime.payloads import Basics
from headrace.supervision.messages import Report
from headrace.testing.reproduce import Outcome, read_reproducer
from headrace.vector.faults import FaultKind, from_exception

LANE, STEPS = 2, 3


class Bench:
    """Lane 2 of four has made three steps of its first episode, and was asked for a fourth."""

    def __init__(self, folder: Path, clock, **settings) -> None:
        config = load_config(
            None,
            {
                "env.id": "Pendulum-v1", "env.lanes": 4, "env.workers": 2, "run.seed": 5, "run.collectors": 1,
                **{key.replace("__", "."): value for key, value in settings.items()},
            },
        )  # fmt: skip
        leaf = np.dtype(np.float32)
        geometry = Geometry(4, 64, (Leaf("obs", leaf, (1,)),), (Leaf("action", leaf, (1,)),), 4, 2)
        block = LaneBlock(geometry, memoryview(bytearray(geometry.nbytes)))
        block.begin()
        self.writer = LaneWriter(block, LANE)
        self.writer.begin_episode([np.zeros(1, np.float32)])
        for step in range(STEPS):
            self.writer.step([np.full(1, step, np.float32)], 0.0, (False, False), [np.zeros(1, np.float32)], 1)
        self.writer.intend([np.full(1, STEPS, np.float32)])
        self.told: list[Report] = []
        basics = Basics(config, folder / "board")
        self.desk = FaultDesk(basics, "collector-0", dict.fromkeys(range(4), 7), block, self.told.append, clock)


@pytest.fixture
def bench(tmp_path, clock):
    return lambda **settings: Bench(tmp_path, clock, **settings)


def lost(kind="hung", call="step", lane=LANE, **facts) -> EnvironmentLost:
    place = {"lane": lane, "step": STEPS + (call == "step"), "call": call}
    return EnvironmentLost(
        "it was lost", kind=kind, problem="it has been inside step() for 31 s", **place, **facts, fix="mend it"
    )


def test_a_loss_is_told_with_all_that_is_known(bench):
    b = bench()
    b.desk(lost())
    (report,) = b.told
    assert report.kind == "environment_lost"
    assert report.facts == {
        "how": "hung", "lane": LANE, "call": "step", "step": STEPS + 1, "problem": "it has been inside step() for 31 s",
        "error": str(lost()), "cut": STEPS, "faults": 1, "allowed": 5, "replaced": True,
        "file": "reproducers/collector-0-lane-2-7.1.json",
    }  # fmt: skip


def test_what_led_to_it_is_kept(bench, tmp_path):
    b = bench()
    b.desk(lost())
    found = read_reproducer(tmp_path / "reproducers" / "collector-0-lane-2-7.1.json")
    assert (found.kind, found.call, found.lane, found.episode, found.complete) == ("hang", "step", LANE, 0, True)
    assert found.actions == {"action": [[0.0], [1.0], [2.0], [3.0]]}
    assert found.seed == seeding.integer(5, "environment", LANE, 0)
    assert found.construct_seed == seeding.integer(5, "construct-global", LANE, 7)
    assert (found.global_seeds, found.exact) == ([], False)


@pytest.mark.parametrize(
    ("kind", "facts", "kept"),
    [
        ("died", {"exit_code": -11}, ("signal", -11)), ("died", {"exit_code": 3}, ("exit", 3)),
        ("raised", {}, ("raised", 0)), ("contract", {}, None), ("not-finite", {}, None), ("lost-with-worker", {}, None),
    ],
)  # fmt: skip
def test_only_what_may_come_again_is_kept(bench, tmp_path, kind, facts, kept):
    b = bench()
    b.desk(lost(kind, **facts))
    files = list(tmp_path.glob("reproducers/*.json"))
    assert (b.told[0].facts["file"] is None) == (kept is None) == (not files)
    if kept is not None:
        found = json.loads(files[0].read_text())
        assert (found["kind"], found["exit_code"], found["error"]) == (*kept, None)


@pytest.mark.parametrize(
    ("exception", "text"), [(ValueError("tile 7"), "ValueError: tile 7"), (KeyError(), "KeyError")]
)
def test_what_a_worker_raised_is_kept_in_its_own_words(bench, tmp_path, exception, text):
    b = bench()
    b.desk(lost("raised", **from_exception(exception, "step").error.facts))
    assert read_reproducer(tmp_path / "reproducers" / "collector-0-lane-2-7.1.json").error == text


def test_a_factory_that_raised_comes_again_where_it_is_built(bench, tmp_path):
    b = bench()
    b.desk(lost("raised", "reset", **from_exception(OSError("no seat left"), "construct").error.facts))
    found = read_reproducer(tmp_path / "reproducers" / "collector-0-lane-2-7.1.json")
    assert (found.call, found.steps, found.complete) == ("construct", 0, True)
    assert Outcome("raised", -2, "EnvironmentNotBuilt: no seat left").same_as(found)
    assert b.told[0].facts["cut"] is None  # no episode was running


@pytest.mark.parametrize("page", ["errors.md", "guides/when-something-dies.md"])
def test_the_documents_say_which_kinds_leave_a_file(bench, page):
    b = bench(supervision__max_restarts=100)
    for kind in FaultKind:
        b.desk(lost(kind))
    kept = {str(report.facts["how"]) for report in b.told if report.facts["file"] is not None}
    text = " ".join((Path(__file__).parents[2] / "docs" / page).read_text().split())
    (named,) = re.findall(r"that ([\w, ]+) leaves? a file in `reproducers/`", text)
    assert set(re.split(", | or ", named)) == kept


def test_the_first_losses_of_a_lane_are_kept_and_a_reset_has_no_episode(bench, tmp_path):
    b = bench(supervision__max_restarts=100)
    for _ in range(12):
        b.desk(lost(call="reset"))
    assert len(list(tmp_path.glob("reproducers/*.json"))) == 8
    assert {report.facts["cut"] for report in b.told} == {None}
    assert [report.facts["file"] is None for report in b.told] == [False] * 8 + [True] * 4


def test_more_than_it_may_ends_the_collector_and_says_how_often(bench, clock):
    b = bench(supervision__max_restarts=2, supervision__restart_window_s=10.0)
    for _ in range(2):
        b.desk(lost())
    clock.advance(11.0)
    for _ in range(2):
        b.desk(lost())  # the first two are forgiven
    b.desk(lost(lane=1, call="reset"))  # and what another lane does is its own
    with pytest.raises(EnvironmentLost) as caught:
        b.desk(lost())
    assert str(caught.value) == (
        "[ENV-006] the environment of lane 2 failed 3 times within 10 s, and is not replaced again\n"
        "  last time: it was lost\n"
        "  kind: hung\n"
        "  problem: it has been inside step() for 31 s\n"
        "  lane: 2\n"
        "  step: 4\n"
        "  call: step\n"
        "  fix: mend it"
    )
    assert [report.facts["replaced"] for report in b.told] == [True] * 5 + [False]


def test_lanes_that_may_be_left_out_are_allowed_as_many_faults_as_that_takes(bench):
    b = bench(supervision__when_spent="degrade", supervision__lane_faults=2)
    b.desk(lost())
    with pytest.raises(EnvironmentLost, match="failed 2 times"):
        b.desk(lost())


def test_whoever_was_lost_with_another_ones_process_is_not_to_blame(bench):
    b = bench(supervision__max_restarts=0)
    for _ in range(3):
        b.desk(lost("lost-with-worker"))
    assert [report.facts["faults"] for report in b.told] == [0, 0, 0]


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (lost("raised"), EnvironmentRaised), (lost("contract"), EnvironmentLost), (lost("not-finite"), EnvironmentLost),
        (ObservationMismatch("obs does not fit", lane=LANE, step=4, call="step", fix="mend it"), ObservationMismatch),
        (lost("hung"), None), (lost("died"), None), (lost("lost-with-worker"), None),
    ],
)  # fmt: skip
def test_an_environment_that_comes_back_wrong_may_end_its_collector_as_without_workers(bench, error, ends):
    b = bench(env__on_fault="raise")
    if ends is None:
        b.desk(error)
        assert len(b.told) == 1
        return
    with pytest.raises(EnvironmentFault) as caught:
        b.desk(error)
    assert type(caught.value) is ends
    assert caught.value.facts["lane"] == LANE
    assert not b.told


def test_a_disk_that_takes_no_reproducer_does_not_hinder_anything(bench, tmp_path):
    (tmp_path / "reproducers").write_text("in the way")
    b = bench()
    b.desk(lost())
    assert b.told[0].facts["file"] is None
