"""Calls of an environment under a limit, in a process of their own: which one it was, and where it stood, outlives the process.

The limit is kept by faulthandler's thread, which is C code: it ends the process also where a call never gives the
interpreter back. Nothing can be said afterwards, so the call is noted in a file before it begins.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from headrace.ipc.channel import Deadline
from headrace.ipc.child import die_with_parent
from headrace.ipc.stacks import innermost_frame
from headrace.llm.finding import Finding, Verdict
from headrace.runtime.interrupts import Interrupts

_CALL, _STACKS = "call.json", "stacks"
_METHODS = ("dataset", "step", "reward", "demonstration", "attempt")
_LATE = "Timeout ("
"""What faulthandler begins with where a limit has passed."""
_LEAST_S = 0.001
IMPORT_S = 60.0
"""Beyond its own limits, for a guarded interpreter to begin, and to end itself."""
_KILLED_S = 10.0


class Guard:
    """Ends this process where a call takes too long. A context manager; one at a time in a process.

    Args:
        folder: Holds the note and the stacks.
        total_s: Seconds for all calls together.
    """

    def __init__(self, folder: Path, total_s: float) -> None:
        self._note = folder / _CALL
        self._stacks = (folder / _STACKS).open("w")
        self._total_s, self._left = total_s, Deadline(total_s)
        self._inside: tuple[str, float, str] | None = None
        self._process = os.getpid()

    def __enter__(self) -> Self:
        faulthandler.enable(file=self._stacks)
        return self

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
        self._stacks.close()

    @contextmanager
    def within(self, what: str, limit_s: float, key: str) -> Iterator[None]:
        """Give what happens inside so much time; within another one, that one's begins again afterwards.

        Args:
            what: Is done, for messages.
            limit_s: Seconds.
            key: Of the configuration, that sets the limit.
        """
        before = self._inside
        self._enter((what, limit_s, key))
        try:
            yield
        finally:
            if os.getpid() == self._process:  # a copy that the environment made has neither note nor limit
                self._enter(before)

    def _enter(self, inside: tuple[str, float, str] | None) -> None:
        self._inside = inside
        faulthandler.cancel_dump_traceback_later()
        if inside is None:
            self._note.unlink(missing_ok=True)
            return
        what, limit_s, key = inside
        left_s = self._left.left_s()
        facts = {"what": what, "limit_s": limit_s, "key": key, "total_s": self._total_s if left_s < limit_s else None}
        self._note.write_text(json.dumps(facts), encoding="utf-8")
        faulthandler.dump_traceback_later(max(min(limit_s, left_s), _LEAST_S), exit=True, file=self._stacks)


class Guarded:
    """An environment whose methods are called under a limit; in all else it is the one that it was made of.

    Args:
        env: The environment.
        guard: Keeps the limit.
        label: Its name, for messages.
        limit_s: Seconds of each call, ``deadlines.env_s``.
    """

    def __init__(self, env: Any, guard: Guard, label: str, limit_s: float) -> None:
        self._env, self._guard, self._label, self._limit_s = env, guard, label, limit_s

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._env, name)
        if name not in _METHODS or not callable(found):
            return found

        @functools.wraps(found)
        def call(*args: Any) -> Any:
            with self._guard.within(_words(name, self._label, args), self._limit_s, "deadlines.env_s"):
                return found(*args)

        return call


def _words(name: str, label: str, args: tuple[Any, ...]) -> str:
    if name == "dataset":
        return f"dataset({', '.join(map(repr, args))}) of {label}"
    return f"{name} of {label} for problem {getattr(args[0], 'id', args[0])}"


def run_apart(command: Sequence[str], output: Path, limit_s: float) -> int | None:
    """Run a program and end all that it started; its exit status, or None if it had to be ended.

    Args:
        command: Of the program. Its last argument is put behind it: the number of this process, for `end_with`.
        output: File for what it prints as errors; the rest is thrown away.
        limit_s: Seconds after which it is ended.
    """
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, str(os.getpid())], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with Interrupts():  # a second Ctrl-C comes too early to leave anything running
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(_KILLED_S)


def end_with(parent: str) -> None:
    """Have this process end with the one that runs it by `run_apart`, also where that is killed; at once if it is gone.

    Args:
        parent: Its number, the last argument.
    """
    die_with_parent(signal.SIGKILL, int(parent))


def last_line(output: Path) -> str:
    """What a program printed last."""
    printed = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return printed[-1] if printed else "it printed nothing"


def was_late(folder: Path, returncode: int | None) -> bool:
    """Whether a guarded process ended because something took too long; see `found_dead`."""
    if returncode is None:
        return True
    try:
        return _LATE in (folder / _STACKS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def found_dead(folder: Path, returncode: int | None, last_line: str) -> Finding:
    """What became of a guarded process that left without an answer.

    Args:
        folder: That of its `Guard`.
        returncode: As subprocess gives it; None: it had to be ended, although it should have ended itself.
        last_line: It printed.
    """
    try:
        call = json.loads((folder / _CALL).read_text(encoding="utf-8"))
        dump = (folder / _STACKS).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        call, dump = None, ""
    where = innermost_frame(dump)
    stuck = f"; stuck in: {where}" if where else ""
    if call is None:
        return _failed(f"the interpreter that tried it ended {_how(returncode)}: {last_line}")
    what, limit_s, key, total_s = (call[name] for name in ("what", "limit_s", "key", "total_s"))
    fix = "see what it waits for there, a download for instance"
    if returncode is None:
        return _failed(f"{what} did not come back, and the interpreter did not end itself", fix)
    if _LATE not in dump:
        at = f"; it was in: {where}" if where else ""
        return _failed(
            f"{what} ended the interpreter that tried it, {_how(returncode)}{at}",
            "return or raise in place of ending the process; it would end the run's orchestrator",
        )
    if total_s is not None:
        return _failed(f"it was still being tried after {total_s:g} s, with {what}{stuck}", f"{fix}, or raise {key}")
    return _failed(f"{what} did not come back within {limit_s:g} s{stuck}", f"{fix}, or raise {key}")


def _failed(text: str, fix: str = "") -> Finding:
    return Finding("environment", Verdict.FAILED, text, fix)


def _how(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"with exit code {returncode}"
    try:
        return f"by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"by signal {-returncode}"
