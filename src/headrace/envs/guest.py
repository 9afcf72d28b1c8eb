"""A program in another interpreter that answers requests: for environments whose packages do not go with ours."""

from __future__ import annotations

import contextlib
import fcntl
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
_MOST_OUTPUT_BYTES = 1 << 20
"""Of a file of which only the last words are ever read; more is thrown away."""
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
        self._unread = b""
        self._printed = b""
        """The last of what it has printed and what is no longer in the file."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._pipes: list[int] = []
        """Descriptors that are open here; once it is built, that of requests and that of answers."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        try:
            self._start(python, settings)
            self.built = self._built(python, start_s)
        except BaseException:  # Ctrl-C too: nobody would have an object to close
            self._end()
            raise

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Whatever breaks that off, Ctrl-C for one, ends the process: its answer would be taken for that of the next request.

        Raises:
            EnvironmentRaised: The guest did; the process goes on.
            ComponentDied: The process is gone.
            ComponentStalled: There was no answer in time; the process was ended.
        """
        doing = f"{request['op']}()"
        line = memoryview(json.dumps(request).encode() + b"\n")
        if not self._pipes:
            raise ComponentDied(
                f"{self._guest.subject}'s process is gone, and was asked for {doing}",
                fix="Read why it was ended, and build it anew.",
                exit_code=self._exit_code,
            )
        try:
            deadline = Deadline(timeout_s)
            while line:
                if not poll_fds({self._pipes[0]: select.POLLOUT}, deadline.left_s()):
                    raise self._stalled(doing, deadline)
                try:
                    line = line[os.write(self._pipes[0], line) :]
                except BrokenPipeError:
                    raise self._died(doing) from None
            answer = self._answer(doing, deadline)
        except BaseException:
            self._end()
            raise
        return self._returned(doing, answer)

    def close(self) -> None:
        """End the process, with what it has started, and wait for its end; calling it again does nothing."""
        if self._ended:
            return
        try:
            self._close_files()
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=_END_S)  # it leaves by itself when the requests end
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, python: str, settings: Mapping[str, Any]) -> None:
        """Start it; whatever is opened is told to `_end` at once.

        Only an interrupt within Popen loses the process. It leaves by itself then, since its requests end.
        """
        self._pipes += os.pipe()
        self._pipes += os.pipe()
        theirs, requests, _, their_answers = self._pipes
        os.set_blocking(requests, False)
        # Appended to, so that what it prints after the file was cut goes to the new end.
        fcntl.fcntl(self._output, fcntl.F_SETFL, fcntl.fcntl(self._output, fcntl.F_GETFL) | os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                [python, str(self._guest.script), str(theirs), str(their_answers), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs, their_answers),
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"{self._guest.subject}'s interpreter cannot be started",
                fix="Set python to the path of one.",
                python=python,
                error=error,
            ) from None
        os.close(self._pipes.pop(3))
        os.close(self._pipes.pop(0))

    def _built(self, python: str, start_s: float) -> dict[str, Any]:
        doing = "its construction"
        try:
            return self._returned(doing, self._answer(doing, Deadline(start_s)))
        except HeadraceError as error:
            self.close()
            raise EnvironmentNotBuilt(
                f"{self._guest.subject} could not be built",
                fix=self._guest.fix,
                python=python,
                cause=error.what,
                **error.facts,
            ) from None

    def _answer(self, doing: str, deadline: Deadline) -> dict[str, Any]:
        while b"\n" not in self._unread:
            if not poll_fds({self._pipes[1]: select.POLLIN}, deadline.left_s()):
                raise self._stalled(doing, deadline)
            read = os.read(self._pipes[1], _READ_BYTES)
            if not read:
                raise self._died(doing)
            self._unread += read
        line, self._unread = self._unread.split(b"\n", 1)
        if os.fstat(self._output.fileno()).st_size > _MOST_OUTPUT_BYTES:
            self._printed = self._last_bytes()
            os.ftruncate(self._output.fileno(), 0)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _returned(self, doing: str, answer: dict[str, Any]) -> dict[str, Any]:
        if "traceback" in answer:
            raise EnvironmentRaised(
                f"{self._guest.subject} raised in {doing}",
                fix="Read its traceback.",
                traceback=answer["traceback"].strip(),
            )
        return answer

    def _stalled(self, doing: str, deadline: Deadline) -> HeadraceError:
        self._kill()
        return ComponentStalled(
            f"{self._guest.subject} did not answer within {deadline.timeout_s} s, in {doing}",
            fix="Raise the time it may take, or find out where it stands still.",
            output=self._last_words(),
        )

    def _died(self, doing: str) -> HeadraceError:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_S)
        return ComponentDied(
            f"{self._guest.subject}'s process ended in {doing}",
            fix="Read the last lines of its output.",
            exit_code=self._exit_code,
            output=self._last_words(),
        )

    @property
    def _exit_code(self) -> int | str:
        code = None if self._process is None else self._process.returncode
        return "none yet" if code is None else code

    def _end(self) -> None:
        """Now, with what it has started."""
        if self._ended:
            return
        self._kill()  # before the requests end, which it would take for a farewell
        self._close_files()
        if self._process is not None:
            self._process.wait(timeout=_END_S)
        self._ended = True

    def _kill(self) -> None:
        """Itself and the programs that it has started; it may be gone already, and they not."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        return self._last_bytes().decode(errors="replace").strip()

    def _last_bytes(self) -> bytes:
        size = os.fstat(self._output.fileno()).st_size
        words = os.pread(self._output.fileno(), _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES))
        return (self._printed + words)[-_LAST_WORDS_BYTES:]

    def _close_files(self) -> None:
        while self._pipes:
            os.close(self._pipes.pop())
        self._output.close()
