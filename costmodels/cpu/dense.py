"""The time of the dense part on a CPU core, from measurements on the same machine.

Single operators are priced by their class. Where the bytes of an operator come from, a cache or
memory, depends on how much was used since they were last used. A training step keeps what it
computes until the backward pass. The same memory is therefore used again only after all other
memory that the step holds (:func:`held_bytes`): the more this is, the smaller is the share of it
that a cache still has. The same is true of the code and the objects that the step of the optimizer
uses.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense.base import AbstractDenseModel, DenseLayers, DenseTimes, Layer, dense_layers
from costmodels.measured.cpu_constants import OPERATOR_COUNTS, CpuConstants, OperatorConstants
from costmodels.operators import Operator, OperatorKind, Product
from costmodels.topology import Topology
from costmodels.workload import Workload

_L2_BYTES, _L3_BYTES = 1e6, 4e6
"""Bytes of a core's own cache, and of the part of the shared cache that it can count on. The latter
is an eighth of 32 MB: in calibrations, points that were left out are predicted best with about this
share."""
_LARGE_BYTES, _MAPPED_BYTES = 16e6, 32e6
"""Beyond the first size, the tensors of a single operator come from memory. Beyond the second, the
C library does not keep the memory of a result: it is mapped anew each time, page by page."""
_LARGE_PRODUCT: Final = 1e6
"""From so many multiply-adds on, each product of a batch takes as long as a product alone: the
library runs the products of a batch one after the other, and starting one takes little of the
time."""
_BINARY: Final = frozenset({"add", "sub", "mul", "div"})
"""Functions of two tensors, of which the second may be one row or one column."""
_SPREAD: Final = ("elementwise row", "elementwise column")
"""The classes of functions of a tensor and one row, or one column."""
_VECTOR: Final = 16
"""If rows have fewer elements than this, functions along rows run without vector instructions."""
_BY_ROW: Final = (
    *("clone", "cat", "stack", "sum", "mean", "embedding", "index_select", "index_add", "topk"),
    *("nll_loss_forward", "native_layer_norm", "_softmax", "_log_softmax"),
)
_AS_ONE_ROW: Final = ("gelu", "silu", "tanh", "sigmoid", "exp", "log", "pow", "bernoulli_")
OWN_CLASSES: Final = frozenset((*_BY_ROW, *_AS_ONE_ROW))
"""Functions that have a class of their own: those that begin anew at each row, and those that treat
a tensor as one row."""
_SAME_AS: Final = {"_safe_softmax": "_softmax", "nll_loss": "nll_loss_forward", "sort": "topk"}
"""Functions that are priced as another function."""
_TYPICAL: Final = {
    OperatorKind.MATMUL: "matmul",
    OperatorKind.BATCHED_MATMUL: "batched_matmul",
    OperatorKind.ATTENTION: "attention",
    OperatorKind.NORM: "native_layer_norm",
    OperatorKind.SOFTMAX: "_softmax",
    OperatorKind.GATHER: "index_select",
    OperatorKind.REDUCTION: "sum",
}
"""The class of functions without a class of their own, by kind. Functions of all other kinds are
elementwise."""

_ONCE: Final = "once"
"""The class of what a pass takes without any operator, such as starting the backward pass."""

Counts = dict[str, FloatArray]
"""``[OPERATOR_COUNTS]`` counts of each class. Products, attention and all other operators have
counts of their own; places that are not needed are 0."""


def class_of(operator: Operator) -> str:
    """The class of an operator: its function, or one that is typical of its kind."""
    function = _SAME_AS.get(operator.function, operator.function)
    if function in OWN_CLASSES:
        return function
    product = operator.product
    if product is not None and product.m * product.k * product.n >= _LARGE_PRODUCT:
        return _TYPICAL[OperatorKind.MATMUL]
    return _TYPICAL.get(operator.kind, f"elementwise{_broadcast(operator)}")


def _broadcast(operator: Operator) -> str:
    """`` row`` or `` column`` if the second operand of a function is one row or one column.

    Otherwise empty. Such an operand is used again for each row or column. PyTorch runs other loops
    for it than for two tensors of one shape, and its gradient is a sum.
    """
    if operator.function.rstrip("_") not in _BINARY or not operator.shape:
        return ""
    extra = (operator.read_bytes - operator.written_bytes) / operator.dtype.num_bytes
    *outer, inner = operator.shape
    if inner > 1 and extra == math.prod(outer) > 1:
        return " column"
    return " row" if extra == inner and math.prod(outer) > 1 else ""


def held_bytes(operators: Iterable[Operator]) -> float:
    """Bytes that a step uses before it uses the same memory again.

    They are the results and parameters of all operators, and the largest input.

    Args:
        operators: all operators of the dense part.
    """
    listed = list(operators)
    held = sum(o.num_repeats * (o.written_bytes + o.parameter_bytes) for o in listed)
    return held + max((o.read_bytes for o in listed), default=0.0)


def forward_counts(operators: Iterable[Operator], held: float) -> Counts:
    """The counts of a forward pass, over all repeats; empty without operators.

    Args:
        operators: operators of the dense part, all or some of them.
        held: bytes that the whole step holds (:func:`held_bytes`).
    """
    found = _counts()
    missed = _missed(held)
    for operator in operators:
        found[class_of(operator)] += operator.num_repeats * _forward(operator, missed)
    return found if len(found) > 1 else {}


def backward_counts(operators: Iterable[Operator], held: float) -> Counts:
    """The counts of a backward pass, over all repeats; empty without operators.

    The gradients of the left and of the right operand of a product are two classes.

    Args:
        operators: operators of the dense part, all or some of them.
        held: bytes that the whole step holds (:func:`held_bytes`).
    """
    found = _counts()
    missed = _missed(held)
    for operator in operators:
        name = class_of(operator)
        if operator.product is None and operator.has_gradient:
            counts = _forward(operator, missed)
            if name == "embedding":
                # The gradient of a trained matrix whose rows are looked up is as large as the
                # matrix; its bytes stand in the place of bytes from memory.
                counts[5] = operator.parameter_bytes
            found[name] += operator.num_repeats * counts
        needed = {"left": operator.left_gradient, "right": operator.right_gradient}
        sides = [side for side, is_needed in needed.items() if is_needed]
        for side, product in zip(sides, operator.backward_products, strict=False):
            found[f"{name} {side}"] += operator.num_repeats * _product(product, missed)
    return found if len(found) > 1 else {}


def optimizer_counts(operators: Sequence[Operator]) -> FloatArray:
    """What the step of the optimizer is priced by, ``[UPDATE_COUNTS]``.

    Args:
        operators: all operators of the dense part.

    Returns:
        1; operators with trained elements; trained bytes; the shares (0..1) of the code and objects
        of the optimizer that the passes before it have driven out of the core's own cache and of
        the shared cache; and the trained bytes that they have driven out of each.
    """
    own, shared = _missed(held_bytes(operators))
    trained = [o for o in operators if o.num_parameters > 0]
    visited = float(sum(o.num_repeats for o in trained))
    num_bytes = sum(o.num_repeats * o.parameter_bytes for o in trained)
    driven = [own, shared, num_bytes * own, num_bytes * shared]
    return np.array([1.0, visited, num_bytes, *driven], dtype=float)


def forward_s(operators: Iterable[Operator], constants: OperatorConstants, held: float) -> float:
    """Seconds of a forward pass; ``operators`` and ``held`` as for :func:`forward_counts`."""
    return _seconds(forward_counts(operators, held), dict(constants.forward_s))


def backward_s(operators: Sequence[Operator], constants: OperatorConstants, held: float) -> float:
    """Seconds of a backward pass; arguments as for :func:`backward_counts`.

    Operators that it computes again take as long as in the forward pass.
    """
    again = forward_counts((o for o in operators if o.is_recomputed), held)
    again.pop(_ONCE, None)
    gradients_s = _seconds(backward_counts(operators, held), dict(constants.backward_s))
    return gradients_s + _seconds(again, dict(constants.forward_s))


def _seconds(counts: Counts, constants: dict[str, tuple[float, ...]]) -> float:
    """Seconds of counts; a class without constants is priced as elementwise.

    Args:
        counts: counts of each class.
        constants: seconds per count of each class.
    """
    other = constants["elementwise"]
    return sum(float(c @ np.array(constants.get(name, other))) for name, c in counts.items())


def _counts() -> Counts:
    """No counts of any class but :data:`_ONCE`."""
    found: Counts = defaultdict(lambda: np.zeros(OPERATOR_COUNTS))
    found[_ONCE][0] = 1.0
    return found


def _missed(held: float) -> tuple[float, float]:
    """Shares (0..1) of ``held`` bytes that do not fit into the core's own and the shared cache."""
    sizes = _L2_BYTES, _L3_BYTES
    own, shared = (max(0.0, 1.0 - size / held) if held > 0 else 0.0 for size in sizes)
    return own, shared


