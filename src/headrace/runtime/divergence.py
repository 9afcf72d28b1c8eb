"""What a replay says when it comes to something else: which event, which value, and the likely cause."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.registry import build_actor
from headrace.core import seeding
from headrace.core.errors import EnvironmentFault, HeadraceError, RecordDamaged
from headrace.core.specs import assemble, handed_over, leaves
from headrace.envs.building import build_environment
from headrace.lanes.lane import LaneBlock
from headrace.lanes.layout import STEP
from headrace.record.causes import (
    UNUSED_BYTES,
    Clues,
    Repeat,
    cause_of_rows,
    cause_without_rows,
)
from headrace.record.diff import FILE_A_BUG, Cause, Divergence, RowDifference, first_difference
from headrace.record.events import ChunkCommitted, GroupSalvaged, PolicyPublished, RowPlace
from headrace.record.learned import cause_of_batch, cause_of_weights
from headrace.record.machine import differences, environment_modules, fingerprint
from headrace.record.rows import RowReader
from headrace.runtime.payloads import Basics, EnvSpaces
from headrace.runtime.policies import Policies
from headrace.runtime.reacting import GroupChunk, Hindsight, LaneChunk, Setting

Extent = tuple[int, int, int, int]
"""Lane, first row, row after the last, offset in the event's rows; see `headrace.runtime.refill.Extents`."""


class Recorded:
    """Rows as they were recorded, beside those that were made again.

    Args:
        block: The lanes of the replay.
        rows: The record's rows.
    """

    def __init__(self, block: LaneBlock, rows: RowReader) -> None:
        self.block = block
        self._rows = rows

    def of(self, event: ChunkCommitted | GroupSalvaged, extent: Extent, checksum: int) -> NDArray[np.void] | None:
        """[R] rows of one lane; None if they were not kept.

        Raises:
            RecordDamaged: They are not those that were committed.
        """
        lane, start, stop, offset = extent
        g = self.block.geometry
        if event.place.segment < 0:
            return None
        place = RowPlace(event.place.segment, event.place.offset + offset)
        try:
            data = self._rows.read(place, (stop - start) * g.dtype.itemsize)
        except RecordDamaged:
            return None  # an older segment, which was not to be kept
        if zlib.crc32(data) != checksum:
            raise RecordDamaged(
                f"rows {start:,} to {stop:,} of lane {lane} in the record differ from what was committed",
                segment=place.segment,
                fix="the disk or somebody else has changed record/rows-*.bin; the events are sound",
            )
        return np.frombuffer(data, g.dtype)

    def replayed(self, lane: int, start: int, stop: int) -> NDArray[np.void]:
        """[R] rows of the replay, copied."""
        return np.frombuffer(b"".join(self.block.raw(lane, start, max(start, stop))), self.block.geometry.dtype)


