"""R15: a configuration field that nobody reads does not exist.

A field counts as read where an attribute of its name is loaded outside the section's own validators.
Where the name also belongs to something else (another section, a class of ours), the object it is
loaded from must look like this section: a name annotated with the class, a name that was assigned from
one, or a name that contains the section's (``config.collect.threads`` for ``CollectConfig``), or a field of another section that holds it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator

# "Section.field" -> why it may wait for its reader. An entry that is read by now fails the test.
NOT_READ_YET: dict[str, str] = {}

Functions = ast.FunctionDef | ast.AsyncFunctionDef


def declared(node: ast.ClassDef) -> list[str]:
    return [
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and not part.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(part.annotation)
    ]


def classes(trees: list[ast.Module]) -> Iterator[ast.ClassDef]:
    for tree in trees:
        yield from classes_of(tree)


@functools.cache
def classes_of(tree: ast.Module) -> tuple[ast.ClassDef, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def sections(trees: list[ast.Module]) -> dict[str, list[str]]:
    """Fields of every class that is derived from Section, directly or not."""
    names, found = {"Section"}, {}
    for _ in range(3):  # deeper families are refused by test_sizes
        for node in classes(trees):
            if names & {ast.unparse(base).rpartition(".")[2] for base in node.bases}:
                names.add(node.name)
                found[node.name] = declared(node)
    return found


def ambiguous(trees: list[ast.Module], found: dict[str, list[str]]) -> set[str]:
    """Field names that occur in more than one class, or as a method or an attribute of another one."""
    names: Counter[str] = Counter()
    for node in classes(trees):
        own = set(declared(node))
        if node.name not in found:
            own |= {part.name for part in node.body if isinstance(part, Functions)}
            own |= {
                part.attr
                for part in ast.walk(node)
                if isinstance(part, ast.Attribute)
                and isinstance(part.ctx, ast.Store)
                and ast.unparse(part.value) == "self"
            }
        names.update(own)
    return {name for fields in found.values() for name in fields if names[name] > 1}


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2].strip("_")


@functools.cache
def annotated(tree: ast.Module) -> frozenset[tuple[str, str]]:
    """(name, annotation) of every annotated parameter, variable and attribute."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            found.add((node.arg.strip("_"), ast.unparse(node.annotation)))
        elif isinstance(node, ast.AnnAssign):
            found.add((last_name(node.target), ast.unparse(node.annotation)))
    return frozenset(found)


@functools.cache
def assigned(tree: ast.Module) -> frozenset[tuple[str, str]]:
    """(from, to) of every plain assignment, last names only."""
    return frozenset(
        (last_name(node.value), last_name(target))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute)
        for target in node.targets
    )


@functools.cache
def reads(tree: ast.Module) -> frozenset[tuple[str, str]]:
    """(object, attribute) of every attribute load outside validators; a pydantic discriminator is one too.

    ``self`` appears as the name of the class.
    """
    found = set()
    stack: list[tuple[ast.AST, str]] = [(tree, "self")]
    while stack:
        node, owner = stack.pop()
        if isinstance(node, Functions) and any("_validator" in ast.unparse(mark) for mark in node.decorator_list):
            continue
        if isinstance(node, ast.ClassDef):
            owner = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = last_name(node.value)
            found.add((owner if name == "self" else name, node.attr))
        elif isinstance(node, ast.keyword) and node.arg == "discriminator" and isinstance(node.value, ast.Constant):
            found.add(("*", str(node.value.value)))
        stack.extend((child, owner) for child in ast.iter_child_nodes(node))
    return frozenset(found)


def annotated_with(section: str, tree: ast.Module) -> set[str]:
    return {name for name, annotation in annotated(tree) if re.search(rf"\b{section}\b", annotation)}


def names_of(section: str, tree: ast.Module, everywhere: set[str]) -> set[str]:
    """Names that stand for this section in one module; ``everywhere`` are those that do in all of them."""
    names = {section} | everywhere | annotated_with(section, tree)
    return names | {to for source, to in assigned(tree) if source in names}


def parents_fields(section: str, trees: list[ast.Module], found: dict[str, list[str]]) -> set[str]:
    """Fields of other sections that hold this one, by annotation or default, e.g. ``algorithm`` for ``TD3Config``."""
    return {
        last_name(part.target)
        for node in classes(trees)
        if node.name in found
        for part in node.body
        if isinstance(part, ast.AnnAssign) and re.search(rf"\b{section}\b", ast.unparse(part))
    }


def is_read(section: str, field: str, doubtful: bool, tree: ast.Module, everywhere: set[str]) -> bool:
    owners = {owner for owner, attribute in reads(tree) if attribute == field}
    if not owners or not doubtful or "*" in owners:
        return bool(owners)
    hint = section.removesuffix("Config").lower()
    return any(hint in owner.lower() for owner in owners) or bool(owners & names_of(section, tree, everywhere))


def unread(trees: list[ast.Module]) -> set[str]:
    found = sections(trees)
    doubtful = ambiguous(trees, found)
    left = set()
    for section, fields in found.items():
        everywhere = parents_fields(section, trees, found)
        left |= {
            f"{section}.{field}"
            for field in fields
            if not any(is_read(section, field, field in doubtful, tree, everywhere) for tree in trees)
        }
    return left


SECTIONS = """
class AConfig(Section):
    speed: int = 1
    limit: int = 2
    shared: int = 3
    only_checked: int = 4

    @model_validator(mode="after")
    def _check(self):
        return self.only_checked

class BConfig(Section):
    shared: int = 5
    helped: float = 6.0

    def pause_s(self):
        return self.helped * 2
"""


def test_only_a_read_outside_the_validators_counts() -> None:
    user = "def f(config): return config.speed"
    assert unread([ast.parse(SECTIONS), ast.parse(user)]) == {
        "AConfig.limit",
        "AConfig.shared",
        "AConfig.only_checked",
        "BConfig.shared",
    }


def test_a_shared_name_is_read_only_from_its_own_section() -> None:
    user = "def f(settings: BConfig, x): return settings.shared, x.speed, x.limit, x.only_checked"
    assert unread([ast.parse(SECTIONS), ast.parse(user)]) == {"AConfig.shared"}


def test_an_assigned_or_a_telling_name_stands_for_its_section() -> None:
    one = "class U:\n  def __init__(self, told: AConfig): self._told = told\n  def f(self): return self._told.shared"
    other = "def g(run): return run.b.shared"
    left = unread([ast.parse(SECTIONS), ast.parse(one), ast.parse(other)])
    assert not left & {"AConfig.shared", "BConfig.shared"}


def test_a_field_that_holds_a_section_stands_for_it() -> None:
    whole = "class Whole(Section):\n  algorithm: AConfig = AConfig()"
    other = "def g(config): return config.algorithm.shared"
    left = unread([ast.parse(SECTIONS), ast.parse(whole), ast.parse(other)])
    assert "AConfig.shared" not in left
    assert "BConfig.shared" in left


def test_every_field_is_read(modules: dict[str, ast.Module]) -> None:
    nobody_reads = unread(list(modules.values()))
    assert not nobody_reads - NOT_READ_YET.keys(), f"nobody reads: {sorted(nobody_reads - NOT_READ_YET.keys())}"
    stale = NOT_READ_YET.keys() - nobody_reads
    assert not stale, f"read or gone by now, so take it from NOT_READ_YET: {sorted(stale)}"
