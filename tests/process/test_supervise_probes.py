"""Looks at servers that answer, refuse, hang and drip, and at files; each look is bounded."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager

import pytest

from headrace.commands.config import ProgressConfig, ReadyConfig
from headrace.commands.probes import Prober, Seen, fetch, files_of, look_progress, look_ready
from headrace.ipc.channel import Deadline, poll_fds

pytestmark = pytest.mark.process

LIMIT_S = 60.0


@contextmanager
def server(answer, *, drip=False, heard=None):
    """A server that answers one request with these bytes; one by one and for ever if it drips. Its URL.

    Args:
        answer: The bytes.
        drip: Whether it does.
        heard: Given what was asked.
    """
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            listening.settimeout(LIMIT_S)
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(LIMIT_S)
                asked = connection.recv(65536)
                if heard is not None:
                    heard.append(asked.split(b"\r\n")[0])
                connection.sendall(answer)
                while drip and not over.wait(0.02):
                    connection.sendall(b"x")
                if not answer:
                    over.wait(LIMIT_S)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/health"
        finally:
            over.set()
            thread.join(LIMIT_S)


def http(body, status="200 OK", length=None):
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "good", "why"),
    [
        (http('{"status": "ok", "version": 3}'), True, ""),
        (http('{"status": "starting"}'), False, 'answered without what is expected: {"status": "starting"}'),
        (http("Not Found", "404 Not Found"), False, "answered 404: Not Found"),
        (http("<html>"), False, "answered without what is expected: <html>"),
        (b"220 mail.test ESMTP\r\n", False, "220 mail.test"),
    ],
    ids=["ok", "starting", "404", "no JSON", "no HTTP"],
)
def test_only_the_expected_answer_is_readiness(tmp_path, answer, good, why):
    with server(answer) as url:
        seen = look_ready(ReadyConfig(http=url, json_holds={"status": "ok"}), tmp_path)

    assert seen.good is good
    assert why in seen.why


@pytest.mark.parametrize(
    ("answer", "drip"), [(b"", False), (http("x", length=10_000_000), True)], ids=["says nothing", "drips"]
)
def test_a_server_that_hangs_costs_no_more_than_the_limit(answer, drip):
    with server(answer, drip=drip) as url, pytest.raises(TimeoutError):
        fetch(url, 0.3)


def test_what_a_url_cannot_hold_is_spelled_out(tmp_path):
    heard = []
    with server(http("ok"), heard=heard) as url:
        assert look_ready(ReadyConfig(http=f"{url}/prüfung/a b?key=ä&of=%20[1]"), tmp_path).good
    assert heard == [b"GET /health/pr%C3%BCfung/a%20b?key=%C3%A4&of=%20[1] HTTP/1.1"]


def test_a_number_is_read_from_metrics_and_json(tmp_path):
    with server(http("tokens_total 41\n")) as url:
        assert look_progress(ProgressConfig(http=url, metric="tokens_total"), tmp_path).number == 41.0
    with server(http('{"done": [{"steps": 7}]}')) as url:
        assert look_progress(ProgressConfig(http=url, json_path="done.0.steps"), tmp_path).number == 7.0
    asked = {"metric": "tokens_total", "pending": "running"}
    for body, idle in (
        ("tokens_total 4\nrunning 0\n", True),
        ("tokens_total 4\nrunning 2\n", False),
        ("tokens_total 4", False),
    ):
        with server(http(body)) as url:
            seen = look_progress(ProgressConfig(http=url, **asked), tmp_path)
        assert (seen.number, seen.idle) == (4.0, idle)
    assert seen.why.endswith("has no number running")
    with server(http("{}")) as url:
        seen = look_progress(ProgressConfig(http=url, json_path="done"), tmp_path)
    assert (seen.good, seen.why.endswith("has no number done")) == (False, True)


def test_files_are_counted_weighed_and_dated(tmp_path):
    for number, name in enumerate(("a-1", "a-2", "b")):
        (tmp_path / name).write_bytes(b"x" * 10 * (number + 1))
        os.utime(tmp_path / name, (1000 + number, 1000 + number))

    def number(by):
        return look_progress(ProgressConfig(file="a-*", by=by), tmp_path).number

    assert (number("count"), number("size"), number("mtime")) == (2.0, 30.0, 1001.0)
    assert look_ready(ReadyConfig(file="b"), tmp_path).good
    before = files_of("b", tmp_path)
    seen = look_ready(ReadyConfig(file="b"), tmp_path, before)
    assert (seen.good, seen.why) == (False, "nothing matches b that is newer than the process")
    os.utime(tmp_path / "b", (2000, 2000))
    assert look_ready(ReadyConfig(file="b"), tmp_path, before).good
    assert not look_ready(ReadyConfig(file="c"), tmp_path).good


@pytest.fixture
def wake():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def turned(prober, reader):
    """What the prober finds, once it does."""
    deadline = Deadline(LIMIT_S)
    while (seen := prober.turn()) is None:
        assert not deadline.passed
        poll_fds({reader: 1}, 0.02)
    return seen


def test_a_look_that_hangs_counts_as_no_and_is_not_repeated_meanwhile(wake):
    reader, writer = wake
    release, looks = threading.Event(), []

    def look():
        looks.append(1)
        release.wait(LIMIT_S)
        return Seen(good=True)

    prober = Prober(look, 0.0, 0.0, writer)
    seen = turned(prober, reader)
    assert (seen.good, seen.why) == (False, "a look took longer than 0 s")
    assert prober.turn() is None
    assert len(looks) == 1
    release.set()
    assert turned(prober, reader).good  # the next one; what the first has found came too late
    assert len(looks) >= 2
    prober._thread.join(LIMIT_S)


def test_the_last_look_begins_after_the_one_that_was_under_way(wake):
    begun, release, made = threading.Event(), threading.Event(), []

    def look():
        found = Seen(good=bool(made))
        begun.set()
        release.wait(LIMIT_S)
        return found

    prober = Prober(look, LIMIT_S, LIMIT_S, wake[1])
    assert prober.turn() is None
    assert begun.wait(LIMIT_S)
    made.append("in the last moment")
    release.set()
    assert prober.last().good


def test_the_last_look_takes_no_longer_than_any_other(wake):
    release = threading.Event()
    prober = Prober(lambda: Seen(good=release.wait(LIMIT_S)), 0.0, 0.0, wake[1])
    assert prober.last() == Seen(good=False, why="a look took longer than 0 s")
    release.set()
    prober._thread.join(LIMIT_S)


def test_a_look_that_raises_is_no_sign(wake):
    reader, writer = wake

    def look():
        raise RuntimeError("no such metric")

    assert turned(Prober(look, 5.0, 60.0, writer), reader) == Seen(good=False, why="RuntimeError: no such metric")
