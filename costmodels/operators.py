"""The operators of a dense part: what each of them computes, moves, trains and keeps on one rank.

The DLRM keys of a workload file, its layers, and a traced PyTorch module all become such a list of
operators, and only the list is priced. Every entry describes an operator of the forward pass. What
the backward pass computes follows from it.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from costmodels.datatypes import DataType
from costmodels.errors import require
from costmodels.fields import Amount, Range, settle


class OperatorKind(StrEnum):
    """What kind of work an operator does; the kind decides how its seconds are computed."""

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
"""Kinds that compute each sequence of a batch by itself."""
_SHAPE_LENGTH = {OperatorKind.MATMUL: 4, OperatorKind.BATCHED_MATMUL: 4, OperatorKind.ATTENTION: 5}
"""Numbers in ``shape`` of the kinds whose shape is not that of a tensor."""
_Count = Annotated[int, Range(0, 2**53)]
"""A size or a count. A float holds every whole number up to the largest exactly."""
_ALIGNED = 16
"""Elements that are a multiple of what any kernel of products loads at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``count`` matrix products of the same size: an m x k matrix times a k x n matrix.

    ``aligned`` is the largest power of two, up to 16, that divides the number of elements of every
    row as the tensors lie in memory; kernels for the matrix units load several elements at once.
    """

    m: int
    k: int
    n: int
    count: int = 1
    aligned: int = _ALIGNED

    @property
    def flops(self) -> float:
        """FLOP of all the products; a multiplication and its addition are two."""
        return 2.0 * self.count * self.m * self.k * self.n

    @property
    def largest_elements(self) -> float:
        """Elements of the largest tensor of all products: an operand or the result."""
        return float(self.count) * max(self.m * self.k, self.k * self.n, self.m * self.n)

    @property
    def num_elements(self) -> float:
        """Elements of both operands and of the result together, of all products."""
        return float(self.count) * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of the forward pass of one rank.

    All figures are those of one repeat.

    Attributes:
        name: operators of the same name that follow each other belong to one layer of the model.
        kind: decides how its seconds are computed.
        shape: ``(count, m, k, n)`` of a matrix product; ``(sequences times heads, queries, keys,
            columns of a query, columns of a value)`` of a fused attention; the shape of the largest
            tensor of any other operator.
        dtype: type of its tensors.
        read_bytes: device bytes that the forward pass reads.
        written_bytes: device bytes that the forward pass writes.
        num_parameters: trained elements.
        parameter_bytes: bytes of the trained elements.
        saved_bytes: bytes that are kept for the backward pass.
        num_kernels: kernels that the device runs forward.
        num_calls: operators as which the host issues these kernels.
        num_repeats: how often the operator runs in a forward pass.
        left_gradient: whether the left operand of a product needs a gradient. An attention has no
            backward pass if neither operand needs one.
        right_gradient: the same for the right operand.
        is_causal: whether an attention skips the half of its scores that a mask hides. Its FLOP
            count them all the same, as ``torch.utils.flop_counter`` does.
        num_sorted: elements that are picked by an index. The backward pass sorts their indices, in
            order to add up the gradients of equal ones.
        num_joined: tensors that it joins. The kernel takes a time for each of them; the backward
            pass joins their gradients.
        backward_bytes: device bytes that the backward pass of an operator that is no product reads
            and writes; None means twice those of the forward pass.
        is_recomputed: whether the backward pass runs the operator forward once more, because its
            result was not kept (activation checkpointing).
        flash_version: generation of a fused attention's kernel. 1: FlashAttention and Triton's
            kernel of 2023. 2: FlashAttention-2. 3: FlashAttention-3 and cuDNN's.
        is_pointwise: whether an attention applies an activation to each score in the place of
            softmax, by HSTU's kernels: Triton's if ``flash_version`` is 1, CUTLASS's otherwise.
        is_vectorized: whether all its kernels load vectors, as those of a compiler do.
        deviation_ratio: standard deviation of its work between the batches of the ranks, over the
            mean, where sequences differ in length.
        most_ratio: the most work that a batch can have, over the mean; 0 if that is not known.
        shared_bytes: bytes that the ranks that share a layer (``tensor_parallel``) add up by an
            all-reduce after the operator, and again in the backward pass.
        is_cast: whether autocast casts the trained elements of a product from fp32, and their
            gradient back.
        function: PyTorch's name of an operator that is no product, such as ``gelu``, where it is
            known. On a CPU core, functions of one kind take different times per element.
    """

    name: str
    kind: OperatorKind
    shape: tuple[_Count, ...]
    dtype: DataType = DataType.FP32
    read_bytes: Amount = 0.0
    written_bytes: Amount = 0.0
    num_parameters: _Count = 0
    parameter_bytes: Amount = 0.0
    saved_bytes: Amount = 0.0
    num_kernels: _Count = 1
    num_calls: _Count = 1
    num_repeats: Annotated[int, Range(1, 2**53)] = 1
    left_gradient: bool = True
    right_gradient: bool = True
    is_causal: bool = False
    num_sorted: _Count = 0
    num_joined: _Count = 0
    backward_bytes: Amount | None = None
    is_recomputed: bool = False
    flash_version: Annotated[int, Range(1, 3)] = 2
    is_pointwise: bool = False
    is_vectorized: bool = False
    deviation_ratio: Amount = 0.0
    most_ratio: Amount = 0.0
    shared_bytes: Amount = 0.0
    is_cast: bool = False
    function: str = ""

    def __post_init__(self) -> None:
        """Check shape and amounts."""
        where = f"operator {self.name!r}"
        settle(self, f"{where}: ")
        length = _SHAPE_LENGTH.get(self.kind)
        require(
            length is None or len(self.shape) == length,
            f"{where}: the shape of kind {self.kind} must have {length} numbers, got {self.shape}",
        )
        require(
            not self.is_pointwise or self.kind is OperatorKind.ATTENTION,
            f"{where}: is_pointwise belongs to kind attention, got {self.kind}; leave it out",
        )

    @property
    def has_gradient(self) -> bool:
        """Whether the backward pass does anything for it; False in frozen parts of a model."""
        if self.kind in PRODUCTS or self.kind is OperatorKind.ATTENTION:
            return self.left_gradient or self.right_gradient
        return self.backward_bytes != 0

    @property
    def product(self) -> Product | None:
        """The matrix product that the operator is; None for other kinds."""
        if self.kind not in PRODUCTS:
            return None
        count, m, k, n = self.shape
        return Product(m=m, k=k, n=n, count=count, aligned=math.gcd(k, n, _ALIGNED))

    @property
    def backward_products(self) -> tuple[Product, ...]:
        """Products that give the gradients of the left and of the right operand, in this order."""
        product = self.product
        if product is None:
            return ()
        left = replace(product, k=product.n, n=product.k)
        right = replace(product, m=product.k, k=product.m)
        return (left,) * self.left_gradient + (right,) * self.right_gradient

    @property
    def has_bias(self) -> bool:
        """Whether a product of a linear layer has trained elements beside its matrix."""
        _, _, k, n = self.shape if self.kind is OperatorKind.MATMUL else (0, 0, 0, 0)
        return bool(k) and self.num_parameters > k * n

    @property
    def forward_flop(self) -> float:
        """FLOP of one forward pass, of products only, as ``torch.utils.flop_counter`` counts."""
        if self.kind is OperatorKind.ATTENTION:
            heads, queries, keys, width, value_width = self.shape
            return 2.0 * heads * queries * keys * (width + value_width)
        product = self.product
        return product.flops if product else 0.0

    @property
    def backward_flop(self) -> float:
        """FLOP of one backward pass, with those of the forward operator if it is recomputed."""
        again = self.forward_flop if self.is_recomputed else 0.0
        return again + self.gradient_flop

    @property
    def gradient_flop(self) -> float:
        """FLOP of the gradients alone.

        A fused attention computes its scores once more and then four products (Dao et al. 2022,
        algorithm 4); ``torch.utils.flop_counter`` counts all five.
        """
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
        """Bytes that the backward pass of an operator that is no product reads and writes."""
        return 2.0 * self.moved_bytes if self.backward_bytes is None else self.backward_bytes

    @property
    def num_elements(self) -> int:
        """Elements of the result of a product, or of the largest tensor of another operator."""
        if self.kind in PRODUCTS:
            count, m, _, n = self.shape
            return count * m * n
        return math.prod(self.shape)

    @property
    def tensor_bytes(self) -> float:
        """Bytes of the largest tensor of an operator that is no product."""
        return float(math.prod(self.shape)) * self.dtype.num_bytes
