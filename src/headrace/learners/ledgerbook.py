"""Counts what the ledger compares while a run goes on: the learner tells it what happens, in plain numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from headrace.lanes.credits import Commit
from headrace.learners.intervals import Sections
from headrace.learners.ledger import Age, Entry, Facts, InUse, Published, Tally, entries

_LOOKS = 2
"""Looks in a row at which an entry has to be wrong before it is told: what is on its way at one has arrived at the next."""
_NEVER_FALL = ("_steps", "_moves")


@dataclass(slots=True)
class _Use:
    """Policies a group acts with."""

    seen: deque[int]
    """The newest published version when each of its last chunks arrived."""
    version: int = 0
    least: int = 0


@dataclass(slots=True)
class _Due:
    """Something that is due once whenever environment steps pass a multiple of ``every``; 0: never."""

    every: int
    done: int = 0
    declared: int = 0
    next: int = 0

    def begin(self, env_steps: int) -> None:
        self.done = self.declared = 0
        self.pass_by(env_steps)

    def pass_by(self, env_steps: int) -> None:
        self.next = (env_steps // self.every + 1) * self.every if self.every else 0

    def reached(self, env_steps: int) -> bool:
        return self.every > 0 and env_steps >= self.next


@dataclass(slots=True)
class _Publications:
    """How often a policy was published, and was to be."""

    first_updates: int = 0
    done: int = 0
    rounds: int = 0
    """Rounds with updates that have ended."""
    round_updates: int = 0
    """Updates when the last one ended."""
    chunk: int | None = None
    """Number of the chunks of the present round."""
    this_round: bool = False
    """Whether it has ended with a publication."""


class LedgerBook:
    """What the learner has done since it began; `begin` first, then everything in the order in which it happens.

    Each call takes about a microsecond, `facts` about a hundred.

    Args:
        config: Of the run.
        owners: Id of the component that steps each group.
    """

    def __init__(self, config: Sections, owners: Sequence[str]) -> None:
        self._config = config
        self._owners = tuple(owners)
        self._rounds = config.run.schedule != "async"
        self._sets = config.on_policy and not self._rounds
        """Whether nothing is done between the updates of an epoch set, however long it takes."""
        self._window = 1 if self._rounds else config.chunks_ahead
        self._evaluations = _Due(config.evaluation.every_steps)
        self._told: set[str] = set()
        self.begin(0, 0, 0)

    def begin(self, updates: int, env_steps: int, version: int, *, behind: int = 0) -> None:
        """The learner is about to drive the run: a fresh one, one that goes on from a checkpoint, a dead one's successor.

        Args:
            updates: Gradient steps made so far.
            env_steps: Transitions stored so far.
            version: The newest published policy.
            behind: Updates that the replay ratio has due already, beyond those.
        """
        self._env_steps, self._version, self._behind = env_steps, version, behind
        self._groups = [_Use(deque(maxlen=self._window)) for _ in self._owners]
        self._publications = _Publications(first_updates=updates, round_updates=updates)
        self._evaluations.begin(env_steps)
        self._due_since: int | None = None
        self._frozen_updates = updates
        self._doubtful = 0
        self._committed_steps, self._commits = env_steps, False
        self._salvages = 0
        self._newest: Published | None = None
        self._checkpointed = 0
        self._checkpoint: tuple[float, int, int] | None = None
        self._stepped_at, self._seen_updates, self._jump = env_steps, updates, 0
        self._highest: dict[str, float] = {}
        self._wrong: dict[str, int] = {}
        self._entries: list[Entry] = []

    def committed(self, commit: Commit, updates: int) -> None:
        """A group's chunk is about to be taken over, after so many updates; `stored` follows."""
        self._commits = True
        if commit.last:
            return  # its collector is leaving; what it was granted has come before
        use = self._groups[commit.group]
        # A chunk is begun only after the one a window before has been acknowledged, so with the policy of that time, or newer.
        use.least = use.seen[0] if len(use.seen) == self._window else 0
        use.version = commit.version
        use.seen.append(self._version)
        if self._rounds and commit.chunk != self._publications.chunk:
            self._end_round(commit.chunk, updates)

    def stored(self, env_steps: int, updates: int) -> None:
        """Transitions were taken over, from a chunk or salvaged; ``env_steps`` counts them."""
        self._settle(updates)
        if updates > self._seen_updates:
            self._stepped_at, self._seen_updates = self._env_steps, updates
        if updates:
            self._jump = max(self._jump, env_steps - self._stepped_at)
        self._env_steps = env_steps
        if self._commits:
            self._committed_steps, self._commits = env_steps, False
        else:
            self._salvages += 1
        if not self._rounds and self._due_since is None and self._evaluations.reached(env_steps):
            self._due_since = updates

    def published(self, version: int, updates: int, env_steps: int, policy_arrays: Mapping[str, NDArray[Any]]) -> None:
        """A policy became the newest one; of its arrays only ``exploration_scale`` [1] is read, if it is there."""
        self._settle(updates, published=True)
        self._version = version
        self._publications.done += 1
        scale = policy_arrays.get("exploration_scale")
        self._newest = None if scale is None else Published(version, env_steps, float(scale[0]))
        book = self._publications
        if self._rounds and updates and not book.this_round:
            book.this_round, book.rounds, book.round_updates = True, book.rounds + 1, updates
            self._pass_evaluation(updates)

    def frozen(self) -> None:
        """A policy was frozen for evaluation."""
        self._evaluations.done += 1
        if self._sets and self._due_since is not None:  # after a rollout without a step, so nothing was published since
            self._pass_due()

    def checkpointed(self, updates: int, env_steps: int, now_s: float, *, written: bool = True) -> None:
        """A checkpoint was written whole, or could not be."""
        self._checkpointed += 1
        if written:
            self._checkpoint = (now_s, env_steps, updates)

    def facts(
        self, algorithm: Mapping[str, float], updates: int, env_steps: int, asked_updates: int, now_s: float
    ) -> list[dict[str, Any]]:
        """Every entry as it is now, as plain values.

        Args:
            algorithm: From its `ledger`.
            updates: Gradient steps so far, as the algorithm counts them.
            env_steps: Transitions stored so far.
            asked_updates: Gradient steps the learner asked for.
            now_s: The time, on the clock of `checkpointed`.
        """
        self._settle(updates)
        found = Facts(
            algorithm=algorithm, updates=updates, env_steps=env_steps, asked_updates=asked_updates, behind=self._behind,
            published=self._publications_due(updates), newest=self._newest, evaluations=self._evaluations_due(),
            checkpoint=self._checkpoint_age(updates, env_steps, now_s), in_use=self._in_use(),
            fallen=self._fallen(algorithm),
        )  # fmt: skip
        self._entries = entries(found, self._config)
        self._wrong = {one.name: self._wrong.get(one.name, 0) + 1 for one in self._entries if not one.ok}
        return [entry.plain() for entry in self._entries]

    def news(self, *, final: bool = False) -> list[dict[str, Any]]:
        """Entries that were wrong at two calls of `facts` in a row, each once.

        Args:
            final: There will be no further look; one is enough.
        """
        looks = 1 if final else _LOOKS
        told = [one for one in self._entries if self._wrong.get(one.name, 0) >= looks and one.name not in self._told]
        self._told.update(one.name for one in told)
        return [one.plain() for one in told]

    # Evaluations, by the rule of the schedule: in a free run a policy is frozen with the first update after a multiple of
    # the interval has been passed (after the whole epoch set, which ends with a publication, where there are such), in rounds
    # at the end of a round, if there are weights that were not frozen before.

    def _settle(self, updates: int, *, published: bool = False) -> None:
        if self._due_since is not None and updates > self._due_since and (published or not self._sets):
            self._pass_due()

    def _pass_due(self) -> None:
        self._due_since = None
        self._evaluations.declared += 1
        self._evaluations.pass_by(self._env_steps)

    def _pass_evaluation(self, updates: int) -> None:
        if not updates or not self._evaluations.reached(self._env_steps):
            return
        self._evaluations.pass_by(self._env_steps)
        if updates > self._frozen_updates:
            self._evaluations.declared += 1
            self._frozen_updates = updates

    def _end_round(self, chunk: int, updates: int) -> None:
        """Chunks of one number are a round; the first one of another number has arrived.

        What was salvaged since the last chunk may belong to either round, and so may updates and multiples that came by it.
        """
        book, salvaged = self._publications, self._env_steps != self._committed_steps
        published = book.this_round
        book.chunk, book.this_round = chunk, False
        if published:
            return
        if updates > book.round_updates and not salvaged:
            book.rounds, book.round_updates = book.rounds + 1, updates  # and was not published
        if self._evaluations.reached(self._committed_steps):
            self._pass_evaluation(book.round_updates)
        elif self._evaluations.reached(self._env_steps) and book.round_updates:
            self._evaluations.pass_by(self._env_steps)
            self._doubtful += 1

    # What the facts are put together from.

    def _publications_due(self, updates: int) -> Tally | None:
        if self._config.on_policy and not self._rounds:
            return None  # after each epoch set, of which nobody else counts how many there were
        book, every = self._publications, self._config.learn.publish_every
        declared = book.rounds if self._rounds else updates // every - book.first_updates // every
        # What is frozen or saved is published before, and the last weights are at the end. What was salvaged of episodes
        # that were kept back may be of an earlier number than the round, and is a rollout of its own then.
        own = self._salvages if self._config.on_policy else 0
        return Tally(book.done, declared, self._evaluations.done + self._checkpointed + 1 + own)

    def _evaluations_due(self) -> Tally | None:
        due = self._evaluations
        # One more at the end, and one that was due when the learner began or is known only when a round has ended.
        return Tally(due.done, due.declared, 2 + self._doubtful) if due.every else None

    def _checkpoint_age(self, updates: int, env_steps: int, now_s: float) -> Age | None:
        if not self._config.checkpoint.enabled or not updates:
            return None
        if self._checkpoint is None:
            self._checkpoint = (now_s, env_steps, updates)  # from here on one can be written
        at_s, at_steps, at_updates = self._checkpoint
        if updates == at_updates:
            return None  # nothing new to write
        return Age(now_s - at_s, env_steps - at_steps, self._jump)

    def _in_use(self) -> list[InUse]:
        return [
            InUse(self._owners[group], group, use.version, use.least, self._version)
            for group, use in enumerate(self._groups)
            if use.seen
        ]

    def _fallen(self, algorithm: Mapping[str, float]) -> dict[str, float]:
        """Counts that were higher before."""
        for name, count in algorithm.items():
            if name.endswith(_NEVER_FALL):
                self._highest[name] = max(count, self._highest.get(name, count))
        return {name: high for name, high in self._highest.items() if algorithm.get(name, high) < high}
