"""From factories to environments that can be stepped: where they run is decided, they are built, their spaces agree."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from headrace.core.cores import usable_cores
from headrace.core.errors import ConfigError
from headrace.vector.choosing import Plan
from headrace.vector.crew import Crew, CrewOptions, start_server
from headrace.vector.engine import Engine
from headrace.vector.events import Backend
from headrace.vector.limits import Limits
from headrace.vector.measuring import make_plan
from headrace.vector.messages import Assignment, Built, Spaces
from headrace.vector.options import Options
from headrace.vector.pool import Pool
from headrace.vector.preloading import modules_of, pickled
from headrace.vector.rows import Rows
from headrace.vector.serial import Serial
from headrace.vector.slab import Slab, plan
from headrace.vector.slots import Policy, Slots
from headrace.vector.spaces import ActionCodec, Layout
from headrace.vector.split import Split
from headrace.vector.stepping import Factory

Space = spaces.Space[Any]


@dataclass(frozen=True, slots=True)
class Description:
    """What the environments are, as far as Gymnasium's interface tells."""

    single_observation_space: Space
    observation_space: Space
    single_action_space: Space
    action_space: Space
    metadata: dict[str, Any]
    render_mode: str | None


@dataclass(frozen=True, slots=True)
class Opened:
    """Environments that are built."""

    engine: Engine
    backend: Backend
    codec: ActionCodec
    description: Description
    plan: Plan
    close: Callable[[float], None]
    """Ends everything, once; later calls do nothing."""


def open_environments(factories: Sequence[Factory], options: Options) -> Opened:
    """Build environments, and everything around them.

    Raises:
        ConfigError: There are none, or their spaces differ.
        EnvironmentNotBuilt: One of them could not be built; nothing is left behind.
        ComponentStalled: They were not built in time; nothing is left behind.
    """
    if not factories:
        raise ConfigError("a vector environment of no environments", fix="give at least one factory")
    for env, factory in enumerate(factories):
        if not callable(factory):
            raise ConfigError(
                f"factory for env {env} cannot be called",
                found=type(factory).__name__,
                fix="give functions that return environments, and not environments",
            )
    if options.workers == 0:
        return _open_here(factories, options, Plan(0, 1, "as asked"))
    server = start_server(modules_of(factories), options.start_timeout_s)
    try:
        data = pickled(factories)
        chosen = make_plan(server, data, options)
        if chosen.workers == 0:
            server.close()
            return _open_here(factories, options, chosen)
        return _open_workers(Crew(server, _crew_options(data, options, chosen)), factories, options, chosen)
    except BaseException:
        server.close()
        raise


def _open_here(factories: Sequence[Factory], options: Options, chosen: Plan) -> Opened:
    serial, built = _build_here(factories, options)
    try:
        described = describe(built.spaces, built.metadata, built.render_mode, options)
        layout, codec = _layouts(described)
        slab = Slab.private(plan(layout, codec.layout, len(factories), shared_rows=True)[0])
        rows = _rows(layout, slab, options)
        serial.attach(slab, rows, codec)
        slots = Slots(len(factories), _policy(options, len(factories)))
        return _opened(serial, Engine(serial, rows, slots, options.mode), codec, described, chosen)
    except BaseException:
        serial.close(0.0)
        raise


def _build_here(factories: Sequence[Factory], options: Options) -> tuple[Serial, Built]:
    """Environments of this process, and what a worker would say of them."""
    serial = Serial(factories, options.mode, options.probes or {}, _limits(options))
    serial.build()
    try:
        made: list[Any] = [body.env for body in serial.bodies]
        found = [Spaces((env,), one.observation_space, one.action_space) for env, one in enumerate(made)]
        return serial, Built(found, dict(made[0].metadata), made[0].render_mode)
    except BaseException:
        serial.close(0.0)
        raise


def _open_workers(crew: Crew, factories: Sequence[Factory], options: Options, chosen: Plan) -> Opened:
    serial: Serial | None = None
    built: list[Built] = []
    try:
        crew.launch()
        if chosen.here:
            serial, own = _build_here(factories[: chosen.here], options)
            built.append(own)
        built += crew.built()
        first = built[0]
        found = [group for message in built for group in message.spaces]
        described = describe(found, first.metadata, first.render_mode, options)
        layout, codec = _layouts(described)
        count = crew.options.template.num_envs
        field_list, nbytes = plan(layout, codec.layout, count, shared_rows=options.shared)
        slab = crew.attach(described.single_observation_space, described.single_action_space, field_list, nbytes)
        if options.shared:
            rows = _rows(layout, slab, options)
        else:
            rows = Rows.private(layout, count, check_finite=options.check_finite, cast=options.cast_observations)
        slots = Slots(count, _policy(options, count))
        pool = Pool(crew, slab, slots)
        backend: Backend = pool
        if serial is not None:
            serial.attach(slab, rows, codec)
            backend = Split(serial, pool)
        return _opened(backend, Engine(backend, rows, slots, options.mode), codec, described, chosen)
    except BaseException:
        crew.close(0.0)
        if serial is not None:
            serial.close(0.0)
        raise


