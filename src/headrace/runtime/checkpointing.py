"""What the learner keeps on disk besides the record, and when: policies, its own state, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.clock import Clock
from headrace.learners.base import BaseLearner
from headrace.learners.checkpoint import STATE_FILE, LearnerState
from headrace.learners.checkpoints import CheckpointStore
from headrace.learners.recorder import Recorder
from headrace.runtime.config import ExperimentConfig, config_sha256
from headrace.runtime.refill import following_facts, lane_facts
from headrace.weights.policy_file import save_policy


class Keeper:
    """Keeps what a learner has made; a disk that takes no more costs what was to be kept, never the run.

    Args:
        folder: ``checkpoints/`` of the run.
        learner: Whose.
        recorder: Its record, which holds the rows; None: there is none, and no checkpoint.
        config: Of the run.
        policy_facts: Stored beside each policy.
        clock: For the pace.
        record_lost: Why there is no record any more, if it had ended before this learner began.
    """

    def __init__(
        self,
        folder: Path,
        learner: BaseLearner,
        recorder: Recorder | None,
        config: ExperimentConfig,
        policy_facts: Mapping[str, str],
        clock: Clock,
        record_lost: str | None = None,
    ) -> None:
        self._folder = folder
        self._store = CheckpointStore(folder, config.checkpoint.keep)
        self._learner = learner
        self.recorder = recorder
        self._record_lost = record_lost
        self._config = config
        self._policy_facts = policy_facts
        self._clock = clock
        self._begun_s = self._checkpointed_s = self._state_saved_s = clock.now()
        self._next_steps = self._after(learner.env_steps)
        self._segment = 0
        """Newest file of rows when `let_rows_go` last deleted old ones."""
        self.checkpoints = 0
        """Checkpoints written by this process."""

    @property
    def record_lost(self) -> str | None:
        """Why the record has ended early, of this learner or of one before it; None: it has not."""
        return self._record_lost if self.recorder is None else self.recorder.lost

    def note(self, kind: str, **facts: Any) -> None:
        """Note something in the record."""
        if self.recorder is not None:
            self.recorder.note(self._learner.updates, kind, facts)

    def policy(self) -> dict[str, Any]:
        """Write the newest policy to disk.

        Returns:
            ``version``, ``env_steps`` and ``updates``; and ``problem`` if it could not be written.
        """
        counts = self._counts()
        facts = {**self._policy_facts, "env_steps": counts["env_steps"], "updates": counts["updates"]}
        try:
            save_policy(self._folder, counts["version"], self._learner.published_arrays, facts)
        except OSError as error:
            return counts | {"problem": f"{type(error).__name__}: {error}"}
        self.note("frozen", **counts)
        return counts

    @property
    def state_due(self) -> bool:
        """Whether the learner's state is to be kept for a successor now."""
        supervision = self._config.supervision
        if supervision.learner_death != "resume":
            return False
        return self._clock.now() - self._state_saved_s >= supervision.learner_save_every_s

    def save_at_once(self) -> None:
        """Have the learner's state be due: what a successor would go on from until then is not kept for it."""
        self._state_saved_s = -math.inf

    def state(self) -> str | None:
        """Keep the learner's own state, so that another one can go on from it in this run; why it cannot be, if so."""
        self._state_saved_s = self._clock.now()
        state = self._learner.state()
        number = self.recorder.saved(self._learner.updates) if self.recorder is not None else 0
        try:
            LearnerState(state.arrays, {**state.facts, "save": number}).save(self._folder / STATE_FILE)
        except OSError as error:
            return str(error)
        return None

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough time or steps have passed since the last one."""
        if not self._config.checkpoint.enabled:
            return False
        every_s, steps = self._config.checkpoint.every_s, self._next_steps
        late = every_s is not None and self._clock.now() - self._checkpointed_s >= every_s
        return late or (steps is not None and self._learner.env_steps >= steps)

    def checkpoint(self, schedule: Mapping[str, Any], *, exact: bool) -> dict[str, Any]:
        """Write a checkpoint.

        Args:
            schedule: State of the schedule.
            exact: Whether a run that goes on from here does the very same as one that was not stopped; false where
                a round was ended early.

        Returns:
            What to tell: ``version``, ``env_steps``, ``updates``, ``paused_s``, ``exact``; or ``problem``.
        """
        recorder, began_s, counts = self.recorder, self._clock.now(), self._counts()
        self._checkpointed_s, self._next_steps = began_s, self._after(self._learner.env_steps)
        try:
            if recorder is not None:
                recorder.sync()  # writes what was kept back, and may end the record with that
            if self.record_lost is not None:
                return counts | {"problem": f"the record ended early ({self.record_lost})"}
            assert recorder is not None, "the configuration refuses checkpoints without a record"
            self._write(recorder, counts, schedule, exact)
        except OSError as error:
            return counts | {"problem": f"{type(error).__name__}: {error}"}
        self.checkpoints += 1
        self.note("checkpoint", **counts)
        return counts | {"paused_s": round(self._clock.now() - began_s, 4), "exact": exact}

    def let_rows_go(self) -> None:
        """Delete rows on disk that the replay holds no longer, whenever a file of them is full; checkpoints do it otherwise."""
        recorder = self.recorder
        if self._config.checkpoint.enabled or recorder is None or recorder.rows is None:
            return
        newest = recorder.rows.position.segment
        if newest == self._segment:
            return
        self._segment = newest
        with suppress(OSError):  # the next file that is full tries again, and the record says nothing wrong meanwhile
            recorder.drop_rows_before(recorder.contents.oldest_needed(self._resident_from().tolist()))

    def evaluated(self, version: int, mean_reward: float) -> None:
        """A policy was evaluated; if a checkpoint holds it, it may be the best one."""
        self.note("evaluated", version=version, mean_reward=mean_reward)
        try:
            self._store.note_evaluation(version, mean_reward)
        except OSError:  # the next one may find room, and nothing that is needed is lost
            return

    def end(self) -> None:
        """The learner leaves in order: its weights' hash is the record's last word."""
        if self.recorder is not None:
            counts, sha256 = self._counts(), self.recorder.hash(self._learner.algorithm)
            self.note("ended", weights_sha256=sha256, **counts)

    def _write(self, recorder: Recorder, counts: Mapping[str, Any], schedule: Mapping[str, Any], exact: bool) -> None:
        learner, store = self._learner, self._store
        assert recorder.rows is not None, "the configuration refuses checkpoints of a record without rows"
        books, at = learner.replay.books, recorder.rows.position
        running = np.array(learner.running_from)
        wanted = running if self._config.checkpoint.restore_episodes else np.full_like(running, -1)  # else they are cut
        floors = self._resident_from()
        floors = np.where(wanted >= 0, np.minimum(floors, wanted), floors).tolist()
        facts = {
            **counts,
            "config_sha256": config_sha256(self._config),
            "trace_bytes": recorder.trace.position,
            "rows": [at.segment, at.offset],
            "oldest_segment": recorder.contents.oldest_needed(floors),
            "episodes": learner.episodes.finished,
            "session_s": round(self._clock.now() - self._begun_s, 3),
            "exact": exact,
            "saves": recorder.saves,
            "schedule": dict(schedule),
            "running": (running >= 0).tolist(),
            "running_from": wanted.tolist(),
            "lanes": lane_facts(learner.replay.block, books, learner.episodes_begun),
            "following": following_facts(learner.replay.block, books),
        }
        policy_facts = {**self._policy_facts, "env_steps": counts["env_steps"], "updates": counts["updates"]}
        store.write(counts["version"], learner.state(), facts, learner.published_arrays, policy_facts)
        store.prune()
        recorder.drop_rows_before(store.oldest_segment() or 0)

    def _resident_from(self) -> NDArray[np.int64]:
        """Row number per lane from which on the replay reads rows: its oldest ones with the frames before them."""
        replay = self._learner.replay
        found: NDArray[np.int64] = replay.books.resident_from - (replay.geometry.frame_stack - 1)
        return found

    def _counts(self) -> dict[str, Any]:
        learner = self._learner
        return {"version": learner.version, "env_steps": learner.env_steps, "updates": learner.updates}

    def _after(self, env_steps: int) -> int | None:
        every = self._config.checkpoint.every_steps
        return (env_steps // every + 1) * every if every else None
