"""Sides of `headrace bench` in real processes: who is missing, who fails, who is left, and one real run of our own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import bench_sides
from headrace.benchmarks import learners
from headrace.benchmarks.processes import SideFailedError, SideMissingError, SideProcess, opened
from headrace.benchmarks.sides import PLAIN
from headrace.cli.main import main

pytestmark = pytest.mark.process

PYTHON = Path(sys.executable)
TESTS = Path(bench_sides.__file__).parent


@pytest.fixture(autouse=True)
def _sides_are_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))


def test_a_side_answers_in_turns_whatever_it_prints_and_knows_nothing_of_the_rest():
    with opened([PYTHON], bench_sides.request("slow"), threads=1) as side:
        assert side.version == "1.2"
        told = [side.ask({"seconds": 0.0}, 30.0) for _ in range(3)]
    assert [one["rate"] for one in told] == [1.0, 2.0, 3.0]
    assert not told[0]["torch"]
    assert told[2]["since_start_s"] > told[0]["since_start_s"] > 0


def test_what_a_peer_spawns_can_import_what_it_can():
    """Found with Sample Factory, which waits for ever for such a process that cannot."""
    with opened([PYTHON], bench_sides.request("spawns"), threads=1) as side:
        assert side.ask({}, 60.0)["installed"] is False


def test_a_peer_that_is_not_installed_is_named_with_what_brings_it():
    request = bench_sides.request("needs a peer") | {"remedy": "pip install 'headrace[peers]'"}
    with pytest.raises(SideMissingError) as missing, opened([PYTHON, PYTHON], request):
        pass
    assert str(missing.value) == (
        "no_such_peer is not installed: pip install 'headrace[peers]'; or name an environment that has it with --peers DIR"
    )


def test_a_side_that_cannot_be_built_is_told_in_its_own_words():
    with (
        pytest.raises(SideFailedError, match=r"^RuntimeError: it cannot be built$"),
        opened([PYTHON], bench_sides.request("breaks")),
    ):
        pass


def test_a_side_that_never_answers_is_given_up_and_ended():
    with (
        opened([PYTHON], bench_sides.request("never answers")) as side,
        pytest.raises(SideFailedError, match=r"^not done after 0\.05 s$"),
    ):
        side.ask({}, 0.05)


def test_an_interpreter_that_is_none_is_told(tmp_path):
    with pytest.raises(SideFailedError, match=r"cannot be run"):
        SideProcess(tmp_path / "python", bench_sides.request("slow"))


def test_whoever_asks_may_die_and_no_side_stays():
    asking = subprocess.Popen([PYTHON, bench_sides.__file__], stdout=subprocess.PIPE, text=True)
    with asking:
        assert asking.stdout is not None
        ended = os.pidfd_open(int(asking.stdout.readline()))
        try:
            asking.kill()
            assert select.select([ended], [], [], 30.0)[0], "the side is left"
        finally:
            os.close(ended)


def test_who_fails_has_no_figures_and_the_others_go_on(monkeypatch):
    names = ("fast", "dies later", "needs a peer", "slow")
    sides = [
        learners.Side(name, "bench_sides", ours=name == "fast", further={"precision": "float32"}) for name in names
    ]
    monkeypatch.setattr(learners, "sides_of", lambda *_: sides)
    comparison = learners.Comparison([PYTHON], 2, 0.01, lambda text: None)
    (row,) = comparison.rows("td3", 1)
    assert (row.peer, row.ratio) == ("slow", 2.0)
    assert comparison.absent["dies later, td3"] == "chatter that is no answer"
    assert comparison.absent["needs a peer, td3"].startswith("no_such_peer is not installed")


@pytest.mark.table
@pytest.mark.parametrize("work", ["td3", "dqn", "ppo"])
def test_our_own_learner_beside_plain_torch(work, monkeypatch, capsys, tmp_path):
    mine = [side for side in learners.sides_of(work) if side.name in (learners.OURS, PLAIN)]
    monkeypatch.setattr(learners, "sides_of", lambda *_: mine)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["bench", "learners", work, "--rounds", "1", "--seconds", "0.2", "--json"])
    assert left.value.code == 0
    told = json.loads(capsys.readouterr().out)
    (row,) = told["rows"]
    assert row["name"] == f"{work}, headrace, 1 thread"
    assert row["peer"] == PLAIN
    assert row["ours"] > 0
    assert row["theirs"] > 0
    assert told["machine"]["absent"] == {}


@pytest.mark.table
def test_a_training_of_ours_from_its_start(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["bench", "end-to-end", "cartpole-ppo", "--side", "inline", "--side", PLAIN, "--seeds", "1", "--steps", "512", "--json", "figures.json"])  # fmt: skip
    assert left.value.code == 0
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert {row["unit"]: row["ours"] for row in rows}["steps"] == 512
    assert "inline reached it 0 of 1 times" in capsys.readouterr().out
