"""Numbers over time, to ``metrics.jsonl`` and to TensorBoard."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from headrace.core.files import write_whole
from headrace.telemetry.events import JsonLines, is_number, writable


def _unix_time_s() -> float:
    return datetime.now(tz=UTC).timestamp()


class MetricsSink:
    """Writes each set of values to both files; a full disk costs lines, never the run.

    Args:
        metrics_file: ``metrics.jsonl``; made if missing.
        tensorboard_dir: Folder of the TensorBoard event file; made if missing.
        unix_time_s: Time of day, which TensorBoard wants.
        resumed_at: The step at which a run is resumed: TensorBoard shows nothing later from older files. Those lines of
            ``metrics.jsonl`` are not taken away here, see `cut_metrics`. None: the run is new.

    Raises:
        OSError: From the constructor, when a file cannot be made.
    """

    def __init__(
        self,
        metrics_file: Path,
        tensorboard_dir: Path,
        *,
        unix_time_s: Callable[[], float] = _unix_time_s,
        resumed_at: int | None = None,
    ) -> None:
        self._lines = JsonLines(metrics_file)
        try:
            self._board = TensorBoardFile(tensorboard_dir, unix_time_s, resumed_at=resumed_at)
        except OSError:
            self._lines.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def lost(self) -> int:
        """Lines and TensorBoard records that could not be written."""
        return self._lines.lost + self._board.lost

    def write(self, step: int, updates: int | None, wall_s: float, values: Mapping[str, float | None]) -> None:
        """Note ``values`` at one moment of the run. Never raises on a full disk; see `lost`.

        Args:
            step: Environment steps, the x axis in TensorBoard.
            updates: Gradient steps; None before there is a learner.
            wall_s: Seconds since the run began.
            values: By TensorBoard name. None, like a name left out, is a value without a source: it is not
                written. NaN is a measurement: null in ``metrics.jsonl``, NaN in TensorBoard.
        """
        measured = {name: float(value) for name, value in values.items() if value is not None}
        head: dict[str, float] = {"step": step, "wall_s": round(wall_s, 3)}
        if updates is not None:
            head["updates"] = updates
        self._lines.append(head | measured)
        self._board.append(step, measured)

    def close(self) -> None:
        """Close both files; may be called twice."""
        self._lines.close()
        self._board.close()


def cut_metrics(path: Path, step: int, kept: Path) -> int:
    """Take the lines beyond ``step`` out of ``metrics.jsonl``, in one piece.

    Args:
        path: The file; one that is not there has no such lines.
        step: Environment steps at which the run goes on.
        kept: Where the lines go, with any that cannot be read; made only if there are some.

    Returns:
        How many were taken out.

    Raises:
        OSError: It cannot be done; the file is as it was, and ``kept`` is not there.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    stay = [line for line in lines if _is_up_to(line, step)]
    beyond = [line for line in lines if not _is_up_to(line, step)]
    if not beyond:
        return 0
    write_whole(kept, beyond)
    try:
        write_whole(path, stay)
    except OSError:
        kept.unlink(missing_ok=True)
        raise
    return len(beyond)


def reaches_beyond(path: Path, step: int) -> bool:
    """Whether `cut_metrics` takes anything out.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return any(not _is_up_to(line, step) for line in file)
    except FileNotFoundError:
        return False


def wall_s_at(path: Path, step: int) -> float | None:
    """How long a run had lasted at ``step``: by the last report of the learner up to it; None if there is none."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        found = _parsed(line)
        if not is_number(found.get("wall_s")):
            continue  # damaged; the report before it is nearly as new
        if "updates" in found and found.get("step", step + 1) <= step:  # an evaluation comes late, under an older step
            return float(found["wall_s"])
    return None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` with their step; damaged ones are left out, and a file that is not there has none."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [found for line in lines if (found := _parsed(line))]


def _is_up_to(line: bytes, step: int) -> bool:
    return bool(_parsed(line).get("step", step + 1) <= step)


def _parsed(line: bytes) -> dict[str, Any]:
    """A line's values; none if it is damaged."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("step"), int) else {}


_FILES = itertools.count()


class TensorBoardFile:
    """One TensorBoard event file, written by the caller's own thread.

    tensorboard's `EventFileWriter` hands records to a thread through a queue and joins both without a deadline,
    and learns of a full disk only later; so its record format and messages are used, and its thread is not.

    Args:
        folder: Where; made if missing.
        unix_time_s: Time of day.
        resumed_at: A step; what older files in the folder say about later ones is hidden. None: nothing is.
    """

    def __init__(
        self, folder: Path, unix_time_s: Callable[[], float] = _unix_time_s, *, resumed_at: int | None = None
    ) -> None:
        self.lost = 0
        self._unix_time_s = unix_time_s
        now_s = unix_time_s()
        folder.mkdir(parents=True, exist_ok=True)
        # tensorboard finds the file by "tfevents" and reads files in the order of their names: time, host, process,
        # number. The time of a resumed run must be later also where the clock was set back.
        stamp_s = max([int(now_s), *(found + 1 for found in _stamps(folder))])
        name = f"events.out.tfevents.{stamp_s:010d}.{socket.gethostname()}.{os.getpid()}.{next(_FILES)}"
        self.path = folder / name
        self._file: BinaryIO = self.path.open("wb", buffering=0)
        self._whole_bytes = 0
        self._write(Event(wall_time=now_s, file_version="brain.Event:2"))
        if resumed_at is not None:
            # tensorboard takes the first such mark of a folder for the run's own beginning; the next one purges what it
            # has read of this step and later ones.
            mark = Event(wall_time=now_s, step=resumed_at + 1, session_log=SessionLog(status=SessionLog.START))
            self._write(mark)
            self._write(mark)

    def append(self, step: int, values: Mapping[str, float]) -> bool:
        """Write all values of one step as one record; False if it was lost."""
        if not values:
            return True
        scalars = [Summary.Value(tag=writable(name), simple_value=value) for name, value in values.items()]
        return self._write(Event(wall_time=self._unix_time_s(), step=step, summary=Summary(value=scalars)))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _write(self, event: Event) -> bool:
        record = _Gathered()
        RecordWriter(record).write(event.SerializeToString())
        try:
            written = self._file.write(record.data)
        except (OSError, ValueError):  # ValueError: closed
            written = 0
        if written == len(record.data):
            self._whole_bytes += written
            return True
        self.lost += 1
        self._cut()
        return False

    def _cut(self) -> None:
        """Take half a record away again: TensorBoard reads nothing that follows one."""
        if self._file.closed:
            return
        try:
            self._file.seek(self._whole_bytes)
            self._file.truncate()
        except OSError:
            self._file.close()


def _stamps(folder: Path) -> list[int]:
    """Times in the names of the event files in a folder."""
    parts = (path.name.split(".") for path in folder.glob("events.out.tfevents.*"))
    return [int(part[3]) for part in parts if len(part) > 3 and part[3].isdigit()]


class _Gathered:
    """Takes the pieces of a record, so that they reach the file in one write."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, piece: bytes) -> None:
        self.data += piece
