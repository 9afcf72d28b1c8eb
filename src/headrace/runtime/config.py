"""One configuration for a whole run: the sections put together, checked against each other, read and written."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from headrace.algorithms.configs import LAYERS, UNREAD, DQNConfig, IQNConfig, SACConfig, TD3Config
from headrace.algorithms.on_policy_configs import ON_POLICY, PPOConfig, VTraceConfig
from headrace.core import toml
from headrace.core.agents import AgentsConfig
from headrace.core.config import (
    CheckpointConfig,
    CollectConfig,
    DeadlinesConfig,
    EnvConfig,
    EvaluationConfig,
    LearnConfig,
    RecordConfig,
    ReplayConfig,
    RolloutConfig,
    RunConfig,
    Section,
    SupervisionConfig,
)
from headrace.core.errors import ConfigError
from headrace.runtime import presets
from headrace.runtime.agreement import require_agreement
from headrace.runtime.pacing import window_chunks

_DEFAULT_ALGORITHM = TD3Config()


def _algorithm_name(section: object) -> object:
    """Which algorithm a section is of; one that names none is the default's."""
    if isinstance(section, dict):
        return section.get("name", _DEFAULT_ALGORITHM.name)
    return getattr(section, "name", None)


def _refuses_random(section: object) -> bool:
    """Whether a policy would have to have chosen them, or a member of the action space need not be an action."""
    if _algorithm_name(section) in ON_POLICY:
        return True
    actions = section.get("actions") if isinstance(section, dict) else getattr(section, "actions", None)
    given = actions if isinstance(actions, dict) else vars(actions) if isinstance(actions, Section) else {}
    return bool(given.get("cells") or given.get("mask_leaf"))


AlgorithmConfig = TD3Config | SACConfig | DQNConfig | IQNConfig | PPOConfig | VTraceConfig


IN_TURN: Mapping[str, object] = MappingProxyType(
    {"replay.slack_steps": None, "rollout.max_policy_lag": 0, "rollout.order": "chunk"}
)
"""Changes without which a configuration of an asynchronous run is refused where collecting and learning take turns."""


class ExperimentConfig(Section):
    """Everything a run is told.

    Raises:
        ConfigError: A section refuses a value, or two sections contradict each other: what would wait for ever
            or be ignored is refused here, before anything starts.
    """

    run: RunConfig = RunConfig()
    env: EnvConfig = EnvConfig()
    agents: AgentsConfig = AgentsConfig()
    replay: ReplayConfig = ReplayConfig()
    rollout: RolloutConfig = RolloutConfig()
    collect: CollectConfig = CollectConfig()
    learn: LearnConfig = LearnConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    deadlines: DeadlinesConfig = DeadlinesConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    record: RecordConfig = RecordConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    algorithm: Annotated[
        Annotated[TD3Config, Tag("td3")]
        | Annotated[SACConfig, Tag("sac")]
        | Annotated[DQNConfig, Tag("dqn")]
        | Annotated[IQNConfig, Tag("iqn")]
        | Annotated[PPOConfig, Tag("ppo")]
        | Annotated[VTraceConfig, Tag("vtrace")],
        Discriminator(_algorithm_name),
    ] = Field(default=_DEFAULT_ALGORITHM)
    """Hyperparameters; ``algorithm.name`` says which algorithm."""

    @property
    def on_policy(self) -> bool:
        """Whether each step is trained on once, soon after it was made, and not drawn from a replay."""
        return isinstance(self.algorithm, PPOConfig | VTraceConfig)

    @property
    def declared_ratio(self) -> float | None:
        """Updates per environment step that are declared; None: none are."""
        return None if self.on_policy or self.replay.free_running else self.replay.ratio

    @property
    def chunks_ahead(self) -> int:
        """Most chunks a group may be ahead of what the learner has acknowledged; on-policy, of what it has trained on."""
        if not self.on_policy:
            return self.collect.window_chunks
        return window_chunks(self.rollout.max_policy_lag, ordered=self.rollout.order == "chunk")

    @model_validator(mode="before")
    @classmethod
    def _defaults_without_random_actions(cls, values: Any) -> Any:
        """No random actions where nothing can be learned from them."""
        if isinstance(values, dict) and _refuses_random(values.get("algorithm", {})):
            collect = values.get("collect", {})
            if isinstance(collect, dict) and "random_steps" not in collect:
                return {**values, "collect": {**collect, "random_steps": 0}}
            if isinstance(collect, CollectConfig) and "random_steps" not in collect.model_fields_set:
                return {**values, "collect": collect.model_copy(update={"random_steps": 0})}
        return values

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        require_agreement(self)
        return self


_TABLES = ("env.kwargs", "agents.policies")
"""Values that are tables of the user's own, not sections."""

LANGUAGE_SECTIONS = frozenset({"model", "orchestrator", "inference", "trainer", "sampling", "sft"})
"""Sections that only language-model configurations have; see `headrace.llm.loading`."""


def table_of(name: str) -> dict[str, Any] | None:
    """What a preset or a file holds, whatever it describes; None: it cannot be read."""
    try:
        return tomllib.loads(presets.resolve(name).read_text(encoding="utf-8"))
    except (ConfigError, OSError, ValueError):
        return None


