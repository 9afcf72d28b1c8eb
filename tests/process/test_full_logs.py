"""Where the disk of the logs is full nobody fails for what it prints, and why somebody fails is told all the same."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ConfigError, HeadraceError, ObservationMismatch
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import Failed
from headrace.ipc.forkserver import ForkServer
from headrace.ipc.printing import Printed, stream
from headrace.supervision.child import tail
from headrace.supervision.messages import Report
from run_support import Runs

pytestmark = pytest.mark.process

LIMIT_S = 60.0
CHILDREN = """
import os, sys
from headrace.core.errors import ConfigError, ObservationMismatch
from headrace.supervision.messages import Report
print("at the import")
print("at the import, with no end of the line", end="")

def talks(context):
    for _ in range(1000):
        print("x" * 100)
        print("y" * 100, end="", file=sys.stderr, flush=True)
    context.control.send(Report("talked", {}), 5.0)

def mismatch(context):
    raise ObservationMismatch("lane 3 does not fit", lane=3, fix="fix the environment")

def wrong(context):
    raise ConfigError("a setting is wrong", fix="change it")

def raises(context):
    raise ValueError("not ours")

def leaves(context):
    sys.exit("no executable")

def closes(context):
    sys.stdout = sys.stderr = None
    raise ValueError("not ours")
"""


@pytest.fixture
def end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[int, list[Any]]]]:
    """Run a child, and its fork server, on full disks; its exit code and what it has said."""
    (tmp_path / "full_children.py").write_text(CHILDREN)
    monkeypatch.syspath_prepend(tmp_path)
    preload = ["full_children", "no_such_module_at_all"]
    with ForkServer(preload, {}, "/dev/full") as server:

        def run(name: str) -> tuple[int, list[Any]]:
            target, stacks = f"full_children:{name}", tmp_path / "0.stacks"
            child = server.spawn("child-0", target, None, {}, "/dev/full", stacks)
            deadline = Deadline(LIMIT_S)
            while child.exit_code is None:
                assert not deadline.passed
                poll_fds(dict.fromkeys(server.fds(), select.POLLIN), deadline.left_s())
                server.collect()
            said = child.control.receive_all()
            child.close()
            assert list(server.failed_imports) == ["no_such_module_at_all"]
            assert server.error is None
            return child.exit_code, said

        yield run


def test_who_prints_goes_on(end):
    assert end("talks") == (0, [Report("talked", {})])


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("mismatch", ObservationMismatch, "lane 3 does not fit"),
        ("wrong", ConfigError, "a setting is wrong"),
        ("raises", HeadraceError, "child-0 raised ValueError"),
        ("leaves", HeadraceError, "child-0 raised SystemExit"),
        ("closes", HeadraceError, "child-0 raised ValueError"),
    ],
)
def test_who_fails_says_why(end, name: str, kind: type[HeadraceError], what: str):
    exit_code, [failed] = end(name)
    assert exit_code == 1
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, kind)
    assert failed.error.what == what


def test_what_is_missing_is_counted_where_it_goes_on(tmp_path: Path):
    log = tmp_path / "log"
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        out = stream(fd)
        out.write("eleven here\n")
        out.write("again\n")
        room = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(room, fd)
        os.close(room)
        out.write("there is room\nand more\n")
        out.close()
    finally:
        os.close(fd)
    missing = "(18 bytes are missing here: they could not be written)\n"
    assert log.read_text() == f"{missing}there is room\nand more\n"


def test_what_is_missing_is_counted_on_where_even_that_finds_no_room():
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(65_536))
        printed = Printed(writer)
        assert [printed.write(b"lost"), printed.write(b"lost too")] == [4, 8]
        assert printed.lost_bytes == 12
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.read(reader, 65_536)
        printed.write(b"there is room\n")
        assert os.read(reader, 200) == b"(12 bytes are missing here: they could not be written)\nthere is room\n"
        assert printed.lost_bytes == 0
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("settings", [{"run__schedule": "inline"}, {"run__schedule": "async"}, {"env__workers": 2}])
def test_an_environment_that_prints_costs_a_run_nothing(runs: Runs, settings: dict[str, Any]):
    run = runs.train("run_envs:talker", **settings)
    assert run.completed, run.summary["error"]
    assert not any(run.summary["faults"].values())
    assert run.summary["restarts"] == 0


@pytest.mark.parametrize("schedule", ["inline", "async"])
def test_a_broken_contract_ends_a_run_at_once_and_is_named(runs: Runs, schedule: str):
    run = runs.train("run_envs:talker", kwargs={"fault": "wrong_shape", "at": 40}, run__schedule=schedule)
    assert run.summary["exit_code"] == 1
    assert run.summary["error"].startswith("[ENV-002]")
    assert run.summary["restarts"] == 0


def test_of_a_log_without_an_end_only_so_much_is_read():
    assert sum(map(len, tail(Path("/dev/full"), 0))) <= 1 << 14
