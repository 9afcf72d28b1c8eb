"""Attempts at a rollout: as many end as were begun, whatever its time ends in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.envs.text.protocol import Message, Problem
from headrace.llm.config import RLConfig
from headrace.llm.messages import Failure
from headrace.llm.orchestration.rollout import RolloutPlayer, RolloutSpec
from orchestration_support import pause, run_in_fake_time


class Noting:
    def __init__(self) -> None:
        self.said: list[str] = []

    def attempt(self, spec: RolloutSpec) -> None:
        self.said.append("attempt")

    def attempt_failed(self, spec: RolloutSpec, failure: Failure, again: bool) -> None:
        self.said.append(f"{failure.reason}{', again' if again else ''}")

    def tokens(self, spec: RolloutSpec, versions: Sequence[int]) -> None:
        raise AssertionError("there are none")


class Opening:
    stop_ids = (9,)

    def opening(self, messages: Sequence[Message]) -> Sequence[int]:
        return (1, 2)


class Busy:
    """A server that says after ``takes_s`` that it is busy."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    async def complete(self, *_: object) -> Failure:
        await pause(self.takes_s)
        return Failure("server", "busy")


def played(takes_s: float, backoff_s: float) -> tuple[str, list[str]]:
    notes = Noting()
    section = {"rollout_timeout_s": 1.0, "backoff_s": backoff_s, "max_retries": 9}
    parts: dict[str, Any] = {"environment": None, "renderer": Opening(), "gatherer": Busy(takes_s), "presence": None}
    player = RolloutPlayer(config=RLConfig.model_validate({"orchestrator": section}), notes=notes, **parts)
    problem = Problem("p", (Message("user", "x"),))
    outcome = run_in_fake_time(player.play(RolloutSpec(group=0, sample=0, problem=problem)))
    assert isinstance(outcome, Failure)
    return outcome.reason, notes.said


@pytest.mark.parametrize(
    ("takes_s", "backoff_s", "reason", "said"),
    [
        (0.0, 2.0, "server", ["attempt", "server"]),
        (0.0, 0.4, "server", ["attempt", "server, again", "attempt", "server"]),
        (0.6, 0.1, "timeout", ["attempt", "server, again", "attempt", "timeout"]),
        (5.0, 0.1, "timeout", ["attempt", "timeout"]),
    ],
)
def test_every_attempt_fails_once(takes_s: float, backoff_s: float, reason: str, said: list[str]) -> None:
    """The time ends in a pause, which then is not begun, or in an attempt."""
    assert played(takes_s, backoff_s) == (reason, said)
