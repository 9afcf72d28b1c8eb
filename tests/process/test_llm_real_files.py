"""Files of other runs, other directories, full disks: real components, one thing wrong with what they share."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace

import pytest

from headrace.core.errors import RunDirectoryError
from headrace.llm.launch.starting import resume
from headrace.llm.sums import sealed, unsealed
from headrace.llm.transport import batch_path, write_batch
from headrace.llm.weights import MANIFEST
from llm_real_support import real, real_server
from llm_training_support import batch

__all__ = ["real", "real_server"]

pytestmark = [pytest.mark.process, pytest.mark.table]


@pytest.mark.parametrize("step", [0, 1])
def test_a_sound_batch_of_another_run_is_refused_and_stays(real, step):
    """The batch that is next, or a later one; whichever of orchestrator and trainer looks first."""
    planted = batch_path(real.path / "rollouts", step)

    def plant(line):
        if line.text == "inference is ready":  # neither of the two is started before this was handled
            planted.parent.mkdir(exist_ok=True)
            write_batch(planted, replace(batch(step), run_id="another"))

    summary = real(plant)
    assert summary["outcome"] == "failed"
    assert summary["exit_code"] == 2
    assert planted.name in summary["error"]
    assert "of another run" in summary["error"]
    assert planted.exists()


def test_weights_of_another_run_are_refused_and_stay(real):
    def plant(line):
        if line.component == "trainer" and line.text.startswith("Step 1/"):
            other = real.path / "weights" / "9"
            shutil.copytree(real.path / "weights" / "0", real.path / "other")
            manifest = real.path / "other" / MANIFEST
            facts = unsealed(manifest.read_bytes())
            manifest.write_bytes(sealed({**facts, "run_id": "0" * len(facts["run_id"])}))
            (real.path / "other").rename(other)

    summary = real(plant, run__steps=50)
    assert (summary["outcome"], summary["exit_code"]) == ("failed", 2)
    assert summary["culprit"] in {"orchestrator", "trainer"}
    assert str(real.path / "weights" / "9") in summary["error"]
    assert (real.path / "weights" / "9" / MANIFEST).exists()


def test_batches_in_another_directory_are_missed_and_both_sides_are_told(real):
    summary = real(
        targets={"orchestrator": "llm_fault_servers:ships_elsewhere"}, deadlines__batch_s=1.0, deadlines__evaluate_s=0.9
    )
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("stalled", 3, "orchestrator")
    assert "none of them can go on" in summary["error"]
    assert f"\n  expected: {batch_path(real.path / 'rollouts', 0)}\n  found: no batch\n" in summary["error"]


@pytest.mark.parametrize(
    ("component", "target", "what"),
    [
        ("orchestrator", "ships_onto_a_full_disk", "batch 0 cannot be written"),
        ("trainer", "publishes_onto_a_full_disk", "version 1 of the weights cannot be written"),
    ],
)
def test_a_full_disk_is_named_by_who_writes_and_leaves_nothing_half(real, component, target, what):
    summary = real(targets={component: f"llm_fault_servers:{target}"})
    assert (summary["outcome"], summary["exit_code"], summary["culprit"]) == ("failed", 2, component)
    assert summary["error"].startswith(f"[CFG-002] {what}")
    assert "No space left on device" in summary["error"]
    assert [path.name for path in (real.path / "weights").iterdir()] == ["0"]
    assert summary["books"]["balanced"]


@pytest.mark.parametrize("component", ["inference", "trainer"])
def test_a_device_that_is_not_there_ends_the_run_by_name(real, component):
    summary = real(**{f"{component}__device": "cuda:77"})
    assert (summary["outcome"], summary["steps"]) == ("failed", 0)
    assert summary["culprit"] in {component, "warm-start"}  # which tunes on the trainer's
    assert "CUDA" in summary["error"]


def test_a_checkpoint_that_is_damaged_is_named_and_nothing_begins_from_nothing(real):
    def interrupt(line):
        if line.component == "trainer" and line.text.startswith("Step 2/"):
            os.kill(os.getpid(), signal.SIGINT)

    real(interrupt, run__steps=4)
    (checkpoint,) = (real.path / "checkpoints").iterdir()
    state = checkpoint / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-9])
    with pytest.raises(RunDirectoryError, match="no checkpoint that is sound") as raised:
        resume(real.path, None)
    assert f"{state.name}: ValueError: it has 9 bytes too few" in str(raised.value)
    assert state.exists()
