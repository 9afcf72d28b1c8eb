"""Runs in the interpreter of verifiers 0.4: environments of version 1 against an endpoint; prints what each episode was worth."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import sys
import time

import aiohttp
import verifiers.v1 as vf

__all__ = ["Streaming"]


class Streaming(vf.Harness):
    """In this process; its answers come as a stream."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        told = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [plain(one) for one in prompt]
        body = {"model": ctx.model, "messages": [{"role": "system", "content": system}, *told], "stream": True}
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{endpoint}/chat/completions", json=body, headers=headers) as answer,
        ):
            said = await answer.text()
            return vf.ProgramResult(int(answer.status != 200), "", said)


def plain(message) -> dict:
    return {"role": message.role, "content": message.content or ""}


def outcome_of(guest: str):
    spec = importlib.util.spec_from_file_location("headrace_guest_v1", guest)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.outcome


async def played(taskset: str, role: str, endpoint: str, sampling: dict, outcome) -> dict:
    agent = {"harness": {"id": "play_v1"}, "runtime": {"type": "subprocess"}}
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": taskset}, role: agent}))
    client = vf.EvalClientConfig(base_url=f"{endpoint}/v1", api_key_var="NO_KEY")
    context = vf.ModelContext(model="policy", client=client, sampling=vf.Sampling(**sampling))
    async with env.serving():
        begun = time.monotonic()
        episodes = await asyncio.gather(*(env.run_episode(task, context) for task in env.taskset for _ in range(2)))
        took_s = time.monotonic() - begun
    return {
        "outputs": [outcome(episode) for episode in episodes],
        "said": [
            [node.message.content for node in trace.nodes if node.message.role == "assistant"]
            for episode in episodes
            for trace in episode.traces
        ],
        "took_s": took_s,
    }


async def main(endpoint: str, guest: str) -> dict:
    outcome = outcome_of(guest)
    few = {"max_tokens": 6, "seed": 3}
    return {
        "single": await played("digits-plain-v1", "agent", endpoint, few, outcome),
        "several": await played("digits-v1", "player", endpoint, few, outcome),
        "unsupported": await played("digits-plain-v1", "agent", endpoint, {**few, "top_k": 3}, outcome),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2]))))
