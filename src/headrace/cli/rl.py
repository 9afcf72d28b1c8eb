"""``headrace rl``, ``headrace trainer``, ``headrace orchestrator``, ``headrace inference``, ``headrace sft``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import early
from headrace.cli.rlargs import FLAGS, overrides_of, parse
from headrace.cli.rlview import ending, make_printer, opening
from headrace.cli.train import import_from_here
from headrace.cli.unheard import conclude, going_on, never_waiting, pass_on
from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.core.extras import require_language_models

if TYPE_CHECKING:
    from headrace.llm.config import RLConfig
    from headrace.llm.launch.launcher import Launch

_FREE = {"ignore_unknown_options": True, "allow_extra_args": True}
_WORDS = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[@ FILE]... [--SECTION.KEY VALUE]...")
_STEPS = click.option("--steps", type=int, metavar="N", help="Steps of the trainer after which the run ends.")
_SEED = click.option("--seed", type=int, metavar="S", help="Every random stream is derived from it.")
_SCHEDULE = click.option("--schedule", type=click.Choice(["inline", "async"]), help="One process, or three.")
_DURATION = click.option("--run-duration", type=float, metavar="SECONDS", help="Seconds after which it ends.")
_RUN_DIR = click.option("--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where the run is kept.")
_SHARED_DIR = click.option(
    "--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="The run, which all three share; needed."
)
_RESUME = click.option("--resume", is_flag=True, help="Go on in --run-dir, from the newest checkpoint.")
_SET = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key; repeatable.")
_QUIET = click.option("--quiet", is_flag=True, help="Print nothing but the summary at the end.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the effective configuration, or write it to --run-dir.")
_DRY_RUN_ALONE = click.option("--dry-run", is_flag=True, help="Print the effective configuration.")
_Option = Callable[[Callable[..., int]], Callable[..., int]]
_WORKER = (_WORDS, _STEPS, _SEED, _DURATION, _SHARED_DIR, _RESUME, _SET, _QUIET, _DRY_RUN_ALONE)
"""A server and a warm start make no steps of the trainer; the one serves until it is told to stop, the other ends by itself."""


def _with(*options: _Option) -> _Option:
    def apply(command: Callable[..., int]) -> Callable[..., int]:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


@click.command(context_settings=_FREE)
@_with(_WORDS, _STEPS, _SEED, _SCHEDULE, _DURATION, _RUN_DIR, _RESUME, _SET, _QUIET, _DRY_RUN)
def rl(words: tuple[str, ...], **given: Any) -> int:
    """Train a language model by reinforcement: inference, orchestrator and trainer, supervised.

    @ FILE is a TOML file or a preset; later ones are laid over earlier ones. --trainer @ FILE, --orchestrator @ FILE and
    --inference @ FILE hold that component's keys. --SECTION.KEY VALUE changes one.
    """
    return run_language_model("rl", words, given)


@click.command(context_settings=_FREE)
@_with(_WORDS, _SEED, _RUN_DIR, _SET, _QUIET, _DRY_RUN)
def sft(words: tuple[str, ...], **given: Any) -> int:
    """Make model and tokenizer, and train on episodes that the environment's teacher shows; nothing else.

    The run directory that it leaves can be named in sft.checkpoint of a later run, which takes its weights and makes no
    steps of its own.
    """
    return run_language_model("sft", words, given)


@click.command(context_settings=_FREE)
@_with(*_WORKER)
def trainer(words: tuple[str, ...], **given: Any) -> int:
    """Start the trainer alone, in the run directory that it shares with the other two."""
    return run_alone("trainer", words, given)


@click.command(context_settings=_FREE)
@_with(*_WORKER)
@click.option("--url", metavar="URL", help="Of the inference server; default: what endpoints.json says.")
def orchestrator(words: tuple[str, ...], **given: Any) -> int:
    """Start the orchestrator alone, in the run directory that it shares with the other two."""
    return run_alone("orchestrator", words, given)


@click.command(context_settings=_FREE)
@_with(_WORDS, _SEED, _SHARED_DIR, _SET, _QUIET, _DRY_RUN_ALONE)
def inference(words: tuple[str, ...], **given: Any) -> int:
    """Start the inference server alone, in the run directory that it shares with the other two."""
    return run_alone("inference", words, given)


def run_language_model(command: str, words: tuple[str, ...], given: dict[str, Any]) -> int:
    """A whole run, or its warm start alone."""
    import_from_here()
    config, name = _configuration(command, words, given)
    if given["dry_run"]:
        return _dry_run(config, given)
    require_language_models()
    if config is None or given.get("resume"):
        return _resumed(config, given)
    _say_that_it_begins(given)
    with early.importing():
        from headrace.llm.launch.starting import begin
    what = begin(config, given["run_dir"], name, only_warm_start=command == "sft")
    return _launch(what, quiet=given["quiet"], is_new=True)


def run_alone(component: str, words: tuple[str, ...], given: dict[str, Any]) -> int:
    """One component."""
    import_from_here()
    config, _ = _configuration(component, words, given)
    if config is not None and given["dry_run"]:
        return _printed(config)
    if given["run_dir"] is None:
        raise ConfigError(
            f"headrace {component} does not say which run it belongs to",
            fix="add --run-dir DIR, the same for all three",
        )
    if not given["dry_run"]:
        require_language_models()
    _say_that_it_begins(given)
    with early.importing():
        from headrace.llm.launch.alone import begin_alone, warm_started
        from headrace.llm.launch.place import LanguageRun
    if config is None:
        config = LanguageRun.open(given["run_dir"]).read_rl_config()
    if given["dry_run"]:
        return _printed(config)
    say = (lambda _: None) if given["quiet"] else going_on(click.echo)
    what = begin_alone(
        component, config, given["run_dir"], url=given.get("url"), resume=given.get("resume", False), say=say
    )
    with what.place, warm_started(what, say) as ready:
        return _launch(ready, quiet=given["quiet"], is_new=False)


def _configuration(command: str, words: tuple[str, ...], given: dict[str, Any]) -> tuple[RLConfig | None, str]:
    """The configuration, and what the run is called after; None where a run's own is meant."""
    from headrace.llm.loading import load_rl_config

    sources, dotted = parse(words, command, [name for name in FLAGS if name in given])
    overrides = overrides_of(given["settings"], given, dotted)
    if not sources and (given.get("resume") or command not in {"rl", "sft"}):
        if overrides and given["run_dir"] is not None:
            from headrace.llm.loading import Source

            return load_rl_config([Source(str(given["run_dir"] / "config.toml"))], overrides), command
        return None, command
    if not sources:
        raise ConfigError(
            "no configuration is named, so nothing says what to train",
            fix=f"headrace {command} @ FILE, or @ the name of a preset (headrace list)",
        )
    whole = [source for source in sources if source.component is None]
    return load_rl_config(sources, overrides), Path((whole or sources)[-1].name).stem


