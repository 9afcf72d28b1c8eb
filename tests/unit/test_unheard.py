"""Standard streams that take nothing: what is kept for the reader, what is left out, who waits for whom."""

from __future__ import annotations

import errno
import io
import os
import pty
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import pytest

from headrace.cli.drawing import showing
from headrace.cli.unheard import Outlet, conclude, finish, going_on, never_waiting, nobody_reads, outlets, pass_on
from headrace.ipc.channel import Deadline, poll_fds
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.progress import Progress

LINE = b"x" * 99 + b"\n"


class Pipe:
    """A pipe; somebody reads from it at a look, after so many looks in vain, or nobody ever does."""

    def __init__(self, reads_at: int | None = None) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.outlet = Outlet(self.writing, self.look)
        self.limits_s: list[float] = []
        self.taken = b""
        self.reads_at = reads_at

    def look(self, interest, limit_s):
        self.limits_s.append(limit_s)
        found = poll_fds(interest, 0.0)
        if not found and self.reads_at is not None and len(self.limits_s) >= self.reads_at:
            self.read()
            found = poll_fds(interest, 0.0)
        return found

    def fill(self) -> None:
        os.set_blocking(self.writing, False)
        try:
            while True:
                os.write(self.writing, b"f" * 4096)
        except BlockingIOError:
            os.set_blocking(self.writing, True)

    def read(self) -> bytes:
        try:
            while piece := os.read(self.reading, 1 << 16):
                self.taken += piece
        except BlockingIOError:
            pass
        return self.taken.lstrip(b"f")


@pytest.fixture
def make() -> Iterator:
    with ExitStack() as stack:

        def made(reads_at: int | None = None) -> Pipe:
            pipe = Pipe(reads_at)
            stack.callback(os.close, pipe.writing)
            stack.callback(os.close, pipe.reading)
            return pipe

        yield made


def test_what_a_reader_has_room_for_is_there_at_once(make):
    pipe = make()
    assert pipe.outlet.write(LINE) == 100
    assert pipe.read() == LINE


def test_while_a_run_has_the_signals_nothing_waits_and_what_finds_no_room_is_kept_in_order(make):
    pipe = make()
    pipe.fill()
    with Interrupts():
        for text in (b"one\n", b"two\n"):
            pipe.outlet.write(text)
        assert pipe.read() == b""
        pipe.outlet.pass_on()
    assert pipe.read() == b"one\ntwo\n"


def test_one_who_stands_still_is_waited_for_once_until_he_takes_something(make):
    pipe = make()
    pipe.fill()
    with Interrupts():
        for _ in range(3):
            pipe.outlet.write(b"line\n")
        assert [limit > 0.0 for limit in pipe.limits_s] == [True, False, False, False, False]
        pipe.read()
        pipe.outlet.write(b"line\n")
        pipe.fill()
        pipe.limits_s.clear()
        pipe.outlet.write(b"line\n")
    assert [limit > 0.0 for limit in pipe.limits_s] == [True]


def test_what_is_kept_is_bounded_and_what_was_left_out_is_said_where_it_is_missing(make):
    pipe = make()
    pipe.fill()
    count = (1 << 18) // len(LINE)
    with Interrupts():
        for _ in range(count + 7):
            pipe.outlet.write(LINE)
        pipe.read()
        pipe.outlet.pass_on()
        pipe.read()
        while pipe.outlet._kept:
            pipe.outlet.pass_on()
            pipe.read()
        pipe.outlet.write(b"last\n")
    assert pipe.read() == LINE * count + b"(7 lines were left out here: nobody read on)\nlast\n"