def _forward(operator: Operator, missed: tuple[float, float]) -> FloatArray:
    """The counts of one repeat of an operator in the forward pass."""
    if operator.product is not None:
        return _product(operator.product, missed)
    if operator.kind is OperatorKind.ATTENTION:
        return _attention(operator, missed)
    return _streamed(operator, missed)


def _product(product: Product, missed: tuple[float, float]) -> FloatArray:
    """The counts of a product.

    Args:
        product: the product; its elements are fp32.
        missed: shares of held bytes that the caches lack (:func:`_missed`).

    Returns:
        1; number of products; multiply-adds; elements of the result, of the left operand and of the
        right operand; bytes beyond the shared cache; and bytes of the result if it is mapped anew.
    """
    c, m, k, n = product.count, product.m, product.k, product.n
    beyond, mapped = 4.0 * product.num_elements * missed[1], _mapped(4.0 * c * m * n)
    sizes = [float(c) * m * k * n, float(c) * m * n, float(c) * m * k, float(c) * k * n]
    return np.array([1.0, c, *sizes, beyond, mapped])


def _attention(operator: Operator, missed: tuple[float, float]) -> FloatArray:
    """The counts of a fused attention.

    Args:
        operator: the attention.
        missed: shares of held bytes that the caches lack (:func:`_missed`).

    Returns:
        1; heads of all sequences; multiply-adds, with those that a mask hides; multiply-adds
        without them; scores; elements of the queries; rows of scores; and bytes beyond the shared
        cache.
    """
    heads, queries, keys, width, value_width = map(float, operator.shape)
    products = heads * queries * keys * (width + value_width)
    seen, rows = products * (0.5 if operator.is_causal else 1.0), heads * queries
    beyond = operator.moved_bytes * missed[1]
    return np.array([1.0, heads, products, seen, rows * keys, rows * width, rows, beyond])


