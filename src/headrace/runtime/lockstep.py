"""Rounds: one chunk of every group, all with the same policy, and the updates they pay for.

Serves ``inline`` and ``lockstep``. Commits are taken over in the order of the groups, whoever was first, each followed
by the updates it pays for; so what is learned does not depend on how many processes collect, or whether any does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.lanes.credits import Commit

if TYPE_CHECKING:
    from headrace.runtime.training import Training


class Rounds:
    """State of the round that is going on."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._chunk = int(training.schedule_facts.get("chunk", 0))
        self._whole = True
        """Whether no round was ended early."""
        self._begun_at: tuple[int, int] | None = None
        """Environment steps and updates where the round began; None where a group was lost in it."""
        self._missing: set[int] = set()
        """Groups whose chunk of this round has not arrived."""
        self._arrived: list[Commit] = []

    def on_commit(self, commit: Commit) -> None:
        """A group's chunk of this round arrived."""
        self._arrived.append(commit)
        self._missing.discard(commit.group)

    def on_lost(self, groups: Sequence[int]) -> None:
        """The round goes on without them; what they had committed comes before what is salvaged."""
        self._begun_at = None
        self._missing.difference_update(groups)
        self._take_over(groups)

    def on_joined(self, groups: Sequence[int]) -> None:
        """They take part from the next round on."""

    def state(self) -> dict[str, Any]:
        """See `headrace.runtime.training.Schedule`."""
        return {"chunk": self._chunk}

    @property
    def exact(self) -> bool:
        """See `headrace.runtime.training.Schedule`."""
        return self._whole

    def run(self) -> None:
        """Rounds until the target is reached or the supervisor says stop."""
        training = self._training
        training.tick(self)
        self._end_round()  # of what was left in the lanes where a run that goes on was stopped
        while training.collecting:
            self._round()
            training.learner.publish()
            training.boundary(self)
            training.tick(self)
        training.leave(self)
        self._take_over(range(training.config.env.groups))
        if not self._whole and self._begun_at == (training.learner.env_steps, training.learner.updates):
            self._chunk, self._whole = self._chunk - 1, True  # ended before its first step, as if it had not begun

    def _round(self) -> None:
        training = self._training
        present = self._present()
        self._missing = set(present)
        self._begun_at = training.learner.env_steps, training.learner.updates
        for group in present:
            training.groups.grant(group, self._chunk, self._chunk + 1, training.learner.version)
        self._chunk += 1
        for group in present:
            self._await(group)
            self._take_over([group])
            if not training.learner.arrived:
                training.learn(self)
        self._end_round()
        self._whole = not training.groups.hurried()

    def _end_round(self) -> None:
        """Train on what had to wait for the round's end, if anything had."""
        training = self._training
        while training.learner.arrived and not training.groups.hurried():
            training.learner.round_over()
            training.learn(self)
            training.learner.publish()

    def _present(self) -> list[int]:
        """Groups that can take part; waits while all of them are being replaced."""
        training = self._training
        while not (present := training.groups.present()) and training.collecting:
            training.groups.wait([], training.control_fd)
            training.tick(self)
        return present

    def _await(self, group: int) -> None:
        """Wait for a group's chunk, unless the end hurries; what is on its way then arrives while it leaves."""
        training = self._training
        while group in self._missing and not training.groups.hurried():
            for commit in training.groups.take():
                self.on_commit(commit)
            training.tick(self)
            if group in self._missing:
                training.groups.wait(sorted(self._missing), training.control_fd)

    def _take_over(self, groups: Sequence[int]) -> None:
        """Hand the learner what has arrived from these groups, in their order."""
        wanted = [commit for commit in self._arrived if commit.group in groups]
        self._arrived = [commit for commit in self._arrived if commit.group not in groups]
        for commit in sorted(wanted, key=lambda commit: (commit.group, commit.chunk)):
            self._training.learner.commit(commit)


def run_rounds(training: Training) -> Rounds:
    """Drive a training in rounds; the schedule as it ended."""
    rounds = Rounds(training)
    rounds.run()
    return rounds
