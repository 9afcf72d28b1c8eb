"""What may change between two sessions of a run: what decides how long, where and how safely, never what is learned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headrace.core.errors import ConfigError
from headrace.runtime.config import ExperimentConfig, load_config

_SECTIONS = ("evaluation.", "deadlines.", "supervision.", "record.", "checkpoint.")
_KEYS = frozenset(
    {
        "run.steps", "run.run_duration_s", "run.collectors", "run.directory", "collect.preload", "env.workers",
        "env.on_fault",
    }
)  # fmt: skip
_DOTTED = re.compile(r"[a-z_]+(?:\.[a-z_0-9]+)+")
_ALIKE = ("inline", "lockstep")
"""Schedules that give the same results."""


def next_config(
    before: ExperimentConfig, source: str | Path | ExperimentConfig | None, overrides: Mapping[str, object]
) -> ExperimentConfig:
    """The configuration a run goes on with: its own, but for the keys that are given again.

    Args:
        before: The run's own.
        source: As for `load_config`; the keys that it states count as given. None: none are.
        overrides: By dotted key, as for `load_config`.

    Raises:
        ConfigError: A key is given another value that would change what is learned, or anything is wrong with it.
    """
    after = load_config(source, overrides, base=before)
    refused = [change for change in changes(before, after) if not _is_free(*change)]
    if refused:
        # One that is given before one that only makes way for it, as env.id does for env.factory.
        (key, old, new), *others = sorted(refused, key=lambda change: change[2] is None)
        also = {"also": "; ".join(f"{name}: {one!r}, given {two!r}" for name, one, two in others)} if others else {}
        raise ConfigError(
            f"{key} decides what is learned, so a run that is resumed keeps its own value",
            value_of_the_run=repr(old),
            given=repr(new),
            **also,
            fix=f"leave {key} out; for a run with another value choose another --run-dir",
        )
    return after


def changes(before: ExperimentConfig, after: ExperimentConfig) -> list[tuple[str, Any, Any]]:
    """Every dotted key whose values differ, with both; None stands for a key that one of them does not have."""
    old, new = dict(_values(before)), dict(_values(after))
    both = dict.fromkeys([*old, *new])
    return [(key, old.get(key), new.get(key)) for key in both if old.get(key) != new.get(key)]


def held_fast(text: str) -> list[str]:
    """Keys that are named in a text, and that a run which is resumed keeps as they are."""
    named = dict.fromkeys(
        key for key in _DOTTED.findall(text) if key.partition(".")[0] in ExperimentConfig.model_fields
    )
    return [key for key in named if not _is_free(key, None, None)]


def _is_free(key: str, old: object, new: object) -> bool:
    if key == "run.schedule":
        return old in _ALIKE and new in _ALIKE
    return key in _KEYS or key.startswith(_SECTIONS)


def _values(section: BaseModel, path: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _values(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
