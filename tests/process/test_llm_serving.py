"""The process ``inference``: ready after a real generation, told to stop, left alone, started again."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import Failed
from headrace.ipc.forkserver import ForkServer
from headrace.llm.config import InferenceConfig, RLConfig
from headrace.llm.payloads import INFERENCE, Basics, InferencePayload
from headrace.llm.tiny import make_model_folder
from headrace.llm.weights import make_probe, publish
from headrace.supervision.messages import Done, Ready, Stop
from headrace.telemetry.board import Activity, Board
from llm_serving_support import tiny_config

pytestmark = pytest.mark.process

LIMIT_S = 100.0  # bounds a failure
RUN = "run-1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    log = tmp_path_factory.mktemp("fork") / "forkserver.log"
    with ForkServer(["headrace.llm.serving", "transformers"], {"OMP_NUM_THREADS": "1"}, log) as made:
        yield made


class Place:
    """A run directory with a model, a board, and a socket that listens."""

    def __init__(self, path: Path, server: ForkServer) -> None:
        config = RLConfig(model=tiny_config(), inference=InferenceConfig(slots=8))
        self.basics = Basics(config=config, run=path, run_id=RUN)
        self.model = make_model_folder(config.model, object(), self.basics.model, seed=1)
        self._server = server
        self._board = Board.create(self.basics.board, [(INFERENCE, "inference")], RUN)
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.root = f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def publish(self, version: int) -> Any:
        return publish(
            self.model.state_dict(),
            version=version,
            weights_dir=self.basics.weights,
            run_id=RUN,
            probe=make_probe(self.model, [1, 2, 3, 4]),
            metadata={},
        )

    def spawn(self, version: int = -1) -> Any:
        payload = InferencePayload(basics=self.basics, serve_version=version)
        fds = {"listen": self.listening.fileno()}
        run = self.basics.run
        return self._server.spawn(
            INFERENCE, "headrace.llm.serving:inference", payload, fds, run / "inference.log", run / "inference.stacks"
        )

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(self.root + path, data, timeout=LIMIT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def shown(self) -> Any:
        return self._board.read(INFERENCE)

    def wait_until_idle(self) -> None:
        deadline = Deadline(LIMIT_S)
        while self.shown().activity is not Activity.WAIT_REQUESTS:
            assert not deadline.passed, "it is never seen to wait"
            poll_fds({}, 0.01)

    def wait_for_end(self, child: Any) -> int:
        deadline = Deadline(LIMIT_S)
        while child.exit_code is None:
            assert not deadline.passed, "it is not seen to end"
            poll_fds(dict.fromkeys(self._server.fds(), select.POLLIN), deadline.left_s())
            self._server.collect()
        return int(child.exit_code)

    def close(self) -> None:
        self._board.close()
        self.listening.close()


@pytest.fixture
def place(tmp_path: Path, server: ForkServer) -> Any:
    with contextlib.closing(Place(tmp_path, server)) as made:
        yield made


REQUEST = {"id": "a", "prompt_ids": [7, 8, 9], "max_tokens": 5, "seed": 1}


@pytest.mark.table
def test_serves_until_it_is_told_to_stop_and_again_after_that(place: Place) -> None:
    published = place.publish(0)
    with contextlib.closing(place.spawn()) as child:
        assert child.control.receive(LIMIT_S) == Ready({"version": 0})
        assert place.ask("/health") == (200, {"status": "ok", "version": 0})
        assert place.ask("/weights")[1] == {"version": 0, "sha256": published.sha256}
        status, first = place.ask("/generate", {"requests": [REQUEST]})
        assert status == 200
        assert len(first["completions"][0]["token_ids"]) == 5
        status, _ = place.ask(
            "/v1/chat/completions", {"model": "policy", "messages": [{"role": "user", "content": "a"}]}
        )
        assert status == 200
        place.wait_until_idle()  # an answer is on its way before whoever gave it waits again
        assert place.shown().counters["episodes"] == 2
        newer = place.publish(1)
        update = {"weight_dir": str(newer.folder), "version": 1, "sha256": newer.sha256, "run_id": RUN}
        assert place.ask("/update_weights", update)[1]["version"] == 1
        assert place.shown().counters["version"] == 1
        child.control.send(Stop("test"), LIMIT_S)
        assert isinstance(child.control.receive(LIMIT_S), Done)
        assert place.wait_for_end(child) == 0
    with contextlib.closing(place.spawn()) as again:
        assert again.control.receive(LIMIT_S) == Ready({"version": 1})
        assert place.ask("/generate", {"requests": [REQUEST]})[1]["completions"][0]["versions"] == [1] * 5
        again.control.close()  # its parent is gone
        assert place.wait_for_end(again) in {0, 1}


def test_without_weights_it_says_what_is_missing(place: Place) -> None:
    with contextlib.closing(place.spawn()) as child:
        failed = child.control.receive(LIMIT_S)
        assert isinstance(failed, Failed)
        assert "inference has no weights to serve" in str(failed.error)
        assert place.wait_for_end(child) == 1
