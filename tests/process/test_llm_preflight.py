"""`headrace check` with the processes it starts."""

from __future__ import annotations

import os
import re
import select
import sys
from pathlib import Path

import pytest

from headrace.ipc.channel import poll_fds
from headrace.llm.finding import Verdict
from headrace.llm.loading import load_rl_config
from headrace.llm.preflight import check
from llm_stand_ins import TARGETS

pytestmark = pytest.mark.process


def found_by(folder, **settings):
    config = load_rl_config([], {name.replace("__", "."): value for name, value in settings.items()})
    found = check(config, folder / "runs" / "mine", lambda _: None, targets=TARGETS, available_bytes=10**12)
    assert [path.name for path in folder.iterdir()] == []  # what was tried is gone, and where it was
    return {one.name: one for one in found}


@pytest.mark.table
def test_a_run_that_can_be_started(tmp_path):
    found = found_by(tmp_path, env__kwargs={})
    assert list(found) == [
        "configuration", "model", "port", "threads", "memory", "disk", "folder", "environment", "texts", "one step",
    ]  # fmt: skip
    assert {one.verdict for one in found.values()} <= {Verdict.OK, Verdict.WARNING}
    assert found["one step"].text.startswith("all components made one step of 8 rollouts in ")


def test_an_environment_that_is_not_there_is_named_and_nothing_is_run(tmp_path):
    found = found_by(tmp_path, env__factory="no_such_package:make")
    assert found["environment"].verdict is Verdict.FAILED
    assert "no_such_package" in found["environment"].text
    assert found["folder"].verdict is Verdict.OK
    assert "one step" not in found


@pytest.mark.table
def test_a_reward_that_hangs_is_given_up_and_where_it_stood_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    marker = tmp_path / "pid"
    (tmp_path / "work").mkdir()
    found = found_by(
        tmp_path / "work",
        env__factory="llm_fault_envs:make_with_a_helper",
        env__kwargs={"marker": str(marker), "fault": "hang", "at": 1},
        deadlines__env_s=3.0,
    )
    problem = r"reward of llm_fault_envs:make_with_a_helper for problem \S+"
    text = found["environment"].text
    assert re.fullmatch(problem + r" did not come back within 3 s; stuck in: channel\.py:\d+ in poll_fds", text), text
    assert found["environment"].fix.endswith("or raise deadlines.env_s")
    assert found["folder"].verdict is Verdict.OK
    assert "one step" not in found
    assert gone(int(marker.read_text()))  # what the environment had started


def test_a_reward_that_ends_the_process_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    found = found_by(tmp_path, env__factory="llm_fault_envs:make", env__kwargs={"fault": "leave", "at": 1})
    text = found["environment"].text
    assert text.startswith("reward of llm_fault_envs:make for problem ")
    assert text.endswith(" ended the interpreter that tried it, with exit code 0")


def gone(pid):
    """Whether a process ends, or has ended."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(poll_fds({watch: select.POLLIN}, 10.0))
    finally:
        os.close(watch)
