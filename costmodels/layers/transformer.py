"""``transformer``: blocks of attention and a feed-forward network, with or without a vocabulary.

The operators of a block are as eager or compiled PyTorch runs them.

Operators between matrix products are limited by memory. Their amounts are therefore bytes per
element: how many bytes the forward and the backward pass read and write for each element of a
tensor. In eager PyTorch every kernel reads its inputs and writes its result. A compiler joins the
kernels between two products into one.

Under autocast, weights and residuals are fp32 and norms give fp32, so that casts stand before the
products. Without autocast, all tensors have the type of the products. Types of one byte are used by
linear layers only: each of them scales and casts its input, its weights and its gradient, and all
other operators, attention too, use two bytes per element.
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Self, final

from costmodels.datatypes import DataType
from costmodels.layers import parts
from costmodels.layers.base import Built, Flow, Operators
from costmodels.layers.parts import CAST_BYTES, Shape
from costmodels.operators import PRODUCTS, Operator, OperatorKind

_SCALED = 6.0
"""Bytes per element to scale it from a type of two bytes to one of one byte. The tensor is read
twice, for its largest value and for the cast, and written twice, as it is and transposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style(parts.Part):
    """How the operators of a part of a block are run, and what makes them.

    Results of the methods have ``width`` elements in each of ``rows`` rows.

    Attributes:
        name: of the operators.
        dtype: type of the products of linear layers.
        autocast: whether weights and residuals are fp32, and are cast before products.
        compiled: whether a compiler joins the kernels between products.
        dropout: whether there is dropout.
        bias: whether linear layers and norms have a bias.
        composed: whether GELU, norms without bias and the cast of the logits are kernels of their
            own, as in the models of Hugging Face.
        old_bias: whether linear layers add their bias in a kernel of its own.
    """

    autocast: bool = False
    compiled: bool = False
    dropout: bool = False
    bias: bool = True
    old_bias: bool = False
    composed: bool = False

    @property
    def is_half(self) -> bool:
        """Whether elements of products have two bytes or less."""
        return self.dtype.num_bytes < DataType.FP32.num_bytes

    @property
    def inner(self) -> Self:
        """The same with the type of products that are no linear layers of a block."""
        is_narrow = self.dtype.num_bytes < DataType.BF16.num_bytes
        return replace(self, dtype=DataType.BF16) if is_narrow else self

    @property
    def casts(self) -> bool:
        """Whether autocast casts anything: it does not if products are fp32."""
        return self.autocast and self.is_half

    @property
    def element(self) -> float:
        """Bytes per element of the inputs and results of products."""
        return float(parts.kept_bytes(self.dtype))

    @property
    def residual(self) -> float:
        """Bytes per element on the path of residuals."""
        return 4.0 if self.casts else self.element

    @property
    def dropped(self) -> float:
        """Bytes per element that dropout reads and writes, with one byte of its mask."""
        return 2.0 * self.element + 1.0

    def moved(
        self, shape: Shape, forward: float, backward: float, saved: float = 0.0, **fields: Any
    ) -> Operator:
        """An operator whose time depends on the bytes that it moves.

        Args:
            shape: shape of the tensor that it works on.
            forward: bytes per element that its forward pass reads and writes; 0 for none.
            backward: bytes per element that its backward pass reads and writes.
            saved: bytes per element that are kept for the backward pass.
            fields: further fields of the operator; ``num_kernels`` counts if there is a forward
                pass.
        """
        elements = float(math.prod(shape))
        kernels = fields.pop("num_kernels", 1)
        runs = kernels if forward else 0
        given: dict[str, Any] = {
            "kind": OperatorKind.ELEMENTWISE,
            "read_bytes": 0.5 * forward * elements,
            "written_bytes": 0.5 * forward * elements,
            "backward_bytes": backward * elements,
            "saved_bytes": saved * elements,
            "num_kernels": runs,
            "num_calls": runs,
            "is_vectorized": self.compiled,
        }
        return self.operator(shape, **given | fields)

    def projected(
        self, rows: int, fan_in: int, width: int, *, keeps_input: bool = True
    ) -> Operators:
        """A linear layer: its product, the sum of its bias's gradient, and the casts that it needs.

        Args:
            rows: rows of its input.
            fan_in: elements of a row of its input.
            width: elements of a row of its result.
            keeps_input: whether no other operator keeps the input for the backward pass.
        """
        result, weights = (rows, width), (fan_in, width)
        kept = rows * fan_in if keeps_input else 0
        operators = [self.linear(rows, fan_in, width, bias=False, saved=kept, is_cast=False)]
        if self.bias:
            added = 2.0 * self.element if self.old_bias else 0.0
            own = {"kind": OperatorKind.REDUCTION, **parts.trained_fields(width)}
            operators.append(self.moved(result, added, self.element, **own))
        if self.casts:
            operators.append(self.moved(weights, CAST_BYTES, CAST_BYTES))
        if self.dtype is not self.inner.dtype:
            operators.append(self.moved((rows, fan_in), _SCALED, 0.0))
            operators.append(self.moved(weights, _SCALED, 0.0))
            operators.append(self.moved(result, 0.0, _SCALED))
        return tuple(operators)

    def normed(self, rows: int, width: int) -> Operators:
        """A norm.

        In the backward pass two kernels read the gradient and the input: one for the gradient of
        the input, and one for the gradients of the weights. A compiler joins the norm with the
        addition before it and the cast after it.
        """
        shape, trained = (rows, width), parts.trained_fields(width * (2 if self.bias else 1))
        if self.composed and not self.bias:
            # A root mean square norm in single kernels: a square, a mean, two products, in fp32.
            own = trained | {"saved": 8.0, "num_kernels": 6, "dtype": DataType.FP32}
            made, is_cast = self.moved(shape, 28.0, 76.0, **own), self.casts
        else:
            is_cast = self.casts and not self.compiled
            result = 4.0 if is_cast else self.element
            forward, backward = result + self.residual, 2.0 * (result + self.residual)
            forward, backward = (
                (result, backward) if self.compiled else (forward, backward + self.residual)
            )
            kept = self.residual * float(math.prod(shape)) + 8.0 * rows
            own = trained | {"kind": OperatorKind.NORM, "saved_bytes": kept}
            made = self.moved(shape, forward, backward, **own)
        casts = (self.moved(shape, CAST_BYTES, CAST_BYTES),) if is_cast else ()
        return (made, *casts)

    def added(self, rows: int, width: int) -> Operators:
        """Dropout, and the addition to the residuals.

        The backward pass adds up the gradients of both paths.
        """
        shape, path = (rows, width), self.residual
        if self.compiled:
            backward = path + (path + self.element)
            kept = 1.0 if self.dropout else 0.0
            return (self.moved(shape, self.element + 2.0 * path, backward, kept),)
        dropped = self.moved(shape, self.dropped, self.dropped, 1.0)
        backward = 3.0 * path + (CAST_BYTES if self.casts else 0.0)
        total = self.moved(shape, self.element + 2.0 * path, backward)
        return (dropped, total) if self.dropout else (total,)

    def activated(self, rows: int, width: int, *, gated: bool) -> Operators:
        """The activation of a feed-forward network.

        It is GELU, or if ``gated`` the product of one half of its input with SiLU of the other
        half. Composed GELU is a power, two sums, four products and a hyperbolic tangent in fp32.
        """
        e, shape = self.element, (rows, width)
        if not gated and self.composed:
            casts = 4.0 if self.casts else 0.0
            own: dict[str, Any] = {"num_kernels": 9, "dtype": DataType.FP32}
            return (self.moved(shape, 72.0 + casts, 112.0 + casts, 28.0, **own),)
        if not gated:
            return (self.moved(shape, 2.0 * e, 3.0 * e, e),)
        if self.compiled:
            return (self.moved(shape, 3.0 * e, 5.0 * e, 2.0 * e),)
        return (self.moved(shape, 5.0 * e, 9.0 * e, 3.0 * e, num_kernels=2),)

    def rotated(self, rows: int, width: int) -> Operator:
        """Rotary positions of queries and keys, which are ``width`` elements together.

        For queries and for keys these are a negation, a join, two products and a sum.
        """
        moved = (2.0 if self.compiled else 13.0) * self.element
        return self.moved((rows, width), moved, moved, num_kernels=2 if self.compiled else 10)

    def scored(self, sizes: tuple[int, int, int], *, is_causal: bool, is_masked: bool) -> Operators:
        """Attention that writes its scores.

        Queries, keys, values and the result are copied, because their axes change order. Scores are
        scaled, masked, normalized and dropped out. Under autocast they are normalized in fp32: the
        kernel of the softmax itself casts fp16, and a kernel of its own casts bf16.

        Args:
            sizes: samples times heads, positions, and elements of a head.
            is_causal: whether positions attend only to earlier ones.
            is_masked: whether a mask of each sample's padding is added.
        """
        groups, length, width = sizes
        e, shape, size = self.element, (groups, length, length), groups * length * width
        copied = self.moved(sizes, 2.0 * e, 2.0 * e)
        first = self.inner.batched((groups, length, width, length), saved=3 * size)
        last = self.inner.batched((groups, length, length, width), saved=size)
        is_bf16, kind = self.casts and self.dtype is DataType.BF16, OperatorKind.SOFTMAX
        wide, read = 4.0 if self.casts else e, 4.0 if is_bf16 else e
        between: tuple[tuple[bool, float, float, dict[str, Any]], ...] = (
            (True, 2.0 * e, 2.0 * e, {}),
            (is_masked, 2.0 * e, 0.0, {}),
            (is_causal, 2.0 * e, 2.0 * e, {}),
            (is_bf16, CAST_BYTES, CAST_BYTES, {}),
            (True, read + wide, 2.0 * wide + read, {"kind": kind, "saved": wide}),
            (self.dropout, 2.0 * wide + 1.0, 2.0 * wide + 1.0, {"saved": 1.0}),
            (self.casts, CAST_BYTES, CAST_BYTES, {"saved": 2.0}),
        )
        if self.compiled:
            between = ((True, 2.0 * e, 3.0 * e, {"kind": kind, "saved": e}),)
        own = (self.moved(shape, *each, **more) for runs, *each, more in between if runs)
        return (copied, copied, copied, first, *own, last, copied)

    def loss(self, rows: int, width: int, *, is_fused: bool, is_cast: bool) -> Operator:
        """Log-softmax and negative log-likelihood over ``width`` classes, in fp32.

        Eager PyTorch first casts logits of two bytes to fp32, unless the loss is that of masked
        words under autocast (``is_cast`` false): their log-softmax is in two bytes, and its result
        is cast. The backward pass fills the gradient, computes that of the log-softmax, and casts
        it back. Compiled code reads the logits twice in the forward pass. A fused loss
        (``is_fused``) reads them once in the forward pass, and overwrites them in the backward
        pass.
        """
        e, shape, given = self.element, (rows, width), {"kind": OperatorKind.SOFTMAX}
        if is_fused or self.compiled:
            return self.moved(shape, e if is_fused else 2.0 * e, 2.0 * e, e, **given)
        wide = self.element if self.is_half and not is_cast else 4.0
        forward, backward, kernels = 3.0 * wide, 5.0 * wide, 1
        if self.is_half and is_cast:
            forward, backward, kernels = CAST_BYTES + forward, backward + CAST_BYTES, 2
        elif self.casts:
            forward, backward, kernels = CAST_BYTES + forward, backward + CAST_BYTES + 4.0, 2
        return self.moved(shape, forward, backward, 4.0, num_kernels=kernels, **given)


