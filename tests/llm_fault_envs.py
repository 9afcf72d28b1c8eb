"""Environments that talk, and misbehave: for runs of the real components."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.envs.text.protocol import Judgement, Problem, Reply, Split, Transcript
from headrace.envs.text.reverse import ReverseEnvironment
from headrace.ipc.channel import poll_fds


class Troubled:
    """Reverse-text that does something else than judge, from the ``at``-th judgement of a process on; ``one``: of one problem."""

    evaluates_seen = False

    def __init__(self, fault: str = "", at: int = 40) -> None:
        self._inner = ReverseEnvironment(shortest=2, longest=3, problems=40, held_out=4)
        self.alphabet = self._inner.alphabet
        self._fault, self._left = fault, at

    def dataset(self, split: Split) -> Sequence[Problem]:
        return self._inner.dataset(split)

    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        return self._inner.step(problem, transcript)

    def demonstration(self, problem: Problem, seed: int) -> Transcript:
        return self._inner.demonstration(problem, seed)

    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        self._left -= 1
        if self._left <= 0 and self._fault == "hang":
            while True:
                poll_fds({}, 60.0)
        if self._left <= 0 and self._fault == "exit":
            sys.exit(4)
        if self._left <= 0 and self._fault == "leave":
            os._exit(0)
        if self._left == 0 and self._fault == "fork":
            os.fork()
        if self._left <= 0 and self._fault == "raise":
            raise ValueError("corpus damaged, page 7")
        if self._fault == "one" and problem.id == self.dataset("train")[3].id:
            raise ValueError("corpus damaged, page 7")
        judgement = self._inner.reward(problem, transcript)
        return replace(judgement, terms={"all": 0.5}) if self._fault == "equal" else judgement


def make(**kwargs: Any) -> Troubled:
    """One of them."""
    return Troubled(**kwargs)


def make_with_a_helper(marker: str, **kwargs: Any) -> Troubled:
    """Starts a program that would live on, and would hold what this process writes to."""
    helper = subprocess.Popen(["sleep", "1000"])
    Path(marker).write_text(str(helper.pid))
    return Troubled(**kwargs)


def make_only_for_the_warm_start(marker: str) -> Troubled:
    """Raises when it is built for the second time: the warm start's works, the orchestrator's does not."""
    if Path(marker).exists():
        raise ModuleNotFoundError("No module named 'nltk'", name="nltk")
    Path(marker).touch()
    return Troubled()
