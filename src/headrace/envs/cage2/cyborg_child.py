"""Runs CybORG in an interpreter of its own, for `headrace.envs.cage2.cyborg`; not to be imported.

It needs CybORG 2.1 and what CybORG needs, and nothing of Headrace: it has to run under the Python that CybORG runs under. It
reads a request per line from one descriptor and answers each with a line on another, both JSON. It ends when the requests do,
also in the middle of a step.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import random
import select
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

HOSTS = (
    "Defender",
    "Enterprise0",
    "Enterprise1",
    "Enterprise2",
    "Op_Host0",
    "Op_Host1",
    "Op_Host2",
    "Op_Server0",
    "User0",
    "User1",
    "User2",
    "User3",
    "User4",
)
RED_AGENTS = {
    "b_line": ("CybORG.Agents", "B_lineAgent"),
    "meander": ("CybORG.Agents.SimpleAgents.Meander", "RedMeanderAgent"),
    "sleep": ("CybORG.Agents", "SleepAgent"),
}
NONE, USER, PRIVILEGED = 0, 1, 3
_LOOK_MS = 60_000


class Game:
    """One CybORG behind its challenge wrapper."""

    def __init__(self, red: str, scenario: str | None, true_state: bool) -> None:
        simulator = importlib.import_module("CybORG")
        wrappers = importlib.import_module("CybORG.Agents.Wrappers")
        folder = os.path.dirname(inspect.getfile(simulator))  # noqa: PTH120
        path = scenario or os.path.join(folder, "Shared", "Scenarios", "Scenario2.yaml")  # noqa: PTH118
        self.true_state = true_state
        module, name = RED_AGENTS[red]
        agent = getattr(importlib.import_module(module), name)
        self.cyborg = simulator.CybORG(path, "sim", agents={"Red": agent})
        self.env = wrappers.ChallengeWrapper(env=self.cyborg, agent_name="Blue")

    def action_names(self) -> list[str] | None:
        """What each action is called, if this CybORG tells."""
        found = self.env.get_attr("possible_actions")  # None where nobody has it
        return None if found is None else [str(action) for action in found]

    def reset(self, seed: int | None) -> dict[str, Any]:
        """Begin an episode; CybORG draws from Python's and NumPy's global generators."""
        if seed is not None:
            random.seed(seed)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed % 2**32)
        return {"seen": bits(self.env.reset()), "levels": self.levels()}

    def step(self, action: int) -> dict[str, Any]:
        """One step."""
        seen, reward, done, _ = self.env.step(action)
        return {"seen": bits(seen), "reward": float(reward), "done": bool(done), "levels": self.levels()}

    def levels(self) -> list[int] | None:
        """Red's level on each host in the true state."""
        if not self.true_state:
            return None
        state = self.cyborg.get_agent_state("True")
        return [level(state.get(host, {})) for host in HOSTS]


def level(info: dict[str, Any]) -> int:
    """Red's level in what the true state says of a host."""
    names = [session.get("Username") for session in info.get("Sessions", []) if session.get("Agent") == "Red"]
    return PRIVILEGED if {"root", "SYSTEM"} & set(names) else USER if names else NONE


def bits(seen: Any) -> str:
    """An observation as a text of 0 and 1."""
    return "".join(str(int(bit)) for bit in seen)


def leave_with_the_parent(requests: int, parent: int) -> None:
    """End the process when nobody is left to ask anything, whatever it is doing."""
    poll = select.poll()
    poll.register(requests, 0)  # hang-up is told unasked, except on macOS
    while not poll.poll(_LOOK_MS) and os.getppid() == parent:
        pass
    os._exit(1)


def answer(game: Game, request: dict[str, Any]) -> dict[str, Any]:
    """What one request leads to."""
    if request["op"] == "reset":
        return game.reset(request["seed"])
    return game.step(request["action"])


def main() -> int:
    """Build the game and answer requests until they end."""
    requests, answers = int(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=leave_with_the_parent, args=(requests, os.getppid()), daemon=True).start()
    with os.fdopen(os.dup(requests)) as lines, os.fdopen(answers, "w") as out:

        def reply(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            try:
                message = make()
            except Exception:  # noqa: BLE001 - a process border: it goes to the parent
                message = {"traceback": traceback.format_exc()}
            out.write(json.dumps(message) + "\n")
            out.flush()
            return message

        settings = json.loads(sys.argv[3])
        # This file's folder goes: its modules are no business of CybORG's.
        sys.path[:1] = settings.pop("path")
        built: list[Game] = []

        def build() -> dict[str, Any]:
            built.append(Game(**settings))
            return {"actions": int(built[0].env.action_space.n), "names": built[0].action_names()}

        if "traceback" in reply(build):
            return 1
        for line in lines:
            reply(functools.partial(answer, built[0], json.loads(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
