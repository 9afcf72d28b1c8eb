"""Networks that are differentiated by hand: forward, then back with the derivative of the loss by what came out.

An algorithm writes down the derivative of its loss by the few numbers that come out of a network, and the network takes it
from there. For perceptrons of our own on the CPU that is written out too, a call per layer and none that is not needed;
autograd spends more on its own nodes and on fresh memory than on anything a small network computes. All other networks go
through autograd, and the algorithm does not know.

Letters in shapes: B batch, I inputs, O outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from headrace.algorithms.networks import Perceptron

_aten = torch.ops.aten


class Pass(Protocol):
    """A network whose parameters lie in a `headrace.algorithms.flat.FlatParameters`."""

    def __call__(self, x: Tensor) -> Tensor:
        """[B, O] of ``x`` [B, I]; nothing is remembered."""
        ...

    def traced(self, x: Tensor) -> Tensor:
        """As a call, and `back` can be asked once; it forgets the one before. ``x`` must not change until then."""
        ...

    def back(self, grad: Tensor, *, weights: bool = True, inputs: bool = False) -> Tensor | None:
        """Add to the parameters' gradients what follows from ``grad``.

        Args:
            grad: [B, O] the derivative of a loss by what `traced` returned; may be overwritten.
            weights: Whether gradients of parameters are wanted.
            inputs: Whether the derivative by the inputs is wanted.

        Returns:
            That derivative [B, I], or None.
        """
        ...


class Memory:
    """Tensors [B, width] that are used again and again; fresh ones cost more in page faults than what is computed in them.

    They are torch's own, so 64-byte aligned: the matrix library repeats itself bit for bit only on such. The one that was
    given back last is taken first, because it is still in the cache.

    Args:
        dtype: Of what is inside networks that use it. Parameters, gradients, inputs and outputs are float32 in any case.
    """

    _MOST = 64

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self._free: dict[tuple[int, int], list[Tensor]] = {}
        self._ones = torch.empty(0)

    def take(self, rows: int, width: int) -> Tensor:
        """One that nobody uses, on the CPU."""
        free = self._free.get((rows, width))
        return free.pop() if free else torch.empty((rows, width), dtype=self.dtype)

    def ones(self, rows: int) -> Tensor:
        """[rows] ones, to be read: a product with them costs less than a sum."""
        there = self._ones.shape[0]  # `len` of a tensor takes five times as long
        if rows > there:
            self._ones = torch.ones(rows)
        return self._ones[:rows] if rows < there else self._ones

    def give(self, tensor: Tensor) -> None:
        """It is not used any more."""
        rows, width = tensor.shape
        free = self._free.get((rows, width))
        if free is None:
            if len(self._free) >= self._MOST:  # of sizes that may never come again
                self._free.clear()
            free = self._free[rows, width] = []
        free.append(tensor)


def pass_of(network: nn.Module, memory: Memory) -> Pass:
    """The fastest way through a network.

    Args:
        network: Its parameters lie in a flat vector already, and stay there.
        memory: Shared by networks that take turns.
    """
    first = next(network.parameters())
    if isinstance(network, Perceptron) and network.written_out and first.device.type == "cpu":
        return PerceptronPass(network, memory) if memory.dtype == torch.float32 else RoundedPass(network, memory)
    return ModulePass(network, memory.dtype)


def _of(parameter: Tensor) -> Tensor:
    """Its part of the flat vector of gradients."""
    gradient = parameter.grad
    assert gradient is not None, "its parameters lie in no flat vector"
    return gradient


class ModulePass:
    """Fulfils `Pass` for any network, on any device, by autograd.

    Args:
        network: See `pass_of`.
        dtype: Of products inside, where torch's autocast allows it.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        self._network = network
        self._rounded = dtype != torch.float32
        device = next(network.parameters()).device.type
        self._cast = functools.partial(torch.autocast, device, dtype=dtype, enabled=self._rounded)
        self._trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._x = self._out = torch.empty(0)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """See `Pass.__call__`."""
        return self._forward(x)

    def traced(self, x: Tensor) -> Tensor:
        """See `Pass.traced`."""
        self._x = x.detach().requires_grad_()
        with torch.enable_grad():
            self._out = self._forward(self._x)
        return self._out.detach()

    def back(self, grad: Tensor, *, weights: bool = True, inputs: bool = False) -> Tensor | None:
        """See `Pass.back`."""
        parameters = self._trained if weights else []
        wanted = [*parameters, *([self._x] if inputs else [])]
        found: Sequence[Tensor | None] = (
            torch.autograd.grad(self._out, wanted, grad, allow_unused=True) if wanted else [None]
        )
        for parameter, gradient in zip(parameters, found, strict=False):
            if gradient is not None:
                _of(parameter).add_(gradient)
        own = found[-1]
        if inputs and own is None:
            own = torch.zeros_like(self._x)
        self._x = self._out = torch.empty(0)
        return own if inputs else None

    def _forward(self, x: Tensor) -> Tensor:
        if not self._rounded:
            return self._network(x)  # type: ignore[no-any-return]
        with self._cast():
            return self._network(x).float()  # type: ignore[no-any-return]


