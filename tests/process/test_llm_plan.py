"""`headrace plan` of a language-model configuration: real short runs of one process and of three."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.ipc.forkserver import ForkServer
from headrace.llm.comparing import PARTS, TOGETHER, WAITING
from headrace.llm.launch import launcher
from run_support import LentServer

pytestmark = [pytest.mark.process, pytest.mark.table]

CONFIG = """
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
max_policy_lag = 1
[orchestrator.filter]
zero_advantage = false
[inference]
slots = 8
[sft]
steps = 2
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has imported every process, transformers with them."""
    log = tmp_path_factory.mktemp("forkserver") / "forkserver.log"
    processes = ("warmstart", "serving", "trainer", "orchestrating", "twin")
    preload = (*(f"headrace.llm.{name}" for name in processes), "transformers.models.llama.modeling_llama")
    limits = {"start_timeout_s": 100.0, "spawn_timeout_s": 100.0}  # it imports for long where others compute
    with ForkServer(preload, {"OMP_NUM_THREADS": "1"}, log, **limits) as server:
        server._read_link()
        yield server


@pytest.fixture(autouse=True)
def lent(warm: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run starts its processes from it."""

    @contextlib.contextmanager
    def server(*_: object) -> Iterator[LentServer]:
        yield LentServer(warm)

    monkeypatch.setattr(launcher, "_fork_server", server)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command keeps what it runs."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def plan(tmp_path: Path, *words: str) -> int:
    path = tmp_path / "rl.toml"
    path.write_text(CONFIG)
    with pytest.raises(SystemExit) as left:
        main(["plan", str(path), *words])
    return int(left.value.code or 0)


@pytest.mark.timeout(600)
def test_one_process_and_three_are_run_and_compared(
    tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, "--steps", "3", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert list(kept.iterdir()) == []  # nothing is kept
    assert told["warm_start"]["steps"] == 2
    assert told["warm_start"]["took_s"] > 0.0
    found = {(one["schedule"], one["max_policy_lag"]): one for one in told["plans"]}
    assert list(found) == [("inline", 0), ("async", 0), ("async", 1)]
    for (schedule, lag), one in found.items():
        assert one["not_measured"] is None
        assert len(one["step_s"]) == 3
        assert min(one["step_s"]) <= 1.0 / one["measured_steps_per_s"] <= max(one["step_s"])
        assert {"time/generate", "time/forward_backward", "time/broadcast_weights"} <= set(one["times_s"])
        assert ("time/wait_for_policy" in one["times_s"]) <= (schedule == "async")
        assert set(one["limited_by"]) <= {*PARTS, TOGETHER, WAITING}
        assert sum(one["limited_by"].values()) == pytest.approx(1.0)
        assert one["lag_mean"] <= lag
    choice = told["recommended"]
    assert (choice["schedule"], choice["max_policy_lag"]) in found
    assert f"--schedule {choice['schedule']}" in choice["command"]


@pytest.mark.timeout(600)
def test_runs_that_fail_are_told_of_and_kept(tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, "--steps", "2", "--set", "sft.steps=0", "--set", "trainer.device=cuda:77") != 0
    error = capsys.readouterr().err
    assert "none of the short runs came to an end" in error
    (folder,) = kept.iterdir()
    assert str(folder) in error
