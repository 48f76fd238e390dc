"""What a rank keeps on its device while it runs the dense part forward and backward.

Autograd keeps the tensors that a backward pass needs, and frees each of them after its operator.
The peak is therefore found by going through the operators: at each of them, what all operators up
to it keep, and the tensors that it works on. Lookups are a moment of their own, after the backward
pass of everything that follows them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from costmodels.dense.base import DenseLayers, dense_layers
from costmodels.operators import Operator, OperatorKind
from costmodels.workload import DataType, Pipeline, Workload

_HOLDING: Final = (Pipeline.SPARSE_DIST, Pipeline.PREFETCH_SPARSE_DIST)
"""Pipelines of TorchRec that hold the looked-up vectors of a batch until its step has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """Bytes of activations, looked-up vectors and their gradients on one rank.

    Attributes:
        peak_bytes: the most at any moment of forward and backward pass.
        beside_lookups_bytes: those during the backward pass of the lookups.
    """

    peak_bytes: float
    beside_lookups_bytes: float


def live_bytes(workload: Workload) -> LiveBytes:
    """Bytes that are live in the passes of one micro-batch, without parameters and indices."""
    vectors = looked_up_bytes(workload)
    found = _live(dense_layers(workload), vectors)
    if workload.pipeline not in _HOLDING:
        return found
    return LiveBytes(
        peak_bytes=found.peak_bytes + vectors,
        beside_lookups_bytes=found.beside_lookups_bytes + vectors,
    )


def looked_up_bytes(workload: Workload) -> float:
    """Bytes of the vectors that a rank gets from the tables for its own samples."""
    outputs = sum(t.embedding_dim * t.outputs_per_sample for t in workload.tables)
    return workload.batch_size_per_rank * outputs * workload.output_dtype.num_bytes


@functools.lru_cache(maxsize=64)
def _live(layers: DenseLayers, vectors_bytes: float) -> LiveBytes:
    """The peak over all operators, and the moment of the lookups.

    The vectors are held by the model until its forward pass ends. When the lookups run backward,
    there are the gradient of the joined vectors and the part of it that belongs to the tables.
    """
    before = [o for layer in layers.bottom for o in layer.operators]
    after = [o for layer in layers.top for o in layer.operators]
    kept, most = _pass(before, 0.0, 0.0)
    beside = kept + 2.0 * vectors_bytes
    _, peak = _pass(after, kept, vectors_bytes)
    return LiveBytes(peak_bytes=max(most, peak, beside), beside_lookups_bytes=beside)


def _pass(operators: list[Operator], kept: float, held: float) -> tuple[float, float]:
    """What is kept after the operators, and the most bytes beside any of them.

    Forward, an operator's result is there beside what the model holds (``held``). Backward, there
    are the gradients of its result and of its inputs. Of blocks that repeat, the last one counts,
    with what the blocks before it keep. Results that the backward pass computes again
    (``is_recomputed``) are there until their block ends.
    """
    most, given = kept + held, 0.0
    for repeats, run in groupby(operators, key=lambda o: o.num_repeats):
        block = list(run)
        kept += (repeats - 1) * sum(o.saved_bytes for o in block)
        again = 0.0
        for operator in block:
            kept += operator.saved_bytes
            again += operator.written_bytes if operator.is_recomputed else 0.0
            result, inputs = _result_bytes(operator), _input_gradient_bytes(operator, given)
            most = max(most, kept + again + result + max(inputs, held))
            given = result
    return kept, most


def _most_bytes(operator: Operator) -> float:
    """Bytes of an operator's largest tensor if that is fp32.

    Kernels that run one after the other, such as those of a loss, read and write more together.
    """
    return float(math.prod(operator.shape) * DataType.FP32.num_bytes)


def _result_bytes(operator: Operator) -> float:
    """Bytes of an operator's result."""
    if operator.product is not None or operator.kind is OperatorKind.ATTENTION:
        return operator.written_bytes
    return min(operator.written_bytes, _most_bytes(operator))


def _input_gradient_bytes(operator: Operator, given: float) -> float:
    """Bytes of the gradients of what an operator reads, parameters excepted.

    Elementwise kernels have two inputs at most; an operator that is several of them reads more in
    time than is there at once.

    Args:
        operator: the operator.
        given: bytes that the operator before it has written.
    """
    if not operator.has_gradient:
        return 0.0
    product = operator.product
    if product is None:
        read = operator.read_bytes
        inputs = 2.0 if operator.kind is OperatorKind.ELEMENTWISE else 1.0
        return max(min(read, inputs * _most_bytes(operator)), given)
    left = product.m * product.k if operator.left_gradient else 0
    is_weight = operator.num_parameters > 0 or not operator.right_gradient
    right = 0 if is_weight else product.k * product.n
    return float(product.count * (left + right) * operator.dtype.num_bytes)
