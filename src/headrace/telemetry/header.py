"""The head of a board: whose it is, where and when it was made, and whether a process number still means the same."""

from __future__ import annotations

import functools
import mmap
import os
import socket
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.core.clock import monotonic_ns
from headrace.core.errors import RunDirectoryError
from headrace.core.procstat import STARTED, STATE, stat_fields

LAYOUT_VERSION = 2
HEADER_BYTES = 4096
SLOT_BYTES = 512

_MAGIC = b"HRBOARD\0"
# magic, layout, slots, slot bytes, pid, pid's start, created, created by the calendar, run id, machine, host, events from
_HEADER = struct.Struct("@8sqqqqqqq32s64s64sq")


@dataclass(frozen=True, slots=True)
class Header:
    """What the board tells about the run as a whole."""

    run_id: str
    slots: int
    supervisor_pid: int
    supervisor_start: int
    """`process_start` of that pid when the board was made: another value now means another process."""
    created_ns: int
    """On the machine's monotonic clock, as all times on the board."""
    created_unix_s: int
    """The same moment by the calendar, which is the only time that means something on another machine."""
    machine: str
    """`this_machine` of the process that made it: elsewhere, monotonic times and process numbers mean nothing."""
    host: str
    """The machine's name, for messages."""
    events_from: int = 0
    """Bytes of ``events.jsonl`` that were there when it was made: what stands before is of earlier sessions."""

    @property
    def here(self) -> bool:
        """Whether the board's times and process numbers are those of this machine, since its last start."""
        return self.machine == this_machine()

    def supervisor_alive(self) -> bool:
        """Whether the process that made the board still runs (also when another process has its number now)."""
        start = process_start(self.supervisor_pid) if self.here else 0
        return start != 0 and start == self.supervisor_start


@functools.cache
def this_machine() -> str:
    """Names the machine, its present boot and its space of process numbers (which a container has of its own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"[:63]
    except OSError:
        return socket.gethostname()[:63]  # without /proc a restart of the machine goes unnoticed


def process_start(pid: int) -> int:
    """When process ``pid`` began, in the kernel's own ticks; 0 if there is none, or the system does not tell."""
    fields = stat_fields(pid)
    return int(fields[STARTED]) if fields and fields[STATE] not in {"Z", "X"} else 0


def new_header(run_id: str, slots: int, events_from: int) -> Header:
    """The header of a board that this process makes now."""
    pid = os.getpid()
    return Header(
        run_id=run_id,
        slots=slots,
        supervisor_pid=pid,
        supervisor_start=process_start(pid),
        created_ns=monotonic_ns(),
        created_unix_s=int(datetime.now(tz=UTC).timestamp()),
        machine=this_machine(),
        host=socket.gethostname()[:63],
        events_from=events_from,
    )


def pack_header(header: Header, data: bytearray) -> None:
    """Write ``header`` to the beginning of ``data``."""
    numbers = (LAYOUT_VERSION, header.slots, SLOT_BYTES, header.supervisor_pid, header.supervisor_start)
    times = (header.created_ns, header.created_unix_s)
    texts = (header.run_id.encode()[:31], header.machine.encode()[:63], header.host.encode()[:63])
    _HEADER.pack_into(data, 0, _MAGIC, *numbers, *times, *texts, header.events_from)


def read_header(path: Path, memory: mmap.mmap) -> Header:
    """The header of a mapped board.

    Raises:
        RunDirectoryError: It is damaged, or of another version of Headrace; the map is closed then.
    """
    problem = _problem(memory)
    if problem:
        memory.close()
        raise RunDirectoryError(
            "the board of this run is damaged or of another program",
            path=path,
            problem=problem,
            fix="read the run with the version of Headrace that wrote it; if that is this one, the file is damaged",
        )
    _, _, slots, _, pid, start, created_ns, unix_s, run_id, machine, host, begin = _HEADER.unpack_from(memory, 0)
    return Header(text(run_id), slots, pid, start, created_ns, unix_s, text(machine), text(host), begin)


def text(raw: bytes) -> str:
    """A name as it is stored: UTF-8, filled up with zeros."""
    return raw.rstrip(b"\0").decode(errors="replace")


def _problem(memory: mmap.mmap) -> str:
    if len(memory) < HEADER_BYTES:
        return f"it has {len(memory)} bytes, less than a header"
    magic, layout, slots, slot_bytes, *_ = _HEADER.unpack_from(memory, 0)
    if magic != _MAGIC:
        return "it does not begin like a board"
    if (layout, slot_bytes) != (LAYOUT_VERSION, SLOT_BYTES):
        return f"its layout version is {layout}, this Headrace reads {LAYOUT_VERSION}"
    if not 0 <= slots <= (len(memory) - HEADER_BYTES) // SLOT_BYTES:
        return f"it says {slots} slots, and {len(memory)} bytes cannot hold them"
    return ""
