"""A program in another interpreter that answers requests: for environments whose packages do not go with ours."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.core.errors import (
    ComponentDied,
    ComponentStalled,
    ConfigError,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    HeadraceError,
)
from headrace.ipc.channel import Deadline, poll_fds

_READ_BYTES = 1 << 16
_LAST_WORDS_BYTES = 2000
_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Guest:
    """A program that is run in an interpreter of its own."""

    subject: str
    """What it is called in messages."""
    script: Path
    """It is given two descriptors and settings as JSON; it answers a request per line with a line. Its first line says that it is
    built."""
    fix: str
    """What to do if it cannot be built."""


class GuestProcess:
    """The interpreter that a guest runs in, and requests to it, each with a deadline.

    After an error other than an exception of the guest's own the process is gone.

    Args:
        guest: What runs there.
        python: The interpreter's path.
        settings: What it is built from.
        start_s: How long that may take.

    Raises:
        ConfigError: The interpreter cannot be started.
        EnvironmentNotBuilt: The guest could not be built.
    """

    def __init__(self, guest: Guest, python: str, settings: Mapping[str, Any], start_s: float) -> None:
        self._guest = guest
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._unread = b""
        theirs, self._requests = os.pipe()
        self._answers, their_answers = os.pipe()
        os.set_blocking(self._requests, False)
        command = [python, str(guest.script), str(theirs), str(their_answers), json.dumps(settings)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs, their_answers),
                start_new_session=True,
            )
        except OSError as error:
            self._close_files()
            raise ConfigError(
                f"{guest.subject}'s interpreter cannot be started",
                fix="Set python to the path of one.",
                python=python,
                error=error,
            ) from None
        finally:
            os.close(theirs)
            os.close(their_answers)
        try:
            self.built = self._answer("its construction", start_s)
        except HeadraceError as error:
            self.close()
            raise EnvironmentNotBuilt(
                f"{guest.subject} could not be built",
                fix=guest.fix,
                python=python,
                cause=error.what,
                **error.facts,
            ) from None

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            EnvironmentRaised: The guest did; the process goes on.
            ComponentDied: The process is gone.
            ComponentStalled: There was no answer in time; the process was ended.
        """
        doing = f"{request['op']}()"
        if self._process.returncode is not None:
            raise self._died(doing)
        deadline = Deadline(timeout_s)
        line = memoryview(json.dumps(request).encode() + b"\n")
        while line:
            if not poll_fds({self._requests: select.POLLOUT}, deadline.left_s()):
                raise self._stalled(doing, timeout_s)
            try:
                line = line[os.write(self._requests, line) :]
            except BrokenPipeError:
                raise self._died(doing) from None
        return self._answer(doing, timeout_s, deadline)

    def close(self) -> None:
        """End the process, with what it has started, and wait for its end; calling it again does nothing."""
        if self._requests < 0:
            return
        self._close_files()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)  # it leaves by itself when the requests end
        self._kill()
        self._process.wait(timeout=_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, doing: str, timeout_s: float, deadline: Deadline | None = None) -> dict[str, Any]:
        deadline = deadline or Deadline(timeout_s)
        while b"\n" not in self._unread:
            if not poll_fds({self._answers: select.POLLIN}, deadline.left_s()):
                raise self._stalled(doing, timeout_s)
            read = os.read(self._answers, _READ_BYTES)
            if not read:
                raise self._died(doing)
            self._unread += read
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "traceback" in answer:
            raise EnvironmentRaised(
                f"{self._guest.subject} raised in {doing}",
                fix="Read its traceback.",
                traceback=answer["traceback"].strip(),
            )
        return answer

    def _stalled(self, doing: str, timeout_s: float) -> HeadraceError:
        self._kill()
        words = self._last_words()
        self.close()
        return ComponentStalled(
            f"{self._guest.subject} did not answer within {timeout_s} s, in {doing}",
            fix="Raise the time it may take, or find out where it stands still.",
            output=words,
        )

    def _died(self, doing: str) -> HeadraceError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        code, words = self._process.returncode, self._last_words()
        self.close()
        return ComponentDied(
            f"{self._guest.subject}'s process ended in {doing}",
            fix="Read the last lines of its output.",
            exit_code="none yet" if code is None else code,
            output=words,
        )

    def _kill(self) -> None:
        """Itself and the programs that it has started; it may be gone already, and they not."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        if self._output.closed:
            return ""
        size = os.fstat(self._output.fileno()).st_size
        words = os.pread(self._output.fileno(), _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES))
        return words.decode(errors="replace").strip()

    def _close_files(self) -> None:
        os.close(self._requests)
        os.close(self._answers)
        self._output.close()
        self._requests = -1
