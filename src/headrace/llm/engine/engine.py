"""The engine: takes requests, and with each step makes one forward pass for as many of them as have room."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from headrace.core.errors import ComponentError
from headrace.llm.engine.cache import KVCache, Shape
from headrace.llm.engine.forward import Span, build_forward
from headrace.llm.engine.loading import check_fit, put, read_published
from headrace.llm.engine.rows import Job, OnDone, Rows, Said
from headrace.llm.engine.sampling import draw
from headrace.llm.engine.scheduling import (
    Limits,
    Sessions,
    admissions,
    compaction,
    overflowing,
    refusal,
    sharing,
    token_limit,
)
from headrace.llm.engine.sizes import cache_rows
from headrace.llm.engine.waiting import Waiting
from headrace.llm.messages import Completion, Failure, GenerationRequest, PublishedWeights, ServedWeights


@dataclass(slots=True)
class EngineCounts:
    """What an engine has done since it was made, without what proves it."""

    requests: int = 0
    """Taken; = completed + failed + cancelled + those that run or wait."""
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    """Never taken."""
    passes: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Of the prompts, what the cache held from the session's last request."""
    prefix_hits: int = 0
    """Requests that reused something."""
    updates: int = 0


class Engine:
    """Continuous batching over a causal language model. Called from one thread at a time; starts none.

    The same calls in the same order, from the same weights, give the same bits, whatever was generated before (unless a
    session goes on from before). Running requests are compact rows; those that ended leave between two passes, in an order
    that depends on nothing but the calls.

    Args:
        model: A Hugging Face causal language model. Its weights stay its own, but linear layers that share an input are laid
            into one block of memory.
        slots: Requests generated at the same time.
        context_tokens: Most tokens of one, prompt and completion together.
        max_waiting: Requests that may wait for a slot.
        kv_reuse: Keep what was computed for a session until its next request; takes as much memory again.
        served: What the weights are that the model comes with.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int,
        context_tokens: int,
        max_waiting: int = 4096,
        kv_reuse: bool = True,
        served: ServedWeights | None = None,
    ) -> None:
        self.limits = Limits(slots=slots, context_tokens=context_tokens, max_waiting=max_waiting)
        self.served = served or ServedWeights(version=0, sha256="")
        self.counts = EngineCounts()
        self.proven = False
        """Whether a completion came about since it was made: the only proof that one can."""
        self._model = model.eval()
        self.shape = Shape.of(model)
        kept = slots if kv_reuse else 0
        rows = cache_rows(slots, kv_reuse=kv_reuse)
        self._scratch = rows - 1
        self._cache = KVCache(self.shape, rows, context_tokens)
        self._forward = build_forward(model, self._cache)
        self.vocabulary = self._forward.vocabulary
        """Token ids the model knows."""
        self.model_name = type(model).__name__
        """What transformers calls it."""
        self._rows = Rows(slots, kept, context_tokens)
        self._sessions = Sessions(kept)
        self._waiting = Waiting()
        self._ids: set[str] = set()
        self.wrong_weights = ""
        """What is wrong with the weights in memory, if a load went wrong in the middle."""

    @property
    def running(self) -> int:
        """Requests that are being generated."""
        return self._rows.running

    @property
    def waiting(self) -> int:
        """Requests that have no slot yet."""
        return len(self._waiting)

    @property
    def evictions(self) -> int:
        """Sessions whose kept tokens had to make room for another's."""
        return self._sessions.evictions

    def submit(self, requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
        """Take requests, in their order, all before those of later calls.

        Args:
            requests: Each with an id that nobody else in flight has.
            on_done: Called once for each that was not cancelled, during `step`, or at once for one that is refused.
        """
        busy = self.busy(len(requests), guest=any(request.guest for request in requests))
        if busy is not None:
            for place in range(len(requests)):
                self._refuse(place, busy, on_done)
            return
        for place, request in enumerate(requests):
            failure = self._objection(request)
            if failure is not None:
                self._refuse(place, failure, on_done)
                continue
            self.counts.requests += 1
            self._ids.add(request.id)
            self._waiting.add(Job(request, place, on_done))

    def busy(self, asked: int, *, guest: bool = False) -> Failure | None:
        """Why there is no room for so many further requests, if there is none: now, or ever."""
        most = self.limits.slots + self.limits.max_waiting
        if asked > most:
            told = f"{asked:,} completions in one call, of {most:,} at most: inference.slots and inference.max_waiting"
            return Failure("refused", told, may_retry=False)
        waiting, running = self._waiting.counted_for(guest, self._rows.jobs)
        if not overflowing(asked, waiting, running, self.limits):
            return None
        return Failure("busy", f"{waiting} requests wait already")

    def _objection(self, request: GenerationRequest) -> Failure | None:
        if self.wrong_weights:
            return Failure("weights", self.wrong_weights)
        if request.id in self._ids:
            return Failure("refused", f"a request called {request.id!r} is in flight already", may_retry=False)
        return refusal(request, self.limits, self.vocabulary)

    def _refuse(self, place: int, failure: Failure, on_done: OnDone) -> None:
        self.counts.refused += 1
        on_done(place, failure)

    def cancel(self, ids: Collection[str]) -> int:
        """Forget requests; nobody is told. How many of them there were."""
        gone = self._ids.intersection(ids)
        if not gone:
            return 0
        self._waiting.drop(gone)
        rows = [row for row, job in enumerate(self._rows.jobs) if job.request.id in gone]
        self._leave(rows)
        self._ids -= gone
        self.counts.cancelled += len(gone)
        return len(gone)

    def finish(self, request_id: str) -> Completion:
        """What there is of a request that runs is all of it: a text that ends it was said."""
        tokens, logprobs, versions = self.so_far(request_id)
        gone = self.cancel([request_id])
        self.counts.cancelled -= gone
        self.counts.completed += gone
        self.proven = True
        return Completion(token_ids=tokens, logprobs=logprobs, versions=versions, finish_reason="stop")

    def so_far(self, request_id: str) -> Said:
        """Tokens, log-probabilities and versions of a request in flight, for whoever streams; empty until it first runs."""
        for row, job in enumerate(self._rows.jobs):
            if job.request.id == request_id:
                return self._rows.so_far(row)
        return self._waiting.said(request_id)

    @torch.inference_mode()
    def step(self) -> bool:
        """One forward pass; False if there was nothing to do.

        Either it takes in prompts of those who waited, or it adds a token to everybody who runs.
        """
        if not (self.running or self.waiting):
            return False
        admitted = self._admit()
        first = self.running - admitted if admitted else 0
        logits = self._forward.logits(self._rows.span(first, self.shape.device))
        self.counts.passes += 1
        self._waiting.note_pass(self._rows.jobs)
        self._take(first, logits)
        return True

    def _admit(self) -> int:
        """Give those who are next a row each, and what the cache holds for them; how many."""
        if self._waiting.displaces(self._rows.jobs):
            self._waiting.put_back(self._rows.suspended())
            self._leave(range(self.running))
        waiting, patience = self._waiting.next(self._rows.jobs)
        allowed = admissions(len(waiting), self.running, patience, self.limits)
        count = sharing((self._unknown(job) for job in islice(waiting, allowed)), self.limits)
        to, source, known = [], [], []
        for _ in range(count):
            job = waiting.popleft()
            request = job.request
            prompt_tokens = len(request.prompt_ids)
            row = self._rows.admit(
                job, token_limit(prompt_tokens, request.max_tokens, self.limits), self.served.version
            )
            self.counts.prompt_tokens += 0 if job.said[0] else prompt_tokens
            kept = self._sessions.take(request.session)
            reused = self._rows.common(self.limits.slots + kept, request.prompt_ids) if kept is not None else 0
            if kept is not None and reused:
                to.append(row)
                source.append(self.limits.slots + kept)
                known.append(reused)
        self._cache.move(to, source, max(known, default=0))
        self._rows.cached[to] = known
        self.counts.prefix_hits += len(known)
        self.counts.reused_tokens += sum(known)
        return count

    def _unknown(self, job: Job) -> int:
        """Tokens that have to be passed."""
        kept = self._sessions.find(job.request.session)
        reused = 0 if kept is None else self._rows.common(self.limits.slots + kept, job.request.prompt_ids)
        return len(job.request.prompt_ids) + len(job.said[0]) - reused

    def _take(self, first: int, logits: torch.Tensor) -> None:
        """Draw a token for each row from ``first`` on, and let those that ended leave."""
        rows = self._rows
        tokens, logprobs = draw(logits, *rows.drawing(first, self.shape.device))
        self.counts.generated_tokens += rows.running - first
        ended = rows.append(first, tokens.cpu().numpy(), logprobs.cpu().numpy(), self.served.version).tolist()
        if not ended:
            return
        answers = [(rows.jobs[row], rows.ended(row)) for row in ended]
        wrong = [row for row, (_, answer) in zip(ended, answers, strict=True) if isinstance(answer, Failure)]
        self._keep([row for row in ended if row not in wrong])
        if wrong:
            self._cache.zero(wrong)
        self._leave(ended)
        self.counts.failed += len(wrong)
        self.counts.completed += len(ended) - len(wrong)
        self.proven = self.proven or len(ended) > len(wrong)
        self._ids.difference_update(job.request.id for job, _ in answers)
        for job, answer in answers:
            job.on_done(job.place, answer)

    def _keep(self, rows: Sequence[int]) -> None:
        """Copy what was computed for sessions to where it can stay."""
        source_of: dict[int, int] = {}
        for row in rows:
            if self._rows.keepable(row, self.served.version):
                kept = self._sessions.keep(self._rows.jobs[row].request.session)
                if kept is not None:
                    source_of[self.limits.slots + kept] = row  # one that was kept just now may have to go already
        if source_of:
            to, source = list(source_of), list(source_of.values())
            self._cache.move(to, source, int(self._rows.cached[source].max()))
            self._rows.copy_tokens(to, source)

    def _leave(self, ended: Sequence[int]) -> None:
        """Close the gaps that rows leave."""
        to, source = compaction(ended, self.running)
        if to:
            self._cache.move(to, source, int(self._rows.cached[source].max()))
        self._rows.compact(to, source, self.running - len(ended))

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probability of token i + 1 after tokens 0 to i; one fewer than tokens.

        Raises:
            ComponentError: More tokens than the context has, or one that the model does not know.
        """
        count = len(token_ids)
        known = count and min(token_ids) >= 0 and max(token_ids) < self.vocabulary
        if not known or count > self.limits.context_tokens:
            raise ComponentError(
                "the server cannot score these tokens",
                tokens=count,
                context_tokens=self.limits.context_tokens,
                vocabulary=self.vocabulary,
                fix="score at least one token, no more than the context has, all of the vocabulary",
            )
        tokens = torch.tensor(list(token_ids), device=self.shape.device)
        logits = self._forward.logits(Span.whole(tokens, self._scratch), every=True)
        logprobs = torch.log_softmax(logits[:-1].float(), dim=-1)
        return tuple(logprobs.gather(1, tokens[1:, None]).squeeze(1).tolist())

    def load(self, published: PublishedWeights) -> ServedWeights:
        """Serve other weights from now on. Running requests go on with what was computed for them; sessions begin anew.

        Raises:
            ComponentError: They are not the ones announced, do not fit the model (in both cases nothing was changed), or the
                checksum of what is in memory afterwards is another: then all that run or wait have failed, and every request
                is refused until a load succeeds. The same after whatever else goes wrong while they are put into memory.
            HeadraceError: They cannot be read.
        """
        tensors = read_published(published)
        check_fit(self._model, tensors)
        self._sessions.clear()
        # Until it is known what is in memory: whatever goes wrong from here on, some of it may be new.
        self.wrong_weights = f"the weights in memory are not those of version {published.version}"
        try:
            in_memory = put(self._model, tensors)
            if in_memory != published.sha256:
                raise ComponentError(
                    self.wrong_weights,
                    published=published.sha256,
                    in_memory=in_memory,
                    folder=published.folder,
                    fix="load them again, or start the server again; until then it refuses every request",
                )
            self.wrong_weights = ""
        finally:
            if self.wrong_weights:
                self._fail_all(Failure("weights", self.wrong_weights))
        self.served = ServedWeights(version=published.version, sha256=in_memory)
        self.counts.updates += 1
        return self.served

    def _fail_all(self, failure: Failure) -> None:
        """Answer whoever runs or waits, in this order."""
        jobs = [*self._rows.jobs, *self._waiting]
        self._leave(range(self.running))
        self._waiting = Waiting()
        self._ids.clear()
        self.counts.failed += len(jobs)
        for job in jobs:
            job.on_done(job.place, failure)
