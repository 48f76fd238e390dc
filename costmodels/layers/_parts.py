"""Operators that several kinds of layers have, as PyTorch runs them one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from costmodels.datatypes import DataType
from costmodels.errors import require
from costmodels.layers._lengths import Lengths
from costmodels.layers.base import Flow
from costmodels.operators import Operator, OperatorKind

_MASTER_BYTES = 4.0
"""Parameters are trained in fp32 whatever the products compute in."""


def kept_bytes(dtype: DataType) -> int:
    """Bytes of an element that is kept for the backward pass; one-byte types keep two."""
    return max(dtype.num_bytes, DataType.FP16.num_bytes)


def matmul(
    name: str,
    shape: tuple[int, int, int, int],
    dtype: DataType,
    *,
    num_parameters: int = 0,
    saved_elements: float = 0.0,
) -> Operator:
    """A product of ``shape`` ``(count, m, k, n)``; a batched one where the count is above 1."""
    count, m, k, n = shape
    element = dtype.num_bytes
    return Operator(
        name=name,
        kind=OperatorKind.MATMUL if count == 1 else OperatorKind.BATCHED_MATMUL,
        shape=shape,
        dtype=dtype,
        read_bytes=float(element * count * (m * k + k * n)),
        written_bytes=float(element * count * m * n),
        num_parameters=num_parameters,
        parameter_bytes=_MASTER_BYTES * num_parameters,
        saved_bytes=float(kept_bytes(dtype) * saved_elements),
    )


def linear(
    name: str, rows: int, fan_in: int, fan_out: int, dtype: DataType, *, bias: bool = True
) -> Operator:
    """A linear layer, which keeps its input."""
    return matmul(
        name,
        (1, rows, fan_in, fan_out),
        dtype,
        num_parameters=fan_in * fan_out + (fan_out if bias else 0),
        saved_elements=rows * fan_in,
    )


def streamed(
    name: str,
    shape: tuple[int, ...],
    dtype: DataType,
    *,
    reads: float = 1.0,
    writes: float = 1.0,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    saved_elements: float = 0.0,
) -> Operator:
    """An operator that reads and writes tensors of one shape so many times."""
    size = float(math.prod(shape)) * dtype.num_bytes
    return Operator(
        name=name,
        kind=kind,
        shape=shape,
        dtype=dtype,
        read_bytes=reads * size,
        written_bytes=writes * size,
        saved_bytes=float(kept_bytes(dtype) * saved_elements),
    )


def norm(name: str, rows: int, width: int, dtype: DataType) -> Operator:
    """Layer normalization with weight and bias; keeps its input, means and deviations."""
    made = streamed(name, (rows, width), dtype, kind=OperatorKind.NORM, saved_elements=rows * width)
    return replace(
        made,
        num_parameters=2 * width,
        parameter_bytes=_MASTER_BYTES * 2 * width,
        saved_bytes=made.saved_bytes + 2.0 * _MASTER_BYTES * rows,
    )


def mlp(name: str, rows: int, sizes: tuple[int, ...], dtype: DataType) -> tuple[Operator, ...]:
    """Linear layers; each activation, or what follows the last, reads and writes the output."""
    operators: list[Operator] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        if not fan_in:
            continue
        layer = f"{name}.{i}"
        operators.append(
            matmul(
                layer,
                (1, rows, fan_in, fan_out),
                dtype,
                num_parameters=fan_in * fan_out + fan_out,
                saved_elements=rows * (fan_in + fan_out),
            )
        )
        operators.append(streamed(layer, (rows, fan_out), dtype))
    return tuple(operators)


def joined(flow: Flow, name: str = "concat") -> tuple[tuple[Operator, ...], Flow]:
    """Looked-up vectors and the dense path as one row per sample, if there are vectors.

    The host splits what the tables gave and joins it: two calls, one kernel that copies.
    """
    if not flow.num_elements:
        return (), flow
    width = flow.num_elements + flow.width * flow.length
    copy = streamed(name, (flow.batch_size, width), flow.dtype)
    return (replace(copy, num_calls=2),), _without_vectors(flow, width)


def positions(
    flow: Flow, name: str, widths: tuple[int, int], lengths: Lengths, advice: str
) -> tuple[tuple[Operator, ...], Flow]:
    """What reaches a layer of sequences, as positions of one width.

    Args:
        flow: reaches the layer.
        name: of the layer.
        widths: elements of a position that arrive, and that the layer takes; where they differ, a
            linear layer brings one to the other.
        lengths: of the sequences.
        advice: what to change where another number of elements arrives.

    Raises:
        InvalidValueError: another number of elements arrives.
    """
    first, met = joined(flow)
    elements, count = met.width * met.length, math.ceil(lengths.mean)
    given, taken = widths
    require(
        elements == given * count,
        f"layer {name}: needs {count} positions of {given} elements, but {elements} elements per "
        f"sample reach it; {advice}",
    )
    if given != taken:
        product = linear(f"{name}.input", lengths.rows(flow.batch_size), given, taken, flow.dtype)
        first += lengths.uneven((product,), flow.batch_size)
    return first, met.after(taken, count)


def dot(flow: Flow) -> tuple[tuple[Operator, ...], Flow]:
    """Products of all pairs of vectors, and what the dense path gives (Naumov et al. 2019)."""
    vectors = flow.num_vectors + (1 if flow.width else 0)
    elements = flow.num_elements + flow.width
    batch, width = flow.batch_size, max(1, elements // max(vectors, 1))
    pairs = vectors * (vectors - 1) // 2
    concat = replace(streamed("concat", (batch, elements), flow.dtype), num_calls=2)
    product = matmul(
        "dot",
        (batch, vectors, width, vectors),
        flow.dtype,
        saved_elements=batch * vectors * (width + vectors),
    )
    product = replace(product, kind=OperatorKind.BATCHED_MATMUL)
    chosen = streamed("dot", (batch, pairs), flow.dtype, kind=OperatorKind.GATHER)
    chosen = replace(chosen, num_kernels=2, num_sorted=batch * pairs)
    passed = 0 if flow.is_input else flow.width
    return (concat, product, chosen), _without_vectors(flow, pairs + passed)


def cat(flow: Flow) -> tuple[tuple[Operator, ...], Flow]:
    """All vectors side by side; copied even where there is one."""
    elements = flow.num_elements + flow.width
    copy = streamed("concat", (flow.batch_size, elements), flow.dtype)
    return (replace(copy, num_calls=2),), _without_vectors(flow, elements)


def cross(flow: Flow, num_layers: int, rank: int) -> tuple[Operator, ...]:
    """Low-rank cross layers x0 * (U (V x) + b) + x (Wang et al. 2021).

    One pass reads x0, the product and x and writes one, by two kernels that the host issues with
    the products.
    """
    batch, width, dtype = flow.batch_size, flow.width, flow.dtype
    operators: list[Operator] = []
    for i in range(num_layers):
        name, kept = f"cross.{i}", batch * (width + rank)
        down = matmul(
            name, (1, batch, width, rank), dtype, num_parameters=width * rank, saved_elements=kept
        )
        up = matmul(
            name,
            (1, batch, rank, width),
            dtype,
            num_parameters=width * rank + width,
            saved_elements=kept,
        )
        terms = streamed(name, (batch, width), dtype, reads=3.0)
        operators += [down, up, replace(terms, num_kernels=2, num_calls=0)]
    return tuple(operators)


def dlrm(
    flow: Flow,
    interaction: str,
    top: tuple[int, ...],
    *,
    cross_layers: int = 0,
    cross_rank: int = 0,
    name: str = "top",
) -> tuple[tuple[Operator, ...], Flow]:
    """What follows the tables of a DLRM: interaction ``dot``, ``cat`` or ``dcn``, and top MLP."""
    operators, met = dot(flow) if interaction == "dot" else cat(flow)
    if interaction == "dcn":
        operators = (*operators, *cross(met, cross_layers, cross_rank))
    operators = (*operators, *mlp(name, flow.batch_size, (met.width, *top), flow.dtype))
    return operators, met.after(top[-1])


def _without_vectors(flow: Flow, width: int) -> Flow:
    return replace(flow.after(width, 1), num_vectors=0, num_elements=0)


def linear_of_kept(name: str, rows: int, fan_in: int, fan_out: int, dtype: DataType) -> Operator:
    """A linear layer with bias on a tensor that the operator before keeps already."""
    return replace(linear(name, rows, fan_in, fan_out, dtype), saved_bytes=0.0)


def gather(name: str, shape: tuple[int, ...], dtype: DataType, num_parameters: int) -> Operator:
    """Rows of a trained matrix, one for each row of ``shape``; keeps 8-byte indices."""
    made = streamed(name, shape, dtype, kind=OperatorKind.GATHER)
    return replace(
        made,
        num_parameters=num_parameters,
        parameter_bytes=_MASTER_BYTES * num_parameters,
        saved_bytes=8.0 * math.prod(shape[:-1]),
    )


def attention(
    name: str,
    sizes: tuple[int, int, int, int],
    dtype: DataType,
    *,
    is_causal: bool,
    is_fused: bool,
) -> tuple[Operator, ...]:
    """Attention of every position to all of its sample.

    Fused, it keeps queries, keys, values, the result and a number per row of scores. Otherwise
    scores are computed, scaled, masked where ``is_causal``, normalized and kept.

    Args:
        name: of the operators.
        sizes: samples, heads, positions, elements of a head.
        dtype: of all tensors.
        is_causal: positions attend to earlier ones only.
        is_fused: one kernel that writes no scores.
    """
    batch, heads, length, width = sizes
    groups, rows = batch * heads, batch * heads * length
    element = dtype.num_bytes
    if is_fused:
        fused = Operator(
            name=name,
            kind=OperatorKind.ATTENTION,
            shape=(groups, length, length, width, width),
            dtype=dtype,
            read_bytes=3.0 * rows * width * element,
            written_bytes=float(rows * width * element + 4 * rows),
            saved_bytes=4.0 * rows * width * kept_bytes(dtype) + 4.0 * rows,
            is_causal=is_causal,
        )
        return (fused,)
    scores = (groups, length, length)
    products = [
        replace(
            matmul(name, (groups, length, k, n), dtype, saved_elements=saved),
            kind=OperatorKind.BATCHED_MATMUL,
        )
        for k, n, saved in ((width, length, 3 * rows * width), (length, width, rows * width))
    ]
    masks = (streamed(name, scores, dtype),) if is_causal else ()
    softmax = streamed(name, scores, dtype, kind=OperatorKind.SOFTMAX, saved_elements=rows * length)
    return (products[0], streamed(name, scores, dtype), *masks, softmax, products[1])


def tower(
    name: str, rows: int, sizes: tuple[int, ...], dtype: DataType, *, keeps_input: bool = True
) -> tuple[Operator, ...]:
    """An MLP of which every tensor is kept once: the input, if nobody else does, and the outputs.

    The MLPs of a DLRM (:func:`mlp`) count inputs and outputs of every product instead.
    """
    operators: list[Operator] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        product = linear(f"{name}.{i}", rows, fan_in, fan_out, dtype)
        if i or not keeps_input:
            product = replace(product, saved_bytes=0.0)
        kept = rows * fan_out
        operators += [
            product,
            streamed(f"{name}.{i}", (rows, fan_out), dtype, saved_elements=kept),
        ]
    return tuple(operators)


def batched(
    name: str,
    shape: tuple[int, int, int, int],
    dtype: DataType,
    *,
    num_parameters: int = 0,
    saved_elements: float = 0.0,
) -> Operator:
    """A batched product of ``shape`` ``(count, m, k, n)``, also where the count is 1."""
    made = matmul(name, shape, dtype, num_parameters=num_parameters, saved_elements=saved_elements)
    return replace(made, kind=OperatorKind.BATCHED_MATMUL)


def reduced(
    name: str,
    shape: tuple[int, ...],
    dtype: DataType,
    *,
    result: int,
    saved_elements: float = 0.0,
) -> Operator:
    """A tensor of ``shape`` added up to ``result`` elements."""
    made = streamed(name, shape, dtype, writes=0.0, kind=OperatorKind.REDUCTION)
    return replace(
        made,
        written_bytes=float(result * dtype.num_bytes),
        saved_bytes=float(kept_bytes(dtype) * saved_elements),
    )


def need(name: str, flow: Flow) -> None:
    """Refuse a flow that carries nothing.

    Raises:
        InvalidValueError: names the layer and what to do.
    """
    require(
        flow.width > 0 or flow.num_elements > 0,
        f"layer {name}: nothing reaches it; give dense.num_dense_features, or put it behind tables "
        "or another layer",
    )
