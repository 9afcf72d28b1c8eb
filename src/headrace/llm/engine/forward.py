"""One forward pass over consecutive rows of the cache: ours for Llama, the model's own for everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.llm.attending import (
    cache_parameter,
    refuse_missing_positions,
    refuse_other_than_alone,
    refuse_partial_attention,
)
from headrace.llm.engine.cache import KVCache


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of consecutive rows, one row after the other without padding. ``R`` rows, ``N`` tokens."""

    tokens: Tensor  # [N]
    rows: Tensor  # [N]
    """Row of each, in the cache."""
    columns: Tensor  # [N]
    """Place of each in its row."""
    steps: Tensor  # [N]
    """Place of each among the new tokens of its row."""
    last: Tensor  # [R]
    """Which of the tokens is the last of its row."""
    first_row: int
    row_count: int
    longest: int
    """New tokens of the row that has most."""
    key_columns: int
    """Columns of the cache that are filled in any row, after this pass."""

    @classmethod
    def whole(cls, tokens: Tensor, row: int) -> Self:
        """All tokens [N] of one row, of which the cache holds nothing."""
        count = tokens.shape[0]
        columns = torch.arange(count, device=tokens.device)
        return cls(
            tokens=tokens,
            rows=torch.full_like(columns, row),
            columns=columns,
            steps=columns,
            last=columns[-1:],
            first_row=row,
            row_count=1,
            longest=count,
            key_columns=count,
        )

    @property
    def even(self) -> bool:
        """Whether all rows have equally many new tokens."""
        return self.tokens.shape[0] == self.row_count * self.longest

    def visible(self) -> Tensor:
        """Which columns each new token sees: those up to its own.  # [R, 1, T, S]."""
        keys = torch.arange(self.key_columns, device=self.tokens.device)
        return (keys <= self.padded(self.columns)[..., None])[:, None]

    def padded(self, values: Tensor) -> Tensor:
        """[N, ...] as [R, T, ...], zeros where a row has no more tokens."""
        shape = (self.row_count, self.longest, *values.shape[1:])
        if self.even:
            return values.reshape(shape)
        padded = values.new_zeros(shape)
        padded[self.rows - self.first_row, self.steps] = values
        return padded

    def packed(self, values: Tensor) -> Tensor:
        """[R, T, ...] as [N, ...]."""
        if self.even:
            return values.reshape(self.tokens.shape[0], *values.shape[2:])
        return values[self.rows - self.first_row, self.steps]


class Forward(Protocol):
    """A forward pass that puts keys and values of the new tokens into the cache."""

    vocabulary: int

    def logits(self, span: Span, every: bool = False) -> Tensor:
        """Scores of the next token, after the last token of each row [R, V], or after ``every`` token [N, V]."""
        ...


def build_forward(model: Any, cache: KVCache) -> Forward:
    """The fastest one that fits the model.

    Raises:
        ConfigError: Its layers do not all attend to the whole context, it has no positions for it, or it says something else
            of a text that it is handed as we do it.
    """
    if LlamaForward.fits(model):
        return LlamaForward(model, cache)
    return ModuleForward(model, cache)


class LlamaForward:
    """Llama with the model's own weights, without the layers of calls around them.

    Weights of projections that share an input lie one after the other in one block, of which the module's parameters
    are views. There is no second copy that could keep old values after an update.
    """

    def __init__(self, model: Any, cache: KVCache) -> None:
        self._cache = cache
        body = model.model
        self._embedding: Tensor = body.embed_tokens.weight
        self._head: Tensor = model.lm_head.weight
        self._norm = body.norm
        self._layers = [_LlamaLayer(layer, place) for place, layer in enumerate(body.layers)]
        positions = torch.arange(cache.columns, device=self._embedding.device)
        cos, sin = body.rotary_emb(self._embedding[:1], positions[None])
        half = cos.shape[-1] // 2
        # With the sign of rotate_half in the sines, what is left of it is an exchange of halves.
        sign = torch.cat([-torch.ones(half), torch.ones(half)]).to(sin)
        self._cos, self._sin = cos[0][:, None], (sin[0] * sign)[:, None]  # [S, 1, D]
        self.vocabulary: int = self._head.shape[0]

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether the model is a Llama as we know it: plain linear layers, rotations that do not depend on length."""
        if type(model).__name__ != "LlamaForCausalLM":
            return False
        rotary = model.model.rotary_emb
        linear = all(
            type(module) is torch.nn.Linear
            for layer in model.model.layers
            for module in (*_attention_projections(layer), *_mlp_projections(layer))
        )
        return linear and rotary.rope_type in {"default", "linear", "llama3"} and model.lm_head.bias is None

    def logits(self, span: Span, every: bool = False) -> Tensor:
        """See `Forward`."""
        hidden = F.embedding(span.tokens, self._embedding)  # [N, E]
        cos, sin = self._cos[span.columns], self._sin[span.columns]
        visible = span.visible()
        mask = torch.zeros(visible.shape, dtype=hidden.dtype, device=hidden.device).masked_fill_(~visible, -torch.inf)
        shared = _Shared(span, self._cache, self._cache.places(span.rows, span.columns), cos, sin, mask)
        for layer in self._layers:
            layer.forward(hidden, shared)
        chosen = hidden if every else hidden[span.last]
        return F.linear(_normed(chosen, self._norm), self._head)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What is the same in all layers of a pass."""

    span: Span
    cache: KVCache
    places: Tensor  # [N * H]
    cos: Tensor  # [N, 1, D]
    sin: Tensor  # [N, 1, D]
    mask: Tensor  # [R, 1, T, S]
    """0 where a token sees a column, -inf elsewhere."""


