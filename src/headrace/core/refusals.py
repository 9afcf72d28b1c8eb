"""What a user reads when a section of a configuration refuses a key or a value."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from headrace.core.errors import ConfigError

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def refusal(section: type[BaseModel], error: ValidationError, given: object) -> ConfigError:
    """The error a user reads when ``section`` refused what it was given.

    Args:
        section: The outermost section; dotted keys start below it.
        error: What pydantic found. The first problem is told in full, the others in one line each.
        given: What was refused; where there are several sections to choose from, it says which one is meant.
    """
    kinds = _kinds(given)
    problems = [_Problem(section, found, kinds) for found in error.errors(include_url=False)]
    first, *others = problems
    facts = dict(first.facts)
    if others:
        facts["also"] = "; ".join(problem.what for problem in others)
    return ConfigError(first.what, fix=first.fix, **facts)


def keys(section: type[BaseModel], prefix: str = "", kinds: Container[object] = ()) -> Iterator[str]:
    """Every dotted key of ``section`` and of the sections inside it, these too, in the order of the file.

    Args:
        section: The outermost one.
        prefix: Before each key.
        kinds: Names of the sections that are meant where there are several to choose from; of none of them: all are.
    """
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        inner = _sections(field)
        if len(inner) > 1:
            inner = [one for one in inner if _kind(one) in kinds] or inner
        for one in inner:
            yield from keys(one, f"{prefix}{name}.", kinds)


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate a user most likely meant by ``word``, or None if nothing comes close."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


class _Problem:
    """One thing pydantic found, in our words."""

    def __init__(self, section: type[BaseModel], found: Any, kinds: set[object]) -> None:
        self.path, self.field = _locate(section, found["loc"])
        self.facts: dict[str, object] = {}
        if found["type"] == "extra_forbidden":
            self._unknown(list(keys(section, kinds=kinds | set(found["loc"]))))
        else:
            self._unfit(found)

    def _unknown(self, known: list[str]) -> None:
        self.what = f"unknown key {self.path}"
        meant = _meant(self.path, known)
        if meant is not None:
            self.facts["nearest"] = meant
            self.fix = f"write {meant}, or remove it"
            return
        outer = self.path.rpartition(".")[0]
        beside = [key.removeprefix(f"{outer}.") for key in known if key.rpartition(".")[0] == outer]
        self.facts["known"] = ", ".join(beside)
        self.fix = "choose one of these, or remove it: nothing reads it"

    def _unfit(self, found: Any) -> None:
        if found["type"] == "missing":
            self.what, self.fix = f"{self.path} is missing", f"set {self.path}"
            return
        expected = _expected(found)
        value = found["input"]
        if found["type"] == "union_tag_invalid":
            self.path, value = f"{self.path}.name", value["name"]
        self.what = f"{self.path} must be {expected}"
        self.facts["value"] = reprlib.repr(value)
        if self.field is not None and self.field.description:
            self.facts["meaning"] = " ".join(self.field.description.split())
        self.fix = f"give {self.path} a value that is {expected}"
        if isinstance(value, float) and value.is_integer() and found["type"].startswith("int"):
            self.fix = f"write {int(value)}: whole numbers have neither point nor exponent"


def _meant(path: str, known: list[str]) -> str | None:
    """The key a user most likely meant by ``path``; None if nothing comes close."""
    outer, _, leaf = path.rpartition(".")
    # A right name in the wrong section is likelier than a misspelt one in the right section.
    same_name = [key for key in known if key.rpartition(".")[2] == leaf]
    if same_name:
        return min(same_name, key=lambda key: key.count("."))  # the first of those that are least deep
    beside = nearest(leaf, [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == outer])
    if beside is not None:
        return f"{outer}.{beside}" if outer else beside
    # A long section that is right must not make up for a name that is not.
    return nearest(path, [key for key in known if nearest(leaf, [key.rpartition(".")[2]]) is not None])


def _expected(found: Any) -> str:
    for bound, words in _BOUNDS.items():
        if bound in found.get("ctx", {}):
            number = found["ctx"][bound]
            return f"{words} {int(number) if isinstance(number, float) and number.is_integer() else number}"
    match found["type"]:
        case "int_type":
            return "a whole number"
        case "union_tag_invalid":
            return f"one of {found['ctx']['expected_tags']}"
        case "model_type" | "model_attributes_type" | "dict_type" | "union_tag_not_found":
            return "a section with keys of its own"
        case "too_short":
            return f"a list of {found['ctx']['min_length']} or more"
    text: str = found["msg"]
    return text.removeprefix("Input should be ")


def _locate(section: type[BaseModel], loc: tuple[str | int, ...]) -> tuple[str, FieldInfo | None]:
    """The dotted key, without the tags that pydantic adds for unions, and the field it leads to."""
    current: type[BaseModel] | None = section
    field: FieldInfo | None = None
    path: list[str] = []
    parts = iter(loc)
    for part in parts:
        path.append(str(part))
        if current is None:
            continue
        field = current.model_fields.get(str(part))
        inner = _sections(field) if field is not None else []
        current = inner[0] if len(inner) == 1 else None
        if len(inner) > 1:
            tag = next(parts, None)
            current = next((one for one in inner if _kind(one) == tag), None)
    return ".".join(path), field


def _kinds(given: object) -> set[object]:
    """Every name by which a section that was given says what it is."""
    sections = given.values() if isinstance(given, Mapping) else ()
    return {one["name"] for one in sections if isinstance(one, Mapping) and isinstance(one.get("name"), str)}


def _kind(section: type[BaseModel]) -> object:
    """What a section among several to choose from calls itself."""
    return section.model_fields["name"].default


def _sections(field: FieldInfo) -> list[type[BaseModel]]:
    """The sections a field may hold: one, or several where it is discriminated by ``name``."""
    choices = get_args(field.annotation) or (field.annotation,)
    choices = tuple(get_args(choice)[0] if get_origin(choice) is Annotated else choice for choice in choices)
    return [choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)]
