"""The real components with one thing broken in their process: child targets for runs that have to notice.

Each changes what is only its own, since every child is a fork. Faults begin at the ``_AFTER``-th call, so that a run is under way.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.ipc.child import ChildContext
from headrace.llm import orchestrating, serving, trainer
from headrace.llm.engine.engine import Engine
from headrace.llm.engine.rows import OnDone
from headrace.llm.messages import Completion, Failure, GenerationRequest, PublishedWeights, ServedWeights
from headrace.llm.server.native import NativeRoutes

_AFTER = 40


def keeps_its_weights(context: ChildContext) -> None:
    """Answers an update as if it had loaded, and goes on with what it has."""

    def load(engine: Engine, published: PublishedWeights) -> ServedWeights:
        engine.served = ServedWeights(version=published.version, sha256=published.sha256)
        return engine.served

    Engine.load = load  # type: ignore[method-assign]
    serving.inference(context)


def says_the_old_version(context: ChildContext) -> None:
    """Answers an update 200 and names what it served before."""
    Engine.load = lambda engine, published: engine.served  # type: ignore[method-assign]
    serving.inference(context)


def has_no_update_route(context: ChildContext) -> None:
    """Knows everything but the weights route: 404."""
    build = serving.build_application

    def without(*args: Any, **kwargs: Any) -> Any:
        application = build(*args, **kwargs)
        application.router.routes = [route for route in application.routes if route.path != "/update_weights"]
        return application

    serving.build_application = without
    serving.inference(context)


def is_paused(context: ChildContext) -> None:
    """Takes requests and generates none of them any more, as after a pause that nobody ends; ``/health`` is fine."""
    _well_for_ever()
    _replace_submit(lambda number: number >= _AFTER)
    serving.inference(context)


def spins(context: ChildContext) -> None:
    """Goes from pass to pass and generates nothing; ``/health`` is fine."""
    _well_for_ever()
    step = Engine.step

    def idle(engine: Engine) -> bool:
        return step(engine) if engine.counts.completed < _AFTER else False

    Engine.step = idle  # type: ignore[method-assign]
    serving.inference(context)


def loses_one(context: ChildContext) -> None:
    """One request is never answered."""
    _replace_submit(lambda number: number == _AFTER)
    serving.inference(context)


def leaves(context: ChildContext) -> None:
    """Ends with code 0 in the middle."""
    _replace_submit(lambda number: number == _AFTER and os._exit(0))
    serving.inference(context)


def stamps_the_version_before(context: ChildContext) -> None:
    """Tokens of later policies bear the number of the one before."""
    submit = Engine.submit

    def stamped(engine: Engine, requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
        def done(place: int, answer: Completion | Failure) -> None:
            if isinstance(answer, Completion):
                answer = replace(answer, versions=tuple(max(0, version - 1) for version in answer.versions))
            on_done(place, answer)

        submit(engine, requests, done)

    Engine.submit = stamped  # type: ignore[method-assign]
    serving.inference(context)


def ships_elsewhere(context: ChildContext) -> None:
    """An orchestrator whose rollout directory is not the trainer's."""

    class Elsewhere(orchestrating.FileSink):
        def __init__(self, folder: Any, *args: Any) -> None:
            super().__init__(folder.with_name("rollouts-of-another-mount"), *args)

    orchestrating.FileSink = Elsewhere  # type: ignore[misc]
    orchestrating.orchestrator(context)


def ships_onto_a_full_disk(context: ChildContext) -> None:
    """An orchestrator that cannot write its batches."""
    _fill_the_disk(".safetensors")
    orchestrating.orchestrator(context)


def publishes_onto_a_full_disk(context: ChildContext) -> None:
    """A trainer that cannot write weights."""
    _fill_the_disk(".safetensors")
    trainer.trainer(context)


def _well_for_ever() -> None:
    async def well(routes: NativeRoutes, request: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse({"status": "ok", "version": routes.driver.engine.served.version})

    NativeRoutes.health = well  # type: ignore[method-assign]


def _replace_submit(is_lost: Any) -> None:
    """Requests, numbered in their order, of which some never reach the engine."""
    submit, seen = Engine.submit, [0]

    def losing(engine: Engine, requests: Sequence[GenerationRequest], on_done: OnDone) -> None:
        for place, request in enumerate(requests):
            seen[0] += 1
            if not is_lost(seen[0]):
                submit(engine, [request], lambda _, answer, place=place: on_done(place, answer))

    Engine.submit = losing  # type: ignore[method-assign]


def _fill_the_disk(suffix: str) -> None:
    """Writes to files that will bear this suffix fail, as on a disk without room."""
    write = os.write

    def full(fd: int, data: Any) -> int:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        if stat.S_ISREG(os.fstat(fd).st_mode) and suffix in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    os.write = full
