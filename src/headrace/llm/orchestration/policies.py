"""Has a server serve a version of the policy, and proves that it does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import StaleWeights
from headrace.llm.messages import Generator, PublishedWeights
from headrace.llm.orchestration.presence import Presence, Wait
from headrace.llm.orchestration.times import Times
from headrace.telemetry.board import Activity


class PolicySource(Protocol):
    """Where published versions are found."""

    def newest(self) -> PublishedWeights | None:
        """The newest, if there is one.

        Raises:
            HeadraceError: It is damaged, or of another run.
        """
        ...


async def serve(
    generator: Generator, published: PublishedWeights, *, server: str, timeout_s: float, tolerance: float
) -> float:
    """Have ``generator`` serve these weights; returns by how much its log-probabilities of the probe differ, in nats.

    Args:
        generator: That serves.
        published: What it is to serve.
        server: Its id, for errors.
        timeout_s: For all of it.
        tolerance: Most by which they may differ.

    Raises:
        StaleWeights: It says, or shows, that it serves others.
        ComponentError: It refused, did not answer in time, or is gone.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    # The server may be replaced between the two calls, by one that began with newer weights: the proof is repeated once.
    difference, is_in_memory = await _proved(generator, published, server, deadline_s - loop.time())
    if not difference <= tolerance:
        difference, is_in_memory = await _proved(generator, published, server, max(0.0, deadline_s - loop.time()))
    if not difference <= tolerance:
        raise StaleWeights(
            f"{server} says that it serves version {published.version}, and its log-probabilities are not that version's",
            largest_difference_nats=difference,
            probe_tolerance=tolerance,
            probe_tokens=len(published.probe.token_ids),
            folder=published.folder,
            fix=_COMPUTES_OTHERWISE if is_in_memory else _KEPT,
        )
    return difference


_KEPT = "use a weight-update route that loads every tensor; the old weights, or some of them, are still served"
_COMPUTES_OTHERWISE = (
    "the weights in its memory have the published sha256, so it computes in another precision, or otherwise, than the "
    "trainer: raise supervision.probe_tolerance to what that explains"
)


async def _proved(
    generator: Generator, published: PublishedWeights, server: str, timeout_s: float
) -> tuple[float, bool]:
    """Have it serve these, and compare what it makes of the probe; the largest difference, and whether it told their sum."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    served = await generator.update_weights(published, timeout_s)
    told = {"version": served.version, "sha256": served.sha256}
    wanted = {"version": published.version, "sha256": published.sha256 if served.sha256 else ""}
    if told != wanted:
        raise StaleWeights(
            f"{server} was given version {published.version} and says that it serves version {served.version}",
            published_sha256=published.sha256,
            served_sha256=served.sha256,
            folder=published.folder,
            fix="see the log of the server: it took the request and did not load what it was given",
        )
    logprobs = await generator.score(published.probe.token_ids, max(0.0, deadline_s - loop.time()))
    return probe_difference(published.probe.logprobs, logprobs), bool(served.sha256)


def probe_difference(published: Sequence[float], served: Sequence[float]) -> float:
    """Largest difference of two lists of log-probabilities; infinite if they cannot be compared."""
    if len(published) != len(served):
        return math.inf
    differences = [abs(one - other) for one, other in zip(published, served, strict=True)]
    return max((math.inf if math.isnan(value) else value for value in differences), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Has one server serve policies, shows that on the board, and measures it."""

    generator: Generator
    server: str
    """Its id."""
    timeout_s: float
    tolerance: float
    presence: Presence
    times: Times

    async def serve(self, published: PublishedWeights, *, have: int) -> None:
        """See `serve`; ``have`` is the version that is served so far."""
        wait = Wait(
            activity=Activity.WAIT_WEIGHTS,
            on=self.server,
            need=published.version,
            have=have,
            timeout_s=self.timeout_s,
        )
        with self.presence.waiting(wait), self.times.of("time/update_weights"):
            difference = await serve(
                self.generator,
                published,
                server=self.server,
                timeout_s=self.timeout_s,
                tolerance=self.tolerance,
            )
        self.times.most("weights/probe_difference", difference)
