"""Opens a run directory for a session: the first one of a run, or one that goes on where an earlier one ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.core.errors import ConfigError
from headrace.core.files import write_whole
from headrace.envs.building import refuse_handed_over
from headrace.learners.checkpoint import STATE_FILE
from headrace.learners.checkpoints import CheckpointStore
from headrace.learners.manifest import Checkpoint
from headrace.record.trace import Trace
from headrace.runtime.aside import made, moved, told
from headrace.runtime.belonging import same_streams, was_edited
from headrace.runtime.changes import changes, next_config
from headrace.runtime.config import ExperimentConfig, dump_toml, load_config
from headrace.runtime.interrupts import asked
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.remains import holds_only_a_configuration, never_began, why_new
from headrace.runtime.resume import ResumePoint
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.survey import find_resume_point
from headrace.telemetry.metrics import cut_metrics, reaches_beyond

Source = str | Path | ExperimentConfig | None


@dataclass(frozen=True, slots=True)
class Session:
    """A run directory that is held, and what is to be run in it."""

    place: RunDirectory
    config: ExperimentConfig
    resume: ResumePoint | None = None
    """None: the run is a new one."""
    note: str | None = None
    """What a user who asked for a resume has to know, in a sentence; None: nothing."""
    before: ExperimentConfig | None = None
    """The configuration that the run had until now; None: the run is a new one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.place.close()

    @contextmanager
    def make_way(self) -> Iterator[None]:
        """Put the new configuration in place, and aside what is of the past or would be written over; then the block.

        The block makes the session's board, and after it the old summary goes, last of all: until then the directory
        tells what was true before, also where this process is killed. If the block raises, or somebody has asked to end
        the session meanwhile, everything is as it was. Nothing is done for a new run.

        Raises:
            RunDirectoryError: It cannot be written; everything is as it was.
            KeyboardInterrupt: `headrace.runtime.interrupts.asked`; everything is as it was.
        """
        if self.resume is None or self.before is None:
            yield
            return
        run, number = self.place, _next_number(self.place)
        earlier = run.path / "earlier"
        with ExitStack() as done, ExitStack() as undo:
            with told(run.path):
                _sweep(earlier)
                _prepare(run, self.resume, self.config, number, undo)
                if reaches_beyond(run.metrics_file, self.resume.env_steps):
                    _keep(run.metrics_file, earlier / f"metrics-{number}.whole", undo, done)
                    _cut_metrics(run.metrics_file, self.resume.env_steps, earlier / f"metrics-{number}.jsonl", undo)
                if changes(self.before, self.config):
                    _change_config(run, self.config, run.path / f"config-{number}.toml", undo)
                _keep(run.board_file, earlier / f"board-{number}", undo, done)
            yield
            if asked():
                raise KeyboardInterrupt
            with told(run.path):
                _set_aside(run.summary_file, earlier / f"summary-{number}.json", undo)
            undo.pop_all()


def resume_or_begin(
    path: Path,
    source: Source,
    overrides: Mapping[str, object],
    *,
    has_factory: bool = False,
) -> Session:
    """Go on with the run in a directory; where there is none yet, begin it.

    Everything that may be refused is refused before anything is changed; of a run that goes on nothing is changed before
    `Session.make_way`.

    Args:
        path: The run directory.
        source: A configuration, as for `load_config`, of which the keys that it states count as given. None: the run's
            own; for a new run the defaults, if ``overrides`` names an environment.
        overrides: Further keys that are given, by dotted name.
        has_factory: Whether the environment is given as a callable.

    Raises:
        ConfigError: What is given would change what is learned, or there is nothing to do.
        RunDirectoryError: The run is alive, has left nothing to go on from, or its directory cannot be written.
    """
    run = RunDirectory(path)
    new = why_new(run)
    if new is None:
        return _go_on(path, source, overrides, has_factory)
    if source is None and (run.config_file.is_file() or not {"env.id", "env.factory"} & overrides.keys()):
        source = RunDirectory.open(path).config_file  # or says that there is no run
    config = load_config(source, overrides)
    if not has_factory:
        refuse_handed_over(config.env.factory)
    _free(run)
    return Session(RunDirectory.create(path, config), config, note=f"{path} {new}: a new run starts there")


def _go_on(path: Path, source: Source, overrides: Mapping[str, object], has_factory: bool) -> Session:
    place = RunDirectory.resume(path)
    with ExitStack() as stack:
        stack.callback(place.close)
        before = place.read_config()
        config = next_config(before, source, overrides)
        _require_environment(config, has_factory)
        point = find_resume_point(place, config)
        point = replace(point, problems=(*point.problems, *_edited(place, before), *_other_streams(place)))
        _require_work(place, config, point)
        stack.pop_all()
    return Session(place, config, point, before=before)


