"""The search over orders: the kernel, what is asked and told, what is believed of it, when training ends."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.search import Calibration, EarlyStopping, Forecast, Look, OrderSearch, StopReason, distance, nearest
from headrace.search.orders import all_orders, distances, places
from headrace.search.surrogate import Surrogate

ITEMS = tuple("abcde")
ORDERS = all_orders(ITEMS)


def kernel(rate: float = 0.5):
    from headrace.search.kernel import Mallows

    return Mallows(rate)


# Orders.


def test_distance_counts_the_pairs_that_are_arranged_differently():
    assert distance(("a", "b", "c"), ("a", "b", "c")) == 0
    assert distance(("a", "b", "c"), ("b", "a", "c")) == 1
    assert distance(("a", "b", "c"), ("c", "b", "a")) == 3
    rng = np.random.default_rng(1)
    for _ in range(20):
        left, right = (ORDERS[number] for number in rng.integers(120, size=2))
        slow = sum(
            (left.index(x) < left.index(y)) != (right.index(x) < right.index(y)) for x in ITEMS for y in ITEMS if x < y
        )
        assert distance(left, right) == slow


def test_nearest_prefers_the_near_then_the_good_then_the_first():
    here = ("a", "b", "c", "d", "e")
    near, worse, far = ("b", "a", "c", "d", "e"), ("a", "c", "b", "d", "e"), tuple("edcba")
    assert nearest(here, {far: 9.0, near: 1.0, worse: 0.0}) == near
    assert nearest(here, {near: 0.0, worse: 1.0}) == worse
    assert nearest(here, {near: 1.0, worse: 1.0}) == worse  # "acbde" comes before "bacde"
    assert nearest(here, {here: -5.0, near: 1.0}) == here
    assert nearest(here, {}) is None


@pytest.mark.parametrize("items", [["a"], list("abcdefghi"), ["a", "a", "b"]])
def test_what_cannot_be_ordered_is_refused(items):
    with pytest.raises(ConfigError, match="an order is of 2 to 8 different things"):
        all_orders(items)


# The kernel.


@pytest.mark.parametrize("rate", [0.01, 0.3, 3.0])
def test_kernel_is_positive_definite_over_all_orders(rate):
    gram = kernel(rate)(places(ORDERS, ITEMS))
    assert np.array_equal(gram, gram.T)
    assert np.allclose(np.diag(gram), 1.0)
    assert np.linalg.eigvalsh(gram).min() > 0.0


def test_kernel_falls_with_the_distance_and_has_the_right_gradient():
    rows = places(ORDERS[:30], ITEMS)
    values, gradient = kernel(0.4)(rows, eval_gradient=True)
    assert np.allclose(values, np.exp(-0.4 * distances(rows, rows)))
    step = 1e-6
    above, below = kernel(0.4 * np.exp(step))(rows), kernel(0.4 * np.exp(-step))(rows)
    assert np.allclose(gradient[:, :, 0], (above - below) / (2 * step), atol=1e-8)


def test_rate_is_found_by_the_marginal_likelihood():
    """A score that ten pairs decide alike says much about neighbours; one drawn for each order says nothing."""
    rng = np.random.default_rng(3)
    tried = [ORDERS[number] for number in rng.permutation(120)[:60]]
    smooth = Surrogate(ITEMS, tried, [-float(distance(one, ORDERS[0])) for one in tried], seed=0)
    rough = Surrogate(ITEMS, tried, rng.normal(size=60).tolist(), seed=0)
    asked = [one for one in ORDERS if one not in tried]
    truth = np.array([-float(distance(one, ORDERS[0])) for one in asked])
    believed = smooth.believe(asked)
    assert np.abs(believed.mean - truth).mean() < 0.3
    assert np.ptp(rough.believe(asked).mean) < np.ptp(believed.mean)


def test_repeated_observations_are_noise():
    rng = np.random.default_rng(4)
    tried = [order for order in ORDERS[::6] for _ in range(5)]
    scores = [-10.0 * distance(order, ORDERS[0]) + rng.normal(scale=4.0) for order in tried]
    belief = Surrogate(ITEMS, tried, scores, seed=0).believe(ORDERS[::6])
    assert 3.0 < belief.noise_std < 5.0
    assert (belief.std < belief.noise_std).all()  # five of each say more than one
    assert np.allclose(belief.observed_std**2, belief.std**2 + belief.noise_std**2)


def test_what_is_pending_is_believed_and_no_longer_uncertain():
    tried = list(ORDERS[::10])
    surrogate = Surrogate(ITEMS, tried, [-float(distance(one, ORDERS[7])) for one in tried], seed=0)
    waiting = ORDERS[55]
    before, after = surrogate.believe([waiting]), surrogate.believe([waiting], [waiting])
    assert after.std[0] < before.std[0]
    assert after.mean[0] == pytest.approx(before.mean[0], abs=0.2)


# Asking and telling.


def score(order, target, rng):
    return -float(distance(order, target)) + 0.3 * rng.normal()


def asks_until_found(seed: int) -> int:
    rng = np.random.default_rng(seed)
    target = ORDERS[rng.integers(120)]
    search = OrderSearch(ITEMS, seed)
    for asked in range(1, 61):
        choice = search.ask()
        if choice.order == target:
            return asked
        search.tell(choice.number, score(choice.order, target, rng))
    return 60


@pytest.mark.table
def test_best_order_is_found_in_far_fewer_asks_than_by_drawing():
    """Drawing without repetition takes 60.5 asks on average."""
    assert np.mean([asks_until_found(seed) for seed in range(5)]) < 20


def asked(seed: int, parallel: int, count: int = 10):
    rng, search = np.random.default_rng(0), OrderSearch(ITEMS, seed)
    choices = []
    for _ in range(count):
        while len(search.pending) < parallel:
            choices.append(search.ask())
        first = search.pending[0]
        search.tell(first.number, score(first.order, ORDERS[3], rng))
    return choices


@pytest.mark.table
def test_same_seed_and_results_ask_for_the_same():
    assert asked(5, 1) == asked(5, 1)
    assert [one.order for one in asked(5, 1)[:6]] != [one.order for one in asked(6, 1)[:6]]


def test_several_at_a_time_are_different_ones():
    choices = asked(5, parallel=3)
    for choice in choices:
        assert choice.order not in choice.pending
    assert [len(choice.pending) for choice in choices[2:]] == [2] * (len(choices) - 2)
    assert choices[-1].model == "gaussian process"


def test_choices_say_who_made_them():
    given = tuple("edcba")
    search = OrderSearch(ITEMS, 1, start=3, given=[given])
    choices = []
    for number in range(5):
        choice = search.ask()
        assert (choice.number, choice.results) == (number, number)
        choices.append(choice)
        search.tell(number, -float(distance(choice.order, ORDERS[0])))
    assert [one.model for one in choices] == ["given", *["random start"] * 2, *["gaussian process"] * 2]
    assert choices[0].order == given
    assert len({one.order for one in choices[:3]}) == 3
    assert choices[0].mean is choices[0].kernel is None
    assert "Mallows(rate=" in (choices[4].kernel or "")
    assert choices[4].std is not None
    assert choices[4].bound is not None
    assert search.best == max(choices, key=lambda one: -distance(one.order, ORDERS[0])).order
    assert [one.number for one in search.calibration().forecasts] == [3, 4]


def test_an_order_that_failed_is_not_asked_for_again():
    search = OrderSearch(("a", "b"), 0, start=2)
    first = search.ask()
    search.tell(first.number, None)
    other = search.ask()
    assert other.order != first.order
    search.tell(other.number, 1.0)
    assert search.ask().order == other.order  # too little is known to believe anything, and one is left
    search.tell(2, None)
    with pytest.raises(ConfigError, match="there is no order left to try"):
        search.ask()


def test_given_orders_are_tried_but_for_those_that_failed():
    failing, other = ORDERS[5], ORDERS[9]
    search = OrderSearch(ITEMS, 0, start=2, given=[failing, failing, other])
    search.tell(search.ask().number, None)
    choices = [search.ask(), search.ask()]
    assert [choice.model for choice in choices] == ["given", "random start"]
    assert choices[0].order == other
    assert failing not in {choice.order for choice in choices}


def test_orders_are_drawn_until_there_are_enough_results():
    """Not until enough were asked for: those that failed, and those that are awaited, tell nothing."""
    search = OrderSearch(ITEMS, 0, start=4)
    for told in (None, 1.0, None, 2.0, 3.0):
        search.tell(search.ask().number, told)
    awaited = [search.ask() for _ in range(3)]
    search.tell(awaited[2].number, 4.0)
    assert [choice.model for choice in awaited] == ["random start"] * 3
    assert (search.ask().model, search.ask().results) == ("gaussian process", 4)
    assert len({choice.order for choice in search._asked[:8]}) == 8


def test_of_fewer_orders_than_results_are_needed_each_has_its_turn():
    search = OrderSearch(("a", "b"), 0, start=7)
    orders = []
    for number in range(6):
        orders.append(search.ask().order)
        search.tell(number, 1.0)
    assert orders == orders[:2] * 3
    assert orders[0] != orders[1]


@pytest.mark.table
def test_what_is_pending_makes_no_result_more_certain():
    """It decides what is chosen; the interval that a result is measured by is of the results there are."""
    rng, search = np.random.default_rng(0), OrderSearch(ITEMS, 0, start=6)
    for number in range(8):
        search.tell(number, rng.normal() - distance(search.ask().order, ORDERS[3]))
    orders, scores = zip(*((choice.order, told) for choice, told in search.results), strict=True)
    shares = []
    for choice in [search.ask() for _ in range(5)]:
        seed = seeding.integer(0, "likelihood", choice.number) % 2**32
        surrogate = Surrogate(ITEMS, orders, scores, seed)
        known, imagined = (surrogate.believe([choice.order], pending) for pending in ((), choice.pending))
        assert (choice.mean, choice.std) == (known.mean[0], known.observed_std[0])
        assert choice.bound == pytest.approx(imagined.mean[0] + 2.0 * imagined.std[0])
        shares.append(imagined.std[0] / known.std[0])
    assert min(shares) < 0.9


@pytest.mark.parametrize(("number", "told"), [(5, 1.0), (0, float("nan")), (0, float("-inf"))])
def test_what_was_not_asked_or_is_no_number_is_refused(number, told):
    search = OrderSearch(ITEMS, 0)
    search.ask()
    with pytest.raises(ConfigError, match="a search is told a finite score"):
        search.tell(number, told)
    search.tell(0, 1.0)
    with pytest.raises(ConfigError, match="a search is told a finite score"):
        search.tell(0, 1.0)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError) as caught:
        OrderSearch(ITEMS, 0)
    assert caught.value.what == "the search over orders needs scikit-learn, which is not installed"
    assert caught.value.fix == "pip install 'PATH_OF_THE_CLONE[search]'"


# Calibration.


def test_calibration_counts_what_lies_in_the_interval():
    def forecast(score: float) -> Forecast:
        return Forecast(0, ORDERS[0], mean=-50.0, std=10.0, score=score)

    found = Calibration((forecast(-50.0), forecast(-69.0), forecast(-71.0), forecast(-30.5)))
    assert (found.inside, found.coverage, found.mean_error) == (3, 0.75, 14.875)
    assert found.sentence().startswith("3 of 4 results lie in the interval")
    assert (Calibration(()).coverage, Calibration(()).mean_error) == (None, None)


# When training ends.


def ended(rule: EarlyStopping, *compliances: float) -> list[StopReason | None]:
    return [rule.see(Look(100 * number, compliance)) for number, compliance in enumerate(compliances, 1)]


def test_training_ends_when_the_order_is_obeyed():
    assert ended(EarlyStopping(0.9, 3, 1000), 0.5, 0.89, 0.9) == [None, None, StopReason.COMPLIANT]


def test_not_before_the_least_number_of_episodes():
    assert ended(EarlyStopping(0.9, 1, 1000, min_episodes=300), 0.95, 0.95, 0.95) == [None, None, StopReason.COMPLIANT]
    assert ended(EarlyStopping(0.9, 1, 1000, min_episodes=300), 0.5, 0.5, 0.5)[-1] is StopReason.NO_IMPROVEMENT


def test_training_ends_when_nothing_improves_by_more_than_a_hundredth():
    rule = EarlyStopping(0.9, 2, 1000)
    assert ended(rule, 0.5, 0.51, 0.505) == [None, None, StopReason.NO_IMPROVEMENT]
    assert rule.see(Look(400, 1.0)) is StopReason.NO_IMPROVEMENT  # what comes afterwards changes nothing
    assert ended(EarlyStopping(0.9, 2, 1000), 0.5, 0.51, 0.52, 0.53, 0.54) == [None] * 5


def test_training_ends_after_the_most_episodes():
    assert ended(EarlyStopping(0.9, 9, 300), 0.1, 0.2, 0.3) == [None, None, StopReason.MAX_EPISODES]


@pytest.mark.parametrize(
    ("arguments", "keywords"), [((1.1, 3, 10), {}), ((0.9, 0, 10), {}), ((0.9, 3, 10), {"min_episodes": 11})]
)
def test_rules_that_make_no_sense_are_refused(arguments, keywords):
    with pytest.raises(ConfigError, match="this is no rule to stop by"):
        EarlyStopping(*arguments, **keywords)
