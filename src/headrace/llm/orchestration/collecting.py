"""Keeps rollouts running and sorts what comes of them: into batches, or into the books under a reason.

Everything is decided in the turn of the event loop in which a rollout ends, before the gatherer looks whether a round is
complete. So, in rounds, which groups run together does not depend on time.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.core.errors import NothingToTrain
from headrace.llm.config import RLConfig
from headrace.llm.messages import Failure
from headrace.llm.orchestration.attempts import Attempts
from headrace.llm.orchestration.books import Place, RolloutBooks
from headrace.llm.orchestration.filters import Losses, filtered
from headrace.llm.orchestration.gatherer import Gatherer
from headrace.llm.orchestration.groups import Group
from headrace.llm.orchestration.lag import Limits, Standing, admissible, too_old
from headrace.llm.orchestration.problems import Problems
from headrace.llm.orchestration.rollout import Rollout, RolloutSpec
from headrace.llm.orchestration.tallies import Tally

Tell = Callable[[str, dict[str, Any]], None]
"""Reports to whoever runs the orchestrator: kind and facts."""

_TOLD_FAILURES = 20  # different texts of failures that are told each; all are counted


class Player(Protocol):
    """Plays one rollout to its end. `RolloutPlayer` is one."""

    async def play(self, spec: RolloutSpec) -> Rollout | Failure:
        """See `RolloutPlayer.play`."""
        ...


class Collecting:
    """The groups of a run: begun, running, kept for a batch.

    Args:
        config: Of the run.
        problems: Which come next.
        books: Where every rollout is written down.
        gatherer: Which rollouts join and leave.
        tell: Told of failures.
        changed: Called when a group has ended, or something cannot go on.
    """

    def __init__(
        self,
        config: RLConfig,
        problems: Problems,
        books: RolloutBooks,
        gatherer: Gatherer,
        tell: Tell,
        changed: Callable[[], None],
    ) -> None:
        section = config.orchestrator
        self._config = config
        self.problems = problems
        self.books = books
        self._gatherer = gatherer
        self._tell = tell
        self._changed = changed
        self._limits = Limits(
            max_lag=section.max_policy_lag,
            per_step=section.groups_per_step,
            in_flight=section.groups_in_flight or section.groups_per_step,
            steps=config.run.steps,
        )
        self.player: Player | None = None
        self.version = -1
        self.step = 0
        self.paused = True
        """Whether no group may be begun."""
        self.tally = Tally()
        self.fatal: BaseException | None = None
        """Why the run cannot go on."""
        self._next_group = 0
        self._again: deque[Group] = deque()
        """Begun before a resume and not shipped; they are begun anew before any other, in their order."""
        self._running: dict[int, Group] = {}
        self._tasks: dict[tuple[int, int], asyncio.Task[Rollout | Failure]] = {}
        self._kept: dict[int, Group] = {}
        self._losses = Losses(section.groups_per_step)
        self._attempts = Attempts()
        self._filtered_in_row: Counter[str] = Counter()
        self._failed_in_row: Counter[str] = Counter()
        self._last_failure = ""
        self._told: set[tuple[str, str, str]] = set()

    @property
    def kept(self) -> int:
        """Groups that wait for their batch."""
        return len(self._kept)

    @property
    def running(self) -> int:
        """Groups begun and not complete."""
        return len(self._running)

    def admit(self) -> None:
        """Begin as many groups as may be."""
        while not self.paused and self.fatal is None:
            now = Standing(
                version=self.version, shipped=self.step, pending=len(self._kept), in_flight=len(self._running)
            )
            if not admissible(self._limits, now):
                return
            self._begin()

    def sweep(self) -> None:
        """Give up every group, complete or not, that the next batch must not hold."""
        groups = self._kept | self._running
        oldest = {number: group.oldest for number, group in groups.items() if group.oldest is not None}
        for number in too_old(oldest, self.step, self._limits.max_lag):
            self._drop(groups[number], Place.STALE)
            self.tally.stale(groups[number])

    def ready(self) -> bool:
        """Whether a batch is full."""
        return len(self._kept) >= self._limits.per_step

    def take(self) -> list[Group]:
        """The groups of the next batch, those that were begun first. They are pending until they are shipped."""
        numbers = sorted(self._kept)[: self._limits.per_step]
        self.step += 1
        return [self._kept.pop(number) for number in numbers]

    async def end(self, timeout_s: float) -> None:
        """Cancel what runs, and wait until it has ended. What was complete waits for no batch any more."""
        self.paused = True
        tasks = list(self._tasks.values())
        for group in [*self._running.values(), *self._kept.values()]:
            self._drop(group, Place.CANCELLED)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def state(self) -> dict[str, Any]:
        """What is needed to go on, as JSON."""
        groups = [*self._running.values(), *self._kept.values(), *self._again]
        return {
            "next_group": self._next_group,
            "begun": sorted([group.number, group.problem.id, group.told] for group in groups),
            "problems": self.problems.state(),
            "filtered_in_row": dict(self._filtered_in_row),
            "failed_in_row": dict(self._failed_in_row),
        }

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on from there, with the batch of ``step``. What was begun for a later one is begun anew, in its old number."""
        self.step = step
        self._next_group = int(state["next_group"])
        self.problems.restore(state["problems"])
        gone = []
        for number, name, told in state.get("begun", ()):  # older checkpoints lack them: there they are skipped
            problem = self.problems.named(name)
            if problem is None:
                gone.append(name)
            else:
                self._again.append(Group(number, problem, self._config.orchestrator.group_size, told=told))
        if gone:
            text = (
                f"{len(gone)} groups are not begun anew, as dataset('train') lacks their problems; the first: {gone[0]}"
            )
            self._tell("alarm", {"kind": "problems_gone", "text": text, "step": step, "value": len(gone)})
        self._filtered_in_row = Counter(state["filtered_in_row"])
        self._failed_in_row = Counter(state["failed_in_row"])

    # What rollouts say while they run (`RolloutNotes`).

    def attempt(self, spec: RolloutSpec) -> None:
        """See `RolloutNotes.attempt`."""
        if spec.group >= 0:
            self.books.attempt(spec.id)

    def attempt_failed(self, spec: RolloutSpec, failure: Failure, again: bool) -> None:
        """See `RolloutNotes.attempt_failed`."""
        if spec.group >= 0:
            self.books.attempt_failed(spec.id, failure.reason)
            if again:
                self.tally.retried()
            for alarm in self._attempts.failed(failure):
                self._tell("alarm", {**alarm, "step": self.step})
        kind = "retry" if again else "failed"
        key = (kind, failure.reason, failure.detail)
        if key not in self._told and len(self._told) < _TOLD_FAILURES:
            self._told.add(key)
            facts = {"rollout": spec.id, "problem": spec.problem.id, "reason": failure.reason, "text": failure.detail}
            self._tell(kind, facts)

    def tokens(self, spec: RolloutSpec, versions: Sequence[int]) -> None:
        """See `RolloutNotes.tokens`."""
        if spec.group in self._running:
            self._running[spec.group].saw(versions)

    def _begin(self) -> None:
        assert self.player is not None
        if self._again:
            group = self._again.popleft()
        else:
            group = Group(self._next_group, self.problems.next(), self._config.orchestrator.group_size)
            self._next_group += 1
        self._running[group.number] = group
        for spec in group.specs(self._config.sampling.temperature):
            self.books.request(spec.id)
            self._gatherer.enter()
            task = asyncio.get_running_loop().create_task(self.player.play(spec))
            self._tasks[spec.group, spec.sample] = task
            task.add_done_callback(functools.partial(self._ended, group, spec.sample))

    def _ended(self, group: Group, sample: int, task: asyncio.Task[Rollout | Failure]) -> None:
        del self._tasks[group.number, sample]
        try:
            if not task.cancelled() or group.number in self._running:  # nobody but its own code has cancelled it
                self._note(group, sample, task)
            self.admit()  # before a round is looked for
        except BaseException as error:  # noqa: BLE001 - a callback of the event loop: raised where the run is driven
            self.fatal = self.fatal or error
        finally:
            self._gatherer.leave()
            self._changed()

    def _note(self, group: Group, sample: int, task: asyncio.Task[Rollout | Failure]) -> None:
        outcome = task.result()
        if group.number not in self._running:
            return  # its group was given up in the turn in which it ended; it is in the books
        group.ended(sample, outcome)
        name = f"g{group.number}.{sample}"
        if isinstance(outcome, Failure):
            self.books.move(name, Place.FAILED, outcome.reason)
            self.tally.failed(outcome)
            self._count_failure(outcome)
        else:
            self.books.move(name, Place.PENDING)
            self.tally.completed(outcome)
            self._attempts.completed()
            self._failed_in_row.clear()
        if group.complete:
            self._completed(group)

    def _completed(self, group: Group) -> None:
        del self._running[group.number]
        if group.rewards and not group.told:
            self.problems.told(group.problem.id, group.rewards)
            group.told = True
        section = self._config.orchestrator
        reason = filtered(group.rewards, section.smallest_group, section.filter)
        for alarm in self._losses.look(group.problem.id, len(group.rollouts), reason):
            self._tell("alarm", {**alarm, "step": self.step})
        if reason is None:
            self._filtered_in_row.clear()
            self._kept[group.number] = group
            return
        for rollout in group.rollouts:
            self.books.move(rollout.spec.id, Place.FILTERED, reason)
        self.tally.filtered(group, reason)
        self._filtered_in_row[reason] += 1
        if self._filtered_in_row.total() >= section.filter.give_up_after * section.groups_per_step:
            raise self._all_filtered()

    def _count_failure(self, failure: Failure) -> None:
        self._failed_in_row[failure.reason] += 1
        self._last_failure = failure.detail or failure.reason
        total = self._failed_in_row.total()
        if total >= self._config.orchestrator.failures_in_row:
            raise NothingToTrain(
                f"{total} rollouts failed in a row",
                step=self.step,
                reasons=_listed(self._failed_in_row),
                last=self._last_failure,
                fix="mend what the last failure says; `headrace check` plays one episode of the environment",
            )

    def _all_filtered(self) -> NothingToTrain:
        reasons = _listed(self._filtered_in_row)
        text = f"{self._filtered_in_row.total()} groups in a row were not worth training on"
        self._tell("alarm", {"kind": "all_filtered", "text": text, "step": self.step, "reasons": reasons})
        return NothingToTrain(
            text,
            step=self.step,
            reasons=reasons,
            **({"failed": _listed(self._failed_in_row), "last": self._last_failure} if self._failed_in_row else {}),
            groups_per_step=self._config.orchestrator.groups_per_step,
            fix="begin with a policy that solves some problems (sft), or choose problems that are harder or easier; "
            "where too few of a group were completed, mend what the last failure says",
        )

    def _drop(self, group: Group, place: Place) -> None:
        """Give a whole group up; those of its rollouts that failed before stay failed."""
        self._running.pop(group.number, None)
        self._kept.pop(group.number, None)
        for sample in range(group.size):
            outcome = group.outcomes.get(sample)
            if not isinstance(outcome, Failure):
                self.books.move(f"g{group.number}.{sample}", place)
            task = self._tasks.get((group.number, sample))
            if task is not None:
                task.cancel()


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
