"""Whether what a model says of a text depends on that text alone: it is computed beside others, under a mask of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.core.errors import ConfigError

_WHOLE, _WINDOW = "full_attention", "sliding_attention"
_OTHER_NAMES = {"attention": _WHOLE, "global": _WHOLE, "local": _WINDOW}
"""What some models call their layers."""


def refuse_partial_attention(model: Any, columns: int) -> None:
    """Refuse a model that computes something else where texts are packed and masked by us.

    Samples lie beside each other in one row under a mask of our own, which a model takes as it is: a window of its own is then
    lost, and a layer that carries a state has no mask at all, so that one sample runs into the next. Rotations that are chosen
    by the longest text of a pass turn a short one otherwise than it is turned alone, and than its cache was.

    Args:
        model: Of transformers.
        columns: Tokens of the longest sample.

    Raises:
        ConfigError: It is such a model.
    """
    kinds, window = _layers(model.config), _window(model.config)
    if kinds - {_WHOLE, _WINDOW} or (_WINDOW in kinds and window is not None and window < columns):
        raise ConfigError(
            f"{type(model).__name__} has layers that do not attend to the whole context",
            layers=", ".join(sorted(kinds)),
            window=window,
            context_tokens=columns,
            fix="use another model, or set model.context_tokens to its window at most, if it has one",
        )
    for kind, length in _changing_rotations(model.config):
        if length < columns:
            raise ConfigError(
                f"{type(model).__name__} turns positions by the longest text of a pass, so that neighbours change what it says",
                rotation=kind,
                unchanged_up_to_tokens=length,
                context_tokens=columns,
                fix="set model.context_tokens to so many at most, or use another model",
            )


def _layers(config: Any) -> set[str]:
    """Kinds of its layers."""
    listed = (getattr(config, name, None) for name in ("layer_types", "layers_block_type", "attention_layers"))
    named = next(filter(None, listed), None)
    if named:
        return {_OTHER_NAMES.get(name, name) for name in named}
    # Without names all layers are alike, and have the window if there is one and nothing switches it off.
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return {_WINDOW if windowed else _WHOLE}


def _window(config: Any) -> int | None:
    """Tokens that a layer with a window sees."""
    window: int | None = getattr(config, "sliding_window", None)
    return getattr(config, "window_size", None) if window is None else window


def _changing_rotations(config: Any) -> Iterator[tuple[str, int]]:
    """Rotations that change with the length of the longest text, and the length up to which they do not."""
    rotations = getattr(config, "rope_parameters", None) or {}
    of_layers = [
        one for one in rotations.values() if isinstance(one, dict)
    ]  # some have other ones in each kind of layer
    for rotation in of_layers or [rotations]:
        kind = rotation.get("rope_type") or "default"
        longest = int(getattr(config, "max_position_embeddings", 0))
        if kind == "longrope":
            yield kind, int(rotation.get("original_max_position_embeddings") or longest)
        elif "dynamic" in kind:
            yield kind, longest
