"""The orchestrator: takes policies, keeps rollouts running, ships batches, evaluates. The same object in every schedule.

It is driven by `Orchestrator.run`, once. Where its completions come from, where its batches go and where policies appear is
handed in; time is the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ComponentStalled, DataLossError, StaleWeights
from headrace.envs.text.asking import problems_of
from headrace.envs.text.protocol import TextEnvironment
from headrace.llm.config import RLConfig
from headrace.llm.messages import Batch, Completion, Failure, Generator, PublishedWeights
from headrace.llm.orchestration.books import Place, RolloutBooks
from headrace.llm.orchestration.collecting import Collecting, Tell
from headrace.llm.orchestration.examining import Examiner
from headrace.llm.orchestration.gatherer import Gatherer
from headrace.llm.orchestration.groups import Advantages, samples_of
from headrace.llm.orchestration.policies import PolicySource, Serving
from headrace.llm.orchestration.presence import Presence, Wait
from headrace.llm.orchestration.problems import Problems, build_curriculum, check_split
from headrace.llm.orchestration.rollout import RolloutPlayer, TextRenderer
from headrace.llm.orchestration.tallies import Tally, batch_metrics
from headrace.llm.orchestration.times import Times
from headrace.llm.orchestration.wakeup import Wakeup, unless_stopped
from headrace.telemetry.board import Activity

_LOOK_S = 0.5  # most seconds between two looks for a policy, whether or not anybody said that there is one
_PATIENCE = 0.9  # share of a rollout's time in which something must be answered: later, all would have failed by theirs
_LEAVE_S = 5.0  # for rollouts that were cancelled to notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an orchestrator works with."""

    generator: Generator
    environment: TextEnvironment
    renderer: TextRenderer
    ship: Callable[[Batch], Awaitable[None]]
    """Hands a batch to the trainer."""
    policies: PolicySource
    advantages: Advantages
    tell: Tell
    presence: Presence
    server: str = "inference"
    """Id of the component that generates."""
    trainer: str = "trainer"
    """Id of the one that trains."""


