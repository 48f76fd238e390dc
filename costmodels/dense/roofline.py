"""Layer-wise roofline: matrix rate with an efficiency curve, or memory, whichever is slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from costmodels.dense._tiles import product_time, streaming_time
from costmodels.dense.base import AbstractDenseModel, DenseTimes, Layer, Product, dense_layers
from costmodels.topology import Device, Topology
from costmodels.workload import DataType, Workload

_OPTIMIZER_PASSES = 4.0
_SORT_PASSES = 2.7
"""Sorts of the elements that a dot interaction picks, in its backward pass: 390 us for 2048 samples
of 27 vectors on V100 (Lin et al.'s trace of DLRM_MLPerf)."""


@final
@dataclass(frozen=True, slots=True)
class Roofline(AbstractDenseModel):
    """Matrix products by tiles, then elementwise kernels by memory, plus gaps between kernels.

    Products are timed by :mod:`costmodels.dense._tiles`. Elementwise kernels (activation, cross
    terms, concatenation) move their bytes at streaming bandwidth. The backward pass computes two
    products, for input and for weights, and moves twice the elementwise bytes. The optimizer reads
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
        dtype = workload.dense.dtype
        moved = _OPTIMIZER_PASSES * DataType.FP32.num_bytes
        moved *= layers.bottom_parameters + layers.top_parameters
        return DenseTimes(
            bottom_forward_s=sum(_forward_s(x, dtype, device) for x in layers.bottom),
            top_forward_s=sum(_forward_s(x, dtype, device) for x in layers.top),
            top_backward_s=sum(_backward_s(x, dtype, device) for x in layers.top),
            bottom_backward_s=sum(_backward_s(x, dtype, device) for x in layers.bottom),
            optimizer_s=moved / device.hbm_bandwidth_bytes_per_s,
        )


def product_s(product: Product, dtype: DataType, device: Device) -> float:
    """Seconds of one matrix product alone, as the layers are timed."""
    return product_time(product, dtype, device)


def _forward_s(layer: Layer, dtype: DataType, device: Device) -> float:
    products_s = sum(product_time(p, dtype, device) for p in layer.products)
    memory_s = streaming_time(layer.elementwise_bytes, layer.tensor_bytes, device)
    return products_s + memory_s + layer.num_kernels * device.kernel_latency_s


def _backward_s(layer: Layer, dtype: DataType, device: Device) -> float:
    products_s = sum(
        product_time(Product(m=p.m, k=p.n, n=p.k, count=p.count), dtype, device)
        + product_time(Product(m=p.k, k=p.m, n=p.n, count=p.count), dtype, device)
        for p in layer.products
    )
    memory_s = 2.0 * streaming_time(layer.elementwise_bytes, layer.tensor_bytes, device)
    sorted_s = _SORT_PASSES * layer.num_scattered / device.sort_rate_per_s
    return products_s + memory_s + sorted_s + 2.0 * layer.num_kernels * device.kernel_latency_s
