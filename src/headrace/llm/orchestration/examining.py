"""Evaluates the policies that are due, one version at a time, and notices when they become worse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.core.errors import ComponentStalled, StaleWeights
from headrace.envs.text.protocol import Problem
from headrace.llm.config import RLConfig
from headrace.llm.messages import Failure, PublishedWeights
from headrace.llm.orchestration.collecting import Tell
from headrace.llm.orchestration.evaluation import Result, is_due, play_all, result_of, specs, wilson
from headrace.llm.orchestration.policies import Serving
from headrace.llm.orchestration.presence import Wait
from headrace.llm.orchestration.rollout import Rollout, RolloutPlayer
from headrace.llm.orchestration.wakeup import Wakeup, unless_stopped
from headrace.telemetry.board import Activity


class Examiner:
    """Evaluates.

    Args:
        config: Of the run.
        problems: The held-out ones; none: nothing is evaluated.
        player: Plays the rollouts.
        serving: Serves the policy once more, if another one answered.
        tell: Told of results and alarms.
        wakeup: Ends a wait of the run.
    """

    def __init__(
        self,
        config: RLConfig,
        problems: Sequence[Problem],
        player: RolloutPlayer,
        serving: Serving,
        tell: Tell,
        wakeup: Wakeup,
    ) -> None:
        self._config = config
        self._problems = problems
        self._player = player
        self._serving = serving
        self._tell = tell
        self._wakeup = wakeup
        self._last: int | None = None
        self._best: float | None = None

    async def examine(self, published: PublishedWeights, goes_on: Callable[[], bool]) -> None:
        """Evaluate a version that is served, if it is due. No other may be served meanwhile.

        Args:
            published: It.
            goes_on: Asked now and then whether the run does; may raise what ends it.

        Raises:
            StaleWeights: Another version answered, also after this one was served once more.
            ComponentStalled: It was not complete in time.
        """
        section, version = self._config.evaluation, published.version
        if not self._problems or not is_due(version, self._last, self._config.run.steps, section.every_steps):
            return
        try:
            result = result_of(await self._outcomes(goes_on), version)
        except StaleWeights as error:  # a server that started again serves the newest version there is
            self._alarm("evaluation_repeated", error.what, version)
            await self._serving.serve(published, have=version)
            result = result_of(await self._outcomes(goes_on), version)
        if not goes_on():
            return
        self._last = version
        if result is None:
            self._alarm(
                "evaluation_failed", f"no rollout of the evaluation of version {version} was completed", version
            )
            return
        self._tell("evaluation", result.facts())
        self._compare(result)

    def state(self) -> dict[str, Any]:
        """What is needed to go on, as JSON."""
        return {"last": self._last, "best": self._best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._last, self._best = state["last"], state["best"]

    def _compare(self, result: Result) -> None:
        if self._best is None:
            self._best = result.win_rate
        drop = self._config.evaluation.alarm_drop
        # Few games differ by as much by chance, so it must be beyond what those of the best could have been.
        within_chance = (
            wilson(result.wins, result.episodes)[1] >= wilson(self._best * result.episodes, result.episodes)[0]
        )
        if result.win_rate < self._best - drop and not within_chance:
            text = f"the evaluation fell to {100 * result.win_rate:.1f} % wins, from {100 * self._best:.1f} % at best"
            self._alarm("evaluation_fell", text, result.version, win_rate=result.win_rate, best=self._best)
        self._best = max(self._best, result.win_rate)

    def _alarm(self, kind: str, text: str, version: int, **facts: float) -> None:
        self._tell("alarm", {"kind": kind, "text": text, "step": version, **facts})

    async def _outcomes(self, goes_on: Callable[[], bool]) -> list[Rollout | Failure]:
        limit_s = self._config.deadlines.evaluate_s
        todo = specs(self._problems, self._config.evaluation)
        section = self._config.orchestrator
        wait = Wait(
            activity=Activity.WAIT_COMPLETIONS, on=self._serving.server, need=len(todo), timeout_s=limit_s
        )  # fmt: skip
        at_once = section.groups_per_step * section.group_size
        playing = play_all(todo, self._player, self._player.gatherer, at_once)
        with self._serving.presence.waiting(wait), self._serving.times.of("time/evaluate"):
            try:
                async with asyncio.timeout(limit_s):
                    return await unless_stopped(playing, self._wakeup, goes_on, [])
            except TimeoutError:
                raise ComponentStalled(
                    f"an evaluation was not complete after {limit_s:g} s",
                    waits_for=self._serving.server,
                    rollouts=len(todo),
                    fix="raise deadlines.evaluate_s, or evaluate fewer problems",
                ) from None
