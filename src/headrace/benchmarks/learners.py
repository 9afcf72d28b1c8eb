"""Updates a second of ready batches, and PPO's environment steps a second, ours beside peers'.

All sides of a work are opened first, each in a process of its own on the same processors, and then measured in short windows, one after
the other, round by round: whatever else the machine does falls on all of them. Nothing is learned, as what is drawn is noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headrace.benchmarks.ours import updating
from headrace.benchmarks.processes import SideFailedError, SideProcess, opened
from headrace.benchmarks.report import Row, compare, take_turns
from headrace.benchmarks.sides import PLAIN, SBX, ZOO, Found
from headrace.benchmarks.tasks import BFLOAT16
from headrace.benchmarks.work import ACTIONS, BATCH, HIDDEN, OBSERVATIONS
from headrace.core.errors import ConfigError

WORKS = ("td3", "sac", "dqn", "ppo")
OURS, HALVED = "headrace", f"headrace, {BFLOAT16}"
COMPILED = "headrace, compiled"
AHEAD = "headrace, async, one policy behind"
ONE_AHEAD: Mapping[str, object] = {"run.schedule": "async", "rollout.max_policy_lag": 1, "learn.threads": 1}
"""Collecting goes on while the policy before is learned from; it has the other processor."""
ONE_A_CALL, MANY_A_CALL = f"{SBX}, 1 a call", f"{SBX}, 100 a call"

PROMISED: Mapping[tuple[str, str, str], float] = {
    ("td3", OURS, ZOO): 1.5,
    ("td3", OURS, ONE_A_CALL): 1.0,
    ("td3", OURS, MANY_A_CALL): 0.95,
    ("td3", HALVED, ZOO): 2.1,
    ("sac", OURS, ZOO): 1.5,
    ("dqn", OURS, ZOO): 1.6,
    ("ppo", OURS, ZOO): 4.0,
    ("ppo", COMPILED, ZOO): 4.0,
}
"""Least ratio on one thread, by work, our side and the peer."""

_DRAWS = "it draws its batches itself"
_NO_TARGET = "its target network does not move in what is measured"
UNEQUAL: Mapping[tuple[str, str], str] = {
    ("td3", ZOO): _DRAWS,
    ("sac", ZOO): _DRAWS,
    ("dqn", ZOO): f"{_DRAWS}; {_NO_TARGET}",
    (
        "td3",
        SBX,
    ): f"{_DRAWS}; it moves its targets with every update, and its actor learns from the lower of both critics",
    ("sac", SBX): _DRAWS,
    ("dqn", SBX): f"{_DRAWS}; it does not shorten gradients; {_NO_TARGET}",
    ("dqn", PLAIN): _NO_TARGET,
    ("ppo", ZOO): "it keeps no record; rates and clipping are constant",
    ("ppo", PLAIN): "it keeps no record; an episode that is cut off counts as ended",
}
"""What was not the same work as ours, by work and peer."""
_PATIENCE = 30.0
"""Times the window's length in which a turn must be over."""


