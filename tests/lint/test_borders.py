"""R13, R14: who may print, who may read environment variables, what a package's __init__ holds, who imports whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PRINTERS = {"testing/faults.py": "floods its output, so that tests can see that nothing a child prints blocks it"}
"""Modules outside cli that may write to standard output or error, with the reason."""

READERS = {
    "benchmarks/processes.py": "hands its own variables on to the sides it runs",
    "commands/keeper.py": "hands its own variables on to the program it runs",
    "llm/backends/vllm_keeper.py": "hands its own variables on to the server it runs",
    "core/config.py": "the one place for HEADRACE_* variables",
    "ipc/forkserver.py": "sets thread limits before numpy and torch are imported in children",
}
"""Modules that may touch environment variables."""

LAZY = {"__init__.py": "re-exports on first use, so that `import headrace` does not import torch"}
"""Packages whose __init__ may hold a module __getattr__."""


def prints(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            stream = name.startswith(("sys.stdout.", "sys.stderr.", "sys.__stdout__.", "sys.__stderr__."))
            if name == "print" or (stream and not name.endswith((".flush", ".fileno"))):
                yield node.lineno


def reads_environment(tree: ast.Module) -> Iterator[int]:
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in names:
                yield node.lineno
            case ast.ImportFrom(module="os") if names & {alias.name for alias in node.names}:
                yield node.lineno


def more_than_reexports(tree: ast.Module, lazy: bool) -> Iterator[str]:
    if not ast.get_docstring(tree):
        yield "no docstring that says what the package is for"
    for node in tree.body[1:] if ast.get_docstring(tree) else tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            continue
        if lazy and isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        if lazy and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if lazy and isinstance(node, ast.FunctionDef) and node.name in {"__getattr__", "__dir__"}:
            continue
        yield f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}"


@pytest.mark.parametrize("code", ["print(1)", "sys.stderr.write('x')", "def f():\n  sys.stdout.buffer.write(b'')"])
def test_printing_is_found(code: str) -> None:
    assert list(prints(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["os.environ['A']", "os.getenv('A')", "from os import environ", "x = dict(os.environ)"]
)
def test_reading_the_environment_is_found(code: str) -> None:
    assert list(reads_environment(ast.parse(code)))


def test_code_in_an_init_is_found() -> None:
    code = '"""Signpost."""\nfrom a import b\n__all__ = ["b"]\nLIMIT = 1\ndef helper(): ...\n'
    assert list(more_than_reexports(ast.parse(code), lazy=False)) == ["line 4: LIMIT = 1", "line 5: def helper():"]
    assert list(more_than_reexports(ast.parse("import a"), lazy=True)) == [
        "no docstring that says what the package is for"
    ]


def test_only_the_command_line_prints(modules: dict[str, ast.Module]) -> None:
    found = [
        f"{module}:{line}"
        for module, tree in modules.items()
        if not module.startswith("cli/") and module not in PRINTERS
        for line in prints(tree)
    ]
    assert not found, f"emit an event instead of printing: {found}"


def test_environment_variables_are_no_interface(modules: dict[str, ast.Module]) -> None:
    found = [
        f"{module}:{line}"
        for module, tree in modules.items()
        if module not in READERS
        for line in reads_environment(tree)
    ]
    assert not found, f"make it a configuration field: {found}"


def test_a_package_is_a_signpost(modules: dict[str, ast.Module]) -> None:
    found = [
        f"{module} {finding}"
        for module, tree in modules.items()
        if module.rpartition("/")[2] == "__init__.py"
        for finding in more_than_reexports(tree, lazy=module in LAZY)
    ]
    assert not found, found


def test_every_folder_is_a_package(package: Path, modules: dict[str, ast.Module]) -> None:
    folders = {(package / module).parent for module in modules}
    bare = sorted(folder.name for folder in folders if not (folder / "__init__.py").exists())
    assert not bare, f"without __init__.py: {bare}"


def test_imports_point_down(checkout: Path) -> None:
    """The layers and the other contracts of [tool.importlinter]."""
    tool = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run([tool, "--no-cache"], cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
