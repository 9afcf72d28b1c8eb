"""Networks that are differentiated by hand: they give what autograd gives, whichever way they take."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headrace.algorithms.configs import MapConfig, NetworkConfig
from headrace.algorithms.encoding import MapPlace
from headrace.algorithms.flat import FlatParameters
from headrace.algorithms.networks import Perceptron, Squashed, build_network
from headrace.algorithms.passes import (
    Autocast,
    Memory,
    ModulePass,
    Pass,
    PerceptronPass,
    RoundedPass,
    RoundedProducts,
    pass_of,
)
from headrace.algorithms.q_networks import MapNetwork
from precision_support import able

ROWS, INPUTS, OUTPUTS = 32, 7, 3


def _network(tanh: bool = False, seed: int = 0, **settings: object) -> nn.Module:
    config = NetworkConfig.model_validate({"hidden": [24, 16], **settings})
    return build_network(config, INPUTS, OUTPUTS, torch.Generator().manual_seed(seed), tanh=tanh)


def _drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _near(found: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6 * float(right.abs().max()))


ways = pytest.mark.parametrize("way", [PerceptronPass, None], ids=["written out", "by autograd"])


@ways
@pytest.mark.parametrize("tanh", [False, True], ids=["plain", "tanh"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("hidden", [[24], [24, 16], [16, 16, 16]], ids=str)
def test_outputs_and_every_derivative_are_autograds(
    way: type[PerceptronPass] | None, tanh: bool, activation: str, hidden: list[int]
) -> None:
    network = _network(tanh, activation=activation, hidden=hidden)
    flat = FlatParameters(network)
    ours = PerceptronPass(network, Memory()) if way else ModulePass(network)
    x, grad = _drawn(1, ROWS, INPUTS), _drawn(2, ROWS, OUTPUTS)
    leaf = x.clone().requires_grad_()
    right = network(leaf)
    *by_weights, by_inputs = torch.autograd.grad(right, [*network.parameters(), leaf], grad)

    assert torch.equal(ours(x), ours.traced(x))
    _near(ours.traced(x), right.detach())
    found = ours.back(grad.clone(), inputs=INPUTS)

    assert found is not None
    _near(found, by_inputs)
    _near(flat.grad, torch.cat([each.flatten() for each in by_weights]))


@pytest.mark.parametrize("outputs", [1, 2, 5, 16, 25, 40])
@pytest.mark.parametrize("inputs", [2, 16, 23, 40])
@pytest.mark.parametrize("rows", [63, 64], ids=str)
def test_narrow_products_that_are_turned_round_are_the_same(rows: int, inputs: int, outputs: int) -> None:
    config = NetworkConfig.model_validate({"hidden": [64, 72]})
    network = build_network(config, inputs, outputs, torch.Generator().manual_seed(0))
    flat = FlatParameters(network)
    ours = PerceptronPass(network, Memory())
    x, grad = _drawn(1, rows, inputs), _drawn(2, rows, outputs)
    leaf = x.clone().requires_grad_()
    right = network(leaf)
    *by_weights, by_inputs = torch.autograd.grad(right, [*network.parameters(), leaf], grad)
    for count in (1, 2, inputs):
        flat.grad.zero_()
        _near(ours.traced(x), right.detach())
        found = ours.back(grad.clone(), inputs=count)
        assert found is not None
        assert found.is_contiguous()
        _near(found, by_inputs[:, -count:])
        _near(flat.grad, torch.cat([each.flatten() for each in by_weights]))


@ways
def test_gradients_are_added_to_what_is_there_and_left_alone_where_only_inputs_are_asked_for(
    way: type[PerceptronPass] | None,
) -> None:
    network = _network()
    flat = FlatParameters(network)
    ours = pass_of(network, Memory()) if way else ModulePass(network)
    x, grad = _drawn(1, ROWS, INPUTS), _drawn(2, ROWS, OUTPUTS)

    def back(**what: bool) -> Tensor | None:
        ours.traced(x)
        return ours.back(grad.clone(), **what)

    assert back(weights=False) is None
    assert back(weights=False, inputs=INPUTS) is not None
    assert not flat.grad.any()
    assert back() is None
    once = flat.grad.clone()
    back()
    torch.testing.assert_close(flat.grad, 2 * once)


def test_what_was_traced_is_not_disturbed_by_what_passes_meanwhile() -> None:
    memory = Memory()
    networks = [_network(seed=seed) for seed in (0, 1)]
    flats = [FlatParameters(network) for network in networks]
    one, other = (pass_of(network, memory) for network in networks)
    x, grad = _drawn(1, ROWS, INPUTS), _drawn(2, ROWS, OUTPUTS)
    one.traced(x)
    one.back(grad.clone())
    alone = flats[0].grad.clone()
    flats[0].grad.zero_()

    one.traced(x)
    other(_drawn(3, ROWS, INPUTS))
    one(_drawn(4, ROWS, INPUTS))
    other.traced(x)
    other.back(grad.clone(), inputs=INPUTS)
    one.back(grad.clone())

    assert torch.equal(flats[0].grad, alone)


def test_memory_is_used_again_even_by_one_who_never_asks_back() -> None:
    class Counting(Memory):
        fresh = 0

        def take(self, rows: int, width: int) -> Tensor:
            self.fresh += (rows, width) not in self._free or not self._free[rows, width]
            return super().take(rows, width)

    memory = Counting()
    network = _network()
    FlatParameters(network)
    ours = pass_of(network, memory)
    for _ in range(3):
        ours(_drawn(1, ROWS, INPUTS))
        ours.traced(_drawn(1, ROWS, INPUTS))
        ours.traced(_drawn(1, ROWS, INPUTS))
        ours.back(_drawn(2, ROWS, OUTPUTS), inputs=INPUTS)
    assert memory.fresh == 4  # forward of two layers, and what comes back through them


def test_sizes_that_never_come_again_are_not_kept_for_ever() -> None:
    memory = Memory()
    for rows in range(1, 200):
        memory.give(memory.take(rows, 8))
    assert len(memory._free) <= Memory._MOST


class _Custom(nn.Module):
    """A user's own, of which one output ignores the inputs, and one layer is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.own = nn.Linear(INPUTS, 4), nn.Linear(4, OUTPUTS)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(torch.sin(self.frozen(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", ["layer norm", "silu", "custom"])
