"""Networks that are differentiated by hand: forward, then back with the derivative of the loss by what came out.

An algorithm writes down the derivative of its loss by the few numbers that come out of a network, and the network takes it
from there. For perceptrons of our own on the CPU that is written out too, a call per layer and none that is not needed;
autograd spends more on its own nodes and on fresh memory than on anything a small network computes. All other networks go
through autograd, and the algorithm does not know.

Letters in shapes: B batch, I inputs, O outputs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headrace.algorithms.networks import InTwo, Perceptron

_aten = torch.ops.aten


class Pass(Protocol):
    """A network whose parameters lie in a `headrace.algorithms.flat.FlatParameters`."""

    def __call__(self, x: Tensor) -> Tensor:
        """[B, O] of ``x`` [B, I]; nothing is remembered."""
        ...

    def traced(self, x: Tensor) -> Tensor:
        """As a call, and `back` can be asked once; it forgets the one before. ``x`` must not change until then."""
        ...

    def back(self, grad: Tensor, *, weights: bool = True, inputs: int = 0) -> Tensor | None:
        """Add to the parameters' gradients what follows from ``grad``.

        Args:
            grad: [B, O] the derivative of a loss by what `traced` returned; may be overwritten.
            weights: Whether gradients of parameters are wanted.
            inputs: By how many of the inputs, the last ones, the derivative is wanted.

        Returns:
            That derivative [B, inputs]; None if ``inputs`` is 0.
        """
        ...


class Memory:
    """Tensors [B, width] that are used again and again; fresh ones cost more in page faults than what is computed in them.

    They are torch's own, so 64-byte aligned: the matrix library repeats itself bit for bit only on such. The one that was
    given back last is taken first, because it is still in the cache.

    Args:
        dtype: What products inside networks that use it round their factors to. Every tensor is float32 in any case.
    """

    _MOST = 64

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self._free: dict[tuple[int, int], list[Tensor]] = {}
        self._turned: dict[int, tuple[Tensor, Tensor]] = {}
        self._ones = torch.empty(0)

    def take(self, rows: int, width: int) -> Tensor:
        """One that nobody uses, on the CPU."""
        free = self._free.get((rows, width))
        if free:
            return free.pop()
        tensor = torch.empty((rows, width))
        self._turned[id(tensor)] = tensor, tensor.t()
        return tensor

    def turned(self, tensor: Tensor) -> Tensor:
        """[width, B] of one [B, width]; of what `take` gave it is made once, as a view costs as much as a small product."""
        known = self._turned.get(id(tensor))
        return tensor.t() if known is None else known[1]

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
                self._turned.clear()
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
        dtype: Of products inside. On the CPU it is as in `RoundedPass`, for convolutions too; on an accelerator see `Autocast`.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        device = next(network.parameters()).device.type
        self._forward: Callable[[Tensor], Tensor] = network
        self._products: AbstractContextManager[object] = contextlib.nullcontext()
        if dtype != torch.float32 and device == "cpu":
            self._products = RoundedProducts(*(("matmul", "conv") if _convolves(network) else ()))
        elif dtype != torch.float32:
            self._forward = Autocast(network, device, dtype)
        self._trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._x = self._out = torch.empty(0)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """See `Pass.__call__`."""
        with self._products:
            return self._forward(x)

    def traced(self, x: Tensor) -> Tensor:
        """See `Pass.traced`."""
        self._x = x.detach().requires_grad_()
        with torch.enable_grad(), self._products:
            self._out = self._forward(self._x)
        return self._out.detach()

    def back(self, grad: Tensor, *, weights: bool = True, inputs: int = 0) -> Tensor | None:
        """See `Pass.back`."""
        parameters = self._trained if weights else []
        wanted = [*parameters, *([self._x] if inputs else [])]
        with self._products:
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
        return own[:, -inputs:] if inputs and own is not None else None


class Autocast:
    """A network as torch's autocast has it on an accelerator: products of rounded factors, and rounded themselves.

    So are biases and activations between them. What comes out is not, of networks of ours: their last layer, and a tanh behind
    it, are float32 throughout. Rounded, values would be off by one of 256, and a tanh 1 and flat from 3.1 on. Of a network of
    the user's own only the tanh that is put behind it is; what it returns itself is rounded.

    Args:
        network: See `pass_of`.
        device: Type of the device it is on.
        dtype: Rounded to.
    """

    def __init__(self, network: nn.Module, device: str, dtype: torch.dtype) -> None:
        self._cast = functools.partial(torch.autocast, device, dtype=dtype)
        self._rounded: Callable[[Tensor], Tensor] = network
        self._exact: Callable[[Tensor], Tensor] = nn.Identity()
        if isinstance(network, InTwo):
            self._rounded, self._exact = network.rounded_part, network.exact_part

    def __call__(self, x: Tensor) -> Tensor:
        """What the network makes of ``x``, float32."""
        with self._cast():
            inner = self._rounded(x)
        return self._exact(inner.float())


def _convolves(network: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.conv._ConvNd) for module in network.modules())  # noqa: SLF001 - no public base


def _relu_back(grad: Tensor, out: Tensor) -> None:
    grad.mul_(out.sign_())  # 0 or 1; half the time of torch's own, which is called through its registry


def _tanh_back(grad: Tensor, out: Tensor) -> None:
    _aten.tanh_backward.grad_input(grad, out, grad_input=grad)


def _elu_back(grad: Tensor, out: Tensor) -> None:
    _aten.elu_backward.grad_input(grad, 1.0, 1.0, 1.0, True, out, grad_input=grad)  # noqa: FBT003 - torch's own signature


_ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], None]]] = {
    "relu": (torch.relu_, _relu_back),
    "tanh": (torch.tanh_, _tanh_back),
    "elu": (nn.functional.elu_, _elu_back),
}
"""In place: the activation; and what a derivative by what came out of it is by what went in, which may overwrite both."""


_MINUS_ONE = torch.tensor(-1.0)


def _better_turned(narrow: int, wide: int, rows: int) -> bool:
    """Whether what comes out of a product had better be made turned round, and turned back: it has a narrow side and a wide one.

    The matrix library takes the last side of what comes out through its vector registers. Where that is narrow and does not fill
    them, it takes up to five times as long.
    """
    return narrow < 32 and narrow % 16 != 0 and wide >= 64 and rows >= 64


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

    def back(self, grad: Tensor, *, weights: bool = True, inputs: int = 0) -> Tensor | None:
        """See `Pass.back`."""
        memory, rows = self._memory, grad.shape[0]
        own: Tensor | None = None
        if self._squashed:
            _tanh_back(grad, self._out)
        for layer in range(len(self._passed) - 1, -1, -1):
            came_in = self._passed.pop()
            if weights:
                self._add(layer, grad, came_in)
                self._bias_grads[layer].addmv_(memory.turned(grad), memory.ones(rows))
            if layer:
                before = self._before(layer, grad, memory.take(rows, self._widths[layer - 1]))
                self._undo(before, came_in)
                if own is not None:
                    memory.give(own)
                memory.give(came_in)  # while it is in the cache: the next one is made in it
                grad = own = before
        result = self._by_inputs(grad, inputs) if inputs else None
        if own is not None:
            memory.give(own)
        return result

    def _active(self, layer: int, x: Tensor, out: Tensor) -> Tensor:
        """The activation of a layer's sums [B, O], into ``out``."""
        bias, turned = self._biases[layer], self._turned[layer]
        if self._activate is torch.relu_:
            return torch._addmm_activation(bias, x, turned, out=out)  # noqa: SLF001 - both in one call
        if self._activate is torch.tanh_:
            # tanh(s) = 2 sigmoid(2 s) - 1: within 1.8e-7, and with both factors in calls that are made anyway 0.4 of the time.
            doubled = torch.addmm(bias, x, turned, beta=2, alpha=2, out=out)
            return torch.add(_MINUS_ONE, doubled.sigmoid_(), alpha=2, out=out)
        return self._activate(torch.addmm(bias, x, turned, out=out))

    def _before(self, layer: int, grad: Tensor, out: Tensor) -> Tensor:
        """The derivative [B, I] by what went into a layer that is not the first, into ``out``."""
        return torch.mm(grad, self._weights[layer], out=out)

    def _by_inputs(self, grad: Tensor, count: int) -> Tensor:
        """The derivative [B, count] by the last inputs; ``grad`` is that by what came out of the first layer."""
        weight = self._weights[0][:, -count:]
        if _better_turned(count, len(weight), len(grad)):
            return torch.mm(weight.t(), self._memory.turned(grad)).t().contiguous()
        return torch.mm(grad, weight)

    def _add(self, layer: int, grad: Tensor, came_in: Tensor) -> None:
        """Add to a layer's gradient; ``grad`` [B, O] is the derivative by what came out."""
        memory, gradient = self._memory, self._weight_grads[layer]
        outputs, inputs = gradient.shape
        if _better_turned(inputs, outputs, grad.shape[0]):
            product = memory.take(inputs, outputs)
            torch.mm(memory.turned(came_in), grad, out=product)
            gradient.add_(memory.turned(product))
            memory.give(product)
        else:
            gradient.addmm_(memory.turned(grad), came_in)

    def _hidden(self, x: Tensor) -> list[Tensor]:
        """What goes into each layer, [B, I] each."""
        memory, rows, passed = self._memory, x.shape[0], [x]
        for layer, width in enumerate(self._widths):
            passed.append(x := self._active(layer, x, memory.take(rows, width)))
        return passed

    def _last(self, x: Tensor) -> Tensor:
        out = torch.addmm(self._biases[-1], x, self._turned[-1])
        return out.tanh_() if self._squashed else out

    def _forget(self) -> None:
        for hidden in self._passed[1:]:
            self._memory.give(hidden)
        self._passed = []


