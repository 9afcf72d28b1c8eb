"""The process ``trainer``: a version of the policy out of each batch, until the run has its steps or is told to stop."""

from __future__ import annotations

import torch

from headrace.core.clock import MonotonicClock
from headrace.ipc.channel import Channel
from headrace.ipc.child import ChildContext
from headrace.llm.payloads import TrainerPayload
from headrace.llm.training.building import build_trainer
from headrace.llm.training.loop import Surroundings, TrainingLoop
from headrace.llm.transport import FileSource, wake
from headrace.supervision.messages import Done, Ready, Report, Stop
from headrace.supervision.telling import tell as tell_supervisor
from headrace.telemetry.board import Activity, Board, State


def trainer(context: ChildContext) -> None:
    """Train until the run's last step, until told to stop, or until it cannot go on; a checkpoint is written in any case.

    Raises:
        ComponentStalled: A batch did not come in time.
        ChannelClosed: The supervisor is gone.
        HeadraceError: A batch, weights or a checkpoint cannot be used, or the numbers are not finite any more.
    """
    payload: TrainerPayload = context.payload
    basics, config = payload.basics, payload.basics.config
    torch.set_num_threads(config.trainer.threads)
    with Board.attach(basics.board) as board:
        slot = board.slot(context.id)
        slot.enter(Activity.START if payload.resume is None else Activity.RESUME)
        clock = MonotonicClock()
        model, checkpoint = build_trainer(basics, clock, payload.resume)
        published = context.fds.get("published")

        def tell(report: Report) -> None:
            tell_supervisor(context.control, slot, report)

        def announce() -> None:
            if published is not None:
                wake(published)

        source = FileSource(
            basics.rollouts, basics.run_id, slot, context.fds.get("shipped"), control_fd=context.control.fileno()
        )
        around = Surroundings(slot=slot, tell=tell, announce=announce, clock=clock)
        loop = TrainingLoop(model, basics, source, around, checkpoint)
        facts = {"version": model.version, "threads": config.trainer.threads, "device": config.trainer.device}
        tell_supervisor(context.control, slot, Ready(facts))
        slot.set_state(State.RUNNING)
        slot.enter(Activity.IDLE)
        with loop.saved():
            while not loop.complete and not _told_to_stop(context.control):
                loop.once()
        facts = {"version": model.version, "weights_sha256": loop.published.sha256}
        tell_supervisor(context.control, slot, Done(facts), last=True)


def _told_to_stop(control: Channel) -> bool:
    """Whether the supervisor wants this process to end.

    Raises:
        ChannelClosed: It is gone.
    """
    return any(isinstance(message, Stop) for message in control.receive_all())
