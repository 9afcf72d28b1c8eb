"""Runs an environment of verifiers in an interpreter of its own; not to be imported.

It needs verifiers, and nothing of Headrace: with ``load_environment`` (up to 0.3) environments of version 0, else those of
version 1 (0.4, see ``guest_v1.py`` beside it). It reads a request per line from one descriptor and answers each with a line on
another, both JSON.

A rollout of verifiers asks its client for completions. The client here hands the question out, and waits until somebody has
answered it: so the environment runs unchanged, and who generates is decided elsewhere. A rollout is a task of the event loop,
which runs only while a request is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

_LOOK_MS = 60_000
_LEAVE_S = 8.0
"""For the end in order. Whoever closed the requests waits for two seconds more before it kills."""
_GIVE_UP_S = 3600


class Session:
    """One rollout, which stands still while it waits for a message of the model."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[list[dict[str, str]]] = loop.create_future()
        self.said: asyncio.Future[str | None] = loop.create_future()
        self.task: asyncio.Task[Any]

    async def completion(self, prompt: Any) -> str | None:
        """What the model says to these messages; None: there is no room for another one.

        It may take as long as it likes: nothing here waits for it.
        """
        self.said = asyncio.get_running_loop().create_future()
        self.asked.set_result([plain(message) for message in prompt])
        return await self.said

    def give_up(self) -> None:
        """Nobody will answer it."""
        self.task.cancel()
        self.said.cancel()

    async def event(self) -> dict[str, Any]:
        """What the rollout does next: it asks, or it is over. It is given up long after whoever asked has lost patience."""
        await asyncio.wait({self.asked, self.task}, timeout=_GIVE_UP_S, return_when=asyncio.FIRST_COMPLETED)
        if self.asked.done():
            messages = await self.asked
            self.asked = asyncio.get_running_loop().create_future()
            return {"messages": messages}
        if not self.task.done():
            raise TimeoutError(f"the rollout neither asked nor ended within {_GIVE_UP_S} s")
        return {"done": await self.task}


class Legacy:
    """An environment of version 0, and its rows."""

    most_sessions = 4096

    def __init__(self, vf: Any, environment: str, kwargs: dict[str, Any], most: int) -> None:
        self.vf = vf
        self.env = self.vf.load_environment(environment, **kwargs)
        self.most = most
        own = getattr(self.env, "eval_dataset", None) is not None or getattr(self.env, "eval_dataset_source", None)
        self.rows = {"train": self.taken(self.env.get_dataset())}
        self.rows["eval"] = self.taken(self.env.get_eval_dataset()) if own else self.rows["train"]
        self.separate = bool(own)

    def taken(self, dataset: Any) -> list[dict[str, Any]]:
        """The first rows, as a rollout takes them."""
        return [dict(dataset[index]) for index in range(min(len(dataset), self.most))]

    async def problems(self, split: str) -> tuple[list[Any], list[str]]:
        """What each row is opened with, and all there is in it."""
        rows = self.rows[split]
        opened = [[plain(message) for message in row["prompt"]] for row in rows]
        return opened, [repr(sorted(item for item in row.items() if item[0] != "example_id")) for row in rows]

    async def play(self, session: Session, split: str, row: int) -> dict[str, Any]:
        """One rollout, and its outcome."""
        client = client_of(self.vf, session)
        return outcome(
            await self.env.run_rollout(dict(self.rows[split][row]), client, "headrace", {}, state_columns=[])
        )

    async def close(self) -> None:
        """Nothing is held."""


