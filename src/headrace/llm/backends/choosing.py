"""Which client a server of completions needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from headrace.core.errors import ComponentStalled
from headrace.llm.backends.vllm_client import OURS, STOCK, VllmGenerator
from headrace.llm.calls import Calls, Refused
from headrace.llm.client import HttpGenerator
from headrace.llm.config import RLConfig

_PER_CALL = 128  # requests; enough that what a call costs does not count


@asynccontextmanager
async def open_generator(config: RLConfig, endpoint: str, run_id: str) -> AsyncIterator[HttpGenerator | VllmGenerator]:
    """The client for a run's server. One at an external URL is asked what it is.

    Args:
        config: Of the run.
        endpoint: Root of the server.
        run_id: Of the run.

    Raises:
        ComponentStalled: An external server answers nothing within ``deadlines.start_s``.
    """
    section = config.inference
    loader: str | None = OURS if section.backend == "vllm" else None
    if section.backend == "external":
        loader = await vllm_loader(endpoint, config.deadlines.start_s)
    generator: HttpGenerator | VllmGenerator
    if loader is not None:
        generator = VllmGenerator(endpoint, run_id=run_id, loader=loader, connections=section.slots)
    else:
        lockstep = not config.orchestrator.max_policy_lag
        generator = HttpGenerator(endpoint, per_call=None if lockstep else _PER_CALL)
    async with generator:
        yield generator


async def vllm_loader(endpoint: str, timeout_s: float, server: str = "inference") -> str | None:
    """By which method of its workers a vLLM server loads weights; None if it is not vLLM.

    Raises:
        ComponentStalled: It does not answer in time.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    async with Calls(endpoint, server, connections=1) as calls:
        try:
            if not _is_vllm(await calls.patiently("GET", "/v1/models", None, deadline_s)):
                return None
            # Without a file ours says what is wrong; a server that lacks it fails.
            call = {"method": OURS, "args": ["", ""]}
            await calls.patiently("POST", "/collective_rpc", call, deadline_s)
        except Refused:
            return STOCK
        except TimeoutError as error:
            raise ComponentStalled(
                f"{server} did not say within {timeout_s:g} s what it serves",
                endpoint=endpoint,
                last=str(error) or "no answer",
                fix="start the server before the run, and see that inference.url is its root",
            ) from error
        except (aiohttp.ClientError, OSError, ValueError):
            return None
    return OURS


def _is_vllm(models: Any) -> bool:
    try:
        return any(model["owned_by"] == "vllm" for model in models["data"])
    except (KeyError, TypeError):
        return False
