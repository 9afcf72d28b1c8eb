"""What the parent does about the end of a child: notes it, keeps what reproduces it, decides what the run goes on with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from headrace.core.clock import Clock
from headrace.core.config import is_of_its_program
from headrace.core.errors import ComponentDied, EnvironmentLost, EpisodeNotRestored, HeadraceError, RestartBudgetSpent
from headrace.lanes.lane import LaneBlock
from headrace.runtime.changes import held_fast
from headrace.runtime.history import environment_fault
from headrace.runtime.observer import Observer
from headrace.runtime.payloads import Basics, group_lanes, groups_of
from headrace.runtime.reproducers import reproducer, write_reproducer
from headrace.runtime.resources import Resources, collector_ids
from headrace.supervision.losses import Losses
from headrace.supervision.policy import RestartPolicy
from headrace.supervision.spec import Exited, GiveUp, Instruction, LeaveOut, Restart
from headrace.telemetry.events import EventLog


class Chronicle:
    """Writes what happens, and shows what matters to whoever looks on.

    Args:
        events: Where it is written.
        observer: Who shows it.
    """

    def __init__(self, events: EventLog, observer: Observer) -> None:
        self._events = events
        self._observer = observer
        self._said: set[str] = set()

    def say(
        self, kind: str, component: str, text: str, *, pid: int | None = None, tell: bool = False, once: bool = False,
        **facts: object,
    ) -> None:  # fmt: skip
        """Write an event; ``tell``: also show it; ``once``: unless the same text was."""
        if once:
            if text in self._said:
                return
            self._said.add(text)
        self._events.emit(kind, component, text, pid=pid if pid is not None else os.getpid(), **facts)
        if tell:
            self._observer.message = text

    @property
    def lost_lines(self) -> dict[str, int]:
        """What could not be written of this session, by file."""
        return {"events": self._events.lost, "metrics": self._observer.lost_metrics}


class Decider(Protocol):
    """Who knows whether a child may be started again: the supervisor."""

    policy: RestartPolicy

    def decide(self, exited: Exited) -> Instruction:
        """What follows from an exit, as far as the child alone is concerned."""
        ...


class Incidents:
    """The faults of a run, and what it has lost by them.

    Args:
        basics: Of the run.
        resources: What the children share; groups that are left out are noted there.
        observer: Counts faults.
        chronicle: Where faults are told.
        folder: The run directory.
        clock: Monotonic.
    """

    def __init__(
        self,
        basics: Basics,
        resources: Resources,
        observer: Observer,
        chronicle: Chronicle,
        folder: Path,
        clock: Clock,
    ) -> None:
        config = basics.config
        self._basics = basics
        self._resources = resources
        self._observer = observer
        self._say = chronicle.say
        self.folder = folder
        self._clock = clock
        degrade = config.supervision.when_spent == "degrade"
        self.losses = Losses(
            {name: groups_of(config, number) for number, name in enumerate(collector_ids(config))},
            [group_lanes(config, group) for group in range(config.env.groups)],
            config.supervision.lane_faults if degrade else None,
            config.supervision.restart_window_s,
        )

    def note(self, event: Exited) -> None:
        """A child ended that should not have: tell so, and keep what may provoke it again. Before salvaging.

        A collector that could not bring an episode back did right to leave: that is told, and no fault.
        """
        if isinstance(event.error, EpisodeNotRestored):
            text = f"{event.id} is replaced: {event.error.what}; it is cut where its rows end"
            self._say(
                "not_restored", event.id, text, pid=event.pid, tell=True, problem=str(event.error), lane=event.lane
            )
            return
        self._observer.faults["stalled" if event.stalled else "died"] += 1
        place: dict[str, Any] = {}
        if event.lane >= 0:
            place = {"call": event.call, "lane": event.lane, "step": event.step}
        self._say(
            "fault", event.id, f"{event.id} {event.stalled or event.how}", pid=event.pid, tell=True,
            exit_code=event.exit_code, incarnation=event.incarnation, error=event.error, log_tail=event.log_tail,
            resources=asdict(event.used) if event.used is not None else None, stuck_in=event.stuck_in, **place,
        )  # fmt: skip
        self._keep_reproducer(event)

    def decide(self, event: Exited, decider: Decider) -> Instruction:
        """What follows; lanes that are left out for it are told, and no replacement is given them.

        Returns:
            As `Supervisor.decide`; `LeaveOut` if the component has nothing left to do.
        """
        if isinstance(event.error, EpisodeNotRestored):
            # Who follows repeats no episode, so there is one of these in a session at most.
            return Restart(event.id, 0.0)
        config = self._basics.config
        is_collector = event.id in collector_ids(config)
        if isinstance(event.error, EnvironmentLost) and not (
            is_collector and config.supervision.when_spent == "degrade"
        ):
            return GiveUp(event.id, event.error.what)
        instruction = decider.decide(event)
        if not is_collector:
            return instruction
        if not isinstance(event.error, EnvironmentLost):  # `lost_environment` has noted that fault already
            self.losses.note(event.lane, self._clock.now())
        if not isinstance(instruction, Restart | LeaveOut):
            return instruction
        loss = self.losses.leave_out_if_due(event.id, event.lane)
        if loss is None and isinstance(instruction, LeaveOut):
            loss = self.losses.drop(event.id, f"{event.id} is not started again, {instruction.reason}")
        if loss is None:
            return instruction
        self._resources.left_out.update(loss.groups)
        self._observer.lanes_lost = self.losses.lanes_lost
        self._say(
            "degraded", event.id, str(loss), tell=True, lanes=loss.lanes, groups=loss.groups, reason=loss.reason,
            whole=loss.whole,
        )  # fmt: skip
        if self.losses.nobody_left:
            return GiveUp(event.id, f"{loss.reason}, and no lane is left", spent=True)
        if loss.whole:
            return LeaveOut(event.id, loss.reason)
        decider.policy.forgive(event.id)  # the others are not to pay for it
        return Restart(event.id, 0.0)

    def lost_environment(self, component: str, facts: Mapping[str, Any]) -> None:
        """A component has lost an environment that a worker stepped, and tells so; its lane's rows say where."""
        lane, how = facts["lane"], facts["how"]
        self._observer.faults[environment_fault(how)] += 1
        if how != "lost-with-worker":
            self.losses.note(lane, self._clock.now())
        cut = facts["cut"]
        cost = "no episode was running" if cut is None else f"its episode is cut after {cut} steps"
        then = "another one takes its place" if facts["replaced"] else "it is not replaced again"
        text = f"{facts['problem'].splitlines()[0]}; {cost}, and {then}"
        kept = {name: facts[name] for name in ("how", "lane", "call", "step", "error", "cut", "faults", "allowed")}
        self._say("fault", f"environment of lane {lane}", text, tell=True, collector=component, **kept)
        if facts["file"] is not None:
            again = f"what led to it is kept: python -m headrace.testing.reproduce {facts['file']}"
            self._say("reproducer", component, again, file=facts["file"], lane=lane)

    def too_large(self, child_id: str) -> str | None:
        """Whether a component holds more memory than it may, in words."""
        limit_mib = self._basics.config.supervision.max_rss_mib
        held_mib = self._observer.rss_bytes(child_id) / 2**20
        if limit_mib is None or held_mib <= limit_mib:
            return None
        return f"it holds {held_mib:,.0f} MiB (supervision.max_rss_mib {limit_mib:g})"

    def recycled(self, event: Exited, why: str, decider: Decider) -> tuple[Exited, Instruction]:
        """A component has left in order because it was told to, for its memory: a restart like any other.

        Returns:
            Its end as the fault that it stands for, and what follows.
        """
        self._observer.faults["recycled"] += 1
        error = ComponentDied(
            f"{event.id} was replaced too often: {why}",
            fix="look for what the environment keeps; raise supervision.max_rss_mib if it needs as much",
        )
        fault = replace(event, asked=False, done=False, error=error, call=None, lane=-1, step=-1)
        return fault, self.decide(fault, decider)

    def groups_left_out(self, component: str) -> list[int]:
        """Groups of a collector that no replacement is given."""
        return [group for loss in self.losses.losses if loss.component == component for group in loss.groups]

    def error(self, event: Exited, instruction: GiveUp, checkpoint: Mapping[str, Any] | None) -> HeadraceError:
        """The error that ends the run.

        Args:
            event: What happened last.
            instruction: Why that is the end.
            checkpoint: ``version``, ``env_steps`` and ``updates`` of the newest policy on disk, and whether it is ``whole``,
                a checkpoint that a run can go on from; None: there is none.
        """
        error = event.to_error()
        if event.id == "learner":
            return self._learner_lost(error, checkpoint)
        if not instruction.spent:
            return error
        faults = self.losses.faults(event.lane)
        facts = error.facts | ({"faults_of_this_lane": faults} if faults > 1 else {})
        # An environment whose own budget was spent first tells of its last time itself.
        earlier = facts.pop("last_time", None)
        read = f"read the last lines of logs/{event.id}.log"
        return RestartBudgetSpent(
            f"{event.id} ended and is not started again: {instruction.reason}",
            last_time=error.what if earlier is None else f"{error.what}; {earlier}",
            **facts,
            fix=error.fix if read in error.fix else f"{read}; {error.fix}",
        )

    def _learner_lost(self, error: HeadraceError, checkpoint: Mapping[str, Any] | None) -> HeadraceError:
        """What ends with the learner, and what is left of it."""
        updates = self._observer.updates
        kept = "none was written"
        since, fix = updates, error.fix
        if checkpoint is not None:
            since -= checkpoint["updates"]
            kept = (
                f"checkpoints/{checkpoint['version']}, made after {checkpoint['updates']:,} updates and "
                f"{checkpoint['env_steps']:,} environment steps"
            )
            if not is_of_its_program(self._basics.config.env.factory):
                fix += f"; the newest policy plays with `headrace eval RUN --version {checkpoint['version']}`"
        lost = f"{since:,} of {updates:,} updates"
        if checkpoint is not None and checkpoint["whole"]:
            fix += "; `headrace train --resume --run-dir RUN` goes on from there"
            if kept_as_it_is := held_fast(error.fix):
                fix += f", with {' and '.join(kept_as_it_is)} as before: another value takes a new run"
        else:
            experience = "what was not trained on yet" if self._basics.config.on_policy else "the replay"
            lost += f", the optimiser, and {experience}"
        facts = {**error.facts, "lost": lost, "newest_policy": kept}
        return type(error)(error.what, **facts, fix=fix)

    def _keep_reproducer(self, event: Exited) -> None:
        block, books = self._resources.block, self._resources.books
        if block is None or books is None:
            return
        found = reproducer(event, self._basics, block, books, self._streams(event, block))
        path = write_reproducer(self.folder / "reproducers", found) if found is not None else None
        if found is not None and path is not None:
            text = (
                f"what led to it is kept: python -m headrace.testing.reproduce {path.parent.name}/{path.name} "
                f"({found.call} of lane {found.lane}, episode {found.episode}, {found.steps} actions)"
            )
            self._say("reproducer", event.id, text, file=f"{path.parent.name}/{path.name}", lane=found.lane)

    def _streams(self, event: Exited, block: LaneBlock) -> int:
        """Incarnation of the random streams that the environment had which a process ended in."""
        streams, config = self._resources.streams, self._basics.config
        if streams is None or (event.id not in collector_ids(config) and event.call != "construct"):
            # The learner's own: it may have begun a group anew, and notes that with each chunk.
            return int(block.incarnation[event.lane])
        return streams[event.lane // config.env.group_size] + event.incarnation
