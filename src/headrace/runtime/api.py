"""Training from Python: ``headrace.train(...)``."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from headrace.core.config import factory_name
from headrace.core.errors import ConfigError
from headrace.envs.building import refuse_handed_over
from headrace.ipc.pickling import what_stays
from headrace.runtime.config import AlgorithmConfig, ExperimentConfig, load_config
from headrace.runtime.experiment import run_experiment
from headrace.runtime.inheritance import beginning_of
from headrace.runtime.payloads import EnvFactory
from headrace.runtime.progress import OnProgress
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.sessions import Session, resume_or_begin

_LOG = logging.getLogger("headrace.train")
_SHORT = {
    "schedule": "run.schedule",
    "collectors": "run.collectors",
    "seed": "run.seed",
    "steps": "run.steps",
    "run_duration_s": "run.run_duration_s",
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has ended."""

    path: Path
    """The run directory."""
    summary: Mapping[str, Any]
    """As ``summary.json``; see ``outcome``, ``error``, ``books``, ``evaluations``."""

    @property
    def completed(self) -> bool:
        """Whether it ended as declared."""
        return bool(self.summary["outcome"] == "completed")


def train(
    config: str | Path | ExperimentConfig | None = None,
    *,
    env: str | EnvFactory | None = None,
    algorithm: AlgorithmConfig | None = None,
    run_dir: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    on_progress: OnProgress | None = None,
    resume: bool = False,
    **short: Any,
) -> Run:
    """Train, and return when the run has ended.

    Args:
        config: A preset's name, a TOML file, or a configuration; None starts from the defaults.
        env: A Gymnasium id, or a callable that returns one environment (it may be a lambda or a local function);
            instead of the configuration's. Commands (``headrace eval``) find it again only in a module of its own.
        algorithm: Hyperparameters, e.g. ``headrace.TD3(batch_size=256)``; instead of the configuration's.
        run_dir: Where the run is kept; None makes a new folder under ``run.directory``.
        settings: Any keys, dotted: ``{"replay.ratio": 0.5}``; or by section: ``{"replay": {"ratio": 0.5}}``.
        on_progress: Called a few times a second; the run ends in order once it returns True. Nobody is supervised meanwhile.
        resume: Go on with the run in ``run_dir``, or begin it if there is none yet. What is not given stays as the run
            had it; a callable environment has to be given again.
        **short: ``schedule``, ``collectors``, ``seed``, ``steps``, ``run_duration_s``.

    Returns:
        The run; one that failed is returned as well, with ``summary["error"]``, which is logged as ``headrace.train``.

    Raises:
        ConfigError: The run was described wrongly, or would learn something else when resumed; nothing was started.
        RunDirectoryError: The run directory cannot be used, or holds nothing to go on from; or ``learn.begin_from`` names none.
    """
    overrides = _dotted(short)
    factory = _factory(env, algorithm)
    if isinstance(env, str):
        overrides["env.id"] = env
    elif factory is not None:
        overrides["env.factory"] = factory_name(factory)
    if algorithm is not None:
        overrides["algorithm"] = algorithm.model_dump()
    with _session(config, {**overrides, **(settings or {})}, run_dir, resume, factory is not None) as session:
        summary = run_experiment(
            session.config, session.place, on_progress, factory, session.resume, make_way=session.make_way
        )
    run = Run(session.place.path, summary)
    if run.summary["error"] is not None:
        _LOG.error("the run failed: %s\n  see: headrace doctor %s", run.summary["error"], shlex.quote(str(run.path)))
    if "unwritten" in run.summary:
        _LOG.error("%s", run.summary["unwritten"])
    return run


def _dotted(short: Mapping[str, object]) -> dict[str, object]:
    """Keys of the configuration that arguments of `train` stand for."""
    unknown = sorted(set(short) - set(_SHORT))
    if unknown:
        raise ConfigError(
            f"train() has no argument {unknown[0]}",
            known=", ".join(_SHORT),
            fix="give any other key of the configuration by its dotted name in settings",
        )
    return {_SHORT[name]: value for name, value in short.items()}


def _factory(env: str | EnvFactory | None, algorithm: object) -> EnvFactory | None:
    """The callable environment, if it is one; refuses what was handed over for something else."""
    if env is not None and not isinstance(env, str) and not callable(env):
        raise ConfigError(
            "env is neither a Gymnasium id nor something that can be called",
            found=f"{type(env).__name__}: {env!r}"[:200],
            fix=f"hand over the class, or a function that builds one: every lane has its own (env={type(env).__name__})",
        )
    if algorithm is not None and not isinstance(algorithm, AlgorithmConfig):
        raise ConfigError(
            "algorithm holds no hyperparameters",
            found=f"{type(algorithm).__name__}: {algorithm!r}"[:200],
            fix='give e.g. headrace.PPO(lr=1e-3); a name alone belongs into settings={"algorithm.name": "ppo"}',
        )
    if env is None or isinstance(env, str):
        return None
    _require_pickled(env)
    return env


def _require_pickled(factory: EnvFactory) -> None:
    """Every process of a run is sent it: refuse one that cannot be, and name what stays here."""
    try:
        cloudpickle.dumps(factory)
    except Exception as error:
        # Pickling runs the factory's own code, which may raise anything.
        stays = what_stays(factory)
        raise ConfigError(
            f"the environment's factory {factory_name(factory)} cannot be pickled, and every process of the run is sent it",
            **({"stays_here": stays} if stays else {}),
            error=f"{type(error).__name__}: {error}",
            fix="put the factory into a module of its own, which each process imports; or make locks, files and sockets inside of it",
        ) from error


def _session(
    config: str | Path | ExperimentConfig | None,
    overrides: Mapping[str, object],
    run_dir: str | Path | None,
    resume: bool,
    has_factory: bool,
) -> Session:
    if not resume:
        effective = load_config(config, overrides)
        if not has_factory:
            refuse_handed_over(effective.env.factory)
        beginning_of(effective)  # refused before a directory is made
        return Session(RunDirectory.create(run_dir, effective), effective)
    if run_dir is None:
        raise ConfigError("resume does not say which run to go on with", fix="give run_dir")
    return resume_or_begin(Path(run_dir), config, overrides, has_factory=has_factory)
