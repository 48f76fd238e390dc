"""The interface of a dense model, and the operators of a workload's dense part."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from costmodels.datatypes import DataType, FloatArray
from costmodels.dense._repeats import in_blocks
from costmodels.layers import _parts
from costmodels.layers.base import Built, Flow, build_layers
from costmodels.layers.dlrm import Dlrm
from costmodels.operators import PRODUCTS, Operator, OperatorKind
from costmodels.operators import Product as Product
from costmodels.topology import Device, Topology
from costmodels.workload import DenseArch, HostProfile, Pipeline, Pooling, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Operators of the dense part that follow each other and share a name."""

    name: str
    operators: tuple[Operator, ...]

    @property
    def products(self) -> tuple[Product, ...]:
        """Matrix products of the forward pass, those of repeats too."""
        found = [(o, o.product) for o in self.operators]
        return tuple(p for o, p in found if p is not None for _ in range(o.num_repeats))

    @property
    def flops(self) -> float:
        """FLOP of a forward pass."""
        return sum(o.num_repeats * o.forward_flop for o in self.operators)

    @property
    def tensor_bytes(self) -> float:
        """The largest tensor of the operators that are no products."""
        return max((o.tensor_bytes for o in self.operators if o.product is None), default=0.0)

    @property
    def num_parameters(self) -> int:
        """Elements that are trained and all-reduced."""
        return sum(o.num_repeats * o.num_parameters for o in self.operators)

    @property
    def num_kernels(self) -> int:
        """Kernels of a forward pass."""
        return sum(o.num_repeats * o.num_kernels for o in self.operators)

    @property
    def num_calls(self) -> int:
        """Operators that the host issues in a forward pass."""
        return sum(o.num_repeats * o.num_calls for o in self.operators)

    @property
    def first_kernels(self) -> int:
        """Kernels of the first repeats of a forward pass."""
        return sum(o.num_kernels for o in self.operators)

    @property
    def first_calls(self) -> int:
        """Operators that the host issues for the first repeats of a forward pass."""
        return sum(o.num_calls for o in self.operators)


_DLRM = "bottom MLP", "interaction and top MLP"
"""The dense part of a DLRM, before and after the looked-up vectors arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayers:
    """Layers before and after the pooled embeddings arrive."""

    bottom: tuple[Layer, ...]
    top: tuple[Layer, ...]

    @property
    def bottom_parameters(self) -> int:
        """Trained elements of the layers before the embeddings."""
        return sum(layer.num_parameters for layer in self.bottom)

    @property
    def top_parameters(self) -> int:
        """Trained elements of the layers after the embeddings."""
        return sum(layer.num_parameters for layer in self.top)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTimes:
    """Seconds on the compute stream without launch waits, of one rank or of each, ``[W]``."""

    bottom_forward_s: FloatArray | float
    top_forward_s: FloatArray | float
    top_backward_s: FloatArray | float
    bottom_backward_s: FloatArray | float
    optimizer_s: FloatArray | float


class AbstractDenseModel(ABC):
    """Predicts the dense forward and backward on one device."""

    __slots__ = ()

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """Times of the dense part for the workload's local batch size."""

    def sigma_ratio(self, workload: Workload) -> float | None:
        """Log-standard deviation of these times; None where it is that of all dense models."""
        del workload
        return None

    def beside(self, lookup_s: Callable[[], float]) -> AbstractDenseModel:
        """The model of a dense part beside lookups.

        Args:
            lookup_s: gives their seconds on a rank of an even plan, asked where they matter.
        """
        del lookup_s
        return self

    def sustained_ratio(self, workload: Workload, topology: Topology) -> float:
        """How far the dense part is from short bursts (0) to one that fills the whole step (1)."""
        del workload, topology
        return 0.0


def dense_layers(workload: Workload) -> DenseLayers:
    """The layers of the workload's dense part.

    Raises:
        InvalidValueError: a layer does not fit what reaches it.
    """
    return _layers(*dense_operators(workload))


@functools.lru_cache(maxsize=64)
def _layers(before: tuple[Operator, ...], after: tuple[Operator, ...]) -> DenseLayers:
    """Blocks written once, then operators of a name together; kept, as in :func:`_built`."""
    return DenseLayers(bottom=_grouped(in_blocks(before)), top=_grouped(in_blocks(after)))


def dense_names(workload: Workload) -> tuple[str, str]:
    """What people call the layers before, and those after, the looked-up vectors arrive."""
    arch = workload.dense
    is_dlrm = all(isinstance(layer, Dlrm) for layer in arch.layers) and arch.operators is None
    if is_dlrm and not (arch.layers and not workload.tables):
        return _DLRM
    has_before = any(layer.before_tables for layer in arch.layers)
    listed = arch.operators.before_tables if arch.operators is not None else ()
    has_before |= any(o.product is not None for o in listed)
    return "dense part before tables", "dense part after tables" if has_before else "dense part"