@dataclass(frozen=True)
class Side:
    """Who is measured."""

    name: str
    module: str
    ours: bool = False
    further: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Of the request it is opened with."""


def sides_of(work: str, threads: int = 1) -> list[Side]:
    """All there are, whether installed or not; ours first."""
    home = "headrace.benchmarks"
    single = Side(OURS, f"{home}.ours", ours=True, further={"precision": "float32"})
    zoo, plain = Side(ZOO, f"{home}.updates"), Side(PLAIN, f"{home}.plain")
    if work == "ppo":
        ahead = replace(single, name=AHEAD, further={**single.further, "settings": ONE_AHEAD})
        compiled = replace(single, name=COMPILED, further={**single.further, "settings": {"learn.compiled": True}})
        return [single, *([compiled] if threads == 1 else [ahead]), zoo, plain]
    halved = replace(single, name=HALVED, further={"precision": BFLOAT16})
    one, many = (
        Side(name, f"{home}.updates", further={"per_call": calls})
        for name, calls in ((ONE_A_CALL, 1), (MANY_A_CALL, 100))
    )
    return [single, halved, zoo, one, many, plain]


class Comparison:
    """Measures one work after the other.

    Args:
        pythons: Interpreters that peers are looked for in, in this order; ours are run by this one.
        rounds: Windows of each side that count.
        seconds: Of each window.
        tell: Told what is being done.
    """

    def __init__(self, pythons: Sequence[Path], rounds: int, seconds: float, tell: Callable[[str], None]) -> None:
        self._pythons, self._rounds, self._seconds, self._tell = pythons, rounds, seconds, tell
        self.absent: dict[str, str] = {}
        """Side and work to the reason why it has no figures there."""

    def rows(self, work: str, threads: int) -> list[Row]:
        """Each of ours beside each peer; nothing where ours are not there."""
        with ExitStack() as stack:
            ready: dict[Side, SideProcess] = {}
            for side in sides_of(work, threads):
                if not side.ours and not any(one.ours for one in ready):
                    return []
                if (process := self._open(stack, side, work, threads)) is not None:
                    ready[side] = process
            self._tell(f"{work}, {_threads(threads)}: {', '.join(side.name for side in ready)} in turns")
            turns = (partial(self._turn, side, process, work) for side, process in ready.items())
            found = dict(zip(ready, take_turns(self._rounds, *turns), strict=True))
            versions = {side.name: process.version for side, process in ready.items()}
        whole = {side: [one for one in turns if one is not None] for side, turns in found.items()}
        return list(
            rows(work, threads, {side: told for side, told in whole.items() if len(told) == self._rounds}, versions)
        )

    def _open(self, stack: ExitStack, side: Side, work: str, threads: int) -> SideProcess | None:
        request = {"side": side.name, "module": side.module, "ours": side.ours, "work": work, **side.further}
        try:
            if side.ours:
                updating(work, str(side.further["precision"]))
            self._tell(f"{work}, {_threads(threads)}: opening {side.name}")
            pythons = [Path(sys.executable)] if side.ours else self._pythons
            return stack.enter_context(opened(pythons, request, threads))
        except ConfigError as error:
            self.absent[f"{side.name}, {work}"] = error.what
        except SideFailedError as error:
            self.absent[f"{side.name}, {work}"] = str(error)
        return None

    def _turn(self, side: Side, process: SideProcess, work: str) -> Found | None:
        """None: it has failed, now or before; the others go on."""
        if f"{side.name}, {work}" in self.absent:
            return None
        try:
            return process.ask({"seconds": self._seconds}, _PATIENCE * max(1.0, self._seconds))
        except SideFailedError as error:
            self.absent[f"{side.name}, {work}"] = str(error)
            return None


def rows(work: str, threads: int, found: Mapping[Side, Sequence[Found]], versions: Mapping[str, str]) -> Iterator[Row]:
    """The table of what was found, each of ours beside each peer.

    Args:
        work: Of all of it.
        threads: Of each side.
        found: ``rate`` and ``cpu_rate`` of every round, by side.
        versions: By the side's name.
    """
    shape = f"batch {BATCH}, {len(HIDDEN)}x{HIDDEN[0]}, obs {OBSERVATIONS}, act {ACTIONS}"
    of, unit = ("CartPole-v1, 8 environments, 64x64", "steps/s") if work == "ppo" else (shape, "updates/s")
    for ours in (side for side in found if side.ours):
        for peer in (side for side in found if not side.ours):
            rates = [one["rate"] for one in found[ours]], [one["rate"] for one in found[peer]]
            row = compare(
                f"{work}, {ours.name}, {_threads(threads)}", of, (peer.name, versions[peer.name]), rates, unit
            )
            promised = PROMISED.get((work, ours.name, peer.name)) if threads == 1 else None
            yield replace(row, target=promised, note=_note(work, peer.name, found[ours], found[peer]))


def _note(work: str, peer: str, ours: Sequence[Found], theirs: Sequence[Found]) -> str:
    """What was not equal, and the ratio by processor time, which others on the machine move less."""
    told = []
    rates: list[Any] = [[one["cpu_rate"] for one in side] for side in (ours, theirs)]
    if all(rate is not None for side in rates for rate in side):
        told.append(f"{median(rates[0]) / median(rates[1]):.2f} per CPU second")
    if unequal := UNEQUAL.get((work, peer.partition(",")[0])):
        told.append(f"not equal: {unequal}")
    return f"beside {peer} {'; '.join(told)}" if told else ""


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"
