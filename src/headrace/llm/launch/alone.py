"""One component started alone, in a run directory that it shares with the others: on this machine or another one.

Each has a launcher of its own, with board, logs and summary in ``alone/<component>/``. What they have to agree on is made by
whoever comes first: configuration, run id, model and first weights.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from headrace.core.errors import ComponentStalled, ConfigError, HeadraceError, RunDirectoryError
from headrace.ipc.channel import Deadline, poll_fds
from headrace.llm.config import RLConfig, RLDeadlinesConfig
from headrace.llm.launch.children import warm_start_limit_s
from headrace.llm.launch.deciding import single_cast
from headrace.llm.launch.launcher import Launch
from headrace.llm.launch.place import (
    Endpoints,
    LanguageRun,
    agree_on_run_id,
    read_endpoints,
    write_endpoints,
    write_once,
)
from headrace.llm.launch.starting import MAY_CHANGE, newest_checkpoint
from headrace.llm.launch.summary import Tally
from headrace.llm.loading import differences
from headrace.llm.payloads import INFERENCE, ORCHESTRATOR, TRAINER, WARM_START
from headrace.llm.training.checkpoints import RLCheckpoint
from headrace.llm.transport import remove_leftovers
from headrace.runtime.config import dump_toml
from headrace.runtime.interrupts import Interrupts
from headrace.runtime.rundir import is_locked
from headrace.telemetry.board import Board, State

_LOOK_S = 0.25
_HERE = frozenset({"127.0.0.1", "::1", "localhost"})
_Found = TypeVar("_Found")
_FIRST = "0"
"""Version of the weights that a warm start makes."""


def _silent(_: str) -> None:
    pass


def begin_alone(
    component: str, config: RLConfig, run: Path, *, url: str | None, resume: bool, say: Callable[[str], None] = _silent
) -> Launch:
    """Make ready one component of the run in a directory.

    Args:
        component: Its id.
        config: Of the whole run.
        run: The directory that its components share.
        url: Of the server, for the orchestrator; None: what ``endpoints.json`` says, once it does.
        resume: Whether to go on from the newest checkpoint.
        say: Told for what it waits, before it does.

    Raises:
        ConfigError: The directory's configuration is another one.
        RunDirectoryError: The component runs there already, or a whole run does, or the directory cannot be written; there is
            no checkpoint to go on from, or the trainer that is at work there has gone further.
        ComponentStalled: No server has told its endpoint within ``deadlines.start_s`` in which nobody made the first weights.
    """
    if config.run.schedule == "inline":
        raise ConfigError(
            "run.schedule inline does everything in one process, so no component can be started alone",
            fix="set run.schedule = async",
        )
    shared = LanguageRun(run)
    with ExitStack() as undone:
        undone.callback(shared.close)
        _share(config, shared)
        run_id = _agree(component, shared)
        # Whoever is refused leaves what its predecessor told where it is; while that one is alive, that is why.
        found = None if shared.alone(component).is_live() else _going_on(component, shared, run_id, resume=resume)
        place = _own_place(component, config, shared)
        undone.callback(place.close)
        checkpoint, damaged = found or _going_on(component, shared, run_id, resume=resume)
        if component == ORCHESTRATOR or (component == TRAINER and not shared.alone(ORCHESTRATOR).is_live()):
            remove_leftovers(shared.rollouts_dir, run_id)  # whoever goes on makes those batches again
        what = Launch(
            config,
            place,
            single_cast(component, warm_start=False),
            run_id,
            run,
            resume=None if checkpoint is None else checkpoint.folder.absolute(),
            tally=Tally() if checkpoint is None else Tally.going_on(checkpoint.version),
            notes=tuple(f"checkpoint {problem}: it is passed over" for problem in damaged),
        )
        if component == ORCHESTRATOR:
            what = replace(what, endpoint=url or config.inference.url or _await_endpoint(shared, config.deadlines, say))
        undone.pop_all()
    return what


@contextlib.contextmanager
def warm_started(what: Launch, say: Callable[[str], None] = _silent) -> Iterator[Launch]:
    """Have the first weights made by whoever is first: this launcher before its component, or another one meanwhile.

    Args:
        what: To be launched.
        say: Told for what it waits, before it does.

    Yields:
        What to launch, with the warm start before it if it is ours to make.

    Raises:
        ComponentStalled: Another launcher makes them, and was not done in the time that it has for it.
    """
    made = _first_weights(what.run)
    if made.exists() or what.resume is not None:
        yield what
        return
    handle = os.open(_warm_start_lock(what.run), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        limit_s = _warm_start_s(what.config.deadlines)
        name = f"version {_FIRST} of the weights"
        text = f"waits at most {limit_s:g} s for {name}, which another component of {what.run} makes"
        _await(lambda: _got(handle) or made.exists(), limit_s, name, lambda: say(text))
        if made.exists():
            yield what
        else:  # nobody is at it, or whoever was has ended without them
            (name,) = what.cast.ids
            yield replace(what, cast=single_cast(name, warm_start=name != WARM_START))
    finally:
        os.close(handle)


def _first_weights(run: Path) -> Path:
    """What is there once the warm start is made."""
    return run / "weights" / _FIRST / "manifest.json"


def _warm_start_lock(run: Path) -> Path:
    """Held by the launcher that makes the warm start, or has made it."""
    return run / "warm-start.lock"


def _warm_start_s(deadlines: RLDeadlinesConfig) -> float:
    """Seconds a launcher may take until its warm start is made: before its process starts, it imports."""
    return deadlines.start_s + warm_start_limit_s(deadlines)


def _got(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _share(config: RLConfig, shared: LanguageRun) -> None:
    """Hold the run that others share, and agree on what it is."""
    run = shared.path
    try:
        for folder in (run, shared.weights_dir, shared.rollouts_dir, shared.checkpoints_dir):
            folder.mkdir(parents=True, exist_ok=True)
        shared.share()
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


def _agree(component: str, shared: LanguageRun) -> str:
    """The id of the run."""
    run_id = agree_on_run_id(shared.endpoints_file).run_id
    if component == INFERENCE and not shared.alone(INFERENCE).is_live():
        # Nobody is to be sent to where an earlier one was, and whoever finds this one alive believes what it reads.
        write_endpoints(shared.endpoints_file, Endpoints(run_id))
    return run_id


def _own_place(component: str, config: RLConfig, shared: LanguageRun) -> LanguageRun:
    place = shared.alone(component)
    if place.config_file.exists():
        with LanguageRun.resume(place.path) as before:  # refused while it is alive
            before.set_aside()
    place.claim(config)
    place.held_with(shared)
    return place


def _going_on(
    component: str, shared: LanguageRun, run_id: str, *, resume: bool
) -> tuple[RLCheckpoint | None, list[str]]:
    """The checkpoint to go on from, if it is to go on; and what is wrong with newer ones.

    Raises:
        RunDirectoryError: There is none; or an orchestrator would begin behind the trainer, which goes back for nobody.
    """
    trained = _trained(shared) if component == ORCHESTRATOR else 0
    checkpoint: RLCheckpoint | None = None
    damaged: list[str] = []
    problem: RunDirectoryError | None = None
    if resume:
        try:
            checkpoint, damaged = newest_checkpoint(shared, run_id)
        except RunDirectoryError as error:
            problem = error
    step = 0 if checkpoint is None else checkpoint.version
    if trained > step:
        raise RunDirectoryError(
            f"the trainer in {shared.path} is at work and goes on from version {trained}, the orchestrator would from {step}",
            fix="end the trainer, which saves a checkpoint, and start both with --resume",
        )
    if problem is not None:
        raise problem
    return checkpoint, damaged


def _trained(shared: LanguageRun) -> int:
    """Version that a trainer which is at work has come to; 0: none is. One that only starts may yet go back to a checkpoint."""
    trainer = shared.alone(TRAINER)
    if trainer.is_live():
        with contextlib.suppress(HeadraceError), Board.open(trainer.board_file) as board:  # it may not be there yet
            view = board.read(TRAINER)
            if view.state in {State.RUNNING, State.WAITING}:
                return view.counters["version"]
    return 0


def _await_endpoint(shared: LanguageRun, deadlines: RLDeadlinesConfig, say: Callable[[str], None]) -> str:
    """Where the server is, once one is alive that says so; what one that was killed has left there is not believed."""
    made, lock = _first_weights(shared.path), _warm_start_lock(shared.path)

    def known() -> Endpoints | None:
        found = read_endpoints(shared.endpoints_file)
        return found if found is not None and found.inference and shared.alone(INFERENCE).is_live() else None

    def held_up() -> bool:
        """Somebody makes the first weights, for which the server's launcher waits as well."""
        return not made.exists() and is_locked(lock)

    what, limit_s, before_s = "a server that tells its endpoint", deadlines.start_s, _warm_start_s(deadlines)

    def tell() -> None:
        first = f" once version {_FIRST} of the weights is made, which another component does (at most {before_s:g} s)"
        start = f"headrace {INFERENCE} --run-dir {shlex.quote(str(shared.path))} starts one, --url names one"
        whose = "that of this run is starting" if shared.alone(INFERENCE).is_live() else start
        say(f"waits at most {limit_s:g} s for {what}{first if held_up() else ''}: {whose}")

    found = _await(known, limit_s, what, tell, held_up=held_up, held_up_s=before_s)
    assert found.inference is not None, "it was not known before"
    if found.machine not in {None, socket.gethostname()} and urlsplit(found.inference).hostname in _HERE:
        raise ConfigError(
            f"the inference server on {found.machine} answers only there: {found.inference}",
            key="inference.host",
            fix="start it with --inference.host set to its machine's address, or 0.0.0.0; or name it here with --url",
        )
    return found.inference


def _await(
    there: Callable[[], _Found | None],
    limit_s: float,
    what: str,
    tell: Callable[[], None],
    *,
    held_up: Callable[[], bool] = lambda: False,
    held_up_s: float = 0.0,
) -> _Found:
    """What ``there`` finds, once it finds something.

    Args:
        there: Looks for it.
        limit_s: Seconds in which it has to be found.
        what: It is, in words.
        tell: Says so; called once, unless it is found at the first look.
        held_up: Whether something else comes first, now; the limit counts from the end of that.
        held_up_s: Seconds after which that is no excuse any more.
    """
    if found := there():
        return found
    tell()
    deadline, patience = Deadline(limit_s), Deadline(held_up_s)
    with Interrupts() as interrupts:
        while not (found := there()):
            if not patience.passed and held_up():
                deadline = Deadline(limit_s)
            elif deadline.passed:
                raise ComponentStalled(
                    f"the launcher waited {limit_s:g} s for {what}",
                    fix="start the other components in the same --run-dir, or name the server with --url",
                )
            if interrupts.count:
                raise KeyboardInterrupt
            poll_fds({}, _LOOK_S)
    return found
