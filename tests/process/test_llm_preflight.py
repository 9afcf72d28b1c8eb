"""`headrace check` with the processes it starts."""

from __future__ import annotations

import pytest

from headrace.llm.finding import Verdict
from headrace.llm.loading import load_rl_config
from headrace.llm.preflight import check
from llm_stand_ins import TARGETS

pytestmark = pytest.mark.process


def found_by(folder, **settings):
    config = load_rl_config([], {name.replace("__", "."): value for name, value in settings.items()})
    found = check(config, folder, lambda _: None, targets=TARGETS)
    assert [path.name for path in folder.iterdir()] == []  # what was tried is gone
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
