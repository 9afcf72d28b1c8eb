"""Environments in this very process, stepped in turn: nothing is faster for a few that are cheap.

What they raise, or return against their contract, concerns only one of them, as in workers. A call that never returns
cannot be ended here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from threading import get_ident
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from headrace.core.errors import ComponentError, HeadraceError
from headrace.ipc.channel import poll_fds
from headrace.vector import losses
from headrace.vector.events import Answers, Event, Failure
from headrace.vector.faults import from_exception
from headrace.vector.infos import kept
from headrace.vector.interrupts import LetThrough, is_programs
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
        self.caller = 0
        """The thread that makes them."""
        self._seen: list[Any] | None = None
        self.stopped: Sequence[int] = ()
        """Whose calls an exception broke off, as far as nobody has been told; see `broken_off`."""
        self.probing = bool(wanted)
        """Whether there is anything to evaluate."""
        self.here = len(factories)
        self._phase = Phase.STEP
        self._steps: list[Any] | None = None
        """What steps each environment; None: it has to be looked up."""
        self.bodies = [Body(env, factory, mode, self._on_phase, wanted) for env, factory in enumerate(factories)]
        self.everybody = range(len(self.bodies))
        self._asked: list[tuple[int, int]] = []
        self._resets: dict[int, tuple[int | None, Any]] = {}
        self._actions: dict[int, Any] = {}
        self.watcher = Watcher(self.look, limits)
        self._rows: Rows
        self._codec: ActionCodec

    def build(self) -> None:
        """Build every environment; from now on somebody watches.

        Raises:
            EnvironmentNotBuilt: One of them could not be built; those before it are closed.
        """
        self.watcher.start()
        env = 0
        try:
            with self._watched(self.everybody, Phase.CONSTRUCT) as done:
                for env, body in enumerate(self.bodies):
                    body.build()
                    done.append(env)
        except BaseException as error:  # an environment's own code may raise anything
            self.close(0.0)
            if is_programs(error):
                raise
            raise losses.not_built(env, from_exception(error, Phase.CONSTRUCT.label)) from error

    def attach(self, slab: Slab, rows: Rows, codec: ActionCodec) -> None:
        """Where questions are read and answers laid down."""
        self.slab, self._rows, self._codec = slab, rows, codec

    def prepare(self, values: Mapping[int, Any], what: str) -> dict[int, Any]:
        """See `Backend.prepare`; here they are handed on as they are."""
        return dict(values)

    def submit(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> None:
        """See `Backend.submit`."""
        self._resets.update(resets)
        self._actions.update(actions)
        self._asked = [*self._asked, *zip(ids.tolist(), seqs.tolist(), strict=True)]

    def ask_rest(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> bool:
        """See `Backend.ask_rest`; here all of them are asked, or none is."""
        return len(ids) > 0 and (int(ids[0]), int(seqs[0])) in self._asked

    def poll(self, missing: int, timeout_s: float) -> list[Event]:
        """See `Backend.poll`: here the work is done, all of it."""
        asked = self._asked
        if not asked:
            if timeout_s > _LONGEST_PAUSE_S:
                raise ComponentError(
                    "answers are awaited that nobody was asked for", fix="file a bug: nothing here would ever come"
                )
            with LetThrough():
                poll_fds({}, timeout_s)  # a replacement has to wait
            return []
        try:
            return self._answers(asked)
        except BaseException:
            if self._asked is not asked:  # otherwise nothing has begun, and the next poll does it
                self.stopped = [env for env, _ in asked]
            raise

    def _answers(self, asked: list[tuple[int, int]]) -> list[Event]:
        """Do what was asked."""
        listed = [env for env, _ in asked]
        ids = np.array(listed, np.int64)
        seqs = np.array([seq for _, seq in asked], np.int64)
        slab = self.slab
        where = compact(row_of(ids, seqs, len(slab.seq)).tolist())
        kinds: list[int] = slab.kind[ids].tolist()
        bodies = self.bodies
        with LetThrough():
            self._asked, self.asked = [], listed
            if any(kinds):
                work = [self._work(env, kind) for env, kind in zip(listed, kinds, strict=True)]
                resets = frozenset(place for place, kind in enumerate(kinds) if kind)
            else:
                work, resets = [bodies[env].step for env in listed], frozenset()
            returned = self._run(work, self._arguments(listed, ids))
        settled = settle(self._rows, where, returned, resets)
        slab.reward[ids] = settled.rewards
        slab.terminated[ids] = settled.terminated
        slab.truncated[ids] = settled.truncated
        answers = Answers(ids, seqs)
        answers.infos = {listed[place]: info for place, info in settled.infos.items()}
        for place in range(len(listed)) if settled.objects else ():
            # Copies: environments may go on with what they gave.
            answers.objects[listed[place]] = [kept(column[place]) for column in settled.objects]
        if self.probing:
            answers.probes = {env: bodies[env].probed for env in listed}
        if not settled.problems:
            return [answers]
        good = np.ones(len(ids), np.bool_)
        good[list(settled.problems)] = False
        answers.ids, answers.seqs = ids[good], seqs[good]
        failures = [Failure(*asked[place], problem) for place, problem in settled.problems.items()]
        return [answers, *failures]

    def call(
        self, name: str, data: Any, ids: list[int], gone: Mapping[int, int | None], *, sets: bool
    ) -> dict[int, Any]:
        """See `Backend.call`."""
        values: dict[int, Any] = {}
        with self._watched(ids, Phase.CALL) as done:
            for env in ids:
                try:
                    if sets:
                        self.bodies[env].set_attribute(name, data[env], gone=env in gone, seed=gone.get(env))
                    else:
                        values[env] = self.bodies[env].call(name, *data, seed=gone.get(env))
                except HeadraceError:
                    raise
                except BaseException as error:  # an environment's own code may raise anything
                    if is_programs(error):
                        self.stopped = [env]
                        raise
                    raise losses.call_failed(name, env, from_exception(error, self._phase.label)) from error
                done.append(env)
        return values

    def broken_off(self) -> Sequence[int]:
        """See `Backend.broken_off`."""
        ids, self.stopped = self.stopped, ()
        if ids:
            self._resets.clear()
            self._actions.clear()
        return ids

    def close(self, timeout_s: float) -> None:
        """See `Backend.close`; here nothing can be ended that does not return."""
        stopped: BaseException | None = None
        try:
            with self._watched(self.everybody, Phase.CLOSE) as done:
                for body in self.bodies:
                    try:
                        body.drop(close=True)
                    except BaseException as error:  # noqa: BLE001 - the program's own; the others are closed first
                        stopped = stopped or error
                    done.append(body)
        finally:
            self.watcher.close()
        if stopped is not None:
            raise stopped

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
        self.asked = self.everybody
        if self._steps is None:
            self._steps = [body.step for body in bodies]
        work: list[Any] = self._steps
        if resets:
            work = list(work)
            for env in resets:
                work[env] = bodies[env].autoreset
        arguments = actions if self._codec.as_objects else self._codec.decode(columns)
        begun = False
        try:
            with LetThrough():
                begun = True
                returned = self._run(work, arguments)
            return settle(self._rows, range(first, first + len(bodies)), returned, resets)
        except BaseException:
            if begun:
                self.stopped = self.everybody
            raise

    def _run(self, work: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        returned: list[Any] = []
        append = returned.append
        pending = zip(work, arguments, strict=True)
        self.caller = get_ident()
        self.running = returned
        try:
            while len(returned) < len(work):
                try:
                    for step, argument in pending:
                        append(step(argument))
                except BaseException as error:  # an environment's own code: its exception is an answer
                    phase, self._phase = self._phase, Phase.STEP
                    if is_programs(error):
                        raise  # not the environment's; the engine sees to what was asked
                    append(from_exception(error, phase.label))
        finally:
            self.running = None
        return returned

    @contextlib.contextmanager
    def _watched(self, ids: Sequence[int], phase: Phase) -> Iterator[list[Any]]:
        """Let whoever watches see calls that are no steps; one is over when something is added to what this gives."""
        done: list[Any] = []
        self.asked, self._phase, self.caller = ids, phase, get_ident()
        self.running = done
        try:
            yield done
        finally:
            self.running, self._phase = None, Phase.STEP

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
                body.renew()
            return body.reset(seed, options)

        return reset

    def look(self) -> tuple[object, int, Phase, int]:
        """For whoever watches: which call is being made, and what it is in; equal while it is the same."""
        running, asked = self.running, self.asked
        self._seen = running  # while something refers to it, no later one has its id
        if running is None or len(running) >= len(asked):
            return None, -1, Phase.STEP, 0
        return (id(running), len(running)), asked[len(running)], self._phase, self.caller

    def _on_phase(self, phase: Phase) -> None:
        self._phase = phase
        if phase in (Phase.CONSTRUCT, Phase.CLOSE):
            self._steps = None
