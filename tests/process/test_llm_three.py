"""Three real processes: at lag 0 they make what the single process makes, bit for bit, also when one is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.ipc.forkserver import ForkServer
from headrace.llm.config import RLConfig
from headrace.llm.launch import launcher
from headrace.llm.launch.chronicle import Line
from headrace.llm.launch.deciding import full_cast
from headrace.llm.launch.launcher import Launch, launch
from headrace.llm.launch.place import LanguageRun, new_run_id
from headrace.telemetry.board import Board
from language_support import tiny_config
from run_support import LentServer

pytestmark = [pytest.mark.process, pytest.mark.table]

PROCESSES = ("warmstart", "serving", "trainer", "orchestrating", "twin")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has imported every process, transformers with them."""
    log = tmp_path_factory.mktemp("forkserver") / "forkserver.log"
    preload = (*(f"headrace.llm.{name}" for name in PROCESSES), "transformers.models.llama.modeling_llama")
    limits = {"start_timeout_s": 100.0, "spawn_timeout_s": 100.0}  # it imports for long where others compute
    with ForkServer(preload, {"OMP_NUM_THREADS": "1"}, log, **limits) as server:
        server._read_link()
        yield server


class Runs:
    """Real runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[Line] = []

    def run(self, config: RLConfig, kill_at: str = "") -> dict[str, Any]:
        """One; its server is killed when a line of the trainer begins with ``kill_at``."""
        path = self.folder / f"run-{len(list(self.folder.iterdir()))}"
        inline = config.run.schedule == "inline"
        left = [kill_at] if kill_at else []

        def see(line: Line) -> None:
            self.lines.append(line)
            if left and line.component == "trainer" and line.text.startswith(left[0]):
                left.pop()
                with Board.open(path / "board") as board:
                    os.kill(board.read("inference").pid, signal.SIGKILL)

        with LanguageRun.create_as("test", path, config, "runs") as place:
            cast = full_cast(warm_start=True, inference=True, inline=inline)
            return launch(Launch(config, place, cast, new_run_id(), path), see)


@pytest.fixture
def runs(tmp_path: Path, warm: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Runs:
    @contextlib.contextmanager
    def lent(*_: object) -> Iterator[LentServer]:
        yield LentServer(warm)

    monkeypatch.setattr(launcher, "_fork_server", lent)
    return Runs(tmp_path)


def test_a_server_that_is_killed_changes_no_bit_of_what_the_twin_makes(runs: Runs) -> None:
    alone = runs.run(tiny_config(steps=3, schedule="inline"))
    assert (alone["outcome"], alone["steps"], alone["error"]) == ("completed", 3, None)
    together = runs.run(tiny_config(steps=3), kill_at="Step 1/3")
    assert (together["outcome"], together["steps"], together["restarts"]) == ("completed", 3, 1)
    assert together["policy_lag"] == {"declared": 0.0, "mean": 0.0, "max": 0.0}
    assert together["weights_sha256"] == alone["weights_sha256"]
    assert together["books"]["trained"] == alone["books"]["trained"] == 36
    assert [point["win_rate"] for point in together["evaluations"]] == [
        point["win_rate"] for point in alone["evaluations"]
    ]


def test_a_lag_that_is_declared_is_not_exceeded(runs: Runs) -> None:
    config = tiny_config(steps=6)
    config = config.model_copy(update={"orchestrator": config.orchestrator.model_copy(update={"max_policy_lag": 2})})
    summary = runs.run(config)
    assert (summary["outcome"], summary["steps"]) == ("completed", 6)
    assert summary["policy_lag"]["max"] <= 2
    assert summary["books"]["balanced"]
    assert summary["books"]["trained"] == 72


def test_what_is_published_in_bfloat16_is_proved_with_what_rounding_leaves(runs: Runs) -> None:
    config = tiny_config(steps=2)
    summary = runs.run(config.model_copy(update={"model": config.model.model_copy(update={"dtype": "bfloat16"})}))
    assert (summary["outcome"], summary["steps"], summary["error"]) == ("completed", 2, None)
