"""What small perceptrons of actor and critic have to learn from a minibatch, compiled with numba when this module is imported.

It is what `headrace.algorithms.on_policy` has numpy and torch compute, within rounding, in one call instead of a hundred: where
layers are 64 wide, calls take longer than what is computed in them. Sums are of float32, in an order of the compiler's. Nothing is
cached on disk: compiling takes seconds, and a run leaves no file outside its directory.

Letters in shapes: B rows, I inputs and O outputs of a layer, P parameters. Layers lie in flat vectors as torch has them, weights
[O, I] and then biases [O]; what goes into the second layer and those behind it is kept [B, I], one layer behind the other.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_ROWS, _COLUMNS = 4, 16
"""Of a tile: as many sums as stay in registers."""
_DEPTH = 64
"""Products that are added up of one tile before the next one's turn comes: so many rows of both factors stay in the cache."""
_FLOAT = 4
_HALF_LOG_TWO_PI = np.float32(0.5 * math.log(2.0 * math.pi))
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_MOST = np.float32(7.90531110763549805)
"""To where the quotient is a tanh."""
_FLAT_FROM = np.float32(9.0)
"""Where a tanh is 1 in float32, and has no slope: one of 5e-7 would let an input of a billion outweigh all others."""

# Not "nnan" and "ninf": what is no number has to be seen to be none.
_compiled: Any = functools.partial(numba.njit, fastmath={"reassoc", "contract", "arcp", "nsz"}, error_model="numpy")
_in_order: Any = functools.partial(numba.njit, error_model="numpy")
_V, _M, _TURNED = "float32[::1]", "float32[:, ::1]", "float32[:, :]"
_NET, _SEEN = f"Tuple((int64[::1], {_V}, {_V}, {_V}, {_V}, {_M}, boolean))", f"UniTuple({_V}, 2)"

Net = tuple[Int64, Float32, Float32, Float32, Float32, Float32, bool]
"""Widths of what goes into each layer and of what comes out of the last one; parameters [P] and their gradients [P]; then what is
overwritten: what is between the layers [B * sum of their widths], for `back`, a layer turned round [largest layer], and derivatives
by what is between layers [2, B * widest]; last whether the activation is tanh, else it is relu."""
Seen = tuple[Float32, Float32]
"""Of each action [B] the logarithm of its probability when it was drawn, and its advantage."""


