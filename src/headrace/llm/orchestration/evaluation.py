"""Evaluation: which versions, which rollouts, and what the result says. What plays them is handed in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import StaleWeights
from headrace.envs.text.protocol import Problem
from headrace.llm.config import RLEvaluationConfig
from headrace.llm.messages import Failure
from headrace.llm.orchestration.gatherer import Gatherer
from headrace.llm.orchestration.rollout import Rollout, RolloutPlayer, RolloutSpec

_Z = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


def is_due(version: int, last: int | None, steps: int, every_steps: int) -> bool:
    """Whether a version is evaluated: the first, the last, and whenever a multiple of ``every_steps`` was reached.

    Args:
        version: That is served now.
        last: That was evaluated last; None if none was.
        steps: Of the run; its last version has this number.
        every_steps: 0: only the first and the last.
    """
    if last is None:
        return True
    if version <= last:
        return False
    return version == steps or bool(every_steps and version // every_steps > last // every_steps)


def wilson(wins: float, episodes: int) -> tuple[float, float]:
    """Lower and upper end of the 95 % interval of a rate, after Wilson; also sensible at 0, at 1 and for few episodes."""
    if not episodes:
        return 0.0, 1.0
    rate, share = wins / episodes, _Z * _Z / episodes
    middle = (rate + share / 2) / (1 + share)
    half = _Z * math.sqrt(rate * (1 - rate) / episodes + share / (4 * episodes)) / (1 + share)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one evaluation found. Rollouts that failed are counted, and in no mean."""

    version: int
    step: int
    problems: int
    episodes: int
    failed: int
    wins: int
    mean_reward: float

    @property
    def win_rate(self) -> float:
        """Of the episodes that were completed."""
        return self.wins / self.episodes

    def facts(self) -> dict[str, float | int]:
        """As it is reported."""
        low, high = wilson(self.wins, self.episodes)
        return {
            "version": self.version,
            "step": self.step,
            "problems": self.problems,
            "episodes": self.episodes,
            "failed": self.failed,
            "win_rate": self.win_rate,
            "mean_reward": self.mean_reward,
            "low": low,
            "high": high,
        }


def specs(problems: Sequence[Problem], section: RLEvaluationConfig) -> list[RolloutSpec]:
    """The rollouts of an evaluation; those of one problem and sample draw from the same stream in each."""
    chosen = problems[: section.problems] if section.problems else problems
    return [
        RolloutSpec(
            group=-1 - index,
            sample=sample,
            problem=problem,
            stream="evaluation",
            keys=(index, sample),
            temperature=section.temperature,
        )
        for index, problem in enumerate(chosen)
        for sample in range(section.samples)
    ]


def result_of(outcomes: Sequence[Rollout | Failure], version: int) -> Result | None:
    """Sum the outcomes of one evaluation up; None if none was completed.

    Raises:
        StaleWeights: A token was chosen by another version, so that the result would be labelled wrongly.
    """
    done = [outcome for outcome in outcomes if isinstance(outcome, Rollout)]
    for rollout in done:
        foreign = [seen for seen in rollout.chosen_versions if seen != version]
        if foreign:
            raise StaleWeights(
                f"an evaluation of version {version} was answered by version {foreign[0]}",
                rollout=rollout.spec.id,
                problem=rollout.spec.problem.id,
                fix="see who else updates the weights of this server, or why it started again",
            )
    if not done:
        return None
    return Result(
        version=version,
        step=version,
        problems=len({rollout.spec.problem.id for rollout in done}),
        episodes=len(done),
        failed=len(outcomes) - len(done),
        wins=sum(rollout.judgement.solved for rollout in done),
        mean_reward=sum(rollout.judgement.reward for rollout in done) / len(done),
    )


async def play_all(
    todo: Sequence[RolloutSpec], player: RolloutPlayer, gatherer: Gatherer, at_once: int
) -> list[Rollout | Failure]:
    """Play rollouts, ``at_once`` at a time; their outcomes in order. In rounds, who plays together is no matter of time.

    The deadline is the caller's; when it cancels this, what runs is cancelled.
    """
    loop = asyncio.get_running_loop()
    waiting = list(reversed(range(len(todo))))
    tasks: dict[int, asyncio.Task[Rollout | Failure]] = {}
    over: asyncio.Future[None] = loop.create_future()
    ended = 0

    def begin() -> None:
        index = waiting.pop()
        gatherer.enter()
        tasks[index] = loop.create_task(player.play(todo[index]))
        tasks[index].add_done_callback(lambda _: end())

    def end() -> None:
        nonlocal ended
        ended += 1
        if waiting and not over.done():
            begin()  # before a round is looked for
        gatherer.leave()
        if ended == len(todo) and not over.done():
            over.set_result(None)

    try:
        for _ in range(min(at_once, len(todo))):
            begin()
        if todo:
            await over
    except asyncio.CancelledError:
        over.cancel()
        for task in tasks.values():
            task.cancel()
        raise
    return [await tasks[index] for index in range(len(todo))]  # all are done
