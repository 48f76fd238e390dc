"""Operators of a dense part on a CPU core, each by what its kind costs on this machine.

What an operator reads and writes comes from the cache in which it has stayed since it was last
used. A step of training keeps what it computes until the backward pass, so that memory comes round
again only after all that a step holds (:func:`held_bytes`): the more that is, the smaller the part
of it that a cache still has. The same goes for the code and the objects of the optimizer's step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from costmodels.cpu.constants import OPERATOR_COUNTS, OperatorConstants
from costmodels.datatypes import FloatArray
from costmodels.operators import Operator, OperatorKind, Product

_L2_BYTES, _L3_BYTES = 1e6, 4e6
"""A core's own cache, and what it can count on of the cache that it shares with others (an eighth
of 32 MB: in calibrations, points held out are predicted best with about this share)."""
_LARGE_BYTES, _MAPPED_BYTES = 16e6, 32e6
"""Beyond these sizes a single operator's tensors come from memory, and results are larger than what
the C library keeps: such buffers are mapped anew, page by page, each time."""
_CACHES_BYTES: Final = (_L2_BYTES, _L3_BYTES)
_LARGE_PRODUCT: Final = 1e6
"""Multiply-adds of each of a batch of products from which it takes as long as a product alone: the
library runs one after the other, and starting one no longer counts."""
_BINARY: Final = frozenset({"add", "sub", "mul", "div"})
_SPREAD: Final = ("elementwise row", "elementwise column")
_VECTOR: Final = 16
"""Functions along rows that are shorter than this many elements run element by element."""
_BY_ROW: Final = (
    *("clone", "cat", "stack", "sum", "mean", "embedding", "index_select", "index_add", "topk"),
    *("nll_loss_forward", "native_layer_norm", "_softmax", "_log_softmax"),
)
_AS_ONE_ROW: Final = ("gelu", "silu", "tanh", "sigmoid", "exp", "log", "pow", "bernoulli_")
OWN_CLASSES: Final = frozenset((*_BY_ROW, *_AS_ONE_ROW))
"""Functions that are measured apart from the others of their kind: those that start anew at every
row, and those that pass over a tensor as if it were one row."""
_SAME_AS: Final = {"_safe_softmax": "_softmax", "nll_loss": "nll_loss_forward", "sort": "topk"}
_TYPICAL: Final = {
    OperatorKind.MATMUL: "matmul",
    OperatorKind.BATCHED_MATMUL: "batched_matmul",
    OperatorKind.ATTENTION: "attention",
    OperatorKind.NORM: "native_layer_norm",
    OperatorKind.SOFTMAX: "_softmax",
    OperatorKind.GATHER: "index_select",
    OperatorKind.REDUCTION: "sum",
}
"""The class of the other functions of a kind; what is left counts as elementwise."""

_ONCE: Final = "once"
"""The class of what a pass takes whatever its operators, such as to start the backward pass."""

Counts = dict[str, FloatArray]
"""Counts ``[OPERATOR_COUNTS]`` by class; those that a class has no use for are zero."""


def class_of(operator: Operator) -> str:
    """What an operator is measured as: its function, or one that is typical of its kind."""
    function = _SAME_AS.get(operator.function, operator.function)
    if function in OWN_CLASSES:
        return function
    product = operator.product
    if product is not None and product.m * product.k * product.n >= _LARGE_PRODUCT:
        return _TYPICAL[OperatorKind.MATMUL]
    return _TYPICAL.get(operator.kind, f"elementwise{_broadcast(operator)}")


def _broadcast(operator: Operator) -> str:
    """Whether the second operand of a sum or product is one row, or one column, used throughout.

    The loops over such an operand, and the sum that is its gradient, are others than those over two
    tensors of one shape.
    """
    if operator.function.rstrip("_") not in _BINARY or not operator.shape:
        return ""
    extra = (operator.read_bytes - operator.written_bytes) / operator.dtype.num_bytes
    *outer, inner = operator.shape
    if inner > 1 and extra == math.prod(outer) > 1:
        return " column"
    return " row" if extra == inner and math.prod(outer) > 1 else ""


def held_bytes(operators: Iterable[Operator]) -> float:
    """Bytes that a step goes through before it comes to the same memory again.

    They are the results and parameters of all operators, and the largest input.
    """
    listed = list(operators)
    held = sum(o.num_repeats * (o.written_bytes + o.parameter_bytes) for o in listed)
    return held + max((o.read_bytes for o in listed), default=0.0)


def forward_counts(operators: Iterable[Operator], held: float) -> Counts:
    """Counts of the forward pass, repeats added up; none without operators.

    Args:
        operators: all of the dense part, or some of them.
        held: of the step that they are part of, by :func:`held_bytes`.
    """
    found: Counts = {_ONCE: _first()}
    missed = _missed(held)
    for operator in operators:
        _add(found, class_of(operator), operator.num_repeats * _forward(operator, missed))
    return found if len(found) > 1 else {}


def backward_counts(operators: Iterable[Operator], held: float) -> Counts:
    """Counts of the gradients; those of both operands of a product are classes apart.

    Args:
        operators: as for :func:`forward_counts`.
        held: likewise.
    """
    found: Counts = {_ONCE: _first()}
    missed = _missed(held)
    for operator in operators:
        name = class_of(operator)
        if operator.product is None and operator.has_gradient:
            _add(found, name, operator.num_repeats * _gradient(operator, missed))
        needed = {"left": operator.left_gradient, "right": operator.right_gradient}
        sides = [side for side, is_needed in needed.items() if is_needed]
        for side, product in zip(sides, operator.backward_products, strict=False):
            _add(found, f"{name} {side}", operator.num_repeats * _product(product, missed))
    return found if len(found) > 1 else {}


def update_counts(operators: Sequence[Operator]) -> FloatArray:
    """What a step of the optimizer visits ``[UPDATE_COUNTS]``, after the passes before it.

    They are 1, operators with trained elements, trained bytes, and what the passes have driven out
    of the core's own cache and of the shared one: of the optimizer itself (0..1), and in bytes.
    """
    own, shared = _missed(held_bytes(operators))
    trained = [o for o in operators if o.num_parameters > 0]
    visited = float(sum(o.num_repeats for o in trained))
    num_bytes = sum(o.num_repeats * o.parameter_bytes for o in trained)
    return np.array(
        [1.0, visited, num_bytes, own, shared, num_bytes * own, num_bytes * shared], dtype=float
    )


def forward_s(operators: Iterable[Operator], constants: OperatorConstants, held: float) -> float:
    """Seconds of the forward pass; ``held`` as for :func:`forward_counts`."""
    return _seconds(forward_counts(operators, held), dict(constants.forward_s))


def backward_s(operators: Sequence[Operator], constants: OperatorConstants, held: float) -> float:
    """Seconds of the backward pass; what it computes again costs what it did the first time."""
    again = forward_counts((o for o in operators if o.is_recomputed), held)
    again.pop(_ONCE, None)
    gradients_s = _seconds(backward_counts(operators, held), dict(constants.backward_s))
    return gradients_s + _seconds(again, dict(constants.forward_s))


def _seconds(counts: Counts, constants: dict[str, tuple[float, ...]]) -> float:
    """What the counts of each class cost; a class that nobody measured counts as elementwise."""
    other = constants["elementwise"]
    return sum(float(c @ np.array(constants.get(name, other))) for name, c in counts.items())


def _first() -> FloatArray:
    counts = np.zeros(OPERATOR_COUNTS)
    counts[0] = 1.0
    return counts


def _add(found: Counts, name: str, counts: FloatArray) -> None:
    found[name] = found.get(name, np.zeros(OPERATOR_COUNTS)) + counts


def _missed(held: float) -> tuple[float, float]:
    """Shares (0..1) of what a step holds that the core's own cache, and the shared one, lack."""
    own, shared = (max(0.0, 1.0 - size / held) if held > 0 else 0.0 for size in _CACHES_BYTES)
    return own, shared