def test_other_networks_go_through_autograd(case: str) -> None:
    settings = {"layer norm": {"layer_norm": True}, "silu": {"activation": "silu"}}
    network = _Custom() if case == "custom" else _network(**settings[case])  # type: ignore[arg-type]
    flat = FlatParameters(network)
    ours = pass_of(network, Memory())
    assert isinstance(ours, ModulePass)
    x, grad = _drawn(1, ROWS, INPUTS), _drawn(2, ROWS, OUTPUTS)
    ours.traced(x)
    ours.back(grad)
    found = flat.grad.clone()
    flat.grad.zero_()
    flat.backward((network(x) * grad).sum())
    torch.testing.assert_close(found, flat.grad)
    assert not any(bool(p.grad.any()) for p in network.parameters() if not p.requires_grad and p.grad is not None)


def test_weights_that_move_in_their_vector_are_those_that_are_used() -> None:
    network = _network()
    flat = FlatParameters(network)
    ours = pass_of(network, Memory())
    other = copy.deepcopy(network)
    FlatParameters(other)
    x = _drawn(1, ROWS, INPUTS)
    before = ours(x)
    flat.value.data.mul_(1.5)
    assert not torch.equal(ours(x), before)
    _near(ours(x), network(x).detach())


def _autocast(network: nn.Module) -> ModulePass:
    """As on an accelerator."""
    found = ModulePass(network)
    found._forward = Autocast(network, "cpu", torch.bfloat16)
    return found


@pytest.mark.parametrize(
    "kind",
    [pytest.param("written out", marks=able), pytest.param("by autograd", marks=able), "on an accelerator"],
)
@pytest.mark.parametrize("tanh", [False, True], ids=["plain", "tanh"])
def test_rounded_products_change_a_gradient_by_some_percent_and_no_weight(kind: str, tanh: bool) -> None:
    # Smooth: no unit is lost by rounding.
    network = _network(tanh, activation="tanh" if kind == "written out" else "silu", hidden=[64, 96])
    flat = FlatParameters(network)
    exact, rounded = pass_of(network, Memory()), pass_of(network, Memory(torch.bfloat16))
    assert isinstance(rounded, RoundedPass if kind == "written out" else ModulePass)
    if kind == "on an accelerator":
        rounded = _autocast(network)
    x, grad = _drawn(1, ROWS, INPUTS), _drawn(2, ROWS, OUTPUTS)
    before = flat.value.clone()

    def through(way: Pass) -> tuple[Tensor, Tensor, Tensor]:
        flat.grad.zero_()
        out = way.traced(x).clone()
        by_inputs = way.back(grad.clone(), inputs=INPUTS)
        assert by_inputs is not None
        assert out.dtype == by_inputs.dtype == torch.float32
        return out, by_inputs.clone(), flat.grad.clone()

    for right, found in zip(through(exact), through(rounded), strict=True):
        off = float((found - right).norm() / right.norm())
        assert 1e-4 < off < 0.02
    assert torch.equal(rounded(x), rounded.traced(x))
    assert torch.equal(flat.value, before)
    flat.value.data.mul_(1.5)
    assert (
        float((rounded(x) - exact(x)).norm() / exact(x).norm()) < 0.05
    )  # weights that moved are those that are rounded


on_every_device = pytest.mark.parametrize(
    "rounded",
    [lambda network: pass_of(network, Memory(torch.bfloat16)), _autocast],
    ids=["CPU", "accelerator"],
)


