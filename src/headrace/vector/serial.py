"""Environments in this very process, stepped in turn: nothing is faster for a few that are cheap.

What they raise, or return against their contract, concerns only one of them, as in workers. A call that never returns
cannot be ended here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from headrace.core.errors import ComponentError, HeadraceError
from headrace.ipc.channel import poll_fds
from headrace.vector import losses
from headrace.vector.events import Answers, Event, Failure
from headrace.vector.faults import from_exception
from headrace.vector.interrupts import LetThrough
from headrace.vector.limits import Limits
from headrace.vector.probes import Probe
from headrace.vector.rows import Rows, Settled, compact, row_of, settle
from headrace.vector.slab import Kind, Slab
from headrace.vector.spaces import ActionCodec
from headrace.vector.stepping import Body, Factory, Phase
from headrace.vector.watcher import Watcher

Ids = NDArray[np.int64]
_LONGEST_PAUSE_S = 80_000.0  # whoever waits for no pause waits for longer


class Serial:
    """A `headrace.vector.events.Backend` in this process.

    Args:
        factories: One per environment.
        mode: The autoreset mode.
        wanted: Values to evaluate beside each step.
        limits: For a warning about calls that last longer.
    """

    slab: Slab

    def __init__(
        self, factories: Sequence[Factory], mode: AutoresetMode, wanted: Mapping[str, Probe], limits: Limits
    ) -> None:
        self.running: list[Any] | None = None
        """What has been returned from the calls that are being made; None: none are."""
        self.asked: Sequence[int] = ()
        """Whom these calls belong to."""
        self.probing = bool(wanted)
        """Whether there is anything to evaluate."""
        self.here = len(factories)
        self._phase = Phase.STEP
        self._steps: list[Any] | None = None
        """What steps each environment; None: it has to be looked up."""
        self.bodies = [Body(env, factory, mode, self._on_phase, wanted) for env, factory in enumerate(factories)]
        self._everybody = range(len(self.bodies))
        self._asked: list[tuple[int, int]] = []
        self._resets: dict[int, tuple[int | None, Any]] = {}
        self._actions: dict[int, Any] = {}
        self.watcher = Watcher(self.look, limits)
        self._rows: Rows
        self._codec: ActionCodec

    def build(self) -> None:
        """Build every environment.

        Raises:
            EnvironmentNotBuilt: One of them could not be built; those before it are closed.
        """
        for env, body in enumerate(self.bodies):
            try:
                body.build()
            except Exception as error:  # an environment's own code may raise anything
                problem = from_exception(error, Phase.CONSTRUCT.label)
                self.close(0.0)
                raise losses.not_built(env, problem) from error

    def attach(self, slab: Slab, rows: Rows, codec: ActionCodec) -> None:
        """Where questions are read and answers laid down; from now on somebody watches."""
        self.slab, self._rows, self._codec = slab, rows, codec
        self.watcher.start()

    def prepare(self, values: Mapping[int, Any], what: str) -> dict[int, Any]:
        """See `Backend.prepare`; here they are handed on as they are."""
        return dict(values)

    def submit(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> None:
        """See `Backend.submit`."""
        self._asked += zip(ids.tolist(), seqs.tolist(), strict=True)
        self._resets.update(resets)
        self._actions.update(actions)

    def poll(self, missing: int, timeout_s: float) -> list[Event]:
        """See `Backend.poll`: here the work is done, all of it."""
        asked, self._asked = self._asked, []
        if not asked:
            if timeout_s > _LONGEST_PAUSE_S:
                raise ComponentError(
                    "answers are awaited that nobody was asked for", fix="file a bug: nothing here would ever come"
                )
            with LetThrough():
                poll_fds({}, timeout_s)  # a replacement has to wait
            return []
        listed = [env for env, _ in asked]
        self.asked = listed
        ids = np.array(listed, np.int64)
        seqs = np.array([seq for _, seq in asked], np.int64)
        slab = self.slab
        where = compact(row_of(ids, seqs, len(slab.seq)).tolist())
        kinds: list[int] = slab.kind[ids].tolist()
        bodies = self.bodies
        if any(kinds):
            work = [self._work(env, kind) for env, kind in zip(listed, kinds, strict=True)]
            resets = frozenset(place for place, kind in enumerate(kinds) if kind)
        else:
            work, resets = [bodies[env].step for env in listed], frozenset()
        arguments = self._arguments(listed, ids)
        with LetThrough():
            returned = self._run(work, arguments)
        settled = settle(self._rows, where, returned, resets)
        slab.reward[ids] = settled.rewards
        slab.terminated[ids] = settled.terminated
        slab.truncated[ids] = settled.truncated
        answers = Answers(ids, seqs)
        answers.infos = {listed[place]: info for place, info in settled.infos.items()}
        for place in range(len(listed)) if settled.objects else ():
            answers.objects[listed[place]] = [column[place] for column in settled.objects]
        if self.probing:
            answers.probes = {env: bodies[env].probed for env in listed}
        if not settled.problems:
            return [answers]
        good = np.ones(len(ids), np.bool_)
        good[list(settled.problems)] = False
        answers.ids, answers.seqs = ids[good], seqs[good]
        failures = [Failure(*asked[place], problem) for place, problem in settled.problems.items()]
        return [answers, *failures]

    def call(self, name: str, data: Any, ids: list[int], *, sets: bool) -> dict[int, Any]:
        """See `Backend.call`."""
        values: dict[int, Any] = {}
        for env in ids:
            try:
                if sets:
                    self.bodies[env].set_attribute(name, data[env])
                else:
                    values[env] = self.bodies[env].call(name, *data)
            except HeadraceError:
                raise
            except Exception as error:  # an environment's own code may raise anything
                raise losses.call_failed(name, env, from_exception(error, Phase.CALL.label)) from error
        return values

    def close(self, timeout_s: float) -> None:
        """See `Backend.close`; here nothing can be ended that does not return."""
        self.watcher.close()
        for body in self.bodies:
            body.drop(close=True)

    def pids(self) -> dict[int, int]:
        """See `Backend.pids`."""
        return {}

    def step_all(
        self, first: int, resets: Sequence[int], columns: Sequence[NDArray[Any]], actions: list[Any]
    ) -> Settled:
        """Step every environment at once, without a question in the slab.

        Args:
            first: The first of the rows their observations go to.
            resets: Those that are reset instead.
            columns: Actions per leaf.
            actions: Actions, if they are objects.
        """
        bodies = self.bodies
        self.asked = self._everybody
        if self._steps is None:
            self._steps = [body.step for body in bodies]
        work: list[Any] = self._steps
        if resets:
            work = list(work)
            for env in resets:
                work[env] = bodies[env].autoreset
        arguments = actions if self._codec.as_objects else self._codec.decode(columns)
        with LetThrough():
            returned = self._run(work, arguments)
        return settle(self._rows, range(first, first + len(bodies)), returned, resets)

    def _run(self, work: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        returned: list[Any] = []
        append = returned.append
        pending = zip(work, arguments, strict=True)
        self.running = returned
        while len(returned) < len(work):
            try:
                for step, argument in pending:
                    append(step(argument))
            except KeyboardInterrupt:
                self.running = None
                raise  # not the environment's; the engine sees to what was asked
            except BaseException as error:  # noqa: BLE001 - an environment's own code: its exception is an answer
                phase, self._phase = self._phase, Phase.STEP
                append(from_exception(error, phase.label))
        self.running = None
        return returned

    def _arguments(self, listed: list[int], ids: Ids) -> Sequence[Any]:
        if self._codec.as_objects:
            return [self._actions.pop(env, None) for env in listed]
        return self._codec.decode([column[ids] for column in self.slab.actions])

    def _work(self, env: int, kind: int) -> Any:
        body = self.bodies[env]
        if kind == Kind.STEP:
            return body.step
        if kind == Kind.AUTORESET:
            return body.autoreset
        seed, options = self._resets.pop(env, (None, None))

        def reset(_action: Any) -> Any:
            if kind == Kind.RENEW:
                body.drop(close=True)
            return body.reset(seed, options)

        return reset

    def look(self) -> tuple[object, int, Phase]:
        """For whoever watches: which call is being made, and what it is in; equal while it is the same."""
        running, asked = self.running, self.asked
        if running is None or len(running) >= len(asked):
            return None, -1, Phase.STEP
        return (id(running), len(running)), asked[len(running)], self._phase

    def _on_phase(self, phase: Phase) -> None:
        self._phase = phase
        if phase in (Phase.CONSTRUCT, Phase.CLOSE):
            self._steps = None
