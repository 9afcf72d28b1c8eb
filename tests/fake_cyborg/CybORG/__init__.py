"""Behaves towards `headrace.envs.cage2.cyborg_child` as CybORG 2.1 does, as far as that asks; nothing of CybORG's is in it.

Red is on Enterprise1 from the second step on, as SYSTEM from the third. Actions that a test gives a number beyond those of the
game are not there; the action 0 under a scenario whose name says so goes wrong.
"""

import os
import random
import time

import numpy

HOSTS = ["Defender", *(f"Enterprise{n}" for n in range(3)), *(f"Op_Host{n}" for n in range(3)), "Op_Server0"]
HOSTS += [f"User{n}" for n in range(5)]


class CybORG:
    def __init__(self, path, mode, agents):
        print("building", path, mode)
        self.path, self.red, self.steps = path, agents["Red"], 0
        if "cannot" in path:
            raise FileNotFoundError(path)

    def get_agent_state(self, agent):
        assert agent == "True"
        state = {"success": None, "User0": {"Sessions": [{"Agent": "Red", "Username": "SYSTEM"}]}}
        state["User1"] = {"Sessions": [{"Agent": "Blue", "Username": "SYSTEM"}]}
        if self.steps >= 2:
            name = "SYSTEM" if self.steps >= 3 else "vagrant"
            state["Enterprise1"] = {"Sessions": [{"Agent": "Green", "Username": "x"}, {"Agent": "Red", "Username": name}]}
        return state

    def act(self, action):
        self.steps += 1
        if action == 0 and "raises" in self.path:
            raise ValueError("scenario is corrupt at host 7")
        if action == 0 and "dies" in self.path:
            print("out of memory, it seems", flush=True)
            os._exit(3)
        if action == 0 and "hangs" in self.path:
            print("thinking", flush=True)
            time.sleep(1000)
        if "noisy" in self.path:
            print("x" * 262144, flush=True)
        return numpy.array([float(random.random() < 0.5) for _ in range(26)] + [*numpy.random.randint(0, 2, 26)])