def _tile(typing: Any, left: Any, right: Any, out: Any, count: Any) -> Any:
    """Add a product's tile [4, 16] to what is there. LLVM finds no way by itself to keep the sums in registers.

    Args:
        typing: Numba's.
        left: Address of the left factor, and how many floats further the next row and the next column are.
        right: Address of the right factor, and how many floats further the next row is.
        out: The same of the tile.
        count: How many products are added up in each place, at least 1.
    """

    def made(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        _Tile(builder, given[3].type).add(*given)
        return context.get_dummy_value()

    tuples = (types.UniTuple(types.int64, size) for size in (3, 2, 2))
    return types.void(*tuples, types.int64), made


_add_tile: Any = intrinsic(_tile)


class _Tile:
    """Writes the code of `_tile`.

    Args:
        builder: Of LLVM.
        whole: The type of addresses and counts.
    """

    def __init__(self, builder: Any, whole: Any) -> None:
        self._builder, self._whole = builder, whole
        self._one, self._row = ir.FloatType(), ir.VectorType(ir.FloatType(), _COLUMNS)

    def add(self, left: Any, right: Any, out: Any, count: Any) -> None:
        """See `_tile`."""
        builder = self._builder
        (first, row, step), (others, other_step) = self._parts(left, 3), self._parts(right, 2)
        places = self._rows(*self._parts(out, 2))
        begun = [self._read(place, self._row) for place in places]
        begin = [ir.Constant(self._whole, 0), others, *self._rows(first, row), *begun]
        before, loop = builder.block, builder.append_basic_block("products")
        after = builder.append_basic_block("added")
        builder.branch(loop)
        builder.position_at_end(loop)
        now = [builder.phi(value.type) for value in begin]
        done, at, lefts, sums = now[0], now[1], now[2 : 2 + _ROWS], now[2 + _ROWS :]
        factors = self._read(at, self._row)
        added = [self._added(sums[row], self._read(lefts[row], self._one), factors) for row in range(_ROWS)]
        more = builder.add(done, ir.Constant(self._whole, 1))
        following = [more, self._moved(at, other_step), *(self._moved(place, step) for place in lefts), *added]
        for phi, value, next_value in zip(now, begin, following, strict=True):
            phi.add_incoming(value, before)
            phi.add_incoming(next_value, loop)
        builder.cbranch(builder.icmp_signed("<", more, count), loop, after)
        builder.position_at_end(after)
        for place, value in zip(places, added, strict=True):
            builder.store(value, builder.inttoptr(place, self._row.as_pointer())).align = _FLOAT

    def _parts(self, packed: Any, size: int) -> list[Any]:
        return [self._builder.extract_value(packed, place) for place in range(size)]

    def _rows(self, address: Any, step: Any) -> list[Any]:
        """Addresses of the tile's rows."""
        return [self._moved(address, step, times) for times in range(_ROWS)]

    def _moved(self, address: Any, step: Any, times: int = 1) -> Any:
        return self._builder.add(address, self._builder.mul(step, ir.Constant(self._whole, _FLOAT * times)))

    def _read(self, address: Any, kind: Any) -> Any:
        value = self._builder.load(self._builder.inttoptr(address, kind.as_pointer()))
        value.align = _FLOAT
        return value

    def _added(self, sums: Any, factor: Any, factors: Any) -> Any:
        """One number times a row, added to a row."""
        builder, none = self._builder, ir.Constant(self._row, ir.Undefined)
        first = builder.insert_element(none, factor, ir.Constant(ir.IntType(32), 0))
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), _COLUMNS), [0] * _COLUMNS)
        kind = ir.FunctionType(self._row, [self._row] * 3)
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{_COLUMNS}f32")
        return builder.call(add, [builder.shuffle_vector(first, none, everywhere), factors, sums])


@_compiled(f"void({_TURNED}, {_M}, {_M}, int64, int64)")
def _add_rest(left: Float32, right: Float32, out: Float32, row: int, column: int) -> None:
    """As `_add_product`, from ``row`` of the left factor and ``column`` of the right one on."""
    for r in range(row, len(left)):
        sums = out[r, column:]
        for k in range(len(right) if len(sums) else 0):
            factor, factors = left[r, k], right[k, column:]
            for c in range(
                len(sums)
            ):  # from 0: of places that might be negative no loop is made that takes eight at once
                sums[c] += factor * factors[c]


@_compiled(f"void({_TURNED}, {_M}, {_M})")
def _add_product(left: Float32, right: Float32, out: Float32) -> None:
    """Add ``left`` [m, k] times ``right`` [k, n] to ``out`` [m, n]; the left one may be turned."""
    rows, columns = out.shape
    count = right.shape[0]
    row, step = left.strides[0] // _FLOAT, left.strides[1] // _FLOAT
    whole_rows, whole_columns = rows - rows % _ROWS, columns - columns % _COLUMNS
    lefts, rights, outs = left.ctypes.data, right.ctypes.data, out.ctypes.data
    for k in range(0, count, _DEPTH):
        for r in range(0, whole_rows, _ROWS):
            first = lefts + _FLOAT * (r * row + k * step)
            for c in range(0, whole_columns, _COLUMNS):
                others, place = rights + _FLOAT * (k * columns + c), outs + _FLOAT * (r * columns + c)
                _add_tile((first, row, step), (others, columns), (place, columns), min(_DEPTH, count - k))
    _add_rest(left, right, out, whole_rows, 0)
    _add_rest(left[:whole_rows], right, out, 0, whole_columns)


