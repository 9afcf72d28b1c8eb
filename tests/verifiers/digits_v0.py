"""An environment of verifiers' version 0: a digit is guessed, with hints."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset


class Digits(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        said = messages[-1].content
        if said == state["answer"]:
            state["final_env_response"] = []
            return []
        return [{"role": "user", "content": "higher" if said < state["answer"] else "lower"}]


def right(completion, answer, **kwargs) -> float:
    return float(said(completion)[-1] == answer)


def turns(completion, **kwargs) -> float:
    return float(len(said(completion)))


def said(completion) -> list[str]:
    plain = [one if isinstance(one, dict) else one.model_dump() for one in completion]
    return [one["content"] for one in plain if one["role"] == "assistant"]


def load_environment() -> Digits:
    opening = [{"role": "system", "content": "guess"}, {"role": "user", "content": "which digit?"}]
    rows = [{"prompt": opening, "answer": digit} for digit in "35"]
    return Digits(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right, turns], weights=[1, 0]), max_turns=4)
