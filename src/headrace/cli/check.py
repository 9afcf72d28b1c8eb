"""``headrace check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from headrace.cli import early
from headrace.cli.rlargs import overrides_of, parse
from headrace.cli.train import import_from_here
from headrace.core.errors import ConfigError

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
    from headrace.llm.loading import describes_language_model, load_rl_config

    sources, dotted = parse(words, "check")
    if not sources:
        raise ConfigError("nothing is named that could be checked", fix="headrace check FILE, or the name of a preset")
    others = [source.name for source in sources if source.component is None]
    if others and not any(describes_language_model(name) for name in others):
        load_rl_config_or_other(others[0])
        raise ConfigError(
            f"{others[0]} describes no language-model run, and headrace check knows only those",
            fix="for other runs: headrace plan and headrace debug-run, which run them for some seconds",
        )
    config = load_rl_config(sources, overrides_of(settings, {}, dotted))
    with early.importing():
        from headrace.llm.preflight import check as look
    folder = run_dir.parent if run_dir is not None else Path(config.run.directory)
    shown = (lambda _: None) if as_json else _show
    found = look(config, folder, shown, short_run=not quick)
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


def load_rl_config_or_other(name: str) -> None:
    """Refuse what is no configuration at all, in the words of its own kind."""
    from headrace.runtime.config import load_config

    load_config(name)


def _show(one: Any) -> None:
    first, *lines = one.text.splitlines()
    click.echo(f"{_MARKS[one.verdict]}  {one.name:<14}{first}")
    for line in lines:
        click.echo(f"{'':23}{line}")
    if one.fix and one.fix not in one.text:
        click.echo(f"{'':23}fix: {one.fix}")
