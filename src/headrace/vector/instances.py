"""Each environment is an object of its own: whoever is in two places would be stepped twice for every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.errors import ConfigError


def twice(made: Mapping[int, Any]) -> tuple[int, ConfigError] | None:
    """The first environment that an earlier factory has returned too, maybe in other wrappers, and the error that says so.

    Args:
        made: By number, in order.
    """
    first: dict[int, int] = {}
    kept = {env: one.unwrapped for env, one in made.items()}  # all at once: of two that are there no id is the same
    for env, one in made.items():
        before = first.setdefault(id(kept[env]), env)
        if before != env:
            return env, ConfigError(
                f"the factories of environments {before} and {env} returned the same object",
                found=f"{one!r}"[:200],
                fix="build the environment inside of the factory: lambda: MyEnv(), and not lambda: env",
            )
    return None
