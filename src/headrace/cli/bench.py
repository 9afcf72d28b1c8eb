"""``headrace bench``."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import early
from headrace.core.errors import ConfigError
from headrace.core.files import stage, write_whole
from headrace.core.refusals import nearest

if TYPE_CHECKING:
    from headrace.benchmarks.report import Row

_STANDARD_OUTPUT = "-"

_Command = Callable[..., Any]


def _options(command: _Command) -> _Command:
    """What both have in common."""
    for option in (
        click.option("--json", "json_file", is_flag=False, flag_value=_STANDARD_OUTPUT, metavar="FILE",
                     help="Write the figures to FILE as one JSON object; without FILE print it, and nothing else."),
        click.option("--peers", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
                     help="A virtual environment in which peers are installed; repeatable. This one is looked in first, and "
                     "folders .peers* of the working directory last."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Our speed beside the peers that are installed: the same work, in one run.

    pip install 'PATH_OF_THE_CLONE[peers]' brings them. Who is not there is told, with what brings it, and has no figures.
    """


@bench.command()
@click.argument("works", nargs=-1, metavar="[td3|sac|dqn|ppo]...")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
              help="Windows of each side that count.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0.01), default=3.0, show_default=True, metavar="S",
              help="Of each window.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1, max=256), multiple=True, default=(1,), show_default=True, metavar="N",
              help="Each side may use, and processors; repeatable.")  # fmt: skip
@_options
def learners(
    works: tuple[str, ...],
    rounds: int,
    seconds: float,
    threads: tuple[int, ...],
    json_file: str | None,
    peers: tuple[Path, ...],
) -> int:
    """Updates a second of ready batches (TD3, SAC, DQN), and environment steps a second with training (PPO on CartPole)."""
    with early.importing():
        from headrace.benchmarks.learners import WORKS, Comparison
        from headrace.benchmarks.processes import interpreters
    chosen = _known("headrace bench learners", works, WORKS)
    comparison = Comparison(interpreters(peers), rounds, seconds, _tell)
    with _told(json_file, comparison.absent) as rows:
        for count in dict.fromkeys(threads):
            for work in chosen:
                rows += comparison.rows(work, count)
    return 0


@bench.command("end-to-end")
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
              help="Trainings of each side; learning is a lottery.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End all of them earlier.")
@click.option("--side", "sides", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@_options
def end_to_end(
    tasks: tuple[str, ...],
    seeds: int,
    steps: int | None,
    sides: tuple[str, ...],
    json_file: str | None,
    peers: tuple[Path, ...],
) -> int:
    """Seconds and environment steps from the start to a target: TASK is pendulum-td3, pendulum-sac, cartpole-dqn, cartpole-ppo,
    halfcheetah-sac (a return after 100,000 steps); lunarlander-dqn, lunarlander-ppo or halfcheetah-ppo, which are not run
    unless named.
    """  # noqa: D205 - click shows it as a paragraph
    with early.importing():
        from headrace.benchmarks.end_to_end import Comparison
        from headrace.benchmarks.processes import interpreters
        from headrace.benchmarks.tasks import TASKS, UNLESS_NAMED
    chosen = _known("headrace bench end-to-end", tasks, tuple(TASKS), UNLESS_NAMED)
    _known("headrace bench end-to-end --side", sides, [side for name in chosen for side in _sides_of(TASKS[name])])
    comparison = Comparison(interpreters(peers), seeds, steps, sides, _tell)
    with _told(json_file, comparison.absent) as rows:
        for name in chosen:
            rows += comparison.rows(name)
    return 0


def _sides_of(task: Any) -> tuple[str, ...]:
    return (*task.ours, *task.peers)


def _known(command: str, given: Sequence[str], known: Sequence[str], unless_named: Sequence[str] = ()) -> list[str]:
    """What was named, once each; all if nothing was.

    Raises:
        ConfigError: There is no such thing.
    """
    for name in given:
        if name not in known:
            meant = nearest(name, known)
            raise ConfigError(
                f"{command} knows no {name}",
                **({"nearest": meant} if meant else {}),
                known=", ".join(dict.fromkeys(known)),
                fix=f"write {meant}" if meant else "name one of those it knows",
            )
    return list(dict.fromkeys(given)) or [name for name in known if name not in unless_named]


@contextmanager
def _told(json_file: str | None, absent: Mapping[str, str]) -> Iterator[list[Row]]:
    """A list for the rows, told of at the end. The file is there once it is whole.

    Raises:
        ConfigError: The file cannot be written; found out before anything is measured.
    """
    from headrace.benchmarks.report import in_words, machine, to_json
    from headrace.runtime.load import Load

    _require_writable(json_file)
    before, rows = Load.now(), list[Any]()
    yield rows
    about = {
        **machine(), "others_cores": round(Load.now().others_since(before), 2),
        "command": shlex.join(["headrace", *sys.argv[1:]]), "absent": dict(absent),
    }  # fmt: skip
    written = f"{json.dumps(to_json(rows, about), ensure_ascii=False)}\n"
    if json_file == _STANDARD_OUTPUT:
        click.echo(written, nl=False)
        return
    del about["absent"]
    try:
        click.echo("\n".join(in_words(rows, about)))
        for side, reason in absent.items():
            click.echo(f"no figures of {side}: {reason}")
    finally:  # whatever becomes of what is shown
        if json_file is not None:
            _write(json_file, written)


def _require_writable(json_file: str | None) -> None:
    if json_file is None or json_file == _STANDARD_OUTPUT:
        return
    path = Path(json_file)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if _is_file(path):
            part, _ = stage(path.resolve(), [b"{}"])
            part.unlink()
    except OSError as error:
        raise _unwritable(json_file, error) from None


def _write(json_file: str, written: str) -> None:
    path = Path(json_file)
    try:
        if _is_file(path):
            write_whole(path.resolve(), [written.encode()])  # a link stays one
        else:
            path.write_bytes(written.encode())
    except OSError as error:
        raise _unwritable(json_file, error) from None


def _is_file(path: Path) -> bool:
    """Or will be one: not a pipe and not a device, which a shell may name by a link that leads nowhere."""
    return path.is_file() or not path.exists()


def _unwritable(json_file: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"--json {json_file} cannot be written",
        problem=f"{type(error).__name__}: {error.strerror}",
        fix="name a file in a folder that is there and may be written to, on a disk with room",
    )


def _tell(text: str) -> None:
    click.echo(text, err=True)
