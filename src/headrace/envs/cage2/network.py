"""What Scenario 2 of CybORG 2.1 consists of: hosts, what listens on them, what can be done; docs/reference/cage2.md has the sources."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.envs.checks import ActionCheck

HOSTS: Final = (
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
"""In the order of actions and observation."""

DEFENDER, ENTERPRISE_0, ENTERPRISE_1, ENTERPRISE_2, _, _, _, OP_SERVER, FOOTHOLD, USER_1, USER_2, USER_3, USER_4 = (
    range(len(HOSTS))
)

TYPES: Final = ("defender", "enterprise", "op_server", "op_host", "user")
"""Types of hosts, which an order of priority is an order of."""
TYPE_OF: Final = (0, 1, 1, 1, 3, 3, 3, 2, 4, 4, 4, 4, 4)
"""Type of each host, by its place in `TYPES`."""

ENTERPRISE, OPERATIONAL, USER = range(3)
SUBNET_OF: Final = (*[ENTERPRISE] * 4, *[OPERATIONAL] * 4, *[USER] * 5)
SUBNET_HOSTS: Final = tuple(tuple(host for host, own in enumerate(SUBNET_OF) if own == net) for net in range(3))
GATEWAYS: Final = (ENTERPRISE_0, ENTERPRISE_1, ENTERPRISE_2)
"""A red session on one of them opens the operational subnet."""

WEIGHTS: Final = (1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1)
"""Tenths of reward that a privileged red session on each host costs per step."""
IMPACT_TENTHS: Final = 100
RESTORE_TENTHS: Final = 10

LINKS: Final = {
    USER_1: ENTERPRISE_1,
    USER_2: ENTERPRISE_1,
    USER_3: ENTERPRISE_0,
    USER_4: ENTERPRISE_0,
    ENTERPRISE_2: OP_SERVER,
}
"""Whose address red finds on a host once it is privileged there."""

EXPLOITS: Final = ("ftp", "haraka", "sql", "https", "http", "eternalblue", "bluekeep", "ssh")
"""Exploits, the one that red prefers first; exploit ``e`` needs what `PORTS` has at ``e``."""
PORTS: Final = (21, 25, 3390, 443, 80, 139, 3389, 22)
FTP, HARAKA, SQL, HTTPS, HTTP, ETERNALBLUE, BLUEKEEP, SSH = range(len(EXPLOITS))

NOTHING, USER_SHELL, ROOT_SHELL, SSH_LOGIN, SSH_REFUSED = range(5)
"""What an exploit of a real service leads to: no such service, a shell of its account, or what comes of guessing a password."""


WINDOWS: Final = "windows"
LINUX: Final = "linux"


class Image(NamedTuple):
    """What runs on a host before anything has happened."""

    system: str
    services: dict[int, int]
    """What an exploit of each open port leads to, by the port's place in `PORTS`."""
    other_ports: int
    """Open ports that no exploit uses; a scan of them is seen all the same."""


_GATEWAY: Final = Image(LINUX, {SSH: SSH_LOGIN}, 0)
_INTERNAL: Final = Image(
    WINDOWS,
    # smss.exe has no process type here, so EternalBlue finds nothing to exploit.
    {SSH: SSH_LOGIN, BLUEKEEP: ROOT_SHELL, ETERNALBLUE: NOTHING, HTTP: USER_SHELL, HTTPS: USER_SHELL},
    2,
)
_WINDOWS_1: Final = Image(WINDOWS, {SSH: SSH_LOGIN, FTP: ROOT_SHELL}, 0)
_WINDOWS_2: Final = Image(WINDOWS, {ETERNALBLUE: ROOT_SHELL, BLUEKEEP: USER_SHELL}, 2)
# Its database listens on 3389, where SQL injection does not look and BlueKeep finds no remote desktop.
_LINUX_1: Final = Image(LINUX, {HTTP: USER_SHELL, BLUEKEEP: NOTHING, HTTPS: USER_SHELL, HARAKA: ROOT_SHELL}, 0)
_LINUX_2: Final = Image(
    LINUX, {SSH: SSH_LOGIN, HTTP: USER_SHELL, SQL: ROOT_SHELL, HTTPS: USER_SHELL, HARAKA: ROOT_SHELL}, 0
)
_DEFENDER: Final = Image(LINUX, {SSH: SSH_REFUSED}, 2)

