"""Operators that several kinds of layers have, as PyTorch runs them one after the other.

Amounts are those of the forward pass: bytes read and written, trained parameters, and what is kept
(*saved*) for the backward pass. ``rows`` is the number of rows of the matrix that an operator works
on; ``width``, ``fan_in`` and ``fan_out`` are numbers of elements of a row.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any, Final

from costmodels.datatypes import DataType
from costmodels.operators import Operator, OperatorKind

_MASTER_BYTES = 4.0
"""Bytes of a number in fp32: parameters, and the means and deviations of norms, have this type
whatever the products compute in."""


def kept_bytes(dtype: DataType) -> float:
    """Bytes of an element that is kept for the backward pass: two for types of one byte."""
    return max(dtype.num_bytes, DataType.FP16.num_bytes)


def matmul(
    name: str,
    shape: tuple[int, int, int, int],
    dtype: DataType,
    *,
    num_parameters: int = 0,
    saved: float = 0.0,
    kind: OperatorKind = OperatorKind.MATMUL,
    **fields: Any,
) -> Operator:
    """``count`` matrix products of m x k times k x n.

    Args:
        name: name of the operator.
        shape: ``(count, m, k, n)``.
        dtype: type of operands and result.
        num_parameters: trained elements.
        saved: elements that are kept for the backward pass.
        kind: kind of the product.
        fields: further fields of the operator.
    """
    count, m, k, n = shape
    element = dtype.num_bytes
    amounts = {
        "read_bytes": float(element * count * (m * k + k * n)),
        "written_bytes": float(element * count * m * n),
        "saved_bytes": float(kept_bytes(dtype) * saved),
        "is_cast": num_parameters > 0 and dtype.num_bytes == DataType.FP16.num_bytes,
    }
    trained = trained_fields(num_parameters)
    return Operator(name=name, kind=kind, shape=shape, dtype=dtype, **trained, **amounts | fields)


def trained_fields(count: int) -> dict[str, Any]:
    """The fields of an operator with so many trained elements."""
    return {"num_parameters": count, "parameter_bytes": _MASTER_BYTES * count}


batched: Final = partial(matmul, kind=OperatorKind.BATCHED_MATMUL)
"""A batched product, also if the count is 1."""


def linear(
    name: str,
    rows: int,
    fan_in: int,
    fan_out: int,
    dtype: DataType,
    *,
    bias: bool = True,
    keeps_input: bool = True,
    **fields: Any,
) -> Operator:
    """The product of a linear layer, which keeps its input unless another operator does."""
    count = fan_in * fan_out + (fan_out if bias else 0)
    saved, shape = rows * fan_in if keeps_input else 0, (1, rows, fan_in, fan_out)
    return matmul(name, shape, dtype, num_parameters=count, saved=saved, **fields)


def streamed(
    name: str,
    shape: tuple[int, ...],
    dtype: DataType,
    *,
    reads: float = 1.0,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    saved: float = 0.0,
    **fields: Any,
) -> Operator:
    """An operator whose time depends on the bytes that it reads and writes.

    Args:
        name: name of the operator.
        shape: shape of the tensors.
        dtype: type of their elements.
        reads: how many tensors of this shape it reads; it writes one.
        kind: kind of the operator.
        saved: elements that are kept for the backward pass.
        fields: further fields of the operator.
    """
    size = float(math.prod(shape)) * dtype.num_bytes
    amounts = {
        "read_bytes": reads * size,
        "written_bytes": size,
        "saved_bytes": float(kept_bytes(dtype) * saved),
    }
    return Operator(name=name, kind=kind, shape=shape, dtype=dtype, **amounts | fields)


def norm(name: str, rows: int, width: int, dtype: DataType, **fields: Any) -> Operator:
    """Layer normalization with weight and bias; it keeps its input, means and deviations."""
    kept = float(kept_bytes(dtype) * rows * width) + 2.0 * _MASTER_BYTES * rows
    trained = trained_fields(2 * width) | {"saved_bytes": kept}
    return streamed(name, (rows, width), dtype, kind=OperatorKind.NORM, **trained | fields)


def gather(
    name: str, shape: tuple[int, ...], dtype: DataType, num_parameters: int, **fields: Any
) -> Operator:
    """Looks up one row of a trained matrix for each row of ``shape``; it keeps indices of 8 bytes.

    Args:
        name: name of the operator.
        shape: shape of the result.
        dtype: type of its elements.
        num_parameters: elements of the matrix.
        fields: further fields of the operator.
    """
    given = trained_fields(num_parameters) | {"saved_bytes": 8.0 * math.prod(shape[:-1])}
    return streamed(name, shape, dtype, kind=OperatorKind.GATHER, **given | fields)


def mlp(
    name: str,
    rows: int,
    sizes: tuple[int, ...],
    dtype: DataType,
    *,
    keeps_input: bool = True,
    is_input: bool = False,
) -> tuple[Operator, ...]:
    """Linear layers, each with an activation or another operator that reads and writes its output.

    What is kept are the outputs of the activations, and the input unless another operator keeps
    that. A layer without input elements is left out.

    Args:
        name: the names of the operators begin with it.
        rows: rows of the matrix.
        sizes: width of the input, then the output width of each layer.
        dtype: element type.
        keeps_input: whether no other operator keeps the input.
        is_input: whether the first layer reads the input of the model, which has no gradient.
    """
    operators: list[Operator] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        if not fan_in:
            continue
        part, keeps = f"{name}.{i}", keeps_input and not i
        given = {"keeps_input": keeps, "left_gradient": bool(i) or not is_input}
        active = streamed(part, (rows, fan_out), dtype, saved=rows * fan_out)
        operators += [linear(part, rows, fan_in, fan_out, dtype, **given), active]
    return tuple(operators)


def reduced(
    name: str, shape: tuple[int, ...], dtype: DataType, *, result: int, saved: float = 0.0
) -> Operator:
    """The sum of a tensor along some of its axes.

    Args:
        name: name of the operator.
        shape: shape of the tensor.
        dtype: type of its elements.
        result: elements of the result.
        saved: elements that are kept for the backward pass.
    """
    written = float(result * dtype.num_bytes)
    kind = OperatorKind.REDUCTION
    return streamed(name, shape, dtype, kind=kind, saved=saved, written_bytes=written)
