"""Language-model configurations in and out: files laid over each other, dotted keys, what each command is given.

However many files describe a run, one configuration comes of them: a value cannot differ between components.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core import toml
from headrace.core.errors import ConfigError
from headrace.core.files import write_whole
from headrace.core.refusals import nearest
from headrace.llm.config import COMPONENTS, RLConfig
from headrace.runtime.config import LANGUAGE_SECTIONS, ExperimentConfig, dump_toml, table_of
from headrace.runtime.presets import A_PRESET, resolve

SECTIONS = tuple(RLConfig.model_fields)
_OTHERS = frozenset(ExperimentConfig.model_fields) - frozenset(SECTIONS)
_Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A file that describes a run, or one component of it."""

    name: str
    """Of a preset, or path of a TOML file."""
    component: str | None = None
    """Whose keys it holds; None: it holds whole sections."""


def load_rl_config(sources: Sequence[Source], overrides: Mapping[str, object] | None = None) -> RLConfig:
    """Lay files over each other, later ones over earlier ones, then files of components, then single keys; check all.

    Args:
        sources: In the order given. A component's file holds that section's own keys, whole sections, or both.
        overrides: By dotted key (``inference.port``). Text is read as a TOML value, and taken as it is where it is none. A
            table in the place of a section changes the keys it states.

    Raises:
        ConfigError: Anything is wrong with it: names file, key and value, and for an unknown key the nearest. Or files
            of two components say different things about a section that is not theirs.
    """
    table: _Table = {}
    for source in sources:
        if source.component is None:
            _lay(table, _read(source))
    stated: dict[str, tuple[object, Source]] = {}
    for source in sources:
        if source.component is not None:
            own = _read(source)
            _refuse_contradiction(stated, own, source)
            _lay(table, own)
    for key, value in (overrides or {}).items():
        _put(table, key, toml.parse_value(value) if isinstance(value, str) else value)
    try:
        return RLConfig.model_validate(table)
    except ConfigError as error:
        named = {"configuration": ", ".join(source.name for source in sources)} if sources else {}
        raise ConfigError(error.what, fix=error.fix, **error.facts, **named) from None


def could_be_of_either_kind(name: str) -> bool:
    """Whether a file has only sections that every run has, so that `headrace rl` and `headrace train` read it differently."""
    table = table_of(name)
    return table is not None and not (LANGUAGE_SECTIONS | _OTHERS) & table.keys()


def write_effective(config: RLConfig, folder: Path) -> tuple[Path, ...]:
    """Write the effective configuration, once for the run and once for each command that starts a single component.

    Args:
        config: Of the run.
        folder: Made if missing; holds ``config.toml`` and ``configs/<component>.toml`` afterwards.

    Raises:
        ConfigError: It cannot be written.
    """
    text = dump_toml(config)
    places = [folder / "config.toml", *(folder / "configs" / f"{name}.toml" for name in COMPONENTS)]
    try:
        (folder / "configs").mkdir(parents=True, exist_ok=True)
        for place in places:
            # The whole of it in each: a component that knew less could not check what the others are told.
            write_whole(place, [text.encode()])
    except OSError as error:
        raise ConfigError(
            "the effective configuration cannot be written", folder=folder, problem=error, fix="choose another folder"
        ) from None
    return tuple(places)


def differences(ours: RLConfig, theirs: RLConfig, ignored: frozenset[str] = frozenset()) -> dict[str, str]:
    """Dotted keys in which two configurations differ, with both values.

    Args:
        ours: One.
        theirs: The other.
        ignored: Keys that may differ. What follows from them in one that leaves it open is compared all the same.
    """
    mine, others = _flat(ours.settled().model_dump()), _flat(theirs.settled().model_dump())
    return {
        key: f"{mine.get(key)!r} here, {others.get(key)!r} there"
        for key in sorted({*mine, *others} - ignored)
        if mine.get(key) != others.get(key)
    }


def _read(source: Source) -> _Table:
    """The table of a file, sections outermost."""
    path = resolve(source.name)
    table = toml.read(path, A_PRESET)
    if source.component is None:
        _refuse_other_kind(table, source.name)
        _refuse_unknown(table, path)
        return table
    own = {key: value for key, value in table.items() if not (key in SECTIONS and isinstance(value, dict))}
    whole = {key: value for key, value in table.items() if key not in own}
    if own:
        section = dict(whole.get(source.component, {}))
        _lay(section, own)
        whole[source.component] = section
    return whole


def _refuse_other_kind(table: _Table, name: str) -> None:
    """A run of collectors and a learner shares some sections, so that it would be called misspelt."""
    theirs = sorted(_OTHERS & table.keys())
    if theirs and not LANGUAGE_SECTIONS & table.keys():
        raise ConfigError(
            f"{name} describes no language-model run",
            sections=f"{', '.join(theirs)}: those of a run with collectors and a learner",
            fix=f"headrace train {shlex.quote(name)}",
        )


def _refuse_unknown(table: _Table, path: Path) -> None:
    for key in table:
        if key not in SECTIONS:
            meant = nearest(key, SECTIONS)
            raise ConfigError(
                f"a language-model configuration has no section {key}",
                file=path,
                **({"nearest": meant} if meant else {}),
                sections=", ".join(SECTIONS),
                fix=f"write {meant}, or remove it" if meant else "remove it: nothing reads it",
            )


def _refuse_contradiction(stated: dict[str, tuple[object, Source]], table: _Table, source: Source) -> None:
    """Two components may not be told different things about the same key; the last one would silently win."""
    for key, value in _flat(table).items():
        before = stated.setdefault(key, (value, source))
        if before[0] != value:
            raise ConfigError(
                f"two files say different things about {key}",
                first=f"{before[0]!r} in {before[1].name}",
                second=f"{value!r} in {source.name}",
                fix="say it in one of them, or in a file for the whole run (@ FILE)",
            )


def _lay(table: _Table, stated: Mapping[str, Any]) -> None:
    for key, value in stated.items():
        below = table.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _lay(below, value)
        elif isinstance(value, dict):
            table[key] = {}
            _lay(table[key], value)  # a copy: the table it came from is somebody else's
        else:
            table[key] = value


def _put(table: _Table, key: str, value: object) -> None:
    *outer, last = key.split(".")
    for part in outer:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"unknown key {key}", problem=f"{part} is a value, not a section", fix="remove what follows that name"
            )
        table = inner
    below = table.get(last)
    if isinstance(value, dict) and isinstance(below, dict) and key != "env.kwargs":  # which are the user's own
        _lay(below, value)
    else:
        table[last] = value


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
