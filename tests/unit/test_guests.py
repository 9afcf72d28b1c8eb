"""What runs in an interpreter of its own, and has to notice that nobody is left to ask anything."""

from __future__ import annotations

import asyncio
import os
import signal
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headrace.envs import guest as parents_side
from headrace.envs.cage2 import cyborg_child
from headrace.envs.text.verifiers import guest

PARENT, FOSTER_PARENT = 70, 1


class Left(Exception):
    """The process would be gone."""


class Watched:
    """A watcher whose polls and parents are made up; what it does is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, hangs_up_at: int, orphan_at: int) -> None:
        self.done: list[Any] = []
        self.looks = 0
        self._hangs_up_at, self._orphan_at = hangs_up_at, orphan_at
        system = SimpleNamespace(
            getppid=lambda: PARENT if self.looks < orphan_at else FOSTER_PARENT, _exit=self._leave, killpg=self._leave
        )
        monkeypatch.setattr(module, "os", system)
        monkeypatch.setattr(
            module, "select", SimpleNamespace(poll=lambda: SimpleNamespace(register=_ignore, poll=self._poll))
        )
        event = SimpleNamespace(wait=lambda limit_s: self.done.append(("waited", limit_s)))
        monkeypatch.setattr(module, "threading", SimpleNamespace(Event=lambda: event))
        with pytest.raises(Left):
            module.leave_with_the_parent(3, PARENT)

    def _poll(self, _ms: int) -> list[Any]:
        self.looks += 1
        return [(3, "hung up")] if self.looks == self._hangs_up_at else []

    def _leave(self, *how: Any) -> None:
        self.done.append(how)
        raise Left


def _ignore(*_: object) -> None:
    pass


NEVER = 10**9


@pytest.mark.parametrize("module", [guest, cyborg_child])
@pytest.mark.parametrize(("hangs_up_at", "orphan_at"), [(3, NEVER), (NEVER, 3)])
def test_it_leaves_when_the_requests_hang_up_or_the_parent_is_another(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, hangs_up_at: int, orphan_at: int
) -> None:
    """The second is all that macOS tells."""
    assert Watched(monkeypatch, module, hangs_up_at, orphan_at).looks == 3


def test_an_end_in_order_has_its_time_and_then_everything_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, guest, hangs_up_at=1, orphan_at=NEVER)
    assert watched.done == [("waited", guest._LEAVE_S), (0, signal.SIGKILL)]
    assert 0 < guest._LEAVE_S < parents_side._END_S


@pytest.mark.parametrize("reads", [True, False])
def test_the_environment_is_closed_whether_or_not_anybody_reads_the_answer(
    monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    closed: list[bool] = []

    class Piece:
        separate, most_sessions = True, 1

        async def close(self) -> None:
            closed.append(True)

    async def piece_of(**_: Any) -> Piece:
        return Piece()

    monkeypatch.setattr(guest, "piece_of", piece_of)
    requests, ours = os.pipe()
    answers, theirs = os.pipe()
    os.write(ours, b'{"op": "drop", "session": 7}\n')  # one that it does not know: the answer is an error
    os.close(ours)
    if not reads:
        os.close(answers)
    try:
        assert asyncio.run(guest.serve(requests, theirs, {})) == 0
        assert not reads or os.read(answers, 9) == b'{"separat'
    finally:
        for descriptor in (requests, answers) if reads else (requests,):
            os.close(descriptor)
    assert closed == [True]
