"""Episodes of verifiers' version 1 (0.4); loaded by ``guest.py`` in the interpreter that has it, and not to be imported.

An agent there is a program that asks an endpoint of verifiers, which records what was said and passes it on to the endpoint of a
model. The program here is a few lines in this process, and the endpoint of the model is a server in this process too, which hands
each question out. verifiers allows both: what it asks of a harness is that every message goes through its own endpoint.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp import web

vf: Any = importlib.import_module("verifiers.v1")

__all__ = ["InProcess"]

_FULL = "context_length_exceeded"
_OPEN_FILES = 8192
"""Each rollout that stands still holds about six."""


class InProcess(vf.Harness):  # type: ignore[misc]
    """The agent: says what the model says, and has no tools."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> Any:
        """One message of the model."""
        if mcp_urls:
            raise ValueError("tools are not supported here")
        body = {"model": ctx.model, "messages": opening(*self.resolve_prompt(data))}
        headers = {"Authorization": f"Bearer {secret}"}
        no_limit = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=no_limit) as client,
            client.post(f"{endpoint}/chat/completions", json=body, headers=headers) as answer,
        ):
            said = await answer.text()
            # What has no room for another message is over, and is judged; anything else that fails is a failure.
            return vf.ProgramResult(int(answer.status != 200 and _FULL not in said), "", said)


class Episodes:
    """An environment of version 1, and its tasks."""

    separate = False
    """It has no evaluation split of its own: which tasks there are is a setting of its taskset."""
    most_sessions = 512

    def __init__(self, env: Any, most: int, session: Callable[[], Any], plain: Callable[[Any], dict[str, str]]) -> None:
        self._env = env
        self._tasks = list(env.taskset.take(most))
        self._session = session
        self._plain = plain
        self._playing: dict[str, Any] = {}
        self._holding = AsyncExitStack()
        self._context: Any = None

    async def start(self) -> None:
        """The endpoint that hands questions out, and what the environment needs."""
        application = web.Application(client_max_size=1 << 30)
        application.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._holding.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        root = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        client = vf.EvalClientConfig(base_url=root, api_key_var="HEADRACE_HAS_NO_KEY")
        self._context = vf.ModelContext(model="headrace", client=client)
        await self._holding.enter_async_context(self._env.serving())

    async def close(self) -> None:
        """End all that `start` began."""
        await self._holding.aclose()

    async def problems(self, split: str) -> tuple[list[Any], list[str]]:
        """What each task is opened with, and all there is in it."""
        del split
        openings = [await self._opening(place) for place in range(len(self._tasks))]
        return openings, [repr(sorted(task.data.model_dump(exclude={"idx"}).items())) for task in self._tasks]

    async def play(self, session: Any, split: str, row: int) -> dict[str, Any]:
        """One episode, and its outcome."""
        del split
        traces: list[str] = []

        def begun(trace: Any) -> None:
            if traces:
                raise ValueError("an episode of more than one conversation cannot be trained on here")
            traces.append(trace.id)
            self._playing[trace.id] = session

        try:
            return outcome(await self._env.run_episode(self._tasks[row], self._context, on_trace=begun))
        finally:
            for trace in traces:
                del self._playing[trace]

    async def _opening(self, row: int) -> list[dict[str, str]]:
        """What the model is asked first. Where the environment speaks first, it has to be begun to know that."""
        data = self._tasks[row].data
        if data.prompt is not None:
            return opening(data.system_prompt, data.prompt)
        session = self._session()
        session.task = asyncio.ensure_future(self.play(session, "train", row))
        try:
            event = await session.event()
            if "done" in event:
                raise ValueError(f"task {row} ended before it asked anything: {event['done']}")
            return list(event["messages"])
        finally:
            session.give_up()
            await asyncio.gather(session.task, return_exceptions=True)

    async def _answer(self, request: web.Request) -> web.Response:
        """``POST /v1/chat/completions``, from verifiers itself."""
        body = await request.json()
        if body.get("tools"):
            return refused("tools are not supported here", "unsupported")
        session = self._playing.get(request.headers.get("X-Session-ID", ""))
        if session is None:
            return refused("nobody plays here", "unknown_session")
        text = await session.completion(body["messages"])
        if text is None:
            return refused(f"there is no room for another message ({_FULL})", _FULL)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        head = {"id": "headrace", "object": "chat.completion", "created": 0, "model": body["model"]}
        return web.json_response({**head, "choices": [choice]})


async def piece_of(
    environment: str,
    kwargs: dict[str, Any],
    most: int,
    session: Callable[[], Any],
    plain: Callable[[Any], dict[str, str]],
) -> Episodes:
    """The environment of the taskset ``environment``; ``kwargs`` are further settings of its configuration."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(_OPEN_FILES, limits[1])), limits[1]))
    settings = {**kwargs, "taskset": {"id": environment, **kwargs.get("taskset", {})}}
    fields = vf.env_config_type(environment, kwargs.get("id", "")).model_fields
    roles = [name for name, field in fields.items() if isinstance(field.default, vf.AgentConfig)]
    if len(roles) != 1:
        raise ValueError(f"an environment of more than one agent cannot be trained on here, and this has {roles}")
    own = vf.default_harness_id(environment)
    harness = {"id": __name__.replace("_", "-") if own == "bash" else own}
    agent = {"harness": harness, "runtime": {"type": "subprocess"}, **kwargs.get(roles[0], {})}
    config = vf.resolve_env_config({**settings, roles[0]: agent})
    episodes = Episodes(vf.load_environment(config), most, session, plain)
    await episodes.start()
    return episodes


def opening(system: str | None, prompt: Any) -> list[dict[str, str]]:
    """The messages of a prompt."""
    said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [spoken(one) for one in prompt]
    return said if system is None else [{"role": "system", "content": system}, *said]


def spoken(message: Any) -> dict[str, str]:
    """A message as role and text."""
    content = message.content or ""
    if not isinstance(content, str):
        content = "".join(part.text for part in content)  # a part that is no text cannot be said here
    return {"role": message.role, "content": content}


def outcome(episode: Any) -> dict[str, Any]:
    """What an episode was worth; an error is not a reward of 0."""
    trace = episode.traces[0] if episode.traces else None
    errors = [*episode.errors, *(trace.errors if trace else ())]
    error = None
    if not episode.ok or trace is None:
        error = f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode is not ok, and says no error"
    metrics = {} if trace is None else trace.metrics
    return {
        "reward": None if trace is None or error else trace.reward,
        "metrics": {name: float(value) for name, value in metrics.items() if value is not None},
        "error": error,
        "stop": None if trace is None else trace.stop_condition,
    }


def refused(message: str, code: str) -> web.Response:
    """As OpenAI's servers do it."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.Response(status=400, text=json.dumps({"error": error}), content_type="application/json")