class Checkpoint(StrEnum):
    """What the backward pass computes a second time instead of keeping it.

    ``none``: nothing. ``selective``: all operators except products and attention. ``full``:
    everything except the input of each block, up to the last tensor that the backward pass reads;
    this leaves out the last product of a block, as PyTorch does from 2.1 on without
    ``use_reentrant``. ``reentrant``: the whole block, as PyTorch does with ``use_reentrant`` and
    older PyTorch always.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    REENTRANT = "reentrant"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer(parts.AbstractSequenceLayer):
    """Blocks of attention and a feed-forward network, and a last norm.

    A block computes x + proj(attention(qkv(norm(x)))), and then x + out(gelu(in(norm(x)))). With a
    vocabulary, tokens and positions are looked up first. At the end, positions are multiplied by
    the vectors of all tokens, and a log-softmax and a loss follow. Without a vocabulary, ``hidden``
    elements at each of ``seq`` positions reach the layer.

    If ranks share the layer (tensor parallelism), each has a part of the heads, of the feed-forward
    network and of the vocabulary. Between these, each has a part of the positions, as in Megatron's
    sequence parallelism.

    Reference: Vaswani et al. 2017; norms first as in GPT-2 (Radford et al. 2019).

    Attributes:
        layers: number of blocks.
        hidden: elements of a position.
        heads: heads of the queries.
        ffn: inner width of the feed-forward network.
        seq: positions per sample.
        vocabulary: number of tokens; 0 for a layer without tokens and loss.
        causal: whether positions attend only to earlier ones.
        fused_attention: whether one kernel computes attention without writing scores.
        tied: whether the product with all tokens uses the vectors that tokens are looked up in.
        kv_heads: heads of keys and values, which the heads of queries share; 0 for ``heads``.
        gated: whether the feed-forward network has two inner products (SwiGLU).
        bias: whether linear layers and norms have a bias.
        rotary: whether positions are rotary instead of learned.
        masked: whether a mask of each sample's padding is added to the scores.
        joint_qkv: whether queries, keys and values are one product instead of three.
        flash: generation of the kernel of fused attention: 1, 2 or 3
            (:class:`costmodels.operators.Operator`).
        dropout: whether there is dropout.
        predicted: positions per sample that have a loss; 0 for all.
        head_transform: whether BERT's linear layer stands before the product with all tokens.
        fused_loss: whether the loss is one kernel that makes no copy of the logits in fp32.
        autocast: whether weights and residuals are fp32 and are cast before products. Otherwise all
            have the type of the dense part.
        compiled: whether the kernels between products are joined, as torch.compile does.
        composed: whether GELU, or the norms of a model without bias, are kernels of their own for
            every power, product and sum, as in the models of Hugging Face. None for those models
            that look like its GPT-2 and Llama: causal, with a vocabulary, not compiled, in fp32 or
            under autocast, and either gated or with one product for queries, keys and values.
        checkpoint: what the backward pass computes again (:class:`Checkpoint`).
        lengths: equally likely lengths of the sequences, such as quantiles of the data. Padding is
            then left out. The time of fused attention depends on the sum of the squared lengths,
            and the rank with the most work sets the pace. Empty if every sequence counts as ``seq``
            positions, as padded ones do.
        balanced: whether the data loader hands sequences out so that all ranks have equal work.
    """

    can_split: ClassVar[bool] = True
    needs: ClassVar[dict[str, str]] = parts.AbstractSequenceLayer.needs | {
        **dict.fromkeys(("lengths", "flash"), "fused_attention"),
        **dict.fromkeys(("tied", "predicted", "head_transform", "fused_loss"), "vocabulary"),
    }

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int = field(default=0, metadata={"most": 10**9})
    causal: bool = False
    fused_attention: bool = True
    tied: bool = True
    kv_heads: int = 0
    gated: bool = False
    bias: bool = True
    rotary: bool = False
    masked: bool = False
    joint_qkv: bool = True
    flash: int = 2
    dropout: bool = False
    predicted: int = 0
    head_transform: bool = False
    fused_loss: bool = False
    autocast: bool = False
    compiled: bool = False
    composed: bool | None = None
    checkpoint: Checkpoint = Checkpoint.NONE

    def __post_init__(self) -> None:
        """Refuse sizes that are out of range, and keys that do not fit together."""
        parts.AbstractSequenceLayer.__post_init__(self)
        self.need(
            self.hidden % self.heads == 0,
            f"hidden must be a multiple of heads, got {self.hidden} and {self.heads}",
        )
        self.need(
            self.heads % (self.kv_heads or 1) == 0,
            f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}",
        )
        self.need(
            self.predicted <= self.seq,
            f"predicted must be 0..seq positions, got {self.predicted} of {self.seq}",
        )
        self.need(
            not (self.masked and self.fused_attention),
            "masked needs fused_attention: false; the mask of a fused kernel is not "
            "priced (lengths leave padding out)",
        )

    def _is_composed(self, dtype: DataType) -> bool:
        """Whether activations and norms run as single kernels of PyTorch (``composed``)."""
        if self.composed is not None or self.compiled or not (self.vocabulary and self.causal):
            return bool(self.composed)
        is_wide = self.autocast or dtype.num_bytes == DataType.FP32.num_bytes
        return is_wide and (self.gated or self.joint_qkv)

    def as_compiled(self) -> Self:
        """The same blocks, compiled."""
        return replace(self, compiled=True)

    def build(self, flow: Flow) -> Built:
        """Tokens, the operators of one block with their repeats, the last norm and the loss."""
        split = flow.split
        joined: Operators = ()
        met = flow.after(self.hidden, math.ceil(self.mean_length))
        if not self.vocabulary:
            joined, met = self.positions(flow, (self.hidden, self.hidden))
        rows = self.rows(flow.batch_size)
        self.need(
            all(size % split == 0 for size in (self.heads, self.kv_heads, self.ffn)),
            f"heads, kv_heads and ffn must be multiples of tensor_parallel "
            f"{split}, got {self.heads}, {self.kv_heads} and {self.ffn}",
        )
        keys = ("autocast", "compiled", "dropout", "bias")
        given = {key: getattr(self, key) for key in keys}
        given |= {"old_bias": met.has_old_bias, "composed": self._is_composed(met.dtype)}
        style = Style(name=self.prefix, dtype=met.dtype, **given)
        inner, outer = self._feed_forward(rows, split, style)
        block = self._kept((*self._attention(met, rows, style), *inner), outer)
        blocks = tuple(replace(o, num_repeats=self.layers) for o in block)
        last = style.named("last_norm").normed(rows // split, self.hidden)
        ends = (*last, *self._head(met, style))
        own = (*self._tokens(rows // split, split, style), *blocks, *ends)
        return self.placed((*joined, *self.uneven(own, flow.batch_size)), met)

    def _kept(self, block: Operators, outer: Operators) -> Operators:
        """The operators of a block, marked with what its backward pass computes again.

        Args:
            block: the operators before the last product.
            outer: the last product and the operators that follow it.
        """
        every, whole = (*block, *outer), (*PRODUCTS, OperatorKind.ATTENTION)
        if self.checkpoint == Checkpoint.NONE:
            return every
        if self.checkpoint == Checkpoint.SELECTIVE:
            return tuple(o if o.kind in whole else _again(o) for o in every)
        # The first norm keeps what it saves, the input of the block: all else follows from that.
        first = replace(_again(block[0]), saved_bytes=block[0].saved_bytes)
        is_read = self.checkpoint == Checkpoint.REENTRANT or self.dropout
        last = tuple(
            _again(o)
            if is_read or (o.kind not in whole and o.saved_bytes)
            else replace(o, saved_bytes=0.0)
            for o in outer
        )
        return (first, *map(_again, block[1:]), *last)

    def _attention(self, flow: Flow, rows: int, style: Style) -> Operators:
        """The first half of a block: norm, queries, keys and values, attention, and addition."""
        style, hidden = style.named("attention"), self.hidden
        width = hidden // self.heads
        others = 2 * width * (self.kv_heads or self.heads) // flow.split
        mine, own = hidden // flow.split, rows // flow.split
        first: Operators = ()
        if self.joint_qkv:
            first = style.projected(rows, hidden, mine + others)
            first += (style.moved((rows, mine + others), 0.0, 2.0 * style.element),)
        else:
            for i, size in enumerate((mine, others // 2, others // 2)):
                first += style.projected(rows, hidden, size, keeps_input=not i)
        last = style.projected(rows, mine, hidden, keeps_input=False)
        if self.rotary:
            first += (style.rotated(rows, mine + others // 2),)
        return (
            *style.normed(own, hidden),
            *first,
            *self._scores(flow, rows, style),
            *_shared(last, flow.split),
            *style.added(own, hidden),
        )

    def _scores(self, flow: Flow, rows: int, style: Style) -> Operators:
        """The attention itself, with written scores, or by one kernel that writes none.

        The kernel keeps queries, keys, values, the result, and one number in fp32 per row of
        scores. It reads shared keys and values for all heads of queries, as FlashAttention does.
        """
        width, heads = self.hidden // self.heads, self.heads // flow.split
        batch, length, seen = flow.batch_size, self.seq, self.seq
        if not self.fused_attention:
            sizes = (batch * heads, length, width)
            return style.scored(sizes, is_causal=self.causal, is_masked=self.masked)
        if self.lengths:  # Without padding each sequence attends only to itself.
            batch, length, seen = 1, rows, self.seen
        element, queries = style.inner.dtype.num_bytes, batch * heads * length
        # Keys and values, compared with queries.
        shared = 2.0 * (math.ceil(self.kv_heads / flow.split) or heads) / heads
        kernel = style.inner.operator(
            (batch * heads, length, seen, width, width),
            kind=OperatorKind.ATTENTION,
            read_bytes=(1.0 + shared) * queries * width * element,
            written_bytes=float(queries * width * element + 4 * queries),
            saved_bytes=(2.0 + shared) * queries * width * style.element + 4.0 * queries,
            is_causal=self.causal,
            flash_version=self.flash,
        )
        return (kernel,)

    def _feed_forward(self, rows: int, split: int, style: Style) -> tuple[Operators, Operators]:
        """The second half of a block: up to its activation; then its last product, and addition."""
        style, width, own = style.named("feed_forward"), self.ffn // split, rows // split
        outer = style.projected(rows, width, self.hidden)
        inner = (
            *style.normed(own, self.hidden),
            *style.projected(rows, self.hidden, width * (2 if self.gated else 1)),
            *style.activated(rows, width, gated=self.gated),
        )
        return inner, (*_shared(outer, split), *style.added(own, self.hidden))

    def _tokens(self, rows: int, split: int, style: Style) -> Operators:
        """The lookups of tokens and learned positions, for ``rows`` positions of this rank."""
        if not self.vocabulary:
            return ()
        style, shape = style.named("tokens"), (rows, self.hidden)
        size = math.ceil(self.vocabulary / split) * self.hidden
        filled = 4.0 if style.casts else style.element
        back = 3.0 * style.residual * rows * self.hidden + filled * size
        found = [style.inner.gather(shape, size, backward_bytes=back)]
        if not self.rotary:
            learned, path = (self.seq, self.hidden), style.residual
            found.append(style.inner.gather(learned, math.prod(learned)))
            found.append(style.moved(shape, 2.0 * path, path))
        if style.dropout:
            found.append(style.moved(shape, style.dropped, style.dropped, 1.0))
        return tuple(found)

    def _head(self, flow: Flow, style: Style) -> Operators:
        """The product with all tokens, and the loss."""
        if not self.vocabulary:
            return ()
        style, hidden = style.named("head"), self.hidden
        rows = flow.batch_size * self.predicted or self.rows(flow.batch_size)
        found: Operators = ()
        if self.head_transform:
            found = (
                *style.projected(rows, hidden, hidden),
                *style.activated(rows, hidden, gated=False),
                *style.normed(rows, hidden),
            )
        plain, classes = replace(style.inner, bias=False), math.ceil(self.vocabulary / flow.split)
        product, *casts = plain.projected(rows, hidden, classes)
        if self.tied:
            product = replace(product, num_parameters=0, parameter_bytes=0.0)
        is_cast = self.causal or not self.autocast
        ended = style.loss(rows, classes, is_fused=self.fused_loss, is_cast=is_cast)
        return (*found, product, *casts, ended)


def _again(operator: Operator) -> Operator:
    """The operator, if the backward pass runs it again instead of keeping what it needs."""
    return replace(operator, is_recomputed=True, saved_bytes=0.0)


def _shared(linear: Operators, split: int) -> Operators:
    """A linear layer of which each of ``split`` ranks has a part of the input.

    The ranks add up their results.
    """
    if split == 1:
        return linear
    return (replace(linear[0], shared_bytes=linear[0].written_bytes), *linear[1:])