@_compiled(f"void({_M}, {_M}, {_V}, {_M})")
def _add_layer(x: Float32, weight: Float32, turned: Float32, out: Float32) -> None:
    """Add ``x`` [B, I] times ``weight`` [O, I] turned to ``out`` [B, O]; ``turned`` [I * O] is overwritten."""
    outputs, inputs = weight.shape
    if outputs < _COLUMNS:
        for r in range(len(x)):
            for o in range(outputs):
                total = _ZERO
                for i in range(inputs):
                    total += x[r, i] * weight[o, i]
                out[r, o] += total
        return
    right = turned[: inputs * outputs].reshape(inputs, outputs)
    for o in range(outputs):
        for i in range(inputs):
            right[i, o] = weight[o, i]
    _add_product(x, right, out)


@_compiled(f"void({_M}, boolean)")
def _activate(values: Float32, tanh: bool) -> None:
    """In place. The tanh is a quotient of polynomials, within 2e-7."""
    flat = values.reshape(values.size)
    if not tanh:
        for n in range(flat.size):
            flat[n] = _ZERO if flat[n] < _ZERO else flat[n]
        return
    for n in range(flat.size):
        given = flat[n]
        x = _MOST if given > _MOST else given
        x = -_MOST if x < -_MOST else x
        s = x * x
        above = np.float32(-2.76076847742355e-16)
        above = above * s + np.float32(2.00018790482477e-13)
        above = above * s + np.float32(-8.60467152213735e-11)
        above = above * s + np.float32(5.12229709037114e-08)
        above = above * s + np.float32(1.48572235717979e-05)
        above = above * s + np.float32(6.37261928875436e-04)
        above = above * s + np.float32(4.89352455891786e-03)
        below = np.float32(1.19825839466702e-06)
        below = below * s + np.float32(1.18534705686654e-04)
        below = below * s + np.float32(2.26843463243900e-03)
        below = below * s + np.float32(4.89352518554385e-03)
        bent = x * above / below
        bent = _ONE if given > _FLAT_FROM else bent
        flat[n] = -_ONE if given < -_FLAT_FROM else bent


@_compiled(f"void({_M}, {_M}, boolean)")
def _undo(grad: Float32, out: Float32, tanh: bool) -> None:
    """Of the derivative by what came out of an activation make, in place, that by what went in."""
    flat, came_out = grad.reshape(grad.size), out.reshape(out.size)
    if tanh:
        for n in range(flat.size):
            flat[n] *= _ONE - came_out[n] * came_out[n]
    else:
        for n in range(flat.size):
            flat[n] = flat[n] if came_out[n] > _ZERO else _ZERO


@_compiled(f"void({_M}, {_NET}, {_M})")
def forward(x: Float32, net: Net, out: Float32) -> None:
    """What a network makes of ``x`` [B, I], into ``out`` [B, O]."""
    widths, flat, _, kept, turned, _, tanh = net
    rows, at, place, layers = len(x), 0, 0, len(widths) - 1
    came = x
    for layer in range(layers):
        inputs, outputs = widths[layer], widths[layer + 1]
        size = inputs * outputs
        sums = out
        if layer < layers - 1:
            sums = kept[place : place + rows * outputs].reshape(rows, outputs)
            place += rows * outputs
        bias = flat[at + size : at + size + outputs]
        for r in range(rows):
            for o in range(outputs):
                sums[r, o] = bias[o]
        _add_layer(came, flat[at : at + size].reshape(outputs, inputs), turned, sums)
        if layer < layers - 1:
            _activate(sums, tanh)
        came = sums
        at += size + outputs


@_compiled(f"void({_M}, {_M}, {_V}, {_M})")
def _add_weights(grad: Float32, came: Float32, turned: Float32, out: Float32) -> None:
    """Add ``grad`` [B, O] turned times ``came`` [B, I] to ``out`` [O, I]; what is narrow is made turned round."""
    outputs, inputs = out.shape
    if inputs >= _COLUMNS or outputs < _COLUMNS:
        _add_product(grad.T, came, out)
        return
    product = turned[: inputs * outputs].reshape(inputs, outputs)
    product[:] = _ZERO
    _add_product(came.T, grad, product)
    for o in range(outputs):
        for i in range(inputs):
            out[o, i] += product[i, o]


