"""Collectors and learner overlap; credits and the replay ratio keep either from running away.

What arrives is taken over between two updates, never during one, so the run is the sequence of commits,
updates and publications that the learner saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.lanes.credits import Commit, CreditBook
from headrace.lanes.lead import Lead
from headrace.learners.intervals import round_steps

if TYPE_CHECKING:
    from headrace.runtime.training import Training


class FreeRun:
    """State of an asynchronous run."""

    def __init__(self, training: Training) -> None:
        config = training.config
        self._training = training
        self._endless = config.replay.free_running
        """Whether the next update is always due, so that nothing but the end of collecting ends the updates."""
        self._chunk_steps = config.collect.chunk_steps * config.env.group_size
        self._book = CreditBook(config.env.groups, self._chunk_steps, config.collect.window_chunks)
        most = training.learner.limiter.slack_steps
        # What is asked for is kept to. Less than one round would leave groups idle.
        self._lead = Lead(most if config.replay.slack_steps else round_steps(config), most)
        self._worked = False
        """Whether the learner has made an update since it last had nothing to do."""
        if training.schedule_facts:
            self._book.go_on(training.schedule_facts["committed"])

    def on_commit(self, commit: Commit) -> None:
        """A group's chunk arrived."""
        self._training.learner.commit(commit)
        if not commit.last:  # that one is made without credit
            self._book.on_commit(commit.group)
            self._lead.arrived(self._chunk_steps)

    def on_lost(self, groups: Sequence[int]) -> None:
        """Take their credit back, so that others may use it."""
        for group in groups:
            self._book.on_lost(group)

    def on_joined(self, groups: Sequence[int]) -> None:
        """They are granted chunks with everybody else, from their next one on."""

    def state(self) -> dict[str, Any]:
        """See `headrace.runtime.training.Schedule`."""
        return {"committed": list(self._book.committed)}

    @property
    def exact(self) -> bool:
        """See `headrace.runtime.training.Schedule`; when commits arrive is nobody's to repeat."""
        return False

    def run(self) -> None:
        """Until the target is reached and paid for, or the supervisor says stop."""
        training, learner = self._training, self._training.learner
        publish_every = training.config.learn.publish_every
        while True:
            self._take_in()
            training.tick(self)
            if training.stop_reason is not None:
                break
            self._grant()
            if learner.due and (training.collecting or not self._endless):
                learner.update()
                self._worked = True
                if learner.updates % publish_every == 0 or training.boundary_due:
                    learner.publish()
                    training.boundary(self)
            elif training.collecting:
                self._let_ahead()
                training.groups.wait(self._busy(), training.control_fd)
            else:
                break
        training.leave(self)

    def _take_in(self) -> None:
        for commit in self._training.groups.take():
            self.on_commit(commit)

    def _grant(self) -> None:
        training, book = self._training, self._book
        if not training.collecting:
            return
        learner, groups = training.learner, training.groups
        limiter = learner.limiter
        # What is due and cannot be made lacks the rows of n-step returns: without more of them both sides would wait.
        starved = learner.updates < limiter.updates_due(learner.env_steps) and not learner.due
        allowed = limiter.steps_allowed(learner.updates, self._lead.steps, starved=starved)
        for group in book.grant(learner.env_steps, allowed, groups.present()):
            groups.grant(group, book.committed[group], book.limit[group], learner.version)

    def _let_ahead(self) -> None:
        """The learner has nothing to do: let collecting further ahead, so that this happens less often."""
        if not self._busy():
            self._lead.stuck()
        elif self._worked:
            self._lead.waited()
        else:
            return
        self._worked = False
        self._grant()

    def _busy(self) -> list[int]:
        """Groups whose commits are awaited."""
        book = self._book
        return [group for group, limit in enumerate(book.limit) if limit > book.committed[group]]


def run_async(training: Training) -> FreeRun:
    """Drive a training in which collecting and learning overlap; the schedule as it ended."""
    run = FreeRun(training)
    run.run()
    return run
