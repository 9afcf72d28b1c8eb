"""Building environments that talk, and finding what is wrong with them."""

from __future__ import annotations

import io
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from headrace.core.errors import ConfigError, EnvironmentFault, EnvironmentNotBuilt, EnvironmentRaised
from headrace.envs.text.building import (
    FACTORIES,
    EnvironmentCheck,
    build_text_environment,
    check_environment,
    close_environment,
)
from headrace.envs.text.protocol import Judgement, Message, Problem, Reply, Split, Transcript
from headrace.llm.orchestration.problems import check_split
from hiding import hide


class Parrot:
    """Wants its question repeated; faults are planted in subclasses of one test each."""

    def __init__(self) -> None:
        self.calls = itertools.count()

    def dataset(self, split: Split) -> Sequence[Problem]:
        texts = {"train": "abc", "eval": "de"}[split]
        return [Problem(f"{split}:{text}", (Message("user", text),), {"text": text}) for text in texts]

    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        return Reply(done=len(transcript) > 2) if len(transcript) > 2 else Reply((Message("user", "again"),))

    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        return Judgement({"right": float(transcript[-1].content == problem.facts["text"])}, solved=False)


@pytest.mark.parametrize("name", sorted(FACTORIES.keys() - {"verifiers"}))
def test_our_own_keep_the_contract(name: str) -> None:
    check = check_environment(build_text_environment(name, None, {}))
    assert check.has_teacher
    assert check.notes == ()


def test_a_users_own_that_keeps_the_contract() -> None:
    assert check_environment(Parrot()) == EnvironmentCheck(3, 2, 4, has_teacher=False)


def test_evaluation_of_what_is_trained_on_is_noted_where_it_is_meant() -> None:
    env = build_text_environment("wordle", None, {"held_out": 0})
    assert check_environment(env).notes == ("evaluation asks for 30 problems that are trained on, as configured",)


def test_a_name_that_is_misspelt() -> None:
    with pytest.raises(ConfigError) as raised:
        build_text_environment("wordel", None, {})
    assert str(raised.value) == (
        "[CFG-001] no environment that talks is called 'wordel'\n"
        "  nearest: wordle\n"
        "  known: wordle, reverse-text, verifiers\n"
        '  fix: set env.name = "wordle", or name your own: env.factory = "module:function"'
    )


@pytest.mark.parametrize(
    ("factory", "kwargs", "message"),
    [
        ("no_such_module:make", {}, "run it where Python finds no_such_module"),
        ("json:dumps_all", {}, "AttributeError"),
        ("builtins:dict", {"a": 1}, "lacking: dataset, step, reward"),
        ("builtins:print", {}, "end the factory with `return env`"),
        ("builtins:int", {"nonsense": 1}, "raised TypeError"),
    ],
)
def test_a_factory_that_makes_no_environment(factory: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentNotBuilt, match=message):
        build_text_environment(None, factory, kwargs)


def test_an_environment_whose_import_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "aiohttp", "no_such_module")
    for module, fix in (("aiohttp", "pip install 'PATH_OF_THE_CLONE[llm]'"), ("no_such_module", "install the package")):
        with pytest.raises(EnvironmentNotBuilt) as raised:
            build_text_environment(None, "importlib:import_module", {"name": module})
        assert raised.value.fix.startswith(fix)


def test_an_environment_of_the_other_kind_is_told_where_it_can_be_trained_on() -> None:
    with pytest.raises(EnvironmentNotBuilt, match="lacking: dataset, reward") as raised:
        build_text_environment(None, "gymnasium:make", {"id": "CartPole-v1"})
    assert raised.value.fix.startswith("train on it with collectors and a learner (headrace train, plan")


def test_a_factory_without_a_function() -> None:
    with pytest.raises(ConfigError, match="names no function"):
        build_text_environment(None, "module", {})


def test_what_an_environment_refuses_is_said_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match="there is no list of words of 7 letters"):
        build_text_environment("wordle", None, {"letters": 7})


class Leaking(Parrot):
    def dataset(self, split: Split) -> Sequence[Problem]:
        problems = super().dataset("train")
        return [Problem(f"{split}{i}", one.opening, one.facts) for i, one in enumerate(problems)]


