"""Commands that messages suggest can be typed: what a user named, such as a path with spaces, is quoted in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

OURS = {
    "cli/rlargs.py: name": "a sentence about an option, and no command",
    "cli/rlplan.py: choice.way.flags": "options with numbers and names of ours",
    "runtime/incidents.py: checkpoint['version']": "a number",
    "runtime/presets.py: meant": "the name of a preset, of which ours have no spaces",
}
"""Values that may be as they are, with the reason."""

_BEGINS = re.compile(r"\bheadrace [a-z]")
_ENDS = re.compile(r"[;:`\n]|, or ")
"""Of a suggested command within a message."""


def unquoted(function: ast.FunctionDef) -> Iterator[str]:
    """Values that are put into a suggested command of an f-string as they are."""
    known = _quoted_names(function)
    for node in ast.walk(function):
        if isinstance(node, ast.JoinedStr):
            yield from (ast.unparse(value) for value in _in_commands(node) if not _is_quoted(value, known))


def _in_commands(text: ast.JoinedStr) -> Iterator[ast.expr]:
    said = ""
    for part in text.values:
        if isinstance(part, ast.Constant):
            said += str(part.value)
        elif isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == "headrace":  # as it is typed here
            said += "headrace"
        elif isinstance(part, ast.FormattedValue):
            begun = list(_BEGINS.finditer(said))
            if begun and not _ENDS.search(said, begun[-1].end()):
                yield part.value
            said += "x"


def _quoted_names(function: ast.FunctionDef) -> set[str]:
    """Names that are quoted texts wherever a function assigns them."""
    made = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    quoted, others = (
        {ast.unparse(target) for node in made if _is_quoted(node.value, set()) is is_so for target in node.targets}
        for is_so in (True, False)
    )
    return quoted - others


def _is_quoted(value: ast.expr, known: set[str]) -> bool:
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="shlex"), attr="quote" | "join")) | ast.Constant():
            return True
        case ast.IfExp(body=body, orelse=orelse):
            return _is_quoted(body, known) and _is_quoted(orelse, known)
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):  # a command itself, which is looked at as such
            return bool(_BEGINS.match(text))
    return ast.unparse(value) in known


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('f"go on: headrace train --resume --run-dir {path}"', ["path"]),
        ('f"go on: headrace {kind} --resume --run-dir {path}"', ["path"]),
        ('f"go on: {headrace} rl --run-dir {shlex.quote(path)} @ {name}"', ["name"]),
        ('f"`headrace eval {shlex.quote(path)}` plays version {version}; {more}"', []),
        ('f"headrace {command} has no option --{name}"', ["name"]),
        ('f"{path} is no run of headrace"', []),
    ],
)
def test_what_is_not_quoted_is_found(text: str, found: list[str]) -> None:
    (function,) = ast.parse(f"def say():\n    return {text}").body
    assert isinstance(function, ast.FunctionDef)
    assert list(unquoted(function)) == found


def test_a_name_counts_as_what_it_was_made() -> None:
    code = (
        "def say():\n    own = shlex.quote(path)\n    other = path\n    both = shlex.quote(path)\n    both = path\n"
        "    return f'headrace eval {own} {other} {both}'"
    )
    (function,) = ast.parse(code).body
    assert isinstance(function, ast.FunctionDef)
    assert list(unquoted(function)) == ["other", "both"]


def test_suggested_commands_can_be_typed_whatever_is_in_them(modules: dict[str, ast.Module]) -> None:
    found = {
        f"{module}: {value}"
        for module, tree in modules.items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for value in unquoted(function)
    }
    assert found == OURS.keys(), found ^ OURS.keys()
