"""Who is admitted when, who shares a forward pass, whose cache is kept: counters in, decisions out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.llm.messages import LEAST_TEMPERATURE, Failure, GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine has room for."""

    slots: int
    """Requests generated at the same time."""
    context_tokens: int
    """Most tokens of a request, prompt and completion together."""
    max_waiting: int
    """Requests that may wait for a slot."""
    prefill_tokens: int = 8192
    """Most tokens, padding included, that one forward pass takes in."""
    patience_passes: int = 8
    """Forward passes after which one who waits is admitted even alone."""


def refusal(request: GenerationRequest, limits: Limits, vocabulary: int) -> Failure | None:
    """Why a request can never be served, if so."""
    if not request.prompt_ids:
        return Failure("empty", "the prompt has no tokens", may_retry=False, about="prompt_ids")
    if len(request.prompt_ids) >= limits.context_tokens:
        return too_long(f"{len(request.prompt_ids)} tokens", limits)
    if not (min(request.prompt_ids) >= 0 and max(request.prompt_ids) < vocabulary):
        return Failure("refused", f"a token id is not in 0 to {vocabulary - 1}", may_retry=False, about="prompt_ids")
    if len(request.stop_ids) > vocabulary or any(not 0 <= token < vocabulary for token in request.stop_ids):
        detail = f"a stop id is not in 0 to {vocabulary - 1}, or there are more"
        return Failure("refused", detail, may_retry=False, about="stop_ids")
    if request.max_tokens < 1:
        detail = f"max_tokens is {request.max_tokens}, and must be at least 1"
        return Failure("refused", detail, may_retry=False, about="max_tokens")
    if not (request.temperature == 0 or request.temperature >= LEAST_TEMPERATURE):
        detail = f"temperature is {request.temperature:g}, and must be 0, or at least {LEAST_TEMPERATURE:g}"
        return Failure("refused", detail, may_retry=False, about="temperature")
    if not 0 < request.top_p <= 1:
        return Failure("refused", "top_p must be in (0, 1]", may_retry=False, about="top_p")
    return None


def too_long(tokens: str, limits: Limits) -> Failure:
    """That of a prompt without room for an answer; ``tokens`` says how many it has."""
    # "context length" is what clients of OpenAI's routes look for, verifiers among them.
    detail = f"a prompt of {tokens} leaves no room in the model's context length of {limits.context_tokens}"
    return Failure("too_long", detail, may_retry=False, about="prompt_ids")


def overflowing(asked: int, waiting: int, running: int, limits: Limits) -> bool:
    """Whether so many further requests are more than may wait."""
    free = max(0, limits.slots - running)
    return waiting + asked - free > limits.max_waiting


def token_limit(prompt_tokens: int, max_tokens: int, limits: Limits) -> int:
    """Most tokens of a completion: what was asked for, or what the context has room for."""
    return min(max_tokens, limits.context_tokens - prompt_tokens)


def admissions(waiting: int, running: int, passes_waited: int, limits: Limits) -> int:
    """How many of those who wait are admitted before the next forward pass.

    A prefill stops everybody else for one pass whether it brings one request or many, so single free slots are saved up
    until an eighth is free, or all who wait fit, or someone has been patient enough.
    """
    free = limits.slots - running
    fitting = min(waiting, free)
    if running and fitting < min(waiting, max(1, limits.slots // 8)) and passes_waited < limits.patience_passes:
        return 0
    return fitting


def sharing(new_tokens: Iterable[int], limits: Limits) -> int:
    """How many of the first requests share a forward pass, padded to the longest of them; at least one.

    Args:
        new_tokens: Of each request what the cache does not hold; read only as far as needed.
        limits: See there.
    """
    count = longest = 0
    for tokens in new_tokens:
        longest = max(longest, tokens)
        if count and longest * (count + 1) > limits.prefill_tokens:
            break
        count += 1
    return count


def compaction(finished: Sequence[int], running: int) -> tuple[list[int], list[int]]:
    """Moves that leave the rows that go on without gaps: (to, from); the last rows fill the gaps, in order."""
    gone = set(finished)
    left = running - len(gone)
    gaps = sorted(row for row in gone if row < left)
    movers = [row for row in range(left, running) if row not in gone]
    return gaps, movers


class Sessions:
    """Which kept row of the cache belongs to which session; the one used longest ago makes room.

    Args:
        rows: Rows that can be kept.
    """

    def __init__(self, rows: int) -> None:
        self._free = list(range(rows - 1, -1, -1))
        self._kept: OrderedDict[str, int] = OrderedDict()
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, session: str) -> int | None:
        """A row for what ``session`` has computed, replacing what it had; None if nothing can be kept."""
        row = self._kept.pop(session, None)
        if row is None and self._free:
            row = self._free.pop()
        if row is None and self._kept:
            _, row = self._kept.popitem(last=False)
            self.evictions += 1
        if row is not None:
            self._kept[session] = row
        return row

    def find(self, session: str) -> int | None:
        """The row of ``session``."""
        return self._kept.get(session)

    def take(self, session: str) -> int | None:
        """The row of ``session``, which is free again once it was read."""
        row = self._kept.pop(session, None)
        if row is not None:
            self._free.append(row)
        return row

    def clear(self) -> None:
        """Forget all of them."""
        self._free.extend(self._kept.values())
        self._kept.clear()
