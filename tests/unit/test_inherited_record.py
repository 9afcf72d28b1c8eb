"""A learner is killed between any two writes; its successor brings record and books together, and a replay agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.record.events import ChunkCommitted, GroupSalvaged, LearnerSucceeded, PolicyPublished
from headrace.record.trace import Trace
from headrace.runtime.checkpointing import Keeper
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.replayer import replay
from headrace.telemetry.board import Activity, Slot
from succession_support import CHUNK_STEPS, Fate, Killed, lives

ROUNDS = 3
"""Of a life."""
SLICES = 13
"""Into so many tests all moments are dealt."""


def killed_at(folder: Path, at: int | None, **settings: Any) -> tuple[list[str], list[Any]]:
    """Two lives, the first of which ends at a moment, and their replay; all moments up to there, and the record's events."""
    with pytest.MonkeyPatch.context() as patch:
        fate = Fate(patch, at)
        with lives(folder, fate, **settings) as run:
            if at is not None:
                with pytest.raises(Killed):
                    run.live(rounds=ROUNDS)
            sha256 = run.live(rounds=ROUNDS)
    found = replay(folder)
    assert found.ended
    assert found.weights_sha256 == sha256
    with Trace.open(folder / "record" / TRACE_FILE) as trace:
        events = [event for _, event in trace.events()]
    assert sum(isinstance(event, LearnerSucceeded) for event in events) == (at is not None)
    return fate.moments, events


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every moment of a life at which it may end."""
    return killed_at(tmp_path_factory.mktemp("whole") / "run", None)[0]


def place(moments: list[str], *names: str, number: int = 0) -> int:
    """Where these moments follow one another; the place of the last of them."""
    size = len(names)
    return [at for at in range(size, len(moments) + 1) if tuple(moments[at - size : at]) == names][number] - 1


def before_succession(events: list[Any]) -> list[Any]:
    at = next(number for number, event in enumerate(events) if isinstance(event, LearnerSucceeded))
    return events[:at]


def after_succession(events: list[Any]) -> list[Any]:
    return events[len(before_succession(events)) + 1 :]


@pytest.mark.table
def test_before_the_first_event(tmp_path: Path, moments: list[str]):
    _, events = killed_at(tmp_path / "run", place(moments, "before TraceWriter.write"))
    assert before_succession(events) == []


def test_a_commit_that_is_on_record_is_completed_in_the_books(tmp_path: Path, moments: list[str]):
    at = place(moments, "after TraceWriter.write", "before LaneBooks.change")
    _, events = killed_at(tmp_path / "run", at)
    assert isinstance(before_succession(events)[-1], ChunkCommitted)


@pytest.mark.table
def test_a_commit_of_which_one_lane_is_in_the_books_is_completed(tmp_path: Path, moments: list[str]):
    at = place(moments, "after LaneBooks.change", "before LaneBooks.change", number=1)
    _, events = killed_at(tmp_path / "run", at)
    assert isinstance(before_succession(events)[-1], ChunkCommitted)


@pytest.mark.thin(2)
@pytest.mark.parametrize("episode_steps", [None, CHUNK_STEPS], ids=["goes_on", "ends_its_episode"])
def test_a_chunk_that_was_not_taken_over_is_committed_before_what_follows_it_is_salvaged(
    tmp_path: Path, moments: list[str], episode_steps: int | None
):
    at = place(moments, "before RowLog.append")
    _, events = killed_at(tmp_path / "run", at, env__max_episode_steps=episode_steps)
    commit, salvaged = after_succession(events)[:2]
    assert (commit.group, commit.chunk) == (0, 0)
    assert [part.transitions for part in commit.lanes] == [CHUNK_STEPS, CHUNK_STEPS]
    last_rows = [after.stop - before.stop for before, after in zip(commit.lanes, salvaged.lanes, strict=True)]
    assert last_rows == [3, 2], "so many steps and the row of the cut; what ends an episode lies before them"
    assert (salvaged.group, salvaged.chunk) == (0, 1)
    assert [part.salvaged for part in salvaged.lanes] == [2, 1]


def salvage_of_life(moments: list[str]) -> int:
    """Where the salvage of the collector that dies begins: books change without a record before."""
    return place(moments, "after Snapshots.show", "before LaneBooks.change")


@pytest.mark.thin(16)
@pytest.mark.parametrize("later", [0, 2, 3, 4, 6, 7, 8, 9, 12], ids=lambda later: f"moment_{later}")
def test_a_salvage_in_the_books_is_written_whole(tmp_path: Path, moments: list[str], later: int):
    first = salvage_of_life(moments)
    assert moments[first : first + 10] == [
        "before LaneBooks.change", "before LaneBooks.settle", "after LaneBooks.settle", "after LaneBooks.change",
        "before LaneBooks.change", "before LaneBooks.settle", "after LaneBooks.settle", "after LaneBooks.change",
        "before RowLog.append", "after RowLog.append",
    ]  # fmt: skip
    _, events = killed_at(tmp_path / "run", first + later)
    salvages = [event for event in events if isinstance(event, GroupSalvaged) and event.group == 1]
    assert [part.salvaged for part in salvages[0].lanes] == [3, 2]
    assert [part.cut for part in salvages[0].lanes] == [True, True]
    assert (salvages[0] in before_succession(events)) == (later > 0)


@pytest.mark.table
@pytest.mark.thin(3)
@pytest.mark.parametrize("moment", ["before Snapshots.prepare", "before TraceWriter.write", "before Snapshots.show"])
def test_nobody_acts_with_a_policy_that_is_not_on_record(tmp_path: Path, moments: list[str], moment: str):
    shown = place(moments, "after Snapshots.show", number=1)
    at = max(number for number in range(shown) if moments[number] == moment)
    _, events = killed_at(tmp_path / "run", at)
    recorded = [event.version for event in before_succession(events) if isinstance(event, PolicyPublished)]
    assert recorded == ([1, 2] if moment == "before Snapshots.show" else [1])
    published = [event.version for event in events if isinstance(event, PolicyPublished)]
    assert published == list(range(1, len(published) + 1))


@pytest.mark.table
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(SLICES))
def test_killed_at_every_moment(tmp_path: Path, moments: list[str], first: int):
    assert len(moments) > 150
    for at in range(first, len(moments), SLICES):
        killed_at(tmp_path / str(at), at)


def test_what_was_stored_before_is_not_told_as_salvaged(
    tmp_path: Path, moments: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Killed right after it has saved its state, with nothing taken over since, and no chunk that is whole."""
    fate = Fate(monkeypatch, place(moments, "after LearnerState.save"))
    with lives(tmp_path / "run", fate) as run:
        with pytest.raises(Killed):
            run.live(rounds=ROUNDS)
        assert run.told is None
        run.live(rounds=1)
    stored = 4 * CHUNK_STEPS
    assert run.told is not None
    assert (run.told["env_steps"], run.told["salvaged"]) == (stored + 6, 6)