def _map(dueling: bool) -> MapNetwork:
    config = MapConfig(channels=[8, 8])
    return MapNetwork(config, MapPlace(0, 75, 3, 5, 5), dueling=dueling, draw=torch.Generator().manual_seed(0))


@on_every_device
@pytest.mark.parametrize("activation", ["silu", "tanh"])
def test_what_comes_out_of_rounded_products_is_not_rounded_itself(
    rounded: Callable[[nn.Module], Pass], activation: str
) -> None:
    """1001 is no bfloat16: it would be 1000."""
    network = build_network(
        NetworkConfig(hidden=[64], activation=activation), INPUTS, 64, torch.Generator().manual_seed(0)
    )
    assert isinstance(network, Perceptron)
    FlatParameters(network)
    network.linear[-1].weight.data.zero_()
    network.linear[-1].bias.data.fill_(1001.0)
    assert (rounded(network)(_drawn(1, ROWS, INPUTS)) == 1001.0).all()
    assert (rounded(network).traced(_drawn(1, ROWS, INPUTS)) == 1001.0).all()


@on_every_device
@pytest.mark.parametrize("dueling", [False, True])
def test_values_of_a_map_are_not_rounded(rounded: Callable[[nn.Module], Pass], dueling: bool) -> None:
    network = _map(dueling)
    FlatParameters(network)
    network.cells.weight.data.zero_()
    last = network.cells if network.value is None else network.value
    last.weight.data.zero_()
    last.bias.data.fill_(1001.0)
    assert (rounded(network)(_drawn(1, ROWS, 75)) == 1001.0).all()


@on_every_device
@pytest.mark.parametrize("own", [False, True], ids=["perceptron", "the user's own"])
def test_a_tanh_behind_rounded_products_is_not_flat_too_early(rounded: Callable[[nn.Module], Pass], own: bool) -> None:
    """Of 4 it is 0.9993; the next bfloat16 is 1, where nothing is learned."""
    network = _network(tanh=True, activation="silu", hidden=[64])
    if own:
        network = Squashed(_network(activation="silu", hidden=[64]), nn.Tanh())
    flat = FlatParameters(network)
    last = network[0][-1] if own else network[-2]
    last.weight.data.zero_()
    last.bias.data.fill_(4.0)
    ours = rounded(network)
    assert (ours.traced(_drawn(1, ROWS, INPUTS)) < 0.9994).all()
    ours.back(torch.ones(ROWS, OUTPUTS))
    slope = ROWS * (1.0 - math.tanh(4.0) ** 2)
    torch.testing.assert_close(flat.grad[-OUTPUTS:], torch.full((OUTPUTS,), slope), rtol=1e-2, atol=0.0)


def test_what_a_network_of_the_users_own_returns_is_exact_on_the_cpu() -> None:
    network = _Custom()
    FlatParameters(network)
    network.own.weight.data.zero_()
    network.own.bias.data.fill_(1001.0)
    assert (pass_of(network, Memory(torch.bfloat16))(_drawn(1, ROWS, INPUTS)) == 1001.0).all()


@pytest.mark.parametrize("device", [pytest.param("CPU", marks=able), "accelerator"])
def test_convolutions_are_rounded_too(device: str) -> None:
    def rounded(network: nn.Module) -> Pass:
        return _autocast(network) if device == "accelerator" else pass_of(network, Memory(torch.bfloat16))

    network, x, grad = _map(dueling=True), _drawn(1, ROWS, 75), _drawn(2, ROWS, 25)
    flat = FlatParameters(network)

    def through(way: Pass) -> tuple[Tensor, Tensor]:
        flat.grad.zero_()
        out = way.traced(x).clone()
        way.back(grad.clone())
        return out, flat.grad.clone()

    for right, found in zip(through(ModulePass(network)), through(rounded(network)), strict=True):
        assert 1e-5 < float((found - right).norm() / right.norm()) < 0.05
    for kind in (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv):
        assert kind.fp32_precision != "bf16"


def test_narrow_products_are_not_rounded() -> None:
    network = _network(hidden=[63, 200])
    FlatParameters(network)
    x = _drawn(1, ROWS, INPUTS)
    assert torch.equal(pass_of(network, Memory(torch.bfloat16))(x), pass_of(network, Memory())(x))


def test_outside_of_a_pass_products_are_as_they_were() -> None:
    network, x = _network(hidden=[64, 64]), _drawn(1, ROWS, INPUTS)
    FlatParameters(network)
    rounded = pass_of(network, Memory(torch.bfloat16))
    other, before = _drawn(2, 64, 64), torch.backends.mkldnn.matmul.fp32_precision
    right = other @ other
    rounded.traced(x)
    rounded.back(_drawn(3, ROWS, OUTPUTS))
    with pytest.raises(RuntimeError, match="do not fit"), RoundedProducts():
        raise RuntimeError("they do not fit")
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    assert torch.equal(other @ other, right)
