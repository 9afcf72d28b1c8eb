"""How a language-model run begins, or goes on: its directory, its id, who takes part, where it resumes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError, HeadraceError, RunDirectoryError
from headrace.llm import weights
from headrace.llm.config import RLConfig, RLDeadlinesConfig, RLSupervisionConfig
from headrace.llm.launch.aside import Aside
from headrace.llm.launch.chronicle import alarm_of
from headrace.llm.launch.deciding import Cast, full_cast, single_cast
from headrace.llm.launch.launcher import Launch
from headrace.llm.launch.place import LanguageRun, new_run_id, read_endpoints
from headrace.llm.launch.summary import Tally
from headrace.llm.loading import differences
from headrace.llm.modelfiles import require_same_model
from headrace.llm.payloads import WARM_START
from headrace.llm.training.checkpoints import RLCheckpoint, RLCheckpoints
from headrace.telemetry.board import Board
from headrace.telemetry.events import is_number, read_events
from headrace.telemetry.metrics import read_metrics

MAY_CHANGE = frozenset(
    {
        "run.steps", "run.run_duration_s", "run.directory", "inference.host", "inference.port", "inference.url",
        "inference.threads", "inference.device", "inference.slots", "inference.max_waiting", "inference.command",
        "trainer.threads", "trainer.device", "checkpoint.every_steps", "checkpoint.keep",
        *(f"deadlines.{name}" for name in RLDeadlinesConfig.model_fields),
        *(f"supervision.{name}" for name in RLSupervisionConfig.model_fields),
    }
)  # fmt: skip
"""Keys that change nothing of what is learned, so that a run may go on, or be shared, with other values."""
_OF_THE_TRAINER = "loss/mean"
"""In its lines of the metrics alone; the orchestrator tells the lag as well, of what it ships."""
_EVALUATED = ("version", "step", "problems", "episodes", "failed", "win_rate", "mean_reward", "low", "high")


def begin(config: RLConfig, path: Path | None, name: str, *, only_warm_start: bool = False) -> Launch:
    """Make the directory of a new run.

    Args:
        config: Of the run.
        path: The run directory; None: a new one under ``run.directory``.
        name: What it is called after.
        only_warm_start: Whether the run ends with it (``headrace sft``).

    Raises:
        ConfigError: Nothing but a warm start is wanted, and ``sft.checkpoint`` takes its place.
        RunDirectoryError: It belongs to a live or an earlier run, or cannot be written.
    """
    if only_warm_start and config.sft.checkpoint is not None:
        raise ConfigError(
            "the weights of sft.checkpoint are taken instead of a warm start, so that there is none to make",
            checkpoint=config.sft.checkpoint,
            fix="leave sft.checkpoint out; a model to be tuned further is named in model.path, as a Hugging Face folder",
        )
    place = LanguageRun.create_as(name, path, config, config.run.directory)
    cast = single_cast(WARM_START, warm_start=False) if only_warm_start else cast_of(config, warm_start=True)
    run_id = new_run_id()
    place.name_run(run_id)
    return Launch(config, place, cast, run_id, place.path)


def cast_of(config: RLConfig, *, warm_start: bool) -> Cast:
    """Who takes part in a whole run of this configuration."""
    serves = config.inference.backend != "external"
    return full_cast(warm_start=warm_start, inference=serves, inline=config.run.schedule == "inline")


def resume(path: Path, config: RLConfig | None) -> Launch:
    """Go on with the run in a directory, from its newest checkpoint; nothing in it is changed before `launch`.

    Args:
        path: The run directory.
        config: What is given this time; None: the run's own.

    Raises:
        ConfigError: What is given would change what is learned, or there is nothing to do.
        RunDirectoryError: It is alive, has left nothing to go on from, its model is another one, or it cannot be written.
    """
    place = LanguageRun.resume(path)
    try:
        before = place.read_rl_config()
        config = config or before
        refuse_changes(before, config)
        run_id = run_id_of(place)
        checkpoint, damaged = newest_checkpoint(place, run_id)
        step = checkpoint.version
        _require_work(place, config, step)
        tally = history(read_events(place.events_file), read_metrics(place.metrics_file), step)
        unusable = unusable_weights(place, run_id, step)
        require_same_model(place.model_dir, place.weights_dir / "0", run_id)
        aside = Aside.of(place, config, step, unusable)
        began_s = max(
            (event["t_s"] for event in read_events(place.events_file) if is_number(event.get("t_s"))), default=0.0
        )
    except BaseException:
        place.close()
        raise
    what = Launch(config, place, cast_of(config, warm_start=False), run_id, place.path)
    notes = tuple(_passed_over(damaged, unusable, step))
    resume = checkpoint.folder.absolute()
    return replace(
        what, resume=resume, tally=tally, sessions=aside.number + 1, began_s=began_s, notes=notes, aside=aside
    )


def newest_checkpoint(place: LanguageRun, run_id: str) -> tuple[RLCheckpoint, list[str]]:
    """The newest checkpoint of which every byte is as it was written; and what is wrong with newer ones.

    Raises:
        RunDirectoryError: There is none.
    """
    found, damaged = RLCheckpoints(place.checkpoints_dir, run_id, keep=1).newest_sound()
    if found is not None:
        return found, damaged
    begin = f"begin a new run in another directory{_its_weights(place)}"
    if not damaged:
        raise RunDirectoryError(
            f"{place.path} has no checkpoint to go on from", looked_in=place.checkpoints_dir, fix=begin
        )
    raise RunDirectoryError(
        f"{place.path} has no checkpoint that is sound",
        **{f"checkpoint {problem.partition(': ')[0]}": problem.partition(": ")[2] for problem in damaged},
        fix=f"restore one of them from a copy, or {begin}",
    )


def _its_weights(place: LanguageRun) -> str:
    """How another run takes over what this one has learned, if it has published anything."""
    if not weights.versions(place.weights_dir):
        return ""
    taken = shlex.quote(f"sft.checkpoint={place.path}")
    return f"; --set {taken} gives it the newest weights of this one"


def unusable_weights(place: LanguageRun, run_id: str, step: int) -> dict[int, str]:
    """Published versions up to a checkpoint's that are damaged, with what is wrong: a run that goes on needs none of them.

    The one that a server begins with is looked at in full, of others the manifest.

    Raises:
        RunDirectoryError: Version 0, which is needed, is missing or damaged.
    """
    found, seen = {}, False
    for version in [*weights.numbered(place.weights_dir, 1, step), 0]:
        folder = place.weights_dir / str(version)
        try:
            if seen and version:
                weights.look(folder, run_id)
            else:
                weights.verify(folder, run_id)
                seen = True
        except HeadraceError as error:
            found[version] = f"{error.facts.get('problem', error.what)}"
    if 0 in found:
        raise RunDirectoryError(
            "version 0 of the weights, without which no run goes on, is missing or damaged",
            folder=place.weights_dir / "0",
            problem=found[0],
            fix=f"restore it from a copy, or begin a new run in another directory{_its_weights(place)}",
        )
    return found


def _passed_over(damaged: Sequence[str], unusable: Mapping[int, str], step: int) -> Iterator[str]:
    for problem in damaged:
        yield f"checkpoint {problem}: it is passed over and put into earlier/; the run goes on from checkpoint {step}"
    for version, problem in unusable.items():
        yield f"version {version} of the weights is damaged, {problem}: it is put into earlier/"


def refuse_changes(before: RLConfig, config: RLConfig) -> None:
    """A run goes on as it began.

    Args:
        before: The run's own configuration.
        config: What is given this time.

    Raises:
        ConfigError: They differ in what changes what is learned.
    """
    changed = differences(config, before, MAY_CHANGE)
    if changed:
        fix = "leave these keys out, or begin a new run"
        jumps = "trainer.decay_steps" in changed and "trainer.decay" not in changed
        if jumps and config.trainer.decay_steps is None:
            fix = (
                f"set trainer.decay_steps = {before.settled().trainer.decay_steps}: trainer.decay {before.trainer.decay} "
                "falls over run.steps otherwise, and the rate would jump"
            )
        raise ConfigError("a run goes on as it began, and this would change what is learned", **changed, fix=fix)


def run_id_of(place: LanguageRun) -> str:
    """The id of the run in a directory."""
    with suppress(RunDirectoryError):  # where it is damaged, the board knows as well
        found = read_endpoints(place.endpoints_file)
        if found is not None:
            return found.run_id
    with Board.open(place.board_file) as board:
        return board.header.run_id


def _require_work(place: LanguageRun, config: RLConfig, step: int) -> None:
    summary = None
    with suppress(RunDirectoryError):  # one that is damaged is in nobody's way
        summary = place.read_summary()
    if summary is not None and summary.get("outcome") == "completed" and step >= config.run.steps:
        raise ConfigError(
            f"nothing to do: the run has its {config.run.steps:,} steps",
            run=place.path,
            fix="raise run.steps (--steps N)",
        )


def history(events: Iterable[Mapping[str, Any]], metrics: Iterable[Mapping[str, Any]], step: int) -> Tally:
    """What is known of a run that goes on from the checkpoint of ``step``.

    Args:
        events: Of its earlier sessions, as `read_events` gives them.
        metrics: Of them, as `read_metrics` gives them; those beyond an earlier checkpoint that was gone on from are cut.
        step: See above. What was told of later ones, now or when an earlier session went back, is of a past that is forgotten.
    """
    tally = Tally.going_on(step)
    for event in events:
        match event.get("kind"):
            case "resumed" if str(event.get("checkpoint")).isdecimal():
                tally.go_back(int(event["checkpoint"]))
            case "evaluated" if isinstance(event.get("step"), int):
                tally.note_evaluation({name: event[name] for name in _EVALUATED if name in event})
            case "alarm":
                tally.alarms.append(alarm_of(event))
            case "tuned" if is_number(event.get("steps")) and is_number(event.get("loss")):
                tally.sft_steps, tally.sft_loss = int(event["steps"]), float(event["loss"])
            case "fault" if event.get("component") != "supervisor":
                tally.count_fault(str(event.get("what", "died")))
            case "restarted":
                tally.restarts += 1
    tally.go_back(step)
    for line in metrics:
        if line["step"] <= step and _OF_THE_TRAINER in line:
            tally.note_lag(line)
    return tally
