"""The dense part of a device, operator by operator: matrix units and memory limit each kernel."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Final, Self, final

from costmodels.datatypes import DataType
from costmodels.dense import kernels
from costmodels.dense.base import AbstractDenseModel, DenseLayers, DenseTimes, Layer, dense_layers
from costmodels.dense.kernels import KERNELS, Gpu, KernelConstants
from costmodels.layers.base import Flow
from costmodels.layers.parts import dot
from costmodels.operators import Operator, OperatorKind, Product
from costmodels.sustained import BURSTS, Shares, sustained_ratio
from costmodels.topology import Device, Topology
from costmodels.workload import DenseParallelism, Pipeline, Workload

_LOSS_KERNELS: Final = (6, 5)
"""Kernels over one number per sample, forward and backward, of the binary cross entropy that
PyTorch computes after a DLRM. Those of other models are taken to be as many."""
_FILLED_RATIO: Final = 0.25
"""Share of a step in which products at full rate lower the clock of the device as far as in steps
that are filled with them. Below it, the clock falls in proportion."""


@final
@dataclass(frozen=True, slots=True)
class DenseRoofline(AbstractDenseModel):
    """The seconds of all operators, and the gaps between their kernels.

    - Forward: matrix products and fused attention take what :mod:`costmodels.dense.kernels` says.
      Every other operator (activation, norm, softmax, concatenation) takes as long as its bytes
      need to move.
    - Backward: a product needs one more product for each operand that has a gradient. Every other
      operator moves its ``backward_bytes``, or twice the bytes of its forward pass if it has none.
      Operators whose results were not kept run forward once more.
    - The optimizer reads and writes its bytes of every parameter at the streaming bandwidth.

    In a step that is filled with dense compute, products and memory reach only a share of their
    rates (:mod:`costmodels.sustained`). Beside lookups the times lie between those and the times at
    full rates: the longer the lookups, the nearer to full rates.

    Valid for batches of some hundred samples and more. Smaller batches are limited by launches.

    Args:
        shares: the shares of the rates for all operators; None for those of the device and of each
            operator's type.
        lookup_s: seconds of the lookups in a step. None if they are not known; the lookups of
            tables are then taken to be long enough for full rates.
        constants: of the kernels.

    Sources:
        Williams, Waterman, Patterson 2009: roofline
        Naumov et al. 2019 (DLRM), Wang et al. 2021 (DCN V2): layer shapes
    """

    shares: Shares | None = None
    lookup_s: float | None = None
    constants: KernelConstants = KERNELS

    def beside(self, lookup_s: Callable[[], float]) -> Self:
        """The same model with these lookups in the step."""
        return replace(self, lookup_s=lookup_s())

    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """Sums over the layers, interpolated between a short burst and a step filled with them."""
        ratio = self.sustained_ratio(workload, topology)
        burst = self._bursts(workload, topology) if ratio < 1.0 else None
        filled = self._stages(workload, topology) if ratio > 0.0 else None
        known = zip(burst or filled or (), filled or burst or (), strict=True)
        return DenseTimes(*(burst_s + ratio * (filled_s - burst_s) for burst_s, filled_s in known))

    def sustained_ratio(self, workload: Workload, topology: Topology) -> float:
        """From the seconds that sustained rates add, and the lookups of the step.

        Shares above those of a short burst are cut to these first, so that no seconds are negative.
        """
        if workload.tables and self.lookup_s is None:
            return 0.0
        burst = self._bursts(workload, topology)
        if not self.lookup_s:
            busy_s = _busy_s(dense_layers(workload), topology.device)
            return min(1.0, busy_s / (_FILLED_RATIO * sum(burst))) if sum(burst) else 0.0
        capped = self._stages(workload, topology, is_capped=True)
        return sustained_ratio(sum(capped) - sum(burst), self.lookup_s)

    def _bursts(self, workload: Workload, topology: Topology) -> tuple[float, ...]:
        """:meth:`_stages` of a short burst."""
        return replace(self, shares=BURSTS)._stages(workload, topology)

    def _stages(
        self, workload: Workload, topology: Topology, *, is_capped: bool = False
    ) -> tuple[float, ...]:
        """Seconds in the order of the fields of :class:`DenseTimes`.

        Args:
            workload: what is trained.
            topology: the ranks that train the dense part.
            is_capped: whether shares above 1, which is that of a short burst, are cut to 1.
        """
        device, layers = topology.device, dense_layers(workload)
        slowest, constants = slowest_sigmas(topology.world_size), self.constants.on(device)
        gpu = Gpu(device, self.shares, constants, is_capped, slowest)
        bottom_s, top_s = (_pass_s(x, gpu) for x in (layers.bottom, layers.top))
        top_backward_s = _pass_s(layers.top, gpu, is_backward=True)
        bottom_backward_s = _pass_s(layers.bottom, gpu, is_backward=True)
        owned: float = sum(layers.num_parameters)
        if workload.dense_parallelism is DenseParallelism.FSDP:
            # Each rank updates its part of the trained elements.
            owned /= max(1, topology.world_size // workload.tensor_parallel)
        memory_ratio = gpu.shares_in(workload.dense.dtype).memory_ratio
        optimizer_s = workload.dense_update_bytes * owned
        optimizer_s /= device.hbm_bandwidth_bytes_per_s * memory_ratio
        if workload.pipeline is Pipeline.HUGECTR:
            return bottom_s, top_s, top_backward_s, bottom_backward_s, optimizer_s
        optimizer_s += kernels.update_floor_s(workload.dense_optimizer, owned, gpu)
        if layers.bottom or layers.top:
            top_s += _LOSS_KERNELS[0] * kernels.TINY_S
            top_backward_s += _LOSS_KERNELS[1] * kernels.TINY_S
        # TorchRec wraps the dense part for an all-reduce of its gradients, on one rank too.
        if workload.tables:
            top_backward_s += _buckets_s(layers.top, device)
            bottom_backward_s += _buckets_s(layers.bottom, device)
        return bottom_s, top_s, top_backward_s, bottom_backward_s, optimizer_s


@lru_cache(maxsize=256)
def _buckets_s(layers: tuple[Layer, ...], device: Device) -> float:
    """Seconds in which the gradients of layers are copied to the buckets of an all-reduce."""
    trained = [o for layer in layers for o in layer.operators if o.num_parameters]
    return sum(o.num_repeats * kernels.bucket_time(o, device) for o in trained)


@lru_cache(maxsize=256)
def _busy_s(layers: DenseLayers, device: Device) -> float:
    """Seconds of all products and attention of a step at the full rate of the device."""
    operators = (o for layer in (*layers.bottom, *layers.top) for o in layer.operators)
    rates = ((o, device.matrix_rate(o.dtype) * device.flops_efficiency_ratio) for o in operators)
    return sum(o.num_repeats * (o.forward_flop + o.backward_flop) / rate for o, rate in rates)


def product_s(
    product: Product, dtype: DataType, device: Device, constants: KernelConstants = KERNELS
) -> float:
    """Seconds of one matrix product alone, at the full rates of the device."""
    return kernels.product_time(product, dtype, Gpu.plain(device, constants))


def interaction_s(
    flow: Flow, device: Device, constants: KernelConstants = KERNELS, *, is_backward: bool
) -> float:
    """Seconds of a dot interaction alone, without the copy that puts its vectors side by side.

    Args:
        flow: the vectors that reach it, and which kernels run it.
        device: what runs it.
        constants: of the kernels.
        is_backward: whether the backward pass is asked for.
    """
    gpu, alone = Gpu.plain(device, constants), [o for o in dot(flow)[0] if o.name != "concat"]
    return sum(_operator_s(o, gpu, is_backward=is_backward) for o in alone)


def slowest_sigmas(ranks: int) -> float:
    """How many standard deviations the slowest of ``ranks`` ranks is above the mean, on average.

    The expected largest of so many normal draws, by the approximation of Blom 1958.
    """
    if ranks < 2:
        return 0.0
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


@lru_cache(maxsize=1024)
def _pass_s(layers: tuple[Layer, ...], gpu: Gpu, *, is_backward: bool = False) -> float:
    """Seconds of a pass of layers on their slowest rank; backward, some operators run again."""
    pass_s = 0.0
    for layer in layers:
        for before, operator in zip((None, *layer.operators), layer.operators, strict=False):
            seconds = _operator_s(operator, gpu, is_backward=is_backward)
            if is_backward:
                seconds += _operator_s(operator, gpu) if operator.is_recomputed else 0.0
            elif operator.is_cast and operator.kind is OperatorKind.MATMUL:
                seconds += kernels.input_cast_time(operator, before, gpu)
            pass_s += gpu.longest(operator) * seconds
    return pass_s


def _operator_s(operator: Operator, gpu: Gpu, *, is_backward: bool = False) -> float:
    """Seconds of one repeat of an operator forward, or of its gradients."""
    kind, is_eager = operator.kind, not operator.is_vectorized
    if is_backward and not operator.has_gradient:
        return 0.0
    if operator.product is not None:
        return _products_s(operator, gpu, is_backward=is_backward)
    if kind is OperatorKind.ATTENTION:
        return kernels.attention_time(operator, gpu, is_backward=is_backward)
    if kind is OperatorKind.NORM and is_eager:
        return kernels.norm_time(operator, gpu, is_backward=is_backward)
    if kind is OperatorKind.REDUCTION and is_eager and is_backward:
        return kernels.bias_gradient_time(*kernels.rows_of(operator.shape), operator.dtype, gpu)
    num_bytes = _backward_bytes(operator) if is_backward else operator.moved_bytes
    moved_s, picks = kernels.moved_time(num_bytes, operator, gpu), kind is OperatorKind.GATHER
    if picks is is_backward and operator.num_sorted:
        # Indices of 8 bytes are sorted, with the position of each.
        moved_s += gpu.constants.sort_s + gpu.constants.sorted_s * operator.num_sorted
    if picks and is_backward:
        moved_s += kernels.picked_time(operator, gpu)
    return moved_s + max(int(is_backward), operator.num_kernels) * gpu.constants.kernel_s


def _products_s(operator: Operator, gpu: Gpu, *, is_backward: bool) -> float:
    """Seconds of the products of one repeat of an operator, and of what belongs to them."""
    assert operator.product is not None
    found = operator.backward_products if is_backward else (operator.product,)
    seconds = sum(kernels.product_time(p, operator.dtype, gpu) for p in found)
    seconds += kernels.cast_time(operator, gpu) if operator.is_cast else 0.0
    if is_backward and operator.has_bias and not operator.is_vectorized:
        _, rows, _, columns = operator.shape
        seconds += kernels.bias_gradient_time(rows, columns, operator.dtype, gpu)
    return seconds


def _backward_bytes(operator: Operator) -> float:
    """Bytes of a backward pass: an activation reads two tensors and writes one."""
    is_unary = operator.read_bytes == operator.written_bytes
    if operator.backward_bytes is None and is_unary:
        return 1.5 * operator.moved_bytes
    return operator.backward_moved_bytes
