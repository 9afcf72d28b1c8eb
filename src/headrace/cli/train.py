"""``headrace train``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import early
from headrace.cli.drawing import showing
from headrace.cli.ending import ending
from headrace.cli.unheard import conclude, going_on, pass_on
from headrace.core.errors import ConfigError, HeadraceError
from headrace.runtime.config import load_config
from headrace.runtime.progress import Progress
from headrace.runtime.rundir import RunDirectory

if TYPE_CHECKING:
    from headrace.runtime.sessions import Session

_FLAGS = {
    "schedule": "run.schedule",
    "collectors": "run.collectors",
    "seed": "run.seed",
    "steps": "run.steps",
    "run_duration": "run.run_duration_s",
}
"""Options that are short for one key of the configuration."""


@click.command()
@click.argument("config", required=False)
@click.option("--schedule", type=click.Choice(["inline", "lockstep", "async"]), help="Who runs when.")
@click.option("--collectors", type=int, metavar="N", help="Collector processes.")
@click.option("--seed", type=int, metavar="S", help="Every random stream is derived from it.")
@click.option("--steps", type=int, metavar="N", help="Environment steps after which the run ends.")
@click.option("--run-duration", type=float, metavar="SECONDS", help="Seconds after which the run ends.")
@click.option("--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where the run is kept.")
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir; begin it if there is none yet.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key of the configuration; repeatable.")
@click.option("--quiet", is_flag=True, help="Print nothing but the summary at the end.")
def train(config: str | None, run_dir: Path | None, resume: bool, quiet: bool, **given: Any) -> int:
    """Train as CONFIG says: a preset's name (see headrace list) or a TOML file.

    The run ends at the first limit it reaches, or in order after Ctrl-C. With --resume it goes on from its newest
    checkpoint; CONFIG may be left out then, or be the run directory itself.
    """
    import_from_here()
    if resume:
        config, run_dir = _run_to_go_on_with(config, run_dir)
    if (named := _language_model(config, run_dir, resume=resume)) is not None:
        return _train_language_model(named, given | {"run_dir": run_dir, "resume": resume, "quiet": quiet})
    overrides = overrides_of(given.pop("settings"), given)
    with _resumed(config, run_dir, overrides) if resume else _begun(config, run_dir, overrides) as session:
        if session.note is not None and not quiet:
            going_on(click.echo)(session.note)
        summary = _run(session, quiet=quiet)
    return conclude(ending(summary, session.place.path), summary)


def _language_model(config: str | None, run_dir: Path | None, *, resume: bool) -> tuple[str, ...] | None:
    """The files that describe a language-model run, if that is what is meant; it has components of its own."""
    from headrace.runtime.config import describes_language_model

    if config is not None:
        return (config,) if describes_language_model(config) else None
    if run_dir is None or not resume or not describes_language_model(str(run_dir / "config.toml")):
        return None
    return ()


def _train_language_model(files: tuple[str, ...], given: dict[str, Any]) -> int:
    from headrace.cli.rl import run_language_model

    if given.pop("collectors") is not None:
        raise ConfigError(
            "a language-model run has no collectors",
            fix="leave --collectors out; orchestrator.* says how many rollouts",
        )
    return run_language_model("rl", tuple(word for file in files for word in ("@", file)), given | {"dry_run": False})


def _begun(config: str | None, run_dir: Path | None, overrides: dict[str, object]) -> Session:
    if config is None:
        raise ConfigError(
            "there is no CONFIG, so nothing says what to train",
            fix="name a preset (headrace list) or a TOML file; to go on with a run add --resume --run-dir RUN",
        )
    experiment = load_config(config, overrides)
    with early.importing():
        # Only now, so that a mistake in a file or a flag is told at once; and before there is a run directory.
        import headrace.runtime.experiment  # noqa: F401
        from headrace.envs.building import refuse_handed_over
        from headrace.runtime.sessions import Session
    refuse_handed_over(experiment.env.factory)
    return Session(RunDirectory.create(run_dir, experiment, name=Path(config).stem), experiment)


def _run_to_go_on_with(config: str | None, run_dir: Path | None) -> tuple[str | None, Path | None]:
    """CONFIG and run directory, where CONFIG may have been the directory."""
    named = Path(config) if config is not None else None
    if named is None or not named.is_dir():
        return config, run_dir
    if run_dir is not None and run_dir.resolve() != named.resolve():
        raise ConfigError(
            "two run directories are named, and only one can be gone on with",
            first=named,
            second=run_dir,
            fix="leave one of them out",
        )
    return None, named


def _resumed(config: str | None, run_dir: Path | None, overrides: dict[str, object]) -> Session:
    if run_dir is None:
        raise ConfigError("--resume does not say which run to go on with", fix="add --run-dir RUN")
    with early.importing():
        import headrace.runtime.experiment  # noqa: F401
        from headrace.runtime.sessions import resume_or_begin
    return resume_or_begin(run_dir, config, overrides)


def _run(session: Session, *, quiet: bool) -> dict[str, Any]:
    place, before = session.place, _left(session.place)
    try:
        from headrace.runtime.experiment import run_experiment

        with contextlib.ExitStack() as stack:
            show: Callable[[Progress], None] = stack.enter_context(showing()) if not quiet else lambda _: pass_on()
            return dict(run_experiment(session.config, place, show, resume=session.resume, make_way=session.make_way))
    except BaseException:  # passed on; but what the run has left is told first
        summary = _left(place)
        if summary is not None and summary != before:  # or it is that of an earlier session
            going_on(click.echo)(ending(summary, place.path))
        if session.resume is None:
            place.discard_if_empty()
        raise


def _left(place: RunDirectory) -> dict[str, Any] | None:
    """The summary that lies there; a file that cannot be read hides nothing."""
    with contextlib.suppress(HeadraceError):
        return place.read_summary()
    return None


def overrides_of(settings: Sequence[str], given: dict[str, Any]) -> dict[str, object]:
    """Keys to change: ``--set`` as text, the short options with the type that click gave them."""
    overrides: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"--set {setting} sets nothing", expected="key=value", fix="e.g. --set replay.ratio=0.5")
        _refuse_second(overrides, key)
        overrides[key] = value.strip()
    for name, key in _FLAGS.items():
        if given.get(name) is not None:
            _refuse_second(overrides, key)
            overrides[key] = given[name]
    return overrides


def without(settings: Sequence[str], keys: Iterable[str]) -> list[str]:
    """``--set`` of a command that states ``keys`` itself: those of other keys, since none may be given twice."""
    stated = set(keys)
    return [setting for setting in settings if setting.partition("=")[0].strip() not in stated]


def _refuse_second(overrides: dict[str, object], key: str) -> None:
    if key in overrides:
        raise ConfigError(f"{key} is given twice", first=overrides[key], fix="give it once")


def import_from_here() -> None:
    """Let ``env.factory = "my_module:make_env"`` find a file in the working directory, as ``python -m`` would."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
