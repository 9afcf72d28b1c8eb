"""Runs that lose environments which workers step, recorded in this process and replayed: the record knows each loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from acting_support import Drift, SmallRun, configuration
from headrace.collectors.remote import RemoteEnvs
from headrace.core.errors import EnvironmentFault
from headrace.lanes.lane import LaneBlock
from headrace.record.events import ChunkCommitted, GroupSalvaged, Note, StepsLost
from headrace.record.trace import Trace
from headrace.runtime.payloads import Basics, EnvSpaces, GroupBeginning, build_lane_environment
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.replayer import Replayer, replay
from headrace.telemetry.board import Slot
from record_here import Lend, record_here
from remote_support import FakeVector, Planned

PLANNED = {
    (0, 3): "hung",
    (0, 11): "hung",
    (1, 30): "raised",
    (1, 31): "died",
    (1, 32): "hung",
    (2, 1): "hung",
    (3, 60): "died",
    (3, 64): "died",
}
"""Among them one right after a reset, resets that fail, and two in one chunk."""


def lends(planned: Planned, order: int = 0) -> Lend:
    def lend(basics: Basics, spaces: EnvSpaces, block: LaneBlock, slot: Slot) -> Sequence[GroupBeginning]:
        lanes = range(basics.config.env.lanes)
        factories = [partial(build_lane_environment, basics, lane, 0, slot.id) for lane in lanes]
        vector = FakeVector(factories, planned, order)
        remote = RemoteEnvs(vector, lanes, spaces.observation, spaces.action, slot)
        return [GroupBeginning(0, remote=remote, on_lost=forgive)] * basics.config.env.groups

    return lend


def forgive(error: EnvironmentFault) -> None:
    """One more."""


def events(run: Path) -> list[Any]:
    with Trace.open(run / "record" / TRACE_FILE) as trace:
        return [event for _, event in trace.events()]


def weights(run: Path) -> str:
    (ended,) = [event for event in events(run) if isinstance(event, Note) and event.kind == "ended"]
    return str(ended.facts["weights_sha256"])


SETTINGS = [
    {},
    {"env__group_size": 2, "env__max_episode_steps": 5, "algorithm__exploration": {"kind": "ornstein-uhlenbeck"}},
    {"run__schedule": "async", "env__group_size": 4, "env__frame_stack": 3, "replay__n_step": 3},
    {"run__schedule": "async", "replay__capacity": 160, "record__rows": "none"},
]


@pytest.mark.thin(3)
@pytest.mark.parametrize("settings", SETTINGS[:3])
def test_workers_do_not_change_what_is_learned(tmp_path, settings):
    here = record_here(tmp_path / "here", **settings)
    there = record_here(tmp_path / "there", lends({}, order=1), **settings)
    assert weights(there) == weights(here)
    assert not [event for event in events(there) if isinstance(event, StepsLost)]


@pytest.mark.thin(4)
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_run_with_losses_replays_bit_for_bit(tmp_path, settings):
    run = record_here(tmp_path / "run", lends(PLANNED), **settings)
    told = [event for event in events(run) if isinstance(event, StepsLost)]
    assert sorted(lane for event in told for lane, _ in event.steps) == [0, 0, 1, 3, 3]
    found = replay(run)
    assert (found.ended, found.weights_sha256) == (True, weights(run))


def test_the_loss_is_told_before_the_chunk_it_is_in(tmp_path):
    run = record_here(tmp_path / "run", lends({(2, 12): "hung"}), env__group_size=2)
    found = events(run)
    (place,) = [place for place, event in enumerate(found) if isinstance(event, StepsLost)]
    chunk = found[place + 1]
    assert isinstance(chunk, ChunkCommitted)
    # Its first call was a reset, so its twelfth is the step of number ten, the third of the second chunk.
    assert (found[place].group, found[place].chunk, found[place].steps) == (1, 1, ((2, 2),))
    assert (chunk.group, chunk.chunk) == (1, 1)
    assert [part.transitions for part in chunk.lanes] == [7, 8]


def test_a_replay_that_is_looked_at_has_the_episodes_of_the_run(tmp_path):
    run = record_here(tmp_path / "run", lends(PLANNED), env__group_size=2)
    with Replayer(run) as replayer:
        replayer.run()
        cut = replayer.learner.episodes.cut
    assert cut == 5


def test_what_is_salvaged_tells_its_losses_too(tmp_path):
    run = SmallRun(tmp_path / "run", configuration(env__group_size=2))
    run.publish()
    run.collect(0)
    collector = run.collectors[0]
    collector.rebuild = lambda lane: Drift()
    collector.collect(1, 5, None, {(0, 3), (1, 0)})  # and is gone
    run.salvage(0)
    found = events(run.end().path)
    lost, salvaged = found[-2:]
    assert isinstance(lost, StepsLost)
    assert isinstance(salvaged, GroupSalvaged)
    assert (lost.group, lost.chunk, lost.steps) == (0, 1, ((0, 3), (1, 0)))
    assert (salvaged.chunk, [part.salvaged for part in salvaged.lanes]) == (1, [4, 4])
