"""What the file of ``headrace supervise`` may say: the processes, what they need, and by what they are judged."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import tomli_w
from pydantic import Field, field_validator, model_validator

from headrace.commands.ordering import ring
from headrace.core import toml
from headrace.core.config import Section
from headrace.core.errors import ConfigError
from headrace.core.refusals import nearest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_TAKEN = frozenset({"supervisor", "forkserver"})
_READY_SIGNS = ("http", "log", "file", "alive_s", "done")
_PROGRESS_SIGNS = ("log", "file", "http")


class ReadyConfig(Section):
    """By what a process shows that others can use it: exactly one of ``http``, ``log``, ``file``, ``alive_s``, ``done``."""

    http: str | None = None
    """A URL that answers with ``status`` and, if given, a JSON object that holds ``json_holds``."""
    status: int = Field(default=200, ge=100, le=599)
    """The HTTP status that is expected; any other one is no."""
    json_holds: dict[str, Any] | None = None
    """Keys and values the answer has to hold, nested as in the answer; it may hold more."""
    log: str | None = None
    """A regular expression that a line of its output matches."""
    file: str | None = None
    """A path or glob pattern, from the process's ``cwd``; ready once something matches that is new or was changed."""
    alive_s: float | None = Field(default=None, gt=0)
    """Seconds it has to live."""
    done: bool = False
    """It is ready when it has ended with code 0: for steps that prepare something."""
    shared: bool = False
    """Whether ``http`` may be answered before the process is started; otherwise that is a fault: something else has its port."""
    start_s: float = Field(default=600.0, gt=0)
    """Seconds from its start until it is ready; then it counts as stalled."""
    probe_s: float = Field(default=5.0, gt=0)
    """Seconds one look (a request, a glob) may take; a longer one counts as no."""

    @model_validator(mode="after")
    def _one_sign(self) -> Self:
        given = [name for name in _READY_SIGNS if getattr(self, name)]
        if len(given) != 1:
            raise _not_one("ready", given, _READY_SIGNS)
        _check_sign(self.http, self.log)
        if self.json_holds is not None and self.http is None:
            raise ConfigError("ready.json_holds is of no use without ready.http", fix="add ready.http, or remove it")
        if self.shared and self.http is None:
            raise ConfigError("ready.shared is of no use without ready.http", fix="add ready.http, or remove it")
        if self.alive_s is not None and self.alive_s >= self.start_s:
            raise ConfigError(
                "it could never be ready: ready.alive_s is not below ready.start_s",
                alive_s=self.alive_s,
                start_s=self.start_s,
                fix="raise ready.start_s",
            )
        return self


class ProgressConfig(Section):
    """By what a process shows that it gets on: exactly one of ``log``, ``file``, ``http``."""

    log: str | None = None
    """A regular expression. Each line that matches is progress; if it has a group, only when that number has grown."""
    file: str | None = None
    """A path or glob pattern, from the process's ``cwd``."""
    by: Literal["count", "size", "mtime"] = "count"
    """What of the files has to grow: how many there are, their bytes together, the time of the newest."""
    http: str | None = None
    """A URL, of which ``metric`` or ``json_path`` names the number that has to grow."""
    metric: str | None = None
    """Name of a Prometheus metric, with labels or without; without, all its series are added up."""
    json_path: str | None = None
    """Where the number is in a JSON answer: ``workers.0.steps``."""
    pending: str | None = None
    """Of the same answer, the metric or path of a number that is 0 while nobody wants anything of the process (requests that
    run or wait): then it may be silent, and silence with work at hand is its own fault. Not set: nobody can tell."""
    progress_s: float = Field(default=300.0, gt=0)
    """Seconds without progress, from readiness on, after which it counts as stalled."""
    probe_s: float = Field(default=5.0, gt=0)
    """Seconds one look may take; a longer one shows no progress."""

    @model_validator(mode="after")
    def _one_sign(self) -> Self:
        given = [name for name in _PROGRESS_SIGNS if getattr(self, name)]
        if len(given) != 1:
            raise _not_one("progress", given, _PROGRESS_SIGNS)
        _check_sign(self.http, self.log)
        if (self.http is not None) != ((self.metric is not None) + (self.json_path is not None) == 1):
            raise ConfigError(
                "progress.http and exactly one of progress.metric and progress.json_path belong together",
                http=self.http or "not set",
                metric=self.metric or "not set",
                json_path=self.json_path or "not set",
                fix="name one number of the answer that grows while the process gets on",
            )
        if self.pending is not None and self.http is None:
            raise ConfigError("progress.pending is of no use without progress.http", fix="add it, or remove pending")
        return self


