"""Batches on their way: whole, recognised, waited for by name, and removed by the one who may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from disk_support import in_the_middle_of_writing
from headrace.core.errors import ComponentStalled, RunDirectoryError, SnapshotCorrupt
from headrace.ipc.channel import Channel
from headrace.llm import transport
from headrace.llm.messages import Batch
from headrace.llm.transport import FileSink, FileSource, MemoryTransport, batch_path, read_batch, wake, write_batch
from headrace.telemetry.board import Activity, Board
from llm_support import batch, same_batch, sample


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue


def test_a_batch_is_read_as_it_was_shipped(tmp_path: Path) -> None:
    shipped = batch(
        3,
        5,
        facts={"train/reward/mean": 0.1 + 0.2, "batch/stale": 0.0},
        carry={"next": 7, "order": [3, 1, 2], "books": {"requested": 40}},
    )
    FileSink(tmp_path, "run").ship(shipped)
    assert same_batch(FileSource(tmp_path, "run").receive(3, 0.0), shipped)


def test_a_batch_without_samples_and_one_without_trained_tokens_are_batches(tmp_path: Path) -> None:
    for step, samples in enumerate([(), (sample(0, reply=0),)]):
        shipped = batch(step, samples=0)
        shipped = Batch(run_id="run", step=step, samples=samples)
        write_batch(tmp_path / str(step), shipped)
        assert same_batch(read_batch(tmp_path / str(step), "run", step), shipped)


@pytest.mark.parametrize("place", [9, 300, -3])
def test_a_damaged_batch_is_an_error_that_names_its_file(tmp_path: Path, place: int) -> None:
    FileSink(tmp_path, "run").ship(batch())
    path = batch_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapshotCorrupt, match="batch-00000000"):
        FileSource(tmp_path, "run").receive(0, 0.0)
    assert path.exists()


def test_a_cut_batch_is_an_error(tmp_path: Path) -> None:
    FileSink(tmp_path, "run").ship(batch())
    path = batch_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SnapshotCorrupt, match="batch-00000000"):
        FileSource(tmp_path, "run").receive(0, 0.0)


def test_a_batch_of_another_run_is_never_taken(tmp_path: Path) -> None:
    FileSink(tmp_path, "old").ship(batch(run_id="old"))
    with pytest.raises(RunDirectoryError) as raised:
        FileSource(tmp_path, "new").receive(0, 0.0)
    assert str(raised.value) == (
        "[CFG-002] a batch of another run lies where this run's are expected\n"
        f"  file: {batch_path(tmp_path, 0)}\n"
        "  their run: old\n"
        "  this run: new\n"
        "  fix: give each run a directory of its own, or move that file away"
    )
    assert batch_path(tmp_path, 0).exists()


def test_a_file_whose_name_lies_about_its_step_is_an_error(tmp_path: Path) -> None:
    FileSink(tmp_path, "run").ship(batch(2))
    batch_path(tmp_path, 2).rename(batch_path(tmp_path, 1))
    with pytest.raises(RunDirectoryError, match="file of batch 1 holds batch 2"):
        FileSource(tmp_path, "run").receive(1, 0.0)


def test_a_batch_of_a_step_that_was_trained_on_is_an_error(tmp_path: Path) -> None:
    FileSink(tmp_path, "run").ship(batch(1))
    with pytest.raises(RunDirectoryError, match="batch 1 arrived when batch 2 was next"):
        FileSource(tmp_path, "run").receive(2, 0.0)


def test_batches_may_wait_in_order_and_go_when_they_were_consumed(tmp_path: Path) -> None:
    sink, source = FileSink(tmp_path, "run"), FileSource(tmp_path, "run")
    for step in range(3):
        sink.ship(batch(step))
    for step in range(3):
        received = source.receive(step, 0.0)
        assert received is not None
        assert received.step == step
        assert batch_path(tmp_path, step).exists(), "a batch that kills the trainer has to stay"
        source.consumed(step)
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_shipped_once(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "run")
    sink.ship(batch())
    with pytest.raises(RunDirectoryError, match="batch 0 is there already"):
        sink.ship(batch())


def test_a_batch_that_appears_while_another_is_written_is_not_written_over(tmp_path: Path, monkeypatch) -> None:
    sink, path = FileSink(tmp_path, "run"), batch_path(tmp_path, 0)
    in_the_middle_of_writing(monkeypatch, lambda: path.write_bytes(b"of somebody else"))
    with pytest.raises(RunDirectoryError, match="batch 0 is there already"):
        sink.ship(batch())
    assert path.read_bytes() == b"of somebody else"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("run_id", ["run", "another"])
def test_a_batch_that_was_replaced_while_it_was_trained_on_stays(tmp_path: Path, run_id: str) -> None:
    FileSink(tmp_path, "run").ship(batch())
    source, path = FileSource(tmp_path, "run"), batch_path(tmp_path, 0)
    assert source.receive(0, 0.0) is not None
    other = tmp_path / "other"
    write_batch(other, batch(run_id=run_id))
    other.replace(path)
    with pytest.raises(RunDirectoryError, match="batch 0 was replaced while it was trained on"):
        source.consumed(0)
    assert path.exists()


def test_a_batch_that_is_gone_when_it_was_trained_on_is_no_error(tmp_path: Path) -> None:
    FileSink(tmp_path, "run").ship(batch())
    source = FileSource(tmp_path, "run")
    assert source.receive(0, 0.0) is not None
    batch_path(tmp_path, 0).unlink()
    source.consumed(0)


def test_a_new_sink_removes_what_an_earlier_life_left(tmp_path: Path) -> None:
    first = FileSink(tmp_path, "run")
    first.ship(batch(51))
    first.ship(batch(52))
    assert FileSink(tmp_path, "run").removed == [51, 52]
    assert list(tmp_path.iterdir()) == []


def test_a_new_sink_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    FileSink(tmp_path, "old").ship(batch(4, run_id="old"))
    with pytest.raises(RunDirectoryError, match="another run"):
        FileSink(tmp_path, "new")
    assert batch_path(tmp_path, 4).exists()


def test_a_failed_ship_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        FileSink(tmp_path, "run").ship(batch(carry={"object": object()}))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    sink = FileSink(tmp_path, "run")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunDirectoryError, match="batch 3 cannot be written"):
        sink.ship(batch(3))
    assert list(tmp_path.iterdir()) == []


def test_what_was_half_written_by_one_that_died_is_removed_by_the_next(tmp_path: Path) -> None:
    for name in (".batch-00000000.safetensors.12", ".batch-00000001.safetensors.12.new", ".batch.swp"):
        (tmp_path / name).write_bytes(b"half")
    FileSink(tmp_path, "run")
    assert [path.name for path in tmp_path.iterdir()] == [".batch.swp"]


def test_an_unfinished_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".batch-00000000.safetensors.123").write_bytes(b"half")
    with pytest.raises(ComponentStalled):
        FileSource(tmp_path, "run").receive(0, 0.0)


def test_a_wait_that_passes_its_deadline_names_who_did_not_ship(tmp_path: Path) -> None:
    with (
        Board.create(tmp_path / "board", [("trainer", "trainer"), ("orchestrator", "orchestrator")]) as board,
        pytest.raises(ComponentStalled) as raised,
    ):
        FileSource(tmp_path, "run", board.slot("trainer")).receive(7, 0.01)
    assert str(raised.value) == (
        "[SUP-002] trainer waited 0.01 s for orchestrator\n"
        "  activity: wait.batch\n"
        "  step: 7\n"
        f"  expected: {batch_path(tmp_path, 7)}\n"
        "  found: no batch\n"
        "  fix: see what orchestrator is doing: `headrace doctor RUN`"
    )


def test_a_batch_that_will_not_come_is_not_waited_for(tmp_path: Path) -> None:
    """Its orchestrator is further than the trainer, which was resumed without it."""
    FileSink(tmp_path, "run").ship(batch(8))
    with pytest.raises(RunDirectoryError) as raised:
        FileSource(tmp_path, "run").receive(7, 1000.0)
    assert str(raised.value) == (
        "[CFG-002] batch 8 is there, and batch 7, which is next, is not and will not come\n"
        f"  folder: {tmp_path}\n"
        "  fix: end orchestrator and this trainer, and start both with --resume, so that they go on from one checkpoint"
    )


def test_the_wait_is_on_the_board_as_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the folder is looked at again and again meanwhile; and what was done before is shown afterwards."""
    seen = []
    monkeypatch.setattr(transport, "LOOK_S", 0.0)
    with Board.create(tmp_path / "board", [("trainer", "trainer"), ("orchestrator", "orchestrator")]) as board:
        slot = board.slot("trainer")
        slot.enter(Activity.IDLE)
        source = FileSource(tmp_path / "rollouts", "run", slot)
        look = source._look

        def noted(step: int) -> Batch | None:
            seen.append(board.read("trainer"))
            if len(seen) == 5:
                FileSink(tmp_path / "rollouts", "run").ship(batch(0))
            return look(step)

        monkeypatch.setattr(source, "_look", noted)
        source.receive(0, 60.0)
        assert board.read("trainer").activity is Activity.IDLE
    waits = seen[1:]
    assert {(one.activity, one.waits_on, one.need, one.have, one.deadline_s) for one in waits} == {
        (Activity.WAIT_BATCH, "orchestrator", 1, 0, 60.0)
    }
    assert len({one.since_ns for one in waits}) == 1


