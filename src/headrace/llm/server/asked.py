"""What clients of OpenAI's routes may ask for, and what that is in requests of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.llm.engine.scheduling import Limits, too_long
from headrace.llm.messages import GenerationRequest
from headrace.llm.server.errors import ApiError
from headrace.llm.server.reading import FastList
from headrace.llm.server.settings import NEUTRAL, OF_CHAT, OF_MESSAGE, OF_TEXT, refuse_unknown
from headrace.llm.server.texts import Texts, TooManyTokens

MOST_COMPLETIONS = 65_536
"""Of one call: a few bytes of JSON could ask for more than the memory holds."""

MOST_STOPS = 1024
"""Texts that end a completion: after every token each is looked for in what was said."""


class StreamOptions(BaseModel):
    """How a stream is sent."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = False


class AskedBody(BaseModel):
    """What both routes take. Of what is not listed, `refuse_settings` lets pass what changes nothing: clients send much of it."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    model: str
    n: int | None = Field(default=1, ge=1, le=1024)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0)
    stop: str | FastList[str] | None = None
    stop_token_ids: FastList[int] = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    session: str = ""
    """Ours: see `GenerationRequest.session`; only where one completion is asked for."""
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Ours."""
    return_token_ids: bool | None = False
    """vLLM's."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end a completion, and are no part of it."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionsBody(AskedBody):
    """``POST /v1/completions``."""

    prompt: str | FastList[str] | FastList[int] | FastList[FastList[int]]
    logprobs: int | None = Field(default=None, ge=0, le=1)
    """Alternatives are not kept, so 1 is answered as 0: the log-probability of what was drawn."""
    echo: bool | None = False


class TextPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | FastList[TextPart]

    def plain(self) -> dict[str, str]:
        """As templates take it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(AskedBody):
    """``POST /v1/chat/completions``."""

    messages: FastList[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False


@dataclass(frozen=True, slots=True)
class Unseeded:
    """A call, which names the random streams of its completions where the client gives no seed."""

    life: int
    """Drawn when the server started, so that another one does not say the same again."""
    number: int
    """Of the call, since then."""

    def seed(self, place: int) -> int:
        """Of a completion: from a stream of another name than those of clients' seeds."""
        return seeding.integer(self.life, "unseeded choice", self.number, place)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, in requests of the engine: ``n`` for each prompt, one prompt after the other."""

    requests: list[GenerationRequest]
    prompts: list[tuple[int, ...]]
    """One per prompt; its requests share it, as a long one a thousand times over could be more than the memory holds."""
    body: AskedBody
    logprobs: bool
    echo: bool = False

    @property
    def params(self) -> Mapping[str, str]:
        """What the client calls fields of the requests, for errors."""
        prompt = "messages" if isinstance(self.body, ChatBody) else "prompt"
        return {"prompt_ids": prompt, "stop_ids": "stop_token_ids"}


def refuse_settings(body: AskedBody) -> None:
    """Rather than generate something else than was asked for.

    Raises:
        ApiError: A setting is in use that we do not have, or too much of one that we have.
    """
    if len(body.stops) > MOST_STOPS:
        text = f"stop: {len(body.stops):,} texts, of {MOST_STOPS:,} at most"
        raise ApiError(400, text, param="stop", code="too_many")
    refuse_unknown(body.model_extra, OF_CHAT if isinstance(body, ChatBody) else OF_TEXT)
    if body.stream_options is not None:
        refuse_unknown(body.stream_options.model_extra, NEUTRAL, "stream_options.")
    for place, message in enumerate(body.messages if isinstance(body, ChatBody) else ()):
        refuse_unknown(message.model_extra, OF_MESSAGE, f"messages.{place}.")
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            refuse_unknown(part.model_extra, {}, f"messages.{place}.content.{number}.")


def count_completions(body: CompletionsBody) -> int:
    """How many are asked for, before anything is made of them.

    Raises:
        ApiError: None, more than may be, or with settings that exclude each other.
    """
    if body.echo and body.logprobs is not None:
        raise ApiError(400, "echo together with logprobs is not supported; POST /score scores a text", param="echo")
    given = _given(body.prompt)
    if not given:
        raise ApiError(400, "prompt: there is none", param="prompt", code="empty")
    count = len(given) * (body.n or 1)
    if count > MOST_COMPLETIONS:
        text = f"n: {count:,} completions in one call, of {MOST_COMPLETIONS:,} at most"
        raise ApiError(400, text, param="n", code="too_many")
    return count


async def asked_completions(body: CompletionsBody, texts: Texts, unseeded: Unseeded, limits: Limits) -> Asked:
    """Of ``/v1/completions``; ``unseeded`` is asked where the client gives no seed.

    Raises:
        ApiError: A text does not fit the context.
    """
    prompts: list[tuple[int, ...]] = []
    with _fitting("prompt", limits):
        for one in _given(body.prompt):
            if isinstance(one, str):
                prompts.append(tuple(texts.encode(one, limits.context_tokens)))
                await asyncio.sleep(0)  # thousands of texts take seconds, and others are served meanwhile
            else:
                prompts.append(tuple(one))
    requests = _requests(body, prompts, body.max_tokens or 16, texts.end_ids, unseeded)
    return Asked(requests, prompts, body, body.logprobs is not None, bool(body.echo))


def asked_chat(body: ChatBody, texts: Texts, unseeded: Unseeded, limits: Limits) -> Asked:
    """Of ``/v1/chat/completions``; ``unseeded`` is asked where the client gives no seed.

    Raises:
        ApiError: The model cannot chat, its template refuses the conversation, or that does not fit the context.
    """
    if not texts.chats:
        raise ApiError(400, "the model has no chat template; use /v1/completions", code="no_chat_template")
    with _fitting("messages", limits):
        prompts = [tuple(texts.chat([message.plain() for message in body.messages], limits.context_tokens))]
    most = body.max_completion_tokens or body.max_tokens or limits.context_tokens
    return Asked(_requests(body, prompts, most, texts.stop_ids, unseeded), prompts, body, bool(body.logprobs))


@contextmanager
def _fitting(param: str, limits: Limits) -> Iterator[None]:
    """A text that is too long is refused as the engine refuses its tokens; what a template says of one is for its sender."""
    try:
        yield
    except TooManyTokens as error:
        raise ApiError.of_failure(too_long(str(error), limits), {"prompt_ids": param}) from None
    except ConfigError as error:
        raise ApiError(400, error.what, param=param, code="template_refused") from error


def _given(prompt: str | Sequence[Any]) -> Sequence[str | Sequence[int]]:
    """Each prompt, whichever of the four forms they were given in."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    return prompt


def _requests(
    body: AskedBody, prompts: list[tuple[int, ...]], most: int, end_ids: tuple[int, ...], unseeded: Unseeded
) -> list[GenerationRequest]:
    samples = body.n or 1
    count = len(prompts) * samples
    stop_ids = (*end_ids, *body.stop_token_ids)
    return [
        GenerationRequest(
            id=str(place),
            prompt_ids=prompts[place // samples],
            max_tokens=most,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=body.top_p or 1.0,
            stop_ids=stop_ids,
            seed=unseeded.seed(place) if body.seed is None else seeding.integer(body.seed, "choice", place),
            session=body.session if count == 1 else "",
        )
        for place in range(count)
    ]
