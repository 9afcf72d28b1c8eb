"""The process ``inference`` where vLLM serves, with a stand-in for vLLM: ready, stopped, ended, silent."""

from __future__ import annotations

import contextlib
import re
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ComponentDied, ComponentStalled, ConfigError
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import Failed
from headrace.ipc.forkserver import ForkServer
from headrace.llm.config import RLConfig
from headrace.llm.launch.children import free_port
from headrace.llm.payloads import INFERENCE, Basics, InferencePayload
from headrace.llm.tiny import make_model_folder
from headrace.llm.weights import make_probe, publish
from headrace.supervision.messages import Done, Ready, Stop
from headrace.telemetry.board import Board

pytestmark = pytest.mark.process

LIMIT_S = 100.0  # bounds a failure
RUN = "run-1"
STAND_IN = str(Path(__file__).parents[1] / "fake_vllm.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    log = tmp_path_factory.mktemp("fork") / "forkserver.log"
    with ForkServer(["headrace.llm.backends.vllm_keeper"], {"OMP_NUM_THREADS": "1"}, log) as made:
        yield made


class Place:
    """A run directory with a model and a board."""

    def __init__(self, path: Path, server: ForkServer) -> None:
        self.path, self._server = path, server
        self._board = Board.create(path / "board", [(INFERENCE, "inference")], RUN)
        self.root = f"http://127.0.0.1:{free_port('127.0.0.1')}"

    def spawn(self, fault: str, *, published: bool = True, **deadlines: float) -> Any:
        config = RLConfig.model_validate(
            {
                "model": {"hidden": 32, "layers": 1, "heads": 1},
                "inference": {"backend": "vllm", "command": [sys.executable, STAND_IN, fault]},
                "deadlines": deadlines,
            }
        )
        basics = Basics(config=config, run=self.path, run_id=RUN)
        model = make_model_folder(config.model, object(), basics.model, seed=1)
        if published:
            publish(
                model.state_dict(),
                version=4,
                weights_dir=basics.weights,
                run_id=RUN,
                probe=make_probe(model, [1, 2]),
                metadata={},
            )
        payload = InferencePayload(basics=basics, serve_version=-1, endpoint=self.root)
        target = "headrace.llm.backends.vllm_keeper:inference"
        return self._server.spawn(INFERENCE, target, payload, {}, self.log, self.path / "inference.stacks")

    @property
    def log(self) -> Path:
        return self.path / "inference.log"

    def worker(self) -> int:
        """The process that the stand-in has started, in a session of its own."""
        match = re.search(r"worker (\d+) of 1worker", self.log.read_text())
        assert match is not None
        return int(match[1])

    def wait_for_end(self, child: Any) -> int:
        deadline = Deadline(LIMIT_S)
        while child.exit_code is None:
            assert not deadline.passed, "it is not seen to end"
            poll_fds(dict.fromkeys(self._server.fds(), select.POLLIN), deadline.left_s())
            self._server.collect()
        return int(child.exit_code)

    def close(self) -> None:
        self._board.close()


@pytest.fixture
def place(tmp_path: Path, server: ForkServer) -> Iterator[Place]:
    with contextlib.closing(Place(tmp_path, server)) as made:
        yield made


@pytest.mark.table
@pytest.mark.thin(4)
@pytest.mark.parametrize("fault", ["ok", "deaf"])
def test_ready_with_the_newest_version_and_gone_with_all_its_processes(place: Place, fault: str) -> None:
    with contextlib.closing(place.spawn(fault, stop_s=2.0)) as child:
        ready = child.control.receive(LIMIT_S)
        assert isinstance(ready, Ready)
        assert (ready.facts["version"], ready.facts["endpoint"]) == (4, place.root)
        assert (place.path / "served-model" / "model.safetensors").is_file()
        assert (place.path / "served-model" / "tokenizer.json").is_file()
        worker = place.worker()
        child.control.send(Stop("enough"), LIMIT_S)
        assert isinstance(child.control.receive(LIMIT_S), Done)
        assert place.wait_for_end(child) == 0
    assert not Path(f"/proc/{worker}").exists()
    assert "x" * 200_000 in place.log.read_text()


def failure(child: Any) -> Any:
    message = child.control.receive(LIMIT_S)
    assert isinstance(message, Failed), message
    return message.error


def test_one_that_ends_is_reported_with_its_code(place: Place) -> None:
    with contextlib.closing(place.spawn("ends")) as child:
        error = failure(child)
        assert place.wait_for_end(child) == 1
    assert isinstance(error, ComponentDied)
    assert error.what == "inference: vLLM exited with code 3"
    assert "no such device" in place.log.read_text()


NO_PIDFDS = """
import os
def refuse(pid, flags=0):
    raise OSError(38, "Function not implemented")
os.pidfd_open = refuse
"""


@pytest.mark.table
def test_one_that_ends_is_reported_also_where_no_descriptor_tells(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "no_pidfds.py").write_text(NO_PIDFDS)
    monkeypatch.syspath_prepend(tmp_path)
    modules = ["headrace.llm.backends.vllm_keeper", "no_pidfds"]
    with (
        ForkServer(modules, {"OMP_NUM_THREADS": "1"}, tmp_path / "forkserver.log") as server,
        contextlib.closing(Place(tmp_path, server)) as place,
        contextlib.closing(place.spawn("ends")) as child,
    ):
        error = failure(child)
        assert place.wait_for_end(child) == 1
    assert error.what == "inference: vLLM exited with code 3"


def test_one_that_answers_health_and_generates_nothing_is_not_well(place: Place) -> None:
    with contextlib.closing(place.spawn("silent", generate_s=0.1, weights_s=0.2)) as child:
        assert isinstance(child.control.receive(LIMIT_S), Ready)
        error = failure(child)
        assert place.wait_for_end(child) == 1
    assert isinstance(error, ComponentStalled)
    assert error.what == "inference runs and generates nothing"
    assert not Path(f"/proc/{place.worker()}").exists()


def test_without_weights_it_does_not_begin(place: Place) -> None:
    with contextlib.closing(place.spawn("ok", published=False)) as child:
        error = failure(child)
        place.wait_for_end(child)
    assert isinstance(error, ConfigError)
    assert error.what == "inference has no weights to serve"