def _free(run: RunDirectory) -> None:
    """Let a new run begin beside a configuration that is there alone, or a run that was killed too early."""
    if not run.config_file.is_file() or never_began(run):
        return
    with RunDirectory.resume(run.path) as held:  # nobody is about to begin there
        if holds_only_a_configuration(run):
            run.config_file.rename(run.path / f"config-{_next_number(run)}.toml")
        else:
            held.set_aside()


def _edited(run: RunDirectory, config: ExperimentConfig) -> tuple[str, ...]:
    if not was_edited(run, config):
        return ()
    return ("config.toml was edited since it was written, and whether that changes what is learned is not known",)


def _other_streams(run: RunDirectory) -> tuple[str, ...]:
    with Trace.open(run.record_dir / TRACE_FILE) as trace:
        if same_streams(trace.header):
            return ()
    told = (
        "the run was begun by another version of Headrace and goes on with the random numbers of this one, "
        "so no version can replay or verify it as a whole"
    )
    return (told,)


def _require_environment(config: ExperimentConfig, has_factory: bool) -> None:
    where = config.env.factory
    if has_factory or where is None:
        return
    refuse_handed_over(
        where, fix="resume with headrace.train(env=..., run_dir=..., resume=True), and the same callable"
    )
    module = where.partition(":")[0]
    if find_spec(module.partition(".")[0]) is None:
        raise ConfigError(
            "the environment of this run cannot be imported here",
            env_factory=where,
            fix=f"resume it where Python finds {module}, e.g. in the folder in which it was started",
        )


def _require_work(run: RunDirectory, config: ExperimentConfig, point: ResumePoint) -> None:
    """Refuse to go on with a run that has all it was to have; one that ended before its end is brought to it."""
    summary = run.read_summary()
    if summary is not None and summary.get("outcome") == "completed" and point.env_steps >= config.run.steps:
        raise ConfigError(
            f"nothing to do: the run has its {config.run.steps:,} steps",
            run=run.path,
            env_steps=point.env_steps,
            fix="raise run.steps (--steps N)",
        )


def _prepare(run: RunDirectory, point: ResumePoint, config: ExperimentConfig, number: int, undo: ExitStack) -> None:
    """Put aside what files of this session would be taken for, or written over."""
    earlier = run.path / "earlier"
    made(earlier, undo)
    for folder in (run.stacks_dir, run.reproducers_dir):  # this session may give files the same names
        if any(path.stat().st_size for path in folder.glob("*")):
            _set_aside(folder, earlier / f"{folder.name}-{number}", undo)
            folder.mkdir()  # empty, so that the old one can be renamed over it again
    _set_aside_checkpoints(run, point, earlier / f"checkpoints-{number}", undo)
    CheckpointStore(run.checkpoints_dir, config.checkpoint.keep).forget_newer(Checkpoint.read(point.folder))


def _sweep(earlier: Path) -> None:
    """Remove the copies of `_keep` that somebody who was killed has left."""
    for path in (*earlier.glob("metrics-*.whole"), *earlier.glob("board-*")):
        path.unlink()


def _keep(path: Path, copy: Path, undo: ExitStack, done: ExitStack) -> None:
    """Let a file be replaced: until then a copy is kept, so that taking it back needs no room on the disk."""
    if path.exists():
        write_whole(copy, [path.read_bytes()])
        done.callback(copy.unlink, missing_ok=True)
        undo.callback(copy.replace, path)


def _cut_metrics(path: Path, env_steps: int, beyond: Path, undo: ExitStack) -> None:
    undo.callback(beyond.unlink, missing_ok=True)
    cut_metrics(path, env_steps, beyond)


def _change_config(run: RunDirectory, config: ExperimentConfig, kept: Path, undo: ExitStack) -> None:
    write_whole(kept, [run.config_file.read_bytes()])
    undo.callback(kept.unlink, missing_ok=True)
    write_whole(run.config_file, [dump_toml(config).encode()])
    undo.callback(kept.replace, run.config_file)


def _set_aside(path: Path, place: Path, undo: ExitStack) -> None:
    if path.exists():
        moved(path, place, undo)


def _set_aside_checkpoints(run: RunDirectory, point: ResumePoint, place: Path, undo: ExitStack) -> None:
    """Policies of the past that is forgotten, which would be taken for the newest, and a state for a successor in it."""
    versions = [
        path for path in run.checkpoints_dir.iterdir() if path.name.isdigit() and int(path.name) > point.version
    ]
    found = [*versions, *run.checkpoints_dir.glob(STATE_FILE)]
    if found:
        made(place, undo)
    for path in found:
        _set_aside(path, place / path.name, undo)


def _next_number(run: RunDirectory) -> int:
    """One above every number in the names of what was kept so far."""
    names = [path.name for path in (*run.path.glob("config-*.toml"), *run.path.glob("earlier/*-*"))]
    found = (re.search(r"-(\d+)(\.\w+)?$", name) for name in names)
    return max((int(match[1]) for match in found if match is not None), default=0) + 1
