"""Evaluates a version of a language-model run again, in this process: the same problems and random streams as in the run.

``python -m headrace.llm.evaluating RUN FOLDER WHAT PARENT`` does so with a limit for each call of the environment; see
`headrace.llm.evaluatingapart`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import cloudpickle
import torch

from headrace.core.errors import ComponentError, ComponentStalled, HeadraceError, SnapshotCorrupt
from headrace.core.files import write_whole
from headrace.envs.text.asking import problems_of
from headrace.envs.text.building import build_text_environment, close_environment
from headrace.envs.text.protocol import TextEnvironment
from headrace.ipc import printing
from headrace.ipc.child import wrapped
from headrace.llm import weights
from headrace.llm.config import RLConfig
from headrace.llm.engine.building import build_engine
from headrace.llm.engine.engine import Engine
from headrace.llm.engine.local import LocalGenerator
from headrace.llm.evaluatingapart import FOUND, lacking, limit_of, require_weights
from headrace.llm.guarding import Guard, end_with
from headrace.llm.launch.place import LanguageRun
from headrace.llm.launch.starting import run_id_of
from headrace.llm.messages import Failure
from headrace.llm.orchestration.evaluation import Result, play_all, result_of, specs
from headrace.llm.orchestration.gatherer import Gatherer
from headrace.llm.orchestration.presence import Presence
from headrace.llm.orchestration.rollout import Rollout, RolloutPlayer, RolloutSpec
from headrace.llm.rendering import Renderer
from headrace.llm.tiny import load_tokenizer
from headrace.llm.trying import built


def _unheard(text: str) -> None:
    """Nobody wants to know."""


def evaluate_run(
    place: LanguageRun,
    episodes: int | None,
    version: int | None,
    on_note: Callable[[str], None] = _unheard,
    guard: Guard | None = None,
) -> Result:
    """Play the problems that are not trained on.

    What it finds is what the run found for that version, bit for bit, if the run had lag 0 and ``episodes`` is None.

    Args:
        place: Of a run that is live, dead or finished.
        episodes: How many rollouts; None: as in the run.
        version: Of the weights; None: the newest that is there and sound when the model is made.
        on_note: Told of a newer version that is damaged and was passed over.
        guard: Ends this process where a call of the environment takes too long; None: it may take any time.

    Raises:
        RunDirectoryError: There are no such weights, or they are of another run.
        SnapshotCorrupt: The version that was named is damaged, or all are.
        ComponentStalled: It was not complete within ``deadlines.evaluate_s``.
        ComponentError: No rollout was completed.
        HeadraceError: Environment, model or weights cannot be used.
    """
    config = _for_here(place.read_rl_config())
    require_weights(place, version)
    torch.set_num_threads(config.inference.threads)
    with _environment(config, guard) as environment:
        todo = chosen(config, specs(problems_of(environment, "eval"), config.evaluation), episodes)
        engine = _engine(config, place, version, on_note)
        gatherer = Gatherer(LocalGenerator(engine), rounds=True, at_once=config.inference.slots)
        player = RolloutPlayer(
            config=config,
            environment=environment,
            renderer=Renderer(load_tokenizer(place.model_dir)),
            gatherer=gatherer,
            presence=Presence(None),
            notes=_Unnoted(),
        )
        outcomes = asyncio.run(_played(todo, player, gatherer, config))
    found = result_of(outcomes, engine.served.version)
    if found is None:
        raise ComponentError(
            f"no rollout of the evaluation of version {engine.served.version} was completed",
            failed=len(outcomes),
            first=next((str(one.detail) for one in outcomes if isinstance(one, Failure)), "there are no problems"),
            fix="mend what it says; a rollout that failed is in no mean",
        )
    return found


@contextmanager
def _environment(config: RLConfig, guard: Guard | None) -> Iterator[TextEnvironment]:
    section, component = config.env, "evaluation"
    if guard is None:
        environment = build_text_environment(section.name, section.factory, section.kwargs, component=component)
    else:
        environment = cast("TextEnvironment", built(config, component, guard))
    try:
        yield environment
    finally:
        close_environment(environment)


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
    most = config.inference.slots + config.inference.max_waiting  # more in one call is refused; without lag never fewer
    at_once = min(most, config.orchestrator.groups_per_step * config.orchestrator.group_size)
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


def _engine(config: RLConfig, place: LanguageRun, version: int | None, on_note: Callable[[str], None]) -> Engine:
    """An engine with the version that was named, or the newest, chosen only now: a live run has gone on in the meantime."""
    run_id = run_id_of(place)

    def built(folder: Path) -> Engine:
        return build_engine(config, place.model_dir, weights.look(folder, run_id))

    def pass_over(number: int, error: SnapshotCorrupt) -> None:
        on_note(f"version {number} is damaged and passed over: {error.facts.get('problem', error.what)}")

    if version is not None:
        return built(place.weights_dir / str(version))
    found = weights.of_newest(place.weights_dir, built, pass_over)
    if found is None:
        raise lacking(place, None, ())
    return found


def main(run: Path, folder: Path, episodes: int | None, version: int | None) -> None:
    """Evaluate, and leave what was found, or the error, with all notes in the folder."""
    place, notes = LanguageRun.open(run), list[str]()
    found: Result | HeadraceError
    try:
        with Guard(folder, limit_of(place.read_rl_config())) as guard:
            found = evaluate_run(place, episodes, version, notes.append, guard)
    except HeadraceError as error:
        found = error
    except Exception as error:  # noqa: BLE001 - a process border: told where somebody waits for it
        printing.tell(traceback.format_exc())
        found = wrapped("evaluation", error)
    write_whole(folder / FOUND, [cloudpickle.dumps((notes, found))])


if __name__ == "__main__":
    end_with(sys.argv[-1])
    printing.keep_printing()
    main(Path(sys.argv[1]), Path(sys.argv[2]), **json.loads(sys.argv[3]))
    # The answer is written; a thread of the environment that does not end would keep the interpreter from leaving.
    os._exit(0)
