"""What a user reads when a section of a configuration refuses a key or a value."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import inspect
import itertools
import reprlib
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from headrace.core.errors import ConfigError

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_PLAIN = MappingProxyType({"a valid boolean": "true or false", "a valid list": "a list", "a valid string": "text"})
"""Types in the words of a file."""

_ELSEWHERE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "buffer_size": ("replay.capacity",),
        "ent_coef": ("entropy_weight", "temperature.value"),
        "exploration_final_eps": ("exploration.final_epsilon",),
        "exploration_fraction": ("exploration.decay_steps",),
        "exploration_initial_eps": ("exploration.epsilon",),
        "gradient_steps": ("replay.ratio",),
        "learning_rate": ("actor_lr", "lr"),
        "net_arch": ("network.hidden", "network.actor.hidden", "actor.hidden"),
        "num_envs": ("env.lanes",),
        "n_envs": ("env.lanes",),
        "per": ("priority.enabled",),
        "prioritized": ("priority.enabled",),
        "prioritized_replay": ("priority.enabled",),
        "target_network_frequency": ("target.every_updates",),
        "target_network_update_freq": ("target.every_updates",),
        "target_update_freq": ("target.every_updates",),
        "target_update_interval": ("target.every_updates",),
        "total_timesteps": ("run.steps",),
        "train_freq": ("replay.ratio",),
        "train_frequency": ("replay.ratio",),
    }
)
"""What other libraries call a key, and the ends of ours; the first one there is counts."""


def refusal(section: type[BaseModel], error: ValidationError, given: object) -> ConfigError:
    """The error a user reads when ``section`` refused what it was given.

    Args:
        section: The outermost section; dotted keys start below it.
        error: What pydantic found. The first problem is told in full, the others in one line each.
        given: What was refused; where there are several sections to choose from, it says which one is meant.
    """
    _describe(section)
    kinds = _kinds(given)
    first, *others = _joined([_Problem(section, found, kinds) for found in error.errors(include_url=False)])
    facts = dict(first.facts)
    if others:
        facts["also"] = "; ".join(problem.what for problem in others)
    return ConfigError(first.what, fix=first.fix, **facts)


@functools.cache
def _describe(section: type[BaseModel]) -> None:
    """Give the fields of a section, and of those inside it, the strings below them as descriptions.

    Pydantic can do that itself, when it makes a class: in every process that starts, while only who refuses a value asks for them.
    """
    for kind in reversed(section.__mro__):
        fields = [name for name in vars(kind).get("__annotations__", {}) if name in section.model_fields]
        for name, text in _strings_below(kind) if fields else ():
            if name in fields:
                section.model_fields[name].description = inspect.cleandoc(text)
    for field in section.model_fields.values():
        for inner in _sections(field):
            _describe(inner)


def _strings_below(kind: type) -> Iterator[tuple[str, str]]:
    """Each annotated name in the body of a class, with the string that follows it; none where its source is not there."""
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        for line, below in itertools.pairwise(getattr(body, "body", [])):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    yield name, text


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
        self.path, self.field, self.choice = _locate(section, found["loc"])
        self.facts: dict[str, object] = {}
        self.expected = ""
        if found["type"] == "extra_forbidden":
            self._unknown(section, found["loc"], kinds)
        else:
            self._unfit(found)

    def _unknown(self, section: type[BaseModel], loc: Sequence[str | int], kinds: set[object]) -> None:
        self.what = f"unknown key {self.path}"
        known = list(keys(section, kinds=kinds | set(loc)))
        readers, union = _readers(section, self.path), self.path.partition(".")[0]
        chosen = loc[1] if readers else None  # pydantic names the section that it tried behind the key
        if readers:
            self.facts[union] = chosen if chosen in kinds else f"{chosen}, the default: {union}.name is not set"
            self.facts["known_to"] = ", ".join(readers)
            if chosen not in kinds:
                self.fix = f'set {union}.name = "{readers[0]}", or remove {self.path}'
                return
        if readers:  # a right name under another algorithm: what it is called in other sections is something else
            known = [] if _is_section(section, self.path) else _within(self.path.rpartition(".")[0], known)
        meant = _meant(self.path, known, far=not readers)
        if meant is None and readers:
            self.fix = f"remove it: {chosen} does not read it"
            return
        if meant is not None:
            self.facts["nearest"] = meant
            if self.path.rpartition(".")[2] in _ELSEWHERE and (meaning := _meaning(section, meant, kinds | set(loc))):
                self.facts["meaning"] = meaning  # what it counts is not what the other library counts
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
        self.expected = expected = _expected(found, self.field)
        value = found["input"]
        if found["type"] == "union_tag_invalid":
            self.path, value = f"{self.path}.name", value["name"]
        self.what = f"{self.path} must be {expected}"
        self.facts["value"] = reprlib.repr(value)
        if self.field is not None and self.field.description:
            self.facts["meaning"] = _one_line(self.field.description)
        self.fix = f"give {self.path} a value that is {expected}"
        if expected == "a section with keys of its own" and self.field is not None and (inner := _sections(self.field)):
            names = list(inner[0].model_fields) if len(inner) == 1 else ["name"]
            self.facts["keys"] = ", ".join(names)
            self.fix = f"write its keys one by one: {self.path}.{names[0]} = …"
        if isinstance(value, float) and value.is_integer() and found["type"].startswith("int"):
            self.fix = f"write {int(value)}: whole numbers have neither point nor exponent"

    def or_else(self, other: _Problem) -> None:
        """Tell what else the value may be."""
        self.expected = f"{self.expected}, or {other.expected}"
        self.what = f"{self.path} must be {self.expected}"
        self.fix = f"give {self.path} a value that is {self.expected}"


def _joined(problems: Sequence[_Problem]) -> list[_Problem]:
    """The same, with one problem for a value that may be of several types, where pydantic finds one for each type."""
    deeper = {problem.choice for problem in problems if problem.choice != problem.path}
    joined: dict[object, _Problem] = {}
    for problem in problems:
        if problem.choice is None or problem.choice != problem.path:
            joined[id(problem)] = problem
        elif problem.choice in deeper:
            continue  # it is of that type: what is wrong lies inside it
        elif problem.choice in joined:
            joined[problem.choice].or_else(problem)
        else:
            joined[problem.choice] = problem
    return list(joined.values())


def _readers(section: type[BaseModel], path: str) -> list[str]:
    """Names of those sections, of several to choose from, that have the key ``path``; none where there is no choice."""
    outer, _, rest = path.partition(".")
    field = section.model_fields.get(outer)
    inner = _sections(field) if field is not None else []
    return [str(_kind(one)) for one in inner if rest in keys(one)] if len(inner) > 1 else []


def _within(outer: str, known: Iterable[str]) -> list[str]:
    """Keys of a section, and of what lies in it; of a whole algorithm only its own, for what lies in it has names of its own."""
    depth = outer.count(".") + 1
    return [key for key in known if key.startswith(f"{outer}.") and (depth > 1 or key.count(".") == depth)]


def _is_section(section: type[BaseModel], path: str) -> bool:
    """Whether ``path`` is a section, not a value, to anybody who reads it."""
    return any(key.startswith(f"{path}.") for key in keys(section))


def _meant(path: str, known: list[str], far: bool = True) -> str | None:
    """The key a user most likely meant by ``path``; None if nothing comes close. ``far``: also one in another section."""
    outer, _, leaf = path.rpartition(".")
    # A right name in the wrong section is likelier than a misspelt one in the right section.
    same_name = [key for key in known if key.rpartition(".")[2] == leaf]
    if same_name:
        return min(same_name, key=lambda key: key.count("."))  # the first of those that are least deep
    for ours in _ELSEWHERE.get(leaf, ()):
        ends = [key for key in known if f".{key}".endswith(f".{ours}")]
        if ends:
            return min(ends, key=lambda key: key.count("."))
    beside = nearest(leaf, [key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == outer])
    if beside is not None:
        return f"{outer}.{beside}" if outer else beside
    if not far:
        return None
    # A long section that is right must not make up for a name that is not.
    return nearest(path, [key for key in known if nearest(leaf, [key.rpartition(".")[2]]) is not None])


def _meaning(section: type[BaseModel], key: str, kinds: Container[object]) -> str | None:
    """What the description of ``key`` says; None if it has none."""
    part, _, rest = key.partition(".")
    field = section.model_fields[part]
    if not rest:
        return _one_line(field.description) if field.description else None
    inner = _sections(field)
    chosen = next((one for one in inner if len(inner) > 1 and _kind(one) in kinds), inner[0])
    return _meaning(chosen, rest, kinds)


def _one_line(description: str) -> str:
    return " ".join(description.split())


def _expected(found: Any, field: FieldInfo | None) -> str:
    for bound, words in _BOUNDS.items():
        if bound in found.get("ctx", {}):
            number = found["ctx"][bound]
            return f"{words} {int(number) if isinstance(number, float) and number.is_integer() else number}"
    match found["type"]:
        case "int_type":
            return "a whole number"
        case "union_tag_invalid":
            return f"one of {found['ctx']['expected_tags']}"
        case "dict_type" if field is not None and not _sections(field):
            return "a table"
        case "model_type" | "model_attributes_type" | "dict_type" | "union_tag_not_found":
            return "a section with keys of its own"
        case "too_short":
            return f"a list of {found['ctx']['min_length']} or more"
    text: str = found["msg"].removeprefix("Input should be ")
    return _PLAIN.get(text, text)


def _locate(section: type[BaseModel], loc: tuple[str | int, ...]) -> tuple[str, FieldInfo | None, str | None]:
    """The dotted key without pydantic's tags of unions, its field, and the key on the way there that has a choice of types."""
    current: type[BaseModel] | None = section
    field: FieldInfo | None = None
    choice: str | None = None
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
        elif field is not None and not inner and _has_choice(field):
            choice = ".".join(path)
            next(parts, None)
    return ".".join(path), field, choice


def _has_choice(field: FieldInfo) -> bool:
    """Whether a value may be of several types, beside being left out."""
    choices = [one for one in get_args(field.annotation) if one is not type(None)]
    return get_origin(field.annotation) in (Union, UnionType) and len(choices) > 1


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
