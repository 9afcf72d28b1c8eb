"""The trainer's process, called in this one: what it publishes, tells, keeps, and goes on from."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.core.errors import (
    BatchRefused,
    ChannelClosed,
    ComponentStalled,
    ConfigError,
    NonFiniteValue,
    RunDirectoryError,
)
from headrace.ipc.channel import Channel
from headrace.ipc.child import ChildContext
from headrace.llm import transport
from headrace.llm.messages import Batch
from headrace.llm.payloads import TrainerPayload
from headrace.llm.tiny import load_model
from headrace.llm.trainer import trainer
from headrace.llm.training.alarms import Alarms
from headrace.llm.training.checkpoints import RLCheckpoints, read_checkpoint
from headrace.llm.training.trainer import Trainer
from headrace.llm.transport import FileSink, batch_path
from headrace.llm.weights import make_probe, newest, read, tensors_sha256, versions
from headrace.supervision.messages import Done, Ready, Report, Stop
from headrace.telemetry.board import Board, State
from llm_support import batch, sampled_by
from llm_training_support import RUN, Run, make_tiny_folder, rl_config


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder; only read."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return make_tiny_folder(folder)


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> Run:
    return Run(tmp_path / "run", model_folder)


def test_every_batch_becomes_a_version(run: Run) -> None:
    run.ship(0, 1, 2)
    ready, *reports, done = run.train(3)
    assert ready == Ready({"version": 0, "threads": 1, "device": "cpu"})
    steps = [report.facts for report in reports if report.kind == "step"]
    assert [(facts["step"], facts["version"]) for facts in steps] == [(1, 1), (2, 2), (3, 3)]
    names = {"time/step", "time/wait_for_batch", "time/broadcast_weights", "time/forward_backward", "optim/lr"}
    assert names <= steps[0]["metrics"].keys()
    found = newest(run.basics.weights, RUN)
    assert found is not None
    assert done == Done({"version": 3, "weights_sha256": found.sha256})
    assert steps[-1]["weights_sha256"] == found.sha256
    assert list(run.basics.rollouts.iterdir()) == []
    with Board.open(run.basics.board) as board:
        view = board.read("trainer")
    assert view.state is State.STOPPING
    assert {name: view.counters[name] for name in ("updates", "version", "checkpoints")} == {
        "updates": 3,
        "version": 3,
        "checkpoints": 1,
    }


def test_a_published_version_is_what_was_trained_and_its_probe_proves_it(run: Run) -> None:
    run.ship(0)
    run.train(1)
    published, tensors = read(run.basics.weights / "1", RUN)
    checkpoint = read_checkpoint(run.basics.checkpoints / "1", RUN)
    assert checkpoint.weights_sha256 == published.sha256 == tensors_sha256(tensors)
    state = checkpoint.load()
    assert all(torch.equal(state[f"model.{name}"], tensor) for name, tensor in tensors.items())
    served = load_model(run.basics.model, tensors)
    assert make_probe(served, published.probe.token_ids) == published.probe
    first = read(run.basics.weights / "0", RUN)[0]
    assert published.probe.token_ids == first.probe.token_ids
    assert published.probe.logprobs != first.probe.logprobs


def test_six_steps_are_three_and_three_resumed_bit_for_bit(tmp_path: Path, model_folder: Path) -> None:
    whole, halves = Run(tmp_path / "whole", model_folder), Run(tmp_path / "halves", model_folder)
    whole.ship(*range(6))
    whole.train(6)
    halves.ship(0, 1, 2)
    halves.train(3)
    halves.ship(3, 4, 5)
    halves.train(6, resume=halves.basics.checkpoints / "3")
    found = [load_file(run.basics.checkpoints / "6" / "state.safetensors") for run in (whole, halves)]
    assert found[0].keys() == found[1].keys()
    assert any(name.startswith("optimiser.") for name in found[0])
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
    last = [newest(run.basics.weights, RUN) for run in (whole, halves)]
    assert last[0] is not None
    assert last[1] is not None
    assert (last[0].version, last[0].sha256, last[0].probe) == (6, last[1].sha256, last[1].probe)
    assert read_checkpoint(halves.basics.checkpoints / "6", RUN).carry == {"shipped": 5}


def test_resuming_takes_back_what_came_after_the_checkpoint(run: Run) -> None:
    run.ship(*range(4))
    run.train(4, checkpoint={"every_steps": 2, "keep": 9})
    assert sorted(path.name for path in run.basics.checkpoints.iterdir()) == ["2", "4"]
    assert versions(run.basics.weights) == [0, 2, 3, 4]
    run.ship(2, carry={"again": True})
    sent = run.train(3, resume=run.basics.checkpoints / "2")
    assert (
        Report("resumed", {"text": "went back to version 2: removed weights [3, 4] and checkpoints [4]", "version": 2})
        in sent
    )
    assert sorted(path.name for path in run.basics.checkpoints.iterdir()) == ["2", "3"]
    assert versions(run.basics.weights) == [0, 2, 3]


def test_resuming_publishes_the_version_that_is_missing(run: Run) -> None:
    run.ship(0)
    run.train(1)
    before = newest(run.basics.weights, RUN)
    (run.basics.weights / "1").rename(run.basics.run / "away")
    run.train(1, resume=run.basics.checkpoints / "1")
    assert newest(run.basics.weights, RUN) == before


def test_what_a_trainer_left_that_was_killed_while_it_wrote_is_removed(run: Run) -> None:
    run.ship(0)
    left = [
        folder / name
        for folder in (run.basics.checkpoints, run.basics.weights)
        for name in (".2.4711", ".7.1", ".1.gone")
    ]
    for path in left:
        path.mkdir(parents=True)
        (path / "state.safetensors").write_bytes(b"half")
    kept = run.basics.checkpoints / ".snapshot"  # of a file server, for instance
    kept.mkdir()
    run.train(1)
    assert [path for path in left if path.exists()] == []
    assert kept.is_dir()


def test_being_told_to_stop_leaves_a_checkpoint(run: Run) -> None:
    run.ship(0, 1)
    run.train(1)
    assert not batch_path(run.basics.rollouts, 0).exists()
    ready, done = run.train(6, resume=run.basics.checkpoints / "1", stop=True)
    assert isinstance(ready, Ready)
    assert done.facts["version"] == 1
    assert batch_path(run.basics.rollouts, 1).exists()


def test_a_stop_ends_the_wait_for_a_batch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives while the trainer waits, which it would for 1000 s; what it has by then is kept."""
    ours, theirs = Channel.pair()
    asleep = transport.FileSource._asleep

    def told_meanwhile(source: transport.FileSource, timeout_s: float) -> list[int]:
        theirs.send(Stop("enough"), 1.0)
        return asleep(source, timeout_s)

    monkeypatch.setattr(transport.FileSource, "_asleep", told_meanwhile)
    monkeypatch.setattr(transport, "LOOK_S", 1000.0)
    run.ship(0)
    config = rl_config(deadlines={"batch_s": 1000.0})
    with closing(ours), closing(theirs):
        payload = TrainerPayload(basics=dataclasses.replace(run.basics, config=config))
        trainer(ChildContext("trainer", payload, {}, ours, os.getppid()))
        assert theirs.receive_all()[-1].facts["version"] == 1
    assert RLCheckpoints(run.basics.checkpoints, RUN, 2).newest_sound()[0] is not None


