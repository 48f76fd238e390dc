"""The interface of a dense model, and the layers of a DLRM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from costmodels.topology import Topology
from costmodels.workload import DataType, DenseArch, Interaction, Pooling, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``count`` matrix products m x k times k x n."""

    m: int
    k: int
    n: int
    count: int = 1

    @property
    def flops(self) -> float:
        """Multiply-adds count twice."""
        return 2.0 * self.count * self.m * self.k * self.n

    @property
    def largest_elements(self) -> float:
        """Elements of the largest of both operands and the result."""
        return float(self.count) * max(self.m * self.k, self.k * self.n, self.m * self.n)

    @property
    def num_elements(self) -> float:
        """Elements of both operands and the result."""
        return float(self.count) * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One operator of the dense part.

    Matrix products, and ``elementwise_bytes`` moved by kernels of their own (activation, bias,
    concatenation) over tensors of ``tensor_bytes``. ``num_parameters`` are trained and all-reduced.
    ``num_scattered`` elements are taken out by an index, so that the backward pass sorts them to
    add their gradients up.
    """

    name: str
    products: tuple[Product, ...]
    elementwise_bytes: float
    tensor_bytes: float
    num_parameters: int
    num_kernels: int
    num_scattered: int = 0

    @property
    def flops(self) -> float:
        """All products of the layer."""
        return sum(p.flops for p in self.products)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayers:
    """Layers before and after the pooled embeddings arrive."""

    bottom: tuple[Layer, ...]
    top: tuple[Layer, ...]

    @property
    def bottom_parameters(self) -> int:
        """Trained elements of the bottom MLP."""
        return sum(layer.num_parameters for layer in self.bottom)

    @property
    def top_parameters(self) -> int:
        """Trained elements of interaction and top MLP."""
        return sum(layer.num_parameters for layer in self.top)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTimes:
    """Seconds on the compute stream of one rank, without launch waits."""

    bottom_forward_s: float
    top_forward_s: float
    top_backward_s: float
    bottom_backward_s: float
    optimizer_s: float


class AbstractDenseModel(ABC):
    """Predicts the dense forward and backward on one device."""

    __slots__ = ()

    sources: ClassVar[tuple[str, ...]]

    @abstractmethod
    def times(self, workload: Workload, topology: Topology) -> DenseTimes:
        """Times of the dense part for the workload's local batch size."""


def dense_layers(workload: Workload) -> DenseLayers:
    """The operators of the workload's dense part (Naumov et al. 2019; DCNv2: Wang et al. 2021)."""
    arch, batch = workload.dense, workload.local_batch_size
    element = arch.dtype.num_bytes
    bottom = _mlp("bottom", batch, (arch.num_dense_features, *arch.bottom_mlp), element)
    num_vectors, width = _interaction_inputs(workload, arch)
    if not arch.top_mlp:
        return DenseLayers(bottom=bottom, top=())
    interaction, out = _interaction(arch, batch, num_vectors, width, element)
    top = _mlp("top", batch, (out, *arch.top_mlp), element)
    return DenseLayers(bottom=bottom, top=(*interaction, *top))


def _interaction_inputs(workload: Workload, arch: DenseArch) -> tuple[int, int]:
    """(vectors, elements in all) that meet in the interaction."""
    bottom = arch.bottom_mlp[-1] if arch.bottom_mlp else arch.num_dense_features
    vectors = sum(len(t.features) for t in workload.tables) + (1 if bottom else 0)
    elements = sum(
        t.embedding_dim * (len(t.features) if t.pooling is not Pooling.NONE else 1)
        for t in workload.tables
    )
    return vectors, elements + bottom


def _mlp(name: str, batch: int, sizes: tuple[int, ...], element: int) -> tuple[Layer, ...]:
    """Linear layers; the activation reads and writes the output once."""
    return tuple(
        Layer(
            name=f"{name}.{i}",
            products=(Product(m=batch, k=fan_in, n=fan_out),),
            elementwise_bytes=2.0 * element * batch * fan_out,
            tensor_bytes=float(element * batch * fan_out),
            num_parameters=fan_in * fan_out + fan_out,
            num_kernels=2,
        )
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes))
        if fan_in
    )


def _interaction(
    arch: DenseArch, batch: int, vectors: int, elements: int, element: int
) -> tuple[tuple[Layer, ...], int]:
    """Layers of the interaction and the number of elements it hands to the top MLP."""
    concat = Layer(
        name="concat",
        products=(),
        elementwise_bytes=2.0 * element * batch * elements,
        tensor_bytes=float(element * batch * elements),
        num_parameters=0,
        num_kernels=1,
    )
    if arch.interaction is Interaction.CAT:
        return (concat,), elements
    if arch.interaction is Interaction.DOT:
        width = max(1, elements // max(vectors, 1))
        pairs = vectors * (vectors - 1) // 2
        dot = Layer(
            name="dot",
            products=(Product(m=vectors, k=width, n=vectors, count=batch),),
            elementwise_bytes=2.0 * element * batch * pairs,
            tensor_bytes=float(element * batch * pairs),
            num_parameters=0,
            num_kernels=3,
            num_scattered=batch * pairs,
        )
        return (concat, dot), pairs + (arch.bottom_mlp[-1] if arch.bottom_mlp else 0)
    return (concat, *_cross(arch, batch, elements, element)), elements


def _cross(arch: DenseArch, batch: int, elements: int, element: int) -> tuple[Layer, ...]:
    """Low-rank cross layers x0 * (U (V x) + b) + x: reads x0, the product and x, writes one."""
    rank = arch.dcn_low_rank_dim
    return tuple(
        Layer(
            name=f"cross.{i}",
            products=(
                Product(m=batch, k=elements, n=rank),
                Product(m=batch, k=rank, n=elements),
            ),
            elementwise_bytes=4.0 * element * batch * elements,
            tensor_bytes=float(element * batch * elements),
            num_parameters=2 * elements * rank + elements,
            num_kernels=4,
        )
        for i in range(arch.dcn_num_layers)
    )


def dense_parameters(workload: Workload) -> int:
    """Trained elements of the dense part."""
    layers = dense_layers(workload)
    return layers.bottom_parameters + layers.top_parameters


def activation_bytes(workload: Workload) -> float:
    """Activations kept for the backward pass, bytes per rank."""
    layers = dense_layers(workload)
    element = max(workload.dense.dtype.num_bytes, DataType.FP16.num_bytes)
    both = (*layers.bottom, *layers.top)
    kept = sum(p.count * p.m * (p.k + p.n) for layer in both for p in layer.products)
    return float(element * kept)