@_compiled(f"void({_M}, {_M}, {_NET})")
def back(grad: Float32, x: Float32, net: Net) -> None:
    """Add derivatives by the parameters, of that by what `forward` has just made of ``x``, ``grad`` [B, O]."""
    widths, flat, flat_grad, kept, turned, spare, tanh = net
    rows, at, place = len(x), len(flat), 0
    for width in widths[1:-1]:
        place += rows * width
    for layer in range(len(widths) - 2, -1, -1):
        inputs, outputs = widths[layer], widths[layer + 1]
        size = inputs * outputs
        at -= size + outputs
        came = x
        if layer:
            place -= rows * inputs
            came = kept[place : place + rows * inputs].reshape(rows, inputs)
        bias_grad = flat_grad[at + size : at + size + outputs]
        for r in range(rows):
            for o in range(outputs):
                bias_grad[o] += grad[r, o]
        _add_weights(grad, came, turned, flat_grad[at : at + size].reshape(outputs, inputs))
        if layer:
            before = spare[layer % 2, : rows * inputs].reshape(rows, inputs)
            before[:] = _ZERO
            _add_product(grad, flat[at : at + size].reshape(outputs, inputs), before)
            _undo(before, came, tanh)
            grad = before


@_in_order("UniTuple(float32, 4)(float32, float32, float32, float32)")
def _surrogate(logprob: float, before: float, advantage: float, clip: float) -> tuple[Any, ...]:
    """Of one action what `headrace.algorithms.policy_losses` says of all: PPO's where ``clip`` is 0 or more, else V-trace's.

    Returns:
        Its loss, the derivative by ``logprob``, the divergence from when it was drawn, and 1 if its ratio lies outside.
    """
    log_ratio = logprob - before
    ratio = np.exp(log_ratio)
    further = ratio - _ONE
    if clip < _ZERO:
        return -advantage * logprob, -advantage, further - log_ratio, _ZERO
    gain, most = advantage * ratio, advantage * min(max(ratio, _ONE - clip), _ONE + clip)
    pulls = gain if gain <= most else _ZERO
    least = gain if gain < most else most  # also where a gain is no number
    return -least, -pulls, further - log_ratio, _ONE if abs(further) > clip else _ZERO


@_in_order(f"UniTuple(float64, 4)({_M}, int64[::1], {_SEEN}, float64, float64, {_M})")
def of_choices(
    outputs: Float32, chosen: Int64, seen: Seen, clip: float, by_entropy: float, grad: Float32
) -> tuple[float, float, float, float]:
    """See `headrace.algorithms.distributions.Categorical` and `_surrogate`; ``chosen`` [B], ``grad`` [B, n] is overwritten."""
    before, advantage = seen
    edge, pull = np.float32(clip), np.float32(by_entropy)
    rows, count = outputs.shape
    loss, entropies, divergence, clipped = 0.0, np.float64(0.0), 0.0, 0.0
    for r in range(rows):
        highest = outputs[r, 0]
        for n in range(1, count):
            highest = max(highest, outputs[r, n])
        total, entropy = _ZERO, _ZERO
        for n in range(count):
            grad[r, n] = np.exp(outputs[r, n] - highest)  # in proportion to its probability, for now
            total += grad[r, n]
        rest = np.log(total)
        for n in range(count):
            grad[r, n] /= total
            entropy -= grad[r, n] * (outputs[r, n] - highest - rest)
        logprob = outputs[r, chosen[r]] - highest - rest
        own, by_logprob, further, outside = _surrogate(logprob, before[r], advantage[r], edge)
        by_logprob /= np.float32(rows)
        for n in range(count):
            log = outputs[r, n] - highest - rest
            grad[r, n] *= -(by_logprob + pull * (log + entropy))
        grad[r, chosen[r]] += by_logprob
        loss, entropies, divergence, clipped = loss + own, entropies + entropy, divergence + further, clipped + outside
    return loss / rows, entropies / rows, divergence / rows, clipped / rows