class Stage:
    """An environment, and the rollouts that run."""

    def __init__(self, piece: Any) -> None:
        self.piece = piece
        self.sessions: dict[int, Session] = {}
        self.opened = 0

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What one request leads to."""
        if request["op"] == "dataset":
            openings, rows = await self.piece.problems(request["split"])
            return {"openings": openings, "rows": rows}
        if request["op"] == "open":
            return await self.open(request["split"], request["row"])
        session = self.sessions[request["session"]]
        if request["op"] == "drop":
            self.sessions.pop(request["session"]).give_up()
            return {}
        session.said.set_result(request["text"])
        event = await session.event()
        if "done" in event:
            del self.sessions[request["session"]]
        return event

    async def open(self, split: str, row: int) -> dict[str, Any]:
        """Begin a rollout."""
        session = Session()
        number, self.opened = self.opened, self.opened + 1
        session.task = asyncio.ensure_future(self.piece.play(session, split, row))
        event = await session.event()
        if "messages" in event:
            self.sessions[number] = session
        return {"session": number, **event}

    async def close(self) -> None:
        """End the rollouts that stand still, each with what it does last, then the environment."""
        for session in self.sessions.values():
            session.give_up()
        await asyncio.gather(*(session.task for session in self.sessions.values()), return_exceptions=True)
        await self.piece.close()


def client_of(vf: Any, session: Session) -> Any:
    """A client of verifiers that asks the session."""
    types = importlib.import_module(vf.Client.__module__)
    kinds = importlib.import_module(types.Client.get_response.__globals__["Response"].__module__)

    class Asking(vf.Client):  # type: ignore[misc]
        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
        ) -> Any:
            if tools:
                raise vf.ModelError("tools are not supported here")
            text = await session.completion(prompt)
            if text is None:
                raise vf.OverlongPromptError
            message = kinds.ResponseMessage(role="assistant", content=text, finish_reason="stop", is_truncated=False)
            return kinds.Response(id="headrace", created=0, model=model, message=message)

        async def close(self) -> None:
            pass

    for name in Asking.__abstractmethods__:
        setattr(Asking, name, lambda *_args, **_kwargs: None)
    Asking.__abstractmethods__ = frozenset()
    return Asking(None)


def plain(message: Any) -> dict[str, str]:
    """A message as role and text."""
    fields = message if isinstance(message, dict) else message.model_dump()
    content = fields.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part["text"] for part in content)  # a part that is no text cannot be said here
    return {"role": fields["role"], "content": content}


def outcome(output: Any) -> dict[str, Any]:
    """What a rollout was worth; an error is not a reward of 0."""
    error = output.get("error")
    if error is None and "completion" in output and not output["completion"]:
        error = (
            f"nothing was said: {output.get('stop_condition')}"  # a prompt that is too long, which is no error there
        )
    metrics = {name: float(value) for name, value in (output.get("metrics") or {}).items() if value is not None}
    return {
        "reward": output.get("reward"),
        "metrics": metrics,
        "error": error if error is None or isinstance(error, str) else repr(error),
        "stop": output.get("stop_condition"),
    }


def leave_with_the_parent(requests: int, parent: int) -> None:
    """End the process when nobody is left to ask anything, whatever it is doing.

    It ends by itself then, since the requests do; what takes longer than it may is killed, with all that it has started.
    """
    poll = select.poll()
    poll.register(requests, 0)  # hang-up is told unasked, except on macOS
    while not poll.poll(_LOOK_MS) and os.getppid() == parent:
        pass
    threading.Event().wait(_LEAVE_S)
    os.killpg(0, signal.SIGKILL)  # of its own session


async def piece_of(environment: str, kwargs: dict[str, Any], most: int) -> Any:
    """The environment, for whichever version of verifiers there is here."""
    vf = importlib.import_module("verifiers")
    if hasattr(vf, "load_environment"):
        return Legacy(vf, environment, kwargs, most)
    # By its path, since this folder is not on sys.path; under the name by which verifiers finds the harness in it.
    spec = importlib.util.spec_from_file_location("headrace_guest_v1", Path(__file__).with_name("guest_v1.py"))
    assert spec is not None
    assert spec.loader is not None
    version_1 = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = version_1
    spec.loader.exec_module(version_1)
    return await version_1.piece_of(environment, kwargs, most, Session, plain)


async def serve(requests: int, answers: int, settings: dict[str, Any]) -> int:
    """Build the environment and answer requests until they end."""
    gone = contextlib.suppress(BrokenPipeError)  # whoever asked; the requests end then, too
    with gone, os.fdopen(os.dup(requests)) as lines, os.fdopen(answers, "w") as out:

        def write(message: dict[str, Any]) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        try:
            piece = await piece_of(**settings)
        except Exception:  # noqa: BLE001 - a process border: it goes to the parent
            write({"traceback": traceback.format_exc()})
            return 1
        stage = Stage(piece)
        loop = asyncio.get_running_loop()
        try:
            write({"separate": piece.separate, "most_sessions": piece.most_sessions})
            while line := await loop.run_in_executor(None, lines.readline):
                try:
                    message = await stage.answer(json.loads(line))
                except Exception:  # noqa: BLE001 - as above
                    message = {"traceback": traceback.format_exc()}
                write(message)
        finally:
            await stage.close()
    return 0


def main() -> int:
    """Answer requests until they end."""
    requests, answers = int(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=leave_with_the_parent, args=(requests, os.getppid()), daemon=True).start()
    settings = json.loads(sys.argv[3])
    # This file's folder goes: its modules are no business of anybody there.
    sys.path[:1] = settings.pop("path")
    return asyncio.run(serve(requests, answers, settings))


if __name__ == "__main__":
    sys.exit(main())
