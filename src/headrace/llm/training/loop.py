"""From one batch to the next version: receive, train, publish, tell, keep. The same for the trainer's process and the twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from headrace.core.clock import Clock
from headrace.llm.config import RLConfig
from headrace.llm.disk import remove_unfinished
from headrace.llm.messages import Batch, PublishedWeights
from headrace.llm.payloads import Basics
from headrace.llm.training.alarms import Alarms
from headrace.llm.training.checkpoints import RLCheckpoint, RLCheckpoints
from headrace.llm.training.trainer import Trainer
from headrace.llm.transport import Source
from headrace.llm.weights import forget_newer, look, metadata_of, prune, publish
from headrace.supervision.messages import Report
from headrace.telemetry.board import Activity, Slot, State

_FIRST = "0"
_SPARE_VERSIONS = 3
"""Versions kept beyond those that the lag allows to be in use: for a server that is slow to load one, or begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the loop reaches the world with."""

    slot: Slot
    """Of the component on the board."""
    tell: Callable[[Report], None]
    """Takes what the supervisor is to know."""
    announce: Callable[[], None]
    """Called when a version was published."""
    clock: Clock


class TrainingLoop:
    """What the trainer does in turn.

    Args:
        trainer: As `headrace.llm.training.building.build_trainer` makes it.
        basics: Of the run.
        source: Where batches come from.
        around: Board, supervisor, orchestrator, clock.
        checkpoint: That the trainer was resumed from.
    """

    def __init__(
        self,
        trainer: Trainer,
        basics: Basics,
        source: Source,
        around: Surroundings,
        checkpoint: RLCheckpoint | None = None,
    ) -> None:
        self.trainer = trainer
        self._basics = basics
        self._config: RLConfig = basics.config
        self._source = source
        self._around = around
        self._slot, self._tell, self._clock = around.slot, around.tell, around.clock
        self._alarms = Alarms(self._config.supervision)
        self._checkpoints = RLCheckpoints(basics.checkpoints, basics.run_id, self._config.checkpoint.keep)
        self._carry: Mapping[str, Any] | None = checkpoint.carry if checkpoint else None
        self._saved = checkpoint.version if checkpoint else 0
        for folder in (basics.checkpoints, basics.weights):
            remove_unfinished(folder)
        self._first = look(basics.weights / _FIRST, basics.run_id)
        self._metadata = metadata_of(basics.weights / _FIRST, basics.run_id)
        self.published = self._begin(checkpoint)

    @property
    def complete(self) -> bool:
        """Whether the run has all its steps."""
        return self.trainer.version >= self._config.run.steps

    def once(self) -> bool:
        """Make one step: the next version is published and told of afterwards.

        Returns:
            False: nothing was done, the supervisor has something to say.

        Raises:
            ComponentStalled: The batch did not come in time.
            HeadraceError: See `headrace.llm.transport.Source.receive` and `Trainer.step`.
        """
        began_s = self._clock.now()
        batch = self._source.receive(self.trainer.version, self._config.deadlines.batch_s)
        if batch is None:
            return False
        received_s = self._clock.now()
        metrics = self.trainer.step(batch, self._note_pass)
        self._slot.add("updates")
        trained_s = self._clock.now()
        self.published = self._publish()
        self._carry = batch.carry
        self._source.consumed(batch.step)
        published_s = self._clock.now()
        metrics |= {
            "time/wait_for_batch": received_s - began_s,
            "time/broadcast_weights": published_s - trained_s,
            "time/step": published_s - began_s,
        }
        self._say(batch, metrics)
        every = self._config.checkpoint.every_steps
        if every and self.trainer.version % every == 0:
            self.save()
        self._slot.enter(Activity.IDLE)
        return True

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Whatever ends what happens inside, a checkpoint of what is trained by then is written.

        Raises:
            RunDirectoryError: It cannot be written; where something else was raised inside, that is raised.
        """
        try:
            yield
        except Exception:
            if self.trainer.at_rest and self.published.version == self.trainer.version:
                with suppress(Exception):  # what was raised first tells more, and may be why this fails too
                    self.save()
            raise
        self._slot.set_state(State.STOPPING)
        self.save()

    def save(self) -> None:
        """Write a checkpoint of what is trained by now, unless there is one, or nothing to save.

        Raises:
            RunDirectoryError: It cannot be written.
        """
        if self._carry is None or self._saved == self.trainer.version:
            return
        self._slot.enter(Activity.CHECKPOINT, step=self.trainer.version)
        self._checkpoints.write(
            self.trainer.version,
            self.trainer.state(),
            weights_sha256=self.published.sha256,
            carry=self._carry,
            config=self._config,
        )
        self._saved = self.trainer.version
        self._slot.add("checkpoints")

    def _begin(self, checkpoint: RLCheckpoint | None) -> PublishedWeights:
        """Take back what is beyond the beginning, and see to it that the version of now is there."""
        if checkpoint is None:
            return self._first
        basics, version = self._basics, checkpoint.version
        versions = forget_newer(basics.weights, basics.run_id, version)
        checkpoints = self._checkpoints.forget_newer(version)
        if versions or checkpoints:
            text = f"went back to version {version}: removed weights {versions} and checkpoints {checkpoints}"
            self._tell(Report("resumed", {"text": text, "version": version}))
        return self._publish()

    def _note_pass(self, number: int) -> None:
        self._slot.enter(Activity.UPDATE, step=number)

    def _publish(self) -> PublishedWeights:
        trainer, basics = self.trainer, self._basics
        self._slot.enter(Activity.PUBLISH, step=trainer.version)
        published = publish(
            trainer.tensors(),
            version=trainer.version,
            weights_dir=basics.weights,
            run_id=basics.run_id,
            probe=trainer.probe(self._first.probe.token_ids),
            metadata=self._metadata,
        )
        self._slot.count("version", trainer.version)
        self._around.announce()
        prune(basics.weights, basics.run_id, self._config.orchestrator.max_policy_lag + _SPARE_VERSIONS)
        return published

    def _say(self, batch: Batch, metrics: dict[str, float]) -> None:
        version = self.trainer.version
        facts = {"step": version, "version": version, "weights_sha256": self.published.sha256, "metrics": metrics}
        self._tell(Report("step", facts))
        for alarm in self._alarms.look(version, metrics, batch.facts.get("train/win_rate")):
            self._tell(Report("alarm", alarm))
