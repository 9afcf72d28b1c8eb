"""What the lint tests read: every module of the package and of the tests, parsed once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def _parsed(folder: Path) -> dict[str, ast.Module]:
    paths = sorted(folder.rglob("*.py"))
    assert paths, f"nothing to check in {folder.name}"
    return {
        path.relative_to(folder).as_posix(): ast.parse(path.read_text(), filename=path.as_posix()) for path in paths
    }


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder that holds pyproject.toml."""
    return CHECKOUT


@pytest.fixture(scope="session")
def package() -> Path:
    """The folder of the package."""
    return CHECKOUT / "src" / "headrace"


@pytest.fixture(scope="session")
def modules(package: Path) -> dict[str, ast.Module]:
    """Modules of the package by their path in it, e.g. ``core/errors.py``."""
    return _parsed(package)


@pytest.fixture(scope="session")
def tests() -> dict[str, ast.Module]:
    """Modules of the tests by their path in ``tests``."""
    return _parsed(CHECKOUT / "tests")


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Instead of the fixture of all tests: these only read files, and counting would cost more than they do."""
