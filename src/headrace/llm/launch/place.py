"""The run directory of a language-model run, and what its components find each other by."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from headrace.core.errors import RunDirectoryError
from headrace.core.files import write_whole
from headrace.llm.config import RLConfig
from headrace.llm.loading import Source, load_rl_config
from headrace.runtime.remains import never_trained
from headrace.runtime.rundir import RunDirectory, locked


class LanguageRun(RunDirectory):
    """As `RunDirectory`, with what language-model runs hold beside: model, weights, rollouts, endpoints."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.model_dir = path / "model"
        self.weights_dir = path / "weights"
        self.rollouts_dir = path / "rollouts"
        self.endpoints_file = path / "endpoints.json"
        self.on_demand = (*self.on_demand, self.model_dir, self.endpoints_file)
        self.may_be_forgotten = partial(never_trained, self)
        self._of: LanguageRun | None = None

    def alone(self, component: str) -> LanguageRun:
        """Where the launcher of a component that is started alone keeps what is its own."""
        return LanguageRun(self.path / "alone" / component)

    def share(self) -> None:
        """Hold the run together with others who do: while any of them does, no whole run takes it, and the other way round.

        Raises:
            RunDirectoryError: A whole run is alive in it.
            OSError: The lock cannot be made.
        """
        fix = "wait for its end; components are started alone instead of a whole run, not beside it"
        self._lock = locked(self.path, self.lock_file, fcntl.LOCK_SH, "a whole run", fix)

    def held_with(self, shared: LanguageRun) -> None:
        """Have ``shared`` given back when this one is."""
        self._of = shared

    def close(self) -> None:
        """See `RunDirectory.close`."""
        super().close()
        if self._of is not None:
            self._of.close()

    def take_lock(self, fix: str) -> None:
        """See `RunDirectory.take_lock`."""
        if live := self._live_alone():
            raise RunDirectoryError(
                f"{self.path} is in use by components that were started alone", components=", ".join(live), fix=fix
            )
        super().take_lock(fix)

    def is_live(self) -> bool:
        """See `RunDirectory.is_live`; a component that was started alone in it counts."""
        return super().is_live() or bool(self._live_alone())

    def _live_alone(self) -> list[str]:
        return sorted(path.name for path in self.path.glob("alone/*") if RunDirectory(path).is_live())

    def folders(self) -> tuple[Path, ...]:
        """See `RunDirectory.folders`."""
        return (
            self.tensorboard_dir, self.logs_dir, self.stacks_dir, self.checkpoints_dir, self.weights_dir,
            self.rollouts_dir,
        )  # fmt: skip

    def name_run(self, run_id: str) -> None:
        """Write ``endpoints.json`` of a run that begins here; a start that fails takes it away with all the rest.

        Raises:
            RunDirectoryError: It cannot be written; nothing is left behind.
        """
        self._made.insert(0, self.endpoints_file)
        try:
            write_endpoints(self.endpoints_file, Endpoints(run_id))
        except BaseException:
            self._undo()
            raise

    def read_rl_config(self) -> RLConfig:
        """The effective configuration of the run.

        Raises:
            ConfigError: The file was changed into something that is refused.
        """
        return load_rl_config([Source(str(self.config_file))])


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What the components of one run have to agree on; handed out once, by whoever comes first."""

    run_id: str
    inference: str | None = None
    """Root of the server; None: it is not known yet, or not any more."""
    machine: str | None = None
    """Name of the machine that it runs on."""


def new_run_id() -> str:
    """One that no other run has."""
    return secrets.token_hex(8)


def write_once(path: Path, content: bytes) -> None:
    """Make a file that several launchers may make at the same time, on any machine; that of the first one stays, whole.

    Not `headrace.core.files.write_new`: without hard links that only looks whether the file is there, and of two launchers
    both might go on with their own.

    Raises:
        RunDirectoryError: It cannot be written.
    """
    mine = path.with_name(f".{secrets.token_hex(8)}.{path.name}")  # in two containers processes have the same numbers
    try:
        write_whole(mine, [content])
        with contextlib.suppress(FileExistsError):  # another one was first
            os.link(mine, path)
    except OSError as error:
        raise RunDirectoryError(
            f"{path} cannot be written",
            problem=error,
            fix="make room on its disk; the file system of a directory that is shared has to know hard links",
        ) from None
    finally:
        mine.unlink(missing_ok=True)


def _content(endpoints: Endpoints) -> bytes:
    return f"{json.dumps(asdict(endpoints), indent=2)}\n".encode()


def write_endpoints(path: Path, endpoints: Endpoints) -> None:
    """Write ``endpoints.json``, in one piece.

    Raises:
        RunDirectoryError: It cannot be written.
    """
    try:
        write_whole(path, [_content(endpoints)])
    except OSError as error:
        raise RunDirectoryError(
            f"{path} cannot be written", problem=error, fix="make room on the disk, or choose another --run-dir"
        ) from None


def read_endpoints(path: Path) -> Endpoints | None:
    """What ``endpoints.json`` says; None if there is none.

    Raises:
        RunDirectoryError: It is damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Endpoints(str(found["run_id"]), found.get("inference"), found.get("machine"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(
            f"{path} cannot be read",
            problem=f"{type(error).__name__}: {error}",
            fix="it is written in one piece by the launcher, so something else changed it; restore it",
        ) from None


def agree_on_run_id(path: Path) -> Endpoints:
    """The endpoints of a run that several launchers share: made by the first of them, read by the others.

    Raises:
        RunDirectoryError: They cannot be written or read.
    """
    found = read_endpoints(path)
    if found is not None:
        return found
    write_once(path, _content(Endpoints(new_run_id())))
    found = read_endpoints(path)
    assert found is not None, "it was linked just now, or by somebody else"
    return found
