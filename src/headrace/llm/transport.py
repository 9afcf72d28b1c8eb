"""How a batch of rollouts gets from the orchestrator to the trainer: a file each, or directly in memory.

A batch is one safetensors file ``batch-<step>.safetensors`` with run id, step and a checksum over everything in it. It is
written under another name, synced and renamed. The reader is woken through a pipe and looks at the folder at least every
`LOOK_S` seconds besides, so it works on shared volumes as well, where no pipe reaches.

Who removes what:

- The trainer removes the file of a step once it has published what it made of it (`consumed`). So the batch that a trainer
  fails on is still there to be looked at, and no checkpoint needs old ones: a resumed orchestrator goes on from the carry
  in the checkpoint and makes every later batch again.
- What an earlier life of the same run left is removed by the new sink, before its orchestrator is ready; where components are
  started alone, already by the launcher of the orchestrator, and by that of the trainer if no orchestrator is alive.
- Everything else that does not belong is an error that names the file and leaves it there: another run's, a damaged one,
  one whose name and content disagree, one of a step that was trained on already (somebody else ships, too), and one of a later
  step than the next where that one is not there (its orchestrator is further than this trainer).

Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from headrace.core.errors import ChannelClosed, ComponentStalled, RunDirectoryError, SnapshotCorrupt
from headrace.core.files import is_part
from headrace.ipc.channel import Deadline
from headrace.llm.disk import writing
from headrace.llm.messages import Batch, Sample
from headrace.llm.payloads import ORCHESTRATOR
from headrace.telemetry.board import Activity, Slot
from headrace.telemetry.waits import wait_readable
from headrace.weights.tensor_file import load_tensors, save_tensors

LOOK_S = 0.5
"""Longest between two looks at the folder."""

_FACTS, _SUM = "headrace", "sha256"
_ONE_ORCHESTRATOR = "let only one orchestrator ship into a run directory"
_Identity = tuple[int, int, int]
_NAME = re.compile(r"batch-(\d+)\.safetensors")
_FORMAT = "headrace batch 1"
_DTYPES = {
    "token_ids": np.int32,
    "trained": np.bool_,
    "logprobs": np.float32,
    "versions": np.int32,
    "lengths": np.int64,
    "groups": np.int64,
    "rewards": np.float64,
    "advantages": np.float64,
}


class Sink(Protocol):
    """The orchestrator's end."""

    def ship(self, batch: Batch) -> None:
        """Hand a batch over; each step once, in order."""
        ...


class Source(Protocol):
    """The trainer's end."""

    def receive(self, step: int, deadline_s: float) -> Batch | None:
        """The batch of a step; None if the supervisor has something to say instead.

        Raises:
            ComponentStalled: None came within ``deadline_s`` seconds.
        """
        ...

    def consumed(self, step: int) -> None:
        """What was made of a step's batch is published; it is not needed any more."""
        ...


def write_batch(path: Path, batch: Batch) -> None:
    """Write a batch; it appears whole or not at all, and takes nobody's place.

    Raises:
        RunDirectoryError: There is one of this step, which stays; or it cannot be written, and nothing is left.
        TypeError: Its carry is not JSON.
    """
    arrays, text = _packed(batch)
    with writing(f"batch {batch.step}", path):
        try:
            save_tensors(path, arrays, {_FACTS: text, _SUM: _checksum(arrays, text)}, new=True)
        except FileExistsError:
            raise RunDirectoryError(f"batch {batch.step} is there already", file=path, fix=_ONE_ORCHESTRATOR) from None


