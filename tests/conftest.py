"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest
from hypothesis import HealthCheck, settings

from headrace.core.clock import FakeClock
from headrace.ipc.child import adopt_orphans
from headrace.testing import leaks

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session", autouse=True)
def _session_processes() -> None:
    """What starts once and stays is started here, so that no test is blamed for it."""
    resource_tracker.ensure_running()
    adopt_orphans()  # a grandchild whose parent is killed stays in the family, and is seen


@pytest.fixture(autouse=True)
def no_leaks(_session_processes: None) -> Iterator[None]:
    """Every test leaves behind no process, thread, pipe, socket, memfd or shared-memory block.

    Leftover processes are killed here: the interpreter would wait for some of them at exit, without a limit.
    """
    before = leaks.Holdings.now()
    yield
    added = leaks.settled(before, leaks.SETTLE_S)
    leaks.end_processes(before)
    assert not added, leaks.describe(added)
