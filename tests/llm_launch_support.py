"""Language-model runs in tests: of stand-ins, from one warm fork server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.ipc.forkserver import ForkServer
from headrace.llm.launch import launcher
from headrace.llm.launch.chronicle import Line
from headrace.llm.launch.deciding import Cast, full_cast
from headrace.llm.launch.launcher import Launch, launch
from headrace.llm.launch.place import LanguageRun, new_run_id
from headrace.llm.loading import load_rl_config
from llm_stand_ins import TARGETS
from run_support import LentServer


@pytest.fixture(scope="session")
def llm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has imported the stand-ins."""
    log = tmp_path_factory.mktemp("forkserver") / "forkserver.log"
    with ForkServer(("llm_stand_ins",), {"OMP_NUM_THREADS": "1"}, log) as server:
        server._read_link()
        yield server


@dataclass
class Launches:
    """Runs of stand-ins."""

    folder: Path
    lines: list[Line] = field(default_factory=list)
    """All that was shown of the last run."""
    path: Path = Path()
    """Of the last run."""

    def run(
        self,
        *,
        cast: Cast | None = None,
        steps: int = 3,
        on_line: Any = None,
        on_turn: Callable[[], None] = lambda: None,
        **told: Any,
    ) -> dict[str, Any]:
        """A run in which ``who`` does ``fault`` ``at`` a step; other keys are settings, with ``__`` for the dot."""
        kwargs = {name: told.pop(name) for name in ("who", "fault", "at", "once") if name in told}
        settings = {name.replace("__", "."): value for name, value in told.items()}
        config = load_rl_config(
            [], {"run.steps": steps, "env.kwargs": kwargs, "supervision.backoff_s": 0.0, **settings}
        )
        self.path = self.folder / f"run-{len(list(self.folder.iterdir()))}"
        self.lines = []
        inline = config.run.schedule == "inline"
        with LanguageRun.create_as("test", self.path, config, "runs") as place:
            cast = cast or full_cast(warm_start=True, inference=True, inline=inline)
            what = Launch(config, place, cast, new_run_id(), self.path, targets=TARGETS)

            def see(line: Line) -> None:
                self.lines.append(line)
                if on_line is not None:
                    on_line(line)

            return launch(what, see, on_turn)

    def texts(self, weight: str | None = None) -> list[str]:
        """What was shown of the last run, with the component before each."""
        return [f"{line.component}: {line.text}" for line in self.lines if weight in (None, line.weight)]


@pytest.fixture
def launches(tmp_path: Path, llm_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Runs of stand-ins from the warm fork server."""

    @contextlib.contextmanager
    def lent(*_: object) -> Iterator[LentServer]:
        yield LentServer(llm_server)

    monkeypatch.setattr(launcher, "_fork_server", lent)
    folder = tmp_path / "runs"
    folder.mkdir()
    return Launches(folder)
