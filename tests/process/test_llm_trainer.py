"""The trainer as a real process under the supervisor."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.core.clock import MonotonicClock
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.forkserver import ForkServer
from headrace.llm.payloads import TrainerPayload
from headrace.llm.training.checkpoints import read_checkpoint
from headrace.llm.transport import FileSink
from headrace.llm.weights import newest
from headrace.supervision.messages import Done, Report
from headrace.supervision.spec import BecameReady, ChildSpec, Event, Exited, Reported, RestartBudget
from headrace.supervision.supervisor import Supervisor
from headrace.telemetry.board import Board
from llm_support import batch
from llm_training_support import RUN, Run, make_tiny_folder, rl_config

pytestmark = pytest.mark.process

LIMIT_S = 100.0  # bounds a failure


@pytest.fixture
def run(tmp_path: Path) -> Run:
    for name in ("logs", "stacks"):
        (tmp_path / name).mkdir()
    return Run(tmp_path / "run", make_tiny_folder(tmp_path / "model"))


@pytest.fixture
def pipes() -> Iterator[dict[str, tuple[int, int]]]:
    """Reading and writing end of each."""
    made = {name: os.pipe() for name in ("shipped", "published")}
    yield made
    for ends in made.values():
        for fd in ends:
            os.close(fd)


def supervised(run: Run, board: Board, pipes: dict[str, tuple[int, int]]) -> Supervisor:
    config = rl_config(6, deadlines={"batch_s": LIMIT_S})
    payload = TrainerPayload(basics=replace(run.basics, config=config))
    spec = ChildSpec(
        id="trainer",
        kind="trainer",
        target="headrace.llm.trainer:trainer",
        payload=lambda _: payload,
        fds=lambda: {"shipped": pipes["shipped"][0], "published": pipes["published"][1]},
        stop_timeout_s=LIMIT_S,
    )
    root = run.basics.run.parent
    server = ForkServer(
        ["headrace.llm.trainer", "transformers.models.llama.modeling_llama"],
        {"OMP_NUM_THREADS": "1"},
        root / "logs" / "forkserver.log",
        start_timeout_s=LIMIT_S,
    )
    return Supervisor(
        server, board, [spec], RestartBudget(max_restarts=0), MonotonicClock(), root / "logs", root / "stacks"
    )


class Watched:
    """A supervisor's events, one after the other."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._events: list[Event] = []

    def until(self, wanted: type, message: type = object) -> Any:
        """The next such event; for reports one with such a message. Those before it are passed over."""
        deadline = Deadline(LIMIT_S)
        while not deadline.passed:
            while self._events:
                event = self._events.pop(0)
                if isinstance(event, wanted) and isinstance(getattr(event, "message", None), message):
                    return event
                assert not isinstance(event, Exited), event
            self._events += self._supervisor.poll(deadline.left_s())
        raise AssertionError(f"no {wanted.__name__} within {LIMIT_S:g} s")


def test_it_trains_what_is_shipped_and_leaves_a_checkpoint_when_asked_to(run: Run, pipes) -> None:
    with Board.attach(run.basics.board) as board, supervised(run, board, pipes) as supervisor:
        supervisor.start_all()
        watched = Watched(supervisor)
        watched.until(BecameReady)
        FileSink(run.basics.rollouts, RUN, pipes["shipped"][1]).ship(batch(0, 8, carry={"next": 1}))
        report = watched.until(Reported, Report)
        assert report.message.kind == "step"
        assert poll_fds({pipes["published"][0]: select.POLLIN}, LIMIT_S)
        published = newest(run.basics.weights, RUN)
        assert published is not None
        assert report.message.facts["weights_sha256"] == published.sha256
        supervisor.stop(["trainer"], "enough")
        done = watched.until(Reported, Done)
        assert done.message == Done({"version": 1, "weights_sha256": published.sha256})
        exited = watched.until(Exited)
        assert (exited.exit_code, exited.expected) == (0, True)
        assert read_checkpoint(run.basics.checkpoints / "1", RUN).carry == {"next": 1}
