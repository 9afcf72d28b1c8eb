"""One component started alone, in a run directory that it shares with the others: on this machine or another one.

Each has a launcher of its own, with board, logs and summary in ``alone/<component>/``. What they have to agree on is made by
whoever comes first: configuration, run id, model and first weights.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from headrace.core.errors import ComponentStalled, ConfigError, RunDirectoryError
from headrace.ipc.channel import Deadline, poll_fds
from headrace.llm.config import RLConfig
from headrace.llm.launch.deciding import single_cast
from headrace.llm.launch.launcher import Launch
from headrace.llm.launch.place import LanguageRun, agree_on_run_id, read_endpoints, write_once
from headrace.llm.launch.starting import MAY_CHANGE, newest_checkpoint
from headrace.llm.loading import differences
from headrace.llm.payloads import ORCHESTRATOR, WARM_START
from headrace.runtime.config import dump_toml
from headrace.runtime.interrupts import Interrupts

_LOOK_S = 0.25
_FIRST = "0"
"""Version of the weights that a warm start makes."""


def begin_alone(component: str, config: RLConfig, run: Path, *, url: str | None, resume: bool) -> Launch:
    """Make ready one component of the run in a directory.

    Args:
        component: Its id.
        config: Of the whole run.
        run: The directory that its components share.
        url: Of the server, for the orchestrator; None: what ``endpoints.json`` says, once it does.
        resume: Whether to go on from the newest checkpoint.

    Raises:
        ConfigError: The directory's configuration is another one.
        RunDirectoryError: The component runs there already, or the directory cannot be written.
        ComponentStalled: No server has told its endpoint within ``deadlines.start_s``.
    """
    if config.run.schedule == "inline":
        raise ConfigError(
            "run.schedule inline does everything in one process, so no component can be started alone",
            fix="set run.schedule = async",
        )
    shared = _share(config, run)
    endpoints = agree_on_run_id(shared.endpoints_file)
    place = _own_place(component, config, run)
    try:
        checkpoint, damaged = newest_checkpoint(shared, endpoints.run_id) if resume else (None, [])
        notes = tuple(f"checkpoint {problem}: it is passed over" for problem in damaged)
        what = Launch(config, place, single_cast(component, warm_start=False), endpoints.run_id, run, notes=notes)
        endpoint = None
        if component == ORCHESTRATOR:
            endpoint = url or config.inference.url or _await_endpoint(shared, config.deadlines.start_s)
        return replace(what, resume=None if checkpoint is None else checkpoint.folder.absolute(), endpoint=endpoint)
    except BaseException:
        place.close()
        raise


@contextlib.contextmanager
def warm_started(what: Launch) -> Iterator[Launch]:
    """Have the first weights made by whoever is first: this launcher before its component, or another one meanwhile.

    Args:
        what: To be launched.

    Yields:
        What to launch, with the warm start before it if it is ours to make.

    Raises:
        ComponentStalled: Another launcher makes them, and was not done within ``deadlines.warm_start_s``.
    """
    made = what.run / "weights" / _FIRST / "manifest.json"
    if made.exists() or what.resume is not None:
        yield what
        return
    handle = os.open(what.run / "warm-start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _await(made.exists, what.config.deadlines.warm_start_s, f"version {_FIRST} of the weights")
            yield what
        else:
            (name,) = what.cast.ids
            yield replace(what, cast=single_cast(name, warm_start=not made.exists() and name != WARM_START))
    finally:
        os.close(handle)


def _share(config: RLConfig, run: Path) -> LanguageRun:
    shared = LanguageRun(run)
    try:
        for folder in (run, shared.weights_dir, shared.rollouts_dir, shared.checkpoints_dir):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(
            f"the run directory {run} cannot be written",
            problem=f"{type(error).__name__}: {error}",
            fix="choose another --run-dir, on a disk with room where you may write",
        ) from None
    if not shared.config_file.exists():
        write_once(shared.config_file, dump_toml(config).encode())
    changed = differences(config, shared.read_rl_config(), MAY_CHANGE)
    if changed:
        raise ConfigError(
            f"the components of {run} were told something else",
            **changed,
            fix="start all of them with the same files (headrace rl --dry-run writes one for each)",
        )
    return shared


def _own_place(component: str, config: RLConfig, run: Path) -> LanguageRun:
    path = run / "alone" / component
    place = LanguageRun(path)
    if place.config_file.exists():
        with LanguageRun.resume(path) as before:  # refused while it is alive
            before.set_aside()
    place.claim(config)
    return place


def _await_endpoint(shared: LanguageRun, limit_s: float) -> str:
    def known() -> bool:
        found = read_endpoints(shared.endpoints_file)
        return found is not None and found.inference is not None

    _await(known, limit_s, "a server that tells its endpoint")
    found = read_endpoints(shared.endpoints_file)
    assert found is not None, "it was there just now"
    assert found.inference is not None, "it was there just now"
    return found.inference


def _await(there: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = Deadline(limit_s)
    with Interrupts() as interrupts:
        while not there():
            if deadline.passed:
                raise ComponentStalled(
                    f"the launcher waited {limit_s:g} s for {what}",
                    fix="start the other components in the same --run-dir, or name the server with --url",
                )
            if interrupts.count:
                raise KeyboardInterrupt
            poll_fds({}, _LOOK_S)
