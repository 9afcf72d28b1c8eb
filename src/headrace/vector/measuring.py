"""Measures what `headrace.vector.choosing` decides on."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path

from headrace.core.cores import usable_cores
from headrace.core.errors import ChannelClosed, HeadraceError
from headrace.ipc.channel import Deadline, poll_fds
from headrace.ipc.forkserver import Child, ForkServer
from headrace.vector import losses
from headrace.vector.choosing import Machine, Measured, Plan, choose
from headrace.vector.options import Options
from headrace.vector.output import Output
from headrace.vector.trial import Begun, NotTried, Trial, Tried

_BUDGET_S = 0.08
_FIRST_STEPS_S = 10.0
"""Until it was stepped, once it is built; what takes longer, or hangs, is not measured."""
_END_S = 2.0
"""Until it has closed the environment, or is ended."""
_SAMPLE_S = 0.005
_LOAD = Path("/proc/loadavg")


def make_plan(server: ForkServer, factories: dict[int, bytes], options: Options) -> Plan:
    """Where the environments run: as asked, or as measured.

    Args:
        server: Forks the child that tries the first environment out.
        factories: Pickled.
        options: What was asked.

    Raises:
        EnvironmentNotBuilt: The first environment could not be built.
        ComponentStalled: It was not built in time.
    """
    workers = None if options.workers == "auto" else options.workers
    threads = None if options.threads_per_worker == "auto" else options.threads_per_worker
    here = None if options.here == "auto" else options.here
    isolate = options.step_timeout_s is not None
    cores = usable_cores()
    if workers is not None and threads is not None:
        return choose(None, Machine(cores=cores), len(factories), workers, threads, isolate, here)
    measured, busy = _measure(server, factories[0], options)
    return choose(measured, Machine(cores=cores, busy_cores=busy), len(factories), workers, threads, isolate, here)


def _measure(server: ForkServer, factory: bytes, options: Options) -> tuple[Measured, float]:
    output = Output(options.log_path)
    try:
        given = Trial(factory, _BUDGET_S)
        fds = {"output": output.fd}
        child = server.spawn("trial", "headrace.vector.trial:measure", given, fds, os.devnull, output.stacks)
        try:
            found = _await(server, child, options)
            if found[0].steps:
                _until_ended(server, child)  # it closes its environment
            return found
        finally:
            child.kill()
            _until_ended(server, child)
            server.collect()
            child.close()
    finally:
        output.close()


def _await(server: ForkServer, child: Child, options: Options) -> tuple[Measured, float]:
    """What the child says, and how many cores others use meanwhile."""
    deadline = Deadline(options.start_timeout_s)
    samples: list[float] = []
    building = True
    while True:
        message = _said(child)
        if isinstance(message, Begun):
            building, deadline = False, Deadline(min(_FIRST_STEPS_S, 3 * options.step_limit_s))
        if isinstance(message, Tried):
            busy = max(0.0, sum(samples) / len(samples) - 1.0) if samples else 0.0  # the child itself is one
            return Measured(
                step_s=message.step_s,
                busy_s=message.busy_s,
                steps=message.steps,
                observation_bytes=message.observation_bytes,
                infos=message.infos,
                alone=message.alone,
            ), busy
        if isinstance(message, NotTried):
            raise losses.not_built(0, message.problem)
        if child.ended() or (deadline.passed and not building):  # one that fails says so, and then writes down why
            return Measured(step_s=0.0, busy_s=0.0, steps=0), 0.0
        if deadline.passed:
            raise losses.not_built_in_time([0], "trial", options.start_timeout_s)
        samples += _running()
        poll_fds({child.control.fileno(): select.POLLIN}, min(_SAMPLE_S, deadline.left_s()))


def _said(child: Child) -> object:
    try:
        messages = child.control.receive_all()
    except (ChannelClosed, HeadraceError):
        return None
    return messages[-1] if messages else None


def _until_ended(server: ForkServer, child: Child) -> None:
    deadline = Deadline(_END_S)
    while not (child.ended() or deadline.passed):
        with contextlib.suppress(ChannelClosed):
            poll_fds(dict.fromkeys(server.fds(), select.POLLIN), min(0.1, deadline.left_s()))


def _running() -> list[float]:
    """How many threads of the machine run at this moment, beside this one; nothing where that is not told."""
    try:
        return [int(_LOAD.read_text().split()[3].partition("/")[0]) - 1.0]
    except (OSError, ValueError, IndexError):
        return []
