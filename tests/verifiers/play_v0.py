"""Runs in the interpreter of verifiers 0.3: an environment of version 0 against an endpoint; prints what each rollout was worth."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from pathlib import Path

from datasets import Dataset

import verifiers as vf

ASKS = {
    "plain": {"max_tokens": 12, "seed": 7},
    "unsupported": {"max_tokens": 12, "extra_body": {"top_k": 3}},  # 400
    "busy": {"max_tokens": 12, "n": 9},  # 503: more than there are slots and places to wait
    "empty": {
        "max_tokens": 12,
        "stop": list("\n" + "".join(map(chr, range(32, 127)))),
    },  # whatever it says first ends it
}


def letters(completion, **kwargs) -> float:
    """What was really said, and by whom."""
    del kwargs
    return 1.0 + len(completion[-1]["content"]) / 100


async def played(env, endpoint: str, sampling: dict, outcome) -> dict:
    client = vf.ClientConfig(api_base_url=f"{endpoint}/v1", api_key_var="NO_KEY", max_retries=0)
    begun = time.monotonic()
    results = await env.generate(
        env.get_dataset(),
        client,
        "policy",
        sampling_args=sampling,
        max_concurrent=8,
        on_start=lambda *_: None,
        on_progress=[],
    )
    took_s = time.monotonic() - begun
    outputs = results["outputs"]
    return {
        "outputs": [outcome(output) for output in outputs],
        "theirs": [output["reward"] for output in outputs],
        "said": [said(output) for output in outputs],
        "mean": results["metadata"]["avg_reward"],
        "took_s": took_s,
    }


def said(output) -> str | None:
    messages = output["completion"] or []
    return messages[-1]["content"] if messages else None


def main(endpoint: str, guest: str, long_prompts: int) -> None:
    sys.path.insert(0, str(Path(guest).parent))
    outcome = importlib.import_module("guest").outcome

    questions = [f"say {place}" for place in range(32)] + ["long " * 200] * long_prompts
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": ""} for text in questions]
    env = vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[letters]))

    async def all_of_them() -> dict:
        return {name: await played(env, endpoint, sampling, outcome) for name, sampling in ASKS.items()}

    sys.stdout.write(json.dumps(asyncio.run(all_of_them())) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