IMAGES: Final = (
    _DEFENDER,
    _GATEWAY,
    _INTERNAL,
    _INTERNAL,
    *[_GATEWAY] * 4,
    _WINDOWS_1,
    _WINDOWS_1,
    _WINDOWS_2,
    _LINUX_1,
    _LINUX_2,
)


class Decoy(NamedTuple):
    """A service that blue can pretend to run."""

    name: str
    must_be_free: int
    """Port that nothing may use yet, by its place in `PORTS`."""
    opens: int
    """Port that it listens on."""
    system: str | None
    """The one it needs; None: either."""


DECOYS: Final = (
    Decoy("Apache", HTTP, HTTP, None),
    Decoy("Femitter", FTP, FTP, WINDOWS),
    Decoy("HarakaSMPT", HARAKA, HARAKA, LINUX),
    Decoy("Smss", ETERNALBLUE, ETERNALBLUE, WINDOWS),
    Decoy("SSHD", SSH, SSH, None),
    Decoy("Svchost", BLUEKEEP, BLUEKEEP, WINDOWS),
    Decoy("Tomcat", HTTPS, HTTPS, None),
    Decoy("Vsftpd", FTP, HTTP, LINUX),  # looks at port 21 and opens port 80: CybORG's own mistake
)

SLEEP, MONITOR, ANALYSE, REMOVE, DECOY, RESTORE = range(6)
"""Kinds of blue actions."""


class Action(NamedTuple):
    """What a number of the action space means."""

    kind: int
    host: int
    """0 where there is none."""
    decoy: int
    """Its place in `DECOYS`; -1: none."""

    def __str__(self) -> str:
        names = ("Sleep", "Monitor", "Analyse", "Remove", f"Decoy{DECOYS[self.decoy].name}", "Restore")
        return names[self.kind] if self.kind in (SLEEP, MONITOR) else f"{names[self.kind]} {HOSTS[self.host]}"


def _actions() -> tuple[Action, ...]:
    each = range(len(HOSTS))
    return (
        Action(SLEEP, 0, -1),
        Action(MONITOR, 0, -1),
        *(Action(ANALYSE, host, -1) for host in each),
        *(Action(REMOVE, host, -1) for host in each),
        *(Action(DECOY, host, decoy) for decoy in range(len(DECOYS)) for host in each),
        *(Action(RESTORE, host, -1) for host in each),
    )


ACTIONS: Final = _actions()
"""All 145, in CybORG's order."""
CHECKED: Final = ActionCheck(
    len(ACTIONS),
    f"Pass an integer from 0 to {len(ACTIONS) - 1}; headrace.envs.cage2.network.ACTIONS says what each means.",
)


def action_of(kind: int, host: int = 0, decoy: int = -1) -> int:
    """The number of an action."""
    return ACTIONS.index(Action(kind, host, decoy))


B_LINE, MEANDER, ASLEEP = range(3)
OPPONENTS: Final = ("b_line", "meander", "sleep")
"""Red agents by name."""

REST, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)
"""Kinds of red actions."""
RED_NAMES: Final = (
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
)

B_LINE_STAGES: Final = (
    SWEEP,
    SCAN,
    EXPLOIT,
    ESCALATE,
    SCAN,
    EXPLOIT,
    ESCALATE,
    SWEEP,
    SCAN,
    EXPLOIT,
    ESCALATE,
    SCAN,
    EXPLOIT,
    ESCALATE,
    IMPACT,
)
"""What B_line does in each of its stages; after a success it goes on to the next, and stays in the last."""
B_LINE_JUMPS: Final = (0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13)
"""To which stage it goes back after a failure in each."""


def b_line_targets(user: int) -> tuple[int, ...]:
    """On which host each stage acts, given the user host of the episode; of a sweep, a host of the subnet."""
    gateway = LINKS[user]
    return (
        FOOTHOLD,
        *[user] * 3,
        *[gateway] * 3,
        ENTERPRISE_0,
        *[ENTERPRISE_2] * 3,
        *[OP_SERVER] * 4,
    )
