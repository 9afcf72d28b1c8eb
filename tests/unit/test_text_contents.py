"""What is looked at to tell problems apart: how often, how deep, and in which order."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.envs.text.contents import contents_of
from headrace.envs.text.protocol import Message, Problem
from headrace.llm.orchestration.problems import check_split


def problem(name: str, fact: Any, asked: str = "go") -> Problem:
    return Problem(name, (Message("user", asked),), {"fact": fact})


def is_found(fact: Any, other: Any) -> bool:
    """Whether a problem with one fact is taken for one with the other, both of them compared."""
    trained, held_out = contents_of([problem("t", fact)], [problem("e", other)])
    assert not trained.opaque | held_out.opaque
    return trained.keys == held_out.keys


class Lexicon:
    """Counts how often it is asked what it is made of; copies count on."""

    asked = 0

    def __init__(self, words: Any) -> None:
        self.words = words

    def __getstate__(self) -> Any:
        Lexicon.asked += 1
        return {"words": self.words}


class Node:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts


class Endless:
    """Made of another one each time."""

    def __reduce__(self) -> Any:
        return Endless, (Endless(),)


class Raising:
    asked = 0

    def __reduce__(self) -> Any:
        Raising.asked += 1
        raise RuntimeError("no")


def test_what_problems_share_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lexicon, "asked", 0)
    shared = Lexicon([f"word{place}" for place in range(100)])
    check_split(*([problem(f"{split}{place}", shared, f"{split}{place}") for place in range(2000)] for split in "te"))
    assert Lexicon.asked <= 3  # it, its pickle and the copy made of that


def test_a_copy_is_made_of_the_first_of_a_class_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lexicon, "asked", 0)
    contents_of([problem(f"{place}", Lexicon([place])) for place in range(100)])
    assert Lexicon.asked == 100 + 2


def test_what_cannot_be_compared_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Raising, "asked", 0)
    shared = Raising()
    (found,) = contents_of([problem(f"{place}", Node([shared], place)) for place in range(5)])
    assert (found.keys, len(found.opaque), Raising.asked) == ([None] * 5, 5, 1)


@pytest.mark.parametrize("part", [lambda node: [node, node], lambda node: Node(node, {"a": node})])
def test_parts_that_are_shared_at_every_depth_are_looked_at_once(part: Any) -> None:
    def graph(leaf: int) -> Any:
        made: Any = Node(leaf)
        for _ in range(40):  # 2 to the 40th parts, written out
            made = part(made)
        return made

    assert is_found(graph(1), graph(1))
    assert not is_found(graph(1), graph(2))


def test_how_deep_a_part_lies_does_not_matter() -> None:
    def chain(leaf: int) -> Any:
        made = Node(leaf)
        for _ in range(3000):
            made = Node(made)
        return made

    assert is_found(chain(1), chain(1))
    assert not is_found(chain(1), chain(2))


def cyclic() -> Any:
    node = Node()
    node.parts = (node,)
    return node


@pytest.mark.parametrize("make", [cyclic, Endless], ids=["cyclic", "endless"])
def test_what_has_no_end_cannot_be_compared(make: Any) -> None:
    (found,) = contents_of([problem("a", make()), problem("b", 1)])
    assert found.opaque == {"a": "fact"}
    assert found.keys[0] is None
    assert found.keys[1] is not None


def test_the_order_in_which_attributes_were_set_does_not_matter() -> None:
    one, other = Node(), Node()
    one.a, one.b = 1, 2  # type: ignore[attr-defined]
    other.b, other.a = 2, 1  # type: ignore[attr-defined]
    assert is_found(one, other)
    with pytest.raises(ConfigError, match="evaluation problem e is a training problem too"):
        check_split([problem("t", one)], [problem("e", other)])


def test_the_order_of_a_list_in_an_object_matters() -> None:
    assert not is_found(Node([1, 2]), Node([2, 1]))
    assert not is_found(Node({"a": 1}), Node({"a": 2}))


def test_objects_of_two_classes_are_not_the_same() -> None:
    assert not is_found(Node(), Lexicon(()))


SETS = """
from collections import deque
from headrace.envs.text.contents import contents_of
from headrace.envs.text.protocol import Message, Problem

class Puzzle:
    def __init__(self, words):
        self.words, self.frozen, self.queue = set(words), frozenset(words), deque([set(words)])

words = [f"word{place}" for place in range(12)]
def key(words):
    return [Problem("a", (Message("user", "go"),), {"puzzle": Puzzle(words)})]
one, same, other = contents_of(key(words), key(words[::-1]), key(words[1:]))
print(one.keys == same.keys, one.keys == other.keys, one.opaque | same.opaque | other.opaque)
"""


@pytest.mark.parametrize("seed", range(4))
def test_sets_in_objects_have_no_order_whichever_way_texts_are_hashed(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETS],
        env=os.environ | {"PYTHONHASHSEED": f"{seed}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("True False {}\n", 0), done.stderr
