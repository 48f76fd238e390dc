"""Layer-wise roofline: matrix rate with an efficiency curve, or memory, whichever is slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from costmodels.dense.base import AbstractDenseModel, DenseTimes, Layer, dense_layers
from costmodels.topology import Device, Topology
from costmodels.workload import DataType, Workload

_TILE = 128
_OPTIMIZER_PASSES = 4.0


@final
@dataclass(frozen=True, slots=True)
class Roofline(AbstractDenseModel):
    """t = max(FLOP / (peak * e * q), bytes / b_dram) + kernels * launch gap, per layer.

    e is the device's ``flops_efficiency_ratio``; q is the share of full 128 x 128 output tiles
    (small or ragged products fill tiles partly). The backward pass computes two products of the
    same size, for input and weights. The optimizer reads and writes weights, gradients and state
    once: four passes in fp32.

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
        forward = [
            sum(_seconds(x, dtype, device) for x in part) for part in (layers.bottom, layers.top)
        ]
        parameters = layers.bottom_parameters + layers.top_parameters
        moved = _OPTIMIZER_PASSES * parameters * DataType.FP32.num_bytes
        return DenseTimes(
            bottom_forward_s=forward[0],
            top_forward_s=forward[1],
            top_backward_s=2.0 * forward[1],
            bottom_backward_s=2.0 * forward[0],
            optimizer_s=moved / device.hbm_bandwidth_bytes_per_s,
        )


def _seconds(layer: Layer, dtype: DataType, device: Device) -> float:
    tiles = _filled(layer.m) * _filled(layer.n)
    rate = device.matrix_rate(dtype) * device.flops_efficiency_ratio * tiles
    compute_s = layer.flops / rate if layer.flops else 0.0
    memory_s = layer.elementwise_bytes / device.hbm_bandwidth_bytes_per_s
    return max(compute_s, memory_s) + layer.num_kernels * device.kernel_latency_s


def _filled(size: int) -> float:
    """Share of the last-padded extent that is real work."""
    if size <= 0:
        return 1.0
    return size / (-(-size // _TILE) * _TILE)
