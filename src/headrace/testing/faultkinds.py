"""The faults that ``headrace faults`` provokes, what must follow from each, and the short run it is provoked in."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from headrace.core.config import WHILE_CREDIT, WHILE_ROWS, DeadlinesConfig, SupervisionConfig
from headrace.core.errors import ConfigError
from headrace.core.refusals import nearest
from headrace.runtime.config import ExperimentConfig, load_config
from headrace.runtime.payloads import groups_of
from headrace.testing import provoke

LANE = 1
"""The lane in which environments misbehave; not 0, which the probe looks at first."""

_EPISODE_STEPS = 50
_STEPS_PER_LANE = 80
_AT_STEP = 11

Where = Literal["environment", "component", "parent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One fault."""

    name: str
    meaning: str
    where: Where = "environment"
    what: str | None = None
    """The environment's: a key of `headrace.testing.provoke`'s tables."""
    place: str = "step"
    at: int = _AT_STEP
    victim: str = ""
    """The process that is sent ``number``: a component, or ``fork server``."""
    number: int = 0
    limited_by: tuple[str, ...] = ()
    """Deadlines that are made short for it."""
    evaluates: bool = False
    by_time: bool = False
    """Whether its run ends by time: what is started again needs some, however fast the others are."""
    least_s: float = 2.0
    """Least duration of such a run."""
    outcome: str = "completed"
    exit_code: int = 0
    restarts: int | None = 0
    """None: it is not said how many."""
    says: tuple[str, ...] = ()
    """What the sentence must contain; ``{component}``, ``{lane}`` and ``{step}`` are filled in."""


def _dies(name: str, how: str, meaning: str) -> Kind:
    return Kind(name=f"step-{name}", what=name, meaning=meaning, restarts=1, by_time=True, says=("{component}", how))


def _hangs(name: str, meaning: str, place: str = "step") -> Kind:
    return Kind(
        name=f"{place}-{name}", what=name, place=place, at=_AT_STEP if place == "step" else 2, meaning=meaning,
        restarts=1, by_time=True, limited_by=(f"{place}_s",), says=("{component}", f"env.{place} for ", "lane {lane}"),
    )  # fmt: skip


def _spoils(name: str, meaning: str) -> Kind:
    field_name = "reward" if "reward" in name else "obs"
    return Kind(
        name=name, what=name, meaning=meaning, outcome="failed", exit_code=1,
        says=(f"field: {field_name}", "lane: {lane}", "step: {step}"),
    )  # fmt: skip


def _sent(victim: str, name: str, number: int, **more: Any) -> Kind:
    return Kind(name=name, where="component", victim=victim, number=number, by_time=True, **more)


def _parent(name: str, number: int, **more: Any) -> Kind:
    return Kind(name=name, where="parent", victim="supervisor", number=number, by_time=True, **more)


