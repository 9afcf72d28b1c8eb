"""Texts repeat: rendering each only once saves more time than everything else an orchestrator does."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from headrace.envs.text.protocol import Message
from headrace.llm.orchestration.rollout import TextRenderer

_MOST = 8192  # texts that are remembered, of each kind


class CachingRenderer:
    """A renderer that remembers. What it renders must depend on nothing but the messages."""

    def __init__(self, renderer: TextRenderer) -> None:
        self.stop_ids = tuple(renderer.stop_ids)
        self._opening = functools.lru_cache(_MOST)(lambda messages: tuple(renderer.opening(messages)))
        self._text = functools.lru_cache(_MOST)(renderer.text)
        self._following = functools.lru_cache(_MOST)(
            lambda messages, ended: tuple(renderer.following(messages, ended=ended))
        )

    def opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """See `TextRenderer.opening`."""
        return self._opening(tuple(messages))

    def following(self, messages: Sequence[Message], *, ended: bool = True) -> tuple[int, ...]:
        """See `TextRenderer.following`."""
        return self._following(tuple(messages), ended)

    def text(self, token_ids: Sequence[int]) -> str:
        """See `TextRenderer.text`."""
        return self._text(tuple(token_ids))
