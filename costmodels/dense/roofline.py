"""Layer-wise roofline: matrix rate with an efficiency curve, or memory, whichever is slower."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from costmodels.dense.base import AbstractDenseModel, DenseTimes, Layer, Product, dense_layers
from costmodels.topology import Device, Topology
from costmodels.workload import DataType, Workload

_TILE = (128, 256)
_SPLIT_FROM = 1024
_SPLIT_FILLING = 0.75
_OPTIMIZER_PASSES = 4.0


@final
@dataclass(frozen=True, slots=True)
class Roofline(AbstractDenseModel):
    """Matrix products by rate, then elementwise kernels by memory, plus launch gaps.

    t(product) = max(FLOP / (peak e q), bytes / b_dram), with e the device's
    ``flops_efficiency_ratio`` on large products and q the wave quantization: 128 x 256 output
    tiles run in whole waves over the multiprocessors, so q = tiles / (waves * multiprocessors);
    products with an inner dimension of 1024 or more can be split along it, which keeps q at 0.75.
    The backward pass computes two products, for input and for weights, and moves twice the
    elementwise bytes. The optimizer reads and writes weights, gradients and state: four passes.

    Valid for products of at least some 10^8 FLOP; smaller ones are launch bound.
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


def _forward_s(layer: Layer, dtype: DataType, device: Device) -> float:
    products_s = sum(_product_s(p, dtype, device) for p in layer.products)
    memory_s = layer.elementwise_bytes / device.hbm_bandwidth_bytes_per_s
    return products_s + memory_s + layer.num_kernels * device.kernel_latency_s


def _backward_s(layer: Layer, dtype: DataType, device: Device) -> float:
    products_s = sum(
        _product_s(Product(m=p.m, k=p.n, n=p.k, count=p.count), dtype, device)
        + _product_s(Product(m=p.k, k=p.m, n=p.n, count=p.count), dtype, device)
        for p in layer.products
    )
    memory_s = 2.0 * layer.elementwise_bytes / device.hbm_bandwidth_bytes_per_s
    return products_s + memory_s + 2.0 * layer.num_kernels * device.kernel_latency_s


def _product_s(product: Product, dtype: DataType, device: Device) -> float:
    rate = device.matrix_rate(dtype) * device.flops_efficiency_ratio
    rate *= _wave_filling(product, device.num_multiprocessors)
    moved = product.num_elements * dtype.num_bytes
    return max(product.flops / rate, moved / device.hbm_bandwidth_bytes_per_s)


def _wave_filling(product: Product, num_multiprocessors: int) -> float:
    """Share (0..1) of the multiprocessors' time that holds a tile."""
    if num_multiprocessors == 0:
        return 1.0
    tiles = product.count * math.ceil(product.m / _TILE[0]) * math.ceil(product.n / _TILE[1])
    waves = math.ceil(tiles / num_multiprocessors)
    filling = tiles / (waves * num_multiprocessors)
    return max(filling, _SPLIT_FILLING) if product.k >= _SPLIT_FROM else filling
