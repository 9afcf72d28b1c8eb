"""Whoever writes a checkpoint may be killed at any moment: what another process finds is whole, the old or the new."""

from __future__ import annotations

import itertools
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from disk_support import Disk, contents, dies
from headrace.learners.checkpoint import LearnerState
from headrace.learners.checkpoints import CheckpointStore

pytestmark = pytest.mark.process

ARRAYS = 3


def put(store: CheckpointStore, version: int, number: int) -> None:
    """A checkpoint whose content tells its number in every place."""
    arrays = {f"layer {place}": np.full(1000, number, np.float32) for place in range(ARRAYS)}
    facts = {"number": number, "oldest_segment": number}
    store.write(version, LearnerState(arrays, {"number": number}), facts, {"actor": arrays["layer 0"]}, {"n": number})


def found(folder: Path) -> tuple[int, int]:
    """Version and number of what somebody else finds; all of it has to agree."""
    checkpoint, problems = CheckpointStore(folder, keep=2).newest_sound(oldest_segment=0)
    assert problems == []
    assert checkpoint is not None
    loaded, (arrays, facts) = checkpoint.load(), checkpoint.policy()
    numbers = {checkpoint.facts["number"], loaded.facts["number"], int(facts["n"]), int(arrays["actor"][7])}
    numbers |= {int(value) for array in loaded.arrays.values() for value in array}
    assert len(loaded.arrays) == ARRAYS
    assert len(numbers) == 1
    return checkpoint.version, numbers.pop()


def in_a_child(work: Callable[[], None]) -> int:
    """How a forked process ended that did this: 0 or the negative signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            traceback.print_exc()  # of what should not have been raised
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.thin(2)
@pytest.mark.parametrize("version", [3, 4], ids=["the_same_version_again", "the_next_version"])
def test_killed_at_every_call_that_changes_a_file(tmp_path, monkeypatch, version):
    """Run after run: each one writes the next checkpoint and prunes, and is killed one call later than the one before."""
    store = CheckpointStore(tmp_path, keep=2)
    put(store, 2, 0)
    put(store, 3, 1)
    before, seen = (3, 1), set()
    for number in itertools.count(2):
        target = version if version == 3 else number + 2

        def work(number: int = number, target: int = target) -> None:
            Disk(monkeypatch, number - 2, dies)
            mine = CheckpointStore(tmp_path, keep=2)
            put(mine, target, number)
            mine.note_evaluation(target, float(number))
            mine.prune()

        ended = in_a_child(work)
        now = found(tmp_path)
        assert now in (before, (target, number))
        seen.add(now == before)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        before = now
    assert seen == {True, False}
    assert number > 15
    assert now == (target, number)
    left = [name for name in contents(tmp_path) if not name.endswith(("policy.safetensors", "evaluations.json"))]
    assert len(left) == 2 * len(store.checkpoints()), left  # a manifest and a state each, and no leftovers
    assert len(store.checkpoints()) <= 3


@pytest.mark.table
def test_killed_while_it_tidies_after_another_that_was_killed(tmp_path, monkeypatch):
    """The second one dies at every place of putting in order what the first one left at every place."""
    put(CheckpointStore(tmp_path / "at_first", keep=2), 3, 1)
    put(CheckpointStore(tmp_path / "at_first", keep=2), 5, 2)
    first, ended = -1, -signal.SIGKILL
    while ended:
        first += 1
        for second in (0, 2, 7):
            folder = tmp_path / f"{first}-{second}"
            restore(tmp_path / "at_first", folder)

            def work(at: int, number: int, folder: Path = folder) -> None:
                Disk(monkeypatch, at, dies)
                put(CheckpointStore(folder, keep=2), 5, number)

            ended = in_a_child(lambda work=work, first=first: work(first, 3))
            assert ended in (0, -signal.SIGKILL)
            assert found(folder) in ((5, 2), (5, 3))
            assert in_a_child(lambda work=work, second=second: work(second, 4)) == -signal.SIGKILL
            assert found(folder) in ((5, 2), (5, 3), (5, 4))
    assert first > 10


def restore(source: Path, target: Path) -> None:
    for name, data in contents(source).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