def _streamed(operator: Operator, missed: tuple[float, float]) -> FloatArray:
    """The counts of an operator that is neither a product nor an attention.

    Args:
        operator: the operator.
        missed: shares of held bytes that the caches lack (:func:`_missed`).

    Returns:
        1; bytes read and written; those beyond the core's own cache; those beyond the shared cache;
        rows, for classes that begin anew at each row; bytes beyond those that one operator's
        tensors can have in caches; elements, if rows are too short for vector instructions; and
        bytes of the result if it is mapped anew.
    """
    num_bytes, shape, name = operator.moved_bytes, operator.shape, class_of(operator)
    has_rows = bool(shape) and (name in _BY_ROW or name in _SPREAD)
    own, shared = num_bytes * missed[0], num_bytes * missed[1]
    rows = float(math.prod(shape[:-1])) if has_rows else 0.0
    narrow = float(math.prod(shape)) if has_rows and shape[-1] < _VECTOR else 0.0
    large, mapped = max(num_bytes - _LARGE_BYTES, 0.0), _mapped(operator.written_bytes)
    return np.array([1.0, num_bytes, own, shared, rows, large, narrow, mapped])


def memory_s(seconds_per_count: Sequence[float]) -> float:
    """Seconds per byte of a function if no cache holds any of its bytes.

    Args:
        seconds_per_count: its constants, in the order of :func:`_streamed`.
    """
    _, *by_bytes, _, from_memory, _, _ = seconds_per_count
    return sum(by_bytes) + from_memory