def _opened(backend: Backend, engine: Engine, codec: ActionCodec, described: Description, chosen: Plan) -> Opened:
    # Also when nobody closes it: when it is collected, and when the interpreter ends.
    closer = weakref.finalize(engine, _close_once, backend, os.getpid(), [])
    closed: list[bool] = []

    def close(timeout_s: float) -> None:
        closer.detach()
        _close_once(backend, os.getpid(), closed, timeout_s)

    return Opened(engine, backend, codec, described, chosen, close)


def _close_once(backend: Backend, owner: int, closed: list[bool], timeout_s: float = 1.0) -> None:
    if not closed and os.getpid() == owner:  # a fork of this process has no business with its workers
        closed.append(True)
        backend.close(timeout_s)


def _rows(layout: Layout, slab: Slab, options: Options) -> Rows:
    rows = Rows(layout, slab.rows, check_finite=options.check_finite, cast=options.cast_observations)
    rows.finals = options.mode is AutoresetMode.SAME_STEP
    return rows


def _layouts(described: Description) -> tuple[Layout, ActionCodec]:
    codec = ActionCodec(described.single_action_space, described.action_space)
    return Layout(described.single_observation_space, "obs"), codec


def _policy(options: Options, count: int) -> Policy:
    budget = options.budget
    return Policy(
        raises=options.on_fault == "raise",
        cuts=options.mode is not AutoresetMode.SAME_STEP,
        per_env=budget.per_env,
        total=max(budget.per_env, 5 * count) if budget.total is None else budget.total,
        window_s=budget.window_s,
        backoff_s=budget.backoff_s,
        longest_pause_s=budget.longest_pause_s,
    )


def _crew_options(data: dict[int, bytes], options: Options, chosen: Plan) -> CrewOptions:
    count, workers = len(data), chosen.workers
    edges = [chosen.here + round(place * (count - chosen.here) / workers) for place in range(workers + 1)]
    template = Assignment(
        num_envs=count,
        factories=data,
        mode=options.mode,
        check_finite=options.check_finite,
        cast=options.cast_observations,
        shared=options.shared,
        threaded=chosen.threads > 1,
        probes=dict(options.probes or {}),
        build=True,
        eager=chosen.threads == 1 and workers < usable_cores(),
        core=None,
    )
    groups = [list(range(first, end)) for first, end in itertools.pairwise(edges)]
    limits, log_path = _limits(options), options.log_path
    return CrewOptions(groups=groups, template=template, limits=limits, log_path=log_path, pinned=chosen.pinned)


def _limits(options: Options) -> Limits:
    return Limits(
        step_s=options.step_limit_s,
        reset_s=options.reset_timeout_s,
        construct_s=options.start_timeout_s,
        close_s=options.close_timeout_s,
    )


def describe(
    found: Sequence[Spaces], metadata: dict[str, Any], render_mode: str | None, options: Options
) -> Description:
    """What environments with these spaces are together.

    Args:
        found: Groups of environments with equal spaces; together all of them.
        metadata: Of the first.
        render_mode: Of the first.
        options: See ``observation_mode``.

    Raises:
        ConfigError: The spaces differ where they must not.
    """
    first = min(found, key=lambda group: group.ids[0])
    count = sum(len(group.ids) for group in found)
    mode = options.observation_mode
    single = first.observation
    if isinstance(mode, tuple):
        batched, single = _custom(mode)
    elif mode == "same":
        batched = batch_space(single, count)
    elif mode == "different":
        by_env = {env: group.observation for group in found for env in group.ids}
        batched = batch_differing_spaces([by_env[env] for env in range(count)])
    else:
        raise ConfigError(
            "observation_mode is unknown", found=repr(mode), fix='take "same", "different", or two spaces'
        )
    for group in found:
        fits = group.observation == single if mode == "same" else is_space_dtype_shape_equiv(group.observation, single)
        if not fits:
            raise _differ("observation", group.ids, group.observation, single)
        if group.action != first.action:
            raise _differ("action", group.ids, group.action, first.action)
    return Description(single, batched, first.action, batch_space(first.action, count), metadata, render_mode)


def _custom(mode: Iterable[Any]) -> tuple[Space, Space]:
    given = tuple(mode)
    if len(given) != 2 or not all(isinstance(space, spaces.Space) for space in given):
        raise ConfigError(
            "observation_mode is no pair of spaces",
            found=f"{given!r}"[:200],
            fix="give (batched space, space of one environment)",
        )
    return given[0], given[1]


def _differ(what: str, ids: tuple[int, ...], found: Space, expected: Space) -> ConfigError:
    return ConfigError(
        f"the {what} space of environment {ids[0]} is not that of the others",
        expected=expected,
        found=found,
        fix='make them equal, or take observation_mode="different" where only bounds differ'
        if what == "observation"
        else "make them equal: one batch of actions goes to all of them",
    )