class RestartConfig(Section):
    """How often a process that ended or stalled is started again; one that has never been ready is not."""

    max: int = Field(default=0, ge=0)
    """Restarts within ``window_s``; the next fault ends the run."""
    window_s: float = Field(default=300.0, gt=0)
    """Seconds after which a restart is forgiven."""
    backoff_s: float = Field(default=1.0, ge=0)
    """Pause before the first restart; doubles with each further one in the window."""


class ProcessConfig(Section):
    """One process: what is run, after whom, and by what it is judged."""

    command: list[str]
    """The program and its arguments, a list; or a text, taken apart as a shell would, without being one."""
    cwd: str = "."
    """Folder it runs in, from the file's own folder."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables it gets besides those of ``headrace`` itself."""
    needs: list[str] = Field(default_factory=list)
    """Processes that have to be ready before it is started, and that are looked at when it does not get on."""
    ready: ReadyConfig = Field(default_factory=lambda: ReadyConfig(alive_s=1.0))
    """By what it shows that it is ready; not set: it lives for a second."""
    progress: ProgressConfig | None = None
    """By what it shows that it gets on; not set: nothing is expected of it but to live."""
    lifetime: Literal["run", "until-done"] = "run"
    """run: it lives as long as the run, so that it ends by itself is a fault, also with code 0. until-done: code 0 means that
    its work is done; when all of these are, the run is over."""
    restart: RestartConfig = Field(default_factory=RestartConfig)
    """Whether it is started again after a fault."""
    stop_signal: str = "SIGTERM"
    """Sent to its process group when it has to leave."""
    stop_s: float = Field(default=20.0, gt=0)
    """Seconds all of that group then has; whatever is left of it and of what it started is killed."""
    essential: bool = True
    """Whether the run ends with it; otherwise it goes on without it, and says so."""
    fail_pattern: str | None = None
    """A regular expression: a line of its output that matches means that it has failed although it lives, or ends
    with code 0."""
    stopped_s: float = Field(default=30.0, gt=0)
    """Seconds it may be stopped by a signal (SIGSTOP, a debugger) before it counts as stalled."""

    @field_validator("command", mode="before")
    @classmethod
    def _take_apart(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ConfigError(
                "command cannot be taken apart", command=value, problem=error, fix="close its quotation marks"
            ) from None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.command or not self.command[0]:
            raise ConfigError("command is empty", fix="name the program that is to be run")
        _check_pattern("fail_pattern", self.fail_pattern)
        if self.stop_signal not in signal.Signals.__members__:
            meant = nearest(self.stop_signal.upper(), signal.Signals.__members__)
            raise ConfigError(
                f"stop_signal {self.stop_signal!r} is no signal",
                **({"nearest": meant} if meant else {}),
                fix=f"write {meant or 'SIGTERM'}",
            )
        if self.ready.done and self.lifetime != "until-done":
            raise ConfigError(
                'ready.done is for a process that ends, and lifetime is "run"', fix='set lifetime = "until-done"'
            )
        return self

    @property
    def stop_number(self) -> int:
        """``stop_signal`` as a number."""
        return int(signal.Signals[self.stop_signal])


class SuperviseRunConfig(Section):
    """The run as a whole."""

    name: str = "supervise"
    """What the run directory is called after."""
    directory: str = "runs"
    """Folder in which a run directory is made when none is given, from where the command is typed."""
    run_duration_s: float | None = Field(default=None, gt=0)
    """Seconds after which everybody is stopped in order; not set: no limit."""


class SuperviseConfig(Section):
    """Everything: the run, and its processes by name, in the order of the file."""

    run: SuperviseRunConfig = Field(default_factory=SuperviseRunConfig)
    process: dict[str, ProcessConfig]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.process:
            raise ConfigError("there is no process", fix="add a table [process.NAME] with a command")
        for name, process in self.process.items():
            _check_name(name)
            for needed in process.needs:
                if needed not in self.process:
                    raise _nobody(f"{name} needs {needed!r}", needed, self.process)
        circle = ring({name: process.needs for name, process in self.process.items()})
        if circle:
            raise ConfigError(
                "nobody could be started first: processes need each other in a ring",
                ring=" -> ".join([*circle, circle[0]]),
                fix="remove one of these needs",
            )
        return self

    def to_toml(self) -> str:
        """The effective configuration as TOML."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def load(path: Path) -> SuperviseConfig:
    """Read a file, its folders made absolute.

    Raises:
        ConfigError: It cannot be read, or says something that cannot be.
    """
    table = toml.read(path)
    processes = {name: _process(name, one, path.parent) for name, one in _by_name(table.pop("process", {})).items()}
    return SuperviseConfig(process=processes, **table)


def _by_name(given: object) -> dict[str, Any]:
    """Tables by name, whether they were written as [process.NAME] or as [[process]]."""
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, Any] = {}
    if not isinstance(given, list):
        raise ConfigError(
            "process must be tables, one for each process",
            value=f"{given!r:.80}",
            fix='write [process.NAME], and command = "…" below it',
        )
    for number, one in enumerate(given, 1):
        name = one.pop("name", None) if isinstance(one, dict) else None
        if not isinstance(name, str):
            raise ConfigError(f"[[process]] number {number} has no name", fix='give it one: name = "trainer"')
        if name in found:
            raise ConfigError(f"two processes are called {name!r}", fix="give each a name of its own")
        found[name] = one
    return found


def _process(name: str, table: object, folder: Path) -> ProcessConfig:
    if not isinstance(table, dict):
        raise ConfigError(
            f"process.{name} must be a section with keys of its own",
            value=table,
            fix=f'write [process.{name}], and command = "…" below it',
        )
    try:
        found = ProcessConfig.model_validate(table)
    except ConfigError as error:
        error.place(process=name)
        raise
    cwd = (folder / found.cwd).absolute()
    if not cwd.is_dir():
        raise ConfigError(
            f"the folder of {name} does not exist",
            cwd=cwd,
            fix="make it, or correct cwd; it counts from the file's folder",
        )
    return found.model_copy(update={"cwd": str(cwd)})


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None or name in _TAKEN:
        raise ConfigError(
            f"no process can be called {name!r}",
            fix="use letters, digits, dots, dashes and underscores, at most 40; supervisor and forkserver are taken",
        )


def _nobody(what: str, name: str, known: Iterable[str]) -> ConfigError:
    meant = nearest(name, known)
    return ConfigError(
        f"{what}, and no process is called so",
        processes=", ".join(known),
        **({"nearest": meant} if meant else {}),
        fix=f"write {meant}" if meant else "use one of these names",
    )


def _not_one(section: str, given: list[str], choices: tuple[str, ...]) -> ConfigError:
    return ConfigError(
        f"{section} needs exactly one sign",
        given=", ".join(given) or "none",
        choices=", ".join(choices),
        fix="keep the one that says most about this process",
    )


def _check_sign(url: str | None, pattern: str | None) -> None:
    _check_pattern("log", pattern)
    if url is not None and not _is_url(url):
        raise ConfigError("http must be a URL", value=url, fix="write it like http://127.0.0.1:8000/health")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in {"http", "https"} and bool(host) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port beyond 65535, a host with an empty part
        return False


def _check_pattern(key: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ConfigError(
            f"{key} is no regular expression", value=pattern, problem=error, fix="escape what is meant literally"
        ) from None
