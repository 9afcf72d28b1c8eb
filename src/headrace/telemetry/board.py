"""The run's status file: one fixed slot per component, readable from outside when every process is stuck or gone.

A writer packs a few adjacent words into a memory-mapped page: no lock, no system call, no message. The file is
all there is: whoever has its path may `Board.open` it, whatever became of the run.

Layout, native byte order, every field on 8 bytes: a header of 4096 bytes (`headrace.telemetry.header`), then one slot
of 512 bytes per component: id, kind (`_NAMES`), pid, incarnation, the status words (`_STATUS`), the pid's start, one
word per name in `COUNTERS`.
A slot has one writer at a time: its component while that lives, the supervisor before and after; the words in
`SUPERVISOR_COUNTERS` always belong to the supervisor.
"""

from __future__ import annotations

import mmap
import os
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.core.clock import monotonic_ns
from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.telemetry.header import HEADER_BYTES as _HEADER_BYTES
from headrace.telemetry.header import SLOT_BYTES as _SLOT_BYTES
from headrace.telemetry.header import Header, new_header, pack_header, process_start, read_header
from headrace.telemetry.header import text as _text

__all__ = [
    "COUNTERS",
    "SUPERVISOR_COUNTERS",
    "Activity",
    "Board",
    "Header",
    "Slot",
    "SlotView",
    "State",
    "process_start",
]


class State(IntEnum):
    """Where a component is in its life."""

    EMPTY = 0
    STARTING = 1
    READY = 2
    RUNNING = 3
    WAITING = 4
    STOPPING = 5
    ENDED = 6
    FAILED = 7


class Activity(IntEnum):
    """What a component is busy with. Numbers are stored in files: never reuse one."""

    NONE = 0
    START = 1
    IDLE = 2
    STOP = 3
    ENV_CONSTRUCT = 10
    ENV_RESET = 11
    ENV_STEP = 12
    ENV_CLOSE = 13
    POLICY = 20
    COMMIT = 21
    LOAD_WEIGHTS = 22
    GENERATE = 23
    SCORE = 24
    SAMPLE = 30
    UPDATE = 31
    PUBLISH = 32
    EVALUATE = 33
    CHECKPOINT = 34
    RECORD = 35
    RESUME = 36
    WARM_START = 37
    COMMAND = 40
    """Somebody else's program, which tells nothing about what it does."""
    WAIT_CREDIT = 50
    WAIT_ROWS = 51
    WAIT_COMMANDS = 52
    WAIT_WEIGHTS = 53
    WAIT_ACTIONS = 54
    WAIT_RESULTS = 55
    WAIT_CHILD = 56
    WAIT_ACK = 57
    WAIT_ENV = 58
    """For an environment in another process: that of ``lane``, after its step ``step``."""
    WAIT_REQUESTS = 59
    """A server that nobody asks for anything."""
    WAIT_BATCH = 60
    WAIT_POLICY = 61
    WAIT_COMPLETIONS = 62
    WAIT_READY = 70
    """A program that was started, and whose sign of readiness has not come."""
    WAIT_NEEDED = 71
    """Not started yet: for what it needs to become ready."""
    WAIT_PROGRESS = 72
    """A program that runs, and whose sign of progress has not come for a while."""
    WAIT_RESTART = 73
    """It has failed, and is started again after a pause."""

    @property
    def label(self) -> str:
        """As people read it: ``env.step``, ``wait.credit``, ``load weights``."""
        first, _, rest = self.name.lower().partition("_")
        return f"{first}.{rest}" if rest and first in {"env", "wait"} else self.name.lower().replace("_", " ")


SUPERVISOR_COUNTERS = ("rss_bytes", "restarts", "faults")
"""Counters that only the supervisor writes."""

