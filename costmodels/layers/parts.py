"""Operators that several kinds of layers have, and how layers join what reaches them.

PyTorch runs the operators one after the other. Amounts are those of the forward pass: bytes read
and written, trained parameters, and what is kept (*saved*) for the backward pass. ``rows`` is the
number of rows of the matrix that an operator works on; ``width``, ``fan_in`` and ``fan_out`` are
numbers of elements of a row.

Sequences may differ in length: how much work a batch of them has, and how batches differ, is in
:class:`AbstractSequenceLayer`.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any, ClassVar, Self

from costmodels.datatypes import DataType
from costmodels.errors import require
from costmodels.layers.base import AbstractLayer, Built, Flow, Operators
from costmodels.operators import BATCHED, Operator, OperatorKind

Shape = tuple[int, ...]
CAST_BYTES = 6.0
"""Bytes per element to cast it between fp32 and a type of two bytes: four on one side, two on the
other."""
_MASTER_BYTES = 4.0
"""Bytes of a number in fp32: parameters, and the means and deviations of norms, have this type
whatever the products compute in."""


def kept_bytes(dtype: DataType) -> float:
    """Bytes of an element that is kept for the backward pass: two for types of one byte."""
    return max(dtype.num_bytes, DataType.FP16.num_bytes)


def trained_fields(count: int) -> dict[str, Any]:
    """The fields of an operator with so many trained elements."""
    return {"num_parameters": count, "parameter_bytes": _MASTER_BYTES * count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Makes operators of one name and one type of elements.

    Its methods take shapes of tensors, and further fields of the operator. ``saved`` are the
    elements that are kept for the backward pass.
    """

    name: str
    dtype: DataType

    def named(self, name: str) -> Self:
        """The same for a part of this part."""
        return replace(self, name=f"{self.name}.{name}")

    def operator(self, shape: Shape, *, saved: float = 0.0, **fields: Any) -> Operator:
        """Any operator."""
        kept = float(kept_bytes(self.dtype) * saved)
        given: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "saved_bytes": kept}
        return Operator(shape=shape, **given | fields)

    def matmul(self, shape: Shape, *, num_parameters: int = 0, **fields: Any) -> Operator:
        """``count`` matrix products of m x k times k x n, with so many trained elements.

        ``shape`` is ``(count, m, k, n)``.
        """
        (count, m, k, n), element = shape, self.dtype.num_bytes
        amounts = {
            "kind": OperatorKind.MATMUL,
            "read_bytes": float(element * count * (m * k + k * n)),
            "written_bytes": float(element * count * m * n),
            "is_cast": num_parameters > 0 and element == DataType.FP16.num_bytes,
        }
        return self.operator(shape, **trained_fields(num_parameters) | amounts | fields)

    def batched(self, shape: Shape, **fields: Any) -> Operator:
        """A batched product, also if the count is 1."""
        return self.matmul(shape, kind=OperatorKind.BATCHED_MATMUL, **fields)

    def linear(
        self, rows: int, fan_in: int, fan_out: int, *, bias: bool = True, **fields: Any
    ) -> Operator:
        """The product of a linear layer, which keeps its input unless ``saved`` is 0."""
        count = fan_in * fan_out + (fan_out if bias else 0)
        given = {"num_parameters": count, "saved": rows * fan_in}
        return self.matmul((1, rows, fan_in, fan_out), **given | fields)

    def streamed(self, shape: Shape, *, reads: float = 1.0, **fields: Any) -> Operator:
        """An operator whose time depends on the bytes that it reads and writes.

        It reads ``reads`` tensors of the shape and writes one.
        """
        size = float(math.prod(shape)) * self.dtype.num_bytes
        kind = OperatorKind.ELEMENTWISE
        given: dict[str, Any] = {"kind": kind, "read_bytes": reads * size, "written_bytes": size}
        return self.operator(shape, **given | fields)

    def norm(self, rows: int, width: int, **fields: Any) -> Operator:
        """Layer normalization with weight and bias; it keeps its input, means and deviations."""
        kept = float(kept_bytes(self.dtype) * rows * width) + 2.0 * _MASTER_BYTES * rows
        given = trained_fields(2 * width) | {"kind": OperatorKind.NORM, "saved_bytes": kept}
        return self.streamed((rows, width), **given | fields)

    def gather(self, shape: Shape, num_parameters: int, **fields: Any) -> Operator:
        """Looks up one row of a trained matrix of so many elements for each row of ``shape``.

        It keeps indices of 8 bytes.
        """
        given = trained_fields(num_parameters) | {"saved_bytes": 8.0 * math.prod(shape[:-1])}
        return self.streamed(shape, kind=OperatorKind.GATHER, **given | fields)

    def mlp(
        self, rows: int, sizes: Shape, *, keeps_input: bool = True, is_input: bool = False
    ) -> Operators:
        """Linear layers, each with an activation or another operator over its output.

        What is kept are the outputs of the activations, and the input unless another operator keeps
        that. A layer without input elements is left out.

        Args:
            rows: rows of the matrix.
            sizes: width of the input, then the output width of each layer.
            keeps_input: whether no other operator keeps the input.
            is_input: whether the first layer reads the input of the model, which has no gradient.
        """
        operators: list[Operator] = []
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            if not fan_in:
                continue
            part, saved = self.named(str(i)), rows * fan_in if keeps_input and not i else 0
            given: dict[str, Any] = {"saved": saved, "left_gradient": bool(i) or not is_input}
            active = part.streamed((rows, fan_out), saved=rows * fan_out)
            operators += [part.linear(rows, fan_in, fan_out, **given), active]
        return tuple(operators)

    def reduced(self, shape: Shape, *, result: int, **fields: Any) -> Operator:
        """The sum of a tensor along some of its axes, with ``result`` elements."""
        written = float(result * self.dtype.num_bytes)
        kind = OperatorKind.REDUCTION
        return self.streamed(shape, kind=kind, written_bytes=written, **fields)


