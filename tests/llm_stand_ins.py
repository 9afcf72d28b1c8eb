"""Components of language-model runs that compute nothing, and misbehave when told to: for tests of the launcher.

They keep the contract of the real ones: board, control channel, pipes, socket, files. ``env.kwargs`` says what goes wrong:
``who`` does ``fault`` when it comes to step ``at``, the trainer also `SAVING`; ``once``: a file that is made then, and keeps it from happening again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.core.errors import ComponentStalled, ConfigError, RunDirectoryError, StaleWeights
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.child import ChildContext
from headrace.llm.config import RLConfig
from headrace.llm.launch.children import Targets
from headrace.llm.sums import TensorSum, sealed
from headrace.supervision.messages import Done, Ready, Report, Stop
from headrace.telemetry.board import Activity, Board, Slot, State
from headrace.telemetry.waits import wait_readable
from headrace.weights.tensor_file import save_tensors

TARGETS = Targets(
    **{name: f"llm_stand_ins:{name}" for name in ("warm_start", "inference", "orchestrator", "trainer", "twin")}
)
BOOKS = {"failed": {}, "stale": 0, "cancelled": 0, "in_flight": 0, "filtered": {}, "pending": 0}
LOOK_S = 0.5
SAVING = -2


class Stopped(Exception):
    """The launcher wants it to leave."""


class Part:
    """What each stand-in has."""

    def __init__(self, context: ChildContext, board: Board) -> None:
        self.context, self.control = context, context.control
        self.basics = context.payload.basics
        self.config: RLConfig = self.basics.config
        self.slot: Slot = board.slot(context.id)

    def ready(self) -> None:
        self.control.send(Ready({}), 10.0)
        self.slot.set_state(State.RUNNING)

    def tell(self, kind: str, **facts: Any) -> None:
        self.control.send(Report(kind, facts), 10.0)

    def done(self, **facts: Any) -> None:
        self.control.send(Done(facts), 10.0)

    def heed(self) -> None:
        if any(isinstance(message, Stop) for message in self.control.receive_all()):
            raise Stopped

    def wait(self, activity: Activity, on: str, fds: list[int], limit_s: float, have: Any) -> None:
        """Until ``have()``; looks again when a descriptor wakes it, and every now and then."""
        deadline = Deadline(limit_s)
        before = self.slot.resume()
        self.slot.waiting(activity, on=on, need=1, deadline_s=limit_s)
        while not have():
            if deadline.passed:
                raise ComponentStalled(f"{self.context.id} waited {limit_s:g} s for {on}", fix="see what it does")
            watched = [*fds, self.control.fileno()]
            ready = poll_fds(dict.fromkeys(watched, select.POLLIN), min(LOOK_S, deadline.left_s()))
            for fd in set(ready) & set(fds):
                os.read(fd, 4096)
            self.heed()
        self.slot.enter(*before)

    def misbehave(self, at: int) -> None:
        """Do what ``env.kwargs`` say, if this is who and when."""
        told = self.config.env.kwargs
        if told.get("who") != self.context.id or told.get("at", 0) != at:
            return
        once = told.get("once")
        if once is not None:
            if Path(once).exists():
                return
            Path(once).touch()
        fault = str(told["fault"])
        sys.stdout.write(f"{self.context.id} is about to {fault}\n")
        sys.stdout.flush()
        getattr(self, f"_{fault}")()

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _freeze(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _leave(self) -> None:
        os.write(1, b"last words")  # and no line break
        os._exit(0)

    def _fail(self) -> None:
        raise ValueError("corpus damaged, page 7")

    def _refuse(self) -> None:
        raise ConfigError("the tokenizer has no stop token", fix="give it one")

    def _find_no_room(self) -> None:
        raise RunDirectoryError("the checkpoint cannot be written", error="[Errno 28] No space left", fix="make room")

    def _doubt(self) -> None:
        raise StaleWeights("inference says that it serves version 1 and does not", fix="load every tensor")

    def _flood(self) -> None:
        for number in range(20_000):
            os.write(1, f"line {number} {'x' * 60}\n".encode())

    def _hang(self) -> None:
        self.slot.enter(Activity.ENV_STEP)
        while True:
            poll_fds({}, 60.0)

    def _dawdle(self) -> None:
        """Alive and well by its own account, and does nothing any more."""
        while True:
            self.slot.waiting(Activity.WAIT_REQUESTS)
            poll_fds({self.control.fileno(): select.POLLIN}, 60.0)
            self.heed()


@contextmanager
def part(context: ChildContext) -> Iterator[Part]:
    with Board.attach(context.payload.basics.board) as board:
        own = Part(context, board)
        try:
            yield own
        except Stopped:
            own.done()


def warm_start(context: ChildContext) -> None:
    with part(context) as own:
        own.misbehave(0)
        own.ready()
        own.slot.enter(Activity.WARM_START)
        own.basics.model.mkdir(exist_ok=True)
        _publish(own, 0)
        own.tell("sft", step=3, loss=0.5)
        own.done(version=0, sft_steps=3, loss=0.5)


def inference(context: ChildContext) -> None:
    with part(context) as own, socket.socket(fileno=context.fds["listen"]) as listener:
        own.misbehave(-1)
        own.ready()
        clients: dict[int, socket.socket] = {}
        served = 0
        try:
            while True:
                watched = [listener.fileno(), *clients, own.control.fileno()]
                ready = wait_readable(
                    own.slot, watched, activity=Activity.WAIT_REQUESTS, on=None, need=0, have=0, timeout_s=60.0
                )
                own.heed()
                own.slot.enter(Activity.GENERATE)
                for fd in ready:
                    if fd == listener.fileno():
                        client, _ = listener.accept()
                        clients[client.fileno()] = client
                    elif fd in clients and not _answer(own, clients[fd], served):
                        clients.pop(fd).close()
                    elif fd in clients:
                        served += 1
        finally:
            for client in clients.values():
                client.close()


def _answer(own: Part, client: socket.socket, served: int) -> bool:
    """Whether the client is still there."""
    try:
        if not client.recv(100):
            return False
        own.misbehave(served)
        own.slot.add("rows")
        client.sendall(b"word\n")
    except ConnectionError:  # it was told to stop while it waited
        return False
    return True


def orchestrator(context: ChildContext) -> None:
    with part(context) as own:
        own.misbehave(-1)
        own.ready()
        steps, trained = own.config.run.steps, 0
        try:
            own.tell(
                "evaluation",
                version=0,
                step=0,
                problems=4,
                episodes=4,
                win_rate=0.25,
                mean_reward=0.5,
                low=0.1,
                high=0.5,
            )
            for step in range(own.config.env.kwargs.get("from", 0), steps):
                own.misbehave(step)
                _complete(own, context.payload.endpoint)
                own.slot.add("episodes", 8)
                trained += 8
                (own.basics.rollouts / f"batch-{step}").write_text("words")
                _wake(context.fds["shipped"])
                own.tell("batch", step=step, metrics={"train/reward/mean": 0.5 + step, "train/win_rate": 0.5})
                own.wait(
                    Activity.WAIT_POLICY, "trainer", [context.fds["published"]], own.config.deadlines.policy_s,
                    lambda step=step: (own.basics.weights / str(step + 1)).exists(),
                )  # fmt: skip
            own.tell("evaluation", version=steps, step=steps, problems=4, episodes=4, win_rate=0.75, mean_reward=1.5)
        finally:
            own.tell("rollout_books", requested=trained, completed=trained, trained=trained, attempts=trained, **BOOKS)
        own.done()


def _complete(own: Part, endpoint: str) -> None:
    """One completion, asked for again when the connection breaks."""
    place = urlsplit(endpoint)
    for _ in range(5):
        with socket.create_connection((place.hostname, place.port), timeout=30.0) as sock:
            try:
                sock.sendall(b"prompt\n")
                wait_readable(
                    own.slot, [sock.fileno(), own.control.fileno()], activity=Activity.WAIT_COMPLETIONS, on="inference", need=1, have=0,
                    timeout_s=own.config.deadlines.generate_s * 4,
                )  # fmt: skip
                own.heed()
                if sock.recv(100):
                    return
            except ConnectionError:
                pass
        own.tell("retry", text="the connection broke")
    raise ConnectionError("the server does not answer")


def _wake(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.write(fd, b"x")


def trainer(context: ChildContext) -> None:
    with part(context) as own:
        own.misbehave(-1)
        own.ready()
        step = first = own.config.env.kwargs.get("from", 0)
        try:
            for step in range(first, own.config.run.steps):
                own.wait(
                    Activity.WAIT_BATCH, "orchestrator", [context.fds["shipped"]], own.config.deadlines.batch_s,
                    lambda step=step: (own.basics.rollouts / f"batch-{step}").exists(),
                )  # fmt: skip
                own.slot.enter(Activity.UPDATE, -1, step)
                own.misbehave(step)
                own.heed()
                _publish(own, step + 1)
                _wake(context.fds["published"])
                own.slot.count("updates", step + 1)
                own.tell(
                    "step",
                    step=step + 1,
                    version=step + 1,
                    metrics={
                        "loss/mean": 0.1,
                        "off_policy/mean": 0.0,
                        "off_policy/max": 0.0,
                        "batch/trained_tokens": 8.0,
                    },
                )
            own.done(version=own.config.run.steps, weights_sha256="ab" * 32)
        finally:
            own.slot.enter(Activity.CHECKPOINT)
            own.misbehave(SAVING)
            keep(own.basics.checkpoints / str(step), own.basics.run_id)


def _publish(own: Part, version: int) -> None:
    folder = own.basics.weights / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "model.safetensors", {}, {})
    facts = {"format": "headrace weights 2", "run_id": own.basics.run_id, "version": version, "metadata": {}}
    facts |= {"sha256": TensorSum().hex(), "probe": {"token_ids": [], "logprobs": []}}
    (folder / "manifest.json").write_bytes(sealed(facts))


def keep(folder: Path, run_id: str) -> None:
    """A checkpoint of nothing."""
    folder.mkdir(exist_ok=True)
    save_tensors(folder / "state.safetensors", {}, {})
    facts = {
        "format": "headrace rl checkpoint 2",
        "run_id": run_id,
        "version": int(folder.name),
        "carry": {},
        "config": {},
    }
    facts |= {"sha256": TensorSum().hex(), "weights_sha256": ""}
    (folder / "manifest.json").write_bytes(sealed(facts))


def twin(context: ChildContext) -> None:
    with part(context) as own:
        own.ready()
        own.misbehave(0)
        for step in range(own.config.run.steps):
            own.slot.enter(Activity.UPDATE, -1, step)
            own.tell("step", step=step + 1, version=step + 1, metrics={"loss/mean": 0.1, "train/win_rate": 0.5})
        own.tell("rollout_books", requested=8, completed=8, trained=8, attempts=8, **BOOKS)
        own.done(version=own.config.run.steps, weights_sha256="cd" * 32)