COUNTERS = (
    "env_steps",
    "episodes",
    "chunks",
    "updates",
    "target_updates",
    "version",
    "rows",
    "evaluations",
    "checkpoints",
    "retries",
    "dropped",
    "rejected",
    *SUPERVISOR_COUNTERS,
)
"""Names of the counters of every slot, in the order of their words. ``version`` and ``rss_bytes`` are gauges."""

_NAMES = struct.Struct("@64s32s")
_PID_AT = 96
# Native format on purpose: each word is then stored in one piece. `since_ns` is the last word and 0 while the
# others are being written (struct clears the range first), so a reader can tell a half-written status.
_STATUS = struct.Struct("@9q")  # state, activity, lane, step, waits on + 1, need, have, limit in ns, since in ns
_STATUS_AT = 112
_PID_START_AT = 184
_COUNTERS_AT = 192
_INDEX = {name: index for index, name in enumerate(COUNTERS)}
_READS = 8
_MOST_NS = 1 << 62  # what a word of the board holds of a limit: 146 years


@dataclass(frozen=True, slots=True)
class SlotView:
    """A component's slot as it was at one moment."""

    id: str
    kind: str
    index: int
    pid: int
    incarnation: int
    state: State
    activity: Activity
    lane: int
    """-1 if it does not apply."""
    step: int
    """-1 if it does not apply."""
    waits_on: str | None
    need: int
    have: int
    deadline_s: float
    """Limit of a wait in seconds; 0 if the component is not waiting."""
    since_ns: int
    counters: dict[str, int]
    pid_start: int = 0
    """`process_start` of its process; 0 if it has none, or the system did not tell."""

    def age_s(self, now_ns: int) -> float:
        """Seconds since the activity began."""
        return max(0.0, (now_ns - self.since_ns) / 1e9)