def read_batch(path: Path, run_id: str, step: int) -> Batch:
    """A batch that was shipped.

    Raises:
        SnapshotCorrupt: The file is damaged.
        RunDirectoryError: It is of another run, or of another step.
        FileNotFoundError: There is none.
    """
    try:
        arrays, metadata = load_tensors(path)
        text = metadata[_FACTS]
        if metadata[_SUM] != _checksum(arrays, text):
            raise ValueError("content and checksum differ")
        batch = _unpacked(arrays, json.loads(text))
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise SnapshotCorrupt(
            "a batch of rollouts is damaged",
            file=path,
            problem=f"{type(error).__name__}: {error}",
            fix="remove the file and resume from a checkpoint; the disk may be failing",
        ) from error
    if batch.run_id != run_id:
        raise RunDirectoryError(
            "a batch of another run lies where this run's are expected",
            file=path,
            their_run=batch.run_id,
            this_run=run_id,
            fix="give each run a directory of its own, or move that file away",
        )
    if batch.step != step:
        raise RunDirectoryError(
            f"the file of batch {step} holds batch {batch.step}",
            file=path,
            fix="find out who renamed it; Headrace never does",
        )
    return batch


def remove_leftovers(folder: Path, run_id: str) -> list[int]:
    """Remove what was shipped by somebody who does not ship any more; its steps. Somebody else may be doing the same.

    Raises:
        SnapshotCorrupt: A file that is there is damaged, so nobody can say whose it is.
        RunDirectoryError: A file is there that is of another run.
    """
    for path in folder.glob(".batch-*"):
        if is_part(path):  # of one that was killed while it wrote
            path.unlink(missing_ok=True)
    left = _batches(folder)
    for step, path in left:
        with suppress(FileNotFoundError):
            read_batch(path, run_id, step)
            path.unlink()
    return [step for step, _ in left]


class FileSink:
    """Ships batches as files.

    Args:
        folder: ``rollouts/`` of the run; made if it is not there. What this run's earlier life left in it is removed.
        run_id: Of the run.
        wake_fd: Writing end of a pipe that wakes the reader; not owned.

    Raises:
        SnapshotCorrupt: A file that is there is damaged, so nobody can say whose it is.
        RunDirectoryError: A file is there that is of another run.
    """

    def __init__(self, folder: Path, run_id: str, wake_fd: int | None = None) -> None:
        self.folder = folder
        self._run_id = run_id
        self._wake_fd = wake_fd
        if wake_fd is not None:
            os.set_blocking(wake_fd, False)
        folder.mkdir(exist_ok=True)
        self.removed = remove_leftovers(folder, run_id)
        """Steps whose batches an earlier life of the run had left."""

    def ship(self, batch: Batch) -> None:
        """Make a batch appear, and wake the reader.

        Raises:
            RunDirectoryError: The step was shipped already, or it cannot be written; nothing is left.
        """
        write_batch(batch_path(self.folder, batch.step), batch)
        if self._wake_fd is not None:
            wake(self._wake_fd)


