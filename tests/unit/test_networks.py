"""Networks from configuration: shapes, initialisation from the run's stream, factories of the user's own."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from headrace.algorithms.configs import NetworkConfig
from headrace.algorithms.networks import ModuleForward, TwinCritic, UndrawnLinear, build_network
from headrace.core.errors import ConfigError, SnapshotCorrupt


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat_of(net: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


@pytest.fixture
def user_module(monkeypatch):
    module = types.ModuleType("user_networks")
    monkeypatch.setitem(sys.modules, "user_networks", module)
    return module


FACTORY = NetworkConfig(factory="user_networks:make")


@pytest.mark.parametrize(("name", "kind"), [("relu", nn.ReLU), ("tanh", nn.Tanh), ("elu", nn.ELU), ("silu", nn.SiLU)])
def test_layers_follow_the_configuration(name, kind):
    net = build_network(NetworkConfig(hidden=[7, 5], activation=name, layer_norm=True), 3, 2, generator())
    linear, norm = UndrawnLinear, nn.LayerNorm
    assert [type(layer) for layer in net] == [linear, norm, kind, linear, norm, kind, linear]
    assert net(torch.zeros(4, 3)).shape == (4, 2)


def test_tanh_bounds_the_output():
    net = build_network(NetworkConfig(hidden=[8]), 3, 2, generator(), tanh=True)
    raw = nn.Sequential(*list(net)[:-1])(torch.full((1, 3), 100.0))
    assert raw.abs().max() > 1
    assert torch.equal(net(torch.full((1, 3), 100.0)), torch.tanh(raw))


def test_initialisation_is_uniform_within_the_bound_and_comes_from_the_stream_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, again, other = (build_network(NetworkConfig(hidden=[64]), 16, 2, generator(s)) for s in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(flat_of(one), flat_of(again))
    assert not torch.equal(flat_of(one), flat_of(other))
    for tensor in (one[0].weight, one[0].bias):
        assert 0.2 < tensor.abs().max() <= 0.25
    assert one[2].weight.abs().max() <= 0.125
    assert one[0].weight.detach().numpy().std() == pytest.approx(0.25 / np.sqrt(3), rel=0.1)


def test_twin_critics_are_different_functions_of_observation_and_action():
    critic = TwinCritic(NetworkConfig(hidden=[8]), 3, 2, generator())
    obs, action = torch.ones(5, 3), torch.full((5, 2), 0.5)
    q = critic(obs, action)
    assert q.shape == (2, 5)
    assert not torch.equal(q[0], q[1])
    torch.testing.assert_close(q[0], critic.q[0](torch.cat([obs, action], 1))[:, 0])
    torch.testing.assert_close(q[1], critic.q[1](torch.cat([obs, action], 1))[:, 0])


def test_factory_draws_repeatably_and_leaves_the_global_generator_alone(user_module):
    user_module.make = nn.Linear
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, again, other = (build_network(FACTORY, 3, 2, generator(s)) for s in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(flat_of(one), flat_of(again))
    assert not torch.equal(flat_of(one), flat_of(other))


def test_two_critics_of_one_factory_start_different(user_module):
    user_module.make = nn.Linear
    critic = TwinCritic(FACTORY, 3, 1, generator())
    assert not torch.equal(flat_of(critic.q[0]), flat_of(critic.q[1]))


@pytest.mark.parametrize(
    "name", ["no_such_module:make", "user_networks:missing", "user_networks", ":make", "user_networks:"]
)
def test_factory_that_cannot_be_imported(user_module, name):
    with pytest.raises(ConfigError, match=f"network factory {name} cannot be imported"):
        build_network(NetworkConfig(factory=name), 3, 2, generator())


def test_factory_that_raises_is_quoted(user_module):
    def make(inputs, outputs):
        raise ValueError("four legs needed")

    user_module.make = make
    with pytest.raises(ConfigError) as caught:
        build_network(FACTORY, 3, 2, generator())
    assert str(caught.value) == (
        "[CFG-001] network factory user_networks:make raised ValueError\n"
        "  called with: inputs=3, outputs=2\n"
        "  message: four legs needed\n"
        "  fix: make the factory return a torch.nn.Module for these arguments"
    )
    assert isinstance(caught.value.__cause__, ValueError)


class Fourier(nn.Module):
    """Random features that stay as they were drawn."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("drawn", torch.randn(inputs, 4))
        self.last = nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.sin(x @ self.drawn))


