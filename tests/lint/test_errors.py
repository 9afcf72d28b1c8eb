"""R6: every error has a code of its own, survives a process border, and is explained in docs/errors.md."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from headrace.core import errors
from headrace.core.config import Section
from headrace.core.errors import HeadraceError
from headrace.llm.config import RLConfig
from headrace.runtime.config import ExperimentConfig


def family(cls: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [cls, *(member for child in cls.__subclasses__() for member in family(child))]


ERRORS = family(HeadraceError)
PARTS = ("Means", "Causes", "Remedy", "Proved by")


@pytest.fixture(scope="module")
def sections(checkout: Path) -> dict[str, str]:
    """Text of docs/errors.md by heading."""
    text = (checkout / "docs" / "errors.md").read_text()
    heads = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(heads[::2], heads[1::2], strict=True))


def test_every_code_is_unique() -> None:
    codes = [cls.code for cls in ERRORS]
    assert len(codes) == len(set(codes)), sorted(codes)


def test_every_code_is_stated_by_its_own_class() -> None:
    inherited = [cls.__name__ for cls in ERRORS if "code" not in vars(cls)]
    assert not inherited, inherited


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_it_survives_a_process_border(cls: type[HeadraceError]) -> None:
    error = cls("lane 3 did it", fix="do less", limit_s=10.0, seen=Path("a"))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == f"[{cls.code}] lane 3 did it\n  limit s: 10.0\n  seen: a\n  fix: do less"
    assert copy.facts["limit_s"] == 10.0


def test_every_error_is_explained_and_nothing_else(sections: dict[str, str]) -> None:
    assert set(sections) == {f"{cls.code} {cls.__name__}" for cls in ERRORS}


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_an_explanation_has_all_its_parts(cls: type[HeadraceError], sections: dict[str, str]) -> None:
    text = sections[f"{cls.code} {cls.__name__}"]
    missing = [part for part in PARTS if not re.search(rf"^\*\*{part}\.\*\* \S", text, flags=re.MULTILINE)]
    assert not missing, missing


def test_the_named_proofs_exist(checkout: Path, sections: dict[str, str]) -> None:
    named = {(head, path) for head, text in sections.items() for path in re.findall(r"`(tests/[^`]+)`", text)}
    missing = sorted(f"{head}: {path}" for head, path in named if not (checkout / path).is_file())
    assert named
    assert not missing, missing


def test_the_tree_in_the_docstring_is_complete() -> None:
    tree = errors.__doc__ or ""
    missing = [cls.__name__ for cls in ERRORS if not re.search(rf"\b{cls.__name__}\b", tree)]
    assert not missing, missing


def test_errors_are_defined_in_one_place(modules: dict[str, ast.Module]) -> None:
    names = {cls.__name__ for cls in ERRORS}
    elsewhere = [
        f"{module}:{node.lineno} {node.name}"
        for module, tree in modules.items()
        if module != "core/errors.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and names & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    ]
    assert not elsewhere, f"move to core/errors.py: {elsewhere}"


KEY = re.compile(r"(?<![\w./:])[a-z]\w*(?:\.[a-z]\w*)+")
TABLES = ("env.kwargs", "agents.policies")
ATTRIBUTES = {
    "runtime/policy.py: env.agents",
    "runtime/reenactment.py: algorithm.update",
    "envs/hockey/actions.py: env.action_space",
}
"""What looks like a setting in a remedy, and is an attribute of an object."""


def settings(config: type[Section], outer: str = "") -> Iterator[str]:
    """Dotted keys of a configuration and all that may stand in it."""
    for name, field in config.model_fields.items():
        yield f"{outer}{name}"
        for section in sections_in(field.annotation):
            yield from settings(section, f"{outer}{name}.")


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


def remedies(tree: ast.Module) -> Iterator[str]:
    """The texts, or pieces of them, that are given as ``fix``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "fix":
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_a_setting_that_a_remedy_names_exists(modules: dict[str, ast.Module]) -> None:
    known = {*settings(ExperimentConfig), *settings(RLConfig)}
    sections = {key.partition(".")[0] for key in known if "." in key}
    named = {
        f"{module}: {key}"
        for module, tree in modules.items()
        for text in remedies(tree)
        for key in KEY.findall(text)
        if key.partition(".")[0] in sections and not key.startswith(TABLES) and key not in known
    }
    assert named == ATTRIBUTES
