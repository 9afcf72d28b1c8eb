"""Scenario 2 once more, in processes, sessions, files and connections: slow, and written from what docs/reference/cage2.md says.

What `headrace.envs.cage2.rules` makes small numbers of is spelt out here, so that the two can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np

from headrace.envs.cage2 import Draws

HOSTS = ["Defender", "Enterprise0", "Enterprise1", "Enterprise2", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0"]
HOSTS += [f"User{number}" for number in range(5)]
SUBNETS = {"Enterprise": HOSTS[:4], "Operational": HOSTS[4:8], "User": HOSTS[8:]}
DECOYS = ["Apache", "Femitter", "HarakaSMPT", "Smss", "SSHD", "Svchost", "Tomcat", "Vsftpd"]
ACTIONS = ["Sleep", "Monitor", *(f"Analyse {host}" for host in HOSTS), *(f"Remove {host}" for host in HOSTS)]
ACTIONS += [f"Decoy{decoy} {host}" for decoy in DECOYS for host in HOSTS] + [f"Restore {host}" for host in HOSTS]

GATEWAY = [("ssh", [22], "root")]
INTERNAL = [
    ("ssh", [22], "sshd_server"), ("?", [135], "SYSTEM"), ("rdp", [3389], "SYSTEM"), ("?", [445, 139], "SYSTEM"),
    ("web", [80, 443], "NetworkService"),
]  # fmt: skip
WINDOWS_1 = [("ssh", [22], "sshd_server"), ("femitter", [21], "SYSTEM")]
WINDOWS_2 = [("smb", [445, 139], "SYSTEM"), ("?", [135], "SYSTEM"), ("rdp", [3389], "NetworkService")]
LINUX_1 = [("web", [80], "www-data"), ("mysql", [3389], "root"), ("web", [443], "www-data"), ("smtp", [25], "root")]
LINUX_2 = [*GATEWAY, ("web", [80], "www-data"), ("mysql", [3390], "root"), ("web", [443], "www-data")]
LINUX_2 += [("smtp", [25], "root")]
DEFENDER = [("ssh", [22], "root"), ("?", [53, 53], "systemd+"), ("?", [68], "systemd+")]
IMAGES = dict(zip(HOSTS, [DEFENDER, GATEWAY, INTERNAL, INTERNAL, *[GATEWAY] * 4], strict=False))
IMAGES |= {"User0": WINDOWS_1, "User1": WINDOWS_1, "User2": WINDOWS_2, "User3": LINUX_1, "User4": LINUX_2}
WINDOWS = {"Enterprise1", "Enterprise2", "User0", "User1", "User2"}
LINKS = {"User1": "Enterprise1", "User2": "Enterprise1", "User3": "Enterprise0", "User4": "Enterprise0"}
LINKS |= {"Enterprise2": "Op_Server0"}
VALUES = dict.fromkeys(HOSTS, 0.1) | {f"Enterprise{n}": 1.0 for n in range(3)} | {"Op_Server0": 1.0, "User0": 0.0}

# name: kind of process it pretends to be, port that must be free, port it opens, system
FAKES = {
    "Apache": ("web", 80, 80, None), "Femitter": ("femitter", 21, 21, "windows"), "HarakaSMPT": ("smtp", 25, 25, "linux"),
    "Smss": ("smb", 139, 139, "windows"), "SSHD": ("ssh", 22, 22, None), "Svchost": ("rdp", 3389, 3389, "windows"),
    "Tomcat": ("web", 443, 443, None), "Vsftpd": ("web", 21, 80, "linux"),
}  # fmt: skip
EXPLOITS = [("femitter", 21), ("smtp", 25), ("mysql", 3390), ("web", 443), ("web", 80), ("smb", 139), ("rdp", 3389)]
EXPLOITS += [("ssh", 22)]
STAGES = [
    "sweep",
    "scan",
    "exploit",
    "escalate",
    "scan",
    "exploit",
    "escalate",
    "sweep",
    "scan",
    "exploit",
    "escalate",
    "scan",
    "exploit",
    "escalate",
    "impact",
]
JUMPS = [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13]


@dataclass
class Process:
    kind: str
    ports: list[int]
    user: str
    fake: bool = False
    pid: int = 0


@dataclass
class Host:
    name: str
    processes: list[Process] = field(default_factory=list)
    sessions: list[Process] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    connections: list[dict] = field(default_factory=list)

    def restore(self):
        self.processes = [Process(kind, list(ports), user) for kind, ports, user in IMAGES[self.name]]
        first = [Process("red", [], "SYSTEM")] if self.name == "User0" else []
        self.sessions, self.files, self.connections = first, [], []

    @property
    def privileged(self):
        return any(session.user in ("root", "SYSTEM") for session in self.sessions)


class Scripted(Draws):
    """Draws that were written down: of one episode who attacks, by which user host, and numbers [steps, 3]."""

    def __init__(self, settings, opponent, user, numbers):
        super().__init__(settings)
        self._begin, self._numbers = (opponent, user), np.asarray(numbers, float)
        self._next = 0

    def episode(self):
        return self._begin

    def block(self):
        begin, self._next = self._next, self._next + self.block_steps
        return np.resize(self._numbers[begin:], (self.block_steps, 3))


class PlainNetwork:
    """One episode of one copy."""

    def __init__(self, red, user, numbers):
        self.red, self.user, self.numbers = red, f"User{user - 8}", iter(np.asarray(numbers).tolist())
        self.hosts = {name: Host(name) for name in HOSTS}
        for host in self.hosts.values():
            host.restore()
        self.pids = count(1)
        self.suspicious, self.believed = set(), dict.fromkeys(HOSTS, "No")
        self.known_ports = {}
        self.service = {"running": True, "pid": "1043", "found": False}
        self.last, self.success = ("rest", "User0"), False
        self.stage, self.plans, self.empty_scan = 0, set(), False
        self.addresses, self.scanned, self.exploited, self.escalated = ["User0"], [], [], []
        self.names, self.nets, self.swept = {}, ["User"], []

    def step(self, number):
        kind, _, target = ACTIONS[number].partition(" ")
        pick, choice, notice = next(self.numbers)
        own_report = self.blue(kind, target)
        self.last = self.choose(pick)
        self.success = getattr(self, self.last[0])(self.last[1], choice, notice)
        reward = -sum(VALUES[host.name] for host in self.hosts.values() if host.privileged)
        reward -= 10 * (not self.service["running"]) + (kind == "Restore")
        return round(reward, 1), self.look(kind, target, own_report)

    # Blue

    def blue(self, kind, target):
        if kind in ("Sleep", "Monitor"):
            return None
        host = self.hosts[target]
        if kind == "Analyse":
            return list(host.files)
        if kind == "Remove":
            host.sessions = [s for s in host.sessions if s.pid not in self.suspicious or s.user in ("root", "SYSTEM")]
        elif kind == "Restore":
            host.restore()
            if target == "Op_Server0":
                self.service |= {"running": True, "pid": None}
        else:
            pretends, free, port, system = FAKES[kind.removeprefix("Decoy")]
            in_use = {used for process in host.processes for used in process.ports}
            if free not in in_use and system in (None, "windows" if target in WINDOWS else "linux"):
                host.processes.append(Process(pretends, [port], "ubuntu", fake=True))
                return "decoy"
        return None

    def look(self, kind, target, report):
        """What the blue table shows, as 52 bits, and what monitoring marks as suspicious."""
        if kind == "Restore":
            self.believed[target] = "No"
        elif kind == "Remove" and self.believed[target] != "No":
            self.believed[target] = "Unknown"
        bits = []
        for name, host in self.hosts.items():
            rows = [{"service": True}] if report == "decoy" and name == target else []
            rows += host.connections
            self.suspicious |= {row["pid"] for row in rows if "pid" in row}
            host.connections = []
            activity = interpret(rows)
            if activity == "Exploit":
                self.believed[name] = "User"
            if name == target and isinstance(report, list) and report:
                self.believed[name] = "Privileged"
            bits += {"None": [0, 0], "Scan": [1, 0], "Exploit": [1, 1]}[activity]
            bits += {"No": [0, 0], "Unknown": [1, 0], "User": [0, 1], "Privileged": [1, 1]}[self.believed[name]]
        return bits

    # Red

    def reach(self, name):
        gateways = [self.hosts[f"Enterprise{n}"] for n in range(3)]
        return name not in SUBNETS["Operational"] or any(host.sessions for host in gateways)

    def rest(self, name, choice, notice):
        return False

    def sweep(self, name, choice, notice):
        return self.reach(name)

    def scan(self, name, choice, notice):
        host = self.hosts[name]
        self.empty_scan = not self.reach(name)
        if not self.empty_scan:
            ports = [port for process in host.processes for port in process.ports]
            host.connections += [{"local": port, "remote": 50000} for port in ports]
            self.known_ports[name] = ports
        return True

    def exploit(self, name, choice, notice):
        host, ports = self.hosts[name], self.known_ports.get(name, [])
        options = [(k, p) for k, p in EXPLOITS if p in ports and (p != 3390 or 80 in ports or 443 in ports)]
        if not options or not self.reach(name):
            return False
        others = options[1:]
        best = choice < 0.75 or not others
        kind, port = options[0] if best else others[int((choice - 0.75) * 4 * len(others))]
        found = next((p for p in host.processes if p.kind == kind and port in p.ports), None)
        if found is None:
            return False
        if kind == "ssh":
            return self.guess_password(host, found)
        host.connections.append({"local": port, "remote": 50000})
        if found.fake:
            host.connections.append({"local": port})
            return False
        host.files.append("cmd")
        host.sessions.append(Process("red", [], found.user, pid=next(self.pids)))
        if notice < 0.95:
            host.connections.append({"local": 51000, "remote": 4444, "pid": host.sessions[-1].pid})
        return True

    def guess_password(self, host, found):
        host.connections += [{"local": 22, "remote": 50000}] * 10
        if found.fake or host.name == "Defender":
            return False
        host.sessions.append(Process("red", [], "pi", pid=next(self.pids)))
        host.connections.append({"local": 22, "remote": 50001})
        return True

    def escalate(self, name, choice, notice):
        host = self.hosts[name]
        if not host.sessions:
            return False
        if not host.privileged:
            host.sessions[0].user = "SYSTEM" if name in WINDOWS else "root"
            host.files.append("escalate")
        self.service["found"] |= name == "Op_Server0"
        return True

    def impact(self, name, choice, notice):
        if not self.hosts[name].sessions or not self.service["found"]:
            return False
        self.service["running"] &= self.service["pid"] is None
        return True

    def choose(self, pick):
        return {"b_line": self.b_line, "meander": self.meander, "sleep": lambda _: ("rest", "User0")}[self.red](pick)

    def b_line(self, pick):
        self.stage = min(self.stage + 1, 14) if self.success else JUMPS[self.stage]
        if self.stage == 12 and 12 not in self.plans and self.empty_scan:
            self.stage = 1
        self.plans.add(self.stage)
        first, gate = self.user, LINKS[self.user]
        targets = [
            "User0",
            first,
            first,
            first,
            gate,
            gate,
            gate,
            "Enterprise0",
            *["Enterprise2"] * 3,
            *["Op_Server0"] * 4,
        ]
        return STAGES[self.stage], targets[self.stage]

    def meander(self, pick):
        self.reflect(*self.last)
        if "Op_Server0" in self.escalated:
            return "impact", "Op_Server0"
        for net in ("Enterprise", "Operational", "User"):
            if net in self.nets and net not in self.swept:
                self.swept.append(net)
                return "sweep", SUBNETS[net][0]
        chosen = self.pick(pick, [host for host in self.addresses if host not in self.scanned], self.scanned)
        if chosen:
            return "scan", chosen
        named = ["User0", *self.names] if "User0" not in self.names else list(self.names)
        owned = [host for host in named if host not in self.names or host in self.exploited]
        chosen = self.pick(pick, [host for host in owned if host not in self.escalated], self.escalated)
        if chosen:
            return "escalate", chosen
        return "exploit", self.pick(
            pick, [host for host in self.addresses if host not in self.exploited], self.exploited
        )

    def pick(self, number, hosts, done):
        hosts = sorted(set(hosts), key=HOSTS.index)
        if hosts:
            done.append(hosts[int(number * len(hosts))])
            return done[-1]
        return None

    def reflect(self, kind, host):
        if kind == "sweep" and self.success:
            self.addresses += next(hosts for hosts in SUBNETS.values() if host in hosts)
        if kind == "escalate" and self.success:
            self.addresses += [host, *([LINKS[host]] if host in LINKS else [])]
            self.nets += [net for net, hosts in SUBNETS.items() if host in hosts]
        if kind == "exploit" and self.success:
            self.names[host] = host
        elif kind == "exploit":
            self.exploited.remove(host)
            for part in ("Op", "Ent"):
                given_up = [name for name in self.escalated if part in name]
                if given_up:
                    for name in given_up:
                        self.escalated.remove(name)
                        self.exploited.remove(self.names[name])
                    break
        if kind in ("escalate", "impact") and not self.success:
            self.escalated.remove(host)
            if self.names.get(host) in self.exploited:
                self.exploited.remove(host)


def interpret(rows):
    """Activity, as CybORG's blue table concludes it from the processes that it sees on a host."""
    if not rows:
        return "None"
    local = {row["local"] for row in rows if "local" in row}
    remote = {row["remote"] for row in rows if "remote" in row}
    if len(rows) >= 3 and len(local) >= 3:
        return "Scan"
    if 4444 in remote or (len(rows) >= 3 and len(local) == 1):
        return "Exploit"
    return "None" if "service" in rows[0] else "Scan"
