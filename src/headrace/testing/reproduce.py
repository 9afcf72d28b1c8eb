"""Provoke a fault of an environment again: ``python -m headrace.testing.reproduce RUN/reproducers/FILE.json``.

Rebuilds the environment, resets it with the recorded seed, repeats the recorded actions, and tells what happens at the
step that failed. All of it in a child process, so that a hang or a crash can be told too; it is killed then, and so are
programs that the environment has started. Run it where the training was started, so that the environment's module is found.

Exit codes: 0 the fault came again · 1 it did not · 2 the file cannot be used.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from headrace.core.clock import MonotonicClock
from headrace.core.config import EnvConfig
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.specs import assemble, leaves
from headrace.envs.building import build_environment, environment_name, refuse_handed_over
from headrace.ipc import printing
from headrace.ipc.stacks import DUMP_SIGNAL, innermost_frame
from headrace.runtime.reproducers import Reproducer
from headrace.supervision.spec import describe_exit
from headrace.testing import leaks
from headrace.vector.faults import text_of

_START, _CONSTRUCT, _RESET = -3, -2, -1
"""Where the child is; a step is its number, from 0."""
_AT = struct.Struct("q")
_LOOK_S = 0.05
_DUMP_S = 1.0
_KILL_S = 10.0
_START_S = 60.0  # imports; not the environment's own


def read_reproducer(path: Path) -> Reproducer:
    """What a run has kept.

    Raises:
        ConfigError: It is not there, or is no such file.
    """
    try:
        found = Reproducer(**json.loads(path.read_text(encoding="utf-8")))
        # There are files that say so where the exception's text was not known.
        return replace(found, error=None) if found.error == "None" else found
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} is no reproducer",
            error=f"{type(error).__name__}: {error}",
            fix="name a file out of the folder reproducers/ of a run",
        ) from None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a repetition led to."""

    kind: str
    """raised, hang, signal or exit, as in `Reproducer`; ``ended``: the episode was over too soon; ``nothing``."""
    at: int
    """Step of the episode, from 0; -1 in its reset, -2 while it was built, -3 before."""
    text: str
    code: int = 0
    """Exit code of the process; negative for a signal."""

    def same_as(self, found: Reproducer) -> bool:
        """Whether it is what had been recorded: the same kind of fault in the same call; of exceptions, if known, the same."""
        if (self.kind, self.at) != (found.kind, _place(found)):
            return False
        if self.kind == "raised":
            return found.error is None or self.text.partition(":")[0] == found.error.partition(":")[0]
        return self.kind == "hang" or self.code == found.exit_code


def reproduce(path: Path, timeout_s: float) -> Outcome:
    """Repeat what a file tells, in a child process.

    Args:
        path: The file.
        timeout_s: Seconds one call of the environment may take before it is a hang.

    Raises:
        ConfigError: It is no such file, or the environment was made by a callable that only its program could find.
    """
    refuse_handed_over(
        read_reproducer(path).env.get("factory"),
        f'put it into a module of its own, and write "factory": "module:function" in {path}',
    )
    with tempfile.TemporaryDirectory() as folder:
        at_file, result, stacks = Path(folder, "at"), Path(folder, "result"), Path(folder, "stacks")
        at_file.write_bytes(_AT.pack(_START))
        command = [sys.executable, "-m", "headrace.testing.reproduce", str(path), "--play-into", folder]
        before = leaks.beginning()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            try:
                hangs = _watch(process, at_file, timeout_s)
                if hangs:
                    process.send_signal(DUMP_SIGNAL)
                    _ended(process, _DUMP_S)
            finally:
                process.kill()
                process.wait(timeout=_KILL_S)
                leaks.settled(before, _DUMP_S)  # some programs end with it, and put away what they hold
                leaks.end_processes(before)
        (at,) = _AT.unpack(at_file.read_bytes())
        if hangs:
            dump = stacks.read_text() if stacks.exists() else ""
            where = innermost_frame(dump)
            _tell(sys.stderr, dump)
            return Outcome("hang", at, f"it has not come back for {timeout_s:g} s" + (f", in {where}" if where else ""))
        if result.exists():
            return Outcome(**json.loads(result.read_text()), at=at)
        code = process.returncode
        return Outcome("signal" if code < 0 else "exit", at, describe_exit(code), code)