def describes_language_model(name: str) -> bool:
    """Whether a preset or a file is a language-model configuration; False also for what cannot be read."""
    table = table_of(name)
    return table is not None and bool(LANGUAGE_SECTIONS & table.keys())


def load_config(
    source: str | Path | ExperimentConfig | None,
    overrides: Mapping[str, object] | None = None,
    base: ExperimentConfig | None = None,
) -> ExperimentConfig:
    """Read a preset or a TOML file, change single keys, check everything.

    Args:
        source: A preset's name, a TOML file, a configuration to start from, or None for the defaults.
        overrides: By dotted key (``replay.capacity``). Text is read as a TOML value, and taken as it is where
            it is none. A table in the place of a section changes the keys it states and leaves the others; one of
            ``algorithm`` that names another algorithm takes the place of the whole.
        base: Where a key comes from that neither of the two states; None: from the defaults.

    Raises:
        ConfigError: Anything is wrong with it; names file, key, value and bound.
    """
    table = _table(source) if base is None else _laid_over(base, source)
    read = {
        key: toml.parse_value(value) if isinstance(value, str) else value for key, value in (overrides or {}).items()
    }
    _replace_algorithm(table, read.get("algorithm"))
    changes = dict(_dotted(read))
    _make_way(table, changes)
    for key, value in changes.items():
        _put(table, key, value)
    try:
        return ExperimentConfig.model_validate(table)
    except ConfigError as error:
        raise ConfigError(error.what, fix=error.fix, **error.facts, **_named(source)) from None


def dump_toml(config: Section) -> str:
    """The effective configuration of a run of any kind, every key, headed by its hash; `load_config` reads ours back."""
    return f"# sha256 of these values: {config_sha256(config)}\n\n{toml.dump(config)}"


def config_sha256(config: Section) -> str:
    """Hash of every value, whatever the order and the comments of the file they came from."""
    values = config.model_dump(mode="python")
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _table(source: str | Path | ExperimentConfig | None) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, ExperimentConfig):
        return source.model_dump()
    path = presets.resolve(source)
    table = toml.read(path, presets.A_PRESET)
    if LANGUAGE_SECTIONS & table.keys():
        raise ConfigError(
            f"{source} describes a language-model run, which has no collectors, no lanes and no record",
            file=path,
            fix="use what knows both kinds: headrace train, plan, eval and doctor; headrace check and rl know only these. "
            "Its twin in one process: headrace rl @ FILE --schedule inline --orchestrator.max_policy_lag 0",
        )
    return table


def _laid_over(base: ExperimentConfig, source: str | Path | ExperimentConfig | None) -> dict[str, Any]:
    """The keys that ``source`` states, the others as in ``base``."""
    stated = source.model_dump(exclude_unset=True) if isinstance(source, ExperimentConfig) else _table(source)
    table = base.model_dump()
    _make_way(table, dict(_dotted(stated)))
    _lay(table, stated)
    return table


def _lay(table: dict[str, Any], stated: dict[str, Any]) -> None:
    for key, value in stated.items():
        below = table.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _lay(below, value)
        else:
            table[key] = value


def _dotted(changes: Mapping[str, object], outer: str = "") -> Iterator[tuple[str, object]]:
    """The same changes, each of a single key: a table that replaced its section would undo what the file says there."""
    for name, value in changes.items():
        key = f"{outer}{name}"
        if isinstance(value, Mapping) and value and not key.startswith(_TABLES):
            yield from _dotted(value, f"{key}.")
        else:
            yield key, value


def _replace_algorithm(table: dict[str, Any], given: object) -> None:
    """Whoever hands over another algorithm means it instead of the one in the file, with all its keys."""
    below = table.get("algorithm")
    if (
        isinstance(given, Mapping)
        and below is not None
        and given.get("name", _algorithm_name(below)) != _algorithm_name(below)
    ):
        del table["algorithm"]


def _named(source: object) -> dict[str, object]:
    return {"configuration": source} if isinstance(source, str | Path) else {}


def _make_way(table: dict[str, Any], overrides: Mapping[str, object]) -> None:
    """Whoever names another environment, a network of their own or a kind of exploration means it, not what the file has beside it."""
    for key in overrides:
        section, _, last = key.rpartition(".")
        if last == "factory" and section.startswith("algorithm."):
            _drop(table, section, [layer for layer in LAYERS if f"{section}.{layer}" not in overrides])
        if key == "algorithm.exploration.kind":
            unread = UNREAD.get(str(overrides[key]), ())
            _drop(
                table,
                "algorithm.exploration",
                [name for name in unread if f"algorithm.exploration.{name}" not in overrides],
            )
    env = table.get("env")
    if not isinstance(env, dict):
        return
    for given, other in (("id", "factory"), ("factory", "id")):
        if f"env.{given}" in overrides and f"env.{other}" not in overrides:
            env.pop(other, None)
            if env.get(given) != overrides[f"env.{given}"]:
                env.pop("kwargs", None)


def _drop(table: dict[str, Any], section: str, names: Iterable[str]) -> None:
    found: Any = table
    for part in section.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, dict):
        for name in names:
            found.pop(name, None)


def _put(table: dict[str, Any], key: str, value: object) -> None:
    *outer, last = key.split(".")
    for part in outer:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"unknown key {key}",
                problem=f"{part} is a value, not a section",
                fix="remove what follows that name",
            )
        table = inner
    table[last] = value