class _LlamaLayer:
    """One layer."""

    def __init__(self, layer: Any, place: int) -> None:
        attention = layer.self_attn
        self._place = place
        self._width: int = attention.head_dim
        self._scale: float = attention.scaling
        self._qkv = _joined(_attention_projections(layer)[:3])
        self._out = attention.o_proj
        self._gate_up = _joined(_mlp_projections(layer)[:2])
        self._down = layer.mlp.down_proj
        self._act = layer.mlp.act_fn
        self._norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self._query_heads: int = attention.q_proj.out_features // self._width
        self._heads: int = attention.k_proj.out_features // self._width

    def forward(self, hidden: Tensor, shared: _Shared) -> None:
        """Add what this layer contributes to ``hidden`` [N, E], in place."""
        span, turned = shared.span, self._query_heads + self._heads
        qkv = F.linear(_normed(hidden, self._norms[0]), *self._qkv).view(hidden.shape[0], -1, self._width)
        qk = _rotated(qkv[:, :turned], shared)
        shared.cache.write(self._place, shared.places, qk[:, self._query_heads :], qkv[:, turned:])
        keys, values = shared.cache.view(self._place, span.first_row, span.row_count, span.key_columns)
        query = span.padded(qk[:, : self._query_heads]).transpose(1, 2)  # [R, Q, T, D]
        seen = self._attended(query, keys, values, shared.mask).transpose(1, 2).flatten(2)  # [R, T, Q * D]
        hidden += self._out(span.packed(seen))
        gate, up = F.linear(_normed(hidden, self._norms[1]), *self._gate_up).chunk(2, -1)
        hidden += self._down(self._act(gate) * up)

    def _attended(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attention, query heads that share keys as further rows.  # [R, Q, T, D]."""
        if query.shape[2] > 1:
            grouped = self._query_heads != self._heads
            return F.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, scale=self._scale, enable_gqa=grouped
            )
        # With one token each, two products are faster than the fused kernel.
        shared = query.reshape(query.shape[0], self._heads, -1, self._width)  # [R, H, Q / H, D]
        scores = torch.matmul(shared, keys.transpose(-1, -2)).mul_(self._scale).add_(mask)
        return torch.matmul(scores.softmax(-1), values).view(query.shape)


def _rotated(heads: Tensor, shared: _Shared) -> Tensor:
    """Queries and keys turned by their positions.  # [N, heads, D]."""
    first, second = heads.chunk(2, -1)
    return (heads * shared.cos).addcmul_(torch.cat((second, first), -1), shared.sin)


def _attention_projections(layer: Any) -> tuple[Any, ...]:
    attention = layer.self_attn
    return attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj


def _mlp_projections(layer: Any) -> tuple[Any, ...]:
    return layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj


def _joined(projections: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of several linear layers as one, of which theirs become views."""
    weight = _one_block([projection.weight for projection in projections])
    biased = projections[0].bias is not None
    return weight, _one_block([projection.bias for projection in projections]) if biased else None


def _one_block(parameters: list[Any]) -> Tensor:
    block = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, block.split([parameter.shape[0] for parameter in parameters]), strict=True):
        parameter.data = part
    return block


def _normed(hidden: Tensor, norm: Any) -> Tensor:
    """As `LlamaRMSNorm`: the mean of squares in float32, scaled back in the model's type."""
    wide = hidden.float()
    mean = wide.square().mean(-1, keepdim=True)
    scaled = (wide * torch.rsqrt(mean + norm.variance_epsilon)).to(hidden.dtype)
    return scaled.mul_(norm.weight)


class ModuleForward:
    """Any causal language model of transformers whose layers attend to the whole context, called as it is."""

    def __init__(self, model: Any, cache: KVCache) -> None:
        refuse_partial_attention(model, cache.columns)
        refuse_missing_positions(model, cache.columns)
        refuse_other_than_alone(model, cache.columns)
        self._model = model
        self._cache = cache
        self._cache_name = cache_parameter(model) or "past_key_values"
        self.vocabulary: int = model.config.vocab_size

    def logits(self, span: Span, every: bool = False) -> Tensor:
        """See `Forward`."""
        visible = span.visible()
        dtype = self._model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
        handed = {self._cache_name: _Handed(self._cache, span)}
        scores = self._model(
            input_ids=span.padded(span.tokens),
            position_ids=span.padded(span.columns),
            attention_mask=mask,
            use_cache=True,
            **handed,
        ).logits
        packed = span.packed(scores)
        return packed if every else packed[span.last]


class _Handed:
    """What a transformers model takes for its own cache."""

    is_compileable = False

    def __init__(self, cache: KVCache, span: Span) -> None:
        self._cache = cache
        self._span = span
        self._places = cache.places(span.rows, span.columns)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keep what is new [R, H, T, D]; all there is up to the last filled column.

        Raises:
            ValueError: The model keeps something else than its configuration says.
        """
        span = self._span
        room = self._cache.shape
        for new in (keys, values):
            if (new.shape[1], new.shape[3]) != (room.heads, room.head_width):
                raise ValueError(
                    f"layer {layer_idx} keeps {_told(keys)} as keys and {_told(values)} as values of a token, "
                    f"its configuration says {room.heads} x {room.head_width}"
                )
        packed = (span.packed(new.transpose(1, 2)) for new in (keys, values))
        self._cache.write(layer_idx, self._places, *packed)
        return self._cache.view(layer_idx, span.first_row, span.row_count, span.key_columns)

    def get_seq_length(self, *_: Any) -> int:
        """Tokens before the new ones; positions are always handed over, so nobody relies on it."""
        return 0


def _told(heads: Tensor) -> str:
    """How many there are, and how wide, of [R, H, T, D]."""
    return f"{heads.shape[1]} x {heads.shape[-1]}"