class Slot:
    """A component's own end of its slot; used by the one process that is that component.

    Args:
        board: The board it is on, attached for writing.
        index: Its place.
    """

    def __init__(self, board: Board, index: int) -> None:
        self._board = board
        self._map = board.memory
        self._at = _HEADER_BYTES + index * _SLOT_BYTES
        self._status_at = self._at + _STATUS_AT
        self._words = board.words
        self._counters_at = (self._at + _COUNTERS_AT) // 8
        self._state = State(self._words[self._status_at // 8])
        self.index = index
        self.id = board.ids[index]

    def begin(self, incarnation: int) -> None:
        """Clear what the last incarnation was doing; counters stay. For the supervisor, before it starts a child."""
        self.set_pid(0)
        self._words[(self._at + _PID_AT) // 8 + 1] = incarnation
        self._state = State.STARTING
        self.enter(Activity.START)

    def set_pid(self, pid: int) -> None:
        """Tell whose slot it is."""
        self._words[(self._at + _PID_START_AT) // 8] = process_start(pid) if pid else 0
        self._words[(self._at + _PID_AT) // 8] = pid

    def enter(self, activity: Activity, lane: int = -1, step: int = -1) -> None:
        """From now on the component is busy with ``activity``. Costs well under a microsecond."""
        _STATUS.pack_into(self._map, self._status_at, self._state, activity, lane, step, 0, 0, 0, 0, monotonic_ns())

    def waiting(
        self, activity: Activity, *, on: str | None = None, need: int = 0, have: int = 0, deadline_s: float = 0.0
    ) -> None:
        """From now on the component waits.

        Args:
            activity: Which wait it is.
            on: Id of the component that can end it, if there is one.
            need: How much it needs (messages, rows, credits).
            have: How much of that is there.
            deadline_s: Seconds after which it gives up.

        Raises:
            ConfigError: No component is called ``on``.
        """
        state = State.WAITING if self._state in _WAITING_SHOWS else self._state
        place = 0 if on is None else self._board.index(on) + 1
        limit_ns = int(min(deadline_s * 1e9, _MOST_NS))
        _STATUS.pack_into(
            self._map, self._status_at, state, activity, -1, -1, place, need, have, limit_ns, monotonic_ns()
        )

    def resume(self) -> tuple[Activity, int, int]:
        """What to `enter` again after a wait: activity, lane and step of now."""
        _, activity, lane, step, *_ = _STATUS.unpack_from(self._map, self._status_at)
        return _activity(activity), lane, step

    def set_state(self, state: State) -> None:
        """Where the component is in its life; stays until the next call, whatever it does meanwhile."""
        self._state = state
        self._words[self._status_at // 8] = state

    def count(self, name: str, value: int) -> None:
        """Set a counter or gauge to ``value``.

        Raises:
            ConfigError: No counter is called ``name``.
        """
        self._words[self._counters_at + _counter(name)] = value

    def add(self, name: str, by: int = 1) -> None:
        """Raise a counter. It goes on from where an earlier incarnation of the component left it."""
        self._words[self._counters_at + _counter(name)] += by


_WAITING_SHOWS = frozenset({State.READY, State.RUNNING, State.WAITING})
"""States that a wait replaces: that a component starts or stops matters more than that it waits meanwhile."""


class Board:
    """The status file, mapped. Closing it invalidates the slots taken from it.

    Made by `create`, `attach` or `open`.
    """

    def __init__(self, path: Path, memory: mmap.mmap, *, writable: bool) -> None:
        self.path = path
        self.memory = memory
        self.writable = writable
        self.header = read_header(path, memory)
        self.words = memoryview(memory).cast("@q")
        """The whole file as signed 64-bit words; each is stored in one piece."""
        names = [_NAMES.unpack_from(memory, _slot_at(index)) for index in range(self.header.slots)]
        self.ids = [_text(name) for name, _ in names]
        self._kinds = [_text(kind) for _, kind in names]
        self._index = {name: index for index, name in enumerate(self.ids)}

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        components: Sequence[tuple[str, str]],
        run_id: str = "",
        events_file: Path | None = None,
    ) -> Self:
        """Make the file, replacing an older one, and attach to it.

        Args:
            path: Of the file.
            components: (id, kind) of each, in the order of their slots; ids of at most 63 bytes.
            run_id: At most 31 bytes; a fresh one if empty.
            events_file: Where events will be told; what it holds already is of earlier sessions. None: nowhere.

        Raises:
            ConfigError: Ids that are not unique or too long.
            RunDirectoryError: The file cannot be written.
        """
        _check(components)
        size = _slot_at(len(components))
        data = bytearray(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        events_from = events_file.stat().st_size if events_file is not None and events_file.exists() else 0
        header = new_header(run_id or uuid.uuid4().hex[:16], len(components), events_from)
        pack_header(header, data)
        for index, (component, kind) in enumerate(components):
            _NAMES.pack_into(data, _slot_at(index), component.encode(), kind.encode()[:31])
            _STATUS.pack_into(data, _slot_at(index) + _STATUS_AT, 0, 0, -1, -1, 0, 0, 0, 0, header.created_ns)
        target = Path(path)
        fresh = target.with_name(target.name + ".new")
        try:
            fresh.write_bytes(data)
            fresh.replace(target)  # so that nobody ever opens half a board
        except OSError as error:
            raise RunDirectoryError(
                "the board cannot be written",
                path=target,
                error=error,
                fix="choose a run directory on a disk that has room and may be written to",
            ) from error
        return cls.attach(target)

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> Self:
        """Map the board for writing: for the components of the run.

        Raises:
            RunDirectoryError: There is none, or it is damaged, or of another version of Headrace.
        """
        return cls(Path(path), _map(Path(path), writable=True), writable=True)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map the board for reading only: for everybody else.

        Raises:
            RunDirectoryError: There is none, or it is damaged, or of another version of Headrace.
        """
        return cls(Path(path), _map(Path(path), writable=False), writable=False)

    def index(self, component: str) -> int:
        """Place of a component's slot.

        Raises:
            ConfigError: No component has this id.
        """
        try:
            return self._index[component]
        except KeyError:
            raise ConfigError(
                f"no component of this run is called {component!r}",
                components=", ".join(self.ids) or "none",
                fix="use one of these ids",
            ) from None

    def slot(self, component: str) -> Slot:
        """The slot of ``component``, for its writer.

        Raises:
            ConfigError: No component has this id, or the board was opened for reading only.
        """
        if not self.writable:
            raise ConfigError(
                "the board was opened for reading only", component=component, fix="use Board.attach to write"
            )
        return Slot(self, self.index(component))

    def read(self, component: str) -> SlotView:
        """What ``component`` is doing.

        Raises:
            ConfigError: No component has this id.
        """
        return self._view(self.index(component))

    def read_all(self) -> list[SlotView]:
        """What every component is doing, in the order of their slots."""
        return [self._view(index) for index in range(len(self.ids))]

    def supervisor_alive(self) -> bool:
        """Whether the process that made the board still runs (also when another process has its number now)."""
        return self.header.supervisor_alive()

    def close(self) -> None:
        """Unmap the file; again is harmless."""
        self.words.release()
        self.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _status(self, at: int) -> tuple[int, ...]:
        """The status words, read until two reads agree and none is half-written."""
        last: tuple[int, ...] = ()
        for _ in range(_READS):
            seen = _STATUS.unpack_from(self.memory, at)
            if seen == last and seen[-1]:
                break
            last = seen
        else:
            # Its writer was stopped in the middle of the words. Without a beginning nothing can be overdue.
            seen = (*seen[:-1], seen[-1] or monotonic_ns())
        return seen

    def _view(self, index: int) -> SlotView:
        at = _slot_at(index)
        state, activity, lane, step, place, need, have, limit_ns, since_ns = self._status(at + _STATUS_AT)
        first = (at + _COUNTERS_AT) // 8
        return SlotView(
            id=self.ids[index],
            kind=self._kinds[index],
            index=index,
            pid=self.words[(at + _PID_AT) // 8],
            incarnation=self.words[(at + _PID_AT) // 8 + 1],
            state=State(state) if state in _STATES else State.EMPTY,
            activity=_activity(activity),
            lane=lane,
            step=step,
            waits_on=self.ids[place - 1] if 0 < place <= len(self.ids) else None,
            need=need,
            have=have,
            deadline_s=limit_ns / 1e9,
            since_ns=since_ns,
            counters=dict(zip(COUNTERS, self.words[first : first + len(COUNTERS)].tolist(), strict=True)),
            pid_start=self.words[(at + _PID_START_AT) // 8],
        )


def _slot_at(index: int) -> int:
    return _HEADER_BYTES + index * _SLOT_BYTES


def _activity(number: int) -> Activity:
    return Activity(number) if number in _ACTIVITIES else Activity.NONE


_ACTIVITIES = frozenset(int(activity) for activity in Activity)
_STATES = frozenset(int(state) for state in State)


def _counter(name: str) -> int:
    try:
        return _INDEX[name]
    except KeyError:
        raise ConfigError(
            f"no counter of the board is called {name!r}", counters=", ".join(COUNTERS), fix="use one of these"
        ) from None


def _check(components: Sequence[tuple[str, str]]) -> None:
    ids = [component for component, _ in components]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    unfit = [name for name in ids if not name or len(name.encode()) > 63 or "\0" in name]
    if twice or unfit:
        raise ConfigError(
            "the ids of a run's components are unusable",
            used_twice=", ".join(twice) or "none",
            empty_or_longer_than_63_bytes=", ".join(map(repr, unfit)) or "none",
            fix="give every component a short id of its own",
        )


def _map(path: Path, *, writable: bool) -> mmap.mmap:
    try:
        with path.open("r+b" if writable else "rb") as file:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return mmap.mmap(file.fileno(), 0, access=access)
    except (OSError, ValueError) as error:
        raise RunDirectoryError(
            "the run has no board that can be read",
            path=path,
            error=error,
            fix="give the directory of a run that has been started",
        ) from error
