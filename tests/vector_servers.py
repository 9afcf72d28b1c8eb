"""Vector environments in tests share one warm fork server: to start one takes most of what such a test takes."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.forkserver import Child, ForkServer
from headrace.vector import crew, opening

_END_S = 10.0
_ENVIRONMENTS = ("vector_envs", "told_envs", "vector_cases")


class Guest:
    """One borrower's view of a fork server that stays: it sees its own children, and ends them when it is closed.

    Args:
        server: The common one.
        unseen: Children that have ended, and whose borrower has not asked since; of all borrowers.
    """

    def __init__(self, server: ForkServer, unseen: list[Child]) -> None:
        self._server, self._unseen = server, unseen
        self._own: list[Child] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def spawn(self, *args: Any) -> Child:
        """See `ForkServer.spawn`."""
        child = self._server.spawn(*args)
        self._own.append(child)
        return child

    def collect(self) -> list[Child]:
        """See `ForkServer.collect`."""
        self._unseen += self._server.collect()
        ended = [child for child in self._unseen if child in self._own]
        for child in ended:
            self._unseen.remove(child)
            self._own.remove(child)
        return ended

    def close(self) -> None:
        """End its children, and what they have started; the server's owner closes that."""
        for child in self._own:
            child.kill()
        deadline, closed = Deadline(_END_S), list(self._own)
        while self._own:
            self.collect()
            assert not deadline.passed, f"children outlive SIGKILL: {self._own}"
            if self._own:
                poll_fds(dict.fromkeys(self._server.fds(), select.POLLIN), 0.1)
        for child in closed:
            child.close()


@pytest.fixture(scope="session")
def common_server() -> Iterator[ForkServer]:
    """It has imported what workers need, and what most of their environments are."""
    modules = ("headrace.vector.worker", "headrace.vector.trial", "gymnasium.envs.registration", *_ENVIRONMENTS)
    with ForkServer(modules, dict.fromkeys(crew._CAPPED, "1"), os.devnull) as server:
        server._read_link()
        yield server


@pytest.fixture
def lent_server(common_server: ForkServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vector environments of a test use the common one; of those marked ``own_server`` each starts its own."""
    if request.node.get_closest_marker("own_server"):
        return
    unseen: list[Child] = []

    def lent(_preload: Sequence[str], _start_s: float) -> Guest:
        return Guest(common_server, unseen)

    monkeypatch.setattr(opening, "start_server", lent)
