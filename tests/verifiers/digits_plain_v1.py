"""A taskset of verifiers' version 1 and nothing else: one question, one answer."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["Plain"]


class Question(vf.Task[vf.TaskData]):
    @vf.reward
    async def letters(self, trace) -> float:
        return 1.0 + len(trace.branches[-1].messages[-1].content) / 100


class Plain(vf.Taskset[Question, vf.TasksetConfig]):
    def load(self):
        texts = ["say one", "say two"]
        return [Question(vf.TaskData(prompt=text, system_prompt="talk"), self.config.task) for text in texts]
