"""The Modal example pre-empts and goes on, with a folder for the volume and something in Modal's place."""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from pathlib import Path

import pytest

from modal_support import modal_example

__all__ = ["modal_example"]

pytestmark = [pytest.mark.process, pytest.mark.table]

CONFIG = """
[run]
steps = 40
[model]
hidden = 16
layers = 2
heads = 2
context_tokens = 80
[env]
name = "wordle"
[env.kwargs]
letters = 3
[orchestrator]
groups_per_step = 3
group_size = 4
[orchestrator.filter]
zero_advantage = false
[evaluation]
every_steps = 0
problems = 1
"""


def summary(volume: Path) -> dict[str, object]:
    return dict(json.loads((volume / "one" / "summary.json").read_text()))


@pytest.mark.timeout(600)
def test_a_run_that_is_preempted_goes_on_from_the_volume_alone(
    modal_example: types.ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    volume, work = modal_example.VOLUME, modal_example.WORK = tmp_path / "volume", tmp_path / "work"
    volume.mkdir()
    modal_example.MIRROR_S, modal_example.LEAVE_S = 0.1, 100.0

    class Preempted(modal_example.Training):  # type: ignore[name-defined, misc]
        told = False

        def _keep(self) -> None:
            super()._keep()
            if not self.told and (self.run / "weights" / "3").exists():
                self.told = True
                self.leave()  # as Modal does when it takes the machine away

    with pytest.raises(RuntimeError, match="headrace ended with 130"):
        Preempted().train("one", "of the text", CONFIG)
    assert summary(volume)["outcome"] == "interrupted"
    assert not list(volume.rglob("lock"))
    shutil.rmtree(work)

    assert modal_example.Training().train("one", "of the text", CONFIG) == 0
    found = summary(volume)
    assert (found["outcome"], found["steps"], found["sessions"]) == ("completed", 40, 2)
    assert modal_example.Training().train("one", "of the text", CONFIG) == 0  # complete: nothing is run
    assert summary(volume) == found