class Counting(nn.Linear):
    """Counts how often it was called."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return super().forward(x)


@pytest.mark.parametrize(
    ("result", "expected", "found"),
    [
        (lambda i, o: "net", "a torch.nn.Module", "str: 'net'"),
        (lambda i, o: nn.Linear(i, o + 1), "an output of shape [2, 2]", "shape [2, 3]"),
        (lambda i, o: nn.Linear(i + 1, o), "a network for inputs [B, 3]", "RuntimeError"),
        (
            lambda i, o: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o)),
            "without batch statistics",
            "BatchNorm1d at 1",
        ),
        (lambda i, o: nn.Sequential(nn.Dropout(), nn.Linear(i, o)), "without dropout", "Dropout at 0"),
        (
            Fourier,
            "the same however often it is built",
            "drawn differs from one build to the next",
        ),
        (Counting, "and never change", "calls changes where the network is used"),
        (
            lambda i, o: nn.utils.parametrizations.spectral_norm(nn.Linear(i, o)),
            "the same however often it is built",
            "parametrizations.weight.0._u ",  # differs between builds, or from use to use, as the matrix library has it
        ),
    ],
)
def test_factory_that_returns_something_else(user_module, result, expected, found):
    user_module.make = result
    with pytest.raises(ConfigError, match="returned something that cannot be used") as caught:
        build_network(FACTORY, 3, 2, generator())
    assert expected in str(caught.value)
    assert found in str(caught.value)


class Scaled(nn.Linear):
    """Divides by a constant."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("scale", torch.full((inputs,), 255.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / self.scale)


def test_buffers_that_are_constants_will_do(user_module):
    user_module.make = Scaled
    network = build_network(FACTORY, 3, 2, generator(1))
    torch.manual_seed(build_seed(1))
    assert torch.equal(flat_of(network), flat_of(Scaled(3, 2)))


class Functional(nn.Module):
    """Draws in no layer that has a type."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.last(x), 0.1, training=self.training)


class Attending(nn.Module):
    """Lets each number of an input look at all of them."""

    def __init__(self, inputs: int, outputs: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 4), nn.Linear(4 * inputs, outputs)
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.first(x.unsqueeze(2))
        return self.last(self.attention(tokens, tokens, tokens, need_weights=False)[0].flatten(1))


class Remembering(nn.Module):
    """Reads an input number by number."""

    def __init__(self, inputs: int, outputs: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, 4, num_layers=2, dropout=dropout, batch_first=True)
        self.last = nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.recurrent(x.unsqueeze(2))[0][:, -1])


def rectified_at_random(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.RReLU(), nn.Linear(inputs, outputs))


class Noisy(nn.Linear):
    """Draws in evaluation mode alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (0.0 if self.training else torch.randn(()))


class RootedAtRandom(nn.Linear):
    """As `Functional`, and no number for what is below 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x.sqrt()), 0.5, self.training)


@pytest.mark.parametrize("make", [Functional, Attending, Remembering, rectified_at_random, Noisy, RootedAtRandom])
def test_what_draws_when_it_is_asked_is_refused_whatever_layer_does(user_module, make):
    user_module.make = make
    with pytest.raises(ConfigError, match="expected: the same outputs whenever it is asked for the same inputs"):
        build_network(FACTORY, 3, 2, generator())


class Rooted(nn.Linear):
    """No number for what is below 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.sqrt())


