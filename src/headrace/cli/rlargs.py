"""The words of a language-model command: ``@ a.toml``, ``--trainer @ t.toml``, ``--inference.port 8001``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.errors import ConfigError
from headrace.core.refusals import nearest
from headrace.llm.config import COMPONENTS
from headrace.llm.loading import SECTIONS, Source

FLAGS = {
    "schedule": "run.schedule",
    "seed": "run.seed",
    "steps": "run.steps",
    "run_duration": "run.run_duration_s",
}
"""Options that are short for one key of the configuration."""


def parse(
    words: Sequence[str], command: str, flags: Sequence[str] = tuple(FLAGS)
) -> tuple[list[Source], dict[str, object]]:
    """Files and dotted keys, in the order of the command line.

    Args:
        words: What no option of the command has taken.
        command: Its name, for messages.
        flags: Those of `FLAGS` that it has.

    Raises:
        ConfigError: A word means nothing, a value or a file is missing, or a key is given twice.
    """
    sources: list[Source] = []
    overrides: dict[str, object] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--"):
            _option(word[2:], left, sources, overrides, command, flags)
        else:
            sources.append(Source(_file(word, left)))
    return sources, overrides


def overrides_of(settings: Sequence[str], given: dict[str, Any], dotted: dict[str, object]) -> dict[str, object]:
    """All keys that are given beside files: ``--set``, short options, dotted options."""
    overrides = dict(dotted)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {setting} sets nothing", expected="key=value", fix="e.g. --set trainer.lr=3e-4")
        _put(overrides, key.strip(), value.strip())
    for name, key in FLAGS.items():
        if given.get(name) is not None:
            _put(overrides, key, given[name])
    return overrides


def _option(
    word: str, left: list[str], sources: list[Source], overrides: dict[str, object], command: str, flags: Sequence[str]
) -> None:
    name, equals, value = word.partition("=")
    key = name.replace("-", "_")
    if key in COMPONENTS and not equals:
        if not left or not left[0].startswith("@"):
            raise ConfigError(f"--{name} names no file", fix=f"write --{name} @ FILE, or --{name}.KEY VALUE")
        sources.append(Source(_file(left.pop(0), left), key))
        return
    if "." not in key:
        known = [*(f"--{one}" for one in COMPONENTS), *(f"--{one}.KEY" for one in SECTIONS)]
        known += [f"--{one.replace('_', '-')}" for one in flags]
        meant = None if key in FLAGS else nearest(f"--{name}", known)  # of another command
        raise ConfigError(
            f"headrace {command} has no option --{name}",
            **({"nearest": meant} if meant else {}),
            fix=f"headrace {command} --help lists the options; a key of the configuration is written --SECTION.KEY VALUE",
        )
    if not equals:
        if not left or left[0].startswith(("--", "@")):
            raise ConfigError(f"--{name} has no value", fix=f"write --{name} VALUE; on and off are true and false")
        value = left.pop(0)
    _put(overrides, key, value)


def _file(word: str, left: list[str]) -> str:
    """The name that follows ``@``, in the same word or the next; a word without it is a name too."""
    if not word.startswith("@"):
        return word
    if len(word) > 1:
        return word[1:]
    if not left:
        raise ConfigError("@ is followed by no file", fix="write @ FILE, or the name of a preset (headrace list)")
    return left.pop(0)


def _put(overrides: dict[str, object], key: str, value: object) -> None:
    if key in overrides:
        raise ConfigError(f"{key} is given twice", first=overrides[key], fix="give it once")
    overrides[key] = value
