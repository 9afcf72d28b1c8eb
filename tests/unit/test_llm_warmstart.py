"""The warm start, in this process: what it makes, what it says, when it leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.core.errors import ChannelClosed, ConfigError
from headrace.ipc.channel import Channel
from headrace.ipc.child import ChildContext
from headrace.llm import tiny, weights
from headrace.llm.config import ModelConfig, RLConfig, SFTConfig, TextEnvConfig
from headrace.llm.launch.starting import begin
from headrace.llm.launch.wording import stage_line
from headrace.llm.loading import load_rl_config
from headrace.llm.payloads import WARM_START, Basics, WarmStartPayload
from headrace.llm.warmstart import warm_start
from headrace.supervision.messages import Done, Ready, Report, Stop
from headrace.telemetry.board import Board

SMALL = ModelConfig(hidden=16, layers=1, heads=2, context_tokens=48)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def told_by(run: Path, *orders: Any, gone: bool = False, **sections: Any) -> list[Any]:
    """What a warm start in ``run`` says, orders having arrived before it began."""
    run.mkdir()
    config = RLConfig(**{"model": SMALL, "env": TextEnvConfig(kwargs={"held_out": 0.0}), **sections})
    basics = Basics(config=config, run=run, run_id=run.name)
    Board.create(basics.board, [(WARM_START, WARM_START)]).close()
    ours, theirs = Channel.pair()
    with theirs:
        for order in orders:
            ours.send(order, 1.0)
        try:
            if gone:
                ours.close()
            warm_start(ChildContext(WARM_START, WarmStartPayload(basics=basics), {}, theirs, os.getppid()))
            return ours.receive_all()
        finally:
            ours.close()


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return weights.read(run / "weights" / "0", run.name)[1]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_without_tuning_the_model_is_published_as_it_was_drawn(tmp_path: Path) -> None:
    ready, done = told_by(tmp_path / "a")
    assert isinstance(ready, Ready)
    assert isinstance(done, Done)
    assert done.facts["version"] == 0
    assert done.facts["sha256"] == weights.look(tmp_path / "a" / "weights" / "0", "a").sha256
    assert same(tensors(tmp_path / "a"), dict(tiny.make_model(SMALL, 39, 0).state_dict()))


def test_with_tuning_it_reports_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    sft = SFTConfig(steps=6, batch_size=4, expert_fraction=0.5)
    _, *reports, done = told_by(tmp_path / "a", sft=sft)
    assert [(report.kind, report.facts["step"]) for report in reports] == [("sft", step) for step in range(1, 7)]
    assert all(isinstance(report, Report) and report.facts["loss"] > 0 for report in reports)
    assert done.facts["sft_steps"] == 6
    told_by(tmp_path / "b", sft=sft)
    assert same(tensors(tmp_path / "a"), tensors(tmp_path / "b"))
    assert not same(tensors(tmp_path / "a"), dict(tiny.make_model(SMALL, 39, 0).state_dict()))
    with Board.open(tmp_path / "a" / "board") as board:
        assert board.read(WARM_START).counters["updates"] == 6


def test_demonstrations_that_were_cut_are_told(tmp_path: Path) -> None:
    model = SMALL.model_copy(update={"context_tokens": 12})
    sft = SFTConfig(steps=3, batch_size=4, expert_fraction=0.0)
    *_, alarm, done = told_by(tmp_path / "a", model=model, sft=sft)
    assert alarm.kind == "alarm"
    assert (alarm.facts["kind"], alarm.facts["episodes"]) == ("demonstrations_cut", 12)
    assert done.facts["cut"] == alarm.facts["cut"] > 0
    assert alarm.facts["text"] == (
        f"{done.facts['cut']} of 12 demonstrations were longer than model.context_tokens = 12 and were cut: "
        "nobody learns how they end"
    )
    *_, last, done = told_by(tmp_path / "b", sft=SFTConfig(steps=1, batch_size=2))
    assert (last.kind, done.facts["cut"]) == ("sft", 0)


def test_the_probe_is_what_a_loaded_model_says(tmp_path: Path) -> None:
    told_by(tmp_path / "a", sft=SFTConfig(steps=2, batch_size=4))
    published = weights.look(tmp_path / "a" / "weights" / "0", "a")
    loaded = tiny.load_model(tmp_path / "a" / "model", tensors(tmp_path / "a"))
    assert weights.make_probe(loaded, published.probe.token_ids) == published.probe
    assert len(published.probe.token_ids) > 5


def test_what_is_published_has_the_type_that_is_served(tmp_path: Path) -> None:
    model = SMALL.model_copy(update={"dtype": "bfloat16"})
    told_by(tmp_path / "a", model=model, sft=SFTConfig(steps=1, batch_size=2))
    assert {tensor.dtype for tensor in tensors(tmp_path / "a").values()} == {torch.bfloat16}
    loaded = tiny.load_model(tmp_path / "a" / "model", tensors(tmp_path / "a"), dtype="bfloat16")
    published = weights.look(tmp_path / "a" / "weights" / "0", "a")
    assert weights.make_probe(loaded, published.probe.token_ids) == published.probe


def test_a_stop_ends_it_and_publishes_nothing(tmp_path: Path) -> None:
    told = told_by(tmp_path / "a", Stop("enough"), sft=SFTConfig(steps=50, batch_size=2))
    assert told[-1] == Done({"stopped": True, "steps": 1})
    assert weights.versions(tmp_path / "a" / "weights") == []


def test_it_leaves_when_its_supervisor_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ChannelClosed):
        told_by(tmp_path / "a", gone=True, sft=SFTConfig(steps=50, batch_size=2))


def test_another_runs_weights_are_taken_over(tmp_path: Path) -> None:
    told_by(tmp_path / "a", sft=SFTConfig(steps=2, batch_size=4))
    told_by(tmp_path / "b", sft=SFTConfig(checkpoint=str(tmp_path / "a")))
    assert same(tensors(tmp_path / "a"), tensors(tmp_path / "b"))


def test_weights_are_taken_instead_of_a_warm_start_and_not_trained_on(tmp_path: Path) -> None:
    """A preset states sft.steps as well; made on top, they overwrote what reinforcement had learned."""
    sft = SFTConfig(steps=6, batch_size=4)
    told_by(tmp_path / "a", sft=sft)
    _, done = told_by(tmp_path / "b", sft=sft.model_copy(update={"checkpoint": str(tmp_path / "a")}))
    assert same(tensors(tmp_path / "a"), tensors(tmp_path / "b"))
    assert done.facts["sft_steps"] == 0
    metadata = weights.metadata_of(tmp_path / "b" / "weights" / "0", "b")
    assert metadata["sft_steps"] == 0
    assert metadata["model_files"].keys() == {path.name for path in (tmp_path / "b" / "model").iterdir()}


def test_a_warm_start_alone_is_refused_where_weights_take_its_place(tmp_path: Path) -> None:
    config = load_rl_config([], {"sft.steps": 6, "sft.checkpoint": "a"})
    with pytest.raises(ConfigError, match="so that there is none to make"):
        begin(config, tmp_path / "run", "x", only_warm_start=True)
    assert not (tmp_path / "run").exists()
    assert "demonstrations" not in stage_line([WARM_START], config)


@pytest.mark.parametrize(
    ("checkpoint", "env", "message"),
    [
        ("a", TextEnvConfig(name="reverse-text"), r"sft\.checkpoint was made for another vocabulary"),
        ("nowhere", TextEnvConfig(), "there is no model that transformers can load"),
    ],
)
def test_a_checkpoint_that_does_not_fit(tmp_path: Path, checkpoint: str, env: TextEnvConfig, message: str) -> None:
    told_by(tmp_path / "a")
    with pytest.raises(ConfigError, match=message):
        told_by(tmp_path / "b", env=env, sft=SFTConfig(checkpoint=str(tmp_path / checkpoint)))


def test_a_run_that_published_nothing_is_no_checkpoint(tmp_path: Path) -> None:
    told_by(tmp_path / "a", Stop("enough"), sft=SFTConfig(steps=50, batch_size=2))
    (tmp_path / "a" / "weights").mkdir()
    with pytest.raises(ConfigError, match="in which nothing was published"):
        told_by(tmp_path / "b", sft=SFTConfig(checkpoint=str(tmp_path / "a")))


def test_an_environment_without_a_teacher_is_no_obstacle_where_nothing_is_shown(tmp_path: Path) -> None:
    told_by(tmp_path / "a", env=TextEnvConfig(name="reverse-text"))
    assert weights.versions(tmp_path / "a" / "weights") == [0]
