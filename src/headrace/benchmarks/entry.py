"""The process of a side, run by its path, so that it works where Headrace is not installed.

    python entry.py '{"side": "sbx", "module": "headrace.benchmarks.updates", "ours": false, "answers": 5, "leash": 6, ...}'

Questions come as lines of JSON on standard input, answers leave by the descriptor ``answers``, a line each: first one that says
whether the side is there, then one a question. What libraries print is not among them. When the other end of the descriptor
``leash`` is closed, nobody asks any more.
"""

from __future__ import annotations

import time

BEGAN_S = time.perf_counter()

import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import types  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

PACKAGE = Path(__file__).absolute().parents[1]


def stand_in() -> None:
    """Make our modules for peers importable, and of Headrace nothing else, whether it is installed or not."""
    package = types.ModuleType("headrace")
    package.__path__ = [str(PACKAGE)]
    sys.modules["headrace"] = package


def prepared() -> Mapping[str, Any]:
    """What the side is opened with, once everything that it needs can be imported."""
    request: Mapping[str, Any] = json.loads(sys.argv[1])
    if sys.path[0] == str(Path(__file__).absolute().parent):
        del sys.path[0]  # modules beside this one are not to be found by their bare names
    if not request["ours"]:
        stand_in()
    return request


def end_with(leash: int) -> None:
    """End this process and all that it has started when the leash is let go, also in the middle of a training."""
    os.read(leash, 1)
    os.killpg(0, signal.SIGKILL)  # of its own session


def main() -> None:
    """Answer until nobody asks."""
    request = prepared()
    for descriptor in (request["answers"], request["leash"]):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no keyword
    threading.Thread(target=end_with, args=(request["leash"],), daemon=True).start()
    if request["threads"] is not None:  # for all sides the same processors
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request["threads"]])
    with os.fdopen(request["answers"], "w") as answers:

        def answer(found: Mapping[str, Any]) -> None:
            answers.write(f"{json.dumps(found)}\n")
            answers.flush()

        try:
            opened = importlib.import_module(request["module"]).open_side(request)
        except ModuleNotFoundError as error:
            answer({"missing": error.name})
            return
        answer({"version": opened.version})
        for line in sys.stdin:
            found = opened.turn(json.loads(line))
            answer({**found, "since_start_s": time.perf_counter() - BEGAN_S})


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a process that a peer has spawned, which unpickles what is ours
    prepared()