@pytest.mark.table
def test_whoever_waits_sees_that_the_record_is_being_read(
    tmp_path: Path, moments: list[str], monkeypatch: pytest.MonkeyPatch
):
    told: list[Activity] = []
    with lives(tmp_path / "run", Fate(monkeypatch, len(moments) - 1)) as run:
        with pytest.raises(Killed):
            run.live(rounds=ROUNDS)
        with Trace.open(tmp_path / "run" / "record" / TRACE_FILE) as trace:
            recorded = len(list(trace.events()))
        enter = Slot.enter

        def entered(slot: Slot, activity: Activity, *place: int) -> None:
            told.append(activity)
            enter(slot, activity, *place)

        monkeypatch.setattr(Slot, "enter", entered)
        run.live(rounds=1)
    assert told.count(Activity.RESUME) > recorded


@pytest.mark.table
def test_a_chunk_that_was_ended_early_is_told_apart_from_the_one_begun_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a collector leaves that is told to: it ends its chunk, and begins another one that stays empty."""
    with lives(tmp_path / "run", Fate(monkeypatch)) as run:

        def leave(keeper: Keeper) -> None:
            for group, collector in run._there.items():
                for steps in (2, 0):
                    collector.collect(run._chunks[group], steps)
                    run._chunks[group] += 1
            run._there.clear()
            run._incarnations = [number + 1 for number in run._incarnations]
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Keeper, "end", leave)
            with pytest.raises(Killed):
                run.live(rounds=1)
        sha256 = run.live(rounds=1)
    found = replay(tmp_path / "run")
    assert (found.ended, found.weights_sha256) == (True, sha256)
    with Trace.open(tmp_path / "run" / "record" / TRACE_FILE) as trace:
        events = after_succession([event for _, event in trace.events()])
    commits = [event for event in events if isinstance(event, ChunkCommitted)][:2]
    assert [(event.chunk, event.lanes[0].transitions) for event in commits] == [(1, 2), (1, 2)]