@_in_order(f"UniTuple(float64, 4)({_M}, {_M}, {_SEEN}, float64, float64, {_M}, UniTuple({_V}, 2))")
def of_points(
    means: Float32, drawn: Float32, seen: Seen, clip: float, by_entropy: float, grad: Float32, spread: Seen
) -> tuple[float, float, float, float]:
    """As `of_choices`, of a `Gaussian`; ``spread`` [A] is its ``log_std`` and the derivative by that, which is added to."""
    (before, advantage), (log_std, std_grad) = seen, spread
    edge, pull = np.float32(clip), np.float32(by_entropy)
    rows, count = means.shape
    loss, divergence, clipped, entropy, constant = 0.0, 0.0, 0.0, 0.0, np.float32(0.0)
    for n in range(count):
        constant += log_std[n] + _HALF_LOG_TWO_PI
        entropy += log_std[n] + _HALF_LOG_TWO_PI + _HALF
        std_grad[n] += pull * np.float32(rows)
    for r in range(rows):
        logprob = -constant
        for n in range(count):
            grad[r, n] = (drawn[r, n] - means[r, n]) / np.exp(log_std[n])  # deviations that it lies off, for now
            logprob -= _HALF * grad[r, n] * grad[r, n]
        own, by_logprob, further, outside = _surrogate(logprob, before[r], advantage[r], edge)
        by_logprob /= np.float32(rows)
        for n in range(count):
            off = grad[r, n]
            std_grad[n] += (off * off - _ONE) * by_logprob
            grad[r, n] = off / np.exp(log_std[n]) * by_logprob
        loss, divergence, clipped = loss + own, divergence + further, clipped + outside
    return loss / rows, entropy, divergence / rows, clipped / rows


@_in_order(f"float64({_M}, {_V}, {_V}, float64, float64, {_M})")
def of_values(values: Float32, target: Float32, before: Float32, clip: float, weight: float, grad: Float32) -> float:
    """See `headrace.algorithms.policy_losses.value_loss`; below 0 ``clip`` is none. ``grad`` [B, 1] is overwritten."""
    rows, loss = len(values), 0.0
    edge, share = np.float32(clip), np.float32(weight)
    for r in range(rows):
        error, moved = values[r, 0] - target[r], values[r, 0] - before[r]
        square, slope = error * error, error * np.float32(2.0 / rows)
        if edge >= _ZERO:
            cut = before[r] + min(max(moved, -edge), edge) - target[r]
            if not (abs(moved) <= edge or square >= cut * cut):
                slope = _ZERO
            square = max(square, cut * cut)
        grad[r, 0] = slope * share
        loss += square
    return loss / rows


@_compiled(f"float64({_V}, float64)")
def shorten(grad: Float32, most: float) -> float:
    """See `headrace.algorithms.flat.FlatParameters.clip`."""
    total = _ZERO
    for n in range(len(grad)):
        total += grad[n] * grad[n]
    norm = np.sqrt(total)
    if norm > most:
        share = np.float32(most / norm)
        for n in range(len(grad)):
            grad[n] *= share
    return np.float64(norm)


@_compiled(f"void(UniTuple({_V}, 4), UniTuple(float64, 5))")
def adam(vectors: tuple[Float32, ...], numbers: tuple[float, ...]) -> None:
    """A step of Adam.

    Args:
        vectors: Parameters, their gradients, the first and the second moment, all [P].
        numbers: Learning rate and the root of the second moment's share, both as the count of steps corrects them, what is
            kept of the first and of the second moment, and what is added to the root of the second.
    """
    value, grad, first, second = vectors
    lr, root, beta1 = np.float32(numbers[0]), np.float32(numbers[1]), np.float32(numbers[2])
    beta2, eps = np.float32(numbers[3]), np.float32(numbers[4])
    new1, new2 = np.float32(1.0 - numbers[2]), np.float32(1.0 - numbers[3])
    for n in range(len(value)):
        first[n] = beta1 * first[n] + new1 * grad[n]
        second[n] = beta2 * second[n] + new2 * grad[n] * grad[n]
        value[n] -= lr * first[n] / (np.sqrt(second[n]) / root + eps)