# ------------------ joins and sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class AbstractSequenceLayer(AbstractLayer):
    """A layer of sequences, which may differ in length.

    Attributes:
        seq: the greatest length that the layer takes, in positions.
        lengths: equally likely lengths, such as quantiles of the data; empty if all sequences have
            ``seq`` positions.
        balanced: whether the data loader hands sequences out so that all ranks have equal work.
    """

    seq: int
    lengths: tuple[int, ...] = ()
    balanced: bool = False
    needs: ClassVar[dict[str, str]] = {"balanced": "lengths"}

    def __post_init__(self) -> None:
        """Refuse sizes and lengths that are out of range."""
        AbstractLayer.__post_init__(self)
        wrong = [v for v in self.lengths if not 1 <= v <= self.seq]
        self.need(not wrong, f"lengths must be 1..seq ({self.seq}), got {wrong[:3]}")

    def evened(self) -> Self:
        """This layer with sequences that are handed out so that all ranks have equal work."""
        return replace(self, balanced=self.balanced or len(self.lengths) > 1)

    @property
    def repeats(self) -> int:
        """Samples of a batch that have the same sequence."""
        return 1

    @property
    def mean_length(self) -> float:
        """The mean length."""
        return fmean(self.lengths or (self.seq,))

    @property
    def seen(self) -> int:
        """Mean length of the sequence to which a random position belongs.

        It is the mean of the squared lengths over the mean length, because long sequences have more
        positions.
        """
        return round(fmean(v * v for v in self.lengths or (self.seq,)) / self.mean_length)

    def rows(self, batch_size: int) -> int:
        """Mean number of positions of a batch of ``batch_size`` sequences."""
        return round(batch_size * self.mean_length)

    def uneven(self, operators: Operators, batch_size: int) -> Operators:
        """The operators with how much their work differs from batch to batch.

        The work of attention is proportional to the sum of the squared lengths of a batch, and all
        other work to the sum of its lengths. The relative deviation of a sum over independent
        sequences falls with the root of their number, which repeats make smaller. The most work
        that a batch can have is that of a batch in which every sequence has the greatest length.

        Args:
            operators: the operators of a layer.
            batch_size: sequences of a batch.
        """
        if len(self.lengths) < 2 or self.balanced:
            return operators
        root = math.sqrt(max(1.0, batch_size / self.repeats))
        squares = [float(v * v) for v in self.lengths]

        def differing(operator: Operator) -> Operator:
            # Scores are the operators on three axes: heads, queries and keys.
            is_pairwise = operator.kind in BATCHED or len(operator.shape) == 3
            work = squares if is_pairwise else self.lengths
            deviation, mean = pstdev(work) / fmean(work) / root, fmean(work)
            return replace(operator, deviation_ratio=deviation, most_ratio=max(work) / mean)

        return tuple(map(differing, operators))

    def positions(
        self, flow: Flow, widths: tuple[int, int], contextual: tuple[int, int] = (0, 0)
    ) -> tuple[Operators, Flow]:
        """Turns what reaches a layer of sequences into positions of the width that the layer takes.

        Args:
            flow: what reaches the layer.
            widths: elements of a position as they arrive, and as the layer takes them. If these
                differ, a linear layer turns one into the other.
            contextual: how many of the positions are contextual ones, and elements of each of them
                as they arrive. Each has a linear layer of its own if its width differs from the
                others'.

        Returns:
            The operators that are needed, and what comes out of them.

        Raises:
            InvalidValueError: another number of elements arrives.
        """
        first, met = joined(flow)
        elements, count = met.width * met.length, math.ceil(self.mean_length)
        (given, taken), (others, other_width) = widths, contextual
        part = Part(name=f"{self.prefix}.input", dtype=flow.dtype)
        also = f" and {others} of {other_width}" if others else ""
        self.need(
            elements == given * (count - others) + others * other_width,
            f"needs {count - others} positions of {given} elements{also}, but {elements} "
            "elements per sample reach it; change seq, or the widths of the layer",
        )
        if given != taken:
            rows = self.rows(flow.batch_size) - flow.batch_size * others
            product = part.linear(rows, given, taken)
            first += self.uneven((product,), flow.batch_size)
        if others and (given != taken or other_width != taken):
            shape, kept = (others, flow.batch_size, other_width, taken), others * other_width
            own = part.batched(shape, num_parameters=kept * taken, saved=flow.batch_size * kept)
            first += (own,)
        return first, met.after(taken, count)


