"""Whether what a model says of a text depends on that text alone, and it says it up to the end of the context."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.core.errors import ConfigError

_WHOLE, _WINDOW = "full_attention", "sliding_attention"
_OTHER_NAMES = {"attention": _WHOLE, "global": _WHOLE, "local": _WINDOW}
"""What some models call their layers."""

_COMPARED_TOKENS = 64

TOLERATED = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""In nats, of the mean over a text's tokens: rounding is far below, another mask or other positions far above."""


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


def refuse_missing_positions(model: Any, columns: int) -> None:
    """Refuse a model that has fewer positions than the context: its first longer text would end whoever passes it.

    No configuration says so alike for all models, so one token is passed in the last place, behind keys of zeros; this costs
    what one token costs there. A model that takes not even the first place so is not judged here.

    Args:
        model: Of transformers.
        columns: Tokens of the longest sample.

    Raises:
        ConfigError: It cannot be passed there.
    """
    if _problem(model, 0) is not None:
        return
    problem = _problem(model, columns - 1)
    if problem is not None:
        raise ConfigError(
            f"{type(model).__name__} has no positions for model.context_tokens = {columns:,}",
            problem=problem,
            fix="set model.context_tokens to the positions that it has at most, or use another model",
        )


@torch.no_grad()
def _problem(model: Any, place: int) -> str | None:
    """What is wrong with a token in this place of a text, if anything is."""
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    known = cache_parameter(model)
    handed = {known: _Zeros(place)} if known else {}
    keys = 1 + place if known else 1
    mask = torch.zeros((1, 1, 1, keys), dtype=model.dtype, device=model.device)
    try:
        scores = model(
            input_ids=token, position_ids=token + place, attention_mask=mask, use_cache=True, **handed
        ).logits
        scores.cpu()  # a device raises late
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a border: the model's own code, which may raise whatever it likes
        return in_a_line(error)
    return None


@torch.no_grad()
def refuse_other_than_alone(model: Any, columns: int) -> None:
    """Refuse a model that says something else of a text under our mask and our positions than where it is handed the text alone.

    As it is called alone it was trained before, and everybody else plays it. Some count positions from another number than 0, and
    some look at what follows as well, unless they are told that they are decoders. What fails in one of the two ways is not
    judged here.

    Args:
        model: Of transformers.
        columns: Tokens of the longest sample.

    Raises:
        ConfigError: It is such a model.
    """
    tokens = _neighbours_differ(min(columns, _COMPARED_TOKENS), model.config).to(model.device)
    count = tokens.shape[1]
    places = torch.arange(count, device=model.device)
    ahead = places > places[:, None]
    mask = torch.zeros(ahead.shape, dtype=model.dtype, device=model.device).masked_fill_(ahead, -torch.inf)
    try:
        alone = _of_each(model(input_ids=tokens, use_cache=False).logits, tokens)
        ours = _of_each(
            model(input_ids=tokens, position_ids=places[None], attention_mask=mask[None, None], use_cache=False).logits,
            tokens,
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # noqa: BLE001 - a border: the model's own code; whoever passes it in earnest tells what it raises
        return
    difference = float((ours - alone).abs().mean()) if count > 1 else 0.0
    tolerated = TOLERATED.get(model.dtype, max(TOLERATED.values()))
    if difference > tolerated:  # NaN is not: whoever finds it says so
        raise ConfigError(
            f"{type(model).__name__} says something else of a text under our mask and positions than of the text alone",
            mean_difference_of_logprobs=f"{difference:.3g}",
            tolerated=tolerated,
            fix="use another model: this one counts positions in its own way, or looks at what follows "
            "(some do not if their configuration says is_decoder = true)",
        )


def _of_each(scores: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of each token [1, T] but the first, [T - 1]."""
    return scores[0, :-1].float().log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


def _neighbours_differ(count: int, config: Any) -> Tensor:
    """[1, count] tokens of which none is the padding, of which some models count no positions."""
    size, padding = int(config.vocab_size), getattr(config, "pad_token_id", None)
    known = [token for token in range(size) if token != padding]
    return torch.tensor([[known[7 * place % len(known)] for place in range(count)]])


def in_a_line(error: Exception) -> str:
    """What a model's own code has raised; of a text of many lines the first."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def cache_parameter(model: Any) -> str | None:
    """What the model calls a cache that it is handed, if it takes one."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in parameters), None)


class _Zeros:
    """What a transformers model takes for its own cache: so many tokens of zeros before the new ones."""

    is_compileable = False

    def __init__(self, before: int) -> None:
        self._before = before

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Those before, and what is new [R, H, T, D]."""
        before = (0, 0, self._before, 0)
        return F.pad(keys, before), F.pad(values, before)

    def get_seq_length(self, *_: Any) -> int:
        """As our own cache answers: positions are always handed over, so nobody relies on it."""
        return 0


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