def test_without_a_batch_the_wait_ends_by_naming_the_orchestrator(run: Run) -> None:
    with pytest.raises(ComponentStalled, match=r"trainer waited 0\.01 s for orchestrator"):
        run.train(1)


def test_what_was_trained_is_kept_also_where_no_batch_comes_any_more(run: Run) -> None:
    run.ship(0)
    with pytest.raises(ComponentStalled):
        run.train(6)
    found, _ = RLCheckpoints(run.basics.checkpoints, RUN, 2).newest_sound()
    assert found is not None
    assert (found.version, found.carry) == (1, {"shipped": 0})
    run.ship(1)
    run.train(2, resume=found.folder)


def test_a_step_that_is_broken_off_between_two_gradient_steps_is_not_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are those of no version."""
    step, calls = Trainer._gradient_step, itertools.count()

    def broken(self: Trainer, *args: Any) -> int:
        if next(calls) == 5:  # the first step has four
            raise NonFiniteValue("the loss is not finite", fix="lower trainer.lr")
        return step(self, *args)

    monkeypatch.setattr(Trainer, "_gradient_step", broken)
    run.ship(0, 1)
    with pytest.raises(NonFiniteValue):
        run.train(6)
    assert RLCheckpoints(run.basics.checkpoints, RUN, 2).newest_sound() == (None, [])


def test_without_a_supervisor_it_leaves(run: Run) -> None:
    ours, theirs = Channel.pair()
    theirs.close()
    with closing(ours), pytest.raises(ChannelClosed):
        trainer(ChildContext("trainer", TrainerPayload(basics=run.basics), {}, ours, os.getppid()))


def test_a_batch_that_is_too_old_is_refused_and_stays(run: Run) -> None:
    run.ship(0)
    late = batch(0, 8)
    FileSink(run.basics.run / "elsewhere", RUN)
    transport.write_batch(batch_path(run.basics.rollouts, 1), Batch(run_id=RUN, step=1, samples=late.samples))
    with pytest.raises(BatchRefused, match="a token is 1 versions old, and 0 are allowed"):
        run.train(2)
    assert batch_path(run.basics.rollouts, 1).exists()
    assert versions(run.basics.weights) == [0, 1]
    assert [path.name for path in run.basics.checkpoints.iterdir()] == ["1"]


def test_a_batch_or_a_checkpoint_of_another_run_is_refused(run: Run) -> None:
    run.ship(0)
    run.train(1)
    run.basics = dataclasses.replace(run.basics, run_id="other")
    with pytest.raises(RunDirectoryError, match="weights of another run"):
        run.train(2)
    with pytest.raises(RunDirectoryError, match="checkpoint is of another run"):
        read_checkpoint(run.basics.checkpoints / "1", "other")


def test_a_checkpoint_is_gone_on_from_with_the_settings_it_was_made_with(run: Run) -> None:
    run.ship(0, 1)
    run.train(1)
    with pytest.raises(ConfigError) as raised:
        run.train(2, resume=run.basics.checkpoints / "1", trainer={"lr": 3e-4})
    assert raised.value.facts["trainer_lr"] == "0.01 then, 0.0003 now"
    run.train(2, resume=run.basics.checkpoints / "1", deadlines={"train_s": 5.0}, evaluation={"every_steps": 3})


def test_the_newest_sound_checkpoint_is_found_and_the_oldest_go(run: Run) -> None:
    run.ship(*range(4))
    run.train(4, checkpoint={"every_steps": 1, "keep": 3})
    store = RLCheckpoints(run.basics.checkpoints, RUN, 3)
    assert [found.version for found in store.complete()] == [4, 3, 2]
    path = run.basics.checkpoints / "4" / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (run.basics.checkpoints / "3" / "manifest.json").write_text("{")
    with pytest.raises(RunDirectoryError, match="a checkpoint is damaged"):
        read_checkpoint(run.basics.checkpoints / "3", RUN)
    (run.basics.checkpoints / ".5.1").mkdir()
    found, problems = store.newest_sound()
    assert found is not None
    assert found.version == 2
    assert problems == [
        "4: a checkpoint is damaged, state.safetensors: content and checksum differ",
        (
            "3: a checkpoint is damaged, manifest.json: JSONDecodeError: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)"
        ),
    ]
    assert RLCheckpoints(run.basics.run / "none", RUN, 3).newest_sound() == (None, [])


def test_a_damaged_checkpoint_is_written_anew_when_the_run_comes_there_again(run: Run) -> None:
    run.ship(*range(2))
    run.train(2, checkpoint={"every_steps": 1, "keep": 9})
    place = run.basics.checkpoints / "2"
    (place / "manifest.json").write_text("{")
    run.ship(1)
    run.train(2, resume=run.basics.checkpoints / "1")
    assert RLCheckpoints(run.basics.checkpoints, RUN, 9).newest_sound()[0] == read_checkpoint(place, RUN)
    assert sorted(path.name for path in run.basics.checkpoints.iterdir()) == ["1", "2"]


def test_a_checkpoint_of_another_run_is_not_replaced(run: Run) -> None:
    run.ship(0)
    run.train(1)
    store = RLCheckpoints(run.basics.checkpoints, "other", 9)
    with pytest.raises(RunDirectoryError, match="of another run"):
        store.write(1, {}, weights_sha256="", carry={}, config=rl_config())
    assert [path.name for path in run.basics.checkpoints.iterdir()] == ["1"]
    assert read_checkpoint(run.basics.checkpoints / "1", RUN).version == 1


def test_what_a_manifest_says_is_sealed_and_so_is_the_name_of_its_folder(run: Run) -> None:
    run.ship(0)
    run.train(1)
    place = run.basics.checkpoints / "1"
    manifest = place / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"shipped": 0', '"shipped": 8'))
    with pytest.raises(RunDirectoryError, match="content and seal differ"):
        read_checkpoint(place, RUN)
    manifest.write_text(text)
    place.rename(place.with_name("7"))
    with pytest.raises(RunDirectoryError, match="it says version 1, its folder is called 7"):
        read_checkpoint(place.with_name("7"), RUN)


def test_a_checkpoint_that_cannot_be_written_leaves_the_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.ship(0, 1)
    run.train(1)

    def full(path: Path, pieces: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.llm.training.checkpoints.write_whole", full)
    with pytest.raises(RunDirectoryError) as raised:
        run.train(2, resume=run.basics.checkpoints / "1")
    assert str(raised.value) == (
        "[CFG-002] the checkpoint of version 2 cannot be written\n"
        f"  place: {run.basics.checkpoints / '2'}\n"
        "  error: [Errno 28] No space left on device\n"
        "  fix: make room on that disk or repair it, then resume the run"
    )
    assert [path.name for path in run.basics.checkpoints.iterdir()] == ["1"]


def test_alarms_are_told_when_they_begin_and_again_after_they_were_over() -> None:
    alarms = Alarms(rl_config().supervision)
    calm = {"entropy/mean": 0.5, "mismatch_kl/mean": 0.001}
    collapsed = calm | {"entropy/mean": 0.01}
    assert alarms.look(1, calm, 0.3) == []
    (told,) = alarms.look(2, collapsed, 0.3)
    assert told == {
        "kind": "entropy",
        "text": "the policy hardly explores any more: its entropy is 0.01 nats per token in step 2 and 30 % of the rollouts were won",
        "step": 2,
        "value": 0.01,
        "limit": 0.02,
    }
    assert alarms.look(3, collapsed, 0.3) == []
    assert alarms.look(4, collapsed, 0.97) == [], "who wins may be certain"
    assert [told["kind"] for told in alarms.look(5, collapsed | {"mismatch_kl/mean": 0.2}, None)] == [
        "entropy",
        "mismatch",
    ]


def test_an_alarm_reaches_the_supervisor(run: Run) -> None:
    """The batch's log-probabilities are made up, so trainer and sampler disagree."""
    run.ship(0)
    alarms = [one.facts for one in run.train(1) if isinstance(one, Report) and one.kind == "alarm"]
    assert [one["kind"] for one in alarms] == ["mismatch"]


def test_a_sampler_with_the_published_weights_does_not_disagree(run: Run) -> None:
    _, tensors = read(run.basics.weights / "0", RUN)
    FileSink(run.basics.rollouts, RUN).ship(sampled_by(load_model(run.basics.model, tensors), batch(0, 8)))
    (step,) = [one.facts["metrics"] for one in run.train(1) if isinstance(one, Report)]
    assert step["mismatch_kl/max"] < 1e-10
    assert step["off_policy/max"] == 0.0
