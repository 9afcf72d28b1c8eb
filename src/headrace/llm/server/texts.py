"""Between text and tokens, for clients that send text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self


class Texts:
    """A tokenizer, as the server uses it.

    Args:
        tokenizer: A Hugging Face one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        end = tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = () if end is None else (int(end),)
        """Tokens that end what the model says."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """That of a model's folder.

        Raises:
            ConfigError: There is none.
        """
        from headrace.llm.tiny import load_tokenizer

        return cls(load_tokenizer(folder))

    @property
    def chats(self) -> bool:
        """Whether there is a template for conversations."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def encode(self, text: str) -> list[int]:
        """Tokens of a plain text."""
        return list(self._tokenizer.encode(text))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation, up to where the model's next message begins."""
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """What was said, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token(self, token_id: int) -> str:
        """One token, also a special one."""
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))
