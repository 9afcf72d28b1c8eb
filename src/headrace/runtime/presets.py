"""The configurations that come with Headrace."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.core.refusals import nearest

A_PRESET = "a preset (headrace list)"
"""What may be named in place of a file, for messages."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A configuration file that can be named without its path."""

    name: str
    path: Path
    description: str
    """The first comment line of the file."""


def preset_folder() -> Path:
    """Where the presets lie: inside an installed package, or beside ``src`` in a checkout.

    Raises:
        ConfigError: Neither place has them.
    """
    package = Path(__file__).parents[1]
    places = (package / "configs", package.parents[1] / "configs")
    for place in places:
        if any(place.glob("*.toml")):
            return place
    raise ConfigError(
        "the presets that belong to Headrace are missing",
        looked_in=", ".join(str(place) for place in places),
        fix="install Headrace again, or give a TOML file instead of a preset's name",
    )


def presets() -> dict[str, Preset]:
    """All presets by name, in the order of their names."""
    found = {}
    for path in sorted(preset_folder().glob("*.toml"), key=lambda path: path.stem):
        found[path.stem] = Preset(path.stem, path, _description(path))
    return found


def resolve(name_or_path: str | Path) -> Path:
    """The file that is meant by a preset's name or a path.

    Raises:
        ConfigError: There is no such preset (the nearest is named, all are listed), or no such file.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    if path.suffix == ".toml" or len(path.parts) > 1 or path.is_dir():
        if (path / "config.toml").is_file():
            raise ConfigError(
                f"{name_or_path} is the folder of a run; a configuration is a TOML file",
                fix=_meant(path.absolute()),
            )
        raise ConfigError(
            f"{name_or_path} is {'a folder' if path.is_dir() else 'not there'}; a configuration is a TOML file",
            fix=f"name a TOML file (of an earlier run: RUN/config.toml) or {A_PRESET}",
        )
    known = presets()
    name = str(name_or_path)
    if name in known:
        return known[name].path
    meant = nearest(name, known)
    raise ConfigError(
        f"there is no preset {name}",
        **({"nearest": meant} if meant else {}),
        presets=", ".join(known),
        fix=f"headrace train {meant}" if meant else "choose one of the presets, or give a TOML file",
    )


def _meant(folder: Path) -> str:
    """What whoever names the folder of a run may have meant."""
    from headrace.runtime.remains import way_on  # both need configurations, and so this module
    from headrace.runtime.rundir import RunDirectory

    run = RunDirectory(folder)
    config = shlex.quote(str(run.config_file))
    another = f"begin another like it: name {config}"
    if run.is_live():
        return f"see how it gets on: headrace monitor {shlex.quote(str(folder))}; or {another}"
    try:
        way = way_on(run)
    except RunDirectoryError:  # a summary that is damaged: who reads it is told
        return another
    return way if config in way else f"{way}; or {another}"


def _description(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        first = file.readline().strip()
    return first.removeprefix("#").strip() if first.startswith("#") else ""
