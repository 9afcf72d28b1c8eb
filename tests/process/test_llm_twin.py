"""The single-process twin: it runs, it resumes exactly, and a server over HTTP gives the very same batches."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.envs.text.wordle.environment import WordleEnvironment
from headrace.llm import weights
from headrace.llm.client import HttpGenerator
from headrace.llm.engine.building import build_engine
from headrace.llm.messages import Batch, Generator
from headrace.llm.payloads import Basics, TwinPayload
from headrace.llm.server.application import build_application
from headrace.llm.server.driver import Driver
from headrace.llm.serving import build_server
from headrace.llm.transport import MemoryTransport
from headrace.llm.twin import twin
from headrace.supervision.messages import Done, Ready, Stop
from language_support import InTurn, child, prepare, tiny_config
from orchestration_support import same_samples

Work = Callable[[Generator], Awaitable[None]]


class Holding(WordleEnvironment):
    """Wordle that holds a file open, as others hold programs; whether it lets go is in `CLOSED`."""

    def close(self) -> None:
        CLOSED.append(self)


CLOSED: list[Holding] = []


def over_http(basics: Basics) -> Callable[[Work], Awaitable[None]]:
    """A server of ours on a socket of this machine, and its client, in one event loop."""

    async def generating(work: Work) -> None:
        engine = build_engine(basics.config, basics.model, weights.look(basics.weights / "0", basics.run_id))
        driver = Driver(engine)
        server = build_server(build_application(driver, run_id=basics.run_id))
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
            port = listening.getsockname()[1]
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(driver.run())
                tasks.create_task(server.serve([listening]))
                try:
                    async with HttpGenerator(f"http://127.0.0.1:{port}", per_call=None) as generator:
                        await generator.wait_ready(30.0)
                        await work(generator)
                finally:
                    driver.stop()
                    server.should_exit = True

    return generating


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """What the twin hands to its trainer."""
    batches: list[Batch] = []
    ship = MemoryTransport.ship

    def noting(self: MemoryTransport, batch: Batch) -> None:
        batches.append(batch)
        ship(self, batch)

    monkeypatch.setattr(MemoryTransport, "ship", noting)
    return batches


def run_twin(basics: Basics, resume: Path | None = None, says: tuple[object, ...] = ()) -> list[object]:
    with child("twin", TwinPayload(basics=basics, resume=resume), basics.board) as (context, control):
        control.says += says
        twin(context)
    return control.heard


@pytest.mark.table
def test_it_runs_and_over_http_the_batches_are_the_same_bit_for_bit(tmp_path: Path, shipped: list[Batch]) -> None:
    heard = run_twin(prepare(tiny_config(steps=3), tmp_path / "twin"))
    assert isinstance(heard[0], Ready)
    assert isinstance(heard[-1], Done)
    assert [batch.step for batch in shipped] == [0, 1, 2]
    kinds = [getattr(message, "kind", "") for message in heard]
    assert kinds.count("step") == kinds.count("batch") == 3
    versions = [message.facts["version"] for message in heard if getattr(message, "kind", "") == "evaluation"]
    assert versions == [0, 2, 3]
    mismatch = [
        message.facts["metrics"]["mismatch_kl/max"] for message in heard if getattr(message, "kind", "") == "step"
    ]
    assert max(mismatch) < 1e-6
    own = list(shipped)
    basics = prepare(tiny_config(steps=3), tmp_path / "http")
    other = InTurn(basics).run(over_http(basics))
    assert all(same_samples(a, b) for a, b in zip(own, other.batches, strict=True))
    assert [batch.facts for batch in own] == [batch.facts for batch in other.batches]
    assert heard[-1].facts["weights_sha256"] == other.training.published.sha256


@pytest.mark.table
def test_it_goes_on_from_a_checkpoint_to_the_same_weights(tmp_path: Path) -> None:
    whole = run_twin(prepare(tiny_config(steps=4), tmp_path / "whole"))[-1]
    basics = prepare(tiny_config(steps=2), tmp_path / "parts")
    run_twin(basics)
    longer = Basics(config=tiny_config(steps=4), run=basics.run, run_id=basics.run_id)
    rest = run_twin(longer, resume=basics.checkpoints / "2")
    assert isinstance(whole, Done)
    assert isinstance(rest[-1], Done)
    assert rest[-1].facts["weights_sha256"] == whole.facts["weights_sha256"]
    assert rest[-1].facts["step"] == 4


def test_it_leaves_when_it_is_told_to(tmp_path: Path) -> None:
    heard = run_twin(prepare(tiny_config(steps=500), tmp_path), says=(Stop("enough"),))
    assert isinstance(heard[-1], Done)
    assert heard[-1].facts["step"] < 500


def test_what_its_environment_holds_is_let_go_of(tmp_path: Path) -> None:
    CLOSED.clear()
    config = tiny_config(steps=1)
    held = config.env.model_copy(update={"name": None, "factory": f"{__name__}:Holding"})
    run_twin(prepare(config.model_copy(update={"env": held}), tmp_path))
    assert len(CLOSED) == 1