class Judge:
    """Finds the first value that differs, and names what has likely done it.

    Args:
        basics: Of the run.
        spaces: Of one environment.
        header: Of the record.
        recorded: Its rows.
        policies: Those at hand.
    """

    def __init__(
        self, basics: Basics, spaces: EnvSpaces, header: Mapping[str, Any], recorded: Recorded, policies: Policies
    ) -> None:
        self._basics = basics
        self._spaces = spaces
        self._header = header
        self._recorded = recorded
        self._policies = policies

    def machine(self) -> list[str]:
        """How this machine and its libraries differ from those of the record."""
        here = fingerprint(environment_modules(self._basics.config.env, self._basics.env_factory))
        return differences(self._header["machine"], here)

    def rows(
        self, number: int, event: ChunkCommitted | GroupSalvaged, extents: Sequence[Extent], stops: Sequence[int]
    ) -> Divergence:
        """A chunk's rows differ.

        Args:
            number: Of the event.
            event: The event.
            extents: Where its rows are.
            stops: Row number after the last one the replay made, per lane.
        """
        checksums = [part.checksum for part in event.lanes]
        pairs = []
        for extent, checksum, stop in zip(extents, checksums, stops, strict=True):
            was = self._recorded.of(event, extent, checksum)
            if was is not None:
                pairs.append((extent, was, self._recorded.replayed(extent[0], extent[1], stop)))
        found = [
            (difference, was, now)
            for extent, was, now in pairs
            if (difference := first_difference(was, now, lane=extent[0], first_row=extent[1])) is not None
        ]
        if not found:
            clues = Clues(machine=self.machine())
            cause = UNUSED_BYTES if len(pairs) == len(extents) else cause_without_rows(clues)
            return self._told(number, event, cause, compared="rows")
        difference, was, now = min(found, key=lambda one: one[0].place)
        others = {extent[0]: made for extent, _, made in pairs if extent[0] != difference.lane}
        clues = Clues(others=others, machine=self.machine(), repeat=self._repeat(difference))
        if isinstance(event, ChunkCommitted):
            hindsight = self._hindsight(event, extents, stops, difference.lane)
            clues = replace(
                clues, versions=self._policies.versions, acts=hindsight.acts, acts_seeing=hindsight.acts_seeing
            )
        elif sum(part.rejected for part in event.lanes):
            cause = Cause(
                "environment_not_deterministic",
                "the environment had returned a value that is not finite, and does not in the replay",
                "see what it depends on beside its seed and the actions",
            )
            return self._told(number, event, cause, difference=difference)
        cause = cause_of_rows(difference, was, now, clues)
        return self._told(number, event, cause, difference=difference)

    def _hindsight(
        self, event: ChunkCommitted, extents: Sequence[Extent], stops: Sequence[int], lane: int
    ) -> Hindsight:
        """What the policies at hand would have done in a chunk."""
        config, block = self._basics.config, self._recorded.block
        setting, slot = Setting.of(config, self._spaces), (event.chunk - 1) % block.geometry.carry_slots
        carries = {extent[0]: block.carry[extent[0], slot].copy() if event.chunk else None for extent in extents}
        lanes = tuple(
            LaneChunk.in_block(block, extent[0], extent[1], stop, carries[extent[0]])
            for extent, stop in zip(extents, stops, strict=True)
        )
        chunk = GroupChunk(event.incarnation, event.chunk, lanes)
        actor = build_actor(self._spaces.policy(config))
        return Hindsight(actor, setting, chunk, lane, event.version, self._policies.of)

    def fault(self, number: int, event: ChunkCommitted, error: EnvironmentFault) -> Divergence:
        """The environment failed where it had not."""
        cause = Cause(
            "environment_not_deterministic",
            f"the environment failed in the replay and had not in the run: {error.what}",
            "see what it depends on beside its seed and the actions",
            tuple(f"{name}: {value}" for name, value in error.facts.items()),
        )
        return self._told(number, event, cause, compared="chunks")

    def failed(self, number: int, updates: int, failure: Mapping[str, str]) -> Divergence:
        """The learner failed, and in the run it had not, or with something else."""
        sentence = f"the learner failed in the replay, and not so in the run: [{failure['code']}] {failure['what']}"
        cause = Cause("learner_failed", sentence, FILE_A_BUG, tuple(filter(None, [failure.get("error")])))
        return Divergence(event=number, kind=f"what follows update {updates:,}", updates=updates, cause=cause)

    def batch(self, number: int, update: int, recorded: tuple[int, ...], replayed: tuple[int, ...]) -> Divergence:
        """The batch of an update differs."""
        cause = cause_of_batch(recorded, replayed, update=update)
        return Divergence(
            event=number, kind=f"batch of update {update:,}", updates=update - 1, cause=cause, compared="batches",
            recorded=_print(recorded), replayed=_print(replayed),
        )  # fmt: skip

    def policy(
        self, number: int, event: PolicyPublished, version: int, checksum: int, ledger: Mapping[str, float],
        batches_equal: bool | None,
    ) -> Divergence:  # fmt: skip
        """A published policy differs; ``ledger`` is the replay's."""
        cause = cause_of_weights(event.ledger, ledger, batches_equal=batches_equal, machine=self.machine())
        return Divergence(
            event=number, kind=f"policy {event.version}", updates=event.updates, cause=cause, compared="policies",
            recorded=f"policy {event.version}, checksum {event.checksum:08x}",
            replayed=f"policy {version}, checksum {checksum:08x}",
        )  # fmt: skip

    def weights(
        self, number: int, updates: int, sha256: tuple[str, str],
        ledgers: tuple[Mapping[str, float], Mapping[str, float]], batches_equal: bool | None,
    ) -> Divergence:  # fmt: skip
        """All weights, or the ledger, differ; pairs are (recorded, replayed)."""
        cause = cause_of_weights(*ledgers, batches_equal=batches_equal, machine=self.machine())
        return Divergence(
            event=number, kind=f"weights after update {updates:,}", updates=updates, cause=cause, compared="weights",
            recorded=sha256[0], replayed=sha256[1],
        )  # fmt: skip

    def _told(
        self, number: int, event: ChunkCommitted | GroupSalvaged, cause: Cause, *,
        difference: RowDifference | None = None, compared: str = "",
    ) -> Divergence:  # fmt: skip
        what = "chunk" if isinstance(event, ChunkCommitted) else "salvaged chunk"
        return Divergence(
            event=number, kind=f"{what} {event.chunk} of group {event.group}", updates=event.updates, cause=cause,
            difference=difference, compared=compared,
        )  # fmt: skip

    def _repeat(self, difference: RowDifference) -> Repeat:
        """Play the episode that differs again, twice, up to where it does."""
        block = self._recorded.block
        start = difference.row - difference.t
        if start < int(block.committed[difference.lane, 5]) or self._spaces.agents:
            return Repeat.NOT_TRIED
        rows = self._recorded.replayed(difference.lane, start, difference.row + 1)
        actions = rows[rows["kind"] == STEP]
        try:
            first, second = (self._played(difference.lane, actions) for _ in range(2))
            if first == second:
                return Repeat.SAME
            seeded = [self._played(difference.lane, actions, reseed=True) for _ in range(2)]
        except HeadraceError:
            return Repeat.NOT_TRIED
        return Repeat.SAME_IF_RESEEDED if seeded[0] == seeded[1] else Repeat.DIFFERENT

    def _played(self, lane: int, rows: NDArray[np.void], *, reseed: bool = False) -> list[bytes]:
        """Bytes of everything an episode's environment returns."""
        config, seed = self._basics.config, self._basics.config.run.seed
        if reseed:
            seeding.seed_global_generators(seed, "repeat-global", lane)
        env = build_environment(config.env, lane, factory=self._basics.env_factory, component="replay")
        seen = []
        with closing(env):
            observation, action = leaves(self._spaces.observation, "obs"), leaves(self._spaces.action, "action")
            episode = int(rows["episode"][0]) if len(rows) else 0
            obs, _ = env.reset(seed=seeding.integer(seed, "environment", lane, episode))
            seen += [np.asarray(leaf.of(obs)).tobytes() for leaf in observation]
            for row in rows:
                parts = {leaf.path: handed_over(row[leaf.path]) for leaf in action}
                obs, reward, *ends, _ = env.step(assemble(self._spaces.action, parts, "action"))
                seen += [np.asarray(leaf.of(obs)).tobytes() for leaf in observation]
                seen += [np.float64(reward).tobytes(), bytes(map(bool, ends))]
        return seen


def _print(prints: Sequence[int]) -> str:
    places, held, made = prints
    return f"places {places:08x}, contents {held:08x}" + (f", made of them {made:08x}" if made else "")
