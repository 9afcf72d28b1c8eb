"""A side of a comparison that does what its name says, for tests of who asks; run as a peer's, without the rest of Headrace.

Run as a program it is who asks: it opens a side that never answers, tells its number, and asks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.benchmarks.sides import Found, Opened, Request


def open_side(request: Request) -> Opened:
    name = request["side"]
    if name == "needs a peer":
        import no_such_peer  # noqa: F401
    if name == "breaks":
        chatter()
        raise RuntimeError("it cannot be built")
    turns = []

    def turn(question: Mapping[str, Any]) -> Found:
        turns.append(question)
        chatter()
        if name == "dies later" and len(turns) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "never answers":
            signal.pause()
        if name == "spawns":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return {"rate": 1.0, "cpu_rate": 1.0, "installed": pool.apply(is_installed)}
        rate = len(turns) * (2.0 if name == "fast" else 1.0)
        return {"rate": rate, "cpu_rate": rate, "pid": os.getpid(), "torch": "torch" in sys.modules}

    return Opened("1.2", turn)


def is_installed() -> bool:
    """Whether what is imported as Headrace is all of it."""
    return hasattr(sys.modules["headrace"], "__file__")


def chatter() -> None:
    """As peers do; it is no answer."""
    sys.stdout.write("chatter that is no answer\n")
    sys.stdout.flush()


def request(name: str) -> dict[str, Any]:
    """How it is opened."""
    return {"side": name, "module": "bench_sides", "ours": False, "work": "td3"}


if __name__ == "__main__":
    from headrace.benchmarks.processes import SideProcess

    process = SideProcess(Path(sys.executable), request("never answers"))
    sys.stdout.write(f"{process._process.pid}\n")
    sys.stdout.flush()
    process.ask({}, 60.0)
