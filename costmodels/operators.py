"""The operators of a dense part: what each computes, moves, trains and keeps, on one rank.

A list of operators is the common language of the dense part. The old DLRM keys, the layers of a
workload file and a traced PyTorch module all become such a list, and only the list is priced. Every
entry describes a forward operator; what its backward pass computes follows from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from costmodels.datatypes import DataType
from costmodels.errors import require


class OperatorKind(StrEnum):
    """What decides how long an operator takes."""

    MATMUL = "matmul"
    BATCHED_MATMUL = "batched_matmul"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    NORM = "norm"
    SOFTMAX = "softmax"
    GATHER = "gather"
    REDUCTION = "reduction"
    OTHER = "other"


PRODUCTS = (OperatorKind.MATMUL, OperatorKind.BATCHED_MATMUL)
"""Kinds that are matrix products."""
BATCHED = (OperatorKind.BATCHED_MATMUL, OperatorKind.ATTENTION)
"""Kinds that take each sequence by itself."""
_SHAPE_LENGTH = {
    OperatorKind.MATMUL: 4,
    OperatorKind.BATCHED_MATMUL: 4,
    OperatorKind.ATTENTION: 5,
}
_MOST = 2**53


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
class Operator:
    """One operator of the forward pass, ``num_repeats`` times; all figures are of one repeat.

    Operators of the same name that follow each other belong to one layer of the model.

    ``shape`` is ``(count, m, k, n)`` of a matrix product, ``(sequences times heads, queries, keys,
    columns of a query, columns of a value)`` of a fused attention, and the shape of the largest
    tensor of any other operator.

    ``left_gradient`` and ``right_gradient`` say which operands of a product need a gradient; an
    attention without both has no backward pass. A
    ``is_causal`` attention skips the half of the scores that its mask hides; its FLOP still count
    them, as ``torch.utils.flop_counter`` does. ``parameter_bytes`` are those of the trained
    elements, ``saved_bytes`` what is kept for the backward pass. The device runs ``num_kernels``
    kernels, which the host issues as ``num_calls`` operators. ``num_sorted`` elements are picked by
    an index, so that the backward pass sorts them to add their gradients up. The backward pass of
    an operator that is no product moves ``backward_bytes``; None means twice those of the forward
    pass. With ``is_recomputed`` the backward pass runs the forward operator once more, since what
    it gave was not kept (activation checkpointing). ``flash_version`` is the generation of a fused
    attention's kernel: 1 for FlashAttention and Triton's of 2023, 2 for FlashAttention-2, 3 for
    FlashAttention-3 and cuDNN's. An attention that ``is_pointwise`` applies an activation to each
    score in the place of softmax, by HSTU's kernels: Triton's as version 1, CUTLASS's otherwise.
    All kernels of an operator that ``is_vectorized`` load vectors, as those of a compiler do.
    ``deviation_ratio`` is the standard deviation of its work between the batches of ranks over the
    mean, where sequences differ in length, and ``most_ratio`` the most that a batch can have over
    the mean (0: not known). Ranks that share a layer add up ``shared_bytes`` after
    it, and again in the backward pass. ``function`` is PyTorch's name of an operator that is no
    product, such as ``gelu``, where it is known: on a CPU core functions of one kind differ in what
    an element takes.
    """

    name: str
    kind: OperatorKind
    shape: tuple[int, ...]
    dtype: DataType = DataType.FP32
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    num_parameters: int = 0
    parameter_bytes: float = 0.0
    saved_bytes: float = 0.0
    num_kernels: int = 1
    num_calls: int = 1
    num_repeats: int = 1
    left_gradient: bool = True
    right_gradient: bool = True
    is_causal: bool = False
    num_sorted: int = 0
    backward_bytes: float | None = None
    is_recomputed: bool = False
    flash_version: int = 2
    is_pointwise: bool = False
    is_vectorized: bool = False
    deviation_ratio: float = 0.0
    most_ratio: float = 0.0
    shared_bytes: float = 0.0
    function: str = ""

    def __post_init__(self) -> None:
        """Check shape and amounts."""
        where = f"operator {self.name!r}"
        length = _SHAPE_LENGTH.get(self.kind)
        require(
            length is None or len(self.shape) == length,
            f"{where}: the shape of kind {self.kind} must have {length} numbers, got {self.shape}",
        )
        good = all(0 <= size <= _MOST for size in self.shape)
        require(good, f"{where}: sizes of the shape must be 0..2^53, got {self.shape}")
        require(1 <= self.num_repeats <= _MOST, f"{where}: repeats must be 1..2^53")
        for key in ("num_parameters", "num_kernels", "num_calls", "num_sorted"):
            value = getattr(self, key)
            require(0 <= value <= _MOST, f"{where}: {key} must be 0..2^53, got {value}")
        for key in (
            "read_bytes",
            "written_bytes",
            "parameter_bytes",
            "saved_bytes",
            "deviation_ratio",
            "most_ratio",
            "shared_bytes",
        ):
            value = getattr(self, key)
            good = math.isfinite(value) and value >= 0
            require(good, f"{where}: {key} must be 0 or more, got {value}")
        version = self.flash_version
        require(1 <= version <= 3, f"{where}: flash_version must be 1, 2 or 3, got {version}")
        require(
            not self.is_pointwise or self.kind is OperatorKind.ATTENTION,
            f"{where}: is_pointwise belongs to kind attention, got {self.kind}; leave it out",
        )
        given = self.backward_bytes
        good = given is None or (math.isfinite(given) and given >= 0)
        require(good, f"{where}: backward_bytes must be 0 or more, got {given}")

    @property
    def has_gradient(self) -> bool:
        """Whether the backward pass does anything for it; not for frozen parts of a model."""
        if self.kind in PRODUCTS or self.kind is OperatorKind.ATTENTION:
            return self.left_gradient or self.right_gradient
        return self.backward_bytes != 0

    @property
    def product(self) -> Product | None:
        """The matrix product of the kinds that are one."""
        if self.kind not in PRODUCTS:
            return None
        count, m, k, n = self.shape
        return Product(m=m, k=k, n=n, count=count)

    @property
    def backward_products(self) -> tuple[Product, ...]:
        """Products of the backward pass: for the left operand, then for the right one."""
        if self.kind not in PRODUCTS:
            return ()
        count, m, k, n = self.shape
        left = (Product(m=m, k=n, n=k, count=count),) if self.left_gradient else ()
        right = (Product(m=k, k=m, n=n, count=count),) if self.right_gradient else ()
        return (*left, *right)

    @property
    def forward_flop(self) -> float:
        """FLOP of one forward pass as ``torch.utils.flop_counter`` counts them: products only."""
        if self.kind is OperatorKind.ATTENTION:
            heads, queries, keys, width, value_width = self.shape
            return 2.0 * heads * queries * keys * (width + value_width)
        product = self.product
        return product.flops if product else 0.0

    @property
    def backward_flop(self) -> float:
        """FLOP of one backward pass, with those of what it recomputes.

        A fused attention computes its scores once more, then four products (Dao et al. 2022,
        algorithm 4), all of which ``torch.utils.flop_counter`` counts.
        """
        again = self.forward_flop if self.is_recomputed else 0.0
        return again + self.gradient_flop

    @property
    def gradient_flop(self) -> float:
        """FLOP of the gradients alone."""
        if self.kind is OperatorKind.ATTENTION and self.has_gradient:
            heads, queries, keys, width, value_width = self.shape
            return 2.0 * heads * queries * keys * (3.0 * width + 2.0 * value_width)
        return sum(p.flops for p in self.backward_products)

    @property
    def moved_bytes(self) -> float:
        """Bytes read and written by a forward pass."""
        return self.read_bytes + self.written_bytes

    @property
    def backward_moved_bytes(self) -> float:
        """Bytes that the gradients of an operator that is no product read and write."""
        return 2.0 * self.moved_bytes if self.backward_bytes is None else self.backward_bytes

    @property
    def tensor_bytes(self) -> float:
        """Bytes of the largest tensor of an operator that is no product."""
        return float(math.prod(self.shape)) * self.dtype.num_bytes
