"""From factories to environments that can be stepped: where they run is decided, they are built, their spaces agree."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Sequence
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
from headrace.vector.instances import twice
from headrace.vector.limits import Limits
from headrace.vector.measuring import make_plan
from headrace.vector.messages import Assignment, Built, Spaces
from headrace.vector.options import Options
from headrace.vector.output import Output
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
_LAST_S = 1.0
"""How long workers may take to leave where nobody has closed them."""


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
    """Ends everything within so many seconds. Later calls do nothing, but go on with one that was interrupted."""


def open_environments(factories: Sequence[Factory], options: Options) -> Opened:
    """Build environments, and everything around them.

    Raises:
        ConfigError: There are none, two are the same object, their spaces differ, or an option cannot be kept.
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
    Output(options.log_path).close()  # if it cannot be opened, that is told before anything is started
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
        return serial, _described(serial)
    except BaseException:
        serial.close(0.0)
        raise


def _described(serial: Serial) -> Built:
    made: list[Any] = [body.env for body in serial.bodies]
    found_twice = twice(dict(enumerate(made)))
    if found_twice is not None:
        raise found_twice[1]
    found = [Spaces((env,), one.observation_space, one.action_space) for env, one in enumerate(made)]
    return Built(found, dict(made[0].metadata), made[0].render_mode)


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
    closer = _Closer(backend)
    weakref.finalize(engine, closer.at_end)
    return Opened(engine, backend, codec, described, chosen, closer)


class _Closer:
    """Ends everything, once; what an interrupt has broken off, the next call goes on with."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._owner = os.getpid()
        self._done = self._at_it = False

    def __call__(self, timeout_s: float) -> None:
        """Do it, if it is not done, nor being done by whoever is interrupted by this."""
        if self._done or self._at_it or (self._is_fork() and not isinstance(self._backend, Serial)):
            return  # a fork of this process has no business with its workers
        self._at_it = True
        try:
            self._backend.close(timeout_s)
            self._done = True
        finally:
            self._at_it = False

    def at_end(self) -> None:
        """The same where nobody has closed it: when it is collected, and when the interpreter ends."""
        if not self._is_fork():
            self(_LAST_S)

    def _is_fork(self) -> bool:
        return os.getpid() != self._owner


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
        batched, single = mode
    elif mode == "same":
        batched = batch_space(single, count)
    else:
        by_env = {env: group.observation for group in found for env in group.ids}
        batched = batch_differing_spaces([by_env[env] for env in range(count)])
    for group in found:
        fits = group.observation == single if mode == "same" else is_space_dtype_shape_equiv(group.observation, single)
        if not fits:
            raise _differ("observation", group.ids, group.observation, single)
        if group.action != first.action:
            raise _differ("action", group.ids, group.action, first.action)
    return Description(single, batched, first.action, batch_space(first.action, count), metadata, render_mode)


def _differ(what: str, ids: tuple[int, ...], found: Space, expected: Space) -> ConfigError:
    return ConfigError(
        f"the {what} space of environment {ids[0]} is not that of the others",
        expected=expected,
        found=found,
        fix='make them equal, or take observation_mode="different" where only bounds differ'
        if what == "observation"
        else "make them equal: one batch of actions goes to all of them",
    )