class Secret:
    """Says nothing of what it holds."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


class Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("no")


class Addressed:
    """Its pickle says where it lies."""

    def __reduce__(self) -> Any:
        return Addressed, (), {"at": id(self)}

    def __setstate__(self, state: Any) -> None:
        pass


def maze(seed: int) -> np.ndarray[Any, Any]:
    """Larger than what numpy prints, and the same at its edges."""
    walls = np.zeros((40, 40), np.int64)
    walls[5:-5, 5:-5] = np.random.default_rng(seed).integers(0, 2, (30, 30))
    return walls


class Holding(Parrot):
    """Three problems to train on and two to evaluate, each told from the others by a fact alone."""

    def __init__(self, make: Callable[[int], Any], *, leaks: bool, same_ids: bool = False) -> None:
        super().__init__()
        self._make, self._leaks, self._same_ids = make, leaks, same_ids

    def dataset(self, split: Split) -> Sequence[Problem]:
        numbers = range(3) if split == "train" else range(2) if self._leaks else range(3, 5)
        names = [f"{place if self._same_ids else split + str(place)}" for place in range(3)]
        opening = (Message("user", "go"),)
        return [
            Problem(name, opening, {"text": "", "secret": self._make(number)})
            for name, number in zip(names, numbers, strict=False)
        ]


COMPARED: dict[str, Callable[[int], Any]] = {
    "numbers": lambda number: number,
    "not numbers": lambda number: [float("nan"), number],
    "numpy's numbers": np.float32,
    "dates": lambda number: np.datetime64(number, "D"),
    "texts": lambda number: "a" * number,
    "objects": lambda number: Secret("word", number),
    "objects in objects": lambda number: {"a": [Secret(Secret(number), maze(number))]},
    "large arrays": maze,
    "arrays of objects": lambda number: np.array([Secret(number), number], object),
    "arrays of other types": lambda number: np.zeros(2, f"i{(1, 2, 4, 8)[number]}" if number < 4 else "f4"),
    "arrays of other shapes": lambda number: np.zeros((number + 1, 60 // (number + 1))),
    "keys of several types": lambda number: {1: number, "a": 2, None: maze(1)},
    "sets": lambda number: {str(number), "b", "c"},
    "ranges": lambda number: range(10**12, 10**12 + number),
    "functions": lambda number: (max, min, sum, abs, len)[number],
    "tensors": lambda number: torch.tensor([1, number]),
    "tensors of a type that numpy lacks": lambda number: torch.tensor(number, dtype=torch.bfloat16),
    "parts of tensors": lambda number: torch.arange(20).reshape(4, 5)[:, number],
}


@pytest.mark.parametrize("make", COMPARED.values(), ids=COMPARED)
def test_problems_are_told_apart_by_what_their_facts_hold(make: Callable[[int], Any]) -> None:
    assert check_environment(Holding(make, leaks=False)).notes == ()
    with pytest.raises(EnvironmentFault, match="evaluates 2 of 2 problems that it also trains on"):
        check_environment(Holding(make, leaks=True))


def test_a_problem_is_the_same_one_whichever_of_its_parts_are_one_object() -> None:
    calls = itertools.count()

    def make(number: int) -> Any:
        text, training = f"word{number}", next(calls) < 2 * 3  # each split is asked for twice
        return {"a": Secret(text, text), "b": 1} if training else {"b": 1, "a": Secret(text, "".join(text))}

    with pytest.raises(EnvironmentFault, match="evaluates 2 of 2"):
        check_environment(Holding(make, leaks=True))


@pytest.mark.parametrize(
    "make", [lambda _: Unpicklable(), lambda _: Addressed(), lambda _: lambda: 1], ids=["raises", "addressed", "local"]
)
def test_what_cannot_be_compared_is_noted(make: Callable[[int], Any]) -> None:
    note = (
        "3 problems to train on and 2 to evaluate have facts that cannot be compared, so that some may be in both splits;"
        " for instance secret of "
    )
    assert check_environment(Holding(make, leaks=True)).notes == (f"{note}train0",)
    assert check_environment(Holding(make, leaks=False, same_ids=True)).notes == (
        f"{note}0",
        "2 of these have an id that is in both splits, for instance 0",
    )


def same_splits(fact: Any, other: Any) -> tuple[str, str]:
    """What the check of an environment, and a run, find of two problems that differ in a fact alone: "same", "different"."""
    env = Parrot()
    splits = {
        split: [Problem(split, (Message("user", "go"),), {"text": "", "secret": secret})]
        for split, secret in (("train", fact), ("eval", other))
    }
    env.dataset = splits.__getitem__  # type: ignore[method-assign, assignment]
    found = []
    for check in (lambda: check_environment(env), lambda: check_split(splits["train"], splits["eval"])):
        try:
            check()
            found.append("different")
        except (ConfigError, EnvironmentFault):
            found.append("same")
    return found[0], found[1]


PAIRS: dict[str, tuple[Any, Any, str]] = {
    "numbers": (1, 1.0, "same"),
    "a truth value and a number": (True, 1, "different"),
    "truth values": (True, True, "same"),
    "truth values in lists": ([False], [0], "different"),
    "a truth value as a key": ({True: "a"}, {1: "a"}, "different"),
    "not numbers": (float("nan"), float("nan"), "same"),
    "the middles of large arrays": (maze(1), maze(2), "different"),
    "large arrays": (maze(1), maze(1), "same"),
    "objects of the same parts": (Secret("abc"), Secret("abc"), "same"),
    "objects of other parts": (Secret("abc"), Secret("abd"), "different"),
    "what cannot be compared": (Addressed(), Addressed(), "different"),
    "one object that cannot be compared": (*[Unpicklable()] * 2, "different"),
    "orders of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "same"),
    "orders of a set": ({8, 0, 16}, {0, 16, 8}, "same"),
    "tensors": (torch.tensor([1, 2]), torch.tensor([1, 2]), "same"),
    "a part of a tensor": (torch.arange(9)[2:4], torch.tensor([2, 3]), "same"),
    "a tensor with a gradient": (torch.ones(2, requires_grad=True), torch.ones(2), "same"),
    "values of tensors": (torch.tensor([1, 2]), torch.tensor([1, 3]), "different"),
    "types of tensors": (torch.zeros(2, dtype=torch.int8), torch.zeros(2, dtype=torch.bool), "different"),
    "shapes of tensors": (torch.zeros(2, 3), torch.zeros(3, 2), "different"),
    "empty tensors": (torch.zeros(0, 3), torch.zeros(0, 3), "same"),
    "tensors without values": (torch.zeros(2, device="meta"), torch.zeros(2, device="meta"), "different"),
}


@pytest.mark.parametrize(("fact", "other", "found"), PAIRS.values(), ids=PAIRS)
def test_a_check_and_a_run_find_the_same_problems_in_both_splits(fact: Any, other: Any, found: str) -> None:
    assert same_splits(fact, other) == (found, found)


def test_torch_is_not_loaded_to_find_out_what_is_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert same_splits(Secret("abc"), Secret("abc")) == ("same", "same")
    assert "torch" not in sys.modules


def test_of_two_problems_with_one_id_a_run_looks_at_both() -> None:
    def go(name: str, secret: int) -> Problem:
        return Problem(name, (Message("user", "go"),), {"secret": secret})

    with pytest.raises(ConfigError, match="evaluation problem e is a training problem too"):
        check_split([go("t", 1)], [go("e", 1), go("e", 2)])


def test_a_fact_that_holds_itself_cannot_be_compared() -> None:
    def make(number: int) -> Any:
        inner: list[Any] = [number]
        inner.append(inner)
        return inner

    assert len(check_environment(Holding(make, leaks=True)).notes) == 1


class Shuffling(Parrot):
    def dataset(self, split: Split) -> Sequence[Problem]:
        problems = super().dataset(split)
        return problems[:: -1 if next(self.calls) % 2 else 1]


class Empty(Parrot):
    def dataset(self, split: Split) -> Sequence[Problem]:
        return [] if split == "eval" else super().dataset(split)


class Twice(Parrot):
    def dataset(self, split: Split) -> Sequence[Problem]:
        return [*super().dataset(split), *super().dataset(split)]


class OpensAsTheModel(Parrot):
    def dataset(self, split: Split) -> Sequence[Problem]:
        return [Problem(split, (Message("assistant", split),))]


class SpeaksAsTheModel(Parrot):
    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        return Reply((Message("assistant", "me"),))


class SaysNothing(Parrot):
    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        return Reply()


class Drawing(Parrot):
    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        return Judgement({"luck": float(next(self.calls))}, solved=False)


class Infinite(Parrot):
    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        return Judgement({"much": float("inf")}, solved=True)


class Numbers(Parrot):
    def reward(self, problem: Problem, transcript: Transcript) -> Any:
        return 1.0


class NotANumber(Parrot):
    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        return Judgement({"ok": 1.0, "odd": float("nan")}, solved=False)


class TextForANumber(Parrot):
    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        return Judgement({"right": "1"}, solved=False)  # type: ignore[dict-item]


class TextReply(Parrot):
    def step(self, problem: Problem, transcript: Transcript) -> Any:
        return "again"


class ShowsNothing(Parrot):
    def demonstration(self, problem: Problem, seed: int) -> Any:
        return None


class NotANumberInItsFacts(Parrot):
    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        return Judgement({"right": 1.0}, solved=False, facts={"ratio": float("nan")})


class Raising(Parrot):
    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        raise KeyError("secret")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Leaking(), "evaluates 3 of 3 problems that it also trains on"),
        (Shuffling(), "in another order when asked again"),
        (Empty(), "has no problems in the split 'eval'"),
        (Twice(), "has two problems with one id"),
        (OpensAsTheModel(), "a problem that opens with nothing for the model to answer"),
        (SpeaksAsTheModel(), "speaks with the model's role"),
        (SaysNothing(), "answered nothing, and the episode is not over"),
        (Drawing(), "answers reward in two ways when asked twice"),
        (Infinite(), r"reward of the environment returned inf, the sum of \{'much': inf\}"),
        (Numbers(), "reward of the environment returned float instead of Judgement"),
        (NotANumber(), r"reward of the environment returned nan, the sum of \{'ok': 1.0, 'odd': nan\}"),
        (TextForANumber(), "returned a Judgement whose terms hold '1' for right, which is no number"),
        (ShowsNothing(), "demonstration of the environment returned NoneType instead of a tuple of Message"),
        (TextReply(), "step of the environment returned str instead of Reply"),
    ],
)
def test_what_breaks_the_contract_is_named(env: Parrot, message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        check_environment(env)


def test_an_environment_that_raises_is_quoted_with_the_line() -> None:
    with pytest.raises(EnvironmentRaised, match="step of mine raised KeyError: 'secret'") as raised:
        check_environment(Raising(), label="mine")
    assert "test_text_building.py" in str(raised.value.facts["raised_at"])


def test_a_wrong_answer_is_told_with_the_method_and_its_place() -> None:
    line = TextForANumber.reward.__code__.co_firstlineno
    with pytest.raises(EnvironmentFault) as raised:
        check_environment(TextForANumber(), label="mine")
    assert str(raised.value) == (
        "[ENV-000] reward of mine returned a Judgement whose terms hold '1' for right, which is no number\n"
        "  problem: train:a\n"
        f"  defined at: {__file__}:{line}\n"
        "  fix: return Judgement(terms: mapping of names to finite numbers, solved: bool) from reward"
    )


def test_a_fact_that_is_no_number_twice_is_the_same_answer() -> None:
    assert check_environment(NotANumberInItsFacts()).messages == 4


def refuse_to_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the environment has left a closed stream in the place of the process's."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)


def test_what_an_environment_holds_it_lets_go_of(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_print(monkeypatch)
    closed: list[str] = []

    class Holding(Parrot):
        def close(self) -> None:
            closed.append("closed")
            raise OSError("the server is gone")

    close_environment(Parrot())
    close_environment(Holding())
    assert closed == ["closed"]
    assert "OSError: the server is gone" in capfd.readouterr().err


def test_one_that_does_not_come_back_from_closing_is_left(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_print(monkeypatch)
    come_back = threading.Event()

    class Hanging(Parrot):
        def close(self) -> None:
            come_back.wait(60.0)

    close_environment(Hanging(), limit_s=0.01)
    come_back.set()
    assert "close() of the environment did not come back within 0.01 s" in capfd.readouterr().err
