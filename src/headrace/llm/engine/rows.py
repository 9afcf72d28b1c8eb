"""State of the requests that are being generated, one array per fact, so that a pass touches no Python object per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.llm.engine.forward import Span
from headrace.llm.messages import Completion, Failure, FinishReason, GenerationRequest

OnDone = Callable[[int, Completion | Failure], None]
"""Called with the place of a request in its call, and its answer."""

Said = tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]
"""Tokens, log-probabilities and versions that were generated."""

_WORTH = 4
"""Of a prompt, at least one token in so many must be there already."""


@dataclass(slots=True)
class Job:
    """A request on its way."""

    request: GenerationRequest
    place: int
    on_done: OnDone
    waited_since: int = 0
    """Forward passes for its kind before it came."""
    said: Said = ((), (), ())
    """What was generated before it had to give way."""


class Rows:
    """Rows 0 to ``running`` are being generated, without gaps; further ones hold what sessions left.

    Args:
        slots: Rows that can be generated.
        kept: Further ones.
        columns: ``S``, tokens of each.
    """

    def __init__(self, slots: int, kept: int, columns: int) -> None:
        self.slots = slots
        self.columns = columns
        self.running = 0
        self.jobs: list[Job] = []
        self.tokens = np.zeros((slots + kept, columns), np.int64)
        self.cached = np.zeros(slots + kept, np.int64)
        """Tokens whose keys and values are in the cache."""
        self._lengths = np.zeros(slots, np.int64)
        self._prompts = np.zeros(slots, np.int64)
        self._limits = np.zeros(slots, np.int64)
        """Tokens, prompt included, at which a row ends."""
        self._temperatures = np.ones((slots, 1), np.float32)
        self._top_p = np.ones((slots, 1), np.float32)
        self._stops = np.full((slots, 1), -1, np.int64)
        self._uniforms = np.zeros((slots, columns))
        self._logprobs = np.zeros((slots, columns), np.float32)
        self._versions = np.zeros((slots, columns), np.int64)
        self._begun_with = np.zeros(slots, np.int64)

    def admit(self, job: Job, limit: int, version: int) -> int:
        """Take the next row for a request; the row. One that gave way goes on: its next token is drawn with the next number."""
        row, request = self.running, job.request
        said, logprobs, versions = job.said
        prompt = len(request.prompt_ids)
        length = prompt + len(said)
        self.jobs.append(job)
        self.running += 1
        self.tokens[row, :length] = (*request.prompt_ids, *said)
        self._logprobs[row, prompt:length], self._versions[row, prompt:length] = logprobs, versions
        self.cached[row] = 0
        self._lengths[row], self._prompts[row] = length, prompt
        self._limits[row] = prompt + limit
        self._temperatures[row] = request.temperature
        self._top_p[row] = request.top_p
        self._set_stops(row, request.stop_ids)
        self._uniforms[row, prompt : prompt + limit] = np.random.Generator(np.random.PCG64(request.seed)).random(limit)
        self._begun_with[row] = version
        return row

    def _set_stops(self, row: int, stop_ids: Sequence[int]) -> None:
        missing = len(stop_ids) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[row] = -1
        self._stops[row, : len(stop_ids)] = stop_ids

    def common(self, kept: int, prompt_ids: Sequence[int]) -> int:
        """First tokens of a prompt that a kept row holds; 0 if they are too few to be worth a copy.

        The last is never among them: it has to be passed again, for what comes after it.
        """
        reach = min(int(self.cached[kept]), len(prompt_ids) - 1)
        same = self.tokens[kept, :reach] == np.asarray(prompt_ids[:reach])
        held = reach if same.all() else int(same.argmin())
        return held if held * _WORTH >= len(prompt_ids) else 0

    def span(self, first: int, device: torch.device) -> Span:
        """What rows from ``first`` on have not in the cache yet."""
        rows = np.arange(first, self.running)
        starts, lengths = self.cached[first : self.running], self._lengths[first : self.running]
        counts = lengths - starts
        longest = int(counts.max())
        if longest == 1:
            steps, last, columns = np.zeros_like(rows), rows - first, starts
        else:
            ends = counts.cumsum()
            last = ends - 1
            steps = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
            columns = np.repeat(starts, counts) + steps
            rows = np.repeat(rows, counts)
        here = [torch.from_numpy(part).to(device) for part in (self.tokens[rows, columns], rows, columns, steps, last)]
        tokens, row_of, column_of, step_of, last_of = here
        return Span(
            tokens=tokens,
            rows=row_of,
            columns=column_of.clone(),
            steps=step_of,
            last=last_of,
            first_row=first,
            row_count=self.running - first,
            longest=longest,
            key_columns=int(lengths.max()),
        )

    def drawing(self, first: int, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor]:
        """Temperature [B, 1], top_p [B, 1] unless all are 1, uniform numbers [B] of rows from ``first`` on."""
        here = slice(first, self.running)
        top_p = self._top_p[here]
        uniform = self._uniforms[np.arange(first, self.running), self._lengths[here]]
        return (
            torch.from_numpy(self._temperatures[here]).to(device),
            None if (top_p == 1.0).all() else torch.from_numpy(top_p).to(device),
            torch.from_numpy(uniform).to(device),
        )

    def append(
        self, first: int, tokens: NDArray[np.int64], logprobs: NDArray[np.float32], version: int
    ) -> NDArray[np.int64]:
        """Add a token to each row from ``first`` on, all before it being in the cache; the rows that ended with it."""
        here, rows = slice(first, self.running), np.arange(first, self.running)
        lengths = self._lengths[here]
        self.cached[here] = lengths
        self.tokens[rows, lengths] = tokens
        self._logprobs[rows, lengths] = logprobs
        self._versions[rows, lengths] = version
        lengths += 1
        stopped = (self._stops[here] == tokens[:, None]).any(1)
        return first + np.flatnonzero(stopped | (lengths >= self._limits[here]) | ~np.isfinite(logprobs))

    def ended(self, row: int) -> Completion | Failure:
        """The answer of a row that ended."""
        tokens, logprobs, versions = self.so_far(row)
        if not np.isfinite(logprobs[-1]):
            return Failure("not_finite", "the model's scores are not finite", may_retry=False)
        reason: FinishReason = "stop" if tokens[-1] in self.jobs[row].request.stop_ids else "length"
        return Completion(token_ids=tokens, logprobs=logprobs, versions=versions, finish_reason=reason)

    def suspended(self) -> list[Job]:
        """All that run, with what they have said: to be admitted again later."""
        for row, job in enumerate(self.jobs):
            job.said = self.so_far(row)
        return list(self.jobs)

    def so_far(self, row: int) -> Said:
        """What was generated."""
        new = slice(int(self._prompts[row]), int(self._lengths[row]))
        return (
            tuple(self.tokens[row, new].tolist()),
            tuple(self._logprobs[row, new].tolist()),
            tuple(self._versions[row, new].tolist()),
        )

    def keepable(self, row: int, version: int) -> bool:
        """Whether another request can use what was computed for this one: it has a session, and no older weights."""
        return bool(self.jobs[row].request.session) and self._begun_with[row] == version

    def copy_tokens(self, to: Sequence[int], source: Sequence[int]) -> None:
        """Have rows say that they hold what others hold."""
        self.tokens[to] = self.tokens[source]
        self.cached[to] = self.cached[source]

    def compact(self, to: Sequence[int], source: Sequence[int], left: int) -> None:
        """Move rows that go on into the gaps; ``left`` go on."""
        if to:
            self.copy_tokens(to, source)
            for facts in self._facts():
                facts[to] = facts[source]
            for gap, mover in zip(to, source, strict=True):
                self.jobs[gap] = self.jobs[mover]
        del self.jobs[left:]
        self.running = left

    def _facts(self) -> tuple[NDArray[np.generic], ...]:
        return (
            self._lengths,
            self._prompts,
            self._limits,
            self._temperatures,
            self._top_p,
            self._stops,
            self._uniforms,
            self._logprobs,
            self._versions,
            self._begun_with,
        )