class RoundedPass(PerceptronPass):
    """As `PerceptronPass`, with both factors of its larger products rounded to bfloat16, inside the matrix library.

    Sums inside a product and everything outside of it stay float32; a gradient is off by some percent of its length. A
    product with a side below `NARROW` is float32 too: another library makes it, which calls those in less time.
    """

    NARROW = 64

    def __init__(self, network: Perceptron, memory: Memory) -> None:
        super().__init__(network, memory)
        rounded, exact = RoundedProducts(), contextlib.nullcontext()
        self._kinds = [rounded if min(weight.shape) >= self.NARROW else exact for weight in self._weights]

    def _active(self, layer: int, x: Tensor, out: Tensor) -> Tensor:
        with self._kinds[layer]:
            return super()._active(layer, x, out)

    def _last(self, x: Tensor) -> Tensor:
        with self._kinds[-1]:
            return super()._last(x)

    def _before(self, layer: int, grad: Tensor, out: Tensor) -> Tensor:
        with self._kinds[layer]:
            return super()._before(layer, grad, out)

    def _add(self, layer: int, grad: Tensor, came_in: Tensor) -> None:
        with self._kinds[layer]:
            super()._add(layer, grad, came_in)


class RoundedProducts:
    """Within it torch rounds the factors of products of float32 on the CPU to bfloat16. Not to be nested.

    Args:
        kinds: ``matmul``, ``conv``; none: the first.
    """

    def __init__(self, *kinds: str) -> None:
        first, *others = (
            getattr(torch.backends.mkldnn, kind) for kind in kinds or ("matmul",)
        )  # set by torch at run time
        self._setting: Any = first
        self._others: list[Any] = others
        self._given, self._others_given = "", [""]

    def __enter__(self) -> None:
        self._given = self._setting.fp32_precision
        self._setting.fp32_precision = "bf16"
        if self._others:
            self._others_given = [other.fp32_precision for other in self._others]
            for other in self._others:
                other.fp32_precision = "bf16"

    def __exit__(self, *_: object) -> None:
        self._setting.fp32_precision = self._given
        for other, given in zip(self._others, self._others_given, strict=False):
            other.fp32_precision = given
