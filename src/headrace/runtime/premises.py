"""Whether a run directory is still where it was when its run began."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.core.errors import RunDirectoryLost

_ANOTHERS = "another run's lock in it"


def require_own(path: Path, lock_file: Path, lock: int) -> None:
    """Find out whether a run directory is still the one that is held, whatever else is missing in it.

    Args:
        path: Of the directory.
        lock_file: In it.
        lock: The descriptor that holds the lock.

    Raises:
        RunDirectoryLost: It was removed, moved or replaced.
    """
    try:
        own = os.path.samestat(os.fstat(lock), lock_file.stat())
    except (FileNotFoundError, NotADirectoryError):
        raise _lost(path, f"no {lock_file.name} in it") from None
    except OSError:  # of a disk that does not answer; whoever writes to it will tell
        return
    if not own:
        raise _lost(path, _ANOTHERS)


def _lost(path: Path, found: str) -> RunDirectoryLost:
    """The error that a run directory is not its run's any more."""
    return RunDirectoryLost(
        f"the run directory {path} was removed, moved or replaced while its run was at it",
        found=found,
        fix="what was written since is lost; start again, and keep the directory where it is until the run has ended",
    )


class Premises:
    """A run directory that is held, as it is now.

    Args:
        path: Of the directory.
        lock: The file in it that is locked as long as the run lives.
        kept: Folders in it without which nobody could go on with the run.
    """

    def __init__(self, path: Path, lock: Path, kept: Iterable[Path]) -> None:
        self._path, self._lock, self._kept = path, lock, tuple(kept)
        self._folders: dict[Path, os.stat_result] = {}
        """Those, as they were first seen: one that is moved away may be made anew by whoever writes into it."""
        self._own: os.stat_result | None = None
        with contextlib.suppress(OSError):  # it is gone already; that is told where it is looked for
            self._own = lock.stat()

    def require_there(self) -> None:
        """Find out whether what is written still arrives in this directory.

        Raises:
            RunDirectoryLost: It was removed, moved or replaced, or one of the folders was.
        """
        try:
            there = self._lock.stat()
            own = self._own is not None and os.path.samestat(self._own, there)
            wrong = [found for folder in self._kept if (found := self._wrong(folder)) is not None]
        except (FileNotFoundError, NotADirectoryError) as error:
            own, wrong = True, [f"no {os.path.relpath(error.filename, self._path)} in it"]
        except OSError:  # of a disk that does not answer; whoever writes to it will tell
            return
        if own and not wrong:
            return
        raise _lost(self._path, wrong[0] if own else _ANOTHERS)

    def _wrong(self, folder: Path) -> str | None:
        """What is the matter with one of the folders, if anything is."""
        now = folder.stat()
        if not stat.S_ISDIR(now.st_mode):
            return f"no {folder.name} in it"
        same = os.path.samestat(self._folders.setdefault(folder, now), now)
        return None if same else f"another {folder.name} in it"

    @contextlib.contextmanager
    def told_first(self) -> Iterator[None]:
        """Whatever fails in the block has failed because the directory is gone, if it is.

        Raises:
            RunDirectoryLost: See `require_there`.
        """
        try:
            yield
        except Exception:
            self.require_there()
            raise