class Handover:
    """A lock of which somebody takes advantage in the moment before it is let go."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._lock, self._before = threading.Lock(), [before]

    def acquire(self, *, blocking: bool) -> bool:
        return self._lock.acquire(blocking=blocking)

    def release(self) -> None:
        if self._before:
            self._before.pop()()
        self._lock.release()


def test_what_another_thread_could_only_keep_is_handed_over_at_once(make):
    pipe = make()
    pipe.outlet._at_it = Handover(lambda: pipe.outlet.write(b"another\n"))
    pipe.outlet.write(b"one\n")
    assert pipe.read() == b"one\nanother\n"


def test_what_was_left_out_at_the_very_end_is_said_too(make):
    pipe = make()
    pipe.outlet._left_out = 1
    pipe.outlet.finish()
    assert pipe.read() == b"(1 line was left out here: nobody read on)\n"


def test_outside_of_a_run_printing_waits_for_the_reader(make):
    pipe = make(reads_at=4)
    pipe.fill()
    pipe.outlet.write(LINE * 3000)
    assert pipe.read() == LINE * 3000


def test_outside_of_a_run_an_interrupt_ends_the_wait(make):
    pipe = make()
    pipe.fill()

    def look(interest, limit_s):
        if len(pipe.limits_s) > 3:
            signal.raise_signal(signal.SIGINT)
        return Pipe.look(pipe, interest, limit_s)

    pipe.outlet._look = look
    with pytest.raises(KeyboardInterrupt):
        pipe.outlet.write(LINE)


def test_in_a_hurry_nobody_is_waited_for_long(make):
    pipe = make()
    pipe.fill()
    pipe.outlet.hurried = True
    pipe.outlet.write(LINE)
    pipe.outlet.finish()
    assert pipe.outlet._kept == LINE


def test_a_reader_who_has_gone_is_no_error_and_nothing_is_kept_for_him():
    reading, writing = os.pipe()
    os.close(reading)
    outlet = Outlet(writing)
    assert outlet.write(LINE) == 100
    assert outlet.write(LINE) == 100
    os.close(writing)
    assert outlet.failure is not None
    assert outlet.failure.errno == errno.EPIPE
    assert outlet._kept == b""


def test_a_full_disk_is_an_error_of_a_command_and_none_of_a_run():
    with Path("/dev/full").open("wb", buffering=0) as full:
        outlet = Outlet(full.fileno())
        with Interrupts():
            outlet.write(LINE)
        assert outlet.failure is not None
        outlet = Outlet(full.fileno())
        with pytest.raises(OSError, match="No space left"):
            outlet.write(LINE)
        assert outlet.write(LINE) == 100, "it is told once"


def shown(master: int, count: int) -> bytes:
    """What has come through a terminal, once it is so much."""
    found, deadline = b"", Deadline(20.0)
    while len(found) < count:
        assert poll_fds({master: select.POLLIN}, deadline.left_s()), found
        found += os.read(master, 100)
    return found


OPENS = pytest.mark.parametrize("opens", [True, False], ids=["opened once more", "only the shell's"])


def outlet_of(slave: int, *, opens: bool) -> Outlet:
    """That of a terminal, which somebody else may own (su), or which may have no name here (a container)."""
    with pytest.MonkeyPatch.context() as patched:
        if not opens:
            patched.setattr(os, "open", refused)
        return Outlet(slave)


def refused(*_: object) -> int:
    raise PermissionError


@OPENS
def test_a_terminal_whose_output_is_stopped_holds_nobody_up(opens):
    master, slave = pty.openpty()
    outlet = outlet_of(slave, opens=opens)
    try:
        assert os.get_blocking(slave), "its flags are also the shell's"
        outlet.write(b"seen")
        termios.tcflow(slave, termios.TCOOFF)
        with Interrupts():
            outlet.write(b" later")
        assert shown(master, 4) == b"seen"
        termios.tcflow(slave, termios.TCOON)
        outlet.write(b", then")
        assert shown(master, 12) == b" later, then"
    finally:
        outlet.close()
        os.close(slave)
        os.close(master)


@OPENS
def test_a_terminal_that_nobody_reads_from_holds_nobody_up(opens):
    master, slave = pty.openpty()
    outlet = outlet_of(slave, opens=opens)
    try:
        with Interrupts():
            for _ in range(100):
                outlet.write(LINE * 100)
        assert outlet._kept
        assert os.get_blocking(slave), "its flags are also the shell's"
    finally:
        outlet.close()
        os.close(slave)
        os.close(master)


@contextmanager
def standard(monkeypatch, path: str = "/dev/full", encoding: str = "utf-8") -> Iterator[None]:
    """Standard output into a file."""
    with Path(path).open("r+b", buffering=0) as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding, write_through=True))
        yield


def test_a_run_goes_on_and_that_is_told_once(monkeypatch, capsys):
    with standard(monkeypatch), outlets():
        show = going_on(click.echo)
        assert not nobody_reads()
        show("one")
        show("two")
        assert nobody_reads()
    told = capsys.readouterr().err
    assert told == "standard output takes no more (No space left on device); the run goes on\n"


def test_another_error_of_what_shows_is_passed_on():
    def show(what: str) -> None:
        raise OSError(errno.ENOSPC, what)

    with pytest.raises(OSError, match="elsewhere"):
        going_on(show)("elsewhere")


def test_the_view_of_a_run_waits_for_nobody_before_and_after_the_run_either(monkeypatch, make):
    pipe = make()
    with os.fdopen(os.dup(pipe.writing), "wb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, "utf-8", write_through=True))
        with outlets():
            pipe.fill()
            with never_waiting():
                click.echo("one")
            pipe.read()
            click.echo("two")
    assert pipe.read() == b"one\ntwo\n"


def test_what_found_no_room_is_shown_though_the_view_has_nothing_to_say_for_a_while(monkeypatch, make):
    pipe, progress = make(), Progress(wall_s=1.0, env_steps=10, env_steps_target=None)
    with os.fdopen(os.dup(pipe.writing), "wb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, "utf-8", write_through=True))
        with outlets(), showing() as show, Interrupts():
            show(progress)
            pipe.fill()
            click.echo("later")
            pipe.read()
            show(progress)
            assert pipe.read().endswith(b"later\n")


@contextmanager
def full(pipe, monkeypatch):
    """Standard output is a pipe that has no room."""
    with os.fdopen(os.dup(pipe.writing), "wb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, "utf-8", write_through=True))
        pipe.fill()
        with outlets():
            sys.stdout.buffer._look = pipe.look
            yield


@pytest.mark.parametrize(
    ("code", "interrupted", "kept"), [(130, False, False), (3, False, True), (3, True, False)], ids=str
)
def test_who_interrupted_a_run_is_not_kept_waiting_for_its_end_to_be_read(monkeypatch, make, code, interrupted, kept):
    """Also where it failed in the meantime."""
    pipe = make(reads_at=6)
    with full(pipe, monkeypatch):
        with Interrupts():
            if interrupted:
                signal.raise_signal(signal.SIGINT)
            pass_on()
        assert conclude("the end", {"exit_code": code, "error": "why"}) == code
        finish()
    assert (pipe.read() == b"the end\n") is kept


def test_what_went_wrong_is_told_though_nobody_reads_the_end(monkeypatch, make, capsys):
    pipe = make(reads_at=40)
    with full(pipe, monkeypatch):
        with Interrupts():
            click.echo("x" * (1 << 18))
        conclude("the end", {"exit_code": 3, "error": "why"})
        assert capsys.readouterr().err == "why\n"
        assert pipe.taken == b""
        finish()
    assert pipe.read().endswith(b"x\nthe end\n"), "however much was kept before it"


def test_characters_that_the_locale_lacks_are_escaped(monkeypatch, tmp_path):
    path = tmp_path / "out"
    path.touch()
    with standard(monkeypatch, str(path), "latin-1"), outlets():
        click.echo("é █")
    assert path.read_bytes() == b"\xe9 \\u2588\n"


def test_streams_that_are_closed_are_replaced(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with outlets():
        click.echo("into nothing")
        sys.stdout.close()
    assert sys.stdout is None
