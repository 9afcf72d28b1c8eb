"""What clients of OpenAI's routes may send beside what we have: settings that change nothing. All else is refused.

Rather an error than something else than was asked for: a setting that nobody here has heard of may be one that changes what is
generated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.llm.server.errors import SHOWN, ApiError

_Values = tuple[Any, ...]

HARMLESS = frozenset(
    {
        "cache_salt",
        "include_obfuscation",
        "metadata",
        "parallel_tool_calls",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "spaces_between_special_tokens",
        "store",
        "user",
    }
)
"""Change nothing that is generated here, whatever they say."""

NEUTRAL: dict[str, _Values] = {
    "add_generation_prompt": (True,),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "continuous_usage_stats": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "early_stopping": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "typical_p": (1,),
    "use_beam_search": (False,),
}
"""Settings that we do not have, with the values that change nothing. Of any other, only null says nothing."""

OF_CHAT: dict[str, _Values] = NEUTRAL | {"add_special_tokens": (False,), "echo": (False,)}
OF_TEXT: dict[str, _Values] = NEUTRAL | {"add_special_tokens": (True,)}
OF_MESSAGE: Mapping[str, _Values] = {"annotations": ([],), "tool_calls": ([],)}


def refuse_unknown(extra: Mapping[str, Any] | None, neutral: Mapping[str, _Values], where: str = "") -> None:
    """Refuse the first that is neither neutral nor harmless.

    Args:
        extra: What was sent and is none of our fields.
        neutral: By name, the values that change nothing.
        where: Put before the name, for the client.

    Raises:
        ApiError: There is one.
    """
    for name, value in (extra or {}).items():
        if value is not None and name not in HARMLESS and value not in neutral.get(name, ()):
            param = f"{where}{name}"[:SHOWN]
            raise ApiError(400, f"{param} is not supported", param=param, code="unsupported")