def _forward(operator: Operator, missed: tuple[float, float]) -> FloatArray:
    product = operator.product
    if product is not None:
        return _product(product, missed)
    if operator.kind is OperatorKind.ATTENTION:
        return _attention(operator, missed)
    return _streamed(operator, missed)


def _gradient(operator: Operator, missed: tuple[float, float]) -> FloatArray:
    """As forward, but that the gradient of a table has as many bytes as the table."""
    if operator.kind is OperatorKind.ATTENTION:
        return _attention(operator, missed)
    counts = _streamed(operator, missed)
    if class_of(operator) == "embedding":
        counts[5] = operator.parameter_bytes
    return counts


def _product(product: Product, missed: tuple[float, float]) -> FloatArray:
    """1, products, multiply-adds, elements of result and both operands, bytes beyond caches."""
    c, m, k, n = product.count, product.m, product.k, product.n
    return np.array(
        [
            1.0,
            c,
            float(c) * m * k * n,
            float(c) * m * n,
            float(c) * m * k,
            float(c) * k * n,
            4.0 * product.num_elements * missed[1],
            _mapped(4.0 * c * m * n),
        ]
    )


def _attention(operator: Operator, missed: tuple[float, float]) -> FloatArray:
    """1, heads, multiply-adds with and without what a mask hides, scores, queries, rows, bytes.

    The bytes are those beyond both caches.
    """
    heads, queries, keys, width, value_width = map(float, operator.shape)
    products = heads * queries * keys * (width + value_width)
    return np.array(
        [
            1.0,
            heads,
            products,
            products * (0.5 if operator.is_causal else 1.0),
            heads * queries * keys,
            heads * queries * width,
            heads * queries,
            operator.moved_bytes * missed[1],
        ]
    )


def _streamed(operator: Operator, missed: tuple[float, float]) -> FloatArray:
    """1, bytes, bytes beyond each cache, rows, bytes from memory, short rows, mapped bytes.

    In place of bytes from memory, gradients of looked up rows have the table's bytes.
    """
    num_bytes, shape, name = operator.moved_bytes, operator.shape, class_of(operator)
    has_rows = bool(shape) and (name in _BY_ROW or name in _SPREAD)
    return np.array(
        [
            1.0,
            num_bytes,
            num_bytes * missed[0],
            num_bytes * missed[1],
            float(math.prod(shape[:-1])) if has_rows else 0.0,
            max(num_bytes - _LARGE_BYTES, 0.0),
            float(math.prod(shape)) if has_rows and shape[-1] < _VECTOR else 0.0,
            _mapped(operator.written_bytes),
        ]
    )


def memory_s(seconds_per_count: Sequence[float]) -> float:
    """Seconds per byte of a function, by its constants, where no cache holds any of its bytes."""
    _, *by_bytes, _, from_memory, _, _ = seconds_per_count
    return sum(by_bytes) + from_memory


def _mapped(num_bytes: float) -> float:
    return num_bytes if num_bytes > _MAPPED_BYTES else 0.0