class Logarithmic(nn.Linear):
    """No number for what is below 0, and minus infinity for 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.log())


@pytest.mark.parametrize("make", [Rooted, Logarithmic])
def test_a_network_that_is_no_number_below_0_may_be_for_what_never_is(user_module, make):
    user_module.make = make
    assert isinstance(build_network(FACTORY, 3, 2, generator()), make)


class Brightness(nn.Linear):
    """Takes nothing below 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.min() < 0:
            raise ValueError("no brightness")
        return super().forward(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda i, o: Attending(i, o, 0.0),
        lambda i, o: Remembering(i, o, 0.0),
        Brightness,
        lambda i, o: nn.Linear(i, o).eval(),
    ],
    ids=["attention", "recurrent", "nothing below 0", "built in evaluation mode"],
)
def test_what_draws_nothing_is_taken_as_it_was_built(user_module, make):
    user_module.make = make
    network = build_network(FACTORY, 3, 2, generator())
    torch.manual_seed(build_seed(0))
    fresh = make(3, 2)
    assert torch.equal(flat_of(network), flat_of(fresh))
    assert [module.training for module in network.modules()] == [module.training for module in fresh.modules()]


def test_a_network_for_batches_of_one_size_is_refused(user_module):
    user_module.make = lambda inputs, outputs: nn.Sequential(
        nn.Unflatten(0, (1, 2)), nn.Flatten(0, 1), nn.Linear(inputs, outputs)
    )
    with pytest.raises(ConfigError, match=r"expected: a network for inputs \[B, 3\]"):
        build_network(FACTORY, 3, 2, generator())


def build_seed(number: int) -> int:
    """What `build_network` seeds torch with, given a generator."""
    return int(torch.randint(2**31, (), generator=generator(number)))


def test_factory_that_is_no_function(user_module):
    user_module.make = 3
    with pytest.raises(ConfigError, match="found: int"):
        build_network(FACTORY, 3, 2, generator())


def test_module_forward_acts_with_the_loaded_weights(user_module):
    user_module.make = lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, 6), nn.GELU(), nn.Linear(6, outputs))
    trained = build_network(FACTORY, 3, 2, generator(9))
    forward = ModuleForward(build_network(FACTORY, 3, 2, torch.Generator()))
    weights = flat_of(trained).numpy().copy()
    weights.flags.writeable = False  # as a snapshot may be
    forward.load(weights)
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    with torch.no_grad():
        np.testing.assert_array_equal(forward.forward(x), trained(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize(("threads", "expected"), [(None, 2), (1, 1), (3, 3)])
def test_module_forward_acts_with_its_threads_and_leaves_those_of_others(monkeypatch, threads, expected):
    given = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: given[-1])
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    forward, x = ModuleForward(Threads(), threads), np.zeros((2, 1), np.float32)
    assert forward.forward(x).tolist() == [[expected]] * 2
    assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError, match="of the network"):
        forward.forward(x + 1)
    assert torch.get_num_threads() == 2


class Threads(nn.Linear):
    """A network that says how many threads it has."""

    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.any():
            raise RuntimeError("of the network")
        return x + torch.get_num_threads()


class Constant(nn.Module):
    """A network whose outputs do not depend on what it sees."""

    def __init__(self, inputs: int, outputs: int, trained: bool = True) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(outputs), requires_grad=trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mean.expand(len(x), -1)


@pytest.mark.parametrize("trained", [False, True])
def test_an_actor_may_work_in_what_module_forward_returns(user_module, trained):
    """In place, as they do; what the network returned is its own parameter, all rows in the same memory."""
    user_module.make = lambda inputs, outputs: Constant(inputs, outputs, trained)
    forward = ModuleForward(build_network(FACTORY, 3, 2, torch.Generator()))
    forward.load(np.array([0.5, -1.0], np.float32))
    for _ in range(2):
        out = forward.forward(np.zeros((4, 3), np.float32))
        np.testing.assert_array_equal(out, np.tile(np.array([0.5, -1.0], np.float32), (4, 1)))
        out += 1.0
        np.testing.assert_array_equal(out, np.tile(np.array([1.5, 0.0], np.float32), (4, 1)))


def test_module_forward_refuses_weights_of_another_network(user_module):
    user_module.make = nn.Linear
    forward = ModuleForward(build_network(FACTORY, 3, 2, torch.Generator()))
    with pytest.raises(SnapshotCorrupt, match=r"found: weights: float32 \[7\]"):
        forward.load(np.zeros(7, np.float32))