def _say_that_it_begins(given: dict[str, Any]) -> None:
    """The first sign of life: what follows imports much, and may take a while where nothing of it is in memory yet."""
    if not given["quiet"]:
        going_on(click.echo)("importing what looks after the run: some seconds, longer the first time")


def _dry_run(config: RLConfig | None, given: dict[str, Any]) -> int:
    """Say what would be run. Whatever a run has written stays as it is."""
    if config is None or given.get("resume"):
        path = _run_to_go_on_with(given)
        with early.importing():
            from headrace.llm.launch.place import LanguageRun
            from headrace.llm.launch.starting import refuse_changes
        before = LanguageRun.open(path).read_rl_config()
        refuse_changes(before, config or before)
        return _printed(config or before)
    return _printed(config) if given["run_dir"] is None else _written(config, given["run_dir"])


def _printed(config: RLConfig) -> int:
    from headrace.runtime.config import dump_toml

    click.echo(dump_toml(config), nl=False)
    return 0


def _written(config: RLConfig, folder: Path) -> int:
    from headrace.llm.launch.place import LanguageRun
    from headrace.llm.loading import write_effective

    fix = "choose another --run-dir, or leave it out to have the configuration printed"
    with LanguageRun(folder) as place:
        with contextlib.suppress(OSError):  # where nothing can be written, that is told below
            place.take_lock(fix)
        remains = [place.board_file, place.events_file, place.endpoints_file, place.summary_file, *place.folders()]
        if found := [path.name for path in remains if path.exists()]:
            raise RunDirectoryError(f"{folder} already holds a run", found=found[0], fix=fix)
        paths = write_effective(config, folder)
    click.echo("\n".join(map(str, paths)))
    return 0


def _run_to_go_on_with(given: dict[str, Any]) -> Path:
    path: Path | None = given["run_dir"]
    if path is None:
        raise ConfigError("--resume does not say which run to go on with", fix="add --run-dir RUN")
    return path


def _resumed(config: RLConfig | None, given: dict[str, Any]) -> int:
    path = _run_to_go_on_with(given)
    _say_that_it_begins(given)
    with early.importing():
        from headrace.llm.launch.starting import resume
    return _launch(resume(path, config), quiet=given["quiet"], is_new=False)


def _launch(what: Launch, *, quiet: bool, is_new: bool) -> int:
    from headrace.llm.launch.launcher import launch

    with what.place:
        try:
            show = None if quiet else going_on(make_printer())
            with never_waiting():
                if not quiet:
                    going_on(click.echo)(opening(what))
                summary = launch(what, show, pass_on)
        except BaseException:  # passed on; but what the run has left is told first
            found = None
            with contextlib.suppress(Exception):
                found = what.place.read_summary()
            if found is not None and not (
                what.aside is not None and what.aside.is_back
            ):  # or it is an earlier session's
                going_on(click.echo)(ending(found, what.place.path))
            if is_new:
                what.place.discard_if_empty()
            raise
    return conclude(ending(summary, what.place.path), summary)
