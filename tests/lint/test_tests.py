"""A test that cannot fail or that waits by the clock is not a test."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest


def is_always_true(test: ast.expr) -> bool:
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.Tuple):
        return bool(test.elts)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(is_always_true(value) for value in test.values)
    if (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq | ast.Is | ast.LtE | ast.GtE)
    ):
        pure = not any(isinstance(node, ast.Call) for node in ast.walk(test))
        return pure and ast.dump(test.left) == ast.dump(test.comparators[0])
    return False


def empty_assertions(tree: ast.Module) -> Iterator[int]:
    """Lines of assertions that hold whatever the code does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and is_always_true(node.test):
            yield node.lineno


def empty_tests(tree: ast.Module) -> Iterator[str]:
    """Tests without a statement that could fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and all(map(is_idle, node.body)):
            yield node.name


def is_idle(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def sleeps(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep", "asyncio.sleep"}:
            yield node.lineno


@pytest.mark.parametrize(
    "code",
    [
        "assert True",
        "assert 1",
        "assert 'text'",
        "assert (x == 1, 'message')",
        "assert x or True",
        "assert x == x",
        "assert run.books is run.books",
    ],
)
def test_an_empty_assertion_is_found(code: str) -> None:
    assert list(empty_assertions(ast.parse(code))) == [1]


@pytest.mark.parametrize("code", ["assert x", "assert f() == f()", "assert False", "assert x == y", "assert not x"])
def test_a_real_assertion_is_left_alone(code: str) -> None:
    assert list(empty_assertions(ast.parse(code))) == []


def test_an_empty_test_is_found() -> None:
    code = 'def test_a():\n  """Text."""\ndef test_b(): pass\ndef test_c(): f()\n'
    assert list(empty_tests(ast.parse(code))) == ["test_a", "test_b"]


def test_a_sleep_is_found() -> None:
    assert list(sleeps(ast.parse("time.sleep(1)"))) == [1]


def test_every_test_can_fail(tests: dict[str, ast.Module]) -> None:
    found = [f"{module}:{line}" for module, tree in tests.items() for line in empty_assertions(tree)]
    found += [f"{module} {name}" for module, tree in tests.items() for name in empty_tests(tree)]
    assert not found, found


def test_no_test_sleeps(tests: dict[str, ast.Module]) -> None:
    found = [f"{module}:{line}" for module, tree in tests.items() for line in sleeps(tree)]
    assert not found, f"use a seam, a fake clock or a barrier: {found}"


@pytest.mark.table
@pytest.mark.parametrize("folder", ["learning", "verifiers", "vllm"])
def test_tests_that_make_test_leaves_out_can_be_collected_without_the_others(folder, checkout):
    """Nobody runs them for weeks, and what another folder imports first hides what is missing."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", f"tests/{folder}"]
    options = [] if folder == "learning" else [f"--{folder}", sys.executable]
    ended = subprocess.run([*command, *options], cwd=checkout, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout
    assert f"tests/{folder}/test_" in ended.stdout
