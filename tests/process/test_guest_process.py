"""A guest's process: what is broken off belongs to no later request, and leaves nobody behind."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

from headrace.core.errors import ComponentDied, EnvironmentNotBuilt, EnvironmentRaised
from headrace.envs import guest as guests
from headrace.envs.guest import Guest, GuestProcess
from headrace.testing import leaks

pytestmark = pytest.mark.process

CHILD = """
import json
import os
import sys

requests, answers = int(sys.argv[1]), int(sys.argv[2])
with os.fdopen(requests) as lines, os.fdopen(answers, "w") as out:
    out.write('{"built": true}\\n')
    out.flush()
    for line in lines:
        asked = json.loads(line)
        print(asked.get("print", ""), end="", flush=True)
        if asked["op"] == "die":
            os._exit(3)
        out.write(asked.get("raw") or json.dumps({"said": asked.get("text")}))
        out.write("\\n")
        out.flush()
"""


class Interrupted(BaseException):
    """What a handler raises."""


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    return Guest("echo", script, "-")


@pytest.fixture
def handled() -> Any:
    """SIGUSR1 raises, as SIGINT does, and what a test's time limit sends."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def started(guest: Guest) -> GuestProcess:
    return GuestProcess(guest, sys.executable, {}, 60.0)


def strike(monkeypatch: pytest.MonkeyPatch, event: int, at: int) -> None:
    """A signal arrives in the wait for ``event`` that is the ``at``-th from now on."""
    waits, poll = iter(range(1, at + 1)), guests.poll_fds

    def struck(interest: dict[int, int], timeout_s: float) -> dict[int, int]:
        if event in interest.values() and next(waits, None) == at:
            signal.raise_signal(signal.SIGUSR1)
        return poll(interest, timeout_s)

    monkeypatch.setattr(guests, "poll_fds", struck)


@pytest.mark.parametrize(
    ("event", "at", "text"),
    [(select.POLLIN, 1, "first"), (select.POLLOUT, 1, "first"), (select.POLLOUT, 2, "first" * 100_000)],
    ids=["waiting for the answer", "before the request", "within the request"],
)
@pytest.mark.usefixtures("handled")
def test_the_answer_to_what_was_broken_off_is_nobodys(
    guest: Guest, monkeypatch: pytest.MonkeyPatch, event: int, at: int, text: str
) -> None:
    """Half a request would be put before the next one, and an answer that was not waited for is the next one's."""
    with leaks.no_leaks(settle_s=0.0):
        process = started(guest)
        strike(monkeypatch, event, at)
        with pytest.raises(Interrupted):
            process.ask({"op": "say", "text": text}, 60.0)
    with pytest.raises(ComponentDied) as gone:
        process.ask({"op": "say", "text": "second"}, 60.0)
    assert str(gone.value) == (
        "[SUP-001] echo's process is gone, and was asked for say()\n"
        "  exit code: -9\n"
        "  fix: Read why it was ended, and build it anew."
    )
    process.close()


def test_an_answer_that_is_none_ends_it_and_one_that_tells_of_an_exception_does_not(guest: Guest) -> None:
    with started(guest) as process:
        with pytest.raises(EnvironmentRaised):
            process.ask({"op": "say", "raw": json.dumps({"traceback": "E"})}, 60.0)
        assert process.ask({"op": "say", "text": "on"}, 60.0) == {"said": "on"}
        with pytest.raises(json.JSONDecodeError):
            process.ask({"op": "say", "raw": "half of a"}, 60.0)
        with pytest.raises(ComponentDied):
            process.ask({"op": "say"}, 60.0)


def test_a_request_that_cannot_be_written_down_costs_nothing(guest: Guest) -> None:
    with started(guest) as process:
        with pytest.raises(TypeError):
            process.ask({"op": "say", "text": object()}, 60.0)
        assert process.ask({"op": "say", "text": "on"}, 60.0) == {"said": "on"}


def build_until(guest: Guest, line: int) -> bool:
    """Whether a building was interrupted, before the ``line``-th line of this module that it runs."""
    left = line

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != guests.__file__ or frame.f_code is GuestProcess.__init__.__code__:
            return trace if frame.f_code.co_filename == guests.__file__ else None
        if event == "line":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        process = started(guest)
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    process.close()
    return False


def test_building_that_is_interrupted_leaves_nothing_wherever_that_is(guest: Guest) -> None:
    line = 1
    with leaks.no_leaks(settle_s=0.0):
        while build_until(guest, line):
            line += 1
    assert line > 15  # it was interrupted before, between and after everything that it opens


@pytest.mark.usefixtures("handled")
def test_building_that_is_interrupted_while_the_process_starts_leaves_nothing(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike(monkeypatch, select.POLLIN, 1)
    with leaks.no_leaks(settle_s=0.0), pytest.raises(Interrupted):
        started(guest)


def test_an_end_that_is_interrupted_is_one(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    process = started(guest)
    wait = process._process.wait  # type: ignore[union-attr]
    waits = iter([Interrupted])

    def interrupted(timeout: float) -> int:
        for kind in waits:
            raise kind
        return wait(timeout)

    monkeypatch.setattr(process._process, "wait", interrupted)
    with leaks.no_leaks(settle_s=0.0), pytest.raises(Interrupted):
        process.close()
    process.close()
    assert process._process.returncode is not None  # type: ignore[union-attr]


def test_of_what_it_prints_only_the_end_is_kept(guest: Guest) -> None:
    """A run of weeks would fill the disk with a file that has no name."""
    with started(guest) as process:
        for step in range(100):
            process.ask({"op": "say", "print": f"step {step} " + "x" * (1 << 18)}, 60.0)
            assert os.fstat(process._output.fileno()).st_size <= 1 << 20
        process.ask({"op": "say", "print": "\nthe last word"}, 60.0)
        process.ask({"op": "say", "print": " but one" + "\n" * (1 << 20)}, 60.0)
        process.ask({"op": "say", "print": "and that"}, 60.0)
        with pytest.raises(ComponentDied) as died:
            process.ask({"op": "die", "print": " is all"}, 60.0)
    assert died.value.facts["output"].endswith("and that is all")
    assert died.value.facts["exit_code"] == 3


def test_words_from_before_and_after_a_cut_are_told_together(guest: Guest) -> None:
    with started(guest) as process:
        process.ask({"op": "say", "print": "x" * (1 << 20) + "\nbefore, "}, 60.0)
        assert os.fstat(process._output.fileno()).st_size == 0
        with pytest.raises(ComponentDied) as died:
            process.ask({"op": "die", "print": "after"}, 60.0)
    assert died.value.facts["output"].endswith("\nbefore, after")
    assert len(died.value.facts["output"]) == 2000


def test_one_that_cannot_be_started_or_built_leaves_nothing(guest: Guest) -> None:
    guest.script.write_text("raise SystemExit(4)")
    with leaks.no_leaks(settle_s=0.0), pytest.raises(EnvironmentNotBuilt) as refused:
        started(guest)
    assert refused.value.facts["exit_code"] == 4
