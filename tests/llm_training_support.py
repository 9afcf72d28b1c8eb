"""A run directory that a trainer can work in, and its process called in this one."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

from headrace.ipc.channel import Channel
from headrace.ipc.child import ChildContext
from headrace.llm.config import RLConfig
from headrace.llm.payloads import Basics, TrainerPayload
from headrace.llm.tiny import load_model, make_model, make_model_folder
from headrace.llm.trainer import trainer
from headrace.llm.transport import FileSink
from headrace.llm.weights import make_probe, publish
from headrace.supervision.messages import Stop
from headrace.telemetry.board import Board
from llm_support import batch

RUN = "run"


def rl_config(steps: int = 6, **sections: Any) -> RLConfig:
    given = {
        "run": {"steps": steps, "seed": 7},
        "model": {"hidden": 16, "layers": 1, "heads": 2},
        "orchestrator": {"max_policy_lag": 0},
        "trainer": {"lr": 1e-2, "epochs": 2, "minibatches": 2, "warmup_steps": 2},
        "checkpoint": {"every_steps": 0},
        "deadlines": {"batch_s": 0.01, "evaluate_s": 0.005},
    }
    return RLConfig.model_validate({name: given.get(name, {}) | sections.get(name, {}) for name in given | sections})


class Run:
    """A run directory with a model and version 0."""

    def __init__(self, folder: Path, model_folder: Path) -> None:
        folder.mkdir()
        self.basics = Basics(config=rl_config(), run=folder, run_id=RUN)
        self.basics.model.symlink_to(model_folder)
        model = load_model(self.basics.model, _weights(model_folder))
        publish(
            model.state_dict(),
            version=0,
            weights_dir=self.basics.weights,
            run_id=RUN,
            probe=make_probe(model, [1, 7, 9, 3]),
            metadata={"made": "here"},
        )
        with Board.create(self.basics.board, [(one, one) for one in ("supervisor", "trainer", "orchestrator")], RUN):
            pass

    def ship(self, *steps: int, **more: Any) -> None:
        sink = FileSink(self.basics.rollouts, RUN)
        for step in steps:
            sink.ship(batch(step, 8, **({"carry": {"shipped": step}} | more)))

    def train(self, steps: int = 6, *, resume: Path | None = None, stop: bool = False, **sections: Any) -> list[Any]:
        """Call the process's function; what it sent."""
        basics = dataclasses.replace(self.basics, config=rl_config(steps, **sections))
        ours, theirs = Channel.pair()
        with closing(ours), closing(theirs):
            if stop:
                theirs.send(Stop("enough"), 1.0)
            payload = TrainerPayload(basics=basics, resume=resume)
            trainer(ChildContext("trainer", payload, {}, ours, os.getppid()))
            return theirs.receive_all()


def _weights(model_folder: Path) -> dict[str, Any]:
    vocabulary = json.loads((model_folder / "config.json").read_text())["vocab_size"]
    return make_model(rl_config().model, vocabulary, 5).state_dict()


def make_tiny_folder(folder: Path) -> Path:
    """The configuration and tokenizer of the model in such a run."""
    make_model_folder(rl_config().model, object(), folder, 0)
    return folder