def dense_operators(workload: Workload) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Operators of the dense part before and after the embeddings arrive.

    Raises:
        InvalidValueError: a layer does not fit what reaches it.
    """
    before, after = _described(workload)
    if workload.pipeline is Pipeline.HUGECTR:
        return _fused(before), _fused(after)
    return before, after


def _described(workload: Workload) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """The operators as PyTorch runs them, one by one."""
    arch = workload.dense
    if arch.operators is not None:
        return arch.operators.before_tables, arch.operators.after_tables
    num_vectors, num_elements = _looked_up(workload, is_padded=bool(arch.layers))
    before = Flow(
        batch_size=workload.local_batch_size * workload.tensor_parallel,
        split=workload.tensor_parallel,
        dtype=arch.dtype,
        width=arch.num_dense_features,
        has_old_bias=workload.issued_by is HostProfile.EAGER_2021,
    )
    built = _built(arch, before, num_vectors, num_elements)
    return built.before, built.after


@functools.lru_cache(maxsize=64)
def _fused(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The same as HugeCTR runs them.

    An activation is part of the kernel of the product before it, forward and backward, as cuBLASLt
    offers it. The other kernels load vectors.
    """
    kept: list[Operator] = []
    for operator in operators:
        if not (kept and _is_activation(operator, kept[-1])):
            kept.append(replace(operator, is_vectorized=True))
    return tuple(kept)


def _is_activation(operator: Operator, before: Operator) -> bool:
    """Whether an operator only reads what the product before it gives, and writes as much."""
    if before.product is None or operator.kind is not OperatorKind.ELEMENTWISE:
        return False
    given = before.product.count * before.product.m * before.product.n * operator.dtype.num_bytes
    return operator.read_bytes == given == operator.written_bytes


@functools.lru_cache(maxsize=64)
def _built(arch: DenseArch, before: Flow, num_vectors: int, num_elements: int) -> Built:
    """What the layers of a dense part do; kept, for a search asks for the same ones many times."""
    if not arch.layers:
        return _dlrm(arch, before, num_vectors, num_elements)
    tables = Flow(batch_size=before.batch_size, num_vectors=num_vectors, num_elements=num_elements)
    return build_layers(arch.layers, before, tables)


def _dlrm(arch: DenseArch, before: Flow, num_vectors: int, num_elements: int) -> Built:
    """TorchRec's DLRM (Naumov et al. 2019; DCNv2: Wang et al. 2021)."""
    sizes = (before.width, *arch.bottom_mlp)
    bottom = _parts.mlp("bottom", before.batch_size, sizes, arch.dtype)
    if not arch.top_mlp:
        return Built(before=bottom, flow=before)
    met = Flow(
        batch_size=before.batch_size,
        dtype=arch.dtype,
        width=sizes[-1],
        is_input=not arch.bottom_mlp,
        num_vectors=num_vectors,
        num_elements=num_elements,
    )
    top, out = _parts.dlrm(
        met,
        arch.interaction.value,
        arch.top_mlp,
        cross_layers=arch.dcn_num_layers,
        cross_rank=arch.dcn_low_rank_dim,
    )
    return Built(before=bottom, after=top, flow=out)


def _looked_up(workload: Workload, *, is_padded: bool) -> tuple[int, int]:
    """Vectors that the tables give per sample, and their elements.

    A sequence has one vector per position, padded to the mean length, where ``is_padded``; for the
    keys of a DLRM it counts as one vector.
    """
    vectors = sum(len(t.features) for t in workload.tables)
    elements = 0
    for table in workload.tables:
        if table.pooling is not Pooling.NONE:
            elements += table.embedding_dim * len(table.features)
        elif is_padded:
            elements += table.embedding_dim * sum(
                math.ceil(f.pooling_factor) for f in table.features
            )
        else:
            elements += table.embedding_dim
    return vectors, elements


def _grouped(operators: tuple[Operator, ...]) -> tuple[Layer, ...]:
    groups = groupby(operators, key=lambda operator: operator.name)
    return tuple(Layer(name=name, operators=tuple(group)) for name, group in groups)


def dense_parameters(workload: Workload) -> int:
    """Trained elements of the dense part."""
    layers = dense_layers(workload)
    return layers.bottom_parameters + layers.top_parameters


def unrated_remark(workload: Workload, device: Device) -> str | None:
    """What to say where the device lists no rate for products of the dense part; None if it does.

    Products in tf32 need no word: PyTorch runs them in fp32 on devices that do not have it.
    """
    before, after = dense_operators(workload)
    kinds = (*PRODUCTS, OperatorKind.ATTENTION)
    used = {o.dtype for o in (*before, *after) if o.kind in kinds} - {DataType.TF32}
    unlisted = sorted(used - dict(device.flops_per_s).keys())
    if not unlisted:
        return None
    slowest, _ = min(device.flops_per_s, key=lambda entry: entry[1])
    return (
        f"{device.name} lists no rate for products in {', '.join(unlisted)}: the dense part is "
        f"priced at that of {slowest}, the slowest listed"
    )


def activation_bytes(workload: Workload) -> float:
    """Activations kept for the backward pass, bytes per rank."""
    layers = dense_layers(workload)
    operators = [o for layer in (*layers.bottom, *layers.top) for o in layer.operators]
    return sum(o.num_repeats * o.saved_bytes for o in operators)