_ALL = (
    Kind(name="none", meaning="nothing at all: the short run by itself"),
    Kind(
        name="construct-raises", what="raises", place="construct", at=1, outcome="failed", exit_code=1,
        meaning="a collector's environment cannot be built", says=(provoke.WORDS, "component: {component}"),
    ),
    Kind(
        name="reset-raises", what="raises", place="reset", at=2, restarts=1, by_time=True,
        meaning="reset() raises", says=("lane {lane}", "reset()", provoke.WORDS),
    ),
    Kind(
        name="step-raises", what="raises", restarts=1, by_time=True,
        meaning="step() raises", says=("lane {lane}", "step()", provoke.WORDS),
    ),
    Kind(
        name="step-unpicklable", what="unpicklable", restarts=1, by_time=True,
        meaning="step() raises what cannot be pickled", says=("lane {lane}", "RefusesToTravel", provoke.WORDS),
    ),
    _dies("exit-0", "exit code 0", "step() leaves the process as if all were well"),
    _dies("exit-3", "exit code 3", "step() leaves the process with a code"),
    _dies("sys-exit", "exit code 0", "step() calls sys.exit"),
    _dies("sigkill", "SIGKILL", "the process is killed in step(), as for want of memory"),
    _dies("sigsegv", "SIGSEGV", "native code crashes in step()"),
    _hangs("sigstop", "the process is stopped in step()"),
    _hangs("loop", "step() loops for ever"),
    _hangs("sleep", "step() waits for ever"),
    _hangs("gil", "step() is in C code for ever, holding the interpreter lock"),
    _hangs("sleep", "reset() waits for ever", place="reset"),
    Kind(name="close-sleep", what="sleep", place="close", at=1, limited_by=("stop_s",),
         meaning="close() waits for ever"),
    _spoils("wrong-shape", "an observation of another shape"),
    _spoils("wrong-dtype", "an observation of another dtype"),
    _spoils("out-of-range", "an integer beyond its space"),
    _spoils("nan-observation", "NaN in an observation"),
    _spoils("infinite-observation", "infinity in an observation"),
    _spoils("nan-reward", "NaN as reward"),
    _spoils("infinite-reward", "infinity as reward"),
    Kind(name="prints", what="prints", meaning="step() prints 256 KiB, every time"),
    Kind(name="leaks", what="leaks", meaning="step() leaks 256 KiB, every time"),
    _sent("collector-1", "collector-killed", signal.SIGKILL, meaning="a collector is killed from outside",
          restarts=1, says=("collector-1", "SIGKILL")),
    _sent("collector-1", "collector-stopped", signal.SIGSTOP, meaning="a collector is stopped from outside",
          restarts=1, limited_by=("step_s", "reset_s", "wait_s", "commit_s"), says=("collector-1", "stopped by a signal")),
    _sent("learner", "learner-killed", signal.SIGKILL, meaning="the learner is killed",
          outcome="failed", exit_code=1, says=("learner ended", "SIGKILL")),
    _sent("learner", "learner-stopped", signal.SIGSTOP, meaning="the learner is stopped",
          outcome="stalled", exit_code=3, limited_by=("update_s", "publish_s", "wait_s", "commit_s"),
          restarts=None, least_s=20.0,  # while it waits for rows it is found last, after collectors gave up on it
          says=("learner", "stopped by a signal")),
    _sent("evaluator", "evaluator-killed", signal.SIGKILL, meaning="the evaluator is killed", evaluates=True,
          restarts=1, says=("evaluator", "SIGKILL")),
    _sent("fork server", "fork-server-killed", signal.SIGKILL, meaning="the process that starts all others is killed",
          outcome="failed", exit_code=1, says=("fork server is gone",)),
    _parent("parent-interrupted", signal.SIGINT, meaning="Ctrl-C", outcome="interrupted", exit_code=130),
    _parent("parent-terminated", signal.SIGTERM, meaning="the run is asked to end (SIGTERM)",
            outcome="interrupted", exit_code=130),
    _parent("parent-stopped", signal.SIGSTOP, meaning="the command is suspended for a second (Ctrl-Z)"),
    _parent("parent-killed", signal.SIGKILL, meaning="the command is killed; nothing may outlive it",
            outcome="killed", exit_code=-signal.SIGKILL),
)  # fmt: skip

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _ALL})
"""Every fault, in the order in which they are provoked."""

NEUTRAL: Mapping[str, object] = MappingProxyType(
    {
        "env.workers": 0,
        "env.on_fault": "replace",
        "supervision.learner_death": "fail",
        "supervision.when_spent": "fail",
        "supervision.max_rss_mib": None,
        # Of no use without the two above, and refused.
        **{
            f"supervision.{key}": SupervisionConfig.model_fields[key].default
            for key in ("lane_faults", "learner_save_every_s")
        },
    }
)
"""Rules of the user's that the short run does without: by them something else follows than `KINDS` says."""


def under(kind: Kind, config: ExperimentConfig) -> Kind:
    """What follows from a fault by the rules of the user's that stay."""
    if kind.what == "wrong-dtype" and config.env.cast_observations:  # an environment may depend on it, so it stays
        return replace(kind, outcome="completed", exit_code=0, says=())
    return kind


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the environment is here, measured by the run without a fault."""

    step_s: float = 0.0
    """Mean seconds of one lane's step."""
    deadlines: Mapping[str, float] = field(default_factory=dict)
    """The user's own, by name."""
    run_s: float = 0.0
    """Seconds of that run: time enough for a replacement to start, and for every lane to get on."""

    def limit_s(self, name: str) -> float:
        """A short deadline that an environment this fast does not miss, and never a longer one than the user's."""
        patient_s = max(1.0, 50.0 * self.step_s) * (2.0 if name in ("stop_s", "wait_s") else 1.0)
        return min(patient_s, self.deadlines.get(name, patient_s))


