"""Twin critics differentiated by hand, against autograd."""

import threading

import pytest
import torch
from torch import Tensor

from continuous_support import ACTION, SMALL, batch
from continuous_support import OBS as SPACE
from headrace.algorithms.configs import DQNConfig, NetworkConfig, SACConfig, TD3Config
from headrace.algorithms.continuous import Critics, TwinPass, critic_loss
from headrace.algorithms.flat import FlatAdam, FlatParameters
from headrace.algorithms.learned import Means, NotFiniteError
from headrace.algorithms.networks import TwinCritic
from headrace.algorithms.passes import Beside, Memory
from headrace.algorithms.registry import build_algorithm, learns_side_by_side, torch_threads
from headrace.core.config import LearnConfig

OBS, ACTIONS, ROWS = 5, 2, 64
ways = pytest.mark.parametrize("activation", ["relu", "silu"], ids=["written out", "by autograd"])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def critic(activation: str = "relu") -> TwinCritic:
    generator = torch.Generator().manual_seed(0)
    return TwinCritic(NetworkConfig(hidden=[16, 16], activation=activation), OBS, ACTIONS, generator)


@ways
def test_fit_adds_the_gradient_of_the_loss(activation):
    module = critic(activation)
    flat = FlatParameters(module)
    obs, action, target = drawn(1, ROWS, OBS), drawn(2, ROWS, ACTIONS), drawn(3, ROWS)
    q = TwinPass(module, Memory()).fit(obs, action, target)
    found = flat.grad.clone()
    flat.backward(critic_loss(module(obs, action), target))
    torch.testing.assert_close(q, module(obs, action).detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found, flat.grad, rtol=1e-5, atol=1e-6 * float(flat.grad.abs().max()))


@ways
@pytest.mark.parametrize("smaller", [False, True], ids=["first", "smaller"])
def test_pull_is_a_value_and_its_derivative_by_the_action(activation, smaller):
    module = critic(activation)
    flat = FlatParameters(module)
    obs, action = drawn(1, ROWS, OBS), drawn(2, ROWS, ACTIONS).requires_grad_()
    both = module(obs, action)
    right = both.amin(dim=0) if smaller else both[0]
    assert 0 < int((both[0] < both[1]).sum()) < ROWS
    right.sum().backward()
    flat.grad.zero_()
    value, slope = TwinPass(module, Memory()).pull(obs, action.detach(), smaller=smaller)
    torch.testing.assert_close(value, right.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slope, action.grad, rtol=1e-6, atol=1e-6)
    assert not flat.grad.any()


@pytest.mark.parametrize("smaller", [False, True], ids=["first", "smaller"])
def test_side_by_side_they_are_what_they_are_one_after_the_other(smaller):
    obs, action, target = drawn(1, ROWS, OBS), drawn(2, ROWS, ACTIONS), drawn(3, ROWS)
    found = []
    for beside in (None, Beside()):
        module = critic()
        flat, pair = FlatParameters(module), TwinPass(module, Memory(), beside)
        q = [pair(obs, action), pair.fit(obs, action, target), *pair.pull(obs, action, smaller=smaller)]
        found.append([*q, flat.grad])
    for alone, at_once in zip(*found, strict=True):
        assert torch.equal(alone, at_once)


@pytest.mark.parametrize("wrong", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
def test_what_is_raised_in_a_second_thread_is_raised_when_both_have_ended(wrong):
    begun, beside = threading.Event(), Beside()
    ended = []

    def work(which: int) -> int:
        if which:
            begun.wait(10.0)
        else:
            begun.set()
        ended.append(which)
        return 1 // (which not in wrong)

    with pytest.raises(ZeroDivisionError):
        beside.both(lambda: work(0), lambda: work(1))
    assert ended == [0, 1]
    assert beside.both(lambda: 1, lambda: int(torch.is_grad_enabled())) == [1, 0]


@pytest.mark.parametrize("section", [TD3Config, SACConfig])
def test_with_two_threads_is_learned_what_is_learned_with_one(section):
    config = section(actor=SMALL, critic=SMALL)
    found = []
    for threads in (1, 2):
        algorithm = build_algorithm(config, SPACE, ACTION, 0, LearnConfig(threads=threads))
        for number in range(6):
            algorithm.update(batch(number))
        found.append(algorithm.weights_sha256())
        assert (algorithm._critics._beside is not None) == (threads == 2)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("section", "learn", "torchs"),
    [
        (TD3Config(), {}, 1),
        (TD3Config(), {"threads": 2}, 1),
        (SACConfig(), {"threads": 5}, 2),
        (TD3Config(), {"threads": 2, "precision": "bfloat16"}, 2),
        (TD3Config(), {"threads": 2, "device": "cuda"}, 2),
        (TD3Config(critic=NetworkConfig(layer_norm=True)), {"threads": 2}, 2),
        (TD3Config(critic=NetworkConfig(factory="some:network")), {"threads": 2}, 2),
        (DQNConfig(), {"threads": 2}, 2),
    ],
)
def test_torch_has_the_threads_that_critics_do_not_use(section, learn, torchs):
    config = LearnConfig(**learn)
    assert torch_threads(section, config) == torchs
    assert learns_side_by_side(section, config) == (torchs < config.threads)


def test_a_step_goes_down_the_loss_and_is_refused_where_that_is_no_number():
    module = critic()
    flat = FlatParameters(module)
    critics = Critics(module, flat, FlatAdam(flat, 1e-2), Memory())
    obs, action, target, means = drawn(1, ROWS, OBS), drawn(2, ROWS, ACTIONS), drawn(3, ROWS), Means()
    losses = []
    for _ in range(20):
        critics.step(obs, action, target, means)
        losses.append(means.take()["train/critic_loss"])
    assert losses[-1] < 0.7 * losses[0]
    before = flat.numpy().copy()
    with pytest.raises(NotFiniteError, match="critic"):
        critics.step(obs, action, target * torch.nan, means)
    assert (flat.numpy() == before).all()