class FileSource:
    """Takes batches from files.

    Args:
        folder: ``rollouts/`` of the run; may appear later.
        run_id: Of the run.
        slot: Of the component that waits, if it has one.
        wake_fd: Reading end of a pipe, readable when a batch may have arrived; not owned. It may be lost: that only
            makes the answer up to `LOOK_S` seconds slower.
        control_fd: Readable when the supervisor has something to say; a wait ends then.
        on: Id of the component that ships.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        slot: Slot | None = None,
        wake_fd: int | None = None,
        control_fd: int | None = None,
        on: str = ORCHESTRATOR,
    ) -> None:
        self.folder = folder
        self._run_id = run_id
        self._slot = slot
        self._wake_fd = wake_fd
        self._control_fd = control_fd
        self._on = on
        self._taken: _Identity | None = None
        """Of the file that was read last."""
        if wake_fd is not None:
            os.set_blocking(wake_fd, False)

    def receive(self, step: int, deadline_s: float) -> Batch | None:
        """The batch of a step; waits for it.

        Returns:
            The batch; None if ``control_fd`` became readable first.

        Raises:
            ComponentStalled: None came within ``deadline_s`` seconds.
            SnapshotCorrupt: Its file is damaged.
            RunDirectoryError: Its file is of another run or another step, one of an earlier step appeared, or a later one
                without it.
        """
        batch = self._look(step)
        if batch is not None:
            return batch
        # One wait for whoever looks at the board, however often the folder is looked at meanwhile.
        before = self._slot and self._slot.resume()
        if self._slot:
            self._slot.waiting(Activity.WAIT_BATCH, on=self._on, need=1, have=0, deadline_s=deadline_s)
        try:
            return self._wait(step, deadline_s)
        finally:
            if self._slot and before:
                self._slot.enter(*before)

    def consumed(self, step: int) -> None:
        """What was made of a step's batch is published: its file goes.

        Raises:
            RunDirectoryError: Another file lies in its place; it stays.
        """
        path = batch_path(self.folder, step)
        with suppress(FileNotFoundError):
            if self._taken is not None and _identity(path) != self._taken:
                raise RunDirectoryError(
                    f"batch {step} was replaced while it was trained on",
                    file=path,
                    fix=f"{_ONE_ORCHESTRATOR}; see which run or process wrote this file",
                )
            path.unlink()

    def _wait(self, step: int, deadline_s: float) -> Batch | None:
        deadline = Deadline(deadline_s)
        while True:
            if self._control_fd in self._asleep(min(LOOK_S, deadline.left_s())):
                return None
            passed = deadline.passed
            batch = self._look(step)
            if batch is not None:
                return batch
            if passed:
                self._give_up(step, deadline_s)

    def _asleep(self, timeout_s: float) -> list[int]:
        """Wait for either descriptor; those that are ready, none after ``timeout_s`` seconds."""
        fds = [fd for fd in (self._wake_fd, self._control_fd) if fd is not None]
        ready = wait_readable(
            None,
            fds,
            activity=Activity.WAIT_BATCH,
            on=self._on,
            need=1,
            have=0,
            timeout_s=timeout_s,
            raise_on_timeout=False,
        )
        if self._wake_fd in ready and not drained(self._wake_fd):
            self._wake_fd = None  # nobody holds its other end: it would be readable for ever
        return ready

    def _look(self, step: int) -> Batch | None:
        there = _batches(self.folder)
        for found, path in there:
            if found < step:
                raise RunDirectoryError(
                    f"batch {found} arrived when batch {step} was next",
                    file=path,
                    fix=f"{_ONE_ORCHESTRATOR}; see which run or process wrote this file",
                )
        path = batch_path(self.folder, step)
        with suppress(FileNotFoundError):
            self._taken = _identity(path)
            return read_batch(path, self._run_id, step)
        if there and there[0][0] > step:  # they are shipped in order, each once
            with suppress(FileNotFoundError):
                read_batch(there[0][1], self._run_id, there[0][0])  # of another run, it says nothing about this one
            raise RunDirectoryError(
                f"batch {there[0][0]} is there, and batch {step}, which is next, is not and will not come",
                folder=self.folder,
                fix=f"end {self._on} and this trainer, and start both with --resume, so that they go on from one checkpoint",
            )
        return None

    def _give_up(self, step: int, deadline_s: float) -> NoReturn:
        raise ComponentStalled(
            f"{self._slot.id if self._slot else 'the trainer'} waited {deadline_s:g} s for {self._on}",
            activity=Activity.WAIT_BATCH.label,
            step=step,
            expected=batch_path(self.folder, step),
            found="no batch",
            fix=f"see what {self._on} is doing: `headrace doctor RUN`",
        )


class MemoryTransport:
    """Both ends in one process, for the twin, whose orchestrator ships before its trainer asks."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}

    def ship(self, batch: Batch) -> None:
        """Hand a batch over; its carry and facts become what a file would make of them."""
        facts, carry = json.loads(json.dumps([dict(batch.facts), dict(batch.carry)]))
        self._batches[batch.step] = Batch(
            run_id=batch.run_id, step=batch.step, samples=batch.samples, facts=facts, carry=carry
        )

    def receive(self, step: int, deadline_s: float) -> Batch | None:
        """The batch of a step.

        Raises:
            ComponentStalled: It was not shipped; nobody could do that while this waits, so it is raised at once.
        """
        if step not in self._batches:
            raise ComponentStalled(
                f"the trainer was asked for step {step} before its batch was shipped",
                have=", ".join(map(str, sorted(self._batches))) or "none",
                limit_s=deadline_s,
                fix="file a bug: orchestrator and trainer were called in the wrong order",
            )
        return self._batches[step]

    def consumed(self, step: int) -> None:
        """Let go of a step's batch."""
        self._batches.pop(step, None)