def choose(names: tuple[str, ...]) -> list[Kind]:
    """The faults of these names, or all; the run without a fault always comes first, because it sets the pace.

    Raises:
        ConfigError: There is none of that name.
    """
    for name in names:
        if name not in KINDS:
            meant = nearest(name, KINDS)
            raise ConfigError(
                f"there is no fault {name}",
                **({"nearest": meant} if meant else {}),
                known=", ".join(KINDS),
                fix="name one of these, or leave --kind out for all",
            )
    return [kind for kind in KINDS.values() if not names or kind.name in names or kind.name == "none"]


def shrink(config: ExperimentConfig, kind: Kind, pace: Pace) -> ExperimentConfig:
    """The user's configuration as a short run with room for one fault.

    Environment, algorithm and rules stay, but for those of `NEUTRAL`; sizes, lengths and some deadlines do not.
    ``inline`` becomes ``async``: in one process, a fault of an environment is the end of everything.

    Raises:
        ConfigError: Its environment has many agents.
    """
    if config.agents.count > 1:
        raise ConfigError(
            "faults are provoked in environments of one agent only",
            agents_count=config.agents.count,
            fix="headrace debug-run runs this configuration without faults",
        )
    group_size = min(config.env.group_size, 4)
    lanes, chunk = 2 * group_size, min(config.collect.chunk_steps, 8)
    changes: dict[str, Any] = {
        **NEUTRAL,
        "run.schedule": "async" if config.run.schedule == "inline" else config.run.schedule,
        "run.collectors": 2,
        "run.steps": _STEPS_PER_LANE * lanes,
        "run.run_duration_s": None,
        "env.lanes": lanes,
        "env.group_size": group_size,
        "env.max_episode_steps": min(config.env.max_episode_steps or _EPISODE_STEPS, _EPISODE_STEPS),
        "collect.chunk_steps": chunk,
        "collect.random_steps": min(config.collect.random_steps, 8 * lanes),
        **({} if config.on_policy else _shrunk_replay(config, lanes, chunk)),
        "evaluation.every_steps": 0,
        "evaluation.episodes": 1 if kind.evaluates else 0,
        "evaluation.episode_limit": True,
        "evaluation.target": None,
        "algorithm.batch_size": _shrunk_batch(config),
        "supervision.max_restarts": max(1, config.supervision.max_restarts),
        "supervision.backoff_s": min(0.1, config.supervision.backoff_s),
    }
    return load_config(config, changes | _shrunk_times(config, kind, pace))


def _shrunk_times(config: ExperimentConfig, kind: Kind, pace: Pace) -> dict[str, Any]:
    limits = {name: pace.limit_s(name) for name in kind.limited_by}
    changes: dict[str, Any] = {f"deadlines.{name}": limit_s for name, limit_s in limits.items()}
    if "wait_s" in limits:  # whoever waits gives up soon too, however patient the user is with others
        usual = DeadlinesConfig()
        others = [name for name in (*WHILE_CREDIT, *WHILE_ROWS) if name not in limits]
        changes |= {f"deadlines.{name}": min(getattr(config.deadlines, name), getattr(usual, name)) for name in others}
        changes |= {"deadlines.credit_s": limits["wait_s"], "deadlines.rows_s": 2.0 * limits["wait_s"]}
    if kind.by_time:
        changes |= {
            "run.steps": 10**9,
            "run.run_duration_s": max([kind.least_s, pace.run_s, *(3.0 * limit_s for limit_s in limits.values())]),
        }
    return changes


def _shrunk_replay(config: ExperimentConfig, lanes: int, chunk: int) -> dict[str, Any]:
    rows = 4 * chunk + config.env.frame_stack + config.replay.n_step
    return {
        "replay.capacity": lanes * max(rows, 2 * _STEPS_PER_LANE),
        "replay.learning_starts": 8 * lanes,
        "replay.ratio": min(config.replay.ratio or 1.0, 0.25),
        "replay.slack_steps": None,
    }


def _shrunk_batch(config: ExperimentConfig) -> int:
    """Not more than a few transitions, and as many as go through the network in equal parts."""
    parts: int = getattr(getattr(config.algorithm, "optimiser", None), "accumulate", 1)
    return max(parts, min(config.algorithm.batch_size, 32) // parts * parts)


def component_of(config: ExperimentConfig) -> str:
    """The collector that steps `LANE`."""
    group = LANE // config.env.group_size
    return next(f"collector-{n}" for n in range(config.run.collectors) if group in groups_of(config, n))


def expected_words(kind: Kind, config: ExperimentConfig) -> list[str]:
    """What the user must read after this fault."""
    return [says.format(component=component_of(config), lane=LANE, step=kind.at) for says in kind.says]
