"""``headrace check``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import early
from headrace.cli.rlargs import overrides_of, parse
from headrace.cli.train import import_from_here
from headrace.core.errors import ConfigError
from headrace.core.extras import require_language_models

if TYPE_CHECKING:
    from headrace.llm.loading import Source

_MARKS = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}


@click.command("check", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[@ FILE]... [--SECTION.KEY VALUE]...")
@click.option("--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where the run would be kept.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key; repeatable.")
@click.option("--quick", is_flag=True, help="Leave out the real run of one step.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check(words: tuple[str, ...], run_dir: Path | None, settings: tuple[str, ...], quick: bool, as_json: bool) -> int:
    """Find out what can be found out before a long run: of a language-model configuration.

    Exit code 0: nothing speaks against it; 1: it would fail, or hang; 2: the configuration is wrong.
    """
    import_from_here()
    from headrace.llm.loading import load_rl_config

    sources, dotted = parse(words, "check")
    if not sources:
        raise ConfigError("nothing is named that could be checked", fix="headrace check FILE, or the name of a preset")
    overrides = overrides_of(settings, {}, dotted)
    doubtful = _in_doubt(sources, overrides)
    try:
        config = load_rl_config(sources, overrides)
    except ConfigError as error:
        if doubtful is None:
            raise
        raise _neither(doubtful, error) from None
    require_language_models()
    with early.importing():
        from headrace.llm.preflight import check as look
        from headrace.monitor.reader import machine_memory
    folder = run_dir.parent if run_dir is not None else Path(config.run.directory)
    shown: Callable[[Any], None] = (lambda _: None) if as_json else _show
    found = [] if doubtful is None else [_doubt(doubtful)]
    for one in found:
        shown(one)
    available_bytes = machine_memory().available_bytes
    found += look(config, folder, shown, short_run=not quick, available_bytes=available_bytes)
    failed = sum(one.verdict == "failed" for one in found)
    warnings = sum(one.verdict == "warning" for one in found)
    if as_json:
        told: dict[str, Any] = {
            "ok": not failed,
            "checks": [{"name": one.name, "verdict": one.verdict, "text": one.text, "fix": one.fix} for one in found],
        }
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        noted = f"{warnings} warning{'' if warnings == 1 else 's'}"
        click.echo(f"{failed} failed, {noted}" if failed else f"ready to start, {noted}")
    return int(failed > 0)


def _in_doubt(sources: Sequence[Source], overrides: Mapping[str, object]) -> str | None:
    """A file by which alone the kind of the run cannot be told; None if it is of a language model.

    Raises:
        ConfigError: It is of the other kind, or no configuration at all; in the words of its own kind.
    """
    from headrace.llm.loading import could_be_of_either_kind
    from headrace.runtime.config import LANGUAGE_SECTIONS, describes_language_model, load_config

    others = [source.name for source in sources if source.component is None]
    if not others or any(describes_language_model(name) for name in others):
        return None
    other_kind = next((name for name in others if not could_be_of_either_kind(name)), None)
    if other_kind is not None:
        load_config(other_kind)
        raise _no_language_model(other_kind)
    named = len(others) < len(sources) or any(key.partition(".")[0] in LANGUAGE_SECTIONS for key in overrides)
    return None if named else others[0]


def _no_language_model(name: str) -> ConfigError:
    return ConfigError(
        f"{name} describes no language-model run, and headrace check knows only those",
        fix="for other runs: headrace plan and headrace debug-run, which run them for some seconds",
    )


def _neither(name: str, error: ConfigError) -> ConfigError:
    """What is wrong with a file of either kind that describes no language-model run."""
    from headrace.runtime.config import load_config

    try:
        load_config(name)
    except ConfigError as other:
        return ConfigError(
            f"{name} describes no run, whichever kind is meant",
            as_language_model=error.what,
            as_collectors_and_learner=other.what,
            fix=f"for a language model: {error.fix}; for a run with collectors and a learner: {other.fix}",
        )
    return _no_language_model(name)


def _doubt(name: str) -> Any:
    from headrace.llm.finding import Finding, Verdict

    return Finding(
        "kind",
        Verdict.WARNING,
        f"{name} has only sections that every run has; it is looked at as headrace rl @ {shlex.quote(name)} would read it, "
        "and headrace train would take it for a run with collectors and a learner",
        "add a section of a language-model run, e.g. [trainer]; for the other kind: headrace plan",
    )


def _show(one: Any) -> None:
    first, *lines = one.text.splitlines()
    click.echo(f"{_MARKS[one.verdict]}  {one.name:<14}{first}")
    for line in lines:
        click.echo(f"{'':23}{line}")
    if one.fix and one.fix not in one.text:
        click.echo(f"{'':23}fix: {one.fix}")
