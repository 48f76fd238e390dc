"""Operators of a dense part on a CPU core, each by what its kind costs on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.cpu.constants import OperatorConstants
from costmodels.operators import Operator, OperatorKind, Product

FloatArray = NDArray[np.float64]

NUM_COUNTS: Final = 8
"""Counts of one operator of any class; those that a class has no use for are zero."""
_L2_BYTES, _L3_BYTES, _MAPPED_BYTES = 1e6, 16e6, 32e6
"""Beyond these sizes tensors leave a core's cache, the shared cache, and the memory that the C
library keeps (larger buffers are mapped anew, page by page, each time)."""
_LARGE_PRODUCT: Final = 1e6
"""Multiply-adds of each of a batch of products from which it takes as long as a product alone: the
library runs one after the other, and starting one no longer counts."""
_BINARY: Final = frozenset({"add", "sub", "mul", "div"})
_VECTOR: Final = 16
"""Functions along rows that are shorter than this many elements run element by element."""
_OWN_NAMES: Final = """gelu silu tanh sigmoid exp log pow bernoulli_ clone cat stack sum mean
    embedding index_select index_add topk nll_loss_forward native_layer_norm _softmax
    _log_softmax"""
OWN_CLASSES: Final = frozenset(_OWN_NAMES.split())
"""Functions that are measured apart from the others of their kind."""
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
"""Counts ``[NUM_COUNTS]`` by class."""


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


def forward_counts(operators: Iterable[Operator]) -> Counts:
    """Counts of the forward pass, repeats added up; none without operators."""
    found: Counts = {_ONCE: _first()}
    for operator in operators:
        _add(found, class_of(operator), operator.num_repeats * _forward(operator))
    return found if len(found) > 1 else {}


def backward_counts(operators: Iterable[Operator]) -> Counts:
    """Counts of the gradients; those of both operands of a product are classes apart."""
    found: Counts = {_ONCE: _first()}
    for operator in operators:
        name = class_of(operator)
        if operator.product is None:
            _add(found, name, operator.num_repeats * _gradient(operator))
        needed = {"left": operator.left_gradient, "right": operator.right_gradient}
        sides = [side for side, is_needed in needed.items() if is_needed]
        for side, product in zip(sides, operator.backward_products, strict=False):
            _add(found, f"{name} {side}", operator.num_repeats * _product(product))
    return found if len(found) > 1 else {}


def update_counts(operators: Iterable[Operator]) -> FloatArray:
    """1, operators with trained elements, trained bytes: what a step of the optimizer visits."""
    counts = np.array([1.0, 0.0, 0.0])
    for operator in operators:
        trained = float(operator.num_parameters > 0) * operator.num_repeats
        counts += (0.0, trained, operator.num_repeats * operator.parameter_bytes)
    return counts


def forward_s(operators: Iterable[Operator], constants: OperatorConstants) -> float:
    """Seconds of the forward pass."""
    return _seconds(forward_counts(operators), dict(constants.forward_s))


def backward_s(operators: Sequence[Operator], constants: OperatorConstants) -> float:
    """Seconds of the backward pass; what it computes again costs what it did the first time."""
    again = forward_counts(o for o in operators if o.is_recomputed)
    again.pop(_ONCE, None)
    gradients_s = _seconds(backward_counts(operators), dict(constants.backward_s))
    return gradients_s + _seconds(again, dict(constants.forward_s))


def _seconds(counts: Counts, constants: dict[str, tuple[float, ...]]) -> float:
    """What the counts of each class cost; a class that nobody measured counts as elementwise."""
    other = constants["elementwise"]
    return sum(float(c @ np.array(constants.get(name, other))) for name, c in counts.items())


def _first() -> FloatArray:
    counts = np.zeros(NUM_COUNTS)
    counts[0] = 1.0
    return counts


def _add(found: Counts, name: str, counts: FloatArray) -> None:
    found[name] = found.get(name, np.zeros(NUM_COUNTS)) + counts


def _forward(operator: Operator) -> FloatArray:
    product = operator.product
    if product is not None:
        return _product(product)
    if operator.kind is OperatorKind.ATTENTION:
        return _attention(operator)
    return _streamed(operator)


def _gradient(operator: Operator) -> FloatArray:
    """As forward, but that the gradient of a table has as many bytes as the table."""
    if operator.kind is OperatorKind.ATTENTION:
        return _attention(operator)
    counts = _streamed(operator)
    if class_of(operator) == "embedding":
        counts[5] = operator.parameter_bytes
    return counts


def _product(product: Product) -> FloatArray:
    """1, products, multiply-adds, elements of result and both operands, bytes beyond caches."""
    c, m, k, n = product.count, product.m, product.k, product.n
    num_bytes = 4.0 * product.num_elements
    return np.array(
        [
            1.0,
            c,
            float(c) * m * k * n,
            float(c) * m * n,
            float(c) * m * k,
            float(c) * k * n,
            max(num_bytes - _L2_BYTES, 0.0),
            _mapped(4.0 * c * m * n),
        ]
    )


def _attention(operator: Operator) -> FloatArray:
    """1, heads, multiply-adds with and without what a mask hides, scores, queries, rows, bytes."""
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
            max(operator.moved_bytes - _L2_BYTES, 0.0),
        ]
    )


def _streamed(operator: Operator) -> FloatArray:
    """1, bytes, bytes beyond each cache, rows, (the table's bytes), short rows, mapped bytes."""
    num_bytes, shape = operator.moved_bytes, operator.shape
    short = shape[-1] < _VECTOR if shape else False
    return np.array(
        [
            1.0,
            num_bytes,
            max(num_bytes - _L2_BYTES, 0.0),
            max(num_bytes - _L3_BYTES, 0.0),
            float(math.prod(shape[:-1])),
            0.0,
            float(math.prod(shape)) if short else 0.0,
            _mapped(operator.written_bytes),
        ]
    )


def _mapped(num_bytes: float) -> float:
    return num_bytes if num_bytes > _MAPPED_BYTES else 0.0
