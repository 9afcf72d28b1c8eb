"""Components that are started alone: what they share, and what they do not believe."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.core.clock import FakeClock
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
from headrace.telemetry.board import Board, State
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


class Away:
    """Time passes only while the launcher waits for its next look: each turn does what happens meanwhile, and says how long it takes."""

    def __init__(self, patch: pytest.MonkeyPatch, *turns: Callable[[], float]) -> None:
        self.clock, self._turns = FakeClock(), iter(turns)
        clock = self.clock

        class Deadline:
            def __init__(self, limit_s: float) -> None:
                self._at_s = clock.now() + limit_s

            @property
            def passed(self) -> bool:
                return clock.now() >= self._at_s

        patch.setattr(alone, "Deadline", Deadline)
        patch.setattr(alone, "poll_fds", lambda *_: clock.advance(next(self._turns)()))


def hold_warm_start(run: Path) -> int:
    """Be the launcher that makes it."""
    handle = os.open(run / "warm-start.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def make_first_weights(run: Path) -> float:
    """Be done with it."""
    (run / "weights" / "0").mkdir()
    (run / "weights" / "0" / "manifest.json").touch()
    return 0.0


def test_a_server_is_waited_for_as_long_as_another_launcher_makes_the_first_weights(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own launcher waits for them too, and says only afterwards where it is."""
    run_id = begun("inference").run_id

    def tell() -> float:
        write_endpoints(begun.run / "endpoints.json", Endpoints(run_id, URL))
        return 0.0

    Away(monkeypatch, lambda: 1900.0, lambda: make_first_weights(begun.run), lambda: 119.0, tell)
    other = hold_warm_start(begun.run)
    said: list[str] = []
    assert begun("orchestrator", url=None, say=said.append).endpoint == URL
    first = "once version 0 of the weights is made, which another component does (at most 2040 s)"
    assert said == [f"waits at most 120 s for a server that tells its endpoint {first}: that of this run is starting"]
    os.close(other)


def test_what_an_orchestrator_waits_for_is_said_before_it_waits_and_only_then(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started first, it stood still for two minutes without a word of whom it waited for."""
    said: list[str] = []
    config = load_rl_config([])
    begun("trainer", config, say=said.append)
    assert said == []

    def tell() -> float:
        text = "waits at most 120 s for a server that tells its endpoint"
        assert said == [f"{text}: headrace inference --run-dir {begun.run} starts one, --url names one"]
        write_endpoints(begun.run / "endpoints.json", Endpoints(begun("inference", config).run_id, URL))
        return 0.0

    Away(monkeypatch, tell)
    begun("orchestrator", config, url=None, say=said.append).place.close()
    begun("orchestrator", config, url=None, say=said.append)  # now the server is there
    assert len(said) == 1


@pytest.mark.parametrize(("held", "waited_s"), [(False, 120.0), (True, 2 * 120.0 + 1800.0 + 60.0)])
def test_a_server_is_not_waited_for_without_end(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, held: bool, waited_s: float
) -> None:
    begun("inference")
    away = Away(monkeypatch, *[lambda: 60.0] * 100)
    other = hold_warm_start(begun.run)
    if not held:
        os.close(other)
    with pytest.raises(ComponentStalled, match="the launcher waited 120 s for a server"):
        begun("orchestrator", url=None)
    assert away.clock.now() == waited_s
    if held:
        os.close(other)


def test_whoever_waits_for_a_warm_start_waits_as_long_as_it_may_take(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = begun("trainer")
    Away(monkeypatch, lambda: 2 * 120.0 + 1800.0 - 1.0, lambda: make_first_weights(begun.run))
    other = hold_warm_start(begun.run)
    said: list[str] = []
    with warm_started(what, said.append) as ready:
        assert ready.cast.ids == ("trainer",)
    os.close(other)
    text = "waits at most 2040 s for version 0 of the weights, which another component of"
    assert said == [f"{text} {begun.run} makes"]


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING])
def test_an_orchestrator_that_would_begin_behind_the_trainer_is_refused_at_once(
    begun: Begun, state: State, resumes: bool
) -> None:
    """A trainer that starts may itself be about to go back."""
    trainer = begun("trainer")
    keep(begun.run / "checkpoints" / "2", trainer.run_id)
    left = leave_a_batch(begun.run, trainer.run_id, 3)
    with Board.create(trainer.place.board_file, [("trainer", "trainer")], trainer.run_id) as board:
        board.slot("trainer").set_state(state)
        board.slot("trainer").count("version", 3)
        if state is State.RUNNING:
            with pytest.raises(RunDirectoryError, match=f"from version 3, the orchestrator would from {2 * resumes}"):
                begun("orchestrator", resume=resumes)
            assert left.exists()
            assert not (begun.run / "alone" / "orchestrator").exists()  # nor would what one before it told be put away
            board.slot("trainer").count("version", 2 * resumes)
        begun("orchestrator", resume=resumes)


def test_an_orchestrator_is_not_sent_away_for_good_where_its_trainer_has_saved_nothing_yet(begun: Begun) -> None:
    trainer = begun("trainer")
    with Board.create(trainer.place.board_file, [("trainer", "trainer")], trainer.run_id) as board:
        board.slot("trainer").set_state(State.RUNNING)
        board.slot("trainer").count("version", 3)
        with pytest.raises(RunDirectoryError) as caught:
            begun("orchestrator", resume=True)
    assert caught.value.fix == "end the trainer, which saves a checkpoint, and start both with --resume"
