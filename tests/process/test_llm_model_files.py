"""A run's ``model/`` of which a file is another one, though it can be read: whoever would go on with it refuses it by name."""

from __future__ import annotations

import shutil

import pytest

from headrace.core.errors import RunDirectoryError
from headrace.llm import modelfiles, weights
from headrace.llm.engine.building import build_engine
from headrace.llm.evaluating import evaluate_run
from headrace.llm.launch.launcher import launch
from headrace.llm.launch.place import LanguageRun
from headrace.llm.launch.starting import begin, resume
from headrace.llm.loading import load_rl_config
from headrace.llm.orchestrating import Parts
from headrace.llm.payloads import Basics
from llm_real_support import SMALL, real, real_server

__all__ = ["real", "real_server"]

pytestmark = [pytest.mark.process, pytest.mark.table]


def test_a_model_that_was_changed_is_refused_wherever_it_is_loaded(real, tmp_path):
    summary = real(run__schedule="inline", run__steps=1, orchestrator__max_policy_lag=0)
    assert summary["outcome"] == "completed", summary["error"]
    run, run_id = real.path, summary["run_id"]
    place = LanguageRun.open(run)
    config = load_rl_config([], {**SMALL, "run.schedule": "inline", "run.steps": 2, "orchestrator.max_policy_lag": 0})
    newest = weights.look(run / "weights" / "1", run_id)
    files = sorted(file for file in (run / "model").rglob("*") if file.is_file())
    assert {"config.json", "tokenizer.json"} <= {file.name for file in files}
    for file in files:
        sound = file.read_bytes()
        for damaged in (sound.replace(b"e", b"f", 1), None):
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            for go_on in (
                lambda: resume(run, config),
                lambda: evaluate_run(place, None, None),
                lambda: build_engine(config, place.model_dir, newest),
                lambda: Parts(Basics(config=config, run=run, run_id=run_id), None),
            ):
                with pytest.raises(RunDirectoryError) as caught:
                    go_on()
                assert str(file.relative_to(run / "model")) in str(caught.value)
        file.write_bytes(sound)
    (run / "model" / "notes.txt").write_text("mine")
    with resume(run, config).place:
        pass
    another = load_rl_config([], {**SMALL, "sft.checkpoint": str(run)})
    (run / "model" / "tokenizer.json").write_bytes((run / "model" / "tokenizer.json").read_bytes() + b" ")
    what = begin(another, tmp_path / "another", "x")
    with what.place:
        refused = launch(what)
    assert (refused["outcome"], refused["culprit"]) == ("failed", "warm-start")
    assert "tokenizer.json" in refused["error"]


def test_a_run_that_wrote_no_sums_down_goes_on(real):
    summary = real(run__schedule="inline", run__steps=1, orchestrator__max_policy_lag=0)
    first = real.path / "weights" / "0"
    published, tensors = weights.read(first, summary["run_id"])
    metadata = weights.metadata_of(first, published.run_id)
    assert metadata.pop(modelfiles.KEY)
    shutil.rmtree(first)
    weights.publish(
        tensors, version=0, weights_dir=first.parent, run_id=published.run_id, probe=published.probe, metadata=metadata
    )
    (real.path / "model" / "config.json").write_bytes((real.path / "model" / "config.json").read_bytes() + b" ")
    config = load_rl_config([], {**SMALL, "run.schedule": "inline", "run.steps": 2, "orchestrator.max_policy_lag": 0})
    with resume(real.path, config).place:
        pass
