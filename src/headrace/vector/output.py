"""Where workers print to, and where they write down where they are stuck."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headrace.core.errors import ConfigError


class Output:
    """Descriptors that all workers of one vector environment are given.

    Args:
        log_path: A file; None is this process's standard error. What workers print arrives as it is.

    Raises:
        ConfigError: The file cannot be opened.
    """

    def __init__(self, log_path: str | Path | None) -> None:
        if log_path is not None:
            self.fd = _opened(log_path)
        else:
            try:
                self.fd = os.dup(2)
            except OSError:  # a program without standard error
                self.fd = os.open(os.devnull, os.O_WRONLY)
        self._stacks_fd = -1
        if hasattr(os, "memfd_create"):
            self._stacks_fd = os.memfd_create("headrace-stacks", os.MFD_CLOEXEC)
            self.stacks = Path(f"/proc/{os.getpid()}/fd/{self._stacks_fd}")
        else:
            fd, path = tempfile.mkstemp(prefix="headrace-stacks-")
            os.close(fd)
            self.stacks = Path(path)
        """To which file their stacks are appended."""

    def close(self) -> None:
        """Give it all back; again is harmless."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1  # first: what is interrupted here may be called again
        os.close(fd)
        if self._stacks_fd >= 0:
            os.close(self._stacks_fd)
        else:
            self.stacks.unlink(missing_ok=True)


def _opened(log_path: str | Path) -> int:
    try:
        return os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(
            "log_path cannot be written to",
            log_path=repr(log_path)[:200],
            error=f"{type(error).__name__}: {error}",
            fix="name a file in a folder that exists, or leave log_path out",
        ) from error
