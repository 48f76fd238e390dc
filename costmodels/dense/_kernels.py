"""Seconds of kernels that bytes alone do not explain: sums over rows, norms, casts and updates.

Narrow rows keep few threads busy, so that norms and the gradients of biases take a time for each
row, however few bytes it has (:mod:`costmodels.dense._constants`).
"""

from __future__ import annotations

import math
from typing import Final

from costmodels.datatypes import DataType
from costmodels.dense._constants import KernelConstants
from costmodels.dense._tiles import kernel_streaming_time, multiprocessor_ratio
from costmodels.operators import Operator, OperatorKind
from costmodels.topology import Device
from costmodels.training.optimizers import DenseOptimizer

_SPLIT_ROWS: Final = 64 * 1024
"""Rows from which PyTorch's gradient of the weights of a norm also divides the rows among blocks,
if its columns alone keep less than half of the multiprocessors busy."""
_WARP: Final = 32
"""Columns that one block of that kernel works on."""
_CAST_BYTES: Final = 6.0
"""Bytes per element to cast it between fp32 and a type of two bytes."""

TINY_S: Final = 1.1e-6
"""Seconds of a kernel over a few numbers: those of losses and of small gradients in five traces of
an H200, and of additions in a graph. Constants that are fitted to whole steps are longer, because
they stand for small kernels that are not counted, too."""
_BUCKET_BYTES: Final = 8.0
"""Bytes per trained element to read its gradient in fp32 and write it to a bucket."""

_PASSES: Final = {
    DenseOptimizer.SGD: 1,
    DenseOptimizer.ADAGRAD: 5,
    DenseOptimizer.ADAM_FOREACH: 11,
    DenseOptimizer.LAMB: 11,
}
"""Kernels over all tensors of optimizers that are not fused."""


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor whose last axis is the columns."""
    return math.prod(shape[:-1]), shape[-1]


def bias_gradient_time(
    rows: int, columns: int, dtype: DataType, device: Device, constants: KernelConstants
) -> float:
    """Seconds of the gradient of a bias, which is the sum of ``rows`` rows.

    Args:
        rows: rows of the gradient of the result.
        columns: its columns.
        dtype: type of its elements.
        device: what runs the kernel.
        constants: of the kernels.
    """
    num_bytes = float(rows) * columns * dtype.num_bytes
    if columns == 1:
        return constants.sum_s
    work_s = constants.sum_row_s * rows + constants.sum_element_s * rows * columns
    work_s *= multiprocessor_ratio(device)
    return constants.sum_s + math.hypot(work_s, num_bytes / device.hbm_bandwidth_bytes_per_s)


def norm_time(
    operator: Operator,
    device: Device,
    memory_ratio: float,
    constants: KernelConstants,
    *,
    is_backward: bool,
) -> float:
    """Seconds of a norm: in the backward pass two kernels, for its input and for its weights.

    Args:
        operator: the norm.
        device: what runs it.
        memory_ratio: share of the streaming bandwidth that its kernels reach.
        constants: of the kernels.
        is_backward: whether the backward pass is asked for.
    """
    rows, columns = rows_of(operator.shape)
    scaled = rows * multiprocessor_ratio(device)
    if not is_backward:
        moved_s = kernel_streaming_time(operator.moved_bytes, operator, device, memory_ratio)
        return constants.kernel_s + math.hypot(moved_s, constants.norm_row_s * scaled)
    moved = operator.backward_moved_bytes
    moved_s = kernel_streaming_time(moved, operator, device, memory_ratio)
    input_s = math.hypot(0.6 * moved_s, constants.norm_gradient_row_s * scaled)
    is_split = rows > _SPLIT_ROWS and columns / _WARP < device.num_multiprocessors / 2
    weight_s = 0.0 if is_split else constants.norm_weight_row_s * rows
    return 2.0 * constants.kernel_s + input_s + math.hypot(0.4 * moved_s, weight_s)


def input_cast_time(
    operator: Operator, before: Operator | None, device: Device, constants: KernelConstants
) -> float:
    """Seconds in which autocast casts the input of a product, unless that has its type already.

    Results of layers have it; looked-up vectors, dense features and what joins them have not.

    Args:
        operator: the product.
        before: the operator before it; None if it is the first one.
        device: what runs the kernel.
        constants: of the kernels.
    """
    count, m, k, _ = operator.shape
    size = count * m * k
    is_result = before is not None and before.name != "concat" and before.num_elements == size
    if is_result:
        return 0.0
    return constants.kernel_s + _CAST_BYTES * size / device.hbm_bandwidth_bytes_per_s


def bucket_time(operator: Operator, device: Device) -> float:
    """Seconds in which the gradients of an operator are copied to the buckets of an all-reduce."""
    tensors = 2 if operator.has_bias or operator.kind is OperatorKind.NORM else 1
    moved_s = _BUCKET_BYTES * operator.num_parameters / device.hbm_bandwidth_bytes_per_s
    return tensors * TINY_S + moved_s


def update_floor_s(
    optimizer: DenseOptimizer, parameters: float, constants: KernelConstants
) -> float:
    """Seconds of an optimizer's kernels beside their bytes.

    Each block works on a chunk of 65,536 elements, so that a kernel waits for its last blocks; and
    a launch holds a limited number of chunks. Nothing runs where nothing is trained.
    """
    if not parameters:
        return 0.0
    launches = max(1.0, parameters / constants.chunk_parameters)
    if optimizer is DenseOptimizer.ADAM:
        return constants.chunk_s * launches
    return constants.pass_s * _PASSES[optimizer] * launches


def sort_time(count: int, constants: KernelConstants) -> float:
    """Seconds to sort so many numbers of 8 bytes, with the position of each."""
    return constants.sort_s + constants.sorted_s * count


def picked_time(operator: Operator, device: Device, constants: KernelConstants) -> float:
    """Seconds in which the gradients of picked elements are added up in the order of their indices.

    For each element the kernel reads an index and a position of 8 bytes, and reads and writes the
    gradient; the constant is that of gradients in fp32.
    """
    bytes_ratio = (16.0 + 2.0 * operator.dtype.num_bytes) / 24.0
    each_s = constants.picked_s * bytes_ratio * multiprocessor_ratio(device)
    return each_s * operator.num_sorted


def cast_time(operator: Operator, device: Device, constants: KernelConstants) -> float:
    """Seconds in which autocast casts what a product trains; its gradients take as long."""
    kernels = 2 if operator.has_bias else 1
    moved = _CAST_BYTES * operator.num_parameters
    return kernels * constants.kernel_s + moved / device.hbm_bandwidth_bytes_per_s
