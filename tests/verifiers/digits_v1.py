"""A taskset of verifiers' version 1: a digit is guessed, with hints; and an `Env` in which the environment speaks first."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["Digits", "Guessing"]


class DigitData(vf.TaskData):
    digit: str


class Digit(vf.Task[DigitData]):
    @vf.reward
    async def right(self, task, trace) -> float:
        if task.digit == "2":
            raise ValueError("planted")
        return float(last(trace) == task.digit)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class Digits(vf.Taskset[Digit, vf.TasksetConfig]):
    def load(self):
        return [Digit(DigitData(prompt=None, system_prompt="guess", digit=digit), self.config.task) for digit in "352"]


class GuessingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    guesses: int = 4


class Guessing(vf.Env[GuessingConfig]):
    async def run(self, task, agents) -> None:
        said = "which digit?"
        async with agents.player.interaction(task) as interaction:
            for _ in range(self.config.guesses):
                segment = await interaction.turn(said)
                if segment.terminated or segment.last_reply == task.data.digit:
                    return
                said = "higher" if segment.last_reply < task.data.digit else "lower"


def last(trace) -> str:
    messages = trace.branches[-1].messages if trace.branches else []
    return next((one.content.strip() for one in reversed(messages) if one.role == "assistant"), "")
