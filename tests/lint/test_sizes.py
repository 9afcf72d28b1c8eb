"""No module, class, function, section or family tree grows past the limits in CONTRIBUTING.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

LINES = {"module": 500, "class": 300, "function": 50}
METHODS = 20
FIELDS = 14
DEPTH = 2

DEEPER = {"core/errors.py": "one tree, so that a caller can catch a family of errors"}

Functions = ast.FunctionDef | ast.AsyncFunctionDef


def fields(section: ast.ClassDef) -> list[str]:
    return [
        node.target.id for node in section.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def base_names(node: ast.ClassDef) -> set[str]:
    """Names of the bases, without module and type parameters."""
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return {ast.unparse(base).rpartition(".")[2] for base in plain}


def too_long(module: str, text_lines: int, tree: ast.Module) -> Iterator[str]:
    found = [("module", module, text_lines)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | Functions):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            assert node.end_lineno is not None
            found.append((kind, f"{module} {node.name}", node.end_lineno - node.lineno + 1))
    for kind, name, lines in found:
        if lines > LINES[kind]:
            yield f"{kind} {name}: {lines} lines (limit {LINES[kind]})"


def too_wide(module: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        methods = sum(isinstance(part, Functions) for part in node.body)
        if methods > METHODS:
            yield f"{module} {node.name}: {methods} methods (limit {METHODS})"
        if "Section" in base_names(node) and len(fields(node)) > FIELDS:
            yield f"{module} {node.name}: {len(fields(node))} fields (limit {FIELDS})"


def too_deep(modules: dict[str, ast.Module]) -> Iterator[str]:
    classes = {
        node.name: (module, base_names(node))
        for module, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def depth(name: str, seen: frozenset[str] = frozenset()) -> int:
        if name not in classes or name in seen:
            return 0
        return 1 + max((depth(base, seen | {name}) for base in classes[name][1]), default=0)

    for name, (module, _) in classes.items():
        if module not in DEEPER and depth(name) > DEPTH:
            yield f"{module} {name}: {depth(name)} of our own classes deep (limit {DEPTH})"


def test_a_long_function_is_found() -> None:
    code = "def f():\n" + "    x = 1\n" * 50
    assert list(too_long("m.py", 51, ast.parse(code))) == ["function m.py f: 51 lines (limit 50)"]


def test_a_long_module_is_found() -> None:
    assert list(too_long("m.py", 501, ast.parse(""))) == ["module m.py: 501 lines (limit 500)"]


def test_a_wide_class_is_found() -> None:
    methods = "class C:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(21))
    section = "class S(config.Section):\n" + "".join(f"    f{i}: int = 0\n" for i in range(15))
    assert list(too_wide("m.py", ast.parse(methods + section))) == [
        "m.py C: 21 methods (limit 20)",
        "m.py S: 15 fields (limit 14)",
    ]


def test_a_deep_class_is_found() -> None:
    code = "class A(Protocol): ...\nclass B(A): ...\nclass C(B[int]): ...\n"
    assert list(too_deep({"m.py": ast.parse(code)})) == ["m.py C: 3 of our own classes deep (limit 2)"]


def test_nothing_is_too_long(package: Path, modules: dict[str, ast.Module]) -> None:
    found = [
        finding
        for module, tree in modules.items()
        for finding in too_long(module, len((package / module).read_text().splitlines()), tree)
    ]
    assert not found, found


def test_nothing_is_too_wide(modules: dict[str, ast.Module]) -> None:
    found = [finding for module, tree in modules.items() for finding in too_wide(module, tree)]
    assert not found, found


def test_nothing_is_too_deep(modules: dict[str, ast.Module]) -> None:
    found = list(too_deep(modules))
    assert not found, found
