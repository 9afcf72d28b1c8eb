"""The run directory: everything a run leaves behind, and the lock that says that it is still at it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.core.config import Section
from headrace.core.errors import RunDirectoryError
from headrace.core.files import write_whole
from headrace.ipc.channel import poll_fds
from headrace.runtime.config import ExperimentConfig, dump_toml, load_config
from headrace.runtime.premises import require_own
from headrace.runtime.remains import Onward, never_began, onward
from headrace.telemetry.summaries import write_summary

_ELSEWHERE = "choose another --run-dir, or leave it out for a new one under run.directory"
_TRIES_S = (0.0, 0.003, 0.017)
"""Seconds before each try to take a lock: somebody may only be looking at it, which takes microseconds."""


def _local_time() -> datetime:
    return datetime.now(tz=UTC).astimezone()


class RunDirectory:
    """Paths inside one run directory.

    `create` makes one and holds it, `resume` takes hold of one that is there, `open` is for readers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.board_file = path / "board"
        self.events_file = path / "events.jsonl"
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"
        self.lock_file = path / "lock"
        self.tensorboard_dir = path / "tensorboard"
        self.record_dir = path / "record"
        self.logs_dir = path / "logs"
        self.stacks_dir = path / "stacks"
        self.checkpoints_dir = path / "checkpoints"
        self.reproducers_dir = path / "reproducers"
        self.on_demand: tuple[Path, ...] = (self.reproducers_dir, path / "renders")
        """What is made only once there is something to be in it."""
        self.may_be_forgotten: Callable[[], bool] = partial(never_began, self)
        """Whether a run ended here before there was anything that anybody could miss."""
        self._lock: int | None = None
        self._made: list[Path] = []
        """What was not there before, the newest first."""

    @classmethod
    def create(
        cls,
        path: str | Path | None,
        config: ExperimentConfig,
        *,
        name: str | None = None,
        now: Callable[[], datetime] = _local_time,
    ) -> Self:
        """Make a run directory, take its lock and write the effective configuration into it.

        A directory whose earlier run ended before its first environment step is taken over: whoever mends an
        environment may repeat the very same command. What that run left moves to ``earlier/<n>/``.

        Args:
            path: Where; None makes ``<run.directory>/<name>-<date>-<time>-<id>``.
            config: The effective configuration.
            name: What the run is called after, a preset's name; None takes environment and algorithm.
            now: Time of day, for the folder's name.

        Raises:
            RunDirectoryError: It belongs to a live or an earlier run, or cannot be written. Nothing is left behind.
        """
        return cls.create_as(name or _title(config), path, config, config.run.directory, now)

    @classmethod
    def create_as(
        cls,
        title: str,
        path: str | Path | None,
        config: Section,
        directory: str,
        now: Callable[[], datetime] = _local_time,
    ) -> Self:
        """As `create`, for a run of any kind.

        Args:
            title: What the run is called after.
            path: Where; None makes ``<directory>/<title>-<date>-<time>-<id>``.
            config: The effective configuration.
            directory: See ``path``.
            now: Time of day, for the folder's name.

        Raises:
            RunDirectoryError: See `create`.
        """
        run = cls(Path(path) if path is not None else _new_place(directory, title, now()))
        run.claim(config)
        return run

    @classmethod
    def resume(cls, path: str | Path) -> Self:
        """Take the lock of a run that has ended, in whatever way, to go on with it. What it holds stays as it is.

        Raises:
            RunDirectoryError: There is no run in it, it is alive, or it cannot be written.
        """
        run = cls.open(path)
        try:
            run.take_lock("wait for its end, or end it in order with Ctrl-C or SIGTERM")
            for folder in run.folders():
                folder.mkdir(exist_ok=True)
        except OSError as error:
            run.close()
            raise RunDirectoryError(
                f"the run directory {path} cannot be written",
                problem=f"{type(error).__name__}: {error}",
                fix="make it writable; a run goes on in its own directory",
            ) from None
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The directory of a live, dead or finished run, for reading.

        Raises:
            RunDirectoryError: There is no run in it.
        """
        run = cls(Path(path))
        if not run.config_file.is_file():
            raise RunDirectoryError(
                f"{path} holds no run",
                expected=run.config_file,
                found="a folder without it" if run.path.is_dir() else "no such folder",
                fix="name a folder that headrace train made; it prints the name at its end",
            )
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. The directory stays. May be called twice."""
        if self._lock is not None:
            # Unlocked by name, because a forked child that is still leaving would share the lock.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def log_file(self, component: str) -> Path:
        """Where everything ``component`` prints is kept."""
        return self.logs_dir / f"{component}.log"

    def checkpoint_dir(self, version: int) -> Path:
        """The checkpoint of policy ``version``."""
        return self.checkpoints_dir / str(version)

    def is_live(self) -> bool:
        """Whether a process holds the run; asks the lock, so a process that was killed does not count."""
        return is_locked(self.lock_file)

    def read_config(self) -> ExperimentConfig:
        """The effective configuration of the run.

        Raises:
            ConfigError: The file was changed into something that is refused.
        """
        return load_config(self.config_file)

    def read_summary(self) -> dict[str, Any] | None:
        """What the run wrote at its end; None if it has not ended, or died without writing.

        Raises:
            RunDirectoryError: The file is no JSON object.
        """
        try:
            summary = json.loads(self.summary_file.read_text(encoding="utf-8"))
            if not isinstance(summary, dict):
                raise ValueError(f"a JSON object is expected, and this is a {type(summary).__name__}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunDirectoryError(
                f"{self.summary_file} cannot be read",
                problem=f"{type(error).__name__}: {error}",
                fix="it is written in one piece at a run's end, so something else changed it; restore it",
            ) from None
        return summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, see `headrace.telemetry.summaries.write_summary`.

        Raises:
            RunDirectoryError: It cannot be written; an older summary is unharmed.
            RunDirectoryLost: The directory is held, and is not in its place any more; another run's in it is unharmed.
        """
        if self._lock is not None:
            require_own(self.path, self.lock_file, self._lock)
        write_summary(self.summary_file, summary)

    def claim(self, config: Section) -> None:
        """Make the directory this run's own; `create` calls it.

        Raises:
            RunDirectoryError: See `create`.
        """
        try:
            _make_folder(self.path, self._made)
            self.take_lock(_ELSEWHERE)
            if self.may_be_forgotten():
                self.set_aside()  # it has no experience that anybody could miss
            _refuse_remains(self)
            self._made.insert(0, self.config_file)
            write_whole(self.config_file, [dump_toml(config).encode()])
            for folder in self.folders():
                if not folder.exists():
                    folder.mkdir()
                    self._made.insert(0, folder)
        except BaseException as error:
            self._undo()
            if not isinstance(error, OSError):
                raise
            raise RunDirectoryError(
                f"the run directory {self.path} cannot be written",
                problem=f"{type(error).__name__}: {error}",
                fix="choose another --run-dir, on a disk with room where you may write",
            ) from None

    def discard_if_empty(self) -> bool:
        """After a failed start: remove what `create` made, unless something has been written into it meanwhile.

        Files without content count as nothing. Files that were there before are left alone.

        Returns:
            Whether it was removed. The lock is given back then.
        """
        written = [self.board_file, self.events_file, self.metrics_file, self.summary_file]
        written += [path for folder in self.folders() for path in folder.rglob("*") if path.is_file()]
        if any(path.exists() and path.stat().st_size for path in written):
            return False
        for path in written:
            path.unlink(missing_ok=True)
        self._undo()
        return True

    def folders(self) -> tuple[Path, ...]:
        """The folders every run directory of this kind has."""
        return self.tensorboard_dir, self.record_dir, self.logs_dir, self.stacks_dir, self.checkpoints_dir

    def take_lock(self, fix: str) -> None:
        """Hold the run until `close`; `create` and `resume` call it.

        Args:
            fix: What to do if another process holds it.

        Raises:
            RunDirectoryError: It is alive.
            OSError: The lock cannot be written.
        """
        new = not self.lock_file.exists()
        self._lock = handle = locked(self.path, self.lock_file, fcntl.LOCK_EX, "a run", fix)
        if new:
            self._made.insert(0, self.lock_file)
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())

    def set_aside(self) -> None:
        """Move everything an earlier run left to ``earlier/<n>/``; only while the lock is held.

        Raises:
            OSError: It cannot be done.
        """
        place = self.path / "earlier" / str(len(list(self.path.glob("earlier/*"))) + 1)
        place.mkdir(parents=True)
        for path in _left_by(self):
            path.rename(place / path.name)

    def _undo(self) -> None:
        """Take away what this object made, the newest first, and the lock last."""
        for path in self._made:
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif not any(path.iterdir()):
                path.rmdir()
        self._made = []
        self.close()


def _make_folder(path: Path, made: list[Path]) -> None:
    if path.exists() and not path.is_dir():
        raise RunDirectoryError(f"{path} is a file, not a run directory", fix=_ELSEWHERE)
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir()
            made.insert(0, folder)


def _left_by(run: RunDirectory) -> list[Path]:
    """Everything that a run leaves and that is there, but for the lock and what was put aside."""
    files = run.config_file, run.events_file, run.metrics_file, run.board_file, run.summary_file
    found = (*files, *run.path.glob("config-*.toml"), *run.folders(), *run.on_demand)
    return [path for path in found if path.exists()]


def _refuse_remains(run: RunDirectory) -> None:
    fix = _ELSEWHERE if onward(run) is Onward.ELSEWHERE else f"{_ELSEWHERE}, or --resume it"
    if run.summary_file.exists():
        outcome = (run.read_summary() or {}).get("outcome", "unknown")
        raise RunDirectoryError(f"{run.path} already holds a finished run", outcome=outcome, fix=fix)
    for file in (run.config_file, run.events_file, run.metrics_file, run.board_file):
        if file.exists():
            raise RunDirectoryError(
                f"{run.path} holds the remains of a run that did not finish",
                found=file.name,
                fix=f"{fix}; what became of that run stands in its events.jsonl and logs",
            )
    for folder in (*run.folders(), run.reproducers_dir):
        # What somebody is about to start prints may go to its logs/ already.
        if folder != run.logs_dir and any(path.is_file() for path in folder.rglob("*")):
            raise RunDirectoryError(
                f"{run.path} holds what another run has left",
                found=f"{folder.name}/",
                fix=f"{_ELSEWHERE}, or move that away",
            )


def _title(config: ExperimentConfig) -> str:
    env = (config.env.id or config.env.factory or "").rpartition("/")[2].rpartition(":")[2]
    return f"{env}-{config.algorithm.name}"


def _new_place(directory: str, title: str, now: datetime) -> Path:
    title = re.sub(r"[^A-Za-z0-9_.-]+", "-", title).lower()
    return Path(directory) / f"{title}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def is_locked(lock_file: Path) -> bool:
    """Whether a process holds a lock alone. For the moment of the look nobody else can take it alone: see `locked`."""
    try:
        handle = os.open(lock_file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def locked(run: Path, lock_file: Path, mode: int, holder: str, fix: str) -> int:
    """A descriptor that holds the lock file.

    Args:
        run: The run directory, for the message.
        lock_file: Of it.
        mode: ``fcntl.LOCK_EX`` or ``fcntl.LOCK_SH``.
        holder: Who else may hold it, for the message.
        fix: What to do if somebody does.

    Raises:
        RunDirectoryError: Somebody does, and for longer than a look takes.
        OSError: The lock cannot be made.
    """
    handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not any(_lock(handle, mode, after_s) for after_s in _TRIES_S):
            pid = os.read(handle, 32).decode(errors="replace").strip()
            raise RunDirectoryError(f"{run} is in use by {holder} that is alive", pid=pid or "not noted", fix=fix)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _lock(handle: int, mode: int, after_s: float) -> bool:
    poll_fds({}, after_s)
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
