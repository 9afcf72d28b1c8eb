"""What the environments' pictures have in common."""

from __future__ import annotations

from headrace.core.errors import ConfigError


def require_render_mode(name: str, render_mode: str | None) -> None:
    """Refuse to draw for an environment that was built without a render mode.

    Args:
        name: Of its class.
        render_mode: It was built with.

    Raises:
        ConfigError: That is None.
    """
    if render_mode is None:
        raise ConfigError(
            f"{name}.render() was called on an environment without a render_mode",
            fix='Build it with render_mode="rgb_array".',
            keyword="render_mode",
            value=None,
            allowed="'rgb_array'",
        )
