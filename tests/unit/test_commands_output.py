"""What a program prints: kept, searched for signs, passed on, and known to be over."""

from __future__ import annotations

import os
from itertools import count
from types import SimpleNamespace

import pytest

from headrace.commands import output as module
from headrace.commands.config import ProcessConfig
from headrace.commands.output import Output
from headrace.commands.vigil import Limits, Vigil
from headrace.ipc.channel import Channel


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    ends = [reader, writer]
    yield ends
    for fd in ends:
        os.close(fd)


def output_of(pipe, log, **process):
    vigil = Vigil(Limits(start_s=60.0, progress_s=60.0), 0.0)
    return Output(pipe[0], log.fileno(), ProcessConfig(command=["x"], **process), vigil), vigil


def test_lines_are_signs(pipe, tmp_path):
    signs = {"ready": {"log": "serving"}, "progress": {"log": r"step (\d+)"}, "fail_pattern": "out of memory"}
    with (tmp_path / "log").open("wb") as log:
        output, vigil = output_of(pipe, log, **signs)
        os.write(pipe[1], b"loading\n")
        output.read()
        assert (vigil.ready_s, vigil.signs, output.failed_by) == (None, 0, None)
        os.write(pipe[1], b"serving\nstep 1\nstep 2\nstep 2\nCUDA out of memory\nout of memory again\nstep 3")
        output.read()
        assert vigil.ready_s is not None
        assert (vigil.signs, output.failed_by, output.lines) == (1, "CUDA out of memory", 7)
        output.read_last()
        assert (vigil.signs, output.lines) == (2, 8)
    assert (tmp_path / "log").read_bytes().endswith(b"again\nstep 3")


def test_an_output_that_was_closed_is_not_waited_for(pipe, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        output, _ = output_of(pipe, log)
        os.write(pipe[1], b"last words\n")
        output.read()
        assert not output.closed
        os.close(pipe.pop())
        output.read()
        assert output.closed


def test_a_flood_is_read_for_a_moment_only_and_its_end_whole(pipe, tmp_path, monkeypatch):
    seconds = count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    monkeypatch.setattr(module, "_READ_BYTES", 4)
    with (tmp_path / "log").open("wb") as log:
        output, _ = output_of(pipe, log)
        os.write(pipe[1], b"y\n" * 10)
        output.read()
        assert output.lines == 2
        output.read_last()
        assert output.lines == 10


def test_lines_that_find_no_room_on_the_way_are_counted(pipe, tmp_path):
    ours, theirs = Channel.pair()
    with ours, theirs, (tmp_path / "log").open("wb") as log:
        output, _ = output_of(pipe, log)
        for _ in range(60):
            os.write(pipe[1], b"".join(b"%07d %s\n" % (number, b"x" * 200) for number in range(250)))
            output.read()
            output.pass_on(ours)
        taken, left_out = 0, 0
        while (messages := theirs.receive_all()) or output.pass_on(ours):
            taken += sum(len(message.facts["lines"]) for message in messages)
            left_out += sum(message.facts["left_out"] for message in messages)
        assert taken + left_out == output.lines == 60 * 250
        assert left_out > 0
