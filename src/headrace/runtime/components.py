"""Entry points of the processes that step environments: the probe and the collectors."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from headrace.algorithms.registry import check_spaces
from headrace.collectors.restoring import load_episodes
from headrace.collectors.stepping import raised
from headrace.collectors.worker import CollectorWorker
from headrace.core import seeding
from headrace.core.errors import NonFiniteValue, UnsupportedSpace
from headrace.core.specs import leaves
from headrace.envs.agents import ParallelCopy
from headrace.envs.building import environment_name
from headrace.envs.contract import ObservationCheck, first_non_finite
from headrace.ipc.channel import MessagePipe
from headrace.ipc.child import ChildContext
from headrace.lanes.credits import CREDIT_BYTES, commit_bytes
from headrace.lanes.derive import stacked_space
from headrace.runtime.environments import cast, lent_environments
from headrace.runtime.payloads import (
    Basics,
    CollectorPayload,
    EnvSpaces,
    attach_lanes,
    attach_snapshots,
    build_collector,
    build_run_environment,
    group_lanes,
)
from headrace.supervision.messages import Done, Ready
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, State
from headrace.weights.snapshot import SnapshotReader


def probe(context: ChildContext) -> None:
    """Build the environment once, look at its spaces and its first observation, and tell.

    User code may hang or crash; here it takes nothing with it.

    Raises:
        EnvironmentFault: It cannot be built, or breaks its contract at once, NaN and infinity included.
        UnsupportedSpace: The algorithm cannot use its spaces.
    """
    basics: Basics = context.payload
    config = basics.config
    with Board.attach(basics.board) as board:
        slot = board.slot(context.id)
        slot.enter(Activity.ENV_CONSTRUCT, 0)
        with closing(build_run_environment(basics, 0, context.id)) as env:
            spaces = EnvSpaces.declared(env)
            spaces.cast(config)
            try:
                spaces.geometry(config)
                check_spaces(config.algorithm, stacked_space(spaces.observation, config.env.frame_stack), spaces.action)
            except UnsupportedSpace as error:
                error.place(environment=environment_name(config.env, basics.env_factory))
                raise
            tell(context.control, slot, Ready({}))
            slot.enter(Activity.ENV_RESET, 0)
            name = environment_name(config.env, basics.env_factory)
            try:
                first = _first_observation(env, seeding.integer(config.run.seed, "environment", 0, 0))
            except Exception as error:  # user code may raise anything; it is passed on with its place
                raise raised(error, "reset", name, 0, 0) from error
            check = ObservationCheck(
                spaces.observation, name, cast=config.env.cast_observations,
                on_cast=lambda text: tell(context.control, slot, cast(text)),
            )  # fmt: skip
            _refuse_non_finite(spaces, check.check(first, 0, 0), name)
            slot.enter(Activity.ENV_CLOSE, 0)
        tell(context.control, slot, Done({"spaces": spaces}), last=True)


def _first_observation(env: gymnasium.Env[Any, Any] | ParallelCopy, seed: int) -> Any:
    """What the environment shows first, to the first of its agents if there are many."""
    if isinstance(env, ParallelCopy):
        return next(iter(env.reset(seed).values()))
    return env.reset(seed=seed)[0]


def _refuse_non_finite(spaces: EnvSpaces, obs: Any, environment: str) -> None:
    for leaf in leaves(spaces.observation, "obs"):
        value = np.asarray(leaf.of(obs))
        place = first_non_finite(value)
        if place is not None:
            raise NonFiniteValue(
                f"{environment} in lane 0 returned a value that is not finite from its very first reset()",
                field=leaf.path,
                expected="finite numbers",
                found=value,
                lane=0,
                step=0,
                fix="find out why the environment returns it; nothing was stored",
            )


def collector(context: ChildContext) -> None:
    """Collect for this collector's groups until told to stop."""
    payload: CollectorPayload = context.payload
    config = payload.basics.config
    with ExitStack() as stack:
        board = stack.enter_context(Board.attach(payload.basics.board))
        slot = board.slot(context.id)
        block = attach_lanes(payload.spaces, config, context.fds["lanes"])
        snapshots = attach_snapshots(payload.layout, context.fds["snapshots"])
        credit_pipe = stack.enter_context(MessagePipe.attach(CREDIT_BYTES, reader_fd=context.fds["credits"]))
        commit_pipe = stack.enter_context(
            MessagePipe.attach(commit_bytes(config.env.group_size), writer_fd=context.fds["commits"])
        )
        policy = payload.spaces.policy(config)

        report = partial(tell, context.control, slot)
        own = {group: payload.beginning(group) for group in payload.groups}
        beginnings = stack.enter_context(lent_environments(payload.basics, payload.spaces, own, block, slot, report))
        collectors = {
            group: stack.enter_context(
                closing(build_collector(payload.basics, policy, group, block, SnapshotReader(snapshots), slot, begin))
            )
            for group, begin in beginnings.items()
        }
        tell(context.control, slot, Ready({}))
        slot.set_state(State.RUNNING)
        lane = group_lanes(config, payload.groups[0])[0]

        def stopping() -> bool:
            return bool(block.stopping[lane])

        if payload.episodes is not None and not payload.incarnation:
            episodes = load_episodes(payload.episodes, block.geometry.dtype)
            for one in collectors.values():
                one.restore(episodes, stopping)
        worker = CollectorWorker(
            collectors, payload.incarnation, credit_pipe, commit_pipe, context.control, board, slot
        )
        worker.run(config.collect.chunk_steps, config.deadlines.credit_limit_s, stopping)
        slot.set_state(State.STOPPING)
        tell(context.control, slot, Done({}), last=True)