class Orchestrator:
    """One run of rollouts.

    Args:
        config: Of the run.
        run_id: Of the run; every batch carries it.
        around: What it works with.
        carry: What the batch before the first one of this incarnation carried; None: the run begins.

    Raises:
        ConfigError: The problems cannot be used.
    """

    def __init__(
        self, config: RLConfig, run_id: str, around: Surroundings, carry: Mapping[str, Any] | None = None
    ) -> None:
        self._config, self._run_id, self._around = config, run_id, around
        self._wakeup = Wakeup()
        self.books = RolloutBooks.from_json(carry["books"]) if carry else RolloutBooks()
        section = config.orchestrator
        self._gatherer = Gatherer(
            around.generator,
            rounds=not section.max_policy_lag,
            at_once=config.inference.slots,
            answered=self._answered,
        )
        train = problems_of(around.environment, "train")
        held_out = problems_of(around.environment, "eval")
        if not getattr(around.environment, "evaluates_seen", False):  # the environment's own word that it is meant so
            check_split(train, held_out)
        problems = Problems(train, config.run.seed, build_curriculum(section.curriculum, [one.id for one in train]))
        self._collecting = Collecting(config, problems, self.books, self._gatherer, around.tell, self._wakeup.set)
        self._player = RolloutPlayer(
            config=config,
            environment=around.environment,
            renderer=around.renderer,
            gatherer=self._gatherer,
            presence=around.presence,
            notes=self._collecting,
        )
        self._collecting.player = self._player
        self._policy: PublishedWeights | None = None
        self._times = Times()
        self._serving = Serving(
            generator=around.generator,
            server=around.server,
            timeout_s=config.deadlines.weights_s,
            tolerance=config.probe_tolerance,
            presence=around.presence,
            times=self._times,
        )
        self._examiner = Examiner(config, held_out, self._player, self._serving, around.tell, self._wakeup)
        if carry:
            self._collecting.restore(carry["collecting"], int(carry["step"]))
            self._examiner.restore(carry["evaluation"])
        self._stopping = False
        self._news = True
        self._looked_s = self._policy_since_s = 0.0
        self._unanswered_since_s: float | None = None
        self._patience_s = _PATIENCE * section.rollout_timeout_s

    @property
    def step(self) -> int:
        """Of the next batch."""
        return self._collecting.step

    def stop(self) -> None:
        """Have `run` end soon; what runs is cancelled."""
        self._stopping = True
        self._wakeup.set()

    def published(self) -> None:
        """Say that there may be a new policy."""
        self._news = True
        self._wakeup.set()

    async def run(self) -> None:
        """Until the last batch is shipped and the last policy evaluated, or `stop` was called.

        Raises:
            StaleWeights: The server does not serve what it was given.
            NothingToTrain: No batch can be filled.
            ComponentStalled: Nothing came from a component in time; it is named.
            ComponentError: The server refused a policy.
        """
        self._looked_s = self._policy_since_s = asyncio.get_running_loop().time()
        try:
            while self._policy is None and not self._stopping:
                await self._go_on()
            while self.step < self._config.run.steps and not self._stopping:
                await self._go_on()
            while not self._stopping and (self._policy is None or self._policy.version < self._config.run.steps):
                await self._go_on()
        finally:
            await self._collecting.end(_LEAVE_S)
            await self._gatherer.close()
            self._around.tell("rollout_books", self.books.to_json())
        self.books.audit()

    async def _go_on(self) -> None:
        """Do what can be done, or wait until something may be."""
        collecting = self._collecting
        self._check_answers()  # first: who answers nothing makes every rollout fail
        if collecting.fatal is not None:
            raise collecting.fatal
        newer = self._newer_policy()
        if newer is not None:
            await self._take(newer)
            return
        collecting.sweep()
        collecting.admit()
        if collecting.ready():
            await self._ship()
        else:
            await self._wait()

    def _newer_policy(self) -> PublishedWeights | None:
        """The newest that may be served now. One that no batch of this run has led to is of a run before a resume."""
        now_s = asyncio.get_running_loop().time()
        if not self._news and now_s - self._looked_s < _LOOK_S:
            return None
        self._news, self._looked_s = False, now_s
        newest = self._around.policies.newest()
        if newest is None or newest.version > self.step:
            return None
        if self._policy is not None and newest.version <= self._policy.version:
            return None
        return newest

    async def _take(self, published: PublishedWeights) -> None:
        """Have it served and, where it is due, evaluated. No group is begun meanwhile."""
        self._collecting.paused = True
        serving = self._serving.serve(published, have=self._collecting.version)
        await unless_stopped(serving, self._wakeup, lambda: not self._stopping, None)
        if self._stopping:
            return
        self._policy = published
        self._collecting.version = published.version
        self._around.presence.count("version", published.version)
        self._unanswered_since_s = None
        await self._examiner.examine(published, self._goes_on)
        self._news = True  # the examiner took wake-ups
        self._collecting.paused = False
        self._unanswered_since_s = None
        self._policy_since_s = asyncio.get_running_loop().time()

    async def _ship(self) -> None:
        collecting = self._collecting
        step = self.step
        groups = collecting.take()
        samples = tuple(sample for group in groups for sample in samples_of(group, self._around.advantages))
        newest = max(int(sample.versions.max()) for sample in samples)
        if newest > step:
            raise StaleWeights(
                f"{self._around.server} stamped tokens with version {newest}, which does not exist yet",
                newest_version=step,
                fix="see who else updates the weights of this server",
            )
        plain = Batch(run_id=self._run_id, step=step, samples=samples)
        facts = collecting.tally.metrics() | batch_metrics(plain, groups)
        if facts["off_policy/max"] > self._config.orchestrator.max_policy_lag:
            raise DataLossError(
                f"batch {step} holds a token that is too old",
                lag=facts["off_policy/max"],
                limit=self._config.orchestrator.max_policy_lag,
                fix="file a bug: the sweep before shipping let it through",
            )
        batch = Batch(run_id=self._run_id, step=step, samples=samples, facts=facts, carry=self._carry(len(samples)))
        self._around.presence.enter(Activity.COMMIT)
        with self._times.of("time/ship"):
            await self._around.ship(batch)
        for sample in samples:
            self.books.move(sample.rollout, Place.TRAINED)
        self._around.presence.enter(Activity.IDLE)
        self._count()
        self._around.tell("batch", {"step": step, "metrics": facts | self._times.taken()})
        self._around.tell("rollout_books", self.books.to_json())
        collecting.tally = Tally()
        self._news = True
        self._policy_since_s = asyncio.get_running_loop().time()

    def _count(self) -> None:
        books, presence = self.books.to_json(), self._around.presence
        presence.count("chunks", self.step)
        presence.count("episodes", books["completed"])
        presence.count("retries", books["attempts"] - books["requested"])
        presence.count("dropped", books["stale"] + sum(books["failed"].values()) + sum(books["filtered"].values()))

    def _carry(self, trained: int) -> dict[str, Any]:
        """What whoever goes on after this batch has to know; by then its ``trained`` rollouts were trained on."""
        books = self.books.to_json()
        books |= {"trained": books["trained"] + trained, "pending": books["pending"] - trained}
        return {
            "step": self.step,
            "collecting": self._collecting.state(),
            "books": books,
            "evaluation": self._examiner.state(),
        }

    async def _wait(self) -> None:
        """Wait for whoever can end it: the server while rollouts run, the trainer otherwise."""
        loop = asyncio.get_running_loop()
        if self._collecting.running:
            self._policy_since_s = loop.time()
            with self._around.presence.waiting(self._completions()), self._times.of("time/generate"):
                await self._wakeup.wait(_LOOK_S)
            return
        limit_s = self._config.deadlines.policy_s
        have = self._policy.version if self._policy else -1
        wait = Wait(
            activity=Activity.WAIT_POLICY, on=self._around.trainer, need=have + 1, have=have, timeout_s=limit_s
        )  # fmt: skip
        if loop.time() - self._policy_since_s >= limit_s:
            raise self._late(self._around.trainer, limit_s, f"version {have + 1} of the policy")
        with self._around.presence.waiting(wait), self._times.of("time/wait_for_policy"):
            await self._wakeup.wait(_LOOK_S)
        self._unanswered_since_s = None

    def _completions(self) -> Wait:
        return Wait(
            activity=Activity.WAIT_COMPLETIONS,
            on=self._around.server,
            need=self._config.orchestrator.groups_per_step,
            have=self._collecting.kept,
            timeout_s=self._patience_s,
        )

    def _goes_on(self) -> bool:
        self._check_answers()
        return not self._stopping

    def _check_answers(self) -> None:
        """In almost the time that a whole rollout may take, something was answered; failures are no answers."""
        now_s = asyncio.get_running_loop().time()
        if self._unanswered_since_s is None:
            self._unanswered_since_s = now_s if self._gatherer.outstanding else None
        elif now_s - self._unanswered_since_s >= self._patience_s:
            raise self._late(self._around.server, self._patience_s, "any of the completions it was asked for")

    def _answered(self, answer: Completion | Failure) -> None:
        if isinstance(answer, Completion):
            self._unanswered_since_s = None

    def _late(self, whom: str, limit_s: float, what: str) -> ComponentStalled:
        return ComponentStalled(
            f"orchestrator waited {limit_s:g} s for {whom}",
            for_what=what,
            step=self.step,
            version=self._policy.version if self._policy else "none",
            fix=f"see what {whom} is doing: `headrace doctor RUN`",
        )
