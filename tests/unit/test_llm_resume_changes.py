"""What may change when a run goes on: nothing of what was learned, or is to be learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.llm.config import RLConfig
from headrace.llm.launch.starting import MAY_CHANGE, refuse_changes
from headrace.llm.loading import load_rl_config
from headrace.llm.training.checkpoints import RLCheckpoint, settings_that_count
from headrace.llm.training.rates import rate_at

OTHER = {
    "run.steps": 200,
    "run.run_duration_s": 9.0,
    "run.directory": "elsewhere",
    "inference.host": "0.0.0.0",
    "inference.url": None,
    "inference.device": "cuda",
    "inference.command": [],
    "trainer.device": "cuda",
    "supervision.probe_tolerance": 0.1,
}
"""Values that differ from the defaults where these are no numbers; where they cannot alone, the same."""


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("key", sorted(MAY_CHANGE))
def test_what_may_change_at_a_resume_changes_no_rate(key: str, decay: str) -> None:
    """Or it is refused: those of steps that were made are what they were, and it goes on from the last one."""
    for length in ({},) if decay == "constant" else ({}, {"trainer.decay_steps": 20}, {"trainer.decay_steps": 100}):
        said = {"run.steps": 100, "trainer.decay": decay, "trainer.warmup_steps": 3, **length}
        before = load_rl_config([], said)
        section, name = key.split(".")
        value = OTHER[key] if key in OTHER else type(had := getattr(getattr(before, section), name))(had + 1)
        after = load_rl_config([], {**said, key: value})
        if key == "run.steps" and decay != "constant" and not length:
            with pytest.raises(ConfigError, match="would change what is learned"):
                refuse_changes(before, after)
            with pytest.raises(ConfigError, match="made with other settings"):
                read_back(before).require_fits(after)
        else:
            refuse_changes(before, after)
            read_back(before).require_fits(after)
            assert rates(before) == rates(after)


def read_back(config: RLConfig) -> RLCheckpoint:
    facts = {"folder": Path("c"), "version": 1, "run_id": "r", "sha256": "", "weights_sha256": "", "carry": {}}
    return RLCheckpoint(**facts, config=json.loads(json.dumps(settings_that_count(config))))  # type: ignore[arg-type]


def rates(config: RLConfig) -> list[float]:
    return [rate_at(config.trainer, step, config.run.steps) for step in range(100)]


def test_a_run_whose_rate_falls_becomes_longer_only_where_it_is_said_over_what_it_falls() -> None:
    before = load_rl_config([], {"run.steps": 100, "trainer.decay": "cosine"})
    with pytest.raises(ConfigError) as caught:
        refuse_changes(before, load_rl_config([], {"run.steps": 200, "trainer.decay": "cosine"}))
    assert str(caught.value) == (
        "[CFG-001] a run goes on as it began, and this would change what is learned\n"
        "  trainer.decay steps: 200 here, 100 there\n"
        "  fix: set trainer.decay_steps = 100: trainer.decay cosine falls over run.steps otherwise, and the rate would jump"
    )
    longer = load_rl_config([], {"run.steps": 200, "trainer.decay": "cosine", "trainer.decay_steps": 100})
    refuse_changes(before, longer)
    read_back(before).require_fits(longer)
    assert rates(longer) == rates(before)
    assert rate_at(longer.trainer, 150, 200) == pytest.approx(longer.trainer.lr * longer.trainer.final_lr_fraction)


@pytest.mark.parametrize("decay", ["constant", "cosine"])
def test_a_checkpoint_from_before_a_setting_existed_fits(decay: str) -> None:
    config = load_rl_config([], {"trainer.decay": decay})
    checkpoint = read_back(config)
    del checkpoint.config["trainer"]["decay_steps"]
    checkpoint.require_fits(config)


def test_another_decay_is_refused_without_a_length_that_would_not_help() -> None:
    before, after = (load_rl_config([], {"trainer.decay": decay}) for decay in ("constant", "cosine"))
    for one, other in ((before, after), (after, before)):
        with pytest.raises(ConfigError, match="fix: leave these keys out, or begin a new run"):
            refuse_changes(one, other)