_COPIED = 4.0
"""Bytes that are kept of each element that is joined: fp32, or two copies of two bytes."""
_FUSED_MULTIPLE = 8
"""The number of results of a fused interaction is a multiple of this; the rest are zeros."""


def joined(flow: Flow, needed_by: str = "") -> tuple[Operators, Flow]:
    """Joins the looked-up vectors and what comes from the layer before to one row per sample.

    The host splits what the tables gave and joins it (:func:`_collected`). Without looked-up
    vectors nothing is done.

    Args:
        flow: what reaches the layer.
        needed_by: name of a layer that nothing may not reach; empty for others.

    Raises:
        InvalidValueError: nothing reaches the layer; the message says what to change.
    """
    require(
        not needed_by or flow.width > 0 or flow.num_elements > 0,
        f"layer {needed_by}: nothing reaches it; give dense.num_dense_features, or put it behind "
        "tables or another layer",
    )
    if not flow.num_elements:
        return (), flow
    width = flow.num_elements + flow.width * flow.length
    return _collected(flow), _without_vectors(flow, width)


def dot(flow: Flow) -> tuple[Operators, Flow]:
    """Dot products of all pairs of vectors, followed by the dense vector (Naumov et al. 2019).

    The dense vector is one of the vectors. It follows the products only if a layer has made it: the
    dense features themselves are not passed on. The kernels are those of
    ``flow.interaction_kernel``.
    """
    vectors = flow.num_vectors + (1 if flow.width else 0)
    elements = flow.num_elements + flow.width
    batch, width = flow.batch_size, max(1, elements // max(vectors, 1))
    part = Part(name="dot", dtype=flow.dtype)
    pairs = vectors * (vectors - 1) // 2
    passed = 0 if flow.is_input else flow.width
    if flow.interaction_kernel == "fused":
        # The width of the result is a multiple of 8, so that the products after it are fast. One
        # kernel reads the vectors, and writes pairs and the dense vector.
        wide = math.ceil((pairs + passed) / _FUSED_MULTIPLE) * _FUSED_MULTIPLE
        read, written = batch * elements, batch * wide
        kernel = part.streamed(
            (read,),
            saved=read,
            written_bytes=float(written * flow.dtype.num_bytes),
            backward_bytes=float((2 * read + written) * flow.dtype.num_bytes),
            is_vectorized=True,
        )
        if not flow.piece_bytes:
            return (kernel,), _without_vectors(flow, wide)
        # NVIDIA's DLRM in PyTorch copies the vectors to the one tensor that the kernel reads. Its
        # lookups write a tensor for all tables, and their backward pass copies the gradient out of
        # that of the joined tensor. HugeCTR's kernels write to where the interaction reads.
        returned = 2.0 * batch * flow.num_elements * flow.dtype.num_bytes
        given: dict[str, Any] = {"num_calls": 2, "backward_bytes": returned}
        copy = replace(part, name="concat").streamed((batch, elements), **given)
        return (copy, kernel), _without_vectors(flow, wide)
    is_compiled = flow.interaction_kernel == "compiled"
    # Both operands are the joined vectors: one tensor, or two copies in two bytes. The gradient of
    # the row of pairs stays until the layers before the tables have taken their part of it.
    kept = _COPIED * batch * elements + flow.dtype.num_bytes * batch * (pairs + passed)
    product = part.batched((batch, vectors, width, vectors), saved_bytes=kept)
    # The gradient of the products is filled with zeros and written. Both operands are the same
    # vectors, whose two gradients are added up.
    returned = batch * (2.0 * vectors**2 + pairs + 3.0 * elements) * flow.dtype.num_bytes
    chosen = part.streamed(
        (batch, pairs),
        kind=OperatorKind.GATHER,
        num_kernels=2,
        num_sorted=0 if is_compiled else batch * pairs,
        backward_bytes=returned,
        is_vectorized=is_compiled,
    )
    operators = (*_collected(flow, is_cast=True), product, chosen)
    if flow.piece_bytes:
        # The copy of pairs and dense vector to one row, and that of the gradient of the pairs.
        row = replace(part, name="pairs").streamed((batch, pairs + passed))
        operators += (replace(row, num_calls=0, num_joined=2, backward_bytes=row.moved_bytes),)
    return operators, _without_vectors(flow, pairs + passed)


def _collected(flow: Flow, *, is_cast: bool = False) -> Operators:
    """All vectors side by side; they are copied even if there is only one.

    These are two calls, but one kernel, which copies. Models of TorchRec join the looked-up vectors
    of all features first, and then the dense vector with them. The gradients of the features are
    joined in turn; that of the dense vector is a view.

    Args:
        flow: what reaches the layer.
        is_cast: whether autocast casts the vectors for a product of them with themselves: both
            operands, and both gradients.
    """
    batch, dense = flow.batch_size, flow.width * flow.length
    elements, part = flow.num_elements + dense, Part(name="concat", dtype=flow.dtype)
    if not flow.piece_bytes or not flow.num_vectors:
        return (part.streamed((batch, elements), num_calls=2),)
    if flow.piece_bytes == DataType.FP32.num_bytes:
        part = replace(part, dtype=DataType.FP32)
    pieces = part.streamed((batch, flow.num_elements))
    pieces = replace(pieces, num_joined=flow.num_vectors, backward_bytes=pieces.moved_bytes)
    returned = 2.0 * batch * dense * part.dtype.num_bytes
    copy = part.streamed((batch, elements), backward_bytes=returned)
    if not is_cast or part.dtype.num_bytes == flow.dtype.num_bytes:
        return pieces, copy
    casts = part.streamed((batch, elements), reads=2.0)
    casts = replace(casts, num_kernels=2, num_calls=0, backward_bytes=1.5 * casts.moved_bytes)
    return pieces, copy, casts


def cross(flow: Flow, num_layers: int, rank: int) -> Operators:
    """Low-rank cross layers x0 * (U (V x) + b) + x (Wang et al. 2021).

    After both products of a layer, two kernels run in fp32, which read x0, the product and x once
    and write one result. The host issues them together with the products, so that they are no calls
    of their own. Backward there is a product and a sum of gradients that meet, and as much again if
    x0 has a gradient, which it has not if it is the model's input. Under autocast the input of the
    products with weights is cast, and so are two gradients. Over looked-up vectors the layers are
    TorchRec's, in which a kernel of its own adds the bias. It reads a broadcast tensor, which takes
    1.5 times as long as its bytes, and with mixed types twice to three times as long.

    What is kept are the input and the output of V, x0 where the input of V is a copy of two bytes,
    and U's result with its bias, which is fp32 as x is, for the gradient of x0. That gradient is
    added up over all layers, which takes the place of one more tensor.

    Args:
        flow: what reaches the first layer.
        num_layers: number of cross layers.
        rank: rank of U and V.
    """
    batch, width, dtype, is_input = flow.batch_size, flow.width, flow.dtype, flow.is_input
    row, is_half = _COPIED * batch * width, dtype.num_bytes == DataType.FP16.num_bytes
    bias = 0.0 if is_input else (16.0 if is_half else 12.0)
    each = {
        "read_bytes": 16.0 + (4.0 if is_half else 0.0) + bias,
        "written_bytes": 8.0,
        "backward_bytes": (24.0 if is_input else 48.0) + (12.0 if is_half else 0.0),
    }
    given: dict[str, Any] = {name: amount * batch * width for name, amount in each.items()}
    given |= {"num_kernels": 2, "num_calls": 0}
    operators: list[Operator] = []
    for i in range(num_layers):
        kept = 0.0 if is_input else row
        if not i:
            kept += kept + (row if dtype.num_bytes < DataType.FP32.num_bytes else 0.0)
        part, left = Part(name=f"cross.{i}", dtype=dtype), i > 0 or not is_input
        down = part.linear(batch, width, rank, bias=False, left_gradient=left)
        wide = replace(part, dtype=DataType.FP32)
        terms = wide.streamed((batch, width), saved_bytes=kept, **given)
        operators += [down, part.linear(batch, rank, width), terms]
    return tuple(operators)


def dlrm(flow: Flow, keys: Any) -> Built:
    """A DLRM (Naumov et al. 2019; DCN V2: Wang et al. 2021): bottom MLP, interaction and top MLP.

    Args:
        flow: dense features and looked-up vectors.
        keys: has the fields of :class:`costmodels.layers.dlrm.Dlrm`; without widths of a top MLP
            there is no interaction.
    """
    batch, bottom, top = flow.batch_size, keys.bottom_mlp, keys.top_mlp
    sizes, part = (flow.width, *bottom), Part(name="bottom", dtype=flow.dtype)
    before = part.mlp(batch, sizes, is_input=flow.is_input)
    if not top:
        return Built(before=before, flow=flow)
    given = replace(flow, width=sizes[-1], is_input=flow.is_input and not bottom)
    if keys.interaction == "dot":
        operators, met = dot(given)
    else:
        operators = _collected(given)
        met = _without_vectors(given, given.num_elements + given.width)
    if keys.interaction == "dcn":
        operators += cross(met, keys.dcn_num_layers, keys.dcn_low_rank_dim)
    operators += replace(part, name="top").mlp(batch, (met.width, *top))
    return Built(before=before, after=operators, flow=met.after(top[-1]))


def _without_vectors(flow: Flow, width: int) -> Flow:
    """What comes out of an operator that joins the vectors: ``width`` elements per sample."""
    return replace(flow.after(width, 1), num_vectors=0, num_elements=0)
