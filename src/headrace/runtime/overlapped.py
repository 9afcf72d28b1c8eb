"""On-policy, and nobody waits: collectors go on with the next rollouts while the learner trains on one.

How far is declared. With a lag of 0 it is `headrace.runtime.lockstep` in other words: a round is begun when the one before
has been trained on, and what is learned is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.lanes.credits import Commit
from headrace.runtime.pacing import Pace

if TYPE_CHECKING:
    from headrace.runtime.training import Training


class Overlapped:
    """State of an asynchronous on-policy run."""

    def __init__(self, training: Training) -> None:
        config = training.config
        self._training = training
        self._pace = Pace(
            groups=config.env.groups,
            chunk_steps=config.collect.chunk_steps * config.env.group_size,
            max_policy_lag=config.rollout.max_policy_lag,
            ordered=config.rollout.order == "chunk",
        )
        self._in_turn = config.rollout.order == "chunk" and config.rollout.max_policy_lag == 0
        """Whether commits are handed over in the order of the groups, as in rounds: statistics hang on it in the last bit."""
        self._held: list[Commit] = []
        """What has arrived of a round that is not whole."""
        if training.schedule_facts:
            self._pace.go_on(training.schedule_facts["chunks"])

    def on_commit(self, commit: Commit) -> None:
        """A group's chunk arrived."""
        self._held.append(commit)
        if not commit.last:  # that one is made without credit
            self._pace.on_commit(commit.group)
        if not self._in_turn:
            self._take_over([commit.group])

    def on_lost(self, groups: Sequence[int]) -> None:
        """What they were to collect is not waited for; what is salvaged of it goes into a rollout like any chunk."""
        for group in groups:
            self._pace.on_lost(group)
        self._take_over(groups)  # what they had committed comes before what is salvaged

    def on_joined(self, groups: Sequence[int]) -> None:
        """They are granted chunks with everybody else, from the next ones on."""

    def state(self) -> dict[str, Any]:
        """See `headrace.runtime.training.Schedule`."""
        return {"chunks": self._pace.state()}

    @property
    def exact(self) -> bool:
        """See `headrace.runtime.training.Schedule`; when commits arrive is nobody's to repeat."""
        return False

    def run(self) -> None:
        """Until the target is reached and trained on, or the supervisor says stop."""
        training, learner, pace = self._training, self._training.learner, self._pace
        self._train_on_what_was_left()
        while True:
            for commit in training.groups.take():
                self.on_commit(commit)
            training.tick(self)
            if training.stop_reason is not None:
                break
            if not pace.busy:
                self._take_over(range(training.config.env.groups))
            whole = pace.complete(learner.version, learner.arrived, training.groups.present())
            if whole:
                self._train()
            self._grant()  # also to who joined in this tick: nothing else would wake a learner that waits for nobody
            if not whole:
                if not (pace.busy or training.collecting):
                    break
                # For nobody, where nobody is there to be granted anything.
                training.groups.wait(pace.busy, training.control_fd)
        training.leave(self)
        self._take_over(range(training.config.env.groups))  # for whoever goes on with the run

    def _take_over(self, groups: Sequence[int]) -> None:
        """Hand the learner what is held of these groups, in their order."""
        taken = sorted((commit for commit in self._held if commit.group in groups), key=lambda commit: commit.group)
        self._held = [commit for commit in self._held if commit.group not in groups]
        for commit in taken:
            self._training.learner.commit(commit)

    def _train(self) -> None:
        training = self._training
        training.learner.round_over()
        training.learn(self)
        training.learner.publish()
        training.boundary(self)

    def _train_on_what_was_left(self) -> None:
        """Rollouts of what was left in the lanes where a run that goes on was stopped."""
        while self._training.learner.arrived and not self._training.groups.hurried():
            self._train()

    def _grant(self) -> None:
        training, learner, pace = self._training, self._training.learner, self._pace
        if not training.collecting:
            return
        room = training.config.run.steps - learner.env_steps
        for group, chunk, limit in pace.grant(learner.version, room, learner.arrived, training.groups.present()):
            training.groups.grant(group, chunk, limit, learner.version)


def run_rollouts(training: Training) -> Overlapped:
    """Drive a training in which collectors go on while rollouts are trained on; the schedule as it ended."""
    run = Overlapped(training)
    run.run()
    return run