def _mapped(num_bytes: float) -> float:
    """The bytes of a result if its memory is mapped anew each time, 0 otherwise."""
    return num_bytes if num_bytes > _MAPPED_BYTES else 0.0


_BOTTOM = slice(1, 6)
"""The counts of the bottom MLP among those of :func:`update_counts`."""
_PLAIN = ("", "relu", "cat", "clone", "add")
"""Functions beside matrix products in the dense parts of the calibrated training steps."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDense(AbstractDenseModel):
    """Counts (:func:`dense_counts`) times calibrated seconds per count.

    These seconds were fitted to the stages of training steps with small MLPs. If a dense part has
    other operators, or if there are no tables, each operator is priced by constants of its own
    (:mod:`costmodels.cpu.dense`), provided that the calibration measured them.

    The optimizer's cost per byte is part of the reduction of gradients
    (:mod:`costmodels.cpu.exchange`).

    Args:
        constants: the constants of the machine.

    Sources:
        small MLPs in training steps, measured on this machine
    """

    constants: CpuConstants

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """Seconds of the bottom and the top MLP; what no operator causes counts with the top."""
        del topology
        layers, element = dense_layers(workload), workload.dense.dtype.num_bytes
        single = self._operators(workload, layers)
        if single is not None:
            return _by_operators(workload, layers, self.constants, single)
        bottom = layer_counts(layers.bottom, element)
        top = layer_counts(layers.top, element)
        top[0] = 1.0 if layers.bottom or layers.top else 0.0
        forward = np.array(self.constants.dense.forward_s)
        backward = np.array(self.constants.dense.backward_s)
        update = update_counts(workload) * np.array(self.constants.dense.update_s)
        return DenseTimes(
            bottom_forward_s=float(bottom @ forward),
            top_forward_s=float(top @ forward),
            top_backward_s=float(top @ backward),
            bottom_backward_s=float(update[_BOTTOM].sum()),
            optimizer_s=float(update.sum() - update[_BOTTOM].sum()),
        )

    def sigma_ratio(self, workload: Workload) -> float | None:
        """The log-standard deviation of single operators; None if times are not made of them."""
        single = self._operators(workload, dense_layers(workload))
        return None if single is None else single.sigma_ratio

    def _operators(self, workload: Workload, layers: DenseLayers) -> OperatorConstants | None:
        """Constants of single operators; None if those of whole training steps are used."""
        in_steps = workload.tables and _is_known(layers)
        return None if in_steps else self.constants.operators


def _is_known(layers: DenseLayers) -> bool:
    """Whether all operators are matrix products or functions that the calibrated steps had."""
    listed = [o for layer in (*layers.bottom, *layers.top) for o in layer.operators]
    plain = (OperatorKind.MATMUL, OperatorKind.ELEMENTWISE)
    return all(o.kind in plain and o.function in _PLAIN for o in listed)


def _by_operators(
    workload: Workload, layers: DenseLayers, constants: CpuConstants, single: OperatorConstants
) -> DenseTimes:
    """The seconds of a dense part, priced operator by operator.

    With tables, constants of whole training steps are added: what a pass takes without operators,
    and the update without the bottom MLP. Without tables no gradients are reduced, so that the step
    of the optimizer is priced here.
    """
    bottom, top = ([o for x in part for o in x.operators] for part in (layers.bottom, layers.top))
    held = held_bytes((*bottom, *top))
    fixed_s = 0.0, 0.0
    if workload.tables:
        fixed_s = constants.dense.forward_s[0], constants.dense.backward_s[0]
        counts = update_counts(workload)
        counts[_BOTTOM] = 0.0
        update_s = float(counts @ np.array(constants.dense.update_s))
    else:
        visited = optimizer_counts((*bottom, *top))
        update_s = float(visited @ np.array(single.update_s))
    return DenseTimes(
        bottom_forward_s=forward_s(bottom, single, held),
        top_forward_s=forward_s(top, single, held) + fixed_s[0],
        top_backward_s=backward_s(top, single, held) + fixed_s[1],
        bottom_backward_s=backward_s(bottom, single, held),
        optimizer_s=update_s,
    )


def dense_counts(products: Sequence[Product], joined_elements: float) -> FloatArray:
    """What the dense part is priced by.

    Args:
        products: its matrix products.
        joined_elements: elements that operators without a product before them write.

    Returns:
        1; number of products; multiply-adds; elements that products write; ``joined_elements``; and
        elements that products read (without weights).
    """
    each = [(p.m * p.k * p.n, p.m * p.n, p.m * p.k) for p in products]
    sizes = np.array(each, dtype=float).reshape(-1, 3).T @ [float(p.count) for p in products]
    return np.array([1.0, len(products), *sizes[:2], joined_elements, sizes[2]])


def update_counts(workload: Workload) -> FloatArray:
    """What the update at the end of a step is priced by.

    Returns:
        1; the counts of the bottom MLP (as :func:`dense_counts`, without the first); the number of
        tables, each of which has an optimizer; and the elements of the vectors and the indices of a
        batch, whose memory is given back at the end of a step.
    """
    bottom = layer_counts(dense_layers(workload).bottom, workload.dense.dtype.num_bytes)
    bottom[0] = 1.0
    batch, tables = workload.batch_size_per_rank, workload.tables
    elements = batch * sum(t.embedding_dim * len(t.features) for t in tables)
    indices = batch * sum(t.pooling_factor for t in tables)
    return np.concatenate([bottom, [float(len(tables)), float(elements), indices]])


def layer_counts(layers: tuple[Layer, ...], element_bytes: float) -> FloatArray:
    """The counts of some layers, as :func:`dense_counts`, but with 0 in the place of the 1.

    A fused attention counts as its two products. An operator that directly follows a product, such
    as an activation, is part of it. What all other operators write, such as a concatenation or a
    norm, counts as joined elements. Copies before the last one (``Operator.num_joined``) do not:
    the constants were calibrated with that one alone.

    Args:
        layers: the layers.
        element_bytes: bytes of an element.
    """
    listed = [o for layer in layers for o in layer.operators]
    operators = [o for o in listed if _multiplies(o) or (o.moved_bytes and not o.num_joined)]
    products = [p for layer in layers for p in layer.products]
    for o in operators:
        if o.kind is OperatorKind.ATTENTION:
            heads, queries, keys, width, value_width = o.shape
            scores = Product(m=queries, k=width, n=keys, count=heads)
            values = Product(m=queries, k=keys, n=value_width, count=heads)
            products += (scores, values) * o.num_repeats
    joined = sum(
        o.num_repeats * o.tensor_bytes
        for last, o in pairwise((None, *operators))
        if o is not None and not _multiplies(o) and not (last is not None and _multiplies(last))
    )
    return dense_counts(products, joined / element_bytes) * (np.arange(6) > 0)


def _multiplies(operator: Operator) -> bool:
    """Whether an operator is a matrix product or a fused attention."""
    return operator.product is not None or operator.kind is OperatorKind.ATTENTION