def _relu_back(grad: Tensor, out: Tensor) -> None:
    _aten.threshold_backward.grad_input(grad, out, 0, grad_input=grad)


def _tanh_back(grad: Tensor, out: Tensor) -> None:
    _aten.tanh_backward.grad_input(grad, out, grad_input=grad)


def _elu_back(grad: Tensor, out: Tensor) -> None:
    _aten.elu_backward.grad_input(grad, 1.0, 1.0, 1.0, True, out, grad_input=grad)  # noqa: FBT003 - torch's own signature


_ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], None]]] = {
    "relu": (torch.relu_, _relu_back),
    "tanh": (torch.tanh_, _tanh_back),
    "elu": (nn.functional.elu_, _elu_back),
}
"""In place: the activation, and what a derivative by what came out of it is by what went in."""


class PerceptronPass:
    """Fulfils `Pass` for a perceptron on the CPU; what comes out is what its layers give, within rounding."""

    def __init__(self, network: Perceptron, memory: Memory) -> None:
        self._memory = memory
        self._activate, self._undo = _ACTIVATIONS[network.activation]
        self._squashed = network.squashed
        layers = network.linear
        self._weights = [layer.weight.data for layer in layers]  # [O, I]
        self._turned = [weight.t() for weight in self._weights]  # made once: a view costs as much as a small product
        self._biases = [layer.bias.data for layer in layers]
        self._weight_grads = [_of(layer.weight) for layer in layers]
        self._bias_grads = [_of(layer.bias) for layer in layers]
        self._widths = [len(bias) for bias in self._biases[:-1]]
        self._passed: list[Tensor] = []
        self._out = torch.empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Pass.__call__`."""
        passed = self._hidden(x)
        out = self._last(passed[-1])
        for hidden in passed[1:]:
            self._memory.give(hidden)
        return out

    def traced(self, x: Tensor) -> Tensor:
        """See `Pass.traced`."""
        self._forget()
        self._passed = self._hidden(x)
        self._out = self._last(self._passed[-1])
        return self._out

    def back(self, grad: Tensor, *, weights: bool = True, inputs: bool = False) -> Tensor | None:
        """See `Pass.back`."""
        passed, memory, rows = self._passed, self._memory, grad.shape[0]
        own: Tensor | None = None
        if self._squashed:
            _tanh_back(grad, self._out)
        grad = self._rounded(grad)
        for layer in range(len(passed) - 1, -1, -1):
            if weights:
                self._add(layer, grad, passed[layer])
            if layer:
                before = torch.mm(grad, self._weights[layer], out=memory.take(rows, self._widths[layer - 1]))
                self._undo(before, passed[layer])
                if own is not None:
                    memory.give(own)
                grad = own = before
        result = torch.mm(grad, self._weights[0]).float() if inputs else None
        if own is not None:
            memory.give(own)
        self._forget()
        return result

    def _add(self, layer: int, grad: Tensor, came_in: Tensor) -> None:
        turned = grad.t()
        self._weight_grads[layer].addmm_(turned, came_in)
        self._bias_grads[layer].addmv_(turned, self._memory.ones(grad.shape[0]))

    def _hidden(self, x: Tensor) -> list[Tensor]:
        """What goes into each layer, [B, I] each."""
        x = self._rounded(x)
        memory, rows, passed = self._memory, x.shape[0], [x]
        for turned, bias, width in zip(self._turned, self._biases, self._widths, strict=False):
            x = torch.addmm(bias, x, turned, out=memory.take(rows, width))
            passed.append(self._activate(x))
        return passed

    def _last(self, x: Tensor) -> Tensor:
        out = torch.addmm(self._biases[-1], x, self._turned[-1]).float()
        return out.tanh_() if self._squashed else out

    def _rounded(self, tensor: Tensor) -> Tensor:
        return tensor

    def _forget(self) -> None:
        for hidden in self._passed[1:]:
            self._memory.give(hidden)
        self._passed = []


class RoundedPass(PerceptronPass):
    """As `PerceptronPass`, with products of numbers that were rounded to the memory's type, twice as many at a time.

    Sums inside a product, weights, gradients and optimisers stay float32; a gradient is off by some percent of its length.
    """

    def __init__(self, network: Perceptron, memory: Memory) -> None:
        super().__init__(network, memory)
        self._exact = [*self._weights, *self._biases]
        self._weights = [weight.to(memory.dtype) for weight in self._weights]
        self._turned = [weight.t() for weight in self._weights]
        self._biases = [bias.to(memory.dtype) for bias in self._biases]

    def _hidden(self, x: Tensor) -> list[Tensor]:
        for rounded, exact in zip([*self._weights, *self._biases], self._exact, strict=True):
            rounded.copy_(exact)  # they may have moved
        return super()._hidden(x)

    def _add(self, layer: int, grad: Tensor, came_in: Tensor) -> None:
        self._weight_grads[layer].add_(torch.mm(grad.t(), came_in))
        self._bias_grads[layer].add_(grad.sum(0, dtype=torch.float32))

    def _rounded(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._memory.dtype)