def _identity(path: Path) -> _Identity:
    """What tells a file from another one of the same name."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def batch_path(folder: Path, step: int) -> Path:
    """Where the batch of a step lies."""
    return folder / f"batch-{step:08d}.safetensors"


def wake(fd: int) -> None:
    """Make the other end of a pipe readable. A pipe that is full wakes its reader anyway; one without a reader is not missed."""
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(fd, b"\0")


def drained(fd: int) -> bool:
    """Empty a non-blocking pipe; False if nobody can write to it any more.

    Raises:
        ChannelClosed: The descriptor was closed in this very process.
    """
    try:
        while piece := os.read(fd, 4096):
            if len(piece) < 4096:
                return True
    except BlockingIOError:
        return True
    except OSError as error:
        raise ChannelClosed(
            "a wake-up pipe cannot be read", descriptor=fd, error=error, fix="file a bug: it was closed too early"
        ) from error
    return False


def _batches(folder: Path) -> list[tuple[int, Path]]:
    """Steps and files of the batches in a folder, in order."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - only the names are wanted, twice a second
    except FileNotFoundError:
        return []
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    return sorted((int(match[1]), folder / match[0]) for match in matches)


def _packed(batch: Batch) -> tuple[dict[str, NDArray[Any]], str]:
    """Arrays, samples one after the other, and everything else as JSON."""
    samples = batch.samples
    columns: dict[str, list[Any]] = {
        "token_ids": [sample.token_ids for sample in samples],
        "trained": [sample.trained for sample in samples],
        "logprobs": [sample.logprobs for sample in samples],
        "versions": [sample.versions for sample in samples],
        "lengths": [[len(sample.token_ids)] for sample in samples],
        "groups": [[sample.group] for sample in samples],
        "rewards": [[sample.reward] for sample in samples],
        "advantages": [[sample.advantage] for sample in samples],
    }
    arrays = {
        name: np.concatenate([np.zeros(0, dtype), *(np.asarray(part, dtype) for part in columns[name])])
        for name, dtype in _DTYPES.items()
    }
    facts = {
        "format": _FORMAT,
        "run_id": batch.run_id,
        "step": batch.step,
        "rollouts": [sample.rollout for sample in samples],
        "problems": [sample.problem for sample in samples],
        "facts": dict(batch.facts),
        "carry": dict(batch.carry),
    }
    return arrays, json.dumps(facts)


def _unpacked(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Batch:
    if facts["format"] != _FORMAT:
        raise ValueError(f"its format is {facts['format']!r}")
    ends = np.cumsum(arrays["lengths"])[:-1]
    parts = {name: np.split(arrays[name], ends) for name in ("token_ids", "trained", "logprobs", "versions")}
    samples = tuple(
        Sample(
            rollout=rollout,
            group=int(arrays["groups"][index]),
            problem=problem,
            token_ids=parts["token_ids"][index],
            trained=parts["trained"][index],
            logprobs=parts["logprobs"][index],
            versions=parts["versions"][index],
            reward=float(arrays["rewards"][index]),
            advantage=float(arrays["advantages"][index]),
        )
        for index, (rollout, problem) in enumerate(zip(facts["rollouts"], facts["problems"], strict=True))
    )
    return Batch(
        run_id=facts["run_id"], step=facts["step"], samples=samples, facts=facts["facts"], carry=facts["carry"]
    )


def _checksum(arrays: Mapping[str, NDArray[Any]], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
