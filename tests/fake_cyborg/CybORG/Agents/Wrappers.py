import numpy

from CybORG import HOSTS

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
        return numpy.zeros(52)

    def step(self, action):
        return self.env.act(action), numpy.float64(-0.1 * action), False, {"observation": object()}
