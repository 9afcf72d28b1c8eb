"""Whether every layer of a model attends to everything before a token: that is what our masks say."""

from __future__ import annotations

from typing import Any

from headrace.core.errors import ConfigError

_WHOLE, _WINDOW = "full_attention", "sliding_attention"
_OTHER_NAMES = {"attention": _WHOLE}
"""What some models call their layers."""


def refuse_partial_attention(model: Any, columns: int) -> None:
    """Refuse a model whose layers see less than what samples are packed and masked for.

    Samples lie beside each other in one row under a mask of our own, which a model takes as it is: a window of its own is then
    lost, and a layer that carries a state has no mask at all, so that one sample runs into the next.

    Args:
        model: Of transformers.
        columns: Tokens of the longest sample.

    Raises:
        ConfigError: It is such a model.
    """
    kinds, window = _layers(model.config), getattr(model.config, "sliding_window", None)
    if kinds - {_WHOLE, _WINDOW} or (_WINDOW in kinds and window is not None and window < columns):
        raise ConfigError(
            f"{type(model).__name__} has layers that do not attend to the whole context",
            layers=", ".join(sorted(kinds)),
            window=window,
            context_tokens=columns,
            fix="use another model, or set model.context_tokens to its window at most, if it has one",
        )


def _layers(config: Any) -> set[str]:
    """Kinds of its layers."""
    named = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if named:
        return {_OTHER_NAMES.get(name, name) for name in named}
    # Without names all layers are alike, and have the window if there is one and nothing switches it off.
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return {_WINDOW if windowed else _WHOLE}
