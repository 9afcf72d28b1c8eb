"""`VectorEnv`: a Gymnasium vector environment that does not hang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, VectorMisused
from headrace.core.refusals import nearest
from headrace.vector.engine import Engine, Ids
from headrace.vector.fastlane import FastLane
from headrace.vector.faults import Fault
from headrace.vector.forks import CLOSED, refuse_copies, shut_in_forks
from headrace.vector.infos import Infos
from headrace.vector.interrupts import Held
from headrace.vector.opening import Opened, open_environments
from headrace.vector.options import Options
from headrace.vector.probes import ProbeValues
from headrace.vector.seeds import check_length, counted_seeds, each_seed
from headrace.vector.taking import Received, take

__all__ = ["Received", "VectorEnv"]


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many environments behind Gymnasium's vector interface, in this process or in workers.

    What `SyncVectorEnv` returns, this returns, for every space, seed, option and autoreset mode. It differs where an
    environment fails: one that hangs, dies, raises, or returns something that is not what it declared is replaced by
    itself, the others go on, and ``infos["headrace"]`` and `valid` say which. `send` and `receive` work on whichever
    environments are ready, without waiting for the others.

    Cheap environments, or a share of them, are stepped in this process unless ``workers`` or ``step_timeout_s`` is given:
    there a call that hangs is only named, in a warning, and a crash is the program's.

    Args:
        env_fns: One callable per environment; lambdas and local functions work.
        **options: Of `headrace.vector.options.Options`; docs/reference/vector.md explains each.

    Raises:
        ConfigError: An option cannot be.
        EnvironmentNotBuilt: One of them could not be built; nothing is left behind.
        ComponentStalled: They were not built within ``start_timeout_s``; nothing is left behind.
    """

    __getstate__ = refuse_copies

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]], **options: Any) -> None:
        self.closed = True  # there is nothing to close yet; older versions of Gymnasium close what was not built, too
        _check_names(options)
        self._options = Options(**options)
        self._opened: Opened = open_environments(_listed(env_fns), self._options)
        self._engine: Engine = self._opened.engine
        described = self._opened.description
        self.num_envs = len(self._engine.pending.row)
        self.metadata = {**described.metadata, "autoreset_mode": self._options.mode}
        self.render_mode = described.render_mode
        self.single_observation_space = described.single_observation_space
        self.observation_space = described.observation_space
        self.single_action_space = described.single_action_space
        self.action_space = described.action_space
        self.autoreset_mode, self.copy = self._options.mode, self._options.copy
        self._held, self._all = Held(), np.arange(self.num_envs)
        self._whole = np.ones(self.num_envs, np.bool_)
        self.valid = self._whole.copy()
        """[N]; mask of the last batch: whose reward and observation are real. Each batch has an array of its own."""
        self._probes = dict(self._options.probes or {})
        self.probes: dict[str, ProbeValues] = {}
        """What probes found in the last batch, by their names."""
        self.plan = self._opened.plan
        """Where the environments run, and why."""
        self.collects: type[Infos] = Infos
        """What becomes of infos: they are put together as Gymnasium does, or `headrace.vector.infos.AsTheyAre`."""
        self._lane = FastLane(self._engine, self._opened.backend, self._options.mode, copies=self.copy)
        self.shut: tuple[str, str] | None = None
        """Why nothing can be asked any more, and what to do; None: it can be."""
        if self._opened.backend.here < self.num_envs:
            shut_in_forks(self)
        self.closed = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | NDArray[Any] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those in ``options["reset_mask"]``.

        Args:
            seed: None; an int from 0, from which they get seed, seed + 1, and so on; or one each.
            options: Handed on to every environment, without ``reset_mask``, a bool array [N].

        Returns:
            Observations of all, [N, ...], and infos of those that were reset.

        Raises:
            VectorMisused: An argument does not fit, one of them is busy, or some were never reset.
            RestartBudgetSpent: One of them failed more often than the budget allows.
        """
        self._check_open()
        seeds = counted_seeds(seed, self.num_envs)
        ids = self._all
        if options is not None and "reset_mask" in options:
            ids = np.flatnonzero(_mask(options.pop("reset_mask"), self.num_envs))
        engine = self._engine
        with self._held:
            engine.reset(ids, [seeds[env] for env in ids.tolist()], options, drops=True)
            engine.gather(ids, len(ids))
            engine.complaints.raise_next()
            engine.pending.check_observed(self._all)
            batch = self._taken(ids, self._all)
            return batch.observations, batch.infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments.

        Args:
            actions: A batch of the action space.

        Returns:
            Observations, rewards [N], terminations [N], truncations [N], infos. See `valid`.

        Raises:
            VectorMisused: The actions do not fit, or environments are busy; nothing was sent.
            RestartBudgetSpent: One of them failed more often than the budget allows.
            HeadraceError: With ``on_fault="raise"``, the fault of one of them.
        """
        self._check_open()
        columns, objects = self._opened.codec.encode(actions, self.num_envs)
        engine = self._engine
        with self._held:
            stepped = self._lane.step(columns, objects, self.collects)
            if stepped is not None:
                self.valid = self._whole.copy()
                return stepped
            if not self._lane.asked:
                engine.step(self._all, columns, objects)
            engine.gather(None, self.num_envs)
            engine.complaints.raise_next()
            batch = self._taken(self._all, self._all)
            return batch.observations, batch.rewards, batch.terminations, batch.truncations, batch.infos

    def send(self, actions: Any, env_ids: Sequence[int] | NDArray[Any] | None = None) -> None:
        """Hand out actions, and do not wait.

        Args:
            actions: A batch of actions, one per environment that is named.
            env_ids: Whom, each once; None: all.

        Raises:
            VectorMisused: The actions do not fit, or one of the environments is busy; nothing was sent.
        """
        self._check_open()
        ids, ascend = (self._all, True) if env_ids is None else _ids(env_ids, self.num_envs)
        columns, objects = self._opened.codec.encode(actions, len(ids))
        if not ascend:
            order = np.argsort(ids)
            ids, columns = ids[order], [column[order] for column in columns]
            objects = [objects[place] for place in order.tolist()] if objects else objects
        with self._held:
            self._engine.step(ids, columns, objects)

    def send_reset(
        self,
        env_ids: Sequence[int] | NDArray[Any],
        seeds: Sequence[int | None] | NDArray[Any],
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Have environments begin an episode, and do not wait: their answers come with `receive`, reward 0 and no end.

        For those who reset as they see fit, with ``autoreset_mode=AutoresetMode.DISABLED``.

        Args:
            env_ids: Whom, each once.
            seeds: One each.
            options: Handed on to each; a list or tuple: one each.

        Raises:
            VectorMisused: One of the environments is busy, its options cannot be sent, or an argument does not fit; nothing
                was sent.
        """
        self._check_open()
        ids, _ = _ids(env_ids, self.num_envs)
        order = np.argsort(ids)
        given = each_seed(seeds, len(ids))
        if isinstance(options, list | tuple):
            check_length(options, len(ids), "options")
            options = [options[place] for place in order.tolist()]
        with self._held:
            self._engine.reset(ids[order], [given[place] for place in order.tolist()], options)

    def receive(self, min_envs: int = 1, timeout_s: float | None = None) -> Received:
        """Answers of environments that are ready.

        Args:
            min_envs: Wait for so many, or for all that are busy if they are fewer.
            timeout_s: Come back after so many seconds with what there is, maybe nothing; nothing is lost. None: as
                long as it takes, which the time-outs of the environments bound.

        Raises:
            VectorMisused: Nothing was sent.
            RestartBudgetSpent: One of them failed more often than the budget allows.
            HeadraceError: With ``on_fault="raise"``, the fault of one of them.
        """
        self._check_open()
        engine = self._engine
        with self._held:
            engine.complaints.raise_next()
            waiting = engine.slots.asked()
            if not len(waiting):
                raise VectorMisused(
                    "there is nothing to receive: no environment was sent an action", fix="send() first"
                )
            engine.gather(waiting, min(max(1, min_envs), len(waiting)), timeout_s)
            engine.complaints.raise_next()
            ready = engine.slots.ready()
            batch = self._taken(ready, ready)
            engine.complaints.raised = engine.complaints.raised and len(engine.slots.asked()) > 0
            return batch

    def render(self) -> tuple[Any, ...]:
        """What every environment renders."""
        return self.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or read an attribute.

        Raises:
            UnknownAttribute: One of them has none of this name.
            VectorMisused: Environments are busy.
            HeadraceError: It raised in one of them, or did not return within ``reset_timeout_s``.
        """
        self._check_open()
        values = _called(self._opened, self._held, name, (args, kwargs), self._all.tolist(), sets=False)
        return tuple(values[env] for env in range(self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment; see `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment, on whichever of its layers has it.

        Args:
            name: Of the attribute.
            values: A list or tuple with one value each, or one value for all.

        Raises:
            UnknownAttribute: One of them has none of this name.
            VectorMisused: The number of values does not fit, or environments are busy.
        """
        self._check_open()
        listed = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(listed) != self.num_envs:
            raise VectorMisused(
                f"{len(listed)} values of {name} for {self.num_envs} environments",
                fix="give a list with one value each, or one value for all",
            )
        _called(self._opened, self._held, name, dict(enumerate(listed)), self._all.tolist(), sets=True)

    def apply(
        self, function: Callable[[gymnasium.Env[Any, Any]], Any], env_ids: Sequence[int] | NDArray[Any] | None = None
    ) -> tuple[Any, ...]:
        """What a function returns of environments, called where they run; ``env_ids`` names them, None means all.

        Raises:
            VectorMisused: Environments are busy, or there are none of these numbers.
            HeadraceError: It raised for one of them, or did not return within ``reset_timeout_s``.
        """
        self._check_open()
        ids = self._all.tolist() if env_ids is None else _ids(env_ids, self.num_envs)[0].tolist()
        values = _called(self._opened, self._held, "", ((function,), {}), ids, sets=False)
        return tuple(values[env] for env in ids)

    @property
    def np_random_seed(self) -> Any:
        """The seed of every environment's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # Gymnasium's can be set; these are as many as environments
    def np_random(self) -> Any:
        """Every environment's generator; copies, if they are in workers."""
        return self.get_attr("np_random")

    @property
    def faults(self) -> Sequence[Fault]:
        """The last thousand faults, oldest first."""
        return tuple(self._engine.faults)

    def worker_pids(self) -> dict[int, int]:
        """Process ids by worker; empty if there are none."""
        return self._opened.backend.pids()

    def close_extras(self, timeout_s: float | None = None, **_ignored: Any) -> None:
        """Close all environments and end all workers; takes at most about ``close_timeout_s``.

        If it is interrupted (Ctrl-C), `close` can be called again, and goes on. A fork leaves its parent's workers alone.
        """
        self.shut = self.shut or CLOSED
        self._engine.rows.forget()
        try:
            self._opened.close(self._options.close_timeout_s if timeout_s is None else timeout_s)
        finally:
            self._held.catch_up()  # there is no later call that would

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _taken(self, ids: Ids, shown: Ids) -> Received:
        self.valid = self.valid.copy()  # whoever has kept the last one keeps what it said
        batch = take(self._engine, ids, shown, self.valid, self._probes, self.collects, copies=self.copy)
        self.probes = batch.probes
        return batch

    def _check_open(self) -> None:
        if self.shut is not None:
            raise VectorMisused(self.shut[0], fix=self.shut[1])


def _called(opened: Opened, held: Held, name: str, data: Any, ids: list[int], *, sets: bool) -> dict[int, Any]:
    """What a backend's `call` returns. What becomes of environments by it is known before they are asked anything else."""
    engine, backend = opened.engine, opened.backend
    held.catch_up()  # not after it: what it returned would be lost
    engine.check_idle(name or "apply")
    try:
        return backend.call(name, data, ids, engine.renewal.replacements(), sets=sets)
    finally:
        with held:
            engine.interrupted()
            while events := backend.poll(0, 0.0):
                for event in events:
                    engine.take_in(event)


_ELSEWHERE = dict.fromkeys(
    ("start_method", "context", "daemon"),
    "leave it out: workers come from a server that is started once, and end with this process",
)
"""What other vector environments are asked for, and this one need not be."""


def _check_names(options: dict[str, Any]) -> None:
    known = [field.name for field in fields(Options)]
    for name in options:
        if name not in known:
            meant = nearest(name, known)
            raise ConfigError(
                f"VectorEnv has no option {name}",
                **({"nearest": meant} if meant and name not in _ELSEWHERE else {"known": ", ".join(known)}),
                fix=_ELSEWHERE.get(name, "correct its name, or leave it out"),
            )


def _listed(env_fns: Any) -> list[Any]:
    if callable(env_fns) or not isinstance(env_fns, Iterable):
        raise ConfigError(
            "env_fns is no list of factories",
            found=f"{env_fns!r}"[:200],
            fix="give one callable per environment, e.g. [make] * 8 for eight",
        )
    return list(env_fns)


def _mask(mask: Any, count: int) -> NDArray[np.bool_]:
    if not (isinstance(mask, np.ndarray) and mask.shape == (count,) and mask.dtype == np.bool_ and mask.any()):
        found = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise VectorMisused(
            "reset_mask does not say which environments to reset",
            expected=f"a bool array of shape ({count},), at least one of them True",
            found=found,
            fix="make it with numpy, e.g. terminations | truncations",
        )
    return mask


def _ids(env_ids: Sequence[int] | NDArray[Any], count: int) -> tuple[Ids, bool]:
    """Numbers of environments, and whether they ascend."""
    try:
        given = np.asarray(env_ids)
    except (TypeError, ValueError):  # ragged, for instance
        given = np.array(None)
    ids = given.astype(np.int64, copy=False) if given.dtype.kind in "iu" else np.full(1, -1)
    flat = ids.ndim == 1 and len(ids) > 0
    ascend = flat and np.count_nonzero(ids[1:] > ids[:-1]) == len(ids) - 1
    if ascend and ids[0] >= 0 and ids[-1] < count:
        return ids, ascend
    if not flat or len(np.unique(ids)) != len(ids) or ids.min() < 0 or ids.max() >= count:
        raise VectorMisused(
            "env_ids does not name environments",
            expected=f"numbers from 0 to {count - 1}, each once",
            found=f"{env_ids!r}"[:200],
            fix="give a list of their numbers",
        )
    return ids, ascend
