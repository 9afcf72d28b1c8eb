"""Runs of the real components, small enough for seconds, from one warm fork server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.ipc.forkserver import ForkServer
from headrace.llm.launch import launcher
from headrace.llm.launch.launcher import launch
from headrace.llm.launch.starting import begin
from headrace.llm.loading import load_rl_config
from run_support import LentServer, events

SMALL = {
    "run.steps": 3,
    "model.hidden": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.context_tokens": 24,
    "env.factory": "llm_fault_envs:make",
    "env.max_turns": 1,
    "sampling.max_tokens": 6,
    "orchestrator.groups_per_step": 4,
    "orchestrator.group_size": 4,
    "orchestrator.filter.zero_advantage": False,
    "evaluation.problems": 2,
    "evaluation.every_steps": 0,
    "sft.steps": 2,
    "sft.batch_size": 8,
    "supervision.backoff_s": 0.0,
}


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has imported the real components."""
    targets = launcher.Targets()
    names = ("warm-start", "inference", "orchestrator", "trainer", "twin")
    modules = (targets.of(name, load_rl_config([])).partition(":")[0] for name in names)
    log = tmp_path_factory.mktemp("forkserver") / "forkserver.log"
    with ForkServer((*launcher._PRELOAD, *modules), {"OMP_NUM_THREADS": "1"}, log, start_timeout_s=300.0) as server:
        server._read_link()
        yield server


@dataclass
class RealRuns:
    """Runs of the real components."""

    path: Path

    def __call__(self, on_line: Any = None, targets: dict[str, str] | None = None, **settings: Any) -> dict[str, Any]:
        """A run; ``targets`` take the place of components, other keys are settings, with ``__`` for the dot."""
        given = {name.replace("__", "."): value for name, value in settings.items()}
        what = begin(load_rl_config([], {**SMALL, **given}), self.path, "x")
        what = replace(what, targets=launcher.Targets(**(targets or {})))
        with what.place:
            return launch(what, on_line)

    def pid_of(self, component: str) -> int:
        """Of the newest incarnation."""
        found = [event for kind in ("started", "restarted") for event in events(self.path, kind, component)]
        return int(found[-1]["pid"])


@pytest.fixture
def real(tmp_path: Path, real_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> RealRuns:
    """Runs of the real components."""

    @contextmanager
    def lent(*_: object) -> Iterator[LentServer]:
        yield LentServer(real_server)

    monkeypatch.setattr(launcher, "_fork_server", lent)
    return RealRuns(tmp_path / "run")