def _watch(process: subprocess.Popen[bytes], at_file: Path, timeout_s: float) -> bool:
    """Wait for the child's end; True if it is in one call for too long."""
    clock = MonotonicClock()
    last, since_s = b"", clock.now()
    while not _ended(process, _LOOK_S):
        now_s, at = clock.now(), at_file.read_bytes()
        if at != last:
            last, since_s = at, now_s
        elif now_s - since_s > (timeout_s if at != _AT.pack(_START) else _START_S):
            return True
    return False


def _ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


class _Player:
    """The child's side: one environment, one episode.

    Args:
        found: What to repeat.
        at_file: Where it tells in which call it is, so that it is known also after a crash.
    """

    def __init__(self, found: Reproducer, at_file: Path) -> None:
        self._found = found
        self._fd = os.open(at_file, os.O_WRONLY)
        self._seeds: Mapping[int, int] = {int(t): seed for t, seed in found.global_seeds}

    def play(self) -> str | None:
        """Repeat everything; the step after which the episode was over too soon, in words."""
        found = self._found
        self._enter(_CONSTRUCT)
        _seed_global_generators(found.construct_seed)
        env = build_environment(EnvConfig(**found.env), found.lane, component="reproduce")
        if found.call == "construct":
            return None
        self._enter(_RESET)
        env.reset(seed=found.seed)
        parts = leaves(env.action_space, "action")
        for t in range(found.steps):
            values = {leaf.path: np.asarray(found.actions[leaf.path][t], leaf.dtype)[()] for leaf in parts}
            self._enter(t)
            action = assemble(env.action_space, values, "action") if parts[0].keys else values[parts[0].path]
            _, _, terminated, truncated, _ = env.step(action)
            if (terminated or truncated) and t + 1 < found.steps:
                return f"the episode was over after step {t + 1}, and had gone on to step {found.steps}"
        return None

    def _enter(self, at: int) -> None:
        os.pwrite(self._fd, _AT.pack(at), 0)
        if at in self._seeds:
            _seed_global_generators(self._seeds[at])


def _seed_global_generators(value: int) -> None:
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - what the collector seeds for environments that draw from it


def _play_into(folder: Path, found: Reproducer) -> None:
    """Be the child."""
    with (folder / "stacks").open("w") as stacks:
        faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True)
        try:
            early = _Player(found, folder / "at").play()
            kind, text = ("nothing", "nothing: every call came back") if early is None else ("ended", early)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises is what is looked for
            printing.tell(traceback.format_exc())
            kind, text = "raised", text_of(error)
        finally:
            faulthandler.unregister(DUMP_SIGNAL)
        (folder / "result").write_text(json.dumps({"kind": kind, "text": text}))


def _place(found: Reproducer) -> int:
    return {"construct": _CONSTRUCT, "reset": _RESET}.get(found.call, found.steps - 1)


def _called(at: int) -> str:
    return {_START: "before it was built", _CONSTRUCT: "while it was built", _RESET: "in reset()"}.get(
        at, f"in step {at + 1}"
    )


def report(found: Reproducer, outcome: Outcome) -> str:
    """Both outcomes side by side, in words."""
    name = environment_name(EnvConfig(**found.env))
    recorded = found.error if found.kind == "raised" and found.error else found.what
    lines = [
        f"{name}, lane {found.lane}, episode {found.episode}: reset(seed={found.seed}), then {found.steps} actions",
        f"  recorded  {recorded} ({_called(_place(found))})",
        f"  now       {outcome.text} ({_called(outcome.at)})",
    ]
    if outcome.same_as(found):
        return "\n".join([*lines, "reproduced"])
    lines.append("not reproduced")
    if not found.complete:
        lines.append("  the beginning of the episode had left the lane: its actions are not all known")
    if not found.exact:
        lines.append(
            "  an environment that draws from the global generators of random or numpy cannot be repeated exactly: "
            "their state at the reset is not known"
        )
    return "\n".join(lines)


def _tell(stream: TextIO, text: str) -> None:
    """A command of its own: it has somebody to talk to."""
    stream.write(f"{text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.reproduce", description=(__doc__ or "").strip())
    parser.add_argument("file", type=Path)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds one call may take (default 30)")
    parser.add_argument("--play-into", type=Path, help=argparse.SUPPRESS)
    given: Any = parser.parse_args(arguments)
    try:
        found = read_reproducer(given.file)
        if given.play_into is not None:
            _play_into(given.play_into, found)
            return 0
        outcome = reproduce(given.file, given.timeout)
    except HeadraceError as error:
        _tell(sys.stderr, str(error))
        return 2
    _tell(sys.stdout, report(found, outcome))
    return 0 if outcome.same_as(found) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
