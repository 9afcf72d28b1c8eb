"""Our server as a process, and programs of verifiers' own interpreter that talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.envs.text import verifiers
from headrace.ipc.forkserver import ForkServer
from headrace.llm.config import InferenceConfig, ModelConfig, RLConfig
from headrace.llm.payloads import INFERENCE, Basics, InferencePayload
from headrace.llm.tiny import make_model_folder
from headrace.llm.weights import make_probe, publish
from headrace.supervision.messages import Done, Ready, Stop
from headrace.telemetry.board import Board

GUESTS = Path(verifiers.__file__).parent
HERE = Path(__file__).parent / "verifiers"
LIMIT_S = 300.0  # bounds a failure
RUN = "run-1"
SLOTS = 8


@contextlib.contextmanager
def served(path: Path) -> Iterator[str]:
    """The root of a server over a tiny model; what finds none of its eight slots free is refused."""
    inference = InferenceConfig(slots=SLOTS, max_waiting=0)
    config = RLConfig(model=ModelConfig(hidden=32, layers=2, heads=4, context_tokens=192), inference=inference)
    basics = Basics(config=config, run=path, run_id=RUN)
    model = make_model_folder(config.model, object(), basics.model, seed=1)
    probe = make_probe(model, [1, 2, 3, 4])
    publish(model.state_dict(), version=0, weights_dir=basics.weights, run_id=RUN, probe=probe, metadata={})
    payload = InferencePayload(basics=basics, serve_version=-1)
    environment = {"OMP_NUM_THREADS": "1"}
    with (
        ForkServer(["headrace.llm.serving", "transformers"], environment, path / "forkserver.log") as forks,
        contextlib.closing(Board.create(basics.board, [(INFERENCE, "inference")], RUN)),
        contextlib.closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listening,
        contextlib.closing(
            forks.spawn(
                INFERENCE,
                "headrace.llm.serving:inference",
                payload,
                {"listen": listening.fileno()},
                path / "inference.log",
                path / "inference.stacks",
            )
        ) as child,
    ):
        assert child.control.receive(LIMIT_S) == Ready({"version": 0})
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        child.control.send(Stop("test"), LIMIT_S)
        assert isinstance(child.control.receive(LIMIT_S), Done)


def told(python: str, program: str, *arguments: str) -> Any:
    """What a program beside the tests prints as its last line, in verifiers' interpreter."""
    command = [python, str(HERE / program), *arguments]
    # Nothing of ours: neither the tests' variables nor their folder.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def interpreter(config: pytest.Config, minor: str) -> str:
    """The one of those named that has verifiers of this version; the test is skipped if none has."""
    for python in config.getoption("--verifiers"):
        ask = [python, "-c", "from importlib.metadata import version; print(version('verifiers'))"]
        found = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
        if found.startswith(f"{minor}."):
            return str(python)
    pytest.skip(f"no interpreter with verifiers {minor} is named")
