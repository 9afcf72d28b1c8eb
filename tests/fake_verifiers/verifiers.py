"""What `headrace.envs.text.verifiers` uses of verifiers 0.3, and an environment in which a digit is guessed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOR_EVER = "import os; os.read(os.pipe()[0], 1)"


class Error(Exception):
    pass


class ModelError(Error):
    pass


class OverlongPromptError(Error):
    pass


@dataclass
class ResponseMessage:
    role: str
    content: str
    finish_reason: str
    is_truncated: bool

    def model_dump(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Response:
    id: str
    created: int
    model: str
    message: ResponseMessage


class Client(ABC):
    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    async def to_native_prompt(self, messages: Any) -> Any: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None) -> Response:
        raise NotImplementedError


class HiLo:
    """Four guesses; what ``fault`` names happens at the second message. Whatever way a rollout ends, it leaves a ``marker``."""

    def __init__(self, separate: bool, leaks: bool, fault: str | None, marker: str | None) -> None:
        self.eval_dataset = None
        self.fault = fault
        self.marker = marker
        self.rows = [self.row("guess a digit", digit) for digit in "35"]
        if separate or leaks:
            self.eval_dataset = self.rows[:1] if leaks else [self.row("and for evaluation", "7")]

    @staticmethod
    def row(text: str, digit: str) -> dict[str, Any]:
        return {"prompt": [{"role": "user", "content": text}], "answer": digit, "example_id": int(digit)}

    def get_dataset(self) -> Any:
        return self.rows

    def get_eval_dataset(self) -> Any:
        return self.eval_dataset

    async def run_rollout(
        self, row: dict[str, Any], client: Client, model: str, sampling_args: Any, state_columns: list[str]
    ) -> dict[str, Any]:
        try:
            return await self.guessed(row, client, model, sampling_args)
        finally:
            if self.marker:
                for _ in range(200):  # in no hurry
                    await asyncio.to_thread(os.getpid)
                Path(self.marker).touch()

    async def guessed(self, row: dict[str, Any], client: Client, model: str, sampling_args: Any) -> dict[str, Any]:
        said: list[Any] = list(row["prompt"])
        error, right = None, False
        for turn in range(4):
            try:
                answer = (await client.get_response(said, model, sampling_args)).message
            except OverlongPromptError:
                break
            if turn == 1 and self.fault == "rewrites":
                said[2] = {"role": "user", "content": "(left out)"}
            elif turn == 1 and self.fault:
                error = self.go_wrong()
                break
            right = answer.content == row["answer"]
            if right:
                break
            said += [answer, {"role": "user", "content": "higher" if answer.content < row["answer"] else "lower"}]
        return {"reward": float(right), "metrics": {"turns": turn}, "error": error, "stop_condition": "over"}

    def go_wrong(self) -> str:
        if self.fault in ("dies", "hangs"):
            subprocess.Popen([sys.executable, "-c", FOR_EVER])
        if self.fault == "dies":
            os._exit(7)
        if self.fault == "hangs":
            os.read(os.pipe()[0], 1)
        if self.fault == "raises":
            raise ValueError("planted")
        return "ToolError"


def load_environment(
    name: str, separate: bool = True, leaks: bool = False, fault: str | None = None, marker: str | None = None
) -> HiLo:
    if name != "hi-lo":
        raise ValueError(f"there is no {name}")
    return HiLo(separate, leaks, fault, marker)