def test_a_byte_wakes_the_reader(tmp_path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a look only every 1000 s, what is read at once was announced."""
    monkeypatch.setattr(transport, "LOOK_S", 1000.0)
    reader, writer = pipe
    source = FileSource(tmp_path, "run", wake_fd=reader)
    look, sink = source._look, FileSink(tmp_path, "run", wake_fd=writer)
    looks = []

    def arrives_after_the_first_look(step: int) -> Batch | None:
        looks.append(step)
        found = look(step)
        if len(looks) == 1:
            sink.ship(batch(0))
        return found

    monkeypatch.setattr(source, "_look", arrives_after_the_first_look)
    assert source.receive(0, 2000.0) is not None
    assert len(looks) == 2


def test_a_word_of_the_supervisor_ends_the_wait(tmp_path: Path) -> None:
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        theirs.send("stop", 1.0)
        assert FileSource(tmp_path, "run", control_fd=ours.fileno()).receive(0, 1000.0) is None
        assert ours.receive_all() == ["stop"]


def test_a_pipe_whose_writers_are_gone_is_not_looked_at_again(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """It would be readable for ever, and the wait a busy loop."""
    reader, writer = pipe
    os.close(writer)
    source = FileSource(tmp_path, "run", wake_fd=reader)
    assert source._asleep(1000.0) == [reader]
    assert source._asleep(0.0) == []


def test_waking_never_blocks(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    for _ in range(70_000):
        wake(writer)
    assert transport.drained(reader)
    assert transport.drained(reader)
    os.close(reader)
    wake(writer)


def test_memory_is_a_transport_too() -> None:
    memory = MemoryTransport()
    shipped = batch(0, carry={"order": (1, 2)}, facts={"x": 1})
    memory.ship(shipped)
    received = memory.receive(0, 5.0)
    assert received is not None
    assert received.carry == {"order": [1, 2]}, "as a file would have it"
    assert received.samples is shipped.samples
    memory.consumed(0)
    with pytest.raises(ComponentStalled, match="step 0 before its batch"):
        memory.receive(0, 5.0)
