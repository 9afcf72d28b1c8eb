"""R2: nothing in the package waits without a deadline.

Types are not known here, so a call is judged by its name. A name too many costs one entry in ALLOWED,
a name too few costs a user a frozen run. Not seen: reads of pipes and files, `Process.start`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

# "module function call" -> why this one cannot wait for ever. An entry that no longer matches fails the test.
ALLOWED = {
    "benchmarks/sample_factory.py Evaluation._evaluate with self._lock": "the peer's own; who asked has a limit, and ends it",
    "collectors/worker.py CollectorWorker._commit self._commits.put": "MessagePipe.put never blocks",
    "llm/orchestration/collecting.py Collecting._note task.result": "a callback of the task's end: it has its result",
    "runtime/groups.py RemoteGroups._send self._pipes[collector][0].put": "MessagePipe.put never blocks",
}

EXEMPT_MODULES = {"testing/faults.py": "hangs on purpose, so that tests can see the hang end"}

# Method -> position of its timeout; None: it has no such parameter, only a keyword of ours would do.
METHODS: dict[str, int | None] = {
    "accept": None,
    "acquire": 1,
    "communicate": 1,
    "exception": 0,
    "get": 1,
    "join": 0,
    "poll": 0,
    "put": 2,
    "recv": None,
    "recv_bytes": None,
    "recv_bytes_into": None,
    "recv_into": None,
    "recvfrom": None,
    "recvmsg": None,
    "result": 0,
    "select": 0,
    "send_bytes": None,
    "sendall": None,
    "wait": 0,
    "wait_for": 1,
}

# The same for functions, by the name they are imported from.
FUNCTIONS: dict[str, int | None] = {
    "asyncio.wait": None,
    "asyncio.wait_for": 1,
    "concurrent.futures.as_completed": 1,
    "concurrent.futures.wait": 1,
    "input": None,
    "multiprocessing.connection.wait": 1,
    "os.wait": None,
    "os.wait3": None,
    "os.wait4": None,
    "select.select": 3,
    "signal.pause": None,
    "signal.sigwait": None,
    "signal.sigwaitinfo": None,
    "socket.create_connection": 1,
    "subprocess.call": None,
    "subprocess.check_call": None,
    "subprocess.check_output": None,
    "subprocess.run": None,
    "urllib.request.urlopen": 2,
}

# Methods that are only a wait when they are called like one: `mapping.get(key)`, `", ".join(words)`,
# `numpy.put(array, where, what)` and `logger.exception("text")` are not.
HARMLESS_ARGUMENTS = {"get": 1, "join": 1, "put": 3, "exception": 1}

# Functions that do not wait when one of these flags is among their arguments.
UNBLOCKED = {
    "fcntl.flock": ("LOCK_NB", "LOCK_UN"),
    "fcntl.lockf": ("LOCK_NB", "LOCK_UN"),
    "os.waitpid": ("WNOHANG",),
}

CONSTRUCTORS = {"select.poll"}

BLOCKING, UNBLOCKING = (None, True), (False,)
"""What a flag or a timeout says when it is written down."""

LOCKS = ("lock", "mutex", "semaphore", "condition")


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> full name, for every import in a module."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                names[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_literal(node: ast.expr | None, *values: object) -> bool:
    return isinstance(node, ast.Constant) and any(node.value is value for value in values)


def is_a_limit(node: ast.expr) -> bool:
    """Neither None nor a negative number, which mean "for ever"."""
    return not is_literal(node, None) and not isinstance(node, ast.UnaryOp)


def has_deadline(call: ast.Call, position: int | None) -> bool:
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return False
    for keyword in call.keywords:
        if keyword.arg in {"block", "blocking"} and is_literal(keyword.value, *UNBLOCKING):
            return True
        if keyword.arg and ("timeout" in keyword.arg or "deadline" in keyword.arg):
            return is_a_limit(keyword.value)
    return position is not None and len(call.args) > position and is_a_limit(call.args[position])


def waits_for_ever(call: ast.Call, imports: dict[str, str]) -> bool:
    name = ast.unparse(call.func)
    first, _, rest = name.partition(".")
    full = ".".join(part for part in (imports.get(first, first), rest) if part)
    if full in UNBLOCKED:
        return not any(flag in ast.unparse(call) for flag in UNBLOCKED[full])
    if full in FUNCTIONS:
        return not has_deadline(call, FUNCTIONS[full])
    if full in CONSTRUCTORS or not isinstance(call.func, ast.Attribute):
        return False
    method = call.func.attr
    if method == "settimeout":
        return len(call.args) == 1 and is_literal(call.args[0], None)
    if method == "setblocking":
        return len(call.args) == 1 and is_literal(call.args[0], *BLOCKING)
    if method not in METHODS:
        return False
    return method_waits_for_ever(call, method)


def method_waits_for_ever(call: ast.Call, method: str) -> bool:
    first = call.args[0] if call.args else None
    if is_literal(first, *UNBLOCKING) and method in {"acquire", "get"}:
        return False
    looks_blocking = first is None or is_literal(first, *BLOCKING)
    explicit = any(keyword.arg in {"block", "blocking"} for keyword in call.keywords)
    if len(call.args) >= HARMLESS_ARGUMENTS.get(method, 99) and not looks_blocking and not explicit:
        return False
    if method == "put" and len(call.args) == 2 and is_literal(call.args[1], *UNBLOCKING):
        return False
    return not has_deadline(call, METHODS[method])


def waits(tree: ast.Module, module: str = "") -> Iterator[tuple[str, int]]:
    """Every wait without a deadline, as ("module function call", line)."""
    imports = imported_names(tree)

    def visit(node: ast.AST, scope: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{scope}.{child.name}".lstrip(".")
            elif isinstance(child, ast.Call) and waits_for_ever(child, imports):
                yield f"{module} {scope} {ast.unparse(child.func)}", child.lineno
            elif isinstance(child, ast.withitem):
                subject = ast.unparse(child.context_expr)
                if subject.lower().endswith(LOCKS):
                    yield f"{module} {scope} with {subject}", child.context_expr.lineno
            yield from visit(child, inner)

    yield from visit(tree, "")


@pytest.mark.parametrize(
    "code",
    [
        "pipe.recv()",
        "pipe.recv_bytes(100)",
        "queue.get()",
        "queue.get(True)",
        "queue.get(block=True)",
        "queue.get(timeout=None)",
        "queue.put(item)",
        "queue.put(item, True)",
        "process.join()",
        "process.join(None)",
        "process.wait()",
        "process.communicate(b'')",
        "event.wait(timeout=None)",
        "condition.wait_for(done)",
        "lock.acquire()",
        "lock.acquire(True)",
        "with self._lock: pass",
        "future.result()",
        "future.exception()",
        "poller.poll()",
        "poller.poll(-1)",
        "selector.select()",
        "selector.select(None)",
        "import select; select.select(r, w, x)",
        "import select; select.select(r, w, x, None)",
        "from multiprocessing.connection import wait; wait(pipes)",
        "import multiprocessing.connection; multiprocessing.connection.wait(pipes)",
        "from multiprocessing import connection as c; c.wait(pipes)",
        "import subprocess; subprocess.run(['x'], check=True)",
        "from subprocess import check_output as out; out(['x'])",
        "import os; os.waitpid(pid, 0)",
        "import fcntl; fcntl.flock(f, fcntl.LOCK_EX)",
        "import signal; signal.pause()",
        "socket.settimeout(None)",
        "socket.setblocking(True)",
        "socket.accept()",
        "input('?')",
        "process.wait(*how)",
    ],
)
def test_a_wait_without_deadline_is_found(code: str) -> None:
    assert len(list(waits(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "mapping.get(key)",
        "mapping.get(key, None)",
        "', '.join(words)",
        "os.path.join(a, b)",
        "os.path.join(*parts)",
        "queue.get(timeout=1.0)",
        "queue.get(True, 1.0)",
        "queue.get(False)",
        "queue.get(block=False)",
        "queue.put(item, timeout=limit_s)",
        "queue.put(item, False)",
        "np.put(array, where, what)",
        "process.join(5.0)",
        "process.communicate(timeout=5.0)",
        "channel.recv(timeout_s=3.0)",
        "event.wait(left_s)",
        "condition.wait_for(done, 2.0)",
        "lock.acquire(False)",
        "lock.acquire(timeout=1.0)",
        "future.result(5)",
        "log.exception('text')",
        "poller.poll(0)",
        "selector.select(left_s)",
        "import select; select.select(r, w, x, 0.5)",
        "from multiprocessing.connection import wait; wait(pipes, timeout=1.0)",
        "import subprocess; subprocess.run(['x'], timeout=5)",
        "import os; os.waitpid(pid, os.WNOHANG)",
        "import fcntl; fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "import fcntl; fcntl.flock(f, fcntl.LOCK_UN)",
        "import select; select.poll()",
        "socket.settimeout(5.0)",
        "with open(path) as file: pass",
    ],
)
def test_other_calls_are_left_alone(code: str) -> None:
    assert list(waits(ast.parse(code))) == []


def test_every_wait_has_a_deadline(modules: dict[str, ast.Module]) -> None:
    found = [
        (key, f"{module}:{line} {key.split(maxsplit=1)[1]}")
        for module, tree in modules.items()
        if module not in EXEMPT_MODULES
        for key, line in waits(tree, module)
    ]
    for_ever = [place for key, place in found if key not in ALLOWED]
    assert not for_ever, f"waits without a deadline: {for_ever}"
    stale = sorted(ALLOWED.keys() - {key for key, _ in found})
    assert not stale, f"no longer there, so no longer allowed: {stale}"
