"""Components that are started alone: what they share, and what they do not believe."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ComponentStalled, ConfigError, RunDirectoryError
from headrace.llm.config import RLConfig
from headrace.llm.launch import alone, children
from headrace.llm.launch.alone import begin_alone, warm_started
from headrace.llm.launch.children import Shared, root_of
from headrace.llm.launch.launcher import Launch
from headrace.llm.launch.place import Endpoints, LanguageRun, read_endpoints, write_endpoints
from headrace.llm.launch.starting import begin, resume
from headrace.llm.loading import load_rl_config
from headrace.llm.transport import batch_path, write_batch
from llm_launch_support import Launches, launches, llm_server
from llm_stand_ins import keep
from llm_support import batch

__all__ = ["launches", "llm_server"]

pytestmark = pytest.mark.process

URL = "http://127.0.0.1:1"


class Begun:
    """Components of one run, begun and not launched: their launchers are alive."""

    def __init__(self, run: Path, stack: ExitStack) -> None:
        self.run, self._stack = run, stack

    def __call__(self, component: str, config: RLConfig | None = None, **told: Any) -> Launch:
        told = {"url": URL, "resume": False} | told
        what = begin_alone(component, config or load_rl_config([]), self.run, **told)
        self._stack.callback(what.place.close)
        return what


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Begun]:
    with ExitStack() as stack:
        yield Begun(tmp_path / "run", stack)


def leave_a_batch(run: Path, run_id: str, step: int) -> Path:
    path = batch_path(run / "rollouts", step)
    write_batch(path, batch(step, run_id=run_id))
    return path


@pytest.mark.parametrize("resumes", [False, True])
def test_a_trainer_takes_no_batch_of_an_orchestrator_that_is_gone(begun: Begun, resumes: bool) -> None:
    with begun("orchestrator").place:
        run_id = begun("inference").run_id
    keep(begun.run / "checkpoints" / "2", run_id)
    left = leave_a_batch(begun.run, run_id, 2)
    what = begun("trainer", resume=resumes)
    assert not left.exists()
    assert (what.tally.steps, what.tally.batches) == ((2, 2) if resumes else (0, 0))


def test_a_trainer_goes_on_with_the_batch_of_an_orchestrator_that_is_alive(begun: Begun) -> None:
    run_id = begun("orchestrator").run_id
    keep(begun.run / "checkpoints" / "2", run_id)
    left = leave_a_batch(begun.run, run_id, 2)
    begun("trainer", resume=True)
    assert left.exists()


def test_an_orchestrator_begins_with_nothing_on_its_way(begun: Begun) -> None:
    run_id = begun("trainer").run_id
    left = leave_a_batch(begun.run, run_id, 0)
    begun("orchestrator")
    assert not left.exists()


def test_a_whole_run_does_not_take_a_directory_in_which_components_are_alive(begun: Begun) -> None:
    config = load_rl_config([])
    with begun("trainer").place as trainer, begun("inference").place:
        for taking in (lambda: begin(config, begun.run, "x"), lambda: resume(begun.run, None)):
            with pytest.raises(RunDirectoryError) as caught:
                taking()
            assert caught.value.facts["components"] == "inference, trainer"
        trainer.close()
        assert LanguageRun(begun.run).is_live()
    assert not LanguageRun(begun.run).is_live()


def test_no_component_is_started_alone_beside_a_whole_run(begun: Begun) -> None:
    with begin(load_rl_config([]), begun.run, "x").place:
        with pytest.raises(RunDirectoryError, match="in use by a whole run that is alive") as caught:
            begun("inference")
        assert caught.value.facts["pid"] == str(os.getpid())
    begun("inference")


IMPATIENT = {"deadlines.start_s": 0.01}


def test_an_address_is_believed_while_the_launcher_of_its_server_is_alive(begun: Begun) -> None:
    config = load_rl_config([], IMPATIENT)
    file = begun.run / "endpoints.json"
    with begun("inference").place as server:
        run_id = begun("trainer").run_id
        write_endpoints(file, Endpoints(run_id, URL))
        what = begun("orchestrator", config, url=None)
        assert what.endpoint == URL
        what.place.close()
        server.close()
    with pytest.raises(ComponentStalled, match="for a server that tells its endpoint"):
        begun("orchestrator", config, url=None)
    begun("inference")
    assert read_endpoints(file) == Endpoints(run_id), "the next one is somewhere else"


def test_an_address_of_another_machine_alone_is_refused(begun: Begun) -> None:
    run_id = begun("inference").run_id
    write_endpoints(begun.run / "endpoints.json", Endpoints(run_id, URL, f"not-{socket.gethostname()}"))
    with pytest.raises(ConfigError, match="answers only there"):
        begun("orchestrator", url=None)


def test_the_address_is_told_while_the_server_is_there(launches: Launches) -> None:
    told = []

    def look(_: Any) -> None:
        told.append(read_endpoints(launches.path / "endpoints.json"))

    summary = launches.run(on_line=look)
    assert summary["outcome"] == "completed"
    assert all(one.inference.startswith("http://127.0.0.1:") for one in told)
    assert {one.machine for one in told} == {socket.gethostname()}
    assert read_endpoints(launches.path / "endpoints.json") == Endpoints(summary["run_id"])


def test_a_server_on_all_addresses_is_found_by_the_name_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_rl_config([], {"inference.host": "0.0.0.0"})
    monkeypatch.setattr(children.socket, "gethostname", lambda: "localhost")
    with Shared(config, serves=True, alone=True) as shared:
        assert str(shared.endpoint).startswith("http://localhost:")
    with Shared(config, serves=True) as shared:
        assert str(shared.endpoint).startswith("http://127.0.0.1:")

    def unknown(*_: Any) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(children.socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="its name 'localhost' leads to none of them"):
        Shared(config, serves=True, alone=True)


def test_an_address_of_six_bytes_more_has_brackets() -> None:
    assert root_of("::1", 8123) == "http://[::1]:8123"
    assert root_of("10.0.0.7", 8123) == "http://10.0.0.7:8123"


def test_whoever_waits_for_a_warm_start_that_has_failed_makes_it(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another launcher is at it, and ends while this one waits for the first time."""
    what = begun("trainer")
    other = os.open(begun.run / "warm-start.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    monkeypatch.setattr(alone, "poll_fds", lambda *_: os.close(other))
    with warm_started(what) as ready:
        assert ready.cast.ids == ("warm-start", "trainer")
    with warm_started(dataclasses.replace(what, resume=begun.run)) as ready:
        assert ready.cast.ids == ("trainer",)
