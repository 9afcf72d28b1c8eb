"""Evaluates a version of a language-model run again, in this process: the same problems and random streams as in the run."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import torch

from headrace.core.errors import ComponentError, ComponentStalled, RunDirectoryError
from headrace.envs.text.asking import problems_of
from headrace.envs.text.building import build_text_environment
from headrace.llm import weights
from headrace.llm.config import RLConfig
from headrace.llm.engine.building import build_engine
from headrace.llm.engine.local import LocalGenerator
from headrace.llm.launch.place import LanguageRun
from headrace.llm.launch.starting import run_id_of
from headrace.llm.messages import Failure, PublishedWeights
from headrace.llm.orchestration.evaluation import Result, play_all, result_of, specs
from headrace.llm.orchestration.gatherer import Gatherer
from headrace.llm.orchestration.presence import Presence
from headrace.llm.orchestration.rollout import Rollout, RolloutPlayer, RolloutSpec
from headrace.llm.rendering import Renderer
from headrace.llm.tiny import load_tokenizer


def evaluate_run(place: LanguageRun, episodes: int | None, version: int | None) -> Result:
    """Play the problems that are not trained on.

    What it finds is what the run found for that version, bit for bit, if the run had lag 0 and ``episodes`` is None.

    Args:
        place: Of a run that is live, dead or finished.
        episodes: How many rollouts; None: as in the run.
        version: Of the weights; None: the newest.

    Raises:
        RunDirectoryError: There are no such weights, or they are of another run.
        ComponentStalled: It was not complete within ``deadlines.evaluate_s``.
        ComponentError: No rollout was completed.
        HeadraceError: Environment, model or weights cannot be used.
    """
    config = _for_here(place.read_rl_config())
    published = _published(place, version)
    torch.set_num_threads(config.inference.threads)
    section = config.env
    environment = build_text_environment(section.name, section.factory, section.kwargs, component="evaluation")
    todo = chosen(config, specs(problems_of(environment, "eval"), config.evaluation), episodes)
    gatherer = Gatherer(
        LocalGenerator(build_engine(config, place.model_dir, published)), rounds=True, at_once=config.inference.slots
    )
    player = RolloutPlayer(
        config=config,
        environment=environment,
        renderer=Renderer(load_tokenizer(place.model_dir)),
        gatherer=gatherer,
        presence=Presence(None),
        notes=_Unnoted(),
    )
    outcomes = asyncio.run(_played(todo, player, gatherer, config))
    found = result_of(outcomes, published.version)
    if found is None:
        raise ComponentError(
            f"no rollout of the evaluation of version {published.version} was completed",
            failed=len(outcomes),
            first=next((str(one.detail) for one in outcomes if isinstance(one, Failure)), "there are no problems"),
            fix="mend what it says; a rollout that failed is in no mean",
        )
    return found


def chosen(config: RLConfig, todo: Sequence[RolloutSpec], episodes: int | None) -> list[RolloutSpec]:
    """So many of the rollouts of an evaluation, with further samples of each problem where those of the run are too few."""
    if episodes is None or not todo:
        return list(todo)
    problems = list({spec.problem.id: spec.problem for spec in todo}.values())
    samples = math.ceil(episodes / len(problems))
    section = config.evaluation.model_copy(update={"problems": 0, "samples": samples})
    every = specs(problems, section)
    return sorted(every, key=lambda spec: spec.sample)[:episodes]


class _Unnoted:
    """Nobody keeps books of an evaluation."""

    def attempt(self, spec: RolloutSpec) -> None:
        """See `RolloutNotes.attempt`."""

    def attempt_failed(self, spec: RolloutSpec, failure: Failure, again: bool) -> None:
        """See `RolloutNotes.attempt_failed`."""

    def tokens(self, spec: RolloutSpec, versions: Sequence[int]) -> None:
        """See `RolloutNotes.tokens`."""


async def _played(
    todo: Sequence[RolloutSpec], player: RolloutPlayer, gatherer: Gatherer, config: RLConfig
) -> list[Rollout | Failure]:
    limit_s = config.deadlines.evaluate_s
    at_once = config.orchestrator.groups_per_step * config.orchestrator.group_size
    try:
        async with asyncio.timeout(limit_s):
            return await play_all(todo, player, gatherer, at_once)
    except TimeoutError:
        raise ComponentStalled(
            f"an evaluation was not complete after {limit_s:g} s",
            rollouts=len(todo),
            fix="raise deadlines.evaluate_s in the run's config.toml, or play fewer with --episodes",
        ) from None
    finally:
        await gatherer.close()


def _for_here(config: RLConfig) -> RLConfig:
    """The same on this machine's processor, if the run had a device that is not here."""
    if not config.inference.device.startswith("cuda") or torch.cuda.is_available():
        return config
    return config.model_copy(update={"inference": config.inference.model_copy(update={"device": "cpu"})})


def _published(place: LanguageRun, version: int | None) -> PublishedWeights:
    there = weights.versions(place.weights_dir)
    if not there or (version is not None and version not in there):
        raise RunDirectoryError(
            f"{place.path} has no weights" + (f" of version {version}" if version is not None else " yet"),
            has=", ".join(map(str, there)) or "none",
            fix="name one that it has; older ones are removed as the run goes on"
            if there
            else "wait for its warm start",
        )
    number = there[-1] if version is None else version
    return weights.look(place.weights_dir / str(number), run_id_of(place))
