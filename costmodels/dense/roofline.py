"""Layer-wise roofline: matrix rate with an efficiency curve, or memory, whichever is slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from costmodels.datatypes import DataType
from costmodels.dense._tiles import attention_time, product_time, streaming_time
from costmodels.dense.base import AbstractDenseModel, DenseTimes, Layer, dense_layers
from costmodels.operators import Operator, OperatorKind, Product
from costmodels.topology import Device, Topology
from costmodels.workload import Workload

_OPTIMIZER_PASSES = 4.0
_BACKWARD_KERNELS = 2.0
_SORT_PASSES = 2.7
"""Sorts of the elements that a dot interaction picks, in its backward pass: 390 us for 2048 samples
of 27 vectors on V100 (Lin et al.'s trace of DLRM_MLPerf)."""


@final
@dataclass(frozen=True, slots=True)
class Roofline(AbstractDenseModel):
    """Matrix products by tiles, then other operators by memory, plus gaps between kernels.

    Products and fused attention are timed by :mod:`costmodels.dense._tiles`. All other operators
    (activation, norm, softmax, concatenation) move their bytes at streaming bandwidth. The backward
    pass computes the products for the operands that need a gradient, and moves twice the bytes of
    the other operators. The optimizer reads
    and writes weights, gradients and state: four passes in fp32.

    Valid for batches of some hundred samples and more; smaller ones are launch bound.
    """

    sources: ClassVar[tuple[str, ...]] = (
        "Williams, Waterman, Patterson 2009: roofline",
        "Naumov et al. 2019 (DLRM), Wang et al. 2021 (DCN V2): layer shapes",
    )

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """Sum over layers."""
        layers, device = dense_layers(workload), topology.device
        moved = _OPTIMIZER_PASSES * DataType.FP32.num_bytes
        moved *= layers.bottom_parameters + layers.top_parameters
        return DenseTimes(
            bottom_forward_s=sum(_forward_s(x, device) for x in layers.bottom),
            top_forward_s=sum(_forward_s(x, device) for x in layers.top),
            top_backward_s=sum(_backward_s(x, device) for x in layers.top),
            bottom_backward_s=sum(_backward_s(x, device) for x in layers.bottom),
            optimizer_s=moved / device.hbm_bandwidth_bytes_per_s,
        )


def product_s(product: Product, dtype: DataType, device: Device) -> float:
    """Seconds of one matrix product alone, as the layers are timed."""
    return product_time(product, dtype, device)


def _forward_s(layer: Layer, device: Device) -> float:
    products_s = sum(
        o.num_repeats * product_time(o.product, o.dtype, device)
        for o in layer.operators
        if o.product is not None
    )
    memory_s = sum(o.num_repeats * _moving_s(o, device) for o in layer.operators)
    attention_s = sum(
        o.num_repeats * attention_time(o, device, is_backward=False)
        for o in layer.operators
        if o.kind is OperatorKind.ATTENTION
    )
    return products_s + memory_s + attention_s + layer.num_kernels * device.kernel_latency_s


def _backward_s(layer: Layer, device: Device) -> float:
    products_s = sum(
        o.num_repeats * sum(product_time(p, o.dtype, device) for p in o.backward_products)
        for o in layer.operators
    )
    memory_s = 2.0 * sum(o.num_repeats * _moving_s(o, device) for o in layer.operators)
    attention_s = sum(
        o.num_repeats * attention_time(o, device, is_backward=True)
        for o in layer.operators
        if o.kind is OperatorKind.ATTENTION
    )
    num_sorted = sum(o.num_repeats * o.num_sorted for o in layer.operators)
    sorted_s = _SORT_PASSES * num_sorted / device.sort_rate_per_s
    kernels = _BACKWARD_KERNELS * layer.num_kernels
    return products_s + memory_s + attention_s + sorted_s + kernels * device.kernel_latency_s


def _moving_s(operator: Operator, device: Device) -> float:
    """Seconds that an operator moves bytes; products and attention have that in their own time."""
    if operator.product is not None or operator.kind is OperatorKind.ATTENTION:
        return 0.0
    return streaming_time(operator.moved_bytes, operator.tensor_bytes, device)
