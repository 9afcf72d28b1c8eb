"""A package that behaves towards `headrace.envs.cage2.cyborg_child` as CybORG 2.1 does; nothing of CybORG's is in it.

Red is on Enterprise1 from the second step on, as SYSTEM from the third. What goes wrong is said by the scenario's name.
"""

from __future__ import annotations

FILES = {
    "CybORG/__init__.py": """
import os
import random
import sys
import time

assert "headrace" not in sys.modules
assert not [folder for folder in sys.path if folder.endswith("cage2")]

try:
    import numpy
except ModuleNotFoundError:
    numpy = None

HOSTS = ["Defender", *(f"Enterprise{n}" for n in range(3)), *(f"Op_Host{n}" for n in range(3)), "Op_Server0"]
HOSTS += [f"User{n}" for n in range(5)]


class CybORG:
    def __init__(self, path, mode, agents):
        print("building", path, mode)
        self.path, self.red, self.steps = os.path.basename(path), agents["Red"], 0
        if "cannot" in path:
            raise FileNotFoundError(path)

    def get_agent_state(self, agent):
        assert agent == "True"
        state = {"success": None, "User0": {"Sessions": [{"Agent": "Red", "Username": "SYSTEM"}]}}
        state["User1"] = {"Sessions": [{"Agent": "Blue", "Username": "SYSTEM"}]}
        if self.steps >= 2:
            name = "SYSTEM" if self.steps >= 3 else "vagrant"
            state["Enterprise1"] = {
                "Sessions": [{"Agent": "Green", "Username": "x"}, {"Agent": "Red", "Username": name}]
            }
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
        half = [float(random.random() < 0.5) for _ in range(26)]
        return half + [0] * 26 if numpy is None else numpy.array(half + [*numpy.random.randint(0, 2, 26)])
""",
    "CybORG/Agents/__init__.py": """
class B_lineAgent:
    pass


class SleepAgent:
    pass
""",
    "CybORG/Agents/SimpleAgents/Meander.py": """
class RedMeanderAgent:
    pass
""",
    "CybORG/Agents/Wrappers.py": """
from CybORG import HOSTS, numpy

DECOYS = ["Apache", "Femitter", "HarakaSMPT", "Smss", "SSHD", "Svchost", "Tomcat", "Vsftpd"]


class Space:
    def __init__(self, n):
        self.n = n


class ChallengeWrapper:
    def __init__(self, env, agent_name):
        assert agent_name == "Blue"
        kinds = ["Analyse", "Remove", *(f"Decoy{name}" for name in DECOYS), "Restore"]
        hosts = HOSTS[::-1] if "other" in env.path else HOSTS
        self.possible_actions = ["Sleep", "Monitor", *(f"{kind} {host}" for kind in kinds for host in hosts)]
        self.env, self.action_space = env, Space(len(self.possible_actions))

    def get_attr(self, name):
        return getattr(self, name)

    def reset(self):
        self.env.steps = 0
        return [0] * 52 if numpy is None else numpy.zeros(52)

    def step(self, action):
        reward = -0.1 * action
        return self.env.act(action), reward if numpy is None else numpy.float64(reward), False, {"observation": object()}
""",
}


def install(folder):
    """Write it where an interpreter will find it; what to give as ``pythonpath``."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [str(folder)]
