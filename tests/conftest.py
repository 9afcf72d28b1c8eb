"""Fixtures shared by all tests."""

from __future__ import annotations

import signal
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headrace.core.clock import FakeClock
from headrace.testing import leaks

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored


@pytest.fixture(autouse=True)
def no_leaks(_interruptible: None) -> Iterator[None]:
    """Every test leaves behind no process, thread, pipe, socket, memfd or shared-memory block.

    Leftover processes are killed here: the interpreter would wait for some of them at exit, without a limit.
    """
    with leaks.no_leaks():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        metavar="K/N",
        help="of the tests marked table or learning only every N-th, from the K-th on; K counts from 0 and may exceed N",
    )
    parser.addoption(
        "--vllm", metavar="COMMAND", help="the vllm of its own virtual environment; runs the tests marked vllm"
    )
    parser.addoption(
        "--verifiers",
        metavar="PYTHON",
        action="append",
        help="an interpreter of its own virtual environment; runs the tests marked verifiers. May be named once per version",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cells as table, and leave out the other parts; names alone decide, so that each is run in its turn."""
    _thin_out(items)
    for foreign in ("vllm", "verifiers"):
        if config.getoption(f"--{foreign}") is None:
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(foreign)])
            items[:] = [item for item in items if not item.get_closest_marker(foreign)]
    part = config.getoption("--part")
    if part is None:
        return
    number, parts = map(int, part.split("/"))
    others = [
        item
        for item in items
        if (item.get_closest_marker("table") or item.get_closest_marker("learning"))
        and zlib.crc32(item.nodeid.encode()) % parts != number % parts
    ]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def _thin_out(items: list[pytest.Item]) -> None:
    """Of functions marked thin, keep one cell of n out of the tables, and at least one of each function."""
    cells: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thin") and not item.get_closest_marker("table"):
            cells.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for own in cells.values():
        marker = own[0].get_closest_marker("thin")
        assert marker is not None
        own.sort(key=lambda item: zlib.crc32(b"thin " + item.nodeid.encode()))
        for item in own[-(-len(own) // marker.args[0]) :]:
            item.add_marker("table")
